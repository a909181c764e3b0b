"""Rewrites a function's arithmetic so that plain Python computes what Numba's types make of it.

Registers hold Python's numbers. Only an operation whose result can differ on a GPU is wrapped: an
integer that may need more than 64 bits, a float32 or float16 that has to be rounded, two integers
that Numba computes as floats, a division by zero.
"""

from __future__ import annotations

import ast
import math
from copy import deepcopy
from dataclasses import replace
from typing import TypeGuard, TypeVar

import numpy as np
from numba.cuda import types

from convlab.simulation.language.inference import Typed
from convlab.simulation.language.source_nodes import Position, call, position_of, written
from convlab.simulation.language.typed_results import (
    as_register,
    binary,
    computes_floats,
    divisor,
    is_integer,
    is_ring,
    of_width,
)
from convlab.simulation.numbers.registers import NEXT_FLOAT32, OF_BITS, ROUNDING

CALLED = "_called_"  # and a number: a device function for the types of one call
_ROUND = "_float32_"
Node = TypeVar("Node", bound=ast.AST)


def _may_repeat(target: ast.expr) -> TypeGuard[ast.Subscript]:
    """Return whether a target is an element whose index calls nothing, so that reading it in an
    expression of its own changes nothing."""
    calls = any(isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(target))
    return isinstance(target, ast.Subscript) and not calls


