"""A trace as tables of text, for a terminal and for a notebook."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from convlab.tracing.records import UNITS, Cost, LaunchTrace, Trace, Work

LEGEND = (
    "A request is one load or store of a warp's 32 lanes. Global memory answers it in sectors of "
    "32 bytes, shared memory in wavefronts; in brackets the fewest that would do. Caches are not "
    "simulated. FLOP are the floating-point operations that all threads execute; the ladder "
    "divides its bytes by the convolution's FLOP instead. Threads at a barrier are arrivals, "
    "over all blocks."
)
NO_SOURCE = "(no source)"
CARD_WIDTH = 100
INDENT, BETWEEN = " " * 6, 2  # before an access's label; blanks between two columns


def as_tables(trace: Trace) -> Group:
    """Every launch: its lines, its arrays, its totals."""
    parts: list[RenderableType] = []
    for launch in trace.launches:
        heading = Text(f"{launch.kernel}: {blocks_of_threads(launch)}", "bold")
        findings = [Text(str(finding), "bold red") for finding in launch.findings]
        parts += [heading, Text(), _lines_table(launch), Text(), _arrays_table(launch)]
        parts += [Text(), _totals(launch), *findings, Text()]
    return Group(*parts, Text(LEGEND, "dim"))


def as_text(trace: Trace, width: int = 100) -> str:
    """The tables without colours."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(as_tables(trace))
    return file.getvalue()


def as_html(shown: RenderableType, style: str) -> str:
    """A notebook's card of what rich shows: no script, and ``style`` for the box around it."""
    console = Console(file=io.StringIO(), width=CARD_WIDTH, record=True)
    console.print(shown)
    code_format = f'<div style="{style}"><pre>{{code}}</pre></div>'
    return console.export_html(code_format=code_format, inline_styles=True)


def card(trace: Trace) -> str:
    """The tables for a notebook."""
    return as_html(as_tables(trace), "max-height: 40em; overflow: auto")


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
    """A line of the source with the lines that complete its call."""
    code, lines = code_of(launch, file, line), launch.source.get(file, {})
    while code.count("(") > code.count(")") and (line := line + 1) in lines:
        more = lines[line].strip()
        code += more if code.endswith("(") or more.startswith(")") else f" {more}"
    return code


class _Columns:
    """A label and right-aligned columns, which are never cut. Columns in ``spare`` are left out, in
    their order, while the table is too wide; a label that is still too long gets a row of its own.
    A ``Text`` among the rows spans all columns."""

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
    rows: list[Sequence[Text] | Text] = []
    for file, line in launch.lines():
        rows.append(Text(f"{line:>4}  {code_of(launch, file, line)}"))
        for work in launch.work:
            if (work.file, work.line) == (file, line):
                rows.append(Text(INDENT + _done(work), "dim"))
        for access in launch.accesses:
            if (access.file, access.line) == (file, line):
                label = (
                    f"{access.array}: {access.operation}, {counted(access.width, 'byte')} a lane"
                )
                rows.append([
                    Text(INDENT + label, "dim"), Text(f"{access.requests:,}"),
                    Text(f"{access.lanes / access.requests:.3g}"), _against(access.cost),
                ])  # fmt: skip
    return _Columns(("line", "requests", "lanes", "sectors or wavefronts"), rows)


def _done(work: Work) -> str:
    """What a line does beside accesses."""
    flops = f"{work.flops:,} FLOP" if work.flops else ""
    barrier = f"{counted(work.barriers, 'thread')} at the barrier" if work.barriers else ""
    return ", ".join(filter(None, (flops, barrier)))


def _against(cost: Cost) -> Text:
    """A count beside the fewest that would do; red where it is twice as many or more."""
    times = cost.total / max(1, cost.fewest)
    style = "red" if times >= 2 else "yellow" if times > 1.25 else "green"
    return Text(f"{cost.total:,} ({cost.fewest:,}) {cost.unit:<10}", style)


def _arrays_table(launch: LaunchTrace) -> _Columns:
    rows = []
    for array in launch.arrays:
        accesses = launch.of(array.name)
        cost = Cost.of(accesses)
        asked, moved = (launch.total(name, accesses) for name in ("bytes_asked", "bytes_moved"))
        rows.append([
            Text(f"{array.name} ({array.space})"), Text("x".join(map(str, array.shape))),
            Text(f"{cost.requests:,}"), Text(f"{asked:,}"),
            Text(f"{moved:,}" if array.space == "global" else ""), _against(cost),
        ])  # fmt: skip
    head = ("array", "shape", "requests", "bytes asked", "bytes moved", "sectors or wavefronts")
    return _Columns(head, rows, spare=("bytes asked", "requests", "bytes moved", "shape"))


def _totals(launch: LaunchTrace) -> Text:
    lines = [
        f"{space} memory: {counted(cost.requests, 'request')}, {each(cost)}"
        + (f", {counted(launch.bytes_moved, 'byte')}" if space == "global" else "")
        for space, cost in costs(launch)
    ]
    worst = max(launch.accesses, key=lambda one: one.conflict_degree, default=None)
    if worst is not None and worst.conflict_degree > 1:
        lines.append(
            f"worst bank conflict: {worst.conflict_degree:.3g} wavefronts for each that is "
            f"needed, {worst.array} in line {worst.line}"
        )
    contended = max(launch.accesses, key=lambda one: one.contention, default=None)
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


def costs(launch: LaunchTrace) -> Iterator[tuple[str, Cost]]:
    """What a launch costs each memory that it accesses."""
    for space in UNITS:
        if accesses := launch.of(space=space):
            yield space, Cost.of(accesses)


def each(cost: Cost) -> str:
    """``3.94 sectors each (fewest 2.00)``."""
    total, fewest = cost.total / cost.requests, cost.fewest / cost.requests
    return f"{total:.2f} {cost.unit} each (fewest {fewest:.2f})"
