"""The lessons: their checks, their notebooks' sources, the answers of learners, the command."""

from __future__ import annotations

import _thread
import json
import re
import runpy
import signal
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import build_notebooks
import check_answers
import nbformat
import numpy as np
import pytest
from numba import cuda
from numba.cuda.core import config
from test_docs import headings, keys, listed
from test_lesson_progress import run

from convlab import ConvProblem, lessons
from convlab.checking import checker, launches
from convlab.checking.outcome import CompiledKernel
from convlab.commands import lessons as command
from convlab.ladder.gradients import g01_direct_gradients
from convlab.ladder.main import m01_direct
from convlab.lessons import (
    compiling,
    exercises,
    feedback,
    limits,
    problem_checks,
    source,
    stage_checks,
    stage_counts,
    timing,
)  # fmt: skip
from convlab.lessons.feedback import PASSED, UNFILLED
from convlab.lessons.source import LEARNER, NBGRADER, SOLUTION, STUB, place, read
from convlab.running.engines import unavailable
from convlab.support.installing import how_to_install

ROOT = Path(__file__).parents[1]
SOURCES = source.sources()
NAMES = [path.stem for path in SOURCES]
LINK = re.compile(r"\]\(([^)\s]+)\)")
lesson_of = cache(read)
same = pytest.mark.same_in_cudasim


def each_lesson(test):
    """For each lesson; what is stored is the same on every engine."""
    return same(pytest.mark.parametrize("path", SOURCES, ids=NAMES)(test))


@pytest.fixture(autouse=True)
def no_compilers(monkeypatch):
    """Compile nothing: that depends on what is installed, and no result here may."""
    monkeypatch.setattr(checker, "compiled", lambda program, stages: None)
    monkeypatch.setattr(compiling, "compiled_alone", lambda kernel, types: None)


@pytest.fixture
def quick(monkeypatch):
    """Checks on a single problem, which is also what is counted."""
    small = ConvProblem(1, 2, 4, 5, 3, 2)
    for module in launches, problem_checks:
        monkeypatch.setattr(module, "PROBLEMS", {"small": small})
    monkeypatch.setattr(launches, "FOR_SOME", {})  # larger ones
    for module in exercises, problem_checks, stage_checks, stage_counts:
        monkeypatch.setattr(module, "MODEL", small)


def short(path: Path) -> str:
    return path.stem.split("_")[0]


def markdown_of(notebook) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


# Sources and notebooks


@each_lesson
@pytest.mark.parametrize("kind", [LEARNER, SOLUTION])
def test_stored_notebooks_are_what_their_source_gives_with_outputs_and_pictures(path, kind):
    """That these are today's outputs, and none an error, is test_lesson_notebooks.py's."""
    notebook = nbformat.read(place(path.stem, kind), as_version=4)
    stored, cells = (
        [(one.id, one.cell_type, one.source, one.metadata.get("nbgrader")) for one in made.cells]
        for made in (notebook, build_notebooks.notebook(lesson_of(path), kind))
    )
    assert stored == cells, "python tests/tools/build_notebooks.py writes them anew"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    html = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    # An SVG of eight boxes has 1,400 bytes, an empty sheet 600.
    pictures = re.findall(r'src="data:image/[^"]+;base64,[^"]{1000,}" alt="[^"]{20,}"', html)
    assert len(pictures) == html.count("<img") >= 3
    checks = [cell for cell in code if "check" in cell.metadata.get("tags", ())]
    results = ["".join(cell.outputs[0].data["text/plain"]) for cell in checks]
    assert {result.startswith("Passed") for result in results} == {kind == SOLUTION}
    unfilled = [result for result in results if result.startswith("Not filled in yet")]
    assert kind == SOLUTION or unfilled  # lesson 17 begins with a hunt


