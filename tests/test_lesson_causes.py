"""The lessons' checks name the cause: numbers read again, names exchanged, an early return."""

from __future__ import annotations

import ast
import linecache
import re
from dataclasses import replace

import numpy as np
import pytest
from lesson_kernels import kernel_of, ones, told_of
from numba.cuda.core import config

from convlab import ConvProblem, lessons, trace_stage
from convlab.checking import checker, launches
from convlab.checking.common_causes import features, numbers_in
from convlab.checking.outcome import Answer
from convlab.ladder import Tile, stage_named
from convlab.ladder.layouts.im2win_layout import group_size, window_columns
from convlab.lessons import (
    compiling,
    feedback,
    kernel_checks,
    kernel_text,
    stage_checks,
    stage_counts,
)
from convlab.lessons.traffic_hints import most_of, times_again
from convlab.tracing import trace
from convlab.tracing.branched_stores import branched_lines, branches_of, exclude

pytestmark = pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the strict simulator's findings")


@pytest.fixture(autouse=True)
def no_compilers(monkeypatch):
    """Compile nothing: that depends on what is installed, and no result here may."""
    monkeypatch.setattr(compiling, "compiled_alone", lambda kernel, types: None)


# Stores in branches


def threes(a):
    return np.where(a > 1, a, 0).astype(np.float32)


def on_threes():
    return [lessons.On(1, 64, (np.arange(64, dtype=np.float32) % 3,))]


@pytest.mark.parametrize(
    ("body", "noted"),
    [
        ("    if a[i] > 1:\n        out[i] = a[i]\n    else:\n        out[i] = 0\n", True),
        ("    if a[i] > 1:\n        out[i] = a[i]\n        return\n    out[i] = 0\n", True),
        ("    x = a[i]\n    if not x > 1:\n        x = float32(0)\n    out[i] = x\n", False),
    ],
)
def test_a_store_in_each_branch_is_right_and_noted(tmp_path, body, noted):
    kernel = kernel_of(tmp_path, f"    i = cuda.grid(1)\n{body}")
    found = told_of(kernel, threes, on_threes(), each_once=True, at_most=1.6)
    assert found.passed, str(found)
    assert any("store in different branches" in note for note in found.notes) == noted
    assert {row.unit: row.yours for row in found.rows}["requests to global memory"] < 7


def test_a_number_that_is_stored_twice_is_no_branch(tmp_path):
    body = "    i = cuda.grid(1)\n    out[i] = 0\n    if a[i] > 1:\n        out[i] = a[i]\n"
    found = told_of(kernel_of(tmp_path, body), threes, on_threes(), each_once=True, at_most=1.3)
    assert found.result == feedback.COUNTS
    assert "branches" not in str(found)


def test_requests_of_a_loop_stay_apart(tmp_path):
    body = """    i = cuda.grid(1)
    for k in range(3):
        if (i + k) % 2:
            out[i] = a[i]
        else:
            out[i] = a[i] + 0
"""
    kernel = kernel_of(tmp_path, body)
    assert branched_lines(kernel.py_func)
    recorded = kernel_checks.tried(kernel, lessons.On(1, 32, (ones(32),)), ones(32)).trace.of("out")
    assert sum(one.requests for one in recorded) == 3
    assert sum(one.lanes for one in recorded) == 3 * 32


def test_lines_exclude_each_other_in_branches_of_one_if():
    text = """def f():
    if a:
        x = 1
        if b:
            y = 2
        z = 3
    elif c:
        u = 4
    v = 5
"""
    lines = branches_of(ast.parse(text))
    assert exclude(lines[3], lines[8])
    assert exclude(lines[5], lines[8])
    assert not exclude(lines[5], lines[6])
    assert not exclude(lines[3], lines[9])


# Counts that are too high


def test_a_number_that_each_thread_reads_again_is_told_and_no_bank(tmp_path):
    body = """    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    total = float32(0)
    for k in range({times}):
        total += s[t]
    out[t] = total
"""
    yours, target = (kernel_of(tmp_path, body.format(times=n)) for n in (6, 1))
    traces = [trace(one, 1, 32, ones(32), ones(32)).main for one in (yours, target)]
    assert times_again(traces[0], "s", "load") == 6
    hint = most_of(yours, traces[:1], "wavefronts", traces[1:], "shared")
    assert "Each thread reads the same number of s 6 times while nothing changes it" in hint.advice
    assert "bank" not in hint.advice


