"""Errors and findings of the simulator in a learner's words, with the lines that they name."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from convlab.lessons.error_hints import DIVIDED, MODULES, NOT_AN_INDEX, hint_for
from convlab.lessons.feedback import BROKEN, Line, Mistake
from convlab.lessons.index_advice import index_advice
from convlab.lessons.missing_barriers import (
    calls_in,
    function_around,
    in_one_function,
    instead_of_return,
    told,
    tree_of,
)
from convlab.lessons.thread_dependence import stored_by_all
from convlab.simulation.rules.finding_words import (
    AT_ONCE,
    IN_A_CALL,
    NO_BARRIER,
    RETURNED_IN,
    TWO_STORES,
)
from convlab.simulation.rules.findings import FATAL, Finding
from convlab.support.code_places import cell_said

CONVLAB = Path(__file__).parents[1]
# Words with which sentences about errors begin: names of a learner's functions keep their case.
ORDINARY = {"a", "all", "an", "it", "its", "the", "this", "thread", "threads"}
USUALLY = "What usually fixes it:"
MOST_CALLS = 3  # shown lines that call one function
NOT_OF_SIZES = ("shared race", "global race")  # findings that have their cause in any problem
ENDS = (*FATAL, "deadlock", "endless loop")  # findings after which the answer is not known
ENDED_BEFORE = re.compile(r"(\d+ of \d+ threads) ended before this barrier, (inside .+)")
RETURNED = re.compile(
    rf"(\d+ of \d+ threads) ended before this barrier{RETURNED_IN}(line \d+)(?: of .+?)?"
    r"(?:, as at the (barriers? in lines? [\d and]+))?$"
)
# Of a part of a kernel whose barriers are given, by the kind of the finding.
PARTS_MISTAKES = {
    "shared race": "The kernel's barriers are given, and they are enough for the right part. So "
    "the part accesses a wrong element of {0}: compare its index with the places in {0} that the "
    "task describes, and let each thread store to elements of its own.",
    "uninitialised": "The rest of the kernel is given, and the right part stores to every element "
    "that it reads. Compare the index of each store to {0} with the places in the task.",
}
# Of a line that is given: the simulator stops there, but the mistake is in what it works with.
GIVEN_LINE = ("out of bounds", "misaligned")
OF_A_CALL = (
    "The line with {0} is given. Its index is computed from the arguments of the call: which of "
    "them is too large, too small or in the wrong place? Does a thread with no work call it?"
)
OF_A_CALL_WITH_AN_ARRAY = (
    "The line with {0} is given, and your kernel makes {0}: does {0} have the shape that the call "
    "works with? If so, which other argument of the call is wrong?"
)
OF_A_READ = (
    "The line with {0} is given, and it reads an element of {0} that no thread has stored yet: is "
    "the call too early, or is the argument wrong that says where it reads?"
)
OF_A_PART = (
    "The line with {0} is given. Its index is computed from what your part stores or returns: "
    "compare these numbers with the task."
)
OUTSIDE = re.compile(r"\[([^]]*)\] is outside shape \(([^)]*)\)")
IN_A_THREAD, IN_A_BLOCK = (re.compile(rf"\b{one} \(\d") for one in ("thread", "block"))
PLACE = re.compile(r"(, in \w+, block \(.*?\), thread \(.*?\))?, (?P<file>[^,]*):(?P<line>\d+)$")


class Seen(NamedTuple):
    """More about a finding: the sentence that says where it was seen, and the elements of its array
    that no thread stores, with the lines that store to the array."""

    where: str = ""
    never: str = ""
    stores: tuple[Line, ...] = ()


NOT_SEEN: Mapping[Finding, Seen] = {}


def error_in_words(what: str) -> Mistake:
    """Return an error as a mistake, with the line that raised it if the simulator noted that."""
    what = " ".join(what.split()).strip(". ")
    place, said = PLACE.search(what), PLACE.sub("", what)
    said = re.sub(r"\b1 indices", "1 index", said)
    # Names of the simulator: of numbers whose operations it counts, of arrays, of emulations.
    said = said.replace("CountedFloat", "float")
    said = re.sub(r"'(LocalView|LocalArray|MisalignedArray)'", "'Array'", said)
    said = re.sub(r"\b(?:[A-Z]\w*\.|emulated_)(\w+\(\))", r"\1", said)
    if said.split(" ", 1)[0] in ORDINARY:
        said = capital(said)
    if place is None:
        return Mistake(BROKEN, f"{said}.", advice=hint_for(what))
    file, line = place["file"], int(place["line"])
    lines = lines_of((file, line)) if line else ()  # an error in a call of a library has none
    hint = _name_meant(said, file) or hint_for(what)
    if hint == DIVIDED and not any(re.search("[^/]/[^/]", one.code) for one in lines):
        hint = NOT_AN_INDEX
    return Mistake(BROKEN, f"{said}.", lines, hint)


def _name_meant(said: str, file: str) -> str:
    """Return a hint for a name that is not defined, if the file has a similar one."""
    unknown = re.search(r"name '(\w+)' is not defined", said)
    if unknown is not None and unknown[1] in MODULES:
        return f"The name {unknown[1]} is that of a module: {MODULES[unknown[1]]} is missing."
    tree = None if unknown is None else tree_of(file)
    if unknown is None or tree is None:
        return ""
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    names -= {unknown[1]}
    letters = sorted(unknown[1].lower())
    alike = [name for name in sorted(names) if sorted(name.lower()) == letters]
    found = alike or get_close_matches(unknown[1], sorted(names), n=1)
    return f"Is {found[0]} meant?" if found else ""


def lines_of(*places: tuple[str | None, int | None], kernel: Any = None) -> tuple[Line, ...]:
    """Return lines of files or of cells, which IPython calls files; the learner's come first.

    Traces have short names of files. With a ``kernel``, such a name is looked up among its files.
    """
    found = set()
    for file, number in places:
        if file is None or number is None:
            continue
        if kernel is not None:
            file = _whole_name(file, kernel)
        library = Path(file).name if Path(file).is_relative_to(CONVLAB) else ""
        code = linecache.getline(file, number).strip()
        found.add(Line(number, code, library, cell_said(file)))
    return tuple(sorted(found, key=lambda line: (line.library, line.number)))


def calls_of(own: str, *places: tuple[str | None, int | None]) -> tuple[Line, ...]:
    """Return the lines of a learner's file ``own`` that call a function of another file or cell
    which contains one of the places: there the learner's mistake is."""
    tree, found = tree_of(own), list[Line]()
    for file, number in places:
        if file is None or number is None or file == own or tree is None:
            continue
        if (function := function_around(file, number)) is None:
            continue
        for call in calls_in(tree, function.name):
            code = linecache.getline(own, call).strip()
            line = Line(call, code, cell=cell_said(own), calls=function.name)
            if line not in found:
                found.append(line)
    return tuple(sorted(found, key=lambda line: line.number))[:MOST_CALLS]


