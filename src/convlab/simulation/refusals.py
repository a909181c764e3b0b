"""What Numba's compiler refuses, with its reason in one line."""

from __future__ import annotations

import builtins
import dis
import math
import operator
import re
from types import FunctionType
from typing import Any

import numpy as np
from numba.core import errors as core_errors
from numba.cuda.core import errors, ir
from numba.cuda.core.ir_utils import get_definition, guard

# Of Numba's reasons those that mean a kernel is wrong, and not that its types are unknown here.
_REFUSALS = re.compile(
    r"Cannot unify .*(?=, defined at)|Cannot unify .*|Use of unsupported NumPy function .*"
    r"|Illegal IR, .*|Int value is too large: \d+"
    r"|Use of unsupported opcode .* found|Untyped global name '(?:dict|list|set|str)'"
    r"|Unknown attribute '\w+' of type Module(?=\(<module 'numpy)"
    r"|Untyped global name '\w+': .* <class 'builtin_function_or_method'>"
    r"|No implementation of function Function\(<class '(?:str|tuple|list|dict|set)'>\)"
    r"|Unknown attribute '.*' of type (?:array|list|Literal|int|float|unicode|Tuple).*"
)
_RUN_TIME_SHAPE = re.compile(
    r"Function\(<function (shared|local)\.array.*?>>> array\("
    r"(?:shape=)?(?:Tuple\((?:Literal\[int\]\(\d+\), )*|UniTuple\()?u?int\d",
    re.DOTALL,
)
_NO_FUNCTION = re.compile(r"No implementation of function Function\(<(?:built-in )?function (\w+)")
_UNSUPPORTED = (errors.UnsupportedError, core_errors.UnsupportedError)
_CONTAINERS = {"build_list": "a list", "build_map": "a dict", "build_set": "a set"}


class Refused(Exception):
    """Numba does not compile the function: its reason in one line, and the line of the source."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


class Untyped(Exception):
    """Numba's types of a function are not known here, and why. Numba may well compile it."""


def check_instructions(function: FunctionType) -> None:
    line = 0
    for step in dis.get_instructions(function):
        line = (step.positions and step.positions.lineno) or line
        if step.opname == "PUSH_EXC_INFO":
            raise Refused("try and with statements", line)


def unsupported(state: Any) -> Refused | None:
    """What types alone do not refuse: lists, dicts, sets, generators, and ``np.random``, which they
    know once another part of Numba has brought it."""
    if (function := state.func_ir) is None:
        return None
    for block in function.blocks.values():
        for one in block.body:
            value = getattr(one, "value", None)
            if isinstance(value, ir.Yield):
                return Refused("a generator", value.loc.line)
            if isinstance(value, ir.Expr) and value.op in _CONTAINERS:
                return Refused(f"{_CONTAINERS[value.op]}, which no kernel can make", value.loc.line)
            if isinstance(value, ir.Expr) and value.op == "getattr" and value.attr == "random":
                module = guard(get_definition, function, value.value)
                if getattr(module, "value", None) is np:
                    return Refused("np.random, which no kernel can call", value.loc.line)
    return None


def refusal(error: Exception, function: FunctionType) -> Refused | Untyped:
    """Numba's reason and line, if they mean that the kernel is wrong."""
    if isinstance(error, Refused | Untyped):  # of a device function that it calls
        return error
    said = re.sub(r"\x1b\[[0-9;]*m| at 0x\w+|Failed in types mode .*", "", str(error))
    why = Untyped(f"{function.__name__}: {' '.join(said.split())[:200]}")
    lines = {line for *_, line in function.__code__.co_lines() if line is not None}
    first = function.__code__.co_firstlineno
    own = lines - {first} or {first}
    named = [int(line) for line in re.findall(r"(?:line |\()(\d+)(?:\)|:)", said)]
    line = next((one for one in named if min(own) <= one <= max(own)), min(own))
    if (shape := _RUN_TIME_SHAPE.search(said)) is not None:
        return Refused(f"cuda.{shape[1]}.array with a shape known only at run time", line)
    for missing in _NO_FUNCTION.findall(said)[:1]:
        plain = any(hasattr(one, missing) for one in (builtins, math, operator))
        for name, module in {"np": np, "np.linalg": np.linalg}.items():
            if hasattr(module, missing) and not plain:
                return Refused(f"{name}.{missing} of such arguments", line)
    if (found := _REFUSALS.search(said)) is not None:
        return Refused(found[0], line)
    if isinstance(error, _UNSUPPORTED):
        return Refused(said.strip().splitlines()[0], line)
    return why
