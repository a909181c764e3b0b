"""The main job: every stage on one problem, checked, and timed on a GPU or counted without one."""

from __future__ import annotations

import gc
import multiprocessing
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from operator import add
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from convlab import ladder
from convlab.ladder import LADDER, Launch, Stage, Tile, allowances
from convlab.measuring.machine import environment
from convlab.measuring.side_by_side import NoAnswer, side_by_side
from convlab.problems.oracle import CheckResult, Oracle
from convlab.problems.problem import ConvProblem
from convlab.running.engines import Counts, Engine
from convlab.running.plans import Plan
from convlab.running.simulated_time import simulated_seconds
from convlab.support.files import strict

if TYPE_CHECKING:
    from convlab.measuring.timer import Timing

STAGES = Path(ladder.__file__).parent
BASELINE = LADDER[0].name  # speedups are relative to this stage

MOST_SECONDS_UNASKED = 120  # a longer run on a simulator needs --yes
MOST_PROCESSES = 8

QUICK = "simulator"  # fast enough to count a small model of what a GPU does

Tensors = tuple[np.ndarray, np.ndarray, np.ndarray]


_Measured = TypeVar("_Measured")


@dataclass(frozen=True)
class StageResult:
    """The result of one stage on a problem.

    ``failed`` says what the stage raised (then there is no ``check``) or why its time was refused.
    A simulator gives counts and no times, a GPU gives times and no counts. ``counts`` are the main
    kernel's, ``transform_counts`` the layout transforms', None if there is none; ``launch_ms`` is
    the time of each kernel alone. ``output`` is the checked output, on the host.
    """

    stage: Stage
    flops: int
    workspace_bytes: int | None = None
    tile: Tile | None = None
    check: CheckResult | None = None
    failed: str | None = None
    counts: dict[str, float | None] | None = None
    transform_counts: dict[str, float | None] | None = None
    timing: Timing | None = None
    launch_ms: dict[str, float] | None = None
    output: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Return whether it ran and its output is right.

        On a GPU its time must also be one that can be trusted.
        """
        return self.failed is None and self.check is not None and self.check.ok

    @property
    def status(self) -> str:
        """OK, WRONG (the output is) or FAILED (there is no output, or no time to trust)."""
        return "OK" if self.ok else "FAILED" if self.failed else "WRONG"

    @property
    def error(self) -> str | None:
        """Return a sentence that says what is wrong; None if nothing is."""
        return None if self.ok else self.failed or str(self.check)

    @property
    def error_over_bound(self) -> float | None:
        """The largest error divided by the rounding-error bound: up to 1 is right."""
        return None if self.check is None else float(self.check.error_over_bound)

    @property
    def time_ms(self) -> float | None:
        """The median of its runs, layout transforms included; None without a GPU."""
        return None if self.timing is None else self.timing.median_ms

    @property
    def tflops(self) -> float | None:
        """The convolution's floating-point operations over that time, in 10^12 a second."""
        return None if self.time_ms is None else self.flops / self.time_ms / 1e9


def run(
    problem: ConvProblem,
    stages: Iterable[Stage],
    engine: Engine,
    tensors: Tensors,
    processes: int = 1,
) -> Iterator[StageResult]:
    """Run and check the stages, and yield their results in their order. A stage that raises gets a
    failed result, and the next one runs. ``tensors`` are input, weight and bias on the host. With
    several ``processes``, so many stages run at once, each in a process of its own: see
    :func:`processes_for`."""
    oracle = Oracle(problem, *tensors)

    def run_one(stage: Stage) -> StageResult:
        result = _run_one(problem, stage, engine, tensors, oracle)
        if result.failed:
            gc.collect()  # an exception and its stack frames may refer to each other
        return result

    if processes > 1:
        yield from _in_processes(run_one, [*stages], problem.flops, processes)
    else:
        yield from map(run_one, stages)


def _in_processes(
    run_one: Callable[[Stage], StageResult], stages: Sequence[Stage], flops: int, processes: int
) -> Iterator[StageResult]:
    """Yield the results of the stages, run in several processes."""

    def answer(stage: Stage) -> dict[str, Any]:
        result = run_one(stage)
        answered = {one.name: getattr(result, one.name) for one in fields(result)}
        del answered["stage"]  # the parent has it, and a learner's stage cannot be sent
        return answered

    with closing(side_by_side(answer, stages, processes)) as answers:
        for stage, answered in zip(stages, answers, strict=True):
            if isinstance(answered, NoAnswer):
                yield StageResult(stage, flops, failed=f"its process {answered.how}")
            else:
                yield StageResult(stage, **answered)