def with_calls(kernel: Any, *places: tuple[str, int]) -> tuple[Line, ...]:
    """Return lines that a trace of a kernel names, after the kernel's lines that call their
    functions."""
    own = str(kernel.py_func.__code__.co_filename)
    whole = [(_whole_name(file, kernel), number) for file, number in places]
    return calls_of(own, *whole) + lines_of(*whole)


def _whole_name(file: str, kernel: Any) -> str:
    """Return a file of which only the name is known: that of the kernel, or another one."""
    own = str(kernel.py_func.__code__.co_filename)
    files = (one for one in (own, *linecache.cache) if Path(one).name == Path(file).name)
    return next(files, own)


def capital(text: str) -> str:
    """Return the text with a capital letter first."""
    return text[:1].upper() + text[1:]


def of_findings(
    findings: Iterable[Finding], kernel: Any = None, own: str = "", barriers_given: bool = False,
    seen: Mapping[Finding, Seen] = NOT_SEEN,
) -> list[Mistake]:  # fmt: skip
    """Return findings of the simulator as mistakes with their lines; pass the kernel of a trace.
    ``own`` is the learner's file, by default that of the kernel. With ``barriers_given`` the
    learner has written a part of a kernel, and its barriers are not in that part. ``seen`` tells
    more of some findings.

    Of several findings with one cause, only one is returned: that with most of the learner's lines.
    Races and reads of shared elements that nobody wrote are left out if threads do not meet at a
    barrier, because they may come from that.
    """
    if kernel is not None:
        own = own or str(kernel.py_func.__code__.co_filename)
    mistakes: dict[Any, list[Mistake]] = {}
    found = list(findings)
    parted = any(finding.kind == "barrier divergence" for finding in found)
    for finding in found:
        if not (parted and _may_follow(finding, kernel)):
            one = _of_finding(finding, kernel, own, barriers_given)
            one = _with_more(one, seen.get(finding, Seen()))
            mistakes.setdefault(one.cause, []).append(one)
    told = []
    for same in mistakes.values():
        # The one to show has the most lines of the learner's and the fewest of a library's, and
        # names the barrier that is missing.
        shown = min(same, key=lambda one: (_of_library(one), one.advice.startswith(USUALLY)))
        if (places := len({one.lines for one in same})) > 1:
            more = f" The same happens at {places} places; one fix may remove all of them."
            shown = replace(shown, advice=shown.advice + more)
        told.append(shown)
    return told


