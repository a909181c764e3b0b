"""``check`` compares a user's kernel with a stage: answers, findings, machine code, traffic."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.cuda.core import config

from convlab import workloads
from convlab.checking.records import BARRIERS, SPOILED, Answer, Check, Count, Machine
from convlab.engines.offline import CompilerMissing, compile_launch, is_float64
from convlab.engines.simulator import Simulator
from convlab.oracle import Oracle, random_tensors
from convlab.plans import Plan, with_tile
from convlab.problem import ConvProblem
from convlab.simulation.access_log import EndlessLoop, Loops
from convlab.simulation.findings import Finding, NotSimulated, SimulationError
from convlab.simulation.memory_rules import WARP
from convlab.stage import SOURCES, Capability
from convlab.stages import Launch, Program, Stage, Tile, allowances, stage_named
from convlab.tracing import LaunchTrace, trace_steps

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
    # More than the channels and the columns that a block of the C_in-parallel stages takes.
    "many channels, a wide image": ConvProblem(1, 9, 3, 35, 2, (2, 3), padding=(1, 2)),
    "everything at once": ConvProblem(
        2, 5, 5, 8, 5, (2, 3), stride=(2, 3), padding=(1, 2), dilation=(1, 2)
    ),
    SPOILED: ConvProblem(2, 2, 6, 5, 5, 3, stride=(2, 1), padding=1),
}
EVERYTHING = PROBLEMS["everything at once"]
COUNTED = "what is counted below"
TALL = "another tile"
SEVERAL = "several blocks of several warps"  # larger for some stages: in_blocks
PROBLEMS[TALL] = PROBLEMS[SEVERAL] = EVERYTHING
CAPABILITY: Capability = (9, 0)  # what is compiled for
WIDEST = 4 * WARP  # threads of a checked block, at most
MORE = (2, 3), (3, 2), (2, 1), (1, 2), (1, 1)  # times M_T and N_T of the tiny tile, the best first
# A kernel whose loops run more iterations than so many, and so many times those of the stage, is
# taken to be endless: that takes seconds.
ITERATIONS, TIMES = 200_000, 10
DEFAULT_NAMES = ("make_kernel", "prepare")  # of a file, in this order
Tensors = tuple[np.ndarray, np.ndarray, np.ndarray]
Maker = Callable[[ConvProblem, Tile | None], Any]  # returns a kernel or a Program


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
    counts: dict[str, int] = {}
    for answer, findings, counted in attempts(step, made, seed, model or workloads.MODEL):
        counts = counted
        answers.append(answer)
        for one in findings:
            found.setdefault((one.kind, one.line, one.other_line, one.array), one)
        on_step()
    machine = None
    if all(answer.ended for answer in answers):
        program = program_with(step, made, EVERYTHING, step.tiny_tile)
        machine = compiled(program, step.prepare(EVERYTHING, step.tiny_tile))
    checked = Check(title_of(kernel), step.name, tuple(answers), tuple(found.values()), (), machine)
    if not checked.ok:
        return checked
    return replace(checked, counts=compared_with(step, counts, answers[-1].problem, seed))


def compared_with(
    stage: Stage, counts: dict[str, int], model: ConvProblem, seed: int
) -> tuple[Count, ...]:
    """The counts of a kernel beside those of the stage on the same problem."""
    stages = _counts_of_stage(stage, model, seed)
    return tuple(Count(unit, counts.get(unit, 0), stages.get(unit, 0)) for unit in counts | stages)


Attempt = tuple[Answer, tuple[Finding, ...], dict[str, int]]  # and the counts, where it has any


def attempts(stage: Stage, make: Maker, seed: int, model: ConvProblem) -> Iterator[Attempt]:
    """The problems one by one, the larger ones only while nothing is wrong: what is wrong shows
    better in small ones. The last is ``model``, which is counted."""
    right = True
    for name, problem in PROBLEMS.items():
        tile = stage.tiny_tile
        if name == TALL:
            if (tile := tall_tile(stage)) is None:
                continue
            problem = in_blocks(stage, problem, tile)
        if name == SEVERAL:
            if not right:
                return
            tile = wide_tile(stage)
            problem = in_blocks(stage, problem, tile)
        answer, findings = _try(stage, make, name, problem, tile, seed)
        yield answer, findings, {}
        right = right and answer.ok and not findings
        if answer.endless:
            return  # each problem would take as long
    if right:
        yield _counted(stage, make, model, seed)


def check_also(
    kernel: Any, stage: str, also: Tile | ConvProblem, seed: int = 0
) -> tuple[Answer, tuple[Finding, ...]]:
    """The answer and the findings on one more problem, or with one more tile, on a problem with
    channels for two of them.

    Raises ``ValueError`` as :func:`check`.
    """
    step = stage_named(stage)
    made = maker(kernel, step)
    if isinstance(also, ConvProblem):
        return _try(step, made, "one more problem", also, step.tiny_tile, seed)
    name = f"everything at once, with tile {also}"
    problem = replace(EVERYTHING, out_channels=also.M_B + EVERYTHING.out_channels)
    return _try(with_tile(step, also), made, name, problem, also, seed)


@lru_cache
def wide_tile(stage: Stage) -> Tile | None:
    """A small tile of more than two warps, where its sizes differ as much as the stage allows, so
    that one taken for another shows: the last warp is not full, threads do not divide what they
    share, and each computes more than in the tiny tile. Within one warp, as the tiny tile has, a
    missing barrier does no harm. None for a stage without tiles."""
    tiny = stage.tiny_tile
    if tiny is None:
        return None
    found = []
    for rows in range(1, WIDEST // 2 + 1):
        for columns in range(2 * WARP // rows + 1, WIDEST // rows + 1):
            for times_M, times_N in MORE:
                M_T, N_T = times_M * tiny.M_T, times_N * tiny.N_T
                for K_B in {tiny.K_B, rows, 2 * rows, columns, 2 * columns}:
                    if tiny.K_B <= K_B <= 3 * tiny.K_B:
                        found.append(Tile(rows * M_T, columns * N_T, K_B, M_T, N_T))

    def cost(tile: Tile) -> tuple[int, int]:
        slices = [tile.K_B * tile.M_B, tile.K_B * tile.N_B]
        alike = sum(slice % tile.threads == 0 for slice in slices)
        alike += sum(side % max(1, tile.threads // tile.K_B) == 0 for side in (tile.M_B, tile.N_B))
        alike += 2 * (tile.threads % WARP == 0) + (tile.rows == tile.columns)
        more = MORE.index((tile.M_T // tiny.M_T, tile.N_T // tiny.N_T))
        return alike + 2 * more, sum(slices)

    for tile in sorted(found, key=cost):
        try:
            stage.prepare(EVERYTHING, tile)
        except ValueError:  # not for this stage
            continue
        return tile
    return tiny


@lru_cache
def tall_tile(stage: Stage) -> Tile | None:
    """A tile of few threads whose four sizes differ, where each thread computes more rows than in
    the tiny tile: there the wide one has more columns. None where there is none."""
    tiny = stage.tiny_tile
    if tiny is None:
        return None
    for times in (3, 2):
        for columns in range(2, 4 * tiny.columns + 1):
            for rows in range(1, 2 * tiny.threads // columns + 1):
                M_T, N_T = times * tiny.M_T, tiny.N_T
                tile = Tile(rows * M_T, columns * N_T, tiny.K_B, M_T, N_T)
                sizes = {tile.M_B, tile.N_B, tile.K_B, tile.threads}
                if len(sizes) < 4 or rows == columns or M_T <= N_T > 1:
                    continue
                try:
                    stage.prepare(EVERYTHING, tile)
                except ValueError:  # not for this stage
                    continue
                return tile
    return None


def in_blocks(stage: Stage, problem: ConvProblem, tile: Tile | None) -> ConvProblem:
    """The problem with as many more channels or images as take more than one block, and the images
    that fill most of a block's columns."""

    def larger(times: int) -> ConvProblem:
        if tile is None:
            return replace(problem, batch=(1 + times) * problem.batch)
        channels = problem.out_channels + times * tile.M_B
        images = (tile.N_B - 1) // (problem.N // problem.batch)
        return replace(problem, out_channels=channels, batch=max(problem.batch, images))

    tried = map(larger, range(64))
    several = (one for one in tried if math.prod(_main(stage.prepare(one, tile)).grid) > 1)
    return next(several, problem)


