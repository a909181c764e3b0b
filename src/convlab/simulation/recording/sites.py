"""Sites, the instructions that a log names, and facts about them from the source.

A site is ``id(code) + offset``. It leads to lines, to names of variables, and to the branches in
which threads part.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import sys
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from itertools import pairwise, permutations
from pathlib import Path
from tokenize import TokenError
from types import CodeType, FrameType, TracebackType
from weakref import WeakValueDictionary, finalize

import numpy as np

from convlab.support.code_places import file_said

BRANCH = "the {} in line"  # of an if, for or while, in what a finding says


class Sites:
    """The source lines and names of the sites of some functions."""

    def __init__(
        self,
        codes: Iterable[CodeType],
        kernel: CodeType | None = None,
        calls: Callable[[], Iterable[tuple[CodeType, int, CodeType]]] = tuple,
    ) -> None:
        """``calls()`` are the calls among the functions: the code, its line and the called code."""
        self._codes, self._kernel = {id(code): code for code in codes}, kernel
        self._calls = calls

    def line(self, site: int) -> tuple[str, int]:
        """Return the file and the line of a site."""
        if (code := self.code(site)) is None:
            return "?", 0
        return code.co_filename, _line_at(code, site - id(code))

    def where(self, site: int) -> str:
        """Return the line in words: ``line 12 of program.py``."""
        file, line = self.line(site)
        return f"line {line} of {file_said(file)}"

    def called_from(self, site: int) -> str:
        """Return the lines where the kernel's file calls a function of another package, such as
        Numba's, that contains the site: ``line 12 of program.py``. Empty for a site in other
        functions."""
        code = self.code(site)
        if self._kernel is None or code is None or not is_of_a_package(code.co_filename):
            return ""
        own, seen, inner = set[tuple[str, int]](), {code}, [code]
        every = [*self._calls()]
        while inner:
            called = inner.pop()
            for caller, line, calls in every:
                if calls is called and not is_of_a_package(caller.co_filename):
                    own.add((caller.co_filename, line))
                elif calls is called and caller not in seen:
                    seen.add(caller)
                    inner.append(caller)
        return " and ".join(f"line {line} of {file_said(file)}" for file, line in sorted(own))

    def branch_between(self, site: int, other: int) -> str:
        """Return the innermost branch or loop that contains only one of two sites of a function:
        ``the if in line 12 of program.py``. If the two are one, the innermost that contains it.
        Empty if there is none."""
        code = self.code(site)
        if code is None or self.code(other) is not code:
            return ""
        line, second = self.line(site)[1], None if other == site else self.line(other)[1]
        found = ""
        for kind, begin, within in _blocks(code, code.co_filename):
            if (line in within) != (second in within):
                found = f"{BRANCH.format(kind)} {begin} of {file_said(code.co_filename)}"
        return found

    def branch_around(self, sites: Iterable[int], iterations: Iterable[int]) -> str:
        """Return the branch or loop that keeps threads which have ended from a barrier: ``the if in
        line 12 of program.py``.

        The barrier lies at the first of the ``sites`` and is called from the others, in these
        iterations of the loops around it, the outermost first. The innermost branch is returned, or
        a loop within it whose first iteration is over; if there is neither, a loop that the threads
        may not have entered.
        """
        loops, entered = [*iterations], ""
        for site in sites:
            if (code := self.code(site)) is None:
                continue
            line, file = self.line(site)[1], code.co_filename
            for kind, begin, within in reversed(_blocks(code, file)):
                if line not in within:
                    continue
                found = f"{BRANCH.format(kind)} {begin} of {file_said(file)}"
                if kind == "if" or (loops and loops.pop() > 1):
                    return found
                entered = entered or found
        return entered

    def together_in_branch(self, site: int, other: int) -> bool:
        """Return whether an ``if`` of the kernel contains both sites and everything that may run
        between them: a line that follows itself in a loop only if the ``if`` contains the loop.
        True in a device function, because its call may be in an ``if``; of a site of the kernel
        and one of a device function, the kernel's tells."""
        code, its_code = self.code(site), self.code(other)
        kernel = self._kernel
        if code is not its_code and kernel is not None and kernel in (code, its_code):
            line = self.line(site if code is kernel else other)[1]
            blocks = _blocks(kernel, kernel.co_filename)
            return any(kind == "if" and line in within for kind, _, within in blocks)
        if code is None or code is not its_code or code is not self._kernel:
            return True
        line, second = self.line(site)[1], self.line(other)[1]
        blocks = _blocks(code, code.co_filename)
        around = [kind for kind, _, within in blocks if line in within and second in within]
        while line == second and around and around[-1] == "if":
            around.pop()
        return "if" in around

    def knows(self, code: CodeType) -> bool:
        """Return whether the code is that of one of the functions."""
        return id(code) in self._codes

    def is_of_kernel(self, site: int) -> bool:
        """Return whether the kernel itself contains the site, not a device function."""
        return self._kernel is not None and self.code(site) is self._kernel

    def one_each(self, sites: np.ndarray) -> np.ndarray:
        """Return the sites with one number for each instruction: see :func:`instruction`."""
        known, inverse = np.unique(sites, return_inverse=True)
        ones = []
        for site in known.tolist():
            code = self.code(site)
            ones.append(site if code is None else id(code) + instruction(code, site - id(code)))
        return np.array(ones, np.int64)[inverse]

    def code(self, site: int) -> CodeType | None:
        """Return the function that contains this site; None if no function does."""
        code = self._codes.get(max((i for i in self._codes if i <= site), default=0))
        return code if code is not None and site < id(code) + len(code.co_code) else None


