"""A trace beside the GPU's own counters: ``python -m convlab.bench.counters``.

Runs every stage and the textbook kernels under NVIDIA's profiler ``ncu``, which reads how many
requests, sectors and passes the hardware counted, and traces the same launches on the simulator.
Needs a GPU, ``ncu`` and the compilers: the simulator is told which loads the compiler merged.
Exits 1 where a count of global memory differs, or passes of shared memory by more than 6 %.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda

from convlab.bench import ncu, textbook
from convlab.bench.measured import INTERRUPTED, write_results
from convlab.doctor import environment
from convlab.engines import Engine, EngineUnavailable, choose
from convlab.oracle import random_tensors
from convlab.plans import Plan, stages_for
from convlab.problem import ConvProblem
from convlab.stage import Capability
from convlab.stages import LADDER, Stage, Tile
from convlab.tracing import LaunchTrace, trace, trace_stage
from convlab.tracing.records import Access
from convlab.workloads import MODEL, TEACHING

TOLERANCE = 0.06  # of passes: the hardware counts some twice when it arbitrates
_GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
_SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
METRICS = {
    "load_requests": (_GLOBAL.format("requests", "ld"),),
    "load_sectors": (_GLOBAL.format("sectors", "ld"),),
    "store_requests": (_GLOBAL.format("requests", "st"),),
    "store_sectors": (_GLOBAL.format("sectors", "st"),),
    "atomic_requests": tuple(_GLOBAL.format("requests", op) for op in ("red", "atom")),
    "shared_load_passes": (_SHARED.format("ld"),),
    "shared_store_passes": (_SHARED.format("st"),),
}
# A problem on which even the tiles of a GPU have little to do.
SMALL = ConvProblem(1, 8, 12, 12, 64, 3, padding=1)


@dataclass(frozen=True)
class Row:
    """One launch. ``counted`` is the hardware's, ``traced`` the simulator's, by METRICS' names."""

    name: str
    kernel: str
    problem: str | None
    tile: str | None
    counted: dict[str, int]
    traced: dict[str, int]

    def off(self) -> list[str]:
        """The counts that differ by more than they may."""
        return [name for name in METRICS if not self._agrees(name)]

    def _agrees(self, name: str) -> bool:
        counted, traced = self.counted[name], self.traced[name]
        allowed = TOLERANCE * counted if name.endswith("passes") else 0
        return abs(counted - traced) <= allowed


@dataclass(frozen=True)
class Cases:
    """What is launched: textbook kernels, and stages of kernels alone with problem and tile."""

    textbook: tuple[textbook.Case, ...]
    stages: tuple[tuple[Stage, ConvProblem, Tile | None], ...]


def cases(only: Sequence[str] = ()) -> Cases:
    """All, or those whose name begins with one of ``only``.

    Stages with tiles of three sizes, or without, on three problems. Raises ``ValueError`` for a
    name that none begins with.
    """
    stages = [stage for stage in LADDER if not stage.needs_library]
    names = [case.name for case in textbook.CASES] + [stage.name for stage in stages]
    for name in only:
        if not any(other.startswith(name) for other in names):
            raise ValueError(f"only is {name!r}: it must begin one of {', '.join(names)}")
    chosen = {name for name in names if name.startswith(tuple(only or [""]))}
    return Cases(
        tuple(case for case in textbook.CASES if case.name in chosen),
        tuple(
            (stage, problem, tile)
            for stage in stages
            if stage.name in chosen
            for problem, tile in (
                (TEACHING, stage.tiny_tile),
                (MODEL, stage.model_tile or stage.tiny_tile),
                (SMALL, stage.production_tile(SMALL)),
            )
        ),
    )


def runnable(chosen: Cases, engine: Engine) -> tuple[Cases, str | None]:
    """Without the stages that the GPU cannot run, and which these are and why."""
    stages = tuple(dict.fromkeys(stage for stage, _, _ in chosen.stages))
    able, reason = stages_for(engine, stages)
    return replace(chosen, stages=tuple(one for one in chosen.stages if one[0] in able)), reason


def run_all(chosen: Cases, engine: Engine) -> None:
    """Every launch once, on the GPU, for ncu to watch."""
    for case in chosen.textbook:
        arrays = [cuda.to_device(array) for array in case.arguments()]
        case.kernel[case.grid, case.block](*arrays)
    for stage, problem, tile in chosen.stages:
        input, weight, bias = map(engine.to_device, random_tensors(problem, 0))
        output = engine.to_device(np.full(problem.output_shape, np.nan, np.float32))
        Plan(problem, stage, tile, engine)(input, weight, output, bias)
    engine.synchronize()


def trace_all(
    chosen: Cases, capability: Capability | None
) -> Iterator[tuple[str, str | None, str | None, Any]]:
    """Name, problem, tile and trace of every launch, in the same order."""
    for case in chosen.textbook:
        made = trace(case.kernel, case.grid, case.block, *case.arguments(), compiled=capability)
        yield case.name, None, None, made.main
    for stage, problem, tile in chosen.stages:
        shown = None if tile is None else str(tile)
        for launch in trace_stage(stage.name, problem, tile, compiled=capability).launches:
            yield stage.name, str(problem), shown, launch


