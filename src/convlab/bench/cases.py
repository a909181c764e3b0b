"""The list of cases, and the run over it: systems x layers into rows, one after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from convlab.bench import gpu_backend, monitor
from convlab.bench.baselines import System
from convlab.bench.bounds import Checked, Checker
from convlab.bench.harness import Outcome, no_room
from convlab.bench.monitor import SETTLED_PERCENT
from convlab.bench.pool import ROW_SECONDS, WorkerPool
from convlab.bench.results import Key, Row, State, identity, library_versions
from convlab.bench.roofline import Machine, in_gemm_class, too_fast
from convlab.oracle import random_tensors
from convlab.problem import ConvProblem
from convlab.workloads import paper_layer

SEED = 0
# A GPU that was too hot or in use may recover: such a case is measured again at the end of its
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


class Bench(NamedTuple):
    """Workers, and what rows are measured with: the GPU's ceilings, what is installed, and the word
    that stands for machine, versions and code."""

    pool: WorkerPool
    machine: Machine
    environment: dict[str, Any]
    identity: str


@contextmanager
def open_bench(row_seconds: float = ROW_SECONDS) -> Iterator[Bench]:
    """Start the workers. Raises :class:`~convlab.bench.pool.WorkerDied` or ``OSError`` where no
    process can measure."""
    gpu = gpu_backend.current_gpu()
    pool = WorkerPool(row_seconds=row_seconds, foreign=monitor.processes(gpu)())
    try:
        facts = pool.facts()
        known = facts["environment"]
        known["packages"] = known["packages"] | library_versions()
        yield Bench(pool, Machine(**facts["machine"]), known, identity(known, gpu))
    finally:
        pool.close()


def run(
    cases: Sequence[Case], bench: Bench, *, on_compiled: Callable[[], None] = lambda: None
) -> Iterator[Row]:
    """Compile, then measure the cases layer by layer and yield their rows."""
    for _ in bench.pool.compile([(case.problem, case.system) for case in compiled_ahead(cases)]):
        on_compiled()
    for layer in dict.fromkeys(case.layer for case in cases):
        yield from _layer([case for case in cases if case.layer == layer], bench)


def _layer(cases: Sequence[Case], bench: Bench) -> Iterator[Row]:
    problem = cases[0].problem

    def row(case: Case, outcome: Outcome, started: float) -> Row:
        seconds = time.monotonic() - started
        return row_of(case, outcome, bench.machine, bench.identity, seconds)

    def measured(case: Case) -> Row:
        system, started = case.system, time.monotonic()
        allowances = system.allowances(problem)

        def check(output: np.ndarray) -> Checked:
            return checker.check(output, system.precision, system.method, allowances)

        return row(case, bench.pool.measure(system, check), started)

    with ExitStack() as held:
        try:
            input, weight, _ = random_tensors(problem, SEED, bias=False)
            checker = Checker(problem, input, weight)
            held.enter_context(bench.pool.layer(problem, (input, weight)))
        except (MemoryError, OSError) as error:
            outcome = no_room(error, f"the host cannot hold {problem} and its float64 answer")
            yield from (row(case, outcome, time.monotonic()) for case in cases)
            return
        later = []
        for case in cases:
            found = measured(case)
            if found.state in PASSING:
                later.append(case)
            else:
                yield found
        yield from map(measured, later)


def row_of(case: Case, outcome: Outcome, machine: Machine, identity: str, seconds: float) -> Row:
    """The row of an outcome: with its number, unless that is above the roofline."""
    problem, system, time_ms = case.problem, case.system, outcome.time_ms

    def refused(reason: str) -> Row:
        without = replace(outcome).without_number("refused", reason)
        return row_of(case, without, machine, identity, seconds)

    if time_ms is not None and not 0 < time_ms < math.inf:
        return refused(f"the clock said {time_ms} ms, which no work takes")
    known = asdict(outcome) | {"layer": case.layer, "batch": problem.batch, "system": system.name}
    del known["healthy"]
    if outcome.error_over_bound is not None:
        known["error_over_bound"] = float(outcome.error_over_bound)
    spread = outcome.time_spread
    row = Row(
        **known,
        settled=None if spread is None else spread <= SETTLED_PERCENT,
        tflops=None if time_ms is None else problem.flops / time_ms / 1e9,
        seconds=round(seconds, 3),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        identity=identity,
    )
    if time_ms is None:
        return row
    # The algorithm that a library chose is known by now: the GEMM class does every multiplication.
    method = "gemm" if in_gemm_class(system.method, row.algorithm) else system.method
    above = too_fast(problem, time_ms, machine, system.precision, method)
    return row if above is None else refused(above)
