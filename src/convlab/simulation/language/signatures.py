"""Arguments of declared types, as ``cuda.jit("void(float32[:], int32)")`` declares them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba.cuda import types
from numba.cuda.core.sigutils import is_signature, normalize_signature
from numba.cuda.typing.context import BaseContext
from numba.cuda.typing.typeof import typeof

from convlab.simulation.numbers.scalars import CHECKED, NUMBERS, keeper, meaning

Types = tuple[types.Type, ...]
Declared = list[tuple[Types, types.Type]]  # types of arguments and of the result
_numbas = BaseContext()


def declared(given: object) -> Declared | None:
    """Return the first argument of ``jit`` as signatures; None if it is none."""
    if not isinstance(given, list) and not is_signature(given):
        return None
    return [normalize_signature(one) for one in (given if isinstance(given, list) else [given])]


def as_declared(signatures: Declared, arguments: list[object]) -> list[object]:
    """Return a launch's arguments cast to the signature that fits best. Raises ``TypeError`` if
    none fits."""
    try:
        kinds = [_kind(one) for one in arguments]
    except ValueError:  # of an extension, which has its own type
        return arguments
    takes = best_fit(signatures, kinds)
    if any(map(_impossible, kinds, takes)):
        raise _no_match(kinds)
    casts = zip(map(_cast_to, takes), takes, strict=True)
    return [  # NumPy's numbers, which tell their types
        np.dtype(kind.name).type(cast(one)) if cast else one
        for (cast, kind), one in zip(casts, arguments, strict=True)
    ]


def best_fit(
    signatures: Sequence[tuple[Types, types.Type]],
    kinds: Sequence[types.Type],
    first: bool = False,
) -> Types:
    """Return the argument types of the signature that fits arguments of these ``kinds`` best.

    Raises ``TypeError`` if none fits. If several fit equally well, returns the ``first`` of them,
    or raises ``TypeError``.
    """
    fits: list[tuple[list[int], Types]] = []
    only = len(signatures) == 1
    for takes, _ in signatures:
        if len(takes) == len(kinds):
            costs = [_cost(kind, take, only) for kind, take in zip(kinds, takes, strict=True)]
            known = [cost for cost in costs if cost is not None]
            if len(known) == len(costs):
                fits.append((sorted(known, reverse=True), takes))
    if not fits:
        raise _no_match(kinds)
    best, takes = min(fits, key=lambda fit: fit[0])
    if not first and len([fit for fit in fits if fit[0] == best]) > 1:
        shown = ", ".join(map(str, kinds))
        raise TypeError(f"Ambiguous overloading for arguments of types {shown}")
    return takes


def _no_match(kinds: Sequence[types.Type]) -> TypeError:
    return TypeError(f"No matching definition for argument type(s) {', '.join(map(str, kinds))}")


def _kind(value: object) -> types.Type:
    """Return Numba's type of an argument. No device array is read-only, unlike an array that NumPy
    broadcasts."""
    kind = typeof(getattr(value, "_ary", value))
    on_device = hasattr(value, "_ary") and isinstance(kind, types.Array)
    return kind.copy(readonly=False) if on_device else kind


def _cost(kind: types.Type, takes: types.Type, only: bool) -> int | None:
    """Return the cost of a conversion; None if there is none. The ``only`` signature takes signed
    arrays for unsigned ones."""
    cost: int | None = _numbas.can_convert(kind, takes)
    if cost is None and only and isinstance(kind, types.Array) and isinstance(takes, types.Array):
        both = kind.dtype, takes.dtype
        if (
            all(isinstance(one, types.Integer) for one in both)
            and len({b.bitwidth for b in both}) < 2
        ):
            cost = _numbas.can_convert(kind.copy(dtype=takes.dtype), takes)
    return cost


def _impossible(kind: types.Type, takes: types.Type) -> bool:
    """Return whether Numba refuses to launch with this argument: a fraction for an integer, a
    complex number for a real one."""
    if isinstance(takes, types.Integer):
        return not isinstance(kind, types.Integer | types.Boolean)
    return isinstance(takes, types.Float) and isinstance(kind, types.Complex)


def _cast_to(kind: types.Type) -> Callable[[Any], object] | None:
    """Return the cast to a type of numbers, None for other types. Unlike a cast that a kernel
    writes, it may wrap around."""
    if not isinstance(kind, NUMBERS):
        return None
    cast: Callable[[Any], object] = meaning(kind)
    return keeper(np.dtype(kind.name)) if kind.name in CHECKED else cast


def casting(function: Callable[..., object], signatures: Declared) -> Callable[..., object]:
    """Return a device function that casts arguments and result as its only signature says."""
    if len(signatures) != 1:
        return function
    ((takes, gives),) = signatures
    casts, result = [_cast_to(kind) for kind in takes], _cast_to(gives)
    names = dict(zip(inspect.signature(function).parameters, casts, strict=False))

    def called(*values: object, **named: object) -> object:
        given = [cast(one) if cast else one for cast, one in zip(casts, values, strict=False)]
        by_name = {
            name: cast(named[name]) for name, cast in names.items() if name in named and cast
        }
        found = function(*given, **(named | by_name))
        return result(found) if result else found

    return called if any([*casts, result]) else function
