"""Barriers at which threads do not meet: one finding for each cause that parts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.finding_words import RETURNED_IN
from convlab.simulation.rules.findings import FindingKey


class PartedThreads:
    """The causes that part a launch's threads, and the lines of the barriers after the first."""

    def __init__(self) -> None:
        self._first: dict[str, FindingKey] = {}  # the first finding by its cause
        self._later: dict[FindingKey, list[int]] = {}

    def note_barrier(self, key: FindingKey, cause: str, line: int) -> FindingKey:
        """Note a barrier in this line, and return the finding that it belongs to: its own, unless
        the cause has parted the threads at another barrier."""
        first = self._first.setdefault(cause, key) if cause else key
        if first != key:
            lines = self._later.setdefault(first, [])
            if line not in lines:
                lines.append(line)
        return first

    def take_later(self) -> Iterator[tuple[FindingKey, str]]:
        """Give the findings that have later barriers, with these in words, and forget them."""
        taken, self._later = self._later, {}
        for key, lines in taken.items():
            these = f"barrier in line {lines[0]}"
            if len(lines) > 1:
                *early, last = map(str, sorted(lines))
                these = f"barriers in lines {', '.join(early)} and {last}"
            yield key, f"as at the {these}"


def words_and_cause(
    sites: Sites,
    what: str,
    site: int,
    other: int | None,
    callers: Sequence[int],
    iterations: Sequence[int],
) -> tuple[str, str]:
    """Return the words about threads that do not meet at a barrier, with the branch, loop or
    return that parts them, and that cause alone."""
    if RETURNED_IN in what:
        return what, what.partition(RETURNED_IN)[2]
    if other is None:
        how, cause = "inside", sites.branch_around(callers, iterations)
    else:
        how = "inside" if other == site else "parted by"
        cause = sites.branch_between(site, other)
    return (f"{what}, {how} {cause}", cause) if cause else (what, "")
