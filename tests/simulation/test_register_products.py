"""Products of warpgroups with the matrix on the left in registers: results compared with NumPy, the
findings of wrong kernels, and pairs of 16-bit numbers."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest
from kernels.cases import Case, findings_of
from kernels.copy_engine import BFLOAT16, FLOAT16
from kernels.register_products import (
    REGISTERS,
    START,
    WRONG,
    arguments_of,
    make_multiply,
    product_of,
)
from numba.cuda import types as numba_types
from numba.cuda.core import config

from convlab.ladder.stage import Launch
from convlab.running.engines.cudasim import CudaSim
from convlab.running.engines.simulator import SimulationError, Simulator

strict = pytest.mark.same_in_cudasim  # only the strict simulator is asked
F32 = numba_types.float32
KINDS = pytest.mark.parametrize(("dtype", "terms"), [(FLOAT16, 64), (BFLOAT16, 64), (FLOAT16, 32)])


@strict
@KINDS
def test_a_product_from_registers_is_numpy_s(dtype: str, terms: int) -> None:
    arguments = arguments_of(dtype)
    Simulator().launch(make_multiply(dtype, terms), 1, 256, *arguments)
    expected = product_of(arguments, dtype, terms)
    np.testing.assert_allclose(arguments[-1], expected, rtol=1e-4, atol=1e-4)


def test_numba_s_simulator_and_cudasim_multiply_the_same() -> None:
    arguments = arguments_of(BFLOAT16)
    kernel = make_multiply(BFLOAT16, 64)
    if config.ENABLE_CUDASIM:
        kernel[1, 256](*arguments)
    else:
        CudaSim().run(Launch(kernel, (1,), (256,), ("", "", "")), arguments)
    expected = product_of(arguments, BFLOAT16, 64)
    np.testing.assert_allclose(arguments[-1], expected, rtol=1e-4, atol=1e-4)


@strict
def test_the_right_kernel_gets_no_finding() -> None:
    assert REGISTERS.result is not None
    expected = REGISTERS.result(REGISTERS.arguments())
    for engine in (Simulator(typed=True), Simulator(strict=False)):
        np.testing.assert_allclose(REGISTERS.launch(engine)[-1], expected, rtol=1e-4, atol=1e-4)


@strict
@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_a_wrong_kernel_gets_its_finding(case: Case) -> None:
    source = linecache.getlines(case.kernel.py_func.__code__.co_filename)
    named = {(f.kind, line) for f in findings_of(case) for line in (f.line, f.other_line)}
    assert any(kind == case.kind and line and case.line in source[line - 1] for kind, line in named)


@strict
@pytest.mark.parametrize(
    ("name", "edits", "says"),
    [
        ("a_word_overwritten", {"wait_products(D, 4, 1)": "pass"},
         "A was written to while a product of it was in flight"),
        ("too_few_words", {START: "start_product_f16_registers(D, 0, A, S, 0, 8, 32)"},
         "A must be a local array of 8 uint32"),
        ("no_such_terms", {START: "start_product_f16_registers(D, 0, A, S, 0, 8, 8)"},
         "TERMS is 8: it must be a multiple of 16, up to 64"),
        ("an_odd_pair", {"S[t] = uint16(0)": "A[1] = load_pair(S, t)"}, "misaligned"),
        ("barrier_without_number", {"fence_shared()": "sync_threads_of(t // 128, 128)"},
         "number is 0: it must be from 1 to 15"),
    ],
)  # fmt: skip
def test_what_is_refused(name: str, edits: Any, says: str) -> None:
    with pytest.raises((SimulationError, RuntimeError, TypeError, ValueError), match=says):
        REGISTERS.edited(name, edits).launch(Simulator())


@pytest.mark.gate
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_products_compile(dtype: str) -> None:
    from convlab.running.engines.disassembly import opcodes_of
    from convlab.running.engines.kernels import compile_kernel

    types = tuple(numba_types.Array(numba_types.uint16, 2, "C") for _ in "ab")
    kernel = make_multiply(dtype, 32)
    cubin = compile_kernel(kernel, (*types, numba_types.Array(F32, 2, "C")), (9, 0))
    assert (cubin.stack_bytes, cubin.spill_bytes) == (0, 0)
    opcodes = opcodes_of(cubin)
    assert sum(count for name, count in opcodes.items() if name.startswith("HGMMA")) == 6


@pytest.mark.gate
def test_wrong_kernels_compile() -> None:
    """A wrong kernel is one that a GPU would run."""
    from convlab.running.engines.kernels import compile_kernel

    types = (numba_types.uint32, 2), (numba_types.uint16, 1), (F32, 2)
    arrays = tuple(numba_types.Array(dtype, ndim, "C") for dtype, ndim in types)
    for case in (REGISTERS, *WRONG):
        compile_kernel(case.kernel, arrays, (9, 0))
