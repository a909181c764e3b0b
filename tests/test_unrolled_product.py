"""Where the threads of a warp are in a tile: each in a place of its own, so that reads overlap."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, uint32

from convlab import ConvProblem, Tile, trace_stage
from convlab.engines import Engine
from convlab.stage import Buffer, Launch, Program
from convlab.stages.s12_fused_im2win import make_place


@pytest.mark.parametrize(
    "tile",
    [Tile(128, 64, 16, 8, 8), Tile(16, 128, 8, 4, 8), Tile(12, 32, 8, 4, 4), Tile(20, 12, 4, 4, 4)],
    ids=str,
)
def test_every_thread_has_a_place_of_its_own(tile: Tile, engine: Engine) -> None:
    place = make_place(tile)

    @cuda.jit
    def places(rows, columns):
        t = uint32(cuda.threadIdx.x)
        rows[t], columns[t] = place(t)

    nowhere = np.full(tile.threads, np.nan, np.float32)
    rows, columns = (engine.to_device(nowhere) for _ in range(2))
    launch = Launch(places, (1,), (tile.threads,), ("rows", "columns"))
    buffers = tuple(Buffer(name, nowhere.shape) for name in launch.arguments)
    engine.build(launch, Program(buffers, (launch,), tile))([rows, columns])
    found = set(zip(engine.to_host(rows).tolist(), engine.to_host(columns).tolist(), strict=True))
    assert found == {(ty, tx) for ty in range(tile.rows) for tx in range(tile.columns)}


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("stage", ["s11", "s12"])
def test_a_warp_reads_a_step_in_four_passes(stage: str) -> None:
    """Two for its runs of the filter and two for those of the windows; in rows of 2 x 16 threads,
    as s09 has them, it would be six."""
    problem, tile = ConvProblem(1, 4, 16, 16, 32, 3, padding=1), Tile(32, 64, 12, 4, 4)
    launch = trace_stage(stage, problem, tile).main
    loads = [one for one in launch.of(space="shared") if one.operation == "load"]
    blocks, warps = problem.N // tile.N_B, tile.threads // 32
    assert launch.total("passes", loads) == 4 * blocks * warps * problem.K
