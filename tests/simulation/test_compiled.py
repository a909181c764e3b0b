"""The compiled engine finds what the other one finds, in the same words, and leaves the same
numbers. Here every launch counts as a long one.

Every third kernel of some tables is tried; ``CONVLAB_ENGINES=all`` tries all of all tables, which
takes minutes.
"""

from __future__ import annotations

import enum
import importlib
import itertools
import math
import os
import re
import signal
import subprocess
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numba.extending
import numpy as np
import pytest
from kernels.cases import Case, edited
from numba import cuda, float32, int32, int64, uint32
from numba.cuda.extending import overload

import convlab
import convlab.device
from convlab.simulation.compiled import (
    code_cache,
    compiled_run,
    engine_choice,
    kernel_history,
    kernel_variants,
    kernels,
)
from convlab.simulation.compiled.engine_choice import Limits
from convlab.simulation.compiled.kernel_text import KernelText
from convlab.simulation.compiled.kernels import COMPILER_FAULT
from convlab.simulation.compiled.refused import NeedsGreenlets

ALWAYS, NEVER = Limits.all_at(0.0), Limits.all_at(float("inf"))
QUICK = "right", "wrong", "textbook", "typed", "atomic_pairs"
REST = "retries", "schedules", "data_types", "messages", "documentation", "traced", "tensor_cores"
ALL = os.environ.get("CONVLAB_ENGINES") == "all"
F = np.float32


def kernels_of_the_tests() -> Iterator[Any]:
    for module in (*QUICK, *REST) if ALL else QUICK:
        values = vars(importlib.import_module(f"kernels.{module}")).values()
        tables = [one if isinstance(one, list | tuple) else [one] for one in values]
        found = {id(case): case for table in tables for case in table if isinstance(case, Case)}
        for case in [*found.values()][:: 1 if ALL else 3]:
            marks = () if calls_convlab_device(case) else (pytest.mark.same_in_cudasim,)
            yield pytest.param(case, id=f"{module}-{case.name}", marks=marks)


