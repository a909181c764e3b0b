"""A process that measures: :class:`Worker` sends commands, :func:`serve` answers in the process.

The parent checks the outputs, so nothing that breaks in the process (an error that stays with the
CUDA context, a crash, lost memory) reaches the check or another system's result.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from convlab.bench.bounds import Checked
from convlab.bench.harness import measure

INPUT, WEIGHT, OUTPUT = "input.npy", "weight.npy", "output.npy"


class WorkerDied(RuntimeError):
    """A process ended, or gave no answer in time; the message says which."""


class Worker:
    """One process. ``backend`` is ``MODULE:CLASS``; ``log`` takes what the process prints."""

    def __init__(self, backend: str, log: Path) -> None:
        log.touch()
        self._log = log
        context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(backend, theirs, log))
        self._process.start()
        theirs.close()
        self.number = self._process.pid or 0  # None only before the start

    def send(self, **command: Any) -> None:
        """Send a command. Raises :class:`WorkerDied`."""
        try:
            self._connection.send(command)
        except OSError:
            raise WorkerDied(self._how_it_ended()) from None

    def answer(self, deadline: float) -> dict[str, Any]:
        """The next answer. Raises :class:`WorkerDied` where none comes before the deadline, a time
        of :func:`time.monotonic`."""
        started = time.monotonic()
        try:
            if not self._connection.poll(max(0.0, deadline - started)):
                waited = time.monotonic() - started
                raise WorkerDied(f"gave no answer in {waited:.0f} seconds and was ended")
            answer: dict[str, Any] = self._connection.recv()
        except (EOFError, OSError):
            raise WorkerDied(self._how_it_ended()) from None
        return answer

    def _how_it_ended(self) -> str:
        self._process.join(timeout=10)
        code = self._process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else "ended"
        printed = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = f": {printed[-1][-200:]}" if printed else ""
        return f"its process {how} (exit code {code}){last}"

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


def _main(backend: str, connection: Connection, log: Path) -> None:
    """What the process runs: in a session of its own, so that Ctrl-C reaches the parent alone."""
    os.setsid()
    with log.open("wb") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    module, _, name = backend.partition(":")
    serve(getattr(import_module(module), name), connection)


def serve(make_backend: Any, connection: Connection) -> None:
    """Answer commands until the other end closes."""
    backend: Any = None
    with suppress(EOFError, BrokenPipeError):
        while True:
            command = connection.recv()
            try:
                backend = backend or make_backend(command["allowed"])
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
        started = [backend.compile(name, problem) for name in command["systems"]]
        for future in filter(None, started):
            future.result()
        return {"compiled": True}
    folder: Path = command["folder"]
    tensors = tuple(np.load(folder / name, mmap_mode="c") for name in (INPUT, WEIGHT))
    backend.allowed = command["allowed"]
    system = backend.system_named(command["system"])
    check = partial(_check_by_parent, connection, folder)
    return {"outcome": measure(system, problem, tensors, backend, check)}


def _check_by_parent(connection: Connection, folder: Path, output: np.ndarray) -> Checked:
    shared = np.load(folder / OUTPUT, mmap_mode="r+")
    for what, found, wanted in (
        ("dtype", output.dtype, shared.dtype),
        ("shape", output.shape, shared.shape),
    ):
        if found != wanted:
            return Checked("none", float("inf"), f"the output's {what} is {found}, not {wanted}")
    with ThreadPoolExecutor() as pool:
        list(pool.map(np.copyto, shared, output))
    connection.send({"check": True})
    checked: Checked = connection.recv()["checked"]
    return checked
