"""Checks of a kernel against NumPy, on launches of any arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from convlab.checking.common_causes import said, shared
from convlab.checking.loading import is_kernel
from convlab.checking.loop_limits import ITERATIONS
from convlab.lessons import feedback
from convlab.lessons.compiling import cause_of_error, compile_mistake, types_of
from convlab.lessons.exchanged import advice_on, exchanged_in
from convlab.lessons.explanations import ENDS, Seen, lines_of, of_findings, with_calls
from convlab.lessons.feedback import (
    ANSWER,
    ONE_ELEMENT,
    ONE_THREAD,
    Feedback,
    Mistake,
)
from convlab.lessons.kernel_counts import (
    as_one_writer,
    as_several_writers,
    counts_of_memory,
    hint_on_busiest,
)
from convlab.lessons.kernel_text import branched_stores, float_constant, slip
from convlab.lessons.launches_tried import On, Tried, properties, threads_along
from convlab.lessons.limits import graded, running
from convlab.lessons.pictures import joined
from convlab.lessons.readiness import ready
from convlab.lessons.traffic_hints import (
    busiest_element,
    busiest_thread,
    stores_of_each,
    writers_of_an_element,
)
from convlab.lessons.unstored import block_number, unstored
from convlab.lessons.wrong_outputs import untouched_places, unwritten_part
from convlab.running.engines.simulator import Simulator
from convlab.simulation.recording.loops import Loops
from convlab.simulation.rules.finding_words import NO_VALUE
from convlab.simulation.rules.findings import Finding, NotSimulated, SimulationError
from convlab.support.values import counted
from convlab.tracing import LaunchTrace, trace
from convlab.tracing.traffic_recorder import TrafficRecorder

FEW = 8  # shown numbers around a wrong one
FEWEST = "fewest"  # that any kernel could need: a right one may need a few more
MANY_STORES = 3  # of one element: a kernel may store a sum before it is complete


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
    thread may make, and the most atomics on one element. All counts may be ``at_most`` times as
    large.
    """
    ready(kernel, is_kernel)
    by_size = sorted(on, key=lambda launch: sum(array.size for array in launch.inputs))
    found: list[Tried] = []
    for launch in by_size:  # the simplest that fails is told
        right = np.asarray(wanted(*launch.inputs))
        with running(instead=partial(cause_of_error, kernel, _types(launch, right))):
            found.append(tried(kernel, launch, right, before))
    answers = (f"the answer is what NumPy gives, on {len(found)} launches",)
    if mistakes := _mistakes(kernel, found, before):
        known = all(one.ended for one in found) and ANSWER not in mistakes
        return feedback.with_mistakes(mistakes.values(), answers if known else ())
    traces = [one.trace for one in found]
    rows, hints = counts_of_memory(kernel, traces, fewest_sectors, each_once, at_most)
    if each_once and (times := max(map(_stores(kernel), found), default=0)) > MANY_STORES:
        alone = max(writers_of_an_element(one, _output(kernel)) for one in traces) == 1
        stored_often = as_one_writer if alone else as_several_writers
        rows, hints = stored_often(rows, hints, _output(kernel), times)
    if busiest is not None:
        for kind, unit, counts in (
            (ONE_THREAD, "accesses of the busiest thread", map(busiest_thread, traces)),
            (ONE_ELEMENT, "atomics on the busiest element", map(busiest_element, traces)),
        ):
            count, place = max(counts, key=lambda pair: pair[0], default=(0, None))
            if count and place is not None:
                rows.append(feedback.row_of(unit, count, busiest, at_most, kind))
                hints[kind] = hint_on_busiest(kernel, kind, place)
    is_counted = each_once or fewest_sectors
    notes = _notes(kernel, found, each_once, is_counted) if found else ()
    return feedback.checked_by_counts(answers, rows, hints, notes, FEWEST)


def _types(launch: On, right: np.ndarray) -> tuple[Any, ...]:
    return types_of((*launch.inputs, right))


def _mistakes(kernel: Any, found: Sequence[Tried], before: float | None) -> dict[Any, Mistake]:
    """Return the mistakes of all launches, the first of each cause."""
    mistakes: dict[Any, Mistake] = {}
    if found:
        first = found[0]
        if (refused := compile_mistake(kernel, _types(first.launch, first.right))) is not None:
            mistakes[refused.cause] = refused
    for one in found:
        mistakes = mistakes | one.mistakes | mistakes
    if (answer := mistakes.get(ANSWER)) is not None:
        wrong, right = (
            [one for one in found if one.ended and (ANSWER in one.mistakes) == is_wrong]
            for is_wrong in (True, False)
        )
        if right:
            more = said(shared(wrong, right, properties(right)), len(wrong), "launches")
            are = "is" if len(wrong) == 1 else "are"
            what = f"{answer.what} {len(wrong)} of {len(found)} launches {are} wrong"
            if stopped := sum(not one.ended for one in found):
                what += f", and in {stopped} more the kernel could not go on to its end"
            answer = replace(answer, what=f"{what}. {more}".strip())
        mistakes[ANSWER] = answer
    wrong_first = sorted(found, key=lambda one: not one.mistakes)
    return with_exchanges([(kernel, one) for one in wrong_first], mistakes, before)


