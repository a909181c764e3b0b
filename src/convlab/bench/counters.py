"""A trace beside the GPU's own counters: ``python -m convlab.bench.counters``.

Runs every stage and the textbook kernels under NVIDIA's profiler ``ncu``, which reads how many
requests, sectors and passes the hardware counted, and traces the same launches on the simulator.
Needs a GPU, ``ncu`` and the compilers: the simulator is told which loads the compiler merged.
Exits 1 where a count of global memory differs, or passes of shared memory by more than 6 %.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda

from convlab.bench import textbook
from convlab.doctor import environment
from convlab.engines import EngineUnavailable, choose
from convlab.oracle import random_tensors
from convlab.plans import Plan
from convlab.problem import ConvProblem
from convlab.stages import LADDER, Stage, Tile
from convlab.tracing import LaunchTrace, trace, trace_stage
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


def stage_cases() -> Iterator[tuple[Stage, ConvProblem, Tile | None]]:
    """Every stage of kernels alone, with tiles of three sizes, or without, on three problems."""
    for stage in LADDER:
        if stage.needs_library:
            continue
        yield stage, TEACHING, stage.tiny_tile
        yield stage, MODEL, stage.model_tile or stage.tiny_tile
        yield stage, SMALL, stage.production_tile(SMALL)


def run_all() -> None:
    """Every launch once, on the GPU, for ncu to watch."""
    engine = choose("gpu")
    for case in textbook.CASES:
        arrays = [cuda.to_device(array) for array in case.arguments()]
        case.kernel[case.grid, case.block](*arrays)
    for stage, problem, tile in stage_cases():
        input, weight, bias = map(engine.to_device, random_tensors(problem, 0))
        output = engine.to_device(np.full(problem.output_shape, np.nan, np.float32))
        Plan(problem, stage, tile, engine)(input, weight, output, bias)
    engine.synchronize()


def trace_all(capability: tuple[int, int]) -> Iterator[tuple[str, str | None, str | None, Any]]:
    """Name, problem, tile and trace of every launch, in the same order."""
    for case in textbook.CASES:
        made = trace(case.kernel, case.grid, case.block, *case.arguments(), compiled=capability)
        yield case.name, None, None, made.main
    for stage, problem, tile in stage_cases():
        shown = None if tile is None else str(tile)
        for launch in trace_stage(stage.name, problem, tile, compiled=capability).launches:
            yield stage.name, str(problem), shown, launch


def traced_counts(launch: LaunchTrace) -> dict[str, int]:
    """What a trace says of METRICS."""

    def total(count: str, space: str, operation: str) -> int:
        chosen = [one for one in launch.of(space=space) if one.operation == operation]
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


def counted_by_ncu() -> list[tuple[str, dict[str, int]]]:
    """Kernel and counts of every launch of ``run_all``, which a process of its own runs."""
    names = [metric for metrics in METRICS.values() for metric in metrics]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        subprocess.run(
            ["ncu", "--clock-control", "none", "--metrics", ",".join(names), "--csv", "--page",
             "raw", "--log-file", str(log), sys.executable, "-m", "convlab.bench.counters",
             "--run"],
            check=True,
        )  # fmt: skip
        return parsed(log.read_text(encoding="utf-8"))


def parsed(text: str) -> list[tuple[str, dict[str, int]]]:
    """ncu's raw page: lines of its own, a head, units, then a line a launch."""
    rows = list(csv.reader(io.StringIO(text)))
    start = next(place for place, row in enumerate(rows) if row[:1] == ["ID"])
    head, launches = rows[start], rows[start + 2 :]
    found = []
    for row in launches:
        cells = dict(zip(head, row, strict=True))
        counts = {
            name: sum(int(float(cells[metric].replace(",", ""))) for metric in metrics)
            for name, metrics in METRICS.items()
        }
        found.append((cells["Kernel Name"], counts))
    return found


def compared(
    counted: Sequence[tuple[str, dict[str, int]]], capability: tuple[int, int]
) -> list[Row]:
    """A row a launch.

    Raises ``RuntimeError`` where the two did not see the same launches.
    """
    rows = []
    traces = list(trace_all(capability))
    if len(traces) != len(counted):
        raise RuntimeError(f"ncu saw {len(counted)} launches, the simulator {len(traces)}")
    for (mangled, counts), (name, problem, tile, launch) in zip(counted, traces, strict=True):
        if launch.kernel not in mangled:
            raise RuntimeError(f"ncu saw {mangled} where the simulator ran {launch.kernel}")
        rows.append(Row(name, launch.kernel, problem, tile, counts, traced_counts(launch)))
    return rows


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
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    try:
        choose("gpu")
    except EngineUnavailable as error:
        print(error, file=sys.stderr)
        return 2
    if chosen.run:
        run_all()
        return 0
    if shutil.which("ncu") is None:
        print("ncu is not on the path: it comes with NVIDIA's CUDA toolkit", file=sys.stderr)
        return 2
    rows = compared(counted_by_ncu(), tuple(cuda.get_current_device().compute_capability))
    if chosen.json is not None:
        command = "python -m convlab.bench.counters"
        document = {
            "environment": environment([]) | {"command": command},
            "rows": [asdict(row) for row in rows],
        }
        chosen.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        differing = {name: (row.counted[name], row.traced[name]) for name in row.off()}
        tile = f" tile {row.tile}" if row.tile else ""
        where = f" on {row.problem}" if row.problem else ""
        print(f"{row.name}: {row.kernel}{tile}{where}: {differing or 'agree'}")
    wrong = sum(bool(row.off()) for row in rows)
    print(f"{len(rows) - wrong} of {len(rows)} launches agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
