"""Run and check a learner's kernel: ``run``, ``traced``, ``check`` and the other checks.

The checks are those of :mod:`convlab.checking`, in plain words. A check does not raise an exception
if a learner's code is wrong; the feedback says what is wrong.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from time import process_time
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numba import cuda
from numba.cuda.core import config
from numba.cuda.core.errors import NumbaPerformanceWarning

from convlab.checking import check as checked
from convlab.checking.checker import Tensors, check_also, main_launch, program_with
from convlab.checking.launches import EVERYTHING, PROBLEMS, main_of
from convlab.checking.loading import is_kernel, maker
from convlab.checking.outcome import SPOILED, CompiledKernel
from convlab.ladder import BACKWARD, Launch, Program, Stage, Tile, short_name, stage_named
from convlab.ladder.channels.receptive_field import channel_parallel_field
from convlab.ladder.im2col.im2col_gemm import THREADS, make_im2col, pitch
from convlab.ladder.stage import blocks_for
from convlab.lessons import feedback
from convlab.lessons.feedback import Feedback, Problem, graded, limited, ready, running
from convlab.lessons.pictures import joined
from convlab.problems.gradient import Gradient
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import reference
from convlab.running.engines import choose
from convlab.running.engines.kernels import argument_types
from convlab.running.engines.lowering import float64_lines
from convlab.running.engines.simulator import Simulator
from convlab.simulation.rules.findings import SimulationError
from convlab.simulation.rules.memory_traffic import SECTOR_BYTES, WARP
from convlab.support.values import counted
from convlab.tracing import LaunchTrace, trace

# What is counted: small, so that a check takes seconds; still several blocks and slices of K.
TIMES = 50  # what a check may take, of the stage's own time on one problem: right ones take 20
PICTURE_SECONDS = 10.0  # that a launch may take, of which a picture is drawn
FEW = 8  # shown numbers around a wrong one
MODEL = ConvProblem(1, 4, 6, 16, 16, 3, padding=1)
IN_GROUPS = ConvProblem(2, 4, 5, 6, 6, (3, 2), (1, 2), 1, groups=2)
UNITS = {"requests": "requests to global memory", "sectors": "sectors of global memory"}
MANY_TERMS = 10**5  # of a problem: more take seconds


def where() -> str:
    """Return a sentence that says where :func:`run` runs kernels."""
    if choose().is_gpu:
        return f"Kernels run on your GPU, {choose().device}."
    return "There is no GPU here, and you need none: kernels run on convlab's simulator."


def run(kernel: Any, grid: Any, block: Any, *arrays: Any) -> None:
    """Run ``kernel[grid, block](*arrays)`` on the GPU if there is one, otherwise on the simulator,
    which reports mistakes of the kernel. The kernel's stores go to the NumPy arrays."""
    if choose().is_gpu:
        there = [cuda.to_device(one) if isinstance(one, np.ndarray) else one for one in arrays]
        with warnings.catch_warnings():  # the lessons' launches are small, and Numba says so
            warnings.simplefilter("ignore", NumbaPerformanceWarning)
            kernel[grid, block](*there)
        for here, copy in zip(arrays, there, strict=True):
            if isinstance(here, np.ndarray):
                copy.copy_to_host(here)
        return
    try:
        Simulator().launch(kernel, grid, block, *arrays)
    except SimulationError as error:
        print("The simulator found something wrong:")
        for finding in error.findings or (error,):
            print(f"- {finding}")


def traced(made: Any, stage: str, problem: ConvProblem, tile: Tile | None = None) -> LaunchTrace:
    """Return the trace of a learner's kernel in the place of the stage's, on random numbers.

    ``made`` is ``make_kernel(problem, tile)``, without ``tile`` for a stage that has no tile. With
    ``tile=None`` the stage's tile for counting is taken.
    """
    with running(seconds=PICTURE_SECONDS):
        main, arrays = ready_for(made, stage, problem, tile, random_tensors(problem, 0))
        return trace(main.kernel, main.grid, main.block, *arrays).main


