"""Barriers that threads do not meet at, and findings in libraries: one cause, one finding."""

from __future__ import annotations

import linecache
import re

import numpy as np
import pytest
from kernels import schedules
from kernels.cases import findings_of
from numba import cuda
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_uniform_float32

from convlab.running.engines.simulator import SimulationError, Simulator

LOOP, BRANCH = (
    ". Let all threads run the loop equally often",
    ". Move the barrier out of the branch.",
)


@pytest.mark.parametrize(
    ("name", "cause", "others", "remedy"),
    [
        ("one_guard_around_three_barriers", "inside the if in line", 2, BRANCH),
        ("one_return_before_three_barriers", "this one returned in line", 2, ". Let no thread ret"),
        ("barriers_of_a_loading_loop", "inside the for in line", 1, LOOP),
        ("guard_around_a_loop_with_a_barrier", "inside the if in line", 0, BRANCH),
        ("trip_count_of_each_thread", "inside the while in line", 0, LOOP),
    ],
)
def test_what_parts_threads_is_one_finding(name, cause, others, remedy) -> None:
    (finding,) = findings_of(next(case for case in schedules.WRONG if case.name == name))
    text = str(finding)
    assert cause in finding.what
    assert remedy in text
    assert text.endswith(remedy) or remedy is not BRANCH  # which says nothing of a return
    later = re.search(r", as at the barriers? in lines? ([\d and]+)$", finding.what)
    lines = [] if later is None else re.findall(r"\d+", later[1])
    source = linecache.getlines(finding.file)
    assert len(lines) == others
    assert all("cuda.syncthreads()" in source[int(line) - 1] for line in lines)


@cuda.jit
def two_branches(a):
    i = cuda.threadIdx.x
    if i < 20:
        a[i] = 1
        cuda.syncthreads()
    if i < 10:
        a[i] = 2
        cuda.syncthreads()


def test_two_branches_are_two_findings() -> None:
    with pytest.raises(SimulationError) as caught:
        Simulator().launch(two_branches, 1, 32, np.zeros(32))
    assert len(caught.value.findings) == 2


@cuda.jit
def one_state_of_two_threads(states, out):
    i = cuda.grid(1)
    out[i] = xoroshiro128p_uniform_float32(states, i // 2)


@cuda.jit(device=True)
def drawn(states, k):
    return xoroshiro128p_uniform_float32(states, k)


@cuda.jit
def one_state_through_a_device_function(states, out):
    i = cuda.grid(1)
    out[i] = drawn(states, i // 2)


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(
    ("kernel", "calls"),
    [(one_state_of_two_threads, one_state_of_two_threads),
     (one_state_through_a_device_function, drawn)],
)  # fmt: skip
def test_a_race_in_a_library_names_the_line_that_calls_it(kernel, calls, typed: bool) -> None:
    states, out = np.zeros(32, xoroshiro128p_dtype), np.zeros(64, np.float32)
    with pytest.raises(SimulationError) as caught:
        Simulator(typed=typed).launch(kernel, 1, 64, states, out)
    first = calls.py_func.__code__.co_firstlineno
    lines = linecache.getlines(__file__)
    line = next(n for n in range(first, first + 9) if "xoroshiro" in lines[n - 1])
    for finding in caught.value.findings:
        assert finding.what.endswith(f", in a call in line {line} of test_barriers.py")
        assert finding.remedy.startswith("Call it with an element of the thread's own")
