"""What the command shows: tables, progress bars and the sentences that go with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    "passes\n/ req.": ("passes_per_request", ".2f"),
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


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)


def stages_table(stages: Sequence[Stage]) -> Table:
    """The ladder: every stage, its idea, its source and what it builds on."""
    table = _table()
    table.add_column("stage", no_wrap=True)
    for name in ("idea", "source", "builds on"):
        table.add_column(name)
    from convlab.stages import short_name

    for stage in stages:
        builds_on = ", ".join(map(short_name, stage.builds_on)) or "-"
        table.add_row(*map(Text, (stage.name, stage.title, stage.source, builds_on)))
    return table


def _short(stage_name: str) -> str:
    return stage_name.split("_")[0]


def ladder_heading(problem: ConvProblem, engine: Engine) -> Text:
    """The problem and where it runs."""
    shape = "x".join(map(str, problem.output_shape))
    gemm = f"M = {problem.M:,}, N = {problem.N:,}, K = {problem.K:,}: {problem.flops:,} FLOP"
    lines = (
        f"input * filter  {problem} -> {shape}",
        f"as a GEMM       {gemm}",
        f"runs on         {engine.device}",
    )
    return Text("\n".join(lines))


def ladder_table(results: Sequence[Result], engine: Engine) -> Table:
    """How every stage did: timed on a GPU, counted on a simulator."""
    table = _table()
    table.add_column("stage", no_wrap=True)
    table.add_column("judged", no_wrap=True)
    columns = GPU_COLUMNS if engine.is_gpu else tuple(_counted(engine))
    for name in ("error /\nbound", *columns):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for result in results:
        numbers = _gpu_cells(result, results) if engine.is_gpu else _counted_cells(result, engine)
        ratio = result.error_over_bound
        table.add_row(
            Text(result.stage.name),
            _judged(result),
            "-" if ratio is None else f"{ratio:.3g}",
            *numbers,
        )
    return table


def _judged(result: Result) -> Text:
    return Text(result.judged, "green" if result.ok else "bold red")


def _counted(engine: Engine) -> dict[str, tuple[str, str]]:
    """Columns of what a simulator counts, with the count and its format: Numba's knows no warps."""
    return REQUEST_COLUMNS if engine.name == "simulator" else ACCESS_COLUMNS


def _counted_cells(result: Result, engine: Engine) -> list[str]:
    columns = _counted(engine)
    if result.counts is None:
        return ["-"] * len(columns)
    counted = [(result.counts[name], style) for name, style in columns.values()]
    return ["-" if number is None else format(number, style) for number, style in counted]


def _gpu_cells(result: Result, results: Sequence[Result]) -> list[str]:
    from convlab.ladder import speedup

    timing, workspace = result.timing, result.workspace_bytes
    ratio = speedup(result, results)
    return [
        "-" if timing is None else f"{timing.median_ms:.3f} ±{timing.spread_percent:.1f}%",
        "-" if result.tflops is None else f"{result.tflops:.2f}",
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if workspace is None else f"{workspace / 2**20:,.1f}",
    ]


def ladder_legend(engine: Engine) -> Text:
    """What the ladder's columns mean."""
    bound = "error / bound: up to 1 is what float32 rounding explains."
    if engine.is_gpu:
        return Text(
            f"{bound} time: median and spread of repeated runs, every pre-pass included. "
            "workspace: memory that a stage needs beside input, filter and output.",
            "dim",
        )
    if engine.name == "simulator":
        return Text(
            f"{bound} A request (req.) is one load or store of a warp's 32 threads; global memory "
            "answers in sectors of 32 bytes, shared memory in passes. bytes: what global memory "
            "moves, whole sectors. Counted in the stage's main kernel; pre-passes, which only "
            "re-order numbers, are left out. A simulator's time says nothing about a GPU's, so "
            "work is counted, with tiles much smaller than a GPU's.",
            "dim",
        )
    return Text(
        f"{bound} Loads and barriers: of the stage's main kernel, summed over all threads, a "
        "128-bit load once; pre-passes, which only re-order numbers, are left out. FLOP per byte: "
        "of global memory that it reads and writes; more is better. A simulator's time says "
        "nothing about a GPU's, so work is counted, with tiles much smaller than a GPU's.",
        "dim",
    )


def ladder_errors(results: Sequence[Result]) -> list[Text]:
    """What is wrong with each stage that is not right."""
    return [
        Text.assemble(f"{result.stage.name}: ", _judged(result), f": {result.error}")
        for result in results
        if not result.ok
    ]


def lint_table(rows: Sequence[Row]) -> Table:
    """What every kernel compiled to, one row a problem and architecture."""
    table = _table()
    table.add_column("stage", no_wrap=True)
    table.add_column("kernel", overflow="fold")
    for name in ("problem", "arch"):
        table.add_column(name, no_wrap=True)
    for name in ("registers", *WIDE):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for row in rows:
        wide = [str(row.wide.get(kind, "-")) for kind in WIDE]
        names = map(Text, (_short(row.stage), row.kernel, row.problem, row.arch))
        table.add_row(*names, f"{row.registers}/{row.budget}", *wide, _verdict(row))
    return table


def _verdict(row: Row) -> Text:
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
        "global and of shared memory, as they stand in the machine code.",
        "dim",
    )


def differences_table(found: Sequence[Difference]) -> Table:
    """How the machine code of each kernel differs from the stored."""
    table = _table()
    for name in ("kernel", "differences: before -> now", "worse"):
        table.add_column(name, overflow="fold")
    for one in found:
        row = one.row
        changes = [f"{name}: {old} -> {now}" for name, (old, now) in one.changes.items()]
        table.add_row(
            Text(f"{row.stage}: {row.kernel} on {row.problem}, {row.arch}"),
            Text("\n".join(changes) or "not stored"),
            Text(", ".join(one.worse), "red"),
        )
    return table


def lint_errors(rows: Sequence[Row]) -> list[Text]:
    """What is wrong with each build that is not as it should be."""
    return [
        Text(f"{row.stage}: {row.kernel} on {row.problem}, {row.arch}: {'; '.join(row.findings)}")
        for row in rows
        if not row.ok
    ]


def tiles_table(tuned: Tuned) -> Table:
    """Every tile of one problem, the fastest first, the model's choice marked."""
    table = _table()
    table.add_column("tile", no_wrap=True)
    for name in ("time ms", "spread", "over the\nbest", "TFLOP\n/ s"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("")
    best = tuned.best.time_ms if tuned.best is not None else None
    order = sorted(tuned.measured, key=lambda one: (one.time_ms is None, one.time_ms))
    for one in order:
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
    table = _table()
    table.add_column("problem", overflow="fold", vertical="bottom")
    for name in ("model's tile", "best tile"):
        table.add_column(name, no_wrap=True, vertical="bottom")
    for name in ("model\nms", "best\nms", "ratio"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for tuned in found:
        best = tuned.best
        times = (tuned.model_ms, None if best is None else best.time_ms)
        table.add_row(
            Text(tuned.name),
            str(tuned.model),
            "-" if best is None else str(best.task.tile),
            *("-" if time is None else f"{time:.4g}" for time in times),
            "-" if tuned.ratio is None else f"{tuned.ratio:.2f}",
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
