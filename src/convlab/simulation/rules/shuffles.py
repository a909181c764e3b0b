"""Numbers that lanes get by shuffles and that are not another lane's.

From a lane that does not take part a lane gets an undefined number, which matters only if it is
used. From beyond the warp it gets its own number, as CUDA says: so the sum of a warp by
``shfl_down_sync`` is right in lane 0 only. A thread that has such a number, or one computed from
it, may store something; then the launch runs again with other numbers in their place, which show
whether they matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from convlab.simulation.recording.access_log import READ, Accesses, LaunchClock
from convlab.simulation.rules.findings import Finding
from convlab.simulation.rules.reports import Reports
from convlab.support.code_places import file_said

LARGE = 2**31 - 1
# A number in a register of a lane.
LaneNumber = int | float


class Shuffles:
    """The shuffles of a launch. With ``undefined`` 1 an undefined number is a very large one, with
    -1 a very small one, at the site ``only`` if it is given. With ``beyond`` 1 a number from beyond
    the warp is larger than the lane's own, with -1 smaller."""

    def __init__(
        self, clock: LaunchClock, *, undefined: int, beyond: int, only: int | None = None
    ) -> None:
        self._clock, self._undefined, self._beyond, self._only = clock, undefined, beyond, only
        self.undefined_at: dict[int, tuple[str, int]] = {}  # by site: in words, the thread
        self.beyond_at: dict[int, str] = {}  # by site: the call
        # The position from which on a thread may have its own number.
        self._since: dict[int, int] = {}
        self.stored = False  # whether such a thread has stored anything since

    def undefined(self, own: LaneNumber, what: str, site: int, thread: int) -> LaneNumber:
        """Return the number that a lane reads from one that does not take part: its own, as on many
        GPUs, or a number that shows whether it is used."""
        self.undefined_at.setdefault(site, (what, self._clock.first + thread))
        if not (sign := self._undefined) or self._only not in (None, site):
            return own
        if isinstance(own, bool | np.bool_):
            return not own
        if isinstance(own, int | np.integer):
            return type(own)(LARGE if sign > 0 else -LARGE * (own < 0))
        return type(own)(sign * np.inf)

    def beyond(self, own: LaneNumber, kind: str, site: int, thread: int) -> LaneNumber:
        """Return the number that a lane reads from beyond the warp: its own, or another one that
        shows whether that matters."""
        self.beyond_at.setdefault(site, kind)
        self._since.setdefault(self._clock.first + thread, self._clock.position)
        if not (sign := self._beyond):
            return own
        if isinstance(own, bool | np.bool_):
            return own if own == (sign > 0) else not own
        other = own + sign * (1 + abs(own))
        return type(own)(max(other, 0) if isinstance(own, int) and own >= 0 else other)

    def pass_on(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Note the readers of numbers that are not another lane's: pairs of the thread that is read
        and its reader, by their numbers in the block."""
        first, since = self._clock.first, self._since
        if since:
            readers = [reader for source, reader in pairs if first + source in since]
            for reader in readers:
                since.setdefault(first + reader, self._clock.position)

    def look(self, accesses: Accesses) -> None:
        """Look for stores of threads that may have numbers of their own."""
        if self.stored or not self._since:
            return
        threads = np.fromiter(self._since, np.int64, len(self._since))
        some = np.flatnonzero(np.isin(accesses.thread, threads) & (accesses.kind & 3 != READ))
        when = zip(accesses.thread[some].tolist(), accesses.position[some].tolist(), strict=True)
        self.stored = any(position >= self._since[thread] for thread, position in when)

    def report_undefined(self, reports: Reports, shown: Mapping[int, Finding | None]) -> None:
        """Note a finding for each site whose undefined numbers matter, with the finding of the
        launch in which these alone were other numbers."""
        for site, after in shown.items():
            what = ""
            if after is not None:
                what = f", and {_line_of(after)} is wrong with another number in its place"
                what += f": {after.what}"
            self._report(reports, site, what)

    def report_undefined_together(self, reports: Reports, after: Finding | None) -> None:
        """Note a finding for each site with undefined numbers, which matter only together, with the
        finding of the launch in which all of them were other numbers."""
        what = ", and the result depends on this number or another one that a shuffle reads so"
        if after is not None:
            what = f", and {_line_of(after)} may be wrong with another number in the place of one "
            what += f"of these: {after.what}"
        for site in self.undefined_at:
            self._report(reports, site, what)

    def _report(self, reports: Reports, site: int, more: str) -> None:
        what, number = self.undefined_at[site]
        size = self._clock.block_size
        block = reports.block(number // size)
        reports.add("inactive lane", f"{what}{more}", site, number % size, block=block)


def _line_of(finding: Finding) -> str:
    return f"line {finding.line} of {file_said(finding.file)}"
