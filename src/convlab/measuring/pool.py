"""The worker pool: one process for each family of systems, so that whatever a library does to its
process or its CUDA context affects no other system. A process that failed is replaced.

A :class:`Worker` is the parent's end; :mod:`convlab.measuring.harness` is what the process runs.
"""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from convlab.measuring import harness
from convlab.measuring.baselines import System
from convlab.measuring.harness import MeasuringOutcome, OutputCheck
from convlab.problems.number_types import as_in_kernels
from convlab.problems.problem import ConvProblem

BACKEND = "convlab.measuring.gpu_backend:GpuBackend"
ROW_SECONDS = 180.0  # the longest that one row may take: some kernels never end
FAST_FOLDER = Path("/dev/shm")  # memory, on Linux
MOST_COMPILERS = 8


class WorkerDied(RuntimeError):
    """A process ended, or gave no answer in time; the message says which."""


class Worker:
    """One process. ``backend`` is ``MODULE:CLASS``; ``log`` takes what the process prints."""

    def __init__(self, backend: str, log: Path) -> None:
        log.touch()
        self._log = log
        context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=harness.run_process, args=(backend, theirs, log))
        self._process.start()
        theirs.close()
        self.number = self._process.pid or 0  # None only before the start

    def send(self, **command: object) -> None:
        """Send a command. Raises :class:`WorkerDied`."""
        try:
            self._connection.send(command)
        except OSError:
            raise self._death() from None

    def answer(self, deadline: float) -> dict[str, Any]:
        """The next answer. Raises :class:`WorkerDied` if none comes before the deadline."""
        wait = max(0.0, deadline - time.monotonic())
        try:
            if not self._connection.poll(wait):
                raise WorkerDied(f"gave no answer in {wait:.0f} seconds and was ended")
            answer: dict[str, Any] = self._connection.recv()
        except (EOFError, OSError):
            raise self._death() from None
        return answer

    def _death(self) -> WorkerDied:
        self._process.join(timeout=10)
        code = self._process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else "ended"
        printed = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = f": {printed[-1][-200:]}" if printed else ""
        return WorkerDied(f"its process {how} (exit code {code}){last}")

    def dismiss(self) -> None:
        """Close the connection: the process ends by itself after its present command."""
        self._connection.close()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self.dismiss()
        self._process.join(timeout=0.5)
        if self._process.is_alive():
            with suppress(ProcessLookupError):  # it has no session of its own yet
                os.killpg(self.number, signal.SIGKILL)  # also compilers that it has started
            self._process.kill()
        self._process.join()
        self._process.close()


