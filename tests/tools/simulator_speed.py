"""The strict simulator's time: beside that of Numba's own, and at the size of real work.

``python tests/tools/simulator_speed.py`` runs five kernels of every CUDA course in three sizes
each, with every check on, and takes the quickest of some runs. ``--long`` runs them in a size that
takes Numba's simulator up to a minute, so that all take some minutes; ``--longer`` in one of eight
times the work, so that all take half an hour. There the strict simulator
has three columns: the first run, with none of the kernel's machine code on disk; the first run of
another process, which finds it there; and the quickest of some runs that find it in memory, after
as many runs as it takes until one is compiled. Each says which engine ran. None includes the
search for types, which a small size does before. ``--real``
prints the time of real sizes, and which engine of the strict simulator ran: compiling included,
each in a process of its own. Seconds are the processor's, so that what else the machine does counts
for neither."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from time import process_time
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numba import cuda, float32, int32

import convlab
from convlab.ladder import stage_named
from convlab.problems import oracle, workloads
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan
from convlab.simulation.compiled.engine_choice import run_launch
from convlab.simulation.host import programs
from convlab.simulation.host.programs import simulate
from convlab.support.cache_folder import VARIABLE

THREADS, TILE, BINS = 128, 8, 16
PADDED = TILE + 1  # by name: Numba knows no sum as the shape of a shared array
RUNS, ENOUGH = 5, 1.0  # of each size: none follows when they took so many seconds
MOST_RUNS = 40  # of a long size: by the last of them the kernel must be compiled
PYTHON, COMPILED = "Python", "compiled"  # the strict simulator's engines


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


# Gives grid, block, arguments and what the last becomes.
Make = Callable[[int], tuple[Any, Any, list[Any], Any]]


class Case(NamedTuple):
    """A kernel with sizes of its problem, one that takes long, and one with eight times the work of
    that. ``make`` makes a launch of a size, and ``work`` is what its time grows with."""

    kernel: Callable[..., None]
    sizes: tuple[int, ...]
    long: int
    longer: int
    make: Make
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
    Case(histogram, (512, 2048, 8192), 2**15, 2**18, _histogram),
    Case(transpose, (16, 32, 64), 224, 632, _transpose, lambda n: n**2),
    Case(matmul, (16, 32, 64), 72, 144, _matmul, lambda n: n**3),
    Case(saxpy, (512, 2048, 8192), 2**18, 2**21, _saxpy),
    Case(reduction, (512, 2048, 8192), 2**14, 2**17, _reduction),
)


class Result(NamedTuple):
    """The processor's seconds of a size on both simulators."""

    case: Case
    size: int
    numbas: float
    strict: float

    @property
    def ratio(self) -> float:
        """How many times as fast the strict simulator is."""
        return self.numbas / self.strict


def measured(cases: tuple[Case, ...] = CASES, runs: int = RUNS) -> Iterator[Result]:
    """Time each case on both simulators; ``AssertionError`` for a wrong answer. Numba must have
    been imported with ``NUMBA_ENABLE_CUDASIM=1``."""
    for case in cases:
        _find_types(case)
        for size in case.sizes:
            seconds = (min(_seconds(one, case, size, runs)) for one in (_on_numbas, simulate))
            yield Result(case, size, *seconds)


class Run(NamedTuple):
    """A run on the strict simulator: the processor's seconds, and the engine."""

    seconds: float
    engine: str


class LongResult(NamedTuple):
    """The processor's seconds of a long size on Numba's simulator, and the strict one's runs."""

    numbas: float
    first: Run
    from_disk: Run  # the first one of another process
    in_memory: Run

    @property
    def runs(self) -> tuple[Run, Run, Run]:
        """The strict simulator's runs."""
        return self.first, self.from_disk, self.in_memory

    def ratios(self) -> tuple[float, ...]:
        """Return how many times as fast each of the strict simulator's runs is."""
        return tuple(self.numbas / run.seconds for run in self.runs)


def measured_long(case: Case, size: int) -> LongResult:
    """Time a case in a long size, as :func:`measured` does."""
    numbas = min(_seconds(_on_numbas, case, size, runs=1))
    first, in_memory = first_and_in_memory(case, size)
    command = [sys.executable, __file__, "--from-disk", case.kernel.__name__, str(size)]
    other = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds, engine = other.stdout.split()
    return LongResult(numbas, first, Run(float(seconds), engine), in_memory)


def first_and_in_memory(case: Case, size: int) -> tuple[Run, Run]:
    """Return the first run of a size, and the quickest of those with machine code in memory.
    ``AssertionError`` if no run, or not each after the first such one, is compiled."""
    _find_types(case)
    runs = _strict_runs(case, size, MOST_RUNS + RUNS)
    first = next(runs)
    engines = (run.engine for run in chain([first], islice(runs, MOST_RUNS - 1)))
    name = case.kernel.__name__
    assert COMPILED in engines, f"{name} of size {size} is not compiled in {MOST_RUNS} runs"
    in_memory = [*islice(runs, RUNS)]
    assert {one.engine for one in in_memory} == {COMPILED}, f"{name} ran as Python again"
    return first, min(in_memory)


def first_run(name: str, size: int) -> Run:
    """Return the first run of a size in this process."""
    (case,) = (one for one in CASES if one.kernel.__name__ == name)
    _find_types(case)
    return next(_strict_runs(case, size, runs=1))