def _main(program: Program) -> Launch:
    main = program.launches[-1]
    assert isinstance(main, Launch)
    return main


def _try(
    stage: Stage, make: Maker, name: str, problem: ConvProblem, tile: Tile | None, seed: int
) -> tuple[Answer, tuple[Finding, ...]]:
    """The answer, and the findings of a strict run; after findings the answer is that of a run
    without checks."""
    tensors = random_tensors(problem, seed)
    own = _iterations(stage, problem, tile)
    if name == SPOILED:
        # An infinite weight gives NaN on padding, which is zeros.
        flat = tensors[0].reshape(-1)
        flat[0], flat[len(flat) // 2], flat[-1] = np.inf, np.nan, -np.inf
        tensors[1][-1, 0, 0, 0] = np.inf
    program = program_with(stage, make, problem, tile)
    answer = Answer(name, problem, None, "it could not go on", ended=False)
    findings: tuple[Finding, ...] = ()
    try:
        try:
            output, written = _run(stage, program, problem, tensors, own, strict=True)
        except NotSimulated:
            raise
        except SimulationError as error:
            findings = error.findings
            output, written = _run(stage, program, problem, tensors, own, strict=False)
    except NotSimulated as error:
        raise ValueError(str(error)) from error
    except SimulationError as error:
        return answer, error.findings
    except EndlessLoop as error:
        said = f"{error}, and {stage.name} has {own:,} in all loops of all threads"
        return replace(answer, failed=", ".join([said, *_notes(error)]), endless=True), findings
    except (Exception, SystemExit) as error:  # whatever somebody's kernel raises is its result
        return replace(answer, failed=raised_by(error)), findings
    return _checked(stage, name, problem, tensors, output, written), findings


def _checked(
    stage: Stage, name: str, problem: ConvProblem, tensors: Tensors, output: np.ndarray,
    written: str | None,
) -> Answer:  # fmt: skip
    """The answer for an output; ``written`` as :func:`_written` returns it."""
    oracle, allowed = Oracle(problem, *tensors), allowances(stage, problem)
    checked = oracle.check(output, **allowed)
    images = enumerate(output) if not checked.ok else ()
    wrong = [oracle.is_wrong(i, image, **allowed) for i, image in images]
    failed = f"the kernel wrote to {written}, which is only to be read" if written else None
    where = np.stack(wrong) if wrong else None
    return Answer(name, problem, checked, failed, where, output=output)


def _run(
    stage: Stage, program: Program, problem: ConvProblem, tensors: Tensors, own: int, strict: bool
) -> tuple[np.ndarray, str | None]:
    """The output, and the name of a read-only tensor that was written to."""
    simulator = Simulator(strict, loops=_loops(own))
    ready = Plan(problem, stage, program.tile, simulator, program=program)
    input, weight, bias = (tensor.copy() for tensor in tensors)
    output = np.full(problem.output_shape, np.nan, np.float32)
    ready(input, weight, output, bias)
    return output, _written((input, weight, bias), tensors)


def _written(now: Tensors, before: Tensors) -> str | None:
    """The name of a tensor that has changed."""
    tried = zip(SOURCES, now, before, strict=True)
    changed = (name for name, one, was in tried if not np.array_equal(one, was, equal_nan=True))
    return next(changed, None)


def _loops(own: int) -> Loops:
    """The iterations that a kernel may run where the stage's runs ``own``."""
    return Loops(ITERATIONS + TIMES * own)


@lru_cache(maxsize=256)
def _iterations(stage: Stage, problem: ConvProblem, tile: Tile | None) -> int:
    """How many iterations all loops of all threads of the stage's kernels run together."""
    program = stage.prepare(problem, tile)
    simulator = Simulator(strict=False, loops=(loops := Loops()))
    most = loops.left
    ready = Plan(problem, stage, program.tile, simulator, program=program)
    input, weight, bias = random_tensors(problem, 0)
    ready(input, weight, np.empty(problem.output_shape, np.float32), bias)
    return most - loops.left


def _counted(stage: Stage, make: Maker, problem: ConvProblem, seed: int) -> Attempt:
    """The attempt at the problem whose memory traffic is counted."""
    tile = stage.model_tile or stage.tiny_tile
    program = program_with(stage, make, problem, tile)
    ready = Plan(problem, stage, program.tile, Simulator(strict=False), program=program)
    tensors = random_tensors(problem, seed)
    input, weight, bias = (tensor.copy() for tensor in tensors)
    output = np.full(problem.output_shape, np.nan, np.float32)
    try:
        loops = _loops(_iterations(stage, problem, tile))
        launches = trace_steps(ready, input, weight, output, bias, loops=loops)
        if any(launch.findings for launch in launches):
            return *_try(stage, make, COUNTED, problem, tile, seed), {}
    except (Exception, SystemExit):
        answer, findings = _try(stage, make, COUNTED, problem, tile, seed)  # says what is wrong
        if answer.ok and not findings:
            raise
        return answer, findings, {}
    written = _written((input, weight, bias), tensors)
    answer = _checked(stage, COUNTED, problem, tensors, output, written)
    return answer, (), _counts_of(*launches)


@lru_cache(maxsize=64)  # a kernel that is being corrected is checked repeatedly
def _counts_of_stage(stage: Stage, problem: ConvProblem, seed: int) -> dict[str, int]:
    return _counted(stage, stage.prepare, problem, seed)[2]


def _counts_of(*launches: LaunchTrace) -> dict[str, int]:
    """Counts of the main kernel, the last, and of the layout transforms before it. What is stored
    has counts of its own: it is little, and waste would hide behind the loads."""
    counts: Counter[str] = Counter()
    for launch in launches:
        of = "" if launch is launches[-1] else "transforms: "
        near, far = (launch.of(space=space) for space in ("shared", "global"))
        stored = [access for access in far if access.operation != "load"]
        counts[f"{of}requests to global memory"] += launch.total("requests", far)
        counts[f"{of}sectors of global memory"] += launch.total("sectors")
        counts[f"{of}sectors stored"] += launch.total("sectors", stored)
        counts[f"{of}requests to shared memory"] += launch.total("requests", near)
        counts[f"{of}wavefronts of shared memory"] += launch.total("wavefronts")
        counts[f"{of}{BARRIERS}"] += launch.barriers
        counts[f"{of}floating-point operations"] += launch.flops
    return {unit: number for unit, number in counts.items() if number}


def main_launch(
    stage: Stage, program: Program, problem: ConvProblem, tensors: Tensors, output: np.ndarray
) -> tuple[Launch, list[Any]]:
    """The last launch of a program and its arrays, after the layout transforms before it have
    run. ``tensors`` are input, weight and bias."""
    ready = Plan(problem, stage, program.tile, Simulator(strict=False), program=program)
    input, weight, bias = tensors
    for start in ready.steps(input, weight, output, bias)[:-1]:
        start(None)
    _, arrays = ready.bound(input, weight, output, bias)[-1]
    return _main(program), arrays


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
    opcodes = compile_launch(_main(program), program, CAPABILITY).opcodes()
    return tuple(sorted(filter(is_float64, opcodes)))


def _reason(error: Exception) -> str:
    """The lines of Numba's message that give its reason."""
    text = re.sub(r"Function\(<function ([\w.]+) at \w+>\)", r"\1", str(error))
    lines = (line.strip(" >") for line in text.splitlines())
    said = [line for line in lines if line and not line.startswith("Failed in ")]
    reason = " ".join(said[: 1 + said[0].endswith(":")] if said else [type(error).__name__])
    reason = reason.removesuffix(".")
    if "shared.array" in reason or "local.array" in reason:
        reason += "; its shape must be constant"
    line = re.search(r'File ".*", line (\d+)', text)
    return f"{reason} (line {line[1]})" if line else reason


# The kernel to check: given, made by a function, or found in a file.


def program_with(stage: Stage, make: Maker, problem: ConvProblem, tile: Tile | None) -> Program:
    """The stage's program with the kernel in the main kernel's place.

    Raises ``ValueError`` where it takes other arguments.
    """
    kernel = make(problem, tile)
    if isinstance(kernel, Program):
        return kernel
    program = stage.prepare(problem, tile)
    own = _main(program).kernel
    theirs, ours = (inspect.signature(k.py_func).parameters for k in (kernel, own))
    if len(theirs) != len(ours):
        raise ValueError(
            f"{title_of(kernel)} takes ({', '.join(theirs)}): like {stage.name}'s kernel it must "
            f"take ({', '.join(ours)})"
        )
    steps = [
        replace(step, kernel=kernel) if getattr(step, "kernel", None) is own else step
        for step in program.launches
    ]
    return replace(program, launches=tuple(steps))


def maker(kernel: Any, stage: Stage) -> Maker:
    """A function that makes the kernel for a problem and tile, from what ``check`` takes.

    Raises ``ValueError`` for what gives no kernel; so does the function that it returns.
    """
    wanted = ("problem",) if stage.tiny_tile is None else ("problem", "tile")
    if isinstance(kernel, str):
        kernel = _load(kernel, wanted)
    if is_kernel(kernel):
        return lambda problem, tile: kernel
    title = title_of(kernel)
    try:
        parameters = inspect.signature(kernel).parameters
    except (TypeError, ValueError):  # no function, or one that Python does not know, such as dict
        raise ValueError(
            f"kernel is {kernel!r}: it must be a @cuda.jit kernel, or a function that makes one"
        ) from None
    if not _takes(kernel, wanted):
        raise ValueError(
            f"{title} takes ({', '.join(parameters)}): to make a kernel like {stage.name}'s it "
            f"must take ({', '.join(wanted)}); try FILE.py::prepare, a function that does and "
            "returns a whole Program"
        )

    def make(problem: ConvProblem, tile: Tile | None) -> Any:
        try:
            made = kernel(*(problem, tile)[: len(wanted)])
        except (Exception, SystemExit) as error:
            place = _place_of(error, getattr(kernel, "__code__", make.__code__).co_filename)
            raise ValueError(f"{place}: {title} raised {_in_words(error)}") from error
        if isinstance(made, Program):
            if not made.launches or not isinstance(made.launches[-1], Launch):
                raise ValueError(f"{title}: its Program must end with a kernel's Launch")
        elif not is_kernel(made):
            raise ValueError(
                f"{title} returned {made!r}: it must return a @cuda.jit kernel or a Program"
            )
        return made

    return make


def is_kernel(value: Any) -> bool:
    """Whether that is a ``@cuda.jit`` kernel."""
    return isinstance(getattr(value, "py_func", None), FunctionType)


def title_of(kernel: Any) -> str:
    """The name of a kernel or function."""
    return str(getattr(getattr(kernel, "py_func", kernel), "__name__", kernel))


def _takes(value: Any, wanted: tuple[str, ...]) -> bool:
    try:
        inspect.signature(value).bind(*wanted)
    except TypeError:
        return False
    return True


def _load(target: str, wanted: tuple[str, ...]) -> Any:
    """The kernel, or the function that makes one, that ``FILE.py::NAME`` names; without a name
    ``make_kernel``, or ``prepare`` where there is no ``make_kernel`` that takes what is wanted."""
    file, _, name = target.partition("::")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"{file!r} is no Python file: name one, as in my_kernels.py::make_kernel")
    module = _run_file(path)
    there = {
        key: value for key, value in vars(module).items()
        if isinstance(getattr(value, "py_func", value), FunctionType)
    }  # fmt: skip
    names = (name,) if name else DEFAULT_NAMES
    found = [there[one] for one in names if one in there]
    if not found:
        own = [
            key for key, value in there.items()
            if getattr(value, "py_func", value).__module__ == module.__name__
        ]  # fmt: skip
        raise ValueError(
            f"{file} has no kernel {names[0]!r}: name a @cuda.jit kernel, or a function that makes "
            f"one; it has {', '.join(own) or 'neither'}; try "
            + (f"{file}::{own[-1]}" if own else "a stage's own file, changed")
        )
    return next((one for one in found if is_kernel(one) or _takes(one, wanted)), found[0])


