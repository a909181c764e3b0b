"""The names that a function's code refers to, and whether its threads may wait for each other."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType

# Matches the names of calls in which threads wait for each other.
WAITING_CALL = re.compile("sync|^activemask$|^mma_|_product$")


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code and the code of all functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


def names_used(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in a function and those nested in it."""
    return {name for nested in nested_codes(code) for name in nested.co_names}


@lru_cache(maxsize=1000)  # every launch asks for them
def global_names(code: CodeType) -> frozenset[str]:
    """Return the names of globals only; an attribute may have the same name."""
    return frozenset(
        step.argval
        for nested in nested_codes(code)
        for step in dis.get_instructions(nested)
        if step.opname == "LOAD_GLOBAL"
    )


def references(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the name and value of each global and closure variable that a function refers to."""
    for name in global_names(function.__code__) & {*function.__globals__}:
        yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            continue


def may_wait(code: CodeType) -> bool:
    """Return whether the code calls, by their names, functions in which threads wait for each
    other."""
    return any(WAITING_CALL.search(name) for name in names_used(code))


def waits(value: object, known: frozenset[FunctionType] = frozenset()) -> bool:
    """Return whether the value is a device function whose threads may wait for each other."""
    function = getattr(value, "py_func", None)
    if not isinstance(function, FunctionType) or function in known:
        return False
    known |= {function}
    return may_wait(function.__code__) or any(waits(v, known) for _, v in references(function))