def ready_for(
    made: Any, stage: str, problem: ConvProblem, tile: Tile | None, tensors: Tensors,
    output: np.ndarray | None = None,
) -> tuple[Launch, list[Any]]:  # fmt: skip
    """Return a stage's main launch with a learner's kernel, and its arrays.

    The layout transforms have run. ``made`` makes the kernel, or a whole ``Program`` as
    :func:`part_of` does; None keeps the stage's own. ``tensors`` are input, weight and bias.
    Without an ``output``, the output is NaN.
    """
    chosen_stage = stage_named(stage)
    if output is None:
        output = np.full(problem.output_shape, np.nan, np.float32)
    make = maker(made or chosen_stage.prepare, chosen_stage)
    program = program_with(chosen_stage, make, problem, tile or chosen_stage.model_tile)
    return main_launch(chosen_stage, program, problem, tensors, output)


def part_of(stage: str, **parts: Any) -> Any:
    """Return a function that makes a stage's ``Program`` with a learner's function in it.

    ``part_of("m11", make_fetch=make_fetch)`` replaces the function ``make_fetch`` of the stage's
    module, or of a module whose functions that one uses. Checks and pictures take the result as
    they take a ``make_kernel``. Raises ``ValueError`` for a function that the stage does not have.
    """
    chosen_stage = stage_named(stage)
    ((name, made),) = parts.items()
    own = import_module(chosen_stage.module)
    used = sorted({str(getattr(one, "__module__", "")) for one in vars(own).values()})
    others = [
        import_module(one)
        for one in used
        if one.startswith(("convlab.ladder.layouts.", "convlab.ladder."))
    ]
    module = next((one for one in (own, *others) if hasattr(one, name)), None)
    if module is None:
        raise ValueError(f"{chosen_stage.name} has no function {name!r}")

    def make_program(problem: ConvProblem, tile: Tile | None = None) -> Program:
        with mock.patch.multiple(module, **parts):
            return chosen_stage.prepare(problem, tile)

    # As one writes it. Its lines are the learner's.
    make_program.__name__ = f"part_of({stage!r}, {name}={getattr(made, '__name__', made)})"
    make_program.__wrapped__ = made  # type: ignore[attr-defined]
    return _taking(make_program, "problem", *(["tile"] if chosen_stage.tiny_tile else []))


def _taking(function: Any, *names: str) -> Any:
    """Return the function with these parameters; its source stays the learner's."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = Signature([Parameter(name, kind) for name in names])
    return function


def with_field(made: Any) -> Any:
    """Return ``made(problem, field)`` as a function of the problem, with its stage's block."""

    @wraps(made)
    def make_kernel(problem: ConvProblem) -> Any:
        return made(problem, channel_parallel_field(problem))

    return _taking(make_kernel, "problem")


def numbered(problem: ConvProblem) -> np.ndarray:
    """Return an input whose pixels are 1, 2, 3, ..., so that each can be found again."""
    count = math.prod(problem.input_shape)
    return np.arange(1, count + 1, dtype=np.float32).reshape(problem.input_shape)


@graded
def check(
    made: Any, stage: str, *, also: Tile | ConvProblem | None = None,
    at_most: float = feedback.AS_FEW, in_order: str = "", seed: int = 0,
) -> Feedback:  # fmt: skip
    """Check ``made``, a kernel or a function ``make_kernel`` that makes one, as the stage.

    The check passes if the answers are right on small problems on which careless kernels fail, the
    strict simulator finds nothing, and the memory traffic is at most ``at_most`` times the stage's.
    ``also`` is another problem, or a second tile, because careless kernels may be right by chance
    with the stage's small tile. ``in_order`` names an array that each thread must read from one
    number to the next as often as the stage's. The kernel may take many times as long as the
    stage's. Raises ``ValueError`` for an unknown stage.
    """
    chosen_stage = stage_named(stage)
    ready(made)
    with limited(2 * feedback.SECONDS + TIMES * _seconds(chosen_stage.name)):
        try:
            found = checked(made, chosen_stage.name, seed=seed, model=MODEL)
        except ValueError as error:
            raise feedback.broken(str(error)) from error
        if found.ok and also is not None:
            answer, findings = check_also(made, chosen_stage.name, also, seed)
            answers = found.answers if answer.ok else (*found.answers, answer)
            found = replace(found, answers=answers, findings=findings)
        if found.ok and found.machine is None and not config.ENABLE_CUDASIM:
            found = replace(found, machine=_by_types(chosen_stage, made))
        told = feedback.feedback_on(found, short_name(chosen_stage.name), at_most, seed)
        if not told.passed or not in_order:
            return told
        jumps = (jumps_of(traced(one, stage, MODEL), in_order) for one in (made, None))
    row = feedback.row_of(f"jumps between reads of {in_order}", *jumps)
    return feedback.checked_by_counts(told.right, (*told.rows, row))


