"""Rewrites a function's arithmetic so that plain Python computes what Numba's types make of it.

Registers hold Python's numbers. Only an operation whose result can differ on a GPU is wrapped: an
integer that may need more than 64 bits, a float32 or float16 that has to be rounded, two integers
that Numba computes as floats, a division by zero.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba.cuda import types

from convlab.simulation.language.inference import Typed
from convlab.simulation.numbers.registers import OF_BITS, ROUNDING

BY_ZERO = "_by_zero_"  # a global: what stands for a divisor that is zero
_DIVISOR = "_divisor_"
CALLED = "_called_"  # and a number: a device function for the types of one call
_WRAPPED, _ROUND = "_wrapped_", "_float32_"
_CACHE_BYTES = 2  # of an instruction
_NUMBAS_OFFSET = 2  # Numba puts an instruction before the first
Position = tuple[int | None, ...]
"""First line, last line, first column, last column."""


def positions(code: Any, expressions: dict[int, Typed]) -> dict[Position, Typed]:
    """What is known of the expressions by their place in the source that ``code`` comes from."""
    where = [*code.co_positions()]
    found: dict[Position, Typed] = {}
    for offset, typed in expressions.items():
        line, end, column, last = where[(offset - _NUMBAS_OFFSET) // _CACHE_BYTES]
        found[line, end, column, last] = typed
    return found


def written(text: str, at: ast.AST, **nodes: Any) -> Any:
    """The expression or statement of that text where ``at`` is; names in it stand for nodes."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> Any:
            return nodes.get(name.id, name)

    (made,) = ast.parse(text).body
    for part in ast.walk(made):
        ast.copy_location(part, at)
    made = Fill().visit(made)
    return made.value if isinstance(made, ast.Expr) else made


def position_of(node: Any) -> Position:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


_BITS = (ast.BitAnd, ast.BitOr, ast.BitXor)
_INSIDE = (ast.FloorDiv, ast.Mod, ast.RShift, ast.UAdd, *_BITS)  # no more bits than they take
_RING = (ast.Add, ast.Sub, ast.Mult, ast.LShift, *_BITS)


def _is_ring(node: ast.BinOp, typed: Typed) -> bool:
    """Whether the last 64 bits of the result depend on those of the operands alone."""
    if isinstance(node.op, ast.LShift) and not isinstance(node.right, ast.Constant):
        return False
    whole = isinstance(typed.signature.return_type, types.Integer)
    return whole and isinstance(node.op, _RING) and all(map(_is_integer, typed.operands))


def _is_integer(kind: Any) -> bool:
    return isinstance(kind, types.Integer | types.Boolean)


def _divisor(node: ast.expr) -> Any:
    """What floats are divided by."""
    if isinstance(node, ast.Constant) and node.value:
        return node
    return written(f"({_DIVISOR} := value) or {BY_ZERO}({_DIVISOR})", node, value=node)


