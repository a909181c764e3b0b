"""Figures that stand in more than one place: README.md, the pages, the site and the lessons show
the same measurement, and no file of results takes the place of another."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import build_site as site
import ladder_results
import pytest
from ladder_results import HEADLINE, by_name

from convlab.ladder import LADDER, candidates, stage_named, stages_of
from convlab.lessons import charts
from convlab.problems.workloads import paper_layer
from convlab.running import tuned
from convlab.running.compilers import MLIR, VARIABLE

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/ladder.md").read_text(encoding="utf-8")
FIGURES = ("time_ms", "tflops", "speedup")


def rows_of(text: str) -> list[list[str]]:
    """The cells of the tables' rows in Markdown."""
    lines = (line for line in text.splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def stage_in(cell: str) -> str:
    """The whole name of the stage that a link leads to."""
    return Path(re.findall(r"\(([^)]*)\)", cell)[0]).stem


def readme_figures() -> dict[str, dict[str, str]]:
    table = README.split("<!-- ladder:begin -->")[1].split("<!-- ladder:end -->")[0]
    return {
        stage_in(first): dict(zip(FIGURES, values, strict=True))
        for first, _, _, *values in rows_of(table)[2:]
    }


SHOWN = readme_figures()


def agree(one: str, other: str) -> bool:
    """Return whether two decimal numbers are the same at the digits of the coarser."""
    digits = min(len(text.partition(".")[2]) for text in (one, other))
    return abs(float(one) - float(other)) <= 0.501 * 10**-digits


@pytest.fixture(scope="module")
def render() -> Any:
    return site.renderer(site.ladder_results())


def stage_page(render: Any, folder: Path, name: str) -> str:
    (folder / f"{name}.json").write_text("null")  # its memory traffic is not asked for here
    return str(render("stage", **site.facts(stage_named(name), {}, folder)))


# Measured on another GPU than the other stages: docs/results/tensor_cores_conv9_h100.json.
ELSEWHERE = ("t06_split_k", "t07_tf32")


def test_readme_shows_the_main_route_and_the_tensor_cores():
    routes = [*stages_of("main"), *stages_of("tensor_cores")]
    assert [*SHOWN, *ELSEWHERE] == [stage.name for stage in routes]
    rows = json.loads((ROOT / "docs/results/tensor_cores_conv9_h100.json").read_text("utf-8"))
    assert {*ELSEWHERE} <= {row["name"] for row in rows["stages"]}


def test_the_first_page_of_the_site_shows_what_readme_shows(render):
    found = {stage_in(row[0]): row[3:5] for row in rows_of(render("ladder"))[2:]}
    for name, shown in SHOWN.items():
        for here, there in zip(found[name], (shown["tflops"], shown["speedup"]), strict=True):
            assert agree(here, there), (name, here, there)


def test_the_page_of_measurements_shows_what_readme_shows(render):
    head, _, *rows = rows_of(render("measurements", files=[]))
    place = head.index("Conv9")
    found = {stage_in(row[0]): row[place] for row in rows if "/stages/" in row[0]}
    for name, shown in SHOWN.items():
        tflops, speedup = found[name].strip(")").split(" (")
        assert agree(tflops, shown["tflops"]), name
        assert agree(speedup, shown["speedup"]), name


@pytest.mark.parametrize("name", SHOWN)
def test_a_stage_s_page_shows_what_readme_shows(render, tmp_path, name):
    of_gpu = stage_page(render, tmp_path, name).split("## On a GPU")[1].split("\n## ")[0]
    (row,) = (row for row in rows_of(of_gpu) if row[0] == "Conv9")
    for here, there in zip(row[1:4], SHOWN[name].values(), strict=True):
        assert agree(here, there), (name, here, there)


def test_the_ladder_s_page_shows_what_readme_shows():
    table = PAGE.split("<!-- ladder:begin -->")[1].split("<!-- ladder:end -->")[0]
    found = {stage_in(row[0]): row[1:4] for row in rows_of(table)[2:]}
    for name, shown in SHOWN.items():
        for here, there in zip(found[name], shown.values(), strict=True):
            assert agree(here, there), (name, here, there)


def test_the_picture_shows_what_readme_shows():
    said = re.findall(r"<text[^>]*>([^<]*)</text>", (ROOT / "docs/images/ladder.svg").read_text())
    for name, shown in SHOWN.items():
        heading = f"{name.partition('_')[0]} {stage_named(name).title.partition(': ')[0]}"
        of_stage = said[said.index(heading) :]
        place = next(place for place, text in enumerate(of_stage) if " TFLOP/s" in text)
        rate, speedup = of_stage[place : place + 2]
        assert agree(rate.split()[0], shown["tflops"]), (name, rate)
        assert agree(speedup.rstrip(ladder_results.TIMES), shown["speedup"]), (name, speedup)


def test_the_lessons_charts_show_what_readme_shows():
    stored = {one["name"]: one for one in charts.stored("conv9")["stages"]}
    first = stored[LADDER[0].name]["time_ms"]
    for name, shown in SHOWN.items():
        one = stored[name]
        values = (one["time_ms"], one["tflops"], first / one["time_ms"])
        for value, there in zip(values, shown.values(), strict=True):
            assert agree(f"{value:.6f}", there), name


TIMES_AS_FAST = re.compile(
    r"([\d.]+) times as fast as ([a-z]\d\d) on (Conv\d+)(?:, ([\d.]+) on (Conv\d+))?"
)
PERCENT = re.compile(
    r"(\d+) % less time than ([a-z]\d\d) on (Conv\d+), (\d+) % more(?: on (Conv\d+))?"
)


def test_the_words_of_the_ladder_s_page_are_what_was_measured():
    claims = 0
    for section in re.split(r"^### (?=[a-z]\d\d_)", PAGE, flags=re.M)[1:]:
        name, text = section.partition("\n")[0], " ".join(section.split())

        def ratio(base: str, layer: str, name: str = name) -> float:
            steps = {one["name"]: one for one in charts.stored(layer.lower())["stages"]}
            return float(steps[stage_named(base).name]["time_ms"] / steps[name]["time_ms"])

        for times, base, layer, more, other in TIMES_AS_FAST.findall(text):
            assert agree(f"{ratio(base, layer):.6f}", times), (name, layer)
            assert not more or agree(f"{ratio(base, other):.6f}", more), (name, other)
            claims += 1
        for less, base, layer, more, other in PERCENT.findall(text):
            assert agree(f"{100 - 100 / ratio(base, layer):.6f}", less), (name, layer)
            assert agree(f"{100 / ratio(base, other) - 100:.6f}", more), (name, other)
            claims += 1
    assert claims >= 12


# No result takes the place of another.


def written(folder: Path, name: str, **changed: Any) -> Path:
    document = json.loads((ROOT / f"docs/results/{HEADLINE}.json").read_text(encoding="utf-8"))
    file = folder / f"{name}.json"
    file.write_text(json.dumps(document | changed))
    return file


def test_compilers_and_gpus_have_results_of_their_own(tmp_path):
    usual = json.loads((ROOT / f"docs/results/{HEADLINE}.json").read_text(encoding="utf-8"))
    by_mlir = {"environment": usual["environment"] | {"compiler": MLIR}}
    by_older = {"environment": usual["environment"] | {
        "command": f"{VARIABLE}={MLIR} convlab ladder --json x", "gpu": None,
    }, "device": "another GPU"}  # fmt: skip
    files = [
        written(tmp_path, "ladder_conv9_h200_mlir", **by_mlir),
        written(tmp_path, "ladder_conv9_other", device="another GPU"),
        written(tmp_path, "ladder_conv9_other_mlir", **by_older),
        written(tmp_path, HEADLINE),
        written(tmp_path, "ladder_conv9_b4_h200", problem=usual["problem"] | {
            "batch": 4, "input_shape": [4, *usual["problem"]["input_shape"][1:]],
            "output_shape": [4, *usual["problem"]["output_shape"][1:]],
        }),
    ]  # fmt: skip
    for order in (files, files[::-1]):
        found = by_name(order)
        assert {run["file"] for run in found.values()} == {file.name for file in files}
        assert next(iter(found.values()))["file"] == f"{HEADLINE}.json"
        assert "Conv9, batch 128, numba-cuda-mlir, another GPU" in found
    again = written(tmp_path, "ladder_conv9_again")
    with pytest.raises(ValueError, match=r"are both of Conv9, batch 128, on an NVIDIA H200"):
        by_name([*files, again])


def test_every_file_of_the_ladder_is_on_the_site(render):
    names = {path.name for path in (ROOT / "docs/results").glob("ladder_*.json")}
    assert {run["file"] for run in site.ladder_results().values()} == names
    head = rows_of(render("measurements", files=[]))[0]
    assert len(head) == 1 + len(names) == len({*head})


def test_each_compiler_s_tiles_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(tuned, "code", lambda: "the same code")
    stage, problem = stage_named("m15"), paper_layer("conv9")
    one, other, *_ = candidates(stage, problem)
    monkeypatch.delenv(VARIABLE, raising=False)
    tuned.remember(problem, stage, "a GPU", one, 1.0)
    monkeypatch.setenv(VARIABLE, MLIR)
    assert tuned.tuned_tile(problem, stage, "a GPU") is None
    tuned.remember(problem, stage, "a GPU", other, 2.0)
    assert tuned.tuned_tile(problem, stage, "a GPU") == other
    monkeypatch.delenv(VARIABLE)
    assert tuned.tuned_tile(problem, stage, "a GPU") == one
