"""Baselines: the libraries that convlab is compared with, each optional and found at run time.

Importing this package imports none of their libraries. docs/baselines.md says what each computes,
what is timed and how it is installed.
"""

from __future__ import annotations

from convlab.bench.baselines import cpp, cudnn, cupy_gemm, cutlass, pytorch
from convlab.bench.baselines.base import Prepared, System, Unsupported

__all__ = ["BASELINES", "Prepared", "System", "Unsupported", "baseline_named"]

BASELINES: tuple[System, ...] = (
    *pytorch.BASELINES,
    *cudnn.BASELINES,
    *pytorch.FROM_A_PRODUCT,
    *cutlass.BASELINES,
    cupy_gemm.BASELINE,
    cpp.BASELINE,
)


def baseline_named(name: str) -> System:
    """The baseline of that name. Raises ``ValueError``, listing the names, for any other."""
    for baseline in BASELINES:
        if baseline.name == name:
            return baseline
    names = ", ".join(baseline.name for baseline in BASELINES)
    raise ValueError(f"baseline is {name!r}: it must be one of {names}")
