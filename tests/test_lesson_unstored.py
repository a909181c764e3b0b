"""The lessons' checks tell which elements of a shared array no thread stores, or several do."""

from __future__ import annotations

import numpy as np
import pytest
from lesson_kernels import kernel_of, ones
from numba.cuda.core import config

from convlab import lessons
from convlab.device import load4
from convlab.lessons import compiling, kernel_checks
from convlab.lessons.traffic_hints import most_of, stored_by_several
from convlab.lessons.unstored import block_number
from convlab.tracing import trace

pytestmark = pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the strict simulator's findings")

TABLE = """    s = cuda.shared.array((4, 8), float32)
    t = cuda.threadIdx.x
    {store}
    cuda.syncthreads()
    total = float32(0)
    for k in range(4):
        for j in range(8):
            total += s[k, j]
    out[t] = total
"""


@pytest.fixture(autouse=True)
def no_compilers(monkeypatch):
    """Compile nothing: that depends on what is installed, and no result here may."""
    monkeypatch.setattr(compiling, "compiled_alone", lambda kernel, types: None)


def sums(a):
    return np.full(a.size, a.sum(), np.float32)


@pytest.mark.parametrize(
    ("store", "threads", "told"),
    [
        ("for k in range(4): s[k, t % 4] = a[t]", 32, "No thread stores to columns 4 to 7 of s."),
        ("s[t // 8 % 3, t % 8] = a[t]", 32, "No thread stores to row 3 of s."),
        ("s[t // 8 * 2 % 4, t % 8] = a[t]", 32, "No thread stores to rows 1, 3 of s."),
        ("s[t % 4, t % 4 + t // 4 % 2] = a[t]", 32, "to 24 of the 32 elements of s."),
        (
            "if t < 32: s[t // 8, t % 8] = a[t]",
            20,
            "the block 20 threads, each of which stores one",
        ),
    ],
)
def test_elements_that_are_never_stored_are_told_with_the_store(tmp_path, store, threads, told):
    kernel = kernel_of(tmp_path, TABLE.format(store=store))
    found = lessons.check_kernel(kernel, sums, [lessons.On(1, threads, (ones(threads),))])
    assert "uninitialised" in found.reasons
    (mistake,) = (one for one in found.mistakes if one.reason == "uninitialised")
    assert told in mistake.advice
    assert any("s[" in line.code and "=" in line.code for line in mistake.lines)
    assert f"This is with grid 1 and block {threads}." in mistake.what


def test_elements_that_are_stored_later_are_not_called_unstored(tmp_path):
    late = TABLE.replace("    {store}\n", "").replace("    out[t]", "    {store}\n    out[t]")
    kernel = kernel_of(tmp_path, late.format(store="s[t // 8, t % 8] = a[t]"))
    found = lessons.check_kernel(kernel, sums, [lessons.On(1, 32, (ones(32),))])
    assert "uninitialised" in found.reasons
    assert "No thread stores" not in str(found)


def test_an_index_outside_tells_the_launch(tmp_path):
    kernel = kernel_of(tmp_path, "    i = cuda.grid(1)\n    out[i] = a[i]\n")
    found = lessons.check_kernel(kernel, np.copy, [lessons.On(2, 32, (ones(40),))])
    assert "This is with grid 2 and block 32." in str(found)


def test_blocks_are_counted_x_first():
    assert block_number((1, 2, 0), (3, 4, 1)) == 7
    assert block_number(None, (3, 4, 1)) == 0


LOADS = """    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    for e in range(t, 64, {step}):
        s[e] = a[e]
    cuda.syncthreads()
    out[t] = s[63 - t]
"""


def test_threads_that_store_the_same_elements_are_counted(tmp_path):
    ours, yours = (kernel_of(tmp_path, LOADS.format(step=step)) for step in (32, 4))
    traces = [trace(one, 1, 32, ones(64), ones(32)).main for one in (ours, yours)]
    times = [stored_by_several(one)["s"][0] for one in traces]
    assert times[0] == 1
    assert times[1] > 4
    hint = most_of(yours, traces[1:], "requests", traces[:1])
    assert "threads of a block read the same number of a, on average" in hint.advice


STRIDED = """    s = cuda.shared.array({size}, float32, alignment=16)
    t = cuda.threadIdx.x
    for k in range({rows}):
        s[t + 32 * k] = a[t]
    cuda.syncthreads()
    total = float32(0)
    for k in range(4):
        total += s[{place}]
    out[t] = total
"""
FLOAT4S = STRIDED.replace(
    "    for k in range(4):\n        total += s[{place}]\n", "    total = load4(s, t * 4)[0]\n"
)


@pytest.mark.parametrize(
    ("rows", "place", "told"),
    [(4, "t * 4 + k", "use load4"), (32, "t * 32 + k", "mostly lie 32 apart")],
    ids=["float4s would do", "banks"],
)
def test_banks_are_told_before_float4s_where_lanes_lie_farther_apart(tmp_path, rows, place, told):
    body = STRIDED.format(size=32 * rows, rows=rows, place=place)
    yours = kernel_of(tmp_path, body)
    target = kernel_of(tmp_path, FLOAT4S.format(size=128, rows=4))
    target.py_func.__globals__["load4"] = load4
    traces = [trace(one, 1, 32, ones(32), ones(32)).main for one in (yours, target)]
    assert told in most_of(yours, traces[:1], "wavefronts", traces[1:], "shared").advice


def test_counts_of_a_kernel_alone_are_compared_with_the_fewest(tmp_path):
    kernel = kernel_of(tmp_path, "    i = cuda.grid(1)\n    out[i] = a[i]\n")
    on = [lessons.On(1, 32, (ones(32),))]
    found = lessons.check_kernel(kernel, np.copy, on, each_once=True)
    assert found.passed
    assert "fewest" in str(found)
    assert "target" not in str(found)
    assert ">fewest</th>" in found.as_html()
    assert kernel_checks.FEWEST == "fewest"
