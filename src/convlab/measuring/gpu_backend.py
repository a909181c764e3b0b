"""The GPU on which systems are measured, as one worker process sees it; its clocks, its load and
its ceilings.

nvidia-smi tells clocks and load. No setting changes. A query starts now and is read later, so that
it does not delay timed work. No program reaches the datasheet's peaks, so a convolution's speed is
also compared with what a library reaches: cuBLAS's SGEMM, and a copy in GPU memory. Both go through
C interfaces.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ctypes import byref, c_float, c_void_p
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from convlab.measuring import timer
from convlab.measuring.baselines import Prepared
from convlab.measuring.machine import environment, nvidia_smi
from convlab.measuring.roofline import Machine
from convlab.measuring.systems import system_named
from convlab.measuring.timer import Timing
from convlab.running.engines import Engine, address_of, choose
from convlab.running.engines.absent import GpuFacts
from convlab.running.engines.driver import driver_result

if TYPE_CHECKING:
    from numba.cuda.cudadrv.driver import Stream

SETTLED_PERCENT = 2.0  # a spread of times up to this needs no mark in a table
CALLED_AT_MOST_MS = 500.0  # of ordinary calls, which are timed beside the graph's replays
IDLE_PERCENT = 5  # of the time: a desktop's own drawing stays below
MEMORY_PERCENT = 10  # of all memory, held by others
SGEMM_SIZE = 8192
COPY_BYTES = 2**31
CHECKED = 64  # entries of the product, by a sum in float64
_QUERIES = ThreadPoolExecutor()  # of nvidia-smi, which takes a while
FIELDS = ("clocks.sm", "clocks.max.sm", "utilization.gpu", "memory.used", "memory.total")


class GpuBackend:
    """The current GPU. ``allowed`` are the ids of processes that may have work on it: ours, and
    those that were there, idle, before; None where they are unknown."""

    def __init__(self, allowed: Sequence[int] | None = None) -> None:
        self._engine = choose("gpu")
        self.allowed = allowed
        self._uuid = current_gpu()
        self.free_bytes, self.synchronize = self._engine.free_bytes, self._engine.synchronize

    system_named = staticmethod(system_named)

    def facts(self) -> dict[str, Any]:
        """The GPU's ceilings, computed and measured, what is installed, and what compilers need to
        know of the GPU."""
        return {
            "machine": asdict(machine(self._engine)),
            "environment": environment([]),
            "gpu": GpuFacts.of(self._engine),
        }

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
        return _QUERIES.submit(look, self._uuid).result

    def others(self) -> Callable[[], int | None]:
        """Ask how many processes compute on it that are not allowed."""
        numbers = _QUERIES.submit(processes, self._uuid).result
        return lambda: newcomers(numbers(), self.allowed, os.getpid())


def current_gpu() -> str | None:
    """The UUID of CUDA's first GPU, found without a context on it; None if unknown."""
    from cuda.bindings import driver

    with suppress(Exception):  # no driver at all, or no GPU
        driver.cuInit(0)
        uuid = driver_result(driver.cuDeviceGetUuid(driver_result(driver.cuDeviceGet(0))))
        return f"GPU-{UUID(bytes=bytes(uuid.bytes))}"
    return None


@dataclass(frozen=True)
class Look:
    """Clocks and load that nvidia-smi reports: MHz of the SMs, percent, MiB; None if unknown."""

    sm: int | None = None
    max_sm: int | None = None
    utilisation: int | None = None
    used_mib: int | None = None
    total_mib: int | None = None


def look(gpu: str | None) -> Look:
    """Clocks and load of the GPU of that UUID."""
    values = (nvidia_smi(f"--query-gpu={','.join(FIELDS)}", gpu) or [""])[0].split(", ")
    if len(values) != len(FIELDS):
        return Look()
    return Look(*(int(value) if value.strip().isdecimal() else None for value in values))


def processes(gpu: str | None) -> tuple[int, ...] | None:
    """The ids of the processes that compute on it, ours included; None where they are unknown. In
    a container they may be the ids outside of it."""
    if (lines := nvidia_smi("--query-compute-apps=pid", gpu)) is None:
        return None
    return tuple(int(line) for line in lines if line.strip().isdecimal())


