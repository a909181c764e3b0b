"""The processes that measure: one for each family of systems, so that what one does to its process
or its CUDA context is nobody else's trouble. One that failed is ended and a new one started.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from convlab.bench.measuring import Judging, Outcome, no_room
from convlab.bench.systems import STAGE_FAMILY, System
from convlab.bench.worker import INPUT, OUTPUT, WEIGHT
from convlab.problem import ConvProblem

LABORATORY = "convlab.bench.laboratory:Gpu"
ROW_SECONDS = 180.0  # of one row; a kernel that never ends must not be waited for for ever
FAST_FOLDER = Path("/dev/shm")  # memory, on Linux
MOST_COMPILERS = 8


class WorkerDied(RuntimeError):
    """A process ended, or gave no answer in time; the message says which."""


class Worker:
    """One such process."""

    def __init__(self, laboratory: str, log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "convlab.bench.worker", laboratory],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the one who waits
            )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    @property
    def number(self) -> int:
        """By which the system knows the process."""
        return self._process.pid

    def send(self, **command: Any) -> None:
        """Send a command. Raises :class:`WorkerDied`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerDied(self._how_it_ended()) from None

    def answer(self, deadline: float) -> dict[str, Any]:
        """Its next answer. Raises :class:`WorkerDied` where none comes before the deadline, a time
        of :func:`time.monotonic`."""
        started = time.monotonic()
        try:
            line = self._answers.get(timeout=max(0.0, deadline - started))
        except queue.Empty:
            waited = time.monotonic() - started
            raise WorkerDied(f"gave no answer in {waited:.0f} seconds and was ended") from None
        if line is None:
            raise WorkerDied(self._how_it_ended())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        code = self._process.returncode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else "ended"
        last = (self._log.read_text(encoding="utf-8", errors="replace").split("\n") or [""])[-2:]
        words = " ".join(" ".join(last).split())
        return f"its process {how} (exit code {code})" + (f": {words[-200:]}" if words else "")

    def dismiss(self) -> None:
        """Let the process end by itself, unless it is at work: there are no more commands."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self.dismiss()
        try:
            self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # and compilers that it has started
            self._process.wait()
        self._reader.join(timeout=5)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()


class Crew:
    """All of them, and the folder in which tensors are handed over.

    ``foreign`` are the processes of other people that had a context on the GPU, idle, at the start,
    by their numbers; None where nobody knows.
    """

    def __init__(
        self,
        laboratory: str | None = None,
        *,
        row_seconds: float = ROW_SECONDS,
        foreign: Sequence[int] | None = (),
        compilers: int | None = None,
    ) -> None:
        self._laboratory = laboratory or LABORATORY
        self._row_seconds, self._foreign = row_seconds, foreign
        self._start_seconds = max(row_seconds, ROW_SECONDS)  # of facts and of compiling
        self._folder = Path(tempfile.mkdtemp(prefix="convlab-bench-"))
        self._tensors = self._folder
        self._workers: dict[str, Worker] = {}
        self._compiled_by: dict[tuple[ConvProblem, str], str] = {}
        self._compilers = compilers or max(1, min(MOST_COMPILERS, (os.cpu_count() or 2) // 2))
        self._problem: ConvProblem | None = None
        self._shared: np.ndarray | None = None

    def facts(self) -> dict[str, Any]:
        """What the laboratory says of the machine, found out in a process of its own.

        Raises :class:`WorkerDied` with the reason where it cannot.
        """
        worker = self._worker("facts")
        worker.send(do="facts", allowed=None)
        answer = worker.answer(time.monotonic() + self._start_seconds)
        self._end("facts")
        if "facts" not in answer:
            raise WorkerDied(str(answer.get("error")))
        facts: dict[str, Any] = answer["facts"]
        return facts

    def compile(self, wanted: Sequence[tuple[ConvProblem, System]]) -> Iterator[None]:
        """Make stages' kernels and baselines' libraries ready side by side; yields after each. What
        fails here fails again, and is told, when it is measured.

        Everything is made ready in the process that measures it: baselines in their family's, all
        of them by one command; kernels in as many as there are compilers, one after the other.
        """
        commands: dict[str, list[tuple[ConvProblem, list[str]]]] = {}
        kernels = 0
        for problem, system in wanted:
            if system.kind == "stage":
                name = f"{STAGE_FAMILY} {kernels % self._compilers}"
                kernels += 1
                self._compiled_by[problem, system.name] = name
                commands.setdefault(name, []).append((problem, [system.name]))
            else:
                ((_, names),) = commands.setdefault(system.family, [(problem, [])])
                names.append(system.name)
        for name, tasks in commands.items():
            with contextlib.suppress(WorkerDied, OSError):
                for problem, names in tasks:
                    self._worker(name).send(
                        do="compile", systems=names, problem=_fields(problem), allowed=None
                    )
        for name, tasks in commands.items():
            for _, names in tasks:
                if name in self._workers:
                    self._wait_until_compiled(name)
                yield from (None for _ in names)

    def _wait_until_compiled(self, name: str) -> None:
        try:
            answer = self._workers[name].answer(time.monotonic() + self._start_seconds)
        except WorkerDied:
            self._end(name)
            return
        if "error" in answer and not name.startswith(STAGE_FAMILY):
            self._end(name)  # who knows what a library left behind: measured in a new process

    @contextmanager
    def layer(self, problem: ConvProblem, tensors: tuple[np.ndarray, np.ndarray]) -> Iterator[None]:
        """Hand a layer's tensors over, for :meth:`measure` inside the ``with``.

        Raises ``OSError`` where there is no room for them.
        """
        output = 4 * int(np.prod(problem.output_shape))
        self._tensors = _folder_for(sum(tensor.nbytes for tensor in tensors) + output, self._folder)
        try:
            np.save(self._tensors / INPUT, tensors[0])
            np.save(self._tensors / WEIGHT, tensors[1])
            self._shared = np.lib.format.open_memmap(
                self._tensors / OUTPUT, mode="w+", dtype=np.float32, shape=problem.output_shape
            )
            _reserve(self._tensors / OUTPUT)
            self._problem = problem
            yield
        finally:
            self._problem = self._shared = None
            if self._tensors == self._folder:
                for name in (INPUT, WEIGHT, OUTPUT):
                    (self._folder / name).unlink(missing_ok=True)
            else:
                shutil.rmtree(self._tensors, ignore_errors=True)

    def measure(self, system: System, judge: Judging) -> Outcome:
        """Measure a system on the layer: whatever happens to its process, there is an outcome."""
        assert self._problem is not None, "measure() is for inside layer()"
        name = self._compiled_by.get((self._problem, system.name), self._usual(system))
        deadline = time.monotonic() + self._row_seconds
        try:
            worker = self._worker(name)
            worker.send(
                do="measure",
                system=system.name,
                problem=_fields(self._problem),
                folder=str(self._tensors),
                allowed=self._allowed(),
            )
            while True:
                answer = worker.answer(deadline)
                if "judge" in answer:
                    judging = time.monotonic()
                    assert self._shared is not None
                    worker.send(**asdict(judge(self._shared)))
                    deadline += time.monotonic() - judging  # ours, not its time
                    continue
                if "outcome" in answer:
                    outcome = Outcome(**answer["outcome"])
                else:
                    outcome = Outcome(healthy=False).without_number("failed", answer["error"])
                break
        except WorkerDied as error:
            outcome = Outcome(healthy=False).without_number("failed", str(error))
        except (MemoryError, OSError) as error:
            outcome = no_room(error, "the host could not measure or judge it")
        if not outcome.healthy:
            self._end(name)
        return outcome

    def _allowed(self) -> list[int] | None:
        if self._foreign is None:
            return None
        return [*self._foreign, *(worker.number for worker in self._workers.values())]

    def _usual(self, system: System) -> str:
        return f"{STAGE_FAMILY} 0" if system.kind == "stage" else system.family

    def _worker(self, name: str) -> Worker:
        if name not in self._workers:
            log = self._folder / f"{name.replace(' ', '-')}.log"
            self._workers[name] = Worker(self._laboratory, log)
        return self._workers[name]

    def _end(self, name: str) -> None:
        if name in self._workers:
            self._workers.pop(name).end()

    def close(self) -> None:
        """End every process and remove every file."""
        for worker in self._workers.values():  # all at once: some libraries take long to go
            worker.dismiss()
        for name in [*self._workers]:
            self._end(name)
        for folder in {self._tensors, self._folder}:  # also those of a layer that was interrupted
            shutil.rmtree(folder, ignore_errors=True)


def _fields(problem: ConvProblem) -> dict[str, Any]:
    return {field.name: getattr(problem, field.name) for field in fields(problem)}


def _reserve(path: Path) -> None:
    """Take the room of a file that is all holes: who writes to a hole where there is no room left
    is killed. Raises ``OSError`` where there is too little."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _folder_for(nbytes: int, other: Path) -> Path:
    """A folder in memory where there is room, else the other one."""
    try:
        if shutil.disk_usage(FAST_FOLDER).free > 1.1 * nbytes:
            return Path(tempfile.mkdtemp(prefix="convlab-bench-", dir=FAST_FOLDER))
    except OSError:  # there is none, or it is not for us
        pass
    if shutil.disk_usage(other).free < nbytes:
        raise OSError(errno.ENOSPC, f"no room for {nbytes / 2**30:.1f} GiB of tensors", str(other))
    return other


def weights(problems: Iterable[ConvProblem]) -> list[float]:
    """About how many seconds a row of each problem takes: some for every one, some for its bytes,
    which are moved and judged, some for its arithmetic, which slow stages take long for."""
    return [
        0.8 + 1.2 * problem.least_bytes / 1e9 + 4.0 * problem.flops / 610e9 for problem in problems
    ]
