"""A learner's kernel timed beside the stage's and a library's convolution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from convlab.checking.loading import maker
from convlab.checking.programs import program_with
from convlab.ladder import Program, Tile, short_name, stage_named
from convlab.lessons.charts import stored
from convlab.lessons.pictures import Picture, bars
from convlab.measuring import ladder_run as ladder
from convlab.measuring.baselines import Prepared, Unsupported
from convlab.measuring.ladder_run import Tensors
from convlab.measuring.systems import BASELINES
from convlab.problems import workloads
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.running.engines import choose

HOW = "checked, then timed with L2 flushed before each run: the median of some 20 runs"


def time_mine(made: Any, stage: str, problem: ConvProblem | None = None) -> Picture | None:
    """Time a learner's ``make_kernel`` beside the stage's own kernel and a library's convolution.

    The ladder's timer measures them; the bars are milliseconds. ``problem`` is conv9 by default. A
    wrong kernel is not timed, and the reason is printed. Without a GPU, the function prints what it
    would do and returns None. Raises ``ValueError`` for an unknown stage, and for anything that
    does not make a kernel.
    """
    engine, step = choose(), stage_named(stage)
    problem = problem or workloads.GPU_DEFAULT
    short, make = short_name(step.name), maker(made, step)
    if not engine.is_gpu:
        document = stored()
        (stages,) = (one["time_ms"] for one in document["stages"] if one["name"] == step.name)
        print(
            f"There is no GPU here. On a GPU, your kernel, {short}'s and a library's convolution "
            f"would be {HOW}.\nOn an {document['device']} {short} takes {stages:.3g} ms for conv9."
        )
        return None

    def prepare(problem: ConvProblem, tile: Tile | None) -> Program:
        return program_with(step, make, problem, tile)

    tensors = random_tensors(problem, 0)
    both = (step, replace(step, prepare=prepare))
    times = {}
    ran = ladder.run(problem, both, engine, tensors)
    for name, found in zip((short, "yours"), ran, strict=True):
        if found.ok and found.time_ms is not None:
            times[name] = found.time_ms
        else:
            print(f"{name} is not timed: {found.error}")
    times |= dict(_by_library(problem, tensors))
    caption = f"On {engine.device}, {problem}: {HOW}. Shorter is better."
    return bars({"milliseconds": times}, caption, unit=" ms") if times else None


def _by_library(problem: ConvProblem, tensors: Tensors) -> Iterator[tuple[str, float]]:
    """Return the first installed library and its time, or nothing and the reason."""
    for system in BASELINES:
        if not system.on_gpu or system.precision != "fp32" or system.why_absent() is not None:
            continue
        try:
            ready = system.prepare(problem, *tensors[:2])
        except Unsupported as error:
            print(f"{system.title} is not timed: {error}")
            continue
        try:
            yield system.title, _library_ms(ready)
        finally:
            ready.close()
        return
    print("No library is timed, because none is installed. PyTorch would be one.")


def _library_ms(ready: Prepared) -> float:
    from convlab.measuring.timer import measure  # needs a GPU

    start = lambda stream: ready.run(int(stream.handle))  # noqa: E731
    return measure(start, as_graph=ready.capturable).median_ms
