"""How fast the simulators are on the same launches: ``python -m convlab.bench.simulators``.

Convlab's simulator, with every check and with none, against Numba's own, which runs in a process
of its own with ``NUMBA_ENABLE_CUDASIM=1``. The best of several runs each, in multiply-adds a
second, and every result is compared with NumPy's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
from numba import cuda, float32

from convlab.bench.measured import INTERRUPTED, table, write_results
from convlab.doctor import environment

MODULE = "convlab.bench.simulators"
ABOUT = "How fast convlab's simulator is beside Numba's, on the same launches."
TILE = 8
SIZE = 64
REPEATS = 3


@cuda.jit
def tiled(a, b, c):  # type: ignore[no-untyped-def]
    """c = a @ b through shared memory: two barriers for every TILE multiply-adds of a thread."""
    S_A = cuda.shared.array((TILE, TILE), float32)
    S_B = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE + ty
    column = cuda.blockIdx.x * TILE + tx
    total = float32(0)
    for start in range(0, SIZE, TILE):
        S_A[ty, tx] = a[row, start + tx]
        S_B[ty, tx] = b[start + ty, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += S_A[ty, k] * S_B[k, tx]
        cuda.syncthreads()
    c[row, column] = total


@cuda.jit
def plain(a, b, c):  # type: ignore[no-untyped-def]
    """c = a @ b from global memory, no barrier."""
    column, row = cuda.grid(2)
    total = float32(0)
    for k in range(SIZE):
        total += a[row, k] * b[k, column]
    c[row, column] = total


KERNELS = {"tiled": tiled, "plain": plain}
GRID, BLOCK = (SIZE // TILE, SIZE // TILE), (TILE, TILE)


@dataclass(frozen=True)
class Row:
    """Multiply-adds a second of one kernel."""

    kernel: str
    numba: float
    unchecked: float
    strict: float

    def as_json(self) -> dict[str, Any]:
        """The row in a run of what ``--json`` writes; speedups are over Numba's simulator."""
        return {
            "kernel": self.kernel,
            "numba_per_second": self.numba,
            "unchecked_per_second": self.unchecked,
            "strict_per_second": self.strict,
            "unchecked_speedup": self.unchecked / self.numba,
            "strict_speedup": self.strict / self.numba,
        }


def speed(launch: Callable[[np.ndarray, np.ndarray, np.ndarray], object]) -> float:
    """Multiply-adds a second of the fastest of a few runs; AssertionError for a wrong result."""
    random = np.random.default_rng(1)
    a, b = (random.integers(-4, 5, (SIZE, SIZE)).astype(np.float32) for _ in range(2))
    best = float("inf")
    for _ in range(REPEATS):
        c = np.full((SIZE, SIZE), np.nan, np.float32)
        start = time.perf_counter()
        launch(a, b, c)
        best = min(best, time.perf_counter() - start)
        assert np.array_equal(c, a @ b)
    return float(SIZE**3 / best)


def of_numba() -> dict[str, float]:
    """Numba's simulator, in another process."""
    here = [sys.executable, "-m", MODULE, "--numba"]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    answer = subprocess.run(here, env=environment, capture_output=True, text=True, check=True)
    speeds: dict[str, float] = json.loads(answer.stdout)
    return speeds


def measure() -> list[Row]:
    """A row for each kernel."""
    from convlab.engines.simulator import Simulator

    rows = []
    numba = of_numba()
    for name, kernel in KERNELS.items():
        unchecked, strict = (
            speed(lambda *arrays, e=engine, k=kernel: e.launch(k, GRID, BLOCK, *arrays))
            for engine in (Simulator(strict=False), Simulator())
        )
        rows.append(Row(name, numba[name], unchecked, strict))
    return rows


def median_and_range(values: Sequence[float], unit: str = "") -> str:
    """``8,463 (7,720 to 20,193)``: the middle one of several runs, and what they swing between."""
    said = f"{median_low(values):,.0f}{unit}"
    return said if len(values) == 1 else f"{said} ({min(values):,.0f} to {max(values):,.0f})"


def show(document: dict[str, Any]) -> str:
    """A line for each kernel of a document that :func:`main` wrote, as a Markdown table."""
    runs = document["runs"]
    rows = []
    for place, one in enumerate(runs[0]):
        of = {key: [run[place][key] for run in runs] for key in one if key != "kernel"}
        cells = [f"`{one['kernel']}`", median_and_range(of["numba_per_second"])]
        for checks in ("unchecked", "strict"):
            cells.append(median_and_range(of[f"{checks}_per_second"]))
            cells.append(median_and_range(of[f"{checks}_speedup"], " times"))
        rows.append(cells)
    head = (
        "kernel", "Numba's simulator", "no checks", "over Numba's", "every check", "over Numba's",
    )  # fmt: skip
    return (
        f"Multiply-adds a second on {document['cores']} CPU cores, medians of {len(runs)} runs and "
        f"what they swing between.\n\n{table(head, rows)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show, ``--json FILE`` too; returns 0, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=ABOUT)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures to FILE")
    parser.add_argument("--runs", metavar="N", type=int, default=1, help="of all of it, in turn")
    parser.add_argument("--numba", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.runs < 1:
        parser.error(f"--runs is {chosen.runs}: it must be 1 or more")
    if chosen.numba:  # in the process that of_numba starts
        speeds = {
            name: speed(lambda *arrays, k=kernel: k[GRID, BLOCK](*arrays))
            for name, kernel in KERNELS.items()
        }
        print(json.dumps(speeds))
        return 0
    runs = []
    try:
        for number in range(chosen.runs):
            print(f"run {number + 1} of {chosen.runs}", file=sys.stderr, flush=True)
            runs.append([row.as_json() for row in measure()])
    except KeyboardInterrupt:
        print("convlab: interrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    typed = f"python -m {MODULE} --runs {chosen.runs}"
    typed += f" --json {chosen.json}" if chosen.json else ""
    document = {
        "environment": environment([]) | {"command": typed},
        "cores": os.cpu_count(),
        "runs": runs,
    }
    print(show(document))
    if chosen.json:
        write_results(chosen.json, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
