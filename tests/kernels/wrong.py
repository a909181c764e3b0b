"""Kernels that are wrong, most of which give the right answer on Numba's simulator or by luck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32

from convlab.device import commit_copies, copy_async, copy_async4, load4, store4, wait_copies  # noqa: F401
from kernels.cases import (
    ARRAY,
    BARRIER,
    DO,
    PUT,
    WRITE,
    Case,
    each_its_element,
    floats,
    through_shared_memory,
)
from kernels.right import one_thread_speaks_for_its_block
from kernels.warpgroups import (
    FENCE,
    FINISH,
    MATRIX,
    PAIR,
    RESULT,
    START,
    STORE,
    product_of_a_warpgroup,
)

WRONG: list[Case] = []


def wrong(kind: str, line: str, **launch: Any) -> Callable[[Any], None]:
    """Compile the function below and put it into the table."""
    return lambda function: WRONG.append(Case(cuda.jit(function), kind=kind, line=line, **launch))


def mistakes(right: Any, *rows: tuple[Any, ...], **launch: Any) -> None:
    """Put edits of a right kernel into the table. A row has a name, the kind of finding, a piece of
    the line that the finding names, ``{line of right: line or lines instead of it}``, and perhaps
    how its launch differs."""
    case = Case(cuda.jit(right), **launch)
    WRONG.extend(case.mistaken(*row) for row in rows)


TWO_BLOCKS: dict[str, Any] = {"grid": 2, "arguments": floats(64, 64)}
LARGE: dict[str, Any] = {"block": 64, "arguments": floats(64, 64)}
COPY = "copy_async(S, i, a, i, True)"
SMALL = "S = cuda.shared.array(32, float32)"
COMMIT, WAIT = "commit_copies()", "wait_copies(0)"


VALUE = "x = a[i]"
MMA = "mma_tf32((x, x, x, x), (x, x), (x, x, x, x))"
LOCK = ("while cuda.atomic.cas(a, 0, 0, 1) != 0:", "    pass", "b[0] += 1")
POLL = "while cuda.atomic.add(a, 0, 0) == 0:"
BLOCKS_OF_ONE: dict[str, Any] = {
    "grid": 4, "block": 1, "arguments": lambda: [np.zeros(1, np.int32), np.zeros(5)],
}  # fmt: skip
LOCKED: dict[str, Any] = {"arguments": lambda: [np.zeros(1, np.int32), np.zeros(1)]}
mistakes(
    each_its_element,
    ("no_guard", "out of bounds", DO, {}, {"grid": 2, "block": 24}),
    ("swapped_indices", "out of bounds", "b[y, x] = a[x, y]",
     {"i = cuda.grid(1)": "x, y = cuda.grid(2)", DO: "b[y, x] = a[x, y]"},
     {"block": (8, 4), "arguments": floats((4, 8), (4, 8))}),
    ("row_that_is_not_there", "out of bounds", "rows[4]",
     {DO: ("rows = a", "row = rows[4]", "b[i] = row[i]")},
     {"block": 8, "arguments": floats((4, 8), 8)}),
    ("dynamic_part_too_short", "out of bounds", "part[8]",
     {DO: ("part = cuda.shared.array(0, float32)[:8]", "part[8] = a[0]", "b[0] = part[8]")},
     {"block": 1, "shared_bytes": 64}),
    ("unsigned_below_zero", "wraps around", "uint32(i - 1)", {DO: "b[i] = a[uint32(i - 1) % 32]"}),
    ("wide_load_off_by_one", "misaligned", "load4(a, i + 1)",
     {DO: ("i *= 4", "store4(b, i, load4(a, i + 1))")}, {"block": 4}),
    ("wide_load_of_an_odd_row", "misaligned", "load4(a, (1, 0))",
     {DO: "store4(b, 0, load4(a, (1, 0)))"}, {"block": 1, "arguments": floats((4, 9), 8)}),
    ("wide_store_in_the_middle", "misaligned", "store4(b, 6",
     {DO: "store4(b, 6, load4(a, 4))"}, {"block": 1}),
    ("shift_in_place", "global race", "a[i] = a[(i + 1) % 32]", {DO: "a[i] = a[(i + 1) % 32]"}),
    ("arguments_overlap", "global race", "a[1 + i] = a[i]",
     {DO: f"{DO}  # b is a[1:]: a[1 + i] = a[i]"}, {"arguments": lambda: views_of_one_array()}),
    ("lock_released_with_no_fence", "global race", "b[0] += 1",
     {DO: (*LOCK, "cuda.atomic.exch(a, 0, 0)")}, LOCKED),
    ("fence_of_the_block_only", "global race", "b[0] += 1",
     {DO: (*LOCK, "cuda.threadfence_block()", "cuda.atomic.exch(a, 0, 0)")},
     {"grid": 4, "block": 1, **LOCKED}),
    ("barriers_of_different_kind", "barrier divergence", "cuda.syncthreads_count(1)",
     {DO: ("if i < 16:", "    b[i] = cuda.syncthreads_count(1)", "else:", f"    {BARRIER}", DO)}),
    ("shuffle_in_a_branch", "inactive lane", "cuda.shfl_down_sync(ALL",
     {DO: (VALUE, "if i < 16:", "    x += cuda.shfl_down_sync(ALL, x, 8)", "b[i] = x")}),
    ("tensor_core_in_a_branch", "inactive lane", "mma_tf32((x",
     {DO: (VALUE, "if i < 16:", f"    x = {MMA}[0]", "b[i] = x")}),
    ("tensor_core_after_lanes_have_ended", "inactive lane", "mma_tf32((x",
     {DO: ("if i >= 28:", "    return", VALUE, f"b[i] = {MMA}[0]")}),
    ("tensor_core_of_half_a_warp", "inactive lane", "mma_tf32((x",
     {DO: (VALUE, f"b[i] = {MMA}[0]")}, {"block": 48, "arguments": floats(48, 48)}),
    ("tensor_core_at_two_places", "inactive lane", "mma_tf32((x",
     {DO: (VALUE, "y = float32(2)", "if i % 2:", f"    total = {MMA.replace('x', 'y')}", "else:",
           f"    total = {MMA}", "b[i] = total[0]")}),
    ("halo_below_zero", "out of bounds", "b[i] = a[i - 1]", {DO: "b[i] = a[i - 1] + a[i]"}),
    ("halo_past_the_end", "out of bounds", "a[i + 1]", {DO: "b[i] = a[i] + a[i + 1]"}),
    ("guard_one_too_wide", "out of bounds", "b[i] = a[0]",
     {DO: ("if i <= a.size:", "    b[i] = a[0]")}, {"grid": 2}),
    ("wrong_stride", "out of bounds", "a[i * 2]", {DO: "b[i] = a[i * 2]"}),
    ("histogram_bin_missing", "out of bounds", "cuda.atomic.add(b",
     {DO: "cuda.atomic.add(b, int(a[i]) + 1, 1)"}),
    ("sum_without_an_atomic", "global race", "b[0] += a[i]", {DO: "b[0] += a[i]"}),
    ("sum_of_blocks_without_an_atomic", "global race", "b[0] += a[i]", {DO: "b[0] += a[i]"},
     {"grid": 32, "block": 1}),
    ("two_threads_one_output", "global race", "b[i % 16] = a[i]", {DO: "b[i % 16] = a[i]"}),
    ("block_index_forgotten", "global race", "b[cuda.threadIdx.x] = a[i]",
     {DO: "b[cuda.threadIdx.x] = a[i]"}, TWO_BLOCKS),
    ("barrier_does_not_span_blocks", "global race", "b[i] = a[63 - i]",
     {DO: ("a[i] = 1 + i", BARRIER, "b[i] = a[63 - i]")}, TWO_BLOCKS),
    ("barrier_in_a_branch", "barrier divergence", BARRIER,
     {DO: ("if i < 16:", f"    {BARRIER}", DO)}),
    ("two_different_barriers", "barrier divergence", "cuda.syncthreads()  # one",
     {DO: ("if i < 16:", f"    {BARRIER}  # one", "else:", f"    {BARRIER}  # other", DO)}),
    ("early_exit_before_a_barrier", "barrier divergence", BARRIER,
     {DO: ("if i >= 32:", "    return", BARRIER, DO)}, {"block": 40}),
    ("loops_of_different_length", "barrier divergence", BARRIER,
     {DO: ("for _ in range(1 + i % 2):", f"    {BARRIER}", DO)}),
    ("caller_not_in_the_mask", "inactive lane", "cuda.shfl_sync(0xFFFF",
     {DO: "b[i] = cuda.shfl_sync(0xFFFF, a[i], 0)"}),
    ("shuffle_from_ended_lanes", "inactive lane", "cuda.shfl_down_sync(ALL",
     {DO: ("if i >= 20:", "    return", "b[i] = cuda.shfl_down_sync(ALL, a[i], 1)")}),
    ("shuffle_from_the_other_half", "inactive lane", "cuda.shfl_sync(half",
     {DO: ("half = 0xFFFF if i < 16 else 0xFFFF0000", "b[i] = cuda.shfl_sync(half, a[i], 0)")}),
    ("vote_in_a_branch", "inactive lane", "cuda.ballot_sync(ALL",
     {DO: ("if i % 2 == 0:", "    b[i] = cuda.ballot_sync(ALL, a[i] > 3)")}),
    ("warp_barrier_in_a_branch", "inactive lane", "cuda.syncwarp()",
     {DO: ("if i < 8:", "    cuda.syncwarp()", BARRIER, DO)}),
    ("flag_that_is_never_set", "deadlock", "while cuda.atomic.add(a, 0, 0)",
     {DO: (POLL, "    pass", BARRIER, "b[0] = 1")}, {"grid": 2, **LOCKED}),
    ("flag_polled_by_one_thread", "deadlock", BARRIER,
     {DO: ("if i == 0:", f"    {POLL}", "        pass", BARRIER, "b[0] = 1")}, LOCKED),
    ("flag_set_behind_the_barrier", "deadlock", BARRIER,
     {DO: ("if i == 0:", f"    {POLL}", "        pass", BARRIER, "cuda.atomic.exch(a, 0, 1)")},
     LOCKED),
    ("lock_that_is_never_freed", "deadlock", LOCK[0], {DO: LOCK}, LOCKED),
    ("lock_taken_twice", "deadlock", LOCK[0],
     {DO: (*LOCK, "while cuda.atomic.cas(a, 0, 0, 1) != 0:  # again", "    cuda.nanosleep(8)",
           "cuda.atomic.exch(a, 0, 0)")}, {"block": 1, **LOCKED}),
    ("locks_in_two_orders", "deadlock", "cuda.atomic.cas(a, 1 - i",
     {DO: ("while cuda.atomic.cas(a, i, 0, 1) != 0:", "    pass", "cuda.nanosleep(8)",
           "while cuda.atomic.cas(a, 1 - i, 0, 1) != 0:", "    pass")},
     {"block": 2, "arguments": lambda: [np.zeros(2, np.int32), np.zeros(1)]}),
    ("grid_barrier_for_one_block_too_many", "deadlock", "while cuda.atomic.add(a, 0, 0) < 5",
     {DO: ("if cuda.threadIdx.x == 0:", "    cuda.atomic.add(a, 0, 1)",
           "    while cuda.atomic.add(a, 0, 0) < 5:", "        pass", BARRIER)},
     {"grid": 4, **LOCKED}),
    ("warp_waits_for_its_own_lane", "deadlock", POLL,
     {DO: ("if i == 0:", f"    {POLL}", "        pass", "cuda.syncwarp()",
           "cuda.atomic.exch(a, 0, 1)")}, LOCKED),
    ("flag_read_without_an_atomic", "global race", "while a[0] == 0",
     {DO: ("if i == 0:", "    while a[0] == 0:", "        pass", "if i == 32:", "    a[0] = 1")},
     {"grid": 2, **LOCKED}),
    ("data_behind_a_flag_with_no_fence", "global race", "b[0] = 1",
     {DO: ("if i == 0:", f"    {POLL}", "        pass", "    b[1] = b[0]", "if i == 32:",
           "    b[0] = 1", "    cuda.atomic.exch(a, 0, 1)")},
     {"grid": 2, "arguments": lambda: [np.zeros(1, np.int32), np.zeros(2)]}),
    ("iterations_that_do_not_meet", "barrier divergence", BARRIER,
     {DO: ("for j in range(2):", "    for k in range(1 + j if i < 16 else 2 - j):",
           f"        {BARRIER}")}),
    ("lanes_in_other_iterations", "inactive lane", "cuda.syncwarp()",
     {DO: ("for j in range(2):", "    for k in range(1 + j if i % 2 else 2 - j):",
           "        cuda.syncwarp()")}),
    ("grid_barrier_forgotten", "global race", "b[i] = value",
     {DO: ("g = cuda.cg.this_grid()", "for k in range(2):", "    value = b[31 - i]",
           "    g.sync()", "    b[i] = value")}, {"grid": 4, "block": 8}),
    ("grid_barrier_after_a_return", "barrier divergence", "cuda.cg.this_grid().sync()",
     {DO: ("if cuda.blockIdx.x == 1:", "    return", "cuda.cg.this_grid().sync()")},
     {"grid": 2, "block": 8}),
    ("loop_that_never_counts", "endless loop", "while k < 8",
     {DO: ("k = 0", "while k < 8:", "    b[i] = a[i]")}),
    ("loop_that_counts_away", "endless loop", "while k != 8",
     {DO: ("k = 9", "while k != 8:", "    k += 1")}, {"block": 1}),
    ("barrier_over_and_over", "endless loop", BARRIER,
     {DO: ("while a[0] == 0:", f"    {BARRIER}")}, LOCKED),
    ("flag_read_but_ignored", "global race", "b[1] = b[0]",
     {DO: ("if i == 0:", "    b[0] = 1", "    cuda.threadfence()", "    cuda.atomic.exch(a, 0, 1)",
           "if i == 32:", "    ready = cuda.atomic.add(a, 0, 0)", "    b[1] = b[0]")},
     {"grid": 2, "arguments": lambda: [np.zeros(1, np.int32), np.zeros(2)]}),
    ("scan_takes_lower_blocks_for_done", "global race", "total += b[i - 1]",
     {DO: ("cuda.atomic.add(a, 0, 1)", "total = 1", "if i > 0:", "    total += b[i - 1]",
           "b[i] = total", "cuda.threadfence()", "cuda.atomic.add(a, 0, 1)")}, BLOCKS_OF_ONE),
    ("highest_block_taken_for_the_last", "global race", "b[4] += b[k]",
     {DO: ("b[i] = 1", "cuda.threadfence()", "cuda.atomic.add(a, 0, 1)", "if i == 3:",
           "    for k in range(4):", "        b[4] += b[k]")}, BLOCKS_OF_ONE),
    ("producer_that_does_not_wait", "global race", "b[0] = k",
     {DO: ("for k in range(3):", "    if i == 0:", "        b[0] = k", "        cuda.threadfence()",
           "        cuda.atomic.add(a, 0, 1)", "    else:",
           "        while cuda.atomic.add(a, 0, 0) <= k:", "            pass",
           "        b[1] = b[0]")},
     {**BLOCKS_OF_ONE, "grid": 2}),
    ("divides_by_zero", "division by zero", "7 // int(a[i])", {DO: "b[i] = 7 // int(a[i])"}),
)  # fmt: skip


def through_local_memory(a, b):  # type: ignore[no-untyped-def]
    S = cuda.local.array(4, float32)
    for k in range(4):
        S[k] = a[k]
    b[0] = S[0]


LOCAL, FOR, LAST = "S = cuda.local.array(4, float32)", "for k in range(4):", "b[0] = S[0]"
EIGHT = {LOCAL: "S = cuda.local.array(8, float32)", FOR: "for k in range(8):"}
mistakes(
    through_local_memory,
    ("local_array_too_short", "out of bounds", "S[k]", {LOCAL: LOCAL.replace("4", "3", 1)}),
    ("local_index_below_zero", "out of bounds", "S[k - 1]",
     {LAST: ("for k in range(3):", "    b[k] = S[k] - S[k - 1]")}),
    ("wide_load_with_no_alignment", "misaligned", "load4(S, 0)",
     {LOCAL: "S = cuda.shared.array(4, float32)", LAST: "store4(b, 0, load4(S, 0))"}),
    ("wide_load_of_local_memory_off_by_two", "misaligned", "load4(S, 2)",
     {**EIGHT, LOCAL: "S = cuda.local.array(8, float32, alignment=16)",
      LAST: "store4(b, 0, load4(S, 2))"}),
    ("wide_load_of_local_memory_with_no_alignment", "misaligned", "load4(S, 4)",
     {**EIGHT, LAST: "store4(b, 0, load4(S, 4))"}),
    ("uninitialised_accumulator", "uninitialised", "S[0] +=", {"S[k] = a[k]": "S[0] += a[k]"}),
    block=1,
)  # fmt: skip


FOUR_BINS = "S = cuda.shared.array(4, int32)"
OTHER = "other = cuda.shared.array(64, float32)"
mistakes(
    through_shared_memory,
    ("stale_from_the_last_block", "uninitialised", "b[cuda.blockIdx.x] = S[0]",
     {PUT: ("if cuda.blockIdx.x == 0:", "    S[0] = a[0]"), BARRIER: (),
      WRITE: "b[cuda.blockIdx.x] = S[0]"}, {"grid": 2, "block": 1}),
    ("histogram_not_cleared", "uninitialised", "cuda.atomic.add(S",
     {ARRAY: FOUR_BINS, PUT: "cuda.atomic.add(S, i % 4, 1)", WRITE: ("if i < 4:", f"    {WRITE}")}),
    ("wrong_one_of_two_arrays", "uninitialised", "b[i] = other[i]",
     {ARRAY: (ARRAY, OTHER), WRITE: "b[i] = other[i]"}),
    ("no_second_barrier", "shared race", "S[i] = a[i + 64 * step]",
     {PUT: ("for step in range(2):", "    S[i] = a[i + 64 * step]", f"    {BARRIER}",
            "    b[i + 64 * step] = S[(i + 1) % 64]"), BARRIER: (), WRITE: ()},
     {"block": 64, "arguments": floats(128, 128)}),
    ("reduction_without_barriers", "shared race", "S[i] += S[i + step]",
     {WRITE: ("step = 32", "while step > 0:", "    if i < step:", "        S[i] += S[i + step]",
              "    step //= 2", "if i == 0:", "    b[0] = S[0]")},
     {"block": 64, "arguments": floats(64, 1)}),
    ("scan_in_place", "shared race", "S[i] += S[i - step]",
     {WRITE: ("step = 1", "while step < 64:", "    if i >= step:", "        S[i] += S[i - step]",
              f"    {BARRIER}", "    step *= 2", WRITE)}, LARGE),
    ("histogram_without_atomics", "shared race", "S[int(a[i]) % 4] += 1",
     {ARRAY: FOUR_BINS, PUT: ("if i < 4:", "    S[i] = 0", BARRIER, "S[int(a[i]) % 4] += 1"),
      WRITE: ("if i < 4:", f"    {WRITE}")}),
    ("broadcast_without_barrier", "shared race", "b[i] = S[0]",
     {PUT: ("if i == 0:", "    S[0] = a[0]"), BARRIER: (), WRITE: "b[i] = S[0]"}, LARGE),
    ("buffers_not_swapped", "shared race", "b[i] = S[0",
     {ARRAY: "S = cuda.shared.array((2, 64), float32)", PUT: "S[0, i] = a[i]",
      WRITE: ("S[0, (i + 1) % 64] = a[i]", "b[i] = S[0, i]")}, LARGE),
    ("read_beside_atomics", "shared race", "b[i] = S[0]",
     {ARRAY: "S = cuda.shared.array(1, int32)", PUT: ("if i == 0:", "    S[0] = 0"),
      WRITE: ("cuda.atomic.add(S, 0, 1)", "b[i] = S[0]")}, LARGE),
    ("dynamic_arrays_overlap", "shared race", "b[i] = other[63 - i]",
     {ARRAY: ("S = cuda.shared.array(0, float32)", "other = cuda.shared.array(0, float32)"),
      PUT: "other[i] = 0", WRITE: (PUT, "b[i] = other[63 - i]")}, LARGE | {"shared_bytes": 256}),
    ("race_behind_many_flags", "shared race", "b[i] = S[63 - i]",
     {ARRAY: ("flags = cuda.shared.array(600, float32)", ARRAY), BARRIER: (),
      PUT: ("for k in range(600):  # every thread the same: no race", "    flags[k] = float32(0)",
            PUT), WRITE: "b[i] = S[63 - i]"}, LARGE),
    ("race_behind_many_others", "shared race", "S[0] = i",
     {ARRAY: ("others = cuda.shared.array(600, float32)", ARRAY), BARRIER: (), WRITE: (),
      PUT: ("for k in range(600):", "    others[k] = i", "S[0] = i")}),
    ("shared_halo_too_small", "out of bounds", "S[i + 1]",
     {ARRAY: "S = cuda.shared.array(32, float32)", PUT: "S[i + 1] = a[i]",
      WRITE: "b[i] = S[i + 1]"}),
    ("half_filled_tile", "uninitialised", WRITE, {PUT: ("if i < 16:", f"    {PUT}")}),
    ("no_barrier", "shared race", "b[i] = S[63 - i]", {BARRIER: (), WRITE: "b[i] = S[63 - i]"},
     LARGE),
    ("no_barrier_in_a_warp", "shared race", "b[i] = S[31 - i]",
     {BARRIER: (), WRITE: "b[i] = S[31 - i]"}),
    ("two_threads_one_cell", "shared race", "S[i // 2] = a[i]",
     {PUT: "S[i // 2] = a[i]", WRITE: "b[i] = S[i // 2]"}),
    ("warp_barrier_of_half_a_warp", "shared race", "b[i] = S[(i + 16) % 32]",
     {BARRIER: "cuda.syncwarp(0xFFFF if i < 16 else 0xFFFF0000)",
      WRITE: "b[i] = S[(i + 16) % 32]"}),
)  # fmt: skip


def by_asynchronous_copies(a, b):  # type: ignore[no-untyped-def]
    S = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    copy_async(S, i, a, i, True)
    commit_copies()
    wait_copies(0)
    b[i] = S[i]


FOUR = "S = cuda.shared.array(4, float32)"
mistakes(
    by_asynchronous_copies,
    ("waits_for_the_older_group_only", "copy in flight", "b[i] = other[31 - i]",
     {COPY: (OTHER, COPY, COMMIT, "copy_async(other, i, a, 31 - i, True)"),
      WAIT: ("wait_copies(1)", BARRIER), WRITE: "b[i] = other[31 - i]"}),
    ("next_copy_while_others_still_read", "shared race", "copy_async(S, i",
     {COPY: ("for tile in range(4):", "    copy_async(S, i, a, tile * 32 + i, True)",
             f"    {COMMIT}", f"    {WAIT}", f"    {BARRIER}", "    b[tile * 32 + i] = S[31 - i]"),
      COMMIT: (), WAIT: (), WRITE: ()}, {"arguments": floats(128, 128)}),
    ("wide_copy_from_the_second_number", "misaligned", "copy_async4(S, 0, a, 1",
     {SMALL: FOUR.replace(")", ", alignment=16)"), COPY: "copy_async4(S, 0, a, 1, True)"},
     {"block": 1}),
    ("wide_copy_with_no_alignment", "misaligned", "copy_async4(S, 0, a, 0",
     {SMALL: FOUR, COPY: "copy_async4(S, 0, a, 0, True)"}, {"block": 1}),
    ("copy_read_before_its_wait", "copy in flight", WRITE, {WAIT: WRITE, WRITE: WAIT}),
    ("barrier_in_place_of_a_wait", "copy in flight", "b[i] = S[31 - i]",
     {WAIT: BARRIER, WRITE: "b[i] = S[31 - i]"}),
    ("copy_in_no_group", "copy in flight", WRITE, {COMMIT: ()}),
    ("cleared_while_in_flight", "copy in flight", "S[i] = float32(0)",
     {COPY: "copy_async(S, i, a, i, i < 20)",
      WAIT: ("if i >= 16:", "    S[i] = float32(0)", WAIT)}),
    ("wait_without_a_barrier", "shared race", "b[i] = S[31 - i]", {WRITE: "b[i] = S[31 - i]"}),
    ("copy_of_what_another_thread_writes", "global race", "copy_async(S, i",
     {COPY: ("b[31 - i] = a[i]", "copy_async(S, i, b, i, True)"), WRITE: "a[i] = S[i]"}),
    ("copy_of_half_a_tile", "uninitialised", WRITE, {COPY: ("if i < 16:", f"    {COPY}")}),
    ("copy_past_the_end", "out of bounds", "copy_async(S, i, a, i + 1",
     {COPY: "copy_async(S, i, a, i + 1, True)"}),
)  # fmt: skip


@wrong("copy in flight", "copy_async4(buffers, (0, i)", block=8, arguments=floats(128, 32))
def one_buffer_for_two_copies(a, b):
    buffers = cuda.shared.array((2, 32), float32, alignment=16)
    i = cuda.threadIdx.x * 4
    total = float32(0)
    for tile in range(4):
        copy_async4(buffers, (0, i), a, tile * 32 + i, True)  # here the buffer does not change
        commit_copies()
        if tile > 0:
            wait_copies(1)
            cuda.syncthreads()
            total += buffers[0, 31 - i]
            cuda.syncthreads()
    b[i] = total


@wrong("global race", "total += parts[k]", grid=4, block=1,
       arguments=lambda: [np.zeros(4), np.zeros(1, np.uint32), np.zeros(1)])  # fmt: skip
def last_block_sums_with_no_fence(parts, done, b):
    parts[cuda.blockIdx.x] = 1
    if cuda.atomic.inc(done, 0, 3) == 3:
        total = 0.0
        for k in range(4):
            total += parts[k]
        b[0] = total


WRONG.append(
    one_thread_speaks_for_its_block.mistaken(
        *("fence_before_the_others_have_written", "global race", "total += parts[k]"),
        {"cuda.syncthreads()  # all parts are there": ()},
    )
)


@wrong("global race", "b[i] = parts[0]", grid=2, block=64,
       arguments=lambda: [np.zeros(2), np.zeros(1, np.uint32), np.zeros(64)])  # fmt: skip
def only_one_thread_has_asked(parts, done, b):
    i = cuda.threadIdx.x
    if i == 0:
        parts[cuda.blockIdx.x] = 1
        cuda.threadfence()
        cuda.atomic.inc(done, 0, 3)
    if cuda.blockIdx.x == 1:  # here a barrier is missing
        b[i] = parts[0]


def views_of_one_array() -> list[Any]:
    whole = np.arange(33, dtype=np.float32)
    return [whole[:32], whole[1:]]


COPIES = (COPY, "copy_async(S, i + 128, a, i + 128, True)", COMMIT)
GUARDED = {FINISH: f"    {FINISH}", RESULT: f"    {RESULT}"}
CLEAR, CLEAR_PAIR = "S[i] = float32(0)", "S[2 * i] = float32(0)"
mistakes(
    product_of_a_warpgroup,
    ("no_fence_after_stores", "not fenced", START, {FENCE: ()}),
    ("no_fence_after_copies", "not fenced", WAIT, {STORE: (*COPIES, WAIT), FENCE: ()}),
    ("fence_before_the_stores", "not fenced", STORE, {STORE: FENCE, FENCE: STORE}),
    ("fence_before_the_copies_have_landed", "not fenced", WAIT,
     {STORE: COPIES, FENCE: (FENCE, WAIT)}),
    ("fence_after_the_barrier", "not fenced", PAIR, {STORE: PAIR, FENCE: BARRIER, BARRIER: FENCE}),
    ("fence_by_one_thread_for_all", "not fenced", STORE,
     {FENCE: (BARRIER, "if i == 0:", f"    {FENCE}")}),
    ("only_the_first_stores_are_fenced", "not fenced", "S[i] = 2 * a[i]",
     {BARRIER: (BARRIER, "S[i] = 2 * a[i]", BARRIER)}),
    ("atomics_that_are_not_fenced", "not fenced", "cuda.atomic.add(S",
     {BARRIER: (BARRIER, "cuda.atomic.add(S, i, 1)", BARRIER)}),
    ("no_barrier_before_tensor_cores_read", "shared race", START, {BARRIER: ()}),
    ("own_part_with_no_barrier", "shared race", "S[2 * i + 1] =", {STORE: PAIR, BARRIER: ()}),
    ("cleared_while_tensor_cores_read", "shared race", CLEAR, {START: (START, CLEAR)}),
    ("own_part_cleared_while_tensor_cores_read", "shared race", CLEAR_PAIR,
     {START: (START, CLEAR_PAIR)}),
    ("barriers_in_place_of_finish", "shared race", CLEAR,
     {START: (START, BARRIER, CLEAR, BARRIER)}),
    ("own_warp_s_part_is_done_only", "shared race", CLEAR_PAIR, {FINISH: (FINISH, CLEAR_PAIR)}),
    ("next_slice_into_the_slot_being_read", "shared race", "copy_async(S, i, b",
     {START: (START, "copy_async(S, i, b, i, True)", COMMIT), FINISH: (FINISH, WAIT)}),
    ("tensor_cores_read_before_the_wait", "copy in flight", START,
     {STORE: COPIES, RESULT: (RESULT, WAIT)}),
    ("product_read_before_it_is_finished", "uninitialised", RESULT,
     {FINISH: RESULT, RESULT: FINISH}),
    ("half_a_matrix_for_tensor_cores", "uninitialised", START, {STORE: "S[i] = a[i]"}),
    ("left_part_never_filled", "uninitialised", START,
     {"fill(L, T)": "L[0], T[0] = float32(1), float32(2)"}),
    ("warpgroup_without_its_last_warp", "inactive lane", START,
     {START: ("if i < 96:", f"    {START}"), **GUARDED}),
    ("warpgroup_without_some_lanes", "inactive lane", START,
     {START: ("if i % 32 < 28:", f"    {START}"), **GUARDED}),
    ("warpgroup_after_threads_have_ended", "inactive lane", START,
     {START: ("if i == 127:", "    return", START)}),
    ("warpgroup_of_three_warps", "inactive lane", START,
     {STORE: ("for k in range(i, 256, 96):", "    S[k] = a[k]")}, {"block": 96}),
    ("warpgroup_at_two_places", "inactive lane", f"{START}  # one",
     {START: ("if i < 64:", f"    {START}  # one", "else:", f"    {START}  # other")}),
    ("half_the_warpgroup_waits", "inactive lane", FINISH,
     {START: (START, "if i < 64:"), **GUARDED}),
    ("matrix_at_an_odd_place", "misaligned", "start_product(D, L, T, S, 2",
     {MATRIX: "S = cuda.shared.array(260, float32, alignment=16)",
      STORE: ("for k in range(i, 260, 128):", "    S[k] = a[k % 256]"),
      START: "start_product(D, L, T, S, 2, 8)"}),
    ("matrix_in_an_array_with_no_alignment", "misaligned", START,
     {MATRIX: "S = cuda.shared.array(256, float32)"}),
    ("matrix_past_the_end", "out of bounds", "start_product(D, L, T, S, 4",
     {START: "start_product(D, L, T, S, 4, 8)"}),
    block=128, arguments=floats(256, 128), capability=(9, 0),
)  # fmt: skip


# Elements of several sizes in the same bytes.

PACKED = np.dtype([("tag", np.int8), ("x", np.float32)])
UNION = np.dtype({"names": ["x", "low"], "formats": [np.int32, np.int16], "offsets": [0, 0]})


def last_of(dtype: Any) -> dict[str, Any]:
    """A launch whose last array has elements of that type."""
    return {"arguments": lambda: [np.zeros(32), np.zeros(32, dtype)]}


mistakes(
    through_shared_memory,
    ("byte_of_a_neighbour_written", "shared race", "S[i] = 1.0",
     {PUT: ("S.view(np.int8)[(4 * i + 5) % 128] = 1", "S[i] = 1.0"), BARRIER: ()}),
    ("half_of_each_element_written", "uninitialised", "b[i] = S[31 - i]",
     {PUT: "S.view(np.int16)[2 * i] = 0", WRITE: "b[i] = S[31 - i]"}),
    ("dynamic_arrays_in_the_same_bytes", "shared race", "wide[i] = 3",
     {ARRAY: ("S = cuda.shared.array(0, float32)", "wide = cuda.shared.array(0, np.int64)"),
      PUT: (PUT, "wide[i] = 3")}, {"shared_bytes": 256}),
    ("largest_of_what_others_write", "shared race", "b[i] = max(S)",
     {ARRAY: SMALL, BARRIER: (), WRITE: "b[i] = max(S)"}),
)  # fmt: skip
mistakes(
    each_its_element,
    ("byte_inside_an_element_written", "global race", "b[0] = 7.0",
     {DO: ("if i == 0:", "    b[0] = 7.0", "else:", "    b.view(np.uint8)[i] = i")}),
    ("fields_that_share_bytes", "global race", ".low = i + 1",
     {DO: ("b[i].x = i", "b[(i + 1) % 32].low = i + 1")}, last_of(UNION)),
    ("real_part_of_a_neighbour", "global race", "b[(i + 1) % 32] = 2",
     {DO: ("b.real[i] = 1", "b[(i + 1) % 32] = 2")}, last_of(np.complex64)),
    ("view_from_an_odd_element", "misaligned", "b[i] = wide[i]",
     {DO: ("wide = a[1:31].view(np.float64)", "b[i] = wide[i]")}, {"block": 15}),
    ("field_of_packed_records", "misaligned", "b.x[i] = i", {DO: "b.x[i] = i"}, last_of(PACKED)),
)  # fmt: skip


TWO_NAMES = ("p = cuda.shared.array(0, float32)", "q = cuda.shared.array(0, float32)")
DYNAMIC: dict[str, Any] = {"shared_bytes": 512, "block": 32, "arguments": floats(32, 32)}
mistakes(
    through_shared_memory,
    ("two_names_of_dynamic_memory", "aliased memory", "b[i] = p[i]",
     {ARRAY: TWO_NAMES, PUT: ("p[i] = a[i]", "q[i] = float32(2)"), WRITE: "b[i] = p[i]"}),
    ("two_names_on_a_line", "aliased memory", "b[i] = p[31 - i]",
     {ARRAY: f"p, q = {', '.join(one.split(' = ')[1] for one in TWO_NAMES)}",
      PUT: ("p[i] = a[i]", "q[i] = a[i] + 1"), WRITE: "b[i] = p[31 - i]"}),
    ("two_names_of_two_types", "aliased memory", "b[i] = p[i]",
     {ARRAY: (TWO_NAMES[0], "q = cuda.shared.array(0, int32)"),
      PUT: ("p[i] = a[i]", "q[i] = i"), WRITE: "b[i] = p[i]"}),
    ("two_names_of_two_sizes", "aliased memory", "b[i] = p[i]",
     {ARRAY: (TWO_NAMES[0], "q = cuda.shared.array(0, np.uint8)"),
      PUT: ("p[i] = a[i]", BARRIER, "q[4 * i + 1] = 7"), WRITE: "b[i] = p[i]"}),
    ("other_name_never_written", "aliased memory", "b[i] = q[i]",
     {ARRAY: TWO_NAMES, PUT: "p[i] = a[i]", WRITE: "b[i] = q[i]"}),
    ("counts_in_a_tile", "aliased memory", "cuda.atomic.add(q",
     {ARRAY: (TWO_NAMES[0], "q = cuda.shared.array(0, int32)"), PUT: "p[i] = a[i]",
      WRITE: ("cuda.atomic.add(q, i, 1)", f"{BARRIER}", "b[i] = q[i]")}),
    ("tiles_that_overlap_by_names", "aliased memory", "b[i] = p[i]",
     {ARRAY: (TWO_NAMES[0], "q = cuda.shared.array(0, float32)[16:]"),
      PUT: ("p[i] = a[i]", BARRIER, "if i < 16:", "    q[i] = 1"), WRITE: "b[i] = p[i]"}),
    ("copy_into_the_other_name", "aliased memory", "b[i] = p[i]",
     {ARRAY: TWO_NAMES, PUT: ("p[i] = a[i]", "copy_async(q, i, a, 31 - i, True)", COMMIT, WAIT),
      WRITE: "b[i] = p[i]"}),
    **DYNAMIC,
)  # fmt: skip


@cuda.jit(device=True)
def scratch(i):
    own = cuda.shared.array(0, float32)
    own[i] = 1


@wrong("aliased memory", "b[i] = tile[i]", **DYNAMIC)
def helper_takes_the_tile_for_its_own(a, b):
    tile = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    tile[i] = a[i]
    scratch(i)
    b[i] = tile[i]
