"""The GPUs on which ``convlab tune`` measures: this machine's, or those of a Dask scheduler's
workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from convlab.commands import exits, requirements
from convlab.commands.bench import ROW_SECONDS, open_idle

if TYPE_CHECKING:
    from convlab.measuring.cases import BenchCase
    from convlab.measuring.gpu_workers import GpuWorkers
    from convlab.measuring.results import ResultRow
    from convlab.running.engines import Engine


@dataclass(frozen=True)
class Measuring:
    """A kind of GPU and what measures there: ``rows`` yields the row of each case, those of one
    problem one after the other. ``environment`` returns the facts that a document holds."""

    engine: Engine
    environment: Callable[[Sequence[str]], dict[str, Any]]
    rows: Callable[[Sequence[BenchCase]], Iterator[ResultRow]]


def measuring(
    context: typer.Context, console: Console, address: str | None
) -> AbstractContextManager[Measuring]:
    """Return the GPU of this machine, or with an address the workers of the Dask scheduler there.
    Raises ``ValueError`` or ``EngineUnavailable`` where nothing can measure."""
    if address is None:
        requirements.refuse_without_gpu("convlab tune")
        return _here(context, console)
    return _on_workers(address, console)


@contextmanager
def _here(context: typer.Context, console: Console) -> Iterator[Measuring]:
    from convlab.measuring.cases import run
    from convlab.measuring.machine import environment
    from convlab.running.engines import choose

    def rows(cases: Sequence[BenchCase]) -> Iterator[ResultRow]:
        bench = open_idle(context, console)
        for _, of_problem in groupby(cases, key=lambda case: case.layer):
            yield from run([*of_problem], bench)

    yield Measuring(choose("gpu"), environment, rows)


@contextmanager
def _on_workers(address: str, console: Console) -> Iterator[Measuring]:
    from convlab.measuring.gpu_workers import gpu_workers
    from convlab.running.engines.absent import AbsentGpu

    with gpu_workers(address, ROW_SECONDS) as workers:
        if (gpu := workers.first.gpu) is None:
            raise ValueError(f"the workers at {address} have no GPU to tune for")
        _refuse_other_compiler(workers)
        console.print(Text(f"runs on  workers at {address}, each with {gpu.device}"))

        def environment(words: Sequence[str]) -> dict[str, Any]:
            return workers.first.environment | {"command": " ".join(["convlab", *words])}

        def rows(cases: Sequence[BenchCase]) -> Iterator[ResultRow]:
            with exits.refusing(ValueError, OSError, RuntimeError):
                for measured in workers.run(cases):
                    yield from measured.rows
                    tiles = Counter(row.layer for row in measured.rows)
                    for name, count in tiles.items():
                        console.print(Text(f"measured {name}: {count} tiles"), soft_wrap=True)

        yield Measuring(AbsentGpu(gpu), environment, rows)


def _refuse_other_compiler(workers: GpuWorkers) -> None:
    """Raise ``ValueError`` where tiles that are remembered here would be of another compiler."""
    from convlab.measuring.machine import version
    from convlab.running.compilers import compiler

    theirs = workers.first.environment
    pairs: dict[str, tuple[object, object]] = {"compiler": (theirs.get("compiler"), compiler())}
    for package in ("numba-cuda", "numba-cuda-mlir"):
        pairs[package] = theirs["packages"].get(package), version(package)
    for name, (there, here) in pairs.items():
        if there != here:
            raise ValueError(
                f"the workers at {workers.address} have {name} {there}, and this command has "
                f"{here}: a tile is remembered for one compiler and version"
            )
