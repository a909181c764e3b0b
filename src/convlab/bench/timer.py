"""How long GPU work takes: CUDA events around replays of a captured graph, L2 flushed before each.

A graph holds the launches ready to go, so that Numba's launch cost on the host (about 30 us a
kernel) is not counted as kernel time; flushing means every repeat reads its inputs from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver
from numba import cuda

WARM_UP, REPEATS = 3, 20
AT_MOST_MS = 3000.0  # of timed work; slow stages get fewer repeats, never fewer than five
FEWEST_REPEATS = 5


@dataclass(frozen=True)
class Timing:
    """Median and spread of repeated runs; the spread is the middle half's width in percent of the
    median."""

    median_ms: float
    spread_percent: float
    repeats: int

    @classmethod
    def of(cls, samples_ms: list[float]) -> Timing:
        """The statistics of these samples."""
        low, median, high = np.percentile(samples_ms, [25, 50, 75])
        return cls(float(median), float(100 * (high - low) / median), len(samples_ms))


def measure(call: Callable[[Any], Any]) -> Timing:
    """Time ``call(stream)``, which starts the work on that stream and waits for nothing."""
    stream = cuda.stream()
    for _ in range(WARM_UP):
        call(stream)
    stream.synchronize()
    with captured(call, stream) as graph, _flusher(stream) as flush:
        samples: list[float] = []
        while len(samples) < FEWEST_REPEATS or (
            len(samples) < REPEATS and sum(samples) < AT_MOST_MS
        ):
            flush()
            start, end = cuda.event(), cuda.event()
            start.record(stream)
            _check(driver.cuGraphLaunch(graph, int(stream.handle)))
            end.record(stream)
            end.synchronize()
            samples.append(cuda.event_elapsed_time(start, end))
    return Timing.of(samples)


@contextmanager
def captured(call: Callable[[Any], Any], stream: Any) -> Iterator[Any]:
    """An executable graph of what ``call`` starts."""
    handle = int(stream.handle)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _check(driver.cuStreamBeginCapture(handle, mode))
    try:
        call(stream)
    finally:
        graph = _check(driver.cuStreamEndCapture(handle))
    executable = _check(driver.cuGraphInstantiate(graph, 0))
    try:
        yield executable
    finally:
        driver.cuGraphExecDestroy(executable)
        driver.cuGraphDestroy(graph)


@contextmanager
def _flusher(stream: Any) -> Iterator[Callable[[], None]]:
    """A function that empties L2 by writing twice its size."""
    device = cuda.get_current_device().id
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    size = 2 * _check(driver.cuDeviceGetAttribute(attribute, device))
    scratch = _check(driver.cuMemAlloc(size))
    try:
        yield lambda: _check(driver.cuMemsetD8Async(scratch, 0, size, int(stream.handle)))
    finally:
        stream.synchronize()
        driver.cuMemFree(scratch)


def _check(answer: tuple[Any, ...]) -> Any:
    """The driver's result, or RuntimeError naming its error."""
    error, *results = answer
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {error.name}")
    return results[0] if results else None
