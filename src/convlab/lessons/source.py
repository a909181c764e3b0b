"""The lessons' files: their places, and the cells of a source, from which notebooks are made.

``lessons/source/NN_name.py`` is in jupytext's percent format. Cells of code may be marked:

- ``# %% setup=true``: names that every later cell needs.
- ``# %% exercise="name"``: a cell to fill in. The learner's notebook leaves out the lines between
  ``### BEGIN SOLUTION: task`` and ``### END SOLUTION`` (nbgrader's marks).
- ``# %% hunt="name"``: a kernel with a planted fault, which the learner fixes. The lines between
  ``### BEGIN SOLUTION`` and ``### PLANTED`` are right; those from there to ``### END SOLUTION``,
  after ``#:``, are the learner's.
- ``# %% capstone="name"``: an exercise of which the learner is given hardly a line.
- ``# %% check="name"``: checks the exercise, hunt or capstone of that name.

In such cells ``stage_kernel(...)`` stands for the code of a stage, ``stage_part(...)`` for a part
of it and ``whole_functions(...)`` for functions of a file, so that lessons and stages cannot drift.
"""

from __future__ import annotations

import ast
import json
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from convlab.lessons.parts import part_code, stage_code
from convlab.lessons.progress import ANSWERED
from convlab.lessons.stage_sources import COLUMNS
from convlab.support.installing import CHECKOUT, in_checkout
from convlab.support.values import counted

PACKAGE = Path(__file__).parent
LEARNER, SOLUTION, NBGRADER = "learner", "solution", "nbgrader"  # the kinds of notebooks


def folder_of(name: str, packed: str) -> Path:
    """Return the folder ``name`` of the checkout, else ``packed`` of the package. Raises
    ``FileNotFoundError`` if the installation has neither."""
    found = CHECKOUT / name if in_checkout() else PACKAGE / packed
    if not found.is_dir():
        raise FileNotFoundError(f"there is no folder {str(found)!r}: install convlab again")
    return found


def sources(names: Sequence[str] = ()) -> list[Path]:
    """Return the lessons' source files: those named, or all. Raises ``ValueError`` for an unknown
    name, or outside a checkout."""
    if not in_checkout():
        raise ValueError("lessons are built in a checkout of convlab's repository")
    found = {path.stem: path for path in sorted((CHECKOUT / "lessons/source").glob("*.py"))}
    for name in names:
        if name not in found:
            raise ValueError(f"lesson is {name!r}: it must be one of {', '.join(found)}")
    return [found[name] for name in names or found]


def place(lesson: str, kind: str) -> Path:
    """Return the path of a lesson's notebook of a kind."""
    folder = "lessons/solutions" if kind == SOLUTION else "lessons"
    return CHECKOUT / folder / f"{lesson}.ipynb"


OUT_OF_THE_FOLDER = re.compile(r"\[([^][]*)\]\((?:\.\./)+((?:docs|src)/[^)\s]*)\)")


