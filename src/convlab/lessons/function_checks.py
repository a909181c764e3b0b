"""Checks of a learner's functions of numbers, and a pretended GPU to practise measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from convlab.lessons import feedback
from convlab.lessons.feedback import Feedback, Mistake
from convlab.lessons.limits import graded, running
from convlab.lessons.readiness import ready


@dataclass
class PretendGPU:
    """A pretended GPU with known times in milliseconds, to practise measuring.

    ``launch`` only puts work into its queue. The first launch compiles the kernel. The numbers that
    a launch has read stay in the cache, so the next launch takes ``cached`` instead of ``cold``.
    One launch in ``hiccup`` takes four times as long.
    """

    cold: float
    cached: float
    hiccup: int = 10
    _now: float = field(default=0.0, repr=False)
    _free: float = field(default=0.0, repr=False)  # when the queue will be empty
    _launches: int = field(default=0, repr=False)
    _in_cache: bool = field(default=False, repr=False)

    def launch(self) -> None:
        """Start the kernel and return immediately, long before it is done."""
        slow = 4 if (self._launches + 1) % self.hiccup == 0 else 1
        time = slow * (self.cached if self._in_cache else self.cold)
        self._start(time, 0.01 if self._launches else 250.0)
        self._launches += 1
        self._in_cache = True

    def flush_cache(self) -> None:
        """Start a kernel that fills the cache with other numbers."""
        self._start(0.5, 0.01)
        self._in_cache = False

    def wait(self) -> None:
        """Wait until all started work is done."""
        self._now = max(self._now, self._free)

    def clock(self) -> float:
        """Return the time in milliseconds."""
        return self._now

    def _start(self, time: float, before: float) -> None:
        self._now += before
        self._free = max(self._now, self._free) + time


@graded
def check_function(
    function: Any, wanted: Callable[..., Any],
    cases: Iterable[tuple[Any, ...]] | Callable[[], Iterable[tuple[Any, ...]]], *,
    within: float = 1e-6,
) -> Feedback:  # fmt: skip
    """Check a function against ``wanted``, which returns one number or several.

    The results may differ by the part ``within``. ``cases`` may be a function that makes the
    arguments anew, so that no function gets arguments that an earlier one has changed.
    """
    name = getattr(function, "__name__", "your function")
    ready(function)
    theirs, ours = (list(cases()) if callable(cases) else list(cases) for _ in range(2))
    for arguments, same in zip(theirs, ours, strict=True):
        said = f"{name}({', '.join(map(_brief, arguments))})"
        right = np.atleast_1d(np.asarray(wanted(*same), float))
        with running(f"{said}: "):
            got = function(*arguments)
        if isinstance(gpu := arguments[0], PretendGPU) and gpu._launches < arguments[1]:
            what = f"{said} launches {gpu._launches} times; it must launch {arguments[1]} times."
            return feedback.with_mistakes([Mistake(feedback.ANSWER, what)])
        try:
            numbers = np.atleast_1d(np.asarray(got, float))
        except (TypeError, ValueError):
            numbers = np.array([])
        alike = numbers.shape == right.shape
        if not alike or not (close := np.isclose(numbers, right, rtol=within, atol=0)).all():
            numbered = right if right.ndim > 1 else tuple(right.tolist())
            what = f"{said} is {_brief(got)}; wanted is {_brief(numbered)}."
            if right.ndim > 1 and alike:
                where = tuple(np.argwhere(~close)[0].tolist())
                wrong = f"has {numbers[where]:.6g} at {[*where]}"
                what = f"{said} {wrong}, where {right[where]:.6g} is wanted."
            advice = _by_a_factor(numbers, right) if alike else ""
            return feedback.with_mistakes([Mistake(feedback.ANSWER, what, advice=advice)])
    return Feedback("Passed.", (), (f"right on {len(ours)} cases",))


def _by_a_factor(numbers: np.ndarray, right: np.ndarray) -> str:
    """Return the question about units if one number alone is wrong, by a power of ten or by 2."""
    if right.ndim != 1:
        return ""
    wrong = np.flatnonzero(~np.isclose(numbers, right)).tolist()
    if len(wrong) != 1 or not numbers[wrong[0]] or not right[wrong[0]]:
        return ""
    factor = float(numbers[wrong[0]] / right[wrong[0]])
    larger = max(factor, 1 / factor)
    for one in (2, 10, 100, 1e3, 1e6, 1e9, 1e12):
        if np.isclose(larger, one):
            which = f"Number {wrong[0] + 1} of the result" if len(right) > 1 else "The result"
            size = "large" if factor > 1 else "small"
            return f"{which} is {one:,.0f} times too {size}: are its units and its factors right?"
    return ""


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, tuple | list):
        inside = ", ".join(map(_brief, value))
        return inside if len(value) == 1 else f"({inside})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def pretended(gpu: PretendGPU, *_: Any) -> float:
    """Return the time of one launch that reads from memory and has no hiccup."""
    return gpu.cold


def gpus(*times: tuple[float, float]) -> Callable[[], list[tuple[PretendGPU, int]]]:
    """Return cases for :func:`check_function`: GPUs with these times (cold, cached), 21 repeats."""
    return lambda: [(PretendGPU(cold, cached), 21) for cold, cached in times]
