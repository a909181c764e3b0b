"""The suspects of a compiled launch: which blocks another engine must look at, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from convlab.simulation.compiled.context import (
    BLOCK,
    ENDED,
    SITE,
    SUSPECT_TABLE,
    SUSPECTS,
    load64,
    set_word,
    store64,
    word,
)
from convlab.simulation.compiled.runtime import shared_code
from convlab.simulation.compiled.stacks import switch_out

# Why a block is suspect.
OUTSIDE, RACE, OTHER_BLOCK, UNWRITTEN, MISALIGNED, DIVERGED, ENDLESS = range(1, 8)
BY_ZERO, RAISED, ABSENT_LANE, NO_ROOM, TWO_NAMES = range(8, 13)
INTERRUPTED = 15  # by Ctrl-C: no suspect
NEGATIVE_ALONG = 16  # and the number of an axis
WORDS_OF = {
    OUTSIDE: "an index beyond the end",
    RACE: "two threads at one element",
    OTHER_BLOCK: "two blocks at one element",
    UNWRITTEN: "a read before a write",
    MISALIGNED: "an address that is not aligned",
    DIVERGED: "threads that do not meet",
    ENDLESS: "a loop that does not end",
    BY_ZERO: "a division by zero",
    RAISED: "an exception",
    ABSENT_LANE: "a lane that does not take part",
    NO_ROOM: "too much memory",
    TWO_NAMES: "two arrays in dynamic shared memory",
}
ROW = 4  # words of a row of the table: site, reason, block, phase of the other access
ROWS = 4096
# The rows of one site and reason. More need not be kept: if the first engine finds a mistake in the
# first blocks, the report names the first; if it finds none, it runs the whole launch, except for
# negative indices, where all blocks are checked alike by the text of the line.
EACH = 16


class Suspect(NamedTuple):
    """A block that is suspect, at a site of the code, and the phase of the other access: 0 if there
    is none, or it is the block's own."""

    site: int
    reason: int
    block: int
    other_phase: int

    @property
    def words(self) -> str:
        """The reason in words."""
        return "a negative index" if self.is_negative_index else WORDS_OF[self.reason]

    @property
    def is_negative_index(self) -> bool:
        """True if an index is negative: whether that is a mistake depends on the text only."""
        return self.reason >= NEGATIVE_ALONG


@shared_code("void(int64, int64)")
def suspect(reason: int, other_phase: int) -> None:
    """Note that the running block is suspect at the site that runs."""
    count, site, block = word(SUSPECTS), word(SITE), word(BLOCK)
    table = word(SUSPECT_TABLE)
    known = 0
    for row in range(count):
        entry = table + row * ROW * 8
        if load64(entry) == site and load64(entry + 8) == reason:
            if load64(entry + 16) == block:
                return
            known += 1
    if known >= EACH or count >= ROWS:
        return
    entry = table + count * ROW * 8
    store64(entry, site)
    store64(entry + 8, reason)
    store64(entry + 16, block)
    store64(entry + 24, other_phase)
    set_word(SUSPECTS, count + 1)


@shared_code("void(int64)")
def give_up(reason: int) -> None:
    """Note that the running block is suspect, and end the run: the thread cannot go on."""
    suspect(reason, 0)
    set_word(ENDED, reason)
    switch_out()


def suspects_in(table: np.ndarray, count: int) -> Iterator[Suspect]:
    """Give the suspects that the table holds."""
    for row in table[:count].tolist():
        yield Suspect(*row)
