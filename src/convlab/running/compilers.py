"""The compiler of kernels that the environment asks for: a part of every result's key."""

from __future__ import annotations

import os
from importlib.util import find_spec

from convlab.support.installing import how_to_install
from convlab.support.values import shown

VARIABLE = "CONVLAB_COMPILER"
NUMBA_CUDA, MLIR = NAMES = "numba-cuda", "mlir"


def compiler() -> str:
    """Return the name of the compiler that the environment asks for. Raises ``ValueError`` for an
    unknown one."""
    given = os.environ.get(VARIABLE) or NUMBA_CUDA
    if given not in NAMES:
        raise ValueError(
            f"{VARIABLE} is {shown(given)}: it must be {' or '.join(map(repr, NAMES))}"
        )
    return given


def why_no_compiler() -> str | None:
    """Return why the chosen compiler cannot be used, in one sentence; None when it can."""
    if compiler() == MLIR and find_spec("numba_cuda_mlir") is None:
        install = how_to_install("mlir")
        return f"{VARIABLE} is 'mlir', but numba-cuda-mlir is not installed: run {install}"
    if find_spec("numba_cuda") is None:
        install = how_to_install("gpu-cu13")
        return f"numba-cuda, for which the kernels are written, is not installed: run {install}"
    return None
