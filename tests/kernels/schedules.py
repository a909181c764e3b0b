"""Kernels whose threads or blocks wait for each other: wrong ones, and right ones like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32, int32
from numba.cuda import libdevice

from kernels.cases import ALL, BARRIER, DO, Case, each_its_element, floats

WRONG: list[Case] = []
RIGHT: list[Case] = []


def zeros(*sizes: Any) -> Callable[[], list[Any]]:
    return lambda: [np.zeros(size, np.int32) for size in sizes]


def wrong(kind: str, line: str, grid: Any, block: Any, arguments: Any) -> Any:
    """Compile the function below and put it into the table of wrong ones."""

    def add(function: Any) -> Case:
        WRONG.append(Case(cuda.jit(function), grid, block, arguments, kind, line))
        return WRONG[-1]

    return add


def right(result: Any, grid: Any, block: Any, arguments: Any) -> Any:
    """The same of right ones; ``result`` is what the last argument becomes."""

    def add(function: Any) -> Case:
        kernel = cuda.jit(function)
        RIGHT.append(Case(kernel, grid, block, arguments, result=lambda _: result))
        return RIGHT[-1]

    return add


@wrong("global race", "if a[child] == 0", 2, 32, zeros(64, 1))
def search_that_tests_what_others_set(a, again):
    node = cuda.grid(1)
    for child in (node ^ 1, (node + 32) % 64):
        if a[child] == 0:
            a[child] = 1
            again[0] = 1


@right([1], 2, 32, zeros(64, 1))
def search_that_says_that_it_tests_what_others_set(a, again):
    node = cuda.grid(1)
    for child in (node ^ 1, (node + 32) % 64):
        if cuda.ldcv(a, child) == 0:
            cuda.stwt(a, child, 1)
            cuda.atomic.exch(again, 0, 1)


@wrong("depends on order", "mask = cuda.activemask()", 1, 32, zeros(32, 1))
def lanes_after_a_branch_taken_for_all(a, b):
    i = cuda.threadIdx.x
    value = i
    if i % 3 == 0:
        value *= 2
    mask = cuda.activemask()
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(mask, value, distance)
    if i == 0:
        b[0] = value


@right([22], 2, 32, zeros(64, 1))
def lanes_that_happen_to_be_together_add_once(a, b):
    i = cuda.grid(1)
    value = i
    if i % 3 == 0:
        value += 2
    if value % 3 == 2:
        a[i] = 1
    if value % 3 == 1:
        mask = cuda.activemask()
        if cuda.laneid == cuda.ffs(mask) - 1:
            cuda.atomic.add(b, 0, cuda.popc(mask))
    elif i == 63:
        cuda.atomic.add(b, 0, 1)


# Blocks that speak by atomics alone.


@wrong("depends on order", "if cuda.atomic.or_(flag", 2, 32, zeros(1, 1, 1))
def flag_looked_at_once(flag, data, out):
    if cuda.blockIdx.x == 0:
        cuda.atomic.add(data, 0, 1)
        if cuda.threadIdx.x == 31:
            cuda.atomic.or_(flag, 0, 1)
    elif cuda.threadIdx.x == 0:
        if cuda.atomic.or_(flag, 0, 0):
            out[0] = cuda.atomic.add(data, 0, 0)


@wrong("depends on order", "cuda.atomic.max(best, 0, -1)", 3, 4, zeros(1, 3))
def each_block_takes_the_maximum_for_final(best, out):
    i = cuda.grid(1)
    cuda.atomic.max(best, 0, i * 5 % 12)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = cuda.atomic.max(best, 0, -1)


@wrong("depends on order", "before = cuda.atomic.add(sums", 4, 1, zeros(4, 4))
def scan_of_atomics_takes_lower_blocks_for_done(sums, out):
    k = cuda.blockIdx.x
    before = 0
    if k > 0:
        before = cuda.atomic.add(sums, k - 1, 0)
    cuda.atomic.add(sums, k, before + 1)
    out[k] = before + 1


@wrong("depends on order", "cuda.atomic.cas(lock", 1, 64, zeros(1))
def lock_in_shared_memory_tried_once(out):
    lock = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        lock[0] = 0
    cuda.syncthreads()
    if cuda.atomic.cas(lock, 0, 0, 1) == 0:
        cuda.atomic.add(out, 0, 1)
        cuda.atomic.exch(lock, 0, 0)


@wrong("global race", "parts[k]", 4, 1, zeros(4, 1, 1))
def first_ticket_taken_for_the_last(parts, ticket, out):
    parts[cuda.blockIdx.x] = 1
    cuda.threadfence()
    if cuda.atomic.add(ticket, 0, 1) == 0:
        for k in range(4):
            out[0] += parts[k]


@wrong("global race", "out[i] = a[31 - i]", 4, 8, zeros(1, 32, 32))
def grid_barrier_by_counter_that_does_not_wait(count, a, out):
    i = cuda.grid(1)
    a[i] = i
    cuda.threadfence()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(count, 0, 1)
    cuda.syncthreads()
    out[i] = a[31 - i]


@wrong("deadlock", "cuda.atomic.cas(lock", 2, 2, zeros(1, 1))
def lock_not_freed_on_one_path(lock, out):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    out[0] += 1
    if out[0] > 2:
        return
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


@wrong("deadlock", "while cuda.atomic.max(gate", 2, 32, zeros(1, 32))
def warp_waits_for_itself(gate, out):
    if cuda.threadIdx.x < 16:
        while cuda.atomic.max(gate, 0, 0) == 0:
            pass
    cuda.syncwarp()
    cuda.atomic.max(gate, 0, 1)
    out[cuda.threadIdx.x] = 1


# Queues and stacks without a lock, whose slots are claimed by an atomic.


@wrong("global race", "items[k]", 2, 1, zeros(1, 8, 8))
def slot_claimed_then_filled(tail, items, out):
    for k in range(8):
        if cuda.blockIdx.x == 0:
            items[cuda.atomic.add(tail, 0, 1)] = k + 1
            cuda.threadfence()
        else:
            while cuda.atomic.add(tail, 0, 0) <= k:
                pass
            cuda.threadfence()
            out[k] = items[k]


@wrong("depends on order", "cuda.atomic.exch(items, take", 1, 64, zeros(64))
def slot_of_the_block_emptied_before_it_is_filled(out):
    ends, items = cuda.shared.array(2, int32), cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    ends[i % 2] = items[i] = 0
    cuda.syncthreads()
    cuda.atomic.exch(items, cuda.atomic.add(ends, 0, 1), i + 1)
    take = cuda.atomic.add(ends, 1, 1)
    out[take] = cuda.atomic.exch(items, take, 0)


@wrong("depends on order", "cuda.atomic.add(items, first, 0)", 2, 8, zeros(2, 8, 1))
def count_of_slots_taken_for_count_of_items(ends, items, out):
    if cuda.blockIdx.x == 0:
        cuda.atomic.add(items, cuda.atomic.add(ends, 1, 1), 1)
        return
    while True:
        first = cuda.atomic.add(ends, 0, 0)
        if first < cuda.atomic.add(ends, 1, 0):
            if cuda.atomic.cas(ends, 0, first, first + 1) == first:
                break
    cuda.atomic.add(out, 0, cuda.atomic.add(items, first, 0))


@wrong("global race", "out[k] = ring[k % 2]", 2, 1, zeros(2, 2, 16))
def slot_freed_before_it_is_read(ends, ring, out):
    for k in range(16):
        if cuda.blockIdx.x == 0:
            while k - cuda.atomic.add(ends, 0, 0) >= 2:
                pass
            cuda.threadfence()
            ring[k % 2] = k
            cuda.threadfence()
            cuda.atomic.add(ends, 1, 1)
        else:
            while cuda.atomic.add(ends, 1, 0) <= k:
                pass
            cuda.threadfence()
            cuda.atomic.add(ends, 0, 1)
            out[k] = ring[k % 2]


# Barriers and warp operations.


def tile_sum(a, S, i):
    S[i] = a[i]
    cuda.syncthreads()
    return S[31 - i]


tile_sum_of = cuda.jit(device=True)(tile_sum)


@wrong("barrier divergence", "cuda.syncthreads()", 1, 32, floats(32, 32))
def trip_count_of_each_thread(a, b):
    i = cuda.threadIdx.x
    k = 0
    while k < i:
        cuda.syncthreads()
        k += 8
    b[i] = a[i]


@wrong("shared race", "S[i] += S[i + step]", 1, 32, floats(32, 1))
def volatile_tree_with_no_syncwarp(a, b):
    S = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    S[i] = a[i]
    cuda.syncthreads()
    for step in (16, 8, 4, 2, 1):
        if i < step:
            S[i] += S[i + step]
    if i == 0:
        b[0] = S[0]


# What is said of arrays.


@wrong("out of bounds", "S[i] = a[i]", 1, 32, floats(32, 32))
def dynamic_size_forgotten(a, b):
    S = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    S[i] = a[i]
    cuda.syncthreads()
    b[i] = S[31 - i]


# Right ones.


@right([7], 2, 1, zeros(1, 1, 1))
def flag_waited_for(flag, data, out):
    if cuda.blockIdx.x == 0:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        out[0] = cuda.atomic.add(data, 0, 0)
    else:
        cuda.atomic.add(data, 0, 7)
        cuda.atomic.exch(flag, 0, 1)


@right([9], 2, 1, zeros(1, 1, 1))
def bounded_poll_that_is_long_enough(flag, data, out):
    if cuda.blockIdx.x == 0:
        for _ in range(1 << 20):
            if cuda.atomic.add(flag, 0, 0):
                break
        cuda.threadfence()  # acquire
        out[0] = data[0]
    else:
        for _ in range(9):
            data[0] += 1
        cuda.threadfence()  # release
        cuda.atomic.exch(flag, 0, 1)


@right([1] * 8, 2, 4, zeros(1, 8))
def poll_that_gives_up(flag, out):
    for _ in range(200):
        if cuda.atomic.add(flag, 0, 0):
            break
    out[cuda.grid(1)] = 1


@right([32], 4, 8, zeros(1, 1, 1))
def last_ticket_writes_the_sum(total, ticket, out):
    cuda.atomic.add(total, 0, 1)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        if cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1:
            out[0] = cuda.atomic.add(total, 0, 0)


@right([16], 1, 16, zeros(1, 1))
def lock_tried_in_a_for_loop(lock, total):
    for _ in range(100000):
        if cuda.atomic.cas(lock, 0, 0, 1) == 0:
            cuda.threadfence()  # acquire
            total[0] += 1
            cuda.threadfence()  # release
            cuda.atomic.exch(lock, 0, 0)
            break


@right([16], 2, 8, zeros(16, 1, 1))
def compaction_in_any_order(items, n, out):
    i = cuda.grid(1)
    items[cuda.atomic.add(n, 0, 1)] = i
    cuda.atomic.add(out, 0, 1)


@right([1], 2, 8, zeros(1, 1))
def first_one_wins(seen, out):
    if cuda.atomic.cas(seen, 0, 0, 1) == 0:
        out[0] = 1


@right([10], 2, 8, zeros(1, 1, 1))
def whoever_comes_first_is_noted(seen, who, out):
    i = cuda.grid(1)
    if cuda.atomic.cas(seen, 0, 0, 1) == 0:
        who[0] = i
        out[0] = 10


@right([0], 2, 8, zeros(1, 16, 1))
def list_with_its_newest_at_the_head(head, after, out):
    i = cuda.grid(1)
    after[i] = cuda.atomic.exch(head, 0, i + 1)


@right([12], 2, 8, zeros(1, 1))
def counter_of_what_is_rejected(best, out):
    i = cuda.grid(1)
    cuda.atomic.max(best, 0, i)
    if i % 4:
        cuda.atomic.add(out, 0, 1)


@right([1], 2, 16, zeros(1, 1))
def search_that_stops_early(found, out):
    i = cuda.grid(1)
    for k in range(8):
        if cuda.atomic.add(found, 0, 0):
            return
        if i * 8 + k == 77:
            cuda.atomic.exch(found, 0, 1)
            out[0] = 1


@right([[15.0] * 2] * 2, 2, 2, lambda: [np.zeros((2, 2))])
def float_maximum_by_cas(a):
    bits = a.view(np.int64)  # atomic.cas takes integers
    at = cuda.threadIdx.x, cuda.blockIdx.x
    for k in range(16):
        old = cuda.atomic.cas(bits, at, 0, 0)
        while libdevice.longlong_as_double(old) < k:
            seen = cuda.atomic.cas(bits, at, old, libdevice.double_as_longlong(float(k)))
            if seen == old:
                break
            old = seen


@right([6], 3, 1, zeros(2, 1))
def ticket_lock(lock, out):
    mine = cuda.atomic.add(lock, 0, 1)
    while cuda.atomic.add(lock, 1, 0) != mine:
        pass
    cuda.threadfence()
    out[0] += 2
    cuda.threadfence()
    cuda.atomic.add(lock, 1, 1)


@right([4] * 8, 1, 8, zeros(8, 8))
def open_addressing(keys, counts):
    key = cuda.threadIdx.x % 2 + 1
    at = key * 3 % 8
    for _ in range(4):
        while True:
            old = cuda.atomic.cas(keys, at, 0, key)
            if old == 0 or old == key:
                break
            at = (at + 1) % 8
    for k in range(8):
        cuda.atomic.max(counts, k, 4)


@right([12], 3, 4, zeros(2, 12, 12, 1))
def slot_with_a_flag_of_its_own(ends, items, full, out):
    at = cuda.atomic.add(ends, 0, 1)
    items[at] = 1
    cuda.threadfence()
    cuda.atomic.exch(full, at, 1)
    take = cuda.atomic.add(ends, 1, 1)
    while cuda.atomic.add(full, take, 0) == 0:
        pass
    cuda.threadfence()
    cuda.atomic.add(out, 0, items[take])


@right([66], 3, 1, zeros(2, 4, 4, 1))
def ring_with_sequence_numbers(ends, turns, ring, out):
    for k in range(12 if cuda.blockIdx.x == 0 else 6):
        if cuda.blockIdx.x == 0:
            at = cuda.atomic.add(ends, 0, 1)
            while cuda.atomic.add(turns, at % 4, 0) != at // 4 * 2:
                pass
            cuda.threadfence()
            ring[at % 4] = k
            cuda.threadfence()
        else:
            at = cuda.atomic.add(ends, 1, 1)
            while cuda.atomic.add(turns, at % 4, 0) != at // 4 * 2 + 1:
                pass
            cuda.threadfence()
            cuda.atomic.add(out, 0, ring[at % 4])
            cuda.threadfence()
        cuda.atomic.add(turns, at % 4, 1)


@cuda.jit(device=True)
def pushed(top, next, i):
    """Put node i on a stack of Treiber's."""
    old = cuda.atomic.add(top, 0, 0)
    while True:
        next[i] = old
        cuda.threadfence()
        seen = cuda.atomic.cas(top, 0, old, i)
        if seen == old:
            return
        old = seen


