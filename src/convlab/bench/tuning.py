"""Every tile of a stage on a problem: checked, then timed like the ladder's stages.

Numba compiles one kernel at a time, for seconds. So several processes compile, and a lock lets one
of them use the GPU. A tile is checked on the first and the last image of its batch against the
float64 oracle (the images between repeat these two), before timing and after. A tile that is wrong
or fails has no time.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, replace
from itertools import chain, groupby
from typing import Any

import numpy as np

from convlab.convolution import cores
from convlab.doctor import environment
from convlab.engines import Engine, choose
from convlab.ladder import too_fast
from convlab.oracle import CheckResult, Oracle, random_tensors
from convlab.plans import Plan, tile_by_rule
from convlab.problem import ConvProblem
from convlab.stages import Stage, Tile, allowances, candidates, stage_named

MOST_PROCESSES = 16
MEMORY_A_PROCESS = 2 * 2**30  # of the GPU: its context, beside the tensors of the one that measures
SEED = 12


@dataclass(frozen=True)
class Task:
    """One tile to be measured on a problem, which has a name."""

    name: str
    problem: ConvProblem
    stage: str
    tile: Tile


@dataclass(frozen=True)
class Measured:
    """A tile's median time and its spread in percent; or what is wrong, and then no time."""

    task: Task
    time_ms: float | None = None
    spread_percent: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Tuned:
    """A problem and its measured tiles; ``model`` is the tile that the heuristic chooses."""

    name: str
    problem: ConvProblem
    model: Tile
    measured: tuple[Measured, ...]

    @property
    def best(self) -> Measured | None:
        """The fastest; None where none is right."""
        right = [one for one in self.measured if one.time_ms is not None]
        return min(right, key=lambda one: one.time_ms or 0.0, default=None)

    @property
    def model_ms(self) -> float | None:
        """The time of the heuristic's tile; None where it is wrong."""
        return next((one.time_ms for one in self.measured if one.task.tile == self.model), None)

    @property
    def ratio(self) -> float | None:
        """The time of the heuristic's tile over the best time."""
        best = self.best and self.best.time_ms
        return self.model_ms / best if self.model_ms and best else None

    def as_json(self) -> dict[str, Any]:
        """As ``convlab tune --json`` writes it."""
        tiles: list[dict[str, Any]] = [
            {"tile": astuple(one.task.tile), "time_ms": one.time_ms}
            | {"time_spread": one.spread_percent, "error": one.error}
            for one in self.measured
        ]
        return {
            "name": self.name,
            "problem": str(self.problem),
            "flops": self.problem.flops,
            "model": astuple(self.model),
            "best": self.best and astuple(self.best.task.tile),
            "ratio": self.ratio,
            "tiles": tiles,
        }


def tasks_for(problems: dict[str, ConvProblem], stage: Stage) -> list[Task]:
    """Every candidate of every problem, problem by problem.

    Raises ``ValueError`` for a stage that has nothing to choose from.
    """
    tasks = [
        Task(name, problem, stage.name, tile)
        for name, problem in problems.items()
        for tile in candidates(stage, problem)
    ]
    if not tasks:
        raise ValueError(f"stage is {stage.name!r}: it has one tile for a problem, none to choose")
    return tasks


def tuned(found: Sequence[Measured], stage: Stage, engine: Engine) -> Tuned:
    """One problem's measured tiles together."""
    task = found[0].task
    model = tile_by_rule(task.problem, stage, engine)
    assert model is not None  # a stage with candidates has a production tile
    return Tuned(task.name, task.problem, model, tuple(found))


def processes(engine: Engine) -> int:
    """How many compile at a time: each takes a core, and a context in the GPU's memory."""
    room = (engine.free_bytes() or 0) // MEMORY_A_PROCESS
    return max(1, min(cores(), room, MOST_PROCESSES))


def measure_all(tasks: Sequence[Task], jobs: int) -> Generator[Measured, None, None]:
    """Each task's result, in their order; ``jobs`` processes compile ahead.

    Where the caller stops early, by Ctrl-C too, each process finishes its present part and ends.
    """
    parts = groups(tasks, jobs)
    jobs = min(jobs, len(parts))
    if jobs <= 1:
        yield from chain.from_iterable(map(measure_group, parts))
        return
    context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
    pool = ProcessPoolExecutor(jobs, context, _begin, (context.Lock(),))
    try:
        yield from chain.from_iterable(pool.map(measure_group, parts))
    finally:
        pool.shutdown(cancel_futures=True)