@same
def test_texts_are_built_anew_beside_the_outputs_of_unchanged_code(tmp_path):
    lesson, path = lesson_of(SOURCES[0]), place(NAMES[0], LEARNER)
    made, stored = build_notebooks.notebook(lesson, LEARNER), nbformat.read(path, as_version=4)
    assert build_notebooks.with_stored_outputs(made, path)
    assert made.cells == stored.cells
    other = build_notebooks.notebook(lesson, LEARNER)
    next(cell for cell in other.cells if cell.cell_type == "code").source += "\n"
    assert not build_notebooks.with_stored_outputs(other, path)
    assert not build_notebooks.with_stored_outputs(other, tmp_path / "absent.ipynb")
    assert not any(cell.get("outputs") for cell in other.cells)


@each_lesson
def test_a_lesson_has_all_its_parts_its_aim_and_time_first_and_no_long_cell(path):
    lesson = lesson_of(path)
    texts = [cell.text for cell in lesson.cells if cell.type == "markdown"]
    text = "\n".join(texts)
    for part in ("^# ", "<details><summary>Tip", "^## Questions$", "^## Where to read on$"):
        assert re.search(part, text, re.MULTILINE), part
    roles = {exercise.role for exercise in lesson.exercises()}
    assert {"exercise", "hunt"} <= roles <= {"exercise", "hunt", "capstone"}
    for tag in ("details", "summary", "code"):
        assert text.count(f"<{tag}>") == text.count(f"</{tag}>")
    aim = texts[0].split("\n\n")[1].replace("\n", " ")
    assert aim.startswith("**You will be able to** ")
    assert not re.search(r"\bIt takes\b.* hours?\.", aim), "the builder counts minutes"
    assert max(len(text.split()) for text in texts) <= 200


TERMS = (
    "coalescing", "latency", "warp divergence", "bank conflict",
    "arithmetic intensity", "occupancy",
)  # fmt: skip


@same
@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_defined_where_it_is_first_used(term):
    text = " ".join(cell.text for path in SOURCES for cell in lesson_of(path).cells)
    first = re.search(rf"\S*{term}\S*", " ".join(text.split()), re.IGNORECASE)
    assert first is not None, term
    assert first[0].startswith(f"**{term}**")


def _lines(code: str) -> int:
    return len(re.findall(r"^ *[^ #\n]", code, re.MULTILINE))


@same
def test_no_exercise_is_more_than_twice_the_one_before():
    """A learner's lines are compared with the exercise before, cells with the longest before."""
    before, longest = 3, 6
    for path in SOURCES:
        for exercise in lesson_of(path).exercises():
            if exercise.role == "exercise":
                whole = _lines(exercise.solution)
                blank = whole - _lines(exercise.of(LEARNER).replace(STUB, ""))
                assert 0 < blank <= 2 * before, f"{path.stem}: {exercise.name}"
                assert whole <= 2 * longest, f"{path.stem}: {exercise.name}"
                before, longest = blank, max(longest, whole)


MOST_LINES = 60  # of a cell
LATER = {"12": 64, "13": 94}  # lessons that a beginner reads last


@each_lesson
def test_no_cell_is_too_long_to_read(path):
    """The solution of a capstone is the learner's own, and its cell begins empty."""
    for cell in lesson_of(path).cells:
        kinds = (LEARNER,) if cell.role == "capstone" else (LEARNER, SOLUTION)
        if cell.type == "code":
            longest = max(_lines(cell.of(kind)) for kind in kinds)
            assert longest <= LATER.get(short(path), MOST_LINES), cell.name


@each_lesson
def test_solutions_only_add_lines_to_the_learner_s_cells(path):
    for exercise in lesson_of(path).exercises():
        if exercise.role == "hunt":
            continue
        solution = iter(exercise.of(SOLUTION).splitlines())
        comment = False
        for line in exercise.of(LEARNER).splitlines():
            comment = "# FILL ME IN" in line or (comment and line.strip().startswith("# "))
            if comment or line.strip() == STUB:
                continue
            assert line in solution, f"{exercise.name}: {line!r}"  # which goes on where it was


@each_lesson
@pytest.mark.parametrize("kind", [LEARNER, SOLUTION])
def test_links_lead_somewhere(path, kind):
    where = place(path.stem, kind).parent
    notebook = build_notebooks.notebook(lesson_of(path), kind)
    links = [link for link in LINK.findall(markdown_of(notebook)) if "://" not in link]
    assert links
    for link in links:
        target, _, anchor = link.partition("#")
        assert (where / target).exists(), link
        assert not anchor or anchor in headings(where / target), link


