"""Engine ``simulator``: the parts of Numba's CUDA language beyond numbers and plain arrays."""

from __future__ import annotations

from enum import Enum, IntEnum
from itertools import count, product
from typing import Any

import numpy as np
import pytest
from kernels.cases import kernel_function
from numba import cuda, float32, int32
from numba import extending as numbas
from numba.cuda.extending import overload
from numba.cuda.misc.special import literal_unroll
from numba.cuda.np.numpy_support import from_dtype

from convlab.running.engines.simulator import Simulator
from convlab.simulation.numbers.counted_operations import Arithmetic
from convlab.simulation.rules.findings import NotSimulated, SimulationError

F = np.float32
PLACE = np.dtype([("x", "f4"), ("y", "f4")])
# Fields of all kinds, with names that the simulator's own arrays have too.
BODY = np.dtype([("base", "i4"), ("at", PLACE), ("name", "f8", (2, 3)), ("c", "c8")], align=True)
Place, Body = from_dtype(PLACE), from_dtype(BODY)
ORIGIN = np.array([(1.5, 2.5)], PLACE)
B = np.zeros(2)


def run(kernel: Any, *arguments: Any, grid: int = 1, block: int = 1) -> Any:
    """Launch it with both settings, which must agree; the last argument afterwards."""
    results = []
    for strict in (False, True):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        Simulator(strict).launch(kernel, grid, block, *copies)
        results.append(copies[-1])
    np.testing.assert_array_equal(results[0], results[1])
    return results[1]


@cuda.jit
def every_field(a, b):
    i = cuda.threadIdx.x
    b[i].base = a[i]["base"] + 1
    b[i]["at"].x = a.at.y[i]
    b.at[i].y = a[i].at.x
    b[i].name[:, 1:] = a["name"][i, :, :2]
    b[i].name[1, 0] = a[i].name.T[2, 1]
    b[i].c = a[i].c.real - 1j * a.c[i].imag
    b[i + 4] = a[i]
    b[i + 4].at = ORIGIN[0]


def test_every_field_of_a_record_is_read_and_written() -> None:
    a, b = np.zeros(4, BODY), np.zeros(8, BODY)
    a["base"], a["at"]["x"], a["at"]["y"] = np.arange(4), 5, [6, 7, 8, 9]
    a["name"], a["c"] = np.arange(24).reshape(4, 2, 3), 1 + 2j
    b = run(every_field, a, b, block=4)
    assert b["base"].tolist() == [1, 2, 3, 4, 0, 1, 2, 3]
    assert b["at"].tolist() == [(6, 5), (7, 5), (8, 5), (9, 5)] + [(1.5, 2.5)] * 4
    assert b["name"][1].tolist() == [[0, 6, 7], [11, 9, 10]]
    assert (b["name"][4:] == a["name"]).all()
    assert b["c"].tolist() == [1 - 2j] * 4 + [1 + 2j] * 4


@cuda.jit
def record_in_an_argument(r, b):
    r.at.x += 1
    b[0] = r[0] + r.at.x


def test_a_record_is_an_argument() -> None:
    bodies = np.zeros(3, BODY)
    for record in (bodies[1], bodies.view(np.recarray)[1]):
        out = np.zeros(1)
        Simulator().launch(record_in_an_argument, 1, 1, record, out)
    assert bodies["at"]["x"].tolist() == [0, 2, 0]
    assert out[0] == 2


@cuda.jit
def records_near(b):
    i = cuda.threadIdx.x
    shared = cuda.shared.array(32, Place)
    own = cuda.local.array(2, Place)
    own[1].x = i
    own[1].y = -i
    shared[i] = own[1]
    cuda.syncthreads()
    b[i] = shared[31 - i]


def test_records_in_shared_and_local_memory() -> None:
    b = run(records_near, np.zeros(32, PLACE), block=32)
    assert b["x"].tolist() == [*range(31, -1, -1)]
    assert (b["y"] == -b["x"]).all()


@cuda.jit
def other_fields(b):
    i = cuda.threadIdx.x
    b[i].x = 1
    b[(i + 1) % 32].y = i


def test_threads_write_other_fields_of_a_record() -> None:
    run(other_fields, np.zeros(32, PLACE), block=32)


@cuda.jit
def row_sum(row):
    total = float32(0)
    for one in row:
        total += one
    return total


