"""Loops that wait for nobody: they are endless, and no deadlock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, int32

from convlab.running.engines.simulator import SimulationError, Simulator
from convlab.simulation.rules.findings import Finding

pytestmark = pytest.mark.same_in_cudasim
N = 8


def bounds_that_meet(a, b):
    low, high = 0, N
    while low < high:
        middle = (low + high) // 2
        if a[middle] <= a[3] and a[3] >= 0:
            low = middle
        else:
            high = middle
    b[cuda.grid(1)] = low


def bounds_of_shared_memory(a, b):
    s = cuda.shared.array(N, int32)
    i = cuda.threadIdx.x
    s[i] = a[i]
    cuda.syncthreads()
    low, high = 0, N
    while True:
        middle = (low + high) >> 1
        if high <= low:
            break
        if s[middle] < a[i] + 1:
            low = middle
        else:
            high = middle
    b[i] = low


def one_thread_searches(a, b):
    """The others wait for it at the barrier."""
    i = cuda.threadIdx.x
    low = i
    if i == 2:
        while a[low] != N:
            low = min(low + 1, N - 1)
    cuda.syncthreads()
    b[i] = low


def skips_some_threads(a, b):
    """Numbers of the thread and of the launch do not change while a loop goes on."""
    i = cuda.grid(1)
    low, high = 0, len(a)
    while low < min(high, cuda.gridsize(1)):
        middle = (low + high) // 2
        if cuda.grid(1) >= len(a) or middle <= i:
            low = middle
        else:
            high = middle
    b[i] = low


def only_numbers(a, b):
    low, high = 0, 9
    while low < high:
        middle = (low + high) // 2
        if middle * middle <= 50:
            low = middle
        else:
            high = middle
    b[0] = low


def root_to_the_last_bit(a, b):
    i = cuda.grid(1)
    root = 1.0
    while abs(root * root - (a[i] + 2)) > 1e-30:
        root = 0.5 * (root + (a[i] + 2) / root)
    b[i] = root


def list_with_a_ring(a, b):
    node = cuda.grid(1)
    while node >= 0:
        node = a[node]
    b[0] = node


def cas_with_an_old_number(a, b):
    i = cuda.grid(1)
    old = cuda.atomic.add(b, 0, 0)
    while cuda.atomic.cas(b, 0, old, old + i + 1) != old:
        pass


def cas_with_an_old_number_by_load(a, b):
    expected = cuda.ldcv(b, 0)
    done = False
    while not done:
        done = cuda.atomic.cas(b, 0, expected, expected + 1) == expected


def turn_that_nobody_gives(a, b):
    mine = cuda.atomic.add(b, 0, 1)
    while cuda.atomic.cas(b, 1, mine, mine) != mine:
        pass


def flag_in_a_variable(a, b):
    done = False
    while not done:
        if cuda.atomic.add(b, 0, 0) == 1:
            done = True


def sum_of_flags(a, b):
    i = cuda.grid(1)
    ready = 0
    while i == 0 and ready < 2:
        ready = 0
        for k in range(4):
            ready += cuda.ldcv(b, k)
    if i > 0:
        b[N - 1] = 1


def flags_in_order(a, b):
    ready = 0
    while ready < 4:
        if cuda.ldcv(b, ready) == 1:
            ready += 1


def look_back(a, b):
    """As in a scan in one pass: the block before may not have stored its state yet."""
    look = cuda.grid(1)
    while look >= 0:
        state = cuda.ldcv(b, look)
        if state == 2:
            break
        if state == 1:
            look -= 1


def spins_that_are_counted(a, b):
    spins = 0
    while cuda.atomic.add(b, 0, 0) == 0 and spins < 2000:
        spins = min(spins + 1, 1000)


def flags_of_shared_memory(a, b):
    """The other threads set theirs later."""
    s = cuda.shared.array(N, int32)
    i = cuda.threadIdx.x
    s[i] = 0
    cuda.syncthreads()
    ready = 0
    while i == 0 and ready < N:
        if s[ready] == 1:
            ready += 1
    s[i] = 1


def flags_by_another_name(a, b):
    """The other threads set theirs later, too."""
    s = cuda.shared.array(N, int32)
    i = cuda.threadIdx.x
    s[i] = 0
    flags = s[:]
    cuda.syncthreads()
    ready = 0
    while i == 0 and ready < N:
        if s[ready] == 1:
            ready += 1
    flags[i] = 1


@cuda.jit(device=True)
def follow(nodes, node):
    while nodes[node] != N:
        node = nodes[node]
    return node


def list_of_a_function(a, b):
    """Another thread may change the list."""
    b[0] = follow(a, 0)


def found_in(function: Any) -> Finding:
    arrays = np.arange(N), np.zeros(N, np.int32)
    with pytest.raises(SimulationError) as caught:
        Simulator().launch(cuda.jit(function), 1, N, *arrays)
    return next(one for one in caught.value.findings if "race" not in one.kind)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (bounds_that_meet, "low (3) and high (4) take no new numbers"),
        (bounds_of_shared_memory, "and 7 more repeat the loop"),
        (one_thread_searches, "thread (2, 0, 0) of block (0, 0, 0) repeats the loop"),
        (skips_some_threads, "low (0) and high (1) take no new numbers"),
        (only_numbers, "low (7) and high (8) take no new numbers"),
        (root_to_the_last_bit, "root (1.4142135623"),
        (list_with_a_ring, "node (0) takes no new numbers"),
        (cas_with_an_old_number, "old (0), which a cas expects, takes no new numbers"),
        (cas_with_an_old_number_by_load, "expected (0), which a cas expects"),
    ],
)
def test_a_loop_that_waits_for_nobody_is_endless(function: Any, says: str) -> None:
    finding = found_in(function)
    assert finding.kind == "endless loop", str(finding)
    assert says in finding.what
    by_cas = "cas" in function.__name__
    assert ("cuda.atomic.cas returns" in finding.remedy) == by_cas
    assert "locks" not in finding.remedy


@pytest.mark.parametrize(
    "function",
    [
        *(turn_that_nobody_gives, flag_in_a_variable, sum_of_flags, list_of_a_function),
        *(flags_in_order, look_back, spins_that_are_counted, flags_of_shared_memory),
        flags_by_another_name,
    ],
)
def test_a_loop_that_may_wait_is_a_deadlock(function: Any) -> None:
    finding = found_in(function)
    assert finding.kind == "deadlock", str(finding)
    assert "no new numbers" not in finding.what