def calls_convlab_device(case: Case) -> bool:
    """Return True for a kernel that calls functions of convlab.device. Where Numba is its simulator
    they are emulations, and such a launch stays with the greenlets. Any other kernel becomes the
    same machine code there, which the right kernels below try there too."""
    return not {*case.kernel.py_func.__code__.co_names}.isdisjoint(convlab.device.__all__)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return how the launches end that are tried as machine code: "compiled", "found", or why
    not."""
    noted: list[str] = []
    run = compiled_run.CompiledRun.run

    def tried(self: Any) -> None:
        try:
            run(self)
        except NeedsGreenlets as why:
            noted.append(str(why))
            raise
        except convlab.SimulationError:
            noted.append("found")
            raise
        noted.append("compiled")

    monkeypatch.setattr(compiled_run.CompiledRun, "run", tried)
    monkeypatch.setattr(engine_choice, "say", lambda line: None)
    monkeypatch.setattr(engine_choice, "limits", ALWAYS)
    monkeypatch.setattr(kernel_history, "histories", kernel_history.Histories())
    return noted


def outcome(
    launch: Callable[..., None], arguments: list[Any]
) -> tuple[str, list[str], list[np.ndarray]]:
    """Return what a launch finds, what it notes, and its arguments afterwards."""
    found = ""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            launch(*arguments)
        except convlab.SimulationError as error:
            found = str(error)
    found = re.sub(r" \[\d+ times\]", "", found)  # machine code leaves most blocks to themselves
    return found, [str(one.message) for one in noted], [np.asarray(one) for one in arguments]


def compare(
    kernel: Any, grid: Any, block: Any, make: Callable[[], list[Any]], shared_bytes: int = 0
) -> str:
    """Hold both engines to each other; return what they find."""

    def launch(*arguments: Any) -> None:
        convlab.simulate(kernel, grid, block, *arguments, shared_bytes=shared_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_choice, "limits", NEVER)
        usual = outcome(launch, make())
    compiled = outcome(launch, make())
    assert compiled[:2] == usual[:2]
    for one, other in zip(compiled[2], usual[2], strict=True):
        if not usual[0] and one.dtype.names is None:  # wrong kernels may leave anything
            np.testing.assert_array_equal(one, other)
    return usual[0]


@pytest.mark.slow
@pytest.mark.parametrize("case", [*kernels_of_the_tests()])
def test_both_engines_agree(case, ends):
    compare(case.kernel, case.grid, case.block, case.arguments, case.shared_bytes)
    assert not any(why.startswith(COMPILER_FAULT) for why in ends)


# Kernels that must run as machine code, of every kind that the documentation lists.

THREADS, TILE = 64, 8
TABLE = 3, 1, 2


@cuda.jit
def add(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@cuda.jit
def tree_sum(a, total):
    sums = cuda.shared.array(THREADS, float32)
    i = cuda.threadIdx.x
    sums[i] = a[cuda.grid(1)]
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if i < step:
            sums[i] += sums[i + step]
        cuda.syncthreads()
        step //= 2
    if i == 0:
        cuda.atomic.add(total, 0, sums[0])


@cuda.jit
def product(a, b, out):
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        left[ty, tx] = a[y, k + tx]
        right[ty, tx] = b[k + ty, x]
        cuda.syncthreads()
        for n in range(TILE):
            total += left[ty, n] * right[n, tx]
        cuda.syncthreads()
    out[y, x] = total


@cuda.jit
def histogram(values, counts):
    own = cuda.shared.array(4, int32)
    i = cuda.threadIdx.x
    if i < 4:
        own[i] = 0
    cuda.syncthreads()
    cuda.atomic.add(own, values[cuda.grid(1)], 1)
    cuda.syncthreads()
    if i < 4:
        cuda.atomic.add(counts, i, own[i])


@cuda.jit
def warp_sum(a, total):
    value = a[cuda.grid(1)]
    for delta in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, delta)
    if cuda.laneid == 0:
        cuda.atomic.add(total, 0, value)


@cuda.jit
def votes(a, out):
    i = cuda.grid(1)
    mask = cuda.ballot_sync(0xFFFFFFFF, a[i] > 3)
    some, all_ = cuda.any_sync(0xFFFFFFFF, a[i] > 3), cuda.all_sync(0xFFFFFFFF, a[i] > 3)
    same = cuda.match_any_sync(0xFFFFFFFF, int32(a[i]))
    out[i] = cuda.popc(mask) + 100 * some + 1000 * all_ + cuda.popc(same)


@cuda.jit
def lanes_in_turn(a, out):
    own = cuda.shared.array(THREADS, float32)
    i = cuda.threadIdx.x
    own[i] = a[i]
    cuda.syncwarp()
    out[i] = own[i ^ 1]


@cuda.jit(device=True)
def shifted(tile, value):
    tile[cuda.threadIdx.x] = value
    cuda.syncthreads()
    left = tile[(cuda.threadIdx.x + 1) % THREADS]
    cuda.syncthreads()
    return left


@cuda.jit
def in_device_functions(a, out):
    tile = cuda.shared.array(THREADS, float32)
    once = shifted(tile, a[cuda.threadIdx.x])
    out[cuda.threadIdx.x] = shifted(tile, once)


@cuda.jit
def in_dynamic_memory(a, out):
    tile = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    tile[i] = a[i]
    cuda.syncthreads()
    out[i] = tile[tile.size - 1 - i]


@cuda.jit
def in_local_memory(a, out):
    kept = cuda.local.array((2, 3), int64)
    i = cuda.grid(1)
    for row in range(2):
        for column in range(3):
            kept[row, column] = a[i] * row + column + TABLE[column]
    row = kept[1]
    out[i] = row[0] + row[2] // 2


WEIGHTS = np.array([0.5, 1.0, 0.25], F)


@cuda.jit
def by_constants(a, out):
    weights = cuda.const.array_like(WEIGHTS)
    i = cuda.grid(1)
    total = float32(0)
    for k in range(3):
        if 0 <= i + k - 1 < a.size:
            total += weights[k] * a[i + k - 1] + WEIGHTS[k]
    out[i] = total


@cuda.jit
def count_above(a, out):
    above = cuda.syncthreads_count(int32(a[cuda.threadIdx.x] > 5))
    every = cuda.syncthreads_and(int32(above > 3))
    any_ = cuda.syncthreads_or(int32(above > 1000))
    out[cuda.threadIdx.x] = above + 100 * every + 1000 * any_


@cuda.jit
def numbers_of_all_kinds(pair, scale, flags, waves, out):
    i = cuda.grid(1)
    if flags[i] and i < pair[0].size:
        waves[i] = waves[i] * 2
        out[i] = pair[0][i] * pair[1] + scale


@cuda.jit(device=True)
def row_sum(row):
    total = float32(0)
    for k in range(row.size):
        total += row[k]
    return total


@cuda.jit
def sums_of_slices(a, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        total = row_sum(a[i, 1:-1]) + row_sum(a[i, ::-2])
        total += row_sum(a[:, 3]) + a[..., 2:][i][0] + row_sum(a[i][2:100])
        out[1:][i] = total + a[2:5, 1:3].shape[0]


@cuda.jit
def slices_of_tiles(a, out):
    tile = cuda.shared.array((4, TILE), float32)
    own = cuda.local.array(6, float32)
    row, column = cuda.threadIdx.y, cuda.threadIdx.x
    tile[row, :][column] = a[row, column]
    first, second = own[:3], own[3:]
    for k in range(3):
        first[k] = k
        second[k] = a[row, k]
    cuda.syncthreads()
    out[row, column] = row_sum(tile[:, column]) + row_sum(tile[row, 2:]) + row_sum(own[1:5])


@cuda.jit
def rounded_and_divided(a, b, rounded, parts, bits):
    i = cuda.grid(1)
    rounded[i] = round(a[i]) + round(a[i] * 0.5)
    quotient, rest = divmod(b[i], 3)
    parts[i] = quotient * 100 + rest
    bits[i] = cuda.brev(uint32(b[i])) >> 3


@cuda.jit
def smallest_and_largest(a, smallest, largest):
    i = cuda.grid(1)
    own = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 0:
        own[0] = -1
    cuda.syncthreads()
    if a[i] < smallest[0]:
        cuda.atomic.min(smallest, 0, a[i])
    if a[i] > own[0]:
        cuda.atomic.max(own, 0, a[i])
    cuda.syncthreads()
    if cuda.threadIdx.x == 0 and own[0] > largest[0]:
        cuda.atomic.max(largest, 0, own[0])


@cuda.jit
def added_modulo(a, total):
    i = cuda.grid(1)
    old = total[i % 3]
    while True:
        assumed = old
        old = cuda.atomic.cas(total, i % 3, assumed, (assumed + a[i] + 1) % 1000)
        if old == assumed:
            break


@cuda.jit
def sum_by_the_last_block(a, parts, count, total):
    sums = cuda.shared.array(THREADS, float32)
    is_last = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    sums[i] = a[cuda.grid(1)]
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if i < step:
            sums[i] += sums[i + step]
        cuda.syncthreads()
        step //= 2
    if i == 0:
        parts[cuda.blockIdx.x] = sums[0]
        cuda.threadfence()
        arrived = cuda.atomic.add(count, 0, 1)
        is_last[0] = arrived == cuda.gridDim.x - 1
    cuda.syncthreads()
    if is_last[0] and i == 0:
        result = float32(0)
        for k in range(cuda.gridDim.x):
            result += parts[k]
        total[0] = result
        count[0] = 0


def ramp(*shape: int, dtype: Any = F) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype)


Launch = tuple[Any, Any, Any, Callable[[], list[Any]], int]
RIGHT: list[Launch] = [
    (add, 3, THREADS, lambda: [ramp(150), ramp(150), np.zeros(150, F)], 0),
    (tree_sum, 4, THREADS, lambda: [ramp(4 * THREADS), np.zeros(1, F)], 0),
    (product, (2, 2), (TILE, TILE), lambda: [ramp(16, 16), ramp(16, 16), np.ones((16, 16), F)], 0),
    (histogram, 2, THREADS, lambda: [ramp(128, dtype=np.int32) % 4, np.zeros(4, np.int32)], 0),
    (warp_sum, 2, THREADS, lambda: [ramp(128), np.zeros(1, F)], 0),
    (votes, 2, THREADS, lambda: [ramp(128), np.zeros(128, np.int32)], 0),
    (lanes_in_turn, 1, THREADS, lambda: [ramp(THREADS), np.zeros(THREADS, F)], 0),
    (in_device_functions, 2, THREADS, lambda: [ramp(THREADS), np.zeros(THREADS, F)], 0),
    (in_dynamic_memory, 1, THREADS, lambda: [ramp(THREADS), np.zeros(THREADS, F)], 4 * THREADS),
    (in_local_memory, 2, 32, lambda: [ramp(64, dtype=np.int16), np.zeros(64, np.int64)], 0),
    (by_constants, 2, 32, lambda: [ramp(64), np.zeros(64, F)], 0),
    (count_above, 1, THREADS, lambda: [ramp(THREADS), np.zeros(THREADS, np.int32)], 0),
    (
        smallest_and_largest,
        3,
        THREADS,
        lambda: [ramp(3 * THREADS), np.full(1, 9, F), np.zeros(1, F)],
        0,
    ),
    (
        sum_by_the_last_block,
        5,
        THREADS,
        lambda: [ramp(5 * THREADS), np.zeros(5, F), np.zeros(1, np.int32), np.zeros(1, F)],
        0,
    ),
    (
        added_modulo,
        3,
        THREADS,
        lambda: [ramp(3 * THREADS, dtype=np.int32), np.zeros(3, np.int32)],
        0,
    ),
    (sums_of_slices, 1, THREADS, lambda: [ramp(50, 8), np.zeros(51, F)], 0),
    (slices_of_tiles, 1, (TILE, 4), lambda: [ramp(4, TILE), np.zeros((4, TILE), F)], 0),
    (
        rounded_and_divided,
        1,
        8,
        lambda: [
            np.array([0.5, 1.5, -2.5, 7.49, 8.5, -1e9, 3, -0.5], F),
            np.arange(-4, 4, dtype=np.int32),
            np.zeros(8, np.int64),
            np.zeros(8, np.int32),
            np.zeros(8, np.uint32),
        ],
        0,
    ),
    (
        numbers_of_all_kinds,
        1,
        32,
        lambda: [
            (ramp(32), 2),
            F(0.5),
            ramp(32) > 2,
            ramp(32).astype(np.complex64),
            np.zeros(32),
        ],
        0,
    ),
]


# `in_device_functions` has two blocks that store the same numbers, which is no race.
@pytest.mark.parametrize("launch", RIGHT, ids=lambda launch: launch[0].py_func.__name__)
def test_right_kernels_run_as_machine_code(launch, ends):
    kernel, grid, block, make, shared_bytes = launch
    arguments = make()
    tuples = any(isinstance(one, tuple) for one in arguments)
    if tuples:  # NumPy's scalars and tuples are not compared as arrays
        convlab.simulate(kernel, grid, block, *arguments)
    else:
        assert compare(kernel, grid, block, make, shared_bytes) == ""
    assert ends == ["compiled"]


# Mistakes in them, each of which machine code must suspect, and the other engine explain.


NUMBERS = itertools.count(1)


def wrong(kernel: Any, line: str, instead: str | tuple[str, ...]) -> Launch:
    """The launch of a kernel with another line."""
    (launch,) = (one for one in RIGHT if one[0] is kernel)
    name = f"{kernel.py_func.__name__}_{next(NUMBERS)}"  # each has a source of its own
    function = edited(kernel.py_func, name, {line: instead})
    return (cuda.jit(function), *launch[1:])


WRONG = {
    "out of bounds": wrong(add, "if i < out.size:", "if i <= out.size:"),
    "a negative index": wrong(add, "out[i] = a[i] + b[i]", "out[i] = a[i - 1] + b[i]"),
    "two blocks": wrong(add, "out[i] = a[i] + b[i]", "out[i % 64] = a[i] + i"),
    "a block reads another's": wrong(add, "out[i] = a[i] + b[i]", "out[i] = a[i] + out[i ^ 64]"),
    "division by zero": wrong(add, "out[i] = a[i] + b[i]", "out[i] = a[i] + 5 // (i - i)"),
    "no barrier": wrong(
        tree_sum, "sums[i] += sums[i + step]", ("sums[i] += sums[i + step]", "sums[i] += sums[0]")
    ),
    "barrier in a branch": wrong(
        tree_sum, "if i == 0:", ("if i < 7:", "    cuda.syncthreads()", "if i == 0:")
    ),
    "a return before a barrier": wrong(
        product, "total = float32(0)", ("total = float32(0)", "if tx == 7:", "    return")
    ),
    "a tile that is not filled": wrong(
        product, "right[ty, tx] = b[k + ty, x]", ("if tx > 0:", "    right[ty, tx] = b[k + ty, x]")
    ),
    "not cleared": wrong(histogram, "own[i] = 0", "own[i // 2] = 0"),
    "no atomic": wrong(
        histogram, "cuda.atomic.add(own, values[cuda.grid(1)], 1)", "own[values[cuda.grid(1)]] += 1"
    ),
    "an absent lane": wrong(
        votes, "mask = cuda.ballot_sync(0xFFFFFFFF, a[i] > 3)", (
            "mask = 0",
            "if i % 2:",
            "    mask = cuda.ballot_sync(0xFFFFFFFF, a[i] > 3)",
        )
    ),
    "no barrier of the warp": wrong(lanes_in_turn, "cuda.syncwarp()", "pass"),
    "local memory": wrong(in_local_memory, "for column in range(3):", "for column in range(2):"),
    "a slice that is too short": wrong(
        sums_of_slices, "out[1:][i] = total + a[2:5, 1:3].shape[0]", "out[2:][i] = total"
    ),
    "slices that overlap": wrong(
        sums_of_slices,
        "out[1:][i] = total + a[2:5, 1:3].shape[0]",
        ("out[1:][i] = total", "out[:-1][i] = total"),
    ),
    "a slice without a barrier": wrong(slices_of_tiles, "cuda.syncthreads()", "pass"),
    "a slice of unwritten memory": wrong(
        slices_of_tiles, "second[k] = a[row, k]", "second[1:][k % 2] = a[row, k]"
    ),
    "divmod by zero": wrong(
        rounded_and_divided, "quotient, rest = divmod(b[i], 3)", "quotient, rest = divmod(1, b[i])"
    ),
    "a store beside atomics": wrong(
        smallest_and_largest, "cuda.atomic.min(smallest, 0, a[i])",
        ("cuda.atomic.min(smallest, 0, a[i])", "smallest[0] = a[i]"),
    ),
    "a guess of unwritten memory": wrong(smallest_and_largest, "own[0] = -1", "pass"),
    "no fence before the ticket": wrong(sum_by_the_last_block, "cuda.threadfence()", "pass"),
    "a fence of the block only": wrong(
        sum_by_the_last_block, "cuda.threadfence()", "cuda.threadfence_block()"
    ),
    "a store after the fence": wrong(
        sum_by_the_last_block,
        "cuda.threadfence()",
        ("cuda.threadfence()", "parts[cuda.blockIdx.x] = sums[0] + 1"),
    ),
    "the last but one adds": wrong(
        sum_by_the_last_block,
        "is_last[0] = arrived == cuda.gridDim.x - 1",
        "is_last[0] = arrived == cuda.gridDim.x - 2",
    ),
    "other threads' stores are not told": wrong(
        sum_by_the_last_block,
        "if i == 0:",
        ("if i == 1:", "    parts[cuda.blockIdx.x] = sums[0]", "if i == 0:"),
    ),
    "too large": wrong(in_dynamic_memory, "out[i] = tile[tile.size - 1 - i]", "out[i] = tile[64]"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("launch", WRONG.values(), ids=WRONG)
def test_wrong_kernels_are_found_by_machine_code(launch, ends):
    kernel, grid, block, make, shared_bytes = launch
    assert compare(kernel, grid, block, make, shared_bytes)
    assert ends == ["found"]


def test_the_report_says_which_launches_were_compiled(ends):
    with convlab.simulator() as report:
        add[3, THREADS](ramp(150), ramp(150), np.zeros(150, F))
        in_dynamic_memory[1, THREADS, 0, 4 * THREADS](ramp(THREADS), np.zeros(THREADS, F))
    assert (report.compiled, report.as_json()["compiled"]) == (2, 2)
    assert report.summary() == "nothing found in 2 launches, 2 compiled"


@pytest.mark.parametrize("ordered", [True, False])
def test_streams_race_through_machine_code_too(ends, ordered):
    with convlab.simulator(stop=False) as report:
        one, two = cuda.stream(), cuda.stream()
        a, b, out = (cuda.to_device(ramp(150)) for _ in range(3))
        add[3, THREADS, one](a, b, out)
        if ordered:
            one.synchronize()
        add[3, THREADS, two](out, b, a)
        cuda.synchronize()
    assert ends == ["compiled"] * 2
    kinds = [] if ordered else ["stream race"]
    assert sorted({one.kind for one in report.findings}) == kinds


@cuda.jit
def spins(flag):
    while flag[0] == 0:
        pass


def test_a_loop_without_an_end_is_left_to_the_other_engine(ends):
    assert "deadlock" in compare(spins, 1, 1, lambda: [np.zeros(1, np.int32)])
    assert "a loop that does not end" in ends[0]


@cuda.jit(device=True)
def bin_of(value):
    if value < 0:
        return None
    return int32(value)


@cuda.jit
def counted(values, counts):
    at = bin_of(values[cuda.grid(1)])
    if at >= 0 and at < counts.size:
        cuda.atomic.add(counts, at, 1)


def test_a_fault_of_numbas_compiler_leaves_the_launch_to_the_other_engine(ends):
    assert compare(counted, 1, 32, lambda: [ramp(32), np.zeros(7, np.int32)]) == ""
    assert ends[0].startswith(COMPILER_FAULT)


def target(x):
    raise AssertionError("an overload is run instead")


def asks(x):
    raise AssertionError("an overload is run instead")


@numba.extending.overload(target)
def of_every_target(x):
    return lambda x: 1


@overload(target)
def of_a_gpu(x):
    return lambda x: 2


@numba.extending.overload(asks)
def within_an_overload(x):
    return lambda x: target(x)


@numba.extending.register_jitable
def plus_one(x):
    return x + 1


@cuda.jit
def asks_for_the_target(out):
    out[0] = target(out[0])


@cuda.jit
def asks_within_an_overload(out):
    out[0] = asks(out[0])


@cuda.jit
def calls_one_for_all_targets(out):
    out[0] = plus_one(out[0]) + np.int32(1)


@pytest.mark.parametrize(
    ("kernel", "end"),
    [
        (asks_for_the_target, "a function with an overload for one target only"),
        (asks_within_an_overload, "a function with an overload for one target only"),
        (calls_one_for_all_targets, "compiled"),
    ],
    ids=["in the kernel", "in an overload", "for all"],
)
def test_machine_code_is_refused_for_an_overload_of_one_target(ends, kernel, end):
    """Numba would take another target's overload there. One for all targets is compiled. Either way
    both engines store the same number."""
    made: list[np.ndarray] = []

    def make() -> list[np.ndarray]:
        made.append(np.zeros(1, np.int32))
        return [made[-1]]

    assert compare(kernel, 1, 1, make) == ""
    assert ends == [end]
    assert [int(out[0]) for out in made] == [2, 2]


@cuda.jit
def first_come(taken, out):
    if cuda.atomic.exch(taken, 0, 1) == 0:
        out[0] = 7


def test_what_it_does_not_know_goes_on_on_the_other_engine(ends, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(engine_choice, "say", said.append)
    arguments = np.zeros(1, np.int32), np.zeros(1, np.int32)
    convlab.simulate(first_come, 2, 32, *arguments)
    assert arguments[1][0] == 7
    assert said == ["first_come takes long, and is not compiled: the result of an exchange is used"]


@cuda.jit
def compacted(values, size, out):
    i = cuda.grid(1)
    if values[i] > 3:
        out[cuda.atomic.add(size, 0, 1)] = values[i]


@cuda.jit
def ordered(values, size, out):
    i = cuda.grid(1)
    out[i] = cuda.atomic.add(size, 0, 1) * values[i]


def test_results_of_atomics_depend_on_the_order_of_threads(ends):
    def make() -> list[np.ndarray]:
        return [ramp(64), np.zeros(1, np.int32), np.zeros(64, F)]

    assert compare(compacted, 2, 32, make) == compare(ordered, 2, 32, make) == ""
    assert ends == ["compiled"] * 2


@cuda.jit
def counts(out):
    total = 0
    for k in range(10**12):
        total += k % 3
    out[0] = total


@cuda.jit
def partly_filled(a, out):
    v = cuda.local.array(8, float32)
    if a[0] > 0:
        for k in range(8):
            v[k] = k
    out[cuda.grid(1)] = v[3]


def test_local_memory_of_an_earlier_launch_is_not_taken_for_written(ends):
    full, empty = np.ones(1, F), np.zeros(1, F)
    assert compare(partly_filled, 1, 4, lambda: [full, np.zeros(4, F)]) == ""
    assert "uninitialised" in compare(partly_filled, 1, 4, lambda: [empty, np.zeros(4, F)])


# Compare-and-swaps and guesses that only the other engine checks, with what it must find.
UNDECIDED = {
    "a guess that nothing checks": (
        wrong(smallest_and_largest, "cuda.atomic.max(largest, 0, own[0])", "largest[0] = own[0]"),
        "race",
    ),
    "a cas that is not retried": (
        wrong(added_modulo, "if old == assumed:", "if True:"),
        "race",
    ),
    "an atomic that a plain read polls": (
        wrong(
            smallest_and_largest,
            "if a[i] < smallest[0]:",
            ("while smallest[0] > 1 and i > 70:", "    pass", "if a[i] < smallest[0]:"),
        ),
        "race",
    ),
}


@pytest.mark.parametrize(("launch", "kind"), UNDECIDED.values(), ids=UNDECIDED)
def test_the_other_engine_checks_what_atomics_may_not_check(launch, kind, ends):
    assert kind in compare(*launch[:4])
    assert "compiled" not in ends


helpers = types.ModuleType("helpers")
helpers.shifted = shifted


@cuda.jit
def in_two_arms(a, out):
    tile = cuda.shared.array(THREADS, float32)
    if cuda.threadIdx.x < 16:
        value = helpers.shifted(tile, a[0])
    else:
        meet = shifted
        value = meet(tile, a[1])
    out[cuda.threadIdx.x] = value


def test_a_barrier_that_two_calls_lead_to_is_two_barriers(ends):
    make = RIGHT[0][3]
    assert "barrier divergence" in compare(in_two_arms, 1, THREADS, lambda: make()[:2])


@cuda.jit
def numbers_at_the_edges(a, as_int, as_byte, largest, rounded):
    i = cuda.grid(1)
    as_int[i] = int32(a[i])
    as_byte[i] = a[i]
    largest[i] = max(a[i], float32(0)) + min(a[i], float32(6))
    rounded[i] = math.floor(a[i]) + math.ceil(a[i]) / 2 + math.trunc(a[i])


def test_numbers_are_a_gpus(ends):
    edges = np.array([1e30, -1e30, np.nan, np.inf, -1.5, 2.5, 300, 0], F)

    def make() -> list[np.ndarray]:
        return [edges, *(np.zeros(8, kind) for kind in (np.int32, np.uint8, F, np.float64))]

    assert compare(numbers_at_the_edges, 1, 8, make) == ""
    assert ends == ["compiled"]


@cuda.jit
def keeps_the_sum_of_two(a, total, out):
    value = cuda.shfl_down_sync(0xFFFFFFFF, a[cuda.threadIdx.x], 1)
    out[int(value) % 64] = 1


def test_a_course_that_depends_on_own_numbers_is_noted(ends):
    def arguments() -> list[Any]:
        return [*RIGHT[1][3](), np.zeros(64, F)]

    def launch(*given: Any) -> None:
        convlab.simulate(keeps_the_sum_of_two, 1, 32, *given)

    compare(keeps_the_sum_of_two, 1, 32, arguments)
    found, (noted,), _ = outcome(launch, arguments())
    assert not found
    assert "its own number, and out[63] depends on that" in noted


def scaled_by(factor: Any) -> Any:
    @cuda.jit
    def scaled(a, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a[i] * factor + WEIGHTS[1] + TABLE[0]

    return scaled


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The names of kernels that are compiled and not taken from disk, where they are kept."""
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path))
    monkeypatch.setenv("CONVLAB_CACHE_LIMIT", "100")
    names: list[str] = []
    compiled = kernels._compiled

    def noted(function: Any, *more: Any) -> Any:
        names.append(function.__name__)
        return compiled(function, *more)

    monkeypatch.setattr(kernels, "_compiled", noted)
    yield names
    kernel_variants._known.clear()


