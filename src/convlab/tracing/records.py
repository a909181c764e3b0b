"""What a trace holds: plain numbers and texts, which can be saved and opened again.

Views (the tables, the page) read these records and know nothing of simulators.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from convlab.engines.findings import Finding
from convlab.engines.memory_rules import SECTOR_BYTES

FORMAT, VERSION = "convlab trace", 1


@dataclass(frozen=True)
class Array:
    """An array that a launch touched. ``space`` is ``global`` or ``shared``; ``shape`` in elements,
    ``strides`` and ``itemsize`` in bytes, ``start`` the first element's place in its memory."""

    name: str
    space: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    start: int


@dataclass(frozen=True)
class Access:
    """What one line does to one array, over all blocks of the launch.

    ``operation`` is ``load``, ``store`` or ``atomic``, ``width`` its bytes a lane. ``requests`` are
    instructions of whole warps, ``lanes`` the threads that took part in them, ``bytes_asked`` what
    these asked for. ``sectors`` (of 32 bytes) count for global memory, ``passes`` for shared
    memory, each with the fewest that would do were the different bytes wanted neighbours.
    ``conflict_degree`` is the most passes that one request took for each that it needed,
    ``contention`` the most lanes of an atomic at one address.
    """

    file: str
    line: int
    array: str
    space: str
    operation: str
    width: int
    requests: int
    lanes: int
    bytes_asked: int
    sectors: int
    fewest_sectors: int
    passes: int
    fewest_passes: int
    conflict_degree: float
    contention: int

    @property
    def bytes_moved(self) -> int:
        """What global memory moves for it: whole sectors."""
        return SECTOR_BYTES * self.sectors


@dataclass(frozen=True)
class Work:
    """What one line does beside accesses: floating-point operations, threads at its barrier."""

    file: str
    line: int
    flops: int = 0
    barriers: int = 0


@dataclass(frozen=True)
class Request:
    """One request of the block that is shown: which lanes of which warp, and at which place of the
    array, in bytes from its first element."""

    file: str
    line: int
    array: str
    operation: str
    width: int
    warp: int
    lanes: tuple[int, ...]
    offsets: tuple[int, ...]
    sectors: int
    passes: int


@dataclass(frozen=True)
class Footprint:
    """Which elements of an array the shown block touches: runs of ``(first, count)``, in elements
    from the array's first one."""

    array: str
    operation: str
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LaunchTrace:
    """What one launch did. ``source`` has the kernel's lines and those of its device functions, by
    file and number; ``block_shown`` is the block whose requests are kept, ``requests_left_out`` how
    many of them were too many to keep; ``findings`` are what is wrong with the kernel."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arrays: tuple[Array, ...]
    accesses: tuple[Access, ...]
    work: tuple[Work, ...]
    source: dict[str, dict[int, str]]
    block_shown: tuple[int, int, int]
    requests: tuple[Request, ...] = ()
    requests_left_out: int = 0
    footprints: tuple[Footprint, ...] = ()
    findings: tuple[Finding, ...] = ()

    def total(self, name: str, accesses: Iterable[Access] | None = None) -> int:
        """The sum of one of the counts of :class:`Access`, over all lines or over those given."""
        chosen = self.accesses if accesses is None else accesses
        return sum(getattr(access, name) for access in chosen)

    def of(self, array: str | None = None, space: str | None = None) -> list[Access]:
        """The accesses of an array, or of a space."""
        return [
            access
            for access in self.accesses
            if array in (None, access.array) and space in (None, access.space)
        ]

    @cached_property
    def flops(self) -> int:
        return sum(work.flops for work in self.work)

    @cached_property
    def barriers(self) -> int:
        """Threads that passed a barrier, over all barriers."""
        return sum(work.barriers for work in self.work)

    @cached_property
    def bytes_moved(self) -> int:
        """What global memory moves: whole sectors, as the caches are asked for them."""
        return SECTOR_BYTES * self.total("sectors")

    @cached_property
    def bytes_per_flop(self) -> float | None:
        """None where there is no arithmetic."""
        return self.bytes_moved / self.flops if self.flops else None

    def lines(self) -> Iterator[tuple[str, int]]:
        """File and number of every line that did something, in the order of the source."""
        order = {file: place for place, file in enumerate(self.source)}
        found = {(one.file, one.line) for one in self.accesses}
        found |= {(one.file, one.line) for one in self.work}
        return iter(sorted(found, key=lambda key: (order.get(key[0], 99), key[1])))


@dataclass(frozen=True)
class Trace:
    """The launches that were traced, in their order; ``title`` says of what, ``about`` more.

    Printed, and as the result of a notebook's cell, it shows the views of :mod:`convlab.tracing`.
    """

    title: str
    launches: tuple[LaunchTrace, ...]
    about: dict[str, str] = field(default_factory=dict)

    @property
    def main(self) -> LaunchTrace:
        """The last launch: of a stage the main kernel."""
        return self.launches[-1]

    def as_json(self) -> dict[str, Any]:
        """The trace as a document of :mod:`json`."""
        launches = []
        for launch in self.launches:
            document = {name: getattr(launch, name) for name in _names(LaunchTrace)}
            for name in _TUPLES:
                document[name] = [asdict(record) for record in document[name]]
            launches.append(document)
        head = {"format": FORMAT, "version": VERSION, "title": self.title, "about": self.about}
        return {**head, "launches": launches}

    def save(self, path: str | Path) -> None:
        """Write the trace to a file, for :func:`open_trace`."""
        text = json.dumps(self.as_json())
        Path(path).write_text(text, encoding="utf-8")


def open_trace(path: str | Path) -> Trace:
    """A trace that was saved.

    Raises ``ValueError`` where the file holds none, or one of another version.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        version = document["version"]
        if document["format"] != FORMAT:
            raise KeyError(document["format"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{str(path)!r} holds no trace: convlab trace --json makes one") from None
    if version != VERSION:
        raise ValueError(
            f"{str(path)!r} holds a trace of version {version}, and this convlab reads "
            f"version {VERSION}: trace again"
        )
    try:
        launches = tuple(_launch(launch) for launch in document["launches"])
        return Trace(document["title"], launches, document["about"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"{str(path)!r} is a damaged trace: trace again") from None


_TUPLES: dict[str, Any] = {
    "arrays": Array, "accesses": Access, "work": Work, "requests": Request,
    "footprints": Footprint, "findings": Finding,
}  # fmt: skip


def _launch(document: dict[str, Any]) -> LaunchTrace:
    known: dict[str, Any] = {name: _tuples(value) for name, value in document.items()}
    for name, kind in _TUPLES.items():
        records = [{k: _tuples(v) for k, v in one.items()} for one in document[name]]
        known[name] = tuple(kind(**record) for record in records)
    known["source"] = {
        file: {int(line): text for line, text in lines.items()}
        for file, lines in document["source"].items()
    }
    return LaunchTrace(**known)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _names(kind: Any) -> list[str]:
    return [one.name for one in fields(kind)]
