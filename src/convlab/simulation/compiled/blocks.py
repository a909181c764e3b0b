"""The scheduler of compiled launches: runs blocks one after the other, each thread until it waits.

Threads run in the order of their numbers, as in the other engine. When all threads of a block wait
or have ended, those go on whose call is complete.
"""

from __future__ import annotations

from convlab.simulation.compiled.cells import PHASE_SHIFT
from convlab.simulation.compiled.context import (
    BACKWARDS,
    BLOCK,
    BLOCK_X,
    BLOCK_Y,
    BLOCK_Z,
    BLOCKS,
    CURRENT,
    ENDED,
    FENCED,
    FIRST_PHASE,
    FIRST_PHASES,
    GRID_X,
    GRID_Y,
    GUESSED,
    HAS_RECEIVED,
    LAST_ATOMIC,
    LAST_GUESSES,
    LOOP_STEPS,
    PATH,
    PENDING,
    PHASE,
    RECEIVED,
    RESULT,
    SCHEDULER,
    SHARED,
    SHARED_END,
    SITE,
    STACK_POINTER,
    STAMP,
    STATE,
    STATUS,
    VALUE,
    WAITS_AT,
    WORD,
    launch_address,
    set_word,
    store64,
    word,
)
from convlab.simulation.compiled.records import RECORD_BYTES, get, put
from convlab.simulation.compiled.runtime import shared_code
from convlab.simulation.compiled.stacks import STACK_BYTES, interrupted, switch_stacks
from convlab.simulation.compiled.states import AND, BARRIER, DONE, OR, READY
from convlab.simulation.compiled.suspects import DIVERGED, ENDLESS, INTERRUPTED, RAISED, suspect
from convlab.simulation.compiled.thread_switch import SAVED
from convlab.simulation.compiled.warps import pass_warps

MOST_BARRIERS = 100_000  # of a block, as in the other engine
NOBODY_WROTE = -1  # bytes of shared memory when a block begins: NaN of a float


@shared_code("void(int64)")
def enter_block(block: int) -> None:
    """Set the words of the launch for a block that begins."""
    set_word(BLOCK, block)
    set_word(BLOCK_X, block % word(GRID_X))
    set_word(BLOCK_Y, block // word(GRID_X) % word(GRID_Y))
    set_word(BLOCK_Z, block // word(GRID_X) // word(GRID_Y))
    set_word(PHASE, word(PHASE) + 1)
    set_word(FIRST_PHASE, word(PHASE))
    set_word(RECEIVED, 0)
    store64(word(FIRST_PHASES) + block * WORD, word(PHASE))
    for byte in range(0, word(SHARED_END), WORD):
        store64(word(SHARED) + byte, NOBODY_WROTE)


@shared_code("void(int64, int64, int64, int64)")
def begin_threads(threads: int, records: int, stacks: int, begin: int) -> None:
    """Prepare each thread's stack: the registers that the switch restores, then where the thread
    begins, so that the stack is aligned as at the begin of a function."""
    for number in range(threads):
        record = records + number * RECORD_BYTES
        put(record, STATE, READY)
        put(record, PATH, 0)
        put(record, LOOP_STEPS, 0)
        put(record, FENCED, 0)
        put(record, HAS_RECEIVED, 0)
        put(record, LAST_ATOMIC, 0)
        put(record, PENDING, 0)
        for slot in range(LAST_GUESSES):
            put(record, GUESSED + slot, 0)
        put(record, STAMP, word(PHASE) << PHASE_SHIFT | number)
        top = stacks + (number + 1) * STACK_BYTES - 2 * WORD
        store64(top, begin)
        for register in range(1, SAVED + 1):
            store64(top - register * WORD, 0)
        put(record, STACK_POINTER, top - SAVED * WORD)


@shared_code("int64(int64, int64)")
def run_ready(threads: int, records: int) -> int:
    """Run each thread that is ready until it waits or ends; return how many have not ended."""
    left = 0
    for turn in range(threads):
        number = threads - 1 - turn if word(BACKWARDS) else turn
        record = records + number * RECORD_BYTES
        while get(record, STATE) == READY:  # still, after a look at Ctrl-C
            set_word(CURRENT, record)
            switch_stacks(launch_address(SCHEDULER), get(record, STACK_POINTER))
            if get(record, STATE) == READY and interrupted():
                set_word(ENDED, INTERRUPTED)
            if word(ENDED):
                return left
            if get(record, STATUS):
                suspect(RAISED, 0)
                set_word(ENDED, RAISED)
                return left
        if get(record, STATE) != DONE:
            left += 1
    return left


@shared_code("boolean(int64, int64, int64)")
def pass_barrier(threads: int, records: int, left: int) -> bool:
    """Let the threads go on from a barrier if all that live wait at one."""
    site = path = -1
    apart = left < threads
    count = state = 0
    for number in range(threads):
        record = records + number * RECORD_BYTES
        now = get(record, STATE)
        if now == DONE:
            continue
        if now < BARRIER or now > OR:
            return False
        if site < 0:
            site, path, state = get(record, WAITS_AT), get(record, PATH), now
        elif site != get(record, WAITS_AT) or path != get(record, PATH):
            apart = True
        count += get(record, VALUE)
    if apart:
        set_word(SITE, site)
        suspect(DIVERGED, 0)
    result = count
    if state == AND:
        result = 1 if count == left else 0
    elif state == OR:
        result = 1 if count else 0
    set_word(PHASE, word(PHASE) + 1)
    if word(PHASE) - word(FIRST_PHASE) > MOST_BARRIERS:
        suspect(ENDLESS, 0)
        set_word(ENDED, ENDLESS)
    for number in range(threads):
        record = records + number * RECORD_BYTES
        if get(record, STATE) != DONE:
            put(record, STATE, READY)
            put(record, RESULT, result)
        put(record, STAMP, word(PHASE) << PHASE_SHIFT | number)
        put(record, PENDING, 0)
        for slot in range(LAST_GUESSES):
            put(record, GUESSED + slot, 0)
    return True


@shared_code("int64(int64, int64, int64, int64, int64, int64)")
def run_blocks(first: int, last: int, threads: int, records: int, stacks: int, begin: int) -> int:
    """Run the blocks from ``first`` up to ``last``, by their turns in the order; return the turn
    after the last that ran.

    ``records`` is the address of the threads' records, ``stacks`` that of their stacks; ``begin``
    is the address of the machine code at which a thread begins.
    """
    for block in range(first, last):
        enter_block(word(BLOCKS) - 1 - block if word(BACKWARDS) else block)
        begin_threads(threads, records, stacks, begin)
        left = run_ready(threads, records)
        while left and not word(ENDED):
            if not pass_barrier(threads, records, left) and not pass_warps(threads, records, True):
                # They wait for lanes that never come.
                suspect(DIVERGED, 0)
                pass_warps(threads, records, False)
            left = run_ready(threads, records)
        if word(ENDED):
            return block
    return last
