"""The memory of a compiled launch: its arguments as words, and shadow memory beside the arrays.

Shadow memory has 32 bytes for each element of global memory, as much for each byte of shared
memory that a block uses. Views of one allocation share their cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numba.core import types
from numba.np.numpy_support import from_dtype
from numpy.lib.array_utils import byte_bounds

from convlab.simulation.compiled.arrays import GLOBAL, WIDE_BYTES, CompiledArray
from convlab.simulation.compiled.cells import ATOMICS, CELL, FIRSTS, STAMPS, UNSET
from convlab.simulation.compiled.context import WORD
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.memory.host_memory import is_wide, start_of
from convlab.simulation.memory.touched import Touched
from convlab.simulation.memory.unwritten_arrays import UnwrittenArrays
from convlab.simulation.rules.launch_checks import hosts_in
from convlab.simulation.rules.unwritten import Masks

NUMBERS = "fiubc"  # kinds of dtypes whose elements are plain numbers


class ArgumentWords:
    """The arguments of a launch, of types that are known here: the words that hold them, and their
    shadow memory."""

    def __init__(self, arguments: Sequence[object], unwritten: UnwrittenArrays | None) -> None:
        self._arguments = arguments
        hosts = [host for argument in arguments for host in hosts_in(argument)]
        self._shadows = [_Shadow(those) for those in _allocations(hosts)]
        self._masks = {} if unwritten is None else unwritten.of(hosts)
        for low, mask in self._masks.items():
            for shadow in self._shadows:
                shadow.set_unwritten(low, mask)
        words = [word for one in arguments for word in self._words(one)]
        self.words = np.array(words, np.int64)

    def note_touched(self, names: Sequence[str], touched: Touched) -> None:
        """Note which elements the launch has read, written and updated, by its shadow memory."""
        for name, argument in zip(names, self._arguments, strict=True):
            for host in hosts_in(argument):
                shadow = next(one for one in self._shadows if one.cells_of(host))
                writes, reads, updates = shadow.touched(host)
                touched.elements(name, host, reads=reads, writes=writes, updates=updates)

    def left_unwritten(self, or_read: bool = False) -> Masks:
        """Return what the launch has left unwritten, or what it has read before it wrote it."""
        for low, mask in self._masks.items():
            for shadow in self._shadows:
                shadow.clear_written(low, mask, or_read)
        return self._masks

    def _words(self, argument: object) -> list[int]:
        """Return the words of an argument, in the order in which a kernel reads them."""
        if isinstance(argument, tuple):
            return [word for one in argument for word in self._words(one)]
        if isinstance(argument, np.ndarray):
            cells = next(cells for one in self._shadows if (cells := one.cells_of(argument)))
            return [start_of(argument), cells, 0, *argument.shape, *argument.strides]
        if isinstance(argument, float | np.floating):
            return [int(np.float64(argument).view(np.int64))]
        assert isinstance(argument, int | np.integer | np.bool_)
        return [int(np.array(int(argument) & (2**64 - 1), np.uint64).view(np.int64))]


def type_of(argument: object) -> types.Type:
    """Return the type of an argument for machine code. Raises :class:`NeedsGreenlets` for one that
    is not known."""
    if isinstance(argument, tuple):
        return types.BaseTuple.from_types([type_of(one) for one in argument], type(argument))
    if isinstance(argument, np.ndarray):
        return _array_type(argument)
    if isinstance(argument, bool | np.bool_):
        return types.boolean
    if isinstance(argument, int):
        return types.int64 if argument < 2**63 else types.uint64
    if isinstance(argument, float):
        return types.float64
    if isinstance(argument, np.number) and argument.dtype.kind in "iuf":
        return from_dtype(argument.dtype)  # type: ignore[arg-type]
    raise NeedsGreenlets(f"an argument of type {type(argument).__name__}")


def check_dtype(dtype: np.dtype) -> None:
    """Raise :class:`NeedsGreenlets` unless elements of the type are plain numbers."""
    if dtype.kind not in NUMBERS or dtype.itemsize > 16 or dtype == np.float16:
        raise NeedsGreenlets(f"an array of {dtype}")
    if not dtype.isnative:
        raise NeedsGreenlets("an array of numbers in another order of bytes")


def _array_type(host: np.ndarray) -> CompiledArray:
    check_dtype(host.dtype)
    if not host.flags.aligned or not host.flags.writeable:
        raise NeedsGreenlets("an array that is not aligned and writeable")
    if any(stride % host.itemsize for stride in host.strides):
        raise NeedsGreenlets("an array whose strides are no multiples of its elements")
    compact = host.ndim > 0 and host.strides[-1] == host.itemsize
    wide = is_wide(host) and compact and start_of(host) % WIDE_BYTES == 0
    return CompiledArray(from_dtype(host.dtype), host.ndim, GLOBAL, compact=compact, wide=wide)


def _allocations(hosts: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Return the arrays in groups whose memory may overlap."""
    groups: list[list[np.ndarray]] = []
    for host in sorted(hosts, key=lambda one: byte_bounds(one)[0]):
        low = byte_bounds(host)[0]
        if groups and low < max(byte_bounds(one)[1] for one in groups[-1]):
            groups[-1].append(host)
        else:
            groups.append([host])
    return groups


