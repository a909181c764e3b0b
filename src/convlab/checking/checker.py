"""``check`` compares a user's kernel with a stage: answers, findings, machine code, traffic."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numba.cuda.core import config

from convlab import workloads
from convlab.checking.loading import Maker, maker, raised_by, title_of
from convlab.checking.records import SPOILED, Answer, Check, Count, Machine
from convlab.engines.offline import CompilerMissing, compile_launch, is_float64
from convlab.engines.simulator import Simulator
from convlab.oracle import Oracle, random_tensors
from convlab.plans import Plan, with_tile
from convlab.problem import ConvProblem
from convlab.simulation.findings import Finding, NotSimulated, SimulationError
from convlab.stage import SOURCES, Capability
from convlab.stages import Launch, Program, Stage, Tile, allowances, stage_named
from convlab.tracing import trace

# Sizes of one, primes, remainders in M, N and K of every tile, unequal padding: a kernel that is
# right on powers of two may fail here.
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
CAPABILITY: Capability = (9, 0)  # what is compiled for
Tensors = tuple[np.ndarray, np.ndarray, np.ndarray]


def check(
    kernel: Any,
    stage: str,
    *,
    seed: int = 0,
    on_step: Callable[[], object] = lambda: None,
    model: ConvProblem | None = None,
) -> Check:
    """Check a kernel against the contract of a stage, on the strict simulator.

    ``kernel`` is a ``@cuda.jit`` kernel with the arguments of the stage's main kernel, a function
    ``make_kernel(problem, tile)`` that returns one (``make_kernel(problem)`` for a stage without
    tiles), a function ``prepare`` with the same arguments that returns a whole
    :class:`~convlab.stages.Program`, or ``"FILE.py::NAME"`` of any of these. ``seed`` chooses the
    numbers; ``on_step`` is called after each problem; ``model`` is the problem for the counts, by
    default the small Conv9.

    Raises ``ValueError`` for an unknown stage, or if there is no kernel to check.
    """
    step = stage_named(stage)
    if not isinstance(step.prepare(PIXEL, step.tiny_tile).launches[-1], Launch):
        raise ValueError(f"stage is {step.name}, which has no kernel: a library does its work")
    made = maker(kernel, step)
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
    machine = None
    if ended:
        program = program_with(step, made, EVERYTHING, step.tiny_tile)
        machine = compiled(program, step.prepare(EVERYTHING, step.tiny_tile))
    refused = machine is not None and machine.error is not None
    clean = not found and not refused and all(answer.ok for answer in answers)
    counts = tuple(_counts(step, made, seed, model or workloads.MODEL)) if clean else ()
    named = title_of(kernel)
    return Check(named, step.name, tuple(answers), tuple(found.values()), counts, machine)


def program_with(stage: Stage, make: Maker, problem: ConvProblem, tile: Tile | None) -> Program:
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
            f"{title_of(kernel)} takes ({', '.join(theirs)}): like {stage.name}'s kernel it must "
            f"take ({', '.join(ours)})"
        )
    steps = [
        replace(step, kernel=kernel) if getattr(step, "kernel", None) is main.kernel else step
        for step in program.launches
    ]
    return replace(program, launches=tuple(steps))


def _try(
    stage: Stage, make: Maker, name: str, problem: ConvProblem, seed: int
) -> tuple[Answer, tuple[Finding, ...]]:
    """The answer of a run without checks, and the findings of a strict run."""
    tensors = random_tensors(problem, seed)
    if name == SPOILED:
        # An infinite weight gives NaN on padding, which is zeros.
        flat = tensors[0].reshape(-1)
        flat[0], flat[len(flat) // 2], flat[-1] = np.inf, np.nan, -np.inf
        tensors[1][-1, 0, 0, 0] = np.inf
    program = program_with(stage, make, problem, stage.tiny_tile)
    try:
        output, written = _run(stage, program, problem, tensors, strict=False)
        oracle = Oracle(problem, *tensors)
        allowed = allowances(stage, problem)
        checked = oracle.check(output, **allowed)
        wrong = None
        if not checked.ok:
            images = enumerate(output)
            wrong = np.stack([oracle.is_wrong(i, one, **allowed) for i, one in images])
        failed = f"the kernel wrote to {written}, which is only to be read" if written else None
        answer = Answer(name, problem, checked, failed, wrong)
    except NotSimulated as error:
        raise ValueError(str(error)) from error
    except SimulationError as error:
        return Answer(name, problem, None, "it could not go on", ended=False), error.findings
    except (Exception, SystemExit) as error:  # whatever somebody's kernel raises is its result
        return Answer(name, problem, None, raised_by(error), ended=False), ()
    try:
        _run(stage, program, problem, tensors, strict=True)
    except SimulationError as error:
        return answer, error.findings
    except (Exception, SystemExit) as error:
        return replace(answer, failed=raised_by(error), ended=False), ()
    return answer, ()


def check_tile(
    kernel: Any, stage: str, tile: Tile, seed: int = 0
) -> tuple[Answer, tuple[Finding, ...]]:
    """The answer and the findings with ``tile``, on a problem with channels for two tiles.

    Raises ``ValueError`` as :func:`check`.
    """
    step = stage_named(stage)
    name = f"everything at once, with tile {tile}"
    problem = replace(EVERYTHING, out_channels=tile.M_B + EVERYTHING.out_channels)
    return _try(with_tile(step, tile), maker(kernel, step), name, problem, seed)


def _run(
    stage: Stage, program: Program, problem: ConvProblem, tensors: Tensors, strict: bool
) -> tuple[np.ndarray, str | None]:
    """The output, and the name of a read-only tensor that was written to."""
    ready = Plan(problem, stage, program.tile, Simulator(strict=strict), program=program)
    input, weight, bias = (tensor.copy() for tensor in tensors)
    output = np.full(problem.output_shape, np.nan, np.float32)
    ready(input, weight, output, bias)
    tried = zip(SOURCES, (input, weight, bias), tensors, strict=True)
    written = (name for name, now, was in tried if not np.array_equal(now, was, equal_nan=True))
    return output, next(written, None)


def _counts(stage: Stage, make: Maker, seed: int, problem: ConvProblem) -> Iterator[Count]:
    """The kernel's counts and the stage's."""
    tile = stage.model_tile or stage.tiny_tile
    yours = _counted(stage, program_with(stage, make, problem, tile), problem, seed)
    stages = _counts_of_stage(stage, problem, tile, seed)
    return (Count(unit, number, stages[unit]) for unit, number in yours.items())


@lru_cache(maxsize=64)  # a kernel that is being corrected is checked repeatedly
def _counts_of_stage(
    stage: Stage, problem: ConvProblem, tile: Tile | None, seed: int
) -> dict[str, int]:
    return _counted(stage, stage.prepare(problem, tile), problem, seed)


def _counted(stage: Stage, program: Program, problem: ConvProblem, seed: int) -> dict[str, int]:
    output = np.full(problem.output_shape, np.nan, np.float32)
    main, arrays = main_launch(stage, program, problem, random_tensors(problem, seed), output)
    launch = trace(main.kernel, main.grid, main.block, *arrays).main
    return {
        "requests to global memory": launch.total("requests", launch.of(space="global")),
        "sectors of global memory": launch.total("sectors"),
        "requests to shared memory": launch.total("requests", launch.of(space="shared")),
        "wavefronts of shared memory": launch.total("wavefronts"),
        "threads at barriers": launch.barriers,
        "floating-point operations": launch.flops,
    }


def main_launch(
    stage: Stage, program: Program, problem: ConvProblem, tensors: Tensors, output: np.ndarray
) -> tuple[Launch, list[Any]]:
    """The last launch of a program and its arrays, after the layout transforms before it have
    run. ``tensors`` are input, weight and bias."""
    ready = Plan(problem, stage, program.tile, Simulator(strict=False), program=program)
    input, weight, bias = tensors
    for start in ready.steps(input, weight, output, bias)[:-1]:
        start(None)
    main, arrays = ready.bound(input, weight, output, bias)[-1]
    assert isinstance(main, Launch)
    return main, arrays


def compiled(program: Program, stages: Program) -> Machine | None:
    """Compile the main kernel beside the stage's; None without compilers."""
    if config.ENABLE_CUDASIM:
        return None
    try:
        found = _float64_in(program)
        return Machine(float64=found if found and not _float64_in(stages) else ())
    except CompilerMissing:
        return None
    except Exception as error:  # Numba's own kinds are many, and not of one family
        return Machine(error=_reason(error))


def _float64_in(program: Program) -> tuple[str, ...]:
    """Opcodes of the main kernel that compute in float64."""
    main = program.launches[-1]
    assert isinstance(main, Launch)
    opcodes = compile_launch(main, program, CAPABILITY).opcodes()
    return tuple(sorted(opcode for opcode in opcodes if is_float64(opcode)))


def _reason(error: Exception) -> str:
    """The lines of Numba's message that give its reason."""
    text = re.sub(r"Function\(<function ([\w.]+) at \w+>\)", r"\1", str(error))
    lines = [line.strip(" >") for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith("Failed in ")]
    first = said[0] if said else type(error).__name__
    if first.endswith(":") and len(said) > 1:
        first = f"{first} {said[1]}"
    first = first.removesuffix(".")
    line = re.search(r'File ".*", line (\d+)', text)
    if "shared.array" in first or "local.array" in first:
        first += "; its shape must be constant"
    return f"{first} (line {line[1]})" if line else first
