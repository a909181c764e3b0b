"""``check``: somebody's kernel against what a stage promises.

Three questions, in this order: does it give the right answer, on shapes that leave remainders
everywhere? Would it on a GPU too, or has the strict simulator findings? And does it ask as much of
memory as the stage of the ladder?
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from convlab import workloads
from convlab.checking.loading import in_words, is_kernel, load, place_of
from convlab.checking.machine_code import compiled
from convlab.checking.records import SPOILED, Answer, Check, Count
from convlab.engines.simulator import Simulator
from convlab.oracle import Oracle, random_tensors
from convlab.plans import Plan
from convlab.problem import ConvProblem
from convlab.simulation.findings import Finding, NotSimulated, SimulationError
from convlab.stage import SOURCES
from convlab.stages import Launch, Program, Stage, Tile, stage_named
from convlab.tracing import LaunchTrace, trace

# What kernels get wrong that are right on round numbers: sizes of one, primes, remainders in M, N
# and K of every tile, a stride larger than the filter, padding on each side alone, dilation.
PIXEL = ConvProblem(1, 1, 1, 1, 1, 1)
PROBLEMS = {
    "a single pixel": PIXEL,
    "a 1 x 1 filter": ConvProblem(2, 3, 5, 4, 6, 1),
    "prime sizes": ConvProblem(1, 2, 7, 5, 3, (3, 2)),
    "several images, many channels": ConvProblem(3, 7, 3, 3, 13, 2),
    "a stride larger than the filter": ConvProblem(2, 2, 9, 11, 5, 2, stride=(4, 3)),
    "padding wider than the image": ConvProblem(1, 2, 2, 3, 3, 3, padding=((3, 1), (0, 2))),
    "dilation": ConvProblem(1, 3, 12, 9, 4, (2, 3), dilation=(3, 2), stride=(1, 2)),
    "everything at once": ConvProblem(
        2, 5, 5, 8, 5, (2, 3), stride=(2, 3), padding=(1, 2), dilation=(1, 2)
    ),
    "NaN and infinities": ConvProblem(2, 2, 6, 5, 5, 3, stride=(2, 1), padding=1),
}
EVERYTHING = PROBLEMS["everything at once"]


def check(
    kernel: Any,
    stage: str,
    *,
    seed: int = 0,
    on_step: Callable[[], object] = lambda: None,
    model: ConvProblem | None = None,
) -> Check:
    """Check a kernel against the contract of a stage, on the strict simulator.

    ``kernel`` takes the arguments of the stage's main kernel and is launched as that one is, after
    the stage's own pre-passes: a ``@cuda.jit`` kernel, or a function ``make_kernel(problem, tile)``
    that makes one (``make_kernel(problem)`` for a stage without tiles). Or it is such a function
    that makes a whole :class:`~convlab.stages.Program`, as the stages' ``prepare`` do, with buffers
    and launches of its own. ``"FILE.py::NAME"`` names any of these. ``seed`` chooses the numbers;
    ``on_step`` is called after each problem; ``model`` is what is counted on, Conv9 in small where
    none is given.

    Raises ``ValueError`` for an unknown stage, or where there is no kernel to check.
    """
    step = stage_named(stage)
    _require_kernel(step)
    found_there = load(kernel, partial(_fits, stage=step)) if isinstance(kernel, str) else kernel
    made = _maker(found_there, step)
    answers: list[Answer] = []
    found: dict[Any, Finding] = {}
    for name, problem in PROBLEMS.items():
        answer, findings = _try(step, made, name, problem, seed)
        answers.append(answer)
        on_step()
        for finding in findings:
            key = finding.kind, finding.line, finding.other_line, finding.array
            found.setdefault(key, finding)
    ended = all(answer.ended for answer in answers)
    machine = compiled(*_mains(step, made)) if ended else None
    refused = machine is not None and machine.error is not None
    clean = not found and not refused and all(answer.ok for answer in answers)
    counts = tuple(_counts(step, made, seed, model or workloads.MODEL)) if clean else ()
    title = kernel if isinstance(kernel, str) else _title(kernel)
    return Check(title, step.name, tuple(answers), tuple(found.values()), counts, machine)


def _mains(stage: Stage, make: Maker) -> tuple[Program, Program]:
    """What is compiled: the kernel and the stage, on the problem that has everything."""
    program = _program(stage, make, EVERYTHING, stage.tiny_tile)
    return program, stage.prepare(EVERYTHING, stage.tiny_tile)


Maker = Callable[[ConvProblem, Tile | None], Any]


def _title(kernel: Any) -> str:
    return str(getattr(getattr(kernel, "py_func", kernel), "__name__", kernel))


def _maker(kernel: Any, stage: Stage) -> Maker:
    """A function that makes the kernel for a problem and tile."""
    if is_kernel(kernel):
        return lambda problem, tile: kernel
    if not callable(kernel) or (parameters := _parameters(kernel)) is None:
        raise ValueError(
            f"kernel is {kernel!r}: it must be a @cuda.jit kernel, or a function that makes one"
        )
    wanted = _wanted(stage)
    if not _fits(kernel, stage):
        raise ValueError(
            f"{_title(kernel)} takes ({', '.join(parameters)}): to make a kernel like "
            f"{stage.name}'s it must take ({', '.join(wanted)}); try FILE.py::prepare, a function "
            "that does and returns a whole Program"
        )

    def make(problem: ConvProblem, tile: Tile | None) -> Any:
        try:
            made = kernel(problem) if len(wanted) == 1 else kernel(problem, tile)
        except (Exception, SystemExit) as error:
            place = place_of(error, getattr(kernel, "__code__", make.__code__).co_filename)
            raise ValueError(f"{place}: {_title(kernel)} raised {in_words(error)}") from error
        if isinstance(made, Program):
            if not made.launches or not isinstance(made.launches[-1], Launch):
                raise ValueError(f"{_title(kernel)}: its Program must end with a kernel's Launch")
        elif not is_kernel(made):
            raise ValueError(
                f"{_title(kernel)} returned {made!r}: it must return a @cuda.jit kernel or a "
                "Program"
            )
        return made

    return make


def _wanted(stage: Stage) -> tuple[str, ...]:
    """What a function that makes the stage's kernel takes."""
    return ("problem",) if stage.tiny_tile is None else ("problem", "tile")


