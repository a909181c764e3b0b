"""What a learner has done in a folder of notebooks, and notebooks begun anew or brought up to date.

``progress.json`` beside the notebooks holds it: ``{"checks": {"05 slices": {"tries": 2, "began":
seconds, "passed": seconds or null}}, "hints": {"05": 1}}``, seconds since 1970.
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

from convlab.support.files import Amount, Count, document, record, write_whole
from convlab.support.files import read as read_file

FILE = "progress.json"
MARK = "# check {} {}"  # the first line of a learner's check: lesson and exercise
MARKED = re.compile(MARK.format(r"(\d+\w*)", r"(\w+)"))
TIP = re.compile(r"<details><summary>Tip:?\s*(.*?)</summary>\s*(.*?)\s*</details>", re.DOTALL)
ANSWERED = ("exercise", "hunt")
Notebook = dict[str, Any]


def number_of(lesson: str) -> str:
    """``00b`` of ``00b_small_kernels``."""
    return lesson.partition("_")[0]


class Check(TypedDict):
    """The tries of one check; times are seconds since 1970."""

    tries: Count
    began: Amount
    passed: Amount | None


class State(TypedDict):
    """What ``progress.json`` holds: checks by lesson and exercise, shown tips by lesson."""

    checks: dict[str, Check]
    hints: dict[str, Count]


def read(folder: Path) -> State:
    """What ``progress.json`` holds, empty without one. Raises ``OSError`` where it cannot be read,
    ``ValueError`` for another's file."""
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
    """Return the notebook that a file holds, with all that is in it. Raises ``ValueError`` naming a
    file that holds none."""
    try:
        made = document(content)
        record(made, _Notebook)
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not a notebook: {error}") from error
    return made  # type: ignore[no-any-return]  # a dictionary, as the record says


def write(folder: Path, state: State) -> None:
    """Write ``progress.json`` whole. Raises ``OSError`` where it cannot be written."""
    write_whole(folder / FILE, (json.dumps(state, indent=1) + "\n").encode())


def history() -> list[str]:
    """The notebook's cells that were run, the one that runs now last; elsewhere none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return list(shell.user_ns.get("In", ())) if shell is not None else []


def note(result: str) -> None:
    """Count the try of the notebook's cell that runs now, if it is a learner's check and its folder
    keeps a ``progress.json``. A file that cannot be read or written is left: no check fails by it.
    """
    marked = MARKED.match((history() or [""])[-1])
    here = Path()
    if marked is None or not (here / FILE).is_file():
        return
    with suppress(OSError, ValueError, KeyError, TypeError):
        state = read(here)
        new: Check = {"tries": 0, "began": round(time()), "passed": None}
        check = state["checks"].setdefault(" ".join(marked.groups()), new)
        if check["passed"] is None:
            check["tries"] += result != "unfilled"
            check["passed"] = round(time()) if result == "passed" else None
            write(here, state)


def row(lesson: str, notebook: Notebook, state: State) -> dict[str, Any]:
    """A lesson's row of ``convlab lessons --status``: checks passed, of how many, tries, hints, and
    the minutes from each check's first try to its pass, together."""
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
    """The tips of a notebook, in order: what each is about, and what it says."""
    return TIP.findall("\n".join(map(_text, notebook["cells"])))


def forget(state: State, lesson: str) -> None:
    """Take a lesson out of the state."""
    number = number_of(lesson)
    state["hints"].pop(number, None)
    checks = state["checks"].items()
    state["checks"] = {name: check for name, check in checks if name.split()[0] != number}


def given(name: str, text: str) -> dict[str, str]:
    """The mark in a cell's metadata: its lasting name, and a hash of the text as it was given."""
    return {"cell": name, "given": hashlib.sha256(text.strip().encode()).hexdigest()[:16]}


def updated(mine: Notebook, new: Notebook) -> Notebook:
    """The new release's notebook with the learner's answers and added cells. An answer that was
    changed takes the place of the new one; a cell that the learner added, or whose exercise is
    gone, comes after the same exercise or check as before."""
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
