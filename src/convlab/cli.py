"""The ``convlab`` command: parses, calls, prints.

Numba is imported only by the verbs that need it: it is slow.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand

from convlab import tables, workloads
from convlab.commands.lessons import lessons
from convlab.problem import ConvProblem
from convlab.shell import (
    INTERRUPTED,
    REFUSED,
    WRONG,
    Verbs,
    check_writable,
    console_for,
    fail,
    numba_needed,
    one_line,
    refuse,
    refuse_simulator,
    refusing,
    write_json,
    write_whole,
)

if TYPE_CHECKING:
    import numpy as np

    from convlab.bench.ladder import Result
    from convlab.engines import Engine
    from convlab.engines.offline import Capability
    from convlab.lint import Row
    from convlab.stages import Stage
    from convlab.tracing import Trace

PHOTOGRAPH = ":photograph:"  # what --image without a path stands for
DEFAULT_PICTURE = Path("ladder.png")
TRACING_TAKES = 2  # times as long as a run with every check, about
RIGHT_HERE = "right on this problem; `make test` tries many others"

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Convolution kernels in Numba CUDA, step by step, with and without a GPU.",
)

JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Also write JSON to FILE; - is standard output."),
]


app.command()(lessons)


def main() -> None:
    """The console entry point."""
    app(prog_name="convlab")


@app.command()
def doctor(json_file: JsonFile = None) -> None:
    """What is here: GPU, driver, engines, versions; what would be used, and why."""
    console = console_for(json_file)
    from convlab.doctor import facts

    found = facts()
    console.print(tables.doctor_table(found))
    for warning in found["warnings"]:
        console.print(Text(f"Warning: {warning}", "yellow"))
    write_json(json_file, found)
    if found["would_use"]["engine"] is None:
        refuse("no engine works here: the lines above say why")


@app.command()
def stages(json_file: JsonFile = None) -> None:
    """The ladder as a table: every stage, its idea, its source and what it builds on."""
    console = console_for(json_file)
    with numba_needed():
        from convlab.stages import LADDER
    console.print(tables.stages_table(LADDER))
    keys = ("name", "title", "source", "builds_on", "module")
    write_json(json_file, [{key: getattr(stage, key) for key in keys} for stage in LADDER])


class _ImageAlone(TyperCommand):
    """A command whose ``--image`` may stand without its path, which Typer has no option for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        filled: list[str] = []
        for position, word in enumerate(args, start=1):
            filled.append(word)
            alone = position == len(args) or args[position].startswith("-")
            if word == "--image" and alone:
                filled.append(PHOTOGRAPH)
        return super().parse_args(ctx, filled)


