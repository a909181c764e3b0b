"""The name of the compiler that the environment asks for: a part of every result's key."""

from __future__ import annotations

import os

from convlab.support.values import shown

VARIABLE = "CONVLAB_COMPILER"
NUMBA_CUDA, MLIR = NAMES = "numba-cuda", "mlir"


def compiler() -> str:
    """The compiler that the environment asks for. Raises ``ValueError`` for an unknown one."""
    given = os.environ.get(VARIABLE) or NUMBA_CUDA
    if given not in NAMES:
        raise ValueError(
            f"{VARIABLE} is {shown(given)}: it must be {' or '.join(map(repr, NAMES))}"
        )
    return given
