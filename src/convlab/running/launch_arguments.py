"""The arguments of a plan's steps: arrays by their names, and parts and tensor maps of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from convlab.device import BoundMap, BoxMap, WindowMap
from convlab.ladder.stage import Argument, Flat, Images, Step


def arguments_of(step: Step, arrays: dict[str, Any]) -> list[Any]:
    """Return the arrays, or the parts and tensor maps of them, that a step gets."""
    return [pick(argument, arrays) for argument in step.arguments]


def pick(argument: Argument, arrays: dict[str, Any]) -> Any:
    """Return what an argument names. Raises ``ValueError`` for NumPy's array that is not
    C-contiguous."""
    if isinstance(argument, Images):
        return arrays[argument.name][argument.start : argument.stop]
    if isinstance(argument, BoxMap | WindowMap):
        return BoundMap(argument, arrays[argument.of])
    if not isinstance(argument, Flat):
        return arrays[argument]
    array = pick(argument.of, arrays)
    if isinstance(array, np.ndarray) and not array.flags.c_contiguous:
        raise ValueError(f"{argument} is not C-contiguous: a plan's arrays must be")
    return array.reshape(-1)