def _parameters(function: Any) -> list[str] | None:
    """Their names; None where Python does not know them, as of ``dict``."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None


def _fits(kernel: Any, stage: Stage) -> bool:
    """Whether it is a kernel, or takes what makes one."""
    if is_kernel(kernel):
        return True
    try:
        inspect.signature(kernel).bind(*_wanted(stage))
    except TypeError:
        return False
    return True


def _require_kernel(stage: Stage) -> None:
    """Raise ``ValueError`` for a stage whose work a library does: its last step is no kernel."""
    last = stage.prepare(PIXEL, stage.tiny_tile).launches[-1]
    if not isinstance(last, Launch):
        raise ValueError(f"stage is {stage.name}, which has no kernel: a library does its work")


def _program(stage: Stage, make: Maker, problem: ConvProblem, tile: Tile | None) -> Program:
    """The stage's program with the kernel in the main kernel's place.

    Raises ``ValueError`` where it takes other arguments.
    """
    kernel = make(problem, tile)
    if isinstance(kernel, Program):
        return kernel
    program = stage.prepare(problem, tile)
    main = program.launches[-1]
    assert isinstance(main, Launch)
    theirs, ours = (inspect.signature(k.py_func).parameters for k in (kernel, main.kernel))
    if len(theirs) != len(ours):
        raise ValueError(
            f"{_title(kernel)} takes ({', '.join(theirs)}): like {stage.name}'s kernel it must "
            f"take ({', '.join(ours)})"
        )
    steps = (
        replace(step, kernel=kernel)
        if isinstance(step, Launch) and step.kernel is main.kernel
        else step
        for step in program.launches
    )
    return replace(program, launches=tuple(steps))


def _try(
    stage: Stage, make: Maker, name: str, problem: ConvProblem, seed: int
) -> tuple[Answer, tuple[Finding, ...]]:
    """Its answer, from a run without checks so that there is one, and what a strict run finds."""
    tensors = random_tensors(problem, seed)
    if name == SPOILED:
        _spoil(*tensors[:2])
    program = _program(stage, make, problem, stage.tiny_tile)
    try:
        output, written = _run(stage, program, problem, tensors, strict=False)
        oracle = Oracle(problem, *tensors)
        allowances = stage.allowances(problem)
        verdict = oracle.check(output, **allowances)
        wrong = None if verdict.ok else _where_wrong(oracle, output, allowances)
        failed = f"the kernel wrote to {written}, which is only to be read" if written else None
        answer = Answer(name, problem, verdict, failed, wrong)
    except NotSimulated as error:
        raise ValueError(str(error)) from error
    except SimulationError as error:
        return Answer(name, problem, None, "it could not go on", ended=False), error.findings
    except (Exception, SystemExit) as error:  # whatever somebody's kernel raises is its result
        return Answer(name, problem, None, _raised(error), ended=False), ()
    try:
        _run(stage, program, problem, tensors, strict=True)
    except SimulationError as error:
        return answer, error.findings
    except (Exception, SystemExit) as error:
        return replace(answer, failed=_raised(error), ended=False), ()
    return answer, ()


def check_tile(
    kernel: Any, stage: str, tile: Tile, seed: int = 0
) -> tuple[Answer, tuple[Finding, ...]]:
    """The answer and the findings with another tile than the stage's own small one, on the problem
    that has everything at once, and channels for two tiles. Raises ``ValueError`` as
    :func:`check`."""
    step = stage_named(stage)
    name = f"everything at once, with tile {tile}"
    problem = replace(EVERYTHING, out_channels=tile.M_B + EVERYTHING.out_channels)
    return _try(
        step.with_tile(tile),
        _maker(kernel, step),
        name,
        problem,
        seed,
    )


def _raised(error: BaseException) -> str:
    """What the kernel raised, and the thread, file and line, which the simulator notes."""
    notes = getattr(error, "__notes__", ())
    return ", ".join([f"it raised {type(error).__name__}: {error}", *notes])


def _spoil(input: np.ndarray, weight: np.ndarray) -> None:
    """A NaN and infinities. Only outputs whose windows hold them may show them; and padding is
    zeros that are multiplied, so an infinite weight gives NaN there."""
    flat = input.reshape(-1)
    flat[0], flat[len(flat) // 2], flat[-1] = np.inf, np.nan, -np.inf
    weight[-1, 0, 0, 0] = np.inf


def _run(
    stage: Stage,
    program: Program,
    problem: ConvProblem,
    tensors: tuple[np.ndarray, np.ndarray, np.ndarray],
    strict: bool,
) -> tuple[np.ndarray, str | None]:
    """The output, and the name of a tensor that was written to though it is only to be read."""
    engine = Simulator(strict=strict)
    ready = Plan(problem, stage, program.tile, engine, program=program)
    input, weight, bias = (tensor.copy() for tensor in tensors)
    output = np.full(problem.output_shape, np.nan, np.float32)
    ready(input, weight, output, bias)
    tried = zip(SOURCES, (input, weight, bias), tensors, strict=True)
    written = (name for name, now, was in tried if not np.array_equal(now, was, equal_nan=True))
    return output, next(written, None)


def _where_wrong(oracle: Oracle, output: np.ndarray, allowances: dict[str, Any]) -> np.ndarray:
    wrong = (oracle.is_wrong(image, output[image], **allowances) for image in range(len(output)))
    return np.stack(list(wrong))


def _counts(stage: Stage, make: Maker, seed: int, problem: ConvProblem) -> Iterator[Count]:
    """The kernel's counts and the stage's."""
    tile = stage.model_tile or stage.tiny_tile
    yours = _counted(_traced(stage, _program(stage, make, problem, tile), problem, seed))
    ours = _counts_of_stage(stage, problem, tile, seed)
    for unit, number in yours.items():
        yield Count(unit, number, ours[unit])


@lru_cache(maxsize=64)  # who mends a kernel checks it again and again
def _counts_of_stage(
    stage: Stage, problem: ConvProblem, tile: Tile | None, seed: int
) -> dict[str, int]:
    return _counted(_traced(stage, stage.prepare(problem, tile), problem, seed))


def _counted(launch: LaunchTrace) -> dict[str, int]:
    return {
        "requests to global memory": launch.total("requests", launch.of(space="global")),
        "sectors of global memory": launch.total("sectors"),
        "requests to shared memory": launch.total("requests", launch.of(space="shared")),
        "passes of shared memory": launch.total("passes"),
        "threads at barriers": launch.barriers,
        "floating-point operations": launch.flops,
    }


def _traced(stage: Stage, program: Program, problem: ConvProblem, seed: int) -> LaunchTrace:
    ready = Plan(problem, stage, program.tile, Simulator(strict=False), program=program)
    input, weight, bias = random_tensors(problem, seed)
    output = np.full(problem.output_shape, np.nan, np.float32)
    main, arrays = ready.bound(input, weight, output, bias)[-1]
    assert isinstance(main, Launch)
    for start in ready.steps(input, weight, output, bias)[:-1]:
        start(None)
    return trace(main.kernel, main.grid, main.block, *arrays).main
