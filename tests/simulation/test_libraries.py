"""Engine ``simulator``: ``cuda.fp16``, ``cuda.bf16``, ``libdevice`` and the vector types."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda, float32, float64
from numba.cuda import bf16, libdevice
from numba.cuda.core import config
from numba.cuda.libdevicefuncs import functions

from convlab.running.engines.simulator import Simulator
from convlab.simulation.language.libdevice import of_libdevice
from convlab.simulation.language.libraries import of_bfloat16
from convlab.simulation.numbers.bfloat16 import BFloat16, rounded

F = np.float32

has_bf16 = pytest.mark.skipif(
    config.ENABLE_CUDASIM, reason="in a process of Numba's simulator numba.cuda.bf16 is empty"
)


def run(kernel: Any, *arguments: Any) -> Any:
    """The last argument after one thread has run it."""
    Simulator().launch(kernel, 1, 1, *arguments)
    return arguments[-1]


@cuda.jit
def float16s(a, b):
    x, y = a[0], a[1]
    b[0] = cuda.fp16.hadd(x, y)
    b[1] = cuda.fp16.hfma(x, y, y)
    b[2] = cuda.fp16.hdiv(x, 0)
    b[3] = cuda.fp16.hfloor(y) + cuda.fp16.hmax(x, y)
    b[4] = cuda.fp16.hlt(x, y)
    b[5] = cuda.fp16.hrint(cuda.fp16.hexp2(y))


def test_float16_is_rounded() -> None:
    a = np.array([2049 / 2048, -1.75])
    half, minus = F(np.float16(a[0])), F(-1.75)
    rounded = [np.float16(half + minus), np.float16(half * minus + minus), np.inf, -2 + half, 0, 0]
    assert run(float16s, a, np.zeros(6)).tolist() == [float(one) for one in rounded]


@cuda.jit
def libdevices(a, b):
    b[0], b[1] = libdevice.sincosf(a[0])
    b[2] = libdevice.fast_expf(a[0])
    b[3] = libdevice.float2int_rd(-1.5) + libdevice.double2uint_rn(3e9)
    b[4] = libdevice.clz(1) + libdevice.clzll(1) + libdevice.popc(-1) + libdevice.ffs(0)
    b[5] = libdevice.umulhi(-1, -1) + libdevice.mulhi(-1, 1)
    b[6] = libdevice.int_as_float(libdevice.float_as_int(1.1))
    b[7] = libdevice.rsqrt(0.0) + libdevice.fmin(float64(np.nan), 2.0)
    b[8] = libdevice.fadd_rn(1.0, 2.0**-25) + libdevice.dadd_rn(1.0, 2.0**-25)
    b[9] = libdevice.hiloint2double(libdevice.double2hiint(a[0]), libdevice.double2loint(a[0]))
    b[10] = libdevice.round(-2.5) + libdevice.rint(2.5) + libdevice.saturatef(3.0)


def test_functions_of_libdevice_have_their_types() -> None:
    a = F(0.7)
    expected = [np.sin(a), np.cos(a), np.exp(a), -2 + 3_000_000_000, 31 + 63 + 32, -3]
    expected += [F(1.1), np.inf, 2 + 2.0**-25, 0.7, -3 + 2 + 1]
    b = run(libdevices, np.array([0.7]), np.zeros(11))
    np.testing.assert_allclose(b, expected, 1e-7)


@cuda.jit
def vectors(b):
    v = cuda.float32x4(cuda.float2(0.1, 2), 3, cuda.int8x1(257))
    b[0], b[1], b[2], b[3] = v.x, v.y, v.z, v.w
    v.x = 5
    b[4] = v.x


@cuda.jit
def vector_too_long(b):
    b[0] = cuda.float32x3(1, 2).x


@cuda.jit
def vector_without(b):
    b[0] = cuda.float32x2(1, 2).z


def test_vector_types() -> None:
    assert run(vectors, np.zeros(5)).tolist() == [F(0.1), 2, 3, 1, 5]
    with pytest.raises(TypeError, match="float32x3 is made of 3 numbers, not of 2"):
        run(vector_too_long, np.zeros(1))
    with pytest.raises(AttributeError, match="float32x2 has no z"):
        run(vector_without, np.zeros(1))


def test_every_function_of_libdevice_is_known() -> None:
    assert [name for name in functions if of_libdevice(name.removeprefix("__nv_")) is None] == []


@has_bf16
def test_every_function_of_bf16_is_known() -> None:
    public = [name for name in dir(bf16) if callable(getattr(bf16, name)) and name[0] != "_"]
    ours = {name for name in public if name != "overload" and not name.endswith("_ol")}
    assert len(ours) > 100
    assert [name for name in ours if of_bfloat16(name) is None] == []


@given(st.floats(width=64, allow_nan=False), st.sampled_from(["float16", "float32"]))
def test_numbers_are_rounded_in_every_direction(value: float, kind: str) -> None:
    with np.errstate(over="ignore"):
        nearest = float(np.dtype(kind).type(value))
    assert rounded(value, kind) == nearest
    down, up, inward = (rounded(value, kind, direction) for direction in ("rd", "ru", "rz"))
    assert down <= value <= up
    assert nearest in (down, up)
    assert inward == (down if value > 0 else up)
    with np.errstate(over="ignore"):
        next_up = np.nextafter(np.dtype(kind).type(down), np.dtype(kind).type(np.inf))
    assert up in (down, next_up)
    if np.isfinite(value):
        assert rounded(Fraction(value), kind, "rd") == down


DIRECTED = [
    ("dadd_rd", (1.0, 1e-30), 1.0),
    ("dadd_ru", (1.0, 1e-30), 1 + 2.0**-52),
    ("fsqrt_ru", (2.0,), np.nextafter(F(2) ** F(0.5), F(2))),
    ("fdiv_rd", (1.0, 0.0), np.inf),
    ("drcp_rz", (3.0,), 1 / 3),
    ("fma_rn", (1 + 2.0**-52, 1 - 2.0**-52, -1.0), -(2.0**-104)),
    ("int2float_rd", (16777217,), 16777216),
    ("ull2double_ru", (-1,), 2.0**64),
    ("double2float_rz", (1e300,), np.finfo(F).max),
    ("byte_perm", (0x332211F0, 0x77665544, 0x8088), -0xF0001),
    ("remquo", (5.0, 3.0), (-1.0, 2)),
    ("half2float", (0x3C00,), 1),
    ("jn", (2, 1.0), 0.11490348493190049),
    ("normcdfinv", (0.5,), 0),
]


@pytest.mark.parametrize(("name", "values", "expected"), DIRECTED, ids=lambda one: str(one)[:12])
def test_a_function_of_libdevice(name: str, values: Any, expected: Any) -> None:
    found = of_libdevice(name)
    assert found is not None
    assert found(*values) == pytest.approx(expected, rel=1e-15)


@cuda.jit
def brain_floats(b):
    x, y = bf16.bfloat16(1.7), cuda.bfloat16(2.3)
    b[0], b[1], b[2] = float32(x), x * y, bf16.hfma(x, y, y)
    b[3], b[4] = bf16.hadd_sat(x, y), bf16.bfloat16_to_int32_ru(x)
    b[5] = bf16.heq(x, x) + bf16.hneu(x, bf16.bfloat16(float32(np.nan)))
    b[6], b[7] = bf16.bfloat16_as_int16(x), bf16.float32_to_bfloat16_rd(1.7)
    b[8] = isinstance(x + y, bf16.bfloat16)


def test_bfloat16_is_rounded_once() -> None:
    """Rounded to float32 first, the number would be a tie and become 1."""
    assert BFloat16(1 + 2**-8 + 2**-52) == 1 + 2**-7


@has_bf16
def test_bfloat16_is_rounded() -> None:
    expected = [1.703125, 3.90625, 6.21875, 1, 2, 2, 0x3FDA, 1.6953125, 1]
    assert run(brain_floats, np.zeros(9)).tolist() == expected