@cache
def _seconds(stage: str) -> float:
    """Return the seconds that the stage's own kernel takes on the hardest of the problems."""
    start = process_time()
    check_also(stage_named(stage).prepare, stage, EVERYTHING)
    return process_time() - start


def _by_types(stage: Stage, made: Any) -> CompiledKernel | None:
    """Return the check of Numba's types, for machines without the compilers."""
    both = made, stage.prepare
    programs = [program_with(stage, maker(one, stage), EVERYTHING, stage.tiny_tile) for one in both]
    yours, stages = (_float64_lines(program) for program in programs)
    return (
        CompiledKernel(float64=tuple(f"line {n}" for n in yours)) if yours and not stages else None
    )


def _float64_lines(program: Program) -> tuple[int, ...] | None:
    """Return the lines of a program's main kernel that compute in float64."""
    main = main_of(program)
    return float64_lines(main.kernel, argument_types(main, program))


def jumps_of(launch: LaunchTrace, array: str) -> int:
    """Count the block's reads of another element than the one after the thread's last read."""
    jumps, last = 0, dict[tuple[int, int], int]()
    for one in launch.requests_of(array, "load"):
        for lane, offset in zip(one.lanes, one.offsets, strict=True):
            jumps += abs(last.get((one.warp, lane), offset) - offset) > one.width
            last[one.warp, lane] = offset
    return jumps


class On(NamedTuple):
    """A launch to try a kernel on: its grid, its block and its input arrays."""

    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    inputs: tuple[np.ndarray, ...]


@graded
def check_kernel(
    kernel: Any, wanted: Callable[..., np.ndarray], on: Iterable[On], *,
    fewest_sectors: bool = False, each_once: bool = False, busiest: int | None = None,
    at_most: float = feedback.AS_FEW, before: float | None = None,
) -> Feedback:  # fmt: skip
    """Check a kernel against ``wanted``, a function of NumPy on the same inputs.

    The kernel gets the inputs of each launch and then an output of the wanted shape and dtype,
    which holds ``before``; by default this is a value that no kernel may leave there.

    With ``fewest_sectors`` the kernel's requests must take as few sectors of global memory as
    inputs and output have. With ``each_once`` its threads must access as many elements as inputs
    and output have, by as few requests of whole warps. ``busiest`` is the most accesses that one
    thread may make. All counts may be ``at_most`` times as large.
    """
    ready(kernel, is_kernel)
    problems: dict[Any, Problem] = {}
    traces: list[LaunchTrace] = []
    by_size = sorted(on, key=lambda launch: sum(array.size for array in launch.inputs))
    for launch in by_size:  # the simplest that fails is told
        right = np.asarray(wanted(*launch.inputs))
        with running():
            made, wrong, _ = tried(kernel, launch, right, before)
        problems = problems | wrong | problems  # the first of each kind
        traces.append(made)
    answers = (f"the answer is what NumPy gives, on {len(traces)} launches",)
    if problems:
        right_ones = () if feedback.ANSWER in problems else answers
        return feedback.with_problems(problems.values(), right_ones)
    arrays = [array for launch in traces for array in launch.arrays if array.space == "global"]
    sizes = [(math.prod(array.shape), array.itemsize) for array in arrays]
    targets: dict[str, tuple[str, int]] = {}  # by what is counted: its name, and the fewest
    if fewest_sectors:
        # Not the fewest for the requests that there are: those of one lane need a sector each.
        fewest = sum(blocks_for(elements * item, SECTOR_BYTES) for elements, item in sizes)
        targets["sectors"] = UNITS["sectors"], fewest
    if each_once:
        targets["lanes"] = "elements read and written", sum(elements for elements, _ in sizes)
        by_warps = sum(blocks_for(elements, WARP) for elements, _ in sizes)
        targets["requests"] = UNITS["requests"], by_warps
    rows = []
    for unit, (name, fewest) in targets.items():
        yours = sum(launch.total(unit, launch.of(space="global")) for launch in traces)
        rows.append(feedback.row_of(name, yours, fewest, at_most))
    if busiest is not None:
        yours = max(map(_busiest, traces))
        rows.append(feedback.row_of("accesses of the busiest thread", yours, busiest, at_most))
    advice = "Which elements do several threads read or write?" if each_once else ""
    return feedback.checked_by_counts(answers, rows, advice)