def with_exchanges(
    cases: Sequence[tuple[Any, Tried]], mistakes: dict[Any, Mistake], before: float | None = None
) -> dict[Any, Mistake]:
    """Return the mistakes with the names that are exchanged in the kernel, if these are the cause.

    ``cases`` are kernels of one text, each with a launch that it was tried on.
    """
    told = {one.reason for one in mistakes.values()}
    outside = [cause for cause, one in mistakes.items() if one.reason == "out of bounds"]
    main = ANSWER if ANSWER in mistakes else next(iter(outside), None)
    if main is None or not told <= {ANSWER, "uninitialised", "out of bounds"}:
        return mistakes
    if main == ANSWER and mistakes[main].advice:
        return mistakes
    kernels = list({id(kernel): kernel for kernel, _ in cases}.values())

    def is_right(changed: list[Any]) -> bool:
        new = dict(zip(map(id, kernels), changed, strict=True))
        return all(
            not tried(new[id(kernel)], one.launch, one.right, before).mistakes
            for kernel, one in cases
        )

    exchanges = exchanged_in(kernels, is_right)
    if not exchanges:
        return mistakes
    file = kernels[0].py_func.__code__.co_filename
    lines = lines_of(*((file, one.line) for one in exchanges))
    changed = replace(mistakes[main], lines=lines, advice=advice_on(exchanges))
    first = exchanges[0]
    cause = f"the order of {first.one} and {first.other}" if first.other else f"name {first.one}"
    follows = f"The cause may be {cause} in line {first.line}."
    return {
        key: changed if key == main else replace(one, advice=follows)
        for key, one in mistakes.items()
    }


def _notes(
    kernel: Any, found: Sequence[Tried], each_once: bool, is_counted: bool
) -> tuple[str, ...]:
    """Return what could be better in a right kernel: elements that many threads store, unless that
    is counted, and arithmetic in float64."""
    output, types = _output(kernel), _types(found[0].launch, found[0].right)
    times = 0.0 if each_once else max(map(_stores(kernel), found))
    notes = []
    if times > MANY_STORES:
        alone = max(writers_of_an_element(one.trace, output) for one in found) == 1
        why = """every thread does work that one would do. Let each thread compute an element of its
            own."""
        if alone:
            why = "only the last store of its thread counts. Keep the sum in a variable."
        notes.append(f"each element of {output} is stored {times:.0f} times: {why}")
    if is_counted:
        notes += branched_stores(kernel.py_func)
    if any(array.dtype == np.float64 for array in (*found[0].launch.inputs, found[0].right)):
        return tuple(map(joined, notes))
    if (line := float_constant(kernel, types)) is not None:
        notes.append(f"""it computes in float64, because {line.code!r} in {line} has a number with a
            point, and most GPUs are slow with 64-bit numbers. Write float32(0) instead of 0.0.""")
    return tuple(map(joined, notes))


def _stores(kernel: Any) -> Callable[[Tried], float]:
    """Return a function that says how often a launch stores each element of the output."""
    output = _output(kernel)
    return lambda one: stores_of_each(one.trace, output, one.right.size)


def _output(kernel: Any) -> str:
    """Return the name of a kernel's last argument."""
    return list(signature(kernel.py_func).parameters)[-1]


def tried(
    kernel: Any,
    launch: On,
    right: np.ndarray,
    before: float | None = None,
    loops: Loops | None = None,
    where: str = "",
) -> Tried:
    """Try a kernel on a launch whose output should become ``right`` and holds ``before`` first.

    ``where`` is the sentence that says on which problem findings were seen, by default on which
    launch. Raises whatever the kernel raises, and ``EndlessLoop`` for more iterations than
    ``loops`` allow.
    """
    if before is None:
        before = np.nan if right.dtype.kind == "f" else np.iinfo(right.dtype).max
    output = np.full(right.shape, before, right.dtype)
    inputs = [array.copy() for array in launch.inputs]
    made = _traced(kernel, launch, [*inputs, output], loops or Loops(ITERATIONS))
    seen = {one: _seen(kernel, launch, made, one, where) for one in made.findings}
    mistakes: dict[Any, Mistake] = {
        one.cause: one for one in of_findings(made.findings, kernel, seen=seen)
    }
    ended = not any(map(_ends, made.findings))
    if not all(map(np.array_equal, inputs, launch.inputs)):
        mistakes[feedback.INPUT] = _changed_input(kernel, made)
    wrong = ~np.isclose(output, right, rtol=1e-5, atol=1e-6, equal_nan=True)
    if wrong.any() and ended:
        mistakes[ANSWER] = _wrong_answer(kernel, launch, made, output, right, wrong, before)
    if mistakes:
        dimensions = [array.ndim for array in (*inputs, output)]
        if (said_by_text := slip(kernel, dimensions)) is not None:
            mistakes = {said_by_text.cause: said_by_text}
    return Tried(launch, made, mistakes, output, right, ended)


