"""The barrier that is missing in a race, found in the text of a learner's kernel.

A finding of the simulator names two lines. Where both are lines of one function, the loops and
barriers around them tell which barrier is missing: the one between the store and the load, or the
one before the next pass of the loop stores again. A line of a device function counts as the line
of the kernel that calls the function.
"""

from __future__ import annotations

import ast
import linecache
import re
from dataclasses import dataclass, replace
from functools import cached_property

from convlab.lessons.pictures import joined
from convlab.simulation.rules.finding_words import SAME_WARP
from convlab.simulation.rules.findings import Finding

Loop = ast.For | ast.While
RACE = re.compile(
    r"^(?P<one>.+?) (?P<did>reads|writes) (?P<array>\w+)(?P<index>\[.*?\]) and (?P<other>.+?) "
    r"(?P<does>reads|overwrites) it, with no barrier between(?P<more>.*)$"
)


def tree_of(file: str) -> ast.Module | None:
    """Return the syntax tree of a file or cell; None if it has none."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def loops_around(tree: ast.AST, line: int) -> list[Loop]:
    """Return the loops that contain a line, the outermost first."""
    found = [node for node in ast.walk(tree) if isinstance(node, Loop) and _holds(node, line)]
    return sorted(found, key=lambda node: node.lineno)


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


@dataclass(frozen=True)
class Text:
    """The function around a race, as far as barriers matter."""

    function: ast.FunctionDef

    @cached_property
    def barriers(self) -> dict[int, str]:
        """The lines of barriers, each with its name: ``syncthreads`` or ``syncwarp``."""
        calls = [node for node in ast.walk(self.function) if isinstance(node, ast.Call)]
        named = ((node.lineno, ast.unparse(node.func).rpartition(".")[2]) for node in calls)
        return {line: name for line, name in named if name in ("syncthreads", "syncwarp")}

    def between(self, first: int, last: int) -> list[int]:
        """Return the lines of the block's barriers between two lines."""
        found = (line for line, name in self.barriers.items() if name == "syncthreads")
        return [line for line in found if first < line < last]

    def loop_of(self, *lines: int) -> Loop | None:
        """Return the innermost loop that contains all of the lines."""
        loops = loops_around(self.function, min(lines))
        return next((one for one in reversed(loops) if _holds(one, max(lines))), None)

    def branch_of(self, barrier: int, *lines: int) -> int | None:
        """Return the line of an ``if`` around a barrier that contains none of the lines."""
        for node in ast.walk(self.function):
            if isinstance(node, ast.If) and _holds(node, barrier):
                if not any(_holds(node, line) for line in lines):
                    return node.lineno
        return None


def function_around(file: str, line: int) -> ast.FunctionDef | None:
    """Return the innermost function of a file that contains a line."""
    tree = tree_of(file)
    return None if tree is None else _innermost(tree, line)


def _innermost(tree: ast.AST, line: int) -> ast.FunctionDef | None:
    around = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _holds(node, line)
    ]
    return max(around, key=lambda node: node.lineno) if around else None


def instead_of_return(file: str, *lines: int) -> str:
    """Return what to do instead of a ``return`` before a barrier; empty if the text does not tell.

    Told are the stores to the kernel's arguments below the ``return``, which is in one of the
    ``lines``: these need its condition, and the rest of the kernel does not.
    """
    function = function_around(file, max(lines))
    if function is None:
        return ""
    leaves = [
        one.body[-1].lineno
        for one in function.body
        if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return) and not one.orelse
    ]
    found = next((line for line in leaves if line in lines), None)
    if found is None:
        return ""
    arguments = {one.arg for one in function.args.args}
    stores: dict[str, list[int]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AugAssign) and node.lineno > found:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {ast.unparse(one.value) for one in targets if isinstance(one, ast.Subscript)}
            for name in names & arguments:
                stores.setdefault(name, []).append(node.lineno)
    if not stores:
        return ""
    listed = " and ".join(_stores_to(name, sorted(places)) for name, places in stores.items())
    condition = max(line for line in _ifs(function) if line <= found)
    return joined(f"""Delete the return: every thread must come to the barrier, because it has work
        to do for the others. The opposite of the condition in line {condition} matters for
        {listed} alone, and belongs into an if there.""")


def _stores_to(name: str, places: list[int]) -> str:
    if len(places) == 1:
        return f"the store to {name} in line {places[0]}"
    *first, last = places
    return f"the stores to {name} in lines {', '.join(map(str, first))} and {last}"


def _ifs(function: ast.FunctionDef) -> set[int]:
    return {node.lineno for node in ast.walk(function) if isinstance(node, ast.If)}