@cuda.jit
def views(a, b):
    own = cuda.local.array((2, 3), float32)
    own[:, :] = a[:2, ::-1]
    b[0] = row_sum(own[1])
    b[1] = own.T[2, 0]
    b[2] = a.reshape(4, 3)[3, 2] + a.flat[1] + a.ravel()[-1 + 12]
    b[3] = a.view(int32)[0, 1]
    own[0][1:] = own[1, :2]
    b[4] = own[0, 2] + len(own.T) + own.size + a.ndim
    copied = a.copy()
    copied[0, 0] = 9
    b[5] = a[0, 0] + copied[0, 0]
    b[6:9] = a[1, :]
    b[9:] = 7
    cuda.stcg(b, 10, cuda.ldca(a, (2, 1)))


@cuda.jit
def whole_arrays(a, b, c):
    np.sqrt(a, b)
    np.add(b, 1, c)
    np.negative(c, c)
    np.multiply(c, a[:2], c)


@cuda.jit
def reductions(a, b):
    own = cuda.local.array(3, float32)
    own.fill(2)
    b[0], b[1], b[2] = a.sum(), np.mean(a), a[1].max()
    b[3], b[4], b[5] = a.argmin(), np.searchsorted(a[1], 4.5), own.prod()
    b[6] = np.count_nonzero(a.T)
    for table in literal_unroll(TABLES):
        b[7] += table[0]


TABLES = np.zeros(2), np.ones(1)


class Colour(Enum):
    RED = 1
    BLUE = 2


class Level(IntEnum):
    HIGH = 3


@cuda.jit
def enums(colour, b):
    b[0] = colour == Colour.BLUE
    b[1] = colour is Colour["RED"]
    b[2] = Level.HIGH + 1


TWO_DAYS = np.timedelta64(2, "D")


@cuda.jit
def times_and_words(day, days, words):
    days[0] = days[1] + (days[1] - day) + TWO_DAYS
    if days[1] > day:
        words[0] = "later, but cut"
        words[1] = words[2]


def test_dates_and_words() -> None:
    days = np.array(["2024-01-01", "2024-03-01"], "M8[D]")
    words = np.array(["", "", "abc"], "U5")
    Simulator().launch(times_and_words, 1, 1, np.datetime64("2024-02-28"), days, words)
    assert str(days[0]) == "2024-03-05"
    assert words.tolist() == ["later", "abc", "abc"]


def doubled(x):
    raise AssertionError("an overload is run instead")


@numbas.overload(doubled, target="cpu")
def overload_for_a_cpu(x):
    raise AssertionError("a GPU has another")


@numbas.register_jitable
def halved(x):
    return x / 2


@overload(doubled)
def overload_doubled(x):
    if str(x).startswith("float"):
        return lambda x: 2 * x
    if str(x).startswith("array"):
        return lambda x: 2 * x[0]
    return None


@cuda.jit
def overloaded(a, b):
    b[0] = doubled(1.5)
    b[1] = doubled(a) + halved(1)


@cuda.jit
def by_zero(a, b):
    zero = a[0]
    b[0], b[1], b[2] = 1 / zero, -1 / zero, zero / zero
    b[3] = 1.0
    b[3] /= -zero
    b[4] = 6 / (a[1] / 2) / 2


def test_a_division_is_counted_once() -> None:
    by = Arithmetic().number
    assert [by(1.0) / by(4.0), 1.0 / by(4.0), by(-1.0) / by(0.0)] == [0.25, 0.25, -np.inf]


@cuda.jit
def prints(a, nothing):
    print("a", 1, a[0], a[0] > 1, (2, a[0]), cuda.blockDim)
    print(nothing)


def test_print_shows_what_a_gpu_shows(capfd) -> None:
    with pytest.raises(NotImplementedError, match="printing unimplemented for values of type comp"):
        Simulator().launch(prints, 1, 1, np.array([0.25]), 1j)
    assert capfd.readouterr().out == "a 1 0.250000 False (2, 0.250000) (1, 1, 1)\n"


class Odd(Exception):
    pass


@cuda.jit(debug=True, opt=False)
def raises(b):
    if cuda.grid(1) == 3:
        raise Odd("three")


def test_a_kernel_raises_as_numba_says_it() -> None:
    with pytest.raises(Odd, match=r"^tid=\[1, 0, 0\] ctaid=\[1, 0, 0\]: three\n"):
        Simulator().launch(raises, 2, 2, np.zeros(1))


@cuda.jit
def to_and_fro(b):
    i = cuda.grid(1)
    for _ in range(3):
        value = b[31 - i]
        cuda.cg.this_grid().sync()
        b[i] = value + 1
        cuda.cg.this_grid().sync()