@cache
def is_of_a_package(file: str) -> bool:
    """Return whether the file belongs to an installed package, which is not the program's."""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


@lru_cache(maxsize=1000)
def _blocks(code: CodeType, file: str) -> list[tuple[str, int, range]]:
    """Return the branches and loops of a function, outer ones first: the kind of each, the line
    where it begins, and its lines. Nothing for a function without source. ``file`` is the code's,
    because codes of two files may be equal."""
    tree = source_tree(code, file)
    found = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.If | ast.For | ast.While):
            for block in filter(None, (node.body, node.orelse)):
                within = range(block[0].lineno, (block[-1].end_lineno or 0) + 1)
                found.append((type(node).__name__.lower(), node.lineno, within))
    return found


def source_lines(code: CodeType) -> tuple[list[str], int]:
    """Return the lines of a function's source and the number of the first. Raises ``OSError`` if
    there is no source, or if it has been changed so that no function begins there.

    ``inspect.getsourcelines`` returns the same, but searches all loaded modules for the code's own,
    which takes longer than many launches. Only code in an archive needs the module.
    """
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    if not lines:
        return inspect.getsourcelines(code)
    try:
        return inspect.getblock(lines), code.co_firstlineno
    except TokenError as error:
        raise OSError(f"the source has changed: {error}") from None


def parsed_source(code: CodeType) -> ast.Module:
    """Return the source of a function with the lines and columns of its file. Raises ``OSError`` or
    ``TypeError`` if there is no source, and ``SyntaxError`` if it is not whole."""
    lines, first = source_lines(code)
    text = "".join(lines)
    if not lines[0][:1].isspace():
        return ast.increment_lineno(ast.parse(text), first - 1)
    # An indented function is parsed as the body of a branch, so that its columns stay those of the
    # file, which the positions of its instructions name, and a comment may begin further left.
    tree = ast.parse(f"if 1:\n{text}")
    (branch,) = tree.body
    assert isinstance(branch, ast.If)
    tree.body = branch.body
    return ast.increment_lineno(tree, first - 2)


