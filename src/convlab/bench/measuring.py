"""One system on one layer, measured: judged, timed, judged again. What goes wrong is the result.

Where it runs, the clock and the judge are handed in, so that all of it can be tested without a GPU.
"""

from __future__ import annotations

import errno
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from convlab.bench.baselines import Prepared, Unsupported
from convlab.bench.bounds import Judged
from convlab.bench.rows import State
from convlab.bench.systems import System
from convlab.bench.watch import Look
from convlab.problem import ConvProblem

SETTLED_PERCENT = 2.0  # a spread that needs no word
UNSTEADY_PERCENT = 20.0  # a spread that is no measurement
CLOCK_DROP_PERCENT = 15.0
TRIES = 3
OUT_OF_MEMORY = (
    "out of memory", "out_of_memory", "alloc_failed", "memoryallocation", "bad_alloc",
)  # fmt: skip
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


class Clock(Protocol):
    """A timing's statistics, as :class:`convlab.timer.Timing` has them."""

    @property
    def median_ms(self) -> float:
        """The median of the runs, in ms."""

    @property
    def spread_percent(self) -> float:
        """The width of their middle half, in percent of the median."""

    @property
    def repeats(self) -> int:
        """How many runs there were."""


class Place(Protocol):
    """Where systems are measured: a GPU."""

    def free_bytes(self) -> int | None:
        """Memory that can still be allocated."""

    def synchronize(self) -> None:
        """Wait for all work, which tells of what went wrong with it."""

    def time(self, prepared: Prepared, on_gpu: bool) -> Clock:
        """Time its ``run``, its output poisoned before the runs that are timed."""

    def time_called(self, prepared: Prepared) -> Clock:
        """Time its ``run`` called as anybody would, its launches included."""

    def look(self) -> Callable[[], Look]:
        """Ask how the GPU is; call what is returned for the answer."""

    def others(self) -> Callable[[], int | None]:
        """Ask how many processes of other people compute there."""


@dataclass
class Outcome:
    """What came of it: of a :class:`~convlab.bench.rows.Row`, what the measuring process knows."""

    state: State = "measured"
    reason: str | None = None
    time_ms: float | None = None
    time_spread: float | None = None
    repeats: int | None = None
    bound: str | None = None
    error_over_bound: float | None = None
    workspace_bytes: int | None = None
    peak_bytes: int | None = None
    algorithm: str | None = None
    clocks_mhz: dict[str, int | None] | None = None
    called_ms: float | None = None
    called_spread: float | None = None
    healthy: bool = field(default=True)  # whether the process may go on to the next

    def as_json(self) -> dict[str, Any]:
        """The outcome as a document of :mod:`json`."""
        return asdict(self)

    def without_number(self, state: State, reason: str) -> Outcome:
        """Say why there is none."""
        self.state, self.reason = state, reason
        self.time_ms = self.time_spread = self.repeats = None
        self.called_ms = self.called_spread = None
        return self


Judging = Callable[[np.ndarray], Judged]


def measure(
    system: System,
    problem: ConvProblem,
    tensors: tuple[np.ndarray, np.ndarray],
    place: Place,
    judge: Judging,
) -> Outcome:
    """Measure a system. Nothing is raised but what ends a process: the outcome says what went
    wrong, and whether the process can be trusted with the next one."""
    outcome = Outcome()
    prepared: Prepared | None = None
    try:
        absent = system.why_absent()
        if absent is not None:
            return outcome.without_number("absent", absent)
        prepared = system.prepare(problem, *tensors, None)
        _measure(system, prepared, place, judge, outcome)
    except Unsupported as error:
        outcome.without_number("unsupported", _words(error))
    except Exception as error:  # whatever it raises is its result
        # Who raises MemoryError has noticed in time, and given back what there was.
        outcome.healthy = isinstance(error, MemoryError)
        if is_out_of_memory(error):
            outcome.without_number("out of memory", _words(error) or type(error).__name__)
        else:
            outcome.without_number("failed", f"raised {type(error).__name__}: {_words(error)}")
    _close(prepared, place, outcome)
    return outcome


