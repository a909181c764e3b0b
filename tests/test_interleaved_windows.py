"""Windows interleaved across a warp's lanes, in s12, s13 and s14: outputs stored as scalars."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from split_products import ODD, computed, name_of

from convlab import ConvProblem, Stage, Tile, plans
from convlab.engines import choose
from convlab.kernels import tile_heuristic, window_copies
from convlab.kernels.window_copies import interleaved_lanes
from convlab.oracle import random_tensors
from convlab.stages import stage_named
from convlab.tracing import trace_stage

S12, S13 = map(stage_named, ("s12", "s13"))
NAMES = ("s12", "s13", "s14")
WIDE = {"s12": Tile(16, 64, 8, 4, 8), "s13": Tile(16, 64, 8, 2, 8), "s14": Tile(24, 128, 16, 6, 4)}
# Of fifteen pixels an image: windows and channels stick out of every tile below.
TAIL = ConvProblem(5, 4, 4, 5, 21, (2, 1))
EVEN = ConvProblem(3, 4, 5, 5, 21, (2, 2))  # sixteen


def test_every_tile_of_warps_is_wide_enough_to_interleave() -> None:
    """Where four outputs are one store nobody interleaves."""
    for lanes, heuristic in ((8, tile_heuristic.S12), (4, tile_heuristic.S13)):
        for M_B, N_B, M_T, N_T in heuristic.rates:
            tile = Tile(M_B, N_B, 8, M_T, N_T)
            assert window_copies.fetching_columns(tile)[0] % (4 * lanes) == 0
    assert [interleaved_lanes(problem, 8) for problem in (TAIL, EVEN)] == [8, 1]


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


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("name", NAMES)
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
@pytest.mark.parametrize("name", NAMES)
def test_what_is_interleaved_comes_out_as_what_is_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: each sum is added up as it was, by another lane."""
    numbers = random_tensors(TAIL, 4)

    def output() -> np.ndarray:
        plans._prepared.cache_clear()
        result = computed(stage_named(name), choose("simulator"), TAIL, numbers, WIDE[name])
        plans._prepared.cache_clear()
        return result

    interleaved = output()
    monkeypatch.setattr(window_copies, "interleaved_lanes", lambda *_: 1)
    np.testing.assert_array_equal(output(), interleaved)
