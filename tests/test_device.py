"""The plain-Python emulations of what kernels call beyond ``numba.cuda``."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, int32
from numba.cuda.core import config

from convlab.device import (
    copy_async,
    copy_async4,
    emulation_of,
    emulations,
    gpu_only,
    issue_loads,
    load4,
    mma_tf32,
    store4,
    unrolled,
)
from convlab.ladder.stage import Launch
from convlab.running.engines.cudasim import CudaSim
from convlab.running.engines.simulator import Simulator
from convlab.simulation.rules.findings import SimulationError

# Under NUMBA_ENABLE_CUDASIM=1 the names are the emulations.
emulated_load4 = emulation_of(load4) or load4
emulated_store4 = emulation_of(store4) or store4


def test_four_neighbours_and_nothing_else_are_loaded_and_stored() -> None:
    row = np.arange(12, dtype=np.float32)
    assert emulated_load4(row, 4) == (4, 5, 6, 7)
    assert emulated_load4(row.reshape(3, 4), (2, 0)) == (8, 9, 10, 11)
    assert emulated_load4(row.reshape(1, 1, 12), (0, 0, np.uint32(8))) == (8, 9, 10, 11)
    rows = np.zeros((2, 8), np.float32)
    emulated_store4(rows, (1, 4), (1, 2, 3, 4))
    assert rows.tolist() == [[0] * 8, [0, 0, 0, 0, 1, 2, 3, 4]]


UNALIGNED = [(8, index) for index in (1, 2, 3, 6)] + [((1, 8), (0, 5))]
OUTSIDE = [(size, index) for size in (8, 11) for index in (-4, 8, 12)]  # of 11, 8 begins inside


@pytest.mark.parametrize(
    ("shape", "index", "says"),
    [(*one, "multiple of 4") for one in UNALIGNED] + [(*one, "outside") for one in OUTSIDE],
)
def test_a_misaligned_access_or_one_out_of_bounds_is_refused(shape, index, says) -> None:
    array, copy4 = np.zeros(shape, np.float32), emulation_of(copy_async4) or copy_async4
    for access in (
        lambda: emulated_load4(array, index),
        lambda: emulated_store4(array, index, (0, 0, 0, 0)),
        lambda: copy4(array, index, np.zeros(8, np.float32), 0, True),
    ):
        with pytest.raises(IndexError, match=says):
            access()


def test_an_emulated_copy_lands_at_once() -> None:
    source, target = np.arange(8, dtype=np.float32), np.full((2, 4), np.nan, np.float32)
    emulated, emulated4 = (emulation_of(copy) or copy for copy in (copy_async, copy_async4))
    emulated(target, (0, 3), source, 5, True)
    emulated(target, (0, 2), source, 99, False)  # nothing is read
    emulated4(target, (1, 0), source, 4, True)
    assert [target[0, 2:].tolist(), target[1].tolist()] == [[0, 5], [4, 5, 6, 7]]
    emulated4(target, (1, 0), source, 99, False)
    assert not target[1].any()
    with pytest.raises(IndexError, match="multiple of 4"):
        emulated4(target, (1, 0), source, 2, True)


def run(kernel, threads: int, a: np.ndarray, b: np.ndarray, *engines) -> None:
    """On Numba's simulator where that is on, else on each of the engines."""
    if config.ENABLE_CUDASIM:
        kernel[1, threads](a, b)
        return
    for engine in engines or (CudaSim(),):
        b[:] = np.nan
        engine.run(Launch(kernel, (1,), (threads,), ("input", "output")), [a, b])


@cuda.jit
def half_a_warp_issues_loads(a, b):
    i = cuda.threadIdx.x
    x = a[i]
    if i < 16:
        issue_loads()
    cuda.syncthreads()
    b[i] = x + x


@pytest.mark.skipif(bool(config.ENABLE_CUDASIM), reason="the engine needs the kernel's function")
def test_lanes_that_do_not_come_to_issue_loads_are_found() -> None:
    a, b = np.ones(32, np.float32), np.zeros(32, np.float32)
    says = r"kernel half_a_warp_issues_loads.*\n- inactive lane.*lanes 16-31.*never come"
    with pytest.raises(SimulationError, match=says):
        run(half_a_warp_issues_loads, 32, a, b, Simulator())


@cuda.jit
def multiplied_by_a_part(a, b):
    lane = cuda.threadIdx.x
    if lane != b.size:
        x = a[0]
        b[lane] = mma_tf32((x, x, x, x), (x, x), (x, x, x, x))[0]
    cuda.syncthreads()


@pytest.mark.parametrize(("threads", "size", "absent"), [(64, 35, 3), (48, 48, 16)])
def test_a_tensor_core_does_not_wait_for_lanes_that_never_come(
    threads: int, size: int, absent: int, monkeypatch
) -> None:
    monkeypatch.setattr(emulations, "LANE_TIMEOUT_SECONDS", 0.5)  # Numba's simulator takes so long
    a, b = np.ones(1, np.float32), np.zeros(size, np.float32)
    with pytest.raises(RuntimeError, match=rf"needs the whole warp, but lanes? \[?{absent}\b"):
        run(multiplied_by_a_part, threads, a, b)


def test_options_that_numbas_simulator_does_not_know_are_left_out() -> None:
    options = {"launch_bounds": 128, "forceinline": True}
    assert emulation_of(len) is emulation_of(None) is None
    assert gpu_only(**options) == ({} if config.ENABLE_CUDASIM else options)


@pytest.mark.parametrize("counters", [range(0), range(1), range(0, 6, 2), (5, 3, 3)], ids=str)
def test_unrolled_steps_are_taken_in_order_once_each(counters) -> None:
    @cuda.jit(device=True)
    def step(k, out, at):
        out[at[0]] = k
        at[0] += 1

    steps = unrolled(step, counters)

    @cuda.jit
    def kernel(a, b):
        at = cuda.local.array(1, int32)
        at[0] = 0
        steps(b, at)

    for engine in (CudaSim(), Simulator()):
        b = np.full(8, np.nan, np.float32)
        run(kernel, 1, np.zeros(1, np.float32), b, engine)
        assert b[~np.isnan(b)].tolist() == [*counters]
