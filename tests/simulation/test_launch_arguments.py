"""Engine ``simulator``: what a launch is given, and what is refused before it begins or by line."""

from __future__ import annotations

import gc
import weakref
from collections import namedtuple
from collections.abc import Callable
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from kernels.cases import kernel_function
from numba import cuda, float32, int32  # noqa: F401  for kernels
from numba.cuda import types
from numba.extending import typeof_impl

import convlab
from convlab.device import load4  # noqa: F401  for kernels
from convlab.ladder import Launch
from convlab.lessons import exercises
from convlab.running.engines import choose
from convlab.running.engines.simulator import Simulator
from convlab.simulation.host.programs import simulator
from convlab.simulation.launch.global_memory import addresses
from convlab.simulation.recording.access_log import GLOBAL
from convlab.simulation.rules.findings import NotSimulated, SimulationError
from convlab.simulation.threads.waiting import ThreadRunner
from convlab.tracing import trace_launch

SIM = Simulator()
F = np.float32
TABLE = np.ones(4, F)


def read_only() -> np.ndarray:
    array = np.zeros(4, F)
    array.flags.writeable = False
    return array


@cuda.jit
def one(b):
    b[0] = 1


B = np.zeros(1, F)
REFUSED = [
    (one, (0, 1), 32, [B], ValueError, r"grid is \(0, 1\): it must be at least 1 and below"),
    (one, -1, 32, [B], ValueError, "grid is -1: it must be at least 1"),
    (one, 1, "32", [B], TypeError, "block is '32': it must be an integer, not str"),
    (one, range(10**12), 1, [B], ValueError, r"grid is range\(0, 1000000000000\): it has one to"),
    (one, 10**999, 1, [B], ValueError, "grid is a 3319-bit int: it must be"),
    (one, 1, [1, 1.5], [B], TypeError, r"block is \[1, 1.5\]: its entries must be integers"),
    (one, (1, 65536), 1, [B], ValueError, "has 65536 along y: 1 to 65535"),
    (one, 1, (1, 1, 65), [B], ValueError, "has 65 along z: 1 to 64"),
    (one, 1, (33, 32), [B], ValueError, "are 1056 threads: a block has 1 to 1024"),
    (one, (1, 1, 1, 9), 1, [B], ValueError, "grid is .* one to three sizes"),
    (one, 1, 1, [(1, "two")], TypeError, r"b\[1\] is a str"),
    (one, 1, 1, [], TypeError, "one: missing a required argument: 'b': it takes b, and .* gives 0"),
    (one, 1, 1, [1, 2], TypeError, "one: too many positional arguments: it takes b, and .* 2$"),
    (one, 1, 1, [np.zeros(1, ">f4")], NotSimulated, "b is an array of >f4"),
    (one, 1, 1, [np.zeros(1, np.longdouble)], NotSimulated, "b is an array of .*, which is not"),
    (one, 1, 1, [np.zeros(1, [("x", ">f4")])], NotSimulated, "b is an array of .*, which is not"),
    (one.py_func, 1, 1, [B], TypeError, r"is not a kernel: decorate it with @cuda.jit"),
]


@pytest.mark.parametrize(("kernel", "grid", "block", "arguments", "error", "what"), REFUSED)
def test_launches_that_are_refused(kernel, grid, block, arguments, error, what) -> None:
    with pytest.raises(error, match=what):
        SIM.launch(kernel, grid, block, *arguments)


class Grade(Enum):
    """Members of no type that Numba has."""

    BEST = "best"


class Body(Enum):
    """Members that are tuples of numbers, as Numba takes them."""

    EARTH = 5.5, 1
    MARS = 3.75, 2


