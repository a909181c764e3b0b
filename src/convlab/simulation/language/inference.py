"""Numba's types of each operation in a function, by its place, for rewriting the function."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType

from numba.cuda import types
from numba.cuda.core import ir
from numba.cuda.typing.templates import Signature

from convlab.simulation.language.numbas_types import (
    Device,
    TypedFunction,
    typed_function,
)
from convlab.simulation.language.signatures import Types

WIDEST, SIZE = 63, 40  # bits of an int64; of a size or index
STEPS = 24  # bits of a loop's iterations: 16 million take long here
GIVEN = 31, SIZE  # bit widths of arguments for which a function is made: few, so few functions
_GROW = (operator.add, operator.sub)
_SIZES = ("len", "grid", "gridsize")


@dataclass(frozen=True)
class Typed:
    """One expression: Numba's types of its operands and its signature.

    ``narrow`` tells that the result surely stays within 63 bits. ``calls`` is the device function
    that it calls, with arguments of that many ``bits``; ``key`` is any other function.
    """

    operands: Types
    signature: Signature
    mixed: tuple[bool, ...] = ()  # operands of a float's type that may hold an integer
    narrow: bool = False
    key: object = None
    calls: Device | None = None
    bits: tuple[int, ...] = ()


def infer(function: FunctionType, arguments: Types, bits: tuple[int, ...]) -> dict[int, Typed]:
    """Return the function's expressions and stores by the offset of their instruction.

    ``arguments`` are Numba's types, ``bits`` the most bits of the integers among them. Raises
    ``Refused`` if Numba refuses the function, and ``Untyped`` if the types are not known here.
    """
    return _Reader(typed_function(function, arguments), bits).expressions()


class _Reader:
    """Reads the results of type inference."""

    def __init__(self, state: TypedFunction, bits: tuple[int, ...]) -> None:
        self._state, self._types = state, state.typemap
        self._ranges = Ranges(state, bits)

    def expressions(self) -> dict[int, Typed]:
        """Return the typed expressions by offset, without those whose types differ."""
        found: dict[int, Typed | None] = {}  # None where types differ
        for expression, signature in self._state.calltypes.items():
            offset = getattr(expression.loc, "col", None)
            typed = None if offset is None else self._typed(expression, signature)
            if offset is not None and typed is not None:
                alike = found.get(offset, typed) == typed
                found[offset] = typed if alike else None
        return {offset: typed for offset, typed in found.items() if typed is not None}

    def _typed(self, expression: ir.Expr, signature: Signature) -> Typed | None:
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
            operands: tuple[ir.Var, ...] = (expression.lhs, expression.rhs)
        elif operation == "unary":
            operands = (expression.value,)
        else:
            return None
        names = [one.name for one in operands]
        narrow = self._ranges.of_expression(expression) < WIDEST
        if operation == "unary":  # as wide as its operand, which has one more number below zero
            kind = types.unliteral(self._types[names[0]])
            narrow &= bool(isinstance(kind, types.Integer) and kind.signed and kind.bitwidth == 64)
        kinds = tuple(self._types[name] for name in names)
        return Typed(kinds, signature, tuple(map(self._is_mixed, names)), narrow)

    def _is_mixed(self, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether a variable of a float's type may hold an integer: a phi of both."""
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


# The most bits that an integer of a kernel can have, whatever the arguments are. Python's integers
# have any size, and only those that may outgrow an int64 have to be checked when the kernel runs.


def given_bits(bits: int) -> int:
    """Return the next width of :data:`GIVEN` that holds that many bits, or more than any integer
    has."""
    return next((one for one in GIVEN if bits <= one), WIDEST + 1)


