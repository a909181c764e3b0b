"""``convlab bench``: stages and baselines on a GPU, into a file of results."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from convlab.commands import exits, output_files, requirements
from convlab.commands.bench_dask import bench_on_workers
from convlab.commands.bench_models import bench_models
from convlab.commands.bench_tables import summary, wrong_in_words
from convlab.measuring.case_lists import LISTS, MODELS
from convlab.problems import workloads
from convlab.support.terminal import Terminal

if TYPE_CHECKING:
    from convlab.measuring.cases import Bench, BenchCase
    from convlab.measuring.results import ResultRow, Results

DEFAULT_FILE = "bench.json"
QUICK_LAYERS = ("conv5", "conv9", "conv12")
IDLE_SECONDS = 20  # how long to wait for a busy GPU
ROW_SECONDS = 180.0
Names = list[str] | None


def _several(about: str) -> Any:
    return typer.Option(metavar="NAME", help=f"{about}; may be repeated.")


def bench(
    context: typer.Context,
    layer: Annotated[Names, _several("conv1 to conv12; all of them unless given")] = None,
    stage: Annotated[Names, _several("A stage, all or none; ten stages unless given")] = None,
    baseline: Annotated[
        Names, _several("A baseline, all or none; all on the GPU unless given")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many images; 128 unless given.")
    ] = None,
    list_of_cases: Annotated[
        str | None,
        typer.Option(
            "--cases",
            metavar="NAME",
            help=f"Other cases: {', '.join(LISTS)}; or a whole ResNet-50: {' or '.join(MODELS)}.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Three layers, four stages, no torch.compile.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Measure again the rows that the file already has.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=1, metavar="S", help="The longest time that one row may take.")
    ] = ROW_SECONDS,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Measure on the workers of this Dask scheduler, each on a GPU of its own; their "
            "rows go into one file.",
        ),
    ] = None,
    given_file: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="The results, written after every row; bench.json, or NAME.json with --cases; "
            "- is standard output.",
        ),
    ] = None,
) -> None:
    """Time stages and baselines on a GPU: checked, repeated, each in a process of its own.

    An interrupted run continues where it stopped. Exits 1 when a stage was wrong, too fast to be
    true or failed. A wrong baseline is only reported.
    """
    json_file = given_file or (f"{list_of_cases}.json" if list_of_cases else DEFAULT_FILE)
    console = output_files.console_for(json_file)
    with requirements.numba_needed():
        from convlab.measuring import cases as all_cases
        from convlab.measuring import systems
        from convlab.measuring.results import Results, open_results, set_aside
        from convlab.running.engines import EngineUnavailable, choose

        if dask is None:
            requirements.refuse_without_gpu("convlab bench")
    with exits.refusing(ValueError, EngineUnavailable):
        if dask is None:
            choose("gpu")
        elif list_of_cases in MODELS or list_of_cases in all_cases.MORE:
            raise ValueError(f"--cases is {list_of_cases}: with --dask it must be a list of layers")
        if list_of_cases is None:
            chosen = systems.chosen(stage, baseline, quick)
            layers = layer or (QUICK_LAYERS if quick else workloads.LAYER_NAMES)
            cases = all_cases.cases_for(layers, batch or workloads.PAPER_BATCH, chosen)
        elif layer or stage or baseline or batch or quick:
            raise ValueError(
                "--cases names layers and systems: leave out --layer, --stage, --baseline, "
                "--batch and --quick"
            )
        elif list_of_cases in MODELS:
            return bench_models(list_of_cases, json_file, console, context.obj)
        else:
            cases = all_cases.experiment(list_of_cases)
        if dask is not None:
            return bench_on_workers(
                dask,
                cases,
                json_file=json_file,
                console=console,
                words=context.obj,
                again=again,
                seconds=seconds,
                save=_save,
                conclude=_conclude,
            )
        older = None
        if json_file != output_files.STANDARD_OUTPUT and Path(json_file).is_file():
            older = open_results(Path(json_file))
    opened = open_idle(context, console, seconds)
    command = shlex.join(["convlab", *context.obj])
    known = opened.environment | {"command": command}
    results = Results(opened.machine, known, opened.identity, commands=[command])
    left = {*results.take_up(older, [case.key for case in cases], again)}
    todo = {case.key: case for case in cases if case.key in left}
    _say(console, _heading(results, cases, len(todo), json_file))
    if older is not None and older.rows and older.identity != results.identity:
        with exits.refusing(OSError):
            aside = set_aside(Path(json_file), older)
        rows = f"{len(older.rows)} rows were in {json_file}"
        other = f"of another machine, other versions or other code: they are in {aside} now"
        _say(console, f"aside    {rows}, {other}", "yellow")
    started = time.monotonic()
    try:
        if list_of_cases in all_cases.MORE:
            results.more |= all_cases.MORE[list_of_cases](results.more)
        with _bars([*todo.values()]) as (compiled, measured):
            for row in all_cases.run([*todo.values()], opened, on_compiled=compiled):
                left.remove(row.key)  # rows do not always come in the order asked for
                results.add(row, todo[row.key].system)
                measured(row)
                _save(results, json_file)
    except KeyboardInterrupt:
        goes_on = "begins anew" if again else "goes on"
        rows = f"{len(left)} of {len(cases)} rows are left"
        exits.fail(f"interrupted, {rows}: the same command {goes_on}", exits.INTERRUPTED)
    _save(results, json_file)
    shown = [results.rows[case.key] for case in cases]
    _conclude(console, results, shown, time.monotonic() - started, json_file)


def open_idle(context: typer.Context, console: Console, row_seconds: float = ROW_SECONDS) -> Bench:
    """Wait until the GPU is idle, then start the workers, which end with the verb. A GPU that stays
    busy is refused."""
    from convlab.measuring import cases, gpu_backend
    from convlab.measuring.pool import WorkerDied

    before = signal.signal(signal.SIGTERM, _end_like_ctrl_c)
    context.call_on_close(lambda: signal.signal(signal.SIGTERM, before))
    until = time.monotonic() + IDLE_SECONDS
    while busy := gpu_backend.why_busy(gpu_backend.look(gpu_backend.current_gpu())):
        if time.monotonic() > until:
            exits.refuse(f"{busy}: times would mean nothing; try again when it is idle")
        _say(console, f"Waiting: {busy}", "yellow")
        time.sleep(5)
    with exits.refusing(WorkerDied, OSError):
        return context.with_resource(cases.open_bench(row_seconds))


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style), soft_wrap=True)


def _end_like_ctrl_c(number: int, frame: object) -> NoReturn:
    """Handle SIGTERM, so that a time limit's kill leaves nothing behind: no process on the GPU, no
    tensors in memory. A second SIGTERM does not disturb the clean-up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _heading(results: Results, cases: Sequence[BenchCase], todo: int, json_file: str) -> str:
    layers, systems, batches = (
        {*map(attrgetter(name), cases)} for name in ("layer", "system.name", "problem.batch")
    )
    batch = " or ".join(map(str, sorted(batches)))
    size = f"{len(layers)} layers x {len(systems)} systems, batch {batch}"
    lines = [f"runs on  {results.device}", f"rows     {len(cases)}: {size}"]
    if kept := len(cases) - todo:
        before = f"measured before in {json_file}; --again measures them anew"
        lines.append(f"kept     {kept} of them, {before}")
    if others := len(results.rows.keys() - {case.key for case in cases}):
        lines.append(f"others   {others} more rows in {json_file} stay as they are")
    return "\n".join(lines)