def test_machine_code_stays_on_disk(ends, compilations, monkeypatch):
    for factor in (2, 2, 3, F(3)):  # each is a kernel of its own, as in another process
        kernel = scaled_by(factor)
        arrays = [ramp(64), np.zeros(64, F)]
        assert compare(kernel, 2, 32, lambda arrays=arrays: [one.copy() for one in arrays]) == ""
    for _ in range(2):
        kernel_variants._known.clear()
        monkeypatch.setattr(kernel_history, "histories", kernel_history.Histories())
        assert compare(first_come, 1, 1, lambda: [np.zeros(1, np.int32) for _ in "12"]) == ""
        assert compare(*WRONG["out of bounds"][:4])
    assert [name[:6] for name in compilations] == [*["scaled"] * 3, "first_", "add_1"]
    assert ends == [*["compiled"] * 4, *["the result of an exchange is used", "found"] * 2]


def test_values_of_unknown_kinds_are_no_part_of_a_key():
    def text_of(value: object) -> KernelText:
        text = KernelText()
        text.add_value(value)
        return text

    known = 1, True, 1.0, 0.0, -0.0, (1, (2,)), F(1), WEIGHTS, WEIGHTS[:2], float32, math.sqrt, abs
    assert len({str(text_of(value)) for value in known}) == len(known)
    assert all(text_of(value).whole for value in known)
    assert not any(text_of(value).whole for value in (enum.IntFlag("Bits", "ONE")(1), compare))


