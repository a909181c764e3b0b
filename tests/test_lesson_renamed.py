"""The check of a stage names the line in which a name stands in the place of another."""

from __future__ import annotations

import linecache
from itertools import count

import pytest
from numba.cuda.core import config

from convlab import lessons
from convlab.checking import launches
from convlab.lessons import stage_checks
from convlab.lessons.renamed import change_that_helps

pytestmark = pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the strict simulator's findings")
_numbers = count()

M02 = """from numba import cuda, float32
def make_kernel(problem):
    p = problem
    M, N, K = p.M, p.N, p.K
    _, _, H_i, W_i = p.input_shape
    H_f, W_f, H_o, W_o = p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    @cuda.jit
    def implicit_gemm(input, weight, bias, output):
        n = cuda.blockIdx.x * 32 + cuda.threadIdx.x
        m = cuda.blockIdx.y * 8 + cuda.threadIdx.y
        if m >= M or n >= N:
            return
        i_n = n // (H_o * W_o)
        o_h = n % (H_o * W_o) // W_o
        o_w = n % W_o
        total = float32(0)
        for k in range(K):
            i_c = k // (H_f * W_f)
            f_h = k % (H_f * W_f) // W_f
            f_w = k % W_f
            i_h = o_h * s_h + f_h * d_h - p_h
            i_w = o_w * s_w + f_w * d_w - p_w
            pixel = float32(0)
            if 0 <= i_h < H_i and 0 <= i_w < W_i:
                pixel = input[i_n, i_c, i_h, i_w]
            total += pixel * weight[m * K + k]
        output[i_n, m, o_h, o_w] = total + bias[m]
    return implicit_gemm
"""


def maker(old, new):
    """m02's maker with a piece of its text replaced."""
    assert M02.count(old) == 1
    text = M02.replace(old, new)
    file = f"<m02 {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {}
    exec(compile(text, file, "exec"), names)
    return names["make_kernel"]


@pytest.mark.parametrize(
    ("old", "new", "line", "advice"),
    [
        ("o_w = n % W_o", "o_w = n % H_o", 16, "Is H_o the right name"),
        ("i_c = k // (H_f * W_f)", "i_c = k // (H_i * W_i)", 19, "Are H_i and W_i the right names"),
        ("weight[m * K + k]", "weight[m * N + k]", 27, "Is N the right name"),
        ("i_n, i_c, i_h, i_w]", "i_n, i_c, i_h, o_w]", 26, "Is o_w the right name"),
        ("output[i_n, m, o_h", "output[m, i_n, o_h", 28, "Are m and i_n in the right order"),
        (
            "            i_h = o_h * s_h + f_h * d_h - p_h\n"
            "            i_w = o_w * s_w + f_w * d_w - p_w\n",
            "            i_w = o_h * s_h + f_h * d_h - p_h\n"
            "            i_h = o_w * s_w + f_w * d_w - p_w\n",
            22,
            "Has each of i_w and i_h the value of the other?",
        ),
    ],
)
def test_a_wrong_name_is_told_with_its_line(old, new, line, advice):
    made = maker(old, new)
    found = lessons.check(made, "m02")
    assert not found.passed
    told = [one for one in found.mistakes if advice in one.advice]
    assert told, str(found)
    assert line in [shown.number for shown in told[0].lines]


def test_a_mistake_that_is_no_name_is_not_called_one():
    found = lessons.check(maker("pixel * weight[m * K + k]", "weight[m * K + k]"), "m02")
    assert "answer" in found.reasons
    assert "right name" not in str(found)
    assert "in the right order" not in str(found)


def test_a_precise_reason_is_not_replaced(monkeypatch):
    monkeypatch.setattr(stage_checks, "change_that_helps", None)  # and would raise
    found = lessons.check(maker(" + bias[m]", ""), "m02")
    assert "lack the bias" in str(found)


def test_a_stride_that_multiplies_too_much_is_told():
    found = lessons.check(maker("o_h * s_h + f_h * d_h", "(o_h + f_h * d_h) * s_h"), "m02")
    assert "The stride multiplies the filter's place in the rows too" in str(found)


def test_makers_without_a_kernel_inside_are_left_alone():
    def make_kernel(problem):
        return problem

    assert change_that_helps(make_kernel, lambda made: True) is None


def test_parts_and_fields_can_be_made_again():
    made = lessons.part_of("m03", load_filter=make_nothing)
    again = made.remade(make_else)
    assert again.__wrapped__ is make_else
    assert lessons.with_field(make_nothing).remade(make_else).__wrapped__ is make_else


def make_nothing(problem, tile):
    return None


def make_else(problem, tile):
    return None


def test_an_index_that_a_layout_transform_lacks_is_told(monkeypatch):
    small = {name: launches.PROBLEMS[name] for name in ("a single pixel", "prime sizes")}
    monkeypatch.setattr(launches, "PROBLEMS", small)
    text = """from numba import cuda
from convlab.ladder.main.m09_im2win import window_columns
def make_transform(problem):
    N_i, C_i, H_i, W_i = problem.input_shape
    H_f, H_o, W_w = problem.H_f, problem.H_o, window_columns(problem)
    @cuda.jit
    def transform(input, windows):
        e = cuda.grid(1)
        if e < N_i * C_i * H_o * W_w * H_f:
            place = e // (H_f * W_w * H_o)
            windows[place // C_i, place % C_i, 0] = input[0, 0, 0, 0]
    return transform
"""
    file = "<a transform that lacks an index>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {}
    exec(compile(text, file, "exec"), names)
    found = lessons.check(lessons.part_of("m09", make_transform=names["make_transform"]), "m09")
    assert found.reasons == ("missing index",), str(found)
    assert "windows has four dimensions" in str(found)
