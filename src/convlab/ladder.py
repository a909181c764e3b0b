"""The main job: every stage on one problem, judged, and timed on a GPU or counted without one."""

from __future__ import annotations

import gc
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from convlab import stages as stages_folder
from convlab import workloads
from convlab.doctor import environment
from convlab.engines import Counts, Engine
from convlab.files import strict
from convlab.oracle import CheckResult, Oracle
from convlab.plans import Plan
from convlab.problem import ConvProblem
from convlab.stages import LADDER, Launch, Stage, Step, Tile

if TYPE_CHECKING:
    from convlab.timer import Timing

STAGES = Path(stages_folder.__file__).parent
KERNELS = STAGES.parent / "kernels"  # what stages take parts from
BASELINE = LADDER[0].name  # what speedups are over

# Multiply-adds a second that a simulator does, about, to tell how long a wait will be. They differ
# from stage to stage: 170,000 to 500,000 in convlab's with every check, 2,000 to 60,000 in Numba's,
# on two CPU cores. One that is not listed is taken to be the slowest.
SIMULATED_PER_SECOND = {"simulator": 300_000, "cudasim": 20_000}
PATIENCE_SECONDS = 120

QUICK = "simulator"  # quick enough to count a small model of what a GPU does

Tensors = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Result:
    """How one stage did on a problem.

    ``failed`` says what it raised, so that there is no verdict, or why its time was refused.
    ``timing`` is None without a GPU, the counts with one: ``counts`` is the main kernel's (the last
    launch's, and all others of it), ``pre_pass_counts`` that of the others together, None where
    there are none or a library does the work.
    ``launch_ms`` has each kernel's own time.
    """

    stage: Stage
    flops: int
    workspace_bytes: int | None = None
    verdict: CheckResult | None = None
    failed: str | None = None
    counts: dict[str, float | None] | None = None
    pre_pass_counts: dict[str, float | None] | None = None
    timing: Timing | None = None
    launch_ms: dict[str, float] | None = None

    @property
    def ok(self) -> bool:
        """Whether it ran and its output is right; on a GPU also whether its time can be trusted."""
        return self.failed is None and self.verdict is not None and self.verdict.ok

    @property
    def judged(self) -> str:
        """OK, WRONG (the output is) or FAILED (there is nothing to go by), as people see it."""
        return "OK" if self.ok else "FAILED" if self.failed else "WRONG"

    @property
    def error(self) -> str | None:
        """What is wrong, in one sentence; None when nothing is."""
        return None if self.ok else self.failed or str(self.verdict)

    @property
    def error_over_bound(self) -> float | None:
        """The largest error as a part of what rounding allows: up to 1 is right."""
        return None if self.verdict is None else float(self.verdict.error_over_bound)

    @property
    def time_ms(self) -> float | None:
        """The median of its runs, pre-passes included; None without a GPU."""
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
    *,
    on_output: Callable[[np.ndarray], None] = lambda output: None,
) -> Iterator[Result]:
    """Run and judge each stage in turn; a stage that raises gets a failed result, the next go on.

    ``tensors`` are input, weight and bias on the host. ``on_output`` gets every stage's output,
    right or wrong, before its result is yielded.
    """
    oracle = Oracle(problem, *tensors)
    for stage in stages:
        result = _run_one(problem, stage, engine, tensors, oracle, on_output)
        if result.failed:
            gc.collect()  # what was raised and the calls it came through may hold each other
        yield result


def _run_one(
    problem: ConvProblem,
    stage: Stage,
    engine: Engine,
    tensors: Tensors,
    oracle: Oracle,
    on_output: Callable[[np.ndarray], None],
) -> Result:
    """One stage's result, on tensors of its own: what it spoils is not the next stage's. Its plan,
    and so its workspace, goes with it."""
    workspace_bytes = None
    try:
        ready = Plan(problem, stage, _tile(stage, engine), engine)
        workspace_bytes = ready.workspace_bytes
        arrays = [engine.to_device(tensor) for tensor in tensors]
        result = _run_plan(ready, arrays, oracle, on_output)
        for name, array, tensor in zip(("input", "weight", "bias"), arrays, tensors, strict=True):
            if not np.array_equal(engine.to_host(array), tensor, equal_nan=True):
                return replace(result, failed=f"a kernel wrote to {name}, not its output")
        return result
    except Exception as error:  # what a kernel or its compiler raises is that stage's result
        return Result(stage, problem.flops, workspace_bytes, failed=_one_line(error, stage))


