"""An access of the copy engine or of tensor cores to a panel of shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convlab.simulation.rules.thread_clocks import Knowledge, knows


@dataclass(eq=False)
class PanelAccess:
    """A copy to a panel, or a read of a panel by tensor cores.

    It is of the bytes from ``first`` to ``end``, and ``thread``, by its number in the launch,
    started it at ``site``. ``begin`` is what its threads knew then. A thread knows of its end if it
    knows of ``number`` phases or products of ``entry``; ``ends_with`` says so in words. Accesses
    before ``since`` or after ``until`` are checked against other accesses to these bytes.
    """

    first: int
    end: int
    writes: bool
    block: int
    thread: int
    site: int
    time: int
    begin: Knowledge
    entry: int
    number: int
    ends_with: str
    since: int = 0
    until: float = math.inf

    def has_ended_for(self, knowledge: Knowledge) -> bool:
        """Return whether this knowledge says that the access has ended."""
        return knows(knowledge, self.entry, self.number)
