"""Where systems are really measured: the current NVIDIA GPU, as processes of their own see it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from convlab.bench import watch
from convlab.bench.baselines import Prepared
from convlab.bench.measuring import SETTLED_PERCENT, Clock
from convlab.bench.roofline import Machine
from convlab.bench.systems import System, system_named
from convlab.bench.watch import Look
from convlab.doctor import environment
from convlab.problem import ConvProblem

CALLED_AT_MOST_MS = 500.0  # of ordinary calls, which are timed beside the graph's replays


class Gpu:
    """The GPU, for one process. ``allowed`` are the numbers of the processes that may have work on
    it: ours, and those that had before we came and left it idle; None where nobody knows."""

    def __init__(self, allowed: Sequence[int] | None = None) -> None:
        from convlab.engines import choose

        self._engine = choose("gpu")
        self.allowed = allowed
        self._uuid = current_gpu()

    def system_named(self, name: str) -> System:
        """The stage or baseline of that name. A subclass may know others: all else asks here."""
        return system_named(name)

    def compile(self, name: str, problem: ConvProblem) -> Future[Any] | None:
        """Make a system ready for a problem, ahead of time; returns what to wait for, if it is not
        done yet."""
        compile = self.system_named(name).compile
        return None if compile is None else compile(problem)

    def facts(self) -> dict[str, Any]:
        """The GPU's ceilings, computed and measured, and what is kept with measurements."""
        return {"machine": machine(self._engine).as_json(), "environment": environment([])}

    def free_bytes(self) -> int | None:
        """Memory that can still be allocated."""
        return self._engine.free_bytes()

    def synchronize(self) -> None:
        """Wait for all work on the GPU."""
        self._engine.synchronize()

    def time(self, prepared: Prepared, on_gpu: bool) -> Clock:
        """Time its ``run``."""
        from convlab import timer

        if not on_gpu:
            return timer.measure_host(prepared.run, prepared.poison)
        return timer.measure(
            lambda stream: prepared.run(int(stream.handle)),
            spread_percent=SETTLED_PERCENT,
            before_repeats=prepared.poison,
            as_graph=prepared.capturable,
        )

    def time_called(self, prepared: Prepared) -> Clock:
        """Time its ``run`` without a graph, so that the host's time for launches shows."""
        from convlab import timer

        return timer.measure(
            lambda stream: prepared.run(int(stream.handle)),
            as_graph=False,
            at_most_ms=CALLED_AT_MOST_MS,
        )

    def look(self) -> Callable[[], Look]:
        """Ask how the GPU is."""
        return watch.look(self._uuid)

    def others(self) -> Callable[[], int | None]:
        """Ask how many processes compute on it that are not allowed."""
        numbers = watch.processes(self._uuid)
        return lambda: watch.newcomers(numbers(), self.allowed, os.getpid())


def current_gpu() -> str | None:
    """The UUID of the GPU that CUDA takes first, without making a context on it; None where the
    driver does not say."""
    from cuda.bindings import driver

    try:
        driver.cuInit(0)
        error, device = driver.cuDeviceGet(0)
        if error != driver.CUresult.CUDA_SUCCESS:
            return None
        error, uuid = driver.cuDeviceGetUuid(device)
        if error != driver.CUresult.CUDA_SUCCESS:
            return None
        digits = bytes(uuid.bytes).hex()
    except Exception:  # no driver at all
        return None
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return f"GPU-{'-'.join(parts)}"


def machine(engine: Any) -> Machine:
    """The current GPU's ceilings."""
    from numba import cuda

    from convlab.bench.baselines import ceilings

    device = cuda.get_current_device()
    # Two transfers a clock: every memory that GPUs have had for long is of double data rate.
    bandwidth = 2e3 * device.MEMORY_CLOCK_RATE * device.GLOBAL_MEMORY_BUS_WIDTH / 8
    return Machine(
        engine.device,
        engine.peak_flops(),
        engine.peak_flops("tf32"),
        bandwidth or None,
        int(device.L2_CACHE_SIZE),
        int(device.MULTIPROCESSOR_COUNT),
        _known(ceilings.sgemm_tflops),
        _known(ceilings.copy_bytes_per_second),
    )


def _known(measure: Callable[[], float | None]) -> float | None:
    """A ceiling, or None where what measures it is not here."""
    try:
        value = measure()
    except Exception:  # a library that is missing, or broken in its own way
        return None
    return None if value is None else float(value)
