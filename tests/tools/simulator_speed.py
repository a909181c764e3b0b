"""The strict simulator's time: beside that of Numba's own, and at the size of real work.

``python tests/tools/simulator_speed.py`` runs five kernels of every CUDA course in three sizes
each, with every check on; ``--long`` in sizes that take Numba's simulator ten seconds or more,
which takes minutes. ``--real`` prints the time of real sizes, and which engine of the strict
simulator ran: compiling included, each in a process of its own. Seconds are the processor's, so
that what else the machine does counts for neither."""

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

import convlab
from convlab.ladder import stage_named
from convlab.problems import oracle, workloads
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan
from convlab.simulation.compiled import kernels as _kernels  # noqa: F401  defines what is shared
from convlab.simulation.compiled import launches as _launches  # noqa: F401
from convlab.simulation.compiled import runtime
from convlab.simulation.compiled.stacks import machine_code
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
    sizes: tuple[int, ...]
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


# Sizes that take Numba's simulator ten seconds or more.
LONG_SIZES = {histogram: 2**17, transpose: 512, matmul: 192, saxpy: 2**18, reduction: 2**16}
LONG_CASES = tuple(case._replace(sizes=(LONG_SIZES[case.kernel],)) for case in CASES)


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


# The size of real work.


def stencil(a, out):  # type: ignore[no-untyped-def]
    tile = cuda.shared.array((WIDE, WIDE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x + 1, cuda.threadIdx.y + 1
    inside = y < a.shape[0] and x < a.shape[1]
    tile[ty, tx] = a[y, x] if inside else float32(0)
    if ty == 1:
        tile[0, tx] = a[y - 1, x] if inside and y > 0 else float32(0)
    if ty == SIDE:
        tile[SIDE + 1, tx] = a[y + 1, x] if inside and y + 1 < a.shape[0] else float32(0)
    if tx == 1:
        tile[ty, 0] = a[y, x - 1] if inside and x > 0 else float32(0)
    if tx == SIDE:
        tile[ty, SIDE + 1] = a[y, x + 1] if inside and x + 1 < a.shape[1] else float32(0)
    cuda.syncthreads()
    if inside:
        beside = tile[ty, tx - 1] + tile[ty, tx + 1] + tile[ty - 1, tx] + tile[ty + 1, tx]
        out[y, x] = beside - 4 * tile[ty, tx]


SIDE = 16
WIDE = SIDE + 2


def _stencil(n: int) -> Any:
    a = _row(n * n).reshape(n, n)
    padded = np.pad(a, 1)
    beside = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    return (n // SIDE,) * 2, (SIDE, SIDE), [a, np.zeros_like(a)], beside - 4 * a


REAL: dict[str, tuple[Case, int]] = {
    "vector add, 1 M": (Case(saxpy, (), _saxpy), 2**20),
    "tree sum in shared memory, 1 M": (Case(reduction, (), _reduction), 2**20),
    "histogram with shared atomics, 1 M": (Case(histogram, (), _histogram), 2**20),
    "stencil with halo, 512 x 512": (Case(stencil, (), _stencil), 512),
    "tiled product, 256": (Case(matmul, (), _matmul), 256),
    "tiled product, 1024": (Case(matmul, (), _matmul), 1024),
}
STAGE = "m08 on Conv12 of the paper, 1 image"
SHARED_CODE = "what all kernels share, then kept"


def real_size(name: str) -> str:
    """Simulate one of them; return a line of the table. Raises ``AssertionError`` for a wrong
    answer."""
    if name == SHARED_CODE:
        begin = process_time()
        machine_code()
        runtime.load()
        return f"{name:36} {process_time() - begin:9.2f}"
    if name == STAGE:
        return _line(name, _simulate_stage)
    case, size = REAL[name]
    grid, block, arguments, expected = case.make(size)

    def launches() -> None:
        cuda.jit(case.kernel)[grid, block](*arguments)

    line = _line(name, launches)
    np.testing.assert_allclose(arguments[-1], expected)
    return line


def _line(name: str, launches: Callable[[], None]) -> str:
    begin = process_time()
    with convlab.simulator() as report:
        launches()
    engine = "compiled" if report.compiled == report.launches else "greenlets"
    return f"{name:36} {process_time() - begin:9.2f}   {engine}"


class Launching(Simulator):
    """Launches a stage's kernels as a program does, so that the report counts them."""

    def launch(
        self, kernel: Any, grid: Any, block: Any, *arguments: Any, shared_bytes: int = 0
    ) -> None:
        kernel[grid, block, 0, shared_bytes](*arguments)


def _simulate_stage() -> None:
    problem, stage = workloads.paper_layer("conv12", batch=1), stage_named("m08")
    input_, weight, bias = oracle.random_tensors(problem, seed=0)
    output = np.full(problem.output_shape, np.nan, np.float32)
    Plan(problem, stage, stage.model_tile, Launching())(input_, weight, output, bias=bias)
    assert oracle.check_output(problem, output, input_, weight, bias).ok


def real_sizes() -> int:
    """Print the table of real sizes, each simulated in a process of its own."""
    print(f"{'launches':36} {'seconds':>9}   engine", flush=True)
    for name in (SHARED_CODE, *REAL, STAGE):
        code = subprocess.call([sys.executable, __file__, "--real", name])
        if code:
            return code
    return 0


def main(cases: tuple[Case, ...] = CASES) -> int:
    """Print the table; 1 if a kernel is slower than on Numba's simulator or the mean is below 20.

    ``growth`` is how the time grows from the size before, over how the work does: 1 is linear."""
    print(f"{'kernel':10} {'size':>6} {'Numba s':>9} {'strict s':>9} {'times':>7} {'growth':>7}")
    results: list[Result] = []
    for one in measured(cases):
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
    if sys.argv[1:] == ["--real"]:
        sys.exit(real_sizes())
    if sys.argv[1:2] == ["--real"]:
        print(real_size(sys.argv[2]), flush=True)
        sys.exit(0)
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        sys.exit(main(LONG_CASES if sys.argv[1:] == ["--long"] else CASES))
    # Numba decided at its import whether it simulates.
    again = [sys.executable, *sys.argv]
    sys.exit(subprocess.call(again, env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}))
