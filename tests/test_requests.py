"""Requests of warps: which accesses of threads are one instruction, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.cases import Case
from kernels.documentation import DOCUMENTED
from numba import cuda, float32

from convlab.device import commit_copies, copy_async, copy_async4, wait_copies
from convlab.engines.simulator import Simulator
from convlab.tracing import trace

pytestmark = pytest.mark.same_in_cudasim


def requests(kernel, grid, block, *arrays) -> list[tuple[int, str, str, int]]:
    """Line within the kernel, array, operation and number of requests."""
    launch = trace(kernel, grid, block, *arrays).main
    first = kernel.py_func.__code__.co_firstlineno
    return [(a.line - first, a.array, a.operation, a.requests) for a in launch.accesses]


def zeros(size: int) -> np.ndarray:
    return np.zeros(size, np.float32)


@cuda.jit
def own_trip_counts(a, out):
    t = cuda.threadIdx.x
    total = float32(0)
    for _ in range(2):
        for k in range(t % 4):  # 0 to 3 turns, by lane
            total += a[k]
    out[t] = total


def test_lanes_wait_for_each_other_after_an_inner_loop():
    # Lanes with fewer turns idle; they do not run ahead into the next turn of the outer loop.
    found = requests(own_trip_counts, 1, 64, zeros(4), zeros(64))
    assert found == [(6, "a", "load", 2 * 2 * 3), (7, "out", "store", 2)]


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


@cuda.jit
def while_loop(a, out):
    t = cuda.threadIdx.x
    k = t % 3
    while a[k] < 2:
        k += 1
    out[t] = k


def test_the_condition_of_a_while_is_one_instruction():
    # Python has compiled it twice: before the loop and at its end.
    a = np.arange(4, dtype=np.float32)
    assert requests(while_loop, 1, 32, a, zeros(32)) == [
        (4, "a", "load", 3),
        (6, "out", "store", 1),
    ]


@cuda.jit
def early_out(a, out):
    t = cuda.threadIdx.x
    for k in range(8):
        if k > t // 16:
            break
        out[t] = a[k]


def test_a_lane_that_breaks_out_is_missing_from_then_on():
    found = requests(early_out, 1, 32, zeros(8), zeros(32))
    assert [number for *_, number in found] == [2, 2]


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


def test_calls_from_different_places_are_different_instructions():
    launch = trace(two_calls, 1, 32, zeros(64), zeros(32)).main
    (load,) = [one for one in launch.accesses if one.operation == "load"]
    assert (load.requests, load.lanes, load.sectors) == (3, 64, 2 + 2 + 1)


@cuda.jit
def both_branches(a, out):
    t = cuda.threadIdx.x
    if t % 2:
        out[t] = a[t]
    else:
        out[t] = a[0]


def test_both_sides_of_a_branch_are_executed_by_a_warp():
    found = requests(both_branches, 1, 32, zeros(32), zeros(32))
    assert [number for *_, number in found] == [1, 1, 1, 1]


def test_a_block_that_is_no_multiple_of_32_ends_in_a_partial_warp():
    launch = trace(both_branches, 3, 33, zeros(40), zeros(40)).main
    # Lane 0 of the second warp takes one side only.
    assert launch.total("requests") == 3 * (4 + 2)


@cuda.jit
def two_dimensions(a, out):
    x, y = cuda.grid(2)
    out[y, x] = a[x, y]


def test_a_warp_is_32_threads_counted_along_x_first():
    a, out = np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32)
    launch = trace(two_dimensions, (1, 1), (8, 8), a, out).main
    load, store = sorted(launch.accesses, key=lambda access: access.operation)
    assert (load.requests, load.sectors, store.requests, store.sectors) == (2, 16, 2, 8)


def test_runs_agree_however_often_python_has_specialised_the_code():
    # The first accesses of a function that Python has not yet specialised come from elsewhere.
    found = {str(requests(own_trip_counts, 4, 64, zeros(4), zeros(64))) for _ in range(20)}
    assert len(found) == 1


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


@cuda.jit
def guarded_while(a, out):
    i = cuda.threadIdx.x
    k = 0
    while k < 4:
        if (k + i) % 2 == 0:
            out[k * 32 + i] = a[k * 32 + i]
        k += 1


def test_a_turn_of_a_while_is_not_taken_for_another():
    launch = trace(guarded_while, 1, 32, zeros(128), zeros(128)).main
    for access in launch.accesses:
        assert (access.requests, access.lanes, access.sectors) == (4, 64, 16)


@cuda.jit
def nested_whiles(a, out):
    i = cuda.threadIdx.x
    total = float32(0)
    for _ in range(2):
        k = 0
        while k < 3:
            j = 0
            while j < i % 3:
                total += a[j]
                j += 1
                if j > 5:
                    break
            k += 1
    out[i] = total


def test_whiles_in_loops_in_whiles():
    found = requests(nested_whiles, 1, 32, zeros(4), zeros(32))
    assert found == [(9, "a", "load", 2 * 3 * 2), (14, "out", "store", 1)]


def closed_over(limit):
    @cuda.jit
    def kernel(a, out):
        k = 0
        while k < limit:
            if k == cuda.threadIdx.x:
                out[k] = a[k]
            k += 1

    return kernel


def test_whiles_of_a_kernel_that_closes_over_something():
    launch = trace(closed_over(8), 1, 32, zeros(32), zeros(32)).main
    assert [(access.requests, access.lanes) for access in launch.accesses] == [(8, 8), (8, 8)]


@cuda.jit
def while_with_an_else(a, out):
    i = cuda.threadIdx.x
    k = 0
    while k < i % 3:
        out[i] = a[k]
        if i > 29:
            break
        k += 1
    else:
        out[i] = a[3]


def test_the_else_of_a_while_is_left_out_by_break():
    a, out = np.arange(4, dtype=np.float32), zeros(32)
    lanes = requests(while_with_an_else, 1, 32, a, out)
    # Lanes end after 0, 1 or 2 iterations, so that the else is executed three times.
    assert [(line, number) for line, array, _, number in lanes if array == "a"] == [(5, 2), (10, 3)]
    assert out[:3].tolist() == [3, 3, 3]
    assert out[31] == 0


def test_a_while_with_no_source_is_traced_all_the_same():
    names = {"cuda": cuda}
    text = "def kernel(a):\n k = 0\n while k < 3:\n  a[k] = k\n  k += 1\n"
    exec(text, names)
    launch = trace(cuda.jit(names["kernel"]), 1, 1, zeros(3)).main
    assert launch.total("requests") == 3


@pytest.mark.parametrize("case", DOCUMENTED, ids=lambda case: case.name)
def test_kernels_of_numba_s_documentation_are_traced_as_they_stand(case: Case) -> None:
    more = {"shared_bytes": case.shared_bytes}
    launch = trace(case.kernel, case.grid, case.block, *case.arguments(), **more).main
    assert not launch.findings
    assert launch.total("requests") > 0
    assert launch.total("lanes") <= 32 * launch.total("requests")
    assert launch.total("fewest_sectors") <= launch.total("sectors")
    assert launch.total("fewest_wavefronts") <= launch.total("wavefronts")
    assert {access.line for access in launch.accesses} <= {
        line for lines in launch.source.values() for line in lines
    }
