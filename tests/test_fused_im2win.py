"""s12: every way in which its slices are fetched, the ReLU, its workspace and its tiles."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from split_products import FEW, TAIL, computed

from convlab import ConvProblem, Tile, plans, stages, trace_stage
from convlab.engines import Engine
from convlab.engines.simulator import Simulator
from convlab.kernels import tile_heuristic, window_copies
from convlab.kernels.tile_heuristic import H200_SMS
from convlab.oracle import random_tensors
from convlab.stages import allowances, production_program, production_tile, splits_for, stage_named
from convlab.stages import s12_fused_im2win as s12
from convlab.workloads import paper_layer

S12 = s12.STAGE
HEURISTIC = tile_heuristic.S12
RATES, MOST_OUTPUTS = HEURISTIC.rates, HEURISTIC.most_outputs
best_splits, best_tile = HEURISTIC.best_splits, HEURISTIC.best_tile
candidates, estimated_cost = HEURISTIC.candidates, HEURISTIC.estimated_cost
# Eight channels, so that a slice can be channels of one place; five, so that none can.
MANY = ConvProblem(2, 8, 6, 7, 18, (3, 2), stride=(1, 2), padding=(1, 2), dilation=(2, 1))
# Of windows whose outputs are stored as scalars, channels and windows stick out of every tile.
PROBLEMS = {"many channels": MANY, "few channels": FEW, "scalars": TAIL}
FEW_OUTPUTS = [
    ConvProblem(1, 256, 14, 14, 256, 3, padding=1),
    ConvProblem(1, 512, 7, 7, 512, 3, padding=1),
    ConvProblem(1, 2048, 7, 7, 512, 1),
    ConvProblem(1, 1024, 14, 14, 2048, 1, stride=2),
    ConvProblem(4, 256, 14, 14, 256, 3, padding=1),
    ConvProblem(32, 512, 7, 7, 512, 3, padding=1),
    paper_layer("conv12"),
]


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize(
    "tile",
    [
        Tile(16, 32, 8, 4, 4),  # a warp of 4 x 8
        Tile(32, 32, 4, 4, 4),  # two of them
        Tile(16, 64, 8, 4, 4),  # two side by side
        Tile(16, 64, 4, 4, 8),  # twice as many windows as threads
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


@pytest.mark.same_in_cudasim
def test_places_beyond_32_bits_are_computed() -> None:
    for side, name in ((2**14, "looked_up"), (2**15, "computed")):
        large = ConvProblem(1, 8, side, side, 4, 1)
        assert window_copies.make_locate(large, Tile(16, 32, 4, 4, 4)).py_func.__name__ == name


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
@pytest.mark.parametrize(
    ("name", "rows", "kernel"), [("s12", 128, "fused_im2win"), ("s14", 96, "warpgroups")]
)
def test_as_many_channels_as_rows_of_the_largest_blocks(name: str, rows: int, kernel: str) -> None:
    stage, most = stage_named(name), ConvProblem(1, 1, 1, 1, rows * 65535, 1)
    assert stage.prepare(most, tile := production_tile(stage, most)).tile == tile
    assert rows == tile.M_B
    more = replace(most, out_channels=rows * 65535 + 1)
    with pytest.raises(ValueError, match=f"{kernel} needs 65536 blocks along y: .* at most 65535"):
        stage.prepare(more, production_tile(stage, more))


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize(
    ("tile", "splits"),
    [(Tile(16, 32, 4, 4, 4), 2), (Tile(8, 16, 3, 4, 4), 100), (Tile(16, 64, 4, 4, 8), 3)],
    ids=str,
)
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
    numbers = random_tensors(problem, 3)
    numbers[0][0, 1, 2, 2] = np.nan
    plain, clipped = (computed(S12, engine, problem, numbers, relu=relu) for relu in (False, True))
    assert (plain < 0).any()
    assert np.isnan(plain).any()
    np.testing.assert_array_equal(clipped, np.where(plain < 0, np.float32(0), plain))


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
    one_image, ragged = (ConvProblem(1, 512, 7, 7, M, 3, padding=1) for M in (512, 500))
    tiny, conv8, conv6 = ConvProblem(3, 5, 7, 11, 13, 3), paper_layer("conv8"), paper_layer("conv6")
    for problem, tile, sms in (
        (one_image, best_tile(one_image, 1), 1),
        (tiny, best_tile(tiny), H200_SMS),  # a launch more would be all that it gets
        (conv8, best_tile(conv8), H200_SMS),
        (one_image, Tile(16, 32, 4, 4, 4), H200_SMS),  # a tile that nobody measured
        (one_image, Tile(96, 128, 16, 12, 8), H200_SMS),  # too many sums a thread
        (ragged, Tile(128, 64, 16, 8, 8), H200_SMS),
        (conv6, best_tile(conv6), H200_SMS),
    ):
        assert best_splits(problem, tile, sms) == 1
    assert best_splits(one_image, best_tile(one_image)) >= 8
    assert best_splits(one_image, best_tile(one_image)) <= allowed(one_image)
    assert best_splits(ragged, Tile(64, 64, 16, 8, 4)) > 1
    assert allowed(conv8) == 0
    assert conv6.M * conv6.N > MOST_OUTPUTS  # by arithmetic alone, its sums would be split
    unlimited = replace(HEURISTIC, most_outputs=conv6.M * conv6.N)
    assert unlimited.best_splits(conv6, unlimited.best_tile(conv6)) > 1


def allowed(problem: ConvProblem) -> int:
    return int(allowances(S12, problem)["atomic_additions"])


@pytest.mark.parametrize("multiprocessors", [24, 108, H200_SMS, 264])
def test_no_tile_and_no_gpu_splits_more_often_than_the_check_allows(multiprocessors: int) -> None:
    for problem in FEW_OUTPUTS:
        for M_B, N_B, M_T, N_T in RATES:
            for K_B in (4, 8, 16, 32):
                splits = best_splits(problem, Tile(M_B, N_B, K_B, M_T, N_T), multiprocessors)
                assert splits <= allowed(problem)


def test_split_sums_are_cleared_first_and_whole_ones_are_not_split() -> None:
    problem = ConvProblem(1, 512, 7, 7, 512, 3, padding=1)
    tile = best_tile(problem)
    for options in ({}, {"whole_sums": True}, {"relu": True}):
        splits = splits_for(S12, problem, tile, None, **options)
        launches = S12.prepare(problem, tile, **options, **splits).launches
        clear = [] if options else ["clear"]
        assert [step.name for step in launches] == ["pack_filter", *clear, "fused_im2win"]


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