class Ranges:
    """Bit-width bounds of a function's variables, for arguments of that many bits at most."""

    def __init__(self, state: TypedFunction, arguments: tuple[int, ...]) -> None:
        self._types, self._calls, self._arguments = state.typemap, state.calltypes, arguments
        self.values: dict[str, list[ir.Inst]] = defaultdict(list)  # all assigned to a variable
        for block in state.func_ir.blocks.values():
            for one in block.body:
                if isinstance(one, ir.Assign):
                    self.values[one.target.name].append(one.value)
        self._bits: dict[str, int] = {}
        # Tarjan's algorithm: the stack of variables, and the lowest place in it that each reaches.
        self._open: list[str] = []
        self._low: dict[str, int] = {}

    def of_arguments(self, arguments: Iterable[ir.Var]) -> tuple[int, ...]:
        """Return the bits that each argument of a call has at most."""
        return tuple(given_bits(self._of(one.name)) for one in arguments)

    def of_expression(self, value: ir.Expr) -> int:
        """Return the bits of an operation's result before it is cut to its type."""
        for name in self._needed(value):
            self._of(name)
        return self._computed(value)

    def _of(self, name: str) -> int:
        if name not in self._bits:
            self._visit(name)
        return self._bits[name]

    def _visit(self, name: str) -> None:
        """Find the bits of a variable and of those it depends on, by Tarjan's algorithm: variables
        that depend on each other are bounded together."""
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
        """Bound variables that depend on each other: they are narrow only if each iteration of
        their loop just adds something to one of them."""
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

    def _most(self, name: str, values: list[ir.Inst]) -> int:
        return max((min(self._computed(one), self._width(name)) for one in values), default=64)

    def _width(self, name: str) -> int:
        """Return the bits of a variable's type."""
        kind = types.unliteral(self._types[name])
        if isinstance(kind, types.Boolean):
            return 1
        return int(kind.bitwidth - kind.signed) if isinstance(kind, types.Integer) else WIDEST + 1

    def copied(self, value: ir.Inst) -> list[str]:
        """Return the variables that the value is a copy of, one of several for a phi."""
        if isinstance(value, ir.Var):
            return [value.name]
        if isinstance(value, ir.Expr) and value.op == "phi":
            return [one.name for one in value.incoming_values if isinstance(one, ir.Var)]
        return [value.value.name] if isinstance(value, ir.Expr) and value.op == "cast" else []

    def _needed(self, value: ir.Inst) -> list[str]:
        """Return the variables on which the number of bits depends."""
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

    def _computed(self, value: ir.Inst) -> int:
        """Return the bits of a value, computed from the bits of the variables that it needs."""
        if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
            return value.value.bit_length() if isinstance(value.value, int) else WIDEST + 1
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

    def _key(self, call: ir.Expr) -> Callable[..., object] | None:
        """Return the function that an expression calls; None if that is not known."""
        kind = self._types[call.func.name]
        key = getattr(kind, "typing_key", None)
        if isinstance(kind, types.NumberClass) and isinstance(kind.instance_type, types.Integer):
            whole = (types.Integer, types.Boolean)
            return int if all(isinstance(self._types[a.name], whole) for a in call.args) else None
        return key if callable(key) else None

    def _masks(self, value: ir.Expr) -> Iterator[str]:
        """Yield the operands of a bitwise and that are constants from zero on."""
        for one in value.lhs, value.rhs:
            kind = self._types[one.name]
            if isinstance(kind, types.IntegerLiteral) and kind.literal_value >= 0:
                yield one.name

    def _is_shape(self, value: ir.Inst) -> bool:
        """Return whether the value is an entry of an array's shape."""
        if value_op(value) != "static_getitem":
            return False
        (inner, *_) = self.values[value.value.name] or [None]
        return bool(value_op(inner) == "getattr" and inner.attr == "shape")


_KEEP = (operator.rshift, operator.floordiv, operator.mod)  # no more bits than the first operand
_NO_MORE = (*_KEEP, operator.or_, operator.xor, operator.and_)
_OF_ARGUMENTS = (range, min, max, int)


def value_op(value: ir.Inst) -> str | None:
    """Return the kind of an expression of Numba's IR, such as ``"binop"``; None for anything
    else."""
    return getattr(value, "op", None) if isinstance(value, ir.Expr) else None


def _function(value: ir.Inst) -> Callable[..., object] | None:
    """Return the operator of a binary operation; None for anything else."""
    operation = value_op(value)
    function: Callable[..., object] | None = None
    if operation == "inplace_binop":
        function = value.immutable_fn
    elif operation == "binop":
        function = value.fn
    return function