def test_reads_of_what_has_changed_are_not_reads_again(tmp_path):
    body = """    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for k in range(4):
        s[t] = a[t]
        cuda.syncthreads()
        total += s[31 - t]
        cuda.syncthreads()
    out[t] = total
"""
    found = trace(kernel_of(tmp_path, body), 1, 32, ones(32), ones(32)).main
    assert times_again(found, "s", "load") == 1
    assert times_again(found, "s", "store") == 1
    assert times_again(found, "a", "load") == 4


def test_how_far_apart_the_numbers_of_threads_lie_is_told(tmp_path):
    body = "    i = cuda.grid(1)\n    out[i] = a[{index}]\n"
    yours, target = (kernel_of(tmp_path, body.format(index=index)) for index in ("5 * i", "i"))
    traces = [trace(one, 1, 32, ones(160), ones(32)).main for one in (yours, target)]
    advice = most_of(yours, traces[:1], "sectors", traces[1:]).advice
    assert advice.endswith("Here the numbers of neighbouring threads mostly lie 5 apart.")


def test_memory_traffic_is_counted_with_the_second_tile_too():
    stage, tile = stage_named("m03"), Tile(16, 2, 16)
    told = feedback.Feedback("Passed.")
    with_counts = stage_counts.with_counts_of_second_tile
    assert with_counts(stage, stage.prepare, tile, 1.25, 0, told) is told
    found = with_counts(stage, stage.prepare, tile, 0.9, 0, told)
    assert found.result == feedback.COUNTS
    assert found.mistakes[0].what.startswith(
        "With blocks of 32 threads (M_B = 16, N_B = 2, K_B = 16): too many requests"
    )


def test_what_is_allowed_is_told_beside_the_target():
    found = feedback.checked_by_counts((), [feedback.row_of("requests", 50, 30)])
    assert found.mistakes[0].what == "Too many requests (50, and 37 are allowed)."
    assert "yours    target   allowed" in str(found)
    none = feedback.checked_by_counts((), [feedback.row_of("scalar loads", 8, 0)])
    assert none.mistakes[0].what == "Too many scalar loads (8, and none is allowed)."


# Wrong answers


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("out[row, column] = a[row, column] + b[row]", "Is row the right name everywhere"),
        ("out[column, row] = a[row, column] + b[column]", "Are column and row in the right order"),
    ],
)
def test_names_that_are_exchanged_are_found(tmp_path, line, said):
    table = np.arange(16, dtype=np.float32).reshape(4, 4)
    body = f"    row, column = cuda.threadIdx.y, cuda.threadIdx.x\n    {line}\n"
    kernel = kernel_of(tmp_path, body, "a, b, out")
    on = [lessons.On(1, (4, 4), (table, np.arange(4, dtype=np.float32)))]
    found = told_of(kernel, lambda a, b: a + b, on)
    (mistake,) = found.mistakes
    assert mistake.reason == feedback.ANSWER
    assert mistake.advice.startswith(said)
    assert [one.code for one in mistake.lines] == [line]


def test_another_mistake_is_not_said_to_be_an_exchange(tmp_path):
    body = "    i, j = cuda.grid(1), 0\n    out[i] = a[i] + 1\n"
    (mistake,) = told_of(kernel_of(tmp_path, body)).mistakes
    assert mistake.advice == ""


def test_launches_that_could_not_go_on_are_counted(tmp_path):
    body = "    i = cuda.grid(1)\n    out[i] = a[i] * (i % 40) + a[i + 30 if i > 63 else i]\n"
    on = [lessons.On(n, 32, (ones(32 * n),)) for n in (1, 2, 3)]
    right = np.arange(96, dtype=np.float32)
    kernel = kernel_of(tmp_path, body)
    found = told_of(kernel, lambda a: right[: len(a)] + 1, on)
    assert any("1 of 3 launches is wrong, and in 1 more the kernel could not" in one.what
               for one in found.mistakes), str(found)  # fmt: skip


def test_the_problem_that_is_told_has_the_fewest_numbers():
    small = ConvProblem(1, 2, 3, 3, 2, 2, padding=1, stride=2)
    large = ConvProblem(1, 1, 90, 80, 1, (3, 2))
    answers = [Answer(str(one), one, None) for one in (large, small)]
    assert min(answers, key=Answer.work).problem == small
    assert numbers_in(ConvProblem(1, 1, 1, 1, 1, 1)) == 3


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (ConvProblem(1, 1, 4, 4, 1, 2), "stride 1, one image and one channel"),
        (ConvProblem(1, 1, 4, 4, 1, 2, padding=1), "padding"),
        (ConvProblem(2, 1, 4, 4, 1, 2, stride=2, dilation=(1, 2)),
         "dilation, a stride larger than 1 and several images"),
    ],
)  # fmt: skip
def test_a_problem_is_named_by_its_features(problem, said):
    assert features(problem) == said