@each_lesson
def test_notebooks_for_nbgrader_have_faults_solutions_and_points(path, tmp_path):
    assert build_notebooks.main([path.stem, "--for-nbgrader", str(tmp_path)]) == 0
    made = nbformat.read(tmp_path / f"source/{path.stem}/{path.stem}.ipynb", as_version=4)
    nbformat.validate(made)
    graded = [cell.metadata.nbgrader for cell in made.cells if "nbgrader" in cell.metadata]
    assert len({one["grade_id"] for one in graded}) == len(graded) >= 2
    assert {one["schema_version"] for one in graded} == {3}
    solutions = [cell for cell in made.cells if cell.metadata.get("nbgrader", {}).get("solution")]
    assert all("### BEGIN SOLUTION" in cell.source for cell in solutions)
    for exercise in lesson_of(path).exercises():
        if exercise.role == "hunt":
            assert exercise.of(NBGRADER) == exercise.of(LEARNER) != exercise.of(SOLUTION)


def test_a_stub_says_how_many_lines_there_are_and_what_they_do():
    inside = "    # why\n    b = 1\n\n    c = 2\n"
    text = f"a\n    ### BEGIN SOLUTION: add\n{inside}    ### END SOLUTION\nd"
    stub = f"a\n    # FILL ME IN (about 2 lines): add\n    {STUB}\nd"
    cell = source.Cell("code", text, "exercise")
    assert cell.of(LEARNER) == stub
    assert cell.solution == f"a\n{inside}d"


def lesson_in(file, text):
    file.write_text(f"# %% {text}")
    return read(file)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda _: source.stage_kernel("m01", source.Blank("t", "no such", "x")), "no such"),
        (lambda _: source.stage_kernel("m01", source.Blank("t", "range(", "x")), "3 lines hold"),
        (lambda _: source.stage_kernel("m01", planted=[("float32", "x")]), "3 times"),
        (lambda _: source.stage_kernel("m01", name="nobody"), "nobody"),
        (lambda _: source.stage_kernel("s99"), "s99"),
        (lambda _: source.stage_kernel("m03", hidden=["nobody"]), "nobody"),
        (lambda _: source.stage_part("m03", "nobody"), "it has load_filter, load_windows"),
        (lambda _: lessons.check(m01_direct.make_kernel, "s99"), "s99"),
        (
            lambda _: check_answers.wrong("x", "y", ("gone", "")).of(source.Cell("code", "t")),
            "gone",
        ),
        (lambda file: lesson_in(file, 'exercise="a" hunt="b"\n1\n'), "must be one thing"),
        (lambda file: lesson_in(file, 'exercise="a"\n1\n'), "check='a'"),
    ],
)
def test_what_an_author_gets_wrong_is_said(tmp_path, call, said):
    with pytest.raises(ValueError, match=said):
        call(tmp_path / "x.py")


@pytest.mark.parametrize("main", [build_notebooks.main, check_answers.main])
def test_a_lesson_that_there_is_not_is_refused(main, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["99_nothing"])
    assert ended.value.code == 2
    assert "lesson is '99_nothing'" in capsys.readouterr().err


# What learners answer


@each_lesson
def test_every_exercise_has_twelve_wrong_answers_and_three_right_ones(path):
    told = check_answers.answers_of(lesson_of(path))
    roles = {exercise.name: exercise.role for exercise in lesson_of(path).exercises()}
    assert told.keys() == roles.keys()
    for name, given in told.items():
        whats, says = {answer.what for answer in given}, [answer.says for answer in given]
        assert sum(said not in (PASSED, UNFILLED) for said in says) >= 12, name
        assert says.count(PASSED) >= 3, name
        assert len(whats) == len(given), name
        assert check_answers.GIVEN in whats, name
        assert (UNFILLED in says) == (roles[name] != "hunt"), name


