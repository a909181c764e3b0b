"""The remedies of the lessons' checks: barriers between calls, and indices."""

from __future__ import annotations

import linecache
import re
import runpy
from dataclasses import replace

import numpy as np
import pytest
from lesson_kernels import THREADS, kernel_of, ones, told_of
from numba.cuda.core import config

from convlab import lessons
from convlab.lessons import compiling
from convlab.lessons.explanations import CONVLAB, of_findings
from convlab.simulation.rules.dependence import depends
from convlab.simulation.rules.findings import Finding

pytestmark = pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the strict simulator's findings")


@pytest.fixture(autouse=True)
def no_compilers(monkeypatch):
    """Compile nothing: that depends on what is installed, and no result here may."""
    monkeypatch.setattr(compiling, "compiled_alone", lambda kernel, types: None)


# Barriers between calls of device functions


GIVEN = """from numba import cuda
@cuda.jit(device=True)
def fill(s, a, t, k0):
    for e in range(t, s.size, 64):
        s[e] = a[k0 + e]
@cuda.jit(device=True)
def add(s, total):
    for k in range(s.size):
        total += s[k]
    return total
"""
CALLS = """from numba import cuda, float32
{given}
@cuda.jit
def kernel(a, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for k0 in range(0, a.size, 64):
        fill(s, a, t, k0)
        {first}
        {use}
        {second}
    out[t] = total
"""
FULL = "cuda.syncthreads()"
LOOP = "for k in range(64):\n            total += s[k]"


@pytest.mark.parametrize("use", [LOOP, "total = add(s, total)"], ids=["loop", "call"])
@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize(
    ("first", "second", "said"),
    [("pass", FULL, "no thread may read before all"), (FULL, "pass", "at the end of the loop in")],
    ids=["first", "second"],
)
def test_a_barrier_that_is_missing_between_calls_is_named(
    tmp_path, monkeypatch, use, elsewhere, first, second, said
):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"given_{abs(hash((use, first)))}"
    (tmp_path / f"{name}.py").write_text(GIVEN)
    given = f"from {name} import add, fill" if elsewhere else GIVEN.partition("\n")[2]
    file = tmp_path / f"mine{abs(hash((use, elsewhere, first)))}.py"
    file.write_text(CALLS.format(given=given, use=use, first=first, second=second))
    kernel = runpy.run_path(str(file))["kernel"]
    sums = lambda a: np.full(THREADS, a.sum(), np.float32)  # noqa: E731
    found = told_of(kernel, sums, [lessons.On(1, THREADS, (ones(3 * THREADS),))])
    (race,) = (one for one in found.mistakes if one.reason == "shared race")
    assert race.advice.startswith("A barrier is missing after line")
    assert said in race.advice
    called = [line.code for line in race.lines if line.calls]
    assert ("fill(s, a, t, k0)" in called) == elsewhere
    assert "atomic" not in f"{race.what}{race.advice}"


def function_of(text, tmp_path):
    file = tmp_path / f"function{abs(hash(text))}.py"
    file.write_text(text)
    linecache.checkcache(str(file))
    return runpy.run_path(str(file))["f"].__code__, str(file)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("v = s[i]\n    s[i] = v + 1", True),
        ("v = s[i]\n    w = v * 2\n    s[i] = w", True),
        ("if s[i] < a:\n        s[i] = a", True),
        ("v = s[i]\n    if v > a:\n        return\n    s[i] = a", True),
        ("t = s[i]\n    s[i] = a", False),
        ("t += s[i]\n    s[j] = a[i]", False),
        ("r[i] = s[i]\n    r[j] = 0\n    s[i] = a + t", False),
    ],
)
def test_a_write_depends_on_a_read_by_values_and_conditions(tmp_path, lines, expected):
    code, file = function_of(f"def f(s, a, i, j, t, r):\n    {lines}\n", tmp_path)
    last = max(number for number, line in enumerate(lines.splitlines(), 2) if "s[" in line)
    assert depends(code, file, 2, last) == expected


STORES_BELOW = """    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    total = float32(0)
    for k0 in range(0, a.size, THREADS):
        for k in range(THREADS):
            total += s[k]
        s[t] = a[k0 + t]
        cuda.syncthreads()
    out[t] = total
"""


def test_a_slice_that_is_loaded_below_its_use_needs_a_barrier_and_no_atomic(tmp_path):
    found = lessons.what_is_wrong(
        kernel_of(tmp_path, STORES_BELOW), 1, THREADS, ones(2 * THREADS), ones()
    )
    (race,) = found.mistakes
    assert "one atomic step" not in race.what
    assert "A barrier is missing after line 13, which reads s, and before line 14" in race.advice


