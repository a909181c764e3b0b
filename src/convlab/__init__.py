"""convlab: fast convolution kernels in Python, step by step, with and without a GPU."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convlab.api import conv2d
    from convlab.checking import Check, check
    from convlab.engines import EngineUnavailable
    from convlab.plans import Plan, plan
    from convlab.problem import ConvProblem
    from convlab.stages import LADDER, Stage, Tile
    from convlab.tracing import Trace, open_trace, trace, trace_stage
    from convlab.unfold import unfold_einsum

__version__ = "0.1.0"

__all__ = [
    "LADDER", "Check", "ConvProblem", "EngineUnavailable", "Plan", "Stage", "Tile", "Trace",
    "check", "conv2d", "open_trace", "plan", "trace", "trace_stage", "unfold_einsum",
]  # fmt: skip

# Looked up when first used: importing Numba takes a second that `convlab --help` need not wait,
# and `convlab doctor` must start where Numba cannot be imported, to say so.
_HOME = {
    "LADDER": "convlab.stages",
    "ConvProblem": "convlab.problem",
    "EngineUnavailable": "convlab.engines",
    "Plan": "convlab.plans",
    "Stage": "convlab.stages",
    "Tile": "convlab.stages",
    "Check": "convlab.checking",
    "check": "convlab.checking",
    "conv2d": "convlab.api",
    "plan": "convlab.plans",
    "Trace": "convlab.tracing",
    "open_trace": "convlab.tracing",
    "trace": "convlab.tracing",
    "trace_stage": "convlab.tracing",
    "unfold_einsum": "convlab.unfold",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'convlab' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
