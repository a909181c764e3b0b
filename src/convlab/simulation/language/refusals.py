"""The refusals of Numba's compiler, each with its reason in one line."""

from __future__ import annotations

import builtins
import dis
import inspect
import math
import operator
import random
import re
import sys
import traceback
from types import FunctionType, ModuleType
from typing import Any, Protocol

import numpy as np
from numba.cuda.core import ir
from numba.cuda.core.ir_utils import get_definition, guard

from convlab.device import emulation_of
from convlab.simulation.language.advice import (
    IMPORT,
    PRINT,
    RANDOM,
    advice_for,
    advice_for_attribute,
)

_RUN_TIME_SHAPE = re.compile(
    r"Function\(<function (?:(shared|local)\.)?array\b.*?>>> array\("  # numba-cuda-mlir: array
    r"(?:shape=)?(?:Tuple\((?:Literal\[int\]\(\d+\), )*|UniTuple\()?u?int\d",
    re.DOTALL,
)
_NO_FUNCTION = re.compile(
    r"No implementation of function Function\((.*?)\) found for signature:.*?>>> (.*?)(\(.*?)\n",
    re.DOTALL,
)
_UNTYPED = re.compile(r"Untyped global name '(\w+)'")
_NO_ATTRIBUTE = re.compile(r"Unknown attribute '(\w+)' of type Module\(<module '([\w.]+)'")
_BECAUSE = re.compile(r"raised a specific error:\s+(?:NumbaTypeError|TypingError): (.*)")
_ABOUT = re.compile(r"\s*(Failed in|- Resolution failure|During: |File \"|\^|$)")
# LLVM's values, and places in the source, because the message ends with the first place.
_MORE = re.compile(r": (%|\w+ \d).*| from '[^']*'(?=>)|,? (defined at|Raised from) .*")
# Errors that arise only without a GPU. With one, Numba may compile the function.
_NO_GPU = re.compile(
    r"numba\.cuda\.simulator|convlab\.|FakeCUDA|driver|not simulated"
    r"|global name '(?!dict'|list'|set'|frozenset'|object'|type'|bytes').*<class 'type'>"
)
_SYMBOLS = {  # of operators, by their names in the module operator
    "add": "+", "sub": "-", "mul": "*", "matmul": "@", "truediv": "/", "floordiv": "//",
    "mod": "%", "pow": "**", "lshift": "<<", "rshift": ">>", "and_": "&", "or_": "|", "xor": "^",
}  # fmt: skip
_ARRAY = "an array, for which a kernel has no memory"
_CONTAINERS = {"build_list": "a list", "build_map": "a dict", "build_set": "a set"}


class CompilerState(Protocol):
    """The state of Numba's compiler, as the simulator reads it."""

    func_ir: ir.FunctionIR | None


class Refused(Exception):
    """Numba does not compile the function. Holds the reason in one line, and the line."""

    def __init__(self, reason: str, function: FunctionType, line: int) -> None:
        super().__init__(f"{reason}, {function.__code__.co_filename}:{line}")


class Untyped(Exception):
    """Numba's types of a function are not known here. Numba may well compile it."""


def check_instructions(function: FunctionType) -> None:
    """Raise ``Refused`` for statements that Numba does not compile: ``try`` and ``with``."""
    line = 0
    for step in dis.get_instructions(function):
        line = (step.positions and step.positions.lineno) or line
        if step.opname == "PUSH_EXC_INFO":
            raise Refused("try and with statements", function, line)


def unsupported(state: CompilerState, function: FunctionType) -> Refused | None:
    """Return the refusal of a list, dict, set, generator or ``np.random``; None without one.

    Numba's own message about them is late or unclear. Numba types ``np.random`` if another part of
    Numba has been imported.
    """
    if state.func_ir is None:
        return None
    for block in state.func_ir.blocks.values():
        for one in block.body:
            value = getattr(one, "value", None)
            what = ""
            if isinstance(value, ir.Yield):
                what = "a generator"
            elif isinstance(value, ir.Expr) and value.op in _CONTAINERS:
                what = f"{_CONTAINERS[value.op]}, which no kernel can make"
            elif isinstance(value, ir.Expr) and value.op == "getattr" and value.attr == "random":
                module = guard(get_definition, state.func_ir, value.value)
                if getattr(module, "value", None) is np:
                    what = "np.random, which no kernel can call"
            if what:
                return Refused(what, function, one.loc.line)
    return None


