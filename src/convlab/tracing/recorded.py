"""Records of a trace: plain numbers and texts, which can be saved and opened again.

Views (the tables, the page) read these records and know nothing of simulators.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from convlab.simulation.rules.findings import Finding
from convlab.simulation.rules.memory_traffic import SECTOR_BYTES, WARP
from convlab.simulation.rules.remedies import REMEDIES
from convlab.support.files import document
from convlab.support.values import shown
from convlab.support.whole_files import bytes_of, write_whole

FORMAT, VERSION = "convlab trace", 2
UNITS = {"global": "sectors", "shared": "wavefronts"}  # what each memory serves requests in


@dataclass(frozen=True)
class TracedArray:
    """An array that a launch accessed. ``space`` is ``global`` or ``shared``; ``shape`` is in
    elements, ``strides``, ``itemsize`` and ``start`` (of its lowest byte) in bytes."""

    name: str
    space: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    start: int


InstructionKey = tuple[str, int, str, str, int]


@dataclass(frozen=True)
class Instruction:
    """Fields of all requests: ``operation`` (load, store, atomic), ``width`` in bytes a lane."""

    file: str
    line: int
    array: str
    operation: str
    width: int

    @property
    def key(self) -> InstructionKey:
        """The same for an access and its requests."""
        return self.file, self.line, self.array, self.operation, self.width


@dataclass(frozen=True)
class LineAccess(Instruction):
    """The requests of one line to one array, summed over all blocks of the launch.

    ``requests`` are warp instructions, ``lanes`` their active threads. ``sectors`` (32 bytes) count
    for global memory, ``wavefronts`` for shared memory, each with the fewest possible if the
    requested bytes were neighbours. ``conflict_degree`` is the largest ratio of wavefronts to the
    fewest in one request, ``contention`` the most lanes of an atomic at one address.
    """

    space: str
    requests: int
    lanes: int
    bytes_asked: int
    sectors: int
    fewest_sectors: int
    wavefronts: int
    fewest_wavefronts: int
    conflict_degree: float
    contention: int

    @property
    def bytes_moved(self) -> int:
        """Bytes that global memory moves: whole sectors."""
        return SECTOR_BYTES * self.sectors

    @property
    def cost(self) -> Cost:
        """Its sectors or wavefronts."""
        return Cost.of([self])


class Cost(NamedTuple):
    """The cost of accesses to one memory: ``total`` of the ``unit``, and the fewest possible."""

    unit: str
    requests: int
    total: int
    fewest: int

    @classmethod
    def of(cls, accesses: Sequence[LineAccess]) -> Cost:
        """The sums. Raises ``IndexError`` where there is no access."""
        unit = UNITS[accesses[0].space]
        names = "requests", unit, f"fewest_{unit}"
        return cls(unit, *(sum(getattr(one, name) for one in accesses) for name in names))

    @property
    def grade(self) -> str:
        """``good``, ``fair`` from a quarter above the fewest on, ``bad`` from twice as many on."""
        times = self.total / max(1, self.fewest)
        return "bad" if times >= 2 else "fair" if times > 1.25 else "good"


@dataclass(frozen=True)
class Work:
    """Floating-point operations of one line, and the threads at its barrier."""

    file: str
    line: int
    flops: int = 0
    barriers: int = 0


@dataclass(frozen=True)
class WarpRequest(Instruction):
    """One request of the shown block; ``offsets`` are bytes from the array's lowest byte."""

    warp: int
    lanes: tuple[int, ...]
    offsets: tuple[int, ...]
    sectors: int
    wavefronts: int


