"""What a rewritten function needs to know of Numba's types: of each operation, by its place."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from numba.cuda import types
from numba.cuda.core import ir

from convlab.simulation.language.numbas_types import Device, Types, typed_function

WIDEST, SIZE = 63, 40  # bits of: an int64, a size or index
STEPS = 24  # bits of how often a loop can run: 16 million times, which takes long here
GIVEN = 31, SIZE  # bits of arguments that are told apart, so that few functions are made for one
_GROW = (operator.add, operator.sub)
_SIZES = ("len", "grid", "gridsize")


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
        found: dict[int, Typed | None] = {}  # None where types differ
        for expression, signature in self._state.calltypes.items():
            offset = getattr(expression.loc, "col", None)
            typed = None if offset is None else self._typed(expression, signature)
            if offset is not None and typed is not None:
                alike = found.get(offset, typed) == typed
                found[offset] = typed if alike else None
        return {offset: typed for offset, typed in found.items() if typed is not None}

    def _typed(self, expression: Any, signature: Any) -> Typed | None:
        if isinstance(expression, ir.SetItem | ir.StaticSetItem):
            mixed = (self._is_mixed(expression.value.name),)
            return Typed((self._types[expression.target.name],), signature, mixed)
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


# How many bits an integer of a kernel can have, whatever the arguments are: Python's are of any
# size, and only those that may get too long for an int64 have to be checked when the kernel runs.


def given_bits(bits: int) -> int:
    """The next size of :data:`GIVEN` that holds so many bits; beyond all of them one too many."""
    return next((one for one in GIVEN if bits <= one), WIDEST + 1)


class Ranges:
    """Of the variables of a typed function, whose arguments have so many bits at most."""

    def __init__(self, state: Any, arguments: tuple[int, ...]) -> None:
        self._types, self._calls, self._arguments = state.typemap, state.calltypes, arguments
        self.values: dict[str, list[Any]] = defaultdict(list)  # all that is assigned to a variable
        for block in state.func_ir.blocks.values():
            for one in block.body:
                if isinstance(one, ir.Assign):
                    self.values[one.target.name].append(one.value)
        self._bits: dict[str, int] = {}
        self._open: list[str] = []  # variables that are being looked at, and those in loops of them
        self._low: dict[str, int] = {}

    def of_arguments(self, arguments: Any) -> tuple[int, ...]:
        return tuple(given_bits(self._of(one.name)) for one in arguments)

    def of_expression(self, value: Any) -> int:
        """Of an operation's result before it is cut to its type."""
        for name in self._needed(value):
            self._of(name)
        return self._computed(value)

    def _of(self, name: str) -> int:
        if name not in self._bits:
            self._visit(name)
        return self._bits[name]

    def _visit(self, name: str) -> None:
        """Tarjan's algorithm: variables that depend on each other are looked at together."""
        number = self._low[name] = len(self._open)
        self._open.append(name)
        needed = {one for value in self.values[name] for one in self._needed(value)}
        for one in needed:
            if one not in self._low:
                self._visit(one)
            if one not in self._bits:
                self._low[name] = min(self._low[name], self._low[one])
        if self._low[name] < number:
            return
        together, self._open = self._open[number:], self._open[:number]
        if name in needed or len(together) > 1:
            self._repeated({*together})
        else:
            self._bits[name] = self._most(name, self.values[name])

    def _repeated(self, names: set[str]) -> None:
        """Of variables that depend on each other: narrow only if each step of the loop does no more
        than to add something to one of them."""
        widest = 0
        self._bits |= dict.fromkeys(names, 0)
        for name in names:
            for value in self.values[name]:
                inside = [one for one in self._needed(value) if one in names]
                function = _function(value)
                kept = not inside or self.copied(value) or function in _KEEP
                if not (kept or (function in _GROW and len(inside) == 1)):
                    widest = WIDEST + 1
                widest = max(widest, self._most(name, [value]))
        for name in names:
            self._bits[name] = min(widest + STEPS, self._width(name))

    def _most(self, name: str, values: list[Any]) -> int:
        return max((min(self._computed(one), self._width(name)) for one in values), default=64)

    def _width(self, name: str) -> int:
        """What the type allows."""
        kind = types.unliteral(self._types[name])
        if isinstance(kind, types.Boolean):
            return 1
        return int(kind.bitwidth - kind.signed) if isinstance(kind, types.Integer) else WIDEST + 1

    def copied(self, value: Any) -> list[str]:
        """The variables of which one becomes the value as it is."""
        if isinstance(value, ir.Var):
            return [value.name]
        if isinstance(value, ir.Expr) and value.op == "phi":
            return [one.name for one in value.incoming_values if isinstance(one, ir.Var)]
        return [value.value.name] if isinstance(value, ir.Expr) and value.op == "cast" else []

    def _needed(self, value: Any) -> list[str]:
        """The variables on which the number of bits depends."""
        if copied := self.copied(value):
            return copied
        operation = getattr(value, "op", None)
        if operation in ("pair_first", "iternext", "getiter", "unary"):
            return [value.value.name]
        if operation == "call":
            key = self._key(value)
            return [one.name for one in value.args] if key in _OF_ARGUMENTS else []
        function = _function(value)
        if function is None:
            return []
        if function is operator.mod:
            return [value.rhs.name]
        if function is operator.and_ and (masks := [*self._masks(value)]):
            return masks[:1]
        return [value.lhs.name] if function in _KEEP else [value.lhs.name, value.rhs.name]

    def _computed(self, value: Any) -> int:
        if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
            return int(value.value).bit_length() if isinstance(value.value, int) else WIDEST + 1
        if isinstance(value, ir.Arg):
            given = self._arguments[value.index : value.index + 1]
            return given[0] if given else WIDEST + 1
        known = [self._bits[name] for name in self._needed(value)]
        if not known:
            key = self._key(value) if getattr(value, "op", None) == "call" else None
            return (
                SIZE
                if getattr(key, "__name__", "") in _SIZES or self._is_shape(value)
                else WIDEST + 1
            )
        function, is_unary = _function(value), value_op(value) == "unary"
        if is_unary or function is operator.sub:
            gives = self._calls[value].return_type
            if isinstance(gives, types.Integer) and not gives.signed:  # below zero is above 2**63
                return WIDEST + 1
        if function in _GROW or is_unary:
            return max(known) + 1
        if function is operator.mul:
            return sum(known)
        if function is operator.lshift:
            kind = self._types[value.rhs.name]
            return known[0] + int(getattr(kind, "literal_value", WIDEST))
        return WIDEST + 1 if function is not None and function not in _NO_MORE else max(known)

    def _key(self, call: Any) -> Any:
        kind = self._types[call.func.name]
        key = getattr(kind, "typing_key", None)
        if isinstance(kind, types.NumberClass) and isinstance(kind.instance_type, types.Integer):
            whole = (types.Integer, types.Boolean)
            return int if all(isinstance(self._types[a.name], whole) for a in call.args) else None
        return key if callable(key) else None

    def _masks(self, value: Any) -> Iterator[str]:
        for one in value.lhs, value.rhs:
            kind = self._types[one.name]
            if isinstance(kind, types.IntegerLiteral) and kind.literal_value >= 0:
                yield one.name

    def _is_shape(self, value: Any) -> bool:
        if value_op(value) != "static_getitem":
            return False
        (inner, *_) = self.values[value.value.name] or [None]
        return bool(value_op(inner) == "getattr" and inner.attr == "shape")


_KEEP = (operator.rshift, operator.floordiv, operator.mod)  # no more bits than the first operand
_NO_MORE = (*_KEEP, operator.or_, operator.xor, operator.and_)
_OF_ARGUMENTS = (range, min, max, int)


def value_op(value: Any) -> Any:
    """The kind of an expression of Numba's IR, such as ``"binop"``; None for what is none."""
    return getattr(value, "op", None) if isinstance(value, ir.Expr) else None


def _function(value: Any) -> Any:
    """The operator of a binary operation."""
    operation = value_op(value)
    if operation == "inplace_binop":
        return value.immutable_fn
    return value.fn if operation == "binop" else None
