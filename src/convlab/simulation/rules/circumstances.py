"""The circumstances of a race, on which its remedy depends.

A barrier does not help two threads that update one element at the same line, and threads that hold
a lock, or wait for a flag, would hang at a barrier. So this module looks for the locks and flags by
which threads may have meant to order their accesses, and for updates of both threads.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable
from enum import Flag, auto
from functools import cache
from linecache import getline
from types import CodeType

import numpy as np

from convlab.simulation.recording.access_log import ATOMIC, READ, WRITE, Accesses, LoggedAccess
from convlab.simulation.recording.instructions import code_at
from convlab.simulation.recording.sites import in_two_arms
from convlab.simulation.rules.dependence import calling_lines, depends
from convlab.simulation.rules.element_owners import (
    Needed,
    belongs_to_thread,
    is_an_index,
    is_same_element,
    needed,
)
from convlab.simulation.rules.happens_before import in_order
from convlab.simulation.rules.retries import LOCKING, Retry, Update

ENOUGH = 1000  # accesses to one lock or flag that are looked at


class Around(Flag):
    """The circumstances of two accesses that race."""

    NOTHING = 0
    POLLED = auto()  # the second thread has waited for the first one, but has called no fence
    TOLD = auto()  # a lock or flag passes from the first thread to the second, without fences
    LOCKED = auto()  # one of the two holds a lock
    UPDATES = auto()  # both threads write the element, at one line or in two arms of an ``if``
    AT_ONCE = auto()  # and each after equally many visits of that line
    ONE_STEP = auto()  # both read the element, equally often, before one of them changes it
    LOOP_STEP = auto()  # the same in a loop with no barrier: one of the two may be a step ahead
    EXCHANGED = auto()  # both read the element and then store in it what does not depend on it
    OWN_RESULT = auto()  # a plain read gets an index from what the thread's own atomic returns
    NARROW_FENCE = auto()  # beside TOLD: the first thread has fenced for its own block only
    LOCK_OF_BLOCK = auto()  # both hold a lock in shared memory, each that of its block
    SEEN_BY_ANOTHER = auto()  # another thread of the second one's block reads the signal
    EARLY_MESSAGE = auto()  # another thread of the block signals it, with no barrier before


class Circumstances:
    """The locks and flags of some accesses, and the threads that write. ``update`` returns the
    facts from the text about the access at a site, ``line`` its file and line."""

    def __init__(
        self,
        accesses: Accesses,
        update: Callable[[int], Update],
        line: Callable[[int], tuple[str, int]],
    ) -> None:
        self._accesses, self._update, self._line = accesses, update, line
        self._known: dict[tuple[int, int], Around] = {}
        # By the address of a lock or flag.
        self._waits: dict[int, list[LoggedAccess]] = defaultdict(list)
        self._tells: dict[int, list[LoggedAccess]] = defaultdict(list)
        sites = np.unique(accesses.site).tolist()
        waiting = [site for site in sites if waits(update(site))]
        here = np.isin(accesses.site, waiting)
        at = np.unique(accesses.address[here & (accesses.kind != WRITE)])
        for wanted, found in (
            (here & (accesses.kind != WRITE), self._waits),
            (~here & (accesses.kind != READ), self._tells),
        ):
            for one in accesses.rows(np.flatnonzero(wanted & np.isin(accesses.address, at))):
                if len(found[one.address]) < ENOUGH:
                    found[one.address].append(one)

    def around(
        self, first: LoggedAccess, second: LoggedAccess, group: list[LoggedAccess]
    ) -> Around:
        """Return the circumstances of the first conflict of these lines. ``group`` are the accesses
        to the element that are not ordered."""
        key = first.site, second.site
        if key not in self._known:
            found = self._by_locks(first, second)
            self._known[key] = found or self._by_updates(first, second, group)
        return self._known[key]

    def _by_locks(self, first: LoggedAccess, second: LoggedAccess) -> Around:
        for address in [*self._waits]:
            if address != first.address and self._told(address, first, second):
                return Around.TOLD
        if any(self._holds(address, one) for address in self._waits for one in (first, second)):
            return Around.LOCKED
        return Around.NOTHING

    def _told(self, address: int, first: LoggedAccess, second: LoggedAccess) -> bool:
        """Return whether the first thread, or its block, changes the lock or flag that the second
        thread waits for."""
        waits = [one for one in self._waits[address] if in_order(one, second)]
        # A thread polls by many plain loads, of which only the first one may have been kept.
        ends = (second.position if one.kind == READ else one.position for one in waits)
        last = max(ends, default=-1)
        return any(
            first.position < one.position < last and in_order(first, one)
            for one in self._tells[address]
        )

    def _holds(self, address: int, access: LoggedAccess) -> bool:
        """Return whether the access lies between those that take and free a lock."""
        same = access.thread, access.phase
        takes = any(
            (one.thread, one.phase) == same
            and one.position < access.position
            and self._update(one.site).name in LOCKING
            for one in self._waits[address]
        )
        return takes and any(
            (one.thread, one.phase) == same and one.position > access.position
            for one in self._tells[address]
        )

    def _by_updates(
        self, first: LoggedAccess, second: LoggedAccess, group: list[LoggedAccess]
    ) -> Around:
        lines = self._line(first.site), self._line(second.site)
        if lines[0] != lines[1] and not in_two_arms(first.site, second.site):
            for reader, changer in (first, second), (second, first):
                if found := self._by_read(reader, changer, group):
                    return found
            return Around.NOTHING
        stores = [
            [
                one
                for one in group
                if one.kind == WRITE and one.thread == of.thread and self._line(one.site) == line
            ]
            for of, line in zip((first, second), lines, strict=True)
        ]
        if not all(stores):
            return Around.NOTHING
        visits = [{self._visit(one) for one in of_one} for of_one in stores]
        at_once = Around.AT_ONCE if visits[0] & visits[1] else Around.NOTHING
        return Around.UPDATES | at_once

    def _by_read(
        self, reader: LoggedAccess, changer: LoggedAccess, group: list[LoggedAccess]
    ) -> Around:
        """Return the circumstances of one thread that reads an element and another one that changes
        it, after it has read the element at the same line."""
        if reader.kind != READ or changer.kind == READ:
            return Around.NOTHING
        if self._returned_it(reader, changer, group):
            return Around.OWN_RESULT
        code, its_code = code_at(reader.site), code_at(changer.site)
        line, its_line = self._line(reader.site)[1], self._line(changer.site)[1]
        if code is None or its_code is None:
            return Around.ONE_STEP if self._reads_first(reader, changer, group) else Around.NOTHING
        if code is not its_code:
            # A function finds what another one changes, as the root of a tree.
            in_one_block = reader.block == changer.block
            by_result = self._finds(code, its_code, its_line, in_one_block)
            reads = by_result and self._reads_first(reader, changer, group, equally_often=False)
            return Around.ONE_STEP if reads else Around.NOTHING
        # A line that reads below the one that writes reads what an earlier pass of their loop has
        # left: a barrier is missing at the loop's end, not an atomic.
        if line >= its_line:
            return Around.NOTHING
        file = code.co_filename
        in_one_block = reader.block == changer.block
        stored = {one.thread for one in group if one.kind == WRITE and one.site == changer.site}
        means = needed(
            code,
            file,
            read_at=reader.site - id(code),
            read=line,
            change=its_line,
            in_one_block=in_one_block,
            by_one_thread=stored <= {changer.thread},
        )
        if means == Needed.BARRIER:
            return Around.NOTHING
        # What a thread looks for in memory, others find after more steps or fewer.
        often = belongs_to_thread(code, file, its_line, in_one_block)
        if not self._reads_first(reader, changer, group, equally_often=often):
            return Around.NOTHING
        if depends(code, file, line, its_line):
            return Around.ONE_STEP if means == Needed.ATOMIC else Around.LOOP_STEP
        both = {reader.thread, changer.thread} <= stored
        exchanged = both and means == Needed.ATOMIC and is_same_element(code, file, line, its_line)
        return Around.EXCHANGED if exchanged else Around.NOTHING

    def _finds(self, function: CodeType, caller: CodeType, line: int, in_one_block: bool) -> bool:
        """Return whether what a line of a caller stores depends on what the function returns, and
        the element does not belong to the thread. In other functions the two have nothing to do
        with each other: one loads a slice, which the other uses."""
        file = caller.co_filename
        calls = calling_lines(caller, file, function.co_name)
        return not belongs_to_thread(caller, file, line, in_one_block) and any(
            call < line and depends(caller, file, call, line) for call in calls
        )

    def _returned_it(
        self, reader: LoggedAccess, changer: LoggedAccess, group: list[LoggedAccess]
    ) -> bool:
        """Return whether the reader has updated the element itself, as the other thread does, and
        uses what it then reads as an index: the atomic has returned an index of its own."""
        code = code_at(reader.site)
        if changer.kind != ATOMIC or code is None or code_at(changer.site) is not code:
            return False
        mine = any(
            one.kind == ATOMIC
            and one.thread == reader.thread
            and one.position < reader.position
            and self._line(one.site) == self._line(changer.site)
            for one in group
        )
        lines = self._line(reader.site)[1], self._line(changer.site)[1]
        return mine and is_an_index(code, code.co_filename, *lines)

    def _reads_first(
        self,
        reader: LoggedAccess,
        changer: LoggedAccess,
        group: list[LoggedAccess],
        equally_often: bool = True,
    ) -> bool:
        """Return whether both threads read the element at the line of the reader, before the other
        one changes it, and ``equally_often`` have come there as often."""
        return any(
            one.kind == READ
            and one.thread == changer.thread
            and one.position < changer.position
            and self._line(one.site) == self._line(reader.site)
            and (not equally_often or self._visit(one) == self._visit(reader))
            for one in group
        )

    def _visit(self, access: LoggedAccess) -> int:
        """Return the number of times that the thread came to this site before, in this phase."""
        columns = self._accesses
        before = (columns.thread == access.thread) & (columns.phase == access.phase)
        before &= (columns.site == access.site) & (columns.position < access.position)
        return int(before.sum())


def waits(update: Update) -> bool:
    """Return whether an access waits for a lock or flag, by its text: a loop goes on until the
    thread reads the value that it wants, and computes nothing from that value."""
    return update.retry != Retry.NEVER and not update.computed


def wait_for_others(accesses: Accesses, update: Callable[[int], Update]) -> bool:
    """Return whether some of the accesses wait for a lock or flag."""
    sites = np.unique(accesses.site[accesses.kind != WRITE]).tolist()
    return any(waits(update(site)) for site in sites)


SYMBOLS: dict[type[ast.operator], str] = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.BitAnd: "&", ast.BitOr: "|"},
    **{ast.BitXor: "^", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**"},
    **{ast.LShift: "<<", ast.RShift: ">>"},
}


@cache
def update_in(file: str, line: int) -> str:
    """Return the operator or function by which a line of a kernel updates an element, such as
    ``+=`` or ``max``; empty if it does not."""
    try:
        tree = ast.parse(getline(file, line).strip())
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            return f"{SYMBOLS.get(type(node.op), '?')}="
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target, value = ast.unparse(node.targets[0]), node.value
            sides = [value.left, value.right] if isinstance(value, ast.BinOp) else []
            if isinstance(value, ast.BinOp) and target in map(ast.unparse, sides):
                return f"{SYMBOLS.get(type(value.op), '?')}="
            if isinstance(value, ast.Call) and target in map(ast.unparse, value.args):
                return ast.unparse(value.func)
    return ""
