"""What a strict simulator finds wrong with a kernel, as plain data and in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from linecache import getline
from pathlib import Path
from typing import Any

import numpy as np

from convlab.simulation.recording.access_log import (
    ATOMIC,
    LANDED,
    READ,
    WARP,
    WRITE,
    Access,
    AccessLog,
    Clock,
)
from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.circumstances import Around, update_in
from convlab.simulation.rules.dynamic_memory import Aliased
from convlab.simulation.rules.races import Conflict
from convlab.support.values import entries_of, integer, shown

Coordinates = tuple[int, int, int]

SAME_WARP = ", of the same warp,"
NO_BARRIER, NO_ORDER = "with no barrier between", "and nothing orders the two blocks"
HARMLESS = " (harmless only if the old and the new number lead to the same result)"
NO_FENCE = "with no fence after the poll or lock that orders the two accesses"
UNFENCED = "with no fence before the atomic that the other thread waits for"
UNFENCED_BLOCKS = "with no fence before the atomic that the other block waits for"
ONE_LOCKED = "and the two do not hold the same lock"
NOT_ATOMIC = "and the update by {} is not atomic"
NOT_ONE_STEP = "and to read and to change it is not one atomic step"
AT_ONCE = "and no barrier can come between"
TWO_STORES = f"{NO_BARRIER} the two stores"
IN_A_BRANCH = ", in a branch that not all threads take"
ONE_BLOCK = "cuda.syncthreads() orders the threads of one block only"
PLAIN_POLL = ", which a plain load polls"
UNREPORTED, STREAM_RACE = "unreported exception", "stream race"
ALIASED = "aliased memory"
IMPOSSIBLE = "impossible launch"
NO_VALUE = "has no value here"
# What usually fixes each kind. docs/findings.md says more about each.
REMEDIES = {
    "out of bounds": "guard the access with the array's size, or correct the index",
    "misaligned": "let the index be a multiple of the access's width and give the shared array "
    "alignment=16",
    "uninitialised": "write every element before it is read, and put a barrier between",
    "shared race": "put cuda.syncthreads() between the two accesses, or use an atomic",
    ALIASED: "cut both arrays out of one, whole = cuda.shared.array(0, ...), by slices that do not "
    "overlap",
    "copy in flight": "let the thread that copies call commit_copies() and then wait_copies() for "
    "that group, and put cuda.syncthreads() after it before other threads use the copy",
    "not fenced": "call fence_shared() after the stores, or after wait_copies(), and before the "
    "barrier that lets tensor cores read",
    "global race": "put cuda.syncthreads() between the two accesses, let each element belong to "
    "one thread, or use an atomic",
    "barrier divergence": "move the barrier out of the branch, and let no thread return before it",
    "inactive lane": "let every lane that the mask names reach the call, and read from those only",
    "deadlock": "let each thread free its locks, set its flags and reach its barriers before it "
    "waits for others",
    "depends on order": "poll until the other threads are there, put a barrier between, retry the "
    "lock until it is free, or split the kernel into two launches",
    "endless loop": "change inside the loop a value that its condition tests",
    "wraps around": "compare before subtracting, or keep the number signed",
    "division by zero": "guard the division",
    UNREPORTED: "compile the kernel with @cuda.jit(debug=True, opt=False), or set a "
    "flag in an array that the host looks at",
    STREAM_RACE: "let the second stream wait for an event that is recorded after the first "
    "operation, or synchronise between the two",
    IMPOSSIBLE: "launch more blocks of fewer threads, or let each block ask for less memory",
}

_FENCE = "call cuda.threadfence() after that poll or lock, because the compiler may read earlier"
_WARP = "put cuda.syncwarp() between the two accesses, or use an atomic"
_RETRY = (
    "repeat the read and the cas in a while loop until cas returns what was read, or use an atomic "
    "that does both, such as cuda.atomic.add"
)
_INSTEAD_OF_EXCH = (
    "use an atomic that reads and changes at once, such as cuda.atomic.add, or a cas that a loop "
    "repeats until it returns what was read"
)
_RELEASE = "put cuda.threadfence() before {}, and another one after the wait"
_OF_ATOMICS = {
    **{"+=": "add", "-=": "sub", "|=": "or_", "&=": "and_", "^=": "xor"},
    **{"max": "max", "min": "min"},
}
_UPDATES = {
    NOT_ATOMIC.format(by): f"use cuda.atomic.{name}, or let each element belong to one thread"
    for by, name in _OF_ATOMICS.items()
}
# What is found of races where a lock or flag is near, at which a barrier would hang, or where both
# threads change the element, which a barrier does not help, as a rule.
_OF_RACES = {
    UNFENCED: _RELEASE.format("the atomic that frees the lock or sets the flag"),
    UNFENCED_BLOCKS: _RELEASE.format(
        "the atomic that frees the lock, or before an atomic flag that the other block waits for"
    ),
    ONE_LOCKED: "take the same lock around both accesses, with cuda.threadfence() after it is "
    "taken and before it is freed; a barrier may only stand before all locks",
    NOT_ONE_STEP: "use an atomic that does both, such as cuda.atomic.max or cuda.atomic.add, or "
    "repeat both in a loop until cuda.atomic.cas returns what was read",
    TWO_STORES: "let each element belong to one thread, put cuda.syncthreads() between the two "
    "stores, or use an atomic",
    **_UPDATES,
    NOT_ATOMIC.split("{}")[0]: "let each element belong to one thread, or repeat the update in a "
    "loop until cuda.atomic.cas has done it",
    IN_A_BRANCH: "end the branch between the two accesses and put cuda.syncthreads() there, where "
    "all threads of the block reach it, or use an atomic",
    AT_ONCE: "let each element belong to one thread, or use an atomic",
}
# The remedy where what is found has this piece.
SPECIAL = {
    **{("shared race", piece): remedy for piece, remedy in _OF_RACES.items()},
    **{("global race", piece): remedy for piece, remedy in _OF_RACES.items()},
    ("shared race", SAME_WARP): _WARP,
    ("global race", SAME_WARP): _WARP,
    ("shared race", NO_FENCE): _FENCE.replace("threadfence", "threadfence_block"),
    ("global race", NO_FENCE): _FENCE,
    ("shared race", PLAIN_POLL): "poll with an atomic, because the compiler "
    "may make a plain load only once",
    ("global race", PLAIN_POLL): "poll with cuda.ldcv or an atomic, and set the flag with "
    "cuda.stwt or an atomic, because the compiler may make a plain load only once",
    ("global race", NO_ORDER): "let each element belong to one thread, use an atomic, put "
    "cuda.threadfence() before an atomic flag that the other block waits for, or split the kernel "
    "into two launches",
    ("inactive lane", "mma_tf32"): "let all 32 lanes of the warp reach the call",
    ("inactive lane", "_product"): "let all 128 threads of the warpgroup reach the call",
    ("endless loop", "together"): "end the loops earlier, or allow more steps",
    ("out of bounds", "dynamic shared"): "give the launch as many bytes as its arrays have, "
    "kernel[grid, block, stream, BYTES]",
    ("uninitialised", NO_VALUE): "give it a value on every path, such as before the branch or loop",
    (IMPOSSIBLE, "at least"): "launch at least one block of one thread, or nothing at all",
    (IMPOSSIBLE, "bytes of shared memory"): "let the block use less shared memory",
    (IMPOSSIBLE, "shared arrays"): "make the arrays smaller, or give the launch dynamic shared "
    "memory, cuda.shared.array(0, ...) and kernel[grid, block, stream, BYTES]",
    (IMPOSSIBLE, "local memory"): "make the array smaller, or keep it in global memory",
    (IMPOSSIBLE, "constant memory"): "pass the array as an argument",
    ("misaligned", "multiple of its size"): "align the field, or begin the view at a "
    "multiple of its element's size",
    ("depends on order", "not tried again"): _RETRY,
    ("depends on order", "exch overwrites"): _INSTEAD_OF_EXCH,
    ("depends on order", "without the lock"): "retry the lock until it is free",
    (
        "depends on order",
        "gives up polling",
    ): "poll until the other thread has changed it, or split the kernel into two launches",
    ("depends on order", "activemask"): "take the mask of the lanes that have to come, such as "
    "0xFFFFFFFF or a ballot_sync before the branch",
    (STREAM_RACE, "pinned memory"): "wait for the copy before the host touches the memory: by "
    "stream.synchronize(), or by an event that is recorded after the copy",
    (STREAM_RACE, "the host writes"): "call cuda.synchronize() before the host touches the array",
    ("barrier divergence", "returned in line"): "let no thread return before the barrier: put the "
    "work that it skips in a branch",
}


@dataclass(frozen=True)
class Finding:
    """One mistake. ``line`` of ``file`` is where it shows; ``other_line`` of ``other_file`` is the
    other side of a race or barrier.

    ``block`` and ``thread`` are the first that were seen to make it, ``count`` how many times it
    was seen on these lines; array, index and shape are None where no array is concerned.
    """

    kind: str
    kernel: str
    file: str
    line: int
    what: str
    other_line: int | None = None
    other_file: str | None = None
    block: tuple[int, ...] | None = None
    thread: tuple[int, ...] | None = None
    array: str | None = None
    index: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    count: int = 1

    @property
    def remedy(self) -> str:
        found = REMEDIES[self.kind]
        for (kind, piece), remedy in SPECIAL.items():
            if kind == self.kind and piece in self.what:
                found = remedy
                break
        return f"{found}; {ONE_BLOCK}" if NO_ORDER in self.what else found

    def __str__(self) -> str:
        lines = f"line {self.line} of {Path(self.file).name}"
        if self.other_file not in (None, self.file):
            lines += f" and line {self.other_line} of {Path(str(self.other_file)).name}"
        elif self.other_line not in (None, self.line):
            lines = f"lines {self.line} and {self.other_line} of {Path(self.file).name}"
        who = f" (block {self.block}, thread {self.thread})" if self.thread is not None else ""
        times = f" [{self.count} times]" if self.count > 1 else ""
        return f"{self.kind}, {self.kernel}, {lines}: {self.what}{who}{times}; {self.remedy}"


class SimulationError(RuntimeError):
    """A kernel that a GPU would not run, or would run wrongly. The message lists the findings;
    ``ended`` says whether the launch stopped before its end."""

    def __init__(
        self, message: str, findings: tuple[Finding, ...] = (), ended: bool = True
    ) -> None:
        super().__init__(message)
        self.findings, self.ended = findings, ended


class NotSimulated(SimulationError):
    """The kernel uses a feature that the simulator lacks; the message names it and the line."""


class ImpossibleLaunch(SimulationError, ValueError, MemoryError):
    """A launch that CUDA refuses: its sizes, or the memory that its kernel asks for."""


class Stop(Exception):
    """Ends a launch whose kernel cannot go on; what is wrong is among the findings."""


FATAL = ("out of bounds", "misaligned")  # these end a launch
# Refused with no checks too.
ALWAYS = (*FATAL, "deadlock", "endless loop", "wraps around", "division by zero", IMPOSSIBLE)
_DONE = {READ: "read", WRITE: "written", ATOMIC: "updated"}
_DOES = {READ: "reads", WRITE: "writes", ATOMIC: "updates"}
_BY_PRODUCT = READ + LANDED


class Reports:
    """The findings of one launch: one for each kind, array and pair of lines."""

    def __init__(
        self, kernel: str, grid: Coordinates, block_shape: Coordinates, strict: bool, clock: Clock
    ) -> None:
        self.sites = Sites(())
        self.order = ""  # in words, where it is not the usual one
        self.syncs_warps = False  # whether the kernel calls syncwarp
        self._kernel, self._strict, self._clock = kernel, strict, clock
        self._grid, self._block_shape = grid, block_shape
        self._found: dict[tuple[object, ...], Finding] = {}

    def add(
        self,
        kind: str,
        what: str,
        site: int,
        thread: int | None,
        other: int | None = None,
        ends: bool = False,
        **more: Any,
    ) -> None:
        """Note one, of the thread with that number, in its block or in the launch; ``other`` is the
        other site. No ``thread`` is that of a launch which cannot begin. The block is the one that
        runs, unless ``more``, fields of a :class:`Finding`, has one. A finding that ``ends``
        the launch is noted with no checks too."""
        if not (self._strict or ends or kind in ALWAYS):
            return
        file, line = self.sites.line(site)
        other_file, other_line = (None, None) if other is None else self.sites.line(other)
        key = kind, file, line, other_file, other_line, more.get("array")
        if (known := self._found.get(key)) is not None:
            if SAME_WARP not in known.what or SAME_WARP in what:
                self._found[key] = replace(known, count=known.count + 1)
                return
        if kind == "barrier divergence" and "line" not in what:
            branch = self.sites.branch_between(site, site if other is None else other)
            how = "inside" if other in (None, site) else "parted by"
            what += f", {how} {branch}" * bool(branch)
        where: dict[str, Any] = {}
        if thread is not None:
            block = self.block(self._clock.block_number)
            where = {"block": block, "thread": self.thread(thread)}
        fields = where | {"other_line": other_line, "other_file": other_file} | more
        fields["count"] = 1 if known is None else known.count + 1
        self._found[key] = Finding(kind, self._kernel, file, line, what, **fields)

    def of_array(
        self,
        kind: str,
        what: str,
        site: int,
        array: Any,
        index: tuple[int, ...] | None,
        goes_on: bool = False,
    ) -> None:
        """Note a finding of the thread that runs, and end the launch if it must."""
        shape = tuple(array.shape)
        thread = self._clock.thread
        self.add(kind, what, site, thread, array=array.name, index=index, shape=shape)
        if kind in FATAL and not goes_on:
            raise Stop

    def conflict(self, conflict: Conflict, log: AccessLog) -> None:
        """Note a race, an uninitialised read, or an access to the target of a copy in flight."""
        kind, first, second, _ = conflict
        shown = second or first
        span = log.span_at(first.address)
        index, _ = span.split(first.address)
        element = f"{span.name}[{', '.join(map(str, index))}]"
        who = f"thread {self.thread(first.thread)}"
        if second is None:
            what = f"{element} is read before anything in this block wrote to it"
        elif kind == "not fenced":
            what = f"{who}, which wrote it, has not fenced it"
            what = f"{element} is read by tensor cores, but {what}"
        elif kind == "copy in flight":
            what = f"{element} is {_DONE[second.kind]} while {who}'s copy to it is in flight"
        elif first.kind == _BY_PRODUCT:
            what = f"{element} is {_DONE[second.kind]} while tensor cores may read it: no barrier"
            what += " after finish_product lies between"
        elif second.kind == _BY_PRODUCT:
            what = f"{who} {_DOES[first.kind]} {element} and tensor cores read it, {NO_BARRIER}"
        else:
            what = self._race(conflict, element, log)
        other, block = None if second is None else first.site, self.block(shown.block)
        where: dict[str, Any] = {
            "block": block,
            "array": span.name,
            "index": index,
            "shape": span.shape,
        }
        self.add(kind, what, shown.site, shown.thread, other, **where)

    def aliased(self, found: Aliased) -> None:
        """Note that dynamic shared memory is read through another name than it was written by."""
        read, write = found.read, found.write
        who = f"thread {self.thread(write.thread)}"
        what = f"{found.element} is what {who} has written as {found.other}: every"
        what += " cuda.shared.array(0, ...) is the same memory, from its first byte on"
        where: dict[str, Any] = {
            "block": self.block(read.block),
            "array": found.element.split("[")[0],
        }
        self.add(ALIASED, what, read.site, read.thread, write.site, **where)

    def _race(self, conflict: Conflict, element: str, log: AccessLog) -> str:
        """Which two threads or blocks access the element, and what is missing between them."""
        first, second = conflict.first, conflict.second
        assert second is not None
        one, other = f"thread {self.thread(first.thread)}", f"thread {self.thread(second.thread)}"
        missing = self._missing(conflict)
        if first.block != second.block:
            one, other = f"block {self.block(first.block)}", f"block {self.block(second.block)}"
        elif missing.startswith(NO_BARRIER) and self._in_a_branch(first, second, log):
            missing += IN_A_BRANCH
        elif first.warp == second.warp and self._by_warps(first, second, log):
            other += SAME_WARP
        does = "overwrites" if second.kind == WRITE else second.value or _DOES[second.kind]
        element += PLAIN_POLL * (self._polls(first) or self._polls(second))
        if conflict.kind == "global race" and self._may_be_benign(first, second):
            missing += HARMLESS
        did = first.value if first.kind == ATOMIC and first.value else _DOES[first.kind]
        return f"{one} {did} {element} and {other} {does} it, {missing}{self.order}"

    def _missing(self, conflict: Conflict) -> str:
        """What is missing between the two accesses of a race."""
        _, first, second, around = conflict
        assert second is not None
        blocks = first.block != second.block
        if Around.POLLED in around:
            return NO_FENCE
        if Around.TOLD in around:
            return UNFENCED_BLOCKS if blocks else UNFENCED
        if Around.LOCKED in around:
            return ONE_LOCKED
        update = update_in(*self.sites.line(second.site)) if Around.UPDATES in around else ""
        if update:
            return NOT_ATOMIC.format(update) + f", {NO_ORDER}" * blocks
        if Around.ONE_STEP in around:
            return NOT_ONE_STEP + f", {NO_ORDER}" * blocks
        if blocks:
            return NO_ORDER
        if Around.AT_ONCE in around:
            return AT_ONCE
        return TWO_STORES if first.kind == second.kind == WRITE else NO_BARRIER

    def _in_a_branch(self, first: Access, second: Access, log: AccessLog) -> bool:
        """Whether one branch has both accesses, and not all threads of the block come there, or of
        the warp, if both are in one that a warp's barrier may order."""
        columns = log.columns()
        here = (columns.block == first.block) & np.isin(columns.site, (first.site, second.site))
        size = math.prod(self._block_shape)
        if first.warp == second.warp and self._by_warps(first, second, log):
            here &= columns.warp == first.warp
            size = min(WARP, size - first.warp % WARP * WARP)
        come = len(np.unique(columns.thread[here]))
        return come < size and self.sites.together_in_branch(first.site, second.site)

    def _may_be_benign(self, first: Access, second: Access) -> bool:
        """Whether a thread asks what another sets, as searches of graphs do on purpose."""
        for one, other in (first, second), (second, first):
            if one.kind == READ:
                words = getline(*self.sites.line(one.site)).split()
                tests = words[:1] in (["if"], ["elif"])
                # A loop may never read it again.
                return tests or (other.kind == ATOMIC and words[:1] != ["while"])
        return False

    def _polls(self, access: Access) -> bool:
        """Whether it is a load in the condition of a loop that does nothing else."""
        file, line = self.sites.line(access.site)
        loop = getline(file, line).split()[:1] == ["while"] and access.kind == READ
        does = getline(file, line + 1).strip()
        return loop and (does == "pass" or does.startswith("cuda.nanosleep("))

    def _by_warps(self, first: Access, second: Access, log: AccessLog) -> bool:
        """Whether ``syncwarp`` is the remedy for the accesses of two lanes: the kernel calls it, or
        only some warps reach that branch."""
        if self.syncs_warps:
            return True
        columns = log.columns()
        here = (columns.block == first.block) & np.isin(columns.site, (first.site, second.site))
        warps = -(-math.prod(self._block_shape) // WARP)
        return len(np.unique(columns.warp[here])) < warps and self.sites.together_in_branch(
            first.site, second.site
        )

    def block(self, number: int) -> Coordinates:
        return coordinates_of(number, self._grid)

    def thread(self, number: int) -> Coordinates:
        x, y, z = self._block_shape
        return coordinates_of(number % (x * y * z), self._block_shape)

    def raise_any(self, ended: bool) -> None:
        if not self._found:
            return
        found = tuple(sorted(self._found.values(), key=lambda f: (f.line, f.kind)))
        raise _error(found, ended)


def _error(found: tuple[Finding, ...], ended: bool) -> SimulationError:
    """The error with these findings."""
    kind = ImpossibleLaunch if any(one.kind == IMPOSSIBLE for one in found) else SimulationError
    message = "\n".join([f"kernel {found[0].kernel} is wrong:", *(f"- {f}" for f in found)])
    return kind(message, found, ended)


def impossible_launch(kernel: str, what: str, file: str, line: int) -> SimulationError:
    """The error of a launch, in that line of a program, whose sizes CUDA refuses."""
    return _error((Finding(IMPOSSIBLE, kernel, file, line, what),), ended=True)


def coordinates_of(number: int, shape: Coordinates) -> Coordinates:
    """The x, y, z of the thread of a block, or block of a grid, with that number; x runs first."""
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])


def three(size: Any, what: str) -> Coordinates:
    """A grid's or a block's sizes along x, y and z. Raises ``TypeError`` or ``ValueError`` for
    anything but one to three integers from 1 on."""
    if isinstance(size, np.ndarray):
        size = size.tolist()
    sizes, whole = [size], None
    if isinstance(size, Sequence) and not isinstance(size, str):
        if (entries := entries_of(what, size, (1, 2, 3))) is None:
            raise ValueError(f"{what} is {shown(size)}: it has one to three sizes, x, y and z")
        sizes, whole = entries, size
    x, y, z = [*(integer(what, one, at_least=1, whole=whole) for one in sizes), 1, 1][:3]
    return x, y, z
