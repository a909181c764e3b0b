"""convlab: fast convolution kernels in Python, step by step, with and without a GPU."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from convlab import numba_imports

if TYPE_CHECKING:
    from convlab.api import conv1d, conv2d, conv3d
    from convlab.checking import Check, check
    from convlab.engines import EngineUnavailable
    from convlab.gradient import Gradient
    from convlab.plans import Plan, plan
    from convlab.problem import ConvProblem
    from convlab.simulation.findings import SimulationError
    from convlab.simulation.programs import simulate, simulator
    from convlab.stages import LADDER, Stage, Tile
    from convlab.tracing import Trace, open_trace, trace, trace_stage
    from convlab.unfold import unfold_einsum

__version__ = "0.1.0"

numba_imports.prepare()

__all__ = [
    "LADDER", "Check", "ConvProblem", "EngineUnavailable", "Gradient", "Plan", "SimulationError",
    "Stage", "Tile", "Trace", "check", "conv1d", "conv2d", "conv3d", "open_trace", "plan",
    "simulate", "simulator", "trace", "trace_stage", "unfold_einsum",
]  # fmt: skip

# Looked up when first used: importing Numba takes a second that `convlab --help` need not wait,
# and `convlab doctor` must start where Numba cannot be imported, to say so.
_MODULES = {
    "api": ("conv1d", "conv2d", "conv3d"),
    "checking": ("Check", "check"),
    "engines": ("EngineUnavailable",),
    "gradient": ("Gradient",),
    "plans": ("Plan", "plan"),
    "problem": ("ConvProblem",),
    "simulation.findings": ("SimulationError",),
    "simulation.programs": ("simulate", "simulator"),
    "stages": ("LADDER", "Stage", "Tile"),
    "tracing": ("Trace", "open_trace", "trace", "trace_stage"),
    "unfold": ("unfold_einsum",),
}


if not TYPE_CHECKING:  # or a type checker would take any name

    def __getattr__(name: str) -> Any:
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(f"convlab.{module}"), name)
        raise AttributeError(f"module 'convlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
