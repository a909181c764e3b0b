"""Shuffles beyond the warp: a note says where what a kernel leaves depends on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32

from convlab.simulation.compiled import engine_choice
from convlab.simulation.host.programs import OwnNumbers, simulate, simulator
from convlab.simulation.rules.findings import Finding, SimulationError

ALL = 0xFFFFFFFF


def sum_stored_by_all(a, out):
    i = cuda.grid(1)
    value = a[i]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(ALL, value, step)
    out[i] = value


def sum_added_by_all(a, out):
    value = a[cuda.grid(1)]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(ALL, value, step)
    cuda.atomic.add(out, 0, value)


def sum_through_shared_memory(a, out):
    sums = cuda.shared.array(64, float32)
    i = cuda.grid(1)
    value = a[i]
    step = 16
    while step > 0:
        value += cuda.shfl_down_sync(ALL, value, step)
        step //= 2
    sums[i] = value
    cuda.syncthreads()
    out[i] = sums[i]


def sum_of_integers(a, out):
    i = cuda.grid(1)
    value = int32(a[i])
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(ALL, value, step)
    out[i] = value


def scan_without_a_guard(a, out):
    i = cuda.grid(1)
    value = a[i]
    for step in (1, 2, 4, 8, 16):
        value += cuda.shfl_up_sync(ALL, value, step)
    out[i] = value


def sum_of_the_wrong_lane_for_all(a, out):
    i = cuda.grid(1)
    value = a[i]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(ALL, value, step)
    out[i] = cuda.shfl_sync(ALL, value, 31)


def last_lane_s_sum_stored_by_the_first(a, out):
    i = cuda.grid(1)
    value = a[i]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(ALL, value, step)
    value = cuda.shfl_sync(ALL, value, 31)
    if cuda.laneid == 0:
        out[i // 32] = value


NOTED = [
    *(sum_stored_by_all, sum_added_by_all, sum_through_shared_memory, sum_of_integers),
    *(scan_without_a_guard, sum_of_the_wrong_lane_for_all, last_lane_s_sum_stored_by_the_first),
]


def sum_stored_by_the_first_lane(a, out):
    i = cuda.grid(1)
    value = a[i]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(ALL, value, step)
    if cuda.laneid == 0:
        out[i // 32] = value


def sum_for_all(a, out):
    i = cuda.grid(1)
    value = a[i]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(ALL, value, step)
    out[i] = cuda.shfl_sync(ALL, value, 0)


def sum_by_butterfly(a, out):
    i = cuda.grid(1)
    value = a[i]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(ALL, value, step)
    out[i] = value


def scan_with_a_guard(a, out):
    i = cuda.grid(1)
    value = a[i]
    for step in (1, 2, 4, 8, 16):
        other = cuda.shfl_up_sync(ALL, value, step)
        if cuda.laneid >= step:
            value += other
    out[i] = value


def sum_of_what_follows(a, out):
    i = cuda.grid(1)
    value = a[i]
    for step in (1, 2, 4, 8, 16):
        other = cuda.shfl_down_sync(ALL, value, step)
        value += other if cuda.laneid + step < 32 else float32(0)
    out[i] = value


def neighbour_with_an_edge(a, out):
    i = cuda.grid(1)
    right = cuda.shfl_down_sync(ALL, a[i], 1)
    if cuda.laneid == 31:
        right = a[(i + 1) % 64]
    out[i] = right


def largest_of_what_follows(a, out):
    i = cuda.grid(1)
    value = a[i]
    for step in (1, 2, 4, 8, 16):
        value = max(value, cuda.shfl_down_sync(ALL, value, step))
    out[i] = value


def sum_then_something_else(a, out):
    i = cuda.grid(1)
    value = a[i]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(ALL, value, step)
    if cuda.laneid == 0:
        cuda.atomic.add(out, 0, value)
    out[i + 1] = a[i]


SILENT = [
    *(sum_stored_by_the_first_lane, sum_for_all, sum_by_butterfly, scan_with_a_guard),
    *(sum_of_what_follows, neighbour_with_an_edge, largest_of_what_follows),
    sum_then_something_else,
]


def launch(function: Any) -> Any:
    """Launch it in a program; the report."""
    with simulator() as report:
        kernel = cuda.jit(function)
        kernel[1, 64](np.arange(1, 65, dtype=np.float32), np.zeros(80, np.float32))
    return report


@pytest.mark.parametrize("function", NOTED, ids=lambda one: one.__name__)
def test_numbers_of_a_lane_s_own_that_matter_are_noted(function) -> None:
    report = launch(function)
    assert not report.findings
    (note,) = report.notes
    name = function.__name__
    assert note.startswith(f"{name}, line ")
    assert "gives a lane whose source is beyond the warp its own number, and out[" in note


@pytest.mark.parametrize("function", SILENT, ids=lambda one: one.__name__)
def test_numbers_of_a_lane_s_own_that_do_not_matter_are_not(function) -> None:
    report = launch(function)
    assert not report.findings
    assert not report.notes


def test_one_launch_warns() -> None:
    out = np.zeros(64, np.float32)
    with pytest.warns(OwnNumbers, match="shfl_down_sync gives a lane"):
        simulate(cuda.jit(sum_stored_by_all), 1, 64, np.ones(64, np.float32), out)
    assert (out[::32] == 32).all()  # what it leaves is what a GPU does


def index_from_an_absent_lane(a, out):
    i = cuda.grid(1)
    if i >= 8:
        j = cuda.shfl_sync(0xFFFFFF00, i, 0)
        out[i] = a[j]


def slot_from_a_lane_that_is_not_the_leader(a, out):
    i = cuda.grid(1)
    if i % 3 == 1:
        mask = cuda.activemask()
        base = 0
        if cuda.laneid == 1:
            base = int32(cuda.atomic.add(out, 0, 1)) * 0 + 8
        base = cuda.shfl_sync(mask, base, 0)
        out[base + cuda.popc(mask & cuda.lanemask_lt())] = a[i]


def divisor_from_an_absent_lane(a, out):
    i = cuda.grid(1)
    if i >= 8:
        bits = int32(cuda.shfl_sync(0xFFFFFF00, i, 0))
        out[i] = 7 // (bits - 2147483647)


def number_of_an_absent_lane_not_used(a, out):
    i = cuda.grid(1)
    if i >= 8:
        j = cuda.shfl_sync(0xFFFFFF00, i, 0)
        out[i] = a[j if j < 0 and j > 0 else i]


def index_too_large_of_its_own(a, out):
    i = cuda.grid(1)
    if i >= 8:
        j = cuda.shfl_sync(0xFFFFFF00, i, 9)
        out[i] = a[j + 60]


def found_in(function: Any) -> tuple[Finding, ...]:
    arrays = np.ones(64, np.int64), np.zeros(64, np.int64)
    with pytest.raises(SimulationError) as caught:
        simulate(cuda.jit(function), 1, 32, *arrays)
    return caught.value.findings


def an_index_and_a_number_not_used(a, out):
    i = cuda.grid(1)
    if i >= 8:
        k = cuda.shfl_sync(0xFFFFFF00, i, 1)
        j = cuda.shfl_sync(0xFFFFFF00, i, 0)
        out[i] = a[j] + (k > 0 and k < 0)


def a_result_and_a_number_not_used(a, out):
    i = cuda.grid(1)
    if i >= 8:
        k = cuda.shfl_sync(0xFFFFFF00, i, 1)
        out[i] = cuda.shfl_sync(0xFFFFFF00, i, 0) + (k > 0 and k < 0)


def two_indices(a, out):
    i = cuda.grid(1)
    if i >= 8:
        k = cuda.shfl_sync(0xFFFFFF00, i, 1)
        j = cuda.shfl_sync(0xFFFFFF00, i, 0)
        out[i] = a[j] + a[k]


def an_index_from_two_lanes(a, out):
    """Only two large numbers lead out of bounds."""
    i = cuda.grid(1)
    if i >= 8:
        k = cuda.shfl_sync(0xFFFFFF00, i, 1)
        j = cuda.shfl_sync(0xFFFFFF00, i, 0)
        out[i] = a[min(j, k)]


def a_result_from_two_lanes(a, out):
    i = cuda.grid(1)
    if i >= 8:
        k = cuda.shfl_sync(0xFFFFFF00, i, 1)
        j = cuda.shfl_sync(0xFFFFFF00, i, 0)
        out[i] = min(j, k)


@pytest.mark.parametrize(
    ("function", "lines", "says"),
    [
        (an_index_and_a_number_not_used, (4,), "is wrong with another number in its place"),
        (a_result_and_a_number_not_used, (4,), "reads lane 0, which does not take part"),
        (two_indices, (3, 4), "is wrong with another number in its place"),
        (
            an_index_from_two_lanes,
            (4, 5),
            "may be wrong with another number in the place of one of these: a",
        ),
        (a_result_from_two_lanes, (3, 4), "and the result depends on this number or another"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_only_shuffles_whose_numbers_matter_are_blamed(
    function: Any, lines: tuple[int, ...], says: str
) -> None:
    found = found_in(function)
    begin = function.__code__.co_firstlineno
    assert tuple(one.line - begin for one in found) == lines
    for one in found:
        assert one.kind == "inactive lane"
        assert says in one.what, str(one)


@pytest.mark.parametrize("seconds", [0.0, float("inf")], ids=["compiled", "explained"])
@pytest.mark.parametrize(
    ("function", "kind", "says"),
    [
        (
            index_from_an_absent_lane,
            "inactive lane",
            "is wrong with another number in its place: a",
        ),
        (slot_from_a_lane_that_is_not_the_leader, "inactive lane", "reads lane 0, which does not"),
        (divisor_from_an_absent_lane, "inactive lane", "reads lane 0, which does not take part"),
        (index_too_large_of_its_own, "out of bounds", "a[69] is outside"),
        (number_of_an_absent_lane_not_used, "", ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_index_from_an_absent_lane_names_the_lane(
    function: Any, kind: str, says: str, seconds: float, monkeypatch
) -> None:
    monkeypatch.setattr(engine_choice, "limits", engine_choice.Limits.all_at(seconds))
    arrays = np.ones(64, np.int64), np.zeros(64, np.int64)
    try:
        simulate(cuda.jit(function), 1, 32, *arrays)
    except SimulationError as error:
        (finding,) = error.findings
        assert finding.kind == kind, str(finding)
        assert says in finding.what
    else:
        assert not kind
