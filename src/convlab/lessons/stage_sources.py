"""The source of a stage's kernel, cut into the code that a lesson's cell shows."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Sequence
from functools import cache

from convlab.ladder import BACKWARD, short_name, stage_named
from convlab.lessons.part_tables import PARTS, Part

# Files that are no stage's: what stages share, and the plain im2win of lesson 11.
SHARED = {
    "im2col": "convlab.ladder.im2col.im2col_gemm",
    "plain_im2win": "convlab.lessons.plain_im2win",
}
KERNELS = {"im2col": "make_im2col"}  # functions that make a kernel and have another name
INDENT = " " * 4
COLUMNS = 88  # of a notebook's cell that are seen without scrolling
Statement = tuple[ast.stmt, str]  # and its text


@cache
def _module_of(stage: str) -> str:
    """Return the module of a stage, or of a kernel that stages share. Raises ``ValueError``."""
    gradients = {one.name: one.module for one in BACKWARD}
    return gradients.get(stage) or SHARED.get(stage) or stage_named(stage).module


class StageSource:
    """The source of a function, of a stage's file, that makes a kernel."""

    def __init__(self, stage: str, name: str = "") -> None:
        self.stage, self.module = stage, _module_of(stage)
        name = name or KERNELS.get(stage, "make_kernel")
        source = inspect.getsource(importlib.import_module(self.module))
        self.tree, self.lines = ast.parse(source), source.splitlines()
        functions = {one.name: one for one in self.tree.body if isinstance(one, ast.FunctionDef)}
        if (found := functions.get(name)) is None:
            raise ValueError(f"{self.module} has no function {name!r}")
        self.made = found
        # What a stage's kernel does, the lesson's text says; other functions keep their docstrings.
        told = name.endswith("_kernel") and ast.get_docstring(found) is not None
        self.body = found.body[1:] if told else found.body
        self.arguments = [one.arg for one in found.args.args]
        self.regions = PARTS.get(self.module.rpartition(".")[2], {})
        # Whatever can be solved apart: regions, functions, and what is made of functions.
        made_of = {one.name for one in self.body if isinstance(one, ast.FunctionDef)}
        self.solvable = {*self.regions, *made_of}
        for one in self.body:
            if isinstance(one, ast.Assign) and _names_in(one.value) & made_of:
                self.solvable |= _defined(one)

    def function(self, hidden: Sequence[str], given: Sequence[str]) -> str:
        """Return the whole function, with the parts ``hidden`` solved."""
        head = f"def {self.made.name}({', '.join(self.arguments)}):"
        lines = self._text(*self.body)
        if not hidden:
            return "\n".join([head, *lines])
        for part in hidden:
            self._require(part)
            lines = self._without(lines, part)
        return self._completed("\n".join([head, *lines]), given)

    def part(self, part: str, given: Sequence[str]) -> str:
        """Return the function that makes a part; it takes the constants ``given`` by keyword."""
        self._require(part)
        arguments = [*self.arguments, *(["*", *given] if given else [])]
        code = [f"def make_{part}({', '.join(arguments)}):"]
        code += self._text(*(one for one in self.body if isinstance(one, ast.Assign)))
        if (region := self.regions.get(part)) is not None:
            lines = self._text(*self.body)
            first, last = span(lines, region)
            inside = textwrap.dedent("\n".join(lines[first : last + 1]))
            if region.gives:
                inside += f"\nreturn {region.gives}"
            code += [f"{INDENT}@cuda.jit(device=True)", f"{INDENT}def {part}({region.takes}):"]
            code += [textwrap.indent(inside, 2 * INDENT)]
        else:
            code += self._text(*(one for one in self.body if part == _name_of(one)))
        return self._completed("\n".join([*code, f"{INDENT}return {part}"]), given)

    def with_imports(self, function: str) -> str:
        """Return the code of a function after the imports and constants that it needs."""
        made, *_ = ast.parse(function).body
        used = _names_in(made)
        constants = [one for one in self.tree.body if isinstance(one, ast.Assign)]
        for one in constants:  # what constants are made of is used, too
            if _defined(one) & used:
                used |= _names_in(one.value)
        code, own = [], []
        for statement in self.tree.body:
            match statement:
                case ast.ImportFrom() | ast.Import():
                    statement.names = [alias for alias in statement.names if alias.name in used]
                    if statement.names:
                        code.append(ast.unparse(statement))
                case ast.FunctionDef() | ast.ClassDef() if statement.name in used:
                    own.append(statement.name)
        if "solved" in used:
            code.append("from convlab.lessons import solved")
        if own := [name for name in own if name != self.made.name]:
            code.append(f"from {self.module} import {', '.join(own)}")
        needed = [one for one in constants if _defined(one) & used]
        if needed:
            code += ["", *self._text(*needed)]
        return "\n".join([*code, "", "", function]).strip()

    def _require(self, part: str) -> None:
        if part not in self.solvable:
            there = ", ".join(sorted(self.solvable))
            raise ValueError(f"part is {part!r}: {self.stage} must have it; it has {there}")

    def _text(self, *statements: ast.stmt) -> list[str]:
        """Return the lines of statements, and those between them if they follow each other."""
        found: list[str] = []
        before = 0
        for one in statements:
            first = _first_line(one) - 1
            if statements == tuple(self.body) and before:
                found += self.lines[before:first]
            before = one.end_lineno or 0
            found += self.lines[first:before]
        return found

    def _without(self, lines: list[str], part: str) -> list[str]:
        """Return lines of the function with a part taken out, and called where that is needed."""
        if (region := self.regions.get(part)) is not None:
            first, last = span(lines, region)
            indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
            target = f"{region.gives} = " if region.gives else ""
            call = f"{indent}{target}{part}({region.takes})"
            return [*lines[:first], call, *lines[last + 1 :]]
        code = "\n".join(["def made():", *lines])
        (taken,) = (one for one in ast.parse(code).body[0].body if part == _name_of(one))  # type: ignore[attr-defined]
        return [*lines[: _first_line(taken) - 2], *lines[(taken.end_lineno or 0) - 1 :]]

    def _completed(self, code: str, given: Sequence[str]) -> str:
        """Return a function with solved parts for those that it lacks, and no needless constants.

        ``given`` are the constants that it has or takes itself, which solved parts are given.
        """
        made, *_ = ast.parse(code).body
        assert isinstance(made, ast.FunctionDef)
        taken = {one.arg for one in made.args.kwonlyargs}
        kept = _needed_statements(made, taken, code)
        there = {name for one, _ in kept for name in _defined(one)}
        used = _in_order([statement for statement, _ in kept])
        missing = [name for name in dict.fromkeys(used) if name in self.solvable - there]
        solved = self._solved_lines(missing, [name for name in given if name in there | taken])
        return _assembled(code.splitlines()[0], kept, {*missing}, solved)

    def _solved_lines(self, parts: Sequence[str], given: Sequence[str]) -> list[str]:
        """Return lines that define solved parts, those together that need the same constants."""
        by_constants: dict[str, list[str]] = {}
        for part in parts:
            names = _names_in(ast.parse(self.part(part, given)))
            passed = "".join(f", {name}={name}" for name in given if name in names)
            by_constants.setdefault(passed, []).append(part)
        found = []
        for passed, together in by_constants.items():
            while together:
                count = len(together)
                while (
                    len(line := self._solved_line(together[:count], passed)) > COLUMNS and count > 1
                ):
                    count -= 1
                found.append(line)
                together = together[count:]
        return found

    def _solved_line(self, parts: Sequence[str], passed: str) -> str:
        names, arguments = ", ".join(parts), ", ".join(self.arguments)
        stage = short_name(self.stage)
        return f'{INDENT}{names} = solved("{stage}", "{names}", {arguments}{passed})'


