"""The tile heuristics: those of s11 and s12 close to what tuning on an H200 found best."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from convlab import ConvProblem
from convlab.engines.offline import compile_launch
from convlab.kernels import tile_heuristic
from convlab.kernels.tile_heuristic import H200_SMS, im2win_terms
from convlab.stages import Tile, candidates, production_tile, stage_named
from convlab.workloads import LAYER_NAMES, S11_FITTED, UNSEEN, UNTUNED, paper_layer, problem_of

pytestmark = pytest.mark.same_in_cudasim

RESULTS = Path(__file__).parents[1] / "docs/results"
NAMES = ("s11", "s12", "s13", "s14")
ALL = S11, S12, S13, S14 = [getattr(tile_heuristic, name.upper()) for name in NAMES]
EACH = pytest.mark.parametrize("heuristic", ALL, ids=NAMES)
BOTH = pytest.mark.parametrize("heuristic", ALL[:2], ids=NAMES[:2])
STAGE_OF = dict(zip(map(id, ALL), map(stage_named, NAMES), strict=True))
MEASURED = {"s11": "tuned_s11_h200.json", "s12": "tuned_h200.json"}
LAYERS = {name: paper_layer(name) for name in LAYER_NAMES}
FEW_FILTERS = ConvProblem(8, 20, 120, 90, 6, (1, 7), padding=(0, 3))


def images(count, filters=256):
    """That many small images."""
    return ConvProblem(count, 256, 14, 14, filters, 3, padding=1)


@cache
def measured(name):
    """Of every problem of a file of ``convlab tune --json``: its name, the problem, the times of
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


def test_s11_s_choice_is_close_to_the_best_on_all():
    assert [name for name, *_ in measured(MEASURED["s11"])] == [*LAYER_NAMES, *S11_FITTED]
    ratios = ratios_of(MEASURED["s11"])
    assert max(ratios[:12]) <= 1.02
    assert max(ratios) <= 1.04


def test_s11_s_choice_is_close_to_the_best_on_what_the_model_had_not_seen():
    """Windows of more terms than ``few_terms`` in slices of 8, and one in slices of 16."""
    found = measured("tuned_s11_shallow_h200.json")
    shallow = 0
    for _, problem, times, _ in found:
        assert set(S11.candidates(problem)) == set(times)
        shallow += S11.slice_depth(problem) == 8 and im2win_terms(problem) > S11.few_terms
    assert (shallow, len(found)) == (5, 6)
    ratios = ratios_of("tuned_s11_shallow_h200.json")
    assert max(ratios) <= 1.02
    assert ratios.count(1.0) == 5  # what docs/tiles.md says


def test_s12_s_choice_is_close_to_the_best_on_most():
    assert [name for name, *_ in measured(MEASURED["s12"])] == [*LAYER_NAMES, *UNTUNED, *UNSEEN]
    ratios = ratios_of(MEASURED["s12"])
    assert max(ratios[:12]) <= 1.02
    seen, unseen = ratios[: -len(UNSEEN)], ratios[-len(UNSEEN) :]
    assert sum(ratio <= 1.05 for ratio in seen) >= 0.9 * len(seen)
    assert sum(ratio <= 1.1 for ratio in unseen) >= 0.9 * len(unseen)
    assert max(ratios) < 1.25


def test_what_is_no_candidate_any_more_was_nowhere_needed():
    for file, heuristic in ((MEASURED["s11"], S11), (MEASURED["s12"], S12)):
        for name, problem, times, _ in measured(file):
            today = min(times[tile] for tile in heuristic.candidates(problem) if tile in times)
            assert today <= 1.02 * min(times.values()), name


# What the model says.


FILTERS = (1, 6, 16, 17, 33, 64, 65, 96, 100, 192, 1000, 8_000_000)


@EACH
@pytest.mark.parametrize("channels", [1, 3, 24, 64])
def test_there_are_candidates_for_every_problem_and_they_suit(heuristic, channels):
    for count, filters in product((1, 10_000_000), FILTERS):
        if heuristic is S14:  # its widest tile for one output an image
            filters = min(filters, 96 * 65535)
        problem = ConvProblem(count, channels, 3, 3, filters, 3)
        tiles = heuristic.candidates(problem)
        assert len(set(tiles)) == len(tiles) >= 1
        assert heuristic.best_tile(problem) in tiles
        scalar = problem.H_o * problem.W_o % 4 != 0
        for tile in tiles:
            assert heuristic.estimated_cost(problem, tile) > 0
            assert not scalar or heuristic.most_scalar_sums >= tile.M_T * tile.N_T
            small = replace(problem, batch=1) if heuristic is S11 else problem
            assert STAGE_OF[id(heuristic)].prepare(small, tile).tile == tile


@BOTH
def test_every_shape_is_somebody_s_candidate(heuristic):
    problems = [*LAYERS.values(), *UNTUNED.values()]
    tiles = {tile for problem in problems for tile in heuristic.candidates(problem)}
    assert {(tile.M_B, tile.N_B, tile.M_T, tile.N_T) for tile in tiles} == {*heuristic.rates}


@BOTH
def test_more_images_never_cost_less_and_more_sms_never_more(heuristic):
    for tile in heuristic.candidates(images(1)):
        costs = [heuristic.estimated_cost(images(count), tile) for count in (1, 2, 8, 64, 512)]
        assert costs == sorted(costs)
        costs = [heuristic.estimated_cost(images(1), tile, sms) for sms in (1, 2, 16, 132, 1000)]
        assert costs == sorted(costs, reverse=True)


