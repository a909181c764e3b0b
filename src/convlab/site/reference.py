"""The page of the API: every public name, from its docstring."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

# What people write in programs and kernels, and what is said of each module.
MODULES = {
    "convlab": "What `import convlab` gives. These names are all that a program needs.",
    "convlab.stages": "What a stage is made of, for a stage of your own.",
    "convlab.device": "What kernels call beyond `numba.cuda`; each works in the simulators too.",
    "convlab.tracing": "Traces and their views.",
    "convlab.checking": "What a check of your own kernel found.",
    "convlab.engines": "Where kernels run, and which engine is taken.",
    "convlab.engines.base": "How an engine starts all steps of a plan together.",
    "convlab.plans": "What a plan makes for a weight that stays.",
    "convlab.stage": "How a stage names the arguments of its kernels.",
    "convlab.tracing.records": "What a trace holds: plain data.",
    "convlab.checking.records": "What the compiler said.",
    "convlab.simulation.findings": "What is wrong with a kernel.",
    "convlab.oracle": "When a result counts as right.",
}
# Of modules that have no list of their own: what the others' names hand out.
NAMED = {
    "convlab.plans": ("PlanForWeight",),
    "convlab.stage": ("Flat", "Images"),
    "convlab.tracing.records": ("Access", "Array", "Footprint", "Request", "Work"),
    "convlab.checking.records": ("Machine",),
    "convlab.engines.base": ("Together",),
    "convlab.simulation.findings": ("Finding", "SimulationError", "NotSimulated"),
    "convlab.oracle": ("Oracle", "CheckResult"),
}
HEAD = """# API reference

Every public name of convlab. The command is described by `convlab --help` and, where it writes
JSON, in [json.md](json.md).
"""


def names(module: str) -> list[str]:
    """A module's public names that have not been told of in an earlier one."""
    earlier = [*MODULES][: [*MODULES].index(module)]
    told = [getattr(import_module(other), name) for other in earlier for name in _all(other)]
    return [
        name
        for name in _all(module)
        if not any(getattr(import_module(module), name) is one for one in told)
    ]


def _all(module: str) -> list[str]:
    listed = NAMED.get(module) or import_module(module).__all__
    return sorted(listed, key=str.lower)


def reference_page() -> str:
    """The page, as Markdown with blocks of reStructuredText."""
    parts = [HEAD]
    for module, about in MODULES.items():
        parts.append(f"## {module}\n\n{about}\n\n```{{eval-rst}}\n.. currentmodule:: {module}\n")
        parts += [_entry(module, name) for name in names(module)]
        parts.append("```\n")
    return "\n".join(parts)


def _entry(module: str, name: str) -> str:
    value: Any = getattr(import_module(module), name)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return f".. {kind}:: {name}\n   :members:\n"
    if inspect.isfunction(value):
        return f".. autofunction:: {name}\n"
    doc = inspect.getdoc(value)
    own = None if doc == inspect.getdoc(type(value)) else doc
    if own:  # an intrinsic: a callable object with a docstring of its own
        return f".. function:: {name}{_signature(value)}\n\n   {_indented(own)}\n"
    return f".. data:: {name}\n\n   {DATA[name]}\n"


# What no docstring can say.
DATA = {
    "LADDER": "All stages, in order: a tuple of :class:`Stage`.",
    "Step": "What a program does one after the other: a :class:`Launch` or a :class:`LibraryCall`.",
    "BYTES_16": "What ``alignment=`` a shared array needs whose elements are accessed by fours: 16 "
    "on a GPU, None where Numba's simulator stands for it, which knows no such argument.",
    "ENGINE_CONSTANTS": "What is told to kernels as a constant and differs from engine to engine.",
    "ENGINE_NAMES": "The engines' names: ``gpu``, ``simulator`` and ``cudasim``.",
}


def _signature(value: Any) -> str:
    function = getattr(value, "_defn", value)
    parameters = [*inspect.signature(function).parameters]
    return f"({', '.join(one for one in parameters if one != 'typing_context')})"


def _indented(text: str) -> str:
    return text.replace("\n", "\n   ")