def _busiest(launch: LaunchTrace) -> int:
    """Return the most accesses that a thread of the block shown makes."""
    lanes = Counter((one.warp, lane) for one in launch.requests for lane in one.lanes)
    return max(lanes.values(), default=0)


def tried(
    kernel: Any, launch: On, right: np.ndarray, before: float | None = None
) -> tuple[LaunchTrace, dict[Any, Problem], np.ndarray]:
    """Return the trace of a launch, its problems, each once, and its output.

    The output should become ``right`` and holds ``before`` first. Raises whatever the kernel
    raises.
    """
    if before is None:
        before = np.nan if right.dtype.kind == "f" else np.iinfo(right.dtype).max
    output = np.full(right.shape, before, right.dtype)
    inputs = [array.copy() for array in launch.inputs]
    made = trace(kernel, launch.grid, launch.block, *inputs, output).main
    found = feedback.of_findings(made.findings, kernel)
    problems: dict[Any, Problem] = {problem.cause: problem for problem in found}
    if not all(map(np.array_equal, inputs, launch.inputs)):
        what = "The kernel changed its input, which it must only read."
        problems[feedback.INPUT] = Problem(feedback.INPUT, what)
    wrong = ~np.isclose(output, right, rtol=1e-5, atol=1e-6, equal_nan=True)
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0].tolist())
        said = f"the kernel wrote {output[where]:.6g}"
        if np.isnan(output[where]):
            said = "nothing, or NaN, was written there"
        elif output[where] == right.dtype.type(before):
            said = "nothing was written there"
        what = joined(f"""With grid {launch.grid} and block {launch.block} the answer is wrong in
            {wrong.sum()} of {wrong.size} places, first at
            {where[0] if len(where) == 1 else list(where)}: {said}, wanted is
            {right[where]:.6g}.""")
        start = max(where[-1] - FEW // 4, 0)
        near = (*where[:-1], slice(start, start + FEW))
        named = zip(signature(kernel.py_func).parameters, launch.inputs, strict=False)
        alike = [(name, one) for name, one in named if one.shape == right.shape]
        shown = [*alike, ("wanted", right), ("got", output)]
        told = [f"{name} {' '.join(f'{n:.4g}' for n in array[near])}" for name, array in shown]
        what += f" Around there: {'; '.join(told)}."
        problems[feedback.ANSWER] = Problem(feedback.ANSWER, what)
    return made, problems, output


def what_is_wrong(kernel: Any, grid: Any, block: Any, *arguments: Any) -> Feedback:
    """Return the strict simulator's findings on a launch, ``kernel[grid, block](*arguments)``."""
    findings = trace(kernel, grid, block, *arguments).main.findings
    problems = tuple(feedback.of_findings(findings, kernel))
    places = f"in {counted(len(problems), 'place')}"
    headline = f"something wrong, {places}" if problems else "nothing wrong"
    return Feedback(f"The simulator found {headline}.", problems)


@graded
def check_function(
    function: Any, wanted: Callable[..., Any],
    cases: Iterable[tuple[Any, ...]] | Callable[[], Iterable[tuple[Any, ...]]], *,
    within: float = 1e-6,
) -> Feedback:  # fmt: skip
    """Check a function against ``wanted``, which returns one number or several.

    The results may differ by the part ``within``. ``cases`` may be a function that makes the
    arguments anew, so that no function gets arguments that an earlier one has changed.
    """
    name = getattr(function, "__name__", "your function")
    ready(function)
    theirs, ours = (list(cases()) if callable(cases) else list(cases) for _ in range(2))
    for arguments, same in zip(theirs, ours, strict=True):
        said = f"{name}({', '.join(map(_brief, arguments))})"
        right = np.atleast_1d(np.asarray(wanted(*same), float))
        with running(f"{said}: "):
            got = function(*arguments)
        if isinstance(gpu := arguments[0], PretendGPU) and gpu._launches < arguments[1]:
            what = f"{said} launches {gpu._launches} times; it must launch {arguments[1]} times."
            return feedback.with_problems([Problem(feedback.ANSWER, what)])
        try:
            numbers = np.atleast_1d(np.asarray(got, float))
        except (TypeError, ValueError):
            numbers = np.array([])
        alike = numbers.shape == right.shape
        if not alike or not (close := np.isclose(numbers, right, rtol=within, atol=0)).all():
            numbered = right if right.ndim > 1 else tuple(right.tolist())
            what = f"{said} is {_brief(got)}; wanted is {_brief(numbered)}."
            if right.ndim > 1 and alike:
                where = tuple(np.argwhere(~close)[0].tolist())
                wrong = f"has {numbers[where]:.6g} at {[*where]}"
                what = f"{said} {wrong}, where {right[where]:.6g} is wanted."
            return feedback.with_problems([Problem(feedback.ANSWER, what)])
    return Feedback("Passed.", (), (f"right on {len(ours)} cases",))


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, tuple | list):
        inside = ", ".join(map(_brief, value))
        return inside if len(value) == 1 else f"({inside})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass
