"""Places the arrays of a launch in simulated global memory: arguments, and device arrays that the
kernel refers to by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
from numpy.lib.array_utils import byte_bounds

from convlab.device import BoundMap
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.host_memory import owner_of, start_of
from convlab.simulation.memory.kernel_arrays import KernelArray
from convlab.simulation.memory.launch_memory import Memory
from convlab.simulation.memory.structured_arrays import Record, RecordArray
from convlab.simulation.memory.unwritten_arrays import UnwrittenArrays
from convlab.simulation.numbers.counted_operations import Arithmetic
from convlab.simulation.recording.access_log import GLOBAL
from convlab.simulation.rules.findings import NotSimulated
from convlab.simulation.rules.launch_checks import hosts_in, like, with_arrays
from convlab.simulation.rules.unwritten import UnwrittenMemory

CAPTURED = 1 << 36  # where the addresses of device arrays begin that a kernel refers to by name
ALLOCATION = 256  # bytes, at a multiple of which an allocation begins


class DeviceArray(Protocol):
    """An array in global memory: this simulator's has a NumPy array as ``"host"``."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, object]: ...


class GlobalMemory:
    """The arrays of a launch in global memory. ``arguments`` are those of the launch as the kernel
    sees them, once they are placed. ``unwritten`` are arrays of the program, not all written."""

    def __init__(
        self, memory: Memory, arithmetic: Arithmetic | None, unwritten: UnwrittenArrays | None
    ) -> None:
        self._memory, self._arithmetic = memory, arithmetic
        self._arrays, self.unwritten = unwritten, UnwrittenMemory()
        # By the id of the host's array.
        self._captured: dict[int, tuple[np.ndarray, KernelArray | RecordArray]] = {}
        self.arguments: tuple[object, ...] = ()

    def captured(self, device_array: DeviceArray) -> KernelArray | RecordArray:
        """Return a device array that a kernel refers to by its name; its address is beyond those of
        arguments. Views of one allocation keep their distances."""
        host = device_array.__cuda_array_interface__.get("host")
        if not isinstance(host, np.ndarray):
            kind = type(device_array).__name__
            raise NotSimulated(f"a {kind} of another library in a kernel is not simulated")
        if id(host) not in self._captured:
            # The addresses of those before stay as they are: an allocation has one size.
            hosts = [*(one for one, _ in self._captured.values()), host]
            address = addresses(hosts, begin=CAPTURED)[id(host)]
            array = self._memory.array(host, "a global array", address)
            self._captured[id(host)] = host, array
        return self._captured[id(host)][1]

    def place(self, arguments: tuple[object, ...], names: list[str]) -> None:
        """Place the arrays among the arguments, and keep all of them as the kernel sees them.
        Raises :class:`NotSimulated` for an array that the kernel also refers to by name."""
        arguments = tuple(map(with_arrays, arguments))
        hosts = [host for argument in arguments for host in hosts_in(argument)]
        starts = addresses(hosts)
        if self._arrays is not None:
            for host in hosts:
                distance = starts[id(host)] - start_of(host)
                self.unwritten.place(self._arrays.of([host]), distance)
        captured = [one for one, _ in self._captured.values()]
        if any(np.may_share_memory(one, host) for one in captured for host in hosts):
            raise NotSimulated("a global array that is an argument too is not simulated")

        def placed(name: str, argument: object) -> object:
            if isinstance(argument, tuple):
                entries = (f"{name}[{n}]" for n in range(len(argument)))
                return like(argument, map(placed, entries, argument))
            if isinstance(argument, np.ndarray):
                made = self._memory.array(argument, name, starts[id(argument)])
                is_record = isinstance(made, RecordArray) and argument.ndim == 0
                return made._part((), 0) if is_record else made
            if isinstance(argument, BoundMap):  # the copy engine reads its array, no thread does
                return argument
            if isinstance(argument, np.generic) and argument.dtype.kind not in "mM":
                argument = argument.item()
            return self._arithmetic.counted(argument) if self._arithmetic else argument

        self.arguments = tuple(map(placed, names, arguments))

    def arrays(self) -> Iterator[CheckedArray]:
        """Give the arrays among the arguments."""
        rest = list(self.arguments)
        while rest:
            one = rest.pop()
            if isinstance(one, tuple):
                rest += one
                continue
            one = one._array if isinstance(one, Record) else one
            one = one._whole if isinstance(one, RecordArray) else one
            if isinstance(one, CheckedArray):
                yield one

    def let_go(self) -> None:
        """Keep no array alive: parts of a launch refer to each other in many ways."""
        self.arguments = ()
        self._captured.clear()
        self._memory.let_go()


def addresses(hosts: list[np.ndarray], begin: int = GLOBAL) -> dict[int, int]:
    """Return a simulated address for each array, by its id, from ``begin`` on: allocations in the
    order of the arrays, each at a multiple of 256 bytes; views of one allocation keep their
    distances."""
    allocations: list[tuple[int, int]] = []  # low and high end
    for low, high in sorted({byte_bounds(owner_of(host)) for host in hosts}):
        if allocations and low < allocations[-1][1]:
            low, high = allocations[-1][0], max(high, allocations.pop()[1])
        allocations.append((low, high))
    begins: dict[int, int] = {}  # the simulated address of an allocation, by its real one
    starts: dict[int, int] = {}
    free = begin
    for host in hosts:
        real = start_of(host)
        low, high = max((ends for ends in allocations if ends[0] <= real), default=(real, real))
        if low not in begins:
            begins[low] = free
            free = _round_up(free + high - low) + ALLOCATION
        starts[id(host)] = begins[low] + real - low
    return starts


def _round_up(number: int) -> int:
    return -(-number // ALLOCATION) * ALLOCATION
