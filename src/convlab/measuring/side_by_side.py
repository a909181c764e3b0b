"""Work in copies of this process, several at once."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeVar

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class NoAnswer:
    """The end of a process that did not answer, as ``was killed by signal 9 (exit code -9)``."""

    how: str


def side_by_side(
    work: Callable[[ItemT], AnswerT], items: Sequence[ItemT], processes: int
) -> Generator[AnswerT | NoAnswer, None, None]:
    """Yield ``work(item)`` of each item, in their order, from at most so many processes at once.

    Each process is a copy of this one: it has read the modules and has items that cannot be sent to
    another process. Only its answer is sent. Processes that still run when this ends are killed,
    also after Ctrl-C.
    """
    upcoming = iter(enumerate(items))
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    answers: dict[int, AnswerT | NoAnswer] = {}
    try:
        for number in range(len(items)):
            while number not in answers:
                for begun, item in islice(upcoming, processes - len(running)):
                    connection, process = _forked(work, item)
                    running[connection] = begun, process
                for ready in wait([*running]):
                    assert isinstance(ready, Connection)
                    ended, process = running.pop(ready)
                    answers[ended] = _received(ready, process)
            yield answers.pop(number)
    finally:
        for connection, (_, process) in running.items():
            process.kill()
            process.join()
            connection.close()


def _forked(work: Callable[[ItemT], object], item: ItemT) -> tuple[Connection, BaseProcess]:
    """Return a process that does the work, and the connection on which its answer comes."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def answer() -> None:
        ours.close()
        gc.freeze()  # a collection that looks at the parent's objects would copy their pages
        answered = work(item)
        with suppress(BrokenPipeError):  # the parent was killed
            theirs.send(answered)

    process = context.Process(target=answer, daemon=True)
    # Ctrl-C is sent to all processes of a terminal. The parent alone deals with it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return ours, process


def _received(connection: Connection, process: BaseProcess) -> AnswerT | NoAnswer:
    try:
        answer: AnswerT = connection.recv()
        return answer
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else "ended"
        return NoAnswer(f"{how} (exit code {code})")
    finally:
        process.join()
        connection.close()