def refusal(error: Exception, function: FunctionType) -> Refused | Untyped:
    """Return what the compiler's error means: ``Refused``, or ``Untyped`` if the error may come
    from the missing GPU."""
    if isinstance(error, Refused | Untyped):  # of a device function that it calls
        return error
    said = re.sub(r"\x1b\[[0-9;]*m| at 0x\w+", "", str(error))
    untyped = _UNTYPED.search(said)
    emulated = untyped is not None and emulation_of(_outside(function).get(untyped[1])) is not None
    if emulated or _NO_GPU.search(said) or isinstance(error, OSError | ImportError):
        return Untyped(f"{function.__name__}: {' '.join(said.split())[:200]}")
    lines = {line for *_, line in function.__code__.co_lines() if line is not None}
    first = function.__code__.co_firstlineno
    own = lines - {first} or {first}
    named = [int(line) for line in re.findall(r"(?:line |\()(\d+)(?:\)|:)", said)]
    line = next((one for one in named if min(own) <= one <= max(own)), None)
    line = line or _only_line_with(said, function) or min(own)
    reason, advice = _reason(error, said), _advice(said, function)
    return Refused(f"{reason.rstrip('.')}: {advice}" if advice else reason, function, line)


def _only_line_with(said: str, function: FunctionType) -> int | None:
    """Return the line of the call, or of the operator, that the compiler's message names; None if
    several lines have it, or none."""
    missing = _NO_FUNCTION.search(said)
    if missing is None:
        return None
    name, lines = missing[2], set[int | None]()
    for step in dis.get_instructions(function):
        operator_ = step.opname == "BINARY_OP" and step.argrepr.rstrip("=") == _SYMBOLS.get(name)
        if operator_ or step.argval == name:
            lines.add(step.positions and step.positions.lineno)
    return lines.pop() if len(lines) == 1 else None


def _advice(said: str, function: FunctionType) -> str:
    """Return what to do instead of what the compiler's message names; empty if that is not
    known."""
    if "IMPORT_NAME" in said:
        code = function.__code__
        imports = [one.argval for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME"]
        known = (advice_for(ModuleType(name)) for name in imports)
        return next(filter(None, known), IMPORT)
    if "print() function" in said or "printing unimplemented" in said:
        return PRINT
    values = _outside(function)
    if (untyped := _UNTYPED.search(said)) is not None:
        return advice_for(values.get(untyped[1]))
    if (unknown := _NO_ATTRIBUTE.search(said)) is not None:
        module = sys.modules.get(unknown[2])
        if module is None:
            module = next((one for one in values.values() if _is_module(one, unknown[2])), None)
        return "" if module is None else advice_for_attribute(module, unknown[1])
    return ""


def _outside(function: FunctionType) -> dict[str, Any]:
    """Return the values that a function reads from outside, by name; none if a closure variable has
    no value yet."""
    try:
        outside = inspect.getclosurevars(function)
    except ValueError:
        return {}
    return {**outside.builtins, **outside.globals, **outside.nonlocals}


def _is_module(value: object, name: str) -> bool:
    return isinstance(value, ModuleType) and value.__name__ == name


def _reason(error: Exception, said: str) -> str:
    if (shape := _RUN_TIME_SHAPE.search(said)) is not None:
        name = f"cuda.{shape[1]}.array" if shape[1] else "cuda.shared.array or cuda.local.array"
        return f"{name} with a shape known only at run time"
    if isinstance(error, KeyError) and isinstance(error.args[0], np.ufunc):
        return f"np.{error.args[0].__name__}, which no kernel can call"
    if (missing := _NO_FUNCTION.search(said)) is not None:
        function, name, given = missing.groups()
        if name.endswith("array_allocate"):
            return _ARRAY
        if (device := re.match(r"Device\(function=<function (\S+)>", function)) is not None:
            return f"{device[1]} does not take {given}"
        if hasattr(random, name):  # which Numba knows for CPUs
            return f"{name} is the host's: {RANDOM}"
        plain = any(hasattr(one, name) for one in (builtins, math, operator))
        for where, module in {"np": np, "np.linalg": np.linalg}.items():
            if name in vars(module) and not plain:
                return f"{where}.{name} of such arguments"
        because = _BECAUSE.search(said)
        return f"there is no {name}{given}{f': {because[1]}' if because else ''}"
    lines = [_MORE.sub("", line).strip() for line in said.splitlines() if not _ABOUT.match(line)]
    told = lines[0] if lines else ""
    if told.startswith("NRT required"):
        return _ARRAY
    if isinstance(error, NotImplementedError) and not told and error.__traceback__ is not None:
        # Numba's reader of bytecode has a method for each instruction.
        *_, last = traceback.walk_tb(error.__traceback__)
        step, version = last[0].f_code.co_name.removeprefix("op_"), sys.version_info[:2]
        return f"Python {version[0]}.{version[1]}'s instruction {step}, which an assert compiles to"
    if isinstance(error, LookupError) or not told:
        return f"{type(error).__name__} {told}".strip()
    return told
