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
from typing import Any

import numpy as np
from numba import cuda, float32

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


KERNELS = {"tiled, barriers": tiled, "plain, no barrier": plain}
GRID, BLOCK = (SIZE // TILE, SIZE // TILE), (TILE, TILE)


@dataclass(frozen=True)
class Row:
    """Multiply-adds a second of one kernel."""

    kernel: str
    numba: float
    unchecked: float
    strict: float

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` writes."""
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
    here = [sys.executable, "-m", "convlab.bench.simulators", "--numba"]
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the figures there, - for here")
    parser.add_argument("--numba", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.numba:  # in the process that of_numba starts
        speeds = {
            name: speed(lambda *arrays, k=kernel: k[GRID, BLOCK](*arrays))
            for name, kernel in KERNELS.items()
        }
        print(json.dumps(speeds))
        return 0
    rows = measure()
    text = json.dumps([row.as_json() for row in rows], indent=2)
    if chosen.json == "-":
        print(text)
        return 0
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    print(f"{'multiply-adds a second':24}{'Numba':>10}{'unchecked':>18}{'every check':>18}")
    for row in rows:
        cells = (f"{v:,.0f} ({v / row.numba:.0f}x)" for v in (row.unchecked, row.strict))
        print(f"{row.kernel:24}{row.numba:>10,.0f}" + "".join(f"{cell:>18}" for cell in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
