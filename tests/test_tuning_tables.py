"""docs/tiles.md is what its results give, and the model is what the page says of it."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from convlab import ConvProblem
from convlab.bench import tile_tables
from convlab.kernels import tile_heuristic
from convlab.kernels.tile_heuristic import MOST_SUMS
from convlab.stages import s12_fused_im2win as s12
from convlab.workloads import LAYER_NAMES, UNSEEN, UNTUNED, paper_layer

S12 = tile_heuristic.S12
RATES, best_splits, best_tile = S12.rates, S12.best_splits, S12.best_tile
candidates, estimated_cost = S12.candidates, S12.estimated_cost

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
ONE_IMAGE = ConvProblem(1, 256, 14, 14, 256, 3, padding=1)


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """What tuning found on an H200."""
    file = ROOT / tile_tables.RESULTS / f"{tile_tables.FILE}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_page_is_what_the_results_give(capsys) -> None:
    assert tile_tables.main(["--root", str(ROOT), "--check"]) == 0, capsys.readouterr().err


def test_the_model_is_close_to_the_best_on_most(measured: dict[str, Any]) -> None:
    found = tile_tables.choices(measured)
    assert [choice.name for choice in found] == [*LAYER_NAMES, *UNTUNED, *UNSEEN]
    ratios = [choice.ratio for choice in found]
    assert None not in ratios  # every tile that it takes was measured
    assert max(ratios[:12]) <= 1.02
    seen, unseen = ratios[: -len(UNSEEN)], ratios[-len(UNSEEN) :]
    assert sum(ratio <= 1.05 for ratio in seen) >= 0.9 * len(seen)
    assert sum(ratio <= tile_tables.CLOSE for ratio in unseen) >= 0.9 * len(unseen)
    assert max(ratios) < 1.25


def test_what_is_no_candidate_any_more_was_nowhere_needed(measured: dict[str, Any]) -> None:
    for choice, row in zip(tile_tables.choices(measured), measured["problems"], strict=True):
        today = set(map(astuple, candidates(choice.problem)))
        times = {tuple(one["tile"]): one["time_ms"] for one in row["tiles"]}
        best = min(time for tile, time in times.items() if tile in today)
        assert best <= 1.02 * choice.best_ms, choice.name


def test_how_much_longer_one_tile_takes_than_another(
    measured: dict[str, Any],
) -> None:
    """As the page's first lines say."""
    most: dict[str, float] = {}
    for row in measured["problems"]:
        best = min(one["time_ms"] for one in row["tiles"])
        for one in row["tiles"]:
            if one["tile"][3] * one["tile"][4] <= MOST_SUMS:
                kind = "split where that helps"
            else:
                kind = "one image" if row["problem"].startswith("1x") else "a batch"
            most[kind] = max(most.get(kind, 1.0), one["time_ms"] / best)
    found = [f"{most['split where that helps']:.1f}", f"{most['a batch']:.1f}"]
    assert [*found, f"{most['one image']:.0f}"] == ["5.3", "6.1", "20"]
    page = (ROOT / "docs/tiles.md").read_text(encoding="utf-8")
    said = " ".join(page.split("##")[0].split())
    assert "take 5.3 times as long" in said
    assert "can take 6.1 times as long as one whose sums are, with a single image 20 times" in said


def test_nothing_measured_was_wrong(measured: dict[str, Any]) -> None:
    assert not [one for row in measured["problems"] for one in row["tiles"] if one["error"]]


def document(**changed: Any) -> dict[str, Any]:
    tiles = [
        {"tile": list(astuple(tile)), "time_ms": time, "time_spread": 1.0, "error": None}
        for tile, time in zip(candidates(paper_layer("conv9")), (2.0, 1.0, 3.0), strict=True)
    ]
    row = {"name": "conv9", "problem": str(paper_layer("conv9")), "tiles": tiles}
    return {
        "device": "a GPU", "multiprocessors": 132, "stage": "s12_fused_im2win",
        "problems": [row | changed],
    }  # fmt: skip


def test_a_table_has_times_and_ratio() -> None:
    (choice,) = tile_tables.choices(document())
    assert choice.model == best_tile(choice.problem)
    assert (choice.best_ms, choice.ratio) == (1.0, 2.0)
    shown = tile_tables.show(document())
    assert "within 10% of the best on 0 of 1" in shown
    assert "| 64x128x16/8x8 | 2 | 64x64x16/8x4 | 1 | 2.00 | 27.5 |" in shown


