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
    """A simulated address for each array, by its id: allocations in the order of the arguments,
    each from a multiple of 256 on; views of one allocation keep their distances."""
    allocations: list[tuple[int, int]] = []  # low and high end
    for low, high in sorted({byte_bounds(_owner(host)) for host in hosts}):
        if allocations and low < allocations[-1][1]:
            low, high = allocations[-1][0], max(high, allocations.pop()[1])
        allocations.append((low, high))
    begins: dict[int, int] = {}  # where an allocation is here, by its low end
    starts: dict[int, int] = {}
    free = GLOBAL
    for host in hosts:
        real = int(host.__array_interface__["data"][0])
        low, high = max((ends for ends in allocations if ends[0] <= real), default=(real, real))
        if low not in begins:
            begins[low] = free
            free = -(-(free + high - low) // 256) * 256 + 256
        starts[id(host)] = begins[low] + real - low
    return starts


def byte_bounds(host: np.ndarray) -> tuple[int, int]:
    """The first address of an array's memory and the one after its last."""
    low = high = int(host.__array_interface__["data"][0])
    if not host.size:
        return low, high
    for extent, stride in zip(host.shape, host.strides, strict=True):
        low += min(0, (extent - 1) * stride)
        high += max(0, (extent - 1) * stride)
    return low, high + host.itemsize


def _owner(host: np.ndarray) -> np.ndarray:
    while isinstance(host.base, np.ndarray):
        host = host.base
    return host
