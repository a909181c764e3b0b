"""A kernel's Python function with everything it calls replaced by something plain Python can run.

A ``@cuda.jit`` kernel refers to ``cuda``, to device functions, to intrinsics and to Numba types
through its globals and closure. A simulator needs the same body with other meanings, in a process
that may also run the original on a GPU: so the function is copied, never changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CellType, FunctionType
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

    wanted = set(function.__code__.co_names)
    plain_globals = {
        name: replaced(value) if name in wanted else value
        for name, value in function.__globals__.items()
    }
    closure = tuple(CellType(replaced(cell.cell_contents)) for cell in function.__closure__ or ())
    copy = FunctionType(
        function.__code__, plain_globals, function.__name__, function.__defaults__, closure
    )
    copies[id(function)] = copy
    return copy


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
