"""Guesses: plain reads that an atomic of the same thread checks, so that they race with nothing."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from convlab.simulation.recording.access_log import ATOMIC, READ, Accesses
from convlab.simulation.recording.sites import Sites


class GuessedReads:
    """The lines at which a launch's threads guess, as its log shows them piece by piece. ``checks``
    are the positions of the atomics that check a number read before; they grow as it runs."""

    def __init__(self, sites: Sites, checks: Set[int]) -> None:
        self._sites, self._checks = sites, checks
        self._plain_guesses: set[int] = set()  # sites of plain reads before a check
        self._polling_sites: set[int] = set()  # sites of plain reads that a thread repeats

    def as_atomics(self, accesses: Accesses) -> Accesses:
        """Return the accesses with guesses as atomics. A plain read is a guess if the thread's next
        access there is a ``max`` or ``min``, or a ``cas`` that a loop tries until it succeeds: it
        does no harm if others came between. Another thread that reads at that line may find that it
        need not go on; but a thread that polls there needs an atomic."""
        if not self._checks:
            return accesses
        address, thread = accesses.address, accesses.thread
        site = self._sites.one_each(accesses.site)
        check, read = np.isin(accesses.position, [*self._checks]), accesses.kind == READ
        order = np.lexsort((accesses.position, thread, address))
        now, then = order[:-1], order[1:]
        same_place = (address[now] == address[then]) & (thread[now] == thread[then])
        pairs = read[now] & same_place & (accesses.phase[now] == accesses.phase[then])
        now, then = now[pairs], then[pairs]
        self._polling_sites.update(site[now[read[then] & (site[now] == site[then])]].tolist())
        self._plain_guesses.update(site[now[check[then]]].tolist())
        return self.known_as_atomics(accesses)

    def known_as_atomics(self, accesses: Accesses) -> Accesses:
        """Return the accesses with those guesses as atomics that are known so far."""
        guesses = [*self._plain_guesses - self._polling_sites]
        here = np.isin(self._sites.one_each(accesses.site), guesses) & (accesses.kind == READ)
        return accesses._replace(kind=np.where(here, np.int8(ATOMIC), accesses.kind))