@right([28], 2, 8, lambda: [np.full(1, -1), *zeros(8, 8, 1)()])
def stack_of_treiber(top, next, values, out):
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        values[i] = i
        pushed(top, next, i)
        return
    while True:
        old = cuda.atomic.add(top, 0, 0)
        if old >= 0:
            cuda.threadfence()
            if cuda.atomic.cas(top, 0, old, next[old]) == old:
                break
    cuda.threadfence()
    cuda.atomic.add(out, 0, values[old])


@right([4], 2, 4, lambda: [np.full(1, -1), *zeros(4, 1)()])
def whole_stack_taken_until_all_have_come(top, next, out):
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        pushed(top, next, i)
        return
    while i == 0 and out[0] < 4:
        node = cuda.atomic.exch(top, 0, -1)
        cuda.threadfence()
        while node >= 0:
            out[0] += 1
            node = next[node]


@right([24], 3, 8, zeros(2, 24, 1))
def slot_emptied_until_something_was_there(ends, items, out):
    cuda.atomic.exch(items, cuda.atomic.add(ends, 0, 1), 1)
    take = cuda.atomic.add(ends, 1, 1)
    got = 0
    while got == 0:
        got = cuda.atomic.exch(items, take, 0)
    cuda.atomic.add(out, 0, got)


