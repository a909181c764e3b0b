"""Requests of warps: which accesses of threads are one instruction, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.cases import Case
from kernels.documentation import DOCUMENTED
from numba import cuda, float32

from convlab.device import commit_copies, copy_async, copy_async4, wait_copies
from convlab.running.engines.simulator import Simulator
from convlab.simulation.rules.memory_traffic import changes, packed
from convlab.tracing import trace

pytestmark = pytest.mark.same_in_cudasim


def requests(kernel, grid, block, *arrays) -> list[tuple[int, str, str, int]]:
    """Line within the kernel, array, operation and number of requests."""
    launch = trace(kernel, grid, block, *arrays).main
    first = kernel.py_func.__code__.co_firstlineno
    return [(a.line - first, a.array, a.operation, a.requests) for a in launch.accesses]


def zeros(size: int) -> np.ndarray:
    return np.zeros(size, np.float32)


BY_HAND = []


def counted(*expected: tuple[int, str, str, int], block: int = 32, a: int = 4, out: int = 64):
    """Put the kernel below into the table, with its requests as :func:`requests` has them, the
    number of its threads and the sizes of its arrays, filled 0, 1, 2, ..."""

    def add(function):
        kernel = cuda.jit(function)
        BY_HAND.append(pytest.param(kernel, block, a, out, [*expected], id=function.__name__))
        return kernel

    return add


# Lanes with fewer turns idle; they do not run ahead into the next turn of the outer loop.
@counted((6, "a", "load", 2 * 2 * 3), (7, "out", "store", 2), block=64)
def own_trip_counts(a, out):
    t = cuda.threadIdx.x
    total = float32(0)
    for i in range(2):
        for k in range((t + i) % 4):  # 0 to 3 turns, by lane, and not the same for both i
            total += a[k]
    out[t] = total


# Python has compiled the condition twice: before the loop and at its end.
@counted((4, "a", "load", 3), (6, "out", "store", 1))
def while_loop(a, out):
    t = cuda.threadIdx.x
    k = t % 3
    while a[k] < 2:
        k += 1
    out[t] = k


# Both sides of a branch are executed by a warp.
@counted((5, "a", "load", 1), (5, "out", "store", 1), (7, "a", "load", 1), (7, "out", "store", 1),
         a=32)  # fmt: skip
def both_branches(a, out):
    t = cuda.threadIdx.x
    if t % 2:
        out[t] = a[t]
    else:
        out[t] = a[0]


@counted((9, "a", "load", 2 * 3 * 2), (14, "out", "store", 1))
def whiles_in_loops_in_whiles(a, out):
    i = cuda.threadIdx.x
    total = float32(0)
    for _ in range(2):
        k = 0
        while k < 3:
            j = 0
            while j < (i + k) % 3:
                total += a[j]
                j += 1
                if j > 5:
                    break
            k += 1
    out[i] = total


# Lanes end after 0, 1 or 2 iterations, so that the else is executed three times.
@counted((5, "a", "load", 2), (5, "out", "store", 2), (10, "a", "load", 3), (10, "out", "store", 3))
def while_with_an_else_that_break_leaves_out(a, out):
    i = cuda.threadIdx.x
    k = 0
    while k < i % 3:
        out[i] = a[k]
        if i > 29:
            break
        k += 1
    else:
        out[i] = a[3]


@pytest.mark.parametrize(("kernel", "block", "a", "out", "expected"), BY_HAND)
def test_accesses_of_threads_that_are_one_instruction(kernel, block, a, out, expected):
    arrays = np.arange(a, dtype=np.float32), np.arange(out, dtype=np.float32)
    # The first accesses of a function that Python has not yet specialised come from elsewhere.
    for _ in range(10):
        assert requests(kernel, 1, block, *arrays) == expected
    if kernel is while_with_an_else_that_break_leaves_out:
        assert [*arrays[1][:3], arrays[1][31]] == [3, 3, 3, 0]


@cuda.jit
def async_copies(a, out):
    staged = cuda.shared.array((2, 256), float32, alignment=16)
    t = cuda.threadIdx.x
    for tile in range(2):
        copy_async4(staged, (tile, 4 * t), a, 4 * t, t < 40)
        copy_async(staged, (tile, t), a, t, tile == 1)
        commit_copies()
    wait_copies(0)
    cuda.syncthreads()
    out[t] = staged[1, 64 - t]


def test_a_copy_is_a_load_and_a_store_at_its_line():
    assert requests(async_copies, 1, 64, zeros(256), zeros(64)) == [
        (5, "a", "load", 4), (5, "staged", "store", 4),
        (6, "a", "load", 2), (6, "staged", "store", 4),
        (10, "out", "store", 2), (10, "staged", "load", 2),
    ]  # fmt: skip
    launch = trace(async_copies, 1, 64, zeros(256), zeros(64)).main
    loads = [a for a in launch.accesses if a.array == "a"]
    assert [(a.width, a.lanes, a.sectors) for a in loads] == [(16, 80, 40), (4, 64, 8)]
    assert not launch.findings  # one thread's copies of the same, whichever lands first


@cuda.jit(device=True)
def loaded(a, i):
    return a[i]


@cuda.jit
def two_calls(a, out):
    t = cuda.threadIdx.x
    if t < 16:
        x = loaded(a, t)
    else:
        x = loaded(a, t + 16)
    out[t] = x + loaded(a, 0)


@cuda.jit
def two_dimensions(a, out):
    x, y = cuda.grid(2)
    out[y, x] = a[x, y]


@cuda.jit
def guarded_while(a, out):
    i = cuda.threadIdx.x
    k = 0
    while k < 4:  # one turn is not taken for another
        if (k + i) % 2 == 0:
            out[k * 32 + i] = a[k * 32 + i]
        k += 1


def closed_over(limit):
    @cuda.jit
    def kernel(a, out):
        k = 0
        while k < limit:
            if k == cuda.threadIdx.x:
                out[k] = a[k]
            k += 1

    return kernel


def with_no_source():
    names = {"cuda": cuda}
    text = "def kernel(a, out):\n k = 0\n while k < 3:\n  out[k] = a[k]\n  k += 1\n"
    exec(text, names)
    return cuda.jit(names["kernel"])


ROW, SQUARE = zeros(128), np.zeros((8, 8), np.float32)


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "array", "loads", "stores"),
    [
        # Calls from different places are different instructions.
        (two_calls, 1, 32, ROW, (3, 64, 2 + 2 + 1), (1, 32, 4)),
        # A warp is 32 threads, counted along x first.
        (two_dimensions, (1, 1), (8, 8), SQUARE, (2, 64, 16), (2, 64, 8)),
        (guarded_while, 1, 32, ROW, (4, 64, 16), (4, 64, 16)),
        (closed_over(8), 1, 32, ROW, (8, 8, 8), (8, 8, 8)),
        (with_no_source(), 1, 1, ROW, (3, 3, 3), (3, 3, 3)),
        # Lane 0 of the second warp takes one side only.
        (both_branches, 3, 33, ROW, (3 * 3, 3 * 33, 3 * 6), (3 * 3, 3 * 33, 3 * 9)),
    ],
)
def test_requests_lanes_and_sectors(kernel, grid, block, array, loads, stores):
    launch = trace(kernel, grid, block, array.copy(), array.copy()).main
    for operation, expected in (("load", loads), ("store", stores)):
        some = [access for access in launch.accesses if access.operation == operation]
        names = ("requests", "lanes", "sectors")
        assert tuple(launch.total(name, some) for name in names) == expected


@pytest.mark.parametrize("block", [31, 32, 100])
def test_counts_and_traces_agree(block):
    engine = Simulator()
    a, out = zeros(4), zeros(block)
    with engine.counting() as counts:
        engine.launch(own_trip_counts, 1, block, a, out)
    launch = trace(own_trip_counts, 1, block, a, out).main
    assert counts.global_requests == launch.total("requests")
    assert counts.global_sectors == launch.total("sectors")
    assert counts.global_loads == launch.total("lanes", launch.of("a"))


@pytest.mark.parametrize("case", DOCUMENTED, ids=lambda case: case.name)
def test_kernels_of_numba_s_documentation_are_traced_as_they_stand(case: Case) -> None:
    more = {"shared_bytes": case.shared_bytes}
    launch = trace(case.kernel, case.grid, case.block, *case.arguments(), **more).main
    assert not launch.findings
    assert 0 < launch.total("lanes") <= 32 * launch.total("requests")
    for count in ("sectors", "wavefronts"):
        assert launch.total(f"fewest_{count}") <= launch.total(count)
    shown = {line for lines in launch.source.values() for line in lines}
    assert {access.line for access in launch.accesses} <= shown


@pytest.mark.parametrize("bits", [(), (3, 0, 5), (40, 20, 20), (61, 61), (8, 60, 1, 30, 30, 5)])
def test_packed_keys_sort_and_group_as_the_keys_themselves(bits) -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 500):
        keys = [rng.integers(-(2**n) // 2, 2**n, size) for n in (1, *bits)]
        fewer = packed(*keys)
        order = np.lexsort(keys[::-1])
        np.testing.assert_array_equal(np.lexsort(fewer[::-1]), order)
        new = (changes(*(key[order] for key in some)) for some in (fewer, keys))
        np.testing.assert_array_equal(*new)
    assert len(packed(*keys)) == 1 or sum(bits) > 62
