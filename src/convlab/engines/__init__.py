"""Engines: where kernels run, and which engine is the default.

``gpu`` is Numba CUDA on an NVIDIA GPU. On the CPU, ``simulator`` is convlab's own, strict and
quick, and ``cudasim`` Numba's.
"""

from __future__ import annotations

from importlib import import_module

from convlab.engines.base import Engine, EngineUnavailable
from convlab.simulation.memory_rules import Counts

_CLASSES = {"gpu": "Gpu", "simulator": "Simulator", "cudasim": "CudaSim"}  # by their modules
ENGINE_NAMES = tuple(_CLASSES)

__all__ = ["ENGINE_NAMES", "Counts", "Engine", "EngineUnavailable", "choose", "unavailable"]

_made: dict[str, Engine] = {}


def unavailable(name: str) -> str | None:
    """Why an engine cannot run here, in one sentence; None when it can."""
    if name != "gpu":
        return None
    from convlab.engines.gpu import why_not

    return why_not()


def choose(name: str = "auto") -> Engine:
    """The engine of that name; ``'auto'`` is the GPU where there is one, Numba's simulator
    where ``NUMBA_ENABLE_CUDASIM=1`` turns that on, else convlab's.

    Raises ``ValueError`` for an unknown name, :class:`EngineUnavailable` for one that cannot run.
    """
    if name == "auto":
        from numba.cuda.core import config

        usual = "cudasim" if config.ENABLE_CUDASIM else "simulator"
        name = "gpu" if unavailable("gpu") is None else usual
    if name not in ENGINE_NAMES:
        raise ValueError(f"engine is {name!r}: it must be 'auto', 'gpu', 'simulator' or 'cudasim'")
    reason = unavailable(name)
    if reason is not None:
        raise EngineUnavailable(f"engine is {name!r}, which cannot run here: {reason}")
    if name not in _made:
        module = import_module(f"convlab.engines.{name}")
        _made[name] = getattr(module, _CLASSES[name])()
    return _made[name]