class TypedArithmetic(ast.NodeTransformer):
    """Rewrites the ``known`` expressions, and divisions of unknown types. ``calls`` are then the
    device functions that the code calls, with the types of their arguments, by number."""

    def __init__(self, known: dict[Position, Typed]) -> None:
        self._known = known
        self.calls: list[Typed] = []
        self._loose: set[int] = set()  # nodes whose value is rounded or cut later

    def _typed(self, node: ast.expr | ast.stmt) -> Typed | None:
        return self._known.get(position_of(node))

    # Functions and comprehensions inside have variables of their own.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Leave a function inside as it is, because it has variables of its own."""
        return node

    def _visit_inner(self, node: Node) -> ast.AST:
        return node if self._known else self.generic_visit(node)

    visit_Lambda = visit_ListComp = visit_GeneratorExp = _visit_inner
    visit_SetComp = visit_DictComp = _visit_inner

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt] | ast.Assign:
        """Cut or round an assigned number to its variable's type."""
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
            node.value = call("_nearest_", node.value)
        elif stored and stored.mixed[0]:
            node.value = call("_float_", node.value)
        return node if others else self._in_steps(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | list[ast.stmt]:
        """Rewrite an update such as ``+=`` as an operation of Numba's types."""
        typed = self._typed(node)
        if typed is None:
            self.generic_visit(node)
            if isinstance(node.op, ast.Div):
                node.value = divisor(node.value)
            return node
        if isinstance(node.op, ast.Pow) and _may_repeat(node.target):
            element = deepcopy(node.target)
            element.ctx = ast.Load()
            value = ast.copy_location(ast.BinOp(element, node.op, node.value), node)
            power = self._operation(value, typed)
            self.generic_visit(node.target)
            return ast.copy_location(ast.Assign([node.target], power), node)
        if not isinstance(node.target, ast.Name):  # an array, which rounds and wraps by itself
            self.generic_visit(node)
            if isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod) and computes_floats(typed):
                node.value = divisor(node.value)
            return node
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        return self._in_steps(
            ast.copy_location(ast.Assign([node.target], self._operation(value, typed)), node)
        )

    def _in_steps(self, node: ast.Assign) -> list[ast.stmt] | ast.Assign:
        """Return the assignment of a float32 without the calls that round it: storing in an element
        of type float32 rounds too, in a third of the time."""
        steps: list[ast.stmt] = []

        def rounded(value: ast.expr) -> ast.expr:
            if not (isinstance(value, ast.Call) and getattr(value.func, "id", "") == _ROUND):
                return value
            (inner,) = value.args
            if isinstance(inner, ast.BinOp):
                # The operand that is computed first, if the other needs no computation.
                if isinstance(inner.right, ast.Name | ast.Constant):
                    inner.left = rounded(inner.left)
                elif isinstance(inner.left, ast.Name | ast.Constant):
                    inner.right = rounded(inner.right)
            steps.append(written(f"{ROUNDING}[0] = value", node, value=inner))
            read: ast.expr = written(f"{ROUNDING}[0]", value)
            return read

        if not isinstance(node.targets[0], ast.Name):
            return node
        node.value = rounded(node.value)
        return [*steps, node]

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Rewrite an operation of two numbers, so that its result has Numba's type."""
        typed = self._typed(node)
        if typed is None:
            self.generic_visit(node)
            if isinstance(node.op, ast.Div):
                node.right = divisor(node.right)
            return node
        return self._operation(node, typed)

    def _operation(self, node: ast.BinOp, typed: Typed) -> ast.expr:
        """Return the operation. If integers are added, multiplied and so on, only the last result
        is cut to 64 bits, because bits beyond those do not change the others."""
        rounds, cut = id(node) not in self._loose, False
        for part in node.left, node.right:
            inner = self._typed(part)
            if inner is None or inner.narrow or not isinstance(part, ast.BinOp):
                continue
            alike = inner.signature.return_type == typed.signature.return_type
            if alike and is_ring(node, typed) and is_ring(part, inner):
                self._loose.add(id(part))
                cut = rounds and not (isinstance(node.op, ast.BitAnd) and typed.narrow)
        self.generic_visit(node)
        return binary(node, typed, rounds, cut)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Rewrite a sign or complement, so that its result has Numba's type."""
        typed = self._typed(node)
        self.generic_visit(node)
        if typed is None or isinstance(node.op, ast.Not):
            return node
        if typed.mixed[0]:
            node.operand = call("_float_", node.operand)
        if isinstance(node.op, ast.Invert):
            if isinstance(typed.operands[0], types.Boolean):
                return ast.copy_location(ast.UnaryOp(ast.Not(), node.operand), node)
            kind = types.unliteral(typed.operands[0])
            if not isinstance(kind, types.Integer) or kind.signed:
                return node
            masked: ast.expr = written(f"value & {2**kind.bitwidth - 1}", node, value=node)
            return masked
        return of_width(node, typed) or as_register(node, typed, rounds=True)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Rewrite a comparison, so that both sides have the types in which Numba compares."""
        typed = self._typed(node) if len(node.ops) == 1 else None
        self.generic_visit(node)
        if typed is not None and len(typed.operands) == 2:
            sides = [node.left, *node.comparators]
            for number, kind in enumerate(typed.operands):
                wide = is_integer(kind) and getattr(kind, "bitwidth", 1) == 64
                is_float = isinstance(typed.signature.args[number], types.Float)
                if wide and is_float and not isinstance(sides[number], ast.Constant):
                    sides[number] = call("_float_", sides[number])
            node.left, *node.comparators = sides
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Rewrite a call, so that its result has Numba's type."""
        typed = self._typed(node)
        self.generic_visit(node)
        if typed is None:
            return node
        result = typed.signature.return_type
        if typed.calls is not None:
            name = f"{CALLED}{len(self.calls)}"
            self.calls.append(typed)
            node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
            return call("_float_", node) if result == types.float64 else node
        name = getattr(typed.key, "__name__", "")
        if name in OF_BITS and typed.operands and isinstance(typed.operands[0], types.Integer):
            bits = typed.operands[0].bitwidth
            node.func = ast.copy_location(ast.Name(f"_{name}{bits}_", ast.Load()), node.func)
            return node
        if isinstance(result, types.Integer) and typed.operands == (types.float16,):
            node.args[0] = call("_nearest_", node.args[0])
            return node
        if typed.key is math.nextafter and result == types.float32:
            node.func = ast.copy_location(ast.Name(NEXT_FLOAT32, ast.Load()), node.func)
            return node
        if typed.key is pow and len(node.args) == 2:
            power = ast.copy_location(ast.BinOp(node.args[0], ast.Pow(), node.args[1]), node)
            return binary(power, replace(typed, mixed=(False, False)), rounds=True, cut=False)
        if typed.key is abs and not isinstance(typed.operands[0], types.Complex):
            return of_width(node, typed) or node
        module = str(getattr(typed.key, "__module__", ""))
        computed = module.split(".")[0] in ("math", "builtins", "numpy") or isinstance(
            typed.key, np.ufunc
        )
        rounds = result in (types.float32, types.float16)
        if (computed or name == "fma") and rounds and not isinstance(typed.key, types.NumberClass):
            return call(f"_{result.name}_", node)
        return node