def processes_for(engine: Engine) -> int:
    """Return the number of stages that run at once.

    On a GPU it is one, because stages would disturb each other's times. On a simulator it is one
    for each core, if processes can fork.
    """
    if engine.is_gpu or "fork" not in multiprocessing.get_all_start_methods():
        return 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def _run_one(
    problem: ConvProblem, stage: Stage, engine: Engine, tensors: Tensors, oracle: Oracle
) -> StageResult:
    """One stage's result, on its own copies of the tensors, which are freed when this returns."""
    workspace_bytes, tile = None, None
    try:
        tile = None if engine.is_gpu else simulated_tile(stage, engine)
        ready = Plan(problem, stage, tile, engine)
        workspace_bytes, tile = ready.workspace_bytes, ready.tile
        arrays = [engine.to_device(tensor, problem.dtype) for tensor in tensors]
        result = _run_plan(ready, arrays, oracle)
        for name, array, tensor in zip(("input", "weight", "bias"), arrays, tensors, strict=True):
            now = engine.to_host(array, problem.dtype)
            if not np.array_equal(now, tensor, equal_nan=True):
                return replace(result, failed=f"a kernel wrote to {name}, not its output")
        return result
    except Exception as error:  # an error of a kernel or its compiler is the stage's result
        return StageResult(
            stage, problem.flops, workspace_bytes, tile, failed=_one_line(error, stage)
        )


def _run_plan(ready: Plan, arrays: Sequence[Any], oracle: Oracle) -> StageResult:
    input, weight, bias = arrays
    problem, engine = ready.problem, ready.engine

    def checked(work: Callable[[Any], _Measured]) -> tuple[np.ndarray, CheckResult, _Measured]:
        # NaN first, so that an unwritten element does not keep an earlier run's right answer.
        unwritten = np.full(problem.output_shape, np.nan, np.float32)
        output = engine.to_device(unwritten, problem.dtype)
        measured = work(output)
        host = engine.to_host(output, problem.dtype)
        return host, oracle.check(host, **allowances(ready.stage, problem)), measured

    def run_and_count(output: Any) -> list[Counts]:
        tallies = []
        for step in ready.steps(input, weight, output, bias):
            with engine.counting() as counts:
                step(None)
            tallies.append(counts)
        engine.synchronize()
        return tallies

    found, check, tallies = checked(run_and_count)
    facts = problem.flops, ready.workspace_bytes, ready.tile
    result = StageResult(ready.stage, *facts, check, output=found)
    if not engine.is_gpu:
        ran = zip(ready.program.launches, tallies, strict=True)
        counted = [(step.name, counts) for step, counts in ran if isinstance(step, Launch)]
        main = ready.program.launches[-1].name if counted else None
        counts = _summed([one for name, one in counted if name == main], problem.flops)
        others = _summed([one for name, one in counted if name != main], 0)
        return replace(result, counts=counts, transform_counts=others)
    if not check.ok:
        return result
    from convlab.measuring.timer import measure  # needs a GPU

    def run_and_time(output: Any) -> Timing:
        return measure(lambda stream: ready(input, weight, output, bias, stream=stream))

    found, check, timing = checked(run_and_time)
    result = replace(result, check=check, output=found)
    if not check.ok:  # a wrong answer's time means nothing
        return result
    precision = ready.stage.precision_on(problem)
    if (refused := too_fast(problem.flops, timing, engine, precision)) is not None:
        return replace(result, failed=refused)
    launches = ready.program.launches
    names = dict.fromkeys(launch.name for launch in launches)
    # On another output, because a launch that adds to an output spoils it if no launch clears it
    # first.
    another = engine.empty(problem.output_shape, problem.dtype)
    steps = ready.steps(input, weight, another, bias)

    def time_alone(name: str) -> float:
        same = [step for launch, step in zip(launches, steps, strict=True) if launch.name == name]
        return measure(lambda stream: [step(stream) for step in same]).median_ms

    launch_ms = {name: time_alone(name) if len(names) > 1 else timing.median_ms for name in names}
    return replace(result, timing=timing, launch_ms=launch_ms)