def test_without_numbas_types_nothing_is_compiled(ends):
    convlab.simulate(add, 3, THREADS, ramp(150), ramp(150), np.zeros(150, F), typed=False)
    assert ends == []


def test_with_debug_nothing_is_compiled(ends):
    @cuda.jit(debug=True, opt=False)
    def divides(a, out):
        out[0] = a[0] / a[1]

    with pytest.raises(ZeroDivisionError):
        convlab.simulate(divides, 1, 1, np.zeros(2, F), np.zeros(1, F))
    assert ends == []


def test_two_launches_of_two_threads_run_one_after_the_other(ends):
    sums = [np.zeros(1, F) for _ in range(4)]
    threads = [
        threading.Thread(target=convlab.simulate, args=(tree_sum, 64, THREADS, ramp(64 * 64), one))
        for one in sums
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert {float(one[0]) for one in sums} == {float(ramp(64 * 64).sum())}


def test_shadow_memory_that_does_not_fit_leaves_the_launch_to_the_other_engine(ends, monkeypatch):
    monkeypatch.setattr(compiled_run, "ArgumentWords", Mock(side_effect=MemoryError))
    assert compare(add, *RIGHT[0][1:4]) == ""
    assert ends == ["its shadow memory does not fit"]


@cuda.jit
def in_too_much_shared_memory(a):
    tile = cuda.shared.array((130, 100), float32)
    tile[cuda.threadIdx.x, 0] = a[cuda.threadIdx.x]
    a[cuda.threadIdx.x] = tile[cuda.threadIdx.x, 0]


def test_too_much_shared_memory_is_found_and_does_not_run_a_third_time(ends):
    found = compare(in_too_much_shared_memory, 1, 40, lambda: [ramp(40)])
    assert "52000 bytes of shared arrays" in found
    assert ends == ["found"]


def test_a_launch_that_prints_is_not_compiled(ends, capsys):
    @cuda.jit
    def prints(out):
        print(7)

    convlab.simulate(prints, 1, 1, np.zeros(1))
    assert (ends, capsys.readouterr().out) == ([], "7\n")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_control_c_ends_a_long_block(ends):
    convlab.simulate(add, *RIGHT[0][1:3], *RIGHT[0][3]())  # what all kernels share is ready then
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # Another process sends it, because machine code keeps Python's lock.
    sender = subprocess.Popen(["sh", "-c", f"sleep 2; kill -INT {os.getpid()}"])
    try:
        with pytest.raises(KeyboardInterrupt) as interrupted:
            convlab.simulate(counts, 1, 1, np.zeros(1, np.int64))
    finally:
        sender.wait()
        signal.signal(signal.SIGINT, before)
    assert interrupted.value.__notes__ == ["counts was interrupted after 0 blocks"]


@pytest.mark.same_in_cudasim
def test_what_is_kept_on_disk_depends_on_all_files_of_the_simulator(monkeypatch):
    read: list[Path] = []

    def fingerprint(files, below):
        read.extend(file.relative_to(below) for file in files)
        return "all"

    monkeypatch.setattr(code_cache, "fingerprint", fingerprint)
    assert "\nall\n" in code_cache._toolchain.__wrapped__()
    assert {Path("compiled/kernels.py"), Path("rules/retries.py")} < {*read}
