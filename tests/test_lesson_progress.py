"""A learner's work is kept; lessons begin anew and take releases without losing answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import lesson_paths
import pytest
from test_docs import keys, listed
from typer.testing import CliRunner

from convlab.commands.cli import app
from convlab.lessons import paths, progress, source

pytestmark = pytest.mark.same_in_cudasim

LESSON = "05_shared_memory.ipynb"


def run(*arguments: object, code: int = 0) -> str:
    found = CliRunner().invoke(app, ["lessons", *map(str, arguments)])
    assert found.exit_code == code, found.output
    return " ".join(found.output.split())


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    run(tmp_path, "--no-open")
    return tmp_path


def name_of(cell: dict) -> str:
    return cell["metadata"].get("convlab", {}).get("cell", cell["id"])


def cells(file: Path) -> dict[str, dict]:
    found = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return {name_of(cell): cell for cell in found}


def check(folder: Path, monkeypatch, mark: str, result: str) -> None:
    """A check's cell that runs in the folder's notebook."""
    shell = Mock(user_ns={"In": ["", f"{mark}\ncheck(make_kernel)"]})
    monkeypatch.setitem(sys.modules, "IPython", Mock(get_ipython=lambda: shell))
    monkeypatch.chdir(folder)
    progress.note(result)


def row(folder: Path, number: str) -> dict:
    run(folder, "--status", "--json", folder / "status.json")
    told = json.loads((folder / "status.json").read_text())
    assert set(listed("## `convlab lessons --status --json`")) == set(keys(told))
    return next(one for one in told["lessons"] if one["lesson"].startswith(number))


def test_tries_passes_and_hints_are_counted(mine, monkeypatch):
    checks = [cell for name, cell in cells(mine / LESSON).items() if name.startswith("check-")]
    mark = "".join(checks[0]["source"]).splitlines()[0]
    for result in ("unfilled", "answer", "counts", "passed", "answer"):
        check(mine, monkeypatch, mark, result)
    check(mine, monkeypatch, "# another cell", "passed")
    assert run(mine, "--hint", "00b").startswith("Tip 1 of")
    assert [row(mine, one)["hints"][:2] for one in ("00_", "00b", "05")] == ["0/", "1/", "0/"]
    assert run(mine, "--hint", "05").startswith("Tip 1 of")
    assert run(mine, "--hint", "05_shared_memory").startswith("Tip 2 of")
    found = row(mine, "05")
    assert (found["passed"], found["tries"], found["hints"][:2]) == (1, 3, "2/")
    assert found["checks"] == len(checks)
    run(mine, "--reset", "05")
    found = row(mine, "05")
    assert (found["passed"], found["tries"], found["hints"][:2]) == (0, 0, "0/")


def test_a_check_leaves_a_folder_or_file_that_is_not_ours(tmp_path, monkeypatch):
    check(tmp_path, monkeypatch, "# check 05 slices", "passed")
    assert not any(tmp_path.iterdir())
    (tmp_path / progress.FILE).write_text("[1")
    check(tmp_path, monkeypatch, "# check 05 slices", "passed")
    assert (tmp_path / progress.FILE).read_text() == "[1"
    assert run(tmp_path, "--status", code=2)
    (tmp_path / progress.FILE).write_text("{}")
    assert "delete it" in run(tmp_path, "--status", code=2)


def test_a_lesson_begins_anew_and_the_old_one_is_kept(mine):
    first = (mine / LESSON).read_text(encoding="utf-8")
    for number in ("", "2"):
        (mine / LESSON).write_text(f"mine{number}")
        run(mine, "--reset", "05")
        assert (mine / LESSON).read_text(encoding="utf-8") == first
        assert (mine / LESSON.replace(".ipynb", f".old{number}.ipynb")).read_text().startswith("m")


def test_a_newer_release_keeps_answers_and_own_cells(mine, monkeypatch):
    assert "nothing" in run(mine, "--update")
    exercise, hunt = (
        next(name for name in cells(mine / LESSON) if name.startswith(f"{role}-"))
        for role in ("exercise", "hunt")
    )
    notebook = json.loads((mine / LESSON).read_text(encoding="utf-8"))
    (answer,) = (cell for cell in notebook["cells"] if name_of(cell) == exercise)
    answer["source"] = "my answer"
    own = {"cell_type": "code", "id": "own", "metadata": {}, "source": "my cell", "outputs": []}
    notebook["cells"].append(own | {"execution_count": None})
    (mine / LESSON).write_text(json.dumps(notebook), encoding="utf-8")
    before = (mine / LESSON).read_bytes()
    copies = [
        (path, text.replace(b"# FILL ME IN", b"# FILL IN").replace(b"cuda.", b"cuda2."))
        for path, text in source.copies(mine)
    ]
    monkeypatch.setattr(source, "copies", lambda folder: copies)
    assert LESSON in run(mine, "--update")
    now = cells(mine / LESSON)
    assert now[exercise]["source"] == "my answer"
    assert now["own"]["source"] == "my cell"
    assert "cuda2." in "".join(now[hunt]["source"])  # it was as given, so it is the release's
    assert (mine / LESSON.replace(".ipynb", ".old.ipynb")).read_bytes() == before
    assert "nothing" in run(mine, "--update")


def test_an_answer_whose_exercise_is_gone_stays_as_a_cell(mine):
    notebook = json.loads((mine / LESSON).read_text(encoding="utf-8"))
    answer = next(cell for cell in notebook["cells"] if cell["metadata"].get("tags"))
    new = notebook | {"cells": [cell for cell in notebook["cells"] if cell is not answer]}
    tagged = answer | {"source": "mine", "metadata": answer["metadata"] | {"tags": ["exercise"]}}
    cells = [tagged if cell is answer else cell for cell in notebook["cells"]]
    assert tagged in progress.updated(notebook | {"cells": cells}, new)["cells"]


@pytest.mark.parametrize("number", ["5", "05", "005", "05_shared_memory", "05_shared_memory.ipynb"])
def test_a_lesson_s_number_may_lack_its_zeros(mine, number):
    tips = progress.tips(json.loads((mine / "05_shared_memory.ipynb").read_text(encoding="utf-8")))
    assert run(mine, "--hint", number).startswith(f"Tip 1 of {len(tips)}: {tips[0][0]}")
    assert "00b_small_kernels" in run(mine, "--reset", "0b")
    assert "00_start_here" in run(mine, "--reset", "0")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--reset", "99"), "lesson is '99': it must be one of 00"),
        (("--status", "--update"), "exclude each other"),
        (("--hint", "05", "--json", "-"), "--json has nothing to write with --hint"),
    ],
)
def test_what_cannot_be_done_is_refused(mine, options, said):
    assert said in run(mine, *options, code=2)
    assert "does not exist" in run(mine / "absent", "--status", code=2)


# Paths, and where a learner stands on them


def test_the_page_has_the_paths_and_lengths_that_are_counted(capsys):
    assert lesson_paths.main(["--check"]) == 0, capsys.readouterr().err


def test_words_and_lines_are_counted_without_links_and_comments():
    text = "Two [words](a/b.md) <b>and</b> three.\n"
    code = "### BEGIN SOLUTION: do it\n# a reason\nx = 1\n\ny = 2\n### END SOLUTION\n"
    hunt = source.Cell("code", "y = 3", "hunt", "fault", "y = 2")
    cells = (source.Cell("markdown", text), source.Cell("code", code, "exercise", "it"), hunt)
    found = paths.length([source.Lesson("01_x", cells)])
    assert found == paths.Length(words=4, lines=2, exercises=1, hunts=1)
    assert found.minutes == 15
    assert paths.Length(words=1700, lines=10, exercises=1, hunts=1).minutes == 50


def test_minutes_are_near_those_that_a_reader_estimated():
    estimates = json.loads(lesson_paths.SECONDS.read_text(encoding="utf-8"))["estimates"]
    found = {n: paths.length(map(source.read, source.sources([n]))).minutes for n in estimates}
    assert all(0.8 <= found[name] / estimates[name] <= 1.2 for name in estimates), found
    assert 0.95 <= sum(found.values()) / sum(estimates.values()) <= 1.05


def test_each_notebook_says_where_it_stands():
    whole = [path.stem for path in source.sources()]
    said = {path.stem: paths.place_of(source.read(path), whole) for path in source.sources()}
    assert "Lesson 3 of 5 on the short path and lesson 3 of" in said["01_direct"]
    assert "[04](04_implicit_gemm.ipynb) on the short path" in said["01_direct"]
    assert "; next: [01](01_direct.ipynb). " in said["00b_small_kernels"]  # on both paths
    assert "short path" not in said["05_shared_memory"]
    assert "next" not in said[whole[-1]]
    for name, line in said.items():
        for kind in ("", "solutions/"):
            text = (source.CHECKOUT / f"lessons/{kind}{name}.ipynb").read_text(encoding="utf-8")
            told = "".join(json.loads(text)["cells"][0]["source"])
            assert line.replace("](../", "](../../" if kind else "](../") in told


def test_a_notebook_shows_the_progress_that_the_command_counts(mine, monkeypatch):
    check(mine, monkeypatch, "# check 01 mapping", "passed")
    checks = [cell for name, cell in cells(mine / "01_direct.ipynb").items() if "check-" in name]
    check(mine, monkeypatch, "".join(checks[0]["source"]).splitlines()[0], "passed")
    monkeypatch.chdir(mine)
    found = paths.status("01_direct")
    assert repr(found).startswith(f"Checks passed: 1 of {len(checks)} in this lesson, 1 of ")
    assert list(found.rows) == paths.status_rows(mine)
    html = found._repr_html_()
    assert html.startswith("<details><summary>Checks passed: 1 of")
    assert html.count("<tr>") == 1 + len(found.rows)
    with pytest.raises(ValueError, match="lesson is '1': it must be one of 00_start_here"):
        paths.status("1")
    (mine / progress.FILE).write_text("[1")
    assert "delete it" in repr(paths.status("01_direct"))


def test_without_a_folder_of_one_s_own_it_is_said_how_progress_is_counted(tmp_path):
    found = paths.status("01_direct", tmp_path)
    assert "convlab lessons FOLDER" in repr(found)
    assert "<table>" not in found._repr_html_()
