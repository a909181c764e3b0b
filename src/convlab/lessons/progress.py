"""A learner's progress in a folder of notebooks, and notebooks that are reset or updated.

``progress.json`` beside the notebooks holds the progress: ``{"checks": {"05 slices": {"tries": 2,
"began": seconds, "passed": seconds or null}}, "hints": {"05": 1}}``, seconds since 1970.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any, TypedDict

from convlab.support.files import Amount, Count, document, record
from convlab.support.files import read as read_file
from convlab.support.whole_files import write_whole

FILE = "progress.json"
MARK = "# check {} {}"  # the first line of a learner's check: lesson and exercise
MARKED = re.compile(MARK.format(r"(\d+\w*)", r"(\w+)"))
TIP = re.compile(r"<details><summary>Tip:?\s*(.*?)</summary>\s*(.*?)\s*</details>", re.DOTALL)
ANSWERED = ("exercise", "hunt", "capstone")  # roles of cells that a check looks at
Notebook = dict[str, Any]


def number_of(lesson: str) -> str:
    """Return the number of a lesson: ``00b`` of ``00b_small_kernels``."""
    return lesson.partition("_")[0]


class CheckTries(TypedDict):
    """The tries of one check. Times are seconds since 1970."""

    tries: Count
    began: Amount
    passed: Amount | None


class State(TypedDict):
    """The content of ``progress.json``: checks by lesson and exercise, shown tips by lesson."""

    checks: dict[str, CheckTries]
    hints: dict[str, Count]


def read(folder: Path) -> State:
    """Return the content of ``progress.json``, or an empty one without the file. Raises ``OSError``
    if the file cannot be read, ``ValueError`` if it is another program's."""
    path = folder / FILE
    if not path.exists():
        return {"checks": {}, "hints": {}}
    try:
        return read_file(path, State)
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not a file of progress: {error}; delete it") from error


class _Given(TypedDict, total=False):
    cell: str


class _Metadata(TypedDict, total=False):
    convlab: _Given
    tags: list[str]


class _Cell(TypedDict):
    source: str | list[str]
    metadata: _Metadata


class _Notebook(TypedDict):
    cells: list[_Cell]


def notebook_of(path: Path, content: bytes) -> Notebook:
    """Return the notebook in a file, with all its keys. Raises ``ValueError`` naming a file that
    does not hold a notebook."""
    try:
        made = document(content)
        record(made, _Notebook)
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not a notebook: {error}") from error
    return made  # type: ignore[no-any-return]  # a dictionary, as the record says


def write(folder: Path, state: State) -> None:
    """Write ``progress.json`` whole. Raises ``OSError`` if that is not possible."""
    write_whole(folder / FILE, (json.dumps(state, indent=1) + "\n").encode())


def history() -> list[str]:
    """Return the cells of this notebook that have run, the present one last. Outside of a notebook
    there are none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return list(shell.user_ns.get("In", ())) if shell is not None else []


def note(result: str) -> None:
    """Count a try of the present cell if it is a learner's check in a folder with a
    ``progress.json``. If the file cannot be read or written, the check goes on without it.
    """
    marked = MARKED.match((history() or [""])[-1])
    here = Path()
    if marked is None or not (here / FILE).is_file():
        return
    with suppress(OSError, ValueError, KeyError, TypeError):
        state = read(here)
        new: CheckTries = {"tries": 0, "began": round(time()), "passed": None}
        check = state["checks"].setdefault(" ".join(marked.groups()), new)
        if check["passed"] is None:
            check["tries"] += result != "unfilled"
            check["passed"] = round(time()) if result == "passed" else None
            write(here, state)


def row(lesson: str, notebook: Notebook, state: State) -> dict[str, Any]:
    """Return a lesson's row of ``convlab lessons --status``.

    It has the numbers of passed checks, checks, tries and hints, and the sum of the minutes from
    each check's first try to its pass.
    """
    number = number_of(lesson)
    marks = [MARKED.match(_text(cell)) for cell in notebook["cells"]]
    names = [" ".join(mark.groups()) for mark in marks if mark]
    checks = [state["checks"][name] for name in names if name in state["checks"]]
    minutes = [(check["passed"] - check["began"]) / 60 for check in checks if check["passed"]]
    return {
        "lesson": lesson,
        "passed": len(minutes),
        "checks": len(names),
        "tries": sum(check["tries"] for check in checks),
        "hints": f"{state['hints'].get(number, 0)}/{len(tips(notebook))}",
        "minutes": round(sum(minutes)),
    }


def tips(notebook: Notebook) -> list[tuple[str, str]]:
    """Return the tips of a notebook in order: the title and the text of each."""
    return TIP.findall("\n".join(map(_text, notebook["cells"])))


def forget(state: State, lesson: str) -> None:
    """Remove a lesson from the state."""
    number = number_of(lesson)
    state["hints"].pop(number, None)
    checks = state["checks"].items()
    state["checks"] = {name: check for name, check in checks if name.split()[0] != number}


def given(name: str, text: str) -> dict[str, str]:
    """Return the mark in a cell's metadata: its lasting name, and a hash of its original text."""
    return {"cell": name, "given": hashlib.sha256(text.strip().encode()).hexdigest()[:16]}


def updated(mine: Notebook, new: Notebook) -> Notebook:
    """Return the new release's notebook with the learner's answers and added cells.

    A changed answer replaces the new one. A cell that the learner added, or whose exercise is gone,
    comes after the same exercise or check as before."""
    answers: dict[str, Any] = {}
    own: dict[str, list[Any]] = {}
    names = {_name(cell) for cell in new["cells"]}
    last = ""
    for cell in mine["cells"]:
        name = _name(cell)
        changed = given(name, _text(cell)) != cell["metadata"].get("convlab")
        answer = changed and [*cell["metadata"].get("tags", ()), ""][0] in ANSWERED
        if not name or (answer and (name not in names or name in answers)):
            own.setdefault(last, []).append(cell)
        elif answer:
            answers[name] = cell
        last = name if name in names else last
    cells = list(own.pop("", []))
    for cell in new["cells"]:
        name = _name(cell)
        if name in answers:
            kept = ("source", "outputs", "execution_count")
            cell = cell | {key: answers[name][key] for key in kept if key in answers[name]}
        cells += [cell, *own.get(name, [])]
    return new | {"cells": cells}


def _name(cell: dict[str, Any]) -> str:
    return str(cell["metadata"].get("convlab", {}).get("cell", ""))


def _text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])
