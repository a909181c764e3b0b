"""Indices of arrays in a simulated kernel: what they may be, and what is said of others."""

from __future__ import annotations

from typing import Any

import numpy as np

from convlab.engines.findings import NotSimulated


def check(array: Any, index: Any, site: int) -> tuple[int, ...]:
    """An element's index as a tuple; reports one that is out of bounds."""
    entries = index if isinstance(index, tuple) else (index,)
    entries = tuple(integer(entry) for entry in entries)
    shape = array.shape
    if len(entries) != len(shape):
        raise IndexError(f"{len(entries)} indices for {array.name} of shape {shape}")
    if not all(0 <= i < n for i, n in zip(entries, shape, strict=True)):
        what = f"{show(array.name, entries)} is outside shape {shape}"
        array.memory.report("out of bounds", what, site, array, entries)
    return entries


def whole_index(array: Any, index: Any) -> tuple[Any, ...]:
    """Any index as a tuple, in which slices stand for ``...``."""
    entries = index if isinstance(index, tuple) else (index,)
    given = sum(entry is not Ellipsis for entry in entries)
    if len(entries) - given > 1 or given > len(array.shape):
        raise IndexError(f"{len(entries)} indices for {array.name} of shape {array.shape}")
    if given < len(entries):
        place = next(n for n, entry in enumerate(entries) if entry is Ellipsis)
        filling = (slice(None),) * (len(array.shape) - given)
        entries = entries[:place] + filling + entries[place + 1 :]
    return entries


def integer(value: Any) -> int:
    """An index as a Python integer; ``TypeError`` for what is none."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"index {value!r} is no integer")
    return int(value.__index__())


def show(name: str, index: tuple[Any, ...]) -> str:
    """An element as the kernel writes it: ``S_F[3, 1]``."""
    return f"{name}[{', '.join(str(i) for i in index)}]"


def unknown_attribute(array: str, name: str) -> Exception:
    """The error for an attribute that a simulated array lacks; NumPy's arrays may have it."""
    if not name.startswith("__") and hasattr(np.ndarray, name):
        return NotSimulated(f"{array}.{name} is not simulated")
    return AttributeError(f"{array} is an array, which has no {name}")
