"""Windows interleaved across a warp's lanes, in s12, s13 and s14: outputs stored as scalars."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from split_products import ODD, name_of

from convlab import ConvProblem, Stage, Tile, plans
from convlab.engines import choose
from convlab.kernels import tile_heuristic, window_copies
from convlab.kernels.window_copies import interleaved_lanes, make_interleave
from convlab.oracle import random_tensors
from convlab.stages import s12_fused_im2win, s13_tensor_cores, s14_warpgroups, stage_named
from convlab.tracing import trace_stage

S12, S13, S14 = map(stage_named, ("s12", "s13", "s14"))
MODULES = {"s12": s12_fused_im2win, "s13": s13_tensor_cores, "s14": s14_warpgroups}
WIDE = {"s12": Tile(16, 64, 8, 4, 8), "s13": Tile(16, 64, 8, 2, 8), "s14": Tile(24, 128, 16, 6, 4)}
# Of fifteen pixels an image: windows and channels stick out of every tile below.
TAIL = ConvProblem(5, 4, 4, 5, 21, (2, 1))
EVEN = ConvProblem(3, 4, 5, 5, 21, (2, 2))  # sixteen


# Where a window lies


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_a_window_is_found_where_it_was_put(lanes: int) -> None:
    column, window_at = (function.py_func for function in make_interleave(lanes))
    of_windows = [column(window) for window in range(128)]
    assert sorted(of_windows) == list(range(128))
    for first in (0, 32, 96):  # what a warp stores to one row lies in as many banks
        assert len({of_windows[first + lane] % 32 for lane in range(32)}) == 32
    for run in range(0, 128, 4):  # what a lane reads with one load
        windows = [window_at(run) + c * lanes for c in range(4)]
        assert [of_windows[window] for window in windows] == list(range(run, run + 4))
        # The lanes beside it have the windows beside these.
        if run // 4 % lanes:
            assert window_at(run) == window_at(run - 4) + 1
    for first in range(0, 128, 4 * lanes):  # so that a fetch of so many is a fetch of whole deals
        assert {of_windows[first + n] // (4 * lanes) for n in range(4 * lanes)} == {
            first // (4 * lanes)
        }


def test_who_interleaves() -> None:
    """Where four outputs are one store nobody does; and every tile of warps is wide enough."""
    of_s12 = [Tile(M_B, N_B, 8, M_T, N_T) for M_B, N_B, M_T, N_T in tile_heuristic.S12.rates]
    of_s13 = [Tile(M_B, N_B, 8, M_T, N_T) for M_B, N_B, M_T, N_T in tile_heuristic.S13.rates]
    lanes_of = [*((tile, 8) for tile in (*of_s12, S14.tiny_tile)), *((tile, 4) for tile in of_s13)]
    for tile, lanes in lanes_of:
        assert window_copies.fetching_columns(tile)[0] % (4 * lanes) == 0
        assert (interleaved_lanes(TAIL, lanes), interleaved_lanes(EVEN, lanes)) == (lanes, 1)


# What comes out


@pytest.mark.parametrize(
    ("stage", "tile", "options"),
    [
        (S12, Tile(16, 32, 8, 4, 4), {}),
        (S12, Tile(16, 64, 8, 4, 4), {}),  # two warps side by side
        (S12, Tile(16, 64, 4, 4, 8), {}),  # twice as many windows as threads
        (S12, Tile(8, 16, 3, 4, 4), {}),  # not interleaved
        (S12, Tile(16, 32, 4, 4, 4), {"splits": 2}),
        (S12, Tile(16, 64, 4, 4, 8), {"splits": 3}),
        (S12, Tile(8, 16, 3, 4, 4), {"splits": 2}),  # not interleaved
        (S13, Tile(16, 32, 8, 2, 8), {}),
        (S13, Tile(16, 64, 8, 2, 8), {}),  # two warps side by side
        (S13, Tile(16, 64, 8, 2, 16), {}),  # twice as many windows as threads
        (S13, Tile(32, 32, 8, 2, 8), {}),
    ],
    ids=name_of,
)
def test_tails_of_interleaved_windows(
    stage: Stage, tile: Tile, options: dict[str, Any], checked: Any
) -> None:
    for problem in (ODD, TAIL) if stage is S12 else (TAIL,):
        numbers = random_tensors(problem, 2, integers=True)
        result = checked(problem, stage, numbers, tile, **options)
        assert result.ok, result


# What it is for


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("name", MODULES)
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
    monkeypatch.setattr(window_copies, "interleaved_lanes", lambda *_: 1)
    in_runs, of_runs = trace()
    plans._prepared.cache_clear()
    assert of_interleaved == of_runs  # they do the same otherwise
    assert interleaved < 0.6 * in_runs


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("name", MODULES)
def test_what_is_interleaved_comes_out_as_what_is_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: each sum is added up as it was, by another lane."""

    def output() -> np.ndarray:
        plans._prepared.cache_clear()
        input, weight, bias = random_tensors(TAIL, 4)
        result = np.full(TAIL.output_shape, np.nan, np.float32)
        plan = plans.Plan(TAIL, stage_named(name), WIDE[name], choose("simulator"))
        plan(input, weight, result, bias)
        plans._prepared.cache_clear()
        return result

    interleaved = output()
    monkeypatch.setattr(window_copies, "interleaved_lanes", lambda *_: 1)
    np.testing.assert_array_equal(output(), interleaved)