def _with_more(mistake: Mistake, seen: Seen) -> Mistake:
    """Return a finding's mistake with what else is known of it."""
    if seen.where and mistake.reason not in NOT_OF_SIZES:
        mistake = replace(mistake, what=f"{mistake.what} {seen.where}")
    if seen.never:
        lines = tuple(dict.fromkeys((*mistake.lines, *seen.stores)))
        mistake = replace(mistake, lines=lines, advice=seen.never)
    return mistake


def _may_follow(finding: Finding, kernel: Any) -> bool:
    """Return whether a finding may come from threads that do not meet at a barrier: a thread that
    has returned, or that waits elsewhere, stores nothing that others read."""
    if finding.kind != "uninitialised":
        return finding.kind == "shared race"
    file = finding.file if kernel is None else _whole_name(finding.file, kernel)
    return _memory_of(file, finding.array) == "shared"


def _of_library(mistake: Mistake) -> int:
    return sum(bool(line.library) for line in mistake.lines)


def _of_finding(finding: Finding, kernel: Any, own: str, barriers_given: bool) -> Mistake:
    if kernel is not None:
        other = finding.other_file and _whole_name(finding.other_file, kernel)
        finding = replace(finding, file=_whole_name(finding.file, kernel), other_file=other)
    barrier = told(in_one_function(finding, own)) if own else told(finding)
    said = finding.what if barrier is None else barrier[0]
    if finding.kind == "global race":  # a barrier would not help across blocks
        said = re.sub(f", {NO_BARRIER}.*", "", said)
    said = _returned(ENDED_BEFORE.sub(r"\1 never came to this barrier, which is \2", said))
    what = f"{capital(finding.kind)}: {said}"
    what += _seen(finding, said)
    places = (finding.file, finding.line), (finding.other_file, finding.other_line)
    remedy = f"{USUALLY} {_remedy(finding)}" if barrier is None else barrier[1]
    remedy = stored_by_all(finding) or remedy
    if barriers_given and finding.kind in PARTS_MISTAKES:
        remedy = PARTS_MISTAKES[finding.kind].format(finding.array or "the array")
    calls = calls_of(own, *places)
    lines = calls + lines_of(*places, kernel=kernel)
    given = bool(lines) and all(line.library or line.calls for line in lines)
    if own and given and finding.kind in GIVEN_LINE:
        of_a_call = OF_A_CALL_WITH_AN_ARRAY if _memory_of(own, finding.array) else OF_A_CALL
        remedy = (of_a_call if calls else OF_A_PART).format(finding.array or "the access")
    if own and given and calls and finding.kind == "uninitialised" and not barriers_given:
        remedy = OF_A_READ.format(finding.array or "the array")
    return Mistake(finding.kind, f"{what}.", lines, remedy)


def _seen(finding: Finding, said: str) -> str:
    """Return where a finding was seen. A sentence that names its threads does not need them again,
    and one about two blocks needs neither."""
    if finding.thread is None or IN_A_BLOCK.search(said):
        return ""
    of_block = "" if finding.block is None else f"block {_place(finding.block)}"
    if IN_A_THREAD.search(said):
        return f", in {of_block}" if of_block else ""
    return f", seen in thread {_place(finding.thread)}{of_block and f' of {of_block}'}"


