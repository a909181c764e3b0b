"""A conflict of accesses, as a rule finds it and a report tells it, and the comparison of values
that tells whether two stores are in conflict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from convlab.simulation.recording.access_log import LoggedAccess
from convlab.simulation.rules.circumstances import Around

ENOUGH_OF_THE_SAME_LINES = 500  # conflicts of the same lines; more are the same mistake again


class Conflict(NamedTuple):
    """Two accesses in conflict. ``kind`` is that of a Finding; ``second`` is None for an
    uninitialised read."""

    kind: str
    first: LoggedAccess
    second: LoggedAccess | None
    around: Around = Around.NOTHING


def few_of_each_line(conflicts: Iterable[Conflict]) -> Iterator[Conflict]:
    """Give the conflicts, but not more than enough of the same kind and lines."""
    seen: Counter[tuple[str, int, int | None]] = Counter()
    for one in conflicts:
        key = one.kind, one.first.site, one.second and one.second.site
        if seen[key] < ENOUGH_OF_THE_SAME_LINES:
            seen[key] += 1
            yield one


def same_value(one: object, other: object) -> bool:
    """Return whether two stores leave the same value: NaN counts as equal to NaN."""
    return bool(one == other) or (one != one and other != other)
