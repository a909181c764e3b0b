"""Guesses: plain reads that an atomic of the same thread may check."""

from __future__ import annotations

from convlab.simulation.compiled.cells import (
    ATOMICS,
    CONFIRMED,
    FIRST_WRITE,
    FIRSTS,
    GUESS_WORDS,
    IN_CONFLICT,
    MORE_BLOCKS,
    PHASE_SHIFT,
    POLLED,
    READS,
    SEEN,
    UNSET,
    check_far,
    note,
    note_far,
    together,
)
from convlab.simulation.compiled.context import (
    CONFLICT_PHASE,
    CURRENT,
    FIRST_PHASE,
    GUESS,
    GUESSED,
    GUESSES,
    LAST_GUESSES,
    PENDING,
    PHASE,
    STAMP,
    WORD,
    load64,
    own,
    set_own,
    store64,
    word,
)
from convlab.simulation.compiled.records import get, put
from convlab.simulation.compiled.runtime import shared_code
from convlab.simulation.compiled.suspects import RACE, UNWRITTEN, suspect


@shared_code("void(int64, int64, int64)")
def note_guess(cell: int, number: int, facts: int) -> None:
    """Note that the running thread reads an element as a guess, and facts about the guess."""
    address, bit = word(GUESSES) + number * GUESS_WORDS * WORD, 1 << number
    if own(PENDING) & bit:
        facts |= POLLED
    store64(address, load64(address) | facts)
    set_own(PENDING, own(PENDING) | bit)
    record = word(CURRENT)
    for slot in range(LAST_GUESSES):  # an atomic checks only the read before it
        if get(record, GUESSED + slot) == cell:
            put(record, GUESSED + slot, 0)
    put(record, GUESS + number % LAST_GUESSES, number)
    put(record, GUESSED + number % LAST_GUESSES, cell)


@shared_code("void(int64)")
def confirm(cell: int) -> None:
    """Note that the running thread's atomic checks its last guess of the element, if it is among
    the last ones."""
    record = word(CURRENT)
    for slot in range(LAST_GUESSES):
        if get(record, GUESSED + slot) == cell:
            number = get(record, GUESS + slot)
            address = word(GUESSES) + number * GUESS_WORDS * WORD
            store64(address, load64(address) | CONFIRMED)
            set_own(PENDING, own(PENDING) & ~(1 << number))
            put(record, GUESSED + slot, 0)


@shared_code("void(int64, int64)")
def guess_shared(cell: int, number: int) -> None:
    """Check a load from shared memory that is a guess."""
    now, write, atomics = own(STAMP), load64(cell), load64(cell + ATOMICS)
    if (write ^ now) >> PHASE_SHIFT == 0:
        if together(write, now):
            suspect(RACE, 0)
    elif write >> PHASE_SHIFT < word(FIRST_PHASE):
        if atomics >> PHASE_SHIFT < word(FIRST_PHASE):
            suspect(UNWRITTEN, 0)
    note(cell + READS, now)
    facts = 0
    if (atomics ^ now) >> PHASE_SHIFT == 0 and together(atomics, now):
        facts = IN_CONFLICT
    if word(CONFLICT_PHASE) == word(PHASE):
        facts = IN_CONFLICT
    store64(word(GUESSES) + number * GUESS_WORDS * WORD + WORD, word(PHASE))
    note_guess(cell, number, facts)


@shared_code("void(int64, int64)")
def guess_global(cell: int, number: int) -> None:
    """Check a load from global memory that is a guess."""
    now, write, atomics = own(STAMP), load64(cell), load64(cell + ATOMICS)
    if write:
        check_far(write, now, load64(cell + FIRSTS) & FIRST_WRITE)
    elif atomics == 0 and load64(cell + FIRSTS) & UNSET:
        suspect(UNWRITTEN, 0)
    if note_far(cell + READS, now):
        store64(cell + FIRSTS, load64(cell + FIRSTS) | now >> PHASE_SHIFT << PHASE_SHIFT)
    facts = SEEN
    if atomics & MORE_BLOCKS or (atomics and atomics >> PHASE_SHIFT < word(FIRST_PHASE)):
        facts |= IN_CONFLICT
    if (atomics ^ now) >> PHASE_SHIFT == 0 and together(atomics, now):
        facts |= IN_CONFLICT
    note_guess(cell, number, facts)