CASES = [
    pytest.param(path, exercise, answer, id=f"{short(path)}-{exercise.name}-{answer.what}")
    for path in SOURCES
    for exercise in lesson_of(path).exercises()
    for answer in check_answers.answers_of(lesson_of(path))[exercise.name]
    # Checks run on the strict simulator anyway: in Numba's, that right answers pass will do.
    if not config.ENABLE_CUDASIM or answer.says == PASSED
]


@pytest.mark.answers
@pytest.mark.parametrize(("path", "exercise", "answer"), CASES)
def test_answers_are_checked_as_they_must_be(path, exercise, answer):
    found = check_answers.checked(lesson_of(path), exercise, answer)
    assert found.ok, found.feedback


@same
def test_the_table_has_every_stored_answer_with_what_its_check_must_say():
    """The test above holds that the check says so."""
    stored = check_answers.rows_in((ROOT / check_answers.PAGE).read_text(encoding="utf-8"))
    expected = {path.stem: check_answers.expected_rows(lesson_of(path)) for path in SOURCES}
    assert stored == expected, "run tests/tools/check_answers.py --table"


def test_the_table_says_where_a_result_is_not_as_it_must_be(capsys, monkeypatch, tmp_path):
    lesson = lesson_of(SOURCES[0])
    (first, second, *_), ours = lesson.exercises(), check_answers.wrong("ours", "counts")
    stored = (ROOT / check_answers.PAGE).read_text(encoding="utf-8")
    before = check_answers.rows_in(stored)
    assert check_answers.table(before) == stored
    given = {one.name: [ours] for one in lesson.exercises()}
    monkeypatch.setattr(check_answers, "answers_of", lambda lesson: given)
    page = tmp_path / "page.md"
    page.write_text(stored, encoding="utf-8")
    monkeypatch.setattr(check_answers, "CHECKOUT", tmp_path)
    monkeypatch.setattr(check_answers, "PAGE", page.name)
    assert check_answers.main([lesson.name, "--exercise", first.name]) == 1
    assert "WRONG, must be counts" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert f"| {first.name} | ours | passed (NOT WHAT IT MUST) |" in text
    assert "NOT all were checked" in text
    rows = check_answers.rows_in(text)
    assert [*rows] == [*before]
    kept = [row for row in before[lesson.name] if row[0] != first.name]
    assert rows[lesson.name] == [(first.name, "ours", "passed (NOT WHAT IT MUST)"), *kept]
    assert any(row[0] == second.name for row in kept)


# Checks are kind


@pytest.mark.parametrize(
    "made",
    [
        None, 7, "text", print, np.add, lambda problem: None, lambda problem: 1 / 0,
        lambda: None, lambda problem: undefined,  # noqa: F821
    ],
)  # fmt: skip
def test_nothing_that_a_learner_hands_over_raises(quick, made):
    matrix = lambda input, problem: np.zeros((problem.K, problem.N))  # noqa: E731
    for found in (
        lessons.check(made, "m01"),
        lessons.check_kernel(made, np.copy, []),
        lessons.check_one_warp(made),
        lessons.check(lessons.with_field(made), "c01_input_channels"),
        lessons.check_im2col(made, matrix),
        lessons.check_gradient(made, "input"),
        lessons.check_accuracy(made, "t03"),
    ):
        assert found.result == "broken"
        assert not found.passed
        assert "Traceback" not in str(found)
    cases = lessons.gpus((2.0, 1.0))
    assert lessons.check_function(made, lessons.pretended, cases).result in ("broken", "answer")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda a: a, "shape (2, 3, 1); wanted is an array of shape (3, 2, 1)"),
        (lambda a: None, "is None; wanted"),
        (lambda a: a.swapaxes(0, 1) * [[[6.0], [6.0]]], "has 6 at [0, 0, 0], where 2 is wanted"),
    ],
)
def test_a_wrong_array_is_told_by_its_shape_or_first_wrong_place(made, said):
    ones = np.ones((2, 3, 1))
    found = lessons.check_function(made, lambda a: 2 * a.swapaxes(0, 1), [(ones,)])
    assert said in str(found)


