"""A stage's kernel in parts, so that a lesson's cell holds only the part that it is about.

A part is a function inside a stage's ``make_kernel``, or lines of the kernel that :data:`PARTS`
names; such lines become a device function. A cell may show a part alone, to be filled in, or the
kernel with solved parts: ``read = solved("m08", "read", problem, tile)``. Both are made of the
stage's own source, so that lessons and stages cannot drift.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import linecache
import textwrap
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from convlab.ladder import BACKWARD, short_name, stage_named

PACKAGE = Path(__file__).parent
# Files that are no stage's: what stages share, and the plain im2win of lesson 11.
SHARED = {
    "im2col": "convlab.ladder.im2col.im2col_gemm",
    "plain_im2win": "convlab.lessons.plain_im2win",
}
KERNELS = {"im2col": "make_im2col"}  # functions that make a kernel and have another name
INDENT = " " * 4
COLUMNS = 88  # of a notebook's cell that are seen without scrolling


class Part(NamedTuple):
    """Lines of a kernel as a function: from the line with ``first`` to that with ``last``.

    ``first`` may also be pieces of several lines that follow each other. ``takes`` are the
    function's arguments, ``gives`` the names that it returns.
    """

    takes: str
    first: str
    last: str
    gives: str = ""


# Lines that stages have in common.
WINDOW = "i_n, o_h, o_w"
OF_WINDOW = Part("window", "i_n = window // (H_o * W_o)", "o_w = window % W_o", gives=WINDOW)
OF_OUTPUT = Part("n", "i_n = n // (H_o * W_o)", "o_w = n % W_o", gives=WINDOW)
LOAD_FILTER = Part(
    takes="weight, m0, k0, t, S_F",
    first="for e in range(t, M_B * K_B, THREADS):  # load",
    last="S_F[e // K_B, e % K_B] = value",
)
LOAD_PACKED = Part(
    takes="packed, m0, k0, t, S_F",
    first="for e in range(t, K_B * M_4, THREADS):  # load",
    last="store4(S_F, (k, row), load4(packed",
)
LOAD_WINDOWS = Part(
    takes="input, i_n, o_h, o_w, k0, t, column, S_I",
    first="for e in range(t // N_B, K_B, THREADS // N_B):",
    last="S_I[e, column] = pixel",
)
LOAD_COLUMN = Part(
    takes="input, i_n, o_h, o_w, k0, ty, tx, S_I",
    first="for e in range(ty, K_B, ROWS):",
    last="S_I[e, tx] = pixel",
)
CLEAR = Part(
    "R_O", "for i in range(M_T):\nfor j in range(N_T):\nR_O[i, j] = float32(0)", "float32(0)"
)
WRITE = Part(
    takes="R_O, bias, m0, n0, ty, tx, output",
    first="for j in range(0, N_T, FLOAT4):\nfor c in range(0, FLOAT4, STEP):",
    last="output[at] = R_O[i, j + c] + b",
)
LAST_LOOP = WRITE._replace(
    first="for j in range(0, N_T, FLOAT4):  # line 20\nfor c in range(0, FLOAT4, STEP):"
)
WRITE_SCALARS = Part(
    takes="R_O, bias, m0, n0, ty, tx, output",
    first="for j in range(N_T):\nn = n0 + tx + j * COLUMNS",
    last="output[i_n, m, o_h, o_w] = R_O[i, j] + bias[m]",
)
ALL_BUT_TWO_STEPS = Part(
    takes="S_F, S_I, k0, ty, tx, R_F0, R_I0, R_F1, R_I1, R_O",
    first="for k in range(0, K_B - 2, 2):",
    last="multiply(R_F1, R_I1, R_O)",
)
OTHER_BUFFER = Part("k0", "k0 = uint32(K_B - k0)", "k0 = uint32(K_B - k0)", gives="k0")
WAIT_AND_READ = Part(
    takes="S_F, S_I, k0, ty, tx, R_F0, R_I0",
    first="cuda.syncthreads()  # lines 5 and 16",
    last="read(S_F, S_I, k0, ty, tx, R_F0, R_I0)",
)
FIND_WINDOWS = Part(
    takes="n0, t, first_I",
    first="for f in range(I_FLOAT4S):\nwindow = min(",
    last="first_I[f] = (window",
)
# By the name of the stage's file.
PARTS: dict[str, dict[str, Part]] = {
    "m01_direct": {
        "add_up": Part(
            takes="input, weight, i_n, o_c, o_h, o_w",
            first="total = float32(0)",
            last="total += pixel * weight",
            gives="total",
        ),
    },
    "im2col_gemm": {
        "find_value": Part(
            takes="input, k, n",
            first="i_n, pixel = n // PIXELS",
            last="value = input[i_n, i_c, i_h, i_w]",
            gives="i_n, pixel, value",
        ),
    },
    "m02_implicit_gemm": {
        "of_output": OF_OUTPUT,
        "find_pixel": Part(
            takes="input, i_n, o_h, o_w, i_c, f_h, f_w",
            first="i_h = o_h * s_h + f_h * d_h - p_h",
            last="pixel = input[i_n, i_c, i_h, i_w]",
            gives="pixel",
        ),
    },
    "m03_shared_memory": {
        "of_window": OF_WINDOW,
        "load_filter": LOAD_FILTER,
        "load_windows": LOAD_COLUMN,
    },
    "m04_block_tiling": {
        "of_window": OF_WINDOW,
        "load_filter": LOAD_FILTER,
        "load_windows": LOAD_COLUMN,
        "write": Part(
            takes="R_O, bias, i_n, o_h, o_w, m0, n, ty, output",
            first="for i in range(M_T):\nm = m0 + ty + i * ROWS",
            last="output[i_n, m, o_h, o_w] = R_O[i] + bias[m]",
        ),
    },
    "m05_microkernel": {
        "of_window": OF_WINDOW,
        "load_filter": LOAD_FILTER,
        "load_windows": LOAD_WINDOWS,
        "of_output": OF_OUTPUT,
        "clear": CLEAR,
        "read_rows": Part(
            takes="S_F, k, ty, R_F",
            first="for i in range(M_T):\nR_F[i] = S_F[",
            last="R_F[i] = S_F[ty + i * ROWS, k]",
        ),
        "multiply": Part(
            takes="R_F, R_I, R_O",
            first="for i in range(M_T):\nfor j in range(N_T):\nR_O[i, j] += ",
            last="R_O[i, j] += R_F[i] * R_I[j]",
        ),
        "write_column": Part(
            takes="R_O, bias, i_n, o_h, o_w, m0, n, ty, j, output",
            first="for i in range(M_T):\nm = m0 + ty + i * ROWS",
            last="output[i_n, m, o_h, o_w] = R_O[i, j] + bias[m]",
        ),
        "write": WRITE_SCALARS,
    },
    "m06_vectorized": {
        "of_window": OF_WINDOW,
        "load_filter": LOAD_PACKED,
        "copy_float4": Part(
            takes="packed, m0, k0, k, row, S_F",
            first="store4(S_F, (k, row), load4(packed",
            last="store4(S_F, (k, row), load4(packed",
        ),
        "load_windows": LOAD_WINDOWS,
        "read": Part(
            takes="S_F, S_I, k, ty, tx, R_F, R_I",
            first="for i in range(0, M_T, FLOAT4):",
            last="R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four",
        ),
        "clear": CLEAR,
        "write": WRITE,
    },
    "m08_double_buffer": {
        "of_window": OF_WINDOW,
        "load": Part(
            takes="input, packed, i_n, o_h, o_w, m0, slice_, t, fetched_F, fetched_I",
            first="for f in range(F_FETCHED[0]):\ne = t + f * THREADS\nfour = load4(packed",
            last="fetched_I[f] = pixel",
        ),
        "store": Part(
            takes="fetched_F, fetched_I, k0, t, column, S_F, S_I",
            first="for f in range(F_FETCHED[0]):\ne = t + f * THREADS\nfour = (fetched_F[f, 0]",
            last="S_I[k0 + t // N_B + f * I_ROWS, column] = fetched_I[f]",
        ),
        "all_but_two_steps": ALL_BUT_TWO_STEPS,
        "other_buffer": OTHER_BUFFER,
        "wait_and_read": WAIT_AND_READ,
        "clear": CLEAR,
        "write": LAST_LOOP,
    },
    "m09_im2win": {
        "of_output": OF_OUTPUT,
        "find_pixel": Part(
            takes="windows, i_n, o_h, o_w, k",
            first="i_c = k // (H_f * W_f)",
            last="pixel = windows[i_n, i_c, o_h,",
            gives="i_c, f_h, f_w, pixel",
        ),
    },
    "m10_im2win_vectorized": {
        "find_windows": FIND_WINDOWS,
        "load": Part(
            takes="windows, packed, m0, slice_, t, first_I, fetched_F, fetched_I",
            first="for f in range(F_FETCHED[0]):\ne = t + f * THREADS\nfour = load4(packed",
            last="fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = four",
        ),
        "store": Part(
            takes="fetched_F, fetched_I, k0, t, S_F, S_I",
            first="for f in range(F_FETCHED[0]):\ne = t + f * THREADS\nfour = (fetched_F[f, 0]",
            last="S_I[k0 + e % K_4 * FLOAT4 + c, e // K_4] = fetched_I[f, c]",
        ),
        "all_but_two_steps": ALL_BUT_TWO_STEPS,
        "other_buffer": OTHER_BUFFER,
        "wait_and_read": WAIT_AND_READ,
        "clear": CLEAR,
        "write": LAST_LOOP,
    },
    "m11_warp_tiling": {
        "find_windows": FIND_WINDOWS,
        "clear": CLEAR,
        "write": LAST_LOOP,
    },
    "t03_split_once": {
        "find_lane": Part(
            takes="t",
            first="warp, lane = t // 32, t % 32",
            last="row, column = row + group_id",
            gives="at_F, at_I, row, column",
        ),
        "wait": Part("", "wait_copies(IN_FLIGHT)  # for this thread's part", "cuda.syncthreads()"),
        "clear": CLEAR,
    },
    "m13_window_copies": {
        "start_first": Part(
            takes="input, packed, first, i_h, i_w, t, S_F, S_I",
            first="for early in range(DEPTH - 1):",
            last="cuda.syncthreads()  # line 5",
        ),
        "next_stage": Part(
            takes="pipe, ty, tx",
            first="pipe = uint32(pipe + 1",
            last="at_I = uint32(pipe * (K_B * PITCH)",
            gives="pipe, at_F, at_I",
        ),
        "start_next": Part(
            takes="input, packed, first, i_h, i_w, t, slice_, free, S_F, S_I",
            first="if slice_ + IN_FLIGHT < SLICES:",
            last="commit_copies()",
        ),
        "clear": CLEAR,
        "write": LAST_LOOP,
    },
}


def stage_code(
    stage: str, name: str = "", hidden: Sequence[str] = (), given: Sequence[str] = ()
) -> str:
    """Return a function of a stage's file without its annotations, after its imports and constants.

    ``stage`` may also be a key of :data:`SHARED`, and ``name`` is by default that of the function
    that makes the kernel. Other functions of the file are imported from it. The parts ``hidden``
    are solved, with the constants ``given`` as they are in this function; constants that no shown
    line uses are left out. Raises ``ValueError`` for an unknown part.
    """
    source = _Source(stage, name)
    return source.with_imports(source.function(hidden, given))


def part_code(stage: str, part: str, given: Sequence[str] = ()) -> str:
    """Return the function ``make_PART``, which makes a part of a kernel, after its imports.

    It takes the constants ``given`` by keyword. Raises ``ValueError`` for an unknown part.
    """
    source = _Source(stage)
    return source.with_imports(source.part(part, given))


def lines_between(lines: Sequence[str], first: str, last: str) -> list[str]:
    """Return lines as :class:`Part` names them, with no more indentation than they need.

    Raises ``ValueError`` unless there are such lines in one place.
    """
    start, end = _span(lines, Part("", first, last))
    return textwrap.dedent("\n".join(lines[start : end + 1])).splitlines()


def has_part(stage: str, part: str) -> bool:
    """Return whether a stage's kernel has the part."""
    return part in _Source(stage).solvable


