"""The instructions of functions: the site of the one that runs, its line, and its result's name.

A site is ``id(code) + offset``.
"""

from __future__ import annotations

import dis
import sys
from functools import cache, lru_cache
from itertools import pairwise
from types import CodeType, FrameType
from weakref import WeakValueDictionary, finalize

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
        steps = steps_of(code)
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


def site_of(depth: int) -> int:
    """Return the site in the function ``depth`` calls above the caller."""
    frame = sys._getframe(depth + 1)
    code, offset = frame.f_code, frame.f_lasti
    found = _by_id.get(id(code))  # `instruction`, written out
    return id(code) + (instruction(code, offset) if found is None else found[offset])


def iterated_site(frame: FrameType) -> tuple[int, bool]:
    """Return the site of the call that a function is in, and whether a loop runs through its result
    and nothing else uses it."""
    code, offset = frame.f_code, frame.f_lasti
    number = id(code)
    found = _by_id.get(number)
    site = number + (instruction(code, offset) if found is None else found[offset])
    return site, offset in _iterated[number]


def code_at(site: int) -> CodeType | None:
    """Return the code of an instruction that a log or finding has named."""
    return _codes.get(max((one for one in [*_by_id] if one <= site), default=0))


def line_at(code: CodeType, offset: int) -> int:
    """Return the line of the instruction at an offset; the function's first line if its code has no
    such offset."""
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
def steps_of(code: CodeType) -> list[dis.Instruction]:
    """Return a function's instructions. To list them takes longer than many a small launch."""
    return list(dis.get_instructions(code))


def lines_setting(code: CodeType, name: str) -> list[int]:
    """Return the lines in which a function assigns to a local variable."""
    return sorted(
        {
            line
            for step in steps_of(code)
            if step.opname.startswith("STORE_")
            and name in (step.argval if isinstance(step.argval, tuple) else (step.argval,))
            and (line := line_at(code, step.offset))
        }
    )


@cache
def ignores_result(code: CodeType, offset: int) -> bool:
    """Return whether the result of the call at ``offset`` is thrown away."""
    return _next_operation(code, offset) == "POP_TOP"


def _next_operation(code: CodeType, offset: int) -> str:
    """Return the name of the instruction after the one at ``offset``, which may be in its cache."""
    later = (step for step in steps_of(code) if step.offset > offset)
    return next((step.opname for step in later if step.opname != "CACHE"), "")


@cache
def assigned_name(code: CodeType, offset: int) -> str:
    """Return the variable that the result of the call at ``offset`` is assigned to: the n-th call
    of ``.array`` on a line belongs to the n-th name that the line assigns to."""
    lines = _lines(code)
    here = [i for i in steps_of(code) if lines[i.offset] == lines[offset]]
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
