"""s12's tile heuristic: for any problem, close to what tuning on an H200 found best."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path

import pytest
from tile_choices import CLOSE, choices

from convlab import ConvProblem
from convlab.kernels import tile_heuristic
from convlab.stages import stage_named
from convlab.workloads import LAYER_NAMES, UNSEEN, UNTUNED, paper_layer

pytestmark = pytest.mark.same_in_cudasim

HEURISTIC = tile_heuristic.S12
RATES, best_splits = HEURISTIC.rates, HEURISTIC.best_splits
best_tile, candidates = HEURISTIC.best_tile, HEURISTIC.candidates
estimated_cost = HEURISTIC.estimated_cost
ROOT = Path(__file__).parents[1]
ONE_IMAGE = ConvProblem(1, 256, 14, 14, 256, 3, padding=1)


@pytest.fixture(scope="module")
def measured():
    """What tuning found on an H200."""
    file = ROOT / "docs/results/tuned_h200.json"
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_model_is_close_to_the_best_on_most(measured):
    found = choices(measured)
    assert [choice.name for choice in found] == [*LAYER_NAMES, *UNTUNED, *UNSEEN]
    ratios = [choice.ratio for choice in found]
    assert None not in ratios  # every tile that it takes was measured
    assert max(ratios[:12]) <= 1.02
    seen, unseen = ratios[: -len(UNSEEN)], ratios[-len(UNSEEN) :]
    assert sum(ratio <= 1.05 for ratio in seen) >= 0.9 * len(seen)
    assert sum(ratio <= CLOSE for ratio in unseen) >= 0.9 * len(unseen)
    assert max(ratios) < 1.25


def test_what_is_no_candidate_any_more_was_nowhere_needed(measured):
    for choice, row in zip(choices(measured), measured["problems"], strict=True):
        today = set(map(astuple, candidates(choice.problem)))
        times = {tuple(one["tile"]): one["time_ms"] for one in row["tiles"]}
        best = min(time for tile, time in times.items() if tile in today)
        assert best <= 1.02 * choice.best_ms, choice.name


def test_nothing_measured_was_wrong(measured):
    assert not [one for row in measured["problems"] for one in row["tiles"] if one["error"]]


# What the model says.


@pytest.mark.parametrize("filters", [1, 6, 16, 17, 33, 64, 65, 96, 100, 192, 1000])
@pytest.mark.parametrize("images", [1, 10_000_000])
@pytest.mark.parametrize("channels", [1, 24, 64])
def test_there_are_candidates_for_every_problem_and_they_suit(filters, images, channels):
    problem = ConvProblem(images, channels, 3, 3, filters, 3)
    tiles = candidates(problem)
    assert len(set(tiles)) == len(tiles) >= 1
    for tile in tiles:
        stage_named("s12").prepare(problem, tile, splits=1)
        assert estimated_cost(problem, tile) > 0


def test_every_shape_is_somebody_s_candidate():
    problems = [*map(paper_layer, ("conv1", "conv8", "conv12")), *UNTUNED.values()]
    tiles = {tile for problem in problems for tile in candidates(problem)}
    assert {(tile.M_B, tile.N_B, tile.M_T, tile.N_T) for tile in tiles} == set(RATES)


def test_more_images_never_cost_less_and_more_multiprocessors_never_more():
    for tile in candidates(ONE_IMAGE):
        costs = [
            estimated_cost(ConvProblem(images, 256, 14, 14, 256, 3, padding=1), tile)
            for images in (1, 2, 8, 64, 512)
        ]
        assert costs == sorted(costs)
        costs = [estimated_cost(ONE_IMAGE, tile, count) for count in (1, 2, 16, 132, 1000)]
        assert costs == sorted(costs, reverse=True)


def test_one_image_gets_split_sums_or_small_blocks_many_large_ones():
    assert best_splits(ONE_IMAGE, best_tile(ONE_IMAGE)) >= 8
    one = best_tile(ONE_IMAGE, whole_sums=True)
    assert one.M_B * one.N_B <= 32 * 32
    many = best_tile(ConvProblem(512, 256, 14, 14, 256, 3, padding=1))
    assert many.M_B * many.N_B == 128 * 64


def test_channels_that_do_not_exist_cost_what_others_do():
    wide, narrow = (ConvProblem(128, 64, 56, 56, filters, 3) for filters in (128, 97))
    tile = best_tile(wide)
    assert estimated_cost(wide, tile) == estimated_cost(narrow, tile)
