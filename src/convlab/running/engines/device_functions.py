"""Compile equal device functions of several kernels once.

A stage makes its device functions anew for each problem and tile, and stages that build on each
other make the same ones. Numba compiles each of them again, because each is another object.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from convlab.ladder.stage import Capability
from convlab.running.engines.kernel_identity import function_key

# Compiled functions by their keys, types of arguments and GPUs. Their dispatchers are kept too:
# when a dispatcher is deleted, Numba removes its functions from the target.
_compiled: dict[tuple[Any, ...], tuple[Any, Any]] = {}
# The key with which each dispatcher was compiled, by types of arguments.
_compiled_with: WeakKeyDictionary[Any, dict[Any, str]] = WeakKeyDictionary()
_superseded: list[Any] = []


@contextmanager
def equal_functions_once(capability: Capability) -> Iterator[None]:
    """Inside, a device function is not compiled if an equal one has been, for arguments of the same
    types and for the same GPU. The caller holds the lock of Numba's compiler.

    A function of which a global has another value now, such as a device function that was defined
    again, is compiled again. Numba would keep the old machine code. But the key of a kernel on disk
    says what the globals are now, and later processes would get the old code by it."""
    from numba.cuda import dispatcher

    usual = dispatcher.CUDADispatcher.compile_device
    shared: list[tuple[Any, Any]] = []  # dispatchers that have another one's function, for types

    def compile_device(self: Any, args: Any, return_type: Any = None) -> Any:
        if return_type is not None:
            return usual(self, args, return_type)
        key = function_key(self)
        if key is None:
            return usual(self, args)
        keys = _compiled_with.setdefault(self, {})
        if args in self.overloads:
            if keys.get(args) == key:
                return self.overloads[args]
            # Globals have changed since, or Numba compiled it for a launch of its own: nobody knows
            # with which globals. Numba finds functions by their ids, so the old one is kept.
            _superseded.append(self.overloads.pop(args))
        known = key, args, capability
        if known in _compiled:
            _, self.overloads[args] = _compiled[known]
            shared.append((self, args))
        else:
            _compiled[known] = self, usual(self, args)
        keys[args] = key
        return self.overloads[args]

    try:
        with mock.patch.object(dispatcher.CUDADispatcher, "compile_device", compile_device):
            yield
    finally:
        # A deleted dispatcher removes its functions from Numba's target: not those it borrowed.
        for borrower, args in shared:
            borrower.overloads.pop(args, None)
