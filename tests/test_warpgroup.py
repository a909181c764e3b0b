"""A warpgroup's products: right to the bit on every simulator, refused where threads do not come
together, and what the compiler makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.cases import edited, findings_of
from kernels.right import RIGHT
from kernels.warpgroups import (
    FENCE,
    FINISH,
    MATRIX,
    RESULT,
    START,
    STORE,
    fill,
    make_products,
    make_sums,
    multiplied,
    product_of_a_warpgroup,
    random_pairs,
    summed,
)
from kernels.wrong import WRONG
from numba import cuda, float32, float64, int32
from numba.cuda.core import config

from convlab.device import BYTES_16, emulation_of, finish_product, start_product
from convlab.device.products import warp_product
from convlab.ladder.stage import Launch
from convlab.running.engines.cudasim import CudaSim
from convlab.running.engines.disassembly import code_of, opcodes_of
from convlab.running.engines.simulator import Simulator
from convlab.simulation.rules.findings import SimulationError
from convlab.tracing import trace

F = np.float32
strict = pytest.mark.same_in_cudasim  # only the strict simulator is asked


def changed(name: str, edits: dict[str, Any]) -> Any:
    """The kernel ``product_of_a_warpgroup(a, b)`` with other lines."""
    return cuda.jit(edited(product_of_a_warpgroup, name, edits))


def launch(kernel: Any, threads: int = 128, blocks: int = 1) -> np.ndarray:
    Simulator().launch(kernel, blocks, threads, np.ones(256, F), b := np.zeros(256, F))
    return b


# What comes out


@strict
@pytest.mark.parametrize(
    ("N", "spread", "groups", "checks"),
    [
        (8, 0, 1, False), (8, 20, 2, True), (8, 0, 3, True), (24, 3, 1, True), (64, 0, 1, True),
        (256, 0, 1, True),
    ],
)  # fmt: skip
def test_a_product_is_right_to_the_bit(N: int, spread: int, groups: int, checks: bool) -> None:
    a, b = random_pairs(2 * groups, N, 1, spread)
    d = np.full((2 * groups, 64, N), np.nan, F)
    Simulator(strict=checks).launch(make_products(N, groups), 2, 128 * groups, a, b, d)
    np.testing.assert_array_equal(d, [multiplied(*pair) for pair in zip(a, b, strict=True)])
    right = a.astype(float) @ b.astype(float)
    error = np.abs(d - right) / (np.abs(a).astype(float) @ np.abs(b))
    assert 0 < error.max() < 2.0**-20  # of one product of TF32 it would be about 2**-12


@strict
def test_what_is_not_finite_stays_in_its_row_and_column() -> None:
    a, b = random_pairs(1, 24, 3)
    found, usual = np.zeros((2, 1, 64, 24), F)
    Simulator().launch(make_products(24), 1, 128, a, b, usual)
    a[0, 2, 5], a[0, 33, 15], b[0, 1, 3], b[0, 9, 20] = np.nan, np.inf, -np.inf, np.nan
    Simulator().launch(make_products(24), 1, 128, a, b, found)
    rows, columns = [2, 33], [3, 20]
    assert np.isnan(found[0, rows]).all()  # what an infinity leaves when it is split is NaN
    assert np.isnan(found[0, :, columns]).all()
    found[0, rows], found[0, :, columns] = usual[0, rows], usual[0, :, columns]
    np.testing.assert_array_equal(found, usual)


@strict
def test_lanes_that_are_missing_bring_nan() -> None:
    ones, right = np.ones(8), np.ones(256, F)
    for lanes in (range(4), range(3)):  # rows 0 and 8, which the first four lanes hold
        result = warp_product({lane: (ones, ones, right) for lane in lanes})
        assert sorted(result) == list(lanes)
        assert np.isnan(result[0]).any() == np.isnan(result[0]).all() == (len(lanes) < 4)


def test_numbas_simulator_and_cudasim_give_the_same() -> None:
    a, b = random_pairs(2, 8, 6)
    d = np.full((2, 64, 8), np.nan, F)
    run_in_threads(make_products(8, 2), [a, b, d], threads=256)
    np.testing.assert_array_equal(d, [multiplied(*pair) for pair in zip(a, b, strict=True)])


def run_in_threads(kernel: Any, arrays: list, threads: int = 128) -> None:
    """Run a kernel on Numba's simulator where this process has it, else on the engine made of
    it."""
    if config.ENABLE_CUDASIM:
        kernel[1, threads](*arrays)
        return
    names = ("input", "weight", "output") if len(arrays) == 3 else ("input", "output")
    CudaSim().run(Launch(kernel, (1,), (threads,), names), arrays)


@strict
@pytest.mark.parametrize(("N", "spread"), [(8, 0), (24, 8), (128, 0)])
def test_a_product_of_tf32_is_added_to_the_bit(N: int, spread: int) -> None:
    a, b = random_pairs(2, N, 1, spread)
    before = np.random.default_rng(2).standard_normal((2, 64, N)).astype(F)
    d = before.copy()
    launch = trace(make_sums(N), 2, 128, a, b, d).main
    assert not launch.findings
    np.testing.assert_array_equal(d, [*map(summed, a, b, before)])
    right = before + 2 * (a.astype(float) @ b)
    error = np.abs(d - right) / (np.abs(before) + 2 * np.abs(a).astype(float) @ np.abs(b))
    assert 2.0**-15 < error.max() < 2.0**-10
    flops = {
        launch.source[work.file][work.line].strip(): work.flops
        for work in launch.work
        if work.flops
    }
    # Two instructions of 64 x N x 8 multiply-adds, twice, in two blocks.
    line = "start_one_product(D, A, S, uint32(0), N)"
    assert flops[line] == 2 * 2 * 2 * 2 * 64 * N * 8


def test_numbas_simulator_and_cudasim_add_the_same() -> None:
    a, b = random_pairs(1, 8, 6)
    before = np.ones((1, 64, 8), F)
    run_in_threads(make_sums(8), [a, b, d := before.copy()])
    np.testing.assert_array_equal(d[0], summed(a[0], b[0], before[0]))


# What is found


SUM = "start_one_product(D, L, S, 0, 8)"
CLEARED = (*(f"D[{k}] = float32(0)" for k in range(4)), SUM)
SUM_MISUSES = {
    "not finished": ((*CLEARED, SUM), RuntimeError, "start_one_product: the product before was"),
    "written to": ((*CLEARED, "D[3] = float32(1)"), RuntimeError, "D was written to before"),
    "past the end": (
        (*CLEARED[:4], SUM.replace("0,", "144,")), IndexError, "256|from 144 to 272",
    ),
    "a width": ((*CLEARED[:4], SUM.replace("8)", "12)")), ValueError, "N is 12: it must be a mult"),
}  # fmt: skip


@pytest.mark.parametrize(("start", "error", "says"), SUM_MISUSES.values(), ids=SUM_MISUSES)
def test_a_product_of_tf32_out_of_turn_is_refused(start: Any, error: Any, says: str) -> None:
    kernel = changed("misused", {START: start})
    with pytest.raises((error, SimulationError), match=says):
        launch(kernel)
    with pytest.raises(error, match=says):
        run_in_threads(kernel, [np.ones(256, F), np.ones(128, F)])


@strict
@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ({}, "D"),  # nobody wrote the sums before
        ({STORE: "S[i] = a[i]", START: (*CLEARED[:4], SUM.replace("0,", "128,"))}, "S"),
    ],
    ids=["sums", "matrix"],
)
def test_what_nobody_wrote_is_found_where_a_sum_begins(edits: Any, says: str) -> None:
    kernel = changed("unwritten", {START: SUM} | edits)
    with pytest.raises(SimulationError, match=rf"{says}\[.*is read before anything"):
        launch(kernel)


@strict
def test_a_write_while_tensor_cores_read_is_a_race_here_too() -> None:
    kernel = changed("race", {START: (*CLEARED, "S[i] = float32(2)")})
    with pytest.raises(SimulationError, match="is written while tensor cores may read it"):
        launch(kernel)
    kernel = changed("sums_not_fenced", {START: CLEARED, FENCE: ()})
    with pytest.raises(SimulationError, match="fence_shared"):
        launch(kernel)


@strict
def test_a_mistake_is_one_kind_of_finding() -> None:
    """Or it would be told in words that belong to another."""
    for case in WRONG:
        if case.capability == (9, 0):
            kinds = {case.kind}
            if case.name == "tensor_cores_read_before_the_wait":
                kinds.add("shared race")  # its copies land when everybody's product is done, or not
            assert {finding.kind for finding in findings_of(case)} == kinds, case.name


@strict
def test_threads_are_numbered_within_their_warpgroup() -> None:
    kernel = changed("missing", {
        STORE: "S[i] = a[i]",
        START: ("if i != 200:", f"    {START}", f"    {FINISH}", f"    {RESULT}"),
        FINISH: (), RESULT: (),
    })  # fmt: skip
    with pytest.raises(SimulationError, match=r"start_product.*thread 72 "):
        launch(kernel, 256)


@strict
def test_a_race_of_one_block_is_not_the_next_one_s() -> None:
    """A product that nobody waits for ends with its block."""
    kernel = changed("unfinished", {FINISH: "b[cuda.grid(1)] = a[i]", RESULT: ()})
    assert (launch(kernel, blocks=2) == 1).all()


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


TWO_MATRICES = {
    MATRIX: "S = cuda.shared.array(512, float32, alignment=BYTES_16)",
    STORE: ("for k in range(i, 512, 128):", "    S[k] = a[k % 256]"),
}


@strict
@pytest.mark.parametrize(
    ("kernel", "error", "says"),
    [
        (make_start(N=12), ValueError, "N is 12: .* multiple of 8, up to 256"),
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
        (changed("far", {MATRIX: "S = a", STORE: ()}), TypeError, "a must be a shared array"),
        (
            changed("own", {MATRIX: "S = cuda.local.array(256, float32)"}),
            TypeError, "S must be a shared array",
        ),
        (
            changed("near", {"D = cuda.local.array(4, float32)": "D = S[:4]"}),
            TypeError, "D must be a local array of 4 float32",
        ),
        (
            changed("two", TWO_MATRICES | {START: START.replace(" 0,", " i // 64 * 256,")}),
            ValueError, "begins 1024 bytes after another's and ends 1024 after",
        ),
    ],
)  # fmt: skip
def test_arguments_have_their_kinds_and_places(kernel: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        launch(kernel)


D8 = {"D = cuda.local.array(4, float32)": "D = cuda.local.array(8, float32)", **TWO_MATRICES}
NOT_STARTED = RuntimeError, "no product of 8 columns was started for D"
OTHER = "E = cuda.local.array(8, float32)"
MISUSES = {
    "not started": ((), *NOT_STARTED),
    "of another array": ((OTHER, START.replace("D", "E")), *NOT_STARTED),
    "twice": ((START, FINISH), *NOT_STARTED),
    "another width": (START.replace("8)", "16)"), *NOT_STARTED),
    "started again": ((START, START), RuntimeError, "the product before was not finished for D"),
    "written to": ((START, "D[3] = float32(1)"), RuntimeError, "D was written to before"),
    "one array": (START.replace("T", "L"), ValueError, "L and T are one array"),
}


@pytest.mark.parametrize(("start", "error", "says"), MISUSES.values(), ids=MISUSES)
def test_what_is_out_of_turn_is_refused(start: Any, error: Any, says: str) -> None:
    kernel = changed("misused", {START: start, **D8})
    with pytest.raises(error, match=says):
        launch(kernel)
    with pytest.raises(error, match=says):
        run_in_threads(kernel, [np.ones(256, F), np.ones(128, F)])


@pytest.mark.parametrize("at", [-16, 8])
def test_a_matrix_past_the_ends_is_refused_by_threads_too(at: int) -> None:
    kernel = changed("outside", {START: START.replace("0", str(at))})
    with pytest.raises(IndexError, match=f"S has 256 numbers, but B is from {at} to {at + 256}"):
        run_in_threads(kernel, [np.ones(256, F), np.ones(128, F)])


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
    # Six instructions of 64 x N x 8 multiply-adds.
    assert lines["start_product(D, L, T, S, first, N)"] == blocks * 6 * 2 * 64 * N * 8
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


def compiled(kernel: Any, dimensions: int = 1, arguments: int = 2) -> Any:
    from numba.cuda import types

    from convlab.running.engines.kernels import compile_kernel

    array = types.Array(types.float32, dimensions, "C")
    return compile_kernel(kernel, (array,) * arguments, (9, 0))


@pytest.mark.gate
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("N", [24, 256])
def test_it_compiles_to_hopper_s_instructions(N: int) -> None:
    cubin = compiled(make_products(N), 3, 3)
    opcodes = opcodes_of(cubin)
    assert opcodes[f"HGMMA.64x{N}x8.F32.TF32"] == 6
    waits = [line for line in code_of(cubin) if line.startswith("WARPGROUP.DEPBAR")]
    assert len(waits) == 1  # one more for every instruction where they are serialized
    assert [name for name in opcodes if name.startswith("FENCE.VIEW.ASYNC")]
    assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)
    code = [line.split()[0] for line in code_of(cubin)]
    assert code.index(f"HGMMA.64x{N}x8.F32.TF32") < code.index("WARPGROUP.DEPBAR.LE")


@pytest.mark.gate
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("N", [24, 128])
def test_a_sum_compiles_to_hopper_s_instructions(N: int) -> None:
    cubin = compiled(make_sums(N), 3, 3)
    opcodes = opcodes_of(cubin)
    products = opcodes["WARPGROUP.ARRIVE"]
    assert opcodes[f"HGMMA.64x{N}x8.F32.TF32"] == 2 * products > 0
    waits = [line for line in code_of(cubin) if line.startswith("WARPGROUP.DEPBAR")]
    assert len(waits) == products
    assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)


@pytest.mark.gate
@pytest.mark.parametrize(
    "case", [case for case in RIGHT if case.capability], ids=lambda case: case.name
)
def test_every_product_has_its_six_instructions(case: Any) -> None:
    """nvJitLink 13.5 leaves some out where the parts of A are the same."""
    code = opcodes_of(compiled(case.kernel))
    waits = sum(count for name, count in code.items() if name.startswith("WARPGROUP.DEPBAR"))
    products = sum(count for name, count in code.items() if name == "WARPGROUP.ARRIVE")
    assert code["HGMMA.64x8x8.F32.TF32"] == 6 * products
    assert waits == products


@pytest.mark.gate
@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (changed("late", {START: START.replace("8)", "b.size)")}), "start_product: N .* constant"),
        (changed("late", {FINISH: "finish_product(D, b.size)"}), "finish_product: N .* constant"),
        (make_start(N=12), "start_product: N is 12: .* multiple of 8, up to 256"),
        (make_start(finish=12), "finish_product: N is 12"),
        (make_start(D_TYPE=float64), "start_product: D is .*float64.*array of float32"),
        (make_start(L_TYPE=float64), "start_product: L is .*float64.*array of float32"),
        (make_start(T_TYPE=int32), "start_product: T is .*int32.*array of float32"),
        (make_start(S_TYPE=float64), "start_product: S is .*float64.*array of float32"),
        (make_start(D=(2, 2)), "start_product: D is .*2.* one dimension"),
        (make_start(S=(16, 16)), "start_product: S is .*2.* one dimension"),
    ],
)
def test_the_compiler_refuses_other_arguments(kernel: Any, says: str) -> None:
    from numba.core.errors import TypingError

    with pytest.raises(TypingError, match=says):
        compiled(kernel)
