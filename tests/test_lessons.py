"""The lessons: their checks, their notebooks' sources, the answers of learners, the command."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import nbformat
import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda.core import config
from test_docs import headings, keys, rows
from typer.testing import CliRunner

from convlab import ConvProblem, Tile, trace, trace_stage
from convlab.checking import checker
from convlab.cli import app
from convlab.commands import lessons as command
from convlab.kernels import im2col
from convlab.lessons import (
    On,
    answers,
    build,
    charts,
    check,
    check_im2col,
    check_kernel,
    column_of_windows,
    exercises,
    feedback,
    measured,
    measured_kernels,
    measured_memory,
    measured_sweep,
    one_request,
    one_thread,
    places,
    region_and_field,
    requests,
    side_by_side,
    traced,
    what_is_wrong,
    who_adds,
    who_does_what,
    windows_written_out,
    with_field,
    workspaces,
)  # fmt: skip
from convlab.lessons.feedback import PASSED, UNFILLED
from convlab.lessons.launching import numbered
from convlab.lessons.layouts import windows_seen
from convlab.lessons.maps import as_matrix, threads_on, tile_of_threads
from convlab.lessons.places import result
from convlab.lessons.requests import reads_for_a_product, reads_in_turn, thread_in_tile
from convlab.lessons.source import (
    LEARNER,
    NBGRADER,
    SOLUTION,
    STUB,
    Blank,
    Cell,
    cut,
    read,
    stage_code,
    stage_kernel,
    without_marks,
)  # fmt: skip
from convlab.stages import (
    s01_direct,
    s02_cin_naive,
    s04_implicit_gemm,
    s05_shared_memory,
    stage_named,
)
from convlab.workloads import paper_layer

ROOT = Path(__file__).parents[1]
SOURCES = build.sources()
NAMES = [path.stem for path in SOURCES]
LINK = re.compile(r"\]\(([^)\s]+)\)")
lesson_of = cache(read)
each_lesson = pytest.mark.parametrize("path", SOURCES, ids=NAMES)


@pytest.fixture(autouse=True)
def no_compilers(monkeypatch):
    """What is compiled depends on what is installed, and no result here may."""
    monkeypatch.setattr(checker, "compiled", lambda program, stages: None)


# Sources and notebooks


@each_lesson
def test_stored_notebooks_are_what_their_source_gives(path):
    assert build.stale(lesson_of(path)) == [], "python -m convlab.lessons.build writes them anew"


@each_lesson
@pytest.mark.parametrize("kind", [LEARNER, SOLUTION])
def test_stored_notebooks_have_their_outputs_and_pictures(path, kind):
    notebook = nbformat.read(build.place(path.stem, kind), as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    html = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    pictures = [text for text in html if "<img" in text]
    assert len(pictures) >= 3
    for picture in pictures:
        assert re.search(r'src="data:image/png;base64,[^"]{2000,}" alt="[^"]{20,}"', picture)
    checks = [cell for cell in code if "check" in cell.metadata.get("tags", ())]
    results = ["".join(cell.outputs[0].data["text/plain"]) for cell in checks]
    if kind == SOLUTION:
        assert all(result.startswith("Passed") for result in results)
    else:
        assert results[0].startswith("Not filled in yet")
        assert not any(result.startswith("Passed") for result in results)


@each_lesson
def test_a_lesson_has_all_its_parts(path):
    lesson = lesson_of(path)
    text = "\n".join(cell.text for cell in lesson.cells if cell.type == "markdown")
    assert text.startswith("# ")
    assert "<details><summary>Tip" in text
    assert re.search("^## Questions$", text, re.MULTILINE)
    assert re.search("^## Where to read on$", text, re.MULTILINE)
    assert {exercise.role for exercise in lesson.exercises()} == {"exercise", "hunt"}
    if path.stem[:2] != "00":
        assert "(000)" in text or "(001)" in text or "(002)" in text or "(003)" in text
        assert any("measured(" in cell.text for cell in lesson.cells if cell.type == "code")


@each_lesson
def test_solutions_only_add_lines_to_the_learner_s_cells(path):
    for exercise in lesson_of(path).exercises():
        if exercise.role != "exercise":
            continue
        solution = iter(exercise.of(SOLUTION).splitlines())
        comment = False
        for line in exercise.of(LEARNER).splitlines():
            comment = "# FILL ME IN" in line or (comment and line.strip().startswith("# "))
            if comment or line.strip() == STUB:
                continue
            assert line in solution, f"{exercise.name}: {line!r}"  # which goes on where it was


@each_lesson
def test_exercises_of_a_stage_are_the_stage_s_own_code(path):
    text = path.read_text(encoding="utf-8")
    for exercise in lesson_of(path).exercises():
        cell = text.split(f'{exercise.role}="{exercise.name}"')[1].split("# %%")[0]
        if (found := re.search(r'stage_kernel\(\s*"(\w+)"', cell)) is None:
            continue
        named = re.search(r'[^_]name="(\w+)"', cell)
        name = named[1] if named else "make_kernel"
        called = re.findall(r"def (\w+)\((?:problem|tile)", exercise.text)[-1]  # after its parts
        parts = re.search(r"parts=\((.*?)\)", cell)
        of = tuple(re.findall(r"\w+", parts[1])) if parts else ()
        own = stage_code(found[1], name, of).replace(f"def {name}(", f"def {called}(")
        assert without_marks(exercise.text) == own


@each_lesson
@pytest.mark.parametrize("kind", [LEARNER, SOLUTION])
def test_links_lead_somewhere(path, kind):
    where = build.place(path.stem, kind).parent
    notebook = build.notebook(lesson_of(path), kind)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = [link for link in LINK.findall(text) if "://" not in link]
    assert links
    for link in links:
        target, _, anchor = link.partition("#")
        assert (where / target).exists(), link
        assert not anchor or anchor in headings(where / target), link


@each_lesson
def test_tags_are_balanced(path):
    for cell in lesson_of(path).cells:
        for tag in ("details", "summary", "code"):
            assert cell.text.count(f"<{tag}>") == cell.text.count(f"</{tag}>")


@each_lesson
def test_notebooks_for_nbgrader_have_faults_solutions_and_points(path, tmp_path):
    assert build.main([path.stem, "--for-nbgrader", str(tmp_path)]) == 0
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
    assert cut(text) == stub
    assert without_marks(text) == f"a\n{inside}d"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: stage_kernel("s01", Blank("t", "no such line", "x")), "no such line"),
        (lambda: stage_kernel("s01", Blank("t", "range(", "x")), "3 lines hold"),
        (lambda: stage_kernel("s01", planted=[("float32", "x")]), "3 times"),
        (lambda: stage_kernel("s01", name="nobody"), "nobody"),
        (lambda: stage_kernel("s99"), "s99"),
        (lambda: build.sources(["99_nothing"]), "99_nothing"),
        (lambda: charts.stored("conv99"), "conv99"),
        (lambda: side_by_side({}, "nothing"), "nothing"),
    ],
)
def test_what_an_author_gets_wrong_is_said(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_a_cell_that_is_two_things_or_has_no_check_is_refused(tmp_path):
    file = tmp_path / "x.py"
    file.write_text('# %% exercise="a" hunt="b"\n1\n')
    with pytest.raises(ValueError, match="must be one thing"):
        read(file)
    file.write_text('# %% exercise="a"\n1\n')
    with pytest.raises(ValueError, match="check='a'"):
        read(file)


def test_a_stale_notebook_is_found(monkeypatch, tmp_path, capsys):
    lesson = lesson_of(SOURCES[0])
    old = nbformat.read(build.place(lesson.name, LEARNER), as_version=4)
    old.cells[0].source += " more"
    nbformat.write(old, tmp_path / "old.ipynb")
    places_of = {LEARNER: tmp_path / "old.ipynb", SOLUTION: tmp_path / "nowhere.ipynb"}
    monkeypatch.setattr(build, "place", lambda name, kind: places_of[kind])
    assert build.stale(lesson) == list(places_of.values())
    assert build.main([lesson.name, "--check"]) == 1
    assert "old.ipynb is not what its source gives" in capsys.readouterr().out


# What learners answer


@each_lesson
def test_every_exercise_has_five_wrong_answers_and_two_right_ones(path):
    told = answers.answers_of(path.stem)
    exercises_there = {exercise.name: exercise.role for exercise in lesson_of(path).exercises()}
    assert told.keys() == exercises_there.keys()
    for name, given in told.items():
        wrong = [answer for answer in given if answer.says != PASSED]
        assert len(wrong) >= 5, name
        assert len(given) - len(wrong) >= 2, name
        assert len({answer.what for answer in given}) == len(given), name
        is_hunt = exercises_there[name] == "hunt"
        assert [answer.what for answer in given].count(answers.GIVEN) == is_hunt, name


CASES = [
    pytest.param(path, exercise.name, answer, id=f"{path.stem[:2]}-{exercise.name}-{answer.what}")
    for path in SOURCES
    for exercise in lesson_of(path).exercises()
    for answer in (answers.given(UNFILLED), *answers.answers_of(path.stem)[exercise.name])
    if exercise.role == "exercise" or answer.says != UNFILLED
    # Checks run on the strict simulator anyway: in Numba's, that right answers pass will do.
    if not config.ENABLE_CUDASIM or answer.says == PASSED
]


@pytest.mark.answers
@pytest.mark.parametrize(("path", "name", "answer"), CASES)
def test_answers_are_checked_as_they_must_be(path, name, answer):
    lesson = lesson_of(path)
    (exercise,) = (one for one in lesson.exercises() if one.name == name)
    found = answers.checked(lesson, exercise, answer)
    assert found.ok, found.feedback
    (row,) = (
        row for row in rows("lessons/answers/README.md", f"## {lesson.name}")
        if row[:2] == [name, answer.what]
    )  # fmt: skip
    assert row[2] == (", ".join(found.feedback.reasons) or PASSED), "run convlab.lessons.answers"


def test_the_table_says_where_a_result_is_not_as_it_must_be(capsys, monkeypatch):
    lesson = lesson_of(SOURCES[0])
    exercise = lesson.exercises()[0]
    found = [answers.checked(lesson, exercise, answers.wrong("ours", "counts"))]
    assert "| ours | passed (NOT WHAT IT MUST) |" in answers.table(found)
    assert "NOT all checked" in answers.table(found)
    monkeypatch.setattr(answers, "results_of", lambda lesson: found)
    assert answers.main(["--check", lesson.name]) == 1
    assert "WRONG, must be counts" in capsys.readouterr().out
    assert answers.main(["nothing"]) == 2


def test_an_answer_whose_piece_is_gone_is_refused():
    with pytest.raises(ValueError, match="is there 0 times"):
        answers.wrong("x", "answer", ("not there", "")).of("text")


# Checks are kind


@pytest.mark.parametrize(
    "made",
    [
        None, 7, "text", print, np.add, lambda problem: None, lambda problem: 1 / 0,
        lambda: None, lambda problem: undefined,  # noqa: F821
    ],
)  # fmt: skip
def test_nothing_that_a_learner_hands_over_raises(made):
    found = check(made, "s01")
    assert found.result == "broken"
    assert not found.passed
    assert "Traceback" not in str(found)
    assert check_kernel(made, np.copy, []).result == "broken"


def test_an_unknown_stage_is_the_author_s_mistake():
    with pytest.raises(ValueError, match="s99"):
        check(s01_direct.make_kernel, "s99")


def test_an_unfilled_cell_is_told_without_running_it():
    def make_kernel(problem):
        # FILL ME IN
        raise NotImplementedError()

    found = check(make_kernel, "s01")
    assert found.result == UNFILLED
    (line,) = found.problems[0].lines
    assert line.code == STUB
    assert (
        line.number == test_an_unfilled_cell_is_told_without_running_it.__code__.co_firstlineno + 3
    )
    assert "Write your own lines" in str(found)
    assert "✘" not in found.as_html()


def test_a_race_is_told_with_both_lines_and_what_mends_it(tmp_path):
    source = (ROOT / "src/convlab/stages/s05_shared_memory.py").read_text(encoding="utf-8")
    barrier = "cuda.syncthreads()  # nobody fetches the next slice over what others still read"
    file = tmp_path / "mine.py"
    file.write_text(source.replace(barrier, "pass"), encoding="utf-8")
    there: dict = {"__name__": "mine"}
    exec(compile(file.read_text(), str(file), "exec"), there)
    found = check(there["make_kernel"], "s05")
    assert "shared race" in found.reasons
    codes = {line.code for problem in found.problems for line in problem.lines}
    assert any(code.startswith("total += S_F") for code in codes)
    assert any(code.startswith("S_F[e // K_B") for code in codes)
    assert "syncthreads" in str(found)


def test_wrong_outputs_come_with_a_picture():
    def make_kernel(problem):
        @cuda.jit
        def zeros(input, weight, bias, output):
            i = cuda.grid(1)
            if i < output.size:
                p = problem
                n, m, rest = i % p.W_o, i // p.W_o % p.H_o, i // (p.W_o * p.H_o)
                output[rest // p.C_o, rest % p.C_o, m, n] = float32(0)

        return zeros

    found = check(make_kernel, "s01")
    assert found.result == "answer"
    assert found.picture is not None
    assert found.picture.png.startswith(b"\x89PNG")
    assert "in red" in found.picture.alt


def test_float64_is_told_and_not_punished(monkeypatch):
    from convlab.checking.records import Machine

    monkeypatch.setattr(checker, "compiled", lambda *a: Machine(float64=("DFMA",)))
    found = check(s01_direct.make_kernel, "s01")
    assert found.passed
    assert any("float32(0)" in what for what in found.right)
    monkeypatch.setattr(checker, "compiled", lambda *a: Machine(error="no such function"))
    assert check(s01_direct.make_kernel, "s01").result == feedback.DOES_NOT_COMPILE


def test_where_nbgrader_grades_what_does_not_pass_raises(monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    with pytest.raises(AssertionError, match="Not yet"):
        check(None, "s01")
    assert check(s01_direct.make_kernel, "s01").passed
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    assert not check(None, "s01").passed


def test_what_a_checked_kernel_gets_is_its_own_copy():
    inputs = (np.ones(4, np.float32),)

    @cuda.jit
    def greedy(a, out):
        i = cuda.grid(1)
        a[i] = 0
        out[i] = 0

    found = check_kernel(greedy, np.zeros_like, [On(1, 4, inputs)])
    assert found.reasons == (exercises.INPUT,)
    assert inputs[0].all()


@cuda.jit
def shifted(a, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i + 1] if i + 1 < a.size else a[i]


@cuda.jit
def past_the_end(a, out):
    i = cuda.grid(1)
    out[i] = a[i]


def test_a_finding_shows_the_line():
    found = what_is_wrong(past_the_end, 1, 32, np.ones(8, np.float32), np.ones(8, np.float32))
    assert found.result == "out of bounds"
    assert found.problems[0].lines[0].code == "out[i] = a[i]"
    clean = what_is_wrong(shifted, 1, 8, np.ones(8, np.float32), np.ones(8, np.float32))
    assert clean.passed
    assert "nothing wrong" in clean.headline


# Pictures say what the trace says


PROBLEM = ConvProblem(1, 2, 6, 8, 4, 3, padding=1)


def test_the_map_of_threads_is_the_kernel_s():
    launch = trace_stage("s01", PROBLEM).main
    threads = threads_on(launch, "output")
    assert threads.reshape(-1).tolist() == list(range(PROBLEM.M * PROBLEM.N))
    assert "threads 0-47" in who_does_what(launch).alt
    assert "threads 48-95" in who_does_what(launch, plane=(0, 1)).alt


def test_a_thread_s_picture_counts_what_it_touches():
    launch = trace_stage("s01", PROBLEM).main
    assert "reads 8 of input, reads 18 of weight, writes 1 of output" in one_thread(launch, 0).alt
    assert "reads 18 of input, reads 18 of weight" in one_thread(launch, 9).alt


@pytest.mark.parametrize("number", [0, 3, 9])
def test_a_request_s_picture_has_the_trace_s_sectors(number):
    launch = trace_stage("s01", PROBLEM).main
    loads = [one for one in launch.requests if (one.array, one.operation) == ("input", "load")]
    picture = one_request(launch, "input", number=number)
    assert f"lie in {loads[number].sectors} sectors" in picture.alt
    with pytest.raises(ValueError, match="the block has"):
        one_request(launch, "input", number=len(loads))
    with pytest.raises(ValueError, match="the launch touches"):
        one_request(launch, "nothing")


def test_a_request_of_shared_memory_has_the_trace_s_passes():
    launch = trace_stage("s05", PROBLEM).main
    (first,) = [one for one in launch.requests if (one.array, one.operation) == ("S_I", "load")][:1]
    assert f"{first.passes} wavefront" in one_request(launch, "S_I").alt


@pytest.mark.parametrize("array", ["S_F", "S_I"])
@pytest.mark.parametrize("operation", ["load", "store"])
def test_wide_requests_of_shared_memory_have_the_trace_s_passes(array, operation):
    launch = trace_stage("s08", PROBLEM).main
    for one in launch.requests:
        if (one.array, one.operation) != (array, operation):
            continue
        passes = requests._served(launch, one)[1]
        assert len(passes) == one.passes
        served = {lane for words in passes for lanes in words.values() for lane in lanes}
        assert served == {*one.lanes}
        banks = [[word % 32 for word in words] for words in passes]
        assert all(len(set(row)) == len(row) for row in banks)


def test_bars_say_what_was_counted_and_measured():
    launch = trace_stage("s01", PROBLEM).main
    picture = side_by_side({"s01": launch}, "requests to global memory")
    assert f"{launch.total('requests'):,}" in picture.alt
    stored = {entry["name"]: entry["time_ms"] for entry in charts.stored()["stages"]}
    picture = measured("s01", "s05")
    assert f"s05 {stored['s05_shared_memory']:.3g} ms" in picture.alt
    assert "H200" in picture.caption


def test_a_stage_that_was_not_measured_is_said(monkeypatch):
    document = dict(charts.stored())
    document["stages"] = [one for one in document["stages"] if "s05" not in one["name"]]
    monkeypatch.setattr(charts, "stored", lambda layer="conv9": document)
    picture = measured("s01", "s05")
    assert "Not measured on this layer yet: s05." in picture.caption
    assert "s05" not in picture.alt
    with pytest.raises(ValueError, match="s05: none was measured on conv9"):
        measured("s05")


def parts_of(stage: str, layer: str = "conv9") -> tuple[float, float]:
    """Milliseconds of the pre-passes and of the main kernel."""
    (entry,) = (one for one in charts.stored(layer)["stages"] if one["name"].startswith(stage))
    *before, main = entry["launch_ms"].values()
    return sum(before), main


def test_what_the_lessons_say_of_the_h200_is_what_was_measured():
    time = {entry["name"].split("_")[0]: entry["time_ms"] for entry in charts.stored()["stages"]}
    assert time["s04"] > 2 * time["s05"]  # 05: far faster than s04,
    assert time["s05"] > 0.95 * time["s01"]  # and not faster than s01
    assert time["s06"] < time["s05"] / 1.5  # s06: there the gain comes
    assert time["s06"] < time["s01"] / 1.2  # 06: for the first time since s04, less than s01
    assert time["s07"] < time["s06"] / 1.2  # 07: clearly less time than s06,
    assert time["s07"] < time["s01"] / 2  # and less than half of s01's
    assert time["s08"] < time["s07"] / 1.1  # 08: again less time
    assert time["s01"] < 10 * time["s11"]  # 01: a respectable start
    assert time["s08"] / 2 < time["s09"] < time["s08"] / 1.1  # 09: clearly faster, not twice
    assert time["s10"] > max(time["s04"], 5 * time["s09"])  # 10: slower, and many times slower
    transform, main = parts_of("s10")
    assert transform < main / 5  # the smallest part
    assert parts_of("s11")[1] < 0.85 * parts_of("s09")[1]  # 11: the main kernel is far ahead,
    assert parts_of("s09")[0] < parts_of("s11")[0] / 5  # packing the filter is next to nothing
    gain = {one: parts_of("s09", one)[1] / parts_of("s11", one)[1] for one in ("conv9", "conv7")}
    assert gain["conv9"] - 1 > 2 * (gain["conv7"] - 1)  # on three channels it gains much less
    assert time["s11"] < time["s09"]
    assert time["s04"] / time["s07"] > 3 * time["s07"] / time["s11"]  # 14: most of the gain
    blas = sum(parts_of("s03_im2col_blas"))
    assert sum(parts_of("s11")) < blas < 3.5 * sum(parts_of("s11"))  # 15: ahead, by less
    assert time["s01"] < 155 / 5 * time["s11"]  # far less than 155 times


def test_what_lesson_13_says_of_the_h200_is_what_was_measured():
    time = {entry["name"].split("_")[0]: entry["time_ms"] for entry in charts.stored()["stages"]}
    assert 0.7 < time["s13"] / time["s12"] < 0.8  # about a quarter less time
    bench = result("bench_h200")
    machine = bench["machine"]
    assert machine["tf32_flops"] > 4 * machine["fp32_flops"]  # several times the arithmetic
    row = {(row["layer"], row["system"]): row for row in bench["rows"]}
    reached = row["conv9", "s13_tensor_cores"]["tflops"] * 1e12
    assert reached < 0.6 * machine["tf32_flops"] / 3  # still far from its own roof
    ahead = {
        layer
        for layer, system in row
        if system == "s13_tensor_cores"
        and row[layer, "s12_fused_im2win"]["time_ms"] < row[layer, system]["time_ms"]
    }
    assert ahead == {"conv7"}  # there s12 stays ahead
    assert paper_layer("conv7").K == 27  # a sum of only 27 terms
    assert all(paper_layer(layer).K > 100 for layer, _ in row if layer not in ahead)


def test_what_lesson_02_says_of_the_h200_is_what_was_measured():
    time = {entry["name"]: entry["time_ms"] for entry in charts.stored()["stages"]}
    least = min(time[name] for name in ("s02_cin_naive", "s02_cin", "s02_cout"))
    assert least > 0.9 * time["s01_direct"]  # none of them is a step forward
    points = [p for p in result("channel_sweeps_h200")["points"] if p["sweep"] == "kernel_size"]
    wins = {
        name: [
            point["value"]
            for point in points
            if point["stages"][name]["time_ms"] < point["stages"]["s01_direct"]["time_ms"]
        ]
        for name in ("s02_cin", "s02_cout")
    }
    assert wins == {"s02_cin": [31, 64], "s02_cout": [9, 15, 31, 64]}


def test_what_lesson_03_says_of_the_h200_is_what_was_measured():
    entries = {entry["name"]: entry for entry in charts.stored()["stages"]}
    time = {name: entry["time_ms"] for name, entry in entries.items()}
    parts = {name: entry["launch_ms"] for name, entry in entries.items()}
    assert time["s03_im2col"] < time["s01_direct"] / 2  # much faster than s01
    assert time["s03_im2col_per_image"] > 3 * time["s03_im2col"]  # image by image it is slow
    shown = ("s01_direct", "s03_im2col", "s03_im2col_per_image", "s11_im2win_full")
    assert min(shown, key=time.__getitem__) == "s11_im2win_full"  # the fastest of them
    assert parts["s03_im2col"]["im2col"] > time["s03_im2col"] / 5  # a good part of the time
    assert parts["s03_im2col_blas"]["blas"] < parts["s03_im2col"]["matrix_product"]  # faster at it
    assert parts["s03_depth_last"]["im2col_by_runs"] < parts["s03_im2col"]["im2col"]  # less time
    (layer,) = [one for one in result("memory")["layers"] if one["layer"] == "conv9"]
    taken = layer["measured_bytes"]
    assert taken["s03_im2col"] > 3 * layer["tensor_bytes"]  # several times as much memory
    assert taken["s03_im2col_per_image"] < layer["tensor_bytes"] / 10  # hardly any


def test_what_lesson_04_says_of_the_h200_is_what_was_measured():
    time = {entry["name"].split("_")[0]: entry["time_ms"] for entry in charts.stored()["stages"]}
    assert time["s04"] > 2.5 * time["s01"]  # several times slower than s01
    lost, left = time["s04"] - time["s01"], time["s05"] - time["s01"]
    assert left < lost / 3  # s05 makes up for most of it
    layer = ConvProblem(1, 2, 8, 32, 8, 3, padding=1)
    ours, before = (trace_stage(stage, layer).main for stage in ("s04", "s01"))
    for count in ("requests", "sectors"):  # it asks for as much as s01
        assert ours.total(count) == before.total(count)


@pytest.mark.parametrize("stage", [s01_direct, s04_implicit_gemm])
def test_a_kernel_tells_which_windows_it_sees(stage):
    problem = ConvProblem(2, 2, 5, 6, 3, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2))
    seen = windows_seen(stage.make_kernel, stage.STAGE.name, problem)
    assert np.array_equal(seen, in_numpy(numbered(problem), problem))


def test_a_column_of_windows_is_found_in_the_input():
    problem = ConvProblem(1, 2, 5, 6, 8, 3, padding=1)
    made = s04_implicit_gemm.make_kernel
    picture = column_of_windows(made, "s04", problem, column=6)
    assert "18 terms, 6 of them padding, the others in 12 pixels" in picture.alt
    with pytest.raises(ValueError, match="columns 0 to 29"):
        column_of_windows(made, "s04", problem, column=30)


def test_threads_of_every_channel_add_to_an_output():
    launch = trace_stage("s02_cin_naive", PROBLEM).main
    picture = who_adds(launch, PROBLEM)
    assert "2 grids of 6 x 8 threads" in picture.alt
    assert "2 threads add" in picture.alt
    assert "requests" not in picture.caption
    atomic = side_by_side({"s02": launch}, "atomic additions")
    assert f"s02 {launch.of('output')[0].requests}" in atomic.alt


def test_a_block_s_field_is_its_region_and_a_rim():
    problem = ConvProblem(1, 1, 12, 40, 1, 5)
    picture = region_and_field(trace_stage("s02_cin", problem).main, problem)
    assert "fetches 12 x 36 pixels of an input channel and computes 8 x 32" in picture.alt


def test_the_im2col_matrix_is_drawn_as_the_kernel_writes_it():
    picture = windows_written_out(ConvProblem(1, 2, 3, 4, 1, 2), column=4)
    assert "2 channels of 3 x 4 numbered pixels" in picture.alt
    assert "matrix of 8 rows and 6 columns" in picture.alt
    assert "24 pixels became 48 numbers; a pixel is there up to 4 times" in picture.caption
    assert "output pixel 4 (row 1, column 1)" in picture.caption


def in_numpy(input, problem):
    there: dict = {}
    lesson = lesson_of(build.sources(["03_im2col"])[0])
    for cell in lesson.cells:
        if cell.role == "setup":
            exec(cell.text, there)
    return there["im2col_in_numpy"](input, problem)


def test_the_stages_im2col_passes_and_nothing_that_is_handed_over_raises():
    assert check_im2col(im2col.make_im2col, in_numpy).passed
    for made in (None, 7, print, lambda *sizes: None, lambda *sizes: 1 / 0, lambda: None):
        found = check_im2col(made, in_numpy)
        assert found.result == "broken"
        assert "Traceback" not in str(found)


def test_a_wrong_im2col_is_told_the_problem():
    def make_im2col(problem, WIDTH, BY_IMAGE):
        @cuda.jit
        def zeros(input, columns):
            e = cuda.grid(1)
            if e < columns.size:
                columns[e] = float32(0)

        return zeros

    found = check_im2col(make_im2col, in_numpy)
    assert found.result == "answer"
    assert "On 'a single pixel' (" in found.problems[0].what
    assert "the kernel wrote 0, wanted is 1." in found.problems[0].what


def test_a_kernel_for_a_field_is_made_from_the_problem_alone():
    made = with_field(s02_cin_naive.make_kernel)
    assert check(made, "s02_cin_naive").passed
    ours = trace_stage("s02_cin_naive", PROBLEM).main
    assert traced(made, "s02_cin_naive", PROBLEM).accesses == ours.accesses
    assert check(with_field(None), "s02_cin_naive").result == "broken"

    def unfilled(problem, field):
        raise NotImplementedError()

    assert check(with_field(unfilled), "s02_cin_naive").result == UNFILLED


def test_what_else_was_measured_is_shown_as_stored():
    parts = {one["name"]: one["launch_ms"] for one in charts.stored()["stages"]}["s03_im2col"]
    picture = measured_kernels("s03_im2col")
    assert f"im2col {parts['im2col']:.3g} ms" in picture.caption
    (layer,) = [one for one in result("memory")["layers"] if one["layer"] == "conv9"]
    taken = layer["measured_bytes"]["s03_im2col"] / 2**20
    assert f"s03_im2col {taken:,.0f} MiB" in measured_memory("s03_im2col").caption
    sweep = measured_sweep("kernel_size", "s02_cin")
    point = next(p for p in result("channel_sweeps_h200")["points"] if p["sweep"] == "kernel_size")
    times = {name: one["time_ms"] for name, one in point["stages"].items()}
    assert f"s02_cin: {times['s01_direct'] / times['s02_cin']:.2f} at {point['value']}" in sweep.alt
    for wrong in (
        lambda: measured_sweep("nothing", "s02_cin"), lambda: measured_memory("s01"),
        lambda: measured_sweep("size", "s12"),
        lambda: workspaces("s12"), lambda: workspaces("s10", layers=("conv0",)),
        lambda: measured_memory("s03_im2col", layer="conv0"),
        lambda: measured_kernels("s02_cin", layer="conv12"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="measured"):
            wrong()


def test_what_the_lessons_say_of_the_measured_tiles():
    tile = {n: stage_named(n).production_tile(paper_layer("Conv9")) for n in ("s05", "s06")}
    assert tile["s06"].M_B > tile["s05"].M_B  # 06: the tile measured for s06 is larger
    assert tile["s06"].N_B > tile["s05"].N_B


def test_a_tile_s_pictures_are_the_kernel_s():
    tile = Tile(M_B=4, N_B=32, K_B=4, M_T=2, N_T=2)
    launch = trace_stage("s07", PROBLEM, tile).main
    threads = as_matrix(threads_on(launch, "output"), PROBLEM)
    assert threads[:, :32].max() == tile.threads - 1
    assert set(threads[:, 32:].flat) == {-1}
    assert "in 2 of the rows and 2 of the columns" in tile_of_threads(launch, PROBLEM, 5).alt
    assert "4 reads from shared memory: 2 numbers" in thread_in_tile(launch, PROBLEM, 5).alt
    assert "F F I I F F" in reads_in_turn({"s07": launch}).alt
    assert reads_for_a_product(launch) == 1


def test_a_tile_s_pictures_know_of_runs_of_four():
    launch = trace_stage("s08", PROBLEM, Tile(M_B=16, N_B=16, K_B=4, M_T=4, N_T=4)).main
    picture = thread_in_tile(launch, PROBLEM, 1)
    assert "2 reads from shared memory, each of which brings 4 numbers: 4" in picture.alt
    assert "transposed" in picture.caption
    assert "F4 I4 F4" in reads_in_turn({"s08": launch}).alt
    assert reads_for_a_product(launch) == 2 / 16


def test_a_learner_s_kernel_is_traced_in_the_stage_s_place():
    ours = trace_stage("s05", PROBLEM).main
    theirs = traced(s05_shared_memory.make_kernel, "s05", PROBLEM)
    assert theirs.accesses == ours.accesses


def test_pictures_and_feedback_show_themselves_in_notebooks(monkeypatch):
    shown = []
    display = "IPython.display.display"
    monkeypatch.setattr(display, lambda what, **more: shown.append((what, more)))
    picture = who_does_what(trace(shifted, 1, 8, np.ones(8), np.ones(8)).main, "out")
    picture._ipython_display_()
    (bundle, _), (caption, _) = shown
    assert base64.b64encode(picture.png).decode() in bundle["text/html"]
    assert f'alt="{picture.alt}"' in bundle["text/html"]
    assert bundle["text/plain"] == picture.alt
    assert picture.caption in caption.data
    shown.clear()
    check(None, "s01")._ipython_display_()
    assert shown[0][0].keys() == {"text/html", "text/plain"}


# The command


def run(*arguments: object) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["lessons", *map(str, arguments)])
    return found.exit_code, found.stdout, found.stderr


def test_notebooks_are_copied_and_nobody_s_work_is_touched(tmp_path):
    folder = tmp_path / "new/mine"
    code, said, _ = run(folder, "--no-open")
    assert code == 0
    assert f"Copied {2 * len(NAMES)} notebooks" in said
    work = folder / f"{NAMES[0]}.ipynb"
    work.write_text("my work")
    (folder / f"{NAMES[1]}.ipynb").unlink()
    code, said, _ = run(folder, "--no-open", "--json", tmp_path / "told.json")
    assert "Copied 1 notebook to" in said
    assert f"Kept {2 * len(NAMES) - 1} notebooks" in said
    assert work.read_text() == "my work"
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["written"] == [f"{NAMES[1]}.ipynb"]
    listed = [row[0].strip("`") for row in rows("docs/json.md", "## `convlab lessons --json`")]
    assert set(listed) == set(keys(told))


def test_links_of_copies_lead_to_the_checkout(tmp_path):
    run(tmp_path, "--no-open")
    for copy in (*tmp_path.glob("*.ipynb"), *tmp_path.glob("solutions/*.ipynb")):
        notebook = nbformat.read(copy, as_version=4)
        nbformat.validate(notebook)
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        for link in LINK.findall(text):
            assert "://" in link or (copy.parent / link.partition("#")[0]).exists(), link


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    code, _, said = run(tmp_path / "file", "--no-open")
    assert code == 2
    assert "give a folder" in said


def test_without_jupyterlab_nothing_is_copied_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(command.util, "find_spec", lambda name: None)
    code, _, said = run(tmp_path / "mine")
    assert code == 2
    assert "make lessons installs it" in said
    assert not (tmp_path / "mine").exists()


def test_jupyterlab_is_opened_on_the_first_lesson(tmp_path, monkeypatch):
    started = []

    class Process:
        waits = 0

        def __init__(self, words):
            started.append(words)

        def wait(self):
            Process.waits += 1
            if Process.waits == 1:
                raise KeyboardInterrupt
            return 0

    monkeypatch.setattr(command.subprocess, "Popen", Process)
    code, _, _ = run(tmp_path)
    assert code == 0
    assert Process.waits == 2
    ((_, *module, root, first),) = started
    assert module[:2] == ["-m", "jupyterlab"]
    assert root == f"--ServerApp.root_dir={tmp_path.resolve()}"
    assert Path(first) == tmp_path.resolve() / "00_start_here.ipynb"


def test_an_installed_package_has_the_notebooks_and_results(tmp_path, monkeypatch):
    packed = tmp_path / "convlab/lessons"
    (packed / "notebooks/solutions").mkdir(parents=True)
    (packed / "results").mkdir()
    one = build.place(NAMES[0], LEARNER)
    (packed / "notebooks" / one.name).write_bytes(one.read_bytes())
    monkeypatch.setattr(places, "PACKAGE", packed)
    monkeypatch.setattr(places, "CHECKOUT", tmp_path)
    assert places.results() == packed / "results"
    run(tmp_path / "mine", "--no-open")
    text = (tmp_path / "mine" / one.name).read_text(encoding="utf-8")
    assert "../docs/" not in text
    (packed / "results").rmdir()
    with pytest.raises(FileNotFoundError, match="install convlab again"):
        places.results()
    with pytest.raises(ValueError, match="checkout"):
        build.sources()


def test_the_wheel_has_the_notebooks_and_results(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in NAMES:
        assert f"convlab/lessons/notebooks/{name}.ipynb" in names
        assert f"convlab/lessons/notebooks/solutions/{name}.ipynb" in names
    assert "convlab/lessons/results/ladder_conv9_h200.json" in names
    assert "convlab/lessons/exercises.py" in names
    assert "convlab/py.typed" in names  # type checkers read the annotations


def test_a_cell_of_a_role_has_a_name():
    for path in SOURCES:
        for cell in lesson_of(path).cells:
            assert isinstance(cell, Cell)
            assert cell.role in ("", "setup", "exercise", "hunt", "check")
            assert cell.name or not cell.role


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("out = a + 10", "single elements"),
        ("out[cuda.threadIdx] = a[0]", "three numbers"),
        ("out[0] = a[cuda.threadIdx < 3]", "three numbers"),
        ("i = cuda.threadidx.x", "is cuda.threadIdx meant?"),
        ("out[:] = np.add(a, 10)", "no operations on whole arrays"),
        ("out[:] = [one + 10 for one in a]", "takes one number"),
        ("i = threadIdx.x", "cuda.threadIdx.x"),
    ],
)
def test_beginners_mistakes_get_the_line_and_a_hint(line, said):
    text = f"@cuda.jit\ndef add_ten_to_all(a, out):\n    {line}\n"
    lesson = lesson_of(SOURCES[0])
    found = answers._checked(lesson, lesson.exercises()[0], text)
    assert found.result == "broken"
    (problem,) = found.problems
    assert problem.lines[0].code == line
    assert said in problem.what + problem.advice
