"""Measure one system on one problem: check its output, time it, check the output again.

:func:`run_process` is the process that measures. Its parent (:mod:`convlab.measuring.pool`) checks
the outputs, so nothing that breaks here (an error that stays with the CUDA context, a crash, lost
memory) reaches the check or another system's result. Whatever goes wrong becomes the state and the
reason of the :class:`MeasuringOutcome`."""

from __future__ import annotations

import errno
import os
import textwrap
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np

from convlab.measuring.baselines import Prepared, System, Unsupported
from convlab.measuring.bounds import Checked
from convlab.problems.number_types import as_in_kernels
from convlab.problems.problem import ConvProblem

if TYPE_CHECKING:
    from convlab.measuring.gpu_backend import GpuBackend, Look
    from convlab.measuring.results import State
    from convlab.measuring.timer import Timing

UNSTEADY_PERCENT = 20.0  # a spread above this is no measurement
CLOCK_DROP_PERCENT = 15.0
TRIES = 3
OUT_OF_MEMORY = (
    "out of memory", "out_of_memory", "alloc_failed", "memoryallocation", "bad_alloc",
    "outofmemory",
)  # fmt: skip
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
INPUT, WEIGHT, OUTPUT = "input.npy", "weight.npy", "output.npy"  # handed over in a folder

OutputCheck = Callable[[np.ndarray], Checked]


@dataclass
class MeasuringOutcome:
    """The part of a :class:`~convlab.measuring.results.ResultRow` that the measuring process knows.

    ``healthy`` says whether that process may measure the next system.
    """

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
    healthy: bool = True

    def without_number(self, state: State, reason: str) -> MeasuringOutcome:
        """Remove the times and give the reason why there are none."""
        self.state, self.reason = state, reason
        self.time_ms = self.time_spread = self.repeats = None
        self.called_ms = self.called_spread = None
        return self


def measure(
    system: System,
    problem: ConvProblem,
    tensors: tuple[np.ndarray, np.ndarray],
    backend: GpuBackend,
    check: OutputCheck,
) -> MeasuringOutcome:
    """Measure a system on a problem; ``tensors`` are input and weight. Errors of the system are
    part of the outcome. Only what ends a process is raised."""
    outcome = MeasuringOutcome()
    prepared: Prepared | None = None
    try:
        if (absent := system.why_absent()) is not None:
            return outcome.without_number("absent", absent)
        prepared = system.prepare(problem, *tensors)
        _measure(system, prepared, backend, check, outcome)
    except Unsupported as error:
        outcome.without_number("unsupported", _words(error))
    except Exception as error:
        # MemoryError comes from an allocation that was refused in time: nothing is left behind.
        outcome.healthy = isinstance(error, MemoryError)
        if is_out_of_memory(error):
            outcome.without_number("out of memory", _words(error) or type(error).__name__)
        else:
            outcome.without_number("failed", f"raised {type(error).__name__}: {_words(error)}")
    _close(prepared, backend, outcome)
    return outcome


def _measure(
    system: System,
    prepared: Prepared,
    backend: GpuBackend,
    check: OutputCheck,
    outcome: MeasuringOutcome,
) -> None:
    prepared.run(None)
    backend.synchronize()
    if system.on_gpu:
        outcome.peak_bytes = backend.free_bytes()  # what is left, until _close
    outcome.workspace_bytes = prepared.workspace_bytes
    prepared.poison()
    prepared.run(None)
    backend.synchronize()
    before = prepared.output()
    if not _is_right(check(before), "", outcome):
        return
    for _ in range(TRIES):
        clocks, others = backend.look(), backend.others()
        if system.on_gpu:
            called = backend.time_called(prepared)
            outcome.called_ms, outcome.called_spread = called.median_ms, called.spread_percent
        timing = backend.time(prepared, system.on_gpu)
        clocks_after = backend.look()
        backend.synchronize()
        after = prepared.output()
        unsteady = _unsteady(timing, clocks(), clocks_after(), others(), outcome)
        if not same_bits(before, after) and not _is_right(
            check(after), "after it was timed, ", outcome
        ):
            return
        if unsteady is None:
            break
    outcome.algorithm = prepared.algorithm
    if system.on_gpu and outcome.peak_bytes is not None:
        outcome.peak_bytes = min(outcome.peak_bytes, backend.free_bytes() or outcome.peak_bytes)
    if unsteady is not None:
        outcome.without_number(*unsteady)
        return
    outcome.time_ms, outcome.time_spread = timing.median_ms, timing.spread_percent
    outcome.repeats = timing.repeats


def _is_right(checked: Checked, when: str, outcome: MeasuringOutcome) -> bool:
    outcome.bound, outcome.error_over_bound = checked.bound, checked.error_over_bound
    if checked.reason is not None:
        outcome.without_number("wrong", f"{when}{checked.reason}")
    return checked.ok


