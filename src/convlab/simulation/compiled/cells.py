"""Shadow memory: what is known of each element, and the rules that each access is held to.

A cell has four words. The first three are stamps: of the last write, of the reads and of the
atomics. A stamp says in which phase of the launch, in which epoch of its warp and by which thread.
A phase ends at a barrier of the block, so two accesses of one block are in order if their phases
differ; an epoch ends at a barrier of the warp, so two accesses of lanes of one warp are in order if
their epochs do. Blocks run one after the other, so a phase belongs to one block.

Several readers between two barriers are kept as one: as many lanes of one warp, or as many warps.
No later access needs to know more, because it is in order with all of them or not.

The fourth word has the phases of the first read and of the first write, which tell the first block,
and whether nothing had written the element before the launch (``UNSET``). That stays so if a thread
reads the element before the first write.

A guess is a plain read that the thread's own ``max``, ``min`` or compare-and-swap may check later,
which does no harm if others change the element between. It counts as an atomic if threads do check
it: that is known when the launch has ended (``GUESSES``).
"""

from __future__ import annotations

from convlab.simulation.compiled.context import (
    BACKWARDS,
    BLOCK,
    BLOCKS,
    BOARD,
    CONFLICT_PHASE,
    CONFLICTS,
    FIRST_PHASE,
    FIRST_PHASES,
    GUESSES,
    HAS_RECEIVED,
    PHASE,
    RECEIVED,
    STAMP,
    TOLD,
    WORD,
    load64,
    own,
    set_word,
    store64,
    word,
)
from convlab.simulation.compiled.runtime import shared_code
from convlab.simulation.compiled.suspects import OTHER_BLOCK, RACE, UNWRITTEN, suspect

CELL = 32  # bytes
STAMPS = 3  # the first words: of the last write, of the reads, of the atomics
READS, ATOMICS, FIRSTS = 8, 16, 24  # where these words begin; the write's is the first

# A stamp, from its highest bits: 31 of the phase, 16 of the epoch, 2 flags, 12 of who it was.
PHASE_SHIFT, EPOCH_SHIFT = 32, 16
LAST_EPOCH = (1 << 16) - 1
WHO = 0xFFF  # a thread's number, or one of:
SEVERAL_LANES = 0x800  # of the warp whose number is in the low bits
ANYBODY = 0xFFF  # threads of several warps
CHANGED = 0x1000  # the element has had different values, in this phase or in other blocks
MORE_BLOCKS = 0x2000  # other blocks have done the same before
PLAIN = 0x4000  # of reads: not all are guesses
FLAGS = CHANGED | MORE_BLOCKS | PLAIN
AFTER_FENCE = 0x8000  # the thread has called a fence in this phase before
FIRST_WRITE = (1 << 31) - 1  # of the fourth word; that of the first read is above PHASE_SHIFT
UNSET = 1 << 31  # of the fourth word

MOST_GUESSES = 60  # of a kernel; more are plain reads
TOLD_WORDS = 2  # of a block in the table: the phase of the fence, the thread that called it
GUESS_WORDS = 2  # of a guess in the table: what is known of it, its last phase in shared memory
# Of a guess: a thread has read global memory at its place in the code; an atomic has checked it; a
# thread has read there twice, so it may poll; another thread's atomic has changed the element.
SEEN, CONFIRMED, POLLED, IN_CONFLICT = 1, 2, 4, 8


@shared_code("boolean(int64, int64)")
def together(before: int, now: int) -> bool:
    """Return whether two stamps of one phase are of different threads with no barrier between."""
    who, me = before & WHO, now & WHO
    if who == me:
        return False
    if who == ANYBODY:
        return True
    warp = who & 31 if who & SEVERAL_LANES else who >> 5
    if warp != me >> 5:
        return True
    return (before >> EPOCH_SHIFT) & LAST_EPOCH >= (now >> EPOCH_SHIFT) & LAST_EPOCH


@shared_code("int64(int64, int64)")
def merged(before: int, now: int) -> int:
    """Return a stamp for those of an earlier stamp of this phase and the running thread."""
    who, me, flags = before & WHO, now & WHO, (before | now) & FLAGS
    if who == ANYBODY:
        return before | flags
    if who == me:
        return now | flags
    warp = who & 31 if who & SEVERAL_LANES else who >> 5
    if warp != me >> 5:
        return before | ANYBODY | flags
    if (before ^ now) & (LAST_EPOCH << EPOCH_SHIFT):
        return now | flags
    return (before & ~WHO) | SEVERAL_LANES | warp | flags


# Shared memory: a block's own. What earlier blocks have done does not count.


