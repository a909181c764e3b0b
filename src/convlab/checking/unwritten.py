"""The buffer of a program, such as the im2win tensor, that its launches leave partly unwritten."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from convlab.checking.programs import Arrays
from convlab.running.plans import Plan


class Ran(NamedTuple):
    """The arrays of a program that has run, the first buffer with elements never written, and the
    residual if it adds one: as it was before, and as it is now."""

    arrays: Arrays
    unwritten: str
    residual: tuple[np.ndarray, np.ndarray] | None = None


def unwritten(plan: Plan, arrays: Arrays, residual: np.ndarray | None = None) -> str:
    """Return the name of the first buffer that still has some of the NaN with which a simulator
    fills it; empty if there is none."""
    buffers = {buffer.name for buffer in plan.program.buffers}
    for step, bound in plan.bound(*arrays, residual=residual):
        for argument, given in zip(getattr(step, "arguments", ()), bound, strict=False):
            array = getattr(given, "array", given)  # that of a tensor map
            if str(argument) in buffers and array.dtype.kind == "f" and np.isnan(array).any():
                return str(argument)
    return ""