def test_one_image_gets_split_k_or_small_blocks_many_get_large_ones():
    assert S11.best_tile(images(1)) == Tile(32, 32, 16, 4, 4)
    assert S11.best_tile(images(512)) == Tile(128, 64, 16, 8, 8)
    conv7 = S11.best_tile(LAYERS["conv7"])
    assert (conv7.M_T, conv7.N_T) == (8, 4)  # few terms, few sums
    assert S12.best_splits(images(1), S12.best_tile(images(1))) >= 8
    one, many = S12.best_tile(images(1), whole_sums=True), S12.best_tile(images(512))
    assert one.M_B * one.N_B <= 32 * 32
    assert many.M_B * many.N_B == 128 * 64


def test_channels_that_do_not_exist_cost_what_others_do():
    wide, narrow = (ConvProblem(128, 64, 56, 56, filters, 3) for filters in (128, 97))
    tile = S12.best_tile(wide)
    assert S12.estimated_cost(wide, tile) == S12.estimated_cost(narrow, tile)


@pytest.mark.parametrize(
    ("heuristic", "depths"),
    [
        (S11, {(64, 3): 16, (3, 11): 16, (3, 7): 8, (3, 3): 8, (1, 1): 8, (16, 1): 16}),
        (S12, {(64, 3): 16, (24, 1): 8, (3, 11): 16, (5, 8): 16, (3, 7): 7, (3, 3): 10, (5, 1): 5}),
        (S13, {(64, 3): 16, (24, 1): 8, (8, 3): 8, (3, 11): 16, (3, 3): 8, (1, 1): 8, (48, 1): 16}),
    ],
)
def test_how_deep_slices_are(heuristic, depths):
    for (channels, filter_size), depth in depths.items():
        problem = ConvProblem(1, channels, 16, 16, 8, filter_size)
        assert heuristic.slice_depth(problem) == depth
        assert depth in {tile.K_B for tile in heuristic.candidates(problem)}
    assert im2win_terms(ConvProblem(1, 3, 16, 16, 8, 11)) == 396
    padded = ConvProblem(1, 3, 16, 16, 8, 3, padding=1)
    assert heuristic is not S12 or heuristic.slice_depth(padded) == 9


def test_an_odd_depth_stays_where_there_are_more_than_three_slices():
    three, five = (ConvProblem(1, channels, 16, 16, 8, 3) for channels in (3, 5))
    assert [S12.slice_depth(problem) for problem in (three, five)] == [10, 9]


def test_s14_counts_a_block_that_has_an_sm_to_itself_as_one_and_a_half():
    tile = Tile(128, 128, 16, 32, 4)  # two of them are resident
    one, two, three = (
        S14.estimated_cost(ConvProblem(blocks, 16, 8, 16, 128, 1), tile, sm_count=1)
        for blocks in (1, 2, 3)
    )
    assert (one, three) == (pytest.approx(1.5 / 2 * two), pytest.approx(3.5 / 2 * two))


@EACH
def test_the_choice_is_the_cheapest_by_the_model(heuristic):
    stage = STAGE_OF[id(heuristic)]
    for problem in LAYERS.values():
        few = heuristic.most_outputs >= problem.M * problem.N
        costs = {
            (tile, splits): heuristic.estimated_cost(problem, tile, splits=splits)
            for tile in heuristic.candidates(problem)
            for splits in (heuristic.splits if few else (1,))
            if splits <= -(-problem.K // tile.K_B)
        }
        tile = production_tile(stage, problem)
        assert tile == heuristic.best_tile(problem)
        assert costs[tile, heuristic.best_splits(problem, tile)] == min(costs.values())
        assert candidates(stage, problem) == heuristic.candidates(problem)


@pytest.mark.parametrize(
    ("heuristic", "problem", "few_sms"),
    [
        (S11, ConvProblem(16, 64, 14, 14, 64, 3, padding=1), 16),
        (S13, ConvProblem(1, 64, 8, 4 * H200_SMS, 128, 1), 1),
        (S14, ConvProblem(1, 64, 8, 8 * H200_SMS, 96, 1), 1),
    ],
)
def test_the_choice_is_for_the_gpu_s_sms(heuristic, problem, few_sms):
    few, many = (heuristic.best_tile(problem, count) for count in (few_sms, 2 * H200_SMS))
    assert few.M_B * few.N_B > many.M_B * many.N_B


@pytest.mark.parametrize("heuristic", [S12, S13])
def test_the_choice_is_for_the_channels(heuristic):
    chosen = [heuristic.best_tile(LAYERS[name]).M_B for name in ("conv8", "conv9", "conv1")]
    assert chosen == [128, 64, 96]


@pytest.mark.parametrize(("channels", "many_sums"), [(3, False), (24, True)])
def test_only_windows_of_few_terms_have_few_sums(channels, many_sums):
    """36 and 216 terms, both in slices of 8."""
    tiles = S11.candidates(ConvProblem(32, channels, 56, 56, 128, 3, padding=1))
    assert {tile.K_B for tile in tiles} == {8}
    assert any(tile.M_T * tile.N_T == 64 for tile in tiles) == many_sums


@pytest.mark.gate
@pytest.mark.parametrize("problem", [*map(paper_layer, ("conv1", "conv7", "conv12")), FEW_FILTERS])
def test_every_candidate_keeps_its_sums_in_registers(problem):
    """And takes no more of them than let the blocks live that the tile is for."""
    for tile in S11.candidates(problem):
        program = stage_named("s11").prepare(problem, tile)
        old, new = (compile_launch(program.launches[-1], program, gpu) for gpu in ((7, 5), (9, 0)))
        for cubin in (old, new):
            assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0), tile
        assert new.registers <= {64: 168, 32: 128, 16: 96}[tile.M_T * tile.N_T], tile
