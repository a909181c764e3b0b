"""Errors and findings of the simulator in a learner's words, with the lines that they name."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from convlab.lessons.feedback import BROKEN, Line, Problem
from convlab.simulation.rules.findings import Finding

CONVLAB = Path(__file__).parents[1]
# Hints for beginners' mistakes, by a piece of the error's message.
SINGLE_ELEMENTS = (
    "A thread works on single elements, such as a[i]; a kernel has no operations on whole arrays."
)
HINTS = {
    "'Array'": SINGLE_ELEMENTS,
    "would allocate an array": SINGLE_ELEMENTS,
    "Dim3": "cuda.threadIdx, cuda.blockIdx and cuda.blockDim each have three numbers: .x, "
    ".y and .z.",
    "NameError": "Is the name written as in the rest of the cell? A thread's own number is "
    "cuda.threadIdx.x.",
    "float() argument": "An element of an array takes one number, such as a[i] + 10.",
    "Untyped global name": "A kernel can use only numbers and arrays from outside: give what it "
    "needs a name before the kernel, as for C_i.",
    "returned None": "A function that makes a kernel must return the kernel in its last line.",
    "it must be a kernel": "Is @cuda.jit in the line above the function?",
    "'method'": "Is a pair of parentheses missing, as in cuda.grid(1)?",
    "is no integer": "// divides to an integer, / to a float.",
    "<intrinsic wait_copies>": "wait_copies takes a constant, such as IN_FLIGHT: compute the "
    "number outside of the kernel.",
    "run more than": "Does the kernel have one loop too many?",
}
PLACE = re.compile(r"(, in \w+, block \(.*?\), thread \(.*?\))?, (?P<file>[^,]*):(?P<line>\d+)$")


def error_in_words(what: str) -> Problem:
    """Return an error as a problem, with the line that raised it if the simulator noted that."""
    what = " ".join(what.split()).strip(". ")
    place, said = PLACE.search(what), PLACE.sub("", what)
    if not re.search("[_.]", said.split(" ", 1)[0]):  # else it begins with something's name
        said = capital(said)
    lines = () if place is None else lines_of((place["file"], int(place["line"])))
    return Problem(BROKEN, f"{said}.", lines, hint_for(what))


def hint_for(what: str) -> str:
    return next((hint for piece, hint in HINTS.items() if piece in what), "")


def lines_of(*places: tuple[str | None, int | None], kernel: Any = None) -> tuple[Line, ...]:
    """Return lines of files or of cells, which IPython calls files; the learner's come first.

    Traces have short names of files. With a ``kernel``, such a name is looked up among its files.
    """
    found = set()
    for file, number in places:
        if file is None or number is None:
            continue
        if kernel is not None:
            own = kernel.py_func.__code__.co_filename
            files = (one for one in (own, *linecache.cache) if Path(one).name == Path(file).name)
            file = next(files, own)
        library = Path(file).name if Path(file).is_relative_to(CONVLAB) else ""
        found.add(Line(number, linecache.getline(file, number).strip(), library))
    return tuple(sorted(found, key=lambda line: (line.library, line.number)))


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def of_findings(findings: Iterable[Finding], kernel: Any = None) -> list[Problem]:
    """Return findings of the simulator as problems with their lines; pass the kernel of a trace.

    Of several findings with one cause, only one is returned: that with most of the learner's lines.
    """
    problems: dict[Any, list[Problem]] = {}
    for finding in findings:
        one = _of_finding(finding, kernel)
        problems.setdefault(one.cause, []).append(one)
    told = []
    for same in problems.values():
        # The one to show has the most lines of the learner's and the fewest of a library's.
        shown = min(same, key=lambda one: sum(bool(line.library) for line in one.lines))
        if (places := len({one.lines for one in same})) > 1:
            more = f" The same happens at {places} pairs of lines; one fix may remove all of them."
            shown = replace(shown, advice=shown.advice + more)
        told.append(shown)
    return told


def _of_finding(finding: Finding, kernel: Any) -> Problem:
    what = f"{capital(finding.kind)}: {finding.what}"
    if finding.thread is not None:
        what += f", seen in thread {_place(finding.thread)}"
        what += "" if finding.block is None else f" of block {_place(finding.block)}"
    places = (finding.file, finding.line), (finding.other_file, finding.other_line)
    # No lesson has a warp's barrier, and after it races with other warps would be found next.
    remedy = f"What usually fixes it: {finding.remedy.replace('syncwarp', 'syncthreads')}."
    return Problem(finding.kind, f"{what}.", lines_of(*places, kernel=kernel), remedy)


def _place(place: tuple[int, ...]) -> str:
    """Return ``3`` for a place with one dimension, otherwise ``(3, 1)``."""
    return str(place[0]) if not any(place[1:]) else f"({', '.join(map(str, place))})"