class PretendGPU:
    """A pretended GPU with known times in milliseconds, to practise measuring.

    ``launch`` only puts work into its queue. The first launch compiles the kernel. The numbers that
    a launch has read stay in the cache, so the next launch takes ``cached`` instead of ``cold``.
    One launch in ``hiccup`` takes four times as long.
    """

    cold: float
    cached: float
    hiccup: int = 10
    _now: float = field(default=0.0, repr=False)
    _free: float = field(default=0.0, repr=False)  # when the queue will be empty
    _launches: int = field(default=0, repr=False)
    _in_cache: bool = field(default=False, repr=False)

    def launch(self) -> None:
        """Start the kernel and return immediately, long before it is done."""
        slow = 4 if (self._launches + 1) % self.hiccup == 0 else 1
        time = slow * (self.cached if self._in_cache else self.cold)
        self._start(time, 0.01 if self._launches else 250.0)
        self._launches += 1
        self._in_cache = True

    def flush_cache(self) -> None:
        """Start a kernel that fills the cache with other numbers."""
        self._start(0.5, 0.01)
        self._in_cache = False

    def wait(self) -> None:
        """Wait until all started work is done."""
        self._now = max(self._now, self._free)

    def clock(self) -> float:
        """Return the time in milliseconds."""
        return self._now

    def _start(self, time: float, before: float) -> None:
        self._now += before
        self._free = max(self._now, self._free) + time


def pretended(gpu: PretendGPU, *_: Any) -> float:
    """Return the time of one launch that reads from memory and has no hiccup."""
    return gpu.cold


def gpus(*times: tuple[float, float]) -> Callable[[], list[tuple[PretendGPU, int]]]:
    """Return cases for :func:`check_function`: GPUs with these times (cold, cached), 21 repeats."""
    return lambda: [(PretendGPU(cold, cached), 21) for cold, cached in times]


def traced_im2col(made: Any, problem: ConvProblem) -> LaunchTrace:
    """Return the trace of ``made(problem, WIDTH, BY_IMAGE)``, all images in one matrix."""
    width = pitch(problem.N)
    columns = np.full(problem.K * width, np.nan, np.float32)
    grid = blocks_for(columns.size, THREADS)
    return trace(made(problem, width, False), grid, THREADS, numbered(problem), columns).main


