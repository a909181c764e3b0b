"""The tile heuristics: those of m11 and m15 close to what tuning on an H200 found best."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from convlab import ConvProblem
from convlab.ladder import (
    Tile,
    allowances,
    candidates,
    production_tile,
    splits_for,
    stage_named,
    tile_heuristic,
)
from convlab.ladder.tile_heuristic import H200_SMS, im2win_terms
from convlab.problems.workloads import (
    LAYER_NAMES,
    M11_FITTED,
    UNSEEN,
    UNTUNED,
    paper_layer,
    problem_of,
)
from convlab.running import plans
from convlab.running.engines.kernels import compile_launch
from convlab.running.engines.simulator import Simulator

pytestmark = pytest.mark.same_in_cudasim

RESULTS = Path(__file__).parents[1] / "docs/results"
NAMES = ("m11", "m15", "t03", "t05", "t06")
ALL = M11, M15, T03, T05, T06 = [getattr(tile_heuristic, name.upper()) for name in NAMES]
STAGES = [*map(stage_named, NAMES)]
EACH = pytest.mark.parametrize(("heuristic", "stage"), [*zip(ALL, STAGES, strict=True)], ids=NAMES)
BOTH = pytest.mark.parametrize("heuristic", ALL[:2], ids=NAMES[:2])
MEASURED = {"m11": "tuned_m11_h200.json", "m15": "tuned_h200.json"}
LAYERS = {name: paper_layer(name) for name in LAYER_NAMES}
FEW_FILTERS = ConvProblem(8, 20, 120, 90, 6, (1, 7), padding=(0, 3))


def images(count, filters=256):
    """That many small images."""
    return ConvProblem(count, 256, 14, 14, filters, 3, padding=1)


@cache
def measured(name):
    """Yield for each problem of a file of ``convlab tune --json``: name, problem, times of
    its tiles, and today's choice. Nothing measured was wrong."""
    document = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    stage, found = stage_named(document["stage"]), []
    known = LAYERS | UNTUNED | UNSEEN
    for row in document["problems"]:
        problem = problem_of(row["problem"])
        assert problem == known.get(row["name"], problem), "it changed: measure it again"
        assert not [one for one in row["tiles"] if one["error"]]
        times = {Tile(*one["tile"]): one["time_ms"] for one in row["tiles"]}
        tile = production_tile(stage, problem, document["multiprocessors"])
        found.append((row["name"], problem, times, tile))
    return found


def ratios_of(name):
    """The time of today's choice over the best."""
    return [times[tile] / min(times.values()) for _, _, times, tile in measured(name)]


def test_m11_s_choice_is_close_to_the_best_on_all():
    assert [name for name, *_ in measured(MEASURED["m11"])] == [*LAYER_NAMES, *M11_FITTED]
    ratios = ratios_of(MEASURED["m11"])
    assert max(ratios[:12]) <= 1.02
    assert max(ratios) <= 1.04


def test_m11_s_choice_is_close_to_the_best_on_what_the_model_had_not_seen():
    """Windows of more terms than ``few_terms`` in slices of 8, and one in slices of 16."""
    found = measured("tuned_m11_shallow_h200.json")
    shallow = 0
    for _, problem, times, _ in found:
        assert set(M11.candidates(problem)) == set(times)
        shallow += M11.slice_depth(problem) == 8 and im2win_terms(problem) > M11.few_terms
    assert (shallow, len(found)) == (5, 6)
    ratios = ratios_of("tuned_m11_shallow_h200.json")
    assert max(ratios) <= 1.02
    assert ratios.count(1.0) == 5  # what docs/tiles.md says


def test_m15_s_choice_is_close_to_the_best_on_most():
    assert [name for name, *_ in measured(MEASURED["m15"])] == [*LAYER_NAMES, *UNTUNED, *UNSEEN]
    ratios = ratios_of(MEASURED["m15"])
    assert max(ratios[:12]) <= 1.02
    seen, unseen = ratios[: -len(UNSEEN)], ratios[-len(UNSEEN) :]
    assert sum(ratio <= 1.05 for ratio in seen) >= 0.9 * len(seen)
    assert sum(ratio <= 1.1 for ratio in unseen) >= 0.9 * len(unseen)
    assert max(ratios) < 1.25


