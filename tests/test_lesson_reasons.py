"""The lessons' checks say the true reason: what is allowed, whose line it is, how far they are."""

from __future__ import annotations

import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from lesson_kernels import kernel_of, ones, told_of
from numba.cuda.core import config

from convlab import ConvProblem, lessons
from convlab.checking import checker, launches
from convlab.checking.loading import maker
from convlab.checking.outcome import TRANSFORMS
from convlab.ladder import Tile, stage_named
from convlab.lessons import (
    compiling,
    feedback,
    plain_im2win,
    problem_checks,
    stage_checks,
    stage_counts,
    stage_feedback,
)
from convlab.lessons import progress_line as progress
from convlab.lessons.feedback import Feedback, Line, row_of
from convlab.lessons.traffic_hints import most_of
from convlab.lessons.wrong_outputs import untouched_places, unwritten_part
from convlab.tracing import trace

pytestmark = pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the strict simulator's findings")


@pytest.fixture(autouse=True)
def no_compilers(monkeypatch):
    """Compile nothing: that depends on what is installed, and no result here may."""
    monkeypatch.setattr(compiling, "compiled_alone", lambda kernel, types: None)


# Counts


def test_a_passed_check_says_what_is_allowed_if_a_count_is_above_its_target():
    above = feedback.checked_by_counts((), [row_of("requests", 34, 30), row_of("sectors", 9, 9)])
    assert above.passed
    assert above.headline == "Passed: right, and no count is above what is allowed."
    assert re.search(
        r"yours +target +allowed\n +requests +34 +30 +37\n +sectors +9 +9 +11", str(above)
    )
    assert "<th" in above.as_html()
    assert ">allowed<" in above.as_html()
    within = feedback.checked_by_counts((), [row_of("requests", 30, 30), row_of("sectors", 8, 9)])
    assert "allowed" not in f"{within}{within.as_html()}"
    assert "no more memory traffic" in within.headline


def test_counts_of_layout_transforms_are_told_as_theirs():
    rows = [row_of(f"{TRANSFORMS}sectors stored", 30, 10), row_of("wavefronts", 12, 8)]
    (mistake,) = feedback.checked_by_counts((), rows).mistakes
    assert mistake.what == (
        "Too many wavefronts (12, and 10 are allowed). "
        "In the layout transforms: too many sectors stored (30, and 12 are allowed)."
    )


def test_a_store_above_the_target_is_named_beside_reads_that_cost_more(tmp_path):
    body = """    s = cuda.shared.array((32, 32), float32)
    t = cuda.threadIdx.x
    for k in range(2):
        s[{store}] = a[t]
    cuda.syncthreads()
    total = float32(0)
    for k in range(8):
        total += s[t % 32, 0]
    out[t] = total
"""
    yours = kernel_of(tmp_path, body.format(store="t % 32, k"))
    target = kernel_of(tmp_path, body.format(store="k, t % 32"))
    traces = [trace(one, 1, 32, ones(32), ones(32)).main for one in (yours, target)]
    hint = most_of(yours, traces[:1], "wavefronts", traces[1:], "shared")
    assert "stores to s" in hint.advice
    assert hint.lines[0].code == "s[t % 32, k] = a[t]"


def test_jumps_are_explained_with_the_line_that_jumps(monkeypatch):
    monkeypatch.setattr(stage_counts, "_jumps_of", lambda launch, array: 3)
    row, hint = stage_counts.row_of_jumps(stage_named("m09"), stage_named("m09").prepare, "windows")
    assert row.unit == "jumps between reads of windows"
    assert "A jump is a read of a number that does not lie beside" in hint.advice
    assert "windows" in hint.lines[0].code


def test_a_layout_transform_with_too_many_sectors_is_named_by_its_line(monkeypatch):
    small = ConvProblem(1, 2, 6, 6, 2, 3, padding=1)
    monkeypatch.setattr(stage_counts, "MODEL", small)
    stage, row = stage_named("m09"), row_of(f"{TRANSFORMS}sectors stored", 9, 1)
    traces = stage_counts._traces.__wrapped__(stage)
    fewer = replace(traces[0], accesses=())
    monkeypatch.setattr(stage_counts, "_traces", lambda stage: (fewer, *traces[1:]))
    hint = stage_counts.hints_on(stage, stage.prepare, traces, [row])[feedback.MEMORY]
    assert "windows" in hint.advice or "input" in hint.advice
    assert hint.lines


