"""Options of ``@cuda.jit`` that only a GPU's compiler knows."""

from __future__ import annotations

from typing import Any

from numba.cuda.core import config


def gpu_only(**options: Any) -> dict[str, Any]:
    """``@cuda.jit(**gpu_only(launch_bounds=256))``: the options for a GPU, none for the simulator.

    Numba's simulator (``NUMBA_ENABLE_CUDASIM=1``) refuses ``launch_bounds`` and ``forceinline``
    as unexpected arguments. They change how a kernel is compiled, never what it computes, so a
    simulator loses nothing without them.
    """
    return {} if config.ENABLE_CUDASIM else options