class TypedArithmetic(ast.NodeTransformer):
    """Rewrites what ``known`` tells of, and divisions of which nothing is known. ``calls`` are then
    the device functions that it calls, with the types of their arguments, by number."""

    def __init__(self, known: dict[Position, Typed]) -> None:
        self._known = known
        self.calls: list[Typed] = []
        self._loose: set[int] = set()  # nodes whose value is rounded or cut later

    def _typed(self, node: Any) -> Typed | None:
        return self._known.get(position_of(node))

    # Functions and comprehensions inside have variables of their own.
    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node

    def visit_Lambda(self, node: Any) -> Any:
        return node if self._known else self.generic_visit(node)

    visit_ListComp = visit_GeneratorExp = visit_SetComp = visit_DictComp = visit_Lambda

    def visit_Assign(self, node: ast.Assign) -> Any:
        (target, *others) = node.targets
        stored = self._typed(target) if isinstance(target, ast.Subscript) else None
        dtype = getattr(stored.operands[0], "dtype", None) if stored else None
        value = self._typed(node.value)
        if stored and value and not others and isinstance(node.value, ast.BinOp):
            result = value.signature.return_type
            both = isinstance(dtype, types.Integer) and isinstance(result, types.Integer)
            if dtype == result or both:
                self._loose.add(id(node.value))
        self.generic_visit(node)
        if stored and isinstance(dtype, types.Integer) and types.float16 in stored.signature.args:
            node.value = self._call("_nearest_", node.value)
        elif stored and stored.mixed[0]:
            node.value = self._call("_float_", node.value)
        return node if others else self._in_steps(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        typed = self._typed(node)
        if typed is None:
            self.generic_visit(node)
            return self._divided(node, "value")
        if not isinstance(node.target, ast.Name):  # an array, which rounds and wraps by itself
            self.generic_visit(node)
            if isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod) and self._floats(typed):
                node.value = _divisor(node.value)
            return node
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        return self._in_steps(
            ast.copy_location(ast.Assign([node.target], self._visited(value, typed)), node)
        )

    def _in_steps(self, node: ast.Assign) -> list[ast.stmt] | ast.Assign:
        """The assignment of a float32 without the calls that round it: an element of type float32
        rounds what is stored in it, in a third of the time."""
        steps: list[ast.stmt] = []

        def rounded(value: ast.expr) -> Any:
            if not (isinstance(value, ast.Call) and getattr(value.func, "id", "") == _ROUND):
                return value
            (inner,) = value.args
            if isinstance(inner, ast.BinOp):  # what is computed first, if the other is at hand
                if isinstance(inner.right, ast.Name | ast.Constant):
                    inner.left = rounded(inner.left)
                elif isinstance(inner.left, ast.Name | ast.Constant):
                    inner.right = rounded(inner.right)
            steps.append(written(f"{ROUNDING}[0] = value", node, value=inner))
            return written(f"{ROUNDING}[0]", value)

        if not isinstance(node.targets[0], ast.Name):
            return node
        node.value = rounded(node.value)
        return [*steps, node]

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        typed = self._typed(node)
        if typed is None:
            self.generic_visit(node)
            return self._divided(node, "right")
        return self._visited(node, typed)

    def _visited(self, node: ast.BinOp, typed: Typed) -> Any:
        """The operation. Of integers that are added, multiplied and so on, only the last result is
        cut to 64 bits: what is beyond them does not change the others."""
        rounds, cut = id(node) not in self._loose, False
        for part in node.left, node.right:
            inner = self._typed(part)
            if inner is None or inner.narrow or not isinstance(part, ast.BinOp):
                continue
            alike = inner.signature.return_type == typed.signature.return_type
            if alike and _is_ring(node, typed) and _is_ring(part, inner):
                self._loose.add(id(part))
                cut = rounds and not (isinstance(node.op, ast.BitAnd) and typed.narrow)
        self.generic_visit(node)
        return self._binary(node, typed, rounds, cut)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        typed = self._typed(node)
        self.generic_visit(node)
        if typed is None or isinstance(node.op, ast.Not):
            return node
        if typed.mixed[0]:
            node.operand = self._call("_float_", node.operand)
        if isinstance(node.op, ast.Invert):
            if isinstance(typed.operands[0], types.Boolean):
                return ast.copy_location(ast.UnaryOp(ast.Not(), node.operand), node)
            kind = types.unliteral(typed.operands[0])
            unsigned = isinstance(kind, types.Integer) and not kind.signed
            mask = 2**kind.bitwidth - 1
            return written(f"value & {mask}", node, value=node) if unsigned else node
        return self._of_width(node, typed) or self._kept(node, typed, True)

    def visit_Compare(self, node: ast.Compare) -> Any:
        typed = self._typed(node) if len(node.ops) == 1 else None
        self.generic_visit(node)
        if typed is not None and len(typed.operands) == 2:
            sides = [node.left, *node.comparators]
            for number, kind in enumerate(typed.operands):
                wide = _is_integer(kind) and getattr(kind, "bitwidth", 1) == 64
                is_float = isinstance(typed.signature.args[number], types.Float)
                if wide and is_float and not isinstance(sides[number], ast.Constant):
                    sides[number] = self._call("_float_", sides[number])
            node.left, *node.comparators = sides
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        typed = self._typed(node)
        self.generic_visit(node)
        if typed is None:
            return node
        result = typed.signature.return_type
        if typed.calls is not None:
            name = f"{CALLED}{len(self.calls)}"
            self.calls.append(typed)
            node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
            return self._call("_float_", node) if result == types.float64 else node
        name = getattr(typed.key, "__name__", "")
        if name in OF_BITS and typed.operands and isinstance(typed.operands[0], types.Integer):
            bits = typed.operands[0].bitwidth
            node.func = ast.copy_location(ast.Name(f"_{name}{bits}_", ast.Load()), node.func)
            return node
        if isinstance(result, types.Integer) and typed.operands == (types.float16,):
            node.args[0] = self._call("_nearest_", node.args[0])
            return node
        if typed.key is abs:
            return self._of_width(node, typed) or node
        module = str(getattr(typed.key, "__module__", ""))
        computed = module.split(".")[0] in ("math", "builtins", "numpy") or isinstance(
            typed.key, np.ufunc
        )
        rounds = result in (types.float32, types.float16)
        if (computed or name == "fma") and rounds and not isinstance(typed.key, types.NumberClass):
            return self._call(f"_{result.name}_", node)
        return node

    def _of_width(self, node: Any, typed: Typed) -> Any:
        """The negative or absolute integer as Numba computes it: in the operand's own width."""
        kind = types.unliteral(typed.operands[0])
        is_narrow = isinstance(kind, types.Integer) and not typed.narrow
        return self._call(f"_{kind.name}_", node) if is_narrow else None

    def _binary(self, node: ast.BinOp, typed: Typed, rounds: bool, cut: bool) -> Any:
        result = typed.signature.return_type
        if result == types.int64 and isinstance(node.op, ast.Mod | ast.FloorDiv | ast.RShift):
            # Numba computes uint64 % int64 as int64.
            if types.unliteral(typed.operands[0]) == types.uint64:
                node.left = self._call("_int64_", node.left)
            if types.unliteral(typed.operands[1]) == types.uint64:
                node.right = self._call("_int64_", node.right)
        if isinstance(result, types.Float):
            if not self._floats(typed):
                return node
            whole = [_is_integer(kind) for kind in typed.operands]
            if all(whole) or typed.mixed[0]:
                node.left = self._call("_float_", node.left)
            if all(whole) or (len(typed.mixed) > 1 and typed.mixed[1]):
                node.right = self._call("_float_", node.right)
            if isinstance(node.op, ast.Pow):
                return self._kept(self._call("_power_", node.left, node.right), typed, rounds)
            if isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
                node.right = _divisor(node.right)
        elif isinstance(result, types.Integer) and isinstance(node.op, ast.Pow):
            exponent = typed.signature.args[1]
            constant = isinstance(exponent, types.IntegerLiteral)
            if not constant or exponent.literal_value < 0:
                name = f"_{'constant_' * constant}power_{result.name}_"
                return self._call(name, node.left, node.right)
        elif isinstance(result, types.Integer) and isinstance(node.op, ast.LShift):
            constant = isinstance(node.right, ast.Constant)
            if not constant:
                shifted = self._call("_shifted_", node.left, node.right)
                return self._kept(shifted, typed, rounds)
        return self._kept(node, typed, rounds, cut)

    def _divided(self, node: Any, divisor: str) -> Any:
        """A division of unknown types."""
        if isinstance(node.op, ast.Div):
            setattr(node, divisor, _divisor(getattr(node, divisor)))
        return node

    def _floats(self, typed: Typed) -> bool:
        return isinstance(typed.signature.return_type, types.Float) and all(
            isinstance(kind, types.Float) or _is_integer(kind) for kind in typed.operands
        )

    def _kept(self, node: Any, typed: Typed, rounds: bool, cut: bool = False) -> Any:
        """The node's value as a register of its type holds it; ``cut`` if it is known to be
        longer."""
        result = typed.signature.return_type
        if result in (types.float32, types.float16):
            return self._call(f"_{result.name}_", node) if rounds else node
        if not isinstance(result, types.Integer) or not rounds:
            return node
        if not cut and self._fits(node, typed, result):
            return node
        if not result.signed:
            return written(f"value & {2**64 - 1}", node, value=node)
        test = f"{_WRAPPED} if {-(2**63)} <= ({_WRAPPED} := value) <= {2**63 - 1}"
        return written(f"{test} else _int64_({_WRAPPED})", node, value=node)

    def _fits(self, node: Any, typed: Typed, result: Any) -> bool:
        """Whether 64 bits are enough for the integer."""
        kinds = [types.unliteral(kind) for kind in typed.operands]
        operation = node.op if isinstance(node, ast.BinOp | ast.UnaryOp) else None
        if isinstance(operation, _INSIDE) and all(
            getattr(kind, "signed", result.signed) == result.signed for kind in kinds
        ):
            return True
        grows = isinstance(operation, ast.Add | ast.Mult)
        unsigned = grows and not any(getattr(kind, "signed", False) for kind in kinds)
        return typed.narrow and (result.signed or unsigned)

    def _call(self, name: str, *nodes: Any) -> Any:
        made = ast.Call(ast.Name(name, ast.Load()), [*nodes], [])
        for part in made, made.func:
            ast.copy_location(part, nodes[0])
        return made
