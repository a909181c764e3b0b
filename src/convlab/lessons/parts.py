"""A stage's kernel in parts, so that a lesson's cell holds only the part that it is about.

A part is a function inside a stage's ``make_kernel``, or lines of the kernel that
:data:`~convlab.lessons.part_tables.PARTS` names; such lines become a device function. A cell may
show a part alone, to be filled in, or the kernel with solved parts:
``read = solved("m08", "read", problem, tile)``. Both are made of the stage's own source, so that
lessons and stages cannot drift.
"""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from convlab.ladder import short_name
from convlab.lessons.part_tables import Part
from convlab.lessons.stage_sources import StageSource, span

PACKAGE = Path(__file__).parent


def stage_code(
    stage: str, name: str = "", hidden: Sequence[str] = (), given: Sequence[str] = ()
) -> str:
    """Return a function of a stage's file without its annotations, after its imports and constants.

    ``stage`` may also be a key of :data:`~convlab.lessons.stage_sources.SHARED`, and ``name`` is by
    default that of the function that makes the kernel. Other functions of the file are imported
    from it. The parts ``hidden`` are solved, with the constants ``given`` as they are in this
    function; constants that no shown line uses are left out. Raises ``ValueError`` for an unknown
    part.
    """
    source = StageSource(stage, name)
    return source.with_imports(source.function(hidden, given))


def part_code(stage: str, part: str, given: Sequence[str] = ()) -> str:
    """Return the function ``make_PART``, which makes a part of a kernel, after its imports.

    It takes the constants ``given`` by keyword. Raises ``ValueError`` for an unknown part.
    """
    source = StageSource(stage)
    return source.with_imports(source.part(part, given))


def lines_between(lines: Sequence[str], first: str, last: str) -> list[str]:
    """Return lines as :class:`Part` names them, with no more indentation than they need.

    Raises ``ValueError`` unless there are such lines in one place.
    """
    start, end = span(lines, Part("", first, last))
    return textwrap.dedent("\n".join(lines[start : end + 1])).splitlines()


def has_part(stage: str, part: str) -> bool:
    """Return whether a stage's kernel has the part."""
    return part in StageSource(stage).solvable


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
