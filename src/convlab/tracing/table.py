"""A trace as tables of text."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from convlab.tracing.records import Access, LaunchTrace, Trace, Work

LEGEND = (
    "A request is one load or store of a warp's 32 lanes. Global memory answers it in sectors of "
    "32 bytes, shared memory in wavefronts; in brackets the fewest that would do. Sectors and "
    "wavefronts are what the memory is asked for: caches, which answer part of it, are not "
    "simulated. FLOP are floating-point operations as executed, of all threads; the ladder's "
    "bytes / FLOP is over the convolution's, so it is another number than bytes an operation here. "
    "Threads at a barrier are counted each time that one arrives, over all blocks."
)
NO_SOURCE = "(no source)"
INDENT, BETWEEN = " " * 6, 2  # before an access's label; blanks between two columns


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
    return Text(f"{launch.kernel}: {blocks_of_threads(launch)}", "bold")


def blocks_of_threads(launch: LaunchTrace) -> str:
    """``8 x 4 blocks of 64 threads``."""
    blocks, threads = (
        f"{extent(shape)} {noun}{'' if math.prod(shape) == 1 else 's'}"
        for shape, noun in ((launch.grid, "block"), (launch.block, "thread"))
    )
    return f"{blocks} of {threads}"


def extent(shape: tuple[int, ...]) -> str:
    """Sizes without the ones at their end: ``8 x 4``."""
    sizes = [*shape]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return " x ".join(f"{size:,}" for size in sizes)


def counted(count: int, noun: str) -> str:
    """``1 byte``, ``1,024 bytes``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def code_of(launch: LaunchTrace, file: str, line: int) -> str:
    """A line of the source, without its indentation."""
    code = launch.source.get(file, {}).get(line)
    return NO_SOURCE if code is None else code.strip()


def statement_of(launch: LaunchTrace, file: str, line: int) -> str:
    """The same, with the lines after it that its call goes on over."""
    code, lines = code_of(launch, file, line), launch.source.get(file, {})
    while code.count("(") > code.count(")") and (line := line + 1) in lines:
        more = lines[line].strip()
        code += more if code.endswith("(") or more.startswith(")") else f" {more}"
    return code


