"""``check`` compares a user's kernel with a stage: answers, findings, machine code, traffic."""

from __future__ import annotations

import linecache
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from convlab.checking.launches import (
    COUNTED,
    EVERYTHING,
    PIXEL,
    Planned,
    main_of,
    planned,
)
from convlab.checking.loading import Maker, maker, title_of
from convlab.checking.loop_limits import ITERATIONS, TIMES, limited_loops, stage_iterations
from convlab.checking.machine_code import compiled
from convlab.checking.outcome import (
    BARRIERS,
    RELU,
    TRANSFORMS,
    Answer,
    Check,
    TrafficCount,
)
from convlab.checking.programs import Arrays, Tensors, copies_of, program_with, residual_of
from convlab.checking.spoiled import spoil
from convlab.checking.unwritten import Ran, unwritten
from convlab.ladder import Launch, Program, Stage, Tile, allowances, stage_named
from convlab.ladder.stage import READ_ONLY, RESIDUAL
from convlab.problems import workloads
from convlab.problems.oracle import Oracle, before_relu, random_tensors
from convlab.problems.problem import ConvProblem
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan, with_tile
from convlab.simulation.recording.loops import UNLIMITED, EndlessLoop, Loops
from convlab.simulation.rules.findings import (
    FATAL,
    Finding,
    NotSimulated,
    SimulationError,
)
from convlab.support.values import integer, shown
from convlab.tracing import LaunchTrace, trace_steps

OnProblem = Callable[[str, int, int], object]  # the name, the number from 1, the count of all


def check(
    kernel: object,
    stage: str,
    *,
    seed: int = 0,
    on_step: Callable[[], object] = lambda: None,
    on_problem: OnProblem = lambda name, number, count: None,
    first_findings: bool = False,
    model: ConvProblem | None = None,
    too_many: TooMany | None = None,
    dtype: str | None = None,
) -> Check:
    """Check a kernel against the contract of a stage, on the strict simulator.

    ``kernel`` is a ``@cuda.jit`` kernel with the arguments of the stage's main kernel, a function
    ``make_kernel(problem, tile)`` that returns one (``make_kernel(problem)`` for a stage without
    tiles), a function ``prepare`` with the same arguments that returns a whole
    :class:`~convlab.ladder.Program`, or ``"FILE.py::NAME"`` of any of these. ``seed`` chooses the
    numbers. ``on_step`` is called after each problem, and ``on_problem`` before it, with its name,
    its number from 1 and the count of all. With ``first_findings`` the problems after the first one
    with findings run without the simulator's checks, which takes a tenth of the time. ``model`` is
    the problem for the counts, by default the small Conv9. If ``too_many`` returns True for a
    kernel's counts, the larger problems, which would take long, are left out. ``dtype`` is the type
    of the numbers, one that the stage takes, by default the first; the layout is the stage's.

    Raises ``ValueError`` for an unknown stage, or if there is no kernel to check, ``TypeError`` for
    an argument of another kind.
    """
    integer("seed", seed, at_least=0)
    if model is not None and not isinstance(model, ConvProblem):
        raise TypeError(f"model is {shown(model)}: it must be a ConvProblem or None")
    for name, called in (("on_step", on_step), ("on_problem", on_problem)):
        if not callable(called):
            raise TypeError(f"{name} is {shown(called)}: it must be a function")
    chosen_stage = stage_named(stage)
    if dtype is not None:
        if dtype not in chosen_stage.dtypes:
            must = " or ".join(chosen_stage.dtypes)
            raise ValueError(f"dtype is {shown(dtype)}: it must be {must} for {chosen_stage.name}")
        chosen_stage = replace(chosen_stage, dtypes=(dtype,))
    pixel = chosen_stage.adapted(PIXEL)
    if not isinstance(chosen_stage.prepare(pixel, chosen_stage.tiny_tile).launches[-1], Launch):
        raise ValueError(
            f"stage is {chosen_stage.name}, which has no kernel: a library does its work"
        )
    made = maker(kernel, chosen_stage)
    answers: list[Answer] = []
    found: dict[tuple[object, ...], tuple[Finding, Answer]] = {}
    counts: dict[str, int] = {}
    model = chosen_stage.adapted(model or workloads.MODEL)
    tried = planned(chosen_stage, made)
    launches: list[LaunchTrace] = []
    trying = attempts(
        chosen_stage, made, seed, model, tried=tried, on_problem=on_problem,
        first_findings=first_findings, on_counted=launches.extend, too_many=too_many,
    )  # fmt: skip
    for answer, findings, counted in trying:
        counts = counted or counts
        answers.append(answer)
        for one in findings:
            found.setdefault((one.kind, one.line, one.other_line, one.array), (one, answer))
        on_step()
    machine = None
    if all(answer.ended for answer in answers):
        everything = chosen_stage.adapted(EVERYTHING)
        program = program_with(chosen_stage, made, everything, chosen_stage.tiny_tile)
        machine = compiled(program, chosen_stage.prepare(everything, chosen_stage.tiny_tile))
    checked = Check(
        kernel=title_of(kernel),
        stage=chosen_stage.name,
        answers=tuple(answers),
        findings=tuple(finding for finding, _ in found.values()),
        counts=(),
        machine=machine,
        planned=len(tried) + 1,
        launches=tuple(launches),
        found_on=tuple(answer for _, answer in found.values()),
    )
    if not checked.ok:
        return checked
    return replace(checked, counts=compared_with(chosen_stage, counts, model, seed))


