"""The history of a kernel's launches in this process, by which the next launch's engine is chosen.

A test or a factory that runs again makes its kernel anew. So a history belongs to the kernel's code
and to all that the code refers to, if these values are plain numbers, texts, types and known
modules. Other values, such as device functions, may be new each time and make another kernel: then
the history belongs to the kernel itself, and ends with it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from types import BuiltinFunctionType, EllipsisType, ModuleType
from weakref import WeakKeyDictionary

import numpy as np
from numba.core import types
from numba.cuda import types as cuda_types

from convlab.simulation.language.code_names import references
from convlab.simulation.language.compilations import NumbaKernel
from convlab.simulation.language.compiled_values import Values, values_of
from convlab.simulation.language.signatures import Types

MOST = 1000  # histories that belong to code: a loop may make a kernel for each of many numbers

_PLAIN = (bool, int, str, bytes, type(None), EllipsisType)
_PLAIN_KINDS = (np.integer, np.bool_, np.dtype, types.Type, cuda_types.Type)
_INEXACT = (float, complex, np.inexact)
# Packages whose modules stay as they are. A program may change its own modules.
_KNOWN = {"numba", "numba_cuda", "numba_cuda_mlir", "numpy", *sys.stdlib_module_names}


@dataclass
class KernelHistory:
    """The launches so far of a kernel with arguments of the same types."""

    seconds: float = 0.0  # of those on the first engine, since the last one as machine code
    ran_compiled: bool = False  # whether machine code has been worth its cost for one of them
    # Whether it was not at the last try: most blocks ran again on the first engine, or all.
    failed: bool = False
    failed_alone: bool = False  # the same, of a try for that launch alone
    is_reported: bool = False  # whether the user has read why it is not compiled
    # Why no machine code can be made, by the types of the arguments for a CPU.
    refusals: dict[tuple[types.Type, ...], str] = field(default_factory=dict)

    def note_failure(self, *, alone: bool) -> None:
        """Note that machine code was not worth its cost. A try that only what was left of a launch
        spoke for, ``alone``, says nothing about launches that take long."""
        if alone:
            self.failed_alone = True
        else:
            self.failed = True


class Histories:
    """The histories of a process."""

    def __init__(self) -> None:
        self._lock = Lock()  # threads of the program may launch at once
        self._of_codes: OrderedDict[tuple[object, ...], KernelHistory] = OrderedDict()
        # With the values that the kernel was compiled with: after ``recompile`` it is another one.
        self._of_kernels: WeakKeyDictionary[
            NumbaKernel, dict[Types, tuple[Values, KernelHistory]]
        ] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._of_codes) + sum(map(len, self._of_kernels.values()))

    def of(self, kernel: NumbaKernel, arguments: Types) -> KernelHistory:
        """Return the history of a kernel's launches with arguments of these types."""
        values = values_of(kernel, arguments)
        try:
            key = _key_of(kernel, values), arguments
        except _NotPlainError:
            with self._lock:
                return self._of_kernel(kernel, arguments, values)
        with self._lock:
            found = self._of_codes.setdefault(key, KernelHistory())
            self._of_codes.move_to_end(key)
            if len(self._of_codes) > MOST:
                self._of_codes.popitem(last=False)
            return found

    def _of_kernel(self, kernel: NumbaKernel, arguments: Types, values: Values) -> KernelHistory:
        histories = self._of_kernels.setdefault(kernel, {})
        if arguments in histories and histories[arguments][0] is values:
            return histories[arguments][1]
        made = KernelHistory()
        histories[arguments] = values, made
        return made


class _NotPlainError(Exception):
    """A kernel refers to a value that may be another one after it is made anew."""


def _key_of(kernel: NumbaKernel, values: Values) -> tuple[object, ...]:
    """Return a key that two kernels share if they compute the same. ``values`` are those from
    outside that the kernel is compiled with."""
    function = kernel.py_func
    code = function.__code__
    outside = {name: values.get(name, value) for name, value in references(function)}
    keys = tuple((name, _key_of_value(outside[name])) for name in sorted(outside))
    # Equal code from two files is equal for Python.
    return code.co_filename, code, _key_of_value(function.__defaults__ or ()), keys


def _key_of_value(value: object) -> tuple[object, ...]:
    """Return a key that only equal values of the same type share: 2, 2.0 and True differ, so do 0.0
    and -0.0. Raises :class:`_NotPlainError` for values of other types than numbers, texts, types,
    known modules and tuples of these."""
    kind = type(value)
    if kind is tuple:
        assert isinstance(value, tuple)
        return (kind, *map(_key_of_value, value))
    if issubclass(kind, _INEXACT):
        return kind, repr(value)
    if kind in _PLAIN or issubclass(kind, _PLAIN_KINDS):
        return kind, value
    if isinstance(value, ModuleType) and _is_known(value.__name__):
        return kind, value
    if isinstance(value, type | BuiltinFunctionType) and _is_known(value.__module__ or ""):
        return kind, value
    raise _NotPlainError


def _is_known(module: str) -> bool:
    return module.partition(".")[0] in _KNOWN


histories = Histories()
