"""A warpgroup's products: right to the bit on every simulator, refused where threads do not come
together, and what the compiler makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.right import RIGHT
from kernels.warpgroups import fill, make_products, multiplied, random_pairs
from kernels.wrong import WRONG
from numba import cuda, float32, float64, int32
from numba.cuda.core import config

from convlab.device import (
    BYTES_16,
    emulation_of,
    fence_shared,
    finish_product,
    start_product,
)
from convlab.device.products import warp_product
from convlab.engines.cudasim import CudaSim
from convlab.engines.simulator import Simulator
from convlab.simulation.findings import SimulationError
from convlab.stage import Launch
from convlab.tracing import trace

F = np.float32
strict = pytest.mark.same_in_cudasim  # only the strict simulator is asked


def products_of(a: Any, b: Any, groups: int = 1) -> np.ndarray:
    """On the strict simulator, a product by each warpgroup."""
    d = np.full((len(a), 64, b.shape[2]), np.nan, F)
    Simulator().launch(make_products(b.shape[2], groups), len(a) // groups, 128 * groups, a, b, d)
    return d


def wanted(a: Any, b: Any) -> np.ndarray:
    return np.array([multiplied(*pair) for pair in zip(a, b, strict=True)])


# What comes out


@strict
@pytest.mark.parametrize(("N", "spread"), [(8, 0), (8, 20), (24, 3), (64, 0), (256, 0)])
def test_a_product_is_right_to_the_bit(N: int, spread: int) -> None:
    a, b = random_pairs(2, N, 1, spread)
    np.testing.assert_array_equal(products_of(a, b), wanted(a, b))


@strict
def test_it_is_as_accurate_as_float32() -> None:
    a, b = random_pairs(2, 64, 2)
    right = a.astype(float) @ b.astype(float)
    error = np.abs(products_of(a, b) - right) / (np.abs(a).astype(float) @ np.abs(b))
    assert error.max() < 2.0**-20  # of one product of TF32 it would be about 2**-12
    assert error.any()


@strict
def test_each_number_goes_to_its_place() -> None:
    """One number of A and one of B that is not zero: one of the product."""
    N = 24
    places = [(m, (5 * m + m // 16) % 16, (7 * m + m // 24) % N) for m in range(64)]
    assert {k for _, k, _ in places} == set(range(16))
    assert {n for _, _, n in places} == set(range(N))
    a, b = np.zeros((64, 64, 16), F), np.zeros((64, 16, N), F)
    right = np.zeros((64, 64, N), F)
    for number, (m, k, n) in enumerate(places):
        a[number, m, k], b[number, k, n], right[number, m, n] = 3, 5, 15
    np.testing.assert_array_equal(products_of(a, b), right)


@strict
def test_what_is_not_finite_stays_in_its_row_and_column() -> None:
    a, b = random_pairs(1, 24, 3)
    usual = products_of(a, b)[0]
    a[0, 2, 5], a[0, 33, 15], b[0, 1, 3], b[0, 9, 20] = np.nan, np.inf, -np.inf, np.nan
    found = products_of(a, b)[0]
    rows, columns = [2, 33], [3, 20]
    assert np.isnan(found[rows]).all()  # what an infinity leaves when it is split is NaN
    assert np.isnan(found[:, columns]).all()
    found[rows], found[:, columns] = usual[rows], usual[:, columns]
    np.testing.assert_array_equal(found, usual)


@strict
@pytest.mark.parametrize("groups", [2, 3])
def test_each_warpgroup_of_a_block_has_its_own_matrix(groups: int) -> None:
    a, b = random_pairs(2 * groups, 8, 4)
    np.testing.assert_array_equal(products_of(a, b, groups), wanted(a, b))


@strict
def test_without_checks_it_is_the_same() -> None:
    a, b = random_pairs(1, 8, 5)
    d = np.full((1, 64, 8), np.nan, F)
    Simulator(strict=False).launch(make_products(8), 1, 128, a, b, d)
    np.testing.assert_array_equal(d, wanted(a, b))


@strict
def test_lanes_that_are_missing_bring_nan() -> None:
    ones, right = np.ones(8), np.ones(256, F)
    result = warp_product({lane: (ones, ones, right) for lane in range(4)})  # rows 0 and 8
    assert sorted(result) == [0, 1, 2, 3]
    assert not np.isnan(result[0]).any()
    result = warp_product({lane: (ones, ones, right) for lane in (0, 1, 2)})
    assert np.isnan(result[0]).all()


def test_numbas_simulator_and_cudasim_give_the_same() -> None:
    a, b = random_pairs(2, 8, 6)
    d = np.full((2, 64, 8), np.nan, F)
    run_in_threads(make_products(8), 1, [a[:1], b[:1], d[:1]])
    run_in_threads(make_products(8, 2), 1, [a, b, d], threads=256)
    np.testing.assert_array_equal(d, wanted(a, b))


def run_in_threads(kernel: Any, grid: int, arrays: list, threads: int = 128) -> None:
    """By Numba's simulator where this process has it, else by the engine made of it."""
    if config.ENABLE_CUDASIM:
        kernel[grid, threads](*arrays)
        return
    names = ("input", "weight", "output") if len(arrays) == 3 else ("input", "output")
    CudaSim().run(Launch(kernel, (grid,), (threads,), names), arrays)


