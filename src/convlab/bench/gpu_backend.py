"""The GPU on which systems are measured, as one worker process sees it, and its ceilings.

No program reaches the datasheet's peaks, so a convolution's speed is also compared with what a
library reaches: cuBLAS's SGEMM, and a copy in GPU memory. Both go through C interfaces.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from ctypes import byref, c_float, c_void_p
from dataclasses import asdict
from typing import Any
from uuid import UUID

import numpy as np

from convlab import timer
from convlab.bench import monitor
from convlab.bench.baselines import Prepared, System, pointer, times_ms
from convlab.bench.monitor import SETTLED_PERCENT, Look
from convlab.bench.roofline import Machine
from convlab.bench.systems import system_named
from convlab.doctor import environment
from convlab.engines import choose
from convlab.problem import ConvProblem
from convlab.timer import Timing

SGEMM_SIZE = 8192
COPY_BYTES = 2**31
CHECKED = 64  # entries of the product, by a sum in float64
CALLED_AT_MOST_MS = 500.0  # of ordinary calls, which are timed beside the graph's replays


class GpuBackend:
    """The current GPU. ``allowed`` are the ids of processes that may have work on it: ours, and
    those that were there, idle, before; None where they are unknown."""

    def __init__(self, allowed: Sequence[int] | None = None) -> None:
        self._engine = choose("gpu")
        self.allowed = allowed
        self._uuid = current_gpu()

    def system_named(self, name: str) -> System:
        """The stage or baseline of that name."""
        return system_named(name)

    def compile(self, name: str, problem: ConvProblem) -> Future[Any] | None:
        """Make a system ready for a problem; returns a future where that needs more time."""
        compile = self.system_named(name).compile
        return None if compile is None else compile(problem)

    def facts(self) -> dict[str, Any]:
        """The GPU's ceilings, computed and measured, and what is installed."""
        return {"machine": asdict(machine(self._engine)), "environment": environment([])}

    def free_bytes(self) -> int | None:
        return self._engine.free_bytes()

    def synchronize(self) -> None:
        """Wait for all work on the GPU; raises the errors of that work."""
        self._engine.synchronize()

    def time(self, prepared: Prepared, on_gpu: bool) -> Timing:
        """Time its ``run``, its output poisoned before the timed runs."""
        if not on_gpu:
            return timer.measure_host(prepared.run, prepared.poison)
        return timer.measure(
            lambda stream: prepared.run(int(stream.handle)),
            spread_percent=SETTLED_PERCENT,
            before_repeats=prepared.poison,
            as_graph=prepared.capturable,
        )

    def time_called(self, prepared: Prepared) -> Timing:
        """Time its ``run`` without a graph, so that the host's launch time shows."""
        return timer.measure(
            lambda stream: prepared.run(int(stream.handle)),
            as_graph=False,
            at_most_ms=CALLED_AT_MOST_MS,
        )

    def look(self) -> Callable[[], Look]:
        """Ask for clocks and load; call the result for the answer."""
        return monitor.look(self._uuid)

    def others(self) -> Callable[[], int | None]:
        """Ask how many processes compute on it that are not allowed."""
        numbers = monitor.processes(self._uuid)
        return lambda: monitor.newcomers(numbers(), self.allowed, os.getpid())


def current_gpu() -> str | None:
    """The UUID of CUDA's first GPU, without making a context on it; None where the driver does not
    say."""
    from cuda.bindings import driver

    with suppress(Exception):  # no driver at all
        driver.cuInit(0)
        error, device = driver.cuDeviceGet(0)
        if error == driver.CUresult.CUDA_SUCCESS:
            error, uuid = driver.cuDeviceGetUuid(device)
            if error == driver.CUresult.CUDA_SUCCESS:
                return f"GPU-{UUID(bytes=bytes(uuid.bytes))}"
    return None


def machine(engine: Any) -> Machine:
    """The current GPU's ceilings; of those that a library measures, None where it cannot."""
    from numba import cuda

    device = cuda.get_current_device()
    # Two transfers per clock: GPU memory has double data rate.
    bandwidth = 2e3 * device.MEMORY_CLOCK_RATE * device.GLOBAL_MEMORY_BUS_WIDTH / 8
    measured: list[float | None] = [None, None]
    for place, measure in enumerate((sgemm_tflops, copy_bytes_per_second)):
        with suppress(Exception):  # the library is missing or broken
            measured[place] = float(measure())
    return Machine(
        engine.device,
        engine.peak_flops(),
        engine.peak_flops("tf32"),
        bandwidth or None,
        int(device.L2_CACHE_SIZE),
        int(device.MULTIPROCESSOR_COUNT),
        *measured,
    )


def sgemm_tflops(size: int = SGEMM_SIZE) -> float:
    """TFLOP/s of cuBLAS's fp32 matrix product of ``size`` x ``size`` random matrices.

    Raises ``RuntimeError`` where cuBLAS fails or its product is wrong.
    """
    gpu, cublas = choose("gpu"), _cublas()
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((size, size), np.float32) for _ in range(2))
    a, b, c = gpu.to_device(left), gpu.to_device(right), gpu.empty((size, size))
    one, zero = c_float(1), c_float(0)
    handle = c_void_p()
    _check(cublas.cublasCreate_v2(byref(handle)))
    try:

        def start(stream: Any) -> None:
            _check(cublas.cublasSetStream_v2(handle, c_void_p(int(stream.handle))))
            # Column by column to cuBLAS, so that it sees all three transposed: C' = B' A'.
            x, y, z = (c_void_p(pointer(matrix)) for matrix in (b, a, c))
            n, alpha, beta = size, byref(one), byref(zero)
            _check(cublas.cublasSgemm_v2(handle, 0, 0, n, n, n, alpha, x, n, y, n, beta, z, n))

        timing = timer.measure(start)
    finally:
        cublas.cublasDestroy_v2(handle)
    product = gpu.to_host(c)
    for row, column in np.random.default_rng(1).integers(size, size=(CHECKED, 2)):
        x, y = left[row].astype(np.float64), right[:, column].astype(np.float64)
        bound = size * 2.0**-24 * (abs(x) @ abs(y))
        if not abs(product[row, column] - x @ y) <= bound:
            raise RuntimeError(
                f"cuBLAS's product is wrong at [{row}, {column}]: {product[row, column]:.9g}, "
                f"expected {x @ y:.9g}"
            )
    return 2 * size**3 / timing.median_ms / 1e9


def copy_bytes_per_second(nbytes: int = COPY_BYTES) -> float:
    """Bytes that a copy within the GPU's memory reads and writes in a second."""
    from cuda.bindings import driver

    gpu = choose("gpu")
    source, target = (gpu.empty((nbytes // 4,)) for _ in range(2))
    copied = 4 * (nbytes // 4)

    def start(stream: int | None) -> None:
        (error,) = driver.cuMemcpyDtoDAsync(pointer(target), pointer(source), copied, stream or 0)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA driver: {error.name} while copying")

    # Not through a graph: copies of this length take half as long again there.
    return 2 * copied / (float(np.median(times_ms(start, repeats=20))) / 1e3)


def _cublas() -> Any:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"cuBLAS: status {status}")