def _measure(
    system: System, prepared: Prepared, place: Place, judge: Judging, outcome: Outcome
) -> None:
    prepared.run(None)
    place.synchronize()
    if system.on_gpu:
        outcome.peak_bytes = place.free_bytes()  # what is left, until it is closed
    outcome.workspace_bytes = prepared.workspace_bytes
    prepared.poison()
    prepared.run(None)
    place.synchronize()
    before = prepared.output()
    if not _judged(judge(before), "", outcome):
        return
    for _ in range(TRIES):
        clocks, others = place.look(), place.others()
        if system.on_gpu:
            called = place.time_called(prepared)
            outcome.called_ms, outcome.called_spread = called.median_ms, called.spread_percent
        timing = place.time(prepared, system.on_gpu)
        clocks_after = place.look()
        place.synchronize()
        after = prepared.output()
        unsteady = _unsteady(timing, clocks(), clocks_after(), others(), outcome)
        if not same_bits(before, after) and not _judged(
            judge(after), "after it was timed, ", outcome
        ):
            return
        if unsteady is None:
            break
    outcome.algorithm = prepared.algorithm
    if system.on_gpu and outcome.peak_bytes is not None:
        outcome.peak_bytes = min(outcome.peak_bytes, place.free_bytes() or outcome.peak_bytes)
    if unsteady is not None:
        outcome.without_number(*unsteady)
        return
    outcome.time_ms, outcome.time_spread = timing.median_ms, timing.spread_percent
    outcome.repeats = timing.repeats


def _judged(judged: Judged, when: str, outcome: Outcome) -> bool:
    """Take the verdict over; whether it is right."""
    outcome.bound, outcome.error_over_bound = judged.bound, judged.error_over_bound
    if judged.reason is not None:
        outcome.without_number("wrong", f"{when}{judged.reason}")
    return judged.ok


def _unsteady(
    timing: Clock, before: Look, after: Look, others: int | None, outcome: Outcome
) -> tuple[State, str] | None:
    """Why a timing is none, if it is none."""
    outcome.clocks_mhz = {"before": before.sm, "after": after.sm, "max": after.max_sm}
    if others:
        are = "process is" if others == 1 else "processes are"
        return "busy", f"{others} other {are} on the GPU"
    if before.sm and after.sm and after.sm < before.sm * (1 - CLOCK_DROP_PERCENT / 100):
        return (
            "unsteady",
            f"the GPU's clock fell from {before.sm} to {after.sm} MHz meanwhile: it is too hot, "
            "short of power, or shared",
        )
    if timing.spread_percent > UNSTEADY_PERCENT:
        return (
            "unsteady",
            f"the middle half of {timing.repeats} runs spread over {timing.spread_percent:.0f} % "
            "of their median, in the last of several tries: something else is at work",
        )
    return None


def _close(prepared: Prepared | None, place: Place, outcome: Outcome) -> None:
    """Give everything back, and count what that gave: the peak, but for code that stays loaded."""
    left, outcome.peak_bytes = outcome.peak_bytes, None
    try:
        if prepared is not None:
            prepared.close()
        place.synchronize()
        free = place.free_bytes()
    except Exception as error:  # such as an error that stays with the process
        if outcome.healthy and outcome.state == "measured":
            reason = f"raised {type(error).__name__} afterwards: {_words(error)}"
            outcome.without_number("failed", reason)
        outcome.healthy = False
        return
    if left is not None and free is not None and outcome.healthy:
        outcome.peak_bytes = max(0, free - left)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two float32 outputs are the same bit by bit, so that one verdict is both's."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    with ThreadPoolExecutor() as pool:
        return all(pool.map(_same_bits, one, other))


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.array_equal(one.view(np.uint32), other.view(np.uint32)))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, in whichever library's words."""
    if isinstance(error, MemoryError):
        return True
    words = f"{type(error).__name__} {error}".lower()
    return any(sign in words for sign in OUT_OF_MEMORY) or "outofmemory" in words


def no_room(error: MemoryError | OSError, what: str) -> Outcome:
    """The outcome where the host, not the GPU, lacks memory or room on a disk: ``what`` it cannot
    do, and what the system says. Its process is not trusted with the next one."""
    state: State = "out of memory"
    if isinstance(error, OSError) and error.errno not in NO_ROOM:
        state = "failed"  # such as a folder that has gone
    said = _words(error) or type(error).__name__
    return Outcome(healthy=False).without_number(state, f"{what}: {said}")


def _words(error: BaseException) -> str:
    return textwrap.shorten(" ".join(str(error).split()), 300, placeholder=" ...")
