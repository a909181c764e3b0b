"""The list of cases, and the run over it: systems x layers into rows, one after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from convlab.bench.analysis import in_gemm_class
from convlab.bench.baselines import System
from convlab.bench.bounds import Checker
from convlab.bench.harness import Check, Outcome, no_room
from convlab.bench.monitor import SETTLED_PERCENT
from convlab.bench.pool import WorkerPool
from convlab.bench.roofline import Machine, too_fast
from convlab.bench.rows import Key, Row, State
from convlab.oracle import random_tensors
from convlab.problem import ConvProblem
from convlab.workloads import paper_layer

SEED = 0
# A GPU that was too hot or in use may recover: such a case is measured once more at the end of its
# layer, and only the second outcome becomes a row.
PASSING: tuple[State, ...] = ("unsteady", "busy")


@dataclass(frozen=True)
class Case:
    """One system on one layer."""

    layer: str
    problem: ConvProblem
    system: System

    @property
    def key(self) -> Key:
        """Layer, batch and the system's name."""
        return self.layer, self.problem.batch, self.system.name


def cases_for(layers: Sequence[str], batch: int, systems: Sequence[System]) -> list[Case]:
    """Every system on every layer, layer by layer. Raises ``ValueError`` for an unknown layer."""
    problems = {layer.lower(): paper_layer(layer, batch) for layer in layers}
    return [
        Case(layer, problem, system) for layer, problem in problems.items() for system in systems
    ]


def compiled_ahead(cases: Sequence[Case]) -> list[Case]:
    """What is compiled before the first measurement: every stage's kernels, each baseline once."""
    able = [case for case in cases if case.system.compile is not None]
    baselines = {case.system.name: case for case in able if case.system.kind == "baseline"}
    return [*(case for case in able if case.system.kind == "stage"), *baselines.values()]


def weights(problems: Iterable[ConvProblem]) -> list[float]:
    """Estimated seconds per row: a constant, its bytes, and its arithmetic on the slow stages."""
    return [
        0.8 + 1.2 * problem.least_bytes / 1e9 + 4.0 * problem.flops / 610e9 for problem in problems
    ]


def run(
    cases: Sequence[Case],
    pool: WorkerPool,
    machine: Machine,
    identity: str,
    *,
    on_compiled: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """Compile, then measure the cases layer by layer and yield their rows."""
    for _ in pool.compile([(case.problem, case.system) for case in compiled_ahead(cases)]):
        on_compiled()
    for layer in dict.fromkeys(case.layer for case in cases):
        yield from _layer([case for case in cases if case.layer == layer], pool, machine, identity)


def _layer(
    cases: Sequence[Case], pool: WorkerPool, machine: Machine, identity: str
) -> Iterator[Row]:
    problem = cases[0].problem
    with ExitStack() as held:
        try:
            input, weight, _ = random_tensors(problem, SEED, bias=False)
            checker = Checker(problem, input, weight)
            held.enter_context(pool.layer(problem, (input, weight)))
        except (MemoryError, OSError) as error:
            outcome = no_room(error, f"the host cannot hold {problem} and its float64 answer")
            for case in cases:
                yield row_of(case, outcome, machine, identity, 0.0)
            return

        def measured(case: Case) -> Row:
            started = time.monotonic()
            outcome = pool.measure(case.system, _check(checker, case))
            return row_of(case, outcome, machine, identity, time.monotonic() - started)

        later = []
        for case in cases:
            row = measured(case)
            if row.state in PASSING:
                later.append(case)
            else:
                yield row
        yield from map(measured, later)


def _check(checker: Checker, case: Case) -> Check:
    system = case.system
    allowances = system.allowances(case.problem)
    return lambda output: checker.check(output, system.precision, system.method, allowances)


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
    # The algorithm that a library chose is known by now: the GEMM class does every multiplication.
    method = "gemm" if in_gemm_class(system.method, row) else system.method
    above = too_fast(problem, time_ms, machine, system.precision, method)
    if above is None:
        return row
    refused = replace(outcome).without_number("refused", above)
    return row_of(case, refused, machine, identity, seconds)
