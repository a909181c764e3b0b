"""What a rewritten function needs to know of Numba's types: of each operation, by its place."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import Any

from numba.cuda import types
from numba.cuda.core import ir

from convlab.simulation.numbas_types import Device, Types, typed_function
from convlab.simulation.ranges import WIDEST, Ranges


@dataclass(frozen=True)
class Typed:
    """One expression: Numba's types of its operands, its signature, and whether it is known to stay
    within 63 bits. ``calls`` is the device function that it calls, with arguments of that many
    ``bits``; ``key`` is any other function."""

    operands: Types
    signature: Any
    mixed: tuple[bool, ...] = ()  # operands of a float's type that may hold an integer
    narrow: bool = False
    key: Any = None
    calls: Any = None
    bits: tuple[int, ...] = ()


def infer(function: FunctionType, arguments: Types, bits: tuple[int, ...]) -> dict[int, Typed]:
    """The function's expressions and stores by the offset of their instruction, for arguments of
    these Numba types, integers of so many bits. Raises ``Refused`` where Numba does, and
    ``Untyped`` where the types are not known here."""
    return _Reader(typed_function(function, arguments), bits).expressions()


class _Reader:
    """Reads what type inference has left behind."""

    def __init__(self, state: Any, bits: tuple[int, ...]) -> None:
        self._state, self._types = state, state.typemap
        self._ranges = Ranges(state, bits)

    def expressions(self) -> dict[int, Typed]:
        found: dict[int, Typed] = {}
        several: set[int] = set()
        for expression, signature in self._state.calltypes.items():
            offset = getattr(expression.loc, "col", None)
            typed = None if offset is None else self._typed(expression, signature)
            if offset is None or typed is None:
                continue
            if offset in found and found[offset] != typed:
                several.add(offset)
            found[offset] = typed
        for offset in several:
            del found[offset]
        return found

    def _typed(self, expression: Any, signature: Any) -> Typed | None:
        if isinstance(expression, ir.SetItem | ir.StaticSetItem):
            return Typed((self._types[expression.target.name],), signature)
        operation = getattr(expression, "op", None)
        if operation == "call":
            function = self._types[expression.func.name]
            key = getattr(function, "typing_key", function)
            if not isinstance(key, Device):
                return Typed(tuple(signature.args), signature, key=key)
            key = key.called(tuple(signature.args))
            plain = not (expression.kws or key.declared)
            plain &= len(expression.args) == len(signature.args)
            bits = self._ranges.of_arguments(expression.args) if plain else ()
            return Typed((), signature, calls=key, bits=bits)
        if operation in ("binop", "inplace_binop"):
            operands: Types = (expression.lhs, expression.rhs)
        elif operation == "unary":
            operands = (expression.value,)
        else:
            return None
        names = [one.name for one in operands]
        narrow = self._ranges.of_expression(expression) < WIDEST
        if operation == "unary":  # of its operand's width, which has one number more below zero
            kind = types.unliteral(self._types[names[0]])
            narrow &= isinstance(kind, types.Integer) and kind.signed and kind.bitwidth == 64
        kinds = tuple(self._types[name] for name in names)
        return Typed(kinds, signature, tuple(map(self._is_mixed, names)), narrow)

    def _is_mixed(self, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a variable of a float's type may hold an integer: a phi of both."""
        kind = self._types.get(name)
        if name in seen or not isinstance(kind, types.Float):
            return isinstance(kind, types.Integer | types.Boolean) and bool(seen)
        for value in self._ranges.values[name]:
            if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
                if isinstance(value.value, int):
                    return True
            for part in self._ranges.copied(value):
                if self._is_mixed(part, seen | {name}):
                    return True
        return False
