"""Baselines: other convolutions that convlab is measured against, each optional, found at run time.

Importing this imports none of their libraries. docs/baselines.md says what each computes, what
is timed and how it is installed.
"""

from __future__ import annotations

from convlab.bench.baselines import cpp, cudnn, cupy_gemm, cutlass, pytorch
from convlab.bench.baselines.base import Baseline, Prepared, Unsupported

__all__ = ["BASELINES", "Baseline", "Prepared", "Unsupported", "baseline_named"]

BASELINES: tuple[Baseline, ...] = (
    *pytorch.BASELINES,
    *cudnn.BASELINES,
    *pytorch.FROM_A_PRODUCT,
    *cutlass.BASELINES,
    cupy_gemm.BASELINE,
    cpp.BASELINE,
)


def baseline_named(name: str) -> Baseline:
    """The baseline of that name. Raises ``ValueError``, listing the names, for any other."""
    for baseline in BASELINES:
        if baseline.name == name:
            return baseline
    raise ValueError(
        f"baseline is {name!r}: it must be one of {', '.join(p.name for p in BASELINES)}"
    )
