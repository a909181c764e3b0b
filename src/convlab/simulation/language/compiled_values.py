"""The values from outside a function that Numba compiles into it, kept from its compilation on.

A GPU's kernel does not see later changes of its globals, its closure variables and the attributes
of modules that it refers to. Numba compiles a kernel at its first launch with arguments of some
types, a device function when a kernel first calls it with some types, and both at their declaration
if ``jit`` is given signatures.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numba.cuda import types

Types = tuple[Any, ...]
Values = dict[str, Any]  # what each name means; ``module.name`` is an attribute of a module

_DECLARED = "declared"  # instead of types: compiled with signatures
_values: WeakKeyDictionary[Any, dict[Any, Values]] = WeakKeyDictionary()


def values_of(compiled: Any, arguments: Types | None) -> Values:
    """The values that a kernel, or the function of a device function, is compiled with for
    arguments of these types; None if those are not known."""
    versions = _values.setdefault(compiled, {})
    if _DECLARED in versions:
        return versions[_DECLARED]
    return versions.setdefault(arguments and tuple(map(alike, arguments)), {})


def values_declared(compiled: Any) -> Values:
    """The values of one that is declared with signatures: from here on the only ones."""
    return _values.setdefault(compiled, {}).setdefault(_DECLARED, {})


def forget(compiled: Any) -> None:
    """Forget what it has been compiled with."""
    _values.pop(compiled, None)


def kept(values: Values, name: str, value: Any) -> Any:
    """The value of that name when it was first kept. A module is kept by its attributes."""
    if isinstance(value, ModuleType):
        return value
    if name not in values:
        values[name] = _copied(value)
    return values[name]


def attribute(module: ModuleType, name: str) -> str:
    """The name under which an attribute of a module is kept."""
    return f"{module.__name__}.{name}"


def _copied(value: Any) -> Any:
    """The value, with copies of NumPy's arrays, which the program may write to. A device array is
    compiled in by its address, so that a kernel sees what is written there."""
    if isinstance(value, np.ndarray) and not hasattr(value, "__cuda_array_interface__"):
        return value.copy()
    return tuple(map(_copied, value)) if type(value) is tuple else value


def alike(kind: Any) -> Any:
    """The type without the layout of arrays, which launches of a declared kernel leave open."""
    if isinstance(kind, types.Array):
        return kind.copy(layout="A", readonly=False)
    return kind
