"""The benchmark: layers x systems into rows, one after the other, each saved as it comes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

import numpy as np

from convlab.bench.analysis import in_gemm_class
from convlab.bench.bounds import Judge
from convlab.bench.measuring import SETTLED_PERCENT, Judging, Outcome, no_room
from convlab.bench.roofline import Machine, too_fast
from convlab.bench.rows import Row, State
from convlab.bench.systems import System
from convlab.oracle import random_tensors
from convlab.problem import ConvProblem
from convlab.workloads import paper_layer

SEED = 0
# What may have passed, a GPU too hot say, once the others of a layer are measured: it is then
# measured again, and only what that gives is a row.
PASSING: tuple[State, ...] = ("unsteady", "busy")


class Measurers(Protocol):
    """Those who measure: :class:`~convlab.bench.crew.Crew`, or a test's own."""

    def compile(self, wanted: Sequence[tuple[ConvProblem, System]]) -> Iterator[None]:
        """Make these systems ready ahead of time; yields once for each that is done."""

    def layer(
        self, problem: ConvProblem, tensors: tuple[np.ndarray, np.ndarray]
    ) -> AbstractContextManager[None]:
        """Inside the ``with`` that problem is measured, on these: input and weight, float32.

        Raises ``MemoryError`` or ``OSError`` where there is no room for them.
        """

    def measure(self, system: System, judge: Judging) -> Outcome:
        """Measure a system on that layer; ``judge`` says what is wrong with an output."""


@dataclass(frozen=True)
class Case:
    """A row to be: a system on a layer."""

    layer: str
    problem: ConvProblem
    system: System

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells rows apart: layer, batch, system's name."""
        return self.layer, self.problem.batch, self.system.name


def cases_for(layers: Sequence[str], batch: int, systems: Sequence[System]) -> list[Case]:
    """Every system on every layer, layer by layer. Raises ``ValueError`` for an unknown layer."""
    problems = {layer.lower(): paper_layer(layer, batch) for layer in layers}
    return [
        Case(layer, problem, system) for layer, problem in problems.items() for system in systems
    ]


def compiled_ahead(cases: Sequence[Case]) -> list[Case]:
    """What is made ready before anything is measured: every kernel of the stages, and each
    baseline's library once."""
    able = [case for case in cases if case.system.compile is not None]
    libraries = {case.system.name: case for case in able if case.system.kind == "baseline"}
    return [*(case for case in able if case.system.kind == "stage"), *libraries.values()]


def run(
    cases: Sequence[Case],
    crew: Measurers,
    machine: Machine,
    identity: str,
    *,
    on_compiled: Callable[[], None] = lambda: None,
    on_layer: Callable[[str], None] = lambda layer: None,
) -> Iterator[Row]:
    """Measure the cases and yield their rows, layer by layer; kernels are compiled before."""
    for _ in crew.compile([(case.problem, case.system) for case in compiled_ahead(cases)]):
        on_compiled()
    for layer in dict.fromkeys(case.layer for case in cases):
        on_layer(layer)
        yield from _layer([case for case in cases if case.layer == layer], crew, machine, identity)


def _layer(
    cases: Sequence[Case], crew: Measurers, machine: Machine, identity: str
) -> Iterator[Row]:
    problem = cases[0].problem
    with ExitStack() as held:
        try:
            input, weight, _ = random_tensors(problem, SEED, bias=False)
            judge = Judge(problem, input, weight)
            held.enter_context(crew.layer(problem, (input, weight)))
        except (MemoryError, OSError) as error:
            outcome = no_room(error, f"the host cannot hold {problem} and its float64 answer")
            for case in cases:
                yield row_of(case, outcome, machine, identity, 0.0)
            return
        later = []
        for case in cases:
            row = _measured(case, crew, judge, machine, identity)
            if row.state in PASSING:
                later.append(case)
            else:
                yield row
        for case in later:
            yield _measured(case, crew, judge, machine, identity)


def _measured(case: Case, crew: Measurers, judge: Judge, machine: Machine, identity: str) -> Row:
    started = time.monotonic()
    outcome = crew.measure(case.system, _judging(judge, case))
    return row_of(case, outcome, machine, identity, time.monotonic() - started)


def _judging(judge: Judge, case: Case) -> Judging:
    system = case.system
    allowances = system.allowances(case.problem)
    return lambda output: judge.check(output, system.precision, system.method, allowances)


def row_of(case: Case, outcome: Outcome, machine: Machine, identity: str, seconds: float) -> Row:
    """The row of an outcome: with its number, unless that is above the roofline."""
    problem, system = case.problem, case.system
    time_ms, spread = outcome.time_ms, outcome.time_spread
    if time_ms is not None and not 0 < time_ms < math.inf:
        reason = f"the clock said {time_ms} ms, which no work takes"
        return row_of(
            case, replace(outcome).without_number("refused", reason), machine, identity, seconds
        )
    row = Row(
        case.layer,
        problem.batch,
        system.name,
        outcome.state,
        outcome.reason,
        time_ms,
        spread,
        outcome.repeats,
        None if spread is None else spread <= SETTLED_PERCENT,
        None if time_ms is None else problem.flops / time_ms / 1e9,
        outcome.bound,
        None if outcome.error_over_bound is None else float(outcome.error_over_bound),
        outcome.workspace_bytes,
        outcome.peak_bytes,
        outcome.algorithm,
        outcome.clocks_mhz,
        round(seconds, 3),
        datetime.now(UTC).isoformat(timespec="seconds"),
        identity,
        outcome.called_ms,
        outcome.called_spread,
    )
    if time_ms is None:
        return row
    # What a library chose is known by now: kernels that do every multiplication are held to that.
    method = "gemm" if in_gemm_class(system.method, row) else system.method
    above = too_fast(problem, time_ms, machine, system.precision, method)
    if above is None:
        return row
    refused = replace(outcome).without_number("refused", above)
    return row_of(case, refused, machine, identity, seconds)
