"""``check_function``: a learner's plain Python function, judged by what it returns; and a GPU to
practise measuring on, whose times are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from convlab.lessons.feedback import ANSWER, Feedback, Problem, graded
from convlab.lessons.words import broken, headline_of, not_judged, raised_in_words


def check_function(
    function: Any,
    wanted: Callable[..., Any],
    cases: Iterable[tuple[Any, ...]] | Callable[[], Iterable[tuple[Any, ...]]],
    *,
    within: float = 1e-6,
) -> Feedback:
    """Judge a function by what ``wanted`` returns on the same arguments, one number or several,
    ``within`` that part of it. ``cases`` may be a function that makes them anew: arguments that
    remember what was done to them are given to one function only. Nothing that is wrong with the
    function raises."""
    name = getattr(function, "__name__", "your function")
    title = f"your {name}"
    if unready := not_judged(title, function):
        return graded(unready)
    theirs, ours = (list(cases()) if callable(cases) else list(cases) for _ in range(2))
    for arguments, same in zip(theirs, ours, strict=True):
        said = f"{name}({', '.join(map(_brief, arguments))})"
        right = np.atleast_1d(np.asarray(wanted(*same), float))
        try:
            got = function(*arguments)
        except (Exception, SystemExit) as error:  # whatever somebody's code raises is its result
            return graded(broken(title, f"{said}: {raised_in_words(error)}"))
        try:
            numbers = np.atleast_1d(np.asarray(got, float))
        except (TypeError, ValueError):
            numbers = np.array([])
        if numbers.shape != right.shape or not np.allclose(numbers, right, rtol=within, atol=0):
            what = f"{said} is {_brief(got)}; wanted is {_brief(tuple(right.tolist()))}."
            problem = Problem(ANSWER, what)
            return graded(Feedback(title, headline_of([problem]), (problem,)))
    return graded(Feedback(title, "Passed.", (), (f"right on {len(ours)} cases",)))


def _brief(value: Any) -> str:
    if isinstance(value, tuple | list):
        inside = ", ".join(map(_brief, value))
        return inside if len(value) == 1 else f"({inside})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass
class PretendGPU:
    """A GPU of which one knows what a measurement should find, in milliseconds.

    It works while the program goes on: ``launch`` only puts work into its queue. The first launch
    compiles the kernel. What a launch has read stays in the cache, so that the next one takes
    ``cached`` instead of ``cold``. One launch in ``hiccup`` takes four times as long.
    """

    cold: float
    cached: float
    hiccup: int = 10
    _now: float = field(default=0.0, repr=False)
    _free: float = field(default=0.0, repr=False)
    _launches: int = field(default=0, repr=False)
    _in_cache: bool = field(default=False, repr=False)

    def launch(self) -> None:
        """Start the kernel: returns at once, long before it is done."""
        self._now += 0.01 if self._launches else 250.0
        self._launches += 1
        time = self.cached if self._in_cache else self.cold
        self._in_cache = True
        self._work(4 * time if self._launches % self.hiccup == 0 else time)

    def flush_cache(self) -> None:
        """Start a kernel that fills the cache with other numbers."""
        self._now += 0.01
        self._in_cache = False
        self._work(0.5)

    def wait(self) -> None:
        """Wait until all that was started is done."""
        self._now = max(self._now, self._free)

    def clock(self) -> float:
        """The time, in milliseconds."""
        return self._now

    def _work(self, time: float) -> None:
        self._free = max(self._now, self._free) + time


def pretended(gpu: PretendGPU, *_: Any) -> float:
    """What a measurement of it should find: one launch, from memory, without hiccups."""
    return gpu.cold


def gpus(*times: tuple[float, float]) -> Callable[[], list[tuple[PretendGPU, int]]]:
    """Cases for :func:`check_function`: GPUs of these times (cold, cached), 21 repeats each."""
    return lambda: [(PretendGPU(cold, cached), 21) for cold, cached in times]