def span(lines: Sequence[str], region: Part) -> tuple[int, int]:
    """Return the numbers of a region's first and last line. Raises ``ValueError`` unless one line
    holds ``first`` and one after it ``last``."""
    pieces = region.first.split("\n")  # of lines that follow each other
    starts = [
        number
        for number in range(len(lines) - len(pieces) + 1)
        if all(piece in line for piece, line in zip(pieces, lines[number:], strict=False))
    ]
    if len(starts) != 1:
        raise ValueError(f"{len(starts)} lines hold {region.first!r}: there must be one")
    (first,) = starts
    last = next((n for n in range(first, len(lines)) if region.last in lines[n]), None)
    if last is None:
        raise ValueError(f"0 lines hold {region.last!r} after {region.first!r}")
    return first, last


def _needed_statements(made: ast.FunctionDef, taken: set[str], code: str) -> list[Statement]:
    """Return the statements of a function without the constants that nothing after them needs, or
    that it takes as arguments. ``code`` is its text."""
    lines = code.splitlines()
    needed: set[str] = set()
    kept: list[Statement] = []
    for one in reversed(made.body):
        if not isinstance(one, ast.Assign):
            needed |= _names_in(one)
            kept.append((one, "\n".join(lines[_first_line(one) - 1 : one.end_lineno])))
        elif _defined(one) & needed - taken:
            text = _only(one, needed - taken, code)
            needed |= _names_in(*ast.parse(textwrap.dedent(text)).body)
            kept.append((one, text))
    return kept[::-1]


