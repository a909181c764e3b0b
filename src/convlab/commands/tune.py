"""``convlab tune``: every tile measured, the best one remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.text import Text

from convlab.commands import display, exits, options, output_files, requirements
from convlab.commands.tune_gpus import measuring
from convlab.commands.tuned_problems import Tuned, measure_tiles
from convlab.problems import workloads
from convlab.problems.problem import ConvProblem
from convlab.support.columns import Columns

if TYPE_CHECKING:
    from convlab.ladder import Stage, Tile
    from convlab.running.engines import Engine

TILES, OTHER_CACHE = "the file of tiles", "remove it, or set CONVLAB_CACHE to another folder"


def tune(
    context: typer.Context,
    layer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A layer of the paper, conv1 to conv12; repeatable."),
    ] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(metavar="SHAPES", help=f"A problem, as {workloads.EXAMPLE}; repeatable."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="The twelve layers and those of other networks.")
    ] = False,
    batch: options.Batch = None,
    stage: Annotated[
        str, typer.Option(metavar="NAME", help="The stage whose tiles are measured.")
    ] = "m15",
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Measure nothing; forget the tiles of these problems, or all."
        ),
    ] = False,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Measure on the workers of this Dask scheduler, each on a GPU of its own and "
            "whole problems at a time; the tiles are remembered here.",
        ),
    ] = None,
    json_file: options.JsonFile = None,
) -> None:
    """Measure every tile on a problem, conv9 if none is named, and remember the best.

    Needs a GPU. Later plans on this GPU take the remembered tile. Exits 1 when a result is wrong.
    """
    console = output_files.console_for(json_file)
    problems = _problems(layer, problem, every, batch)
    if forget:
        _forget(problems, json_file, console)
        return
    problems = problems or _problems(["conv9"], None, False, batch)

    with requirements.numba_needed():
        from convlab.ladder import candidates, stage_named
        from convlab.running.able_stages import check_runs
        from convlab.running.engines import EngineUnavailable
        from convlab.running.plans import tile_by_rule
        from convlab.running.tuned import tiles_file
        from convlab.support.cache_folder import cache_folder
    with exits.refusing(ValueError, EngineUnavailable, OSError, RuntimeError):
        chosen = stage_named(stage)
        tiles = {name: candidates(chosen, one) for name, one in problems.items()}
        problems = {name: one for name, one in problems.items() if tiles[name]}
        if not problems:
            raise ValueError(f"stage is {chosen.name!r}: it has no tiles to choose from")
        gpus = context.with_resource(measuring(context, console, dask))
        engine = gpus.engine
        check_runs(chosen, engine)
    with exits.refusing(OSError, RuntimeError, hint=": set CONVLAB_CACHE to a folder for it"):
        cache_folder().mkdir(parents=True, exist_ok=True)
    output_files.check_writable(TILES, tiles_file(), OTHER_CACHE)

    problems_tuned = [
        Tuned(
            name,
            one,
            cast("Tile", tile_by_rule(one, chosen, engine)),  # tiles have a rule
            {},
        )
        for name, one in problems.items()
    ]
    done, stopped = 0, False
    try:
        steps = [f"{name} {tile}" for name in problems for tile in tiles[name]]
        # Workers measure several problems at once, so no step is the next one.
        label = None if dask is None else "measuring"
        with display.progress(steps, label) as advance:
            for complete in measure_tiles(gpus, chosen, problems_tuned, tiles):
                advance()
                if complete:
                    done += 1
    except KeyboardInterrupt:
        stopped = True
    found = [tuned for tuned in problems_tuned if tuned.rows]
    if len(found) == 1:  # one tile per line, otherwise one problem per line
        console.print(Text(f"{found[0].problem} on {engine.device}"), "", sep="\n")
        console.print(_tiles_table(found[0]))
    elif found:
        console.print(_tuned_table(found))
    if stopped:
        kept = f"after {done} of {len(problems)} problems, which are remembered"
        exits.fail(f"interrupted {kept}; no JSON was written", exits.INTERRUPTED)
    output_files.write_json(
        json_file, as_json(found, chosen, engine, gpus.environment(context.obj))
    )

    wrong = [(tuned.name, row) for tuned in found for row in tuned.rows.values() if not row.ok]
    for name, row in wrong:
        line = f"{name}, {row.system}: {row.state}: {row.reason}"
        console.print(Text(line, "red"), soft_wrap=True)
    count = sum(tuned.best is not None for tuned in found)
    told = "The best tile is" if count == 1 else f"The best tiles of {count} problems are"
    console.print(Text(f"{told} remembered in {tiles_file()}."), soft_wrap=True)
    if wrong:
        raise typer.Exit(exits.WRONG)


def _tiles_table(tuned: Tuned) -> Columns:
    """Every tile of one problem, the fastest first, the model's choice marked."""
    best, rows = tuned.ms(tuned.best), []
    for tile, row in sorted(tuned.rows.items(), key=lambda one: one[1].time_ms or float("inf")):
        chosen = "the model's choice" if tile == tuned.model else ""
        failed = f"{row.state.upper()} {chosen}".strip()
        cells: tuple[display.Cell, ...] = (None, None, None, None, failed)
        if row.time_ms is not None and best is not None:
            cells = (f"{row.time_ms:.4g}", f"{row.time_spread:.1f} %",
                     f"{row.time_ms / best:.2f}", f"{row.tflops:.1f}", chosen)  # fmt: skip
        rows.append((str(tile), *cells))
    head = ("tile", "time ms", "spread", "over the\nbest", "TFLOP\n/ s", "")
    return display.table_of(head, rows, folded=[""])


