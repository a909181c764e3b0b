"""Hopper's copy engine, barriers in shared memory and products from panels: results compared with
NumPy, the findings of wrong kernels, and machine code for a GPU."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest
from kernels import copy_engine
from kernels.cases import Case, findings_of
from kernels.copy_engine import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    RIGHT,
    WRONG,
    bits_of,
    make_products,
    make_windows,
    numbers_of,
    product_arguments,
    windows_by_numpy,
)
from numba.cuda.core import config

from convlab.device import BoundMap, BoxMap, WindowMap
from convlab.device.panel_products import panel_product, with_swizzle, without_swizzle
from convlab.device.sixteen_bits import bits_of as sixteen_bits_of
from convlab.device.sixteen_bits import number_of
from convlab.ladder.stage import Launch
from convlab.running.engines.cudasim import CudaSim
from convlab.running.engines.simulator import Simulator
from convlab.simulation.launch import analysis
from convlab.simulation.rules.findings import SimulationError
from convlab.tracing import trace

F = np.float32
strict = pytest.mark.same_in_cudasim  # only the strict simulator is asked


# What comes out


@strict
@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.name)
def test_a_right_kernel_gets_no_finding(case: Case, monkeypatch) -> None:
    assert case.result is not None
    expected = case.result(case.arguments())
    for engine, long in (
        (Simulator(typed=True), analysis.LONG), (Simulator(), 0), (Simulator(strict=False), 0),
    ):  # fmt: skip
        monkeypatch.setattr(analysis, "LONG", long)
        np.testing.assert_allclose(case.launch(engine)[-1], expected, rtol=1e-4, atol=1e-4)


def _map(shape: tuple, kernel: tuple, dtype: str = FLOAT16, pixels: int = 16, **more: Any) -> Any:
    usual = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)} | more
    channels = 32 if dtype == FLOAT32 else 64
    return WindowMap(
        "images", shape, kernel, channels=channels, pixels=pixels, dtype=dtype, **usual
    )


WINDOWS = {
    "one element": _map((1, 4, 5, 64), (1, 1)),
    "3 x 3": _map((2, 6, 5, 64), (3, 3)),
    "padding": _map((3, 5, 4, 64), (3, 3), padding=(1, 1)),
    "other padding along H": _map((1, 5, 7, 8), (3, 2), padding=(2, 0)),
    "padding on one side": _map((2, 5, 7, 8), (3, 2), padding=(2, 0), padding_after=(0, 3)),
    "stride": _map((2, 9, 8, 16), (3, 3), stride=(2, 2), padding=(1, 1)),
    "stride that leaves pixels out": _map((2, 8, 10, 8), (2, 3), stride=(3, 4)),
    "dilation": _map((2, 9, 9, 64), (3, 3), dilation=(2, 3), padding=(2, 3)),
    "all at once": _map((2, 11, 9, 24), (3, 2), stride=(2, 1), padding=(1, 2), dilation=(2, 2)),
    "two chunks of channels": _map((1, 4, 4, 72), (2, 2), padding=(1, 1)),
    "few channels": _map((3, 4, 4, 8), (1, 2), stride=(1, 2)),
    "odd sizes": _map((5, 3, 7, 40), (2, 3), padding=(1, 1), pixels=37),
    "float32": _map((2, 5, 5, 36), (3, 3), FLOAT32, padding=(1, 1), stride=(2, 2)),
}


def _windows_arguments(described: WindowMap) -> tuple[list[Any], Any, int]:
    """Return the arguments of ``make_windows``, what it must store, and the copies."""
    kind = np.float32 if described.dtype == FLOAT32 else np.uint16
    images = (np.arange(described.numbers) % 60_000 + 1).astype(kind).reshape(described.shape)
    H_o, W_o = described.windows
    copies = -(-described.shape[0] * H_o * W_o // described.pixels)
    expected = windows_by_numpy(described, images, copies)
    return [BoundMap(described, images), np.zeros_like(expected)], expected, copies


@strict
@pytest.mark.parametrize("described", WINDOWS.values(), ids=WINDOWS)
def test_windows_are_those_of_numpy(described: WindowMap) -> None:
    arguments, expected, copies = _windows_arguments(described)
    Simulator().launch(make_windows(described, copies), 1, 32, *arguments)
    np.testing.assert_array_equal(arguments[-1], expected)


def test_numba_s_simulator_and_cudasim_copy_the_same_windows() -> None:
    described = WINDOWS["all at once"]
    arguments, expected, copies = _windows_arguments(described)
    run_in_threads(make_windows(described, copies), arguments, 32)
    np.testing.assert_array_equal(arguments[-1], expected)


def run_in_threads(kernel: Any, arguments: list, threads: int) -> None:
    """Run a kernel on Numba's simulator where this process has it, else on the engine made of
    it."""
    if config.ENABLE_CUDASIM:
        kernel[1, threads](*arguments)
        return
    names = ("input", "weight", "output") if len(arguments) == 3 else ("input", "output")
    CudaSim().run(Launch(kernel, (1,), (threads,), names), arguments)


PRODUCTS = [
    *((dtype, width, 64, 1) for dtype in (FLOAT16, BFLOAT16) for width in (8, 40, 256)),
    *((FLOAT16, 24, 16, 1), (BFLOAT16, 16, 48, 1), (BFLOAT16, 8, 64, 3)),
    *((FLOAT32, 8, 32, 1), (FLOAT32, 64, 8, 1), (FLOAT32, 24, 32, 2)),
]


def expected_product(arguments: list, terms: int) -> tuple[Any, Any]:
    """Return ``c + a @ b.T`` in float64, and how far from it float32 sums may be."""
    a, b, c = arguments
    row = a.map.box[0]
    left, right = (numbers_of(one.array, one.map.dtype) for one in (a, b))
    if a.map.dtype == FLOAT32:
        left, right = (
            (one.array.view(np.uint32) & 0xFFFFE000).view(F).astype(float) for one in (a, b)
        )
    some = np.arange(left.shape[1]) % row < terms
    left, right = left[:, some], right[:, some]
    bound = 2.0**-20 * (np.abs(left) @ np.abs(right).T + np.abs(c))
    return left @ right.T + c, bound


@strict
@pytest.mark.parametrize(("dtype", "width", "terms", "products"), PRODUCTS)
def test_a_product_of_panels_is_numpy_s(dtype: str, width: int, terms: int, products: int) -> None:
    arguments = product_arguments(dtype, width, terms, products)
    expected, bound = expected_product(arguments, terms)
    Simulator().launch(make_products(dtype, width, terms, products), 1, 128, *arguments)
    assert (np.abs(arguments[-1] - expected) <= bound).all()


@strict
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32])
def test_what_is_not_finite_stays_in_its_row_and_column(dtype: str) -> None:
    kernel = make_products(dtype, 24, 16)
    usual = product_arguments(dtype, 24, 16)
    Simulator().launch(kernel, 1, 128, *usual)
    given = product_arguments(dtype, 24, 16)
    special = bits_of([np.nan, np.inf, -np.inf], dtype)
    given[0].array[2, 5], given[0].array[33, 15], given[1].array[3, 1] = special
    given[0].array[40, 20] = special[0]  # a term that the product leaves out
    Simulator().launch(kernel, 1, 128, *given)
    assert np.isnan(given[-1][2]).all()
    assert np.isinf(given[-1][33, [0, 1, 2, 4]]).all()
    rows, columns = [2, 33], [3]
    given[-1][rows], given[-1][:, columns] = usual[-1][rows], usual[-1][:, columns]
    np.testing.assert_array_equal(given[-1], usual[-1])


def test_numba_s_simulator_and_cudasim_multiply_the_same() -> None:
    arguments = product_arguments(BFLOAT16, 8, 64, 2)
    expected, bound = expected_product(arguments, 64)
    run_in_threads(make_products(BFLOAT16, 8, 64, 2), arguments, 128)
    assert (np.abs(arguments[-1] - expected) <= bound).all()


@pytest.mark.parametrize(
    "name", ["two_in_flight", "two_groups", "roles", "gemm_by_threads", "boxes"]
)
def test_numba_s_simulator_and_cudasim_run_right_kernels(name: str) -> None:
    case = next(case for case in RIGHT if case.name == name)
    arguments = case.arguments()
    assert case.result is not None
    expected = case.result(case.arguments())
    kernel: Any = case.kernel
    if config.ENABLE_CUDASIM:
        kernel[case.grid, case.block](*arguments)
    else:
        names = ("", "", "", "")[: len(arguments)]
        CudaSim().run(Launch(kernel, (case.grid,), (case.block,), names), arguments)
    np.testing.assert_allclose(arguments[-1], expected, rtol=1e-4, atol=1e-4)


@strict
def test_a_swizzled_panel_is_read_back() -> None:
    rows = np.arange(24 * 128, dtype=np.uint16).view(np.uint8)[: 24 * 128].reshape(24, 128)
    memory = with_swizzle(rows)
    np.testing.assert_array_equal(without_swizzle(memory), rows)
    np.testing.assert_array_equal(memory[:128], rows[0])
    np.testing.assert_array_equal(memory[128 : 128 + 16], rows[1, 16:32])  # piece 0 ^ 1
    np.testing.assert_array_equal(memory[8 * 128 : 9 * 128], rows[8])


@strict
def test_a_sum_is_cut_to_float32_after_each_instruction() -> None:
    a, b = np.zeros((64, 64)), np.zeros((8, 64))
    a[:, [0, 16]] = b[:, [0, 16]] = 2.0**-13, 2.0**-13  # 2**-26 each: together no last place of 1
    sums = np.ones((64, 8), F)
    panels = [with_swizzle(bits_of(one, FLOAT16).view(np.uint8)) for one in (a, b)]
    np.testing.assert_array_equal(panel_product("f16", *panels, sums, 64), 1)
    sums[:] = 0
    np.testing.assert_array_equal(panel_product("f16", *panels, sums, 64), 2.0**-25)


@strict
@pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16])
def test_sixteen_bits_are_rounded_to_the_nearest_even(kind: str) -> None:
    random = np.random.default_rng(3)
    numbers = (random.standard_normal(300) * np.exp(random.uniform(-12, 12, 300))).astype(F)
    numbers = np.append(numbers, np.array([0, -0.0, np.inf, -np.inf, 65504, 65519.9], F))
    got = np.array([sixteen_bits_of(number, kind) for number in numbers], np.uint16)
    np.testing.assert_array_equal(got, bits_of(numbers, kind))
    back = [number_of(int(bits), kind) for bits in got]
    np.testing.assert_array_equal(np.array(back), numbers_of(got, kind))
    assert np.isnan(number_of(sixteen_bits_of(np.nan, kind), kind))


# What is found


def lines(findings: Any) -> set:
    return {(f.kind, f.line, f.other_line, f.array) for f in findings}


@strict
@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_a_wrong_kernel_gets_its_finding(case: Case, monkeypatch) -> None:
    found = findings_of(case)
    source = linecache.getlines(case.kernel.py_func.__code__.co_filename)
    named = {(f.kind, line) for f in found for line in (f.line, f.other_line)}
    assert any(kind == case.kind and line and case.line in source[line - 1] for kind, line in named)
    monkeypatch.setattr(analysis, "LONG", 0)  # looked at piece by piece: at every barrier
    with pytest.raises(SimulationError) as caught:
        case.launch(Simulator())
    assert lines(caught.value.findings) == lines(found)
    for finding in caught.value.findings:
        assert finding.kernel == case.name
        assert str(finding) in str(caught.value)


@strict
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("producer_s_parity", "for phase 0 of empty[0] (parity 0), which lacks 4 of the 4 arriv"),
        ("producer_s_parity", "as many threads arrive in each phase as init_barrier says"),
        ("more_expected_than_copied", "which lacks 128 of the 12,416 bytes that it expects"),
        ("a_copy_forgotten", "which lacks 4,096 of the 12,288 bytes that it expects"),
        ("a_warp_does_not_arrive", "which lacks 1 of the 4 arrivals"),
        ("expect_forgotten", "of full[0] expects 0 bytes, but copies bring 12,288"),
        ("expect_forgotten", "expect_bytes await all bytes of the copies"),
        ("wait_for_the_copy_forgotten", "not every thread of the warpgroup has waited for phase 0"),
        ("wait_for_the_copy_forgotten", "Let all threads of the warpgroup call wait_barrier"),
        ("freed_before_the_product_ends", "is overwritten by a copy while tensor cores may read"),
        ("freed_before_the_product_ends", "Let each warpgroup arrive at a barrier after wait_prod"),
        ("barriers_not_fenced", "without fence_barriers after init_barrier"),
        ("barriers_not_waited_for", "thread (0, 0, 0) initialises full[0] and thread (128, 0, 0)"),
        ("barrier_not_initialised", "empty[0] is used before init_barrier"),
        ("panels_begin_anywhere", "Begin panels at multiples of 1,024 bytes after panel_start(S)"),
        ("a_thread_misses_the_product", "its thread 5 never come to it"),
        ("threads_copies_not_fenced", "Call fence_shared() after the stores, or after wait_copie"),
        ("stored_while_it_is_multiplied", "does not know that product 1 of that warpgroup has"),
        ("refilled_while_threads_read", "Let readers arrive at a barrier after they have read"),
        ("read_before_the_copy_lands", "thread (0, 0, 0) has not waited for phase 0 of bars[0]"),
        ("next_phase_before_all_have_waited", "phase 1 of bars[0] may end before thread (0, 0, 0)"),
        ("takes_for_ever", "its warpgroup needs 9,216 registers more, and 1,024 are free"),
        ("a_group_of_too_few", "for 96 threads at barrier 2 of sync_threads_of, to which 64 have"),
        ("block_ends_too_early", "nobody waited for phase 4 of bars[0]"),
    ],
)
def test_what_is_said_of_a_mistake(name: str, says: str) -> None:
    found = findings_of(next(case for case in WRONG if case.name == name))
    assert any(says in str(finding) for finding in found), "\n".join(map(str, found))


@strict
def test_there_are_enough_wrong_kernels() -> None:
    assert len(WRONG) >= 50
    assert len({case.name for case in WRONG}) == len(WRONG)


# What is refused


@strict
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: BoxMap("a", (64, 8), (64,), (32, 8)), r"box\[0\] is 32: it must be 64 of float16"),
        (lambda: BoxMap("a", (64, 8), (64,), (64, 257)), "box is .*257.*from 1 to 256"),
        (lambda: BoxMap("a", (64, 8), (60,), (64, 8)), "strides of float16 .*multiple of 16 bytes"),
        (lambda: BoxMap("a", (64, 8), (), (64, 8)), "strides is .*must have 1 axes"),
        (lambda: BoxMap("a", (64,) * 6, (64,) * 5, (64,) * 6), "1 to 5 axes"),
        (lambda: BoxMap("a", (64, 0), (64,), (64, 8)), "extents is .*from 1 to"),
        (lambda: BoxMap("a", (64, 8), (64,), (64, 8), "int8"), "dtype is 'int8'"),
        (lambda: _map((1, 4, 4, 12), (3, 3)), "channels of a pixel .*multiple of 16 bytes"),
        (lambda: _map((1, 9, 9, 64), (3, 3), stride=(9, 1)), "stride is .*at most 8"),
        (lambda: _map((1, 9, 9, 64), (3, 3), padding=(129, 0)), "corner of the windows' box"),
        (lambda: _map((1, 300, 9, 64), (140, 1)), "corner of the windows' box"),
        (lambda: _map((1, 2, 9, 64), (3, 3)), "windows along H and W"),
        (lambda: _map((1, 4, 4, 64), (3, 3), pixels=1025), "pixels is 1025"),
        (lambda: _map((1, 4, 4, 64), (3, 3), stride=(0, 1)), "stride is .*at least 1"),
    ],
)
def test_a_map_that_the_driver_would_refuse_is_refused(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


@strict
def test_a_map_has_its_array() -> None:
    described = _map((1, 4, 4, 64), (3, 3))
    with pytest.raises(ValueError, match="numbers of 4 bytes, but its map is of float16"):
        BoundMap(described, np.zeros(1024, F))
    with pytest.raises(ValueError, match="has 1000 numbers, but its map describes 1024"):
        BoundMap(described, np.zeros(1000, np.uint16))


def _changed(name: str, edits: Any) -> Any:
    return copy_engine.TWO.edited(name, edits).kernel


PRODUCT = "start_product_f16(D, 4, S, 0, I_PANEL, 8, 16)"


@strict
@pytest.mark.parametrize(
    ("kernel", "error", "says"),
    [
        (_changed("odd", {PRODUCT: PRODUCT.replace("8,", "12,")}), ValueError, "N is 12"),
        (_changed("few", {PRODUCT: PRODUCT.replace("16)", "8)")}), ValueError, "TERMS is 8"),
        (_changed("wide", {PRODUCT: PRODUCT.replace("8,", "16,")}), TypeError, "D must be a local"),
        (
            _changed("apart", {PRODUCT: PRODUCT.replace("S, 0", "S, t // 64 * 512")}),
            ValueError, "at_A is 0 in thread 0 and 512 in thread 64",
        ),
        (
            _changed("tf32", {PRODUCT: PRODUCT.replace("f16", "tf32")}),
            TypeError, "S has numbers of 2 bytes",
        ),
        (
            _changed("touched", {PRODUCT: (PRODUCT, "D[1] = float32(0)")}),
            RuntimeError, "D was written to while a product of it was in flight",
        ),
        (
            _changed("no_map", {"copy_box(S, 0, a, (0, 0), full, 0)":
                                "copy_box(S, 0, c, (0, 0), full, 0)"}),
            TypeError, "must be a BoxMap's",
        ),
        (
            _changed("corner", {"copy_box(S, 0, a, (0, 0), full, 0)":
                                "copy_box(S, 0, a, (0, 0, 0), full, 0)"}),
            TypeError, "must be a tuple of 2 integers",
        ),
        (
            _changed("parity", {"wait_barrier(full, 0, 0)": "wait_barrier(full, 0, 2)"}),
            ValueError, "parity is 2",
        ),
        (
            _changed("far_away", {"wait_barrier(full, 0, 0)": "wait_barrier(c, 0, 0)"}),
            TypeError, "must be a shared array of uint64",
        ),
        (
            _changed("nobody", {"init_barrier(full, 0, 1)": "init_barrier(full, 0, 0)"}),
            ValueError, "arrivals is 0",
        ),
    ],
)  # fmt: skip
def test_arguments_have_their_kinds(kernel: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        Simulator().launch(kernel, 1, 128, *copy_engine.TWO.arguments())


# What is counted


@strict
def test_a_trace_counts_the_operations_of_products() -> None:
    arguments = product_arguments(BFLOAT16, 24, 48)
    launch = trace(make_products(BFLOAT16, 24, 48), 1, 128, *arguments).main
    work = {
        launch.source[one.file][one.line].strip(): one.flops for one in launch.work if one.flops
    }
    assert work == {"start(D, 0, S, 0, PANEL_A, width, terms)": 2 * 64 * 24 * 48}


# What the compiler makes of it


def compiled(kernel: Any, arguments: list) -> Any:
    from numba.cuda import types

    from convlab.running.engines.kernels import compile_kernel

    kinds = [
        types.Array(types.uint64, 1, "C")
        if isinstance(one, BoundMap)
        else types.Array(getattr(types, one.dtype.name), one.ndim, "C")
        for one in arguments
    ]
    return compile_kernel(kernel, tuple(kinds), (9, 0))


@pytest.mark.gate
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.name)
def test_a_right_kernel_compiles(case: Case) -> None:
    assert compiled(case.kernel, case.arguments()).stack_bytes == 0


@pytest.mark.gate
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("described", [WINDOWS["all at once"], WINDOWS["float32"]])
def test_windows_compile(described: WindowMap) -> None:
    arguments, _, copies = _windows_arguments(described)
    compiled(make_windows(described, copies), arguments)


@pytest.mark.gate
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32])
def test_products_compile(dtype: str) -> None:
    from convlab.running.engines.disassembly import opcodes_of

    arguments = product_arguments(dtype, 40, 32)
    opcodes = opcodes_of(compiled(make_products(dtype, 40, 32), arguments))
    products = {name: count for name, count in opcodes.items() if name.startswith("HGMMA")}
    assert sum(products.values()) == (4 if dtype == FLOAT32 else 2)


@pytest.mark.gate
def test_wrong_kernels_compile() -> None:
    """A mistake is one that no compiler finds."""
    for case in WRONG[::5]:
        compiled(case.kernel, case.arguments())