# What is found


@strict
def test_a_mistake_is_one_kind_of_finding() -> None:
    """Or it would be told in words that belong to another."""
    for case in WRONG:
        if case.capability == (9, 0):
            kinds = {case.kind}
            if case.name == "tensor_cores_read_before_the_wait":
                kinds.add("shared race")  # its copies land when everybody's product is done, or not
            assert {finding.kind for finding in findings_of(case)} == kinds, case.name


def findings_of(case: Any) -> tuple:
    with pytest.raises(SimulationError) as raised:
        Simulator().launch(case.kernel, case.grid, case.block, *case.arguments())
    return raised.value.findings


@strict
@pytest.mark.parametrize(
    ("name", "count", "says"),
    [
        ("no_fence_after_stores", 256, "thread (0, 0, 0), which wrote it, has not fenced it"),
        ("fence_by_one_thread_for_all", 254, "thread (1, 0, 0), which wrote it, has not fenced"),
        ("only_the_first_stores_are_fenced", 128, "S[0] is read by tensor cores"),
        ("own_part_with_no_barrier", 256, "read by tensor cores after thread (0, 0, 0) had writ"),
        ("own_warp_s_part_is_done_only", 128, "written while tensor cores may read it"),
        ("barriers_in_place_of_finish", 128, "no barrier after finish_product lies between"),
        ("tensor_cores_read_before_the_wait", 128, "while thread (0, 0, 0)'s copy to it is in"),
        ("product_read_before_it_is_finished", 128, "D[0] is read before anything is written"),
        ("half_a_matrix_for_tensor_cores", 128, "S[128] is read before anything in this block"),
        ("warpgroup_of_three_warps", 1, "needs the whole warpgroup, but its threads 96-127 never"),
        ("warpgroup_without_some_lanes", 1, "its threads 28, 29, 30, 31, 60, "),
        ("half_the_warpgroup_waits", 1, "finish_product needs the whole warpgroup, but its thre"),
        ("matrix_at_an_odd_place", 1, "S[2] is not at a multiple of 16 bytes"),
        ("matrix_in_an_array_with_no_alignment", 1, "S[0] is only by chance at a multiple of 16"),
    ],
)
def test_what_is_said_of_a_mistake(name: str, count: int, says: str) -> None:
    finding = findings_of(next(case for case in WRONG if case.name == name))[0]
    assert says in finding.what
    assert finding.count == count


@cuda.jit
def missing_threads_and_another_warpgroup(a, b):
    S = cuda.shared.array(256, float32, alignment=16)
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    fill(L, T)
    for k in range(i, 256, 256):
        S[k] = a[k]
    fence_shared()
    cuda.syncthreads()
    if i != 200:
        start_product(D, L, T, S, 0, 8)
        finish_product(D, 8)
        b[i] = D[0]


@strict
def test_threads_are_numbered_within_their_warpgroup() -> None:
    with pytest.raises(SimulationError, match=r"start_product.*, but its thread 72 never come"):
        Simulator().launch(
            missing_threads_and_another_warpgroup, 1, 256, np.ones(256, F), np.ones(256, F)
        )