def test_a_part_whose_barriers_are_given_is_told_to_correct_its_index():
    what = "thread 0 reads S[1] and thread 1 overwrites it, with no barrier between"
    finding = Finding("shared race", what, "f.py", 3, "k", array="S", other_line=4)
    (mistake,) = of_findings([finding], own="f.py", barriers_given=True)
    assert "the part accesses a wrong element of S" in mistake.advice
    assert "syncthreads" not in mistake.advice


# Indices


@pytest.mark.parametrize(
    ("access", "said"),
    [
        ("out[t] = m[t % 8, t // 8 % 4]", "Or are t % 8 and t // 8 % 4 swapped?"),
        ("out[t] = m[t, 0]", "Guard the access with the array's size"),
    ],
)
def test_indices_that_fit_exchanged_are_asked_about(tmp_path, access, said):
    kernel = kernel_of(tmp_path, f"    t = cuda.grid(1)\n    {access}\n", "m, out")
    found = lessons.what_is_wrong(kernel, 1, THREADS, np.ones((4, 8), np.float32), ones())
    assert said in found.mistakes[0].advice


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("i_n, m, o_w, o_h", "Are o_w and o_h swapped?"),
        ("i_n, m, o_h + 2, o_w - 2", "Guard the access"),
        ("m, i_n, o_h, o_w", "Guard the access"),
    ],
)
def test_of_many_indices_only_those_with_names_alike_are_said_to_be_swapped(tmp_path, index, said):
    body = f"""    t = cuda.grid(1)
    i_n, m, o_h, o_w = t // 32 % 2, t // 16 % 2, t // 8 % 2, t % 8
    out[t] = m4[{index}]
"""
    kernel = kernel_of(tmp_path, body, "m4, out")
    shape = (1, 2, 2, 8) if index.startswith("m") else (2, 2, 2, 8)
    found = lessons.what_is_wrong(kernel, 1, THREADS, np.ones(shape, np.float32), ones())
    assert said in found.mistakes[0].advice
    assert ("swapped" in found.mistakes[0].advice) == ("swapped" in said)


LOOPS = """    t = cuda.grid(1)
    for row in range({rows}):
        for column in range({columns}):
            out[t] = m[{index}]
"""


@pytest.mark.parametrize(
    ("rows", "columns", "index", "said"),
    [
        (
            6,
            4,
            "row, column",
            "row, which the loop in line 7 counts, must stay below 4. Or are row",
        ),
        (4, 8, "column, row", "column, which the loop in line 8 counts, must stay below 4. Or are"),
        (6, 1, "row, t % 4", "row, which the loop in line 7 counts, must stay below 4. Or are"),
        (6, 1, "row, t % 8 + 4", "row, which the loop in line 7 counts, must stay below 4."),
    ],
)
def test_an_index_that_a_loop_counts_is_told_before_an_exchange(
    tmp_path, rows, columns, index, said
):
    kernel = kernel_of(tmp_path, LOOPS.format(rows=rows, columns=columns, index=index), "m, out")
    found = lessons.what_is_wrong(kernel, 1, THREADS, np.ones((4, 8), np.float32), ones())
    assert f"Here {said}" in found.mistakes[0].advice
    assert ("swapped?" in found.mistakes[0].advice) == ("Or are" in said)


SLICES = """    s = cuda.shared.array(64, float32)
    t, total = cuda.threadIdx.x, float32(0)
    for k0 in range(0, a.size, 64):
        s[t] = a[k0 + t]
        cuda.syncthreads()
        for k in range(64):
            total += s[{}]
        cuda.syncthreads()
    out[t] = total
"""


def test_the_first_term_of_a_slice_does_not_belong_into_its_index(tmp_path):
    kernel = kernel_of(tmp_path, SLICES.format("k0 + k"))
    found = lessons.what_is_wrong(kernel, 1, THREADS, ones(2 * THREADS), ones())
    assert "s holds one slice at a time" in found.mistakes[0].advice
    assert "leave k0 out of the index. Here k0 + k must stay below 64." in found.mistakes[0].advice
    other = kernel_of(tmp_path, SLICES.format("k + 1"))
    found = lessons.what_is_wrong(other, 1, THREADS, ones(2 * THREADS), ones())
    assert "Is the index right? Here k + 1 must stay below 64." in found.mistakes[0].advice


