"""Refuses machine code for calls of functions whose overload differs between CPU and GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import FunctionType
from typing import Any
from unittest import mock

from numba.core.types.functions import BaseFunction

from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.language.overloads import differs_by_target
from convlab.support.numba_shortcuts import patching

# A package whose functions Numba implements for each target, to the same effect.
_SAME_EVERYWHERE = "numpy"


@contextmanager
def overloads_of_all_targets() -> Iterator[None]:
    """Inside, a compilation raises :class:`NeedsGreenlets` for a call of a function that has an
    overload for one target only, be it in the kernel or in the body of another overload."""
    with patching:
        look_for = BaseFunction.get_call_type
        with mock.patch.object(BaseFunction, "get_call_type", _refusing(look_for)):
            yield


def _refusing(look_for: Callable[..., Any]) -> Callable[..., Any]:
    """Return Numba's method that looks for a call's signature, as one that may refuse. Threads that
    compile meanwhile are not refused anything."""
    compiling = get_ident()

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        function = getattr(self, "typing_key", None)
        if (
            get_ident() == compiling
            and isinstance(function, FunctionType)
            and function.__module__.partition(".")[0] != _SAME_EVERYWHERE
            and differs_by_target(function)
        ):
            raise NeedsGreenlets("a function with an overload for one target only")
        return look_for(self, context, args, kws)

    return get_call_type
