"""convlab: fast convolution kernels in Python, step by step, with and without a GPU."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from convlab.support import numba_imports, numba_successor
from convlab.support.version import __version__ as __version__

if TYPE_CHECKING:
    from convlab.checking import Check, check
    from convlab.ladder import LADDER, Stage, Tile
    from convlab.problems.gradient import Gradient
    from convlab.problems.problem import ConvProblem
    from convlab.problems.unfold import unfold_einsum
    from convlab.running.api import conv1d, conv2d, conv3d
    from convlab.running.engines import EngineUnavailable
    from convlab.running.plans import Plan, plan
    from convlab.simulation.host.programs import simulate, simulator
    from convlab.simulation.rules.findings import SimulationError
    from convlab.tracing import Trace, open_trace, trace, trace_stage

numba_imports.prepare()

__all__ = [
    "LADDER", "Check", "ConvProblem", "EngineUnavailable", "Gradient", "Plan", "SimulationError",
    "Stage", "Tile", "Trace", "check", "conv1d", "conv2d", "conv3d", "open_trace", "plan",
    "simulate", "simulator", "trace", "trace_stage", "unfold_einsum",
]  # fmt: skip

# Looked up when first used: importing Numba takes a second that `convlab --help` need not wait,
# and `convlab doctor` must start where Numba cannot be imported, to say so.
_MODULES = {
    "checking": ("Check", "check"),
    "ladder": ("LADDER", "Stage", "Tile"),
    "problems.gradient": ("Gradient",),
    "problems.problem": ("ConvProblem",),
    "problems.unfold": ("unfold_einsum",),
    "running.api": ("conv1d", "conv2d", "conv3d"),
    "running.engines": ("EngineUnavailable",),
    "running.plans": ("Plan", "plan"),
    "simulation.host.programs": ("simulate", "simulator"),
    "simulation.rules.findings": ("SimulationError",),
    "tracing": ("Trace", "open_trace", "trace", "trace_stage"),
}


if not TYPE_CHECKING:  # or a type checker would take any name

    def __getattr__(name: str) -> Any:
        for module, names in _MODULES.items():
            if name in names:
                try:
                    return getattr(import_module(f"convlab.{module}"), name)
                except ImportError:
                    if (reason := numba_successor.why_not()) is None:
                        raise
                    raise ImportError(reason) from None
        raise AttributeError(f"module 'convlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