def calls_in(tree: ast.AST, name: str) -> list[int]:
    """Return the lines of a text that call a function."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    lines = {one.lineno for one in calls if ast.unparse(one.func).rpartition(".")[2] == name}
    return sorted(lines)


def in_one_function(finding: Finding, own: str) -> Finding:
    """Return a finding whose lines are both of one function of the file ``own``, where lines of
    functions that this one calls are the lines of these calls. The finding itself if there is no
    such function, or if it has several such calls."""
    tree, other = tree_of(own), finding.other_file or finding.file
    if tree is None or finding.other_line is None:
        return finding
    places = [(finding.file, finding.line), (other, finding.other_line)]
    accessed_in = [function_around(*place) for place in places]
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        lines: list[int] = []
        for (file, line), its_function in zip(places, accessed_in, strict=True):
            found = _innermost(tree, line)
            if file == own and found is not None and found.lineno == function.lineno:
                lines.append(line)
            elif its_function is not None:
                calls = calls_in(function, its_function.name)
                lines += [one for one in calls if _innermost(tree, one) is function][:2]
        if len(lines) == len(places):
            line, other_line = lines
            return replace(finding, file=own, line=line, other_file=own, other_line=other_line)
    return finding


def told(finding: Finding) -> tuple[str, str] | None:
    """Return the sentence of a race in shared memory, and which barrier is missing.

    None for any other finding, or if the text does not tell.
    """
    race = RACE.match(finding.what)
    if finding.kind != "shared race" or race is None or finding.other_line is None:
        return None
    if finding.other_file not in (None, finding.file):
        return None
    lines = finding.other_line, finding.line
    text = _text_of(finding.file, *lines)
    if text is None or (race["did"] == "writes" and race["does"] == "overwrites"):
        return None
    store, load = lines if race["did"] == "writes" else lines[::-1]
    reader, writer = race["other"].removesuffix(SAME_WARP), race["one"]
    if race["did"] == "reads":
        reader, writer = writer, reader
    return _sentence(text, race, store, load, reader, writer)


def _text_of(file: str, *lines: int) -> Text | None:
    tree = tree_of(file)
    if tree is None:
        return None
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and all(_holds(node, line) for line in lines)
    ]
    return Text(max(functions, key=lambda node: node.lineno)) if functions else None


def _sentence(
    text: Text, race: re.Match[str], store: int, load: int, reader: str, writer: str
) -> tuple[str, str] | None:
    array, element = race["array"], race["array"] + race["index"]
    too_early = f"{reader} reads {element} before {writer} has written it"
    too_late = f"{writer} overwrites {element} while {reader} may still have to read it"
    loop = text.loop_of(store, load)
    if store == load:
        return None if loop is None else (race.string, _in_one_line(text, loop, store, array))
    above, below = sorted((store, load))
    passed = text.between(above, below)
    if not passed:
        does = f"stores to {array}, and before line {load}, which reads it"
        seen, why = too_early, "no thread may read before all have stored."
        if load < store:
            does = f"reads {array}, and before line {store}, which stores to it"
            seen, why = too_late, "no thread may store before all have read."
        return seen, joined(f"""A barrier is missing after line {above}, which {does}:
            {why} {_instead(text, above, below, store, load)}""")
    if (branch := text.branch_of(passed[-1], store, load)) is not None:
        return race.string, joined(f"""The barrier in line {passed[-1]} is inside the if in line
            {branch}: move it out, so that it is reached every time.""")
    if loop is None:
        return None
    seen = too_late if store < load else too_early
    last = f"reads {array}" if store < load else f"stores to {array}"
    again = "stores to it" if store < load else "reads it"
    end = _instead(text, below, (loop.end_lineno or below) + 1, store, load)
    return seen, joined(f"""A barrier is missing after line {below}, which {last}, at the end of the
        loop in line {loop.lineno}: its next pass {again} again in line {above}, while slow threads
        have not come so far. {end}""")


def _in_one_line(text: Text, loop: Loop, line: int, array: str) -> str:
    """Return what is missing where one line of a loop reads and stores."""
    inside = text.between(loop.lineno, (loop.end_lineno or line) + 1)
    if not inside:
        remark = _of_warp(text, loop.lineno, (loop.end_lineno or line) + 1)
        return joined(f"""The loop in line {loop.lineno} has no barrier: one pass reads what other
            threads have stored to {array} in the pass before. Put cuda.syncthreads() at the end of
            the loop's body, outside of any if. {remark}""").strip()
    branches = ((barrier, text.branch_of(barrier, line)) for barrier in inside)
    skipped = next(((barrier, branch) for barrier, branch in branches if branch is not None), None)
    if skipped is not None:
        return joined(f"""The barrier in line {skipped[0]} is inside the if in line {skipped[1]}, so
            some passes of the loop go without one: move it out of the if.""")
    return joined(f"""Within one pass of the loop in line {loop.lineno} a thread reads an element of
        {array} that another one stores to. Which elements does each thread read, and which does it
        store to?""")


def _instead(text: Text, first: int, last: int, *accesses: int) -> str:
    """Return where the barrier must stand, or that one of a warp stands there."""
    if remark := _of_warp(text, first, last):
        return remark
    if (loop := text.loop_of(*accesses)) is None or loop.lineno > first:
        return "Put cuda.syncthreads() there, where all threads of the block reach it."
    return "Put cuda.syncthreads() there, outside of every if and inner loop."


def _of_warp(text: Text, first: int, last: int) -> str:
    for line, name in text.barriers.items():
        if name == "syncwarp" and first < line < last:
            return joined(f"""cuda.syncwarp() in line {line} lets only the threads of one warp wait
                for each other: cuda.syncthreads() is meant.""")
    return ""
