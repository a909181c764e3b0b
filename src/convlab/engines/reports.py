"""Makes findings of what goes wrong in a simulated launch: line, thread, element, in words."""

from __future__ import annotations

from convlab.engines.access_log import ATOMIC, LANDED, READ, WRITE, AccessLog, Sites
from convlab.engines.accesses import Access
from convlab.engines.findings import Finding, Findings
from convlab.engines.races import Conflict

Place = tuple[int, int, int]
FATAL = ("out of bounds", "misaligned")  # these end a launch
ALWAYS = (*FATAL, "wraps around", "division by zero")  # refused with no checks too


class Reports:
    """The findings of one launch."""

    def __init__(self, kernel: str, grid: Place, block_shape: Place, strict: bool) -> None:
        self.findings = Findings()
        self.sites = Sites(())
        self._kernel, self._strict = kernel, strict
        self._grid, self._block_shape = grid, block_shape

    def add(
        self,
        kind: str,
        what: str,
        site: int,
        block: Place,
        thread: int,
        other: int | None = None,
        array: str | None = None,
        index: tuple[int, ...] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """Note one, of the thread with that number in its block; ``other`` is the other site."""
        if not self._strict and kind not in ALWAYS:
            return
        file, line = self.sites.line(site)
        other_line = None if other is None else self.sites.line(other)[1]
        self.findings.add(
            Finding(
                kind, self._kernel, file, line, what, other_line, block, self.thread(thread),
                array, index, shape,
            )
        )  # fmt: skip

    def conflict(self, conflict: Conflict, log: AccessLog) -> None:
        """Note a race, a read of what nobody wrote, or an access to what is in flight."""
        kind, first, second = conflict
        shown = second or first
        span = log.span_at(first.address)
        index = span.index(first.address)
        element = f"{span.name}[{', '.join(map(str, index))}]"
        if second is None:
            what = f"{element} is read before anything in this block wrote to it"
        elif kind == "not fenced":
            who = f"thread {self.thread(first.thread)}"
            what = (
                f"{element} is read by tensor cores, but {who}, which wrote it, has not fenced it"
            )
        elif kind == "copy in flight":
            who = f"thread {self.thread(first.thread)}"
            what = f"{element} is {_verb(second)} while {who}'s copy to it is in flight"
        elif first.kind == READ + LANDED:
            what = (
                f"{element} is {_verb(second)} while tensor cores may read it: no barrier after "
                "finish_product lies between"
            )
        elif second.kind == READ + LANDED:
            did = f"thread {self.thread(first.thread)} {_past(first)} it"
            what = f"{element} is read by tensor cores after {did}, no barrier between"
        else:
            who = f"thread {self.thread(first.thread)}"
            if first.block != second.block:
                who = f"block {place_of(first.block, self._grid)}"
            what = f"{element} is {_verb(second)} after {who} {_past(first)} it, nothing between"
        self.add(
            kind, what, shown.site, place_of(shown.block, self._grid), shown.thread,
            None if second is None else first.site, span.name, index, span.shape,
        )  # fmt: skip

    def thread(self, number: int) -> Place:
        """Where a thread of the launch is in its block."""
        x, y, z = self._block_shape
        return place_of(number % (x * y * z), self._block_shape)


def place_of(number: int, shape: Place) -> Place:
    """Which thread of a block, or block of a grid, has that number: x runs first."""
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])


_VERBS = {
    READ: ("read", "had read"),
    WRITE: ("written", "had written"),
    ATOMIC: ("updated", "had updated"),
}


def _verb(access: Access) -> str:
    return _VERBS[access.kind][0]


def _past(access: Access) -> str:
    return _VERBS[access.kind][1]