def newcomers(seen: Sequence[int] | None, expected: Sequence[int] | None, own: int) -> int | None:
    """Return how many processes ``seen`` on a GPU are not ``expected`` there; None if unknown.

    ``own`` is the id of the process that computes there. Ids are compared only if ``own`` is among
    ``seen``. Otherwise the ids are those outside of a container, and only their number is compared.
    The result is None if no process is seen.
    """
    if not seen or expected is None:
        return None
    if own in seen:
        return len(set(seen) - set(expected))
    return max(0, len(seen) - len(expected))


def why_busy(seen: Look) -> str | None:
    """Return why a GPU is too busy to measure on, before we use it; None when it is idle."""
    if (seen.utilisation or 0) > IDLE_PERCENT:
        return f"other processes keep the GPU busy {seen.utilisation} % of the time"
    if seen.used_mib and seen.total_mib and 100 * seen.used_mib > MEMORY_PERCENT * seen.total_mib:
        used, whole = seen.used_mib / 1024, seen.total_mib / 1024
        return f"other processes hold {used:.1f} of the GPU's {whole:.0f} GiB"
    return None


def machine(engine: Engine) -> Machine:
    """The current GPU's ceilings; of those that a library measures, None where it cannot."""
    from numba import cuda

    device = cuda.get_current_device()
    # Two transfers per clock: GPU memory has double data rate.
    bandwidth = 2e3 * device.MEMORY_CLOCK_RATE * device.GLOBAL_MEMORY_BUS_WIDTH / 8
    return Machine(
        device=engine.device,
        fp32_flops=engine.peak_flops(),
        tf32_flops=engine.peak_flops("tf32"),
        memory_bytes_per_second=bandwidth or None,
        l2_bytes=int(device.L2_CACHE_SIZE),
        multiprocessors=int(device.MULTIPROCESSOR_COUNT),
        sgemm_tflops=_measured(sgemm_tflops),
        copy_bytes_per_second=_measured(copy_bytes_per_second),
    )


def _measured(measure: Callable[[], float]) -> float | None:
    """Return the measurement; None if its library is missing or broken."""
    try:
        return float(measure())
    except Exception:
        return None


def sgemm_tflops(size: int = SGEMM_SIZE) -> float:
    """TFLOP/s of cuBLAS's fp32 matrix product of ``size`` x ``size`` random matrices. Raises
    ``RuntimeError`` where cuBLAS fails or its product is wrong."""
    gpu, cublas = choose("gpu"), _cublas()
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((size, size), np.float32) for _ in range(2))
    a, b, c = gpu.to_device(left), gpu.to_device(right), gpu.empty((size, size))
    one, zero = c_float(1), c_float(0)
    handle = c_void_p()
    _check(cublas.cublasCreate_v2(byref(handle)))
    try:

        def start(stream: Stream) -> None:
            _check(cublas.cublasSetStream_v2(handle, c_void_p(int(stream.handle))))
            # Column by column to cuBLAS, so that it sees all three transposed: C' = B' A'.
            x, y, z = (c_void_p(address_of(matrix)) for matrix in (b, a, c))
            n, alpha, beta = size, byref(one), byref(zero)
            _check(cublas.cublasSgemm_v2(handle, 0, 0, n, n, n, alpha, x, n, y, n, beta, z, n))

        timing = timer.measure(start)
    finally:
        cublas.cublasDestroy_v2(handle)
    product = gpu.to_host(c)
    for row, column in np.random.default_rng(1).integers(size, size=(CHECKED, 2)):
        x, y = left[row].astype(np.float64), right[:, column].astype(np.float64)
        if not abs(product[row, column] - x @ y) <= size * 2.0**-24 * (abs(x) @ abs(y)):
            raise RuntimeError(f"cuBLAS's product is wrong at [{row}, {column}]")
    return 2 * size**3 / timing.median_ms / 1e9


def copy_bytes_per_second(nbytes: int = COPY_BYTES) -> float:
    """Bytes that a copy within the GPU's memory reads and writes in a second."""
    from cuda.bindings import driver

    gpu = choose("gpu")
    source, target = (gpu.empty((nbytes // 4,)) for _ in range(2))
    copied = 4 * (nbytes // 4)

    def start(stream: Stream) -> None:
        ends = address_of(target), address_of(source)
        driver_result(driver.cuMemcpyDtoDAsync(*ends, copied, int(stream.handle)))

    # Not through a graph: copies of this length take half as long again there.
    return 2 * copied / (timer.measure(start, as_graph=False).median_ms / 1e3)


def _cublas() -> Any:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"cuBLAS: status {status}")