def _run_file(path: Path) -> ModuleType:
    """The file as a module, run again at each call, since its author is changing it."""
    name = f"checked_{path.stem}_{hashlib.sha1(str(path.resolve()).encode()).hexdigest()[:8]}"
    module = sys.modules[name] = ModuleType(name)  # its dataclasses look themselves up there
    module.__file__ = str(path)
    try:
        # The loader might take a compiled file of the same second.
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise ValueError(f"{_place_of(error, str(path))}: {_in_words(error)}") from error
    return module


def _in_words(error: BaseException) -> str:
    """``KeyError: 5``, in one line."""
    if isinstance(error, SystemExit):
        return "the file ends the program (sys.exit): put that below if __name__ == '__main__'"
    said = error.msg if isinstance(error, SyntaxError) else error
    return " ".join(f"{type(error).__name__}: {said}".removesuffix(": ").split())


def raised_by(error: BaseException) -> str:
    """What a kernel raised, and the thread, file and line, which the simulator notes."""
    return ", ".join([f"it raised {type(error).__name__}: {error}", *_notes(error)])


def _notes(error: BaseException) -> tuple[str, ...]:
    return tuple(getattr(error, "__notes__", ()))


def _place_of(error: BaseException, file: str) -> str:
    """``FILE:LINE``: the innermost line of ``file`` in the traceback; for a syntax error the line
    that has it, in whichever file."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    line = next((one.lineno for one in reversed(frames) if one.filename == file), None)
    return f"{file}:{line}" if line else file