def test_the_barrier_of_a_grid() -> None:
    for grid in 1, 4:
        assert run(to_and_fro, np.zeros(32), grid=grid, block=32 // grid).tolist() == [3] * 32


RIGHT = [
    (
        views,
        [np.arange(12, dtype=F).reshape(4, 3)],
        [12, 0, 23, 0x3F800000, 15, 9, 3, 4, 5, 7, 7, 7],
    ),
    (whole_arrays, [np.array([4.0, 9.0]), np.zeros(2)], [-12, -36]),
    (reductions, [np.arange(6, dtype=F).reshape(2, 3)], [15, 2.5, 5, 0, 2, 8, 5, 1]),
    (enums, [Colour.BLUE], [1, 0, 4]),
    (overloaded, [np.array([5.0])], [3, 10.5]),
    (by_zero, [np.array([0.0, 2.0])], [np.inf, -np.inf, np.nan, -np.inf, 3]),
]


@pytest.mark.parametrize(("kernel", "arguments", "expected"), RIGHT)
def test_kernels_compute_what_numba_computes(
    kernel: Any, arguments: list[Any], expected: list[float]
) -> None:
    found = run(kernel, *arguments, np.zeros(len(expected)))
    np.testing.assert_array_equal(found, expected)


KERNELS = count()


def of(*lines: str, **options: bool) -> Any:
    """A kernel of ``b`` with these lines; ``i`` is the thread's number. Each has a name of its own,
    because ``linecache`` keeps one source for each file name."""
    body = ["i = cuda.threadIdx.x", *lines]
    return cuda.jit(**options)(kernel_function(f"kernel_{next(KERNELS)}", "b", body, of))


PACKED = np.zeros(2, [("tag", np.int8), ("x", np.float32)])
UNWRITTEN_FIELD = of("S = cuda.shared.array(32, Place)", "S[i].x = 1", "b[i] = S[i]")
UNWRITTEN_ROW = of("L = cuda.local.array((2, 2), float32)", "L[0, 0] = b[i]", "b[i] = L[0][1]")
MISTAKES = [
    (of("b[i].x = 1", "b[1].x = i"), np.zeros(32, PLACE), r"writes b.x\[1\] and .* overwrites"),
    (UNWRITTEN_FIELD, np.zeros(32, PLACE), r"uninitialised.* S.y\[0\] is read before anything"),
    (of("b[i].y = 1"), np.zeros(31, PLACE), r"bounds.*: b\[31\] is outside shape \(31,\)"),
    (UNWRITTEN_ROW, np.zeros(32), r"uninitialised.* L\[1\] is read before anything"),
    (of("b[i : i + 2] = i"), np.zeros(33), r"global race.* writes b\[1\] and thread"),
    (of("b[0] = cuda.local.array(3, float32).sum()"), B, r"uninitialised.* without a name\[0\]"),
]


@pytest.mark.parametrize(("kernel", "argument", "what"), MISTAKES)
def test_mistakes_are_found(kernel: Any, argument: np.ndarray, what: str) -> None:
    with pytest.raises(SimulationError, match=what) as caught:
        Simulator().launch(kernel, 1, 32, argument)
    assert len(caught.value.findings) == 1


ZERO_DIVISION = r"^tid=\[0, 0, 0\] ctaid=\[0, 0, 0\]: .*(division|modulo)"
REFUSED = [
    (of("b[0] = b.sum(0)[0]"), NotSimulated, "sum of b with more than the array is not simulated"),
    (of("b[0] = doubled(1)"), NotSimulated, r"doubled has no overload for \(int64\)"),
    (of("b[:] = np.negative(b)"), TypeError, r"np\.negative would allocate an array; pass out="),
    *(
        (of(f"b[0] = 1 {by} b[1]", debug=True, opt=False), error, ZERO_DIVISION)
        for by in ("/", "//", "%")
        for error in (ZeroDivisionError, FloatingPointError)  # a GPU's, and Numba's simulator's
    ),
]
ALIGNMENTS = (-1, ValueError), (0, ValueError), (17, ValueError), (1.5, TypeError)
REFUSED += [
    (of(f"cuda.{memory}.array(4, float32, alignment={alignment})"), error, "lignment")
    for memory, (alignment, error) in product(("shared", "local"), ALIGNMENTS)
]


@pytest.mark.parametrize(("kernel", "error", "what"), REFUSED)
def test_refused_kernels_say_why(kernel: Any, error: type, what: str) -> None:
    with pytest.raises(error, match=what):
        Simulator().launch(kernel, 1, 1, np.zeros(2))


def test_a_field_that_is_not_aligned_is_refused_as_numba_refuses_it() -> None:
    why = r"^b\.x of type float32 is not aligned, which Numba refuses"
    with pytest.raises(TypeError, match=why):
        Simulator().launch(of("b[0].x = 1"), 1, 1, PACKED)
