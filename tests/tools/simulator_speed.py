"""The strict simulator's time beside that of Numba's own, as a table.

``python tests/tools/simulator_speed.py`` runs five kernels of every CUDA course in three sizes
each, with every check on. Seconds are the processor's, so that what else the machine does counts
for neither."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32

from convlab.simulation.host.programs import simulate

THREADS, TILE, BINS = 128, 8, 16
PADDED = TILE + 1  # by name: Numba knows no sum as the shape of a shared array
RUNS, LONG = 5, 1.0  # of each run the quickest counts; none follows when they took so many seconds


def saxpy(a, x, y):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < y.size:
        y[i] = a * x[i] + y[i]


def transpose(a, b):  # type: ignore[no-untyped-def]
    tile = cuda.shared.array((TILE, PADDED), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    tile[y, x] = a[row + y, column + x]
    cuda.syncthreads()
    b[column + y, row + x] = tile[x, y]


def matmul(a, b, c):  # type: ignore[no-untyped-def]
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        left[ty, tx] = a[y, k + tx]
        right[ty, tx] = b[k + ty, x]
        cuda.syncthreads()
        for n in range(TILE):
            total += left[ty, n] * right[n, tx]
        cuda.syncthreads()
    c[y, x] = total


def histogram(values, counts):  # type: ignore[no-untyped-def]
    own = cuda.shared.array(BINS, int32)
    i = cuda.threadIdx.x
    if i < BINS:
        own[i] = 0
    cuda.syncthreads()
    if cuda.grid(1) < values.size:
        cuda.atomic.add(own, values[cuda.grid(1)], 1)
    cuda.syncthreads()
    if i < BINS:
        cuda.atomic.add(counts, i, own[i])


def reduction(a, total):  # type: ignore[no-untyped-def]
    sums = cuda.shared.array(THREADS, float32)
    i = cuda.threadIdx.x
    sums[i] = a[cuda.grid(1)]
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if i < step:
            sums[i] += sums[i + step]
        cuda.syncthreads()
        step //= 2
    if i == 0:
        cuda.atomic.add(total, 0, sums[0])


class Case(NamedTuple):
    """A kernel with sizes of its problem; ``make`` gives grid, block, arguments and what the last
    becomes, and ``work`` is what its time grows with."""

    kernel: Callable[..., None]
    sizes: tuple[int, int, int]
    make: Callable[[int], tuple[Any, Any, list[Any], Any]]
    work: Callable[[int], int] = int


def _row(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32) % 7


def _saxpy(n: int) -> Any:
    return -(-n // THREADS), THREADS, [2.0, _row(n), _row(n)], 3 * _row(n)


def _transpose(n: int) -> Any:
    a = _row(n * n).reshape(n, n)
    return (n // TILE,) * 2, (TILE, TILE), [a, np.zeros_like(a)], a.T


def _matmul(n: int) -> Any:
    a = _row(n * n).reshape(n, n)
    return (n // TILE,) * 2, (TILE, TILE), [a, a.T.copy(), np.zeros_like(a)], a @ a.T


def _histogram(n: int) -> Any:
    values = np.arange(n, dtype=np.int32) % BINS
    arguments = [values, np.zeros(BINS, np.int32)]
    return -(-n // THREADS), THREADS, arguments, np.bincount(values, minlength=BINS)


def _reduction(n: int) -> Any:
    return n // THREADS, THREADS, [_row(n), np.zeros(1, np.float32)], [_row(n).sum()]


CASES = (
    Case(histogram, (512, 2048, 8192), _histogram),
    Case(transpose, (16, 32, 64), _transpose, lambda n: n**2),
    Case(matmul, (16, 32, 64), _matmul, lambda n: n**3),
    Case(saxpy, (512, 2048, 8192), _saxpy),
    Case(reduction, (512, 2048, 8192), _reduction),
)


class Result(NamedTuple):
    case: Case
    size: int
    numbas: float  # seconds of the processor
    strict: float

    @property
    def ratio(self) -> float:
        return self.numbas / self.strict


def measured(cases: tuple[Case, ...] = CASES, runs: int = RUNS) -> Iterator[Result]:
    """Time each case on both simulators; ``AssertionError`` for a wrong answer. Numba must have
    been imported with ``NUMBA_ENABLE_CUDASIM=1``."""
    for case in cases:
        grid, block, arguments, _ = case.make(case.sizes[0])
        simulate(cuda.jit(case.kernel), grid, block, *arguments)  # loads what finds the types
        for size in case.sizes:
            seconds = (min(_seconds(one, case, size, runs)) for one in (_on_numbas, simulate))
            yield Result(case, size, *seconds)


def _on_numbas(kernel: Any, grid: Any, block: Any, *arguments: Any) -> None:
    kernel[grid, block](*arguments)


def _seconds(launch: Callable[..., Any], case: Case, size: int, runs: int) -> Iterator[float]:
    kernel = cuda.jit(case.kernel)
    spent = 0.0
    for run in range(runs):
        if run and spent > LONG:
            return
        grid, block, arguments, expected = case.make(size)
        begin = process_time()
        launch(kernel, grid, block, *arguments)
        seconds = process_time() - begin
        spent += seconds
        yield seconds
        np.testing.assert_allclose(arguments[-1], expected)


def main() -> int:
    """Print the table; 1 if a kernel is slower than on Numba's simulator or the mean is below 20.

    ``growth`` is how the time grows from the size before, over how the work does: 1 is linear."""
    print(f"{'kernel':10} {'size':>6} {'Numba s':>9} {'strict s':>9} {'times':>7} {'growth':>7}")
    results: list[Result] = []
    for one in measured():
        before = results[-1] if results and results[-1].case is one.case else None
        growth = ""
        if before is not None:
            work = one.case.work(one.size) / one.case.work(before.size)
            growth = f"{one.strict / before.strict / work:.2f}"
        name = one.case.kernel.__name__
        times = f"{one.numbas:9.3f} {one.strict:9.4f} {one.ratio:7.1f} {growth:>7}"
        print(f"{name:10} {one.size:6} {times}", flush=True)
        results.append(one)
    mean = statistics.geometric_mean(one.ratio for one in results)
    print(f"geometric mean: {mean:.1f} times as fast as Numba's simulator")
    return int(mean < 20 or any(one.ratio < 1 for one in results))


if __name__ == "__main__":
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        sys.exit(main())
    # Numba decided at its import whether it simulates.
    again = [sys.executable, __file__]
    sys.exit(subprocess.call(again, env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}))
