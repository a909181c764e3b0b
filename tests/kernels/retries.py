"""Kernels that update an element by ``cas``: wrong ones lose updates, right ones try again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import libdevice

from kernels.cases import Case

WRONG: list[Case] = []
RIGHT: list[Case] = []
ORDER, RACE = "depends on order", "global race"


def zeros(*sizes: Any) -> Callable[[], list[Any]]:
    return lambda: [np.zeros(size, np.int32) for size in sizes]


def wrong(kind: str, line: str, grid: int, block: int, arguments: Any) -> Callable[[Any], None]:
    """Compile the function below and put it into the table of wrong ones."""

    def add(function: Any) -> None:
        WRONG.append(Case(cuda.jit(function), grid, block, arguments, kind, line))

    return add


def right(result: Any, grid: int, block: int, arguments: Any) -> Callable[[Any], None]:
    """The same of right ones; ``result`` is what the last argument becomes."""

    def add(function: Any) -> None:
        kernel = cuda.jit(function)
        RIGHT.append(Case(kernel, grid, block, arguments, result=lambda _: result))

    return add


# Lost updates.


@wrong(ORDER, "cuda.atomic.cas(c", 2, 32, zeros(1))
def count_by_one_cas(c):
    old = cuda.atomic.add(c, 0, 0)
    cuda.atomic.cas(c, 0, old, old + 1)


@wrong(ORDER, "cuda.atomic.cas(c", 2, 32, zeros(1))
def counts_by_one_cas_each(c):
    for _ in range(3):
        old = cuda.atomic.add(c, 0, 0)
        new = old + 1
        cuda.atomic.cas(c, 0, old, new)


@wrong(ORDER, "cuda.atomic.cas(c", 2, 1, zeros(1, 2))
def result_stored_in_a_while_loop(c, out):
    k = 0
    while k < 3:
        old = cuda.atomic.add(c, 0, 0)
        out[cuda.grid(1)] = cuda.atomic.cas(c, 0, old, old + 1)
        k += 1


@wrong(ORDER, "cuda.atomic.cas(h", 2, 32, zeros(4))
def histogram_of_a_grid_stride_loop(h):
    i = cuda.grid(1)
    while i < 256:
        old = cuda.atomic.add(h, i % 4, 0)
        cuda.atomic.cas(h, i % 4, old, old + 1)
        i += 64


@wrong(ORDER, "cuda.atomic.cas(c", 1, 32, zeros(1))
def tried_twice(c):
    for _ in range(2):
        old = cuda.atomic.add(c, 0, 0)
        if cuda.atomic.cas(c, 0, old, old + 1) == old:
            break


@wrong(ORDER, "seen = cuda.atomic.cas(c", 1, 32, zeros(1))
def given_up_after_three_tries(c):
    tries = 0
    old = cuda.atomic.add(c, 0, 0)
    while tries < 3:
        seen = cuda.atomic.cas(c, 0, old, old + 1)
        if seen == old:
            break
        old = seen
        tries += 1


@wrong(ORDER, "cuda.atomic.cas(c", 4, 8, zeros(1))
def maximum_tried_once(c):
    i = cuda.grid(1)
    old = cuda.atomic.max(c, 0, 0)
    if i > old:
        cuda.atomic.cas(c, 0, old, i)


@wrong(ORDER, "cuda.atomic.cas(bits, 0, old", 2, 32, lambda: [np.zeros(1)])
def sum_of_floats_tried_once(total):
    bits = total.view(np.int64)  # atomic.cas takes integers
    old = cuda.atomic.cas(bits, 0, 0, 0)
    more = libdevice.longlong_as_double(old) + 0.1 * cuda.grid(1)
    cuda.atomic.cas(bits, 0, old, libdevice.double_as_longlong(more))


@cuda.jit(device=True)
def counted_once(c):
    old = cuda.atomic.add(c, 0, 0)
    cuda.atomic.cas(c, 0, old, old + 1)


@wrong(ORDER, "cuda.atomic.cas(c", 2, 32, zeros(1))
def count_in_a_device_function(c):
    counted_once(c)


@wrong(ORDER, "cuda.atomic.exch(c", 2, 32, zeros(1))
def count_by_an_exchange(c):
    old = cuda.atomic.add(c, 0, 0)
    cuda.atomic.exch(c, 0, old + 1)


@wrong(RACE, "old = c[0]", 1, 32, zeros(1))
def plain_read_before_one_cas(c):
    old = c[0]
    cuda.atomic.cas(c, 0, old, old + 1)


@wrong(RACE, "old = c[0]", 1, 32, zeros(1, 1))
def failures_counted(c, failures):
    k = 0
    while k < 3:
        old = c[0]
        if cuda.atomic.cas(c, 0, old, old + 1) != old:
            cuda.atomic.add(failures, 0, 1)
        k += 1


@wrong(RACE, "old = c[0]", 1, 32, zeros(1))
def loop_that_ends_where_the_cas_fails(c):
    k = 0
    while k < 3:
        old = c[0]
        if cuda.atomic.cas(c, 0, old, old + 1) != old:
            break
        k += 1


@wrong(RACE, "old = c[0]", 1, 32, zeros(1, 32))
def result_only_stored(c, out):
    k = 0
    while k < 3:
        old = c[0]
        got = cuda.atomic.cas(c, 0, old, old + 1)
        out[cuda.threadIdx.x] = got
        k += 1


# Loops that check the result.


@right([64], 2, 32, zeros(1))
def left_by_break(c):
    while True:
        old = c[0]
        if cuda.atomic.cas(c, 0, old, old + 1) == old:
            break


@right([64], 2, 32, zeros(1))
def checked_by_the_condition(c):
    old = c[0]
    while cuda.atomic.cas(c, 0, old, old + 1) != old:
        old = c[0]


@right([64], 2, 32, zeros(1))
def tested_later(c):
    old = c[0]
    while True:
        got = cuda.atomic.cas(c, 0, old, old + 1)
        done = got == old
        old = got
        if done:
            break


@right([64], 2, 32, zeros(1))
def flag_of_success(c):
    done = False
    while not done:
        old = c[0]
        done = cuda.atomic.cas(c, 0, old, old + 1) == old


@right([64], 2, 32, zeros(1))
def flag_set_in_a_branch(c):
    done = 0
    while done == 0:
        old = c[0]
        if cuda.atomic.cas(c, 0, old, old + 1) == old:
            done = 1


@right([64], 2, 32, zeros(1))
def assumed_and_found(c):
    old = c[0]
    assumed = old - 1
    while assumed != old:
        assumed = old
        old = cuda.atomic.cas(c, 0, assumed, assumed + 1)


@right([64], 2, 32, zeros(1))
def continues_where_it_fails(c):
    while True:
        old = c[0]
        if cuda.atomic.cas(c, 0, old, old + 1) != old:
            continue
        break


@right([64], 2, 32, zeros(1))
def first_try_before_the_loop(c):
    old = c[0]
    got = cuda.atomic.cas(c, 0, old, old + 1)
    while got != old:
        old = got
        got = cuda.atomic.cas(c, 0, old, old + 1)


@cuda.jit(device=True)
def attempted(c, old):
    return cuda.atomic.cas(c, 0, old, old + 1) == old


@right([64], 2, 32, zeros(1))
def device_function_tried_in_a_loop(c):
    old = c[0]
    while not attempted(c, old):
        old = c[0]


@right([64] * 4, 2, 32, zeros(4))
def goes_on_only_after_success(h):
    i = cuda.grid(1)
    while i < 256:
        old = h[i % 4]
        if cuda.atomic.cas(h, i % 4, old, old + 1) == old:
            i += 64


@right([63], 2, 32, zeros(1))
def maximum_with_retries(c):
    i = cuda.grid(1)
    old = cuda.atomic.add(c, 0, 0)
    while i > old:
        seen = cuda.atomic.cas(c, 0, old, i)
        if seen == old:
            break
        old = seen


@right([63], 2, 32, zeros(1))
def maximum_read_again(c):
    i = cuda.grid(1)
    old = cuda.atomic.add(c, 0, 0)
    while old < i:
        cuda.atomic.cas(c, 0, old, i)
        old = cuda.atomic.add(c, 0, 0)


@right([63 * 6.4], 2, 32, lambda: [np.zeros(1)])
def sum_of_floats_with_retries(total):
    bits = total.view(np.int64)
    old = cuda.atomic.cas(bits, 0, 0, 0)
    while True:
        more = libdevice.longlong_as_double(old) + 0.2 * cuda.grid(1)
        got = cuda.atomic.cas(bits, 0, old, libdevice.double_as_longlong(more))
        if got == old:
            break
        old = got


@right([64], 2, 32, zeros(1, 1))
def lock_by_exchange_freed_by_cas(lock, total):
    while cuda.atomic.exch(lock, 0, 1) != 0:
        pass
    cuda.threadfence()
    total[0] += 1
    cuda.threadfence()
    cuda.atomic.cas(lock, 0, 1, 0)


# A cas that fails has found its work done by another thread.


@right([64], 2, 32, lambda: [np.full(64, -1), np.zeros(1, np.int32)])
def each_vertex_claimed_once(level, count):
    i = cuda.grid(1)
    for vertex in ((i + 1) % 64, i * 3 % 64):
        old = cuda.atomic.add(level, vertex, 0)
        if old == -1:
            if cuda.atomic.cas(level, vertex, old, 1) == old:
                cuda.atomic.add(count, 0, 1)


@cuda.jit(device=True)
def root_of(parent, node):
    """The root of a tree, whose paths are halved on the way."""
    while True:
        above = cuda.atomic.add(parent, node, 0)
        top = cuda.atomic.add(parent, above, 0)
        if above == top:
            return above
        cuda.atomic.cas(parent, node, above, top)
        node = top


@right([0], 2, 32, lambda: [np.arange(64), np.zeros(1, np.int64)])
def trees_joined(parent, out):
    one = cuda.grid(1)
    other = (one * 7 + 3) % 64
    while True:
        one, other = root_of(parent, one), root_of(parent, other)
        if one == other:
            break
        if one < other:
            one, other = other, one
        if cuda.atomic.cas(parent, one, one, other) == one:
            break
    cuda.atomic.max(out, 0, 0)


@right([120], 1, 16, zeros(2, 20, 20, 1))
def queue_of_michael_and_scott(ends, after, items, out):
    node = cuda.atomic.add(ends, 1, 1) + 1  # node 0 comes first; no node is after the last
    items[node] = node - 1
    cuda.threadfence()
    while True:
        last = cuda.atomic.add(ends, 0, 0)
        next = cuda.atomic.add(after, last, 0)
        if next == 0:
            if cuda.atomic.cas(after, last, 0, node) == 0:
                break
        else:
            cuda.atomic.cas(ends, 0, last, next)  # another thread may have done so
    cuda.atomic.cas(ends, 0, last, node)
    cuda.atomic.add(out, 0, items[node])