def copies(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield every notebook: its path below ``folder``, and its content.

    Links to convlab's documentation and source lead to the checkout. Without a checkout, as in an
    installed package, or with one on another drive, only the words of the links stay.
    """
    there = folder_of("lessons", "notebooks")
    for source in sorted(there.glob("*.ipynb")) + sorted(there.glob("solutions/*.ipynb")):
        target, text = folder / source.relative_to(there), source.read_text(encoding="utf-8")
        if not in_checkout() and source.parent != there:
            text = _whole_solution(text, given=there / source.name)
        link = r"\1"
        if in_checkout():
            with suppress(ValueError):
                root = Path(os.path.relpath(CHECKOUT, target.parent)).as_posix()
                root = json.dumps(root)[1:-1].replace("\\", r"\\")
                link = rf"[\1]({root}/\2)"
        yield target, OUT_OF_THE_FOLDER.sub(link, text).encode()


def _whole_solution(text: str, given: Path) -> str:
    """Return a solution out of the package with all texts. Of those that are in the notebook
    ``given`` too, the package has only the numbers of its cells (hatch_build.py)."""
    notebook, cells = json.loads(text), json.loads(given.read_bytes())["cells"]
    for cell in notebook["cells"]:
        if isinstance(cell["source"], int):
            cell["source"] = cells[cell["source"]]["source"]
    return json.dumps(notebook, indent=1, ensure_ascii=False)


CODE_OF_A_STAGE = re.compile(r"(?m)^(stage_kernel|stage_part|whole_functions)\(")
BEGIN, END, PLANTED = "### BEGIN SOLUTION", "### END SOLUTION", "### PLANTED"
STUB = "raise NotImplementedError()"
# The lines of a hunt that a learner gets, and those that are right.
HUNTED = re.compile(
    rf"^[ ]*{BEGIN}[^\n]*\n(?P<right>(?:.*\n)*?)[ ]*{PLANTED}[^\n]*\n"
    rf"(?P<wrong>(?:[ ]*#:.*\n)*)[ ]*{END}[^\n]*(?:\n|\Z)",
    re.MULTILINE,
)
REGION = re.compile(
    rf"^(?P<indent>[ ]*){BEGIN}:?[ ]*(?P<task>.*)\n(?P<inside>(?:.*\n)*?)[ ]*{END}[^\n]*$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Cell:
    """A cell of a lesson.

    ``role`` is its mark, or ``""`` without one. ``given`` is the faulty code that a learner gets
    in a hunt, otherwise None.
    """

    type: str
    text: str
    role: str = ""
    name: str = ""
    given: str | None = None

    def of(self, kind: str) -> str:
        """Return the cell's text in a kind of notebook."""
        if self.role == "hunt" and kind != SOLUTION and self.given is not None:
            return self.given
        return REGION.sub(_stub, self.text) if kind == LEARNER else self.text

    @property
    def solution(self) -> str:
        """Return the text without the marks of a solution."""
        kept = (line for line in self.text.splitlines() if BEGIN not in line and END not in line)
        return "\n".join(kept)


def _stub(region: re.Match[str]) -> str:
    """Return the lines that replace a solution: its number of lines and its task."""
    inside = map(str.strip, region["inside"].splitlines())
    count = sum(bool(line) and not line.startswith("#") for line in inside)
    size = f"about {counted(count, 'line')}"
    task = f": {region['task']}" if region["task"] else ""
    hash = f"{region['indent']}# "
    wrapped = textwrap.wrap(f"FILL ME IN ({size}){task}", COLUMNS - len(hash))
    return "\n".join([*(hash + line for line in wrapped), f"{region['indent']}{STUB}"])


@dataclass(frozen=True)
class Lesson:
    """A lesson: the name of its file without ending, and its cells."""

    name: str
    cells: tuple[Cell, ...]

    def exercises(self) -> tuple[Cell, ...]:
        """Return the cells of a lesson that are checked, in order: exercises and hunts."""
        return tuple(cell for cell in self.cells if cell.role in ANSWERED)

    def check_of(self, name: str) -> Cell:
        """Return the cell that checks an exercise. Raises ``ValueError`` if there is none."""
        for cell in self.cells:
            if (cell.role, cell.name) == ("check", name):
                return cell
        raise ValueError(f"{self.name} has no cell with check={name!r}")


def read(path: Path) -> Lesson:
    """Return the lesson of a source file. Raises ``ValueError`` naming the file if a cell breaks a
    rule."""
    import jupytext

    cells = []
    for cell in jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent").cells:
        known = ("setup", *ANSWERED, "check", "read")
        marks = [mark for mark in known if mark in cell.metadata]
        if len(marks) > 1 or cell.cell_type == "raw":
            raise ValueError(f"{path}: a cell is {', '.join(marks) or 'raw'}: it must be one thing")
        role = marks[0] if marks else ""
        try:
            right, given = _right_and_given(cell.source, role)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        name = str(cell.metadata.get(role, ""))
        cells.append(Cell(cell.cell_type, right, role, name, given))
    lesson = Lesson(path.stem, tuple(cells))
    for one in lesson.exercises():
        lesson.check_of(one.name)
    return lesson


def _right_and_given(text: str, role: str) -> tuple[str, str | None]:
    """Return a cell's code, and the code that a learner gets instead in a hunt, or None."""
    if role == "hunt" and PLANTED in text:
        uncommented = lambda hunted: re.sub(r"(?m)^([ ]*)#: ?", r"\1", hunted["wrong"])  # noqa: E731
        return HUNTED.sub(r"\g<right>", text), HUNTED.sub(uncommented, text)
    if not CODE_OF_A_STAGE.search(text):
        return text, None
    call = ast.parse(text).body[-1]
    before = "\n".join(text.splitlines()[: call.lineno - 1])
    makers = stage_kernel, stage_part, whole_functions
    known = {"blank": Blank} | {one.__name__: one for one in makers}
    codes = eval(ast.unparse(call), {"__builtins__": {}}, known)
    right, given = (f"{before}\n{code}".lstrip("\n") for code in codes)
    return right, given if given != right else None


class Blank(NamedTuple):
    """Lines of a stage that the learner writes, from the line with ``first`` to that with ``last``.

    ``task`` says what the lines do.
    """

    task: str
    first: str
    last: str


def stage_kernel(
    stage: str, *blanks: Blank, planted: Sequence[tuple[str, str]] = (),
    name: str = "", called: str = "", hidden: Sequence[str] = (), given: Sequence[str] = (),
) -> tuple[str, str]:  # fmt: skip
    """Return a stage's code as a cell, right with the blanks marked, and with the faults planted.

    The code has the stage's imports, its constants and the function ``name``, by default that which
    makes the kernel, renamed to ``called``. ``hidden`` and ``given`` are those of
    :func:`convlab.lessons.parts.stage_code`. ``planted`` pairs pieces of the code with their faulty
    replacements. Raises ``ValueError`` unless a blank or fault is found in exactly one place.
    """
    code = stage_code(stage, name, hidden, given)
    if called:
        code = MAKER.sub(f"def {called}(", code, count=1)
    return _marked(code, blanks, planted, stage)


def stage_part(
    stage: str, part: str, *blanks: Blank, planted: Sequence[tuple[str, str]] = (),
    replaced: Sequence[tuple[str, str]] = (),
) -> tuple[str, str]:  # fmt: skip
    """Return the function ``make_PART`` of a stage's kernel as :func:`stage_kernel` does.

    ``replaced`` pairs pieces of the code with what a learner sees and solves in their place, where
    the piece is the answer of a later exercise.
    """
    code = part_code(stage, part)
    for old, new in replaced:
        if code.count(old) != 1:
            raise ValueError(f"{stage} has {code.count(old)} times {old!r}: there must be one")
        code = code.replace(old, new)
    return _marked(code, blanks, planted, stage)


def whole_functions(stage: str, **tasks: str) -> tuple[str, str]:
    """Return functions of a file as a cell; all of each but its docstring is for the learner.

    ``tasks`` say what each function does, by its name.
    """
    imports: dict[str, None] = {}  # lines, each once
    functions = []
    for name, task in tasks.items():
        code = stage_code(stage, name)
        above, function = code[: code.index("\n\n\ndef ")], code[code.index("\ndef ") + 1 :]
        imports |= dict.fromkeys(above.splitlines())
        head, *body = function.splitlines()
        said = [body.pop(0)] if body[0].strip().startswith('"""') else []
        marks = [f"    {BEGIN}: {task}", *body, f"    {END}"]
        functions.append("\n".join([head, *said, *marks]))
    code = "\n".join(_merged(imports)) + "\n\n\n" + "\n\n\n".join(functions)
    return code, code


def _merged(imports: Iterable[str]) -> list[str]:
    """Return imports with one line for each module."""
    names: dict[str, list[str]] = {}
    for line in imports:
        module, _, imported = line.removeprefix("from ").partition(" import ")
        names[module] = sorted({*names.get(module, []), *imported.split(", ")})
    return [f"from {module} import {', '.join(imported)}" for module, imported in names.items()]


MAKER = re.compile(r"(?m)^def \w+\(")


def _marked(
    code: str, blanks: Sequence[Blank], planted: Sequence[tuple[str, str]], stage: str
) -> tuple[str, str]:
    """Return code with its blanks marked, and with its faults planted."""
    right = given = code
    for blank in blanks:
        lines = right.splitlines()
        found = [number for number, line in enumerate(lines) if blank.first in line]
        if len(found) != 1:
            raise ValueError(f"{len(found)} lines hold {blank.first!r}: there must be one")
        (first,) = found
        last = next((n for n in range(first, len(lines)) if blank.last in lines[n]), None)
        if last is None:
            raise ValueError(f"0 lines hold {blank.last!r} after {blank.first!r}")
        indent = " " * (len(lines[first]) - len(lines[first].lstrip()))
        lines.insert(last + 1, f"{indent}{END}")
        lines.insert(first, f"{indent}{BEGIN}: {blank.task}")
        right = "\n".join(lines)
    for old, new in planted:
        if given.count(old) != 1:
            raise ValueError(f"{stage} has {given.count(old)} times {old!r}: there must be one")
        given = given.replace(old, new)
    return right, given if planted else right