LISTS = "a kernel takes numbers, arrays and tuples of them; give it a NumPy array"
NOT_GIVEN = [  # what Numba gives to no kernel, and what is said of it
    ([1.0], rf"^one: b is a list, \[1\.0\]: {LISTS}$"),
    ([np.zeros(2)], rf"^one: b is a list, \[array\(\[0., 0.\]\)\]: {LISTS}$"),
    ({1}, rf"b is a set, \{{1\}}: {LISTS}$"),
    (range(3), rf"b is a range, range\(0, 3\): {LISTS}$"),
    (b"x", f"b is a bytes, b'x': {LISTS}$"),
    (bytearray(1), f"b is a bytearray, .*: {LISTS}$"),
    ({"x": 1}, "b is a dict, {'x': 1}: .*; give it arrays of the keys and values$"),
    ("x", "b is a str, 'x': .*; give it an array of character codes$"),
    (None, "b is a NoneType, None: .*; give it a number that stands for none, or write"),
    (object(), "^one: b is an object: a kernel takes numbers, arrays and tuples of them$"),
    (Fraction(1, 2), r"b is a Fraction, Fraction\(1, 2\): a kernel takes numbers"),
    (np.longdouble(1), "b is a longdouble, .*: a kernel takes numbers"),
    (np.bytes_(b"x"), "b is a bytes_, .*: a kernel takes numbers"),
    (Grade.BEST, "b.value is a str, 'best': a kernel takes numbers"),
    (slice(3), "b is a slice, .*: a kernel takes numbers"),
    (np.float32, "b is a type: .*; let the kernel refer to the type by a global name$"),
    (read_only, "b is a function: .*; let the kernel refer to a device function by a global"),
    (one, "b is a .*: a kernel takes numbers"),
    (np.ma.zeros(2), "b is a MaskedArray, .*; give it the data and the mask as two arrays$"),
    (np.array([None]), "b is an array of object, which is not a type of numbers that Numba has"),
    (np.zeros(2, "V3"), r"b is an array of \|V3, which is not"),
    (((1, [2]),), r"b\[0\]\[1\] is a list, \[2\]: "),
    (2**64, "b is 18446744073709551616: an integer has at most 64 bits"),
    (-(2**63) - 1, "b is -9223372036854775809: an integer has at most 64 bits"),
]


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(("argument", "what"), NOT_GIVEN, ids=lambda one: str(one)[:20])
def test_what_numba_gives_to_no_kernel_is_named(argument, what: str, typed: bool) -> None:
    with pytest.raises(NotSimulated, match=what) as caught:
        Simulator(typed=typed).launch(one, 1, 1, argument)
    assert isinstance(caught.value, TypeError)


@cuda.jit
def adds_up(numbers, b):
    b[0] = numbers[0] + numbers[1] + numbers[2]


@cuda.jit
def same_body(one, other, b):
    b[0] = one == other


def test_what_numba_gives_to_kernels_is_taken() -> None:
    b = np.zeros(1)
    SIM.launch(adds_up, 1, 1, (True, np.float16(0.5), np.uint8(3)), b)
    assert b[0] == 4.5
    Simulator(typed=True).launch(same_body, 1, 1, Body.MARS, Body.EARTH, b)
    assert b[0] == 0
    Simulator(typed=True).launch(same_body, 1, 1, Body.MARS, Body.MARS, b)
    assert b[0] == 1
    days = np.timedelta64(2, "D"), np.timedelta64(3, "D")  # NumPy calls their type an integer's
    Simulator(typed=True).launch(same_body, 1, 1, *days, b)
    assert b[0] == 0
    matrix = np.array([[1.0, 2.0], [3.0, 4.0]]).view(
        np.matrix
    )  # two dimensions in a kernel, as in any array
    Simulator(typed=True).launch(of("b[1, 0] = b[0][1]"), 1, 1, matrix)
    assert matrix.tolist() == [[1, 2], [2, 4]]


Pair = namedtuple("Pair", "first second")


@cuda.jit
def takes_a_tuple(pair, k):
    pair[1][k] = pair.first[k] + 1


def test_arrays_in_tuples_are_checked() -> None:
    pair = Pair(np.zeros(4, F), np.zeros(4, F))
    SIM.launch(takes_a_tuple, 1, 1, pair, 3)
    assert pair.second.tolist() == [0, 0, 0, 1]
    with pytest.raises(SimulationError, match=r"pair\[0\]\[4\] is outside shape \(4,\)"):
        SIM.launch(takes_a_tuple, 1, 1, pair, 4)


class Halves:
    """An argument that extensions know."""

    def __init__(self, lower: np.ndarray) -> None:
        self.lower = lower


class HalvesType(types.Type):
    """Numba's type of it, with code of its own for a GPU."""


@typeof_impl.register(Halves)
def type_of_halves(value: Halves, context: object) -> types.Type:
    return HalvesType("Halves")


