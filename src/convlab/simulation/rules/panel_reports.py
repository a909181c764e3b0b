"""The findings about accesses to panels of shared memory, in words."""

from __future__ import annotations

from convlab.simulation.recording.access_log import ATOMIC, READ, WRITE, AccessLog, LoggedAccess
from convlab.simulation.rules.finding_words import (
    BY_TENSOR_CORES,
    COPY_OVERWRITES,
    NO_BARRIER,
    NOT_WAITED_FOR,
    OVERWRITES_PRODUCT,
)
from convlab.simulation.rules.panel_access import PanelAccess
from convlab.simulation.rules.reports import Reports

_DOES = {READ: "reads", WRITE: "writes", ATOMIC: "updates"}
_DONE = {READ: "read", WRITE: "written", ATOMIC: "updated"}


class PanelReports:
    """Reports what is wrong with accesses to the panels of a launch."""

    def __init__(self, reports: Reports, log: AccessLog) -> None:
        self._reports, self._log = reports, log

    def at_one_time(self, before: PanelAccess, access: PanelAccess) -> None:
        """Report two accesses of the engine or of tensor cores at one time."""
        address = max(before.first, access.first)
        who, other = self._who(access), self._who(before)
        kind = "copy in flight"
        if access.writes and before.writes:
            what = f"is copied to while {other}'s copy to it is in flight"
            missing = f"{who} {NOT_WAITED_FOR} {before.ends_with}"
        elif access.writes:
            kind = "shared race"
            what = OVERWRITES_PRODUCT
            missing = f"{who} does not know that {before.ends_with} has ended"
        else:
            what = f"is read {BY_TENSOR_CORES} while {other}'s copy to it is in flight"
            missing = f"not every thread of the warpgroup has waited for {before.ends_with}"
        self._add(kind, what, missing, address, access, before.site)

    def beside_thread(self, access: PanelAccess, found: LoggedAccess, *, came_before: bool) -> None:
        """Report an access of a thread while the engine or tensor cores access the same byte;
        ``came_before`` if it came before theirs began."""
        who, other = self._who(found), self._who(access)
        address = _within(found, access)
        if came_before and access.writes:
            what = f"{who} {_DOES[found.kind]} {{}} and {other}'s {COPY_OVERWRITES}, {NO_BARRIER}"
            self._add("shared race", what, "", address, access, found.site)
        elif came_before:
            what = f"{who} {_DOES[found.kind]} {{}} and tensor cores read it, {NO_BARRIER}"
            self._add("shared race", what, "", address, access, found.site)
        elif access.writes:
            what = f"is {_DONE[found.kind]} while {other}'s copy to it is in flight"
            missing = f"{who} {NOT_WAITED_FOR} {access.ends_with}"
            self._add("copy in flight", what, missing, address, found, access.site)
        else:
            what = f"is {_DONE[found.kind]} while tensor cores may read it"
            missing = f"{who} does not know that {access.ends_with} has ended"
            self._add("shared race", what, missing, address, found, access.site)

    def not_fenced(self, access: PanelAccess, found: LoggedAccess) -> None:
        """Report a write of a thread that comes before an access and has not been fenced."""
        by = "overwritten by a copy" if access.writes else f"read {BY_TENSOR_CORES}"
        missing = f"but {self._who(found)}, which wrote it, has not fenced it"
        what = f"is {by}, {missing}"
        self._add("not fenced", what, "", _within(found, access), access, found.site)

    def uninitialised(self, access: PanelAccess, address: int) -> None:
        """Report a read of tensor cores of what nobody has written."""
        what = f"is read {BY_TENSOR_CORES} before anything in this block wrote to it"
        self._add("uninitialised", what, "", address, access, None)

    def _who(self, access: PanelAccess | LoggedAccess) -> str:
        return f"thread {self._reports.thread(access.thread)}"

    def _add(
        self,
        kind: str,
        what: str,
        missing: str,
        address: int,
        shown: PanelAccess | LoggedAccess,
        other_site: int | None,
    ) -> None:
        """Report a finding about the element at an address."""
        span = self._log.span_at(address)
        index, _ = span.split(address)
        element = f"{span.name}[{', '.join(map(str, index))}]"
        said = f"{element} {what}" if not what.startswith("thread") else what.replace("{}", element)
        self._reports.add(
            kind,
            f"{said}{': ' if missing else ''}{missing}",
            shown.site,
            shown.thread,
            other_site,
            block=self._reports.block(shown.block),
            array=span.name,
            index=index,
            shape=span.shape,
        )


def _within(found: LoggedAccess, access: PanelAccess) -> int:
    return max(found.address, access.first)
