"""The source of a lesson: a Python file of cells, from which its notebooks are made.

``lessons/source/NN_name.py`` is in jupytext's percent format. Cells of code may be marked:

- ``# %% setup=true``: what every later cell needs.
- ``# %% exercise="name"``: a cell to fill in. What is between ``### BEGIN SOLUTION: task`` and
  ``### END SOLUTION`` (nbgrader's marks) is left out of the learner's notebook.
- ``# %% hunt="name"``: a kernel with a planted fault, which the learner fixes. The lines between
  ``### BEGIN SOLUTION`` and ``### PLANTED`` are right; those from there to ``### END SOLUTION``,
  after ``#:``, are the learner's.
- ``# %% check="name"``: checks the exercise or hunt of that name.

In an exercise or a hunt ``stage_kernel(...)`` stands for the code of a stage, so that lessons and
stages cannot drift.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from convlab.stages import stage_named

BEGIN, END, PLANTED = "### BEGIN SOLUTION", "### END SOLUTION", "### PLANTED"
LEARNER, SOLUTION, NBGRADER = "learner", "solution", "nbgrader"  # the kinds of notebooks
KERNELS = Path(__file__).parents[1] / "kernels"
COLUMNS = 88  # of a notebook's cell that are seen without scrolling
STUB = "raise NotImplementedError()"


@dataclass(frozen=True)
class Cell:
    """A cell of a lesson. ``role`` is what marks it, ``""`` for the others; ``given`` is the code
    of a learner's hunt, faults and all; else None."""

    type: str
    text: str
    role: str = ""
    name: str = ""
    given: str | None = None

    def of(self, kind: str) -> str:
        """The text that a kind of notebook has."""
        if self.role == "hunt" and kind != SOLUTION and self.given is not None:
            return self.given
        return cut(self.text) if kind == LEARNER else self.text


@dataclass(frozen=True)
class Lesson:
    """A lesson: its file's name without ending, and its cells."""

    name: str
    cells: tuple[Cell, ...]

    def exercises(self) -> tuple[Cell, ...]:
        """The parts of a lesson that are checked, in order: exercises and hunts."""
        return tuple(cell for cell in self.cells if cell.role in ("exercise", "hunt"))

    def check_of(self, name: str) -> Cell:
        """The cell that checks an exercise. Raises ``ValueError`` where there is none."""
        for cell in self.cells:
            if (cell.role, cell.name) == ("check", name):
                return cell
        raise ValueError(f"{self.name} has no cell with check={name!r}")


class Blank(NamedTuple):
    """Lines of a stage that the learner writes: from the one that holds ``first`` to the one that
    holds ``last``; ``task`` says what they do."""

    task: str
    first: str
    last: str


def read(path: Path) -> Lesson:
    """The lesson of a source file.

    Raises ``ValueError`` naming the file where a cell is not as it must be.
    """
    import jupytext

    notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    cells = []
    for cell in notebook.cells:
        marks = {m: cell.metadata[m] for m in ("setup", "exercise", "hunt", "check", "read")
                 if m in cell.metadata}  # fmt: skip
        if len(marks) > 1 or cell.cell_type == "raw":
            raise ValueError(f"{path}: a cell is {', '.join(marks) or 'raw'}: it must be one thing")
        role, name = next(iter(marks.items()), ("", ""))
        try:
            cells.append(_cell(cell.cell_type, cell.source, role, str(name)))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    lesson = Lesson(path.stem, tuple(cells))
    for one in lesson.exercises():
        lesson.check_of(one.name)
    return lesson


def _cell(type: str, text: str, role: str, name: str) -> Cell:
    if role == "hunt" and PLANTED in text:
        return Cell(type, HUNTED.sub(r"\g<right>", text), role, name, HUNTED.sub(_planted, text))
    if "stage_kernel(" not in text:
        return Cell(type, text, role, name)
    tree = ast.parse(text)
    call = tree.body[-1]
    assert isinstance(call, ast.Expr)
    before = "\n".join(text.splitlines()[: call.lineno - 1])
    known = {"stage_kernel": stage_kernel, "blank": Blank}
    right, given = eval(ast.unparse(call), {"__builtins__": {}}, known)
    right, given = (f"{before}\n{code}".lstrip("\n") for code in (right, given))
    return Cell(type, right, role, name, given if given != right else None)


