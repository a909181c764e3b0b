"""What several verbs take, choose and say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from convlab import workloads
from convlab.problem import ConvProblem
from convlab.shell import WRONG, refuse

if TYPE_CHECKING:
    from convlab.engines import Engine
    from convlab.stage import Capability
    from convlab.stages import Stage

JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Also write JSON to FILE; - is standard output."),
]
Layer = Annotated[
    str | None, typer.Option(metavar="NAME", help="A layer of the paper: conv1 to conv12.")
]
Batch = Annotated[int | None, typer.Option(metavar="N", help="How many images.")]
Yes = Annotated[bool, typer.Option("--yes", help="Wait, however long it takes.")]


def stages_named(names: Sequence[str] | None) -> tuple[Stage, ...]:
    """The stages of these names in the ladder's order; without names, all."""
    from convlab.stages import LADDER, stage_named

    wanted = LADDER if not names else [stage_named(name) for name in names]
    return tuple(stage for stage in LADDER if stage in wanted)


def problem_from(layer: str | None, batch: int | None, engine: Engine) -> ConvProblem:
    """The layer of that name, or the engine's default problem, with that many images."""
    from convlab.ladder import default_problem

    problem = default_problem(engine) if layer is None else workloads.paper_layer(layer)
    return problem if batch is None else replace(problem, batch=batch)


def too_slow(
    problem: ConvProblem, seconds: float, engine: Engine, patience: float, gpu: bool = True
) -> str:
    """The sentence for what takes longer than ``patience``: how long, and what to do instead."""
    alone = seconds / problem.batch
    one = f" --batch 1 (about {duration(alone)})," if alone <= patience else ""
    or_gpu = " or a GPU" if gpu else ""
    return (
        f"this takes {engine.device} about {duration(seconds)}: use{one} the default problem "
        f"(seconds){or_gpu}, or add --yes to wait"
    )


def duration(seconds: float) -> str:
    """Seconds as people say them: "5 minutes"."""
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} seconds"


def capability(option: str, arch: str) -> Capability:
    """(9, 0) for ``sm_90``.

    Raises ``ValueError`` that names the option for what is no such name.
    """
    digits = re.fullmatch(r"sm_(\d{1,2})(\d)", arch)
    if digits is None:
        raise ValueError(f"{option} is {arch!r}: it must be sm_ and digits, such as sm_90")
    return int(digits[1]), int(digits[2])


def check_compilers(user: str) -> None:
    """Refuse where a compiler or the disassembler is missing; ``user`` is what needs them."""
    from convlab.doctor import compilers

    for tool in compilers():
        if not tool["found"]:
            refuse(f"{tool['name']} is missing, and {user} needs it: run {tool['install']}")


def conclude(console: Console, errors: Sequence[Text], noun: str, checked: int, right: str) -> None:
    """Print what is wrong and exit with 1, or say that all is right."""
    for line in errors:
        console.print(line, soft_wrap=True)
    if errors:
        raise typer.Exit(WRONG)
    all_are = f"The {noun} is" if checked == 1 else f"All {checked} {noun}s are"
    console.print(Text(f"{all_are} {right}.", "green"))
