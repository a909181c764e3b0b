"""A benchmark whose layers are measured by the workers of a Dask scheduler, each on a GPU of its
own.

A worker measures one layer at a time and alone: it must have one thread, and a GPU that no other
worker has (``CUDA_VISIBLE_DEVICES``). Rows of different GPUs stand in one document only if these
have the same name, driver, versions and code: :func:`kind` is the word for these.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, as_completed
from typing import Any, NamedTuple

from convlab.measuring import cases as all_cases
from convlab.measuring import gpu_backend
from convlab.measuring.results import ResultRow, identity
from convlab.measuring.roofline import Machine
from convlab.measuring.systems import system_named
from convlab.problems.problem import ConvProblem

IDLE_SECONDS = 20.0  # how long to wait for a busy GPU


class Told(NamedTuple):
    """A case by names, which travel to a worker as systems do not: layer, problem, system."""

    layer: str
    problem: ConvProblem
    system: str


class Measured(NamedTuple):
    """Rows of a layer, none where a worker was only asked what it has, and the worker's GPU."""

    machine: Machine
    environment: dict[str, Any]
    rows: tuple[ResultRow, ...]


def kind(environment: dict[str, Any]) -> str:
    """Return a short word for all that rows must have in common, but for the GPU's own number."""
    return identity(environment, None)


def difference(first: Measured, other: Measured) -> str:
    """Return what another worker has that the first has not, in words."""
    named = {"gpu": "GPU", "compiler": "compiler", "python": "Python", "packages": "packages"}
    differs = [
        word
        for name, word in named.items()
        if first.environment.get(name) != other.environment.get(name)
    ]
    what = ", ".join(differs) or "source"
    machines = f"{other.machine.device} beside {first.machine.device}"
    return f"another {what} than the first ({machines})"


def measured_layer(told: Sequence[Told], row_seconds: float) -> Measured:
    """Measure these cases of a layer on this worker's GPU. Raises ``RuntimeError`` for a GPU that
    stays busy: times would mean nothing."""
    until = time.monotonic() + IDLE_SECONDS
    while busy := gpu_backend.why_busy(gpu_backend.look(gpu_backend.current_gpu())):
        if time.monotonic() > until:
            raise RuntimeError(f"a worker's GPU is busy: {busy}")
        time.sleep(1)
    cases = [all_cases.BenchCase(one.layer, one.problem, system_named(one.system)) for one in told]
    with all_cases.open_bench(row_seconds) as bench:
        rows = tuple(all_cases.run(cases, bench)) if cases else ()
    return Measured(bench.machine, bench.environment, rows)


def facts(pool: Executor, row_seconds: float) -> Measured:
    """Return the GPU of any worker."""
    return pool.submit(measured_layer, (), row_seconds).result()


def run_on_workers(
    pool: Executor, cases: Sequence[all_cases.BenchCase], row_seconds: float
) -> Iterator[Measured]:
    """Yield the rows of each layer as soon as a worker has measured it; what a worker raises is
    raised here, and what no worker has begun is taken back."""
    of_layer: dict[str, list[Told]] = {}
    for case in cases:
        told = Told(case.layer, case.problem, case.system.name)
        of_layer.setdefault(case.layer, []).append(told)
    futures = [pool.submit(measured_layer, told, row_seconds) for told in of_layer.values()]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