def traced_counts(launch: LaunchTrace) -> dict[str, int]:
    """What a trace says of METRICS."""

    def total(count: str, space: str, operation: str) -> int:
        chosen = [one for one in launch.of(space=space) if one.operation == operation]
        if (space, operation) == ("shared", "store"):  # the hardware counts no copies among them
            chosen = [one for one in chosen if not _by_a_copy(launch, one)]
        return launch.total(count, chosen)

    return {
        "load_requests": total("requests", "global", "load"),
        "load_sectors": total("sectors", "global", "load"),
        "store_requests": total("requests", "global", "store"),
        "store_sectors": total("sectors", "global", "store"),
        "atomic_requests": total("requests", "global", "atomic"),
        "shared_load_passes": total("passes", "shared", "load"),
        "shared_store_passes": total("passes", "shared", "store"),
    }


def _by_a_copy(launch: LaunchTrace, access: Access) -> bool:
    """Whether it is an asynchronous copy that stores."""
    return "copy_async" in launch.source[access.file][access.line]


def counted_by_ncu(only: Sequence[str]) -> list[ncu.Launch]:
    """Kernel and counts of every launch of ``run_all``, which a process of its own runs."""
    metrics = [metric for group in METRICS.values() for metric in group]
    chosen = [word for name in only for word in ("--only", name)]
    launches = ncu.counted(metrics, "convlab.bench.counters", "--run", *chosen)
    return [(kernel, by_metrics_names(counts)) for kernel, counts in launches]


def by_metrics_names(counts: dict[str, int]) -> dict[str, int]:
    """ncu's counts under METRICS' names, each the sum of its group."""
    return {name: sum(counts[metric] for metric in group) for name, group in METRICS.items()}


def compared(
    counted: Sequence[ncu.Launch], chosen: Cases, capability: Capability | None
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


def line_of(row: Row) -> str:
    """A line for the terminal: what was launched, and whether the two agree."""
    differing = {name: (row.counted[name], row.traced[name]) for name in row.off()}
    tile = f" tile {row.tile}" if row.tile else ""
    where = f" on {row.problem}" if row.problem else ""
    return f"{row.name}: {row.kernel}{tile}{where}: {differing or 'agree'}"


def table(document: dict[str, Any]) -> str:
    """The figures of ``--json`` as docs/counters.md shows them: hardware / trace, or one number
    where they are equal."""
    head = (
        "launch", "problem", "tile", "loads", "sectors", "stores", "sectors", "atomics",
        "shared load passes", "shared store passes",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * 3}{' ---: |' * len(METRICS)}"]
    for entry in document["rows"]:
        row = Row(**entry)
        name = row.kernel if row.kernel == row.name else f"{row.name[:3]} {row.kernel}"
        cells = [name, row.problem or "", row.tile or ""]
        for metric in METRICS:
            counted, traced = row.counted[metric], row.traced[metric]
            both = f"{counted:,} / {traced:,}" if counted != traced else f"{counted:,}"
            cells.append(both if counted or traced else "")
        lines.append(f"| {' | '.join(cells)} |")
    found = document["environment"]
    gpu = found["gpu"]
    machine = f"{gpu['name']}, driver {gpu['driver']}, {found['date'][:10]}"
    return "\n".join([*lines, "", f"Measured with `{found['command']}` ({machine})."])


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, trace, compare, show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there")
    parser.add_argument(
        "--only", metavar="NAME", action="append", default=[],
        help="only kernels and stages whose name begins so, such as s02; may be repeated",
    )  # fmt: skip
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        wanted = cases(options.only)
        engine = choose("gpu")
    except (ValueError, EngineUnavailable) as error:
        print(error, file=sys.stderr)
        return 2
    chosen, left_out = runnable(wanted, engine)
    if options.run:
        run_all(chosen, engine)
        return 0
    if left_out is not None:
        print(f"left out: {left_out}", file=sys.stderr)
    if chosen == Cases((), ()):
        return 2
    if shutil.which("ncu") is None:
        print("ncu is not on the path: it comes with NVIDIA's CUDA toolkit", file=sys.stderr)
        return 2
    rows = []
    try:
        print("counting under ncu, then tracing one launch after another", file=sys.stderr)
        for row in compared(counted_by_ncu(options.only), chosen, engine.capability()):
            rows.append(row)
            print(line_of(row), flush=True)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(f"nothing was written: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    if options.json is not None:
        restricted = "".join(f" --only {name}" for name in options.only)
        found = environment([]) | {"command": f"python -m convlab.bench.counters{restricted}"}
        write_results(options.json, {"environment": found, "rows": [asdict(row) for row in rows]})
    wrong = sum(bool(row.off()) for row in rows)
    print(f"{len(rows) - wrong} of {len(rows)} launches agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