def default_problem(engine: Engine) -> ConvProblem:
    """What is run when nobody names a problem."""
    if engine.is_gpu:
        return workloads.GPU_DEFAULT
    return workloads.MODEL if engine.name == QUICK else workloads.TEACHING


def _tile(stage: Stage, engine: Engine) -> Tile | None:
    """The tile to count with; None for the one that suits the engine anyway."""
    return stage.model_tile if engine.name == QUICK else None


def _run_plan(
    ready: Plan, arrays: Sequence[Any], oracle: Oracle, on_output: Callable[[np.ndarray], None]
) -> Result:
    input, weight, bias = arrays
    problem, engine = ready.problem, ready.engine

    def judged(work: Callable[[Any], Any]) -> tuple[CheckResult, Any]:
        # Poisoned first, so that an element nobody wrote is not an earlier run's right answer.
        output = engine.to_device(np.full(problem.output_shape, np.nan, np.float32))
        measured = work(output)
        host = engine.to_host(output)
        on_output(host)
        return oracle.check(host, **ready.stage.allowances(problem)), measured

    def run_and_count(output: Any) -> list[Counts]:
        tallies = []
        for step in ready.steps(input, weight, output, bias):
            with engine.counting() as counts:
                step(None)
            tallies.append(counts)
        engine.synchronize()
        return tallies

    def run_and_time(output: Any) -> Timing:
        from convlab.timer import measure  # needs a GPU

        return measure(lambda stream: ready(input, weight, output, bias, stream=stream))

    def time_launches(together: Timing) -> dict[str, float]:
        from convlab.timer import measure

        # Not the judged output: a launch that adds to what another cleared spoils it when alone.
        steps = ready.steps(input, weight, engine.empty(problem.output_shape), bias)
        by_name: dict[str, list[Callable[[Any], None]]] = {}
        for launch, step in zip(ready.program.launches, steps, strict=True):
            by_name.setdefault(launch.name, []).append(step)
        if len(by_name) == 1:
            return dict.fromkeys(by_name, together.median_ms)
        return {name: measure(_in_turn(same)).median_ms for name, same in by_name.items()}

    verdict, tallies = judged(run_and_count)
    result = Result(ready.stage, problem.flops, ready.workspace_bytes, verdict)
    if not engine.is_gpu:
        main, pre_passes = _main_and_others(ready.program.launches, tallies)
        return replace(
            result,
            counts=None if main is None else main.as_dict(problem.flops),
            pre_pass_counts=None if pre_passes is None else pre_passes.as_dict(0),
        )
    if not verdict.ok:
        return result
    verdict, timing = judged(run_and_time)
    result = replace(result, verdict=verdict)
    if not verdict.ok:  # a wrong answer's time means nothing
        return result
    if (refused := too_fast(problem.flops, timing, engine, ready.stage)) is not None:
        return replace(result, failed=refused)
    return replace(result, timing=timing, launch_ms=time_launches(timing))


def _in_turn(steps: Sequence[Callable[[Any], None]]) -> Callable[[Any], None]:
    def run(stream: Any) -> None:
        for step in steps:
            step(stream)

    return run


def _main_and_others(
    steps: Sequence[Step], tallies: Sequence[Counts]
) -> tuple[Counts | None, Counts | None]:
    """The counts of the main kernel, all its launches together, and those of the kernels before it;
    None where there are none. What a library does is not counted."""
    if not steps:
        return Counts(), None
    main: list[Counts] = []
    others: list[Counts] = []
    for step, counts in zip(steps, tallies, strict=True):
        if isinstance(step, Launch):
            (main if step.name == steps[-1].name else others).append(counts)
    return reduce(add, main) if main else None, reduce(add, others) if others else None