def _assembled(
    head: str, statements: Sequence[Statement], missing: set[str], solved: Sequence[str]
) -> str:
    """Return the text of a function with the lines of its solved parts before the first statement
    that uses a missing one. Blank lines stand around functions and before loops and branches."""
    found = [head]
    solved_yet, after_function = False, False
    for one, text in statements:
        if not solved_yet and _names_in(one) & missing:
            found += solved
            solved_yet = True
        apart = after_function or not isinstance(one, ast.Assign | ast.Expr)
        if apart and found[-1] != head:
            found.append("")
        found.append(text)
        after_function = isinstance(one, ast.FunctionDef)
    return "\n".join(found)


def _first_line(statement: ast.stmt) -> int:
    """Return a statement's first line, with its decorators."""
    decorators = statement.decorator_list if isinstance(statement, ast.FunctionDef) else []
    return min([statement.lineno, *(one.lineno for one in decorators)])


def _name_of(statement: ast.stmt) -> str:
    """Return the one name that a statement defines, or nothing."""
    names = [*_defined(statement)]
    return names[0] if len(names) == 1 else ""


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    return _names_in(*statement.targets) if isinstance(statement, ast.Assign) else set()


def _only(statement: ast.Assign, needed: set[str], code: str) -> str:
    """Return an assignment as it is in ``code``, to the names that are needed alone."""
    lines = code.splitlines()
    text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
    targets = statement.targets[0]
    if _defined(statement) <= needed | {"_"} or not isinstance(targets, ast.Tuple):
        return text
    indent, comment = " " * statement.col_offset, lines[(statement.end_lineno or 0) - 1]
    comment = comment[statement.end_col_offset or 0 :].rstrip()

    def part(node: ast.expr) -> str:
        return ast.get_source_segment(code, node) or ""

    if isinstance(statement.value, ast.Tuple):
        pairs = zip(targets.elts, statement.value.elts, strict=True)
        pieces = [(part(one), part(value)) for one, value in pairs if _names_in(one) & needed]
        left, right = (", ".join(side) for side in zip(*pieces, strict=True))
        return f"{indent}{left} = {right}"
    names = [part(one) if _names_in(one) & needed else "_" for one in targets.elts]
    return f"{indent}{', '.join(names)} = {part(statement.value)}{comment}"


def _in_order(statements: Sequence[ast.stmt]) -> list[str]:
    """Return the names in statements of one text in the order in which they are written."""
    names = [node for one in statements for node in ast.walk(one) if isinstance(node, ast.Name)]
    return [one.id for one in sorted(names, key=lambda node: (node.lineno, node.col_offset))]


def _names_in(*nodes: ast.AST) -> set[str]:
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}