class Gives:
    """An extension that gives a kernel what ``given`` makes of a type and an argument."""

    def __init__(self, given: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        self.given = given

    def prepare_args(self, kind: Any, value: Any, **launch: object) -> tuple[Any, Any]:
        return self.given(kind, value)


def test_extensions_prepare_arguments_with_their_types_the_last_one_first() -> None:
    def doubled(kind: Any, value: Any) -> tuple[Any, Any]:
        kinds.append(str(kind))
        return kind, value * 2 if isinstance(value, int) else value

    kinds: list[str] = []
    plus_one = Gives(lambda kind, value: (kind, value + 1 if isinstance(value, int) else value))
    b = np.zeros(1)
    with simulator():
        stores = cuda.jit(extensions=[plus_one, Gives(doubled)])(
            kernel_function("f", "b, k", ["b[0] = k"], read_only)
        )
        stores[1, 1](b, 3)
    assert b[0] == 7
    assert kinds == ["array(float64, 1d, C)", "int64"]


def test_an_argument_that_only_compiled_code_can_read_is_refused() -> None:
    address = Gives(lambda kind, value: (types.uint64, 64) if value is halves else (kind, value))
    b = np.zeros(1)
    halves = Halves(b)
    with simulator():
        stores = cuda.jit(extensions=[address])(
            kernel_function("f", "b, k", ["b[0] = k"], read_only)
        )
        with pytest.raises(NotSimulated, match="f: k is not on the device: the type Halves"):
            stores[1, 1](b, halves)
    assert b[0] == 0


def of(*lines: str) -> Any:
    """A kernel of ``b`` with these lines, the first of which is line 2."""
    return cuda.jit(kernel_function("kernel", "b", [*lines], read_only))


def staged(size: int) -> Any:
    return of(f"S = cuda.shared.array({size}, float32)", "S[0] = b[0]")


LOAD4 = of("load4(b, 0)")
LOCAL_ATOMIC = of("S = cuda.local.array(1, int32)", "S[0] = 0", "cuda.atomic.add(S, 0, 1)")
UNKNOWN = of("b[0] = cuda.libdevice_of_tomorrow(1)")
UNKNOWN_ATOMIC = of("cuda.atomic.multiply(b, 0, 1)")


@pytest.mark.parametrize(
    ("kernel", "line", "argument", "error", "what"),
    [
        (of("b[0] = 1"), 2, read_only(), TypeError, "b is read-only"),
        (of("TABLE[0] = 3"), 2, np.zeros(1, F), TypeError, "a constant array is read-only"),
        (LOAD4, 2, np.zeros(4), TypeError, "b is not a C-contiguous array of float32"),
        (LOAD4, 2, np.zeros(16, F)[::4], TypeError, "b is not a C-contiguous array of float32"),
        (staged(12289), 2, np.zeros(1), MemoryError, "49156 bytes of shared arrays.* 49152"),
        (LOCAL_ATOMIC, 4, np.zeros(1), NotSimulated, "an atomic on S: a GPU has none"),
        (UNKNOWN, 2, np.zeros(1), NotSimulated, "cuda.libdevice_of_tomorrow is not simulated"),
        (UNKNOWN_ATOMIC, 2, np.zeros(1), NotSimulated, "cuda.atomic.multiply is not simulated"),
        (of("b.tolist()"), 2, np.zeros(4), NotSimulated, "b.tolist is not simulated"),
        (of("b[:2] = b[:3]"), 2, np.zeros(4), ValueError, r"shape \(3,\) stored in one .*\(2,"),
    ],
)
def test_what_a_kernel_cannot_do(
    kernel: Any, line: int, argument: Any, error: type, what: str
) -> None:
    with pytest.raises(error, match=what) as caught:
        SIM.launch(kernel, 1, 1, argument)
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert f"<kernel>:{line}" in said
    assert (TABLE == 1).all()


def test_shared_memory_has_an_end() -> None:
    rest = (227 - 48) * 1024
    SIM.launch(staged(12288), 1, 1, np.zeros(1, F), shared_bytes=rest)
    with pytest.raises(MemoryError, match=rf"{rest + 1} of them dynamic: .* at most 232448"):
        SIM.launch(staged(12288), 1, 1, np.zeros(1, F), shared_bytes=rest + 1)
    with pytest.raises(ValueError, match="shared_bytes is 232449: a block has 0 to 232448"):
        SIM.launch(one, 1, 1, np.zeros(1, F), shared_bytes=227 * 1024 + 1)


@cuda.jit
def race_then_error(b):
    staged = cuda.shared.array(2, float32)
    staged[0] = cuda.threadIdx.x
    cuda.syncthreads()
    b[0.5] = staged[0]


def test_findings_come_before_what_the_kernel_raised() -> None:
    with pytest.raises(SimulationError, match=r"shared race.* staged\[0\]") as caught:
        SIM.launch(race_then_error, 1, 4, np.zeros(4, F))
    assert isinstance(caught.value.__cause__, TypeError)


@cuda.jit
def writes_one_place(a, b):
    a[0, 1] = cuda.threadIdx.x


def test_elements_of_arrays_with_strides_have_their_names() -> None:
    whole = np.zeros((3, 4), F)
    for a, b in ((whole.T, whole[:0]), (whole[::-1], whole[:0]), (whole[:, ::2], whole[:, 1::2])):
        with pytest.raises(SimulationError, match=r"writes a\[0, 1\]") as caught:
            SIM.launch(writes_one_place, 1, 4, a, b)
        assert caught.value.findings[0].index == (0, 1)


def test_addresses_follow_the_arguments() -> None:
    arrays = [np.zeros(70_000, F) for _ in range(4)]
    for order in (arrays, arrays[::-1]):
        starts = addresses(order)
        placed = [starts[id(array)] - GLOBAL for array in order]
        assert placed == sorted(placed)
        assert {place % 256 for place in placed} == {0} == {placed[0]}
    part = arrays[1][5:]
    starts = addresses([part, arrays[0], arrays[1]])
    assert starts[id(part)] - starts[id(arrays[1])] == 20


class Array(np.ndarray):
    """An array that can be watched."""


def test_nothing_of_a_launch_outlives_it() -> None:
    array = np.zeros(4, F).view(Array)
    watched = weakref.ref(array)
    gc.disable()
    try:
        SIM.launch(one, 1, 1, array)
        del array
        assert watched() is None
    finally:
        gc.enable()


@cuda.jit
def stores_past_the_end(a):
    i = cuda.threadIdx.x
    cuda.syncthreads()
    if i == 5:
        a[a.size] = 1
    cuda.syncthreads()


@cuda.jit
def waits_for_nobody(a):
    if cuda.threadIdx.x < 16:
        while a[0] == 0:
            cuda.nanosleep(100)
    cuda.syncthreads()


def greenlets_of_threads() -> int:
    gc.collect()
    return sum(type(one) is ThreadRunner for one in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [stores_past_the_end, waits_for_nobody])
def test_threads_of_a_launch_that_fails_do_not_outlive_it(kernel) -> None:
    before = greenlets_of_threads()
    for _ in range(2):
        with pytest.raises(SimulationError):
            SIM.launch(kernel, 3, 32, np.zeros(32, F))
    assert greenlets_of_threads() <= before


@cuda.jit
def rows_of_sums(out, row, column):
    sums = cuda.local.array((2, 3), float32)
    for i in range(2):
        part = sums[i]
        part[0] = i
        part[1] = part[0] + 1
        part[1] += 1
    if column:
        sums[row][column] += 1
    out[0], out[1] = sums[0, 1], sums[1][1]


@pytest.mark.parametrize(
    ("row", "column", "found"),
    [
        (0, 0, None),
        (1, 2, r"sums\[2\] is read before anything is written to it"),
        (1, 3, r"sums\[3\] is outside shape \(3,\)"),
        (2, 1, r"sums\[2\] is outside shape \(2, 3\)"),
    ],
)
def test_rows_of_a_local_array_are_checked_as_it_is(row, column, found) -> None:
    out = np.zeros(2, F)
    for _ in range(2):  # of the second launch the views are known
        if found is None:
            SIM.launch(rows_of_sums, 1, 2, out, row, column)
            assert out.tolist() == [2, 3]
        else:
            with pytest.raises(SimulationError, match=found):
                SIM.launch(rows_of_sums, 1, 2, out, row, column)


FACTOR = F(0.1)


@cuda.jit
def with_defaults(b, by=FACTOR, more=None, times=1):
    i = cuda.grid(1)
    if more is None:
        b[i] = by * i * times


@cuda.jit
def with_any_number(b, *more):
    b[0] = len(more)


@cuda.jit
def with_a_keyword(b, *, by=2):
    b[0] = by


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(
    ("kernel", "arguments", "left"),
    [
        (with_defaults, (B,), "the launch does not give by, more, times; Numba's launches use no"),
        (with_defaults, (B, 2, 3), "the launch does not give times; Numba's launches use no defa"),
        (with_any_number, (B,), "more is a variadic positional parameter, and a launch gives"),
        (with_any_number, (B, 1, 2), "more is a variadic positional parameter"),
        (with_a_keyword, (B,), "by is a keyword-only parameter, and a launch gives positional"),
    ],
)
def test_a_launch_gives_each_parameter_one_argument(kernel, arguments, left, typed) -> None:
    """Numba refuses the launch on a GPU: a signature mismatch."""
    for launch in partial(convlab.simulate, typed=typed), convlab.trace:
        with pytest.raises(TypeError, match=f"^{kernel.py_func.__name__}: {left}"):
            launch(kernel, 1, 1, *arguments)


def test_a_lesson_s_launch_that_lacks_an_argument_is_told(monkeypatch, capsys) -> None:
    monkeypatch.setattr(exercises, "choose", lambda: choose("simulator"))
    exercises.run(same_body, 1, 1, 1)
    exercises.run(with_defaults, 1, 1, B)
    told = capsys.readouterr().out
    assert "same_body: the launch does not give other, b\n" in told
    assert "with_defaults: the launch does not give by, more, times; Numba's" in told


def test_a_launch_of_convlab_s_own_may_keep_defaults() -> None:
    """As a stage's launch without a residual does. By Numba's types the product is a float64."""
    got = np.zeros(32)
    Simulator(typed=True).launch(with_defaults, 1, 32, got)
    np.testing.assert_array_equal(got, np.arange(32) * float(FACTOR))
    step = Launch(with_defaults, grid=(1,), block=(32,), arguments=("output",))
    (store,) = trace_launch(step, [got]).of("b")
    assert store.lanes == 32