# Threads and barriers


def test_a_return_before_a_barrier_is_told_which_store_needs_its_condition(tmp_path):
    body = """    s = cuda.shared.array(THREADS, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i >= a.size:
        return
    s[t] = a[i]
    cuda.syncthreads()
    out[i] = s[t]
"""
    on = [lessons.On(2, 64, (ones(70),))]
    (mistake,) = told_of(kernel_of(tmp_path, body), on=on).mistakes
    assert mistake.reason == "barrier divergence"
    assert (
        "The opposite of the condition in line 8 matters for the store to out in line 12 alone"
        in mistake.advice
    )


def test_a_race_names_its_threads_once(tmp_path):
    body = """    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    out[t] = s[THREADS - 1 - t]
"""
    mistake, *_ = told_of(kernel_of(tmp_path, body)).mistakes
    assert mistake.reason == "shared race"
    assert mistake.what.endswith("has written it, in block 0.")
    assert "seen in thread" not in mistake.what


# Pictures


def test_a_picture_of_a_request_says_which_one_it_is():
    problem = ConvProblem(1, 2, 6, 8, 4, 3, padding=1)
    picture = lessons.one_request(trace_stage("m01", problem).main, "weight", number=4)
    which = re.compile(r"This request is number 4 of the block's \d+ loads of weight")
    assert any(which.match(one) for one in picture.legend)
    assert any("`x32` in a box means that 32 lanes" in one for one in picture.legend)


def test_atomics_of_a_thread_on_one_element_are_told(tmp_path):
    body = """    t = cuda.threadIdx.x
    for k in range({times}):
        cuda.atomic.add(out, t, float32(1))
"""
    yours, target = (kernel_of(tmp_path, body.format(times=n)) for n in (9, 1))
    traces = [trace(one, 1, 32, ones(32), ones(32)).main for one in (yours, target)]
    advice = most_of(yours, traces[:1], "sectors", traces[1:]).advice
    assert "Each thread adds to the same element of out 9 times" in advice


def test_scalar_accesses_in_the_place_of_float4s_are_told(tmp_path):
    body = "    t = cuda.threadIdx.x\n    out[t] = a[{index}]\n"
    kernel = kernel_of(tmp_path, body.format(index="t"))
    launch = trace(kernel, 1, 32, ones(32), ones(32)).main
    wide = [
        replace(one, width=16, bytes_asked=4 * one.bytes_asked, requests=0)
        if one.operation == "load"
        else one
        for one in launch.accesses
    ]
    other = replace(launch, accesses=tuple(wide))
    advice = most_of(kernel, [launch], "requests", [other]).advice
    assert advice.endswith("a float4 moves four neighbours at once: use load4.")


def test_a_result_in_other_units_is_asked_about():
    def wanted(ms):
        return ms, 1 / ms

    found = lessons.check_function(lambda ms: (ms, 1000 / ms), wanted, [(2.0,)])
    assert "Number 2 of the result is 1,000 times too large" in found.mistakes[0].advice
    found = lessons.check_function(lambda ms: (ms + 1, 3 / ms), wanted, [(2.0,)])
    assert found.mistakes[0].advice == ""


# Exchanged names


SWAPPED = """    column, row = cuda.grid(2)
    if {guard}:
        x = a[{read}]
        out[{store}] = x
"""


def table():
    return np.arange(35, dtype=np.float32).reshape(5, 7)


@pytest.mark.parametrize(
    ("guard", "read", "store", "said"),
    [
        ("row < 5 and column < 7", "row, column", "column, row", "Are column and row in the right"),
        ("column < 5 and row < 7", "row, column", "row, column", "Are column and row in the right"),
    ],
    ids=["store", "guard"],
)
def test_an_exchange_that_leads_outside_is_told(tmp_path, guard, read, store, said):
    kernel = kernel_of(tmp_path, SWAPPED.format(guard=guard, read=read, store=store))
    found = told_of(kernel, on=[lessons.On((1, 1), (8, 8), (table(),))])
    assert "out of bounds" in found.reasons
    assert said in str(found)


