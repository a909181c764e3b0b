"""Kernels whose blocks tell each other something: right ones, and edits that make them wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from kernels.cases import Case

WRONG: list[Case] = []
RIGHT: list[Case] = []


def right(
    grid: int, block: int, a: Any, b: Any, result: Any, **wrong: tuple[str, str, dict[str, Any]]
) -> Callable[[Any], None]:
    """A right kernel of two arrays, of which the last becomes the result, and wrong ones by name:
    the kind of the finding, a piece of its line, and what lines become others."""

    def add(function: Any) -> None:
        launch = grid, block, lambda: [np.array(a), np.array(b)]
        case = Case(cuda.jit(function), *launch, result=lambda _: np.array(result))
        RIGHT.append(case)
        WRONG.extend(case.mistaken(name, *mistake) for name, mistake in wrong.items())

    return add


WAIT_FOR_3 = "while cuda.atomic.add(a, 0, 0) < 3 * (step + 1):"


@right(
    *(3, 2, [0], np.zeros((3, 6)), np.arange(3.0).repeat(6).reshape(3, 6)),
    arrives_for_others=("global race", "b[step, (i", {"cuda.syncthreads()  # before": ""}),
    others_do_not_wait=("global race", "b[step, (i", {"cuda.syncthreads()  # after": ""}),
    waits_for_all_but_one=("global race", "b[step, (i", {WAIT_FOR_3: WAIT_FOR_3.replace("3", "2")}),
    arrives_without_fence=("global race", "b[step, (i", {"cuda.threadfence()  # before": ""}),
)
def barrier_of_the_grid(a, b):
    i = cuda.grid(1)
    for step in range(2):
        b[step + 1, i] = b[step, (i + 3) % 6] + 1
        cuda.syncthreads()  # before
        if cuda.threadIdx.x == 0:
            cuda.threadfence()  # before
            cuda.atomic.add(a, 0, 1)
            while cuda.atomic.add(a, 0, 0) < 3 * (step + 1):
                pass
            cuda.threadfence()
        cuda.syncthreads()  # after


@right(
    *(3, 1, [0, 0], [0, 0], [2, 0]),
    resets_after_it_has_told=(
        *("deadlock", "while cuda.atomic.add(a, 1, 0)"),
        {
            "cuda.atomic.exch(a, 0, 0)": "cuda.atomic.exch(a, 1, step + 1)",
            "cuda.atomic.exch(a, 1, step + 1)": "cuda.atomic.exch(a, 0, 0)",
        },
    ),
)
def last_block_frees_the_others(a, b):
    for step in range(2):
        if cuda.atomic.add(a, 0, 1) == 2:
            cuda.atomic.exch(a, 0, 0)
            cuda.atomic.exch(a, 1, step + 1)
        while cuda.atomic.add(a, 1, 0) <= step:
            pass
    cuda.atomic.max(b, 0, 2)


@right(
    *(4, 1, [0], [0, 0], [4, 8]),
    lock_without_fence_after_it=("global race", "b[0] += 1", {"cuda.threadfence()  # in": ""}),
    lock_without_fence_before_its_end=("global race", "b[0] +=", {"cuda.threadfence()  # out": ""}),
)
def lock_around_two_numbers(a, b):
    while cuda.atomic.cas(a, 0, 0, 1) != 0:
        pass
    cuda.threadfence()  # in
    b[0] += 1
    b[1] = 2 * b[0]
    cuda.threadfence()  # out
    cuda.atomic.exch(a, 0, 0)


WAIT = "while block > 0 and cuda.atomic.add(a, block - 1, 0) == 0:"
GIVE_UP = ["for _ in range(100):", "    if block == 0 or cuda.atomic.add(a, block - 1, 0):"]


@right(
    *(4, 1, [0] * 4, [0] * 4, [7] * 4),
    passed_on_without_fence=("global race", "b[0] = 7", {"cuda.threadfence()  # out": ""}),
    gives_up_after_a_hundred_polls=(
        "global race",
        "b[0] = 7",
        {WAIT: GIVE_UP, "pass": "    break"},
    ),
)
def what_a_block_learned_is_passed_on(a, b):
    block = cuda.blockIdx.x
    if block == 0:
        b[0] = 7
    while block > 0 and cuda.atomic.add(a, block - 1, 0) == 0:
        pass
    if block > 0:
        cuda.threadfence()
        b[block] = b[0]
    cuda.threadfence()  # out
    cuda.atomic.add(a, block, 1)


@right(
    *(5, 1, [0] * 6, [0] * 5, [1, 2, 3, 4, 5]),
    looks_back_at_what_is_not_told=(
        "global race",
        "b[order - 1]",
        {"while not told:": "if False:"},
    ),
)
def scan_in_the_order_of_tickets(a, b):
    order = cuda.atomic.add(a, 5, 1)
    told = cuda.atomic.add(a, order - 1, 0) if order else 1
    while not told:
        told = cuda.atomic.add(a, order - 1, 0)
    cuda.threadfence()
    b[order] = 1 + (b[order - 1] if order else 0)
    cuda.threadfence()
    cuda.atomic.exch(a, order, 1)


@right(
    *(2, 32, np.arange(64) * 7 % 64, [0, 0], [63, 2016]),
    guess_stored=("global race", "b[0] = a[i]", {"cuda.atomic.max(b, 0, a[i])": "b[0] = a[i]"}),
    sum_without_retry=("global race", "old = b[1]", {"while True:": "for _ in range(1):"}),
)
def atomics_that_check_a_guess(a, b):
    i = cuda.grid(1)
    if a[i] > b[0]:
        cuda.atomic.max(b, 0, a[i])
    old = b[1]
    while True:
        got = cuda.atomic.cas(b, 1, old, old + a[i])
        if got == old:
            break
        old = got