@pytest.mark.parametrize("of", ["input", "weight"])
def test_b01_passes_as_the_gradient_that_it_computes_alone(quick, of):
    made = getattr(g01_direct_gradients, f"make_{of}_kernel")
    assert lessons.check_gradient(made, of).passed
    assert not lessons.check_gradient(made, "weight" if of == "input" else "input").passed


def first_exercise(name):
    lesson = lesson_of(*source.sources([name]))
    return lesson, lesson.exercises()[0]


def told(name, says):
    """The feedback on the first answer to a lesson's exercises that must get that reason."""
    lesson, _ = first_exercise(name)
    given = check_answers.answers_of(lesson)
    exercise, answer = next(
        (exercise, one)
        for exercise in lesson.exercises()
        for one in given[exercise.name]
        if one.says == says
    )
    return check_answers.checked(lesson, exercise, answer).feedback


def told_of_change(name, old, new):
    """The feedback on our solution of a lesson's first exercise, with a change."""
    lesson, exercise = first_exercise(name)
    return check_answers.feedback_on(lesson, exercise, exercise.solution.replace(old, new))


def test_a_race_is_told_with_both_lines_and_what_mends_it(quick):
    found = told("05_shared_memory", "shared race")
    codes = {line.code for mistake in found.mistakes for line in mistake.lines}
    assert any(code.startswith("total += S_F") for code in codes)
    assert any(code.startswith("S_F[e // K_B") for code in codes)
    assert "put cuda.syncthreads()" in str(found).lower()


def test_what_is_wrong_with_an_im2col_is_told_of_the_first_problem():
    what = told("03_im2col", "answer").mistakes[0].what
    assert re.search("On '.*' (.*): .*: the kernel wrote .*, wanted is", what)


def kernel_in(folder, lines):
    """A kernel of these lines, in a file of its own."""
    file = folder / "cell.py"
    file.write_text(f"from numba import cuda\n@cuda.jit\ndef kernel(a, out):\n{lines}")
    return runpy.run_path(str(file))["kernel"]


def test_a_finding_shows_the_line_wherever_the_cell_s_file_is(tmp_path):
    kernel = kernel_in(tmp_path, "    i = cuda.grid(1)\n    out[i] = a[i]\n")
    found = lessons.what_is_wrong(kernel, 1, 32, np.ones(8), np.ones(8))
    assert found.result == "out of bounds"
    assert found.mistakes[0].lines[0].code == "out[i] = a[i]"


@cuda.jit
def writes_nothing(input, weight, bias, output):
    pass


def test_wrong_outputs_come_with_a_picture(quick):
    found = lessons.check(writes_nothing, "m01")
    assert found.result == "answer"
    assert found.picture is not None
    assert found.picture.data.startswith(b"<svg")
    assert "in red" in found.picture.alt
    assert "NaN before the launch: nothing was written there" in found.mistakes[0].advice


@cuda.jit
def copy_in_eights(numbers, out):
    out[cuda.blockIdx.x * 8 + cuda.threadIdx.x] = numbers[cuda.blockIdx.x * 8 + cuda.threadIdx.x]


def test_a_wrong_answer_is_told_with_its_launch_and_the_kernel_s_arrays():
    launches = [lessons.On(2, block, (np.arange(2.0 * block),)) for block in (8, 12)]
    what = lessons.check_kernel(copy_in_eights, np.copy, launches).mistakes[0].what
    assert what.startswith("With grid 2 and block 12 the answer is wrong in 4 of 24 places")
    assert "nothing, or NaN, was written there" in what
    assert "numbers 18 19 20" in what


def test_float64_is_told_and_not_punished(quick, monkeypatch):
    monkeypatch.setattr(checker, "compiled", lambda *a: CompiledKernel(float64=("DFMA",)))
    found = lessons.check(m01_direct.make_kernel, "m01")
    assert found.passed
    assert any("float32(0)" in what for what in found.notes)
    monkeypatch.setattr(checker, "compiled", lambda *a: CompiledKernel(error="no such function"))
    assert lessons.check(m01_direct.make_kernel, "m01").result == feedback.DOES_NOT_COMPILE


