"""Kernels that use Hopper's copy engine, barriers in shared memory and products from panels: right
ones, and ones with a mistake each."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, uint16, uint64

from convlab.device import (
    BYTES_1024,
    BoundMap,
    BoxMap,
    WindowMap,
    arrive_barrier,
    commit_copies,
    copy_async8,
    copy_box,
    copy_windows,
    expect_bytes,
    fence_barriers,
    fence_shared,
    give_registers,
    gpu_only,
    init_barrier,
    pair_f16,
    panel_start,
    start_product_bf16,
    start_product_f16,
    start_product_tf32,
    store_pairs,
    swizzled_piece,
    sync_threads_of,
    take_registers,
    wait_barrier,
    wait_copies,
    wait_products,
)
from kernels.cases import Case, Edits, edited

F = np.float32
FLOAT16, BFLOAT16, FLOAT32 = "float16", "bfloat16", "float32"
SLACK = 1008  # bytes of dynamic shared memory that panel_start may leave out

RIGHT: list[Case] = []
WRONG: list[Case] = []


# Numbers of 16 bits, on the host.


def bits_of(numbers: Any, dtype: str) -> Any:
    """Return float32 rounded to the type, as the array that a kernel gets."""
    numbers = np.asarray(numbers, F)
    if dtype == FLOAT32:
        return numbers.copy()
    if dtype == FLOAT16:
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16).view(np.uint16)
    bits = numbers.view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FFF, nearest).astype(np.uint16)


def numbers_of(array: Any, dtype: str) -> Any:
    """Return the numbers that an array's bits stand for, in float64."""
    if dtype == FLOAT32:
        return array.astype(np.float64)
    if dtype == FLOAT16:
        return array.view(np.float16).astype(np.float64)
    return (array.astype(np.uint32) << 16).view(F).astype(np.float64)


def matrix_map(array: Any, rows: int, dtype: str = BFLOAT16, name: str = "a") -> BoundMap:
    """A map of a matrix whose rows are contiguous: boxes of that many rows of 128 bytes."""
    many, terms = array.shape
    row = 128 // array.itemsize
    described = BoxMap(name, (terms, many), (terms,), (row, rows), dtype)
    return BoundMap(described, array)


# One buffer: a thread copies a box, and all threads read it.

ROWS, LENGTH, WIDTH = 32, 100, 40  # of a box; of the matrix, in partial boxes
BOX = ROWS * 64


