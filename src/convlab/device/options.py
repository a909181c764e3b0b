"""Code-generation options of ``@cuda.jit`` that Numba's simulator does not know."""

from __future__ import annotations

from typing import Any

from numba.cuda.core import config


def codegen(**options: Any) -> dict[str, Any]:
    """``@cuda.jit(**codegen(launch_bounds=256))``: the options for a GPU, none for the simulator.

    Numba's simulator (``NUMBA_ENABLE_CUDASIM=1``) refuses ``launch_bounds`` and ``forceinline``
    as unexpected arguments. They change how a kernel is compiled, never what it computes, so a
    simulator loses nothing without them.
    """
    return {} if config.ENABLE_CUDASIM else options
