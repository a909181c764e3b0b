"""Windows interleaved across a warp's lanes where outputs are stored as scalars: what it is for.
That the outputs are right is among the ways to fetch of s12, s13 and s14."""

from __future__ import annotations

from typing import Any

import pytest
from split_products import TAIL

from convlab import ConvProblem, Tile, plans
from convlab.kernels import tile_heuristic, window_copies
from convlab.kernels.window_copies import interleaved_lanes
from convlab.tracing import trace_stage

WIDE = {"s12": Tile(16, 64, 8, 4, 8), "s13": Tile(16, 64, 8, 2, 8), "s14": Tile(24, 128, 16, 6, 4)}
EVEN = ConvProblem(3, 4, 5, 5, 21, (2, 2))  # sixteen outputs an image, where TAIL has fifteen


def test_every_tile_of_warps_is_wide_enough_to_interleave() -> None:
    """Where four outputs are one store nobody interleaves."""
    for lanes, heuristic in ((8, tile_heuristic.S12), (4, tile_heuristic.S13)):
        for M_B, N_B, M_T, N_T in heuristic.rates:
            tile = Tile(M_B, N_B, 8, M_T, N_T)
            assert window_copies.fetching_columns(tile)[0] % (4 * lanes) == 0
    assert [interleaved_lanes(problem, 8) for problem in (TAIL, EVEN)] == [8, 1]


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
    monkeypatch.setattr(window_copies, "interleaved_lanes", lambda *_: 1)
    in_runs, of_runs = trace()
    plans._prepared.cache_clear()
    assert of_interleaved == of_runs  # they do the same otherwise
    assert interleaved < 0.6 * in_runs