def _seen(kernel: Any, launch: On, made: LaunchTrace, finding: Finding, where: str) -> Seen:
    """Return where a finding was seen, and which elements of its array are never stored."""
    where = where or f"This is with grid {launch.grid} and block {launch.block}."
    of_shown = finding.block is None or block_number(finding.block, made.grid) == 0
    if finding.kind == "uninitialised" and of_shown:
        never = unstored(made, finding)
        if never is not None:
            return Seen(where, never.said, with_calls(kernel, *never.places))
    return Seen(where)


def _changed_input(kernel: Any, made: LaunchTrace) -> Mistake:
    output, stores = _output(kernel), ("store", "atomic")
    places = [
        (one.file, one.line)
        for one in made.of(space="global")
        if one.array != output and one.operation in stores
    ]
    what = "The kernel changed its input, which it must only read."
    return Mistake(feedback.INPUT, what, lines_of(*places, kernel=kernel))


def _ends(finding: Finding) -> bool:
    """Return whether a launch ends with the finding: not after an index below zero."""
    ends = finding.kind in ENDS or NO_VALUE in finding.what
    return ends and "Numba takes" not in finding.what


def _traced(kernel: Any, launch: On, arrays: list[np.ndarray], loops: Loops) -> LaunchTrace:
    """Return the trace of a launch, with a limit for its loops."""
    recorder = TrafficRecorder(0, None, branches_together=True)
    simulator = Simulator(recorder=recorder, loops=loops)
    try:
        simulator.launch(kernel, launch.grid, launch.block, *arrays)
    except NotSimulated:
        raise
    except SimulationError as error:
        return recorder.trace(error.findings)
    return recorder.trace()


def _wrong_answer(
    kernel: Any, launch: On, made: LaunchTrace, output: np.ndarray, right: np.ndarray,
    wrong: np.ndarray, before: float,
) -> Mistake:  # fmt: skip
    """Return the mistake of a wrong output: how much is wrong, and numbers around the first."""
    where = tuple(np.argwhere(wrong)[0].tolist())
    said_of = f"the kernel wrote {output[where]:.6g}"
    name = _output(kernel)
    reads = [(one.file, one.line) for one in made.of(name) if one.operation != "store"]
    untouched = untouched_places(output, before)[where]
    if np.isnan(output[where]):
        said_of = "nothing, or NaN, was written there"
    elif untouched:
        said_of = "nothing was written there"
    what = joined(f"""With grid {launch.grid} and block {launch.block} the answer is wrong in
        {wrong.sum()} of {wrong.size} places, first at
        {where[0] if len(where) == 1 else list(where)}: {said_of}, wanted is
        {right[where]:.6g}.""")
    start = max(where[-1] - FEW // 4, 0)
    near = (*where[:-1], slice(start, start + FEW))
    named = zip(signature(kernel.py_func).parameters, launch.inputs, strict=False)
    alike = [(one_name, one) for one_name, one in named if one.shape == right.shape]
    shown = [*alike, ("wanted", right), ("got", output)]
    told = [f"{one_name} {' '.join(f'{n:.4g}' for n in array[near])}" for one_name, array in shown]
    what += f" Around there: {'; '.join(told)}."
    if isinstance(launch.block, tuple):
        threads = threads_along(launch, 0), threads_along(launch, 1)
        what += unwritten_part(name, untouched_places(output, before), wrong, threads)
    if np.isnan(output[where]) and reads:
        advice = (
            f"The kernel reads {name}, which holds NaN until the kernel stores to it: += reads."
        )
        return Mistake(ANSWER, what, lines_of(*reads, kernel=kernel), advice)
    return Mistake(ANSWER, what)


def what_is_wrong(kernel: Any, grid: Any, block: Any, *arguments: Any) -> Feedback:
    """Return the strict simulator's findings on a launch, ``kernel[grid, block](*arguments)``."""
    findings = trace(kernel, grid, block, *arguments).main.findings
    mistakes = tuple(of_findings(findings, kernel))
    places = f"in {counted(len(mistakes), 'place')}"
    headline = f"something wrong, {places}" if mistakes else "nothing wrong"
    return Feedback(f"The simulator found {headline}.", mistakes)
