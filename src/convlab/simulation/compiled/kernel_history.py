"""What the launches of a kernel have shown in this process, by which the next one's engine is
chosen (:mod:`convlab.simulation.compiled.engine_choice`).

A test or a factory that runs again makes its kernel anew. So a history belongs to the kernel's code
and to the values of its closure, if these are plain. Other closure variables, such as device
functions, may be new each time, and would make another kernel: there it belongs to the kernel
itself. It ends with its code or its kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType, ModuleType
from weakref import WeakKeyDictionary

import numpy as np
from numba.core import types
from numba.cuda import types as cuda_types

from convlab.simulation.language.compilations import NumbaKernel
from convlab.simulation.language.signatures import Types

_NUMBERS = (bool, int, float, complex, np.number, np.bool_)
_PLAIN = (*_NUMBERS, str, bytes, type(None), np.dtype, types.Type, cuda_types.Type, ModuleType)


@dataclass
class KernelHistory:
    """The launches so far of a kernel with arguments of the same types."""

    seconds: float = 0.0  # of those on the first engine, since the last one as machine code
    ran_compiled: bool = False  # whether machine code was enough for one of them
    failed: bool = False  # whether it was not, or something was found
    told: bool = False  # whether the user knows why


_histories: WeakKeyDictionary[object, dict[tuple[object, ...], KernelHistory]] = WeakKeyDictionary()


def history_of(kernel: NumbaKernel, arguments: Types) -> KernelHistory:
    """Return the history of a kernel's launches with arguments of these types."""
    function = kernel.py_func
    values = _closure(function)
    if all(map(_is_plain, values)):
        of_all = _histories.setdefault(function.__code__, {})
        return of_all.setdefault((values, arguments), KernelHistory())
    return _histories.setdefault(kernel, {}).setdefault((arguments,), KernelHistory())


def _closure(function: FunctionType) -> tuple[object, ...]:
    """Return the values of a function's closure variables. One without a value counts as None."""
    values: list[object] = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:
            values.append(None)
    return tuple(values)


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    if isinstance(value, type):
        return issubclass(value, _NUMBERS)
    return isinstance(value, _PLAIN)