def test_a_tile_that_was_not_measured_has_no_ratio() -> None:
    others = [one for one in document()["problems"][0]["tiles"] if one["time_ms"] != 2.0]
    (choice,) = tile_tables.choices(document(tiles=others))
    assert (choice.model_ms, choice.ratio) == (None, None)
    shown = tile_tables.show(document(tiles=others))
    assert "| - | 64x64x16/8x4 | 1 | - |" in shown
    assert "on 0 of 1; 1 not measured" in shown


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no "),
        ("{", "is no result of"),
        ("{}", "is no result of"),
        (json.dumps(document(problem="other")), "conv9 is not other now"),
        (json.dumps(document(name="conv99")), "conv99 is not "),
    ],
    ids=["missing", "broken", "empty", "another problem", "another name"],
)
def test_what_is_no_result_is_named_in_one_line(
    content: str | None, said: str, tmp_path: Path, capsys
) -> None:
    (tmp_path / "docs/results").mkdir(parents=True)
    sections = ("tiles", "s11-tiles")
    marked = "".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in sections)
    (tmp_path / tile_tables.PAGE).write_text(marked)
    if content is not None:
        (tmp_path / tile_tables.RESULTS / f"{tile_tables.FILE}.json").write_text(content)
    assert tile_tables.main(["--root", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


# What the model says.


@pytest.mark.parametrize("filters", [1, 6, 16, 17, 33, 64, 65, 96, 100, 192, 1000])
@pytest.mark.parametrize("images", [1, 10_000_000])
@pytest.mark.parametrize("channels", [1, 24, 64])
def test_there_are_candidates_for_every_problem_and_they_suit(
    filters: int, images: int, channels: int
) -> None:
    problem = ConvProblem(images, channels, 3, 3, filters, 3)
    tiles = candidates(problem)
    assert len(set(tiles)) == len(tiles) >= 1
    for tile in tiles:
        s12.check_tile(tile)
        assert estimated_cost(problem, tile) > 0


def test_every_shape_is_somebody_s_candidate() -> None:
    problems = [*map(paper_layer, ("conv1", "conv8", "conv12")), *UNTUNED.values()]
    tiles = {tile for problem in problems for tile in candidates(problem)}
    assert {(tile.M_B, tile.N_B, tile.M_T, tile.N_T) for tile in tiles} == set(RATES)


def test_more_images_never_cost_less_and_more_multiprocessors_never_more() -> None:
    for tile in candidates(ONE_IMAGE):
        costs = [
            estimated_cost(ConvProblem(images, 256, 14, 14, 256, 3, padding=1), tile)
            for images in (1, 2, 8, 64, 512)
        ]
        assert costs == sorted(costs)
        costs = [estimated_cost(ONE_IMAGE, tile, count) for count in (1, 2, 16, 132, 1000)]
        assert costs == sorted(costs, reverse=True)


def test_one_image_gets_split_sums_or_small_blocks_many_large_ones() -> None:
    assert best_splits(ONE_IMAGE, best_tile(ONE_IMAGE)) >= 8
    one = best_tile(ONE_IMAGE, whole_sums=True)
    assert one.M_B * one.N_B <= 32 * 32
    many = best_tile(ConvProblem(512, 256, 14, 14, 256, 3, padding=1))
    assert many.M_B * many.N_B == 128 * 64


def test_channels_that_do_not_exist_cost_what_others_do() -> None:
    wide, narrow = (ConvProblem(128, 64, 56, 56, filters, 3) for filters in (128, 97))
    tile = best_tile(wide)
    assert estimated_cost(wide, tile) == estimated_cost(narrow, tile)


def test_what_was_measured_later_is_told_with_its_command(measured: dict[str, Any]) -> None:
    one, other, third = (row["name"] for row in measured["problems"][:3])
    later = {one: "convlab tune a", other: "convlab tune b", third: "convlab tune a"}
    of = {row["name"]: row["problem"] for row in measured["problems"]}
    assert tile_tables._later(measured | {"measured_later": later}) == (
        f"Measured later, by `convlab tune a`: {of[one]}; {of[third]}.\n"
        f"Measured later, by `convlab tune b`: {of[other]}.\n"
    )
    assert tile_tables._later(measured | {"measured_later": {}}) == ""