def too_fast(flops: int, timing: Timing, engine: Engine, stage: Stage) -> str | None:
    """What is wrong with a time in which no GPU of this kind can do the arithmetic."""
    peak, rate = engine.peak_flops(stage.precision), flops / timing.median_ms * 1e3
    if peak is None or rate <= peak:
        return None
    return (
        f"its time is refused: {timing.median_ms:.3g} ms are {rate / 1e12:.4g} TFLOP/s, and "
        f"{engine.device} can do {peak / 1e12:.4g} at most"
    )


def _one_line(error: Exception, stage: Stage) -> str:
    """What a stage raised and, where it was its own file that did, on which line."""
    words = " ".join(str(error).split())
    raised = f"raised {type(error).__name__}{_place(error, stage)}: {words}"
    return textwrap.shorten(raised, 300, placeholder=" ...")


def _place(error: Exception, stage: Stage) -> str:
    """`` at FILE:LINE`` of the innermost call in the stage's file, or else in one that it takes
    parts from; empty where the error comes from elsewhere."""
    own = STAGES / f"{stage.name}.py"
    calls = [
        (Path(call.filename), call.lineno) for call in traceback.extract_tb(error.__traceback__)
    ]
    in_own = [call for call in calls if call[0] == own]
    nearby = [call for call in calls if call[0].parent in (STAGES, KERNELS)]
    for path, line in (in_own or nearby)[-1:]:
        return f" at {path.name}:{line}"
    return ""


def estimated_seconds(
    problem: ConvProblem, stages: Sequence[Stage], engine: Engine
) -> float | None:
    """About how long a simulator takes for these stages; None on a GPU."""
    if engine.is_gpu:
        return None
    speed = SIMULATED_PER_SECOND.get(engine.name, min(SIMULATED_PER_SECOND.values()))
    return len(stages) * (problem.M * problem.N * problem.K) / speed


def speedup(result: Result, results: Iterable[Result]) -> float | None:
    """How many times as fast as s01; None unless both were timed."""
    for other in results:
        if other.stage.name == BASELINE and other.time_ms and result.time_ms:
            return other.time_ms / result.time_ms
    return None


def as_json(
    problem: ConvProblem,
    engine: Engine,
    results: Sequence[Result],
    *,
    arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """What ``convlab ladder --json`` writes; ``arguments`` is what was typed after ``convlab``.

    ``time_spread`` is in percent of ``time_ms``; ``launch_ms`` is each kernel's time when it runs
    alone, by its name: their sum is not quite ``time_ms``, as launches in a row overlap a little
    and L2 is flushed before each. ``counts`` are the main kernel's; ``pre_passes`` in them is the
    other kernels' together. ``first_wrong`` is the first element outside the bound.
    ``environment`` is what the times were measured with, null on a simulator. JSON has no NaN and
    no infinity: such a number is the string "nan", "inf" or "-inf".
    """
    shapes = {
        **{field.name: getattr(problem, field.name) for field in fields(problem)},
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
    plain: dict[str, Any] = strict(document)
    return plain


def _stage_json(result: Result, results: Sequence[Result]) -> dict[str, Any]:
    verdict, timing = result.verdict, result.timing
    wrong = verdict is not None and not verdict.ok and verdict.first is not None
    return {
        "name": result.stage.name,
        "ok": result.ok,
        "error_over_bound": result.error_over_bound,
        "time_ms": result.time_ms,
        "time_spread": None if timing is None else timing.spread_percent,
        "launch_ms": result.launch_ms,
        "tflops": result.tflops,
        "speedup": speedup(result, results),
        "workspace_bytes": result.workspace_bytes,
        "counts": None
        if result.counts is None
        else {**result.counts, "pre_passes": result.pre_pass_counts},
        "error": result.error,
        "first_wrong": {"index": verdict.first, "got": verdict.got, "expected": verdict.expected}
        if verdict is not None and wrong
        else None,
    }
