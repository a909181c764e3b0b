"""The host's memory behind simulated arrays: addresses, owners and types of NumPy's arrays."""

from __future__ import annotations

import numpy as np


def start_of(host: np.ndarray) -> int:
    """Return the real address of an array's first element."""
    return int(host.__array_interface__["data"][0])


def owner_of(host: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of this one."""
    while isinstance(host.base, np.ndarray):
        host = host.base
    return host


def is_dense(host: np.ndarray) -> bool:
    """Return whether an array's elements lie side by side, in any order of its dimensions."""
    by_stride = sorted(range(host.ndim), key=lambda axis: -host.strides[axis])
    return host.transpose(by_stride).flags.c_contiguous


def is_wide(host: np.ndarray) -> bool:
    """Return whether float4 accesses take this array: they need float32 in C order."""
    return bool(host.dtype == np.float32 and host.flags.c_contiguous)


def bytes_of(dtype: np.dtype) -> np.dtype:
    """Return a structured type without its fields."""
    return np.dtype((np.void, dtype.itemsize))
