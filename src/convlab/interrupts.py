"""Ctrl-C outside a verb of the command and while modules are being imported: one line, no more."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def importing() -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once, in one line: a module that is interrupted in the
    middle of its import may raise an error of its own instead, or go on without what it lacks."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # such as in background
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_at_once() -> None:
    """From here on Ctrl-C ends the process in one line, but inside `raised`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else such as in background
        signal.signal(signal.SIGINT, _end)


@contextmanager
def raised() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt again: what runs keeps what it has."""
    if signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end)


def _end(*_: object) -> None:
    with suppress(OSError):  # standard error is full or closed
        os.write(2, b"convlab: interrupted\n")
    os._exit(130)  # what shells give for Ctrl-C
