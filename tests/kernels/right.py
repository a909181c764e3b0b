"""Right kernels that a careless checker would call wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32, int32

from convlab.device import (
    commit_copies,
    copy_async,
    copy_async4,
    load4,
    mma_tf32,
    store4,
    to_tf32,
    wait_copies,
)
from kernels.cases import (
    ALL,
    ARRAY,
    BARRIER,
    DO,
    INDEX,
    PUT,
    TABLE,
    WRITE,
    Case,
    F,
    each_its_element,
    edited,
    floats,
    row_and,
    through_shared_memory,
)
from kernels.tensor_cores import gemm_shape, tf32_gemm
from kernels.warpgroups import (
    FENCE,
    FINISH,
    MATRIX,
    PAIR,
    RESULT,
    START,
    STORE,
    first_sums,
    product_of_a_warpgroup,
)

RIGHT: list[Case] = []
ONE = np.zeros(1, F)


def right(
    result: Callable[[list[Any]], Any], grid: Any = 1, block: Any = 64, arguments: Any = None,
    **more: Any,
) -> Callable[[Any], Case]:  # fmt: skip
    """Compile the function below and put it into the table. ``result`` of the arguments is what
    the last argument becomes."""

    def add(function: Any) -> Case:
        made = arguments or floats(64, 64)
        RIGHT.append(Case(cuda.jit(function), grid, block, made, result=result, **more))
        return RIGHT[-1]

    return add


def variants(of: Any, *rows: tuple[Any, ...]) -> None:
    """Put edits of a right kernel into the table. A row has a name, the result, ``{line of that
    kernel: line or lines instead of it}``, and perhaps how its launch differs."""
    case = Case(cuda.jit(of), block=64, arguments=floats(64, 64))
    for name, result, edits, *launch in rows:
        RIGHT.append(case.edited(name, edits, result=result, **dict(*launch)))


WARP: dict[str, Any] = {"block": 32, "arguments": floats(32, 32)}
variants(
    each_its_element,
    ("early_exit_then_atomic", lambda a: [a[0].sum()],
     {DO: ("if i >= a.size:", "    return", "cuda.atomic.add(b, 0, a[i])")},
     {"grid": 4, "block": 32, "arguments": row_and(ONE, size=100)}),
    ("grid_stride_loop", lambda a: a[0] * 2,
     {INDEX: "for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):", DO: "    b[i] = a[i] * 2"},
     {"grid": 2, "block": 8, "arguments": floats(100, 100)}),
    ("one_value_after_rounding", lambda a: [F(0.1)], {DO: "b[0] = 0.1 + i * 1e-12"},
     {"arguments": floats(64, 1)}),
    ("long_loop_over_the_same_few", lambda a: [a[0].sum() * 32],
     {INDEX: ("k = 0", "b[0] = 0"), DO: ("while k < 2048:", "    b[0] += a[k % 64]", "    k += 1")},
     {"block": 1, "arguments": floats(64, 1)}),
    ("long_loop_with_one_in_four_barriers", lambda a: a[0] * 0 + 3000,
     {DO: ("k = 0", "while k < 3000:", "    if k % 750 == 0:", "        cuda.syncthreads()",
           "    k += 1", "b[i] = k")}),
    ("rows_filled_at_once", lambda a: a[1] * 0 + 3,
     {DO: ("b[0] = a[3]", "b[1, 1:] = 3", "b[1, :1] = 3")},
     {"block": 1, "arguments": floats(64, (2, 3))}),
    ("in_place_through_registers", lambda a: a[0][::-1],
     {DO: (DO, BARRIER, "value = b[63 - i]", BARRIER, "b[i] = value")}),
    ("one_lane_tells_the_others", lambda a: np.repeat([a[0][1], a[0][33]], 32),
     {DO: "b[i] = cuda.shfl_sync(ALL, a[i], 1)"}),
    ("votes", lambda a: a[0] // 2 * 2 == a[0],
     {DO: ("even = cuda.ballot_sync(ALL, int(a[i]) % 2 == 0)",
           "everybody = cuda.all_sync(ALL, even == 0x55555555) and cuda.any_sync(ALL, i == 7)",
           "b[i] = even >> cuda.laneid & 1 if everybody else -1")}, WARP),
    ("counting_barrier", lambda a: a[0] * 0 + 32,
     {DO: "b[i] = cuda.syncthreads_count(1 if a[i] < 32 else 0)"}),
    ("maximum_by_atomics", lambda a: [a[0].max()], {DO: "cuda.atomic.max(b, 0, a[i])"},
     {"grid": 4, "block": 16, "arguments": row_and(np.full(1, -np.inf, F))}),
    ("constant_table", lambda a: TABLE[a[0].astype(int) % 4],
     {DO: ("table = cuda.const.array_like(TABLE)", "b[i] = table[int(a[i]) % 4]")}),
    ("rows_as_views", lambda a: a[0].sum(1),
     {DO: ("row = a[i]", "total = float64(0)", "for k in range(row.shape[0]):",
           "    total += row[k]", "b[i] = total")}, {"block": 8, "arguments": floats((8, 8), 8)}),
)  # fmt: skip
variants(
    through_shared_memory,
    ("halves_of_a_warp", lambda a: a[0].reshape(2, 16)[:, ::-1].ravel(),
     {BARRIER: "cuda.syncwarp(0xFFFF if i < 16 else 0xFFFF0000)",
      WRITE: "b[i] = S[15 - i] if i < 16 else S[47 - i]"}, WARP),
    ("early_exit_before_a_warp_barrier", lambda a: a[0][::-1],
     {PUT: ("if i >= a.size:", "    return", PUT), BARRIER: "cuda.syncwarp()",
      WRITE: "b[i] = S[19 - i]"}, {"block": 32, "arguments": floats(20, 20)}),
    ("histogram_with_shared_atomics", lambda a: [16] * 4,
     {ARRAY: "S = cuda.shared.array(4, int32)", PUT: ("if i < 4:", "    S[i] = 0"),
      WRITE: ("cuda.atomic.add(S, int(a[i]) % 4, 1)", BARRIER, "if i < 4:", f"    {WRITE}")},
     {"arguments": floats(64, 4)}),
    ("dynamic_memory_carved_in_two", lambda a: a[0][::-1] + 1,
     {ARRAY: ("whole = cuda.shared.array(0, float32)", "S, other = whole[:64], whole[64:]"),
      PUT: (PUT, "other[i] = float32(1)"), WRITE: "b[i] = S[63 - i] + other[63 - i]"},
     {"shared_bytes": 512}),
    ("several_arrays_on_a_line", lambda a: a[0] + a[0][::-1],
     {ARRAY: "one, other = cuda.shared.array(64, float32), cuda.shared.array(64, float32)",
      PUT: "one[i], other[63 - i] = a[i], a[i]", WRITE: "b[i] = one[i] + other[i]"}),
    ("all_set_the_same_flag", lambda a: a[0] * 0 + 1,
     {ARRAY: "flag = cuda.shared.array(1, int32)", PUT: ("if i == 0:", "    flag[0] = 0"),
      WRITE: ("if a[i] >= 0:", "    flag[0] = 1", BARRIER, "b[i] = flag[0]")}),
    ("wide_accesses", lambda a: a[0] * 2,
     {ARRAY: "S = cuda.shared.array(64, float32, alignment=16)",
      "i = cuda.threadIdx.x": "i = uint32(cuda.threadIdx.x) * 4",
      PUT: "store4(S, i, load4(a, i))", BARRIER: "x, y, z, w = load4(S, i)",
      WRITE: "store4(b, i, (x + x, y + y, z + z, w + w))"}, {"block": 16}),
)  # fmt: skip


@right(lambda a: [a[0].sum()], arguments=floats(64, 1))
def reduction_with_shuffles(a, b):
    sums = cuda.shared.array(2, float32)
    i = cuda.threadIdx.x
    value = a[i]
    step = 16
    while step > 0:
        value += cuda.shfl_down_sync(ALL, value, step)
        step //= 2
    if cuda.laneid == 0:
        sums[i // 32] = value
    cuda.syncthreads()
    if i == 0:
        b[0] = sums[0] + sums[1]


@right(lambda a: [a[0].sum()], arguments=floats(64, 1))
def reduction_in_shared_memory(a, b):
    sums = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    sums[i] = a[i]
    cuda.syncthreads()
    step = 32
    while step > 0:
        if i < step:
            sums[i] += sums[i + step]
        cuda.syncthreads()
        step //= 2
    if i == 0:
        b[0] = sums[0]


@right(lambda a: [a[0].sum()], block=32, arguments=floats(32, 1))
def warp_synchronous_reduction(a, b):
    sums = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    sums[i] = a[i]
    cuda.syncwarp()
    step = 16
    while step > 0:
        other = float32(0)
        if i < step:
            other = sums[i + step]
        cuda.syncwarp()
        if i < step:
            sums[i] += other
        cuda.syncwarp()
        step //= 2
    if i == 0:
        b[0] = sums[0]


@right(lambda a: np.cumsum(a[0]))
def scan_with_two_buffers(a, b):
    sums = cuda.shared.array((2, 64), float32)
    i = cuda.threadIdx.x
    sums[0, i] = a[i]
    cuda.syncthreads()
    now, step = 0, 1
    while step < 64:
        sums[1 - now, i] = sums[now, i]
        if i >= step:
            sums[1 - now, i] += sums[now, i - step]
        now = 1 - now
        step *= 2
        cuda.syncthreads()
    b[i] = sums[now, i]


@right(lambda a: np.cumsum(a[0]), block=32, arguments=floats(32, 32))
def scan_of_a_warp(a, b):
    i = cuda.threadIdx.x
    value = a[i]
    step = 1
    while step < 32:
        other = cuda.shfl_up_sync(ALL, value, step)
        if i >= step:
            value += other
        step *= 2
    b[i] = value


@right(lambda a: a[0].T, grid=(2, 2), block=(8, 2), arguments=floats((16, 16), (16, 16)))
def transpose_with_padding(a, b):
    square = cuda.shared.array((8, 9), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.blockIdx.x * 8, cuda.blockIdx.y * 8
    for k in range(0, 8, 2):
        square[ty + k, tx] = a[y + ty + k, x + tx]
    cuda.syncthreads()
    for k in range(0, 8, 2):
        b[x + ty + k, y + tx] = square[tx, ty + k]


@right(lambda a: a[0] @ a[1], (2, 2), (8, 8), floats((16, 16), (16, 16), (16, 16)))
def double_buffered_tiles(a, b, c):
    S_A, S_B = cuda.shared.array((2, 8, 8), float32), cuda.shared.array((2, 8, 8), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * 8 + ty, cuda.blockIdx.x * 8 + tx
    total = float32(0)
    for slice in range(2):
        S_A[slice % 2, ty, tx] = a[row, slice * 8 + tx]
        S_B[slice % 2, ty, tx] = b[slice * 8 + ty, column]
        cuda.syncthreads()
        for k in range(8):
            total += S_A[slice % 2, ty, k] * S_B[slice % 2, k, tx]
    c[row, column] = total


@right(lambda a: np.tile(a[0] + a[0][::-1], 2), 2, 32, floats(32, 64), shared_bytes=256)
def dynamic_memory_called_for_twice(a, b):
    first = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    first[i] = a[i]
    second = cuda.shared.array(0, int32)[32:]
    second[i] = int(a[i])
    cuda.syncthreads()
    b[cuda.grid(1)] = first[31 - i] + second[i]


PARTS: dict[str, Any] = {
    "grid": 4, "block": 16, "arguments": row_and(np.zeros(64, F), np.zeros(1, np.uint32), ONE),
}  # fmt: skip


@right(lambda a: [a[0].sum()], **PARTS)
def one_thread_speaks_for_its_block(a, parts, done, b):
    last = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    parts[cuda.grid(1)] = a[cuda.grid(1)]
    cuda.syncthreads()  # all parts are there
    if i == 15:
        cuda.threadfence()
        last[0] = cuda.atomic.inc(done, 0, 3) == 3
    cuda.syncthreads()
    if last[0] and i == 0:
        total = float32(0)
        for k in range(64):
            total += parts[k]
        b[0] = total


RIGHT.append(
    one_thread_speaks_for_its_block.edited(
        "last_block_sums_up",
        {"last = cuda.shared.array(1, int32)":
         "last, sums = cuda.shared.array(1, int32), cuda.shared.array(16, float32)",
         "parts[cuda.grid(1)] = a[cuda.grid(1)]": "sums[i] = a[cuda.grid(1)]",
         "if i == 15:": ("if i == 0:", "    parts[cuda.blockIdx.x] = 0", "    for k in range(16):",
                         "        parts[cuda.blockIdx.x] += sums[k]"),
         "for k in range(64):": "for k in range(4):"},
    )
)  # fmt: skip


@right(lambda a: [65], arguments=lambda: [np.zeros(1, np.int32)])
def cleared_by_an_exchange(a):
    count = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        cuda.atomic.exch(count, 0, 1)
    cuda.syncthreads()
    cuda.atomic.add(count, 0, 1)
    cuda.syncthreads()
    a[0] = count[0]


@right(lambda a: [64], grid=4, block=16, arguments=row_and(np.zeros(1, np.int32), ONE))
def counting_under_a_lock(a, lock, b):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    b[0] += 1
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


RIGHT += [
    counting_under_a_lock.edited("spin_lock_between_blocks", {}, grid=2, block=32),
    counting_under_a_lock.edited(
        "sum_under_a_lock", {"b[0] += 1": "cuda.atomic.add(b, 0, a[cuda.threadIdx.x])"},
        grid=1, block=64, result=lambda a: [2016],
    ),
]  # fmt: skip


@right(lambda a: [16], block=16, arguments=row_and(ONE))
def counting_under_a_lock_of_the_block(a, b):
    lock = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        lock[0] = 0
    cuda.syncthreads()
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence_block()  # or the compiler may read b before it has the lock
    b[0] += 1
    cuda.threadfence_block()
    cuda.atomic.exch(lock, 0, 0)


FLAGS: dict[str, Any] = {"arguments": row_and(np.zeros(8, np.int32), np.zeros(64, F))}


@right(lambda a: a[0] * 2, grid=2, block=8, **FLAGS)
def persistent_queue(a, head, b):
    k = cuda.atomic.add(head, 0, 1)
    while k < 64:
        b[k] = a[k] * 2
        k = cuda.atomic.add(head, 0, 1)


@right(lambda a: np.append(np.full(32, 31), a[0][:32]), 2, 32, **FLAGS)
def first_block_waits_for_the_second(a, flag, b):
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        if i == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        cuda.syncthreads()
        b[i] = b[63]
    else:
        b[32 + i] = a[i]
        cuda.syncthreads()
        if i == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)


@right(lambda a: a[0][::-1], grid=4, block=16, **FLAGS)
def all_blocks_meet(a, count, b):
    i = cuda.grid(1)
    b[i] = a[i]
    for k in range(1, 3):
        value = b[63 - i] if k == 2 else float32(0)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            cuda.threadfence()
            cuda.atomic.add(count, 0, 1)
            while cuda.atomic.add(count, 0, 0) < k * cuda.gridDim.x:
                cuda.nanosleep(20)
            cuda.threadfence()
        cuda.syncthreads()
    b[i] = value


@right(lambda a: np.cumsum(a[0][:8]), grid=8, block=1,
       arguments=row_and(np.zeros(8, np.int32), np.zeros(8, F)))  # fmt: skip
def scan_from_block_to_block(a, done, b):
    block = cuda.gridDim.x - 1 - cuda.blockIdx.x
    place = 7 - block
    total = a[place]
    if place > 0:
        while cuda.atomic.add(done, place - 1, 0) == 0:
            pass
        cuda.threadfence()
        total += b[place - 1]
    b[place] = total
    cuda.threadfence()
    cuda.atomic.exch(done, place, 1)


@right(lambda a: [5], arguments=row_and(ONE))
def one_warp_waits_for_the_other(a, b):
    data, flag = cuda.shared.array(1, float32), cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        flag[0] = 0
    cuda.syncthreads()
    if i == 63:
        data[0] = a[5]
        cuda.threadfence_block()
        cuda.atomic.exch(flag, 0, 1)
    if i == 0:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        cuda.threadfence_block()
        b[0] = data[0]


@right(lambda a: [400], block=2, arguments=row_and(np.zeros(2, np.int32), ONE))
def lock_with_a_pause_that_grows(a, lock, b):
    for _ in range(200):
        pause = 8
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            cuda.nanosleep(pause)
            pause *= 2
        cuda.threadfence()
        b[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@right(lambda a: [1, 2, 3, 4], grid=2, block=1,
       arguments=lambda: [np.zeros(1, np.int32), np.zeros(1), np.zeros(4)])  # fmt: skip
def one_cell_handed_from_block_to_block(full, cell, b):
    for k in range(4):
        if cuda.blockIdx.x == 0:
            while cuda.atomic.add(full, 0, 0) == 0:
                pass
            cuda.threadfence()
            b[k] = cell[0]
            cuda.threadfence()
            cuda.atomic.exch(full, 0, 0)
        else:
            while cuda.atomic.add(full, 0, 0) == 1:
                pass
            cuda.threadfence()
            cell[0] = k + 1
            cuda.threadfence()
            cuda.atomic.exch(full, 0, 1)


@right(lambda a: np.convolve(a[0], [1, 2, 3, 2, 1], "same"))
def stencil_with_a_halo(a, b):
    staged = cuda.shared.array(68, float32)
    i = cuda.threadIdx.x
    staged[i + 2] = a[i]
    if i < 2:
        staged[i] = float32(0)
        staged[i + 66] = float32(0)
    cuda.syncthreads()
    total = float32(0)
    for k in range(5):
        total += staged[i + k] * min(k + 1, 5 - k)
    b[i] = total


@right(lambda a: a[0] + 1, block=1, arguments=floats(8, 8))
def wide_accesses_of_local_memory(a, b):
    window = cuda.local.array((2, 4), float32, alignment=16)
    for row in range(2):
        store4(window, (row, 0), load4(a, 4 * row))
        for k in range(4):
            window[row, k] += 1
        store4(b, 4 * row, load4(window, (row, 0)))


@right(lambda a: [a[0].sum() + a[0][:, 1].sum() + 6], block=1, arguments=floats((3, 4), 1))
def loops_over_arrays(a, b):
    own = cuda.local.array(3, float32)
    for k in range(3):
        own[k] = 1 + k
    total = float32(0)
    for row in a:
        for value in row:
            total += value
    for value in own:
        total += value
    for value in a[..., 1]:
        total += value
    b[0] = total


@right(lambda a: a[0].reshape(2, 32).sum(1), block=64, arguments=floats(64, 2))
def warps_at_their_own_pace(a, b):
    sums = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    sums[i] = a[i]
    for _ in range(i // 32 + 1):  # another number of warp barriers in each warp
        cuda.syncwarp()
    if cuda.laneid == 0:
        total = float32(0)
        for k in range(32):
            total += sums[i + k]
        b[i // 32] = total


@right(lambda a: a[0].reshape(4, 64)[:, ::-1].sum(0), arguments=floats(256, 64))
def pipeline_of_two_buffers(a, b):
    buffers = cuda.shared.array((2, 64), float32)
    i = cuda.threadIdx.x
    total = float32(0)
    copy_async(buffers, (0, i), a, i, True)
    commit_copies()
    for tile in range(4):
        if tile < 3:
            copy_async(buffers, ((tile + 1) % 2, i), a, (tile + 1) * 64 + i, True)
        commit_copies()  # an empty group at the end, so that one wait does for all
        wait_copies(1)
        cuda.syncthreads()
        total += buffers[tile % 2, 63 - i]
        cuda.syncthreads()
    b[i] = total


@right(lambda a: np.append(a[0], [0, 0]).reshape(7, 16)[:, ::-1].sum(0), block=16,
       arguments=floats(110, 16))  # fmt: skip
def pipeline_of_three_buffers_with_an_edge(a, b):
    buffers = cuda.shared.array((3, 16), float32, alignment=16)
    i = cuda.threadIdx.x
    total = float32(0)
    for tile in range(9):
        if tile < 7 and i < 4:
            first = tile * 16 + i * 4
            copy_async4(buffers, (tile % 3, i * 4), a, first, first + 4 <= a.size)
            if first + 4 > a.size > first:  # what is left is no whole run: zeros, then by itself
                commit_copies()
                wait_copies(0)
                for k in range(first, a.size):
                    buffers[tile % 3, k % 16] = a[k]
        commit_copies()
        if tile >= 2:
            wait_copies(2)
            cuda.syncthreads()
            total += buffers[(tile - 2) % 3, 15 - i]
            cuda.syncthreads()
    b[i] = total


@right(lambda a: a[0] + a[0][::-1])
def groups_waited_for_one_by_one(a, b):
    first, second = cuda.shared.array(64, float32), cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    copy_async(first, i, a, i, True)
    commit_copies()
    copy_async(second, i, a, 63 - i, True)
    commit_copies()
    wait_copies(1)
    value = first[i]  # its own: no barrier is needed
    wait_copies(0)
    cuda.syncthreads()
    b[i] = value + second[i]


@right(lambda a: a[0], grid=2, block=32)
def copy_that_nobody_reads(a, b):
    staged = cuda.shared.array(32, float32)
    i = cuda.grid(1)
    if cuda.blockIdx.x == 0:
        copy_async(staged, i, a, i, True)
    else:
        staged[i % 32] = a[i]  # nothing is in flight of the block before
    b[i] = a[i]


@right(lambda a: a[0] * 0 + 1, block=64, arguments=floats(64, 64))
def all_copy_the_same(a, b):
    staged = cuda.shared.array(1, float32)
    copy_async(staged, 0, a, 1, True)
    commit_copies()
    cuda.syncthreads()
    wait_copies(0)
    cuda.syncthreads()
    b[cuda.threadIdx.x] = staged[0]


# Tensor cores


@right(lambda a: np.where(np.arange(96) // 32 == 1, a[0], 8 + a[0] % 8 // 4), block=96,
       arguments=floats(96, 96))  # fmt: skip
def tensor_core_of_some_warps(a, b):
    i = cuda.threadIdx.x
    if i % 2:  # lanes part, and are together again
        x = float32(1)
    else:
        x = to_tf32(float32(1.0001))
    if i // 32 == 1:  # the whole warp does something else
        b[i] = a[i]
    else:
        c = float32(a[i] % 8 // 4)
        total = mma_tf32((x, x, x, x), (x, x), (c, c, c, c))
        if i % 4 < 2:  # what a result is for is each lane's own affair
            b[i] = total[0]
        else:
            b[i] = total[3]


# Whole numbers below 2048, which TF32 has.
right(lambda a: a[0] @ a[1], *gemm_shape(40, 37), floats((40, 45), (45, 37), (40, 37)))(tf32_gemm)


# Warpgroups

WARPGROUP: dict[str, Any] = {"block": 128, "capability": (9, 0)}


def sums_of_slices(numbers: Any) -> Any:
    """Those of slices of 256 numbers, added up."""
    return sum(map(first_sums, numbers.reshape(-1, 256)))


def right_product(name: str, result: Any, edits: dict[str, Any], **launch: Any) -> None:
    """Put an edit of the right product into the table."""
    more = {"arguments": floats(256, 128), **WARPGROUP} | launch
    right(result, **more)(edited(product_of_a_warpgroup, name, edits))


TWO_SLOTS = {MATRIX: MATRIX.replace("256", "512"), RESULT: "b[i] = total"}
SLICES: dict[str, Any] = {"arguments": floats(1024, 128)}
TOTAL = "total = float32(0)"
right_product(
    "other_slot_filled_while_tensor_cores_read", lambda a: sums_of_slices(a[0]),
    {**TWO_SLOTS,
     STORE: (TOTAL, STORE, "for k in range(4):",
             "    now, other = k % 2 * 256, (k + 1) % 2 * 256"),
     FENCE: f"    {FENCE}", BARRIER: f"    {BARRIER}",
     START: ("    start_product(D, L, T, S, now, 8)",
             "    if k < 3:",
             "        S[other + i] = a[256 * (k + 1) + i]",
             "        S[other + i + 128] = a[256 * (k + 1) + i + 128]"),
     FINISH: (f"    {FINISH}", "    total += D[0]")}, **SLICES,
)  # fmt: skip
right_product(
    "copies_into_the_other_slot_across_barriers", lambda a: sums_of_slices(a[0]),
    {**TWO_SLOTS,
     STORE: (TOTAL, "for k in range(5):",
             "    slot, last = k % 2 * 256, (k + 1) % 2 * 256",
             "    if k < 4:",
             "        copy_async(S, slot + i, a, 256 * k + i, True)",
             "        copy_async(S, slot + i + 128, a, 256 * k + i + 128, True)",
             "    commit_copies()",
             "    if k > 0:",
             "        start_product(D, L, T, S, last, 8)",
             "    wait_copies(0)"),
     FENCE: f"    {FENCE}", BARRIER: f"    {BARRIER}  # while the product is under way",
     START: "    if k > 0:",
     FINISH: (f"        {FINISH}", "        total += D[0]",
              f"    {BARRIER}  # everybody's is done: the next copies may come")}, **SLICES,
)  # fmt: skip
right_product(
    "two_products_into_two_arrays", lambda a: first_sums(a[0], 6, 3),
    {STORE: ("E = cuda.local.array(4, float32)", PAIR),
     START: (START, "start_product(E, T, L, S, 0, 8)"),
     FINISH: (FINISH, "finish_product(E, 8)", BARRIER, "S[i] = float32(0)"),
     RESULT: "b[i] = D[0] + E[0]"},
)  # fmt: skip
right_product(
    "product_into_a_part_of_an_array", lambda a: first_sums(a[0]) + 7,
    {MATRIX: MATRIX.replace("256", "300"),
     "D = cuda.local.array(4, float32)": "D = cuda.local.array(6, float32)",
     STORE: ("S[44 + i], S[44 + i + 128] = a[i], a[i + 128]", "D[5] = float32(7)"),
     START: ("start_product(D, L, T, S, 44, 8)",
             "if i < 44:", "    S[i] = D[5]  # beside what tensor cores read and write"),
     RESULT: "b[i] = D[0] + D[5]"},
)  # fmt: skip
right_product(
    "two_warps_beside_a_warpgroup", lambda a: np.append(first_sums(a[0]), np.full(64, a[0].sum())),
    {STORE: ("if i >= 128:", "    for k in range(i - 128, 256, 64):", "        S[k] = a[k]"),
     FENCE: f"    {FENCE}", START: ("if i < 128:", f"    {START}"), FINISH: f"    {FINISH}",
     RESULT: (f"    {RESULT}", "else:", f"    {TOTAL}",
              "    for k in range(256):  # tensor cores read it too", "        total += S[k]",
              "    b[i] = total")}, block=192, arguments=floats(256, 192),
)  # fmt: skip
right_product(
    "fenced_once_for_two_barriers", lambda a: first_sums(a[0]),
    # Written anew: what counts is the fence after the last one, which stands between barriers.
    {STORE: ("S[i] = float32(0)", BARRIER, PAIR, BARRIER)},
)  # fmt: skip


# Elements of several sizes in the same bytes.

variants(
    each_its_element,
    ("bytes_beside_elements", lambda a: [0x04030201, *np.arange(1, 8)],
     {DO: ("if i < 4:", "    b.view(np.uint8)[i] = i + 1", "else:", "    b[i - 3] = i - 3")},
     {"block": 11, "arguments": row_and(np.zeros(8, np.int32))}),
    ("parts_of_complex_numbers", lambda a: np.full(32, 1 + 2j),
     {DO: ("b.real[i] = 1", "b.imag[(i + 1) % 32] = 2")},
     {"block": 32, "arguments": row_and(np.zeros(32, np.complex64))}),
    ("view_of_an_aligned_slice", lambda a: a[0][:32].view(np.float64),
     {DO: "b[i] = a[:32].view(np.float64)[i]"},
     {"block": 16, "arguments": row_and(np.zeros(16), size=34)}),
)  # fmt: skip
variants(
    through_shared_memory,
    ("cleared_by_bytes", lambda a: np.zeros(32),
     {PUT: ("for k in range(4):", "    S.view(np.uint8)[4 * i + k] = 0"),
      WRITE: "b[i] = S[31 - i]"}, WARP),
    ("dynamic_arrays_side_by_side", lambda a: a[0][::-1] + 3,
     {ARRAY: ("S = cuda.shared.array(0, float32)[:32]",
              "wide = cuda.shared.array(0, np.int64)[16:]"),
      PUT: "S[i], wide[i] = a[i], 3", WRITE: "b[i] = S[31 - i] + wide[31 - i]"},
     {**WARP, "shared_bytes": 384}),
    ("fields_of_neighbours", lambda a: a[0][::-1],
     {ARRAY: "S = cuda.shared.array(32, FIELDS)",
      PUT: ("S[i].x = a[i]", "S[(i + 1) % 32].y = i", "S.z[(i + 2) % 32] = i"),
      WRITE: "b[i] = S[31 - i].x"}, WARP),
    ("records_of_an_odd_size", lambda a: a[0],
     {ARRAY: "S = cuda.shared.array(32, ODD)", PUT: "S[i].x = a[i]", BARRIER: (),
      WRITE: "b[i] = S[i].x"}, WARP),
)  # fmt: skip


# Dynamic memory by several names.

TWO_NAMES = ("p = cuda.shared.array(0, float32)", "q = cuda.shared.array(0, float32)")
variants(
    through_shared_memory,
    ("used_first_by_one_name_then_by_the_other", lambda a: a[0][::-1] + 1,
     {ARRAY: TWO_NAMES, PUT: ("p[i] = a[i]", BARRIER, "x = p[31 - i]", BARRIER, "q[i] = x + 1"),
      WRITE: "b[i] = q[i]"}, {**WARP, "shared_bytes": 512}),
    ("halves_by_two_names", lambda a: a[0] + a[0][::-1],
     {ARRAY: (TWO_NAMES[0], f"{TWO_NAMES[1]}[32:]"), PUT: "p[i], q[31 - i] = a[i], a[i]",
      WRITE: "b[i] = p[i] + q[i]"}, {**WARP, "shared_bytes": 512}),
    ("slices_of_one_that_overlap", lambda a: np.append(a[0][1:], 0),
     {ARRAY: ("whole = cuda.shared.array(0, float32)", "p, q = whole[:33], whole[1:]"),
      PUT: ("p[i] = a[i]", "if i == 0:", "    p[32] = 0"), WRITE: "b[i] = q[i]"},
     {**WARP, "shared_bytes": 512}),
    ("one_name_seen_as_two_types", lambda a: a[0].view(np.int32),
     {ARRAY: ("p = cuda.shared.array(0, float32)", "q = p.view(np.int32)"), PUT: "p[i] = a[i]",
      WRITE: "b[i] = q[i]"}, {**WARP, "shared_bytes": 512, "arguments":
                              lambda: [np.arange(32, dtype=F), np.zeros(32, np.int32)]}),
    ("second_name_never_read", lambda a: a[0],
     {ARRAY: TWO_NAMES, PUT: ("q[i] = 7", "p[i] = a[i]"), WRITE: "b[i] = p[i]"},
     {**WARP, "shared_bytes": 512}),
    ("helper_reads_what_its_caller_has_stored", lambda a: a[0][::-1],
     {ARRAY: TWO_NAMES[0], PUT: "p[i] = a[i]", WRITE: "b[i] = read_of_dynamic_memory(31 - i)"},
     {**WARP, "shared_bytes": 512}),
    ("helper_called_twice", lambda a: 2 * a[0][::-1] + 1,
     {ARRAY: "total = float32(0)",
      PUT: ("for k in range(2):", "    total += exchanged_in_dynamic_memory(a[i] + k, i)",
            f"    {BARRIER}"), BARRIER: (), WRITE: "b[i] = total"}, {**WARP, "shared_bytes": 512}),
)  # fmt: skip


# A default that Numba compiles into a device function. A float32 times an int64 is a float64.

FACTOR = F(0.1)
TENTH = float(FACTOR)


@cuda.jit(device=True)
def tenth_of(x, by=FACTOR, more=None):
    if more is None:
        return x * by
    return x * by + more


@right(lambda a: a[0] * 0 + 1)
def defaults_of_a_device_function(a, b):
    i = cuda.grid(1)
    b[i] = tenth_of(i) == TENTH * i and tenth_of(i, more=3) == tenth_of(i) + 3