def test_either_of_two_lines_may_be_exchanged(tmp_path):
    body = """    s = cuda.shared.array((8, 8), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    s[y, x] = a[y, x]
    cuda.syncthreads()
    out[y, x] = s[x, y]
"""
    square = np.arange(64, dtype=np.float32).reshape(8, 8)
    found = told_of(kernel_of(tmp_path, body), on=[lessons.On((1, 1), (8, 8), (square,))])
    (mistake,) = found.mistakes
    assert len(mistake.lines) == 2
    assert "in line" in mistake.advice
    assert "Exchanged in one of these lines" in mistake.advice


def test_names_exchanged_in_a_layout_are_told():
    source = """from numba import cuda, float32
from convlab.ladder.layouts.im2win_layout import group_size, window_columns
def make_transform(p):
    N_i, C_i, H_i, W_i = p.input_shape
    H_f, H_o, W_w, G = p.H_f, p.H_o, window_columns(p), group_size(p)
    s_h, p_h, p_w, d_h = p.s_h, p.p_h, p.p_w, p.d_h
    NUMBERS = N_i * H_o * W_w * G
    @cuda.jit
    def transform(input, windows):
        e = cuda.grid(1)
        if e < NUMBERS:
            column, row, place = e // (G * W_w), e // G % W_w, e % G
            i_n, o_h = row // H_o, row % H_o
            f_h, i_c = place // C_i, place % C_i
            i_h = o_h * s_h + f_h * d_h - p_h
            i_w = column - p_w
            value = float32(0)
            if f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:
                value = input[i_n, i_c, i_h, i_w]
            windows[e] = value
    return transform
"""
    names = {}
    file = "<a layout with row and column exchanged>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    found = lessons.check_layout(names["make_transform"], windows_of, "input")
    assert "Are column and row in the right order" in str(found)


def windows_of(input, p):
    """The im2win tensor with channels innermost."""
    G, W_w = group_size(p), window_columns(p)
    padded = np.pad(input, ((0, 0), (0, 0), *p.padding))
    tensor = np.zeros((p.N_i, p.H_o, W_w, G), np.float32)
    for o_h in range(p.H_o):
        for f_h in range(p.H_f):
            row = padded[:, :, o_h * p.s_h + f_h * p.d_h, :W_w]
            tensor[:, o_h, :, f_h * p.C_i : (f_h + 1) * p.C_i] = row.transpose(0, 2, 1)
    return tensor


# Arithmetic in 64 bits


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("    value = 0\n    if a[0] > 1:\n        value = a[0]\n    out[0] = value\n", [6]),
        ("    v = 0, 0.0\n    if a[0] > 1:\n        v = a[0], a[1]\n    out[0] = v[0]\n", [6]),
        ("    out[0] = a[0] if a[1] > 1 else 0\n", [6]),
        (
            "    total = 0.0\n    for k in range(4):\n        total += a[k]\n    out[0] = total\n",
            [6],
        ),
        ("    half = 64\n    while half:\n        half //= 2\n    out[0] = a[half]\n", []),
        ("    row = 0\n    for k in range(4):\n        row = 4 - row\n    out[row] = a[0]\n", []),
    ],
)
def test_plain_numbers_in_the_place_of_an_arrays_are_found(tmp_path, body, lines):
    assert kernel_text.plain_zeros(kernel_of(tmp_path, body).py_func) == lines


# Checks that would take long


def test_large_problems_are_left_out_if_counts_are_far_too_high(monkeypatch):
    stage = stage_named("m03")
    tried = [
        one._replace(if_right=one.name == "several images")
        for one in launches.planned(stage, stage.prepare)
        if one.name in ("a single pixel", "several images")
    ]
    seen = []

    def names(too_many):
        trying = checker.attempts(
            stage, stage.prepare, 0, stage_checks.MODEL, tried=tried,
            too_many=lambda counts: seen.append(counts) or too_many,
        )  # fmt: skip
        return [answer.name for answer, *_ in trying]

    assert names(too_many=True) == ["a single pixel", checker.COUNTED]
    assert names(too_many=False) == ["a single pixel", "several images", checker.COUNTED]
    assert seen[0]["requests to global memory"] > 0


def test_counts_are_far_too_high_above_three_times_what_is_allowed():
    stage = stage_named("m03")
    counts = checker.counts_of_stage(stage, stage.adapted(stage_checks.MODEL), 0).counts
    more = {unit: 4 * number for unit, number in counts.items()}
    assert not stage_counts.far_too_many(stage, 1.25, 0, counts)
    assert stage_counts.far_too_many(stage, 1.25, 0, more)
    assert not stage_counts.far_too_many(stage, 4, 0, more)