@lru_cache(maxsize=1000)
def source_tree(code: CodeType, file: str) -> ast.Module | None:
    """Return the source of a function with the lines and columns of its file; None without
    source. ``file`` is the code's, because codes of two files may be equal."""
    try:
        return parsed_source(code)
    except (OSError, TypeError, SyntaxError):
        return None


@lru_cache(maxsize=1000)
def has_while(code: CodeType, file: str) -> bool:
    """Return whether a function has a ``while`` loop; False without source."""
    tree = source_tree(code, file)
    return tree is not None and any(isinstance(node, ast.While) for node in ast.walk(tree))


def _line_at(code: CodeType, offset: int) -> int:
    lines = _lines(code)
    return lines[offset] if 0 <= offset < len(lines) else code.co_firstlineno


@lru_cache(maxsize=1000)
def _lines(code: CodeType) -> list[int]:
    """Return the line of each offset of a function."""
    lines = [code.co_firstlineno] * len(code.co_code)
    for begin, end, line in code.co_lines():
        if line:
            lines[begin:end] = [line] * (end - begin)
    return lines


@lru_cache(maxsize=100)
def _steps(code: CodeType) -> list[dis.Instruction]:
    """Return a function's instructions. To list them takes longer than many a small launch."""
    return list(dis.get_instructions(code))


_codes: WeakValueDictionary[int, CodeType] = WeakValueDictionary()
# By the id of the code, because to hash code takes long: read at every wide access and every loop.
_by_id: dict[int, dict[int, int]] = {}  # the offset that stands for each offset
_iterated: dict[int, set[int]] = {}  # the offsets of calls whose results only a loop uses


def instruction(code: CodeType, offset: int) -> int:
    """Return the offset that stands for an instruction. An instruction has several offsets: calls
    come from its cache entries where Python has specialised it, and a ``while`` has its condition
    twice."""
    if id(code) not in _by_id:
        first: dict[object, int] = {}
        stands_for: dict[int, int] = {}
        iterated: set[int] = set()
        steps = _steps(code)
        ends = [step.offset for step in steps[1:]] + [len(code.co_code)]
        names = [step.opname for step in steps[1:]] + [""]
        for step, end, after in zip(steps, ends, names, strict=True):
            where = (step.positions, step.opname) if step.positions else step.offset
            one = first.setdefault(where, step.offset)
            stands_for.update(dict.fromkeys(range(step.offset, end), one))
            if after == "GET_ITER":
                iterated.update(range(step.offset, end))
        _codes[id(code)] = code
        for table in _by_id, _iterated:
            finalize(code, table.pop, id(code), None)
        # Whole, and this one last: another thread of the host may look for it at any time.
        _iterated[id(code)], _by_id[id(code)] = iterated, stands_for
    return _by_id[id(code)][offset]


@lru_cache(maxsize=1000)
def activemask_after_branch(code: CodeType, file: str) -> int | None:
    """Return the site of the first call of ``activemask`` if lanes may have parted before: a branch
    or loop ends above it, other than one that ends with ``return``, ``continue`` or ``break``."""
    calls = [step for step in _steps(code) if step.argval == "activemask"]
    tree = source_tree(code, file)
    if not calls or tree is None:
        return None
    ends = [
        node.end_lineno or 0
        for node in ast.walk(tree)
        if isinstance(node, ast.If | ast.For | ast.While)
        and not isinstance(node.body[-1], ast.Return | ast.Continue | ast.Break)
    ]
    line = _line_at(code, calls[0].offset)
    return id(code) + calls[0].offset if any(end < line for end in ends) else None


def is_raised(error: BaseException) -> bool:
    """Return whether an exception comes from a ``raise`` or ``assert``."""
    trace = innermost(error)
    if trace is None:
        return False
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def innermost(error: BaseException) -> TracebackType | None:
    """Return the place where an exception was raised; None before it has been."""
    found = traces(error)
    return found[-1] if found else None


