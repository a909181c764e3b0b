"""The reasons that the lessons' checks give: each names the mistake, in a learner's words."""

from __future__ import annotations

import sys
from unittest.mock import Mock

import numpy as np
import pytest
from lesson_kernels import THREADS, kernel_of, ones, told_of
from numba import cuda
from numba.cuda.core import config

from convlab import ConvProblem, lessons
from convlab.checking import checker
from convlab.checking.common_causes import OF_PROBLEMS, Launched, said, shared
from convlab.checking.outcome import CompiledKernel
from convlab.ladder import Tile, stage_named
from convlab.ladder.stage import Launch
from convlab.lessons import compiling, feedback, kernel_text, tensor_cores
from convlab.lessons.feedback import BARRIERS, MEMORY, Mistake, row_of
from convlab.lessons.limits import broken
from convlab.running.engines.kernels import argument_types
from convlab.support import code_places

pytestmark = pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the strict simulator's findings")


@pytest.fixture(autouse=True)
def no_compilers(monkeypatch):
    """Compile nothing: that depends on what is installed, and no result here may."""
    monkeypatch.setattr(compiling, "compiled_alone", lambda kernel, types: None)


# Barriers


SLICES = """    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for k0 in range(0, a.size, THREADS):
        s[t] = a[k0 + t]
        {first}
        for k in range(THREADS):
            total += s[k]
        {second}
    out[t] = total
"""
FULL = "cuda.syncthreads()"


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("pass", FULL, "missing after line 10, which stores to s, and before line 13, which reads"),
        (FULL, "pass", "missing after line 13, which reads s, at the end of the loop in line 9"),
        ("cuda.syncwarp()", FULL, "cuda.syncwarp() in line 11 lets only the threads of one warp"),
        (FULL, "cuda.syncwarp()", "cuda.syncwarp() in line 14 lets only the threads of one warp"),
    ],
)
def test_the_barrier_that_is_missing_is_named(tmp_path, first, second, said):
    kernel = kernel_of(tmp_path, SLICES.format(first=first, second=second))
    sums = lambda a: np.full(THREADS, a.sum(), np.float32)  # noqa: E731
    found = told_of(kernel, sums, [lessons.On(1, THREADS, (ones(3 * THREADS),))])
    (race,) = (mistake for mistake in found.mistakes if mistake.reason == "shared race")
    assert said in race.advice
    early = "reads s[" in race.what and "before" in race.what
    assert early == (first != FULL)


HALVING = """    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            s[t] += s[t + half]
{barrier}        half //= 2
    out[t] = s[0]
"""


@pytest.mark.parametrize(
    ("barrier", "said"),
    [
        ("", "The loop in line 11 has no barrier"),
        (
            "        if half > 8:\n            cuda.syncthreads()\n",
            "The barrier in line 15 is inside the if in line 14",
        ),
    ],
)
def test_a_loop_that_reads_what_it_has_stored_needs_a_barrier(tmp_path, barrier, said):
    found = told_of(kernel_of(tmp_path, HALVING.format(barrier=barrier)), lambda a: 0 * a + a.sum())
    assert any(said in mistake.advice for mistake in found.mistakes)


def test_threads_that_part_at_a_barrier_are_told_and_not_the_races_after_it(tmp_path):
    body = SLICES.format(first=f"if t < 40:\n            {FULL}", second=FULL)
    found = told_of(kernel_of(tmp_path, body), on=[lessons.On(1, THREADS, (ones(128),))])
    assert found.result == "barrier divergence"
    assert "shared race" not in found.reasons


def test_a_race_between_blocks_is_not_told_to_need_a_barrier(tmp_path):
    body = "    i = cuda.grid(1)\n    out[i] = a[i]\n    if i > 0:\n        out[i - 1] += a[i]\n"
    found = told_of(kernel_of(tmp_path, body), on=[lessons.On(2, THREADS, (ones(128),))])
    (race,) = (mistake for mistake in found.mistakes if mistake.reason == "global race")
    assert "each element of out be written by one thread" in race.advice
    assert "barrier between" not in race.what


# What Numba refuses


