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

import numpy as np

from convlab.simulation.recording.access_log import READ, WRITE, Accesses, LoggedAccess
from convlab.simulation.recording.sites import code_at, in_two_arms
from convlab.simulation.rules.dependence import depends
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
            reads = any(
                self._reads_first(*pair, group)
                for pair, (its, changes) in (
                    ((first, second), lines),
                    ((second, first), lines[::-1]),
                )
                # A line that reads below the one that writes reads what an earlier pass of their
                # loop has left: a barrier is missing at the loop's end, not an atomic.
                if its[0] != changes[0] or its[1] < changes[1]
                if _decides(pair[0].site, pair[1].site, its[1], changes[1])
            )
            return Around.ONE_STEP if reads else Around.NOTHING
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

    def _reads_first(
        self, reader: LoggedAccess, changer: LoggedAccess, group: list[LoggedAccess]
    ) -> bool:
        """Return whether both threads read the element at the line of the reader, before the other
        one changes it."""
        if reader.kind != READ or changer.kind == READ:
            return False
        return any(
            one.kind == READ
            and one.thread == changer.thread
            and one.position < changer.position
            and self._line(one.site) == self._line(reader.site)
            and self._visit(one) == self._visit(reader)
            for one in group
        )

    def _visit(self, access: LoggedAccess) -> int:
        """Return the number of times that the thread came to this site before, in this phase."""
        columns = self._accesses
        before = (columns.thread == access.thread) & (columns.phase == access.phase)
        before &= (columns.site == access.site) & (columns.position < access.position)
        return int(before.sum())


def _decides(reads: int, changes: int, its_line: int, other_line: int) -> bool:
    """Return whether what is written at the site ``changes`` depends on what is read at the other.
    In two functions it does not: one loads a slice, which the other uses."""
    code, other = code_at(reads), code_at(changes)
    if code is None or other is None:
        return True
    return code is other and depends(code, code.co_filename, its_line, other_line)


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
