"""Checks a launch before it begins: its sizes, its dynamic shared memory and its arguments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from inspect import Parameter
from types import FunctionType, SimpleNamespace

import numpy as np
from numba.core import errors as core_errors
from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.typing.typeof import Purpose, typeof

from convlab.device import BoundMap
from convlab.simulation.rules.coordinates import Coordinates
from convlab.simulation.rules.finding_words import OF_SHARED
from convlab.simulation.rules.findings import NotSimulated
from convlab.support.values import integer, shown

GRID_LIMITS, BLOCK_LIMITS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
BLOCK_THREADS = 1024
BLOCK_BYTES = 227 << 10  # of shared memory that a block may have, with the dynamic part
# The types of numbers that Numba copies to a kernel.
_NUMBERS = (
    *(types.Integer, types.Boolean, types.Float, types.Complex),
    *(types.NPDatetime, types.NPTimedelta),
)
_RULE = "a kernel takes numbers, arrays and tuples of them"
_NOT_POSITIONAL = Parameter.VAR_POSITIONAL, Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD
# The advice for an argument, by its type.
_INSTEAD: dict[type | tuple[type, ...], str] = {
    (list, set, frozenset, range, bytes, bytearray, memoryview): "give it a NumPy array",
    dict: "give it arrays of the keys and values",
    str: "give it an array of character codes",
    type(None): "give it a number that stands for none, or write a kernel without the parameter",
    type: "let the kernel refer to the type by a global name",
    FunctionType: "let the kernel refer to a device function by a global name",
    np.ma.MaskedArray: "give it the data and the mask as two arrays",
}


class RefusedArgument(NotSimulated, TypeError, ValueError):
    """An argument that Numba does not give to a kernel; the message names it and the rule."""


def check_shape(grid: Coordinates, block: Coordinates) -> None:
    """Raise ``ValueError`` for a shape that CUDA does not launch."""
    if (threads := math.prod(block)) > BLOCK_THREADS:
        raise ValueError(f"{block} are {threads} threads: a block has 1 to {BLOCK_THREADS}")
    for what, sizes, limits in ("grid", grid, GRID_LIMITS), ("block", block, BLOCK_LIMITS):
        for axis, size, limit in zip("xyz", sizes, limits, strict=True):
            if size > limit:
                raise ValueError(
                    f"{what} {sizes} has {size} along {axis}: 1 to {limit} are allowed"
                )


def check_dynamic(shared_bytes: object) -> int:
    """Return the bytes of dynamic shared memory. Raises ``TypeError`` unless it is an integer,
    ``ValueError`` for more than a block has."""
    number = integer("shared_bytes", shared_bytes, at_least=0)
    if number > BLOCK_BYTES:
        raise ValueError(f"shared_bytes is {number}: a block has 0 to {BLOCK_BYTES} {OF_SHARED}")
    return number


def argument_names(function: FunctionType, count: int) -> list[str]:
    """Return the names of a launch's first ``count`` arguments. If a kernel takes any number of
    arguments at the end, several have that parameter's name; an argument beyond the parameters is
    named by its position."""
    parameters = inspect.signature(function).parameters.values()
    names = [one.name for one in parameters]
    takes_more = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    more = (names[-1] if takes_more else f"argument {n}" for n in range(len(names), count))
    return [*names, *more][:count]


def check_arguments(function: FunctionType, arguments: tuple[object, ...]) -> None:
    """Raise :class:`RefusedArgument` for arguments that Numba does not give to a kernel, or for
    another number of them than it takes."""
    kernel, signature = function.__name__, inspect.signature(function)
    for name, one in zip(argument_names(function, len(arguments)), arguments, strict=True):
        _check_argument(kernel, name, one)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "no arguments"
        raise RefusedArgument(
            f"{kernel}: {error}: it takes {takes}, and the launch gives {len(arguments)}"
        ) from None


def check_all_given(function: FunctionType, arguments: tuple[object, ...]) -> None:
    """Raise :class:`RefusedArgument` unless a launch of Numba's gives each parameter of a kernel
    one argument. Numba compiles a kernel for the types of the arguments, without defaults.
    Launches of convlab's stages have defaults, so an engine does not ask for this."""
    kernel, parameters = function.__name__, [*inspect.signature(function).parameters.values()]
    for one in parameters:
        if one.kind in _NOT_POSITIONAL:
            raise RefusedArgument(
                f"{kernel}: {one.name} is a {one.kind.description} parameter, and a launch gives "
                "positional arguments only; write plain parameters"
            )
    if left := parameters[len(arguments) :]:
        names = ", ".join(one.name for one in left)
        defaults = any(one.default is not one.empty for one in left)
        raise RefusedArgument(
            f"{kernel}: the launch does not give {names}"
            + ("; Numba's launches use no defaults" if defaults else "")
        )


