"""What ``cuda.jit("void(float32[:], int32)")`` asks for: arguments of declared types."""

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

Declared = list[tuple[tuple[Any, ...], Any]]  # types of arguments and of the result
_numbas = BaseContext()


def declared(given: Any) -> Declared | None:
    """The first argument of ``jit`` as signatures; None where it is none."""
    if not isinstance(given, list) and not is_signature(given):
        return None
    return [normalize_signature(one) for one in (given if isinstance(given, list) else [given])]


def as_declared(signatures: Declared, arguments: list[Any]) -> list[Any]:
    """A launch's arguments cast to the signature that fits best; ``TypeError`` if none fits."""
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
    signatures: Sequence[Any], kinds: Sequence[Any], first: bool = False
) -> tuple[Any, ...]:
    """The types of the signature that fits arguments of these best, or the ``first`` of those that
    do equally well; ``TypeError`` if none fits, or else if several do."""
    fits: list[tuple[list[int], tuple[Any, ...]]] = []
    for takes, _ in signatures:
        if len(takes) == len(kinds):
            costs = [_cost(*pair, len(signatures) == 1) for pair in zip(kinds, takes, strict=True)]
            if None not in costs:
                fits.append((sorted(costs, reverse=True), takes))
    if not fits:
        raise _no_match(kinds)
    best, takes = min(fits, key=lambda fit: fit[0])
    if not first and len([fit for fit in fits if fit[0] == best]) > 1:
        shown = ", ".join(map(str, kinds))
        raise TypeError(f"Ambiguous overloading for arguments of types {shown}")
    return takes


def _no_match(kinds: Sequence[Any]) -> TypeError:
    return TypeError(f"No matching definition for argument type(s) {', '.join(map(str, kinds))}")


def _kind(value: Any) -> Any:
    """Numba's type of an argument. No device array is read-only, as what NumPy broadcasts is."""
    kind = typeof(getattr(value, "_ary", value))
    on_device = hasattr(value, "_ary") and isinstance(kind, types.Array)
    return kind.copy(readonly=False) if on_device else kind


def _cost(kind: Any, takes: Any, only: bool) -> Any:
    """How far a conversion goes; None where there is none. The ``only`` signature takes signed
    arrays for unsigned ones."""
    cost = _numbas.can_convert(kind, takes)
    if cost is None and only and isinstance(kind, types.Array) and isinstance(takes, types.Array):
        both = kind.dtype, takes.dtype
        if (
            all(isinstance(one, types.Integer) for one in both)
            and len({b.bitwidth for b in both}) < 2
        ):
            cost = _numbas.can_convert(kind.copy(dtype=takes.dtype), takes)
    return cost


def _impossible(kind: Any, takes: Any) -> bool:
    """Whether Numba refuses to launch with it: a fraction for an integer, a complex for a real."""
    if isinstance(takes, types.Integer):
        return not isinstance(kind, types.Integer | types.Boolean)
    return isinstance(takes, types.Float) and isinstance(kind, types.Complex)


def _cast_to(kind: Any) -> Callable[[Any], Any] | None:
    """What casts to a type of numbers. Unlike a cast that a kernel writes it may wrap around."""
    if not isinstance(kind, NUMBERS):
        return None
    cast: Callable[[Any], Any] = meaning(kind)
    return keeper(np.dtype(kind.name)) if kind.name in CHECKED else cast


def casting(function: Callable[..., Any], signatures: Declared) -> Callable[..., Any]:
    """A device function that casts what it takes and gives as its only signature says."""
    if len(signatures) != 1:
        return function
    ((takes, gives),) = signatures
    casts, result = [_cast_to(kind) for kind in takes], _cast_to(gives)
    names = dict(zip(inspect.signature(function).parameters, casts, strict=False))

    def called(*values: Any, **named: Any) -> Any:
        given = [cast(one) if cast else one for cast, one in zip(casts, values, strict=False)]
        by_name = {
            name: cast(named[name]) for name, cast in names.items() if name in named and cast
        }
        found = function(*given, **named | by_name)
        return result(found) if result else found

    return called if any([*casts, result]) else function