@pytest.mark.parametrize(
    ("line", "says", "advice"),
    [
        ("parts = [a[i], 10]", "makes a list", "cuda.local.array"),
        ("parts = {1: 2}", "makes a dict", "variable of its own"),
        ("out[i] = sum(a[k] for k in range(2))", "makes a generator", "for loop"),
        ("b = np.zeros(3)", "np.zeros would make a new array", "cuda.local.array"),
        ("b = sorted(a)", "cannot call sorted() with a whole array", "single elements"),
        ("print(f'{i}')", "cannot make texts", "constant strings"),
        ("return out", "returns nothing", "delete the value"),
        ("s = cuda.shared.array(THREADS + 2, float32)", "must be constant", "THREADS + 2"),
    ],
)
def test_python_that_numba_refuses_is_told_in_plain_words(tmp_path, line, says, advice):
    found = told_of(kernel_of(tmp_path, f"    i = cuda.grid(1)\n    out[i] = a[i]\n    {line}\n"))
    assert found.result == feedback.REFUSED
    assert found.headline == feedback.HEADLINES[feedback.REFUSED]
    mistake = found.mistakes[0]
    assert says in mistake.what
    assert advice in mistake.advice
    assert mistake.lines[0].code == line


def test_every_check_of_a_kernel_compiles_it(monkeypatch, tmp_path):
    for module in compiling, tensor_cores:
        assert module.compile_mistake is compiling.compile_mistake
    refused = CompiledKernel(error="no such instruction")
    monkeypatch.setattr(compiling, "compiled_alone", lambda kernel, types: refused)
    copies = kernel_of(tmp_path, "    i = cuda.grid(1)\n    out[i] = a[i]\n")
    assert told_of(copies).result == feedback.DOES_NOT_COMPILE
    assert lessons.check_one_warp(tensor_cores._one_warp).result == feedback.DOES_NOT_COMPILE
    im2col = __import__("convlab.ladder.im2col.im2col_gemm", fromlist=["make_im2col"]).make_im2col
    monkeypatch.setattr("convlab.lessons.problem_checks.PROBLEMS", {})
    monkeypatch.setattr("convlab.lessons.problem_checks.MODEL", SMALL)
    assert lessons.check_im2col(im2col, windows).result == feedback.DOES_NOT_COMPILE


def test_types_are_not_inferred_once_more_for_a_kernel_that_compiles(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "compiled_alone", lambda kernel, types: CompiledKernel())
    monkeypatch.setattr(compiling, "check_kernel", lambda *_: pytest.fail("it was"))
    copies = kernel_of(tmp_path, "    i = cuda.grid(1)\n    out[i] = a[i]\n")
    assert told_of(copies).passed
    monkeypatch.setattr(checker, "compiled", lambda program, stages: CompiledKernel())
    monkeypatch.setattr(checker, "planned", lambda stage, make: [])
    assert lessons.check(stage_named("m01").prepare, "m01").passed


SMALL = ConvProblem(1, 2, 4, 5, 3, 2)


def windows(input, problem):
    """The im2col matrix of a problem without padding, stride or dilation."""
    p, rows = problem, []
    for channel in range(p.in_channels):
        for row in range(p.kernel_size[0]):
            for column in range(p.kernel_size[1]):
                part = input[:, channel, row : row + p.H_o, column : column + p.W_o]
                rows.append(part.reshape(-1))
    return np.array(rows)


# Indices and loops


FLAT = """    e = cuda.grid(1)
    if e < windows.size:
        windows[e] = a[e]
"""


def test_an_index_that_is_missing_is_told_and_not_a_guard(tmp_path):
    kernel = kernel_of(tmp_path, FLAT, "a, windows")
    four = lambda a: a.reshape(2, 2, 4, 4)  # noqa: E731
    found = told_of(kernel, four)
    assert found.result == feedback.MISSING_INDEX
    (mistake,) = found.mistakes
    assert "windows has four dimensions, and windows[e] gives one index" in mistake.what
    assert mistake.lines[0].code == "windows[e] = a[e]"


