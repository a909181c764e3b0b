"""s12: every way in which its slices are fetched, the ReLU, its workspace and its tiles."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from convlab import ConvProblem, Tile, plan, plans, stages, trace_stage
from convlab.engines import Engine
from convlab.engines.simulator import Simulator
from convlab.kernels import tile_heuristic, window_copies
from convlab.kernels.tile_heuristic import H200_SMS, SPLITS
from convlab.oracle import random_tensors
from convlab.stages import allowances, production_program, production_tile, splits_for, stage_named
from convlab.stages import s12_fused_im2win as s12
from convlab.workloads import LAYER_NAMES, paper_layer

S12 = s12.STAGE
HEURISTIC = tile_heuristic.S12
RATES, MOST_OUTPUTS = HEURISTIC.rates, HEURISTIC.most_outputs
best_splits, best_tile = HEURISTIC.best_splits, HEURISTIC.best_tile
candidates, estimated_cost = HEURISTIC.candidates, HEURISTIC.estimated_cost
# Eight channels, so that a slice can be channels of one place; five, so that none can.
MANY = ConvProblem(2, 8, 6, 7, 18, (3, 2), stride=(1, 2), padding=(1, 2), dilation=(2, 1))
FEW_OUTPUTS = [
    ConvProblem(1, 256, 14, 14, 256, 3, padding=1),
    ConvProblem(1, 512, 7, 7, 512, 3, padding=1),
    ConvProblem(1, 2048, 7, 7, 512, 1),
    ConvProblem(1, 1024, 14, 14, 2048, 1, stride=2),
    ConvProblem(4, 256, 14, 14, 256, 3, padding=1),
    ConvProblem(32, 512, 7, 7, 512, 3, padding=1),
    paper_layer("conv12"),
]
FEW = ConvProblem(3, 5, 7, 6, 9, (2, 3), stride=(2, 1), padding=((0, 2), (1, 0)))


@pytest.mark.parametrize("problem", [MANY, FEW], ids=["many channels", "few channels"])
@pytest.mark.parametrize(
    "tile",
    [
        Tile(16, 32, 8, 4, 4),  # a warp of 4 x 8
        Tile(32, 32, 4, 4, 4),  # two of them
        Tile(8, 16, 3, 4, 4),  # eight threads for 16 columns, an odd depth, a warp that is none
        Tile(16, 8, 7, 4, 4),  # as many threads as columns; a tail of K
        Tile(32, 8, 2, 4, 4),  # two rows of a slice at a time
        Tile(12, 32, 1, 12, 8),  # slices of one step
    ],
    ids=str,
)
def test_every_way_to_fetch(tile: Tile, problem: ConvProblem, checked: Any) -> None:
    tensors = random_tensors(problem, seed=tile.K_B)
    assert checked(problem, S12, tensors, tile).ok


def test_a_window_shorter_than_the_ring(checked: Any) -> None:
    problem = ConvProblem(2, 4, 5, 5, 5, 1)
    assert checked(problem, S12, random_tensors(problem, 1), Tile(16, 32, 4, 4, 4)).ok


def test_places_that_do_not_fit_constant_memory_are_computed(
    monkeypatch: pytest.MonkeyPatch, checked: Any
) -> None:
    monkeypatch.setattr(window_copies, "TABLE_BYTES", 0)
    for problem, depth in ((MANY, 4), (FEW, 3)):
        tile = Tile(16, 32, depth, 4, 4)
        plans._prepared.cache_clear()  # programs are kept
        assert checked(problem, S12, random_tensors(problem, 2), tile).ok


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("name", ["s11", "s12", "s13", "s14"])
def test_a_plan_of_a_large_filter_takes_no_memory_on_the_host(name: str) -> None:
    """Here a table of places, which would not fit constant memory, would have 800,000 rows."""
    problem, stage = ConvProblem(1, 5, 400, 400, 1, 400), stage_named(name)
    tracemalloc.start()
    try:
        production_program(stage, problem)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("name", ["s11", "s12", "s13", "s14"])
@pytest.mark.parametrize(
    "problem",
    [
        ConvProblem(1, 1, 1, 1, 2_200_000, 1),
        ConvProblem(8, 3, 2, 2, 4_190_000, 1),
        ConvProblem(2, 3_000_000, 1, 1, 64, 1),
    ],
    ids=str,
)
def test_millions_of_channels(problem: ConvProblem, name: str) -> None:
    stage = stage_named(name)
    for tile in (production_tile(stage, problem), *stages.candidates(stage, problem)):
        assert stage.prepare(problem, tile).tile == tile


@pytest.mark.same_in_cudasim
def test_s12_takes_as_many_channels_as_rows_of_its_largest_blocks() -> None:
    S12.prepare(most := ConvProblem(1, 1, 1, 1, 128 * 65535, 1), production_tile(S12, most))
    with pytest.raises(ValueError, match="fused_im2win needs 65536 blocks along y"):
        S12.prepare(more := replace(most, out_channels=128 * 65535 + 1), production_tile(S12, more))


@pytest.mark.parametrize("problem", [MANY, FEW], ids=["many channels", "few channels"])
@pytest.mark.parametrize("splits", [2, 3, 100])
@pytest.mark.parametrize("tile", [Tile(16, 32, 4, 4, 4), Tile(8, 16, 3, 4, 4)], ids=str)
def test_sums_split_among_blocks(
    tile: Tile, splits: int, problem: ConvProblem, checked: Any
) -> None:
    tensors = random_tensors(problem, seed=splits)
    assert checked(problem, S12, tensors, tile, splits=splits).ok


def test_relu_with_split_sums_is_refused() -> None:
    problem = ConvProblem(1, 3, 6, 6, 5, 3)
    with pytest.raises(ValueError, match=r"splits is 2.*relu"):
        stage_named("s12").prepare(problem, Tile(16, 32, 4, 4, 4), relu=True, splits=2)


def test_relu_keeps_nan_and_what_is_positive(engine: Engine) -> None:
    problem = ConvProblem(1, 3, 6, 6, 5, 3, padding=1)
    input, weight, bias = random_tensors(problem, 3)
    input[0, 1, 2, 2] = np.nan
    results = []
    for options in ({}, {"relu": True}):
        ready = plan(problem, "s12", engine=engine.name, **options)
        output = engine.to_device(np.full(problem.output_shape, 7, np.float32))
        ready(*map(engine.to_device, (input, weight)), output, engine.to_device(bias))
        results.append(engine.to_host(output))
    plain, clipped = results
    assert (plain < 0).any()
    assert np.isnan(plain).any()
    np.testing.assert_array_equal(clipped, np.where(plain < 0, np.float32(0), plain))


def test_the_ring_holds_three_slices_where_they_fit() -> None:
    assert Tile(128, 128, 16, 8, 8).pipeline_depth(16 * (128 + 128)) == 3
    assert Tile(128, 128, 20, 8, 8).pipeline_depth(20 * (128 + 128)) == 2


@pytest.mark.parametrize(
    ("channels", "filter_size", "depth"),
    [(64, 3, 16), (24, 1, 8), (3, 11, 16), (5, 8, 16), (3, 7, 7), (3, 3, 10), (1, 1, 1), (5, 1, 5)],
)
def test_how_deep_slices_are(channels: int, filter_size: int, depth: int) -> None:
    problem = ConvProblem(1, channels, 16, 16, 8, filter_size)
    assert HEURISTIC.slice_depth(problem) == depth
    padded = ConvProblem(1, channels, 16, 16, 8, filter_size, padding=1)
    assert HEURISTIC.slice_depth(padded) == (9 if depth == 10 else depth)


def test_every_candidate_suits_every_layer() -> None:
    for layer in LAYER_NAMES:
        for tile in candidates(paper_layer(layer)):
            S12.prepare(paper_layer(layer), tile)


def test_the_choice_is_the_cheapest_by_the_model() -> None:
    for layer in LAYER_NAMES:
        problem = paper_layer(layer)
        costs = {
            (tile, splits): estimated_cost(problem, tile, splits=splits)
            for tile in candidates(problem)
            for splits in (SPLITS if problem.M * problem.N <= MOST_OUTPUTS else SPLITS[:1])
            if splits <= -(-problem.K // tile.K_B)
        }
        tile = best_tile(problem)
        assert costs[tile, best_splits(problem, tile)] == min(costs.values())


@pytest.mark.parametrize("option", ["relu", "whole_sums"])
def test_sums_that_stay_whole_get_the_tile_that_is_best_for_these(option: str) -> None:
    class H200(Simulator):
        is_gpu, device = True, "one that nobody tuned on"

        def sm_count(self) -> int:
            return H200_SMS

    changed = 0
    for problem in FEW_OUTPUTS:
        tile = plans.tile_for(problem, S12, H200(), **{option: True})
        costs = {tile: estimated_cost(problem, tile, splits=1) for tile in candidates(problem)}
        assert tile is not None
        assert costs[tile] == min(costs.values())
        changed += tile != plans.tile_for(problem, S12, H200())
    assert changed == len(FEW_OUTPUTS) - 1  # Conv12 has blocks enough for large ones


def test_sums_are_split_where_multiprocessors_would_have_nothing_to_do() -> None:
    one_image = ConvProblem(1, 512, 7, 7, 512, 3, padding=1)
    assert best_splits(one_image, best_tile(one_image)) >= 8
    assert best_splits(one_image, best_tile(one_image, 1), 1) == 1
    tiny = ConvProblem(3, 5, 7, 11, 13, 3)  # a launch more would be all that it gets
    assert best_splits(tiny, best_tile(tiny)) == 1
    assert best_splits(paper_layer("conv8"), best_tile(paper_layer("conv8"))) == 1
    assert best_splits(one_image, Tile(16, 32, 4, 4, 4)) == 1  # a tile that nobody measured
    assert best_splits(one_image, Tile(96, 128, 16, 12, 8)) == 1  # too many sums a thread
    ragged = ConvProblem(1, 512, 7, 7, 500, 3, padding=1)
    assert (
        best_splits(ragged, Tile(128, 64, 16, 8, 8))
        == 1
        < best_splits(ragged, Tile(64, 64, 16, 8, 4))
    )
    assert allowances(S12, one_image)["atomic_additions"] >= best_splits(
        one_image, best_tile(one_image)
    )
    assert allowances(S12, paper_layer("conv8"))["atomic_additions"] == 0


def test_sums_are_not_split_where_there_are_many_outputs() -> None:
    many = paper_layer("conv6")
    assert many.M * many.N > MOST_OUTPUTS
    assert best_splits(many, best_tile(many)) == 1
    unlimited = replace(HEURISTIC, most_outputs=many.M * many.N)
    assert unlimited.best_splits(many, unlimited.best_tile(many)) > 1  # by arithmetic alone


@pytest.mark.parametrize("multiprocessors", [24, 108, H200_SMS, 264])
def test_no_tile_and_no_gpu_splits_more_often_than_the_check_allows(multiprocessors: int) -> None:
    for problem in FEW_OUTPUTS:
        for M_B, N_B, M_T, N_T in RATES:
            for K_B in (4, 8, 16, 32):
                splits = best_splits(problem, Tile(M_B, N_B, K_B, M_T, N_T), multiprocessors)
                assert splits <= allowances(S12, problem)["atomic_additions"]


def test_split_sums_are_cleared_first_and_whole_ones_are_not_split() -> None:
    problem = ConvProblem(1, 512, 7, 7, 512, 3, padding=1)
    tile = best_tile(problem)
    names = []
    for options in ({}, {"whole_sums": True}, {"relu": True}):
        splits = splits_for(S12, problem, tile, None, **options)
        names.append(
            [step.name for step in S12.prepare(problem, tile, **options, **splits).launches]
        )
    assert names == [["pack_filter", "clear", "fused_im2win"]] + 2 * [
        ["pack_filter", "fused_im2win"]
    ]


def test_the_choice_follows_channels_and_multiprocessors() -> None:
    wide, narrow = paper_layer("conv8"), paper_layer("conv9")
    assert (best_tile(wide).M_B, best_tile(narrow).M_B) == (128, 64)
    assert best_tile(paper_layer("conv1")).M_B == 96  # 128 would compute 32 channels of nothing


# Where the threads of a warp are in a tile


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("stage", ["s11", "s12"])
def test_a_warp_reads_a_step_in_four_wavefronts(stage: str) -> None:
    """Two for its runs of the filter and two for those of the windows; in rows of 2 x 16 threads,
    as s09 has them, it would be six."""
    problem, tile = ConvProblem(1, 4, 8, 8, 32, 3, padding=1), Tile(32, 64, 12, 4, 4)
    launch = trace_stage(stage, problem, tile).main
    loads = [one for one in launch.of(space="shared") if one.operation == "load"]
    blocks, warps = problem.N // tile.N_B, tile.threads // 32
    assert launch.total("wavefronts", loads) == 4 * blocks * warps * problem.K
