"""A meeting of threads: a call that they make together."""

from __future__ import annotations

from typing import NamedTuple

from convlab.simulation.threads.waiting import Thread, WaitingCall


class Meeting(NamedTuple):
    """A call of some lanes: the ``mask`` that they name, those ``present`` and those ``living``."""

    threads: list[Thread]
    mask: int | None
    present: int
    living: int

    @property
    def call(self) -> WaitingCall:
        """The call of the first of its threads."""
        return self.threads[0].waits_at()
