"""The GPU on which systems are measured, as one worker process sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from convlab.bench import monitor
from convlab.bench.baselines import Prepared, System
from convlab.bench.monitor import SETTLED_PERCENT, Look
from convlab.bench.roofline import Machine
from convlab.bench.systems import system_named
from convlab.doctor import environment
from convlab.engines import choose
from convlab.problem import ConvProblem

if TYPE_CHECKING:
    from convlab.timer import Timing

CALLED_AT_MOST_MS = 500.0  # of ordinary calls, which are timed beside the graph's replays


class GpuBackend:
    """The current GPU. ``allowed`` are the ids of processes that may have work on it: ours, and
    those that were there, idle, before; None where they are unknown."""

    def __init__(self, allowed: Sequence[int] | None = None) -> None:
        self._engine = choose("gpu")
        self.allowed = allowed
        self._uuid = current_gpu()

    def system_named(self, name: str) -> System:
        """The stage or baseline of that name. A subclass may know others."""
        return system_named(name)

    def compile(self, name: str, problem: ConvProblem) -> Future[Any] | None:
        """Make a system ready for a problem; returns a future where that needs more time."""
        compile = self.system_named(name).compile
        return None if compile is None else compile(problem)

    def facts(self) -> dict[str, Any]:
        """The GPU's ceilings, computed and measured, and what is installed."""
        return {"machine": machine(self._engine).as_json(), "environment": environment([])}

    def free_bytes(self) -> int | None:
        return self._engine.free_bytes()

    def synchronize(self) -> None:
        """Wait for all work on the GPU; raises the errors of that work."""
        self._engine.synchronize()

    def time(self, prepared: Prepared, on_gpu: bool) -> Timing:
        """Time its ``run``, its output poisoned before the timed runs."""
        from convlab import timer

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
        from convlab import timer

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

    from convlab.bench.baselines import ceilings

    device = cuda.get_current_device()
    # Two transfers per clock: GPU memory has double data rate.
    bandwidth = 2e3 * device.MEMORY_CLOCK_RATE * device.GLOBAL_MEMORY_BUS_WIDTH / 8
    measured: list[float | None] = [None, None]
    for place, measure in enumerate((ceilings.sgemm_tflops, ceilings.copy_bytes_per_second)):
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