def traces(error: BaseException) -> list[TracebackType]:
    """Return the frames that an exception came through, the outermost function first."""
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def in_two_arms(site: int, other: int) -> bool:
    """Return whether the sites are in the two arms of one ``if``."""
    code = code_at(site)
    if code is None or code_at(other) is not code:
        return False
    line, second = (_line_at(code, one - id(code)) for one in (site, other))
    arms = [(begin, arm) for kind, begin, arm in _blocks(code, code.co_filename) if kind == "if"]
    return any(  # the two arms of one `if` begin at its line
        begin == its_begin and line in arm and second in its_arm
        for (begin, arm), (its_begin, its_arm) in permutations(arms, 2)
    )


def code_at(site: int) -> CodeType | None:
    """Return the code of an instruction that a log or finding has named."""
    return _codes.get(max((one for one in [*_by_id] if one <= site), default=0))


@cache
def ignores_result(code: CodeType, offset: int) -> bool:
    """Return whether the result of the call at ``offset`` is thrown away."""
    return _next_operation(code, offset) == "POP_TOP"


def iterated_site(frame: FrameType) -> tuple[int, bool]:
    """Return the site of the call that a function is in, and whether a loop runs through its result
    and nothing else uses it."""
    code, offset = frame.f_code, frame.f_lasti
    number = id(code)
    found = _by_id.get(number)
    site = number + (instruction(code, offset) if found is None else found[offset])
    return site, offset in _iterated[number]


def _next_operation(code: CodeType, offset: int) -> str:
    """Return the name of the instruction after the one at ``offset``, which may be in its cache."""
    later = (step for step in _steps(code) if step.offset > offset)
    return next((step.opname for step in later if step.opname != "CACHE"), "")


def lines_setting(code: CodeType, name: str) -> list[int]:
    """Return the lines in which a function assigns to a local variable."""
    return sorted(
        {
            line
            for step in _steps(code)
            if step.opname.startswith("STORE_")
            and name in (step.argval if isinstance(step.argval, tuple) else (step.argval,))
            and (line := _line_at(code, step.offset))
        }
    )


def site_of(depth: int) -> int:
    """Return the site in the function ``depth`` calls above the caller."""
    frame = sys._getframe(depth + 1)
    code, offset = frame.f_code, frame.f_lasti
    found = _by_id.get(id(code))  # `instruction`, written out
    return id(code) + (instruction(code, offset) if found is None else found[offset])


@cache
def assigned_name(code: CodeType, offset: int) -> str:
    """Return the variable that the result of the call at ``offset`` is assigned to: the n-th call
    of ``.array`` on a line belongs to the n-th name that the line assigns to."""
    lines = _lines(code)
    here = [i for i in _steps(code) if lines[i.offset] == lines[offset]]
    before = [i for i in here if i.offset < offset and i.argval in ("array", "array_like")]
    names = _stored(here)
    ordinal = len(before) - 1
    return str(names[ordinal]) if 0 <= ordinal < len(names) else "an array without a name"


def _stored(steps: list[dis.Instruction]) -> list[str]:
    """Return the variables that the instructions of a line assign to, in the order of the source,
    which is not that of the stores: the compiler reorders stores to save swaps."""
    found: list[tuple[float, str]] = []
    for before, step in pairwise(steps):
        column = (step.positions and step.positions.col_offset) or 0
        if step.opname in ("STORE_FAST", "STORE_DEREF", "STORE_NAME"):
            found.append((column, step.argval))
        elif step.opname == "STORE_FAST_LOAD_FAST":  # both instructions in one, since Python 3.13
            found.append((column, step.argval[0]))
        elif step.opname == "STORE_FAST_STORE_FAST":  # with the position of the first store
            first, second = step.argval
            beside = 0.5 if before.opname in _IN_ORDER else -0.5
            found += [(column, first), (column + beside, second)]
    return [name for _, name in sorted(found)]


# After these instructions the compiler does not swap the stores of a line.
_IN_ORDER = ("UNPACK_SEQUENCE", "SWAP", "COPY", "STORE_FAST_STORE_FAST")
