"""What the command shows: tables, progress bars and the sentences that go with them.

A module that needs Numba is imported only when it is used, so the command's help does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from convlab.problems.problem import ConvProblem
from convlab.support.columns import Columns
from convlab.support.terminal import Terminal

if TYPE_CHECKING:
    from convlab.ladder import Stage
    from convlab.measuring.ladder_run import Result
    from convlab.measuring.machine_code import Difference
    from convlab.measuring.machine_code import Row as LintRow
    from convlab.measuring.results import Results
    from convlab.measuring.results import Row as BenchRow
    from convlab.running.engines import Engine

BAD, GOOD, DOUBTFUL = "bold red", "green", "yellow"
WIDE = ("LDG", "LDS", "STS", "STG")  # from memory to registers to shared memory and back


@contextmanager
def progress(steps: Sequence[str]) -> Iterator[Callable[[], None]]:
    """A bar on standard error that goes away; yields what to call after each step."""
    console = Terminal(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        refresh_per_second=4,
    ) as bar:
        upcoming = iter([*steps[1:], "done"])
        task = bar.add_task(steps[0], total=len(steps))
        yield lambda: bar.update(task, advance=1, description=next(upcoming))


Cell = Text | str | None


def table_of(
    head: Sequence[str], rows: Iterable[Sequence[Cell]], words: int = 1, folded: Iterable[str] = ()
) -> Columns:
    """A table of ``words`` columns of text, then of numbers; ``-`` stands for None. Columns in
    ``folded`` have text too, which may take several lines."""
    cells = ([Text("-" if c is None else c) if not isinstance(c, Text) else c for c in row]
             for row in rows)  # fmt: skip
    return Columns(head, cells, words, folded)


def number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def stages_table(stages: Sequence[Stage], name: str = "stage") -> Columns:
    """The ladder: every stage, its idea and, below it, its source and what it builds on."""
    from convlab.ladder import short_name

    head = (name, "idea, source and what it builds on")
    rows = []
    for one in stages:
        bases = ", ".join(map(short_name, one.builds_on))
        source = f"{one.source}. Builds on {bases}." if bases else f"{one.source}."
        rows.append((one.name, Text.assemble(one.title, "\n", (source, "dim"))))
    return table_of(head, rows, folded=head[1:])


# The ladder. What each simulator counts (Numba's knows no warps), and the format of each count.
COUNTS = {
    "simulator": {
        "global\nreq.": ("global_requests", ",d"),
        "sectors\n/ req.": ("sectors_per_request", ".2f"),
        "shared\nreq.": ("shared_requests", ",d"),
        "wave-\nfronts\n/ req.": ("wavefronts_per_request", ".2f"),
        "bytes /\nFLOP": ("bytes_per_flop", ".3f"),
    },
    "cudasim": {
        "global\nloads": ("global_loads", ",d"),
        "shared\nloads": ("shared_loads", ",d"),
        "barriers": ("barriers", ",d"),
        "FLOP per\nbyte": ("flops_per_byte", ".2f"),
    },
}
ONLY_COUNTED = (
    "Only the stage's main kernel is counted, without layout transforms. A simulator's time says "
    "nothing about a GPU's, so work is counted, with tiles much smaller than a GPU's."
)
LEGENDS = {
    "gpu": "time: median and spread of repeated runs, layout transforms included. workspace: "
    "memory that a stage needs beside input, filter and output.",
    "simulator": "A request (req.) is one load or store of a warp's 32 threads. Global memory "
    "answers in sectors of 32 bytes, shared memory in wavefronts. bytes: whole sectors of global "
    f"memory. {ONLY_COUNTED}",
    "cudasim": "Loads and barriers are summed over all threads; a 128-bit load counts once. FLOP "
    f"per byte: of global memory read and written; more is better. {ONLY_COUNTED}",
}


def ladder_heading(problem: ConvProblem, engine: Engine) -> Text:
    """The problem and where it runs."""
    p = problem
    return Text(
        f"input * filter  {p} -> {'x'.join(map(str, p.output_shape))}\n"
        f"as a GEMM       M = {p.M:,}, N = {p.N:,}, K = {p.K:,}: {p.flops:,} FLOP\n"
        f"runs on         {engine.device}"
    )


def ladder_table(results: Sequence[Result], engine: Engine) -> Columns:
    """How every stage did: timed on a GPU, counted on a simulator."""
    from convlab.measuring.ladder_run import speedup

    def timed(one: Result) -> Iterator[Cell]:
        timing, workspace = one.timing, one.workspace_bytes
        yield f"{timing.median_ms:.3f} ±{timing.spread_percent:.1f}%" if timing else None
        yield number(one.tflops, ".2f")
        yield number(speedup(one, results), ".2f")
        yield number(None if workspace is None else workspace / 2**20, ",.1f")

    def counted(one: Result) -> Iterator[Cell]:
        return (number((one.counts or {}).get(name), form) for name, form in counts.values())

    counts = {} if engine.is_gpu else COUNTS[engine.name]
    columns = counts or ("time ms", "TFLOP\n/ s", "speedup\nvs m01", "workspace\nMiB")
    cells = timed if engine.is_gpu else counted
    rows = [
        (one.stage.name, _status(one), number(one.error_over_bound, ".3g"), *cells(one))
        for one in results
    ]
    return table_of(("stage", "result", "error /\nbound", *columns), rows, words=2)


def _status(result: Result) -> Text:
    return Text(result.status, GOOD if result.ok else BAD)


def ladder_legend(engine: Engine) -> Text:
    """What the ladder's columns mean."""
    bound = "error / bound: up to 1 is what float32 rounding explains."
    return Text(f"{bound} {LEGENDS[engine.name]}", "dim")


