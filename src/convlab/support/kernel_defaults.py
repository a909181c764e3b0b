"""Defaults of kernels' parameters. Numba's launches have none; those of convlab's stages do."""

from __future__ import annotations

from types import FunctionType


def kept_defaults(function: FunctionType, given: int) -> tuple[object, ...]:
    """Return the defaults that a kernel's last parameters keep in a launch of so many arguments."""
    missing = function.__code__.co_argcount - given
    return (function.__defaults__ or ())[-missing:] if missing > 0 else ()
