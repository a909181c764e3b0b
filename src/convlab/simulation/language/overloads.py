"""The overloads that ``overload`` and ``register_jitable`` register for a function."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba.core.typing.templates import builtin_registry as numbas_registry
from numba.cuda import types
from numba.cuda.np.numpy_support import from_dtype
from numba.cuda.typing.templates import builtin_registry
from numba.cuda.typing.typeof import typeof

Overload = Callable[..., FunctionType | None]  # from types of arguments to a body, if it has one


def overloads_of(function: FunctionType) -> list[Overload]:
    """Return the overloads that Numba and numba-cuda have for a function on a GPU, the newest
    first."""
    templates = [one for one in _templates(function) if _target(one) != "cpu"]
    return [one._overload_func for one in templates[::-1] if hasattr(one, "_overload_func")]


def differs_by_target(function: FunctionType) -> bool:
    """Return whether a function has an overload for one target only, such as a GPU."""
    return any(_target(one) not in (None, "generic") for one in _templates(function))


def _templates(function: FunctionType) -> list[Any]:
    return [
        template
        for registry in (numbas_registry, builtin_registry)
        for value, kind in registry.globals
        if value is function
        for template in getattr(kind, "templates", ())
    ]


def _target(template: Any) -> str | None:
    target: str | None = getattr(template, "metadata", {}).get("target")
    return target


def type_of(value: object) -> types.Type:
    """Return Numba's type of a value in a kernel, as far as the simulator knows it."""
    if isinstance(value, tuple):
        return types.BaseTuple.from_types(tuple(map(type_of, value)))
    if isinstance(value, FunctionType):
        return types.pyobject
    if hasattr(value, "dtype") and hasattr(value, "ndim"):
        return types.Array(from_dtype(value.dtype), value.ndim, "A")
    return typeof(value)