def _returned(said: str) -> str:
    """Return a finding about threads that returned before a barrier in a learner's words: also
    which other barriers these threads did not come to."""
    found = RETURNED.search(said)
    if found is None:
        return said
    threads, line, others = found.groups()
    told = f"{threads} never came to this barrier"
    if others is not None:
        told += f", nor to the {others}"
    return f"{said[: found.start()]}{told}; this one returned in {line}"


def _remedy(finding: Finding) -> str:
    """Return what usually fixes a finding, in the words of the lessons."""
    if finding.kind == "global race" and IN_A_CALL not in finding.what:
        array = finding.array or "the array"
        return (
            f"Let each element of {array} be written by one thread, and read by no other, or use "
            "an atomic. A barrier lets only the threads of one block wait for each other."
        )
    memory = _memory_of(finding.file, finding.array)
    if (outside := OUTSIDE.search(finding.what)) is not None:
        numbers, shape = (_integers(outside[group]) for group in (1, 2))
        if len(numbers) < len(shape):
            return "Give an index for each dimension."
        advice = index_advice(
            finding.file, finding.line, finding.array or "", numbers, shape, memory
        )
        if advice:
            return advice
    if finding.kind == "barrier divergence" and RETURNED_IN in finding.what:
        lines = [one for one in (finding.line, finding.other_line) if one is not None]
        same_file = finding.other_file in (None, finding.file)
        if same_file and (instead := instead_of_return(finding.file, *lines)):
            return instead
    if finding.kind == "misaligned":
        return (
            f"Let the index into {finding.array or 'the array'} be a multiple of the access's "
            "width: of four numbers for a float4. A shared array needs alignment=BYTES_16, too."
        )
    several = any(piece in finding.what for piece in (TWO_STORES, AT_ONCE))
    if finding.kind == "shared race" and several:
        return (
            f"Several threads store to one element of {finding.array}: is the index the right one? "
            "Each element belongs to one thread."
        )
    if finding.kind == "uninitialised" and memory == "local":
        if not _adds_to(finding.file, finding.line, finding.array):
            return (
                f"No line has stored to this element of {finding.array} before: which of its "
                "elements do the stores reach? Each thread has a local array of its own, and "
                "threads share cuda.shared.array."
            )
        return (
            f"Give each element of {finding.array} a value first, float32(0) before a sum. Each "
            "thread has a local array of its own, and threads share cuda.shared.array."
        )
    # No lesson has a warp's barrier, and after it races with other warps would be found next.
    return finding.remedy.replace("syncwarp", "syncthreads")


def _adds_to(file: str, line: int, array: str | None) -> bool:
    """Return whether the function around a line adds to elements of an array, as to sums."""
    function = function_around(file, line)
    nodes = [] if function is None else ast.walk(function)
    targets = (node.target for node in nodes if isinstance(node, ast.AugAssign))
    return any(
        isinstance(one, ast.Subscript) and ast.unparse(one.value) == array for one in targets
    )


def _integers(listed: str) -> tuple[int, ...]:
    """Return the integers of a list such as ``3, 4``."""
    return tuple(map(int, re.findall(r"-?\d+", listed)))


def _memory_of(file: str, array: str | None) -> str:
    """Return the memory of an array that a kernel of the file makes: ``shared`` or ``local``. Empty
    for any other array."""
    tree = tree_of(file)
    for node in [] if tree is None else ast.walk(tree):
        if isinstance(node, ast.Assign):
            made = re.search(r"\b(shared|local)\.array\(", ast.unparse(node.value))
            names = {
                one.id
                for target in node.targets
                for one in ast.walk(target)
                if isinstance(one, ast.Name)
            }
            if made is not None and array in names:
                return made[1]
    return ""


def _place(place: tuple[int, ...]) -> str:
    """Return ``3`` for a place with one dimension, otherwise ``(3, 1)``."""
    return str(place[0]) if not any(place[1:]) else f"({', '.join(map(str, place))})"
