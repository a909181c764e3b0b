"""Advice of the lessons' checks that names the true reason: guards, arrays, operands."""

from __future__ import annotations

import linecache
from itertools import count

import numpy as np
import pytest
from lesson_kernels import kernel_of, ones
from numba.cuda.core import config

from convlab import lessons
from convlab.device.products import split_into_tf32
from convlab.lessons import compiling, feedback
from convlab.lessons.split_products import what_is_multiplied

pytestmark = pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the strict simulator's findings")
_numbers = count()


@pytest.fixture(autouse=True)
def no_compilers(monkeypatch):
    """Compile nothing: that depends on what is installed, and no result here may."""
    monkeypatch.setattr(compiling, "compiled_alone", lambda kernel, types: None)


# Guards


def advice_on(tmp_path, body):
    """The advice on a kernel of eight threads for five numbers."""
    kernel = kernel_of(tmp_path, f"    i = cuda.grid(1)\n    {body}\n", "a, out")
    five = np.ones(5, np.float32)
    return lessons.what_is_wrong(kernel, 1, 8, five, five.copy()).mistakes[0].advice


@pytest.mark.parametrize(
    "body",
    [
        "if i <= a.size:\n        out[i] = a[i]",
        "if i < a.size or i < 99:\n        out[i] = a[i]",
        "if i > a.size:\n        return\n    out[i] = a[i]",
        "if 0 <= i:\n        if a.size:\n            out[i] = a[i]",
    ],
)
def test_a_condition_that_lets_an_index_through_is_named(tmp_path, body):
    advice = advice_on(tmp_path, body)
    assert "The condition in line 7 lets i = 5 through" in advice
    assert "correct the condition, or the index" in advice


@pytest.mark.parametrize("body", ["out[i] = a[i]", "if a.size:\n        out[i] = a[i]"])
def test_where_no_condition_tests_the_index_a_guard_is_told(tmp_path, body):
    advice = advice_on(tmp_path, body)
    assert "lets" not in advice
    assert "Guard the access" in advice


# Arrays of a thread, and of a block


def test_a_shared_array_whose_index_is_the_same_in_all_threads_is_told(tmp_path):
    lines = "    s = cuda.shared.array(4, float32)\n    t = cuda.grid(1)\n"
    lines += "    for k in range(4):\n        s[k] = a[t % a.size]\n    out[t % a.size] = s[{}]\n"
    kernel = kernel_of(tmp_path, lines.format("t % 4"), "a, out")
    found = lessons.what_is_wrong(kernel, 1, 8, ones(), ones())
    assert "does not depend on the thread" in found.mistakes[0].advice
    assert "cuda.local.array" in found.mistakes[0].advice
    own = lines.replace("s[k] =", "s[(k + t) % 4] =").format("t % 4")
    found = lessons.what_is_wrong(kernel_of(tmp_path, own, "a, out"), 1, 8, ones(), ones())
    assert "does not depend on the thread" not in found.mistakes[0].advice
    chosen = lines.replace("    for k", "    if t == 0:\n      for k").format("t % 4")
    found = lessons.what_is_wrong(kernel_of(tmp_path, chosen, "a, out"), 1, 8, ones(), ones())
    assert "A barrier is missing" in found.mistakes[0].advice


@pytest.mark.parametrize(
    ("line", "said"),
    [("r[1] = a[0]", "which of its elements do the stores reach"), ("r[0] += a[0]", "float32(0)")],
)
def test_elements_of_a_local_array_without_a_number_are_told(tmp_path, line, said):
    lines = f"    r = cuda.local.array(2, float32)\n    {line}\n    out[0] = r[0]\n"
    found = lessons.what_is_wrong(kernel_of(tmp_path, lines, "a, out"), 1, 1, ones(), ones())
    assert said in found.mistakes[0].advice


# What Numba refuses


def refused(line):
    text = "from numba import cuda, float32\nfrom convlab.device import mma_tf32\n@cuda.jit\n"
    text += "def kernel(A, B, C):\n    zero = float32(0)\n    other = zero * zero\n"
    text += f"    {line}\n    C[0, 0] = other\n"
    file, there = f"<refused {next(_numbers)}>", {}
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), there)
    matrix = np.ones((8, 8), np.float32)
    return compiling.refusal(there["kernel"], compiling.types_of((matrix, matrix, matrix)))


@pytest.mark.parametrize(
    ("line", "what", "advice"),
    [
        ("C[:] = A @ B", "@ multiplies whole matrices", "single elements"),
        (
            "d = mma_tf32((zero, zero, zero, zero), (zero, zero), (0, 0, 0, 0))",
            "mma_tf32 takes a tuple of 4 float32 as its argument c, and here it gets other numbers",
            "Write float32(0)",
        ),
        (
            "d = mma_tf32((zero, zero), (zero, zero), (zero, zero, zero, zero))",
            "mma_tf32 takes a tuple of 4 float32 as its argument a, and here it gets 2",
            "in the right order",
        ),
        ("d = (zero, zero) + 1", "compute with a whole tuple", "write the new tuple out"),
    ],
)
def test_a_refusal_names_its_line_and_what_to_write(line, what, advice):
    mistake = refused(line)
    assert mistake.reason == feedback.REFUSED
    assert what in mistake.what
    assert advice in mistake.advice
    assert [one.code for one in mistake.lines] == [line]


# Products of split numbers


def product(*factors, c=0.0):
    (a, b) = factors
    return {0: ((a, a, a, a), (b, b), (c, c, c, c))}


@pytest.mark.parametrize(
    ("kinds", "sums", "said"),
    [
        (("SL", "LS", "LL"), (0, 1, 2), ""),
        (("LS", "SL", "LL"), (0, 1, 2), ""),
        (("LL", "LS", "LL"), (0, 1, 2), "No product multiplies the small parts of the filter"),
        (("SS", "LS", "LL"), (0, 1, 2), "but one multiplies the small parts of the filter by the"),
        (("SL", "LX", "LL"), (0, 1, 2), "neither all large parts nor all small parts"),
        (("SL", "LS", "LL"), (0, 0, 2), "Product 2 of the three begins with zeros again"),
        (("SL", "LS", "LL"), (0, 1, 0), "Product 3 of the three begins with zeros again"),
    ],
)
def test_the_products_of_split_numbers_are_told_by_their_operands(kinds, sums, said):
    weight, pixel = np.float32(0.1), np.float32(0.7)
    parts = [
        dict(zip("LS", map(float, split_into_tf32(one)), strict=True)) for one in (weight, pixel)
    ]
    parts[1]["X"] = float(pixel)
    calls = [
        product(parts[0][kind[0]], parts[1][kind[1]], c=float(start))
        for kind, start in zip(kinds, sums, strict=True)
    ]
    told = what_is_multiplied(calls, np.array([weight]), np.array([pixel]))
    assert said in told
    assert bool(said) == bool(told)
