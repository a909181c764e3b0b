"""A pretended GPU to practise measuring, and the reason why a measurement of it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

REPEATS = 21
HICCUP = 10  # launches, of which one takes longer


@dataclass
class Span:
    """The work between two readings of the clock. ``busy_before`` and ``busy_after`` are true if
    the clock was read while the GPU still had work to do. ``flushed`` is true if the cache was
    flushed before the launches, and ``flushed_later`` if it was flushed after them."""

    busy_before: bool
    busy_after: bool = False
    flushed: bool = False
    flushed_later: bool = False
    launches: int = 0
    cached: int = 0  # launches that found their numbers in the cache


class Remark(NamedTuple):
    """A kind of wrong span, and what is told if most spans are of this kind."""

    fits: Callable[[Span], bool]
    told: str


# The first that fits most spans counts.
REMARKS = (
    Remark(
        lambda span: span.busy_after,
        "When the function reads the clock after a launch, the GPU is still at work: wait for it "
        "before you read the clock.",
    ),
    Remark(
        lambda span: span.flushed,
        "The function flushes the cache between two readings of the clock, so it measures the "
        "flush as well.",
    ),
    Remark(
        lambda span: span.busy_before,
        "When the function reads the clock before a launch, the GPU is still at work, and the "
        "function measures the rest of that work as well: wait for it before you read the clock.",
    ),
    Remark(
        lambda span: span.cached > 0,
        "The launches find their numbers in the cache: empty it before each launch.",
    ),
    Remark(
        lambda span: span.launches > 1,
        "Several launches lie between two readings of the clock, and the slow ones among them "
        "count as well: measure each launch by itself.",
    ),
)
MEASURED_WELL = (
    "Each launch is measured well. Which of these times, or which average of them, does the "
    "function return, and in which unit?"
)
NOT_MEASURED = "The function does not read gpu.clock() before and after the launches."


@dataclass
class PretendGPU:
    """A pretended GPU with known times in milliseconds, to practise measuring.

    ``launch`` only puts work into its queue. The first launch compiles the kernel. The numbers that
    a launch has read stay in the cache, so the next launch takes ``cached`` instead of ``cold``.
    One launch in ``hiccup`` takes four times as long: launch ``slow`` and every ``hiccup``-th one
    after it.
    """

    cold: float
    cached: float
    hiccup: int = HICCUP
    slow: int = HICCUP
    _now: float = field(default=0.0, repr=False)
    _free: float = field(default=0.0, repr=False)  # when the queue will be empty
    _launches: int = field(default=0, repr=False)
    _in_cache: bool = field(default=False, repr=False)
    _spans: list[Span] = field(default_factory=list, repr=False)  # the last one has not ended

    @property
    def launches(self) -> int:
        """The launches until now."""
        return self._launches

    @property
    def remark(self) -> str:
        """The sentence about how launches were measured."""
        spans = [span for span in self._spans[:-1] if span.launches]
        if not spans:
            return NOT_MEASURED
        if not any(span.launches for span in self._spans[1::2]):  # the clock is read in pairs
            spans = [replace(span, flushed=span.flushed or span.flushed_later) for span in spans]
        for remark in REMARKS:
            if 2 * sum(map(remark.fits, spans)) > len(spans):
                return remark.told
        return MEASURED_WELL

    def launch(self) -> None:
        """Start the kernel and return immediately, long before it is done."""
        times = 4 if (self._launches + 1 - self.slow) % self.hiccup == 0 else 1
        for span in self._spans[-1:]:
            span.launches += 1
            span.cached += self._in_cache
        time = times * (self.cached if self._in_cache else self.cold)
        self._start(time, 0.01 if self._launches else 250.0)
        self._launches += 1
        self._in_cache = True

    def flush_cache(self) -> None:
        """Start a kernel that fills the cache with other numbers."""
        for span in self._spans[-1:]:
            span.flushed_later |= span.launches > 0
            span.flushed |= span.launches == 0
        self._start(0.5, 0.01)
        self._in_cache = False

    def wait(self) -> None:
        """Wait until all started work is done."""
        self._now = max(self._now, self._free)

    def clock(self) -> float:
        """Return the time in milliseconds."""
        busy = self._free > self._now
        for span in self._spans[-1:]:
            span.busy_after = busy
        self._spans.append(Span(busy))
        return self._now

    def _start(self, time: float, before: float) -> None:
        self._now += before
        self._free = max(self._now, self._free) + time


def pretended(gpu: PretendGPU, *_: Any) -> float:
    """Return the time of one launch that reads from memory and has no hiccup."""
    return gpu.cold


def gpus(*times: tuple[float, float]) -> Callable[[], list[tuple[PretendGPU, int]]]:
    """Return cases for :func:`check_function`: GPUs with these times (cold, cached), 21 repeats.

    Of each there are several, so that every launch is a slow one on one of them: no function is
    right because it happens to use a launch that is not slow.
    """
    return lambda: [
        (PretendGPU(cold, cached, slow=slow), REPEATS)
        for slow in range(HICCUP, 0, -1)
        for cold, cached in times
    ]