@dataclass(frozen=True)
class Footprint:
    """The elements of an array that the shown block accesses: ``(first, count)`` in C order."""

    array: str
    operation: str
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LaunchTrace:
    """The trace of one launch.

    ``source`` holds the lines of kernel and device functions by file and number; ``block_shown`` is
    the block of ``requests`` and ``footprints``. ``ended`` is true if the launch stopped before its
    end, at the last finding.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arrays: tuple[TracedArray, ...]
    accesses: tuple[LineAccess, ...]
    work: tuple[Work, ...]
    source: dict[str, dict[int, str]]
    block_shown: tuple[int, int, int]
    requests: tuple[WarpRequest, ...] = ()
    requests_left_out: int = 0
    footprints: tuple[Footprint, ...] = ()
    findings: tuple[Finding, ...] = ()
    ended: bool = False

    def total(self, name: str, accesses: Iterable[LineAccess] | None = None) -> int:
        """Return the sum of one count of :class:`LineAccess`, over all lines or those given."""
        chosen = self.accesses if accesses is None else accesses
        return sum(getattr(access, name) for access in chosen)

    def of(self, array: str | None = None, space: str | None = None) -> list[LineAccess]:
        """The accesses of an array, or of a space."""
        return [
            access
            for access in self.accesses
            if array in (None, access.array) and space in (None, access.space)
        ]

    def requests_of(self, array: str, operation: str) -> list[WarpRequest]:
        """The requests of the shown block that load an array, store to it or change it."""
        return [r for r in self.requests if (r.array, r.operation) == (array, operation)]

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of all threads, over all lines."""
        return sum(work.flops for work in self.work)

    @cached_property
    def barriers(self) -> int:
        """Threads that passed a barrier, over all barriers."""
        return sum(work.barriers for work in self.work)

    @cached_property
    def bytes_moved(self) -> int:
        """Bytes of the sectors that requests touch, before any cache."""
        return SECTOR_BYTES * self.total("sectors")

    @cached_property
    def bytes_per_flop(self) -> float | None:
        """None where there is no arithmetic."""
        return self.bytes_moved / self.flops if self.flops else None

    def lines(self) -> list[tuple[str, int]]:
        """File and number of every line that did something, in the order of the source."""
        order = {file: place for place, file in enumerate(self.source)}
        found = {(one.file, one.line) for one in self.accesses}
        found |= {(one.file, one.line) for one in self.work}
        return sorted(found, key=lambda key: (order.get(key[0], len(order)), key[1]))


@dataclass(frozen=True)
class Trace:
    """The traced launches in order. ``print`` and a notebook show tables."""

    title: str
    launches: tuple[LaunchTrace, ...]
    about: dict[str, str] = field(default_factory=dict)

    @property
    def main(self) -> LaunchTrace:
        """The last launch: of a stage the main kernel."""
        return self.launches[-1]

    def as_json(self) -> dict[str, Any]:
        """The trace as a document of :mod:`json`."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Write the trace to a file, for :func:`convlab.open_trace`."""
        write_whole(Path(path), json.dumps(self.as_json()).encode())


# Opening a saved trace: everything that views rely on is checked here.

MOST = 2**53  # what a page's numbers hold exactly
SIGNED = ("strides", "index")  # the numbers that may be below zero
OPERATIONS = ("load", "store", "atomic")


def open_trace(path: str | Path) -> Trace:
    """Open a saved trace. Raises ``OSError`` where the file cannot be read, ``ValueError`` if it is
    damaged or of another version, ``TypeError`` for a path that is none."""
    if not isinstance(path, str | Path):
        raise TypeError(f"path is {shown(path)}: it must be a string or a Path")
    try:
        whole = document(bytes_of(Path(path)))
        if not isinstance(whole, dict) or whole.pop("format", None) != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        if (version := whole.pop("version", None)) is None:
            raise ValueError("it has no version")
    except ValueError as error:
        making = "convlab trace --json makes one"
        raise ValueError(f"{str(path)!r} holds no trace: {error}; {making}") from None
    if version != VERSION:
        raise ValueError(
            f"{str(path)!r} holds a trace of version {shown(version)}, and this convlab reads "
            f"version {VERSION}: trace again"
        )
    try:
        trace: Trace = _as(Trace, whole, "it")
        _must(trace.launches, "its launches", "one or more")
        for number, launch in enumerate(trace.launches):
            _check(launch, f"launches[{number}]")
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is a damaged trace: {error}; trace again") from None
    return trace


