"""A trace as tables of text."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from convlab.tracing.records import Access, LaunchTrace, Trace

LEGEND = (
    "A request is one load or store of a warp's 32 lanes. Global memory answers it in sectors of "
    "32 bytes, shared memory in passes; in brackets the fewest that would do. Sectors and passes "
    "are what the memory is asked for: caches, which answer part of it, are not simulated."
)


def as_tables(trace: Trace) -> Group:
    """Every launch: its lines, its arrays, its totals."""
    parts: list[RenderableType] = []
    for launch in trace.launches:
        parts += [_heading(launch), Text(), _lines_table(launch), Text(), _arrays_table(launch)]
        parts += [Text(), _totals(launch), *_findings(launch), Text()]
    return Group(*parts, Text(LEGEND, "dim"))


def as_text(trace: Trace, width: int = 100) -> str:
    """The tables without colours."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(as_tables(trace))
    return file.getvalue()


def _heading(launch: LaunchTrace) -> Text:
    blocks, threads = (extent(shape) for shape in (launch.grid, launch.block))
    return Text(f"{launch.kernel}: {blocks} blocks of {threads} threads", "bold")


def extent(shape: tuple[int, ...]) -> str:
    """Sizes without the ones at their end: ``8 x 4``."""
    sizes = [*shape]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return " x ".join(f"{size:,}" for size in sizes)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column(columns[0], no_wrap=True, overflow="ellipsis", ratio=1)
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.expand = True
    return table


def _lines_table(launch: LaunchTrace) -> Table:
    table = _table("line", "requests", "lanes", "sectors", "passes", "FLOP", "barriers")
    work = {(one.file, one.line): one for one in launch.work}
    for file, line in launch.lines():
        done = work.get((file, line))
        flops, barriers = (done.flops, done.barriers) if done else (0, 0)
        code = launch.source.get(file, {}).get(line, "").strip()
        table.add_row(Text(f"{line:>4}  {code}"), "", "", "", "", _number(flops), _number(barriers))
        for access in launch.accesses:
            if (access.file, access.line) == (file, line):
                table.add_row(*_access_cells(access), style="dim")
    return table


def _access_cells(access: Access) -> Iterator[Text]:
    yield Text(f"      {access.array}: {access.operation}, {access.width} bytes a lane")
    yield Text(f"{access.requests:,}")
    yield Text(f"{access.lanes / access.requests:.3g}")
    if access.space == "global":
        yield _against(access.sectors, access.fewest_sectors)
        yield Text("")
    else:
        yield Text("")
        yield _against(access.passes, access.fewest_passes)
    yield Text("")
    yield Text("")


def _against(count: int, fewest: int) -> Text:
    """A count beside the fewest that would do; red where it is twice as many or more."""
    style = "red" if count >= 2 * fewest else "yellow" if count > 1.25 * fewest else "green"
    return Text(f"{count:,} ({fewest:,})", style)


def _number(value: int) -> str:
    return f"{value:,}" if value else ""


def _arrays_table(launch: LaunchTrace) -> Table:
    table = _table("array", "shape", "requests", "bytes asked", "bytes moved", "sectors", "passes")
    for array in launch.arrays:
        accesses = launch.of(array.name)
        count = {
            name: launch.total(name, accesses)
            for name in ("requests", "bytes_asked", "bytes_moved", "sectors", "fewest_sectors",
                         "passes", "fewest_passes")
        }  # fmt: skip
        near = array.space == "shared"
        table.add_row(
            Text(f"{array.name} ({array.space})"), "x".join(map(str, array.shape)),
            f"{count['requests']:,}", f"{count['bytes_asked']:,}",
            "" if near else f"{count['bytes_moved']:,}",
            "" if near else _against(count["sectors"], count["fewest_sectors"]),
            _against(count["passes"], count["fewest_passes"]) if near else "",
        )  # fmt: skip
    return table


def _totals(launch: LaunchTrace) -> Text:
    far, near = (launch.of(space=space) for space in ("global", "shared"))
    lines = [_ratio("global memory", launch, far, "sectors")]
    if near:
        lines.append(_ratio("shared memory", launch, near, "passes"))
        worst = max(near, key=lambda access: access.conflict_degree)
        if worst.conflict_degree > 1:
            lines.append(
                f"worst bank conflict: {worst.conflict_degree:.3g} passes for each that is needed, "
                f"{worst.array} in line {worst.line}"
            )
    contended = max((one for one in launch.accesses), key=lambda one: one.contention, default=None)
    if contended is not None and contended.contention > 1:
        lines.append(
            f"atomics: up to {contended.contention} lanes of a warp at one address, one after the "
            f"other, {contended.array} in line {contended.line}"
        )
    if launch.flops:
        lines.append(
            f"arithmetic: {launch.flops:,} floating-point operations, "
            f"{launch.bytes_per_flop:.3g} bytes moved for each"
        )
    return Text("\n".join(lines))


def _ratio(what: str, launch: LaunchTrace, accesses: list[Access], unit: str) -> str:
    requests = launch.total("requests", accesses)
    if not requests:
        return f"{what}: no requests"
    total, fewest = (launch.total(name, accesses) for name in (unit, f"fewest_{unit}"))
    moved = f", {launch.bytes_moved:,} bytes" if unit == "sectors" else ""
    return (
        f"{what}: {requests:,} requests, {total / requests:.2f} {unit} each "
        f"(fewest {fewest / requests:.2f}){moved}"
    )


def _findings(launch: LaunchTrace) -> Iterator[Text]:
    for finding in launch.findings:
        yield Text(str(finding), "bold red")