def ladder_errors(results: Sequence[Result]) -> list[Text]:
    """What is wrong with each stage that is not right."""
    wrong = [one for one in results if not one.ok]
    return [Text.assemble(f"{one.stage.name}: ", _status(one), f": {one.error}") for one in wrong]


# Machine code.


def lint_table(rows: Sequence[LintRow]) -> Columns:
    """What every kernel compiled to, one row per problem and architecture."""
    head = ("stage", "kernel", "problem", "arch", "registers", *WIDE, "result")
    cells: list[Sequence[Cell]] = [
        (one.stage.split("_")[0], one.kernel, one.problem, one.arch,
         f"{one.registers}/{one.budget}", *(str(one.wide.get(kind, "-")) for kind in WIDE),
         _lint_result(one))
        for one in rows
    ]  # fmt: skip
    return table_of(head, cells, words=4, folded=("kernel", "result"))


def _lint_result(row: LintRow) -> Text:
    """OK, or each thing that is wrong in a word."""
    wrong = {
        "spills": row.spill_bytes,
        "stack": row.stack_bytes,
        "float64": row.float64,
        "registers": row.registers > row.budget,
    }
    words = [word for word, found in wrong.items() if found]
    if len(words) < len(row.findings):
        words.append("128-bit")
    return Text("OK", GOOD) if row.ok else Text(", ".join(words), BAD)


LINT_LEGEND = Text(
    "registers: of a thread, and its budget. LDG, STG, LDS, STS: 128-bit loads and stores of "
    "global and of shared memory in the machine code.",
    "dim",
)


def differences_table(found: Sequence[Difference]) -> Columns:
    """How the machine code of each kernel differs from the stored code."""
    head, rows = ("kernel", "differences: before -> now", "worse"), []
    for one in found:
        changes = [f"{name}: {old} -> {now}" for name, (old, now) in one.changes.items()]
        said = "\n".join(changes) or "not stored"
        rows.append((str(one.row), said, Text(", ".join(one.worse), "red")))
    return table_of(head, rows, folded=head)


# What is here.


def doctor_table(found: dict[str, Any]) -> Table:
    """What ``convlab.measuring.machine.facts`` found, one fact a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, text, *style in _facts(found):
        table.add_row(Text(label), Text(text, *style))
    return table


def _facts(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Each fact: its label, its text and, if any, its style."""
    from convlab.measuring.machine import GPU_ENGINE

    yield "convlab", found["convlab"]
    yield "Python", f"{found['python']} ({found['executable']})"
    yield "system", found["os"]
    for name, version in found["packages"].items():
        yield name, version or "not installed"
    yield "GPU", _gpu_line(found["gpu"])
    for engine in found["engines"]:
        name = f"engine {engine['name']}"
        if engine["available"]:
            yield name, f"works: {engine['device']}", GOOD
        else:
            yield name, f"cannot run: {engine['why_not']}", DOUBTFUL
    for tool in found["compilers"]:
        if tool["found"]:
            yield tool["name"], tool["found"]
            continue
        users = ", ".join(tool["needed_by"])
        said = f"not installed; needed by {users} (run {tool['install']})"
        needed = found["gpu"] is not None and GPU_ENGINE in tool["needed_by"]
        yield tool["name"], said, *[DOUBTFUL] * needed
    choice = found["would_use"]
    yield "would use", f"{choice['engine'] or 'nothing'}, because {choice['why']}"


