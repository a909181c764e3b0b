"""Engine ``simulator``: the parts of Numba's CUDA language beyond numbers and plain arrays."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32
from numba import extending as numbas
from numba.cuda.extending import overload
from numba.cuda.misc.special import literal_unroll
from numba.cuda.np.numpy_support import from_dtype

from convlab.engines.simulator import Simulator
from convlab.simulation.findings import NotSimulated, SimulationError
from convlab.simulation.scalars import Arithmetic

F = np.float32
PLACE = np.dtype([("x", "f4"), ("y", "f4")])
# Fields of all kinds, with names that the simulator's own arrays have too.
BODY = np.dtype([("base", "i4"), ("at", PLACE), ("name", "f8", (2, 3)), ("c", "c8")], align=True)
Place, Body = from_dtype(PLACE), from_dtype(BODY)
ORIGIN = np.array([(1.5, 2.5)], PLACE)


def run(kernel: Any, *arguments: Any, grid: int = 1, block: int = 1) -> Any:
    """Launch it with both settings, which must agree; the last argument afterwards."""
    results = []
    for strict in (False, True):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        Simulator(strict).launch(kernel, grid, block, *copies)
        results.append(copies[-1])
    np.testing.assert_array_equal(results[0], results[1])
    return results[1]


def findings(kernel: Any, *arguments: Any, block: int = 32) -> list[str]:
    with pytest.raises(SimulationError) as caught:
        Simulator().launch(kernel, 1, block, *arguments)
    return [f"{one.kind}: {one.what}" for one in caught.value.findings]


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
def race_on_a_field(b):
    i = cuda.threadIdx.x
    b[i].x = 1
    b[1].x = i


@cuda.jit
def other_fields(b):
    i = cuda.threadIdx.x
    b[i].x = 1
    b[(i + 1) % 32].y = i


@cuda.jit
def unwritten_field(b):
    shared = cuda.shared.array(4, Place)
    shared[0].x = 1
    b[0] = shared[0]


@cuda.jit
def beyond(b):
    b[cuda.threadIdx.x].y = 1


def test_records_are_checked_by_field() -> None:
    assert (
        "global race: thread (0, 0, 0) writes b.x[1] and thread (1, 0, 0) overwrites it, with no "
        "barrier between" in (findings(race_on_a_field, np.zeros(32, PLACE))[0])
    )
    run(other_fields, np.zeros(32, PLACE), block=32)
    (found,) = findings(unwritten_field, np.zeros(1, PLACE), block=1)
    assert found == "uninitialised: shared.y[0] is read before anything in this block wrote to it"
    assert findings(beyond, np.zeros(31, PLACE)) == ["out of bounds: b[31] is outside shape (31,)"]


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


def test_views_and_slices_are_numpys() -> None:
    a = np.arange(12, dtype=F).reshape(4, 3)
    b = run(views, a, np.zeros(12))
    assert b.tolist() == [12, 0, 23, 0x3F800000, 4 + 3 + 6 + 2, 9, 3, 4, 5, 7, 7, 7]


@cuda.jit
def local_row_unwritten(b):
    own = cuda.local.array((2, 2), float32)
    own[0, 0] = b[0]
    b[0] = own[0][1]


@cuda.jit
def slices_that_overlap(a):
    i = cuda.threadIdx.x
    a[i : i + 2] = i


@pytest.mark.parametrize(
    ("kernel", "argument", "what"),
    [
        (local_row_unwritten, np.zeros(1, F), r"uninitialised.* own\[1\] is read before"),
        (slices_that_overlap, np.zeros(33, F), r"global race.* writes a\[1\] and thread"),
    ],
)
def test_mistakes_in_views_are_found(kernel: Any, argument: np.ndarray, what: str) -> None:
    with pytest.raises(SimulationError, match=what):
        Simulator().launch(kernel, 1, 32, argument)


@cuda.jit
def whole_arrays(a, b, c):
    np.sqrt(a, b)
    np.add(b, 1, c)
    np.negative(c, c)
    np.multiply(c, a[:2], c)


def test_functions_of_numpy_take_whole_arrays() -> None:
    assert run(whole_arrays, np.array([4.0, 9.0]), np.zeros(2), np.zeros(2)).tolist() == [-12, -36]


@cuda.jit
def new_array(a):
    a[:] = np.negative(a)


def test_a_kernel_makes_no_arrays() -> None:
    with pytest.raises(TypeError, match=r"np\.negative makes an 'Array'"):
        run(new_array, np.zeros(2))


@cuda.jit
def reductions(a, b):
    own = cuda.local.array(3, float32)
    own.fill(2)
    b[0], b[1], b[2] = a.sum(), np.mean(a), a[1].max()
    b[3], b[4], b[5] = a.argmin(), np.searchsorted(a[1], 4.5), own.prod()
    b[6] = np.count_nonzero(a.T)
    for table in literal_unroll(TABLES):
        b[7] += table[0]


@cuda.jit
def sums_of_rows(a, b):
    b[0] = a.sum(0)[0]


@cuda.jit
def sum_of_nothing(a, b):
    b[0] = cuda.local.array(3, float32).sum()


TABLES = np.zeros(2), np.ones(1)


def test_arrays_become_numbers() -> None:
    a = np.arange(6, dtype=F).reshape(2, 3)
    assert run(reductions, a, np.zeros(8)).tolist() == [15, 2.5, 5, 0, 2, 8, 5, 1]
    with pytest.raises(NotSimulated, match="sum of a with more than the array is not simulated"):
        run(sums_of_rows, a, np.zeros(1))
    assert (
        "uninitialised: an array without a name[0]" in findings(sum_of_nothing, a, np.zeros(1))[0]
    )


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


def test_enums() -> None:
    assert run(enums, Colour.BLUE, np.zeros(3)).tolist() == [1, 0, 4]


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
def not_overloaded(b):
    b[0] = doubled(1)


def test_overloads_stand_for_a_plain_function() -> None:
    assert run(overloaded, np.array([5.0]), np.zeros(2)).tolist() == [3, 10.5]
    with pytest.raises(NotSimulated, match=r"doubled has no overload for \(int64\)"):
        run(not_overloaded, np.zeros(1))


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


def test_a_float_divided_by_zero_is_infinite() -> None:
    b = run(by_zero, np.array([0.0, 2.0]), np.zeros(5))
    np.testing.assert_array_equal(b, [np.inf, -np.inf, np.nan, -np.inf, 3])


def test_with_debug_it_is_an_error() -> None:
    debugged = cuda.jit(debug=True, opt=False)(by_zero.py_func)
    with pytest.raises(ZeroDivisionError, match=r"^tid=\[0, 0, 0\] ctaid=\[0, 0, 0\]: float div"):
        Simulator().launch(debugged, 1, 1, np.array([0.0, 2.0]), np.zeros(5))


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


@pytest.mark.parametrize("in_shared", [True, False])
@pytest.mark.parametrize(
    ("alignment", "error"), [(-1, ValueError), (0, ValueError), (17, ValueError), (1.5, TypeError)]
)
def test_an_alignment_that_numba_refuses(in_shared: bool, alignment: Any, error: Any) -> None:
    @cuda.jit
    def kernel(a):  # type: ignore[no-untyped-def]
        if in_shared:
            cuda.shared.array(4, float32, alignment=alignment)
        else:
            cuda.local.array(4, float32, alignment=alignment)

    with pytest.raises(error, match="lignment"):
        Simulator().launch(kernel, 1, 1, np.zeros(1))


@cuda.jit
def packed_field(a):
    a[0].x = 1


def test_a_field_that_is_not_aligned_is_refused_as_numba_refuses_it() -> None:
    packed = np.zeros(2, [("tag", np.int8), ("x", np.float32)])
    with pytest.raises(TypeError, match=r"a\.x of type float32 is not aligned, which Numba refuse"):
        Simulator().launch(packed_field, 1, 1, packed)
