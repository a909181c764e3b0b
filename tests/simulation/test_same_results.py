"""Both engines compute the same numbers, to the last digit and to the sign of zero.

Launches of one kernel may run on either. Special values and random ones of every size are tried.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
from numba import cuda, int32

import convlab
from convlab.simulation.compiled import compiled_run, engine_choice, kernel_history
from convlab.simulation.compiled.engine_choice import Limits
from convlab.simulation.compiled.refused import NeedsGreenlets

pytestmark = pytest.mark.same_in_cudasim

F, D = np.float32, np.float64
THREADS = 64
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 0.5, -0.5, 1.0, -1.0, 1.5, 2.0, 2.5, -2.5, 3.0]
BORDERS = [1e-3, 34.9, 35.1, -34.5, 88.7, -103.5, 170.5, 709.5, 2.0**31, 2.0**63, -(2.0**63), 1e30]


@pytest.fixture(autouse=True)
def _no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_history, "histories", kernel_history.Histories())
    monkeypatch.setattr(engine_choice, "say", lambda line: pytest.fail(line))


def floats(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of numbers: all pairs of special ones, and random ones of every size."""
    limits, random = np.finfo(dtype), np.random.default_rng(7)
    least = [limits.tiny, limits.smallest_subnormal, limits.max]
    special = np.array([*SPECIAL, *BORDERS, *least, *map(operator.neg, least)], dtype)
    size = 10.0 ** random.uniform(-5, 3, 1500)
    usual = np.concatenate([random.standard_normal(1500) * size, random.uniform(-1, 1, 1500)])
    usual[::9] = np.round(usual[::9] * 2) / 2  # halves
    ones, others = (part.ravel() for part in np.meshgrid(special, special))
    mixed = random.permutation(usual)
    return (
        np.concatenate([ones, usual.astype(dtype)]),
        np.concatenate([others, mixed.astype(dtype)]),
    )