def boxes(a, b):  # type: ignore[no-untyped-def]
    S = cuda.shared.array(BOX, uint16, alignment=BYTES_1024)
    bars = cuda.shared.array(1, uint64)
    t = cuda.threadIdx.x
    if t == 0:
        init_barrier(bars, 0, 1)
        fence_barriers()
    cuda.syncthreads()
    parity = 0
    for row in range(0, LENGTH, ROWS):
        if t == 63:
            expect_bytes(bars, 0, ROWS * 128)
            copy_box(S, 0, a, (8, row), bars, 0)
        wait_barrier(bars, 0, parity)
        for e in range(t, ROWS * 64, 64):
            r, k = e // 64, e % 64
            if row + r < LENGTH:
                b[row + r, k] = S[swizzled_piece(r, k // 8) * 8 + k % 8]
        cuda.syncthreads()  # all have read
        parity ^= 1


def _rows() -> list[Any]:
    a = np.arange(LENGTH * WIDTH, dtype=np.uint16).reshape(LENGTH, WIDTH)
    return [matrix_map(a, ROWS), np.zeros((LENGTH, 64), np.uint16)]


def _rows_from_8(arguments: list[Any]) -> Any:
    return np.pad(arguments[0].array[:, 8:], ((0, 0), (0, 64 - WIDTH + 8)))


BOXES = Case(cuda.jit(boxes), block=64, arguments=_rows, result=_rows_from_8, capability=(9, 0))
RIGHT.append(BOXES)


def boxes_wrong(name: str, kind: str, line: str, edits: Edits, **launch: Any) -> None:
    """Put ``boxes`` with other lines into the table of wrong kernels."""
    WRONG.append(BOXES.mistaken(name, kind, line, edits, launch))


ONE_BOX = "copy_box(S, 0, a, (8, row), bars, 0)"
READ_BOX = "b[row + r, k] = S[swizzled_piece(r, k // 8) * 8 + k % 8]"
boxes_wrong(
    "read_before_the_copy_lands", "copy in flight", "b[row + r, k]",
    {"wait_barrier(bars, 0, parity)": "cuda.syncthreads()"},
)  # fmt: skip
boxes_wrong(
    "one_thread_waits", "shared race", "b[row + r, k]",
    {"wait_barrier(bars, 0, parity)": ("if t == 0:", "    wait_barrier(bars, 0, parity)")},
)  # fmt: skip
boxes_wrong(
    "refilled_while_threads_read", "shared race", "copy_box",
    {"cuda.syncthreads()  # all have read": "pass"},
)  # fmt: skip
boxes_wrong(
    "static_panel_by_chance", "misaligned", "copy_box",
    {"S = cuda.shared.array(BOX, uint16, alignment=BYTES_1024)":
     "S = cuda.shared.array(BOX, uint16)"},
)  # fmt: skip
boxes_wrong(
    "zeros_before_the_copy", "not fenced", "copy_box",
    {"parity = 0": ("parity = 0", "S[t] = 0", "cuda.syncthreads()")},
)  # fmt: skip
boxes_wrong(
    "written_while_it_is_copied", "copy in flight", "S[t] = 0",
    {ONE_BOX: (ONE_BOX, "S[t] = 0")},
)  # fmt: skip
boxes_wrong(
    "block_ends_too_early", "copy in flight", "expect_bytes",
    {"parity ^= 1": ("parity ^= 1", "if t == 63 and row + ROWS >= LENGTH:",
                     "    expect_bytes(bars, 0, ROWS * 128)", f"    {ONE_BOX}")},
)  # fmt: skip
boxes_wrong(
    "next_phase_before_all_have_waited", "wrong phase", "wait_barrier",
    {READ_BOX: "b[row + r, k] = 1", "cuda.syncthreads()  # all have read": "pass"},
)  # fmt: skip


# A matrix product by warps with roles: one thread copies, a warpgroup multiplies.

M, N, K = 160, 27, 144  # partial tiles along all three
N_B, COUNT, TERMS = 32, 16, 64
TILES = 3
STAGES = 2
I_PANEL = 64 * TERMS  # numbers of A's panel
STAGE = I_PANEL + N_B * TERMS
BYTES = 2 * STAGE
WARPS = 4


def gemm_by_roles(a, b, c):  # type: ignore[no-untyped-def]
    S = cuda.shared.array(0, uint16)
    full = cuda.shared.array(STAGES, uint64)
    empty = cuda.shared.array(STAGES, uint64)
    t = cuda.threadIdx.x
    begin = panel_start(S)
    if t == 0:
        for i in range(STAGES):
            init_barrier(full, i, 1)
            init_barrier(empty, i, WARPS)
        fence_barriers()
    cuda.syncthreads()
    stage = 0
    if t >= 128:
        give_registers(40)
        parity = 1
        if t == 128:
            for tile in range(cuda.blockIdx.x, TILES, cuda.gridDim.x):
                for k in range(0, K, TERMS):
                    wait_barrier(empty, stage, parity)
                    expect_bytes(full, stage, BYTES)
                    copy_box(S, begin + stage * STAGE, a, (k, tile * 64), full, stage)
                    copy_box(S, begin + stage * STAGE + I_PANEL, b, (k, 0), full, stage)
                    stage += 1
                    if stage == STAGES:
                        stage, parity = 0, parity ^ 1
    else:
        take_registers(232)
        D = cuda.local.array(COUNT, float32)
        parity = 0
        for tile in range(cuda.blockIdx.x, TILES, cuda.gridDim.x):
            for i in range(COUNT):
                D[i] = float32(0)
            for _ in range(0, K, TERMS):
                wait_barrier(full, stage, parity)
                at = begin + stage * STAGE
                start_product_bf16(D, 0, S, at, at + I_PANEL, N_B, TERMS)
                wait_products(D, COUNT, 0)
                if t % 32 == 0:
                    arrive_barrier(empty, stage)
                stage += 1
                if stage == STAGES:
                    stage, parity = 0, parity ^ 1
            for j in range(COUNT):
                row = tile * 64 + t // 32 * 16 + t % 32 // 4 + j // 2 % 2 * 8
                column = j // 4 * 8 + t % 4 * 2 + j % 2
                if row < M and column < N:
                    c[row, column] = D[j]


@cache
def _matrices(dtype: str) -> tuple[Any, Any]:
    random = np.random.default_rng(50)
    a = bits_of(random.standard_normal((M, K)), dtype)
    b = bits_of(random.standard_normal((N, K)), dtype)
    return a, b


def matrices(dtype: str = BFLOAT16) -> Any:
    """Return what makes the arguments of a matrix product: two maps and the result."""

    def arguments() -> list[Any]:
        a, b = (array.copy() for array in _matrices(dtype))
        row = 128 // a.itemsize
        maps = (
            BoundMap(BoxMap("a", (K, M), (K,), (row, 64), dtype), a),
            BoundMap(BoxMap("b", (K, N), (K,), (row, N_B), dtype), b),
        )
        return [*maps, np.zeros((M, N), F)]

    return arguments


def product(arguments: list[Any]) -> Any:
    """Return ``a @ b.T`` of the arguments' arrays."""
    a, b, _ = arguments
    return numbers_of(a.array, a.map.dtype) @ numbers_of(b.array, b.map.dtype).T


ROLES = Case(
    cuda.jit(gemm_by_roles),
    grid=2,
    block=256,
    arguments=matrices(),
    shared_bytes=STAGES * BYTES + SLACK,
    result=product,
    capability=(9, 0),
)
RIGHT.append(ROLES)


def roles_wrong(name: str, kind: str, line: str, edits: Edits, **launch: Any) -> None:
    """Put a product by roles with other lines into the table of wrong kernels."""
    WRONG.append(ROLES.mistaken(name, kind, line, edits, launch))


def _without(line: str) -> Edits:
    return {line: "pass"}


EXPECT = "expect_bytes(full, stage, BYTES)"
WAIT_EMPTY, WAIT_FULL = "wait_barrier(empty, stage, parity)", "wait_barrier(full, stage, parity)"
COPY_A = "copy_box(S, begin + stage * STAGE, a, (k, tile * 64), full, stage)"
COPY_B = "copy_box(S, begin + stage * STAGE + I_PANEL, b, (k, 0), full, stage)"
START = "start_product_bf16(D, 0, S, at, at + I_PANEL, N_B, TERMS)"
WAIT_PRODUCTS, ARRIVE = "wait_products(D, COUNT, 0)", "arrive_barrier(empty, stage)"
INIT_EMPTY = "init_barrier(empty, i, WARPS)"
ONE_LANE = "if t % 32 == 0:"

roles_wrong("producer_s_parity", "deadlock", "wait_barrier(", {"parity = 1": "parity = 0"})
roles_wrong("consumers_parity", "copy in flight", "start_product", {"parity = 0": "parity = 1"})
roles_wrong(
    "parity_that_never_flips", "copy in flight", "start_product",
    {WAIT_FULL: "wait_barrier(full, stage, 0)"}, grid=1,
)  # fmt: skip
roles_wrong(
    "expect_forgotten", "bytes not expected", "arrive_barrier(full",
    {EXPECT: "arrive_barrier(full, stage)"},
)  # fmt: skip
roles_wrong(
    "one_of_two_copies_expected", "bytes not expected", "expect_bytes",
    {EXPECT: "expect_bytes(full, stage, I_PANEL * 2)"},
)  # fmt: skip
roles_wrong(
    "more_expected_than_copied", "deadlock", "wait_barrier",
    {EXPECT: "expect_bytes(full, stage, BYTES + 128)"},
)  # fmt: skip
roles_wrong("a_copy_forgotten", "deadlock", "wait_barrier", _without(COPY_B))
roles_wrong("wait_for_the_copy_forgotten", "copy in flight", "start_product", _without(WAIT_FULL))
roles_wrong("refilled_while_it_is_copied", "copy in flight", "copy_box", _without(WAIT_EMPTY))
roles_wrong(
    "freed_before_the_product_ends", "shared race", "copy_box",
    {WAIT_PRODUCTS: "pass", ARRIVE: (ARRIVE, WAIT_PRODUCTS), ONE_LANE: "if True:",
     INIT_EMPTY: "init_barrier(empty, i, 128)"},
)  # fmt: skip
roles_wrong(
    "one_product_stays_in_flight", "shared race", "copy_box",
    {WAIT_PRODUCTS: "wait_products(D, COUNT, 1)",
     "for j in range(COUNT):": (WAIT_PRODUCTS, "for j in range(COUNT):")},
)  # fmt: skip
roles_wrong("nobody_frees_the_slice", "deadlock", "wait_barrier", _without(ARRIVE))
roles_wrong(
    "a_warp_does_not_arrive", "deadlock", "wait_barrier", {ONE_LANE: "if t % 32 == 0 and t > 0:"}
)
roles_wrong(
    "one_arrival_is_enough", "wrong phase", "wait_barrier",
    {INIT_EMPTY: "init_barrier(empty, i, 1)"},
)  # fmt: skip
roles_wrong("all_lanes_arrive", "wrong phase", "wait_barrier", {ONE_LANE: "if True:"})
roles_wrong("barriers_not_fenced", "not fenced", "copy_box", _without("fence_barriers()"))
roles_wrong(
    "barriers_not_waited_for", "shared race", "wait_barrier", _without("cuda.syncthreads()")
)
roles_wrong("barrier_not_initialised", "uninitialised", "wait_barrier", _without(INIT_EMPTY))
roles_wrong(
    "panels_begin_anywhere", "misaligned", "copy_box", {"begin = panel_start(S)": "begin = 0"}
)
roles_wrong(
    "panel_of_b_off_its_place", "misaligned", "copy_box",
    {COPY_B: COPY_B.replace("I_PANEL", "I_PANEL + 64")},
)  # fmt: skip
roles_wrong("no_room_for_the_panels", "out of bounds", "copy_box", {}, shared_bytes=BYTES)
roles_wrong(
    "a_thread_misses_the_product", "inactive lane", "start_product",
    {START: ("if t != 5:", f"    {START}")},
)  # fmt: skip
roles_wrong(
    "a_thread_misses_the_wait", "inactive lane", "wait_products",
    {WAIT_PRODUCTS: ("if t != 5:", f"    {WAIT_PRODUCTS}")},
)  # fmt: skip
roles_wrong(
    "only_the_producer_gives_registers", "inactive lane", "give_registers",
    {"give_registers(40)": ("if t == 128:", "    give_registers(40)")},
)  # fmt: skip
roles_wrong(
    "sums_read_before_they_are_there", "uninitialised", "c[row, column] = D[j]",
    {WAIT_PRODUCTS: "wait_products(D, COUNT, 1)"}, grid=3,
)  # fmt: skip
roles_wrong(
    "too_few_rows_copied", "uninitialised", "start_product",
    {START: START.replace("I_PANEL, N_B", "I_PANEL, 2 * N_B"),
     "D = cuda.local.array(COUNT, float32)": "D = cuda.local.array(2 * COUNT, float32)",
     "for i in range(COUNT):": "for i in range(2 * COUNT):",
     WAIT_PRODUCTS: "wait_products(D, 2 * COUNT, 0)"},
    shared_bytes=3 * BYTES + SLACK,
)  # fmt: skip
roles_wrong(
    "arrives_once_more", "wrong phase", "expect_bytes",
    {COPY_A: (EXPECT, COPY_A)},
)  # fmt: skip
roles_wrong(
    "copied_twice_to_one_place", "copy in flight", "copy_box",
    {COPY_B: (COPY_B, COPY_B), EXPECT: "expect_bytes(full, stage, BYTES + N_B * 128)"},
)  # fmt: skip


# The same by asynchronous copies of threads, which store the swizzle themselves.


def gemm_by_threads(a, b, c):  # type: ignore[no-untyped-def]
    S = cuda.shared.array(STAGE, uint16, alignment=BYTES_1024)
    D = cuda.local.array(COUNT, float32)
    t = cuda.threadIdx.x
    row0 = cuda.blockIdx.x * 64
    for i in range(COUNT):
        D[i] = float32(0)
    for k in range(0, K, TERMS):
        for e in range(t, (64 + N_B) * 8, 128):
            row, piece = e // 8, e % 8
            at = swizzled_piece(row, piece) * 8
            inside = k + piece * 8 < K
            if row < 64:
                valid = inside and row0 + row < M
                copy_async8(S, at, a, (row0 + row) * K + k + piece * 8 if valid else 0, valid)
            else:
                valid = inside and row - 64 < N
                copy_async8(S, at, b, (row - 64) * K + k + piece * 8 if valid else 0, valid)
        commit_copies()
        wait_copies(0)
        fence_shared()
        cuda.syncthreads()  # the panels are there
        start_product_f16(D, 0, S, 0, I_PANEL, N_B, TERMS)
        wait_products(D, COUNT, 0)
        cuda.syncthreads()  # and read
    for j in range(COUNT):
        row = row0 + t // 32 * 16 + t % 32 // 4 + j // 2 % 2 * 8
        column = j // 4 * 8 + t % 4 * 2 + j % 2
        if row < M and column < N:
            c[row, column] = D[j]


def _flat_matrices() -> list[Any]:
    a, b = _matrices(FLOAT16)
    return [a.reshape(-1).copy(), b.reshape(-1).copy(), np.zeros((M, N), F)]


def _flat_product(arguments: list[Any]) -> Any:
    a, b = (numbers_of(array, FLOAT16).reshape(-1, K) for array in arguments[:2])
    return a @ b.T


THREADS = Case(
    cuda.jit(gemm_by_threads),
    grid=3,
    block=128,
    arguments=_flat_matrices,
    result=_flat_product,
    capability=(9, 0),
)
RIGHT.append(THREADS)


def threads_wrong(name: str, kind: str, line: str, edits: Edits, **launch: Any) -> None:
    """Put ``gemm_by_threads`` with other lines into the table of wrong kernels."""
    WRONG.append(THREADS.mistaken(name, kind, line, edits, launch))


PANELS_THERE = "cuda.syncthreads()  # the panels are there"
PANELS_READ = "cuda.syncthreads()  # and read"
PRODUCT = "start_product_f16(D, 0, S, 0, I_PANEL, N_B, TERMS)"
threads_wrong(
    "threads_copies_not_fenced", "not fenced", "start_product", {"fence_shared()": "pass"}
)
threads_wrong(
    "panels_fenced_after_the_barrier", "not fenced", "start_product",
    {"fence_shared()": "pass", PANELS_THERE: (PANELS_THERE, "fence_shared()")},
)  # fmt: skip
threads_wrong("product_before_the_barrier", "shared race", "start_product", {PANELS_THERE: "pass"})
threads_wrong(
    "copied_over_a_product", "shared race", "copy_async8",
    {PANELS_READ: "pass", "wait_products(D, COUNT, 0)": "pass",
     "for j in range(COUNT):": ("wait_products(D, COUNT, 0)", "for j in range(COUNT):")},
)  # fmt: skip
threads_wrong(
    "stored_while_it_is_multiplied", "shared race", "S[t] = 0",
    {PRODUCT: (PRODUCT, "S[t] = 0")},
)  # fmt: skip
threads_wrong(
    "panel_never_written", "uninitialised", "start_product",
    {"for e in range(t, (64 + N_B) * 8, 128):": "for e in range(t, 64 * 8, 128):"},
)  # fmt: skip
threads_wrong(
    "copy_off_its_16_bytes", "misaligned", "copy_async8",
    {"at = swizzled_piece(row, piece) * 8": "at = swizzled_piece(row, piece) * 8 + 4"},
)  # fmt: skip
threads_wrong(
    "copy_past_the_panel", "out of bounds", "copy_async8",
    {"at = swizzled_piece(row, piece) * 8": "at = swizzled_piece(row, piece) * 8 + 64"},
)  # fmt: skip


# Barriers of some threads, and registers.


def two_groups(a, b):  # type: ignore[no-untyped-def]
    S = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    S[t] = a[t]
    if t < 64:
        sync_threads_of(1, 64)
        b[t] = S[63 - t]
    else:
        sync_threads_of(2, 64)
        b[t] = S[191 - t]


def _two_rows() -> list[Any]:
    return [np.arange(128, dtype=F), np.zeros(128, F)]


GROUPS = Case(
    cuda.jit(two_groups),
    block=128,
    arguments=_two_rows,
    result=lambda arguments: arguments[0].reshape(2, 64)[:, ::-1].reshape(-1),
)
RIGHT.append(GROUPS)
WRONG.append(GROUPS.mistaken(
    "a_group_of_too_few", "deadlock", "sync_threads_of(2",
    {"sync_threads_of(2, 64)": "sync_threads_of(2, 96)"},
))  # fmt: skip
WRONG.append(GROUPS.mistaken(
    "read_of_another_group", "shared race", "b[t] = S[127 - t]",
    {"b[t] = S[63 - t]": "b[t] = S[127 - t]"},
))  # fmt: skip


def handed_on(a, b):  # type: ignore[no-untyped-def]
    """Each warp hands its numbers on to the next one, by a barrier in shared memory."""
    S = cuda.shared.array(128, float32)
    bars = cuda.shared.array(4, uint64)
    t = cuda.threadIdx.x
    warp = t // 32
    if t < 4:
        init_barrier(bars, t, 1)
    cuda.syncthreads()
    S[t] = a[t]
    cuda.syncwarp()
    if t % 32 == 0:
        arrive_barrier(bars, warp)
    wait_barrier(bars, (warp + 1) % 4, 0)
    b[t] = S[(t + 32) % 128]


HANDED_ON = Case(
    cuda.jit(handed_on),
    block=128,
    arguments=_two_rows,
    result=lambda arguments: np.roll(arguments[0], -32),
)
RIGHT.append(HANDED_ON)
WRONG.append(HANDED_ON.mistaken(
    "lanes_not_waited_for", "shared race", "S[t] = a[t]", {"cuda.syncwarp()": "pass"},
))  # fmt: skip
WRONG.append(HANDED_ON.mistaken(
    "another_warp_s_barrier", "shared race", "b[t] = S[(t + 32)",
    {"wait_barrier(bars, (warp + 1) % 4, 0)": "wait_barrier(bars, warp, 0)"},
))  # fmt: skip


def roles(b):  # type: ignore[no-untyped-def]
    t = cuda.threadIdx.x
    if t < 128:
        give_registers(24)
    else:
        take_registers(240)
    b[t] = t


def _registers(threads: int) -> Case:
    return Case(
        cuda.jit(**gpu_only(launch_bounds=(threads, 1)))(roles),
        block=threads,
        arguments=lambda: [np.zeros(threads, F)],
        result=lambda arguments: np.arange(threads),
        capability=(9, 0),
    )


RIGHT.append(_registers(384))


# Windows of images, through a ring of two panels.


@cache
def make_windows(problem: WindowMap, copies: int) -> Any:
    """``windows(images, b)``: ``b[copy, element, row, channel]`` is row ``row`` of the panel that
    one copy brings, for each element (u, v, c) of the windows. Warps take turns to read."""
    shape_h, shape_w = problem.kernel
    step_h, step_w = problem.stride
    pad_h, pad_w = problem.padding
    far_h, far_w = problem.dilation
    H_o, W_o = problem.windows
    CHANNELS, PIXELS = problem.channels, problem.pixels
    C = problem.shape[3]
    CHUNKS = -(-C // CHANNELS)
    ELEMENTS = shape_h * shape_w * CHUNKS
    PANEL, NBYTES = -(-PIXELS // 8) * 8 * CHANNELS, problem.nbytes
    NUMBERS = PIXELS * CHANNELS
    PIECE = 16 * CHANNELS // 128  # numbers
    BOTH, COPIES = 2 * PANEL, copies
    KIND = float32 if problem.dtype == FLOAT32 else uint16

    @cuda.jit
    def windows(images, b):
        S = cuda.shared.array(BOTH, KIND, alignment=BYTES_1024)
        full = cuda.shared.array(2, uint64)
        t = cuda.threadIdx.x
        if t == 0:
            init_barrier(full, 0, 1)
            init_barrier(full, 1, 1)
            fence_barriers()
        cuda.syncthreads()
        total = COPIES * ELEMENTS
        for turn in range(total + 1):
            if t == 0 and turn < total:
                copy, e = turn // ELEMENTS, turn % ELEMENTS
                u, v, chunk = e // CHUNKS // shape_w, e // CHUNKS % shape_w, e % CHUNKS
                first = copy * PIXELS
                n, rest = first // (H_o * W_o), first % (H_o * W_o)
                h, w = rest // W_o * step_h - pad_h, rest % W_o * step_w - pad_w
                expect_bytes(full, turn % 2, NBYTES)
                copy_windows(
                    S, turn % 2 * PANEL, images, chunk * CHANNELS, w, h, n,
                    v * far_w, u * far_h, full, turn % 2,
                )  # fmt: skip
            if turn > 0:
                at = turn - 1
                wait_barrier(full, at % 2, at // 2 % 2)
                for e in range(t, NUMBERS, 32):
                    row, channel = e // CHANNELS, e % CHANNELS
                    place = swizzled_piece(row, channel // PIECE) * PIECE + channel % PIECE
                    b[at // ELEMENTS, at % ELEMENTS, row, channel] = S[at % 2 * PANEL + place]
                cuda.syncthreads()

    return windows


def windows_by_numpy(problem: WindowMap, images: Any, copies: int) -> Any:
    """Return what ``make_windows`` copies, by slices of padded images."""
    (far_h, far_w), after = problem.dilation, problem.padding_after or problem.padding
    pad_h, pad_w = zip(problem.padding, after, strict=True)
    (step_h, step_w), (H_o, W_o) = problem.stride, problem.windows
    chunks = -(-problem.shape[3] // problem.channels)
    more = chunks * problem.channels - problem.shape[3]
    padded = np.pad(images, ((0, 0), pad_h, pad_w, (0, more)))
    found = []
    for u in range(problem.kernel[0]):
        for v in range(problem.kernel[1]):
            rows = padded[:, u * far_h :, v * far_w :][:, ::step_h, ::step_w][:, :H_o, :W_o]
            for part in np.split(rows, chunks, axis=3):
                flat = part.reshape(-1, problem.channels)
                whole = np.zeros((copies * problem.pixels, problem.channels), flat.dtype)
                whole[: len(flat)] = flat[: len(whole)]
                found.append(whole.reshape(copies, problem.pixels, problem.channels))
    return np.stack(found, axis=1)


# Products of panels of any kind, one for each block.

START_OF = {FLOAT16: start_product_f16, BFLOAT16: start_product_bf16, FLOAT32: start_product_tf32}


@cache
def make_products(dtype: str, width: int, terms: int, products: int = 1) -> Any:
    """``multiply(a, b, c)``: ``c += a @ b.T`` by a warpgroup, of 64 rows and ``width`` rows, whose
    panels the copy engine brings. The first ``terms`` terms of so many panels count."""
    start = START_OF[dtype]
    KIND = float32 if dtype == FLOAT32 else uint16
    ROW = 32 if dtype == FLOAT32 else 64
    SUMS, PANEL_A, PANEL_B = width // 2, 64 * ROW, width * ROW
    BOTH = PANEL_A + PANEL_B
    NBYTES = (64 + width) * 128

    @cuda.jit
    def multiply(a, b, c):
        S = cuda.shared.array(BOTH, KIND, alignment=BYTES_1024)
        full = cuda.shared.array(1, uint64)
        D = cuda.local.array(SUMS, float32)
        t = cuda.threadIdx.x
        if t == 0:
            init_barrier(full, 0, 1)
            fence_barriers()
        cuda.syncthreads()
        row0, column0 = t // 32 * 16 + t % 32 // 4, t % 4 * 2
        for j in range(SUMS):
            D[j] = c[row0 + j // 2 % 2 * 8, column0 + j // 4 * 8 + j % 2]
        for panel in range(products):
            if t == 0:
                expect_bytes(full, 0, NBYTES)
                copy_box(S, 0, a, (panel * ROW, 0), full, 0)
                copy_box(S, PANEL_A, b, (panel * ROW, 0), full, 0)
            wait_barrier(full, 0, panel % 2)
            start(D, 0, S, 0, PANEL_A, width, terms)
            wait_products(D, SUMS, 0)
            cuda.syncthreads()
        for j in range(SUMS):
            c[row0 + j // 2 % 2 * 8, column0 + j // 4 * 8 + j % 2] = D[j]

    return multiply


def product_arguments(
    dtype: str, width: int, terms: int, products: int = 1, seed: int = 1
) -> list[Any]:
    """Return random panels and sums for ``make_products``."""
    random = np.random.default_rng(seed)
    row = 32 if dtype == FLOAT32 else 64
    a = bits_of(random.standard_normal((64, products * row)), dtype)
    b = bits_of(random.standard_normal((width, products * row)), dtype)
    c = random.standard_normal((64, width)).astype(F)
    return [matrix_map(a, 64, dtype), matrix_map(b, width, dtype, "b"), c]


# Two products in flight, and results rounded to pairs and stored eight at a time.


def two_in_flight(a, b, c):  # type: ignore[no-untyped-def]
    S = cuda.shared.array(TWO_PANELS, uint16, alignment=BYTES_1024)
    full = cuda.shared.array(1, uint64)
    D = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    if t == 0:
        init_barrier(full, 0, 1)
        fence_barriers()
    for j in range(4):
        D[j], D[j + 4] = float32(0), float32(1)
    cuda.syncthreads()
    if t == 0:
        expect_bytes(full, 0, TWO_PANELS * 2)
        copy_box(S, 0, a, (0, 0), full, 0)
        copy_box(S, I_PANEL, b, (0, 0), full, 0)
    wait_barrier(full, 0, 0)
    start_product_f16(D, 0, S, 0, I_PANEL, 8, 64)
    start_product_f16(D, 4, S, 0, I_PANEL, 8, 16)
    wait_products(D, 8, 1)
    pairs = pair_f16(D[0], D[1]), pair_f16(D[2], D[3])
    wait_products(D, 8, 0)
    more = pair_f16(D[4], D[5]), pair_f16(D[6], D[7])
    store_pairs(c, t * 8, (pairs[0], pairs[1], more[0], more[1]))


TWO_PANELS = (64 + 8) * 64


def _two_products() -> list[Any]:
    a, b, _ = product_arguments(FLOAT16, 8, 64, seed=7)
    return [a, b, np.zeros(1024, np.uint16)]


def _two_results(arguments: list[Any]) -> Any:
    a, b = (numbers_of(one.array, FLOAT16) for one in arguments[:2])
    thread = np.arange(128)
    row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
    both = [a @ b.T, a[:, :16] @ b[:, :16].T + 1]
    sums = [one[row + 8 * (j // 2), column + j % 2] for one in both for j in range(4)]
    return bits_of(np.stack(sums, 1).reshape(-1), FLOAT16)


TWO = Case(
    cuda.jit(two_in_flight), block=128, arguments=_two_products, result=_two_results,
    capability=(9, 0),
)  # fmt: skip
RIGHT.append(TWO)
WRONG.append(TWO.mistaken(
    "second_product_not_waited_for", "uninitialised", "more = pair_f16",
    {"wait_products(D, 8, 0)": "pass"},
))  # fmt: skip
WRONG.append(TWO.mistaken(
    "first_product_may_be_in_flight", "uninitialised", "pairs = pair_f16",
    {"wait_products(D, 8, 1)": "wait_products(D, 8, 2)"},
))  # fmt: skip
WRONG.append(TWO.mistaken(
    "store_off_its_16_bytes", "misaligned", "store_pairs",
    {"store_pairs(c, t * 8, (pairs[0], pairs[1], more[0], more[1]))":
     "store_pairs(c, t * 4, (pairs[0], pairs[1], more[0], more[1]))"},
))  # fmt: skip


def _wrong_roles(name: str, kind: str, line: str, edits: Edits, threads: int) -> None:
    edited_roles = edited(roles, name, edits)
    case = _registers(threads)
    kernel = cuda.jit(**gpu_only(launch_bounds=(threads, 1)))(edited_roles)
    WRONG.append(replace(case, kernel=kernel, kind=kind, line=line, result=None))


GIVE, TAKE = "give_registers(24)", "take_registers(240)"
_wrong_roles("takes_for_ever", "deadlock", "take_registers", {GIVE: "give_registers(168)"}, 384)
_wrong_roles("gives_more_than_it_has", "inactive lane", "give", {GIVE: "give_registers(240)"}, 384)
_wrong_roles("takes_fewer", "inactive lane", "take", {TAKE: "take_registers(40)"}, 256)
_wrong_roles(
    "a_warp_takes_none", "inactive lane", "take",
    {TAKE: ("if t < 352:", f"    {TAKE}")}, 384,
)  # fmt: skip