def _tuned_table(found: Sequence[Tuned]) -> Columns:
    """The model's tile and the best tile of every problem, and the ratio of their times."""
    rows = [
        (one.name, str(one.model), str(one.best or "-"), display.number(one.ms(one.model), ".4g"),
         display.number(one.ms(one.best), ".4g"), display.number(one.ratio, ".2f"))
        for one in found
    ]  # fmt: skip
    head = ("problem", "model's tile", "best tile", "model\nms", "best\nms", "ratio")
    return display.table_of(head, rows, words=3, folded=["problem"])


def as_json(
    found: Sequence[Tuned], stage: Stage, engine: Engine, environment: dict[str, Any]
) -> dict[str, object]:
    """Return the document of ``convlab tune --json``; ``environment`` has the facts about the
    machine that measured."""
    return {
        "device": engine.device,
        "multiprocessors": engine.sm_count(),
        "stage": stage.name,
        "environment": environment,
        "problems": [tuned.as_json() for tuned in found],
    }


def _forget(problems: dict[str, ConvProblem], json_file: str | None, console: Console) -> None:
    if json_file is not None:
        exits.refuse("--forget measures nothing: leave out --json")
    with requirements.numba_needed():
        from convlab.running.tuned import forget, tiles_file
    with exits.refusing(OSError, RuntimeError):
        there = tiles_file().exists()
    if there:
        output_files.check_writable(TILES, tiles_file(), OTHER_CACHE)
    with exits.refusing(OSError, RuntimeError):
        count = forget(set(map(str, problems.values())) or None)
    tiles = "1 tile is" if count == 1 else f"{count} tiles are"
    console.print(Text(f"{tiles} forgotten in {tiles_file()}."), soft_wrap=True)


def _problems(
    layers: list[str] | None, texts: list[str] | None, every: bool, batch: int | None
) -> dict[str, ConvProblem]:
    """The problems asked for, by name; a problem given by its shapes has the shapes as its name."""
    if every and (layers or texts or batch is not None):
        exits.refuse("--all names its problems: leave out --layer, --problem and --batch")
    if batch is not None and batch < 1:
        exits.refuse(f"--batch is {batch}: it must be at least 1")
    with exits.refusing(ValueError, TypeError):
        problems = {
            name.lower(): workloads.paper_layer(name, batch or workloads.PAPER_BATCH)
            for name in (workloads.LAYER_NAMES if every else layers or ())
        }
        for text in texts or ():
            given = workloads.problem_of(text)
            given = given if batch is None else replace(given, batch=batch)
            problems[str(given)] = given
    return problems | workloads.UNTUNED | workloads.UNSEEN if every else problems
