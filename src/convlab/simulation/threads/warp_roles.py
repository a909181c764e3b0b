"""Roles of warps: register counts of a warpgroup, and barriers of some of a block's threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from convlab import device
from convlab.device.products import WARPGROUP
from convlab.device.warp_roles import check_registers, check_sync
from convlab.simulation.recording.access_log import LaunchClock
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.finding_words import NEEDS_REGISTERS, WRONG_REGISTERS
from convlab.simulation.rules.reports import Reports
from convlab.simulation.threads.simulated_cuda import SimulatedCuda
from convlab.simulation.threads.waiting import (
    GIVE_REGISTERS,
    NUMBERED_BARRIER,
    REGISTERS_FREE,
    TAKE_REGISTERS,
    WaitingCall,
)

SM_REGISTERS = 65536
MOST_REGISTERS = 255  # of a thread, which the compiler may give it


@dataclass
class BlockRegisters:
    """The registers of a block: those that are free, and how many a thread of each warpgroup has.
    ``known`` if the kernel says how many blocks share an SM."""

    free: int
    held: dict[int, int]
    threads: dict[int, int]  # of each warpgroup
    known: bool


@dataclass
class Request:
    """A warpgroup's wait for more registers."""

    registers: BlockRegisters
    warpgroup: int
    count: int
    granted: bool = False

    @property
    def more(self) -> int:
        """The registers that the warpgroup needs."""
        registers = self.registers
        more = self.count - registers.held[self.warpgroup]
        return more * registers.threads[self.warpgroup]

    def over(self) -> bool:
        """Return whether the warpgroup has its registers, and give them if they are free."""
        if not self.granted and self.more <= self.registers.free:
            self.registers.free -= self.more
            self.registers.held[self.warpgroup] = self.count
            self.granted = True
        return self.granted

    def __str__(self) -> str:
        free = self.registers.free
        return (
            f"take_registers({self.count}): its warpgroup needs {self.more:,} {NEEDS_REGISTERS}, "
            f"and {free:,} are free"
        )


class Change(NamedTuple):
    """The part that a thread brings to a change of its warpgroup's registers."""

    roles: WarpRoles
    gives: bool
    registers: int  # of each thread
    thread: int  # in the block
    site: int

    @property
    def of_all(self) -> Callable[[Mapping[int, Change]], Mapping[int, object]]:
        """The results by thread, from what all threads bring."""
        return self.roles.change


class WarpRoles:
    """The registers of a launch's warpgroups, and barriers of some threads. ``blocks`` is the
    number of blocks that share an SM, if the kernel says it."""

    def __init__(
        self, cuda: SimulatedCuda, clock: LaunchClock, reports: Reports, blocks: int | None
    ) -> None:
        self._cuda, self._clock, self._reports, self._blocks = cuda, clock, reports, blocks
        self._registers: dict[int, BlockRegisters] = {}  # by block
        self.intrinsics: dict[object, Callable[..., object]] = {
            device.give_registers: self.give,
            device.take_registers: self.take,
            device.sync_threads_of: self.sync,
        }

    def end_block(self) -> None:
        """Forget the registers of the block, which has ended."""
        self._registers.pop(self._clock.block_number, None)

    # The intrinsics that a kernel calls.

    def give(self, count: int) -> None:
        """``give_registers``: have fewer registers, once the whole warpgroup has come."""
        check_registers("give_registers", count)
        self._meet(GIVE_REGISTERS, Change(self, True, count, self._clock.thread, site_of(1)))

    def take(self, count: int) -> None:
        """``take_registers``: have more registers, once as many are free."""
        check_registers("take_registers", count)
        site = site_of(1)
        request = self._meet(TAKE_REGISTERS, Change(self, False, count, self._clock.thread, site))
        if isinstance(request, Request) and not request.over():
            self._cuda.hub(WaitingCall(REGISTERS_FREE, site, request))

    def sync(self, number: int, threads: int) -> None:
        """``sync_threads_of``: wait until so many threads have come to the barrier."""
        check_sync(number, threads)
        self._cuda.hub(WaitingCall(NUMBERED_BARRIER, site_of(1), (number, threads)))

    def _meet(self, kind: str, change: Change) -> object:
        """Return the result of a change once all threads of the warpgroup have come."""
        there = self._threads(change.thread // WARPGROUP)
        return self._cuda.hub(WaitingCall(kind, change.site, change, (1 << there) - 1))

    def _threads(self, warpgroup: int) -> int:
        """Return the number of threads that a warpgroup of the block has."""
        return min(WARPGROUP, self._clock.block_size - warpgroup * WARPGROUP)

    def change(self, brought: Mapping[int, Change]) -> Mapping[int, object]:
        """Change the registers of a warpgroup. The result for each thread is what it waits for."""
        first = next(iter(brought.values()))
        registers, warpgroup = self._here(), first.thread // WARPGROUP
        held = registers.held[warpgroup]
        wrong = held < first.registers if first.gives else held > first.registers
        if wrong and registers.known:
            name = GIVE_REGISTERS if first.gives else TAKE_REGISTERS
            what = f"{name}({first.registers}), but the warpgroup has {held} {WRONG_REGISTERS}"
            self._reports.add("inactive lane", what, first.site, first.thread)
        if not first.gives:
            return dict.fromkeys(brought, Request(registers, warpgroup, first.registers))
        registers.free += (held - first.registers) * registers.threads[warpgroup]
        registers.held[warpgroup] = first.registers
        return dict.fromkeys(brought)

    def _here(self) -> BlockRegisters:
        """Return the registers of the block that runs."""
        block = self._clock.block_number
        if block not in self._registers:
            size = self._clock.block_size
            all_of_block = SM_REGISTERS // (self._blocks or 1)
            each = min(MOST_REGISTERS, all_of_block // size) // 8 * 8
            threads = {n: self._threads(n) for n in range(-(-size // WARPGROUP))}
            held = dict.fromkeys(threads, each)
            free = all_of_block - each * size
            self._registers[block] = BlockRegisters(free, held, threads, self._blocks is not None)
        return self._registers[block]


def blocks_per_sm(options: Mapping[str, object]) -> int | None:
    """Return how many blocks share an SM by a kernel's ``launch_bounds``; None if it has none."""
    bounds = options.get("launch_bounds")
    if not isinstance(bounds, Sequence) or len(bounds) < 2:
        return None
    return int(bounds[1])