def test_what_is_no_candidate_any_more_was_nowhere_needed():
    for file, heuristic in ((MEASURED["m11"], M11), (MEASURED["m15"], M15)):
        for name, problem, times, _ in measured(file):
            today = min(times[tile] for tile in heuristic.candidates(problem) if tile in times)
            assert today <= 1.02 * min(times.values()), name


# What the model says.


FILTERS = (1, 6, 16, 17, 33, 64, 65, 96, 100, 192, 1000, 8_000_000)


@EACH
@pytest.mark.parametrize("channels", [1, 3, 24, 64])
def test_there_are_candidates_for_every_problem_and_they_suit(heuristic, stage, channels):
    for count, filters in product((1, 10_000_000), FILTERS):
        if heuristic in (T05, T06):  # its widest tile for one output an image
            filters = min(filters, 96 * 65535)
        problem = ConvProblem(count, channels, 3, 3, filters, 3)
        tiles = heuristic.candidates(problem)
        assert len(set(tiles)) == len(tiles) >= 1
        assert heuristic.best_tile(problem) in tiles
        scalar = problem.H_o * problem.W_o % 4 != 0
        for tile in tiles:
            assert heuristic.estimated_cost(problem, tile) > 0
            assert not scalar or heuristic.most_scalar_sums >= tile.M_T * tile.N_T
            small = replace(problem, batch=1) if heuristic is M11 else problem
            assert stage.prepare(small, tile).tile == tile


@BOTH
def test_more_images_never_cost_less_and_more_sms_never_more(heuristic):
    for tile in heuristic.candidates(images(1)):
        costs = [heuristic.estimated_cost(images(count), tile) for count in (1, 2, 8, 64, 512)]
        assert costs == sorted(costs)
        costs = [heuristic.estimated_cost(images(1), tile, sms) for sms in (1, 2, 16, 132, 1000)]
        assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize(
    ("heuristic", "depths"),
    [
        (M11, {(64, 3): 16, (3, 11): 16, (3, 7): 8, (3, 3): 8, (1, 1): 8, (16, 1): 16}),
        (M15, {(64, 3): 16, (24, 1): 8, (3, 11): 16, (5, 8): 16, (3, 7): 7, (3, 3): 10, (5, 1): 5}),
        (T03, {(64, 3): 16, (24, 1): 8, (8, 3): 8, (3, 11): 16, (3, 3): 8, (1, 1): 8, (48, 1): 16}),
    ],
)
def test_how_deep_slices_are(heuristic, depths):
    for (channels, filter_size), depth in depths.items():
        problem = ConvProblem(1, channels, 16, 16, 8, filter_size)
        assert heuristic.slice_depth(problem) == depth
        assert depth in {tile.K_B for tile in heuristic.candidates(problem)}
    assert im2win_terms(ConvProblem(1, 3, 16, 16, 8, 11)) == 396
    padded = ConvProblem(1, 3, 16, 16, 8, 3, padding=1)
    assert heuristic is not M15 or heuristic.slice_depth(padded) == 9
    assert M15.slice_depth(ConvProblem(1, 5, 16, 16, 8, 3)) == 9  # odd, in more than three slices


def test_t05_counts_a_block_that_has_an_sm_to_itself_as_one_and_a_half():
    tile = Tile(128, 128, 16, 32, 4)  # two of them are resident
    one, two, three = (
        T05.estimated_cost(ConvProblem(blocks, 16, 8, 16, 128, 1), tile, sm_count=1)
        for blocks in (1, 2, 3)
    )
    assert (one, three) == (pytest.approx(1.5 / 2 * two), pytest.approx(3.5 / 2 * two))


