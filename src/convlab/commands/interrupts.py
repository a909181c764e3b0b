"""Ctrl-C outside a verb of the command and while modules are being imported: one line, no more."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress


def importing() -> AbstractContextManager[None]:
    """Inside, Ctrl-C ends the process at once, in one line: a module that is interrupted in the
    middle of its import may raise an error of its own instead, or go on without what it lacks."""
    return _exchanged(signal.default_int_handler, _end)


def end_at_once() -> None:
    """From here on Ctrl-C ends the process in one line, but inside `raised`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else such as in background
        signal.signal(signal.SIGINT, _end)


def raised() -> AbstractContextManager[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt again: what runs keeps what it has."""
    return _exchanged(_end, signal.default_int_handler)


@contextmanager
def _exchanged(outside: Callable[..., object], inside: Callable[..., object]) -> Iterator[None]:
    """Inside, Ctrl-C's handler is ``inside``, if it was ``outside``; any other handler stays."""
    if signal.getsignal(signal.SIGINT) is not outside:  # as in background
        yield
        return
    signal.signal(signal.SIGINT, inside)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, outside)


def _end(*_: object) -> None:
    with suppress(OSError):  # standard error is full or closed
        os.write(2, b"convlab: interrupted\n")
    os._exit(130)  # what shells give for Ctrl-C