def _strict_runs(case: Case, size: int, runs: int) -> Iterator[Run]:
    """Simulate a kernel some times; yield each run."""
    engines: list[str] = []

    def noted(*launch: Any) -> Any:
        made, is_compiled = run_launch(*launch)
        engines.append(COMPILED if is_compiled else PYTHON)
        return made, is_compiled

    with patch.object(programs, "run_launch", noted):
        for seconds in _seconds(simulate, case, size, runs, enough=float("inf")):
            yield Run(seconds, engines.pop())


def _find_types(case: Case) -> None:
    """Simulate a small size, which imports what finds the types."""
    grid, block, arguments, _ = case.make(case.sizes[0])
    simulate(cuda.jit(case.kernel), grid, block, *arguments)


def _on_numbas(kernel: Any, grid: Any, block: Any, *arguments: Any) -> None:
    kernel[grid, block](*arguments)


def _seconds(
    launch: Callable[..., Any], case: Case, size: int, runs: int, enough: float = ENOUGH
) -> Iterator[float]:
    kernel = cuda.jit(case.kernel)
    spent = 0.0
    for run in range(runs):
        if run and spent > enough:
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


REAL: dict[str, tuple[Callable[..., None], Make, int]] = {
    "vector add, 1 M": (saxpy, _saxpy, 2**20),
    "tree sum in shared memory, 1 M": (reduction, _reduction, 2**20),
    "histogram with shared atomics, 1 M": (histogram, _histogram, 2**20),
    "stencil with halo, 512 x 512": (stencil, _stencil, 512),
    "tiled product, 256": (matmul, _matmul, 256),
    "tiled product, 1024": (matmul, _matmul, 1024),
}
STAGE = "m08 on Conv12 of the paper, 1 image"
SHARED_CODE = "what all kernels share, then kept"


def load_shared_code() -> None:
    """Load the machine code that all kernels share, or compile it."""
    from convlab.simulation.compiled import compiled_run as _  # noqa: F401  imports all of it
    from convlab.simulation.compiled import runtime

    runtime.load()


def real_size(name: str) -> str:
    """Simulate one of them; return a line of the table. Raises ``AssertionError`` for a wrong
    answer."""
    if name == SHARED_CODE:
        begin = process_time()
        load_shared_code()
        return f"{name:36} {process_time() - begin:9.2f}"
    if name == STAGE:
        return _line(name, _simulate_stage)
    kernel, make, size = REAL[name]
    grid, block, arguments, expected = make(size)

    def launches() -> None:
        cuda.jit(kernel)[grid, block](*arguments)

    line = _line(name, launches)
    np.testing.assert_allclose(arguments[-1], expected)
    return line


def _line(name: str, launches: Callable[[], None]) -> str:
    begin = process_time()
    with convlab.simulator() as report:
        launches()
    engine = COMPILED if report.compiled == report.launches else PYTHON
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
    """Print the table of real sizes, each simulated in a process of its own, with nothing on disk
    that an earlier table has compiled."""
    print(f"{'launches':36} {'seconds':>9}   engine", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in (SHARED_CODE, *REAL, STAGE):
            command = [sys.executable, __file__, "--real", name]
            code = subprocess.call(command, env=os.environ | {VARIABLE: folder})
            if code:
                return code
    return 0


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


def long_main(longer: bool = False) -> int:
    """Print the table of long sizes, or of the longer ones; 1 if a run is slower than Numba's
    simulator, or the mean of those with machine code in memory is below 200."""
    words = (f"{word + ' s':>12}   times engine  " for word in ("first", "from disk", "in memory"))
    print(f"{'kernel':10} {'size':>7} {'Numba s':>9}", *words)
    results: list[LongResult] = []
    for case in CASES:
        size = case.longer if longer else case.long
        one = measured_long(case, size)
        columns = (
            f"{run.seconds:12.4f} {ratio:7.0f} {run.engine:8}"
            for run, ratio in zip(one.runs, one.ratios(), strict=True)
        )
        print(f"{case.kernel.__name__:10} {size:7} {one.numbas:9.2f}", *columns, flush=True)
        results.append(one)
    ratios = [*zip(*(one.ratios() for one in results), strict=True)]
    means = [statistics.geometric_mean(those) for those in ratios]
    print(f"{'geometric mean':28}", *(f"{mean:20.0f} {'':8}" for mean in means))
    print(
        "first: no machine code of the kernel is on disk; from disk: the first run of another "
        "process, which finds it;\n"
        f"in memory: the quickest of {RUNS} runs of the first process, after one was compiled"
    )
    return int(means[-1] < 200 or min(map(min, ratios)) < 1)


def with_nothing_on_disk(table: Callable[[], int]) -> int:
    """Print a table with nothing in the folder of machine code but what all kernels share."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = folder
        load_shared_code()
        return table()


if __name__ == "__main__":
    if sys.argv[1:] == ["--real"]:
        sys.exit(real_sizes())
    if sys.argv[1:2] == ["--real"]:
        print(real_size(sys.argv[2]), flush=True)
        sys.exit(0)
    if sys.argv[1:2] == ["--from-disk"]:
        print(*first_run(sys.argv[2], int(sys.argv[3])))
        sys.exit(0)
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        tables: dict[str, Callable[[], int]] = {
            "--long": long_main,
            "--longer": partial(long_main, longer=True),
        }
        sys.exit(with_nothing_on_disk(tables.get("".join(sys.argv[1:]), main)))
    # Numba decided at its import whether it simulates.
    again = [sys.executable, *sys.argv]
    sys.exit(subprocess.call(again, env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}))