@app.command(cls=_ImageAlone)
def ladder(
    context: typer.Context,
    layer: Annotated[
        str | None, typer.Option(metavar="NAME", help="A layer of the paper: conv1 to conv12.")
    ] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="How many images.")] = None,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="auto, gpu, simulator or cudasim.")
    ] = "auto",
    stage: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this stage, such as s05; may be repeated."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="[PATH]",
            help="Run a picture through a bank of filters instead; without PATH, a photograph.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Where --image draws: ladder.png.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random tensors.")] = 0,
    yes: Annotated[bool, typer.Option("--yes", help="Wait, however long it takes.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Every stage on one problem, judged element by element; timed on a GPU, counted without one.

    Exits 1 when a stage is wrong, and says which, by how much and where first.
    """
    console = console_for(json_file)
    if image is None and output is not None:
        refuse("--output is where --image draws: give --image too")
    if image is not None and (layer is not None or batch is not None):
        refuse("--image is a problem of its own: leave out --layer and --batch")
    picture_file = output or DEFAULT_PICTURE
    if image is not None:
        check_writable("--output", picture_file)
        for option, other in (("--image", image), ("--json", json_file)):
            if other is not None and Path(other).resolve() == picture_file.resolve():
                refuse(f"--output is {str(picture_file)!r}, and so is {option}: give another file")

    with numba_needed():
        from convlab import image as pictures
        from convlab.bench import ladder as runner
        from convlab.engines import EngineUnavailable, choose
        from convlab.oracle import random_tensors
    with refusing(ValueError, EngineUnavailable, pictures.PlotsMissing):
        chosen_engine = choose(engine)
        chosen_stages, left_out = _stages_that_run(stage, chosen_engine)
        picture = None
        if image is None:
            problem = _problem(layer, batch, chosen_engine)
        else:
            path = None if image == PHOTOGRAPH else Path(image)
            picture = pictures.load(path, pictures.pixels_for(chosen_engine))
            problem = pictures.problem_for(picture)
        seconds = runner.estimated_seconds(problem, chosen_stages, chosen_engine)
        patience = runner.PATIENCE_SECONDS
        if not yes and seconds is not None and seconds > patience:
            refuse(_too_slow(problem, seconds, chosen_engine, patience))
    memory_permitting = partial(refusing, MemoryError, hint="; a smaller --batch takes less")
    with memory_permitting():
        if picture is None:
            tensors = random_tensors(problem, seed)
        else:
            tensors = pictures.tensors_for(picture)

    console.print(tables.ladder_heading(problem, chosen_engine))
    if picture is not None and seconds is not None:
        size = f"{problem.width} x {problem.height} pixels"
        console.print(f"picture         scaled to {size}: about {_duration(seconds)} here")
    if left_out is not None:
        console.print(Text(f"left out        {left_out}"), soft_wrap=True)
    results: list[Result] = []
    output_of: deque[np.ndarray] = deque(maxlen=1)
    shown: tuple[Result, np.ndarray] | None = None
    run = runner.run(problem, chosen_stages, chosen_engine, tensors, on_output=output_of.append)
    names = [chosen.name for chosen in chosen_stages]
    try:
        with memory_permitting(), tables.progress(names) as advance:
            for result in run:
                results.append(result)
                if output_of and (shown is None or shown[0].judged != "WRONG"):
                    shown = result, output_of[0]  # the first wrong one's, else the last one's
                output_of.clear()
                advance()
    except KeyboardInterrupt:
        if results:
            console.print("", tables.ladder_table(results, chosen_engine), sep="\n")
        done = f"{len(results)} of {len(chosen_stages)} stages"
        fail(f"interrupted after {done}; no file was written", INTERRUPTED)

    # Made before anything is drawn, while a GPU's clocks are still what the stages met.
    document = runner.as_json(problem, chosen_engine, results, arguments=context.obj)
    console.print("", tables.ladder_table(results, chosen_engine), "", sep="\n")
    console.print(tables.ladder_legend(chosen_engine))
    if picture is not None:
        owner, maps = (None, None) if shown is None else (shown[0], shown[1][0])
        png = pictures.draw(picture, maps, owner, results, chosen_engine.device)
        write_whole(picture_file, png)
        console.print(Text(f"The picture and its feature maps are in {picture_file}"))
    write_json(json_file, document)
    right = "right" if chosen_engine.is_gpu else RIGHT_HERE
    _conclude(console, tables.ladder_errors(results), "stage", len(results), right)


def _chosen_stages(names: Sequence[str] | None) -> tuple[Stage, ...]:
    from convlab.stages import LADDER, stage_named

    wanted = LADDER if not names else [stage_named(name) for name in names]
    return tuple(stage for stage in LADDER if stage in wanted)


def _stages_that_run(
    names: Sequence[str] | None, engine: Engine
) -> tuple[tuple[Stage, ...], str | None]:
    """The stages asked for, and what is left out of the whole ladder because it cannot run here.

    Raises ``EngineUnavailable`` where one was asked for by name that cannot.
    """
    from convlab.engines import EngineUnavailable
    from convlab.plans import stages_for

    chosen = _chosen_stages(names)
    able, left_out = stages_for(engine)
    if names and any(stage.name not in {other.name for other in able} for stage in chosen):
        raise EngineUnavailable(str(left_out))
    if left_out is None:
        return chosen, None
    return tuple(stage for stage in chosen if stage in able), left_out


def _problem(layer: str | None, batch: int | None, engine: Engine) -> ConvProblem:
    from convlab.bench.ladder import default_problem

    if layer is not None:
        problem = workloads.paper_layer(layer)
    else:
        problem = default_problem(engine)
    return problem if batch is None else replace(problem, batch=batch)


def _too_slow(
    problem: ConvProblem, seconds: float, engine: Engine, patience: float, gpu: bool = True
) -> str:
    alone = seconds / problem.batch
    one = f" --batch 1 (about {_duration(alone)})," if alone <= patience else ""
    or_gpu = " or a GPU" if gpu else ""
    return (
        f"this takes {engine.device} about {_duration(seconds)}: use{one} the default problem "
        f"(seconds){or_gpu}, or add --yes to wait"
    )


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} seconds"


@app.command()
def check(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py::KERNEL",
            help="A @cuda.jit kernel, or a function that makes one; make_kernel if not named.",
        ),
    ],
    stage: Annotated[
        str, typer.Option("--as", metavar="STAGE", help="The stage that it is to do the work of.")
    ],
    seed: Annotated[int, typer.Option(min=0, help="Chooses the numbers.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Your own kernel as a stage: its answers, what the simulator finds, what it asks of memory.

    Exits 1 when an answer is wrong or something is found.
    """
    console = console_for(json_file)
    with numba_needed():
        from convlab.checking import check as checked
        from convlab.checking.checker import PROBLEMS
        from convlab.checking.views import as_lines
    names = [*PROBLEMS, "counts"]
    with refusing(ValueError), tables.progress(names) as advance:
        found = checked(kernel, stage, seed=seed, on_step=advance)
    console.print(as_lines(found))
    write_json(json_file, found.as_json())
    if not found.ok:
        raise typer.Exit(WRONG)


@app.command()
def trace(
    stage: Annotated[
        str, typer.Argument(metavar="STAGE", help="Such as s05; or a trace that --json saved.")
    ],
    layer: Annotated[
        str | None, typer.Option(metavar="NAME", help="A layer of the paper: conv1 to conv12.")
    ] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="How many images.")] = None,
    tile: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="M_BxN_BxK_B or M_BxN_BxK_B/M_TxN_T: 8x32x8/1x1."),
    ] = None,
    block: Annotated[
        int, typer.Option(min=0, metavar="N", help="The block whose requests are kept.")
    ] = 0,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page to step through.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Wait, however long it takes.")] = False,
    json_file: JsonFile = None,
) -> None:
    """What a stage asks of memory, line by line and request by request, on the strict simulator.

    Exits 1 when the simulator finds something wrong with a kernel.
    """
    console = console_for(json_file)
    if html_file is not None:
        check_writable("--html", html_file)
        if json_file is not None and Path(json_file).resolve() == html_file.resolve():
            refuse(f"--html is {str(html_file)!r}, and so is --json: give another file")
    saved = Path(stage)
    with numba_needed():
        from convlab.tracing import page
        from convlab.tracing.table import as_tables
    if saved.suffix == ".json" or saved.is_file():
        if (layer, batch, tile, block) != (None, None, None, 0):
            refuse(
                f"{stage!r} is a trace that was saved: leave out --layer, --batch, --tile, --block"
            )
        if html_file is not None and html_file.resolve() == saved.resolve():
            refuse(f"--html is {str(html_file)!r}, the trace itself: give another file")
        made = _opened(saved)
    else:
        made = _traced(stage, layer, batch, None if tile is None else _sizes(tile), block, yes)
    console.print(as_tables(made))
    if html_file is not None:
        write_whole(html_file, page(made).encode())
        console.print(Text(f"The page is in {html_file}: open it with a browser"))
    write_json(json_file, made.as_json(), indent=None)
    if any(launch.findings for launch in made.launches):
        raise typer.Exit(WRONG)


