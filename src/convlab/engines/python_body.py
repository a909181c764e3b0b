"""A kernel's Python function with everything it calls replaced by something plain Python can run.

A ``@cuda.jit`` kernel refers to ``cuda``, to device functions, to intrinsics and to Numba types
through its globals and closure. A simulator needs the same body with other meanings, in a process
that may also run the original on a GPU: so the function is copied, never changed.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np
from numba.core import types as numba_types
from numba.cuda import types as cuda_types

from convlab.device import twin_of

_NUMBERS = (numba_types.Number, cuda_types.Number)


def python_body(kernel: Any, fake_cuda: Any) -> Callable[..., Any]:
    """A copy of the kernel's function in which ``cuda`` is ``fake_cuda``, intrinsics are their
    twins, device functions are copied likewise and Numba's number types cast with NumPy."""
    return _copy(kernel.py_func, fake_cuda, {})


def _copy(function: FunctionType, fake_cuda: Any, copies: dict[int, Any]) -> FunctionType:
    if id(function) in copies:
        return copies[id(function)]  # type: ignore[no-any-return]

    def replaced(value: Any) -> Any:
        return _replacement(value, fake_cuda, copies)

    copy_globals: dict[str, Any] = {}
    closure = tuple(CellType() for _ in function.__closure__ or ())
    copy = FunctionType(
        function.__code__, copy_globals, function.__name__, function.__defaults__, closure
    )
    copies[id(function)] = copy  # known before what it refers to is copied: that may be itself
    wanted = _global_names(function.__code__)
    copy_globals.update(
        (name, replaced(value) if name in wanted else value)
        for name, value in function.__globals__.items()
    )
    for cell, original in zip(closure, function.__closure__ or (), strict=True):
        cell.cell_contents = replaced(original.cell_contents)
    return copy


def _global_names(code: CodeType) -> set[str]:
    """The global names that the code uses, that of functions inside it included."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    inner = [_global_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return own.union(*inner)


def _replacement(value: Any, fake_cuda: Any, copies: dict[int, Any]) -> Any:
    if value is sys.modules["numba.cuda"]:
        return fake_cuda
    if (twin := twin_of(value)) is not None:
        return twin
    if isinstance(value, _NUMBERS):
        return _checked_index if value.name == "uint32" else getattr(np, value.name)
    if hasattr(value, "py_func"):  # a device function
        return _copy(value.py_func, fake_cuda, copies)
    return value


def _checked_index(value: Any) -> int:
    """``uint32(value)`` as kernels use it, for indices: a Python int, refused where a GPU wraps."""
    index = int(value)
    if not 0 <= index < 2**32:
        raise OverflowError(f"uint32({index}) does not fit: a GPU would wrap around")
    return index
