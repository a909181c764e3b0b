"""Cases measured by the workers of a Dask scheduler, each on a GPU of its own: what ``convlab bench
--dask`` and ``convlab tune --dask`` share.

A worker measures some layers at a time and alone: it must have one thread, and a GPU that no other
worker has (``CUDA_VISIBLE_DEVICES``). Rows of different GPUs stand in one document only if these
have the same name, driver, versions and code: :func:`worker_identity` stands for these.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from convlab.measuring import cases as all_cases
from convlab.measuring import gpu_backend
from convlab.measuring.machine import version
from convlab.measuring.results import ResultRow, code_fingerprint, identity
from convlab.measuring.roofline import Machine
from convlab.measuring.systems import system_named
from convlab.problems.problem import ConvProblem
from convlab.running.engines.absent import GpuFacts
from convlab.support import dask_workers
from convlab.support.dask_workers import DaskWorkers

IDLE_SECONDS = 20.0  # how long to wait for a busy GPU
# Each task starts processes, which takes some ten seconds, so it has several layers. It has few
# enough that all workers end at about the same time.
TASKS_PER_WORKER = 4


class NamedCase(NamedTuple):
    """A case by names, which travel to a worker as systems do not: layer, problem, system."""

    layer: str
    problem: ConvProblem
    system: str


class Measured(NamedTuple):
    """Rows of some layers, none where a worker was only asked what it has, and the worker's GPU and
    source."""

    machine: Machine
    environment: dict[str, Any]
    rows: tuple[ResultRow, ...]
    gpu: GpuFacts | None
    code: str


def worker_identity(measured: Measured) -> str:
    """Return the identity that two workers' rows must share: GPU model, driver, versions and
    source."""
    return identity(measured.environment, None, measured.code)


def difference(first: Measured, other: Measured) -> str:
    """Return how another worker differs from the first."""
    named = {"gpu": "GPU", "compiler": "compiler", "python": "Python"}
    here, there = first.environment, other.environment
    differs = [f"another {word}" for name, word in named.items() if here.get(name) != there[name]]
    versions, others = (one.get("packages", {}) for one in (here, there))
    differs += [
        f"{package} {others.get(package)}, not {versions.get(package)},"
        for package in {**versions, **others}
        if versions.get(package) != others.get(package)
    ]
    machines = f"{other.machine.device} beside {first.machine.device}"
    return f"{' and '.join(differs) or 'another source'} than the first ({machines})"


def measured_layers(named: Sequence[NamedCase], row_seconds: float) -> Measured:
    """Measure these cases on this worker's GPU. Raises ``RuntimeError`` for a GPU that
    stays busy: times would mean nothing."""
    until = time.monotonic() + IDLE_SECONDS
    while busy := gpu_backend.why_busy(gpu_backend.look(gpu_backend.current_gpu())):
        if time.monotonic() > until:
            raise RuntimeError(f"a worker's GPU is busy: {busy}")
        time.sleep(1)
    cases = [all_cases.BenchCase(one.layer, one.problem, system_named(one.system)) for one in named]
    with all_cases.open_bench(row_seconds) as bench:
        rows = tuple(all_cases.run(cases, bench)) if cases else ()
    return Measured(bench.machine, bench.environment, rows, bench.gpu, code_fingerprint())


@dataclass(frozen=True)
class GpuWorkers:
    """Workers at an address whose GPUs, versions and source are alike; ``first`` is what one of
    them has."""

    address: str
    first: Measured
    _pool: DaskWorkers
    _row_seconds: float

    def run(self, cases: Sequence[all_cases.BenchCase]) -> Iterator[Measured]:
        """Yield the rows of some layers as soon as a worker has measured them.

        What a worker raises is raised here, and ``ValueError`` for a worker that is not like the
        first. Layers that no worker has begun are then taken back.
        """
        of_layer: dict[str, list[NamedCase]] = {}
        for case in cases:
            named = NamedCase(case.layer, case.problem, case.system.name)
            of_layer.setdefault(case.layer, []).append(named)
        layers = [*of_layer.values()]
        each = max(1, len(layers) // (TASKS_PER_WORKER * self._pool.count))
        futures = [
            self._pool.executor.submit(
                measured_layers, [*chain(*layers[first : first + each])], self._row_seconds
            )
            for first in range(0, len(layers), each)
        ]
        try:
            for future in as_completed(futures):
                measured = future.result()
                if worker_identity(measured) != worker_identity(self.first):
                    raise ValueError(
                        f"a worker at {self.address} has {difference(self.first, measured)}: all "
                        "must have the same"
                    )
                yield measured
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def gpu_workers(address: str, row_seconds: float) -> Iterator[GpuWorkers]:
    """Yield the workers of the scheduler at that address. Raises ``ValueError`` where none can be
    reached, or where they have another convlab than this process, and ``RuntimeError`` where a
    worker's GPU is busy."""
    with dask_workers.dask_workers(address, one_thread=True) as pool:
        try:
            first = pool.executor.submit(measured_layers, (), row_seconds).result()
        except (ImportError, AttributeError, TypeError) as error:  # of other source than this
            raise ValueError(
                f"the workers at {address} cannot run this version of convlab: {error}"
            ) from error
        if first.code != code_fingerprint():
            theirs, own = first.environment["packages"].get("convlab"), version("convlab")
            if theirs == own:
                raise ValueError(
                    f"the workers at {address} have another source of convlab {own} than this "
                    "command: both must be the same"
                )
            raise ValueError(
                f"the workers at {address} have convlab {theirs}, and this command is convlab "
                f"{own}: both must be the same"
            )
        yield GpuWorkers(address, first, pool, row_seconds)
