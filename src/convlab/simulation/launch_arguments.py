"""What a simulated launch is given: its shape, and arguments as the kernel sees them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Number
from typing import Any

import numpy as np

from convlab.simulation.access_log import GLOBAL, Span
from convlab.simulation.checked_array import Memory, checked
from convlab.simulation.findings import Coordinates, NotSimulated

GRID_LIMITS, BLOCK_LIMITS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
BLOCK_THREADS = 1024


def three(size: int | Sequence[int], what: str) -> Coordinates:
    """A grid's or a block's sizes along x, y and z; ``ValueError`` if there are others."""
    sizes = (size,) if isinstance(size, int | np.integer) else tuple(size)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{what} is {size}: it has one to three sizes, x, y and z")
    x, y, z = (*sizes, 1, 1)[:3]
    return int(x), int(y), int(z)


def check_shape(grid: Coordinates, block: Coordinates) -> None:
    """``ValueError`` for a shape that CUDA does not launch."""
    if not 1 <= (threads := math.prod(block)) <= BLOCK_THREADS:
        raise ValueError(f"{block} are {threads} threads: a block has 1 to {BLOCK_THREADS}")
    for what, sizes, limits in ("grid", grid, GRID_LIMITS), ("block", block, BLOCK_LIMITS):
        for axis, size, limit in zip("xyz", sizes, limits, strict=True):
            if not 1 <= size <= limit:
                raise ValueError(
                    f"{what} {sizes} has {size} along {axis}: 1 to {limit} are allowed"
                )


def python_function(kernel: Any) -> Any:
    """What the kernel is made of; ``TypeError`` for what is no kernel."""
    function = getattr(kernel, "py_func", None)
    if not inspect.isfunction(function):
        raise TypeError(f"{kernel!r} is no kernel: it needs @cuda.jit")
    return function


def as_seen(
    kernel: Any, arguments: tuple[Any, ...], memory: Memory, number: Callable[[Any], Any]
) -> tuple[Any, ...]:
    """The arguments of a kernel, arrays checked and placed in global memory; numbers are handed
    through ``number``. ``TypeError`` or :class:`NotSimulated` for those that cannot be."""
    try:
        inspect.signature(kernel).bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{kernel.__name__}: {error}") from None
    names = [*inspect.signature(kernel).parameters][: len(arguments)]
    hosts = [host for argument in arguments for host in _hosts(argument)]
    starts = addresses(hosts)

    def seen(name: str, argument: Any) -> Any:
        if isinstance(argument, tuple):
            entries = [seen(f"{name}[{n}]", entry) for n, entry in enumerate(argument)]
            make = getattr(type(argument), "_make", tuple)  # a named tuple's
            return make(entries)
        host = host_array(argument)
        if host is not None:
            return _array(name, host, starts[id(host)], memory)
        plain = argument.item() if isinstance(argument, np.generic) else argument
        if not isinstance(plain, Number):
            kind = type(argument).__name__
            raise TypeError(f"{name} is a {kind}: a kernel takes numbers, arrays and tuples")
        return number(plain)

    # Last, where a kernel takes any number of arguments, several have its name.
    names += names[-1:] * (len(arguments) - len(names))
    return tuple(seen(name, argument) for name, argument in zip(names, arguments, strict=True))


def _hosts(argument: Any) -> Iterator[np.ndarray]:
    """The arrays in an argument."""
    if isinstance(argument, tuple):
        for entry in argument:
            yield from _hosts(entry)
    elif (host := host_array(argument)) is not None:
        yield host


def _array(name: str, host: np.ndarray, start: int, memory: Memory) -> Any:
    widest = 16 if host.dtype.kind == "c" else 8
    known = host.dtype.kind in "fiubc" and host.dtype.itemsize <= widest
    if not known or not host.dtype.isnative:
        raise NotSimulated(f"{name} is an array of {host.dtype}, which is not simulated")
    array = checked(host, name, start, memory)
    if memory.log is not None and host.size:
        low, high = byte_bounds(host)
        begin = start + low - int(host.__array_interface__["data"][0])
        memory.log.spans.append(
            Span(name, begin, begin + high - low, host.shape, host.itemsize, host.strides,
                 host.dtype)
        )  # fmt: skip
    return array


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