def test_elements_that_several_threads_write_are_the_reason_and_not_memory_traffic(tmp_path):
    twice = """    for k in range(8):
        i = (cuda.threadIdx.x + k) % 64
        out[i] = a[i]
"""
    found = told_of(kernel_of(tmp_path, twice), each_once=True)
    assert found.result == feedback.COUNTS
    assert found.headline.startswith("The numbers are right here, but not there yet: several")
    assert "Each element of out is stored 8 times" in found.mistakes[0].advice


@pytest.mark.parametrize(
    ("value", "is_noted"),
    [("max(a[i], 0.0)", True), ("a[i] + 0.5 - 0.5", True), ("max(a[i], float32(0.0))", False)],
)
def test_a_constant_that_makes_a_kernel_compute_in_float64_is_noted(tmp_path, value, is_noted):
    found = told_of(kernel_of(tmp_path, f"    i = cuda.grid(1)\n    out[i] = {value}\n"))
    assert found.passed
    assert any("computes in float64" in note for note in found.notes) == is_noted


# What wrong launches share, and what was never written


def test_a_size_of_blocks_that_a_kernel_has_as_a_constant_is_told(tmp_path):
    body = """    i = cuda.blockIdx.x * 16 + cuda.threadIdx.x
    if i < a.size:
        out[i] = a[i]
"""
    on = [lessons.On(n, 16, (ones(16 * n),)) for n in (1, 2, 3)]
    on.append(lessons.On(12, 8, (ones(96),)))
    found = told_of(kernel_of(tmp_path, body), on=on)
    assert "the only one of the launches with blocks that do not have 16 threads." in str(found)


def test_stores_of_one_thread_again_and_again_are_not_said_to_be_of_several(tmp_path):
    body = """    i = cuda.grid(1)
    for k in range(8):
        out[i] = a[i] * (k + 1) / 8
"""
    kernel = kernel_of(tmp_path, body)
    counted = told_of(kernel, each_once=True)
    assert "stored 8 times by its thread, and only the last store counts" in str(counted)
    assert "several threads" not in str(counted)
    (note,) = told_of(kernel).notes
    assert "only the last store of its thread counts" in note


@pytest.mark.parametrize(
    ("part", "threads", "said"),
    [
        (np.s_[:, 3:], (8, 3), "columns of m from 3 on: does x count columns?"),
        (np.s_[4:], (4, 8), "rows of m from 4 on: does y count rows?"),
        (np.s_[:, 3:], (8, 6), "columns of m from 3 on."),
        (np.s_[4:], (5, 6), "rows of m from 4 on."),
        (np.s_[4:5], (4, 8), ""),
        (np.s_[:, :3], (8, 3), ""),
    ],
)
def test_rows_or_columns_that_no_thread_wrote_are_told(part, threads, said):
    """x and y are asked about if as many columns are written as there are threads down."""
    output = np.ones((6, 5), np.float32)
    output[part] = np.nan
    untouched = untouched_places(output, np.nan)
    told = unwritten_part("m", untouched, untouched, threads)
    assert said in told
    assert bool(said) == bool(told)
    assert ("cuda.grid(2)" in told) == said.endswith("?")
    elsewhere = untouched.copy()
    elsewhere[0, 0] = True
    assert unwritten_part("m", untouched, elsewhere, threads) == ""


def test_an_array_that_a_layout_transform_leaves_partly_unwritten_is_named(monkeypatch):
    def make_transform(problem):
        names = {}
        source = "from numba import cuda\n@cuda.jit\ndef nothing(input, windows):\n    pass\n"
        exec(compile(source, "nothing", "exec"), names)
        return names["nothing"]

    made = lessons.part_of("m09", make_transform=make_transform)
    stage = stage_named("m09")
    small = {name: launches.PROBLEMS[name] for name in ("a single pixel", "prime sizes")}
    monkeypatch.setattr(launches, "PROBLEMS", small)
    make = maker(made, stage)
    found = [answer for answer, *_ in checker.attempts(stage, make, 0, stage_checks.MODEL)]
    assert {answer.unwritten for answer in found} == {"windows"}
    told = checker.Check("k", "m09", tuple(found), (), ())
    assert "the array windows is filled with NaN" in told.advice


