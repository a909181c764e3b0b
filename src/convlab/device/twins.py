"""Which Python function does on a simulator what an intrinsic does on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TWINS: dict[int, tuple[object, Callable[..., Any]]] = {}


def register_twin(intrinsic: object, twin: Callable[..., Any]) -> None:
    """From now on ``twin_of(intrinsic)`` is ``twin``."""
    _TWINS[id(intrinsic)] = (intrinsic, twin)  # the intrinsic is kept, so its id stays its own


def twin_of(value: object) -> Callable[..., Any] | None:
    """The plain-Python twin of an intrinsic; None for anything else."""
    known = _TWINS.get(id(value))
    return known[1] if known is not None and known[0] is value else None