def _opened(file: Path) -> Trace:
    from convlab.tracing import open_trace

    try:
        with refusing(ValueError):
            return open_trace(file)
    except OSError as error:
        refuse(f"trace {str(file)!r} cannot be read: {error.strerror}")


def _traced(
    name: str, layer: str | None, batch: int | None, sizes: list[int] | None, block: int, yes: bool
) -> Trace:
    """The trace of a stage; refused before any work where it cannot be or takes too long."""
    with numba_needed():
        from convlab.bench import ladder as runner
        from convlab.engines import EngineUnavailable, choose
        from convlab.engines.findings import NotSimulated
        from convlab.plans import program_for
        from convlab.stages import Tile, stage_named
        from convlab.tracing import trace_stage
    with refusing(ValueError, EngineUnavailable):
        engine = choose("simulator")
        stage = stage_named(name)
        problem = _problem(layer, batch, engine)
        if sizes is not None and stage.tiny_tile is None:
            refuse(f"stage {stage.name} has no tiles: leave out --tile")
        tile = stage.model_tile if sizes is None else Tile(*sizes)
        program = program_for(problem, stage, tile, engine)
        if not program.kernels:
            refuse(f"stage {stage.name} has no kernel to trace: a library does its work")
        blocks = max(math.prod(launch.grid) for launch in program.kernels)
        if block >= blocks:
            refuse(f"--block is {block}: {stage.name} has blocks 0 to {blocks - 1} here")
        seconds = TRACING_TAKES * (runner.estimated_seconds(problem, [stage], engine) or 0)
        if not yes and seconds > runner.PATIENCE_SECONDS:
            refuse(_too_slow(problem, seconds, engine, runner.PATIENCE_SECONDS, gpu=False))
    memory = refusing(MemoryError, hint="; a smaller --batch takes less")
    with memory, refusing(NotSimulated), tables.progress([stage.name]) as advance:
        made = trace_stage(stage.name, problem, tile, block_shown=block)
        advance()
    return made