def counts_also(
    kernel: object, stage: str, tile: Tile, model: ConvProblem, seed: int = 0
) -> tuple[Answer, tuple[TrafficCount, ...], tuple[LaunchTrace, ...]]:
    """The answer on ``model`` with another tile, the counts beside the stage's with that tile, and
    the traces that are counted. Raises ``ValueError`` as :func:`check`."""
    chosen_stage = with_tile(stage_named(stage), tile)
    launches: list[LaunchTrace] = []
    model = chosen_stage.adapted(model)
    make = maker(kernel, chosen_stage)
    answer, _, counts = _counted(chosen_stage, make, model, seed, launches.extend)
    return answer, compared_with(chosen_stage, counts, model, seed), tuple(launches)


def compared_with(
    stage: Stage, counts: dict[str, int], model: ConvProblem, seed: int
) -> tuple[TrafficCount, ...]:
    """The counts of a kernel beside those of the stage on the same problem."""
    stages = counts_of_stage(stage, model, seed).counts
    return tuple(
        TrafficCount(unit, counts.get(unit, 0), stages.get(unit, 0)) for unit in counts | stages
    )


OnCounted = Callable[[Sequence[LaunchTrace]], None]
TooMany = Callable[[dict[str, int]], bool]  # of counts, so that more problems would take too long
Attempt = tuple[Answer, tuple[Finding, ...], dict[str, int]]  # and the counts, where it has any


def attempts(
    stage: Stage, make: Maker, seed: int, model: ConvProblem, *,
    tried: Sequence[Planned] | None = None,
    first_findings: bool = False, on_problem: OnProblem = lambda name, number, count: None,
    on_counted: OnCounted = lambda launches: None, too_many: TooMany | None = None,
) -> Iterator[Attempt]:  # fmt: skip
    """Try the problems ``tried`` one by one, by default all that are planned, and the larger ones
    only while nothing is wrong: what is wrong shows better in small ones. The last is ``model``,
    which is counted. The larger ones are left out if its counts are ``too_many``. With
    ``first_findings`` problems after the first one with findings run without checks. ``on_counted``
    gets the traces that are counted."""
    right, strict = True, True
    tried = planned(stage, make) if tried is None else tried
    counted: Attempt | None = None
    for number, (name, problem, tile, options, if_right) in enumerate(tried, 1):
        if if_right and not right:
            return
        if if_right and too_many is not None and counted is None:
            counted = _counted(stage, make, model, seed, on_counted)
            counts = counted[2]
            if counts and too_many(counts):
                yield counted
                return
        on_problem(name, number, len(tried) + 1)
        answer, findings = _try(stage, make, name, problem, tile, seed, strict, **options)
        yield answer, findings, {}
        right = right and answer.ok and not findings
        # A launch that ends with its finding takes no time, and others may tell more.
        went_on = any(finding.kind not in FATAL for finding in findings)
        strict = strict and not (first_findings and went_on)
        if answer.endless:
            return  # each problem would take as long
    if right:
        on_problem(COUNTED, len(tried) + 1, len(tried) + 1)
        yield counted or _counted(stage, make, model, seed, on_counted)


