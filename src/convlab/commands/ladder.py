"""``convlab ladder``: the main job."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperCommand

from convlab.commands import display, exits, options, output_files, requirements
from convlab.commands.ladder_table import ladder_errors, ladder_heading, ladder_legend, ladder_table
from convlab.problems import workloads
from convlab.support.installing import in_checkout
from convlab.support.progress import duration

if TYPE_CHECKING:
    from convlab.measuring.ladder_run import StageResult

PHOTOGRAPH = ":photograph:"  # what --image without a path stands for
DEFAULT_PICTURE = Path("ladder.png")


class ImageAlone(TyperCommand):
    """A command whose ``--image`` may stand without its path; Typer has no such option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give an ``--image`` that stands alone :data:`PHOTOGRAPH` as its path."""
        filled: list[str] = []
        for word, after in pairwise([*args, "--"]):  # as if another option followed
            filled.append(word)
            if word == "--image" and after.startswith("-"):
                filled.append(PHOTOGRAPH)
        return super().parse_args(ctx, filled)


def ladder(
    context: typer.Context,
    layer: options.LayerName = None,
    batch: options.Batch = None,
    dtype: options.Dtype = None,
    channels_last: options.ChannelsLast = False,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="auto, gpu, simulator or cudasim.")
    ] = "auto",
    stage: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this stage, such as m03; may be repeated."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="[PATH]",
            help="Run a picture through a bank of filters instead; without PATH, a photograph.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="PNG", help="The picture that --image draws: ladder.png.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the random tensors.")] = 0,
    yes: options.Yes = False,
    json_file: options.JsonFile = None,
) -> None:
    """Every stage on one problem, checked element by element; timed on a GPU, counted without one.

    Stages that do not take the problem's type of numbers or its layout are left out.
    Exits 1 when a stage is wrong, and says which, by how much and where first.
    """
    console = output_files.console_for(json_file)
    if image is None and output is not None:
        exits.refuse("--output is the picture that --image draws: give --image too")
    if image is not None and (layer is not None or batch is not None):
        exits.refuse("--image is a problem of its own: leave out --layer and --batch")
    if image is not None and (dtype is not None or channels_last):
        exits.refuse("--image is float32: leave out --dtype and --channels-last")
    picture_file = output or DEFAULT_PICTURE
    if image is not None:
        written = {"--output": picture_file, "--json": json_file}
        output_files.check_files(written, [image], "the picture itself")
    with requirements.numba_needed():
        from convlab.measuring import ladder_run as runner
        from convlab.measuring import photograph as pictures
        from convlab.problems.oracle import random_tensors
        from convlab.running.able_stages import stages_for
        from convlab.running.engines import EngineUnavailable, choose
    with exits.refusing(ValueError, EngineUnavailable, pictures.PlotsMissing):
        chosen_engine = choose(engine)
        chosen_stages, left_out = stages_for(chosen_engine, options.stages_named(stage))
        if stage and left_out is not None:  # it was asked for by name
            raise EngineUnavailable(left_out)
        picture = None
        if image is None:
            problem = workloads.workload(layer, batch, chosen_engine.name)
            problem = options.typed(problem, dtype, channels_last)
        else:
            path = None if image == PHOTOGRAPH else Path(image)
            picture = pictures.load(path, pictures.pixels_for(chosen_engine))
            problem = pictures.problem_for(picture)
        reasons = {one: one.why_not(problem) for one in chosen_stages}
        if stage:  # it was asked for by name
            for reason in filter(None, reasons.values()):
                raise ValueError(f"{reason} (--dtype, --channels-last)")
        chosen_stages = tuple(one for one in chosen_stages if reasons[one] is None)
        if not chosen_stages:
            raise ValueError(f"no stage takes {problem} (--dtype, --channels-last)")
        processes = min(runner.processes_for(chosen_engine), len(chosen_stages))
        seconds, usual_seconds = (
            (runner.estimated_seconds(one, chosen_stages, chosen_engine) or 0) / processes
            for one in (problem, workloads.DEFAULTS[chosen_engine.name])
        )
        if not yes:
            options.refuse_slow(problem, seconds, chosen_engine, usual_seconds)
    memory_permitting = partial(exits.refusing, MemoryError, hint="; a smaller --batch takes less")
    with memory_permitting():
        tensors = random_tensors(problem, seed)
        if picture is not None:
            tensors = pictures.tensors_for(picture)

    console.print(ladder_heading(problem, chosen_engine))
    if picture is not None and not chosen_engine.is_gpu:
        size = f"{problem.width} x {problem.height} pixels"
        console.print(f"picture         scaled to {size}: about {duration(seconds)} here")
    if left_out is not None:
        console.print(Text(f"left out        {left_out}"), soft_wrap=True)
    results: list[StageResult] = []
    shown: StageResult | None = None
    run = runner.run(problem, chosen_stages, chosen_engine, tensors, processes=processes)
    names = [chosen.name for chosen in chosen_stages]
    try:
        with memory_permitting(), display.progress(names) as advance:
            for result in run:
                results.append(replace(result, output=None))  # an output may be large
                if result.output is not None and (shown is None or shown.status != "WRONG"):
                    shown = result  # the first wrong one, else the last one
                advance()
    except KeyboardInterrupt:
        if results:
            console.print("", ladder_table(results, chosen_engine), sep="\n")
        done = f"{len(results)} of {len(chosen_stages)} stages"
        exits.fail(f"interrupted after {done}; no file was written", exits.INTERRUPTED)

    # Before the drawing, because the GPU's clocks are still those of the measurement.
    document = runner.as_json(problem, chosen_engine, results, arguments=context.obj)
    console.print("", ladder_table(results, chosen_engine), "", sep="\n")
    console.print(ladder_legend(chosen_engine))
    if picture is not None:
        maps = None if shown is None or shown.output is None else shown.output[0]
        png = pictures.draw(picture, maps, shown, results, chosen_engine.device)
        output_files.write_whole(picture_file, png)
        console.print(Text(f"The picture and its feature maps are in {picture_file}"))
    output_files.write_json(json_file, document)
    right = "right"
    if not chosen_engine.is_gpu:
        more = "; `make test` tries many others" if in_checkout() else ""
        right = f"right on this problem{more}"
    exits.conclude(console, ladder_errors(results), "stage", len(results), right)