def _summed(counts: Sequence[Counts], flops: int) -> dict[str, float | None] | None:
    """The counts of several launches, added; None without any. A library's work is not counted."""
    return reduce(add, counts).as_dict(flops) if counts else None


def too_fast(flops: int, timing: Timing, engine: Engine, precision: str) -> str | None:
    """Return why this GPU cannot do the arithmetic in that time, in one sentence; None if it
    can."""
    peak, rate = engine.peak_flops(precision), flops / timing.median_ms * 1e3
    if peak is None or rate <= peak:
        return None
    return (
        f"its time is refused: {timing.median_ms:.3g} ms are {rate / 1e12:.4g} TFLOP/s, and "
        f"{engine.device} can do {peak / 1e12:.4g} at most"
    )


def _one_line(error: Exception, stage: Stage) -> str:
    """The error that a stage raised and, if possible, its line: the line of the innermost call in
    the stage's file, or else in a file of the ladder's folders, which stages share."""
    calls = [(Path(call.filename), call.lineno) for call in extract_tb(error.__traceback__)]
    own = [call for call in calls if call[0].stem == stage.name and STAGES in call[0].parents]
    shared = [call for call in calls if STAGES in call[0].parent.parents]
    place = "".join(f" at {path.name}:{line}" for path, line in (own or shared)[-1:])
    said = f"raised {type(error).__name__}{place}: {error}"
    return textwrap.shorten(said, 300, placeholder=" ...")  # on one line


def estimated_seconds(
    problem: ConvProblem, stages: Sequence[Stage], engine: Engine
) -> float | None:
    """About how long a simulator takes for these stages; None on a GPU."""
    if engine.is_gpu:
        return None
    return sum(
        simulated_seconds(problem, stage, simulated_tile(stage, engine), engine) or 0
        for stage in stages
    )


def simulated_tile(stage: Stage, engine: Engine) -> Tile | None:
    """The ladder's tile for a stage: the quick simulator is fast enough for the model tile."""
    return stage.model_tile if engine.name == QUICK else stage.tiny_tile


def speedup(result: StageResult, results: Iterable[StageResult]) -> float | None:
    """Return the time of m01 over a stage's time; None unless both were timed."""
    for other in results:
        if other.stage.name == BASELINE and other.time_ms and result.time_ms:
            return other.time_ms / result.time_ms
    return None


def as_json(
    problem: ConvProblem,
    engine: Engine,
    results: Sequence[StageResult],
    arguments: Sequence[str] = (),
) -> dict[str, object]:
    """Return the document of ``convlab ladder --json`` (docs/json.md).

    ``arguments`` are the words after ``convlab``. Numbers that are not finite become strings.
    """
    shapes = {
        **{size.name: getattr(problem, size.name) for size in fields(problem)},
        "input_shape": problem.input_shape,
        "weight_shape": problem.weight_shape,
        "output_shape": problem.output_shape,
        "gemm": {"M": problem.M, "N": problem.N, "K": problem.K},
        "flops": problem.flops,
    }
    document = {
        "engine": engine.name,
        "device": engine.device,
        "problem": shapes,
        "environment": environment(arguments) if engine.is_gpu else None,
        "stages": [_stage_json(result, results) for result in results],
    }
    return strict(document)  # type: ignore[no-any-return]


def _stage_json(result: StageResult, results: Sequence[StageResult]) -> dict[str, object]:
    check, counts, wrong = result.check, result.counts, None
    if check is not None and check.first is not None:
        wrong = {"index": check.first, "got": check.got, "expected": check.expected}
    if counts is not None:
        counts = {**counts, "layout_transforms": result.transform_counts}  # type: ignore[dict-item]
    return {
        "name": result.stage.name,
        "tile": None if result.tile is None else str(result.tile),
        "ok": result.ok,
        "error_over_bound": result.error_over_bound,
        "time_ms": result.time_ms,
        "time_spread": None if result.timing is None else result.timing.spread_percent,
        "launch_ms": result.launch_ms,
        "tflops": result.tflops,
        "speedup": speedup(result, results),
        "workspace_bytes": result.workspace_bytes,
        "counts": counts,
        "error": result.error,
        "first_wrong": wrong,
    }
