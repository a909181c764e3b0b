"""``convlab trace``."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from convlab.commands import display, exits, options, output_files, requirements
from convlab.problems import workloads

if TYPE_CHECKING:
    from convlab.ladder.stage import Capability
    from convlab.tracing import Trace

TRACING_TAKES = 2  # about so many times as long as a run with every check


def trace(
    stage: Annotated[
        str,
        typer.Argument(metavar="STAGE", help="A stage such as m03, or a trace that --json saved."),
    ],
    layer: options.LayerName = None,
    batch: options.Batch = None,
    dtype: options.Dtype = None,
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
    compiled: Annotated[
        str | None,
        typer.Option(metavar="SM", help="Merge shared loads as the compiler does for sm_90."),
    ] = None,
    yes: options.Yes = False,
    json_file: options.JsonFile = None,
) -> None:
    """The memory traffic of a stage, by line and request, on the strict simulator.

    Exits 1 when the simulator finds something wrong with a kernel.
    """
    console = output_files.console_for(json_file)
    saved = Path(stage)
    opens = saved.suffix == ".json" or os.path.isfile(stage)  # False for a name too long
    written = {"--html": html_file, "--json": json_file}
    output_files.check_files(written, [saved] if opens else [], "the trace itself")
    if opens and (layer, batch, dtype, tile, block, compiled) != (None, None, None, None, 0, None):
        exits.refuse(
            f"{stage!r} is a trace that was saved: leave out --layer, --batch, --dtype, --tile, "
            "--block and --compiled"
        )
    with exits.refusing(ValueError):
        gpu = None if compiled is None else options.capability("compiled", compiled)
    with requirements.numba_needed():
        if gpu is not None:
            requirements.refuse_simulator()
        from convlab.tracing import open_trace, page
        from convlab.tracing.views import as_tables
    if opens:
        try:
            with exits.refusing(ValueError):
                made = open_trace(saved)
        except OSError as error:
            made_by = output_files.how_made(stage, f"convlab trace STAGE --json {stage}")
            exits.refuse(f"trace {stage!r} cannot be read: {error.strerror}{made_by}")
    else:
        made = _traced(stage, layer, batch, dtype, tile, block, gpu, yes)
    console.print(as_tables(made))
    if "compiled" in made.about:
        arch = made.about["compiled"]
        console.print(f"Loads from shared memory are counted as merged for {arch}.")
    if html_file is not None:
        output_files.write_whole(html_file, page(made).encode())
        console.print(Text(f"The page is in {html_file}: open it with a browser"))
    output_files.write_json(json_file, made.as_json(), indent=None)
    if any(launch.findings for launch in made.launches):
        raise typer.Exit(exits.WRONG)


def _traced(
    name: str,
    layer: str | None,
    batch: int | None,
    dtype: str | None,
    sizes: str | None,
    block: int,
    gpu: Capability | None,
    yes: bool,
) -> Trace:
    """The trace of a stage; refused before any work if it is impossible or takes too long."""
    with requirements.numba_needed():
        from convlab.ladder import stage_named, tile_named
        from convlab.measuring import ladder_run as runner
        from convlab.running.able_stages import why_too_old
        from convlab.running.engines import EngineUnavailable, choose
        from convlab.running.engines.cubin import arch_of
        from convlab.running.engines.kernels import CompilerMissing, UnknownGPU
        from convlab.running.plans import program_for
        from convlab.simulation.rules.findings import NotSimulated
        from convlab.tracing import trace_stage
    with exits.refusing(ValueError, EngineUnavailable):
        engine = choose("simulator")
        stage = stage_named(name)
        problem = stage.adapted(workloads.workload(layer, batch, engine.name))
        problem = options.typed(problem, dtype, stage.channels_last)
        if sizes is not None and stage.tiny_tile is None:
            exits.refuse(f"stage {stage.name} has no tiles: leave out --tile")
        tile = stage.model_tile if sizes is None else tile_named(sizes)
        kernels = program_for(problem, stage, tile, engine).kernels
        if not kernels:
            exits.refuse(f"stage {stage.name} has no kernel to trace: a library does its work")
        blocks = max(math.prod(launch.grid) for launch in kernels)
        if block >= blocks:
            exits.refuse(f"--block is {block}: {stage.name} has blocks 0 to {blocks - 1} here")
    seconds, usual_seconds = (
        TRACING_TAKES * (runner.estimated_seconds(one, [stage], engine) or 0)
        for one in (problem, workloads.DEFAULTS[engine.name])
    )
    if not yes:
        options.refuse_slow(problem, seconds, engine, usual_seconds, gpu=False)
    if gpu is not None:
        if (reason := why_too_old((stage,), gpu, arch_of(gpu))) is not None:
            exits.refuse(f"--compiled is {arch_of(gpu)!r}: {reason}")
        requirements.check_compilers("--compiled")
    memory = exits.refusing(MemoryError, hint="; a smaller --batch takes less")
    refused = exits.refusing(NotSimulated, CompilerMissing, UnknownGPU)
    with memory, refused, display.progress([stage.name]) as advance:
        made = trace_stage(stage.name, problem, tile, block_shown=block, compiled=gpu)
        advance()
    return made