@graded
def check_im2col(made: Any, wanted: Callable[[np.ndarray, ConvProblem], np.ndarray]) -> Feedback:
    """Check ``made``, a function like ``make_im2col(problem, WIDTH, BY_IMAGE)``.

    Its kernel must write the K x N matrix that ``wanted(input, problem)`` returns, with no more
    memory traffic than the stages' own kernel."""

    def cases(problem: ConvProblem) -> Iterator[Case]:
        input, width = numbered(problem), pitch(problem.N)
        matrix = np.asarray(wanted(input, problem), np.float32)
        rows = np.pad(matrix, ((0, 0), (0, width - problem.N)))
        by_image = matrix.reshape(problem.K, problem.N_i, -1).transpose(1, 0, 2)
        for right, layout in ((rows, (width, False)), (by_image, (problem.N, True))):
            launch = On(blocks_for(right.size, THREADS), THREADS, (input,))
            yield (problem, *layout), launch, right.reshape(-1), make_im2col(problem, *layout)

    # Nothing is computed with the numbers; what is counted has to have long rows.
    return _on_problems(made, cases, "the matrix is", PROBLEMS)


@graded
def check_gradient(made: Any, of: str) -> Feedback:
    """Check ``made``, a function like g01's ``make_input_kernel(gradient)``.

    Its kernel must write the gradient ``of`` the ``"input"`` or the ``"weight"``, with no more
    memory traffic than g01's."""

    def cases(problem: ConvProblem) -> Iterator[Case]:
        gradient = Gradient(problem, of)  # type: ignore[arg-type]
        first, second, _ = random_tensors(gradient, 0, bias=False, integers=True)
        own = main_of(BACKWARD[0].prepare(gradient))
        right = reference(gradient, first, second).astype(np.float32)
        yield (gradient,), On(own.grid, own.block, (first, second)), right, own.kernel

    small = {name: one for name, one in PROBLEMS.items() if one.K * one.N < MANY_TERMS}
    return _on_problems(made, cases, "the gradient is", small | {"two groups": IN_GROUPS})


# Of one problem: arguments for a learner's function, what its kernel is launched on, what that must
# write, and a kernel of ours for the same.
Case = tuple[tuple[Any, ...], On, np.ndarray, Any]


def _on_problems(
    made: Any, cases: Callable[[ConvProblem], Iterable[Case]], what: str,
    tried_on: Mapping[str, ConvProblem],
) -> Feedback:  # fmt: skip
    """Check a function that makes a kernel on all cases of each problem.

    ``what`` begins the sentence that says what is right."""
    ready(made)
    problems: dict[Any, Problem] = {}
    counts = np.zeros((2, 2), int)  # of requests and sectors, the learner's and ours
    tried_on = {name: one for name, one in tried_on.items() if name != SPOILED}
    tried_on["an ordinary layer"] = MODEL
    wrong_on = set()
    for name, problem in sorted(tried_on.items(), key=lambda item: item[1].N * item[1].K):
        for arguments, launch, right, own in cases(problem):
            with running(f"{made.__name__}: "):
                kernel = made(*arguments)
            if not is_kernel(kernel):
                raise feedback.broken(f"{made.__name__} returned {kernel!r}: it must be a kernel")
            with running():
                theirs, wrong, _ = tried(kernel, launch, right)
            if (answer := wrong.get(feedback.ANSWER)) is not None:
                wrong_on.add(name)
                on = f"On {name!r} ({problem}): {answer.what}"
                wrong[feedback.ANSWER] = replace(answer, what=on)
            problems = problems | wrong | problems  # the first of each kind
            ours, *_ = tried(own, launch, right)
            counts += [[one.total(unit) for one in (theirs, ours)] for unit in UNITS]
    count = len(tried_on)
    if problems:
        said = f"{what} right on {count - len(wrong_on)} of {count} problems"
        return feedback.with_problems(problems.values(), (said,) * (len(wrong_on) < count))
    told = (f"{what} what NumPy gives, on {count} problems",)
    pairs = zip(UNITS.values(), counts.tolist(), strict=True)
    return feedback.checked_by_counts(told, [feedback.row_of(unit, *pair) for unit, pair in pairs])
