"""Numba's search for the signature of a call, done once for calls of the same types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any
from unittest import mock

# What is patched belongs to the whole process.
_one_at_a_time = RLock()
_inside: list[bool] = []


@contextmanager
def signatures_once() -> Iterator[None]:
    """Inside, Numba looks for the signature of a built-in function's call once for the same types
    of arguments. Four calls of five in a kernel repeat an earlier one, such as an addition of two
    uint32; to look for all took a third of lowering. A block inside another one changes nothing."""
    from numba.core.types import functions
    from numba.cuda.core.targetconfig import ConfigStack

    look_for = functions.BaseFunction.get_call_type
    found: dict[tuple[Any, ...], tuple[Any, Any]] = {}  # kept with the function, whose id it has

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            return look_for(self, context, args, kws)
        flags = ConfigStack.top_or_none()  # device functions may have others than the kernel
        fastmath = None if flags is None else frozenset(flags.fastmath.flags)
        key = id(self), id(context), fastmath, *args
        if key not in found:
            found[key] = self, look_for(self, context, args, kws)
        return found[key][1]

    with _one_at_a_time:
        if _inside:
            yield
            return
        _inside.append(True)
        try:
            with mock.patch.object(functions.BaseFunction, "get_call_type", get_call_type):
                yield
        finally:
            _inside.pop()