def solved(stage: str, parts: str, *arguments: Any, **constants: Any) -> Any:
    """Return parts of a stage's kernel, device functions: one, or a list for several names.

    ``parts`` are names with commas between. ``arguments`` are those of the stage's ``make_kernel``:
    a problem and a tile. ``constants`` replace the stage's own. Raises ``ValueError`` for a part
    that the stage does not have.
    """
    given = tuple(constants)
    made = [_maker(stage, part, given)(*arguments, **constants) for part in parts.split(", ")]
    return made if len(made) > 1 else made[0]


def kernel_with(stage: str, part: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """Return the stage's ``make_kernel`` with the part that ``make`` makes of its arguments.

    Raises ``ValueError`` for an unknown part.
    """
    made = _run(stage_code(stage, hidden=[part]), f"{short_name(stage)} without {part}")

    def replaced(stage: str, parts: str, *arguments: Any) -> Any:
        return make(*arguments)

    made["solved"] = replaced  # which the code calls for this part alone
    return made["make_kernel"]  # type: ignore[no-any-return]


@cache  # the same function each time, so that a simulator translates its part once
def _maker(stage: str, part: str, given: tuple[str, ...]) -> Callable[..., Any]:
    names = _run(part_code(stage, part, given), f"{part} of {short_name(stage)}")
    return names[f"make_{part}"]  # type: ignore[no-any-return]


def _run(code: str, title: str) -> dict[str, Any]:
    """Run code as if it were a file of this package with that title, and return its names."""
    file = str(PACKAGE / title)
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    names: dict[str, Any] = {}
    exec(compile(code, file, "exec"), names)
    return names


@cache
def _module_of(stage: str) -> str:
    """Return the module of a stage, or of a kernel that stages share. Raises ``ValueError``."""
    gradients = {one.name: one.module for one in BACKWARD}
    return gradients.get(stage) or SHARED.get(stage) or stage_named(stage).module


class _Source:
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
        self.arguments = [one.arg for one in found.args.args]
        self.regions = PARTS.get(self.module.rpartition(".")[2], {})
        # Whatever can be solved apart: regions, functions, and what is made of functions.
        made_of = {one.name for one in found.body if isinstance(one, ast.FunctionDef)}
        self.solvable = {*self.regions, *made_of}
        for one in found.body:
            if isinstance(one, ast.Assign) and _names_in(one.value) & made_of:
                self.solvable |= _defined(one)

    def function(self, hidden: Sequence[str], given: Sequence[str]) -> str:
        """Return the whole function, with the parts ``hidden`` solved."""
        head = f"def {self.made.name}({', '.join(self.arguments)}):"
        lines = self._text(*self.made.body)
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
        code += self._text(*(one for one in self.made.body if isinstance(one, ast.Assign)))
        if (region := self.regions.get(part)) is not None:
            lines = self._text(*self.made.body)
            first, last = _span(lines, region)
            inside = textwrap.dedent("\n".join(lines[first : last + 1]))
            inside += f"\nreturn {region.gives}" * bool(region.gives)
            code += [f"{INDENT}@cuda.jit(device=True)", f"{INDENT}def {part}({region.takes}):"]
            code += [textwrap.indent(inside, 2 * INDENT)]
        else:
            code += self._text(*(one for one in self.made.body if part == _name_of(one)))
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
        code += [""] * bool(needed) + self._text(*needed)
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
            if statements == tuple(self.made.body) and before:
                found += self.lines[before:first]
            before = one.end_lineno or 0
            found += self.lines[first:before]
        return found

    def _without(self, lines: list[str], part: str) -> list[str]:
        """Return lines of the function with a part taken out, and called where that is needed."""
        if (region := self.regions.get(part)) is not None:
            first, last = _span(lines, region)
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
        needed: set[str] = set()
        kept: list[tuple[ast.stmt, str]] = []
        for one in reversed(made.body):
            if not isinstance(one, ast.Assign):
                kept.append(
                    (one, "\n".join(code.splitlines()[_first_line(one) - 1 : one.end_lineno]))
                )
                needed |= _names_in(one)
            elif _defined(one) & needed - taken:
                text = _only(one, needed - taken, code)
                needed |= _names_in(*ast.parse(textwrap.dedent(text)).body)
                kept.append((one, text))
        kept.reverse()
        there = {name for one, _ in kept for name in _defined(one)}
        used = _in_order([statement for statement, _ in kept])
        missing = [name for name in dict.fromkeys(used) if name in self.solvable - there]
        lines = self._solved_lines(missing, [name for name in given if name in there | taken])
        head = code.splitlines()[0]
        found, solved_yet = [head], False
        for number, (one, text) in enumerate(kept):
            if not solved_yet and _names_in(one) & set(missing):
                found += lines
                solved_yet = True
            apart = not isinstance(one, ast.Assign) and not isinstance(one, ast.Expr)
            after = number > 0 and isinstance(kept[number - 1][0], ast.FunctionDef)
            found += [""] * ((apart or after) and found[-1] != head) + [text]
        return "\n".join(found)

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


def _span(lines: Sequence[str], region: Part) -> tuple[int, int]:
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