@pytest.mark.skipif(config.ENABLE_CUDASIM, reason="Numba's simulator knows no types")
@pytest.mark.parametrize(("zero", "said"), [("float32(0)", False), ("0.0", True)])
def test_float64_is_told_where_no_compiler_is_installed(zero, said, monkeypatch):
    monkeypatch.setattr("numba.cuda.cudadrv.nvvm.NVVM", Mock(side_effect=OSError("no compiler")))
    found = told_of_change("01_direct", "pixel = float32(0)", f"pixel = {zero}")
    assert found.passed
    assert any("float64" in what for what in found.notes) == said


def test_where_nbgrader_grades_what_does_not_pass_raises(quick, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    with pytest.raises(AssertionError, match="Not yet"):
        lessons.check(None, "m01")
    assert lessons.check(m01_direct.make_kernel, "m01").passed
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    assert not lessons.check(None, "m01").passed


# A learner's own kernel timed


def test_without_a_gpu_it_is_said_what_would_be_timed(capsys, monkeypatch):
    monkeypatch.setattr(timing, "choose", lambda: Mock(is_gpu=False))
    assert lessons.time_mine(m01_direct.make_kernel, "m01") is None
    said = capsys.readouterr().out
    assert "no GPU here" in said
    assert re.search(r"On an NVIDIA H200 m01 takes [\d.]+ ms", said)
    with pytest.raises(ValueError, match="kernel is 7"):
        lessons.time_mine(7, "m01")


@pytest.mark.parametrize("right", [True, False])
def test_a_learner_s_kernel_is_timed_in_the_stage_s_place_where_it_is_right(
    right, monkeypatch, capsys
):
    ours, problem = m01_direct.STAGE, ConvProblem(1, 2, 4, 5, 3, 2)

    def ran(problem, stages, engine, tensors):
        stage, mine = stages
        assert mine.prepare(problem, None).launches[-1].kernel is writes_nothing
        assert stage.prepare(problem, None).launches[-1].kernel is not writes_nothing
        yield Mock(ok=True, time_ms=2.0)
        yield Mock(ok=right, time_ms=3.0, error="4 of 5 are wrong")

    monkeypatch.setattr(timing, "choose", lambda: Mock(is_gpu=True, device="GPU"))
    monkeypatch.setattr(timing.ladder, "run", ran)
    absent = Mock(on_gpu=True, precision="fp32", why_absent=lambda: "not installed")
    there = Mock(on_gpu=True, precision="fp32", why_absent=lambda: None, title="Lib")
    monkeypatch.setattr(timing, "BASELINES", (absent, there))
    monkeypatch.setattr(timing, "_library_ms", lambda ready: 1.0)
    picture = lessons.time_mine(writes_nothing, ours.name, problem)
    assert "m01 2 ms" in picture.alt
    assert "Lib 1 ms" in picture.alt
    assert ("yours 3 ms" in picture.alt) == right
    assert ("yours is not timed: 4 of 5 are wrong" in capsys.readouterr().out) != right
    there.prepare.return_value.close.assert_called_once()


@pytest.mark.gpu
@pytest.mark.skipif(unavailable("gpu") is not None, reason="times are taken on a GPU")
def test_a_learner_s_kernel_is_timed_on_this_gpu():
    picture = lessons.time_mine(m01_direct.make_kernel, "m01", ConvProblem(2, 8, 16, 16, 8, 3))
    assert re.search(r"m01 [\d.]+ ms; yours [\d.]+ ms", picture.alt)


# The command


@same
def test_notebooks_are_copied_and_nobody_s_work_is_touched(tmp_path):
    folder = tmp_path / "new/mine"
    assert f"Copied {2 * len(NAMES)} notebooks" in run(folder, "--no-open")
    for copy in (*folder.glob("*.ipynb"), *folder.glob("solutions/*.ipynb")):
        for link in LINK.findall(markdown_of(nbformat.read(copy, as_version=4))):
            assert "://" in link or (copy.parent / link.partition("#")[0]).exists(), link
    work = folder / f"{NAMES[0]}.ipynb"
    work.write_text("my work")
    (folder / f"{NAMES[1]}.ipynb").unlink()
    said = run(folder, "--no-open", "--json", tmp_path / "told.json")
    assert "Copied 1 notebook to" in said
    assert f"Kept {2 * len(NAMES) - 1} notebooks" in said
    assert work.read_text() == "my work"
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["written"] == [f"{NAMES[1]}.ipynb"]
    assert set(listed("## `convlab lessons --json`")) == set(keys(told))


@same
def test_what_cannot_be_copied_to_or_opened_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert "give a folder" in run(tmp_path / "file", "--no-open", code=2)
    monkeypatch.setattr(command.util, "find_spec", lambda name: None)
    said = run(tmp_path / "mine", code=2)
    assert f"run {how_to_install('lessons', 'make lessons')};" in said
    assert not (tmp_path / "mine").exists()


@same
def test_jupyterlab_is_opened_on_the_first_lesson(tmp_path, monkeypatch):
    process = Mock()
    process.return_value.wait.side_effect = [KeyboardInterrupt, 0]
    monkeypatch.setattr(command.subprocess, "Popen", process)
    run(tmp_path)
    assert process.return_value.wait.call_count == 2
    ((((_, *module, root, first),), _),) = process.call_args_list
    assert module[:2] == ["-m", "jupyterlab"]
    assert root == f"--ServerApp.root_dir={tmp_path.resolve()}"
    assert first == "--LabApp.default_url=/lab/tree/00_start_here.ipynb"


@same
def test_an_installed_package_has_the_notebooks_and_results(tmp_path, monkeypatch):
    packed = tmp_path / "convlab/lessons"
    (packed / "notebooks/solutions").mkdir(parents=True)
    (packed / "results").mkdir()
    one = place(NAMES[0], LEARNER)
    (packed / "notebooks" / one.name).write_bytes(one.read_bytes())
    monkeypatch.setattr(source, "PACKAGE", packed)
    monkeypatch.setattr("convlab.support.installing.CHECKOUT", tmp_path)
    assert source.folder_of("docs/results", "results") == packed / "results"
    run(tmp_path / "mine", "--no-open")
    text = (tmp_path / "mine" / one.name).read_text(encoding="utf-8")
    assert "../docs/" not in text
    (packed / "results").rmdir()
    with pytest.raises(FileNotFoundError, match="install convlab again"):
        source.folder_of("docs/results", "results")
    with pytest.raises(ValueError, match="checkout"):
        source.sources()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("out = a + 10", "single elements"),
        ("out[cuda.threadIdx] = a[0]", "three numbers"),
        ("out[0] = a[cuda.threadIdx < 3]", "three numbers"),
        ("i = cuda.threadidx.x", "is cuda.threadIdx meant?"),
        ("out[:] = np.add(a, 10)", "no operations on whole arrays"),
        ("out[:] = [one + 10 for one in a]", "makes a list"),
        ("i = threadIdx.x", "cuda.threadIdx.x"),
    ],
)
def test_beginners_mistakes_get_the_line_and_a_hint(line, said):
    text = f"@cuda.jit\ndef add_ten_to_all(a, out):\n    {line}\n"
    lesson = lesson_of(SOURCES[0])
    found = check_answers.feedback_on(lesson, lesson.exercises()[0], text)
    assert found.result in ("broken", feedback.REFUSED)
    (mistake,) = found.mistakes
    assert mistake.lines[0].code == line
    assert said in mistake.what + mistake.advice