@strict
def test_a_race_of_one_block_is_not_the_next_one_s() -> None:
    """A product that nobody waits for ends with its block."""
    b = np.zeros(256, F)
    Simulator().launch(product_that_nobody_waits_for, 2, 128, np.ones(256, F), b)
    assert (b == 1).all()


@cuda.jit
def product_that_nobody_waits_for(a, b):
    S = cuda.shared.array(256, float32, alignment=16)
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    fill(L, T)
    S[i], S[i + 128] = a[i], a[i + 128]
    fence_shared()
    cuda.syncthreads()
    start_product(D, L, T, S, 0, 8)
    b[cuda.grid(1)] = a[i]


# What is refused


def make_start(
    N: int = 8, D: Any = 4, L: Any = 8, T: Any = 8, S: Any = 256, finish: int = 8,
    D_TYPE: Any = float32, L_TYPE: Any = float32, T_TYPE: Any = float32, S_TYPE: Any = float32,
) -> Any:  # fmt: skip
    """A kernel whose arrays have these shapes and types."""
    D_SHAPE, L_SHAPE, T_SHAPE, S_SHAPE = D, L, T, S

    @cuda.jit
    def starts(a, b):
        S = cuda.shared.array(S_SHAPE, S_TYPE, alignment=BYTES_16)
        D = cuda.local.array(D_SHAPE, D_TYPE)
        L = cuda.local.array(L_SHAPE, L_TYPE)
        T = cuda.local.array(T_SHAPE, T_TYPE)
        fill(L, T)
        cuda.syncthreads()
        start_product(D, L, T, S, 0, N)
        finish_product(D, finish)

    return starts