def stage_kernel(
    stage: str,
    *blanks: Blank,
    planted: Sequence[tuple[str, str]] = (),
    name: str = "make_kernel",
    called: str = "make_kernel",
) -> tuple[str, str]:
    """A stage's code as a cell: what it imports, its constants and the function ``name``, which is
    ``called`` so there. ``stage`` may also be the file of a kernel that stages share, without its
    ending: ``im2col``.

    Twice: as it is, with the blanks marked as solutions; and with the faults ``planted``, pairs of
    (what the stage says, what stands there instead).

    Raises ``ValueError`` where a blank or fault is not found in exactly one place.
    """
    right = given = stage_code(stage, name).replace(f"def {name}(", f"def {called}(")
    for blank in blanks:
        lines = right.splitlines()
        found = [number for number, line in enumerate(lines) if blank.first in line]
        if len(found) != 1:
            raise ValueError(f"{len(found)} lines hold {blank.first!r}: there must be one")
        last = next((n for n in range(found[0], len(lines)) if blank.last in lines[n]), None)
        if last is None:
            raise ValueError(f"0 lines hold {blank.last!r} after {blank.first!r}")
        start = lines[found[0]]
        indent = " " * (len(start) - len(start.lstrip()))
        lines.insert(last + 1, f"{indent}{END}")
        lines.insert(found[0], f"{indent}{BEGIN}: {blank.task}")
        right = "\n".join(lines)
    for old, new in planted:
        if given.count(old) != 1:
            raise ValueError(f"{stage} has {given.count(old)} times {old!r}: there must be one")
        given = given.replace(old, new)
    return right, given if planted else right


HUNTED = re.compile(
    rf"^[ ]*{BEGIN}[^\n]*\n(?P<right>(?:.*\n)*?)[ ]*{PLANTED}[^\n]*\n"
    rf"(?P<wrong>(?:[ ]*#:.*\n)*)[ ]*{END}[^\n]*(?:\n|\Z)",
    re.MULTILINE,
)


def _planted(region: re.Match[str]) -> str:
    return re.sub(r"^([ ]*)#: ?", r"\1", region["wrong"], flags=re.MULTILINE)


@cache
def stage_code(stage: str, name: str = "make_kernel") -> str:
    """A function of a stage's file without its annotations, after the imports and constants that
    it uses."""
    shared = (KERNELS / f"{stage}.py").is_file()
    module = f"convlab.kernels.{stage}" if shared else stage_named(stage).module
    file = KERNELS.parents[1].joinpath(*module.split(".")).with_suffix(".py")
    source = file.read_text(encoding="utf-8")
    tree, lines = ast.parse(source), source.splitlines()
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if (function := functions.get(name)) is None:
        raise ValueError(f"{module} has no function {name!r}")
    code = list(_needed(tree, lines, names_in(*function.body), module))
    arguments = ", ".join(one.arg for one in function.args.args)
    body = lines[function.body[0].lineno - 1 : function.end_lineno]
    return "\n".join([*code, "", "", f"def {name}({arguments}):", *body]).strip()


def names_in(*nodes: ast.AST) -> set[str]:
    """The names that stand somewhere in the code."""
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


def _needed(tree: ast.Module, lines: Sequence[str], used: set[str], module: str) -> Iterator[str]:
    """Imports and constants; other functions of the file are imported from it."""
    constants = [node for node in tree.body if isinstance(node, ast.Assign)]
    for node in constants:  # what constants are made of is used, too
        if names_in(*node.targets) & used:
            used |= names_in(node.value)
    own: list[str] = []
    for statement in tree.body:
        match statement:
            case ast.ImportFrom(module=str(source)):
                names = [alias.name for alias in statement.names if alias.name in used]
                if names:
                    yield f"from {source} import {', '.join(names)}"
            case ast.Import():
                yield from (f"import {a.name}" for a in statement.names if a.name in used)
            case ast.FunctionDef() | ast.ClassDef() if statement.name in used:
                own.append(statement.name)
    if own:
        yield f"from {module} import {', '.join(own)}"
    needed = [node for node in constants if names_in(*node.targets) & used]
    if needed:
        yield ""
    for node in needed:
        yield from lines[node.lineno - 1 : node.end_lineno]


REGION = re.compile(
    rf"^(?P<indent>[ ]*){BEGIN}:?[ ]*(?P<task>.*)\n(?P<inside>(?:.*\n)*?)[ ]*{END}[^\n]*$",
    re.MULTILINE,
)


def cut(text: str) -> str:
    """The learner's text: for every solution how many lines it has and what they do."""

    def stub(region: re.Match[str]) -> str:
        inside = map(str.strip, region["inside"].splitlines())
        count = sum(bool(line) and not line.startswith("#") for line in inside)
        size = f"about {count} line{'s' * (count != 1)}"
        task = f": {region['task']}" if region["task"] else ""
        hash = f"{region['indent']}# "
        comment = textwrap.fill(
            f"FILL ME IN ({size}){task}", COLUMNS, initial_indent=hash, subsequent_indent=hash
        )
        return f"{comment}\n{region['indent']}{STUB}"

    return REGION.sub(stub, text)


def without_marks(text: str) -> str:
    """A solution without the lines that mark it."""
    kept = (line for line in text.splitlines() if BEGIN not in line and END not in line)
    return "\n".join(kept)
