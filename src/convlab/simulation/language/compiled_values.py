"""The values from outside a function that Numba compiles into it, kept from the compilation on.

A GPU's kernel does not see later changes of its globals, its closure variables and the attributes
of modules that it refers to. Numba compiles a kernel at its first launch with arguments of some
types, a device function when a kernel first calls it with some types, and both at their declaration
if ``jit`` is given signatures.
"""

from __future__ import annotations

from types import ModuleType
from weakref import WeakKeyDictionary

import numpy as np
from numba.cuda import types

from convlab.simulation.language.signatures import Types

Values = dict[str, object]  # by name; ``module.name`` is an attribute of a module

_DECLARED = "declared"  # instead of types: compiled with signatures
_values: WeakKeyDictionary[object, dict[object, Values]] = WeakKeyDictionary()


def values_of(compiled: object, arguments: Types | None) -> Values:
    """Return the values that a kernel, or the function of a device function, is compiled with for
    arguments of these types. None stands for unknown types."""
    versions = _values.setdefault(compiled, {})
    if _DECLARED in versions:
        return versions[_DECLARED]
    return versions.setdefault(arguments and tuple(map(alike, arguments)), {})


def values_declared(compiled: object) -> Values:
    """Return the values of a function that is declared with signatures: its only ones from now
    on."""
    return _values.setdefault(compiled, {}).setdefault(_DECLARED, {})


def forget(compiled: object) -> None:
    """Forget the values that a function has been compiled with."""
    _values.pop(compiled, None)


def kept(values: Values, name: str, value: object) -> object:
    """Return the value that the name had when it was first kept. Modules are not kept, but their
    attributes are."""
    if isinstance(value, ModuleType):
        return value
    if name not in values:
        values[name] = _copied(value)
    return values[name]


def attribute(module: ModuleType, name: str) -> str:
    """Return the name under which an attribute of a module is kept."""
    return f"{module.__name__}.{name}"


def _copied(value: object) -> object:
    """Return the value with copies of NumPy's arrays, because the program may write to those. A
    device array is compiled in by its address, so a kernel reads what is written there later."""
    if isinstance(value, np.ndarray) and not hasattr(value, "__cuda_array_interface__"):
        return value.copy()
    return tuple(map(_copied, value)) if type(value) is tuple else value


def alike(kind: types.Type) -> types.Type:
    """Return the type without an array's layout, which launches of a declared kernel leave open."""
    if isinstance(kind, types.Array):
        return kind.copy(layout="A", readonly=False)
    return kind
