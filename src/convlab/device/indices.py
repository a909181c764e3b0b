"""The type of indices."""

from __future__ import annotations

from numba import int64, types, uint32


def index_type(largest: int) -> types.Integer:
    """Return the type for numbers up to ``largest``: 32 bits if they suffice, because they divide
    faster."""
    return uint32 if largest < 2**32 else int64