class _Shadow:
    """The cells of arrays that share memory: one for each element between their ends."""

    def __init__(self, hosts: list[np.ndarray]) -> None:
        bounds = [byte_bounds(host) for host in hosts]
        self._low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        self._itemsize = hosts[0].itemsize
        for host in hosts:
            if host.itemsize != self._itemsize or (start_of(host) - self._low) % host.itemsize:
                raise NeedsGreenlets("arrays of several types that share memory")
        self._hosts = {id(host) for host in hosts}
        self._cells = np.zeros(
            (max(1, (high - self._low) // self._itemsize), CELL // WORD), np.int64
        )

    def cells_of(self, host: np.ndarray) -> int:
        """Return the address of an array's first cell; 0 for another allocation's."""
        if id(host) not in self._hosts:
            return 0
        return self._cells.ctypes.data + (start_of(host) - self._low) // self._itemsize * CELL

    def set_unwritten(self, low: int, mask: np.ndarray) -> None:
        """Note which elements nothing has written: ``mask`` has the bytes of the memory from the
        address ``low`` on."""
        if (part := self._part(low, mask)) is not None:
            cells, bytes_ = part
            cells[bytes_.any(axis=1), FIRSTS // WORD] |= UNSET

    def clear_written(self, low: int, mask: np.ndarray, or_read: bool) -> None:
        """Clear in the mask what has been written: ``or_read`` if not what was read before."""
        if (part := self._part(low, mask)) is not None:
            cells, bytes_ = part
            unset = cells[:, FIRSTS // WORD] & UNSET != 0
            if not or_read:
                unset &= (cells[:, 0] == 0) & (cells[:, ATOMICS // WORD] == 0)
            bytes_[~unset] = False

    def _part(self, low: int, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the cells of memory from the address ``low`` on, and the mask of their bytes, by
        element; None if the memory is another allocation's."""
        begin, size = self._low - low, self._itemsize
        if not 0 <= begin < len(mask):
            return None
        count = min(len(self._cells), (len(mask) - begin) // size)
        return self._cells[:count], mask[begin : begin + count * size].reshape(count, size)

    def touched(self, host: np.ndarray) -> Iterator[np.ndarray]:
        """Give the addresses of an array's elements that have a stamp: of a write, of a read, of an
        atomic."""
        low, high = byte_bounds(host)
        first, last = (low - self._low) // self._itemsize, (high - self._low) // self._itemsize
        for stamps in self._cells[first:last, :STAMPS].T:
            yield low + np.flatnonzero(stamps) * self._itemsize