RETURNS = """    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    if t >= 40:
        return
    s[t] = a[t]
    cuda.syncthreads()
    out[t] = s[t] + s[THREADS - 1 - t]
    cuda.syncthreads()
"""


def test_threads_that_have_returned_are_told_and_not_what_follows(tmp_path):
    found = lessons.what_is_wrong(kernel_of(tmp_path, RETURNS), 1, THREADS, ones(), ones())
    (mistake,) = found.mistakes
    assert mistake.reason == "barrier divergence"
    said = r"24 of 64 threads never came to this barrier, nor to the barrier in line \d+; this one"
    assert re.search(said, mistake.what)
    assert "returned in line" in mistake.what


def test_an_index_of_a_given_line_is_not_the_learner_s_to_guard():
    file = str(CONVLAB / "a given part")
    text = "def given(a, i, j):\n    return a[i, j]\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    finding = Finding("out of bounds", "k", file, 2, "a[4, 0] is outside shape (4, 8)", array="a")
    (mistake,) = of_findings([finding], own="mine.py")
    assert mistake.advice.startswith("The line with a is given. Its index is computed from what")
    assert "swapped" not in mistake.advice
    mine = "def kernel(a):\n    given(a, 4, 0)\n"
    linecache.cache["mine.py"] = (len(mine), None, mine.splitlines(keepends=True), "mine.py")
    (mistake,) = of_findings([finding], own="mine.py")
    assert "from the arguments of the call" in mistake.advice
    unread = replace(finding, kind="uninitialised", what="a[4, 0] is read before anything wrote it")
    (mistake,) = of_findings([unread], own="mine.py")
    assert "is the call too early, or is the argument wrong" in mistake.advice
    (mistake,) = of_findings([unread], own="mine.py", barriers_given=True)
    assert "the right part stores to every element" in mistake.advice
    makes = "def kernel():\n    a = cuda.shared.array((4, 8), float32)\n    given(a, 4, 0)\n"
    linecache.cache["makes.py"] = (len(makes), None, makes.splitlines(keepends=True), "makes.py")
    (mistake,) = of_findings([finding], own="makes.py")
    assert "does a have the shape that the call works with?" in mistake.advice


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("s[i] = a[i]", "index it with cuda.threadIdx, not with the thread's number in the whole"),
        ("s[0] = s[i]", "index it with cuda.threadIdx, not with"),
        ("s[cuda.threadIdx.x * 2] = a[i]", "Here cuda.threadIdx.x * 2 must stay below 64."),
    ],
)
def test_a_shared_array_is_not_said_to_be_too_small_first(tmp_path, lines, said):
    body = f"    i = cuda.grid(1)\n    s = cuda.shared.array(THREADS, float32)\n    {lines}\n"
    kernel = kernel_of(tmp_path, body)
    found = lessons.what_is_wrong(kernel, 2, THREADS, ones(2 * THREADS), ones(2 * THREADS))
    assert said in found.mistakes[0].advice


def test_two_stores_of_one_element_are_an_index_and_no_atomic(tmp_path):
    body = """    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    s[t // 2] = a[t]
    cuda.syncthreads()
    out[t] = s[t // 2]
"""
    found = lessons.what_is_wrong(kernel_of(tmp_path, body), 1, THREADS, np.arange(64.0), ones())
    assert "Several threads store to one element of s" in found.mistakes[0].advice
    assert "atomic" not in found.mistakes[0].advice


def test_threads_that_do_not_come_to_a_barrier_in_a_branch_are_not_said_to_end_there(tmp_path):
    body = (
        "    t = cuda.threadIdx.x\n    if t < 40:\n        cuda.syncthreads()\n    out[t] = a[t]\n"
    )
    found = told_of(kernel_of(tmp_path, body))
    said = "24 of 64 threads never came to this barrier, which is inside the if in line 7"
    assert said in found.mistakes[0].what


def test_an_array_that_is_misaligned_is_not_called_shared(tmp_path):
    body = "    t = cuda.grid(1)\n    four = load4(a, t)\n    out[t] = four[0]\n"
    file = tmp_path / "wide.py"
    head = "from numba import cuda\nfrom convlab.device import load4\n"
    file.write_text(f"{head}@cuda.jit\ndef kernel(a, out):\n{body}")
    kernel = runpy.run_path(str(file))["kernel"]
    found = lessons.what_is_wrong(kernel, 1, 8, ones(), ones())
    assert "Let the index into a be a multiple of the access's width" in found.mistakes[0].advice
    assert found.mistakes[0].lines[0].code == "four = load4(a, t)"