@strict
@pytest.mark.parametrize(
    ("kernel", "error", "says"),
    [
        (make_start(N=12), ValueError, "N is 12: it must be a multiple of 8, up to 256"),
        (make_start(N=0), ValueError, "N is 0"),
        (make_start(N=264, D=132, S=32 * 264), ValueError, "N is 264"),
        (make_start(D=3), TypeError, "D must be a local array of 4 float32"),
        (make_start(N=16, S=512), TypeError, "D must be a local array of 8 float32"),
        (make_start(D=(2, 2)), TypeError, "D must be a local array"),
        (make_start(D_TYPE=float64), TypeError, "D must be a local array of 4 float32"),
        (make_start(L_TYPE=float64), TypeError, "L must be a local array of 8 float32"),
        (make_start(T_TYPE=int32), TypeError, "T must be a local array of 8 float32"),
        (make_start(S=(16, 16)), TypeError, "S must have one dimension of float32"),
        (make_start(S_TYPE=float64), TypeError, "S must have one dimension of float32"),
    ],
)
def test_arrays_have_their_kinds(kernel: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        Simulator().launch(kernel, 1, 128, np.ones(256, F), np.ones(128, F))


@cuda.jit
def matrix_in_global_memory(a, b):
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D = cuda.local.array(4, float32)
    fill(L, T)
    start_product(D, L, T, a, 0, 8)
    finish_product(D, 8)


@cuda.jit
def matrix_in_local_memory(a, b):
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D, S = cuda.local.array(4, float32), cuda.local.array(256, float32)
    fill(L, T)
    start_product(D, L, T, S, 0, 8)
    finish_product(D, 8)


@cuda.jit
def product_in_shared_memory(a, b):
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D = cuda.shared.array(4, float32)
    S = cuda.shared.array(256, float32, alignment=16)
    fill(L, T)
    start_product(D, L, T, S, 0, 8)
    finish_product(D, 8)


@strict
@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (matrix_in_global_memory, "a must be a shared array"),
        (matrix_in_local_memory, "S must be a shared array"),
        (product_in_shared_memory, "D must be a local array of 4 float32"),
    ],
)
def test_arrays_have_their_places(kernel: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Simulator().launch(kernel, 1, 128, np.ones(256, F), np.ones(128, F))


def make_misused(which: str) -> Any:
    """A kernel that does not call the three in their turn."""

    @cuda.jit
    def misused(a, b):
        S = cuda.shared.array(512, float32, alignment=BYTES_16)
        L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
        D, E = cuda.local.array(8, float32), cuda.local.array(8, float32)
        i = cuda.threadIdx.x
        fill(L, T)
        for k in range(i, 512, 128):
            S[k] = a[k % 256]
        fence_shared()
        cuda.syncthreads()
        if which == "of another array":
            start_product(E, L, T, S, 0, 8)
        elif which == "twice":
            start_product(D, L, T, S, 0, 8)
            finish_product(D, 8)
        elif which == "another width":
            start_product(D, L, T, S, 0, 16)
        elif which == "started again":
            start_product(D, L, T, S, 0, 8)
            start_product(D, L, T, S, 0, 8)
        elif which == "written to":
            start_product(D, L, T, S, 0, 8)
            D[3] = float32(1)
        elif which == "one array":
            start_product(D, L, L, S, 0, 8)
        finish_product(D, 8)

    return misused


MISUSES = [
    ("not started", RuntimeError, "no product of 8 columns was started for D"),
    ("of another array", RuntimeError, "no product of 8 columns was started for D"),
    ("twice", RuntimeError, "no product of 8 columns was started for D"),
    ("another width", RuntimeError, "no product of 8 columns was started for D"),
    ("started again", RuntimeError, "the product before was not finished for D"),
    ("written to", RuntimeError, "D was written to before it was finished"),
    ("one array", ValueError, "L and T are one array, but must be two"),
]


@strict
@pytest.mark.parametrize(("which", "error", "says"), MISUSES)
def test_what_is_out_of_turn_is_refused(which: str, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        Simulator().launch(make_misused(which), 1, 128, np.ones(256, F), np.ones(128, F))


@pytest.mark.parametrize(("which", "error", "says"), MISUSES)
def test_what_is_out_of_turn_is_refused_by_threads_too(which: str, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        run_in_threads(make_misused(which), 1, [np.ones(256, F), np.ones(128, F)])


@pytest.mark.parametrize("at", [-16, 8])
def test_a_matrix_past_the_ends_is_refused_by_threads_too(at: int) -> None:
    @cuda.jit
    def outside(a, b):
        S = cuda.shared.array(256, float32, alignment=BYTES_16)
        L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
        D = cuda.local.array(4, float32)
        fill(L, T)
        start_product(D, L, T, S, at, 8)
        finish_product(D, 8)

    with pytest.raises(IndexError, match=f"S has 256 numbers, but B is from {at} to {at + 256}"):
        run_in_threads(outside, 1, [np.ones(256, F), np.ones(128, F)])


@cuda.jit
def a_matrix_for_each_warp(a, b):
    S = cuda.shared.array(512, float32, alignment=16)
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    fill(L, T)
    for k in range(i, 512, 128):
        S[k] = a[k % 256]
    fence_shared()
    cuda.syncthreads()
    start_product(D, L, T, S, i // 64 * 256, 8)
    finish_product(D, 8)


@strict
def test_a_warpgroup_has_one_matrix() -> None:
    with pytest.raises(ValueError, match="begins 1024 bytes after another's and ends 1024 after"):
        Simulator().launch(a_matrix_for_each_warp, 1, 128, np.ones(256, F), np.ones(128, F))


@strict
def test_outside_a_kernel_there_is_no_warpgroup() -> None:
    emulation = emulation_of(start_product) or start_product
    with pytest.raises(RuntimeError, match="only in a kernel"):
        emulation(np.ones(4), np.ones(8), np.ones(8), np.ones(256, F), 0, 8)
    with pytest.raises(RuntimeError, match="no product of 8 columns"):
        (emulation_of(finish_product) or finish_product)(np.ones(4), 8)


# What is counted


@strict
def test_its_trace_counts_operations_and_no_loads_by_tensor_cores() -> None:
    N, blocks = 24, 2
    a, b = random_pairs(blocks, N, 7)
    d = np.zeros((blocks, 64, N), F)
    launch = trace(make_products(N), blocks, 128, a, b, d).main
    (stores,) = [access for access in launch.accesses if access.array == "S"]
    assert stores.operation == "store"
    assert stores.requests == 2 * (16 * N // 128) * 4 * blocks  # two in each turn of each warp
    lines = {
        launch.source[work.file][work.line].strip(): work.flops
        for work in launch.work
        if work.flops
    }
    # Six instructions of 64 x N x 8 multiply-adds, by 128 threads: 48 * N of each.
    instruction = 2 * 64 * N * 8
    assert lines["start_product(D, L, T, S, first, N)"] == blocks * 6 * instruction
    assert 6 * instruction == 128 * (2 * 6 * 16 * 8 * N // 32)
    assert not [line for line in lines if "finish_product" in line]


@strict
def test_both_engines_count_the_same() -> None:
    a, b = random_pairs(1, 8, 8)
    found = []
    for engine in (Simulator(), CudaSim()):
        launch = Launch(make_products(8), (1,), (128,), ("input", "weight", "output"))
        with engine.counting() as counts:
            engine.run(launch, [a, b, np.zeros((1, 64, 8), F)])
        found.append((counts.shared_loads, counts.shared_stores, counts.global_loads))
    assert found == [(0, 256, 64 * 16 + 16 * 8)] * 2


# What the compiler makes of it


@pytest.mark.gate
@pytest.mark.parametrize("N", [8, 24, 96, 256])
def test_it_compiles_to_hopper_s_instructions(N: int) -> None:
    from numba.cuda import types

    from convlab.engines.offline import compile_kernel

    cube = types.Array(types.float32, 3, "C")
    cubin = compile_kernel(make_products(N), (cube, cube, cube), (9, 0))
    opcodes = cubin.opcodes()
    assert opcodes[f"HGMMA.64x{N}x8.F32.TF32"] == 6
    waits = [line for line in cubin.instructions() if line.startswith("WARPGROUP.DEPBAR")]
    assert len(waits) == 1  # one more for every instruction where they are serialized
    assert [name for name in opcodes if name.startswith("FENCE.VIEW.ASYNC")]
    assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)
    code = [line.split()[0] for line in cubin.instructions()]
    assert code.index(f"HGMMA.64x{N}x8.F32.TF32") < code.index("WARPGROUP.DEPBAR.LE")


@pytest.mark.gate
@pytest.mark.parametrize(
    "case", [case for case in RIGHT if case.capability], ids=lambda case: case.name
)
def test_every_product_has_its_six_instructions(case: Any) -> None:
    """nvJitLink 13.5 leaves some out where the parts of A are the same."""
    from numba.cuda import types

    from convlab.engines.offline import compile_kernel

    row = types.Array(types.float32, 1, "C")
    code = compile_kernel(case.kernel, (row, row), (9, 0)).opcodes()
    waits = sum(count for name, count in code.items() if name.startswith("WARPGROUP.DEPBAR"))
    products = sum(count for name, count in code.items() if name == "WARPGROUP.ARRIVE")
    assert code["HGMMA.64x8x8.F32.TF32"] == 6 * products
    assert waits == products


@cuda.jit
def width_known_late(a, b):
    S = cuda.shared.array(256, float32, alignment=16)
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D = cuda.local.array(4, float32)
    fill(L, T)
    start_product(D, L, T, S, 0, b.size)
    finish_product(D, 8)


@cuda.jit
def waits_for_a_width_known_late(a, b):
    S = cuda.shared.array(256, float32, alignment=16)
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D = cuda.local.array(4, float32)
    fill(L, T)
    start_product(D, L, T, S, 0, 8)
    finish_product(D, b.size)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (width_known_late, "start_product: N is .*, but must be a constant of the kernel's"),
        (waits_for_a_width_known_late, "finish_product: N is .*, but must be a constant"),
        (make_start(N=12), "start_product: N is 12: it must be a multiple of 8, up to 256"),
        (make_start(finish=12), "finish_product: N is 12"),
        (make_start(D_TYPE=float64), "start_product: D is .*float64.*, but must be an array of f"),
        (make_start(L_TYPE=float64), "start_product: L is .*float64.*, but must be an array of f"),
        (make_start(T_TYPE=int32), "start_product: T is .*int32.*, but must be an array of float"),
        (make_start(S_TYPE=float64), "start_product: S is .*float64.*, but must be an array of f"),
        (make_start(D=(2, 2)), "start_product: D is .*2.*, but must be .* with one dimension"),
        (make_start(S=(16, 16)), "start_product: S is .*2.*, but must be .* with one dimension"),
    ],
)
def test_the_compiler_refuses_other_arguments(kernel: Any, says: str) -> None:
    from numba.core.errors import TypingError
    from numba.cuda import types

    from convlab.engines.offline import compile_kernel

    row = types.Array(types.float32, 1, "C")
    with pytest.raises(TypingError, match=says):
        compile_kernel(kernel, (row, row), (9, 0))