def check_also(
    kernel: object, stage: str, also: Tile | ConvProblem, seed: int = 0
) -> tuple[Answer, tuple[Finding, ...]]:
    """The answer and the findings on one more problem, or with one more tile, on a problem with
    channels for two of them. Raises ``ValueError`` as :func:`check`."""
    chosen_stage = stage_named(stage)
    made = maker(kernel, chosen_stage)
    if isinstance(also, ConvProblem):
        return _try(chosen_stage, made, "one more problem", also, chosen_stage.tiny_tile, seed)
    name = f"everything at once, with tile {also}"
    everything = chosen_stage.adapted(EVERYTHING)
    problem = replace(everything, out_channels=also.M_B + everything.out_channels)
    return _try(with_tile(chosen_stage, also), made, name, problem, also, seed)


def is_right_on(kernel: object, stage: Stage, answers: Sequence[Answer], seed: int) -> bool:
    """Return whether a kernel is right on the problems of these answers, without strict checks."""
    make = maker(kernel, stage)
    return all(
        _try(stage, make, one.name, one.problem, one.tile, seed, strict=False)[0].ok
        for one in answers
    )


def _try(
    stage: Stage, make: Maker, name: str, problem: ConvProblem, tile: Tile | None, seed: int,
    strict: bool = True, **options: object,
) -> tuple[Answer, tuple[Finding, ...]]:  # fmt: skip
    """The answer, and a strict run's findings; after these the answer of a run without checks.
    Without ``strict`` only the latter."""
    tensors = random_tensors(problem, seed)
    own = partial(stage_iterations, stage, problem, tile)
    spoil(tensors, name, problem)
    program = program_with(stage, make, problem, tile, **options)
    blocks = math.prod(main_of(program).grid)
    answer = Answer(
        name, problem, None, "it could not go on", ended=False, tile=tile, blocks=blocks
    )
    findings: tuple[Finding, ...] = ()
    try:
        try:
            ran = _run(stage, program, problem, tensors, own, strict=strict)
        except NotSimulated:
            raise
        except SimulationError as error:
            if not strict:
                raise
            findings = error.findings
            ran = _run(stage, program, problem, tensors, own, strict=False)
    except NotSimulated as error:
        raise ValueError(str(error)) from error
    except SimulationError:  # without checks less is known of what the kernel waits for
        return _stopped(stage, answer, findings, own), findings
    except EndlessLoop as error:
        said = f"{error}, and {stage.name} has {own():,} in all loops of all threads"
        if error.code.startswith("for ") and error.iterations <= own():  # it would end
            most = ITERATIONS + TIMES * own()
            said = f"its loops run more than {most:,} iterations, those of {stage.name} {own():,}"
        return replace(answer, failed=", ".join([said, *_notes(error)]), endless=True), findings
    except (Exception, SystemExit) as error:  # whatever somebody's kernel raises is its result
        return replace(answer, failed=raised_by(error)), findings
    checked = _checked(stage, name, problem, tensors, ran.arrays, ran.residual)
    return replace(checked, tile=tile, blocks=blocks, unwritten=ran.unwritten), findings


def _stopped(
    stage: Stage, answer: Answer, findings: tuple[Finding, ...], own: Callable[[], int]
) -> Answer:
    """Return the answer of a kernel that could not go on. It names the loop that does not end if
    there is one; ``own`` returns the number of iterations that the stage's kernels run."""
    for finding in findings:
        line = linecache.getline(finding.file, finding.line).strip()
        if finding.kind == "endless loop" and line.startswith("while "):
            said = (
                f"the loop `{line}` does not end: {finding.what}, and {stage.name} has {own():,} "
                f"in all loops of all threads, in {finding.kernel}, {finding.file}:{finding.line}"
            )
            return replace(answer, failed=said, endless=True)
    return answer


