"""``convlab tune``: every tile measured, the best one remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.text import Text

from convlab import shell, tables, workloads
from convlab.commands.bench import open_idle
from convlab.problem import ConvProblem

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
    batch: shell.Batch = None,
    stage: Annotated[
        str, typer.Option(metavar="NAME", help="Whose tiles: a stage that has a choice.")
    ] = "s12",
    forget: Annotated[
        bool, typer.Option("--forget", help="Measure nothing; forget these problems, or all.")
    ] = False,
    json_file: shell.JsonFile = None,
) -> None:
    """Measure every tile on a problem, conv9 if none is named, and remember the best.

    Needs a GPU. Later plans on this GPU take the remembered tile. Exits 1 when a tile is wrong.
    """
    console = shell.console_for(json_file)
    problems = _problems(layer, problem, every, batch)
    if forget:
        _forget(problems, json_file, console)
        return
    problems = problems or _problems(["conv9"], None, False, batch)

    with shell.numba_needed():
        from convlab.bench import tuning
        from convlab.engines import EngineUnavailable, choose
        from convlab.plans import check_runs, tile_by_rule
        from convlab.stages import Tile, stage_named
        from convlab.tuned import cache_folder, remember, tiles_file
    with shell.refusing(ValueError, EngineUnavailable):
        chosen = stage_named(stage)
        tiles = tuning.tiles_of(chosen, problems)
        engine = choose("gpu")
        check_runs(chosen, engine)
    with shell.refusing(OSError, RuntimeError, hint=": set CONVLAB_CACHE to a folder for it"):
        cache_folder().mkdir(parents=True, exist_ok=True)
    shell.check_writable(TILES, tiles_file(), OTHER_CACHE)

    found: list[tuning.Tuned] = []
    done, stopped = 0, False
    bench = open_idle(context, console)
    try:
        with tables.progress([f"{name} {tile}" for name, tile in tiles]) as advance:
            for name, one in problems.items():
                rule = cast(Tile, tile_by_rule(one, chosen, engine))  # a choice has a rule
                found.append(tuning.Tuned(name, one, rule, {}))
                for tile, row in tuning.measured(name, one, chosen, bench):
                    found[-1].rows[tile] = row
                    advance()
                best = found[-1].best
                if best is not None and (ms := found[-1].ms(best)) is not None:
                    with shell.refusing(OSError):
                        remember(one, chosen, engine.device, best, ms)
                done += 1
    except KeyboardInterrupt:
        stopped = True
    found = [tuned for tuned in found if tuned.rows]
    if len(found) == 1:  # a tile a line, else a problem a line
        console.print(Text(f"{found[0].problem} on {engine.device}"), "", sep="\n")
        console.print(tables.tiles_table(found[0]))
    elif found:
        console.print(tables.tuned_table(found))
    if stopped:
        kept = f"after {done} of {len(problems)} problems, which are remembered"
        shell.fail(f"interrupted {kept}; no JSON was written", shell.INTERRUPTED)
    shell.write_json(json_file, tuning.as_json(found, chosen, engine, arguments=context.obj))

    wrong = [(tuned.name, row) for tuned in found for row in tuned.rows.values() if not row.ok]
    for name, row in wrong:
        line = f"{name}, {row.system}: {row.state}: {row.reason}"
        console.print(Text(line, "red"), soft_wrap=True)
    count = sum(tuned.best is not None for tuned in found)
    told = "The best tile is" if count == 1 else f"The best tiles of {count} problems are"
    console.print(Text(f"{told} remembered in {tiles_file()}."), soft_wrap=True)
    if wrong:
        raise typer.Exit(shell.WRONG)


def _forget(problems: dict[str, ConvProblem], json_file: str | None, console: Console) -> None:
    if json_file is not None:
        shell.refuse("--forget measures nothing: leave out --json")
    with shell.numba_needed():
        from convlab.tuned import forget, tiles_file
    with shell.refusing(OSError, RuntimeError):
        there = tiles_file().exists()
    if there:
        shell.check_writable(TILES, tiles_file(), OTHER_CACHE)
    with shell.refusing(OSError, RuntimeError):
        count = forget(set(map(str, problems.values())) or None)
    tiles = "1 tile is" if count == 1 else f"{count} tiles are"
    console.print(Text(f"{tiles} forgotten in {tiles_file()}."), soft_wrap=True)


def _problems(
    layers: list[str] | None, texts: list[str] | None, every: bool, batch: int | None
) -> dict[str, ConvProblem]:
    """The problems asked for by their names; of one given by its shapes that is its name."""
    if every and (layers or texts or batch is not None):
        shell.refuse("--all names its problems: leave out --layer, --problem and --batch")
    if batch is not None and batch < 1:
        shell.refuse(f"--batch is {batch}: it must be at least 1")
    with shell.refusing(ValueError, TypeError):
        problems = {
            name.lower(): workloads.paper_layer(name, batch or workloads.PAPER_BATCH)
            for name in (workloads.LAYER_NAMES if every else layers or ())
        }
        for text in texts or ():
            given = workloads.problem_of(text)
            given = given if batch is None else replace(given, batch=batch)
            problems[str(given)] = given
    return problems | workloads.UNTUNED | workloads.UNSEEN if every else problems