def test_problems_that_are_left_out_are_counted():
    said = stage_feedback._wrong_on
    assert said(1, 14, 16) == (
        "The answer is wrong on 1 of 14 problems, and 2 larger problems will follow when these "
        "are right."
    )
    assert said(12, 12, 13).startswith("The answer is wrong on all 12 problems, and 1 larger")
    assert said(2, 16, 16) == "The answer is wrong on 2 of 16 problems."
    assert said(3, 14, 16, stopped=4) == (
        "The answer is wrong on 3 of 14 problems, on 4 more the kernel could not go on to its end, "
        "and 2 larger problems will follow when these are right."
    )


# Lines


def test_lines_of_given_parts_say_so():
    assert str(Line(45, "x", "store of m10")) == "line 45 of store of m10 (a given part, not yours)"
    assert str(Line(7, "x", "", "this cell", "load")) == "line 7 of this cell, which calls load"


def test_a_finding_in_a_given_function_names_the_learner_s_call(tmp_path):
    (tmp_path / "given.py").write_text(
        "from numba import cuda\n@cuda.jit(device=True)\ndef fetch(a, i):\n    return a[i + 1]\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        file = tmp_path / "mine.py"
        file.write_text(
            "from numba import cuda\nfrom given import fetch\n@cuda.jit\ndef kernel(a, out):\n"
            "    i = cuda.grid(1)\n    out[i] = fetch(a, i)\n"
        )
        kernel = runpy.run_path(str(file))["kernel"]
        found = told_of(kernel)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("given", None)
    lines = [str(line) for line in found.mistakes[0].lines]
    assert lines[0] == "line 6, which calls fetch"
    assert found.mistakes[0].lines[1].code == "return a[i + 1]"


# How far a check is


def test_a_line_says_which_problem_comes_next(monkeypatch, capsys):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.progress_line() as line:
        line._shown_from = 0
        with progress.within("make_packing"):
            progress.say_progress("several images", 3, 16)
    assert "make_packing: problem 3 of 16: several images ..." in capsys.readouterr().err
    progress.say_progress("nothing is at work", 1, 2)
    assert capsys.readouterr().err == ""


def test_the_feedback_takes_the_place_of_the_line_in_a_notebook(monkeypatch):
    shown = []
    display = lambda data, **options: shown.append((data, options))  # noqa: E731
    monkeypatch.setitem(sys.modules, "IPython", Mock(get_ipython=lambda: Mock(kernel=object())))
    monkeypatch.setitem(sys.modules, "IPython.display", Mock(display=display))
    line = progress.ProgressLine(quiet_seconds=-1)
    line.step("a pixel", 1, 2)
    line.step("a row", 2, 2)
    Feedback("Passed.", display_id=line.display_id)._ipython_display_()
    options = [one for _, one in shown]
    assert [one["update"] for one in options] == [False, True, True]
    assert {one["display_id"] for one in options} == {line.display_id}
    assert shown[1][0] == {"text/plain": "problem 2 of 2: a row ..."}


def test_a_check_tells_each_problem_before_it_tries_it(monkeypatch):
    small = {name: launches.PROBLEMS[name] for name in ("a single pixel", "prime sizes")}
    monkeypatch.setattr(launches, "PROBLEMS", small)
    told = []
    on_problem = lambda *what: told.append(what)  # noqa: E731
    found = checker.check(stage_named("m01").prepare, "m01", on_problem=on_problem, model=SMALL)
    assert told == [("a single pixel", 1, 3), ("prime sizes", 2, 3), (checker.COUNTED, 3, 3)]
    assert found.planned == 3
    with pytest.raises(TypeError, match="on_problem is 3: it must be a function"):
        checker.check(stage_named("m01").prepare, "m01", on_problem=3)


SMALL = ConvProblem(1, 2, 4, 5, 3, 2)


def test_after_the_first_findings_problems_run_without_checks(monkeypatch):
    ways = []
    ran = checker._run

    def run(*arguments, strict):
        ways.append(strict)
        return ran(*arguments, strict=strict)

    monkeypatch.setattr(checker, "_run", run)
    names = ("prime sizes", "several images")
    monkeypatch.setattr(launches, "PROBLEMS", {name: launches.PROBLEMS[name] for name in names})

    def make_kernel(problem):
        made = {}
        source = "from numba import cuda\n@cuda.jit\ndef direct(input, weight, bias, output):\n"
        source += "    output[0, 0, 0, 0] = cuda.grid(1)\n"
        exec(compile(source, "raced", "exec"), made)
        return made["direct"]

    for first, expected in ((True, [True, False, False]), (False, [True, False] * 2)):
        ways.clear()
        found = checker.check(make_kernel, "m01", first_findings=first)
        assert ways == expected
        assert len(found.wrong) == 2


# Parts of a capstone


def capstone(tmp_path, *, empty):
    """The three functions of the plain im2win in one file, some of them empty."""
    text = Path(plain_im2win.__file__).read_text(encoding="utf-8")
    for name in empty:
        text = re.sub(
            rf'(def {name}\(problem.*?\) -> Any:\n    """.*?"""\n)(?s:.*?)(?=\n\n\n)',
            r"\1    raise NotImplementedError()",
            text,
        )
    file = tmp_path / f"capstone{len(empty)}.py"
    file.write_text(text)
    names = runpy.run_path(str(file))
    return [names[name] for name in ("make_transform", "make_packing", "make_kernel")]


def checked_parts(made):
    return lessons.check_im2win(
        *made,
        windows=windows_of,
        packed=packed_of,
        at_most=4,
    )


def windows_of(input, problem):
    kernel = plain_im2win.make_transform(problem)
    out = np.zeros(plain_im2win.windows_buffer(problem).shape, np.float32).reshape(-1)
    lessons.run(kernel, -(-out.size // 128), 128, input, out)
    return out


def packed_of(weight, problem, tile):
    out = np.zeros(plain_im2win.packed_buffer(problem, tile).shape, np.float32).reshape(-1)
    lessons.run(plain_im2win.make_packing(problem, tile), -(-out.size // 128), 128, weight, out)
    return out


def test_functions_that_are_filled_in_are_checked_while_others_are_empty(tmp_path, monkeypatch):
    few = {"prime sizes": launches.PROBLEMS["prime sizes"]}
    monkeypatch.setattr(problem_checks, "PROBLEMS", few)
    monkeypatch.setattr(problem_checks, "MODEL", SMALL)
    monkeypatch.setattr(problem_checks, "LAYOUT_TILES", (Tile(8, 4, 4, 4, 4),))
    found = checked_parts(capstone(tmp_path, empty=["make_packing", "make_kernel"]))
    assert found.result == feedback.UNFILLED
    assert not found.passed
    assert found.right[0].startswith("make_transform: the layout is what NumPy gives")
    assert found.todo == ("make_packing: not filled in yet", "make_kernel: not filled in yet")
    assert "  todo   make_kernel: not filled in yet" in str(found)
    everything = ["make_transform", "make_packing", "make_kernel"]
    nothing = checked_parts(capstone(tmp_path, empty=everything))
    assert nothing.reasons == (feedback.UNFILLED,)
    assert nothing.mistakes[0].lines[0].code == "raise NotImplementedError()"


def test_the_launches_that_were_counted_are_not_traced_again_for_hints(monkeypatch):
    """That took a third of the check of a slow kernel."""
    traced, trace_steps = [], checker.trace_steps

    def counted(plan, *arrays, **options):
        traced.append(plan)
        return trace_steps(plan, *arrays, **options)

    monkeypatch.setattr(checker, "trace_steps", counted)
    monkeypatch.setattr(stage_counts, "trace_steps", counted)
    stage = stage_named("m02")
    stage_counts._traces.cache_clear()
    checker.counts_of_stage.cache_clear()
    found = lessons.check(lambda problem: main_kernel(stage, problem), "m02", at_most=0.5)
    assert found.reasons == (feedback.COUNTS,)
    assert len(traced) == 3  # the learner's once; the stage's for the counts and for the hints


def main_kernel(stage, problem):
    return stage.prepare(problem, None).launches[-1].kernel