def integers(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of integers, most of them small."""
    limits, random = np.iinfo(dtype), np.random.default_rng(7)
    low = max(limits.min, -20)
    numbers = random.integers(low, 20, 1500).astype(dtype)
    numbers[::3] = random.integers(limits.min, limits.max, 500, dtype=dtype, endpoint=True)
    return numbers, random.permutation(numbers)


def agree(kernel: Any, rows: int, x: np.ndarray, y: np.ndarray, result: Any) -> None:
    """Hold a kernel's rows of results to each other, as both engines compute them."""
    found = []
    for seconds in math.inf, 0.0:
        out = np.zeros((rows, x.size), result)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_choice, "limits", Limits.all_at(seconds))
            patch.setattr(compiled_run, "CompiledRun", noted := _noting(compiled_run.CompiledRun))
            convlab.simulate(kernel, -(-x.size // THREADS), THREADS, x, y, out)
        assert noted.runs == (not seconds)
        found.append(out)
    usual, compiled = found
    for row in range(rows):
        one, other = (_parts(out[row]) for out in (usual, compiled))
        wrong = (one != other) & ~((one != one) & (other != other))
        if one.dtype.kind == "f":
            wrong |= (np.signbit(one) != np.signbit(other)) & (one == one)
        at = np.flatnonzero(wrong)[:3]
        assert not at.size, f"row {row}: {x[at % x.size]}, {y[at % x.size]}: {one[at]}, {other[at]}"


def _parts(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind != "c":
        return values
    return np.concatenate([values.real, values.imag])


def _noting(original: Any) -> Any:
    class Noting(original):
        runs = 0

        def run(self) -> None:
            try:
                super().run()
            except NeedsGreenlets as why:
                pytest.fail(str(why))
            Noting.runs += 1

    return Noting


@cuda.jit
def of_one_number(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        a = x[i]
        out[0, i] = math.acos(a)
        out[1, i] = math.acosh(a)
        out[2, i] = math.asin(a)
        out[3, i] = math.asinh(a)
        out[4, i] = math.atan(a)
        out[5, i] = math.atanh(a)
        out[6, i] = math.cos(a)
        out[7, i] = math.cosh(a)
        out[8, i] = math.degrees(a)
        out[9, i] = math.erf(a)
        out[10, i] = math.erfc(a)
        out[11, i] = math.exp(a)
        out[12, i] = math.expm1(a)
        out[13, i] = math.gamma(a)
        out[14, i] = math.lgamma(a)
        out[15, i] = math.log(a)
        out[16, i] = math.log10(a)
        out[17, i] = math.log1p(a)
        out[18, i] = math.log2(a)
        out[19, i] = math.radians(a)
        out[20, i] = math.sin(a)
        out[21, i] = math.sinh(a)
        out[22, i] = math.sqrt(a)
        out[23, i] = math.tan(a)
        out[24, i] = math.tanh(a)
        out[25, i] = math.fabs(a)
        out[26, i] = abs(a)


@cuda.jit
def of_one_float(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        a = x[i]
        out[0, i] = math.ceil(a)
        out[1, i] = math.floor(a)
        out[2, i] = math.trunc(a)
        out[3, i] = math.frexp(a)[0]
        out[4, i] = math.frexp(a)[1]
        out[5, i] = math.ldexp(a, int32(3))
        out[6, i] = math.modf(a)[0]
        out[7, i] = math.modf(a)[1]
        out[8, i] = round(a)
        out[9, i] = int(a)
        out[10, i] = np.arccos(a)
        out[11, i] = np.arcsinh(a)
        out[12, i] = np.arctan(a)
        out[13, i] = np.cos(a)
        out[14, i] = np.deg2rad(a)
        out[15, i] = np.log(a)
        out[16, i] = np.log2(a)
        out[17, i] = np.sin(a)
        out[18, i] = np.sinh(a)
        out[19, i] = np.tan(a)
        out[20, i] = np.tanh(a)
        out[21, i] = math.floor(a) * 2


@cuda.jit
def of_two_numbers(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        a = x[i]
        b = y[i]
        out[0, i] = math.atan2(a, b)
        out[1, i] = math.copysign(a, b)
        out[2, i] = math.fmod(a, b)
        out[3, i] = math.hypot(a, b)
        out[4, i] = math.nextafter(a, b)
        out[5, i] = math.pow(a, b)
        out[6, i] = math.remainder(a, b)
        out[7, i] = np.arctan2(a, b)
        out[8, i] = max(a, b)
        out[9, i] = min(a, b)
        out[10, i] = a // (b + 0.5)
        out[11, i] = a % (b + 0.5)


@cuda.jit
def of_two_floats(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        a = x[i]
        b = y[i]
        out[0, i] = a // b
        out[1, i] = a % b
        out[2, i] = divmod(a, b)[0]
        out[3, i] = divmod(a, b)[1]
        out[4, i] = a / b
        out[5, i] = a * b + a
        out[6, i] = a - b
        a //= b
        out[7, i] = a
        b %= x[i]
        out[8, i] = b


@cuda.jit
def powers(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        a = x[i]
        out[0, i] = a ** y[i]
        out[1, i] = a**2
        out[2, i] = a**3
        out[3, i] = a**17
        out[4, i] = a**0.5
        out[5, i] = a**-1
        out[6, i] = a**-3
        out[7, i] = 2.0 ** y[i]
        out[8, i] = pow(a, y[i])
        out[9, i] = pow(a, 5)
        out[10, i] = math.pow(a, 3)
        a **= 5
        out[11, i] = a
        out[12, i] = x[i]
        out[12, i] **= 3
        out[13, i] = x[i]
        out[13, i] **= 2.5


@cuda.jit
def casts(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = int(x[i])
        out[1, i] = np.int64(x[i])
        out[2, i] = np.int32(x[i])
        out[3, i] = np.int16(x[i])
        out[4, i] = round(x[i])
        out[5, i] = x[i]
        out[6, i] = np.int8(x[i])


@cuda.jit
def fused(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = cuda.fma(x[i], y[i], x[i])


@cuda.jit
def of_complex(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        a = x[i]
        b = y[i]
        out[0, i] = a * b
        out[1, i] = a + b
        out[2, i] = a - b
        out[3, i] = a / (b + 3.0)
        out[4, i] = abs(a) * b
        out[5, i] = a.conjugate() * 2.0


def mixed(one: Any, other: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of a number of one type and a number of another."""
    first, second = (
        (floats if np.dtype(kind).kind == "f" else integers)(kind)[0] for kind in (one, other)
    )
    count = min(first.size, second.size)
    return first[-count:], second[-count:]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [F, D, np.int32, np.uint64], ids=lambda one: one.__name__)
def test_functions_of_one_number(dtype):
    x, y = floats(dtype) if dtype in (F, D) else integers(dtype)
    agree(of_one_number, 27, x, y, F if dtype == F else D)
    if dtype in (F, D):
        agree(of_one_float, 22, x, y, dtype)
        agree(casts, 7, x, y, np.int64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [F, D], ids=lambda one: one.__name__)
def test_functions_of_two_floats(dtype):
    x, y = floats(dtype)
    agree(of_two_numbers, 12, x, y, dtype)
    agree(of_two_floats, 9, x, y, dtype)
    agree(powers, 14, x, y, dtype)


def test_fused_multiply_adds_of_float64():
    x, y = floats(D)
    agree(fused, 1, x, y, D)


KINDS = [(F, np.int32), (F, np.int8), (F, np.int64), (F, D), (D, np.uint32), (np.int32, np.int32)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"), KINDS, ids=[f"{one.__name__}-{other.__name__}" for one, other in KINDS]
)
def test_functions_of_numbers_of_two_types(one, other):
    x, y = mixed(one, other)
    agree(of_two_numbers, 12, x, y, D)
    if one != np.int32:
        agree(powers, 14, x, y, D)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128], ids=lambda one: one.__name__)
def test_complex_numbers(dtype):
    random = np.random.default_rng(7)
    parts = random.standard_normal((4, 3000))
    x, y = (parts[:2] + 1j * parts[2:]).astype(dtype)
    agree(of_complex, 6, x, y, dtype)
