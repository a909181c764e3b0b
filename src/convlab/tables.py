"""What the command shows: tables, progress bars and the sentences that go with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from convlab.problem import ConvProblem

if TYPE_CHECKING:
    from convlab.bench.tuning import Tuned
    from convlab.engines import Engine
    from convlab.ladder import Result
    from convlab.lint import Difference, Row
    from convlab.stages import Stage

WIDE = ("LDG", "LDS", "STS", "STG")  # from memory to registers to shared memory and back
GPU_COLUMNS = ("time ms", "TFLOP\n/ s", "speedup\nvs s01", "workspace\nMiB")
REQUEST_COLUMNS = {
    "global\nreq.": ("global_requests", ",d"),
    "sectors\n/ req.": ("sectors_per_request", ".2f"),
    "shared\nreq.": ("shared_requests", ",d"),
    "wave-\nfronts\n/ req.": ("wavefronts_per_request", ".2f"),
    "bytes /\nFLOP": ("bytes_per_flop", ".3f"),
}
ACCESS_COLUMNS = {
    "global\nloads": ("global_loads", ",d"),
    "shared\nloads": ("shared_loads", ",d"),
    "barriers": ("barriers", ",d"),
    "FLOP per\nbyte": ("flops_per_byte", ".2f"),
}


@contextmanager
def progress(steps: Sequence[str]) -> Iterator[Callable[[], None]]:
    """A bar on standard error that goes away; yields what to call after each step."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
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


def table_of(
    names: Iterable[str], numbers: Iterable[str] = (), folded: Iterable[str] = ()
) -> Table:
    """A table of columns of text, then of numbers; those in ``folded`` may take several lines."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    wraps = {*folded}
    for name in names:
        table.add_column(name, no_wrap=name not in wraps, overflow="fold", vertical="bottom")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    return table


def _number(value: float | None, style: str) -> str:
    return "-" if value is None else format(value, style)


def stages_table(stages: Sequence[Stage]) -> Table:
    """The ladder: every stage, its idea, its source and what it builds on."""
    from convlab.stages import short_name

    names = ("stage", "idea", "source", "builds on")
    table = table_of(names, folded=names[1:])
    for stage in stages:
        builds_on = ", ".join(map(short_name, stage.builds_on)) or "-"
        table.add_row(*map(Text, (stage.name, stage.title, stage.source, builds_on)))
    return table


def ladder_heading(problem: ConvProblem, engine: Engine) -> Text:
    """The problem and where it runs."""
    p = problem
    return Text(
        f"input * filter  {p} -> {'x'.join(map(str, p.output_shape))}\n"
        f"as a GEMM       M = {p.M:,}, N = {p.N:,}, K = {p.K:,}: {p.flops:,} FLOP\n"
        f"runs on         {engine.device}"
    )


def ladder_table(results: Sequence[Result], engine: Engine) -> Table:
    """How every stage did: timed on a GPU, counted on a simulator."""
    counted = GPU_COLUMNS if engine.is_gpu else tuple(_counted(engine))
    table = table_of(("stage", "result"), ("error /\nbound", *counted))
    for result in results:
        table.add_row(
            Text(result.stage.name),
            _status(result),
            _number(result.error_over_bound, ".3g"),
            *(_gpu_cells(result, results) if engine.is_gpu else _counted_cells(result, engine)),
        )
    return table


def _status(result: Result) -> Text:
    return Text(result.status, "green" if result.ok else "bold red")


def _counted(engine: Engine) -> dict[str, tuple[str, str]]:
    """Columns of what a simulator counts, with the count and its format: Numba's knows no warps."""
    return REQUEST_COLUMNS if engine.name == "simulator" else ACCESS_COLUMNS


def _counted_cells(result: Result, engine: Engine) -> list[str]:
    counts = result.counts or {}
    return [_number(counts.get(name), style) for name, style in _counted(engine).values()]


def _gpu_cells(result: Result, results: Sequence[Result]) -> list[str]:
    from convlab.ladder import speedup

    timing, workspace = result.timing, result.workspace_bytes
    return [
        "-" if timing is None else f"{timing.median_ms:.3f} ±{timing.spread_percent:.1f}%",
        _number(result.tflops, ".2f"),
        _number(speedup(result, results), ".2f"),
        _number(None if workspace is None else workspace / 2**20, ",.1f"),
    ]


def ladder_legend(engine: Engine) -> Text:
    """What the ladder's columns mean."""
    bound = "error / bound: up to 1 is what float32 rounding explains."
    if engine.is_gpu:
        return Text(
            f"{bound} time: median and spread of repeated runs, layout transforms included. "
            "workspace: memory that a stage needs beside input, filter and output.",
            "dim",
        )
    if engine.name == "simulator":
        columns = (
            "A request (req.) is one load or store of a warp's 32 threads. Global memory answers "
            "in sectors of 32 bytes, shared memory in wavefronts. bytes: whole sectors of global "
            "memory."
        )
    else:
        columns = (
            "Loads and barriers are summed over all threads; a 128-bit load counts once. FLOP per "
            "byte: of global memory read and written; more is better."
        )
    return Text(
        f"{bound} {columns} Only the stage's main kernel is counted, without layout transforms. "
        "A simulator's time says nothing about a GPU's, so work is counted, with tiles much "
        "smaller than a GPU's.",
        "dim",
    )