def groups(tasks: Sequence[Task], jobs: int) -> list[list[Task]]:
    """What a process does at a time: a problem's tiles, so that their tensors are copied to the GPU
    once, where that leaves no process idle; else one tile."""
    by_name = [list(part) for _, part in groupby(tasks, lambda task: task.name)]
    return by_name if len(by_name) > jobs > 1 else [[task] for task in tasks]


_gpu: AbstractContextManager[Any] = nullcontext()  # held while the GPU is used


def _begin(lock: AbstractContextManager[Any]) -> None:
    """Set up a process: it shares the GPU and ends at Ctrl-C, at once and silently."""
    global _gpu
    _gpu = lock
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def measure_group(tasks: Sequence[Task]) -> list[Measured]:
    """Compile the tiles of one problem, then check, time and check again. Errors are data, because
    not every exception can be sent from process to process."""
    problem = tasks[0].problem
    try:
        engine = choose("gpu")
        plans = [_compiled(task, engine) for task in tasks]
        few = _two_images(problem)
        oracle = Oracle(replace(problem, batch=len(few[0])), *few)
        with _gpu:
            images = np.arange(problem.batch) % len(few[0])
            images[-1] = len(few[0]) - 1
            tensors = [engine.to_device(tensor) for tensor in (few[0][images], *few[1:])]
            measured = [
                _measured(task, plan, tensors, oracle, engine)
                for task, plan in zip(tasks, plans, strict=True)
            ]
            del tensors
            engine.free_bytes()  # so that the next process can have what this one has freed
        return measured
    except Exception as error:  # no GPU, or no memory for these tensors
        return [_failed(task, error) for task in tasks]


def _two_images(problem: ConvProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input of one or two images, weight and bias."""
    return random_tensors(replace(problem, batch=min(problem.batch, 2)), SEED)


def _compiled(task: Task, engine: Engine) -> Plan | Exception:
    try:
        return Plan(task.problem, stage_named(task.stage), task.tile, engine)
    except Exception as error:  # what a stage or its compiler raises is that tile's result
        return error


def _measured(
    task: Task, plan: Plan | Exception, tensors: Sequence[Any], oracle: Oracle, engine: Engine
) -> Measured:
    from convlab.timer import measure  # needs a GPU

    stage = stage_named(task.stage)
    input, weight, bias = tensors

    def check() -> CheckResult:
        ends = [output[:1], output[-1:]][: oracle.problem.batch]
        few = np.concatenate([engine.to_host(end) for end in ends])
        return oracle.check(few, **allowances(stage, task.problem))

    try:
        if isinstance(plan, Exception):
            raise plan
        output = engine.to_device(np.full(task.problem.output_shape, np.nan, np.float32))
        plan(input, weight, output, bias)
        if not (checked := check()).ok:
            return Measured(task, error=str(checked))
        timing = measure(lambda stream: plan(input, weight, output, bias, stream=stream))
        if not (checked := check()).ok:
            return Measured(task, error=f"after it was timed: {checked}")
        if (refused := too_fast(task.problem.flops, timing, engine, stage)) is not None:
            return Measured(task, error=refused)
        return Measured(task, timing.median_ms, timing.spread_percent)
    except Exception as error:
        return _failed(task, error)


def _failed(task: Task, error: Exception) -> Measured:
    return Measured(task, error=f"{type(error).__name__}: {' '.join(str(error).split())}")


def as_json(
    found: Sequence[Tuned], stage: Stage, engine: Engine, *, arguments: Sequence[str] = ()
) -> dict[str, Any]:
    """What ``convlab tune --json`` writes; ``arguments`` is what was typed after ``convlab``."""
    return {
        "device": engine.device,
        "multiprocessors": engine.sm_count(),
        "stage": stage.name,
        "environment": environment(arguments),
        "problems": [tuned.as_json() for tuned in found],
    }