@shared_code("void(int64, int64)")
def note(address: int, now: int) -> None:
    """Add the running thread to a stamp."""
    before = load64(address)
    if (before ^ now) >> PHASE_SHIFT:
        store64(address, now)
    elif before != now and (before & WHO != ANYBODY or now & FLAGS & ~before):
        store64(address, merged(before, now))


@shared_code("void(int64, int64)")
def check(address: int, now: int) -> None:
    """Suspect a race with those of a stamp."""
    before = load64(address)
    if (before ^ now) >> PHASE_SHIFT == 0 and together(before, now):
        suspect(RACE, 0)


@shared_code("void(int64)")
def read_shared(cell: int) -> None:
    """Check a load from shared memory: somebody in this block has written the element, and nobody
    else since the last barrier."""
    now, write = own(STAMP), load64(cell)
    if (write ^ now) >> PHASE_SHIFT == 0:
        if together(write, now):
            suspect(RACE, 0)
    elif write >> PHASE_SHIFT < word(FIRST_PHASE):
        atomics = load64(cell + ATOMICS)
        if atomics >> PHASE_SHIFT < word(FIRST_PHASE):
            suspect(UNWRITTEN, 0)
    note(cell + READS, now | PLAIN)
    check(cell + ATOMICS, now)


@shared_code("void(int64, int64)")
def write_shared(cell: int, same: int) -> None:
    """Check a store to shared memory; ``same`` is 1 if it stores the number that is there. Several
    threads may store the same number, as flags are set."""
    now, write = own(STAMP), load64(cell)
    stamp = now
    if (write ^ now) >> PHASE_SHIFT == 0:
        stamp |= write & CHANGED
        if not same:
            stamp |= CHANGED
        if together(write, now):
            if not same or write & CHANGED:
                suspect(RACE, 0)
            stamp = merged(write, now) | (stamp & CHANGED)
    store64(cell, stamp)
    check(cell + READS, now)
    check(cell + ATOMICS, now)


@shared_code("void()")
def contradict_guesses() -> None:
    """Note that another thread's atomic changes what was read as a guess in this phase: at one of
    the places that have run in it."""
    if word(CONFLICT_PHASE) == word(PHASE):
        return
    set_word(CONFLICT_PHASE, word(PHASE))
    for number in range(MOST_GUESSES):
        address = word(GUESSES) + number * GUESS_WORDS * WORD
        if load64(address + WORD) == word(PHASE):
            store64(address, load64(address) | IN_CONFLICT)


@shared_code("void(int64)")
def update_shared(cell: int) -> None:
    """Check an atomic that changes an element."""
    now = own(STAMP)
    write = load64(cell)
    if write >> PHASE_SHIFT < word(FIRST_PHASE):
        if load64(cell + ATOMICS) >> PHASE_SHIFT < word(FIRST_PHASE):
            suspect(UNWRITTEN, 0)
    check(cell, now)
    reads = load64(cell + READS)
    if (reads ^ now) >> PHASE_SHIFT == 0 and together(reads, now):
        if reads & PLAIN:
            suspect(RACE, 0)
        else:
            contradict_guesses()
    note(cell + ATOMICS, now)


# Global memory: what other blocks have done counts too, because nothing orders blocks.


@shared_code("int64(int64)")
def block_of(phase: int) -> int:
    """Return the block that ran in a phase: one of those before the running block."""
    backwards = word(BACKWARDS)
    first = 0  # places in the order of the blocks
    last = word(BLOCKS) - 1 - word(BLOCK) if backwards else word(BLOCK)
    while first < last:
        middle = (first + last + 1) // 2
        block = word(BLOCKS) - 1 - middle if backwards else middle
        if load64(word(FIRST_PHASES) + block * WORD) <= phase:
            first = middle
        else:
            last = middle - 1
    return word(BLOCKS) - 1 - first if backwards else first


@shared_code("boolean(int64)")
def is_told(before: int) -> bool:
    """Return whether the running thread may rely on an access of another block: a thread of that
    block has called a fence after it and then the atomic by which this one knows."""
    received = word(RECEIVED)
    if own(HAS_RECEIVED) == 0 and (received == 0 or received == word(PHASE)):
        return False
    if before & MORE_BLOCKS:
        return False
    phase = before >> PHASE_SHIFT
    address = word(TOLD) + block_of(phase) * TOLD_WORDS * WORD
    until = load64(address)
    if phase == until:
        return before & WHO == load64(address + WORD) and before & AFTER_FENCE == 0
    return phase < until


