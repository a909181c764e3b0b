"""Sites, the instructions that a log names: their lines, and the branches in which threads part.

``instructions`` says what a site is, ``source_text`` has the source that is read here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from itertools import permutations
from pathlib import Path
from types import CodeType

import numpy as np

from convlab.simulation.recording.instructions import code_at, instruction, line_at, steps_of
from convlab.simulation.recording.source_text import branches_and_loops, source_tree
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
        return code.co_filename, line_at(code, site - id(code))

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
        for kind, begin, within in branches_and_loops(code, code.co_filename):
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
            for kind, begin, within in reversed(branches_and_loops(code, file)):
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
            blocks = branches_and_loops(kernel, kernel.co_filename)
            return any(kind == "if" and line in within for kind, _, within in blocks)
        if code is None or code is not its_code or code is not self._kernel:
            return True
        line, second = self.line(site)[1], self.line(other)[1]
        blocks = branches_and_loops(code, code.co_filename)
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


def in_two_arms(site: int, other: int) -> bool:
    """Return whether the sites are in the two arms of one ``if``."""
    code = code_at(site)
    if code is None or code_at(other) is not code:
        return False
    line, second = (line_at(code, one - id(code)) for one in (site, other))
    branches = branches_and_loops(code, code.co_filename)
    arms = [(begin, arm) for kind, begin, arm in branches if kind == "if"]
    return any(  # the two arms of one `if` begin at its line
        begin == its_begin and line in arm and second in its_arm
        for (begin, arm), (its_begin, its_arm) in permutations(arms, 2)
    )


@lru_cache(maxsize=1000)
def activemask_after_branch(code: CodeType, file: str) -> int | None:
    """Return the site of the first call of ``activemask`` if lanes may have parted before: a branch
    or loop ends above it, other than one that ends with ``return``, ``continue`` or ``break``."""
    calls = [step for step in steps_of(code) if step.argval == "activemask"]
    tree = source_tree(code, file)
    if not calls or tree is None:
        return None
    ends = [
        node.end_lineno or 0
        for node in ast.walk(tree)
        if isinstance(node, ast.If | ast.For | ast.While)
        and not isinstance(node.body[-1], ast.Return | ast.Continue | ast.Break)
    ]
    line = line_at(code, calls[0].offset)
    return id(code) + calls[0].offset if any(end < line for end in ends) else None