class _Columns:
    """A label and right-aligned columns, of which nothing is ever cut. Where the columns are too
    wide, those in ``spare`` are left out, the first first; a label that is still too long gets rows
    of its own. A ``Text`` among the rows goes across all columns."""

    def __init__(
        self, head: Sequence[str], rows: Sequence[Sequence[Text] | Text], spare: Sequence[str] = ()
    ) -> None:
        self.head, self.rows, self.spare = head, rows, spare

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        tables = [row for row in self.rows if not isinstance(row, Text)]
        shown = [*range(len(self.head))]
        wide = [
            max(len(name), *(len(row[place]) for row in tables)) if tables else len(name)
            for place, name in enumerate(self.head)
        ]
        for name in self.spare:
            if sum(wide[place] + BETWEEN for place in shown) - BETWEEN > options.max_width:
                shown.remove(self.head.index(name))
        numbers = sum(wide[place] + BETWEEN for place in shown[1:])
        wide[0] = max(0, min(wide[0], options.max_width - numbers))
        yield from self._row([Text(name, "bold") for name in self.head], shown, wide)
        yield Text("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * min(wide[0] + numbers, options.max_width))
        for row in self.rows:
            if isinstance(row, Text):
                wrapped = textwrap.wrap(
                    row.plain, options.max_width, subsequent_indent=INDENT + "  "
                )
                yield Text("\n".join(wrapped), row.style)
            else:
                yield from self._row(row, shown, wide)

    @staticmethod
    def _row(row: Sequence[Text], shown: list[int], wide: list[int]) -> Iterator[Text]:
        line = row[0].copy()
        if len(line) > wide[0]:
            yield line
            line = Text()
        line.pad_right(wide[0] - len(line))
        for place in shown[1:]:
            line.append(" " * (BETWEEN + wide[place] - len(row[place])))
            line.append_text(row[place])
        line.rstrip()
        if line:
            line.overflow = "fold"
            yield line


def _lines_table(launch: LaunchTrace) -> _Columns:
    work = {(one.file, one.line): one for one in launch.work}
    rows: list[Sequence[Text] | Text] = []
    for file, line in launch.lines():
        rows.append(Text(f"{line:>4}  {code_of(launch, file, line)}"))
        done = _done(work.get((file, line)))
        if done:
            rows.append(Text(INDENT + done, "dim"))
        for access in launch.accesses:
            if (access.file, access.line) == (file, line):
                rows.append([*_access_cells(access)])
    return _Columns(("line", "requests", "lanes", "sectors or wavefronts"), rows)


def _done(work: Work | None) -> str:
    """What a line does beside accesses."""
    if work is None:
        return ""
    flops = f"{work.flops:,} FLOP" if work.flops else ""
    barrier = f"{counted(work.barriers, 'thread')} at the barrier" if work.barriers else ""
    return ", ".join(filter(None, (flops, barrier)))


def _access_cells(access: Access) -> Iterator[Text]:
    width = counted(access.width, "byte")
    yield Text(f"{INDENT}{access.array}: {access.operation}, {width} a lane", "dim")
    yield Text(f"{access.requests:,}")
    yield Text(f"{access.lanes / access.requests:.3g}")
    if access.space == "global":
        yield _against(access.sectors, access.fewest_sectors, "sectors")
    else:
        yield _against(access.wavefronts, access.fewest_wavefronts, "wavefronts")


def _against(count: int, fewest: int, unit: str) -> Text:
    """A count beside the fewest that would do; red where it is twice as many or more."""
    style = "red" if count >= 2 * fewest else "yellow" if count > 1.25 * fewest else "green"
    return Text(f"{count:,} ({fewest:,}) {unit:<10}", style)


def _arrays_table(launch: LaunchTrace) -> _Columns:
    rows = []
    for array in launch.arrays:
        accesses = launch.of(array.name)
        unit = "wavefronts" if array.space == "shared" else "sectors"
        requests, asked, moved, count, fewest = (
            launch.total(name, accesses)
            for name in ("requests", "bytes_asked", "bytes_moved", unit, f"fewest_{unit}")
        )
        rows.append([
            Text(f"{array.name} ({array.space})"), Text("x".join(map(str, array.shape))),
            Text(f"{requests:,}"), Text(f"{asked:,}"),
            Text(f"{moved:,}" if unit == "sectors" else ""), _against(count, fewest, unit),
        ])  # fmt: skip
    head = ("array", "shape", "requests", "bytes asked", "bytes moved", "sectors or wavefronts")
    return _Columns(head, rows, spare=("bytes asked", "requests", "bytes moved", "shape"))


def _totals(launch: LaunchTrace) -> Text:
    far, near = (launch.of(space=space) for space in ("global", "shared"))
    lines = [_ratio("global memory", launch, far, "sectors")]
    if near:
        lines.append(_ratio("shared memory", launch, near, "wavefronts"))
        worst = max(near, key=lambda access: access.conflict_degree)
        if worst.conflict_degree > 1:
            lines.append(
                f"worst bank conflict: {worst.conflict_degree:.3g} wavefronts for each that is "
                f"needed, {worst.array} in line {worst.line}"
            )
    contended = max((one for one in launch.accesses), key=lambda one: one.contention, default=None)
    if contended is not None and contended.contention > 1:
        lines.append(
            f"atomics: up to {contended.contention} lanes of a warp at one address, one after the "
            f"other, {contended.array} in line {contended.line}"
        )
    if launch.flops:
        lines.append(
            f"arithmetic: {counted(launch.flops, 'floating-point operation')}, "
            f"{launch.bytes_per_flop:.3g} bytes an operation"
        )
    return Text("\n".join(lines))


def _ratio(what: str, launch: LaunchTrace, accesses: list[Access], unit: str) -> str:
    requests = launch.total("requests", accesses)
    if not requests:
        return f"{what}: no requests"
    total, fewest = (launch.total(name, accesses) for name in (unit, f"fewest_{unit}"))
    moved = f", {counted(launch.bytes_moved, 'byte')}" if unit == "sectors" else ""
    return (
        f"{what}: {counted(requests, 'request')}, {total / requests:.2f} {unit} each "
        f"(fewest {fewest / requests:.2f}){moved}"
    )


def _findings(launch: LaunchTrace) -> Iterator[Text]:
    for finding in launch.findings:
        yield Text(str(finding), "bold red")
