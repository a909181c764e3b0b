"""Expressions rewritten so that their results are those of registers of Numba's types."""

from __future__ import annotations

import ast

from numba.cuda import types

from convlab.simulation.language.inference import Typed
from convlab.simulation.language.source_nodes import call, written

BY_ZERO = "_by_zero_"  # a global: replaces a divisor that is zero
_DIVISOR, _WRAPPED = "_divisor_", "_wrapped_"
_BITWISE = (ast.BitAnd, ast.BitOr, ast.BitXor)
_NO_WIDER = (ast.FloorDiv, ast.Mod, ast.RShift, ast.UAdd, *_BITWISE)  # than their operands
_RING = (ast.Add, ast.Sub, ast.Mult, ast.LShift, *_BITWISE)


def is_integer(kind: types.Type) -> bool:
    """Return whether a type is one of integers or booleans."""
    return isinstance(kind, types.Integer | types.Boolean)


def computes_floats(typed: Typed) -> bool:
    """Return whether the result is a float, computed from floats and integers."""
    return isinstance(typed.signature.return_type, types.Float) and all(
        isinstance(kind, types.Float) or is_integer(kind) for kind in typed.operands
    )


def is_ring(node: ast.BinOp, typed: Typed) -> bool:
    """Return whether the last 64 bits of the result depend only on those of the operands."""
    if isinstance(node.op, ast.LShift) and not isinstance(node.right, ast.Constant):
        return False
    whole = isinstance(typed.signature.return_type, types.Integer)
    return whole and isinstance(node.op, _RING) and all(map(is_integer, typed.operands))


def divisor(node: ast.expr) -> ast.expr:
    """Return the divisor of a division of floats, which may be zero on a GPU."""
    if isinstance(node, ast.Constant) and node.value:
        return node
    made: ast.expr = written(f"({_DIVISOR} := value) or {BY_ZERO}({_DIVISOR})", node, value=node)
    return made


def of_width(node: ast.expr, typed: Typed) -> ast.expr | None:
    """Return the negative or absolute integer as Numba computes it, in the operand's own width.
    None if the width changes nothing."""
    kind = types.unliteral(typed.operands[0])
    is_narrow = isinstance(kind, types.Integer) and not typed.narrow
    return call(f"_{kind.name}_", node) if is_narrow else None


def as_register(node: ast.expr, typed: Typed, rounds: bool, cut: bool = False) -> ast.expr:
    """Return the node's value as a register of its type holds it. ``cut`` tells that the value is
    known to be longer."""
    result = typed.signature.return_type
    if result in (types.float32, types.float16):
        return call(f"_{result.name}_", node) if rounds else node
    if not isinstance(result, types.Integer) or not rounds:
        return node
    if not cut and _fits(node, typed, result):
        return node
    if not result.signed:
        text = f"value & {2**64 - 1}"
    else:
        test = f"{_WRAPPED} if {-(2**63)} <= ({_WRAPPED} := value) <= {2**63 - 1}"
        text = f"{test} else _int64_({_WRAPPED})"
    made: ast.expr = written(text, node, value=node)
    return made


def _fits(node: ast.expr, typed: Typed, result: types.Integer) -> bool:
    """Return whether 64 bits are enough for the integer."""
    kinds = [types.unliteral(kind) for kind in typed.operands]
    operation = node.op if isinstance(node, ast.BinOp | ast.UnaryOp) else None
    if isinstance(operation, _NO_WIDER) and all(
        getattr(kind, "signed", result.signed) == result.signed for kind in kinds
    ):
        return True
    grows = isinstance(operation, ast.Add | ast.Mult)
    unsigned = grows and not any(getattr(kind, "signed", False) for kind in kinds)
    return typed.narrow and (result.signed or unsigned)


def binary(node: ast.BinOp, typed: Typed, rounds: bool, cut: bool) -> ast.expr:
    """Return a binary operation as Numba computes it. Unless it ``rounds``, an outer operation
    rounds the result later; ``cut`` is :func:`as_register`'s."""
    result = typed.signature.return_type
    if result == types.int64 and isinstance(node.op, ast.Mod | ast.FloorDiv | ast.RShift):
        # Numba computes uint64 % int64 as int64.
        if types.unliteral(typed.operands[0]) == types.uint64:
            node.left = call("_int64_", node.left)
        if types.unliteral(typed.operands[1]) == types.uint64:
            node.right = call("_int64_", node.right)
    if isinstance(result, types.Float):
        if not computes_floats(typed):
            return node
        whole = all(is_integer(kind) for kind in typed.operands)
        if whole or typed.mixed[0]:
            node.left = call("_float_", node.left)
        if whole or (len(typed.mixed) > 1 and typed.mixed[1]):
            node.right = call("_float_", node.right)
        if isinstance(node.op, ast.Pow):
            if isinstance(typed.signature.args[1], types.Integer):
                return call(f"_power_{result.name}_", node.left, node.right)
            return as_register(call("_power_", node.left, node.right), typed, rounds)
        if isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
            node.right = divisor(node.right)
    elif isinstance(result, types.Integer) and isinstance(node.op, ast.Pow):
        exponent = typed.signature.args[1]
        constant = isinstance(exponent, types.IntegerLiteral)
        if not constant or exponent.literal_value < 0:
            name = f"constant_power_{result.name}" if constant else f"power_{result.name}"
            return call(f"_{name}_", node.left, node.right)
    elif isinstance(result, types.Integer) and isinstance(node.op, ast.LShift):
        if not isinstance(node.right, ast.Constant):
            return as_register(call("_shifted_", node.left, node.right), typed, rounds)
    return as_register(node, typed, rounds, cut)