def _unsteady(
    timing: Timing, before: Look, after: Look, others: int | None, outcome: MeasuringOutcome
) -> tuple[State, str] | None:
    """State and reason where a timing is no measurement; None where it is one."""
    outcome.clocks_mhz = {"before": before.sm, "after": after.sm, "max": after.max_sm}
    if others:
        are = "process is" if others == 1 else "processes are"
        return "busy", f"{others} other {are} on the GPU"
    if before.sm and after.sm and after.sm < before.sm * (1 - CLOCK_DROP_PERCENT / 100):
        return "unsteady", (
            f"the GPU's clock fell from {before.sm} to {after.sm} MHz meanwhile: it is too hot, "
            "short of power, or shared"
        )
    if timing.spread_percent > UNSTEADY_PERCENT:
        return "unsteady", (
            f"the middle half of {timing.repeats} runs spread over {timing.spread_percent:.0f} % "
            "of their median, in the last of several tries: something else is at work"
        )
    return None


def _close(prepared: Prepared | None, backend: GpuBackend, outcome: MeasuringOutcome) -> None:
    """Free everything, and count the bytes that this returns as the peak."""
    left, outcome.peak_bytes = outcome.peak_bytes, None
    try:
        if prepared is not None:
            prepared.close()
        backend.synchronize()
        free = backend.free_bytes()
    except Exception as error:  # such as an error that stays with the CUDA context
        if outcome.healthy and outcome.state == "measured":
            reason = f"raised {type(error).__name__} afterwards: {_words(error)}"
            outcome.without_number("failed", reason)
        outcome.healthy = False
        return
    if left is not None and free is not None and outcome.healthy:
        outcome.peak_bytes = max(0, free - left)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two outputs have the same bits, so that one check is enough."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = np.dtype(f"u{one.itemsize}")
    with ThreadPoolExecutor() as pool:  # an image a thread
        return all(pool.map(np.array_equal, one.view(bits), other.view(bits)))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says, in any library's words, that memory did not suffice."""
    words = f"{type(error).__name__} {error}".lower()
    return isinstance(error, MemoryError) or any(sign in words for sign in OUT_OF_MEMORY)


def no_room(error: MemoryError | OSError, what: str) -> MeasuringOutcome:
    """The outcome where the host, not the GPU, lacks memory or disk space for ``what``."""
    lacks = isinstance(error, MemoryError) or error.errno in NO_ROOM  # not: a folder has gone
    reason = f"{what}: {_words(error) or type(error).__name__}"
    return MeasuringOutcome(healthy=False).without_number(
        "out of memory" if lacks else "failed", reason
    )


def _words(error: BaseException) -> str:
    return textwrap.shorten(str(error), 300, placeholder=" ...")


def run_process(backend: str, connection: Connection, log: Path) -> None:
    """Run a measuring process, in a session of its own, so that Ctrl-C reaches only the parent.

    ``backend`` is ``MODULE:CLASS``; the file ``log`` receives all that the process prints.
    """
    os.setsid()
    with log.open("wb") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    serve(backend, connection)


def serve(name: str, connection: Connection) -> None:
    """Answer commands until the other end closes."""
    backend: Any = None
    with suppress(EOFError, BrokenPipeError):
        while True:
            command = connection.recv()
            try:
                backend = backend or resolve_name(name)(command["allowed"])
                answer = _answer(backend, connection, **command)
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
            connection.send(answer)


def _answer(backend: Any, connection: Connection, do: str, **command: Any) -> dict[str, Any]:
    if do == "facts":
        return {"facts": backend.facts()}
    problem = command["problem"]
    if do == "compile":
        # All are started before the first is waited for: builds run side by side.
        systems = map(backend.system_named, command["systems"])
        started = [system.make_ready(problem) for system in systems]
        for future in filter(None, started):
            future.result()
        return {"compiled": True}
    folder: Path = command["folder"]
    kind = problem.number_type.numpy
    tensors = tuple(np.load(folder / name, mmap_mode="c").view(kind) for name in (INPUT, WEIGHT))
    backend.allowed = command["allowed"]
    system = backend.system_named(command["system"])
    check = partial(_check_by_parent, connection, folder)
    return {"outcome": measure(system, problem, tensors, backend, check)}


def _check_by_parent(connection: Connection, folder: Path, output: np.ndarray) -> Checked:
    shared, output = np.load(folder / OUTPUT, mmap_mode="r+"), as_in_kernels(output)
    for what in ("dtype", "shape"):
        found, wanted = getattr(output, what), getattr(shared, what)
        if found != wanted:
            return Checked("none", float("inf"), f"the output's {what} is {found}, not {wanted}")
    with ThreadPoolExecutor() as pool:
        list(pool.map(np.copyto, shared, output))
    connection.send({"check": True})
    checked: Checked = connection.recv()["checked"]
    return checked
