"""The functions that an exception came through."""

from __future__ import annotations

import dis
from types import TracebackType


def is_raised(error: BaseException) -> bool:
    """Return whether an exception comes from a ``raise`` or ``assert``."""
    trace = innermost(error)
    if trace is None:
        return False
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def innermost(error: BaseException) -> TracebackType | None:
    """Return the place where an exception was raised; None before it has been."""
    found = traces(error)
    return found[-1] if found else None


def traces(error: BaseException) -> list[TracebackType]:
    """Return the frames that an exception came through, the outermost function first."""
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found