class WorkerPool:
    """All workers, and the folder in which tensors are handed over. ``backend`` is
    ``MODULE:CLASS``. ``foreign`` are the ids of other people's processes that had an idle context
    on the GPU at the start; None where they are unknown."""

    def __init__(
        self,
        backend: str | None = None,
        *,
        row_seconds: float = ROW_SECONDS,
        foreign: Sequence[int] | None = (),
        compilers: int | None = None,
    ) -> None:
        self._backend = backend or BACKEND
        self._row_seconds, self._foreign = row_seconds, foreign
        self._folder = Path(tempfile.mkdtemp(prefix="convlab-bench-"))
        self._tensors: Path | None = None
        self._workers: dict[str, Worker] = {}
        self._compiled_by: dict[tuple[ConvProblem, str], str] = {}
        self._compilers = compilers or max(1, min(MOST_COMPILERS, (os.cpu_count() or 2) // 2))
        # The layer's problem, and the memory that outputs are written to.
        self._layer: tuple[ConvProblem, np.ndarray] | None = None

    def facts(self) -> dict[str, Any]:
        """Return the backend's facts about the machine, from a process of its own.

        Raises :class:`WorkerDied` with the reason if there is no answer.
        """
        self._worker("facts").send(do="facts", allowed=None)
        answer = self._worker("facts").answer(self._started_by())
        self._end("facts")
        if "facts" not in answer:
            raise WorkerDied(answer["error"])
        facts: dict[str, Any] = answer["facts"]
        return facts

    def compile(self, wanted: Sequence[tuple[ConvProblem, System]]) -> Iterator[None]:
        """Compile stages' kernels and load baselines' libraries side by side, each in the process
        that measures it; yields after each. A failure here repeats, and is reported, when the
        system is measured."""
        tasks: dict[str, list[tuple[ConvProblem, list[str]]]] = {}  # by the process's name
        kernels = cycle(range(self._compilers))
        for problem, system in wanted:
            if system.kind == "stage":
                name = f"{system.family} {next(kernels)}"
                self._compiled_by[problem, system.name] = name
                tasks.setdefault(name, []).append((problem, [system.name]))
            else:
                ((_, names),) = tasks.setdefault(system.family, [(problem, [])])
                names.append(system.name)
        libraries = {system.family for _, system in wanted if system.kind != "stage"}
        for name, its in tasks.items():
            with suppress(WorkerDied, OSError):
                for problem, names in its:
                    command = {"do": "compile", "systems": names, "problem": problem}
                    self._worker(name).send(**command, allowed=None)
        for name, its in tasks.items():
            for _, names in its:
                if name in self._workers:
                    try:
                        answer = self._workers[name].answer(self._started_by())
                        lost = "error" in answer and name in libraries  # it may leave anything
                    except WorkerDied:
                        lost = True
                    if lost:
                        self._end(name)
                yield from (None for _ in names)

    @contextmanager
    def layer(self, problem: ConvProblem, tensors: tuple[np.ndarray, np.ndarray]) -> Iterator[None]:
        """Hand input and weight over, 16-bit numbers as their bits, for :meth:`measure` inside the
        ``with``. Raises ``OSError`` where there is no room for them."""
        kind = problem.number_type
        outputs = kind.nbytes * math.prod(problem.output_shape)
        nbytes = sum(tensor.nbytes for tensor in tensors) + outputs
        folder = self._tensors = _folder_for(nbytes, self._folder)
        output = folder / harness.OUTPUT
        try:
            np.save(folder / harness.INPUT, as_in_kernels(tensors[0]))
            np.save(folder / harness.WEIGHT, as_in_kernels(tensors[1]))
            shared = np.lib.format.open_memmap(
                output, mode="w+", dtype=np.dtype(kind.in_kernels), shape=problem.output_shape
            )
            # A process that writes to a hole of a sparse file on a full disk is killed.
            if hasattr(os, "posix_fallocate"):
                with output.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, output.stat().st_size)
            self._layer = problem, shared
            yield
        finally:
            self._layer = None
            shutil.rmtree(folder, ignore_errors=True)

    def measure(self, system: System, check: OutputCheck) -> MeasuringOutcome:
        """Measure a system on the layer: whatever happens to its process, there is an outcome."""
        assert self._layer is not None, "measure() is for inside layer()"
        problem, shared = self._layer
        usual = f"{system.family} 0" if system.kind == "stage" else system.family
        name = self._compiled_by.get((problem, system.name), usual)
        deadline = time.monotonic() + self._row_seconds
        try:
            worker = self._worker(name)
            ours = [one.number for one in self._workers.values()]  # the new worker too
            worker.send(
                do="measure", system=system.name, problem=problem, folder=self._tensors,
                allowed=None if self._foreign is None else [*self._foreign, *ours],
            )  # fmt: skip
            while "check" in (answer := worker.answer(deadline)):
                checking = time.monotonic()
                worker.send(checked=check(shared.view(problem.number_type.numpy)))
                deadline += time.monotonic() - checking  # the check's time is not the system's
            if "error" in answer:
                raise WorkerDied(answer["error"])
            outcome: MeasuringOutcome = answer["outcome"]
        except WorkerDied as error:
            outcome = MeasuringOutcome(healthy=False).without_number("failed", str(error))
        except (MemoryError, OSError) as error:
            outcome = harness.no_room(error, "the host could not measure or check it")
        if not outcome.healthy:
            self._end(name)
        return outcome

    def _started_by(self) -> float:
        """The deadline of what a process does first, which may take longer than a row."""
        return time.monotonic() + max(self._row_seconds, ROW_SECONDS)

    def _worker(self, name: str) -> Worker:
        if name not in self._workers:
            log = self._folder / f"{name.replace(' ', '-')}.log"
            self._workers[name] = Worker(self._backend, log)
        return self._workers[name]

    def _end(self, name: str) -> None:
        if name in self._workers:
            self._workers.pop(name).end()

    def close(self) -> None:
        """End every process and remove every file."""
        for worker in self._workers.values():  # all at once: some libraries take long to unload
            worker.dismiss()
        for name in [*self._workers]:
            self._end(name)
        for folder in filter(None, (self._tensors, self._folder)):  # also an interrupted layer's
            shutil.rmtree(folder, ignore_errors=True)


def _folder_for(nbytes: int, other: Path) -> Path:
    """A new folder: in memory where there is room, else below the other one."""
    with suppress(OSError):  # there is none, or it is not for us
        if shutil.disk_usage(FAST_FOLDER).free > 1.1 * nbytes:
            return Path(tempfile.mkdtemp(prefix="convlab-bench-", dir=FAST_FOLDER))
    if shutil.disk_usage(other).free < nbytes:
        raise OSError(errno.ENOSPC, f"no room for {nbytes / 2**30:.1f} GiB of tensors", str(other))
    return Path(tempfile.mkdtemp(dir=other))