@pytest.mark.parametrize(
    "index", ["m[i][0]", "m[i, 0]", "m[i, :][0]", "m[place]", "m[cuda.grid(2)]", "a[i]"]
)
def test_indices_that_are_all_there_are_not_told_to_be_missing(tmp_path, index):
    body = f"    i = cuda.grid(1)\n    place = i, 0\n    out[i] = {index}\n"
    kernel = kernel_of(tmp_path, body, "a, m, out")
    assert kernel_text.slip(kernel, [1, 2, 1]) is None


@pytest.mark.parametrize(
    ("line", "reason", "said"),
    [
        (
            "m[i, 0, 0] + a[i]",
            feedback.REFUSED,
            "m[i, 0, 0] gives 3 indices",
        ),
        ("a[i, 0]", feedback.REFUSED, "a has one dimension, and a[i, 0] gives"),
        (
            "a[i]\n    cuda.syncthreads",
            feedback.NOT_CALLED,
            "names cuda.syncthreads and does not",
        ),
    ],
)
def test_too_many_indices_and_a_call_without_parentheses_are_told_with_their_line(
    tmp_path, line, reason, said
):
    kernel = kernel_of(tmp_path, f"    i = cuda.grid(1)\n    out[i] = {line}\n", "a, m, out")
    found = kernel_text.slip(kernel, [1, 2, 1])
    assert found is not None
    assert found.reason == reason
    assert said in found.what
    assert line.splitlines()[-1].strip() in found.lines[0].code


def test_an_index_that_a_shared_array_lacks_is_told(tmp_path):
    body = "    s = cuda.shared.array((4, 8), float32)\n    s[cuda.threadIdx.x] = a[0]\n"
    kernel = kernel_of(tmp_path, body, "a, out")
    found = lessons.what_is_wrong(kernel, 1, 8, np.ones(8, np.float32), np.ones(8, np.float32))
    assert any("Give an index for each dimension" in one.advice for one in found.mistakes)


@pytest.mark.parametrize("name", ["m01", "m03", "m06", "m09", "m11", "m15", "c01", "t03", "t05"])
def test_no_stage_leaves_out_an_index(name):
    stage = stage_named(name)
    program = stage.prepare(SMALL, stage.tiny_tile)
    for launch in program.launches:
        if isinstance(launch, Launch):
            ranks = [one.ndim for one in argument_types(launch, program)]
            assert kernel_text.slip(launch.kernel, ranks) is None


@pytest.mark.parametrize(
    ("loop", "advice"),
    [
        (
            "    k = 0\n    while k < 3:\n        out[0] = a[0] + k\n        k += 0\n",
            "its condition",
        ),
        ("    for k in range(10**9):\n        out[0] = k\n", "range as long as it must be"),
    ],
)
def test_an_endless_loop_is_not_said_to_have_the_right_answer(tmp_path, loop, advice):
    found = told_of(kernel_of(tmp_path, loop))
    assert found.right == ()
    assert "right here" not in found.headline
    assert found.mistakes[0].lines[0].code.startswith(("while", "for"))
    assert advice in found.mistakes[0].advice


def test_a_launch_that_ended_early_has_neither_a_right_answer_nor_a_wrong_one(tmp_path):
    body = "    i = cuda.grid(1)\n    out[i] = a[i + 1]\n"
    found = told_of(kernel_of(tmp_path, body))
    assert found.reasons == ("out of bounds",)
    assert found.right == ()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("s = cuda.shared.array(8, float32)\n    s[i] = a[i]", "Here i must stay below 8"),
        ("s = cuda.local.array(8, float32)\n    s[0] += a[i]", "Give each element of s a value"),
    ],
)
def test_a_kernel_s_own_arrays_have_remedies_of_their_own(tmp_path, lines, said):
    found = told_of(kernel_of(tmp_path, f"    i = cuda.grid(1)\n    {lines}\n    out[i] = s[0]\n"))
    assert said in found.mistakes[0].advice


# Counts


def test_work_that_every_thread_does_again_is_noted_and_passes(tmp_path):
    everything = "    for i in range(a.size):\n        out[i] = a[i]\n"
    found = told_of(kernel_of(tmp_path, everything))
    assert found.passed
    assert "each element of out is stored 64 times" in found.notes[0]
    assert "  note   each element" in str(found)
    assert "⚠ each element" in found.as_html()
    alone = "    i = cuda.grid(1)\n    out[i] = a[i]\n"
    assert told_of(kernel_of(tmp_path, alone)).notes == ()