@EACH
def test_the_choice_is_the_cheapest_by_the_model(heuristic, stage):
    for problem in LAYERS.values():
        few = heuristic.most_outputs >= problem.M * problem.N
        costs = {
            (tile, splits): heuristic.estimated_cost(problem, tile, splits=splits)
            for tile in heuristic.candidates(problem)
            for splits in (heuristic.splits if few else (1,))
            if splits <= -(-problem.K // tile.K_B)
            if splits == 1 or heuristic.most_split_sums >= tile.M_T * tile.N_T
        }
        tile = production_tile(stage, problem)
        assert tile == heuristic.best_tile(problem)
        assert costs[tile, heuristic.best_splits(problem, tile)] == min(costs.values())
        assert candidates(stage, problem) == heuristic.candidates(problem)


# The tiles of m11, m15, t03 and t05 for a layer, or so many small images, and a GPU of so many SMs.
CHOSEN = {
    ("conv1", 132): "96x64/8x8 96x128/12x8 96x64/6x8 96x128/24x4",
    ("conv2", 132): "96x64/8x8 96x128/12x8 96x64/12x8 96x128/24x4",
    ("conv3", 132): "64x64/8x4 64x128/8x8 64x128/8x8 64x128/16x4",
    ("conv5", 132): "128x64/8x8 128x64/8x8 64x64/4x8 128x128/32x4",
    ("conv6", 132): "128x64/8x8 128x64/8x8 64x64/4x8 112x128/28x4",
    ("conv8", 132): "128x64/8x8 128x64/8x8 128x64/16x8 128x128/32x4",
    ("conv9", 132): "64x128/8x8 64x128/8x8 64x64/4x8 64x128/16x4",
    ("conv12", 132): "128x64/8x8 128x64/8x8 64x128/8x8 64x128/16x4",
    (1, 16): "32x32/4x4 128x64/8x8 64x64/4x8 32x128/8x4",
    (1, 132): "32x32/4x4 128x64/8x8 32x64/4x8 32x128/8x4",
    (16, 16): "128x64/8x8 128x64/8x8 64x64/4x8 128x128/32x4",
    (16, 132): "32x32/4x4 128x64/8x8 32x64/4x8 32x128/8x4",
    (512, 132): "128x64/8x8 128x64/8x8 128x64/16x8 128x128/32x4",
}


@pytest.mark.parametrize(("case", "tiles"), CHOSEN.items(), ids=str)
def test_the_choice_is_for_the_channels_the_images_and_the_sms(case, tiles):
    """One image gets split-K or small blocks, many get large ones."""
    name, sms = case
    problem = LAYERS[name] if name in LAYERS else images(name)
    chosen = [heuristic.best_tile(problem, sms) for heuristic in ALL[:4]]
    assert [f"{one.M_B}x{one.N_B}/{one.M_T}x{one.N_T}" for one in chosen] == tiles.split()


# Split-K: m15 splits its sums where a GPU would have nothing to do.

FEW_OUTPUTS = [
    ConvProblem(1, 256, 14, 14, 256, 3, padding=1),
    ConvProblem(1, 512, 7, 7, 512, 3, padding=1),
    ConvProblem(1, 2048, 7, 7, 512, 1),
    ConvProblem(1, 1024, 14, 14, 2048, 1, stride=2),
    ConvProblem(4, 256, 14, 14, 256, 3, padding=1),
    ConvProblem(32, 512, 7, 7, 512, 3, padding=1),
    LAYERS["conv12"],
]
ONE_IMAGE = FEW_OUTPUTS[1]


@pytest.mark.parametrize("options", [{"relu": True}, {"split_k": False}], ids=str)
def test_sums_without_split_k_get_the_tile_that_is_best_for_these(options):
    class H200(Simulator):
        is_gpu, device = True, "one that nobody tuned on"

        def sm_count(self) -> int:
            return H200_SMS

    changed, stage = 0, stage_named("m15")
    for problem in FEW_OUTPUTS:
        tile = plans.program_for(problem, stage, None, H200(), **options).tile
        costs = {t: M15.estimated_cost(problem, t, splits=1) for t in M15.candidates(problem)}
        assert costs[tile] == min(costs.values())
        changed += tile != plans.program_for(problem, stage, None, H200()).tile
    assert changed == len(FEW_OUTPUTS) - 1  # Conv12 has blocks enough for large ones


@pytest.mark.parametrize("name", ["h03", "h04", "h05", "h06", "h07", "h08", "h09"])
@pytest.mark.parametrize("sms", [78, 114, H200_SMS])
def test_a_stage_of_one_block_per_sm_starts_as_many_as_the_gpu_has(name, sms):
    class Gpu(Simulator):
        is_gpu, device = True, "one that nobody tuned on"

        def sm_count(self) -> int:
            return sms

    stage = stage_named(name)
    problem = stage.adapted(ConvProblem(8, 3, 224, 224, 64, 7, stride=2, padding=3))
    program = plans.program_for(problem, stage, None, Gpu())
    assert math.prod(program.launches[-1].grid) == sms
    assert program.tile == production_tile(stage, problem, sms)
    on_simulator = plans.program_for(problem, stage, None, Simulator())
    usual = stage.prepare(problem, stage.tiny_tile)
    assert on_simulator.launches[-1].grid == usual.launches[-1].grid


def test_the_tile_of_a_stage_of_one_block_per_sm_depends_on_the_number_of_sms():
    """With one SM nothing is gained by more blocks, so the tile with the fewest slices wins."""
    stage = stage_named("h03")
    problem = stage.adapted(ConvProblem(1, 256, 14, 14, 256, 3, padding=1))
    one, many = (production_tile(stage, problem, sms) for sms in (1, H200_SMS))
    assert one.M_B * one.N_B > many.M_B * many.N_B
    assert many == production_tile(stage, problem)


def test_sums_are_split_where_sms_would_have_nothing_to_do():
    ragged, tiny = replace(ONE_IMAGE, out_channels=500), ConvProblem(3, 5, 7, 11, 13, 3)
    conv6, conv8 = LAYERS["conv6"], LAYERS["conv8"]
    for problem, tile, sms in (
        (ONE_IMAGE, M15.best_tile(ONE_IMAGE, 1), 1),
        (tiny, M15.best_tile(tiny), H200_SMS),  # a launch more would be all that it gets
        (conv8, M15.best_tile(conv8), H200_SMS),
        (ONE_IMAGE, Tile(16, 32, 4, 4, 4), H200_SMS),  # a tile that nobody measured
        (ONE_IMAGE, Tile(96, 128, 16, 12, 8), H200_SMS),  # too many sums a thread
        (ragged, Tile(128, 64, 16, 8, 8), H200_SMS),
        (conv6, M15.best_tile(conv6), H200_SMS),
    ):
        assert M15.best_splits(problem, tile, sms) == 1
    assert 8 <= M15.best_splits(ONE_IMAGE, M15.best_tile(ONE_IMAGE)) <= allowed(ONE_IMAGE)
    assert M15.best_splits(ragged, Tile(64, 64, 16, 8, 4)) > 1
    assert allowed(conv8) == 0
    assert M15.most_outputs < conv6.M * conv6.N  # by arithmetic alone, its sums would be split
    unlimited = replace(M15, most_outputs=conv6.M * conv6.N)
    assert unlimited.best_splits(conv6, unlimited.best_tile(conv6)) > 1


def allowed(problem):
    return allowances(stage_named("m15"), problem)["atomic_additions"]


@pytest.mark.parametrize("sms", [24, 108, H200_SMS, 264])
def test_no_tile_and_no_gpu_splits_more_often_than_the_check_allows(sms):
    for problem, (M_B, N_B, M_T, N_T), K_B in product(FEW_OUTPUTS, M15.rates, (4, 8, 16, 32)):
        splits = M15.best_splits(problem, Tile(M_B, N_B, K_B, M_T, N_T), sms)
        assert splits <= allowed(problem)


@pytest.mark.parametrize("options", [{}, {"split_k": False}, {"relu": True}], ids=str)
def test_split_sums_are_cleared_first_and_whole_ones_are_not_split(options):
    stage, tile = stage_named("m15"), M15.best_tile(ONE_IMAGE)
    splits = splits_for(stage, ONE_IMAGE, tile, None, **options)
    launches = stage.prepare(ONE_IMAGE, tile, **options, **splits).launches
    clear = [] if options else ["clear"]
    assert [step.name for step in launches] == ["pack_filter", *clear, "split_k"]


@pytest.mark.gate
@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("problem", [*map(paper_layer, ("conv1", "conv7", "conv12")), FEW_FILTERS])
def test_every_candidate_keeps_its_sums_in_registers(problem):
    """And takes no more of them than let the blocks live that the tile is for."""
    for tile in M11.candidates(problem):
        program = stage_named("m11").prepare(problem, tile)
        old, new = (compile_launch(program.launches[-1], program, gpu) for gpu in ((7, 5), (9, 0)))
        for cubin in (old, new):
            assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0), tile
        assert new.registers <= {64: 168, 32: 128, 16: 96}[tile.M_T * tile.N_T], tile
