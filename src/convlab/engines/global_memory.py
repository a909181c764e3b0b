"""Where the arguments of a simulated launch lie in its global memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from convlab.engines.access_log import GLOBAL


def host_array(argument: Any) -> np.ndarray | None:
    """The memory of an array argument; None for a number."""
    if isinstance(argument, np.ndarray):
        return argument
    inner = getattr(argument, "_ary", None)  # device arrays under NUMBA_ENABLE_CUDASIM=1
    return inner if isinstance(inner, np.ndarray) else None


def addresses(hosts: list[np.ndarray]) -> dict[int, int]:
    """A simulated address for each array, by its id: whole allocations start at multiples of 256,
    and views of one keep their distances."""
    owners = {id(host): _owner(host) for host in hosts}
    bounds = sorted({byte_bounds(owner) for owner in owners.values()})
    moved: list[tuple[int, int, int]] = []  # low, high, what to add
    free = GLOBAL
    for low, high in bounds:
        if moved and low < moved[-1][1]:
            first, last, shift = moved.pop()
            last = max(last, high)
        else:
            first, last, shift = low, high, free - low
        moved.append((first, last, shift))
        free = -(-(last + shift) // 256) * 256 + 256
    starts = {}
    for host in hosts:
        real = int(host.__array_interface__["data"][0])
        shift = next((s for low, high, s in moved if low <= real < high), free - real)
        starts[id(host)] = real + shift
    return starts


def byte_bounds(host: np.ndarray) -> tuple[int, int]:
    """The first address of an array's memory and the one after its last."""
    low = high = int(host.__array_interface__["data"][0])
    for extent, stride in zip(host.shape, host.strides, strict=True):
        low += min(0, (extent - 1) * stride)
        high += max(0, (extent - 1) * stride)
    return low, high + host.itemsize


def _owner(host: np.ndarray) -> np.ndarray:
    while isinstance(host.base, np.ndarray):
        host = host.base
    return host
