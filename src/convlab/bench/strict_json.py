"""Values as strict JSON can hold them, which has neither NaN nor infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def strict(value: Any) -> Any:
    """The same value, however deep, of plain types: NumPy's numbers are Python's, tuples are lists,
    and ``"nan"``, ``"inf"`` and ``"-inf"`` stand for what JSON has no number for."""
    if isinstance(value, Mapping):
        return {key: strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [strict(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