def _check_argument(kernel: str, name: str, given: object) -> None:
    if isinstance(given, tuple):
        for number, one in enumerate(given):
            _check_argument(kernel, f"{name}[{number}]", one)
        return
    if isinstance(given, Enum):  # a kernel gets its value, which may be a tuple
        _check_argument(kernel, f"{name}.value", given.value)
        return
    if isinstance(given, BoundMap):
        return
    value = with_arrays(given)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise RefusedArgument(f"{name} is {shown(value)}: an integer has at most 64 bits")
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        if not _known(value.dtype):
            raise RefusedArgument(
                f"{kernel}: {name} is an array of {value.dtype}, which is not a type of numbers "
                "that Numba has in kernels"
            )
        return
    if not _is_number(value):
        instead = next((said for key, said in _INSTEAD.items() if isinstance(value, key)), "")
        raise RefusedArgument(
            f"{kernel}: {name} is {_described(value)}: {_RULE}"
            + (f"; {instead}" if instead else "")
        )


def _described(value: object) -> str:
    """Return a value in words: ``a list, [1, 2]``. The type alone for a value that Python shows by
    its address."""
    kind, text = type(value).__name__, shown(value)
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    return f"{article} {kind}" if text.startswith("<") else f"{article} {kind}, {text}"


def _is_number(value: object) -> bool:
    """Return whether Numba passes the value to a kernel as a number."""
    if isinstance(value, np.generic) and value.dtype.name == "bfloat16":
        return True
    try:
        kind = typeof(value, Purpose.argument)
    except (ValueError, TypeError, errors.NumbaError, core_errors.NumbaError):
        return False
    return isinstance(kind, _NUMBERS)


def _known(dtype: np.dtype) -> bool:
    """Return whether Numba has arrays of that type."""
    if dtype.subdtype is not None:
        return _known(dtype.base)
    if dtype.fields is not None:
        return all(_known(kind) for kind, *_ in dtype.fields.values())
    if dtype.name == "bfloat16":
        return True
    widest = {"c": 16, "S": dtype.itemsize, "U": dtype.itemsize}.get(dtype.kind, 8)
    return dtype.kind in "fiubcmMSU" and dtype.itemsize <= widest and dtype.isnative


def hosts_in(argument: object) -> Iterator[np.ndarray]:
    """Give the arrays in an argument: itself, or those of a tuple."""
    if isinstance(argument, tuple):
        for entry in argument:
            yield from hosts_in(entry)
    elif isinstance(argument, BoundMap):
        yield argument.array
    elif isinstance(argument, np.ndarray):
        yield argument


def like(given: tuple[object, ...], entries: Iterable[object]) -> tuple[object, ...]:
    """Return a tuple of these entries, a named one if the given one is."""
    make: Callable[[Iterable[object]], tuple[object, ...]] = getattr(type(given), "_make", tuple)
    return make(entries)


def with_arrays(argument: object) -> object:
    """Return the argument as NumPy's arrays, if it is a device array of Numba's simulator, a
    matrix, or a record, which becomes an array of no dimensions."""
    if isinstance(argument, tuple):
        return like(argument, map(with_arrays, argument))
    inner = getattr(argument, "_ary", argument)
    if isinstance(inner, np.void):
        address, _ = inner.__array_interface__["data"]  # read-only, says NumPy 2.5 of each
        where = {
            **inner.__array_interface__,
            "data": (address, not inner.flags.writeable),
            "descr": [("", f"V{inner.itemsize}")],
        }
        # Its ``record`` keeps the memory alive.
        memory = SimpleNamespace(__array_interface__=where, record=inner)
        return np.asarray(memory).view(inner.dtype)
    return np.asarray(inner) if isinstance(inner, np.matrix) else inner
