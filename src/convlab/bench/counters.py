"""A trace beside the GPU's own counters: ``python -m convlab.bench.counters``.

NVIDIA's profiler ``ncu`` runs every stage and the textbook kernels and reads the requests, sectors
and wavefronts that the hardware counted; the simulator traces the same launches. Needs a GPU,
``ncu`` and the compilers, because the machine code tells which loads the compiler merged. Exits 1
where a count of global memory differs, or wavefronts of shared memory by more than 6 %.

``python -m convlab.bench.counters run NAMES`` is what ncu watches.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from convlab.bench import textbook
from convlab.bench.tools import run_tool
from convlab.engines import Engine, EngineUnavailable, choose
from convlab.oracle import random_tensors
from convlab.plans import Plan, stages_for
from convlab.problem import ConvProblem
from convlab.stage import Capability
from convlab.stages import LADDER, Stage, Tile, production_tile
from convlab.tracing import LaunchTrace, trace, trace_stage
from convlab.workloads import MODEL, TEACHING

MODULE = "convlab.bench.counters"
TOLERANCE = 0.06  # of wavefronts: the hardware counts some twice when it arbitrates


def _global(count: str, *operations: str) -> list[str]:
    return [f"l1tex__t_{count}_pipe_lsu_mem_global_op_{one}.sum" for one in operations]


def _shared(operation: str) -> list[str]:
    return [f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{operation}.sum"]


# By name: ncu's metrics, whose sum it is, and what it is in a trace: count, space, operation.
METRICS = {
    "load_requests": (_global("requests", "ld"), ("requests", "global", "load")),
    "load_sectors": (_global("sectors", "ld"), ("sectors", "global", "load")),
    "store_requests": (_global("requests", "st"), ("requests", "global", "store")),
    "store_sectors": (_global("sectors", "st"), ("sectors", "global", "store")),
    "atomic_requests": (_global("requests", "red", "atom"), ("requests", "global", "atomic")),
    "shared_load_wavefronts": (_shared("ld"), ("wavefronts", "shared", "load")),
    "shared_store_wavefronts": (_shared("st"), ("wavefronts", "shared", "store")),
}
# A problem on which even the tiles of a GPU have little to do.
SMALL = ConvProblem(1, 8, 12, 12, 64, 3, padding=1)
Counted = tuple[str, dict[str, int]]  # the kernel's name as compiled, and its counts by METRICS


@dataclass(frozen=True)
class Row:
    """One launch: the hardware's counts and the simulator's, by METRICS' names."""

    name: str
    kernel: str
    problem: str | None
    tile: str | None
    counted: dict[str, int]
    traced: dict[str, int]

    def __str__(self) -> str:
        """A line for the terminal: the launch, and whether the two agree."""
        differing = {name: (self.counted[name], self.traced[name]) for name in self.off()}
        tile = f" tile {self.tile}" if self.tile else ""
        where = f" on {self.problem}" if self.problem else ""
        return f"{self.name}: {self.kernel}{tile}{where}: {differing or 'agree'}"

    def off(self) -> list[str]:
        """The counts that differ by more than they may."""
        share = {name: TOLERANCE if name.endswith("wavefronts") else 0 for name in METRICS}
        return [
            name
            for name, counted in self.counted.items()
            if abs(counted - self.traced[name]) > share[name] * counted
        ]


class Case(NamedTuple):
    """What is launched: a textbook kernel, or a stage on a problem with a tile."""

    kernel: textbook.Case | Stage
    problem: ConvProblem | None = None
    tile: Tile | None = None


def cases(only: Sequence[str] = ()) -> list[Case]:
    """All, or those whose name begins with one of ``only``: textbook kernels, and stages of kernels
    alone, on three problems with tiles of three sizes. Raises ``ValueError`` for a name that none
    begins with."""
    stages = [stage for stage in LADDER if not stage.needs_library]
    names = [case.name for case in textbook.CASES] + [stage.name for stage in stages]
    for name in only:
        if not any(other.startswith(name) for other in names):
            raise ValueError(f"only is {name!r}: it must begin one of {', '.join(names)}")
    found = [Case(kernel) for kernel in textbook.CASES]
    for stage in stages:
        found.append(Case(stage, TEACHING, stage.tiny_tile))
        found.append(Case(stage, MODEL, stage.model_tile or stage.tiny_tile))
        found.append(Case(stage, SMALL, production_tile(stage, SMALL)))
    return [case for case in found if case.kernel.name.startswith(tuple(only or [""]))]


def runnable(chosen: Sequence[Case], engine: Engine) -> tuple[list[Case], str | None]:
    """Without the stages that the GPU cannot run; and the reason, naming them."""
    stages = dict.fromkeys(case.kernel for case in chosen if isinstance(case.kernel, Stage))
    able, reason = stages_for(engine, tuple(stages))
    return [case for case in chosen if case.problem is None or case.kernel in able], reason