def _sizes(tile: str) -> list[int]:
    """The sizes of a tile, as :class:`Tile` takes them."""
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)(?:/(\d+)x(\d+))?", tile)
    if found is None:
        refuse(
            f"tile is {tile!r}: it must be M_BxN_BxK_B or M_BxN_BxK_B/M_TxN_T, such as 8x32x8/1x1"
        )
    return [int(size) for size in found.groups() if size is not None]


@app.command()
def lint(
    stage: Annotated[
        str | None, typer.Argument(metavar="STAGE", help="Only this stage, such as s05.")
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only for this layer of the paper: conv1 to conv12."),
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(metavar="SM", help="Only for this GPU, such as sm_90; may be repeated."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Every kernel's machine code, without a GPU: registers, spills, 128-bit accesses, float64.

    Exits 1 when a kernel is not what its stage promises, and says which and why.
    """
    console = console_for(json_file)
    with numba_needed():
        refuse_simulator()
        from convlab import lint as gate
        from convlab.doctor import compilers
        from convlab.engines.offline import CompilerMissing
    with refusing(ValueError):
        chosen_stages = _chosen_stages(None if stage is None else [stage])
        problems = gate.PROBLEMS
        if layer is not None:
            problems = {layer.lower(): workloads.paper_layer(layer)}
        capabilities = tuple(dict.fromkeys(map(_capability, arch or ()))) or gate.CAPABILITIES
    for tool in compilers():
        if not tool["found"]:
            refuse(f"{tool['name']} is missing, and lint needs it: run {tool['install']}")

    work = list(product(chosen_stages, problems.items(), capabilities))
    names = [f"{step.name} on {name}, {_arch(gpu)}" for step, (name, _), gpu in work]
    rows: list[Row] = []
    with refusing(CompilerMissing), tables.progress(names) as advance:
        for name, (step, named_problem, gpu) in zip(names, work, strict=True):
            try:
                rows += gate.lint_stage(step, dict([named_problem]), (gpu,))
            except CompilerMissing:
                raise
            except Exception as error:  # such as a typing error: Numba's have many types
                # A GPU that the gate does not know may be one that the compiler does not know.
                code = WRONG if gpu in gate.CAPABILITIES else REFUSED
                fail(f"{name} cannot be compiled: {type(error).__name__}: {one_line(error)}", code)
            advance()
    console.print(tables.lint_table(rows), "", tables.lint_legend(), sep="\n")
    write_json(json_file, [{**asdict(row), "ok": row.ok} for row in rows])
    if not rows:
        console.print("There is no kernel to judge: a library does this stage's work.")
        return
    _conclude(console, tables.lint_errors(rows), "kernel", len(rows), "within budget")


def _capability(arch: str) -> Capability:
    digits = re.fullmatch(r"sm_(\d{1,2})(\d)", arch)
    if digits is None:
        raise ValueError(f"arch is {arch!r}: it must be sm_ and digits, such as sm_90")
    return int(digits[1]), int(digits[2])


def _arch(capability: Capability) -> str:
    return f"sm_{capability[0]}{capability[1]}"


def _conclude(console: Console, errors: Sequence[Text], noun: str, judged: int, right: str) -> None:
    for line in errors:
        console.print(line, soft_wrap=True)
    if errors:
        raise typer.Exit(WRONG)
    all_are = f"The {noun} is" if judged == 1 else f"All {judged} {noun}s are"
    console.print(Text(f"{all_are} {right}.", "green"))