def _gpu_line(gpu: dict[str, Any] | None) -> str:
    if gpu is None:
        return "none found"
    memory = gpu["memory_bytes"]
    parts = (
        gpu["name"],
        gpu["compute_capability"] and f"compute capability {gpu['compute_capability']}",
        memory and f"{memory / 2**30:.0f} GiB",
        gpu["driver"] and f"driver {gpu['driver']}",
        gpu["cuda"] and f"CUDA {gpu['cuda']}",
    )
    return ", ".join(filter(None, parts))


# What ``convlab bench`` and ``convlab report`` print: TFLOP/s, and what has none.

BENCH_LEGEND = Text(
    "TFLOP/s: of the convolution as defined, median time; ~ where the spread stayed above 2 %. "
    "over m01: geometric mean of the speedups.",
    "dim",
)


def summary(
    results: Results, rows: Sequence[BenchRow] | None = None, width: int = 80
) -> RenderableType:
    """Every system: its mean speedup over m01 and its TFLOP/s, on each layer if ``width`` has room;
    and each reason for a missing number. Each batch has its own table."""
    from convlab.measuring import analysis

    shown = [*results.rows.values()] if rows is None else rows
    keys = {row.key[:2] for row in shown}
    few = {key: row for key, row in results.rows.items() if key[:2] in keys}
    parts: list[RenderableType] = []
    batches = analysis.by_batch(replace(results, rows=few))
    for batch, of_it in batches.items():
        mine = [row for row in shown if row.batch == batch]
        title = f"TFLOP/s, batch {batch}" if len(batches) > 1 else "TFLOP/s"
        parts += [*([""] if parts else []), _speeds(of_it, mine, width, title), BENCH_LEGEND]
        reasons = analysis.numberless(mine)
        parts += [Text()] if reasons else []
        for one in reasons:
            where = analysis.layers_in_words(one["layers"], len(of_it.layers()))
            said = "" if one["state"] == one["reason"] else f": {one['reason']}"
            state = (one["state"], _style(one["state"]))
            parts.append(Text.assemble(f"{one['system']} on {where}: ", state, said))
    return Group(*parts)


def _speeds(results: Results, shown: Sequence[BenchRow], width: int, title: str) -> Columns:
    from convlab.measuring import analysis

    layers = results.layers()
    names = dict.fromkeys(row.system for row in shown)
    by_layer = max(map(len, [*names, title])) + 7 + 6 * len(layers) <= width
    rows = []
    for one in (analysis.contender(results, name) for name in names):
        if not (speeds := [row.tflops or 0.0 for row in one.measured()]):
            continue
        cells: list[Cell] = [_speed(results.row(*layer, one.name)) for layer in layers]
        if not by_layer:
            spread = (min(speeds), median(speeds), max(speeds))
            cells = [f"{len(speeds)}", *map(_tflops, spread)]
        means = [number(one.over(m01).mean, ".2f") for m01 in analysis.first(results)]
        rows.append((one.name, *(means or [None]), *cells))
    of_all = ("layers", "lowest", "median", "highest")
    head = (title, "over m01", *([layer for layer, _ in layers] if by_layer else of_all))
    return table_of(head, rows)


def _tflops(value: float, settled: bool | None = True) -> str:
    return f"{'' if settled else '~'}{value:.{1 if value >= 10 else 2}f}"


def _speed(row: BenchRow | None) -> Cell:
    if row is None:
        return ""
    return Text("-", _style(row.state)) if row.tflops is None else _tflops(row.tflops, row.settled)


def _style(state: str) -> str:
    from convlab.measuring.results import WRONG_STATES

    return BAD if state in WRONG_STATES else DOUBTFUL


def wrong_in_words(rows: Sequence[BenchRow], whose: str) -> str:
    """How many rows are wrong, refused or failed, and each row's system and layer."""
    which = ", ".join(f"{row.system} on {row.layer} {row.state}" for row in rows)
    are = "row is" if len(rows) == 1 else "rows are"
    return f"{len(rows)} {are} wrong, refused or failed among {whose}: {which}"


def agreement_table(one: Results, other: Results) -> Columns:
    """How far two runs agree, system by system."""
    from convlab.measuring import analysis

    rows = [
        (name, f"{layers}", Text(f"{middle:.2f}", DOUBTFUL * (middle > 5)), f"{largest:.2f}")
        for name, layers, middle, largest in analysis.agreement(one, other)
    ]
    return table_of(("system", "layers", "median\ndifference %", "largest\ndifference %"), rows)