def _checked(
    stage: Stage,
    name: str,
    problem: ConvProblem,
    tensors: Tensors,
    arrays: Arrays,
    residual: tuple[np.ndarray, np.ndarray] | None = None,
) -> Answer:
    """The answer. ``arrays`` are what the program ran on, ``tensors`` what they held before;
    ``residual`` is what it added, before and after."""
    input, weight, output, bias = arrays
    added, added_now = residual or (None, None)
    oracle = Oracle(problem, *tensors, residual=added)
    allowed = allowances(stage, problem)
    if name == RELU:
        output = before_relu(output, oracle.expected)
    checked = oracle.check(output, **allowed)
    where = None
    if not checked.ok:
        where = np.stack([oracle.is_wrong(i, image, **allowed) for i, image in enumerate(output)])
    before, after = (*tensors, added), (input, weight, bias, added_now)
    sources = zip(READ_ONLY, after, before, strict=True)
    changed = [
        source
        for source, now, was in sources
        if was is not None and now is not None and not np.array_equal(now, was, equal_nan=True)
    ]
    failed = f"the kernel wrote to {changed[0]}, which is only to be read" if changed else None
    return Answer(name, problem, checked, failed, where, output=output)


def _run(
    stage: Stage, program: Program, problem: ConvProblem, tensors: Tensors,
    own: Callable[[int], int], strict: bool,
) -> Ran:  # fmt: skip
    arrays = copies_of(problem, tensors)
    simulator = Simulator(strict, loops=limited_loops(own))
    adds = RESIDUAL in program.dtypes
    plan = Plan(problem, stage, program.tile, simulator, program=program, residual=adds)
    if not adds:
        plan(*arrays)
        return Ran(arrays, unwritten(plan, arrays))
    residual = residual_of(problem)
    given = residual.copy()
    plan(*arrays, residual=given)
    return Ran(arrays, unwritten(plan, arrays, given), (residual, given))


def _counted(
    stage: Stage, make: Maker, problem: ConvProblem, seed: int,
    on_counted: OnCounted = lambda launches: None,
    loops: Loops | None = None,
) -> Attempt:  # fmt: skip
    """The answer on the problem that is counted, and its counts. ``loops`` count the iterations;
    without them a kernel may run as many as the stage allows."""

    def own(_most: int) -> int:  # all are counted: counts_of_stage is needed in any case
        return counts_of_stage(stage, problem, seed).iterations

    tile = stage.model_tile or stage.tiny_tile
    program = program_with(stage, make, problem, tile)
    ready = Plan(problem, stage, program.tile, Simulator(strict=False), program=program)
    tensors = random_tensors(problem, seed)
    arrays = copies_of(problem, tensors)
    fault: BaseException | None = None
    if loops is None:
        loops = limited_loops(own)
    try:
        launches = trace_steps(ready, *arrays, loops=loops, branches_together=True)
    except (Exception, SystemExit) as error:
        fault = error
    if fault is None and not any(launch.findings for launch in launches):
        answer = _checked(stage, COUNTED, problem, tensors, arrays)
        answer = replace(answer, tile=tile, blocks=math.prod(main_of(program).grid))
        on_counted(launches)
        return answer, (), _counts_of(*launches)
    answer, findings = _try(stage, make, COUNTED, problem, tile, seed)  # says what is wrong
    if fault is not None and answer.ok and not findings:
        raise fault
    return answer, findings, {}


class StageCounts(NamedTuple):
    """The counts of a stage on one problem, and the iterations of its loops, by all threads."""

    counts: dict[str, int]
    iterations: int


@lru_cache(maxsize=64)  # a kernel that is being corrected is checked repeatedly
def counts_of_stage(stage: Stage, problem: ConvProblem, seed: int) -> StageCounts:
    """Return the counts of a stage on one problem, whose numbers ``seed`` chooses."""
    loops = Loops(UNLIMITED)
    _, _, counts = _counted(stage, stage.prepare, problem, seed, loops=loops)
    return StageCounts(counts, UNLIMITED - loops.left)


def _counts_of(*launches: LaunchTrace) -> dict[str, int]:
    """Counts of the main kernel, the last, and of the layout transforms before it. What is stored
    has counts of its own: it is little, and waste would hide behind the loads."""
    counts: Counter[str] = Counter()
    for launch in launches:
        of = "" if launch is launches[-1] else TRANSFORMS
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


def raised_by(error: BaseException) -> str:
    """Return a kernel's error, and the thread, file and line, which the simulator notes."""
    said = re.sub(r"^tid=\[.*?\] ctaid=\[.*?\]:? ?", "", str(error))  # the notes say it better
    return ", ".join([f"it raised {type(error).__name__}: {said}", *_notes(error)])


def _notes(error: BaseException) -> tuple[str, ...]:
    return tuple(getattr(error, "__notes__", ()))