# What launches show, and what a learner is told of it


WHOLE = """from convlab.ladder.main.m01_direct import make_kernel as own
def make_kernel(problem):
    return own(problem)"""


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (WHOLE.replace("(problem):", "(problem)"), "SyntaxError: expected ':'."),
        ("undefined\n" + WHOLE, "It raised an error"),
        (WHOLE, None),
        ("def another(problem):\n    return 1 +", None),
    ],
)
def test_a_cell_that_failed_is_no_longer_checked_as_it_was(quick, monkeypatch, last, said):
    there = {"In": [WHOLE, last]}  # as if IPython had run them; what fails defines nothing
    shell = Mock(user_ns=there)
    monkeypatch.setitem(sys.modules, "IPython", Mock(get_ipython=lambda: shell))
    for cell in there["In"]:
        with suppress(SyntaxError, NameError):
            check_answers._run(cell, there)
    found = lessons.check(there["make_kernel"], "m01")
    assert found.passed == (said is None)
    assert said is None or said in found.mistakes[0].what


def test_a_loop_without_an_end_is_named_soon(tmp_path):
    endless = "    while cuda.grid(1) < a.size:\n        out[0] = out[0] + a[0]\n"
    kernel = kernel_in(tmp_path, endless)
    lessons.run(
        kernel, 1, 32, np.ones(0), np.ones(8)
    )  # the loop ends; types are inferred only once
    with pytest.raises(limits.Stopped) as stopped, limits.running(seconds=1):
        lessons.run(kernel, 1, 32, np.ones(8), np.ones(8))
    (said,) = stopped.value.args
    assert said.mistakes[0].lines[0].code == "while cuda.grid(1) < a.size:"
    assert stopped.value._render_traceback_() == str(said).splitlines()  # none of convlab's lines