SUM = """    s = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    {sum}
"""


@pytest.mark.parametrize(
    ("lines", "headline", "advice"),
    [
        ("if t == 0:\n        out[0] = sum(s)", "one thread does work", "sum() is a loop that one"),
        (
            "if t > 0:\n        cuda.atomic.add(s, 0, s[t])\n    cuda.syncthreads()\n"
            "    if t == 0:\n        out[0] = s[0]",
            "threads queue up to add to one element",
            "one after the other",
        ),
    ],
)
def test_one_thread_and_one_element_with_all_the_work_are_told(tmp_path, lines, headline, advice):
    kernel = kernel_of(tmp_path, SUM.format(sum=lines))
    sums = lambda a: np.array([a.sum()], np.float32)  # noqa: E731
    found = told_of(kernel, sums, busiest=20)
    assert headline in found.headline
    assert "memory traffic" not in found.headline
    assert advice in found.mistakes[0].advice


def test_too_many_barriers_are_not_memory_traffic():
    rows = [row_of("sectors", 10, 10), row_of("threads at barriers", 30, 20, kind=BARRIERS)]
    found = feedback.checked_by_counts((), rows)
    assert found.headline.endswith("its threads wait at more barriers than they should.")
    assert found.mistakes[0].what == "Too many threads at barriers (30, and 25 are allowed)."
    both = feedback.checked_by_counts((), [row_of("sectors", 30, 10), *rows])
    assert [mistake.reason for mistake in both.mistakes] == ["counts", "counts"]
    assert feedback.TOO_MUCH[MEMORY] in both.headline


# What wrong cases share


def cases(*problems, tile=None):
    return [Launched(problem, tile, 1) for problem in problems]


PLAIN = ConvProblem(1, 3, 6, 6, 4, 3)
PADDED = ConvProblem(1, 3, 6, 6, 4, 3, padding=1)
DILATED = ConvProblem(1, 3, 6, 6, 4, 3, dilation=2)
BOTH = ConvProblem(1, 3, 6, 6, 4, 3, padding=1, dilation=2)


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        ([PADDED, BOTH], [PLAIN, DILATED], "padding"),
        ([BOTH], [PLAIN, PADDED, DILATED], "padding and dilation"),
        ([PADDED], [PLAIN], ""),  # one right case is not enough to tell
        ([], [PLAIN, PADDED], ""),
    ],
)
def test_what_wrong_problems_share_and_right_ones_lack(wrong, right, expected):
    names = shared(cases(*wrong), cases(*right), OF_PROBLEMS)
    assert " and ".join(names[: 2 if "and" in expected else 1]) == expected


def test_what_is_shared_depends_on_the_tile():
    tile = Tile(M_B=8, N_B=8, K_B=12)
    more, less = ConvProblem(1, 2, 4, 4, 4, 3), ConvProblem(1, 1, 4, 4, 4, 3)
    names = shared(cases(more, tile=tile), cases(less, less, tile=tile), OF_PROBLEMS)
    assert "more terms (K) than a slice" in names


LEFT = ConvProblem(1, 3, 6, 6, 4, 3, padding=((0, 0), (1, 0)))
RIGHT = ConvProblem(1, 3, 6, 6, 4, 3, padding=((1, 1), (0, 1)))
AROUND = ConvProblem(1, 3, 6, 6, 4, 3, padding=((1, 0), (1, 1)))


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        ([LEFT, AROUND], [PLAIN, RIGHT], ("padding on the left",)),
        ([LEFT, AROUND, RIGHT], [PLAIN, DILATED], ("padding",)),
        ([RIGHT, AROUND], [PLAIN, LEFT], ("padding above", "padding on the right")),
    ],
)
def test_the_side_of_the_padding_is_told(wrong, right, expected):
    assert shared(cases(*wrong), cases(*right), OF_PROBLEMS)[: len(expected)] == expected


