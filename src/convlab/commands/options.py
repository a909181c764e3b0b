"""Options that several verbs have, and the stage, problem or GPU that their values name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from convlab.commands.exits import refuse
from convlab.problems.problem import ConvProblem
from convlab.support.progress import duration

if TYPE_CHECKING:
    from convlab.ladder import Stage
    from convlab.ladder.stage import Capability
    from convlab.running.engines import Engine


JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Also write JSON to FILE; - is standard output."),
]
LayerName = Annotated[
    str | None, typer.Option(metavar="NAME", help="A layer of the paper: conv1 to conv12.")
]
Batch = Annotated[int | None, typer.Option(metavar="N", help="How many images.")]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", metavar="TYPE", help="float32, float16 or bfloat16 numbers."),
]
ChannelsLast = Annotated[
    bool, typer.Option("--channels-last", help="The tensors' channels are last in memory.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Wait, however long it takes.")]


def stages_named(names: Sequence[str] | None) -> tuple[Stage, ...]:
    """The stages of these names, those of the ladder first; without names, the ladder."""
    from convlab.ladder import ABLATION, GROUPED, LADDER, stage_named

    wanted = LADDER if not names else [stage_named(name) for name in names]
    return tuple(stage for stage in (*LADDER, ABLATION, GROUPED) if stage in wanted)


def typed(problem: ConvProblem, dtype: str | None, channels_last: bool) -> ConvProblem:
    """Return the problem of numbers of that type, None for its own, and of that layout."""
    return replace(problem, dtype=dtype or problem.dtype, channels_last=channels_last)


def refuse_slow(
    problem: ConvProblem, seconds: float, engine: Engine, usual_seconds: float, gpu: bool = True
) -> None:
    """Refuse work that takes longer than a person waits; say how long, and what to do instead.
    ``usual_seconds`` is how long the default problem takes."""
    from convlab.measuring.ladder_run import MOST_SECONDS_UNASKED

    if seconds <= MOST_SECONDS_UNASKED:
        return
    alone = seconds / problem.batch
    one = f" --batch 1 (about {duration(alone)})," if alone <= MOST_SECONDS_UNASKED else ""
    usual = f" the default problem (about {duration(usual_seconds)})"
    or_gpu = " or a GPU" if gpu else ""
    refuse(
        f"this takes {engine.device} about {duration(seconds)}: use{one}{usual}{or_gpu}, or add "
        "--yes to wait"
    )


def capability(option: str, arch: str) -> Capability:
    """(9, 0) for ``sm_90``. Raises ``ValueError``, naming the option, for any other name."""
    digits = re.fullmatch(r"sm_([0-9]{1,2})([0-9])", arch)
    if digits is None:
        raise ValueError(f"{option} is {arch!r}: it must be sm_ and digits, such as sm_90")
    return int(digits[1]), int(digits[2])