def test_who_stops_a_check_is_told_so_without_a_traceback():
    @limits.graded
    def check():
        _thread.interrupt_main()
        for _ in range(10**9):
            pass

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        assert check().headline == "Stopped."
    finally:
        signal.signal(signal.SIGINT, before)


def test_prints_of_thousands_of_threads_are_a_few_lines(capsys):
    with limits.limited():
        for number in range(10_000):
            print(number)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == limits.PRINTED + 1
    assert lines[-1] == f"... and {10_000 - limits.PRINTED:,} more lines, which are not shown"


def test_a_finding_without_an_answer_does_not_say_that_the_answer_is_right():
    one_mistake = [feedback.Mistake("out of bounds", "x")]
    assert feedback.with_mistakes(one_mistake).headline == feedback.NO_ANSWER
    assert feedback.with_mistakes(one_mistake, ("right",)).headline == feedback.ON_A_GPU


def test_the_smallest_problem_that_fails_is_shown():
    found = told("01_direct", "answer")
    assert "The smallest of them is 'padding wider than the image'" in found.mistakes[0].what
    found = told_of_change("01_direct", "o_h * s_h", "o_h")  # right where the stride is 1
    assert "The smallest of them is 'everything at once'" in found.mistakes[0].what
    assert found.picture is not None
    assert "Input, expected and got" in found.picture.alt


BARRIER = "cuda.syncthreads()"
# In these places a warp's barrier is right, and lessons/answers has it as a right answer: after the
# first only neighbours of one warp read what each other stored, and the second's block is one warp.
RIGHT_WITH_SYNCWARP = {("00b_small_kernels", "largest", 0), ("17_find_two_bugs", "difference", 0)}
BARRIERS = [
    pytest.param(path, exercise, part, to, id=f"{short(path)}-{exercise.name}-{part}-{to}")
    for path in SOURCES
    for exercise in lesson_of(path).exercises()
    for part in range(exercise.solution.count(BARRIER))
    for to in ("cuda.syncwarp()", "pass")
    if to == "pass" or (path.stem, exercise.name, part) not in RIGHT_WITH_SYNCWARP
]


@pytest.mark.answers
@pytest.mark.parametrize(("path", "exercise", "part", "to"), BARRIERS)
def test_a_barrier_that_is_missing_is_one_finding(path, exercise, part, to):
    """This holds for every exercise: launches have several warps, blocks and slices, and where they
    have one warp a warp's barrier is right."""
    pieces = exercise.solution.split(BARRIER)
    pieces[part : part + 2] = [pieces[part] + to + pieces[part + 1]]
    found = check_answers.feedback_on(lesson_of(path), exercise, BARRIER.join(pieces))
    races = [mistake for mistake in found.mistakes if mistake.reason == "shared race"]
    assert len(races) == 1, found
    assert not races[0].lines[0].library