def test_a_tile_of_several_rows_is_told_before_the_filter_s_shape():
    low, high = Tile(M_B=1, N_B=8, K_B=12), Tile(M_B=4, N_B=8, K_B=12)
    small = ConvProblem(1, 3, 6, 6, 4, 1)
    names = shared(cases(PLAIN, tile=high), cases(small, small, tile=low), OF_PROBLEMS)
    assert names.index("tiles with several output channels") == 0
    flat = Tile(M_B=4, N_B=8, K_B=12, M_T=4)
    names = shared(cases(PLAIN, tile=high), cases(small, small, tile=flat), OF_PROBLEMS)
    assert names[0] == "tiles with several rows of threads"


def test_the_sentence_counts_the_cases():
    assert said((), 3, "problems") == ""
    assert said(("padding",), 1, "problems") == "It is the only one of the problems with padding."
    assert said(("a", "b"), 2, "problems").startswith("All of them have a and b; none of")


# Names and places


def test_names_of_a_learner_s_functions_keep_their_case():
    assert broken("make_kernel takes (a)").args[0].mistakes[0].what == "make_kernel takes (a)."
    assert broken("kernel takes (a)").args[0].mistakes[0].what == "kernel takes (a)."
    assert broken("it raised an error").args[0].mistakes[0].what == "It raised an error."


@pytest.mark.parametrize(("count", "said"), [(5, "this cell"), (7, "cell [5]")])
def test_a_line_of_a_notebook_is_a_line_of_a_cell(tmp_path, monkeypatch, count, said):
    kernel = kernel_of(tmp_path, "    out[cuda.grid(1) + 1] = 0\n")
    file = kernel.py_func.__code__.co_filename
    compiler = Mock(format_code_name=lambda name: ("Cell", "In[5]") if name == file else None)
    shell = Mock(compile=compiler, user_ns={"In": [""] * (count + 1)})
    monkeypatch.setitem(sys.modules, "IPython", Mock(get_ipython=lambda: shell))
    found = lessons.what_is_wrong(kernel, 1, 32, ones(), ones(8))
    assert f"line 6 of {said}: out[cuda.grid(1) + 1] = 0" in str(found)
    assert code_places.file_said("elsewhere/program.py") == "program.py"


def test_a_name_that_is_not_defined_is_compared_with_those_that_are(tmp_path):
    found = told_of(kernel_of(tmp_path, "    i = cuda.grid(1)\n    out[i] = a[j_i]\n    i_j = 1\n"))
    assert found.mistakes[0].advice == "Is i_j meant?"


def test_causes_are_told_before_what_follows_from_them():
    mistakes = [Mistake(one, one) for one in (feedback.ANSWER, "shared race", feedback.REFUSED)]
    found = feedback.with_mistakes(mistakes)
    assert found.reasons == (feedback.REFUSED, "shared race", feedback.ANSWER)
    assert found.headline == feedback.HEADLINES[feedback.REFUSED]


@cuda.jit
def adds_to_its_output(a, out):
    out[cuda.grid(1)] += a[cuda.grid(1)]


def test_an_output_that_is_added_to_is_told():
    mistake = told_of(adds_to_its_output).mistakes[0]
    assert "holds NaN" in mistake.advice
    assert mistake.lines[0].code == "out[cuda.grid(1)] += a[cuda.grid(1)]"


def test_lines_are_those_of_ipython_s_cells(capsys):
    """IPython itself runs the cells: the cell that runs is this cell, another one has its
    number."""
    ipython = pytest.importorskip("IPython.core.interactiveshell")
    source = "from numba import cuda\n@cuda.jit\ndef kernel(a):\n    a[cuda.grid(1) + 1] = 0\n"
    shell = ipython.InteractiveShell.instance()
    try:
        shell.run_cell(f"{source}from convlab.lessons import what_is_wrong\n", store_history=True)
        number = len(shell.user_ns["In"]) - 1
        shell.user_ns["ones"] = ones(32)
        there = "print(what_is_wrong(kernel, 1, 32, ones))"
        shell.run_cell(there, store_history=True)
        assert f"line 4 of cell [{number}]: a[cuda" in capsys.readouterr().out
        shell.run_cell(f"{source}{there}", store_history=True)
        assert "line 4 of this cell: a[cuda" in capsys.readouterr().out
    finally:
        ipython.InteractiveShell.clear_instance()