Advance = tuple[Callable[[], None], Callable[["ResultRow"], None]]


@contextmanager
def _bars(todo: Sequence[BenchCase]) -> Iterator[Advance]:
    """Two bars on standard error, compiling and measuring; yields what to call for each step."""
    from convlab.measuring.cases import compiled_ahead, estimated_seconds

    console = Terminal(stderr=True)
    seconds = {case.key: estimated_seconds(case.problem) for case in todo}
    ahead = len(compiled_ahead(todo))
    with Progress(
        TextColumn("{task.description:40}", markup=False), BarColumn(bar_width=24),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal, refresh_per_second=4,
        speed_estimate_period=120,
    ) as bars:  # fmt: skip
        compiling = bars.add_task("compiling", total=ahead, visible=ahead > 0)
        measuring = bars.add_task("measuring", total=sum(seconds.values()) or 1)

        def measured(row: ResultRow) -> None:
            said = f"{row.layer} {row.system}"[:40]
            bars.update(measuring, advance=seconds[row.key], description=said)

        yield lambda: bars.advance(compiling), measured


def _save(results: Results, json_file: str) -> None:
    if json_file != output_files.STANDARD_OUTPUT:
        output_files.write_json(json_file, results.as_json(), indent=1)


def _conclude(
    console: Console, results: Results, rows: Sequence[ResultRow], seconds: float, json_file: str
) -> None:
    from convlab.measuring.results import WRONG_STATES

    console.print("", summary(results, rows, console.width), "", sep="\n")
    if json_file == output_files.STANDARD_OUTPUT:
        output_files.write_json(json_file, results.as_json(), indent=1)
    else:
        shows = f"convlab report {json_file} --html report.html shows them"
        _say(console, f"The results are in {json_file}: {shows}")
    if missing := len(results.missing):
        rest = "more rows that were asked for then are missing from it"
        _say(console, f"{json_file} was interrupted before: {missing} {rest}", "yellow")
    numbers = sum(row.ok for row in rows)
    _say(console, f"{numbers} of {len(rows)} rows have a number ({seconds:.0f} seconds).")
    wrong: dict[str, list[ResultRow]] = {"stage": [], "baseline": []}
    for row in rows:
        if row.state in WRONG_STATES:
            wrong[results.systems[row.system]["kind"]].append(row)
    if its := wrong["baseline"]:
        _say(console, f"{wrong_in_words(its, 'baselines')}: not convlab's, only reported.")
    if its := wrong["stage"]:
        _say(console, f"{wrong_in_words(its, 'stages')}.", "bold red")
        raise typer.Exit(exits.WRONG)
