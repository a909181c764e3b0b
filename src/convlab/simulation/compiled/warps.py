"""The calls of a warp's lanes in compiled launches: which are complete, and their results.

A call is complete when all lanes that its mask names and that still live have come to the same
place of the code. A call that names lanes which never come, or that others come to, is suspect.
"""

from __future__ import annotations

from convlab.simulation.compiled.cells import EPOCH_SHIFT, LAST_EPOCH
from convlab.simulation.compiled.context import (
    MASK,
    OTHER,
    PATH,
    RESULT,
    SITE,
    STAMP,
    STATE,
    VALUE,
    WAITS_AT,
    set_word,
)
from convlab.simulation.compiled.records import RECORD_BYTES, get, put
from convlab.simulation.compiled.runtime import shared_code
from convlab.simulation.compiled.states import (
    ACTIVEMASK,
    ALL,
    ANY,
    BALLOT,
    DONE,
    EQ,
    MATCH_ALL,
    MATCH_ANY,
    READY,
    SHUFFLE,
    SYNCWARP,
)
from convlab.simulation.compiled.suspects import ABSENT_LANE, suspect

WARP = 32


@shared_code("boolean(int64, int64)")
def meet(one: int, other: int) -> bool:
    """Return whether two lanes wait in the same call."""
    return (
        get(one, STATE) == get(other, STATE)
        and get(one, WAITS_AT) == get(other, WAITS_AT)
        and get(one, PATH) == get(other, PATH)
        and get(one, MASK) == get(other, MASK)
    )


@shared_code("int64(int64, int64, int64)")
def lanes_with(warp: int, present: int, value: int) -> int:
    """Return the mask of the lanes among those present that bring a value."""
    found = 0
    for lane in range(WARP):
        if present >> lane & 1 and get(warp + lane * RECORD_BYTES, VALUE) == value:
            found |= 1 << lane
    return found


@shared_code("int64(int64, int64, int64, int64)")
def result_of(warp: int, present: int, state: int, lane: int) -> int:
    """Return the result of a lane's call, a word."""
    if state == ACTIVEMASK:
        return present
    same = lanes_with(warp, present, get(warp + lane * RECORD_BYTES, VALUE))
    true = lanes_with(warp, present, 1)
    if state == BALLOT:
        return true
    if state == ALL:
        return 1 if true == present else 0
    if state == ANY:
        return 1 if true else 0
    if state == EQ:
        return 1 if same == present else 0
    if state == MATCH_ANY:
        return same
    if state == MATCH_ALL:
        return present if same == present else 0
    return 0


@shared_code("void(int64, int64, int64)")
def shuffle(warp: int, present: int, lane: int) -> None:
    """Give a lane the number of the lane that it reads from."""
    mine = warp + lane * RECORD_BYTES
    source = get(mine, OTHER)
    put(mine, RESULT, get(mine, VALUE))
    if 0 <= source < WARP:
        if present >> source & 1:
            put(mine, RESULT, get(warp + source * RECORD_BYTES, VALUE))
        else:
            set_word(SITE, get(mine, WAITS_AT))
            suspect(ABSENT_LANE, 0)


@shared_code("void(int64, int64, int64, int64, int64)")
def carry_out(warp: int, lanes: int, present: int, living: int, first: int) -> None:
    """Carry out the call of the lanes present, of which one is the ``first``."""
    record = warp + first * RECORD_BYTES
    state, mask = get(record, STATE), get(record, MASK)
    if state != ACTIVEMASK:
        there = living if state == SYNCWARP else (1 << lanes) - 1
        if mask & there & ~present or present & ~mask:
            set_word(SITE, get(record, WAITS_AT))
            suspect(ABSENT_LANE, 0)
    for lane in range(lanes):
        mine = warp + lane * RECORD_BYTES
        if present >> lane & 1 == 0:
            continue
        if state == SHUFFLE:
            shuffle(warp, present, lane)
        else:
            put(mine, RESULT, result_of(warp, present, state, lane))
    for lane in range(lanes):
        mine = warp + lane * RECORD_BYTES
        if present >> lane & 1:
            put(mine, STATE, READY)
            stamp = get(mine, STAMP)
            if state == SYNCWARP and present == living:
                if (stamp >> EPOCH_SHIFT) & LAST_EPOCH < LAST_EPOCH:
                    put(mine, STAMP, stamp + (1 << EPOCH_SHIFT))


@shared_code("boolean(int64, int64, boolean)")
def pass_warp(warp: int, lanes: int, complete: bool) -> bool:
    """Let the lanes of a warp go on whose call is complete, or the first of those that wait for
    lanes that never come unless it must be ``complete``; return whether there are any."""
    living = waiting = 0
    for lane in range(lanes):
        state = get(warp + lane * RECORD_BYTES, STATE)
        if state != DONE:
            living |= 1 << lane
        if state >= SYNCWARP:
            waiting |= 1 << lane
    went = False
    while waiting:
        first = 0
        while waiting >> first & 1 == 0:
            first += 1
        record, present = warp + first * RECORD_BYTES, 0
        for lane in range(first, lanes):
            if waiting >> lane & 1 and meet(record, warp + lane * RECORD_BYTES):
                present |= 1 << lane
        waiting &= ~present
        if not complete or not get(record, MASK) & living & ~present:
            carry_out(warp, lanes, present, living, first)
            went = True
            if not complete:
                return True
    return went


@shared_code("boolean(int64, int64, boolean)")
def pass_warps(threads: int, records: int, complete: bool) -> bool:
    """Let the lanes of all warps go on whose call is complete, as :func:`pass_warp` does."""
    went = False
    for first in range(0, threads, WARP):
        lanes = min(WARP, threads - first)
        went = pass_warp(records + first * RECORD_BYTES, lanes, complete) or went
        if went and not complete:
            return True
    return went
