"""The fused stages: large problems, m15's split-K and ReLU, and how warps read and write. Ways to
fetch are in test_stages.py."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from test_stages import EIGHT_CHANNELS, FEW, TAIL

from convlab import ConvProblem, Tile, trace_stage
from convlab import ladder as stages
from convlab.ladder import production_program, production_tile, stage_named, tile_heuristic
from convlab.ladder.main.m13_window_copies import fetching_columns, make_locate
from convlab.ladder.main.m14_epilogue import interleaved_lanes
from convlab.problems.oracle import random_tensors
from convlab.running import plans

M15 = stage_named("m15")
WIDE = {"m15": Tile(16, 64, 8, 4, 8), "t03": Tile(16, 64, 8, 2, 8), "t05": Tile(24, 128, 16, 6, 4)}


@pytest.mark.same_in_cudasim
def test_places_beyond_32_bits_are_computed() -> None:
    for side, name in ((2**14, "looked_up"), (2**15, "computed")):
        large = ConvProblem(1, 8, side, side, 4, 1)
        assert make_locate(large, Tile(16, 32, 4, 4, 4)).py_func.__name__ == name


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("name", ["m11", "m15", "t03", "t05"])
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
@pytest.mark.parametrize("name", ["m11", "m15", "t03", "t05"])
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
    ("name", "rows", "kernel"), [("m15", 128, "split_k"), ("t05", 96, "warpgroups")]
)
def test_as_many_channels_as_rows_of_the_largest_blocks(name: str, rows: int, kernel: str) -> None:
    stage, most = stage_named(name), ConvProblem(1, 1, 1, 1, rows * 65535, 1)
    assert stage.prepare(most, tile := production_tile(stage, most)).tile == tile
    assert rows == tile.M_B
    more = replace(most, out_channels=rows * 65535 + 1)
    with pytest.raises(ValueError, match=f"{kernel} needs 65536 blocks along y: .* at most 65535"):
        stage.prepare(more, production_tile(stage, more))


# Of TAIL, whose outputs are stored as scalars, channels and windows stick out of every tile.
@pytest.mark.parametrize("problem", [EIGHT_CHANNELS, FEW, TAIL], ids=str)
@pytest.mark.parametrize(
    ("tile", "splits"),
    [(Tile(16, 32, 4, 4, 4), 2), (Tile(8, 16, 3, 4, 4), 100), (Tile(16, 64, 4, 4, 8), 3)],
    ids=str,
)
def test_sums_split_among_blocks(
    tile: Tile, splits: int, problem: ConvProblem, checked: Any
) -> None:
    tensors = random_tensors(problem, seed=splits)
    assert checked(problem, M15, tensors, tile, splits=splits).ok


def test_relu_with_split_sums_is_refused() -> None:
    problem = ConvProblem(1, 3, 6, 6, 5, 3)
    with pytest.raises(ValueError, match=r"splits is 2.*relu"):
        M15.prepare(problem, Tile(16, 32, 4, 4, 4), relu=True, splits=2)


# Where the threads of a warp are in a tile


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("stage", ["m11", "m15"])
def test_a_warp_reads_a_step_in_four_wavefronts(stage: str) -> None:
    """Two for its runs of the filter and two for those of the windows; in rows of 2 x 16 threads,
    as m08 has them, it would be six."""
    problem, tile = ConvProblem(1, 4, 8, 8, 32, 3, padding=1), Tile(32, 64, 12, 4, 4)
    launch = trace_stage(stage, problem, tile).main
    loads = [one for one in launch.of(space="shared") if one.operation == "load"]
    blocks, warps = problem.N // tile.N_B, tile.threads // 32
    assert launch.total("wavefronts", loads) == 4 * blocks * warps * problem.K


# Windows interleaved across a warp's lanes, where outputs are stored as scalars


def test_every_tile_of_warps_is_wide_enough_to_interleave() -> None:
    """Lanes are not interleaved where four outputs are one store."""
    for lanes, heuristic in ((8, tile_heuristic.M15), (4, tile_heuristic.T03)):
        for M_B, N_B, M_T, N_T in heuristic.rates:
            tile = Tile(M_B, N_B, 8, M_T, N_T)
            assert fetching_columns(tile)[0] % (4 * lanes) == 0
    even = ConvProblem(3, 4, 5, 5, 21, (2, 2))  # sixteen outputs an image, where TAIL has fifteen
    assert [interleaved_lanes(problem, 8) for problem in (TAIL, even)] == [8, 1]


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("name", WIDE)
def test_a_warp_s_stores_touch_fewer_sectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def trace() -> tuple[int, dict[str, Any]]:
        plans._prepared.cache_clear()  # programs are kept
        accesses = trace_stage(name, TAIL, WIDE[name]).main.accesses
        (stores,) = (a for a in accesses if (a.array, a.operation) == ("output", "store"))
        asked = {
            (a.array, a.operation): a.lanes for a in accesses if a.array in ("S_F", "S_I", "output")
        }
        return stores.sectors, asked

    interleaved, of_interleaved = trace()
    own = sys.modules[stage_named(name).module]
    monkeypatch.setattr(own, "interleaved_lanes", lambda *_: 1)
    in_runs, of_runs = trace()
    plans._prepared.cache_clear()
    assert of_interleaved == of_runs  # they do the same otherwise
    assert interleaved < 0.6 * in_runs
