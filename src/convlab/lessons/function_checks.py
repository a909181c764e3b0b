"""Checks of a learner's functions of numbers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import numpy as np

from convlab.lessons import feedback
from convlab.lessons.feedback import Feedback, Mistake
from convlab.lessons.kernel_text import not_called, own_tree
from convlab.lessons.limits import graded, running
from convlab.lessons.pretended_gpu import PretendGPU
from convlab.lessons.readiness import ready


@graded
def check_function(
    function: Any, wanted: Callable[..., Any],
    cases: Iterable[tuple[Any, ...]] | Callable[[], Iterable[tuple[Any, ...]]], *,
    within: float = 1e-6,
) -> Feedback:  # fmt: skip
    """Check a function against ``wanted``, which returns one number or several.

    The results may differ by the part ``within``. ``cases`` may be a function that makes the
    arguments anew, so that no function gets arguments that an earlier one has changed.
    """
    name = getattr(function, "__name__", "your function")
    ready(function)
    theirs, ours = (list(cases()) if callable(cases) else list(cases) for _ in range(2))
    for arguments, same in zip(theirs, ours, strict=True):
        said = f"{name}({', '.join(map(_brief, arguments))})"
        right = np.atleast_1d(np.asarray(wanted(*same), float))
        with running(f"{said}: "):
            got = function(*arguments)
        gpu = arguments[0] if isinstance(arguments[0], PretendGPU) else None
        if gpu is not None and gpu.launches < arguments[1]:
            what = f"{said} launches {gpu.launches} times; it must launch {arguments[1]} times."
            return feedback.with_mistakes([Mistake(feedback.ANSWER, what)])
        numbers = _numbers_of(got)
        alike = numbers.shape == right.shape
        if not alike or not (close := np.isclose(numbers, right, rtol=within, atol=0)).all():
            numbered = right if right.ndim > 1 else tuple(right.tolist())
            what = f"{said} is {_brief(got)}; wanted is {_brief(numbered)}."
            if right.ndim > 1 and alike:
                where = tuple(np.argwhere(~close)[0].tolist())
                wrong = f"has {numbers[where]:.6g} at {[*where]}"
                what = f"{said} {wrong}, where {right[where]:.6g} is wanted."
            advice = _which_are_wrong(numbers, right) if alike else ""
            if gpu is not None and alike:
                advice = gpu.remark
            advice = _text_in_place_of_a_number(got) or _power_by_xor(function) or advice
            mistakes = [Mistake(feedback.ANSWER, what, advice=advice)]
            return feedback.with_mistakes([*_not_called(function), *mistakes])
    return Feedback("Passed.", (), (f"right on {len(ours)} cases",))


def _numbers_of(got: Any) -> np.ndarray:
    """Return a result as an array of numbers; an empty one if it holds anything else."""
    try:
        if np.asarray(got).dtype.kind in "SU":  # texts, which NumPy would read as numbers
            return np.array([])
        return np.atleast_1d(np.asarray(got, float))
    except (TypeError, ValueError):
        return np.array([])


def _text_in_place_of_a_number(got: Any) -> str:
    """Return the advice on a result with a text in it; empty if there is none."""
    results = got if isinstance(got, tuple | list) else [got]
    if any(isinstance(one, str) for one in results):
        return "Texts such as '1.5 ms' cannot be computed with: return the numbers themselves."
    return ""


def _not_called(function: Any) -> list[Mistake]:
    """Return the mistake of a line that names a function and does not call it, if there is one."""
    own = _tree(function)
    found = None if own is None else not_called(own, function.__code__.co_filename)
    return [] if found is None else [found]


def _tree(function: Any) -> ast.FunctionDef | None:
    return own_tree(function) if isinstance(function, FunctionType) else None


def _power_by_xor(function: Any) -> str:
    """Return the advice on ``^`` between two numbers of a function's text; empty without one."""
    own = _tree(function)
    for node in [] if own is None else ast.walk(own):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
            sides = node.left, node.right
            if all(isinstance(side, ast.Constant) for side in sides):
                base, power = map(ast.unparse, sides)
                return f"In Python {base} ^ {power} is not a power: write {base}**{power}."
    return ""


def _which_are_wrong(numbers: np.ndarray, right: np.ndarray) -> str:
    """Return which of several numbers are wrong, or the question about units if one alone is, by a
    power of ten or by 2."""
    if right.ndim != 1:
        return ""
    wrong = np.flatnonzero(~np.isclose(numbers, right)).tolist()
    if factor := _factor_of_one(numbers, right, wrong):
        return factor
    if not wrong or len(wrong) == len(right):
        return ""
    listed = " and ".join(str(one + 1) for one in wrong)
    others = "others are" if len(right) - len(wrong) > 1 else "other one is"
    these, are = ("Number", "is") if len(wrong) == 1 else ("Numbers", "are")
    return f"{these} {listed} of the result {are} wrong, and the {others} right."


def _factor_of_one(numbers: np.ndarray, right: np.ndarray, wrong: list[int]) -> str:
    if len(wrong) != 1 or not numbers[wrong[0]] or not right[wrong[0]]:
        return ""
    factor = float(numbers[wrong[0]] / right[wrong[0]])
    larger = max(factor, 1 / factor)
    for one in (2, 10, 100, 1e3, 1e6, 1e9, 1e12):
        if np.isclose(larger, one):
            which = f"Number {wrong[0] + 1} of the result" if len(right) > 1 else "The result"
            size = "large" if factor > 1 else "small"
            return f"{which} is {one:,.0f} times too {size}: are its units and its factors right?"
    return ""


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, tuple | list):
        inside = ", ".join(map(_brief, value))
        return inside if len(value) == 1 else f"({inside})"
    if isinstance(value, str):
        return repr(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
