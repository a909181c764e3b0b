"""``convlab tune``: every tile measured, the best one remembered."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from convlab import tables, workloads
from convlab.problem import ConvProblem
from convlab.shell import (
    INTERRUPTED,
    WRONG,
    Batch,
    JsonFile,
    check_writable,
    console_for,
    fail,
    numba_needed,
    refuse,
    refusing,
    write_json,
)

if TYPE_CHECKING:
    from convlab.bench.tuning import Measured

TILES, OTHER_CACHE = "the file of tiles", "remove it, or set CONVLAB_CACHE to another folder"


def tune(
    context: typer.Context,
    layer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A layer of the paper, conv1 to conv12; repeatable."),
    ] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(metavar="SHAPES", help=f"Any problem, as {workloads.EXAMPLE}; repeatable."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="The twelve layers and those of other networks.")
    ] = False,
    batch: Batch = None,
    stage: Annotated[
        str, typer.Option(metavar="NAME", help="Whose tiles: a stage that has a choice.")
    ] = "s12",
    forget: Annotated[
        bool, typer.Option("--forget", help="Measure nothing; forget these problems, or all.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Measure every tile on a problem, conv9 if none is named, and remember the best.

    Needs a GPU. Later plans on this GPU take the remembered tile. Exits 1 when a tile is wrong.
    """
    console = console_for(json_file)
    problems = _problems(layer, problem, every, batch)
    if forget:
        _forget(problems, json_file, console)
        return
    problems = problems or _problems(["conv9"], None, False, batch)

    with numba_needed():
        from convlab.bench import tuning
        from convlab.engines import EngineUnavailable, choose
        from convlab.plans import check_runs
        from convlab.stages import stage_named
        from convlab.tuned import cache_folder, remember, tiles_file
    with refusing(ValueError, EngineUnavailable):
        chosen = stage_named(stage)
        tasks = tuning.tasks_for(problems, chosen)
        engine = choose("gpu")
        check_runs(chosen, engine)
    with refusing(OSError, RuntimeError, hint=": set CONVLAB_CACHE to a folder for it"):
        cache_folder().mkdir(parents=True, exist_ok=True)
    check_writable(TILES, tiles_file(), OTHER_CACHE)

    measured: dict[str, list[Measured]] = {}
    wanted = Counter(task.name for task in tasks)
    done, stopped = 0, None
    results = tuning.measure_all(tasks, tuning.processes(engine))
    try:
        with tables.progress([f"{task.name} {task.tile}" for task in tasks]) as advance:
            for one in results:
                of_it = measured.setdefault(one.task.name, [])
                of_it.append(one)
                if len(of_it) == wanted[one.task.name]:
                    best = tuning.tuned(of_it, chosen, engine).best
                    if best is not None and best.time_ms is not None:
                        tile, ms = best.task.tile, best.time_ms
                        with refusing(OSError):
                            remember(best.task.problem, chosen, engine.device, tile, ms)
                    done += 1
                advance()
    except (KeyboardInterrupt, BrokenExecutor) as error:
        stopped = error
    finally:
        results.close()
    kept = f"after {done} of {len(problems)} problems, which are remembered"
    if isinstance(stopped, BrokenExecutor):
        refuse(f"a process that compiles was ended, perhaps for want of memory, {kept}")
    found = [tuning.tuned(of_it, chosen, engine) for of_it in measured.values()]
    if len(found) == 1:  # a tile a line, else a problem a line
        console.print(Text(f"{found[0].problem} on {engine.device}"), "", sep="\n")
        console.print(tables.tiles_table(found[0]))
    elif found:
        console.print(tables.tuned_table(found))
    if stopped:
        fail(f"interrupted {kept}; no JSON was written", INTERRUPTED)
    write_json(json_file, tuning.as_json(found, chosen, engine, arguments=context.obj))

    wrong = [one for tuned in found for one in tuned.measured if one.error is not None]
    for one in wrong:
        line = f"{one.task.name}, tile {one.task.tile}: {one.error}"
        console.print(Text(line, "red"), soft_wrap=True)
    count = sum(tuned.best is not None for tuned in found)
    tiles = "The best tile is" if count == 1 else f"The best tiles of {count} problems are"
    console.print(Text(f"{tiles} remembered in {tiles_file()}."), soft_wrap=True)
    if wrong:
        raise typer.Exit(WRONG)


def _forget(problems: dict[str, ConvProblem], json_file: str | None, console: Console) -> None:
    if json_file is not None:
        refuse("--forget measures nothing: leave out --json")
    with numba_needed():
        from convlab.tuned import forget, tiles_file
    with refusing(OSError, RuntimeError):
        there = tiles_file().exists()
    if there:
        check_writable(TILES, tiles_file(), OTHER_CACHE)
    with refusing(OSError, RuntimeError):
        count = forget(set(map(str, problems.values())) or None)
    tiles = "1 tile is" if count == 1 else f"{count} tiles are"
    console.print(Text(f"{tiles} forgotten in {tiles_file()}."), soft_wrap=True)


def _problems(
    layers: list[str] | None, texts: list[str] | None, every: bool, batch: int | None
) -> dict[str, ConvProblem]:
    """The problems asked for by their names; of one given by its shapes that is its name."""
    if every and (layers or texts or batch is not None):
        refuse("--all names its problems: leave out --layer, --problem and --batch")
    if batch is not None and batch < 1:
        refuse(f"--batch is {batch}: it must be at least 1")
    with refusing(ValueError, TypeError):
        problems = {
            name.lower(): workloads.paper_layer(name, batch or workloads.PAPER_BATCH)
            for name in (workloads.LAYER_NAMES if every else layers or ())
        }
        for text in texts or ():
            given = workloads.problem_of(text)
            given = given if batch is None else replace(given, batch=batch)
            problems[str(given)] = given
    return problems | workloads.UNTUNED | workloads.UNSEEN if every else problems