def ladder_errors(results: Sequence[Result]) -> list[Text]:
    """What is wrong with each stage that is not right."""
    return [
        Text.assemble(f"{result.stage.name}: ", _status(result), f": {result.error}")
        for result in results
        if not result.ok
    ]


def lint_table(rows: Sequence[Row]) -> Table:
    """What every kernel compiled to, one row per problem and architecture."""
    table = table_of(
        ("stage", "kernel", "problem", "arch"), ("registers", *WIDE), folded=("kernel",)
    )
    table.add_column("result")
    for row in rows:
        names = map(Text, (row.stage.split("_")[0], row.kernel, row.problem, row.arch))
        wide = (str(row.wide.get(kind, "-")) for kind in WIDE)
        table.add_row(*names, f"{row.registers}/{row.budget}", *wide, _lint_result(row))
    return table


def _lint_result(row: Row) -> Text:
    """OK, or each thing that is wrong in a word."""
    if row.ok:
        return Text("OK", "green")
    wrong = {
        "spills": row.spill_bytes,
        "stack": row.stack_bytes,
        "float64": row.float64,
        "registers": row.registers > row.budget,
    }
    words = [word for word, found in wrong.items() if found]
    if len(words) < len(row.findings):
        words.append("128-bit")
    return Text(", ".join(words), "bold red")


def lint_legend() -> Text:
    """What the lint's columns mean."""
    return Text(
        "registers: of a thread, and its budget. LDG, STG, LDS, STS: 128-bit loads and stores of "
        "global and of shared memory in the machine code.",
        "dim",
    )


def differences_table(found: Sequence[Difference]) -> Table:
    """How the machine code of each kernel differs from the stored."""
    names = ("kernel", "differences: before -> now", "worse")
    table = table_of(names, folded=names)
    for one in found:
        changes = [f"{name}: {old} -> {now}" for name, (old, now) in one.changes.items()]
        table.add_row(
            Text(str(one.row)),
            Text("\n".join(changes) or "not stored"),
            Text(", ".join(one.worse), "red"),
        )
    return table


def lint_errors(rows: Sequence[Row]) -> list[Text]:
    """A line for each kernel with findings."""
    return [Text(f"{row}: {'; '.join(row.findings)}") for row in rows if not row.ok]


def tiles_table(tuned: Tuned) -> Table:
    """Every tile of one problem, the fastest first, the model's choice marked."""
    table = table_of(("tile",), ("time ms", "spread", "over the\nbest", "TFLOP\n/ s"))
    table.add_column("")
    best = tuned.best.time_ms if tuned.best is not None else None
    for one in sorted(tuned.measured, key=lambda one: (one.time_ms is None, one.time_ms)):
        chosen = "the model's choice" if one.task.tile == tuned.model else ""
        if one.time_ms is None or best is None:
            cells = ["-"] * 4
            chosen = f"WRONG {chosen}".strip()
        else:
            rate = tuned.problem.flops / one.time_ms / 1e9
            cells = [f"{one.time_ms:.4g}", f"{one.spread_percent:.1f} %"]
            cells += [f"{one.time_ms / best:.2f}", f"{rate:.1f}"]
        table.add_row(Text(str(one.task.tile)), *cells, Text(chosen))
    return table


def tuned_table(found: Sequence[Tuned]) -> Table:
    """The model's tile and the best one of every problem, and how far apart they are."""
    table = table_of(
        ("problem", "model's tile", "best tile"), ("model\nms", "best\nms", "ratio"),
        folded=("problem",),
    )  # fmt: skip
    for tuned in found:
        best = tuned.best
        table.add_row(
            Text(tuned.name),
            str(tuned.model),
            "-" if best is None else str(best.task.tile),
            _number(tuned.model_ms, ".4g"),
            _number(None if best is None else best.time_ms, ".4g"),
            _number(tuned.ratio, ".2f"),
        )
    return table


def doctor_table(found: dict[str, Any]) -> Table:
    """What ``convlab.doctor.facts`` found, one fact a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")

    def row(label: str, text: str, style: str = "") -> None:
        table.add_row(Text(label), Text(text, style))

    row("convlab", found["convlab"])
    row("Python", f"{found['python']} ({found['executable']})")
    row("system", found["os"])
    for name, version in found["packages"].items():
        row(name, version or "not installed")
    row("GPU", _gpu_line(found["gpu"]))
    for engine in found["engines"]:
        if engine["available"]:
            row(f"engine {engine['name']}", f"works: {engine['device']}", "green")
        else:
            row(f"engine {engine['name']}", f"cannot run: {engine['why_not']}", "yellow")
    for tool in found["compilers"]:
        if tool["found"]:
            row(tool["name"], tool["found"])
        elif found["gpu"] is None:
            row(tool["name"], "not installed; only make gate needs it")
        else:
            row(tool["name"], f"missing: run {tool['install']}", "yellow")
    choice = found["would_use"]
    row("would use", f"{choice['engine'] or 'nothing'}, because {choice['why']}")
    return table


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
    return ", ".join(part for part in parts if part)
