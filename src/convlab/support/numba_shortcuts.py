"""Shortcuts through Numba's compiler: work that it repeats is done once, and work whose result no
pass reads is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any
from unittest import mock

# What is patched belongs to the whole process, so one thread at a time patches Numba's methods.
patching = RLock()
_inside: list[bool] = []

# The signatures that were found, with the function and the context whose ids are in the key: no
# other object gets these ids. A kernel adds about fifty, so a process that compiles for days
# forgets them now and then.
_found: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}
MOST_SIGNATURES = 20_000


@contextmanager
def numba_shortcuts() -> Iterator[None]:
    """Inside, Numba takes two shortcuts, which change nothing of what it makes:

    - It looks for the signature of a built-in function's call once for the same types of arguments.
      Seven calls of eight repeat an earlier one, such as an addition of two uint32.
    - It analyses the lifetimes of variables only for a pass that reads them. Nine passes ask for
      the analysis, and one inserts deletions by it.

    Without them lowering takes 1.6 times as long. A block inside another one changes nothing."""
    from numba.core.types import functions
    from numba.cuda.core import postproc

    processor = postproc.PostProcessor
    with patching:
        if _inside:
            yield
            return
        _inside.append(True)
        look_for = _looking_once(functions.BaseFunction.get_call_type)
        run = _analysing_late(processor.run)
        try:
            with (
                mock.patch.object(functions.BaseFunction, "get_call_type", look_for),
                mock.patch.object(processor, "run", run),
            ):
                yield
        finally:
            _inside.pop()


def _looking_once(look_for: Callable[..., Any]) -> Callable[..., Any]:
    """Return Numba's method that looks for a call's signature, as one that remembers."""
    from numba.cuda.core.targetconfig import ConfigStack

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            return look_for(self, context, args, kws)
        flags = ConfigStack.top_or_none()  # device functions may have others than the kernel
        fastmath = None if flags is None else frozenset(flags.fastmath.flags)
        key = id(self), id(context), fastmath, *args
        found = _found.get(key)
        if found is None:
            found = self, context, look_for(self, context, args, kws)
            if len(_found) >= MOST_SIGNATURES:
                _found.clear()
            _found[key] = found
        return found[-1]

    return get_call_type


def _analysing_late(usual: Callable[..., None]) -> Callable[..., None]:
    """Return Numba's method that analyses a function's variables after a pass, as one that leaves
    the analysis to whoever reads it."""
    from numba.cuda.core import postproc, transforms

    def run(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        function = self.func_ir
        if function.is_generator:  # for which alone the rest of the method is
            usual(self, emit_dels=emit_dels, extend_lifetimes=extend_lifetimes)
            return
        function.blocks = transforms.canonicalize_cfg(function.blocks)
        # It analyses what is read of it, when it is read.
        function.variable_lifetime = postproc.VariableLifetime(function.blocks)
        function.generator_info = None
        if emit_dels:
            self._insert_var_dels(extend_lifetimes=extend_lifetimes)

    return run