def _as(kind: Any, value: Any, place: str, least: int = 0) -> Any:
    """A value of JSON as what the records have there; numbers are ``least`` or more. Raises
    ``ValueError`` with the place, the value and the rule."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:  # None or something
        return None if value is None else _as(parts[0], value, place, least)
    if origin is tuple:
        _must(isinstance(value, list), place, "a list", value)
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        _must(len(value) == len(kinds), place, f"{len(kinds)} long", value)
        entries = zip(kinds, value, strict=True)
        return tuple(_as(of, one, f"{place}[{n}]") for n, (of, one) in enumerate(entries))
    if origin is dict:
        _must(isinstance(value, dict), place, "an object", value)
        return {
            _name(parts[0], name, place): _as(parts[1], one, f"{place}[...]")
            for name, one in value.items()
        }
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        _must(isinstance(value, dict), place, "an object", value)
        _must(value.keys() == hints.keys(), place, f"an object with {', '.join(hints)}", value)
        least_of = dict.fromkeys(SIGNED, -MOST)
        start = "its " if place == "it" else f"{place}."
        return kind(**{
            name: _as(hint, value[name], f"{start}{name}", least_of.get(name, 0))
            for name, hint in hints.items()
        })  # fmt: skip
    # To Python, true is an integer.
    right = type(value) is kind or (kind is float and type(value) is int)
    _must(right, place, WORDS[kind], value)
    if kind is not str:
        _must(least <= value < MOST, place, f"from {least} to 2**53", value)
    return kind(value)


WORDS = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def _name(kind: Any, name: str, place: str) -> Any:
    """The key of an object as what it stands for: a line's number, or a name."""
    _must(kind is str or (name.isascii() and name.isdigit() and len(name) < 16), place,
          "an object of lines by number", name)  # fmt: skip
    return kind(name)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def _check(launch: LaunchTrace, at: str) -> None:
    """Records that name each other must agree, and every number must be possible."""

    def must(agrees: object, name: str, rule: str) -> None:
        _must(agrees, f"its {at}.{name}", rule)

    must(min(*launch.grid, *launch.block) > 0, "grid", "above 0, as the block")
    inside = zip(launch.block_shown, launch.grid, strict=True)
    must(all(block < blocks for block, blocks in inside), "block_shown", "a block of the grid")
    arrays = {array.name: array for array in launch.arrays}
    must(len(arrays) == len(launch.arrays), "arrays", "of different names")
    accessed = {access.array for access in launch.accesses}
    must(accessed == {*arrays}, "accesses", "those of the arrays")
    for n, array in enumerate(launch.arrays):
        name = f"arrays[{n}]"
        must(array.space in UNITS, f"{name}.space", " or ".join(UNITS))
        must(array.itemsize > 0, f"{name}.itemsize", "above 0")
        must(len(array.strides) == len(array.shape), f"{name}.strides", "one for each axis")
        must(min(array.shape, default=1) > 0, f"{name}.shape", "above 0")
    for n, access in enumerate(launch.accesses):
        name = f"accesses[{n}]"
        must(access.operation in OPERATIONS, f"{name}.operation", " or ".join(OPERATIONS))
        must(arrays[access.array].space == access.space, f"{name}.space", "its array's")
        must(min(access.requests, access.lanes, access.width) > 0, name, "of at least one request")
    known = {access.key for access in launch.accesses}
    for n, request in enumerate(launch.requests):
        lanes, name = [*request.lanes], f"requests[{n}]"
        must(request.key in known, name, "of one of the accesses")
        must(0 < len(lanes) == len(request.offsets), f"{name}.offsets", "one for each lane")
        right = lanes == sorted({*lanes}) and lanes[-1] < WARP
        must(right, f"{name}.lanes", f"in order and below {WARP}")
    for n, footprint in enumerate(launch.footprints):
        name = f"footprints[{n}]"
        must(footprint.array in arrays, f"{name}.array", "one of the arrays")
        must(footprint.operation in OPERATIONS, f"{name}.operation", " or ".join(OPERATIONS))
        size = math.prod(arrays[footprint.array].shape)
        runs = all(count > 0 and first + count <= size for first, count in footprint.runs)
        must(runs, f"{name}.runs", "inside the array")
    for n, finding in enumerate(launch.findings):
        must(finding.kind in REMEDIES, f"findings[{n}].kind", "a known kind")


def _must(agrees: object, place: str, rule: str, value: object = None) -> None:
    """Raise ``ValueError`` with the place, its value if one is given, and the rule."""
    if not agrees:
        is_what = (
            f"{place} is {shown(value)}: it must be" if value is not None else f"{place} must be"
        )
        raise ValueError(f"{is_what} {rule}")
