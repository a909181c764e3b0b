"""The recorder of a simulated launch: its requests by line, kept as the records of a trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from convlab.simulation.launch import RecordedLaunch
from convlab.simulation.recording.access_log import ATOMIC, GLOBAL, READ, WRITE, Span, c_strides
from convlab.simulation.recording.source_text import source_lines
from convlab.simulation.rules.coordinates import coordinates_of
from convlab.simulation.rules.findings import Finding
from convlab.simulation.rules.memory_traffic import WARP, Requests
from convlab.tracing.branched_stores import with_branches_together
from convlab.tracing.recorded import (
    Footprint,
    InstructionKey,
    LaunchTrace,
    LineAccess,
    TracedArray,
    WarpRequest,
    Work,
)

OPERATIONS = {READ: "load", WRITE: "store", ATOMIC: "atomic"}
KEYS = ("site", "span", "kind", "widest")  # what the requests of one total have in common
SUMS = (
    "requests", "lanes", "bytes_asked", "sectors", "fewest_sectors",
    "wavefronts", "fewest_wavefronts",
)  # fmt: skip
MAXIMA = ("conflict_degree", "contention")
MOST_REQUESTS = 20_000  # of the shown block that are kept

Totals = dict[str, Any]  # the counts of a :class:`LineAccess`, by name
_Key = TypeVar("_Key")
_TotalKey = tuple[int, int, int, int]  # site, span, kind and width, as in KEYS
TouchedAddresses = dict[tuple[int, int], list[np.ndarray]]  # addresses by array and kind


class _KeptRequest(NamedTuple):
    """A request of the shown block, as the launch recorded it."""

    key: _TotalKey
    warp: int
    lanes: list[int]
    addresses: list[int]
    sectors: int
    wavefronts: int


class TrafficRecorder:
    """Records one launch, which calls it (:class:`convlab.simulation.launch.Recorder`).
    ``shown`` is the number of the block whose single requests are kept; ``loads_of`` has the width
    of the machine code's loads from shared memory, by file and line. With ``branches_together``
    stores in branches that exclude each other are one request
    (:mod:`convlab.tracing.branched_stores`)."""

    def __init__(
        self,
        shown: int,
        loads_of: Mapping[tuple[str, int], int] | None,
        branches_together: bool = False,
    ) -> None:
        self.loads_of = loads_of or {}
        self._branches_together = branches_together
        self._shown = shown
        self._totals: dict[tuple[int, int, int, int], Totals] = {}
        self._work: dict[int, Counter[str]] = defaultdict(Counter)
        self._requests: list[_KeptRequest] = []
        self._left_out = 0
        self._touched: TouchedAddresses = defaultdict(list)
        self._launch: RecordedLaunch | None = None

    def look(self, launch: RecordedLaunch, requests: Requests) -> None:
        """Add the requests of the next blocks to the totals, and keep those of the shown block."""
        self._launch = launch
        if self._branches_together:
            requests = with_branches_together(requests, launch.sites)
        keys = np.stack([getattr(requests, name) for name in KEYS])
        self._keep(keys, requests, launch.log.spans)
        groups, which = np.unique(keys, axis=1, return_inverse=True)
        columns = {name: getattr(requests, name) for name in (*SUMS[1:], "contention")}
        columns["requests"] = np.ones(len(requests), np.int64)
        columns["conflict_degree"] = requests.wavefronts / np.maximum(requests.fewest_wavefronts, 1)
        totals = {}
        for name, values in columns.items():
            totals[name] = np.zeros(groups.shape[1], values.dtype)
            add = np.maximum if name in MAXIMA else np.add
            add.at(totals[name], which.reshape(-1), values)
        for at, group in enumerate(map(tuple, groups.T.tolist())):
            _add(self._totals, group, {name: total[at].item() for name, total in totals.items()})

    def barrier(self, site: int, threads: int) -> None:
        """Count threads that passed the barrier at ``site``."""
        self._work[site]["barriers"] += threads

    def end(self, launch: RecordedLaunch, operations: Mapping[int, int]) -> None:
        """Keep the launch and its floating-point operations by site."""
        self._launch = launch
        for site, count in operations.items():
            self._work[site]["flops"] += count

    def _keep(self, keys: np.ndarray, requests: Requests, spans: Sequence[Span]) -> None:
        """Keep the requests of the shown block, and what it touches."""
        ends = np.append(requests.starts[1:], len(requests.request))
        for at in np.flatnonzero(requests.warp // WARP == self._shown).tolist():
            site, span, kind, width = keys[:, at].tolist()
            lanes = slice(int(requests.starts[at]), int(ends[at]))
            addresses = requests.address[lanes]
            elements = np.arange(0, width, spans[span].itemsize)
            self._touched[span, kind].append((addresses[:, None] + elements).ravel())
            if len(self._requests) >= MOST_REQUESTS:
                self._left_out += 1
                continue
            self._requests.append(
                _KeptRequest(
                    key=(site, span, kind, width),
                    warp=int(requests.warp[at]) % WARP,
                    lanes=requests.lane[lanes].tolist(),
                    addresses=addresses.tolist(),
                    sectors=int(requests.sectors[at]),
                    wavefronts=int(requests.wavefronts[at]),
                )
            )

    def trace(self, findings: tuple[Finding, ...] = (), ended: bool = False) -> LaunchTrace:
        """Return what was recorded, of a launch that ``ended`` at a finding or at its end."""
        launch = self._launch
        assert launch is not None
        spans, files = launch.log.spans, _Files()
        names = _names(spans)
        source: dict[str, dict[int, str]] = defaultdict(dict)
        for code in launch.codes:
            source[files[code.co_filename]].update(_lines_of(code))

        @cache  # many requests share a site
        def line_of(site: int) -> tuple[str, int]:
            file, line = launch.sites.line(site)
            return files[file], line

        def instruction(site: int, span: int, kind: int, width: int) -> InstructionKey:
            return *line_of(site), names[span], OPERATIONS[kind], width

        totals: dict[InstructionKey, Totals] = {}  # a line may have several sites
        for key, counts in self._totals.items():
            _add(totals, instruction(*key), counts)
        work: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        for site, count in self._work.items():
            work[line_of(site)].update(count)
        arrays = {
            names[at]: TracedArray(
                name=names[at],
                space="global" if span.start >= GLOBAL else "shared",
                shape=span.shape,
                strides=_strides(span),
                itemsize=span.itemsize,
                start=span.start % GLOBAL,
            )
            for at, span in sorted((at, spans[at]) for at in {key[1] for key in self._totals})
        }
        accesses = [
            LineAccess(*key, space=arrays[key[2]].space, **counts)
            for key, counts in sorted(totals.items())
        ]
        requests = [
            WarpRequest(
                *instruction(*kept.key),
                warp=kept.warp,
                lanes=tuple(kept.lanes),
                offsets=tuple(address - spans[kept.key[1]].start for address in kept.addresses),
                sectors=kept.sectors,
                wavefronts=kept.wavefronts,
            )
            for kept in self._requests
        ]
        footprints = [
            Footprint(names[span], OPERATIONS[kind], _runs(addresses, spans[span]))
            for (span, kind), addresses in _by_array(self._touched, spans).items()
        ]
        named = [
            replace(
                finding,
                file=files[finding.file],
                other_file=finding.other_file and files[finding.other_file],
            )
            for finding in findings
        ]
        return LaunchTrace(
            kernel=launch.kernel,
            grid=launch.grid,
            block=launch.block_shape,
            arrays=tuple(arrays.values()),
            accesses=tuple(accesses),
            work=tuple(
                Work(*line, flops=counts["flops"], barriers=counts["barriers"])
                for line, counts in sorted(work.items())
            ),
            source={file: dict(sorted(lines.items())) for file, lines in source.items()},
            block_shown=coordinates_of(self._shown, launch.grid),
            requests=tuple(requests),
            requests_left_out=self._left_out,
            footprints=tuple(footprints),
            findings=tuple(named),
            ended=ended,
        )


class _Files(dict[str, str]):
    """Names of files that are the same on every machine; with a folder where two have the same."""

    def __missing__(self, filename: str) -> str:
        path = Path(filename)
        taken = path.name in self.values()
        self[filename] = f"{path.parent.name}/{path.name}" if taken else path.name
        return self[filename]


def _lines_of(code: CodeType) -> dict[int, str]:
    try:
        lines, first = source_lines(code)
    except (OSError, TypeError):  # made by exec, say
        return {}
    return {number: line.rstrip("\n") for number, line in enumerate(lines, first)}


def _add(totals: dict[_Key, Totals], key: _Key, more: Totals) -> None:
    """Add sums to the sums of that key; take the larger of two maxima."""
    if (before := totals.get(key)) is not None:
        more = {name: before[name] + more[name] for name in SUMS} | {
            name: max(before[name], more[name]) for name in MAXIMA
        }
    totals[key] = more


def _names(spans: Sequence[Span]) -> list[str]:
    """A name for each array: ``x = y`` for one with two, numbered where arrays share one."""
    called: dict[Span, dict[str, None]] = defaultdict(dict)
    for span in spans:
        called[replace(span, name="")][span.name] = None
    names, times = {}, Counter[str]()
    for array, all_of_it in called.items():
        name = " = ".join(all_of_it)
        times[name] += 1
        names[array] = name if times[name] == 1 else f"{name} ({times[name]})"
    return [names[replace(span, name="")] for span in spans]


def _strides(span: Span) -> tuple[int, ...]:
    return span.strides or c_strides(span.shape, span.itemsize)


def _by_array(
    touched: TouchedAddresses, spans: Sequence[Span]
) -> dict[tuple[int, int], np.ndarray]:
    """Sort addresses by the array that holds them: one request may access two arrays."""
    found: TouchedAddresses = defaultdict(list)
    for (span, kind), several in touched.items():
        addresses = np.unique(np.concatenate(several))
        for one in (span, *reversed(range(len(spans)))):
            inside = (addresses >= spans[one].start) & (addresses < spans[one].end)
            if inside.any():
                found[one, kind].append(addresses[inside])
            addresses = addresses[~inside]
    return {key: np.concatenate(several) for key, several in found.items()}


def _runs(addresses: np.ndarray, span: Span) -> tuple[tuple[int, int], ...]:
    """``(first, count)`` of each run of neighbouring elements there, counted in C order."""
    strides, sizes = _strides(span), c_strides(span.shape, 1)
    rest, numbers = addresses - span.start, np.zeros(len(addresses), np.int64)
    for axis in sorted(range(len(strides)), key=lambda axis: -abs(strides[axis])):
        step, last = abs(strides[axis]), span.shape[axis] - 1
        places = np.clip(rest // step, 0, last) if step else np.zeros_like(rest)
        numbers += sizes[axis] * (places if strides[axis] >= 0 else last - places)
        rest = rest - places * step
    elements = np.unique(numbers)
    starts = np.flatnonzero(np.diff(elements, prepend=elements[:1] - 2) != 1)
    counts = np.diff(starts, append=len(elements))
    return tuple(zip(elements[starts].tolist(), counts.tolist(), strict=True))
