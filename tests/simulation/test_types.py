"""Registers have Numba's types: what Numba's own compiler computes is what a simulated kernel
computes, and what its type inference refuses is refused."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.cases import kernel_function
from kernels.typed import RIGHT, WRONG
from numba import cuda, float32, float64, int8, int32, int64, uint8, uint32, uint64  # noqa: F401
from numba.cuda.core.errors import TypingError
from numba.cuda.types import float16  # noqa: F401

from convlab.running.engines.simulator import Simulator
from convlab.simulation.host.programs import UntypedRegisters, simulate, simulator
from convlab.simulation.rules.findings import NotSimulated

TYPED = Simulator(typed=True)
NAMES = {"int32": "i", "uint32": "u", "int64": "l", "uint64": "v", "float32": "f", "float64": "d"}
GIVEN = {
    "int32": [-(2**31), -7, 0, 3, 2**31 - 1],
    "uint32": [0, 1, 5, 2**31, 2**32 - 1],
    "int64": [-(2**61), -5, 0, 12, 2**61 - 1],
    "uint64": [0, 1, 9, 2**63, 2**64 - 1],
    "float32": [-2.5, -0.0, 0.0, 0.1, 3e38, np.inf, np.nan],
    "float64": [-1.7, 0.0, 1e-3, 1e300, 3.0],
}


@cuda.jit(device=True)
def halved(n: int) -> float:
    return n / 2


@cuda.jit(device=True)
def summed(n: int, x: float) -> float:
    return 1 if n <= 0 else summed(n - 1, x * 0.5) + x


def function_of(lines: list[str], arguments: str) -> Any:
    """A function of that source, with the globals of this file."""
    return kernel_function("f", arguments, lines, function_of)


LEAVES = st.sampled_from([*NAMES.values(), "2", "3", "-1", "0.5", "b", "2**40", "7.0"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    casts = st.sampled_from(["int64", "int32", "uint32", "uint8", "int8"])
    named = st.sampled_from(["i", "u", "l", "v", "3", "b"])
    whole = st.builds("{}({})".format, casts, named)

    def filled(inner: st.SearchStrategy[str], *patterns: str) -> list[st.SearchStrategy[str]]:
        return [st.builds(pattern.format, inner, inner) for pattern in patterns]

    return st.one_of(
        *filled(inner, *(f"({{}} {sign} {{}})" for sign in ("+", "-", "*", "/", "<", "==", ">="))),
        *filled(inner, "({} // ({} + 0.5))", "({} % ({} + 0.5))", "(-{0})", "float32({0})"),
        *filled(inner, "float64({0} - {1})", "abs({0})", "({0} if {1} > 1 else 3)"),
        whole,
        *filled(whole, *(f"({{}} {sign} {{}})" for sign in ("&", "|", "^", "+", "*", "-"))),
        *filled(whole, "({} << ({} & 15))", "({} >> ({} & 15))", "({} // ({} | 1))"),
        *filled(whole, "({} % ({} | 1))"),
        whole.map("(~{})".format),
        whole.map("({} ** 2)".format),
    )


EXPRESSIONS = st.recursive(LEAVES, _larger, max_leaves=6)


@pytest.mark.slow
@pytest.mark.same_in_cudasim  # what a GPU computes, below, is asked there too
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    lines=st.lists(EXPRESSIONS, min_size=12, max_size=12),
    values=st.tuples(*(st.sampled_from(values) for values in GIVEN.values())),
    flag=st.booleans(),
)
def test_numbas_own_results(lines: list[str], values: tuple[Any, ...], flag: bool) -> None:
    arrays = [np.array([v], kind) for v, kind in zip(values, GIVEN, strict=True)]
    arrays.append(np.array([flag]))
    names = [*NAMES.values(), "b"]
    loads = [f"{name} = {name}_[0]" for name in names]
    parameters = ", ".join(f"{name}_" for name in names)
    known = [f"x{n} = {line}" for n, line in enumerate(lines)]
    results = ", ".join(f"x{n}" for n in range(len(lines)))
    of_cpu = numba.njit(error_model="numpy")(
        function_of([*loads, *known, f"return ({results},)"], parameters)
    )
    right = of_cpu(*arrays)
    kinds = map(numba.types.unliteral, of_cpu.nopython_signatures[0].return_type.types)
    outs = [np.zeros(1, str(kind)) for kind in kinds]
    stores = [f"o{n}[0] = x{n}" for n in range(len(lines))]
    out_names = ", ".join(f"o{n}" for n in range(len(lines)))
    kernel = cuda.jit(function_of([*loads, *known, *stores], f"{parameters}, {out_names}"))
    TYPED.launch(kernel, 1, 1, *arrays, *outs)
    for line, want, out in zip(lines, right, outs, strict=True):
        wanted = np.array([want], out.dtype)
        same = out.tobytes() == wanted.tobytes() or (out != out and wanted != wanted)
        assert same, f"{line} of {dict(zip(names, (*values, flag), strict=True))}: {out} {wanted}"


READ = {
    **{"i": np.int32(-7), "u": np.uint32(5), "l": np.int64(2**40 + 3), "v": np.uint64(9)},
    **{"f": np.float32(0.1), "d": np.float64(0.1), "c": np.int8(-3), "w": np.uint8(250)},
    **{"zero": np.int64(0), "h": np.float16(2048)},
}


@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_what_a_gpu_computes(name: str) -> None:
    text, right, *meant = (WRONG | RIGHT)[name]
    assert meant != [right]
    lines, kind = text.split("\n"), np.asarray(right).dtype
    if not {"cuda", "float16", "h"} & {*function_of(lines, "").__code__.co_names}:
        *names, _ = READ  # Numba has no float16 on a CPU
        of_cpu = numba.njit(error_model="numpy")(
            function_of([*lines, "return x"], ", ".join(names))
        )
        assert of_cpu(*(READ[one] for one in names)) == right
        kind = np.dtype(str(numba.types.unliteral(of_cpu.nopython_signatures[0].return_type)))
    loads = [f"{one} = {one}_[0]" for one in READ]
    store = ["if cuda.threadIdx.x == 0: out[0] = x"]
    names = ", ".join(f"{one}_" for one in READ)
    kernel = cuda.jit(function_of([*loads, *lines, *store], f"{names}, out"))
    out = np.zeros(1, kind)
    TYPED.launch(kernel, 1, 32, *(np.array([value]) for value in READ.values()), out)
    assert out[0] == np.array(right).astype(kind)


def launched(*lines: str) -> np.ndarray:
    a = np.array([1.5, 0.1, 3, 0], np.float32)
    TYPED.launch(cuda.jit(function_of([*lines], "a")), 1, 1, a)
    return a


@cuda.jit
def kept(a, b):  # what `h` holds is a float64, as Numba has no integer type of both
    h = a[0]
    if a[0] == 1:
        h = 0
    b[0] = h


def test_an_integer_in_a_variable_of_type_float64_is_rounded() -> None:
    out = np.zeros(1, np.uint64)
    simulate(kept, 1, 1, np.array([2**60 + 1], np.uint64), out)
    assert out == 2**60


def test_a_kernel_keeps_the_constants_of_its_first_launch() -> None:
    table, factor = np.array([2.0]), 3

    def function(a, b):
        b[0] = table[0] * factor * a[0]

    scaled = cuda.jit(function)

    def result(one: Any) -> float:
        out = np.zeros(1)
        simulate(scaled, 1, 1, np.array([one]), out)
        return float(out[0])

    assert result(1.0) == 6
    table[0], factor = 5.0, 7
    assert result(1.0) == 6
    assert result(1) == 35  # compiled for other types
    scaled = cuda.jit(function)  # another kernel
    assert result(1.0) == 35


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("cuda.popc(int32(-1)) + cuda.popc(-1)", 96),
        ("cuda.clz(uint32(1)) + cuda.clz(uint64(1))", 94),
        ("cuda.brev(uint32(1)) / 2**31", 1),
        ("cuda.ffs(8)", 4),
        ("cuda.ballot_sync(0xFFFFFFFF, True)", 1),
    ],
)
def test_bits_by_width(expression: str, value: int) -> None:
    assert launched(f"a[0] = {expression}")[0] == value


REFUSED = {
    "x = [1, 2]; a[0] = x[0]": "a list",
    "x = [i for i in range(3)]": "a list",
    "x = {1: 2}; a[0] = x[1]": "a dict",
    "s = cuda.shared.array(int(a[0]), float32); s[0] = 1": "run time",
    "s = cuda.local.array(len(a), float32); s[0] = 1": "run time",
    "return a[0]": "returns nothing",
    "yield a[0]": "generator",
    "x = np.zeros(3); a[0] = x[0]": "np.zeros",
    "a[:] = np.sort(a)": "np.sort",
    "a[0] = np.dot(a, a)": "np.dot",
    # Numba's own norm has an assert, which numba-cuda 0.30 does not compile with Python 3.14.
    "a[0] = np.linalg.norm(a)": "(np.linalg.norm|LOAD_COMMON_CONSTANT)",
    "a[0] = np.random.rand()": "np.random, which no kernel can call",
    "x = dict(); a[0] = 1": "Untyped global name 'dict'",
    "s = cuda.local.array((2, int(a[0])), float32); s[0, 0] = 1": "run time",
    "a[0] = a.nope": "Unknown attribute 'nope'",
    "if a[0] > 0: x = 1\nelse: x = (1, 2)\na[0] = x[0]": "Cannot unify",
    "x = 'a' + str(int(a[0])); a[0] = len(x)": "str",
    "open('x')": "open",
    "a[0] = (1 << 40) << 30": "too large",
    "a[0] = np.sqrt(a[1])": "np.sqrt, which no kernel can call",
    "a[:] = a + 1": "an array, for which a kernel has no memory",
    "a[:2] = a[2:]": "an array, for which a kernel has no memory",
    "a[a > 1] = 0": "an array, for which a kernel has no memory",
    "a[0] = math.comb(5, 2)": "Unknown attribute 'comb'",
    "a[0] = halved(3, 4)": "halved does not take",
    "a[0] = summed(3, 1)": r"a call of itself with \(int64, float64\) in one with",
    "a[0] = max(a[0], a[1], key=abs)": "AssertionError",
    "a[0] = float32(1j)": "Cannot cast complex128 to float32",
    "a[0] = 1j": r"there is no setitem\(array\(float32, 1d, C\), .*complex128\)",
    "a[0] = (1, 2.5)[cuda.laneid]": "there is no getitem",
    "a[0, 1] = 1": "there is no setitem",
    "if a: a[0] = 1": "there is no bool",
    "a[::2].reshape(2, 1)[0, 0] = 1": "contiguous array only",
    "cuda.atomic.add(a.view(np.int16), 0, 1)": "there is no add",
    "a[0] = nowhere": "NameError",
    "a[0] = cuda.threadIdx.w": "Unknown attribute 'w'",
}


def test_a_note_says_where_types_are_not_known() -> None:
    namespace: dict[str, Any] = {}
    # Not "<string>", which for Python 3.13 is the text of ``python -c``.
    exec(compile("def kernel(a):\n a[0] += 120", "<nowhere>", "exec"), namespace)
    kernel = cuda.jit(namespace["kernel"])
    a = np.zeros(1)
    with pytest.warns(UntypedRegisters, match="kernel ran without Numba's types: kernel: "):
        simulate(kernel, 1, 1, a)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", pytest.fail)
        simulate(kernel, 1, 1, a, typed=False)
    with simulator() as report:
        kernel[1, 1](a)
    assert a[0] == 360
    assert ["could not get source code" in one for one in report.notes] == [True]


def test_constants_and_lambdas_of_device_functions_and_declared_types() -> None:
    @cuda.jit(device=True)
    def filled(a, n, function):
        s = cuda.shared.array(n, float32)
        s[0] = function(a[0], n)
        a[0] = s[0]

    @cuda.jit
    def constant(a):
        filled(a, 32, times)

    a = np.full(1, 0.1, np.float32)
    times = cuda.jit(device=True)(lambda x, n: x * n / n)
    simulate(constant, 1, 1, a)
    assert a[0] == np.float32(0.1)
    with simulator():
        clz = cuda.jit("void(float32[:], int32)")(function_of(["a[0] = cuda.clz(n)"], "a, n"))
        clz[1, 1](a, 1)
        vote = function_of(["a[0] = cuda.all_sync(a[0], 1)"], "a")
        told = r"all_sync\(float32, .*: Mask type must be an integer"
        for error in (TypingError, numba.errors.TypingError):  # programs catch the one or the other
            with pytest.raises(error, match=told):
                cuda.jit("void(float32[:])")(vote)  # as it is compiled on a GPU: before any launch
    assert a[0] == 31


def test_imported_names_may_be_variables_around_a_kernel_and_parameters() -> None:
    """Python compiles ``cuda.grid(1)`` in another way if the module imports ``cuda``."""

    def made(cuda, math):
        def kernel(np, a):
            i = cuda.grid(1)
            if i < a.size:
                a[i] = math.sqrt(i) + np.sum()

        return kernel

    a = np.zeros(4, np.float32)
    with simulator() as report:
        cuda.jit(made(cuda, math))[1, 32](np.ones(2), a)
    assert report.notes == []
    np.testing.assert_array_equal(a, np.sqrt(np.arange(4, dtype=np.float32)) + 2)


@pytest.mark.parametrize("typed", [True, False])
def test_two_lambdas_of_one_line_are_two(typed: bool) -> None:
    one, two = (cuda.jit(device=True)(f) for f in (lambda x: x + 1, lambda x: x + 2))

    @cuda.jit
    def both(a):
        a[0], a[1] = one(a[0]), two(a[1])

    a = np.zeros(2)
    simulate(both, 1, 1, a, typed=typed)
    assert a.tolist() == [1, 2]


def test_unsigned_by_signed_of_64_bits_is_signed() -> None:
    """The result is the one that an H100 computed for ``h % 23``; NumPy has it unsigned."""
    key, a = np.array([3], np.uint64), np.zeros(2, np.int64)
    hashed = ["h = b[0] * uint64(0x9E3779B97F4A7C15)", "a[0] = h % 23", "a[1] = h // 23"]
    simulate(cuda.jit(function_of(hashed, "a, b")), 1, 1, a, key)
    signed = 3 * 0x9E3779B97F4A7C15 % 2**64 - 2**64
    assert a.tolist() == [signed % 23, signed // 23]


@pytest.mark.parametrize(
    ("x", "y", "total"),
    [(np.float32(1), np.float32(2**-25), 1), (1, 2**-25, 1 + 2**-25), (True, 2**-25, 1 + 2**-25)],
)
def test_the_signature_that_fits_best_gives_the_types(x, y, total) -> None:
    a = np.zeros(1)
    signatures = [f"(float64[:], {kind}, {kind})" for kind in ("boolean", "float32", "float64")]
    with simulator():
        add = cuda.jit(signatures)(function_of(["a[0] = x + y"], "a, x, y"))
        add[1, 1](a, x, y)
    assert a[0] == total
    simulate(add, 1, 1, a, x, y)
    assert a[0] == total


def test_a_device_function_takes_and_gives_what_its_signature_says() -> None:
    a = np.zeros(3)
    with simulator():
        add = cuda.jit("int64(int64, int64)", device=True)(lambda x, y: x + y)
        halves = cuda.jit("int32(int32)", device=True)(lambda x: (x & 255) * 0.5)

        @cuda.jit
        def called(a, x, y):
            a[0], a[1], a[2] = add(x, y), add(y=x, x=y), halves(x)

        called[1, 1](a, 1.5, 2.5)
    assert (a == [3, 3, 0]).all()


def test_a_device_function_with_several_signatures_takes_that_which_fits_best() -> None:
    a = np.zeros(3)
    with simulator():
        signatures = ["int32(int32)", "float32(float32)", "float64(float64)"]
        doubled = cuda.jit(signatures, device=True)(lambda x: x * 2)

        @cuda.jit
        def called(a, small, single, double):
            a[0], a[1], a[2] = doubled(small), doubled(single), doubled(double)

        called[1, 1](a, np.int32(1 << 30), np.float32(0.1), 0.1)
        with pytest.raises(NotSimulated, match="Numba refuses called: No matching definition"):
            called[1, 1](a, 1j, np.float32(0), 0.0)
    assert (a == [-(1 << 31), 2 * float(np.float32(0.1)), 0.2]).all()


def sums_of_parts(inline: str) -> Any:
    """A kernel whose device functions return a local array and a slice. Inside a simulation."""

    @cuda.jit(device=True, inline=inline)
    def one_more(a):
        own = cuda.local.array(3, float32)
        for i in range(3):
            own[i] = a[i] + 1
        return own

    @cuda.jit(device=True, inline=inline)
    def end_of(a):
        return a[2:]

    @cuda.jit
    def kernel(a):
        own, end = one_more(a), end_of(a)
        end[0] = own[0] + own[2]

    return kernel


def test_an_inlined_device_function_returns_an_array_of_its_own() -> None:
    a = np.arange(3, dtype=np.float32)
    with simulator():
        sums_of_parts("always")[1, 1](a)
        assert a.tolist() == [0, 1, 4]
        with pytest.raises(NotSimulated, match=r"of array passed into .*types\.py:"):
            sums_of_parts("never")[1, 1](a)


@pytest.mark.parametrize("typed", [True, False])
def test_a_docstring_of_several_lines_is_the_kernel_s_own(typed: bool) -> None:
    """A nested kernel, whose source is dedented before it is read."""

    @cuda.jit
    def reciprocals(a):
        """The first line.

        Another, indented.
        """
        a[0] = 1 / a[1]

    a = np.array([1.0, 0.0])
    simulate(reciprocals, 1, 1, a, typed=typed)
    assert np.isinf(a[0])


@pytest.mark.parametrize("line", REFUSED)
def test_what_numba_refuses(line: str) -> None:
    places = rf"<f>:[234]|types\.py:{summed.py_func.__code__.co_firstlineno}"
    with pytest.raises(NotSimulated, match=f"Numba refuses f: .*{REFUSED[line]}.*({places})"):
        launched(*line.split("\n"))
