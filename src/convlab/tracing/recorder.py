"""Turns what a simulated launch does into the records of a trace."""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from convlab.simulation.access_log import ATOMIC, GLOBAL, READ, WRITE, Span, c_strides
from convlab.simulation.findings import Finding
from convlab.simulation.memory_rules import WARP, Requests
from convlab.simulation.simulated_launch import SimulatedLaunch
from convlab.tracing.records import Access, Array, Footprint, LaunchTrace, Request, Work

OPERATIONS = {READ: "load", WRITE: "store", ATOMIC: "atomic"}
SUMS = (
    "requests", "lanes", "bytes_asked", "sectors", "fewest_sectors",
    "wavefronts", "fewest_wavefronts",
)  # fmt: skip
MAXIMA = ("conflict_degree", "contention")
MOST_REQUESTS = 20_000  # of the shown block that are kept

Totals = dict[str, Any]  # the counts of an Access, by name


class Recorder:
    """Records one launch, for :meth:`trace`. ``shown`` is the number of the block whose single
    requests are kept; ``loads_of`` has the width of the machine code's loads from shared memory, by
    file and line."""

    def __init__(
        self, shown: int = 0, loads_of: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        self.loads_of = loads_of or {}
        self._shown = shown
        self._totals: dict[tuple[int, ...], Totals] = defaultdict(dict)
        self._barriers: Counter[int] = Counter()
        self._operations: Mapping[int, int] = {}
        self._requests: list[tuple[int, int, int, int, int, Any, Any, int, int]] = []
        self._left_out = 0
        self._touched: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
        self._launch: SimulatedLaunch | None = None

    # Called by a launch (convlab.simulation.simulated_launch.Recorder).

    def look(self, launch: SimulatedLaunch, requests: Requests) -> None:
        """Add the requests of the next blocks to the totals by line."""
        self._launch = launch
        self._keep(requests)
        keys = np.stack([requests.site, requests.span, requests.kind, requests.widest])
        groups, which = np.unique(keys, axis=1, return_inverse=True)
        if not groups.size:
            return
        which = which.reshape(-1)
        order = np.argsort(which, kind="stable")
        starts = np.searchsorted(which[order], np.arange(groups.shape[1]))
        columns = {name: getattr(requests, name) for name in SUMS if name != "requests"}
        columns["requests"] = np.ones(len(order), np.int64)
        columns["contention"] = requests.contention
        columns["conflict_degree"] = requests.wavefronts / np.maximum(requests.fewest_wavefronts, 1)
        found = {}
        for name, values in columns.items():
            reduce = np.maximum if name in MAXIMA else np.add
            found[name] = reduce.reduceat(values[order], starts).tolist()
        for at, group in enumerate(map(tuple, groups.T.tolist())):
            _add(self._totals[group], {name: values[at] for name, values in found.items()})

    def barrier(self, site: int, threads: int) -> None:
        """Count threads that passed the barrier at ``site``."""
        self._barriers[site] += threads

    def end(self, launch: SimulatedLaunch, operations: Mapping[int, int]) -> None:
        """Keep the launch and its floating-point operations by site."""
        self._launch, self._operations = launch, operations

    def _keep(self, requests: Requests) -> None:
        """Keep the requests of the shown block, and what it touches."""
        shown = np.flatnonzero(requests.warp // WARP == self._shown)
        ends = np.append(requests.starts[1:], len(requests.request))
        for at in shown.tolist():
            span, kind, width = (
                int(c[at]) for c in (requests.span, requests.kind, requests.widest)
            )
            lanes = slice(int(requests.starts[at]), int(ends[at]))
            self._touched[span, kind].append(
                (requests.address[lanes, None] + np.arange(0, width, self._itemsize(span))).ravel()
            )
            if len(self._requests) >= MOST_REQUESTS:
                self._left_out += 1
                continue
            self._requests.append((
                int(requests.site[at]), span, kind, width, int(requests.warp[at]) % WARP,
                requests.lane[lanes].tolist(), requests.address[lanes].tolist(),
                int(requests.sectors[at]), int(requests.wavefronts[at]),
            ))  # fmt: skip

    def _itemsize(self, span: int) -> int:
        assert self._launch is not None
        assert self._launch.log is not None
        return self._launch.log.spans[span].itemsize

    def trace(self, findings: tuple[Finding, ...] = ()) -> LaunchTrace:
        """The records. Raises ``RuntimeError`` where nothing was launched."""
        launch = self._launch
        if launch is None or launch.log is None:
            raise RuntimeError("nothing was launched, so there is no trace")
        spans = launch.log.spans
        names = _names(spans)
        files = _Files(launch)
        accesses: dict[Any, Totals] = defaultdict(dict)  # a line may have several sites
        for (site, span, kind, width), totals in self._totals.items():
            space = _space(spans[span].start)
            _add(accesses[*files.line(site), names[span], space, OPERATIONS[kind], width], totals)
        work: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        for site, count in self._operations.items():
            work[files.line(site)]["flops"] += count
        for site, count in self._barriers.items():
            work[files.line(site)]["barriers"] += count
        used = sorted({span for _, span, _, _ in self._totals})
        arrays = [
            Array(
                names[span], _space(spans[span].start), spans[span].shape,
                _strides(spans[span]), spans[span].itemsize, spans[span].start % GLOBAL,
            )
            for span in used
        ]  # fmt: skip
        requests = [
            Request(
                *files.line(site), names[span], OPERATIONS[kind], width, warp, tuple(lanes),
                tuple(address - spans[span].start for address in addresses), *costs,
            )
            for site, span, kind, width, warp, lanes, addresses, *costs in self._requests
        ]  # fmt: skip
        footprints = [
            Footprint(
                names[span], OPERATIONS[kind],
                _runs(_elements(np.concatenate(addresses), spans[span])),
            )
            for (span, kind), addresses in _by_array(self._touched, spans).items()
        ]  # fmt: skip
        grid = launch.grid
        return LaunchTrace(
            launch.kernel, grid, launch.block_shape, tuple(arrays),
            tuple(Access(*key, **totals) for key, totals in sorted(accesses.items())),
            tuple(
                Work(*line, flops=counts["flops"], barriers=counts["barriers"])
                for line, counts in sorted(work.items())
            ),
            files.source(),
            _place(self._shown, grid), tuple(requests), self._left_out, tuple(footprints),
            tuple(replace(finding, file=files.name(finding.file)) for finding in findings),
        )  # fmt: skip


class _Files:
    """The source of a launch's functions, under names that are the same on every machine."""

    def __init__(self, launch: SimulatedLaunch) -> None:
        self._launch = launch
        self._names: dict[str, str] = {}
        self._source: dict[str, dict[int, str]] = {}
        for code in launch.codes:
            name = self.name(code.co_filename)
            self._source.setdefault(name, {}).update(_lines_of(code))

    def name(self, filename: str) -> str:
        """The file's name; with its folder where two have the same one."""
        if filename not in self._names:
            path = Path(filename)
            name = path.name
            if name in self._names.values():
                name = f"{path.parent.name}/{name}"
            self._names[filename] = name
        return self._names[filename]

    def line(self, site: int) -> tuple[str, int]:
        file, line = self._launch.sites.line(site)
        return self.name(file), line

    def source(self) -> dict[str, dict[int, str]]:
        return {file: dict(sorted(lines.items())) for file, lines in self._source.items()}


def _lines_of(code: CodeType) -> dict[int, str]:
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError):  # made by exec, say
        return {}
    return {first + n: line.rstrip("\n") for n, line in enumerate(lines)}


def _add(totals: Totals, more: Totals) -> None:
    """Add sums to sums; take the larger of two maxima."""
    for name in SUMS:
        totals[name] = totals.get(name, 0) + more[name]
    for name in MAXIMA:
        totals[name] = max(totals.get(name, more[name]), more[name])


def _names(spans: Sequence[Span]) -> list[str]:
    """A name for each array: ``x = y`` where it has several, numbered where several arrays have the
    same."""
    called: dict[Span, dict[str, None]] = defaultdict(dict)
    for span in spans:
        called[replace(span, name="")][span.name] = None
    names: dict[Span, str] = {}
    for array, all_of_it in called.items():
        name = plain = " = ".join(all_of_it)
        number = 2
        while name in names.values():
            name, number = f"{plain} ({number})", number + 1
        names[array] = name
    return [names[replace(span, name="")] for span in spans]


def _space(address: int) -> str:
    return "global" if address >= GLOBAL else "shared"


def _strides(span: Span) -> tuple[int, ...]:
    return span.strides or c_strides(span.shape, span.itemsize)


Touched = dict[tuple[int, int], list[np.ndarray]]  # addresses by array and kind


def _by_array(touched: Touched, spans: Sequence[Span]) -> Touched:
    """Sort addresses by the array that holds them: one request may access two arrays."""
    found: Touched = defaultdict(list)
    for (span, kind), several in touched.items():
        addresses = np.unique(np.concatenate(several))
        for one in (span, *reversed(range(len(spans)))):
            inside = (addresses >= spans[one].start) & (addresses < spans[one].end)
            if inside.any():
                found[one, kind].append(addresses[inside])
            addresses = addresses[~inside]
    return found


def _elements(addresses: np.ndarray, span: Span) -> np.ndarray:
    """The numbers of the elements there, counted in C order however they lie in memory."""
    strides, sizes = _strides(span), c_strides(span.shape, 1)
    rest, numbers = addresses - span.start, np.zeros(len(addresses), np.int64)
    for axis in sorted(range(len(strides)), key=lambda axis: -abs(strides[axis])):
        step, last = abs(strides[axis]), span.shape[axis] - 1
        places = np.clip(rest // step, 0, last) if step else np.zeros_like(rest)
        numbers += sizes[axis] * (places if strides[axis] >= 0 else last - places)
        rest = rest - places * step
    return numbers


def _runs(elements: np.ndarray) -> tuple[tuple[int, int], ...]:
    """``(first, count)`` of each run of neighbours."""
    elements = np.unique(elements)
    starts = np.flatnonzero(np.diff(elements, prepend=elements[:1] - 2) != 1)
    counts = np.diff(starts, append=len(elements))
    return tuple(zip(elements[starts].tolist(), counts.tolist(), strict=True))


def _place(number: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    return number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])
