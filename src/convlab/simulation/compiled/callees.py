"""The functions that a kernel's code calls, as far as Numba's IR tells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any

from numba.core import ir
from numba.core.dispatcher import Dispatcher

from convlab.simulation.compiled.names import CUDA
from convlab.simulation.language.code_names import WAITING_CALL, names_used

CHECKING = "max", "min", "nanmax", "nanmin", "cas", "compare_and_swap"
_UNKNOWN = object()  # the value of a variable whose value is not known


class Callees:
    """The values of a function's variables, where they come from outside: as globals, closure
    variables or attributes of modules. A variable may have several."""

    def __init__(self, function: ir.FunctionIR) -> None:
        self._assigned: dict[str, list[Any]] = defaultdict(list)
        for block in function.blocks.values():
            for one in block.body:
                if isinstance(one, ir.Assign):
                    self._assigned[one.target.name].append(one.value)

    def values(self, variable: ir.Var, depth: int = 0) -> Iterator[object]:
        """Yield the values that a variable may have; ``_UNKNOWN`` for one that is not known."""
        for value in self._assigned[variable.name] if depth < 20 else ():
            if isinstance(value, ir.Var):
                yield from self.values(value, depth + 1)
            elif isinstance(value, ir.Global | ir.FreeVar):
                yield value.value
            elif isinstance(value, ir.Expr) and value.op == "getattr":
                for inner in self.values(value.value, depth + 1):
                    known = isinstance(inner, ModuleType)
                    yield getattr(inner, value.attr, _UNKNOWN) if known else _UNKNOWN
            else:
                yield _UNKNOWN

    def may_wait(self, called: ir.Var) -> bool:
        """Return whether threads may wait for each other in a function that is called."""
        return any(_may_wait(value, frozenset()) for value in self.values(called))

    def calls_device_function(self, called: ir.Var) -> bool:
        """Return whether a call may be of one of the kernel's own functions."""
        return any(
            value is _UNKNOWN or isinstance(value, Dispatcher) for value in self.values(called)
        )

    def atomic(self, called: ir.Var) -> str:
        """Return the name of an atomic that is called; empty if none is."""
        atomics = {id(value): name for name, value in vars(CUDA.atomic).items()}
        names = (atomics.get(id(value), "") for value in self.values(called))
        return next(filter(None, names), "")

    def calls(self, names: Collection[str]) -> bool:
        """Return whether the function calls one of these functions of ``cuda``."""
        wanted = {id(value) for name, value in vars(CUDA).items() if name in names}
        return any(
            id(found) in wanted
            for values in self._assigned.values()
            for value in values
            if isinstance(value, ir.Expr) and value.op == "call"
            for found in self.values(value.func)
        )

    def checked_arrays(self) -> set[str]:
        """Return the variables of arrays whose elements an atomic checks after a plain read."""
        found: set[str] = set()
        for value in (one for those in self._assigned.values() for one in those):
            if isinstance(value, ir.Expr) and value.op == "call" and value.args:
                if self.atomic(value.func) in CHECKING:
                    found |= self.origins(value.args[0])
        return found

    def origins(self, variable: ir.Var) -> set[str]:
        """Return a variable's name, and those of the variables that it is a copy of."""
        found, left = set(), [variable.name]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += [one.name for one in self._assigned[name] if isinstance(one, ir.Var)]
        return found


def _may_wait(value: object, known: frozenset[int]) -> bool:
    """Return whether threads may wait in a function, or in one that it calls."""
    if value is _UNKNOWN or _is_waiting(value):
        return True
    if isinstance(value, ModuleType) and value is not CUDA:
        parts = vars(value).values()
        return any(_may_wait(part, known) for part in parts if isinstance(part, Dispatcher))
    if not isinstance(value, Dispatcher) or id(value) in known:
        return False
    function = value.py_func
    names = names_used(function.__code__)
    if any(map(WAITING_CALL.search, names)):
        return True
    used = [function.__globals__.get(name) for name in names]
    used += [cell.cell_contents for cell in function.__closure__ or ()]
    return any(_may_wait(one, known | {id(value)}) for one in used)


def _is_waiting(value: object) -> bool:
    """Return whether a value is a function of ``cuda`` in which threads wait for each other."""
    names = [name for name, other in vars(CUDA).items() if other is value]
    return any(map(WAITING_CALL.search, names))