def run_all(chosen: Sequence[Case], engine: Engine) -> None:
    """Every launch once, on the GPU, while ncu counts."""
    for kernel, problem, tile in chosen:
        if isinstance(kernel, textbook.Case):
            arrays = [cuda.to_device(array) for array in kernel.arguments()]
            kernel.kernel[kernel.grid, kernel.block](*arrays)
            continue
        assert problem is not None
        input, weight, bias = map(engine.to_device, random_tensors(problem, 0))
        output = engine.to_device(np.full(problem.output_shape, np.nan, np.float32))
        Plan(problem, kernel, tile, engine)(input, weight, output, bias)
    engine.synchronize()


def trace_all(
    chosen: Sequence[Case], capability: Capability | None
) -> Iterator[tuple[str, str | None, str | None, LaunchTrace]]:
    """Name, problem, tile and trace of every launch, in the same order."""
    for kernel, problem, tile in chosen:
        if isinstance(kernel, textbook.Case):
            arguments = (kernel.kernel, kernel.grid, kernel.block, *kernel.arguments())
            launches: Iterable[LaunchTrace] = [trace(*arguments, compiled=capability).main]
        else:
            launches = trace_stage(kernel.name, problem, tile, compiled=capability).launches
        for launch in launches:
            yield (
                kernel.name,
                None if problem is None else str(problem),
                None if tile is None else str(tile),
                launch,
            )


def traced_counts(launch: LaunchTrace) -> dict[str, int]:
    """A trace's counts by METRICS' names. The hardware does not count what asynchronous copies
    store among the stores to shared memory."""
    counts = {}
    for name, (_, (count, space, operation)) in METRICS.items():
        accesses = [access for access in launch.of(space=space) if access.operation == operation]
        if name == "shared_store_wavefronts":
            accesses = [
                one for one in accesses if "copy_async" not in launch.source[one.file][one.line]
            ]
        counts[name] = launch.total(count, accesses)
    return counts


def counted_by_ncu(only: Sequence[str]) -> list[Counted]:
    """Kernel and counts of every launch of ``run_all``, in a process under ncu.

    Raises ``CalledProcessError`` where it fails, ``RuntimeError`` where ncu counted nothing, for
    example because it may not read the counters.
    """
    metrics = ",".join(metric for group, _ in METRICS.values() for metric in group)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        subprocess.run(
            ["ncu", "--clock-control", "none", "--metrics", metrics, "--csv", "--page", "raw",
             "--log-file", str(log), sys.executable, "-m", MODULE, "run", *only],
            check=True,
        )  # fmt: skip
        return parsed(log.read_text(encoding="utf-8"))


def parsed(page: str) -> list[Counted]:
    """ncu's raw page: lines of its own, a head, units, then a line a launch."""
    lines = page.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = [line for line in lines if line.startswith("==ERROR==")]
        raise RuntimeError(f"ncu counted nothing: {' '.join(said) or 'it does not say why'}")
    _, *launches = csv.DictReader(lines[start:])

    sums = {name: metrics for name, (metrics, _) in METRICS.items()}

    def total(launch: dict[str, str], metrics: Sequence[str]) -> int:
        return sum(int(float(launch[metric].replace(",", ""))) for metric in metrics)

    return [
        (launch["Kernel Name"], {name: total(launch, sums[name]) for name in sums})
        for launch in launches
    ]


def compared(
    counted: Sequence[Counted], chosen: Sequence[Case], capability: Capability | None
) -> Iterator[Row]:
    """A row a launch, each when it is traced, which takes a second or two.

    Raises ``RuntimeError`` where the two did not see the same launches.
    """
    seen = 0
    for name, problem, tile, launch in trace_all(chosen, capability):
        mangled, counts = counted[seen] if seen < len(counted) else ("nothing more", {})
        if launch.kernel not in mangled:
            raise RuntimeError(f"ncu saw {mangled} where the simulator ran {launch.kernel}")
        yield Row(name, launch.kernel, problem, tile, counts, traced_counts(launch))
        seen += 1
    if seen < len(counted):
        raise RuntimeError(f"ncu saw {len(counted)} launches, the simulator {seen}")


def measure(engine: Engine, only: Sequence[str]) -> dict[str, Any]:
    """Count, then trace and compare one launch after another, a line for each.

    Raises ``ValueError`` for an unknown name, ``RuntimeError`` where nothing can be compared.
    """
    chosen, left_out = runnable(cases(only), engine)
    if not chosen:
        raise EngineUnavailable(str(left_out))
    if left_out is not None:
        print(f"left out: {left_out}", file=sys.stderr)
    print("counting under ncu, then tracing one launch after another", file=sys.stderr)
    rows = []
    for row in compared(counted_by_ncu(only), chosen, engine.capability()):
        rows.append(row)
        print(row, flush=True)
    return {"rows": [asdict(row) for row in rows], "ok": not any(row.off() for row in rows)}


def show(document: dict[str, Any]) -> str:
    """How many launches agree."""
    rows = [Row(**row) for row in document["rows"]]
    return f"{sum(not row.off() for row in rows)} of {len(rows)} launches agree"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["run"]:
        engine = choose("gpu")
        run_all(runnable(cases(words[1:]), engine)[0], engine)
        return 0
    about, only = __doc__.partition("\n")[0], "kernels and stages whose names begin so; repeatable"
    return run_tool(MODULE, about, "ncu", measure, show, words, only)


if __name__ == "__main__":
    sys.exit(main())
