"""Times of GPU work: CUDA events around replays of a captured graph, L2 flushed before each.

A graph holds the prepared launches, so that Numba's launch cost on the host (about 30 us for each
kernel) is not measured; after the flush every repeat reads its inputs from memory. Work that cannot
be captured is started anew each time; the host's own work is timed by its clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.bindings import driver
from numba import cuda

from convlab.running.engines.driver import driver_result

if TYPE_CHECKING:
    from numba.cuda.cudadrv.driver import Stream

WARM_UP, REPEATS = 3, 20
WARM_UP_MS = 100.0  # slow work is warm after that, however few runs it took
AT_MOST_MS = 3000.0  # of timed work; slow stages get fewer repeats, never fewer than five
FEWEST_REPEATS = 5
MOST_REPEATS = 200  # where a spread is to be reached
HOST_REPEATS = 3


@dataclass(frozen=True)
class Timing:
    """Median and spread of repeated runs: the middle half's width in percent of the median."""

    median_ms: float
    spread_percent: float
    repeats: int

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> Timing:
        """The statistics of these samples."""
        low, median, high = np.percentile(samples_ms, [25, 50, 75])
        return cls(float(median), float(100 * (high - low) / median), len(samples_ms))


def measure(
    call: Callable[[Stream], object],
    *,
    spread_percent: float | None = None,
    before_repeats: Callable[[], object] = lambda: None,
    as_graph: bool = True,
    at_most_ms: float = AT_MOST_MS,
) -> Timing:
    """Time ``call(stream)``, which starts the work on that stream without waiting.
    ``spread_percent`` repeats the work until the spread is that small, or ``at_most_ms`` is over.
    ``before_repeats`` is called once, before the timed repeats. ``as_graph=False`` times work that
    cannot be captured; launches that the host makes while L2 is flushed are not timed."""
    stream = cuda.stream()
    warm_up(lambda: call(stream), stream.synchronize)
    graph_of = captured(call, stream) if as_graph else nullcontext()
    with graph_of as graph, _flusher(stream) as flush:
        before_repeats()
        cuda.synchronize()
        samples: list[float] = []
        while not enough(samples, spread_percent, at_most_ms):
            begin, end = cuda.event(), cuda.event()
            flush()  # and the GPU is busy until the host has started a graph
            begin.record(stream)
            if as_graph:
                driver_result(driver.cuGraphLaunch(graph, int(stream.handle)))
            else:
                call(stream)
            end.record(stream)
            end.synchronize()
            samples.append(cuda.event_elapsed_time(begin, end))
    return Timing.of(samples)


def warm_up(
    start: Callable[[], object],
    wait: Callable[[], object],
    now: Callable[[], float] = time.perf_counter,
) -> None:
    """Run the work ``WARM_UP`` times, or until it took ``WARM_UP_MS``; ``now`` is in seconds."""
    until = now() + WARM_UP_MS / 1e3
    for _ in range(WARM_UP):
        start()
        wait()
        if now() >= until:
            return


def measure_host(
    call: Callable[[Stream], object],
    before_repeats: Callable[[], object] = lambda: None,
    at_most_ms: float = AT_MOST_MS,
) -> Timing:
    """Time ``call(None)``, which computes on the host: ``HOST_REPEATS`` times or more, until that
    took ``at_most_ms``."""
    before_repeats()
    samples: list[float] = []
    while len(samples) < HOST_REPEATS or (len(samples) < REPEATS and sum(samples) < at_most_ms):
        begin = time.perf_counter()
        call(None)
        samples.append(1e3 * (time.perf_counter() - begin))
    return Timing.of(samples)


def enough(
    samples_ms: Sequence[float], spread_percent: float | None = None, at_most_ms: float = AT_MOST_MS
) -> bool:
    """Return whether there are enough repeats.

    There must be ``REPEATS``, or as many as fit into ``at_most_ms``. With ``spread_percent`` there
    are more, up to ``MOST_REPEATS``, until the spread is that small. The spread is tested every
    ``REPEATS``, so that one lucky moment does not end the measurement.
    """
    count = len(samples_ms)
    if count < FEWEST_REPEATS:
        return False
    if sum(samples_ms) >= at_most_ms:
        return True
    if spread_percent is None:
        return count >= REPEATS
    if count % REPEATS:
        return False
    return count >= MOST_REPEATS or Timing.of(samples_ms).spread_percent <= spread_percent


@contextmanager
def captured(call: Callable[[Stream], object], stream: Stream) -> Iterator[Any]:
    """An executable graph of what ``call`` starts."""
    handle = int(stream.handle)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    driver_result(driver.cuStreamBeginCapture(handle, mode))
    try:
        call(stream)
    except BaseException:  # its message says more than the driver's about a broken capture
        driver.cuStreamEndCapture(handle)
        raise
    graph = driver_result(driver.cuStreamEndCapture(handle))
    executable = driver_result(driver.cuGraphInstantiate(graph, 0))
    try:
        yield executable
    finally:
        driver.cuGraphExecDestroy(executable)
        driver.cuGraphDestroy(graph)


@contextmanager
def _flusher(stream: Stream) -> Iterator[Callable[[], None]]:
    """A function that empties L2 by writing twice its size."""
    device = cuda.get_current_device().id
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    size = 2 * driver_result(driver.cuDeviceGetAttribute(attribute, device))
    scratch = driver_result(driver.cuMemAlloc(size))
    try:
        yield lambda: driver_result(driver.cuMemsetD8Async(scratch, 0, size, int(stream.handle)))
    finally:
        stream.synchronize()
        driver.cuMemFree(scratch)
