"""Kernels that update an element by two atomics, and kernels that tell a datum by a flag: wrong and
right ones of both kinds.

An update by two atomics, one that reads and one that stores what is computed from that, loses the
changes that come between. A flag and its datum, both changed by atomics alone with no fence, may be
seen in either order on a GPU; the simulator runs them in the order of the program, so they are only
noted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, int32

from kernels.cases import Case
from kernels.retries import ORDER, zeros

WRONG: list[Case] = []
RIGHT: list[Case] = []
UNFENCED: list[Case] = []  # right here, and noted


def wrong(line: str, grid: int, block: int, arguments: Any) -> Any:
    """Compile the function below and put it into the table of wrong ones."""

    def add(function: Any) -> None:
        WRONG.append(Case(cuda.jit(function), grid, block, arguments, ORDER, line))

    return add


def right(result: Any, grid: int, block: int, arguments: Any, table: list[Case] = RIGHT) -> Any:
    """The same of right ones; ``result`` is what the last argument becomes."""

    def add(function: Any) -> None:
        kernel = cuda.jit(function)
        table.append(Case(kernel, grid, block, arguments, result=lambda _: result))

    return add


# Updates by two atomics.


@wrong("cuda.atomic.exch(x", 2, 32, zeros(1))
def read_by_add_and_exchanged(x):
    value = cuda.atomic.add(x, 0, 0)
    cuda.atomic.exch(x, 0, value + 1)


@wrong("cuda.atomic.exch(x", 2, 32, zeros(1))
def read_by_max_and_exchanged(x):
    value = cuda.atomic.max(x, 0, 0)
    cuda.atomic.exch(x, 0, value + 1)


@wrong("cuda.atomic.exch(x", 2, 32, zeros(1))
def largest_by_read_and_exchange(x):
    number = (37 * cuda.grid(1)) % 64
    if number > cuda.atomic.add(x, 0, 0):
        cuda.atomic.exch(x, 0, number)


@wrong("cuda.atomic.exch(x", 1, 64, zeros(1))
def largest_by_exchange_after_an_early_return(x):
    number = (37 * cuda.grid(1)) % 64
    most = cuda.atomic.max(x, 0, 0)
    nothing_new = most >= number
    if nothing_new:
        return
    cuda.atomic.exch(x, 0, number)


@wrong("cuda.atomic.exch(place", 2, 32, lambda: [np.full(1, -1, np.int32), np.zeros(1, np.int32)])
def place_of_the_largest(most, place):
    number = (37 * cuda.grid(1)) % 64
    before = cuda.atomic.max(most, 0, number)
    if number > before:
        cuda.atomic.exch(place, 0, cuda.grid(1))


@wrong("cuda.atomic.exch(place", 2, 32, lambda: [np.full(1, -1, np.int32), np.zeros(1, np.int32)])
def place_of_the_largest_that_comes_last(most, place):
    i = cuda.grid(1)
    before = cuda.atomic.max(most, 0, i)
    if i > before:
        cuda.atomic.exch(place, 0, i)


@wrong("cuda.atomic.exch(place", 2, 32, lambda: [np.full(1, 99, np.int32), np.zeros(1, np.int32)])
def place_of_the_smallest_after_an_early_return(least, place):
    number = (37 * cuda.grid(1) + 5) % 64
    if cuda.atomic.min(least, 0, number) <= number:
        return
    cuda.atomic.exch(place, 0, cuda.grid(1))


@wrong("cuda.atomic.exch(x", 2, 32, zeros(1))
def read_by_cas_and_exchanged(x):
    value = cuda.atomic.cas(x, 0, 0, 0)
    cuda.atomic.exch(x, 0, value + 1)


@wrong("cuda.atomic.exch(x", 2, 32, zeros(1))
def read_by_ldcv_and_exchanged(x):
    value = cuda.ldcv(x, 0)
    cuda.atomic.exch(x, 0, value + 1)


@wrong("cuda.atomic.max(x", 2, 32, zeros(1))
def counted_by_max(x):
    value = cuda.atomic.add(x, 0, 0)
    cuda.atomic.max(x, 0, value + 1)


@wrong("cuda.atomic.max(x", 2, 32, zeros(1))
def counted_by_max_of_a_variable(x):
    value = cuda.atomic.or_(x, 0, 0)
    more = 2 * (value // 2) + 2
    cuda.atomic.max(x, 0, more)


@wrong("cuda.atomic.min(x", 2, 32, zeros(1))
def counted_down_by_min(x):
    value = cuda.atomic.add(x, 0, 0)
    cuda.atomic.min(x, 0, value - 1)


@wrong("cuda.atomic.add(x, 0, value)", 2, 4, lambda: [np.ones(1, np.int64)])
def doubled_by_an_addition(x):
    value = cuda.atomic.add(x, 0, 0)
    cuda.atomic.add(x, 0, value)


@wrong("cuda.atomic.exch(x", 2, 32, zeros(1))
def taken_and_put_back(x):
    value = cuda.atomic.exch(x, 0, 0)
    cuda.atomic.exch(x, 0, value + 1)


@wrong("cuda.atomic.exch(x", 2, 32, zeros(1))
def index_of_a_ring(x):
    value = cuda.atomic.add(x, 0, 1)
    cuda.atomic.exch(x, 0, (value + 1) % 7)


@wrong("cuda.atomic.add(s, 0, 0)", 1, 64, zeros(1))
def counted_by_max_in_shared_memory(out):
    s = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        s[0] = 0
    cuda.syncthreads()
    value = cuda.atomic.add(s, 0, 0)
    cuda.atomic.max(s, 0, value + 1)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[0] = s[0]


@wrong("cuda.atomic.add(n, 0, 0)", 2, 32, zeros(1, 64))
def pushed_by_two_atomics(n, slots):
    place = cuda.atomic.add(n, 0, 0)
    cuda.atomic.exch(slots, place, 1)
    cuda.atomic.max(n, 0, place + 1)


@wrong("if cuda.atomic.add(flag, 0, 0) == 1", 2, 32, zeros(1, 1, 1))
def flag_that_is_not_waited_for(data, flag, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 1:
            cuda.atomic.exch(data, 0, 42)
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            if cuda.atomic.add(flag, 0, 0) == 1:
                cuda.threadfence()
                out[0] = cuda.atomic.add(data, 0, 0)


@right([63], 2, 32, zeros(1))
def bound_that_is_read_first(x):
    """A larger bound that comes between does no harm."""
    bound = cuda.atomic.add(x, 0, 0)
    if cuda.grid(1) > bound:
        cuda.atomic.max(x, 0, cuda.grid(1))


@right([63], 2, 32, zeros(1))
def largest_of_both(x):
    bound = cuda.atomic.add(x, 0, 0)
    cuda.atomic.max(x, 0, max(bound, cuda.grid(1)))


@right([1] * 64, 2, 32, zeros(64))
def element_of_one_thread(x):
    i = cuda.grid(1)
    value = cuda.atomic.add(x, i, 0)
    cuda.atomic.exch(x, i, value + 1)


@right([1], 1, 64, zeros(1))
def read_by_all_and_changed_after_a_barrier(x):
    value = cuda.atomic.add(x, 0, 0)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.atomic.exch(x, 0, value + 1)


@right([10], 2, 32, zeros(1))
def counter_with_a_limit(x):
    place = cuda.atomic.add(x, 0, 1)
    if place >= 10:
        cuda.atomic.sub(x, 0, 1)


@right([7], 2, 32, zeros(1))
def flag_that_many_may_set(x):
    if cuda.atomic.add(x, 0, 0) == 0:
        cuda.atomic.exch(x, 0, 7)


@right([0], 2, 32, zeros(1))
def counter_that_the_last_thread_clears(x):
    place = cuda.atomic.add(x, 0, 1)
    if place == 63:
        cuda.atomic.exch(x, 0, 0)


@right([9], 2, 32, zeros(1, 1))
def flag_of_those_that_come_late(n, late):
    if cuda.atomic.add(n, 0, 1) >= 10:
        cuda.atomic.exch(late, 0, 9)


@right([63], 2, 32, zeros(1, 1))
def stored_by_the_last_thread(n, out):
    place = cuda.atomic.add(n, 0, 1)
    if place == 63:
        cuda.atomic.exch(out, 0, place)


@right([*range(64)], 2, 32, zeros(1, 64))
def each_place_stored_once(n, out):
    place = cuda.atomic.add(n, 0, 1)
    if place < 64:
        cuda.atomic.exch(out, place, place)


@right([64], 2, 32, zeros(1, 1))
def highest_place(n, most):
    place = cuda.atomic.add(n, 0, 1)
    cuda.atomic.max(most, 0, place + 1)


@right([(1 << 30) - 1], 1, 64, zeros(1))
def bits_that_come_together(x):
    before = cuda.atomic.or_(x, 0, 1 << cuda.threadIdx.x % 30)
    cuda.atomic.or_(x, 0, before | 1)


@right([4], 2, 64, zeros(1, 1))
def updated_under_a_lock(lock, x):
    if cuda.laneid == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        value = cuda.atomic.add(x, 0, 0)
        cuda.atomic.exch(x, 0, value + 1)
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


# A flag and its datum.


@right([42], 2, 32, zeros(1, 1, 1))
def datum_told_with_fences(data, flag, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 1:
            cuda.atomic.exch(data, 0, 42)
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            out[0] = cuda.atomic.add(data, 0, 0)


@right([2], 2, 32, zeros(1, 1))
def all_blocks_waited_for(count, out):
    """A counter alone tells nothing else."""
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(count, 0, 1)
        while cuda.atomic.add(count, 0, 0) < 2:
            pass
        cuda.atomic.max(out, 0, cuda.atomic.add(count, 0, 0))


@right([42], 2, 32, zeros(1, 1, 1), UNFENCED)
def datum_told_by_atomics_alone(data, flag, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 1:
            cuda.atomic.exch(data, 0, 42)
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            out[0] = cuda.atomic.add(data, 0, 0)


@right([42], 2, 32, zeros(1, 1, 1), UNFENCED)
def datum_read_by_ldcv(data, flag, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 1:
            cuda.atomic.add(data, 0, 42)
            cuda.atomic.add(flag, 0, 1)
        else:
            while cuda.ldcv(flag, 0) == 0:
                pass
            out[0] = cuda.ldcv(data, 0)


@right([42], 2, 32, zeros(1, 1, 1), UNFENCED)
def datum_told_with_a_fence_on_one_side(data, flag, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 1:
            cuda.atomic.exch(data, 0, 42)
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            out[0] = cuda.atomic.add(data, 0, 0)


@right([2], 2, 32, zeros(1, 1), UNFENCED)
def lock_without_fences(lock, x):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        value = cuda.atomic.add(x, 0, 0)
        cuda.atomic.exch(x, 0, value + 1)
        cuda.atomic.exch(lock, 0, 0)