@shared_code("void(int64, int64, int64)")
def check_far(before: int, now: int, first_phase: int) -> None:
    """Suspect a race with those of a stamp: in the block, or in another block, the first of which
    was in ``first_phase`` if that is known."""
    if (before ^ now) >> PHASE_SHIFT == 0 and together(before, now):
        suspect(RACE, 0)
    if before & MORE_BLOCKS or before >> PHASE_SHIFT < word(FIRST_PHASE):
        if not is_told(before):
            suspect(OTHER_BLOCK, first_phase if first_phase else before >> PHASE_SHIFT)


@shared_code("void(int64, int64)")
def check_atomics(before: int, now: int) -> None:
    """Suspect a race of a plain access with the atomics of a stamp. Where blocks tell each other
    something, an atomic of the block itself orders those of other blocks before it."""
    if word(BOARD) == 0:
        check_far(before, now, 0)
    elif (before ^ now) >> PHASE_SHIFT == 0:
        if together(before, now):
            check_far(before, now, 0)
    elif before >> PHASE_SHIFT < word(FIRST_PHASE):
        check_far(before, now, 0)


@shared_code("boolean(int64, int64)")
def note_far(address: int, now: int) -> bool:
    """Add the running thread to a stamp. Return whether it is the first."""
    before = load64(address)
    if (before ^ now) >> PHASE_SHIFT:
        more = before & (MORE_BLOCKS | PLAIN)
        if before and before >> PHASE_SHIFT < word(FIRST_PHASE):
            more |= MORE_BLOCKS
        store64(address, now | more)
    elif now & FLAGS & ~before or (before & WHO != ANYBODY and (before ^ now) & ~FLAGS):
        store64(address, merged(before, now))
    return before == 0


@shared_code("void(int64)")
def read_global(cell: int) -> None:
    """Check a load from global memory."""
    now, write = own(STAMP), load64(cell)
    atomics = load64(cell + ATOMICS)
    if write:
        check_far(write, now, load64(cell + FIRSTS) & FIRST_WRITE)
    elif atomics == 0 and load64(cell + FIRSTS) & UNSET:
        suspect(UNWRITTEN, 0)
    if atomics:
        check_atomics(atomics, now)
    if note_far(cell + READS, now | PLAIN):
        store64(cell + FIRSTS, load64(cell + FIRSTS) | now >> PHASE_SHIFT << PHASE_SHIFT)


@shared_code("void(int64, int64)")
def write_global(cell: int, same: int) -> None:
    """Check a store to global memory; ``same`` is 1 if it stores the number that is there. Threads
    and blocks may store the same number."""
    now, write = own(STAMP), load64(cell)
    stamp = now
    firsts = load64(cell + FIRSTS)
    if write == 0:
        if load64(cell + READS) == 0 and load64(cell + ATOMICS) == 0:
            firsts &= ~UNSET
        store64(cell + FIRSTS, firsts | now >> PHASE_SHIFT)
    else:
        stamp |= write & FLAGS
        if not same:
            stamp |= CHANGED
        if (write ^ now) >> PHASE_SHIFT == 0:
            if together(write, now):
                if not same or write & CHANGED:
                    suspect(RACE, 0)
                stamp = merged(write, now) | (stamp & FLAGS)
        if write >> PHASE_SHIFT < word(FIRST_PHASE):
            stamp = now | CHANGED if is_told(write) else stamp | MORE_BLOCKS
        if stamp & MORE_BLOCKS and stamp & CHANGED:
            suspect(OTHER_BLOCK, firsts & FIRST_WRITE)
    store64(cell, stamp)
    reads = load64(cell + READS)
    if reads:
        check_far(reads, now, firsts >> PHASE_SHIFT)
    atomics = load64(cell + ATOMICS)
    if atomics:
        check_atomics(atomics, now)


@shared_code("void(int64)")
def update_global(cell: int) -> None:
    """Check an atomic that changes an element."""
    now, write, reads = own(STAMP), load64(cell), load64(cell + READS)
    if write:
        check_far(write, now, load64(cell + FIRSTS) & FIRST_WRITE)
    elif load64(cell + ATOMICS) == 0 and load64(cell + FIRSTS) & UNSET:
        suspect(UNWRITTEN, 0)
    if reads & PLAIN:
        check_far(reads, now, load64(cell + FIRSTS) >> PHASE_SHIFT)
    elif (
        reads & MORE_BLOCKS
        or (reads and reads >> PHASE_SHIFT < word(FIRST_PHASE))
        or ((reads ^ now) >> PHASE_SHIFT == 0 and together(reads, now))
    ):
        set_word(CONFLICTS, 1)
    note_far(cell + ATOMICS, now)