@right([8], 2, 8, zeros(8, 8, 1))
def first_to_exchange_is_the_parent(seen, parent, out):
    i = cuda.grid(1)
    if cuda.atomic.exch(seen, i % 8, 1) == 0:
        parent[i % 8] = i
        cuda.atomic.add(out, 0, 1)


@right([7], 2, 1, zeros(1, 1, 1))
def volatile_poll_with_its_fences(flag, data, out):
    if cuda.blockIdx.x == 0:
        for _ in range(100_000):
            if cuda.ldcv(flag, 0):
                break
        cuda.threadfence()  # acquire
        out[0] = data[0]
    else:
        data[0] = 7
        cuda.threadfence()
        cuda.stwt(flag, 0, 1)


@right([31.0 - k for k in range(32)], 1, 32, floats(32, 32))
def barrier_in_a_device_function(a, b):
    S = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    b[i] = tile_sum_of(a, S, i)


@right([float(k) for k in range(32)], 1, 32, floats(32, 32))
def barrier_in_a_branch_of_the_whole_block(a, b):
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        cuda.syncthreads()
    b[i] = a[i]


@right([float(4 * (k // 4) * 4 + 6) for k in range(32)], 1, 32, floats(32, 32))
def sums_of_four_lanes(a, b):
    value = a[cuda.threadIdx.x]
    for step in (1, 2):
        value += cuda.shfl_xor_sync(ALL, value, step)
    b[cuda.threadIdx.x] = value


@right([1.0] * 50, 1, 64, floats(50, 50))
def return_behind_the_last_barrier(a, b):
    i = cuda.threadIdx.x
    cuda.syncthreads()
    if i >= 50:
        return
    b[i] = 1


# What a lane gets from one that does not take part is undefined: right as long as it is not used.


@right([31.0], 1, 32, floats(20, 1))
def largest_of_the_lanes_that_are_there(a, b):
    lane = cuda.laneid
    there = cuda.ballot_sync(ALL, lane < a.size)
    if lane >= a.size:
        return
    best = a[lane] if lane != 7 else float32(31)
    for step in (16, 8, 4, 2, 1):
        other = cuda.shfl_down_sync(there, best, step)
        if lane + step < a.size:
            best = max(best, other)
    if lane == 0:
        b[0] = best


# Only atomics change what they ask for, and the host repeats the launch until nothing changes.


@right([1], 2, 8, lambda: [np.int32([0] + [99] * 15), np.zeros(1, np.int32)])
def one_round_of_shortest_paths(distance, changed):
    here = cuda.grid(1)
    for neighbour in ((here + 1) % 16, (here * 5 + 3) % 16):
        far = cuda.atomic.add(distance, here, 0) + here + 1
        if far < cuda.atomic.min(distance, neighbour, far):
            cuda.atomic.exch(changed, 0, 1)


@wrong("depends on order", "cuda.atomic.add(flag, 0, 0)", 2, 1, zeros(1, 1, 1))
def bounded_poll_given_up(flag, data, out):
    if cuda.blockIdx.x == 0:
        for _ in range(3):
            if cuda.atomic.add(flag, 0, 0):
                break
        out[0] = cuda.atomic.add(data, 0, 0)
    else:
        for _ in range(9):
            cuda.atomic.add(data, 0, 1)
        cuda.atomic.exch(flag, 0, 1)


@wrong("depends on order", "while spins < 5", 2, 1, zeros(1, 1, 1))
def spin_given_up(flag, data, out):
    if cuda.blockIdx.x == 0:
        spins = 0
        while spins < 5 and cuda.atomic.max(flag, 0, 0) == 0:
            spins += 1
        out[0] = cuda.atomic.max(data, 0, 0)
    else:
        for _ in range(20):
            cuda.atomic.add(data, 0, 1)
        cuda.atomic.max(flag, 0, 1)


@wrong("depends on order", "cuda.atomic.cas(lock", 4, 1, zeros(1, 1))
def lock_tried_once(lock, total):
    if cuda.atomic.cas(lock, 0, 0, 1) == 0:
        cuda.atomic.add(total, 0, 1)
        cuda.atomic.exch(lock, 0, 0)


@wrong("depends on order", "cuda.atomic.cas(lock", 1, 16, zeros(1, 1))
def lock_given_up_after_two_tries(lock, total):
    for _ in range(2):
        if cuda.atomic.cas(lock, 0, 0, 1) == 0:
            cuda.atomic.add(total, 0, 1)
            cuda.atomic.exch(lock, 0, 0)
            break


@wrong("shared race", "left[i] = a[i]", 1, 32, floats(32, 32))
def halves_that_overlap(a, b):
    S = cuda.shared.array(33, float32)
    left, right = S[:32], S[1:]
    i = cuda.threadIdx.x
    left[i] = a[i]
    b[i] = right[i]


@wrong("barrier divergence", "cuda.syncthreads", 1, 32, floats(32, 32))
def barrier_only_in_a_conditional_expression(a, b):
    i = cuda.threadIdx.x
    b[i] = cuda.syncthreads_count(1) if i > 3 else cuda.syncthreads_or(0)


@wrong("barrier divergence", "cuda.syncthreads()", 1, 32, floats(32, 32))
def break_before_the_barrier(a, b):
    i = cuda.threadIdx.x
    for k in range(4):
        if a[i] < 10 * k:
            break
        b[i] += 1
        cuda.syncthreads()


@wrong("shared race", "S[i] += S[i + step]", 1, 64, floats(64, 1))
def last_warp_with_no_syncwarp(a, b):
    S = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    S[i] = a[i]
    cuda.syncthreads()
    if i < 32:
        for step in (32, 16, 8, 4, 2, 1):
            if i < step:
                S[i] += S[i + step]
        if i == 0:
            b[0] = S[0]


@wrong("global race", "while flag[0] == 0", 2, 1, zeros(1, 1))
def plain_poll(flag, out):
    if cuda.blockIdx.x == 0:
        while flag[0] == 0:
            pass
        out[0] = 1
    else:
        cuda.atomic.exch(flag, 0, 1)


@wrong("deadlock", "while cuda.ldcv(flag, 0) != 2", 2, 1, zeros(1, 1))
def volatile_poll_for_what_never_comes(flag, out):
    if cuda.blockIdx.x == 0:
        while cuda.ldcv(flag, 0) != 2:
            pass
        out[0] = 1
    else:
        cuda.atomic.exch(flag, 0, 1)


@wrong("inactive lane", "other = cuda.shfl_xor_sync", 1, 32, zeros(24, 1))
def least_of_lanes_that_have_ended(a, b):
    lane = cuda.laneid
    there = cuda.ballot_sync(ALL, lane < a.size)
    if lane >= a.size:
        return
    least = lane + 3
    for step in (16, 8, 4, 2, 1):
        other = cuda.shfl_xor_sync(there, least, step)
        least = min(least, other)
    a[lane] = least


@right([64], 2, 32, zeros(1))
def vote_of_a_warp_added_once(out):
    count = cuda.popc(cuda.ballot_sync(ALL, True))
    if cuda.laneid == 0:
        cuda.atomic.add(out, 0, count)


# Wrong ones that differ from a kernel above in one or two lines.

THREADFENCE = "cuda.threadfence()"
ACQUIRE, RELEASE = f"{THREADFENCE}  # acquire", f"{THREADFENCE}  # release"
LAST = "if cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1:"
ONE_BLOCK = "if cuda.blockIdx.x == 0:"
CALL, TREE = "b[i] = tile_sum_of(a, S, i)", "for step in (16, 8, 4, 2, 1):"
START = "best = a[lane] if lane != 7 else float32(31)"
OTHER, THERE = "other = cuda.shfl_down_sync(there, best, step)", "if lane + step < a.size:"
ORDER, RACE, DIVERGES = "depends on order", "global race", "barrier divergence"
EACH = Case(cuda.jit(each_its_element))
ROWS: list[tuple[Any, ...]] = [
    (EACH, "raises_what_nobody_sees", "unreported exception", "raise ValueError",
     {DO: ("if i == 5:", '    raise ValueError("five")', DO)}, {"grid": 2, "block": 16}),
    (EACH, "more_shared_memory_than_a_block_has", "impossible launch", "S = cuda.shared.array(",
     {DO: ("S = cuda.shared.array(12289, float32)", "S[i] = a[i]", "b[i] = S[i]")}),
    (EACH, "more_local_memory_than_a_thread_has", "impossible launch", "L = cuda.local.array(",
     {DO: ("L = cuda.local.array(131073, float32)", "L[i] = a[i]", "b[i] = L[i]")}),
    (EACH, "variable_set_on_one_path", "uninitialised", "b[i] = x",
     {DO: ("if i > 3:", "    x = a[i]", "b[i] = x")}),
    (EACH, "variable_of_a_loop_that_runs_never", "uninitialised", "b[i] = last",
     {DO: ("for k in range(i):", "    first, last = a[k], k", "b[i] = last")}),
    (EACH, "one_guard_around_three_barriers", DIVERGES, BARRIER,
     {DO: ("if i < 20:", "    a[i] += 1", f"    {BARRIER}", "    b[i] = a[19 - i]",
           f"    {BARRIER}", "    a[i] = 1", f"    {BARRIER}")}),
    (EACH, "one_return_before_three_barriers", DIVERGES, BARRIER,
     {DO: ("if i >= 20:", "    return", "a[i] += 1", BARRIER, "b[i] = a[19 - i]", BARRIER,
           "a[i] = 1", BARRIER)}),
    (EACH, "barriers_of_a_loading_loop", DIVERGES, BARRIER,
     {DO: ("for k in range(i, 40, 32):", "    a[i] = k", f"    {BARRIER}",
           "    b[i] += a[i]", f"    {BARRIER}")}),
    (EACH, "guard_around_a_loop_with_a_barrier", DIVERGES, BARRIER,
     {DO: ("if i < 20:", "    for k in range(3):", "        a[i] = k", f"        {BARRIER}")}),
    (EACH, "barrier_of_a_warp_in_one_arm", "inactive lane", "cuda.syncwarp()",
     {DO: ("if i < 16:", "    cuda.syncwarp()", "cuda.syncwarp()", DO)}),
    (EACH, "slice_one_too_short", "out of bounds", "part[i] = i",
     {DO: ("part = a[1:]", "part[i] = i")}),
    (EACH, "row_of_a_matrix", "out of bounds", "row[i]", {DO: ("row = a[2]", "b[i] = row[i]")},
     {"block": 8, "arguments": floats((4, 6), 8)}),
    (EACH, "element_of_two_warps", RACE, "b[i] = a[(i + 32) % 64]",
     {DO: ("a[i] = i", "b[i] = a[(i + 32) % 64]")}, {"block": 64, "arguments": floats(64, 64)}),
    (EACH, "loop_that_steps_by_zero", "endless loop", "while k > 0",
     {DO: ("k, step = 8, 0", "while k > 0:", "    k -= step", "b[0] = 1")}, {"block": 1}),
    (flag_waited_for, "flag_ignored", ORDER, "ready = cuda.atomic.add(flag",
     {ONE_BLOCK: "if cuda.blockIdx.x == 1:", "pass": (),
      "while cuda.atomic.add(flag, 0, 0) == 0:": "ready = cuda.atomic.add(flag, 0, 0)"}),
    (bounded_poll_that_is_long_enough, "bounded_poll_without_fences",
     RACE, "data[0] += 1", {ACQUIRE: (), RELEASE: ()}),
    (last_ticket_writes_the_sum, "highest_block_writes_the_sum",
     ORDER, "out[0] = cuda.atomic.add(total",
     {THREADFENCE: (), LAST: "if cuda.blockIdx.x == cuda.gridDim.x - 1:"}),
    (first_ticket_taken_for_the_last, "last_block_by_ticket_without_a_fence", RACE, "parts[k]",
     {THREADFENCE: ("if cuda.threadIdx.x > 0:", "    return"),
      "if cuda.atomic.add(ticket, 0, 1) == 0:": LAST}, {"block": 32}),
    (lock_tried_in_a_for_loop, "lock_tried_once_with_fences", ORDER, "cuda.atomic.cas(lock",
     {"for _ in range(100000):": "if True:", "break": ()}, {"grid": 4, "block": 1}),
    (compaction_in_any_order, "length_read_while_others_push", ORDER, "cuda.atomic.add(n, 0, 0)",
     {"cuda.atomic.add(out, 0, 1)": (BARRIER, "if i == 0:",
                                      "    out[0] = cuda.atomic.add(n, 0, 0)")}),
    (ticket_lock, "turn_that_skips_one", "deadlock", "while cuda.atomic.add(lock",
     {"mine = cuda.atomic.add(lock, 0, 1)": "mine = cuda.blockIdx.x",
      "cuda.atomic.add(lock, 1, 1)": "cuda.atomic.add(lock, 1, 2)"}),
    (slot_emptied_until_something_was_there, "slot_emptied_before_it_is_filled",
     ORDER, "cuda.atomic.exch(items, take",
     {"while got == 0:": "if got == 0:", "cuda.atomic.add(out, 0, got)": "out[take] = got"},
     {"grid": 4, "arguments": zeros(2, 32, 32)}),
    (stack_of_treiber, "stack_linked_after_the_swap", RACE, "next[old]",
     {"pushed(top, next, i)": ("next[i] = cuda.atomic.exch(top, 0, i)", THREADFENCE)}),
    (volatile_poll_with_its_fences, "volatile_poll_without_its_fence",
     RACE, "out[0] = data[0]", {ACQUIRE: ()}),
    (barrier_in_a_device_function, "barrier_in_a_device_function_in_a_branch",
     DIVERGES, "tile_sum_of(a, S, i)",
     {CALL: ("if i < 20:", f"    {CALL}", "else:", f"    {CALL}")}),
    (return_behind_the_last_barrier, "return_of_threads_out_of_range", DIVERGES, BARRIER,
     {BARRIER: (), "b[i] = 1": (DO, BARRIER)}, {"arguments": floats(64, 64)}),
    (barrier_in_a_branch_of_the_whole_block, "continue_past_the_barrier", DIVERGES, BARRIER,
     {ONE_BLOCK: ("for k in range(3):", "    if (i + k) % 3 == 0:", "        continue")}),
    (sums_of_four_lanes, "shuffles_in_loops_of_different_length",
     "inactive lane", "cuda.shfl_down_sync",
     {"for step in (1, 2):": "for _ in range(1 + cuda.threadIdx.x // 16):",
      "value += cuda.shfl_xor_sync(ALL, value, step)":
      "value += cuda.shfl_down_sync(ALL, value, 1)"}),
    (volatile_tree_with_no_syncwarp, "tree_with_syncwarp_across_warps",
     "shared race", "S[i] += S[i + step]",
     {"S = cuda.shared.array(32, float32)": "S = cuda.shared.array(128, float32)",
      TREE: "for step in (64, 32, 16, 8, 4, 2, 1):",
      "if i < step:": ("cuda.syncwarp()", "if i < step:")},
     {"block": 128, "arguments": floats(128, 1)}),
    (dynamic_size_forgotten, "dynamic_size_in_elements",
     "out of bounds", "S[i] = a[i]", {}, {"shared_bytes": 32}),
    (largest_of_the_lanes_that_are_there, "largest_of_lanes_that_have_ended",
     "inactive lane", OTHER,
     {START: "best = a[lane]", THERE: "if True:"}),
]  # fmt: skip
WRONG += [case.mistaken(*row) for case, *row in ROWS]
RIGHT += [
    EACH.edited(name, edits, arguments=zeros(32, 32), result=lambda _, wanted=wanted: wanted)
    for name, wanted, edits in (
        ("vote_of_half_a_warp", [16] * 16 + [0] * 16,
         {DO: ("if i < 16:", "    b[i] = cuda.popc(cuda.ballot_sync(0xFFFF, i >= 0))")}),
        ("loops_of_different_length_with_no_barrier", [*range(1, 33)],
         {DO: ("for _ in range(i + 1):", "    b[i] += 1")}),
        ("barrier_in_a_while_of_the_whole_block", [0] * 32,
         {DO: ("k = 4", "while k:", "    cuda.syncthreads()", "    k -= 1", "b[i] = k")}),
    )
]  # fmt: skip
