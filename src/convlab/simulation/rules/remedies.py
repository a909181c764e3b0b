"""The remedy of each finding, in whole sentences: the place to change one.

``REMEDIES`` has a table for each kind of finding. A row is a case of the kind: a piece of the
finding's sentence, and the remedy in this case. A finding has the remedy of the first row whose
piece its sentence contains, so special cases stand above ``USUAL``, the last row of each kind. The
pieces are constants of :mod:`convlab.simulation.rules.finding_words`, which the code that words the
finding uses too.

Races in shared and in global memory have many remedies in common: ``RACES``. docs/findings.md says
more about each kind.
"""

from __future__ import annotations

from convlab.simulation.recording.sites import BRANCH
from convlab.simulation.rules.finding_words import (
    ALIASED,
    ALL_LOOPS,
    AT_NUMBER,
    AT_ONCE,
    BLOCKS_TOO,
    BLOCKS_TOO_OF_COOPERATIVE,
    BY_TENSOR_CORES,
    COPY_OVERWRITES,
    DYNAMIC_BYTES,
    EARLY_MESSAGE,
    EXCH_OVERWRITES,
    EXCH_OVERWRITES_THAT,
    EXCHANGED,
    FROM_OLD_VALUE,
    GIVES_UP,
    GOES_ON,
    HARMLESS,
    HOST_READS,
    HOST_WRITES,
    IMPOSSIBLE,
    IN_A_BRANCH,
    IN_A_CALL,
    LACKS,
    LOCK_OF_BLOCK,
    LOOP_STEP,
    LOOP_STEP_OF_BLOCKS,
    MAY_READ,
    NARROW_FENCE,
    NEEDS_REGISTERS,
    NO_BARRIER_FENCE,
    NO_FENCE,
    NO_INIT,
    NO_NEW_NUMBERS,
    NO_ORDER,
    NO_ORDER_OF_COOPERATIVE,
    NO_VALUE,
    NOT_ATOMIC,
    NOT_FILLED,
    NOT_ONE_STEP,
    NOT_RETRIED,
    OF_CONSTANT,
    OF_LOCAL,
    OF_PANELS,
    OF_PINNED,
    OF_SHARED,
    OF_SHARED_ARRAYS,
    OFF_ITS_SIZE,
    ONE_LOCKED,
    OTHER_ITERATION,
    OVERWRITES_PRODUCT,
    OWN_RESULT,
    PARTED,
    PLAIN_POLL,
    RETURNED_IN,
    SAME_WARP,
    SEEN_BY_ANOTHER,
    STALE_CAS,
    STREAM_RACE,
    TWO_STORES,
    UNFENCED,
    UNFENCED_BLOCKS,
    UNREPORTED,
    UPDATE,
    WAITED_FOR,
    WHOLE_WARP,
    WHOLE_WARPGROUP,
    WITHOUT_LOCK,
    WRONG_REGISTERS,
)
from convlab.support.values import AT_LEAST

USUAL = ""  # the piece of a kind's last row: every sentence contains it

# Pieces of a barrier that not all threads reach, and the remedy where it stands in a loop.
IN_FOR, IN_WHILE, IN_IF = map(BRANCH.format, ("for", "while", "if"))
EQUALLY_OFTEN = "Let all threads run the loop equally often. Guard the work in it, not the barrier."

# Said after the remedy of a race between two blocks.
ONE_BLOCK = "A barrier would not help: cuda.syncthreads() orders the threads of one block only."

# Said after the remedy of a race that may be harmless.
MEANT = "If both numbers are right, read by cuda.ldcv and store by cuda.stwt or an atomic."

# Remedies of races in shared memory and in global memory. Where a thread holds a lock or waits for
# a flag, a barrier would hang; where both threads change the element, a barrier does not help.
RACES = {
    UNFENCED: "Put cuda.threadfence() before the atomic that frees the lock or sets the flag, and "
    "another one after the wait.",
    UNFENCED_BLOCKS: "Put cuda.threadfence() before the atomic that frees the lock, or before an "
    "atomic flag that the other block waits for, and another one after the wait.",
    NARROW_FENCE: "Put cuda.threadfence() before that atomic, and another one after the wait: "
    "cuda.threadfence_block() orders memory for the threads of one block only.",
    EARLY_MESSAGE: "Put cuda.syncthreads() before that fence, so that all threads of the block "
    "have stored before one of them signals the other blocks.",
    SEEN_BY_ANOTHER: "Put cuda.syncthreads() after that atomic, so that all threads of the block "
    "wait for the one that reads the signal.",
    LOCK_OF_BLOCK: "Keep the lock in global memory, in an argument of the kernel, so that all "
    "blocks take the same one, with cuda.threadfence() after it is taken and before it is freed.",
    OWN_RESULT: "Use the number that the thread's own atomic returns, as in i = "
    "cuda.atomic.add(a, 0, 1): no other thread gets the same.",
    ONE_LOCKED: "Take the same lock around both accesses, with cuda.threadfence() after it is "
    "taken and before it is freed. A barrier may only stand before all locks.",
    NOT_ONE_STEP: "Use an atomic that does both, such as cuda.atomic.max or cuda.atomic.add, or "
    "repeat both in a loop until cuda.atomic.cas returns what was read.",
    EXCHANGED: "Use cuda.atomic.exch, which stores the new number and returns the old one, or "
    "repeat both in a loop until cuda.atomic.cas returns what was read.",
    LOOP_STEP_OF_BLOCKS: "Launch the kernel once for each step of the loop, or end each step by "
    "sync() of cuda.cg.this_grid(). If threads want one element in the same step, use an atomic "
    "that reads and changes it.",
    BLOCKS_TOO_OF_COOPERATIVE: "Call sync() of cuda.cg.this_grid() between the two accesses. "
    "cuda.syncthreads() orders the threads of one block only.",
    BLOCKS_TOO: "Store to another array than the threads read, or split the kernel into two "
    "launches between the two accesses. A barrier is not enough: cuda.syncthreads() orders the "
    "threads of one block only.",
    TWO_STORES: "Let each element belong to one thread, put cuda.syncthreads() between the two "
    "stores, or use an atomic.",
    NOT_ATOMIC.format("+="): "Use cuda.atomic.add, or let each element belong to one thread.",
    NOT_ATOMIC.format("-="): "Use cuda.atomic.sub, or let each element belong to one thread.",
    NOT_ATOMIC.format("|="): "Use cuda.atomic.or_, or let each element belong to one thread.",
    NOT_ATOMIC.format("&="): "Use cuda.atomic.and_, or let each element belong to one thread.",
    NOT_ATOMIC.format("^="): "Use cuda.atomic.xor, or let each element belong to one thread.",
    NOT_ATOMIC.format("max"): "Use cuda.atomic.max, or let each element belong to one thread.",
    NOT_ATOMIC.format("min"): "Use cuda.atomic.min, or let each element belong to one thread.",
    UPDATE: "Let each element belong to one thread, or repeat the update in a loop until "
    "cuda.atomic.cas has done it.",
    IN_A_BRANCH: "End the branch between the two accesses and put cuda.syncthreads() there, where "
    "all threads of the block reach it, or use an atomic.",
    AT_ONCE: "Let each element belong to one thread, or use an atomic.",
    SAME_WARP: "Put cuda.syncwarp() between the two accesses, or use an atomic.",
    LOOP_STEP: "Put cuda.syncthreads() at the end of each step of the loop, where all threads of "
    "the block reach it. If threads want one element in the same step, use an atomic that reads "
    "and changes it.",
}

REMEDIES = {
    "out of bounds": {
        DYNAMIC_BYTES: "Give the launch as many bytes as its arrays have: kernel[grid, block, "
        "stream, BYTES].",
        USUAL: "Guard the access with the array's size, or correct the index.",
    },
    "misaligned": {
        OF_PANELS: "Begin panels at multiples of 1,024 bytes after panel_start(S), or give the "
        "shared array alignment=BYTES_1024.",
        OFF_ITS_SIZE: "Align the field, or begin the view at a multiple of its element's size.",
        USUAL: "Let the index be a multiple of the access's width. A shared array needs "
        "alignment=16, too.",
    },
    "uninitialised": {
        NO_INIT: "Let one thread call init_barrier and then fence_barriers, and put "
        "cuda.syncthreads() before the first use.",
        NO_VALUE: "Give the variable a value on every path, such as before the branch or loop.",
        NOT_FILLED: "Fill the array before, by a copy or by a kernel whose grid reaches every "
        "element, or read no further than it is filled.",
        USUAL: "Write every element before it is read, and put a barrier between.",
    },
    "shared race": {
        **RACES,
        NO_FENCE: "Call cuda.threadfence_block() after that poll or lock, because the compiler "
        "may read earlier.",
        PLAIN_POLL: "Poll with an atomic, because the compiler may make a plain load only once.",
        COPY_OVERWRITES: "Let readers arrive at a barrier after they have read, and the thread "
        "that copies wait for it.",
        OVERWRITES_PRODUCT: "Let each warpgroup arrive at a barrier after wait_products, and the "
        "thread that copies wait for it.",
        MAY_READ: "Let each warpgroup arrive at a barrier after wait_products, and the threads "
        "that write wait for it.",
        USUAL: "Put cuda.syncthreads() between the two accesses, or use an atomic.",
    },
    ALIASED: {
        USUAL: "Cut both arrays out of one, whole = cuda.shared.array(0, ...), by slices that do "
        "not overlap.",
    },
    "copy in flight": {
        BY_TENSOR_CORES: "Let all threads of the warpgroup call wait_barrier for the phase in "
        "which the copy arrives, before they start the product.",
        WAITED_FOR: "Wait for the phase in which the copy arrives, by wait_barrier with parity 0, "
        "1, 0, and so on.",
        USUAL: "Let the thread that copies call commit_copies() and then wait_copies() for that "
        "group, and put cuda.syncthreads() after it before other threads use the copy.",
    },
    "not fenced": {
        NO_BARRIER_FENCE: "Let the thread that initialises the barrier call fence_barriers() "
        "after it, and put cuda.syncthreads() before the first copy.",
        USUAL: "Call fence_shared() after the stores, or after wait_copies(), and before the "
        "barrier that lets tensor cores read.",
    },
    "bytes not expected": {
        USUAL: "Let expect_bytes await all bytes of the copies that arrive in the phase, whole "
        "boxes, also where they lie outside the tensor.",
    },
    "wrong phase": {
        USUAL: "Let as many threads arrive in each phase as init_barrier says, each after its "
        "wait for the phase before.",
    },
    "global race": {
        IN_A_CALL: "Call it with an element of the thread's own, such as that of cuda.grid(1).",
        **RACES,
        NO_FENCE: "Call cuda.threadfence() after that poll or lock, because the compiler may read "
        "earlier.",
        PLAIN_POLL: "Poll with cuda.ldcv or an atomic, and set the flag with cuda.stwt or an "
        "atomic, because the compiler may make a plain load only once.",
        NO_ORDER_OF_COOPERATIVE: "Call sync() of cuda.cg.this_grid() between the two accesses, let "
        "each element belong to one thread, or use an atomic.",
        NO_ORDER: "Let each element belong to one thread, use an atomic, put cuda.threadfence() "
        "before an atomic flag that the other block waits for, or split the kernel into two "
        "launches.",
        USUAL: "Put cuda.syncthreads() between the two accesses, let each element belong to one "
        "thread, or use an atomic.",
    },
    "barrier divergence": {
        IN_FOR: EQUALLY_OFTEN,
        IN_WHILE: EQUALLY_OFTEN,
        OTHER_ITERATION: EQUALLY_OFTEN,
        IN_IF: "Move the barrier out of the branch.",
        RETURNED_IN: "Let no thread return before the barrier: put the work that it skips in a "
        "branch.",
        USUAL: "Move the barrier out of the branch, and let no thread return before it.",
    },
    "inactive lane": {
        WRONG_REGISTERS: "Call give_registers to have fewer, and take_registers to have more.",
        WHOLE_WARP: "Let all 32 lanes of the warp reach the call.",
        WHOLE_WARPGROUP: "Let all 128 threads of the warpgroup reach the call.",
        USUAL: "Let every lane that the mask names reach the call, and read from those only.",
    },
    "deadlock": {
        LACKS: "Let as many threads arrive in each phase as init_barrier says, expect the bytes "
        "that copies bring, and wait for the parities 0, 1, 0, ... in turn.",
        NEEDS_REGISTERS: "Let other warpgroups give registers first: all threads of the block "
        "have 65,536 together, shared by the blocks of launch_bounds.",
        AT_NUMBER: "Let as many threads call it with this barrier number as its argument says.",
        USUAL: "Let each thread free its locks, set its flags and reach its barriers before it "
        "waits for others.",
    },
    "depends on order": {
        NOT_RETRIED: "Repeat the read and the cas in a while loop until cas returns what was "
        "read, or use an atomic that does both, such as cuda.atomic.add.",
        EXCH_OVERWRITES: "Use an atomic that reads and changes at once, such as cuda.atomic.add or "
        "cuda.atomic.max, or a cas that a loop repeats until it returns what was read.",
        EXCH_OVERWRITES_THAT: "Keep both numbers in one element of 64 bits and change it by one "
        "atomic, or change both elements under a lock.",
        FROM_OLD_VALUE: "Use an atomic that reads and changes at once, such as cuda.atomic.add, "
        "or a cas that a loop repeats until it returns what was read.",
        WITHOUT_LOCK: "Retry the lock until it is free.",
        GIVES_UP: "Poll until the other thread has changed the element, or split the kernel into "
        "two launches.",
        PARTED: "Take the mask of the lanes that have to come, such as 0xFFFFFFFF or a "
        "ballot_sync before the branch.",
        USUAL: "Poll until the other threads are there, put a barrier between, retry the lock "
        "until it is free, or split the kernel into two launches.",
    },
    "endless loop": {
        GOES_ON: "Count in a wider type, such as int64, or compare with a number that the type "
        "reaches.",
        STALE_CAS: "Use the number that cuda.atomic.cas returns as the next one that it expects, "
        "and compute the new value from it inside the loop.",
        NO_NEW_NUMBERS: "Let each pass of a search leave out what it has looked at, as "
        "lo = mid + 1 does. Change inside the loop a value that its condition tests.",
        ALL_LOOPS: "End the loops earlier, or allow more steps.",
        USUAL: "Change inside the loop a value that its condition tests.",
    },
    "wraps around": {
        USUAL: "Compare before subtracting, or keep the number signed.",
    },
    "division by zero": {
        USUAL: "Guard the division.",
    },
    UNREPORTED: {
        USUAL: "Compile the kernel with @cuda.jit(debug=True, opt=False), or set a flag in an "
        "array that the host looks at.",
    },
    STREAM_RACE: {
        OF_PINNED: "Wait for the copy before the host touches the memory: by "
        "stream.synchronize(), or by an event that is recorded after the copy.",
        HOST_WRITES: "Call cuda.synchronize() before the host touches the array.",
        HOST_READS: "Wait for the launch before the host reads the array: by "
        "stream.synchronize(), or by an event that is recorded after the launch.",
        USUAL: "Let the second stream wait for an event that is recorded after the first "
        "operation, or synchronise between the two.",
    },
    IMPOSSIBLE: {
        AT_LEAST: "Launch at least one block of one thread, or nothing at all.",
        OF_SHARED: "Let the block use less shared memory.",
        OF_SHARED_ARRAYS: "Make the arrays smaller, or give the launch dynamic shared memory, "
        "cuda.shared.array(0, ...) and kernel[grid, block, stream, BYTES].",
        OF_LOCAL: "Make the array smaller, or keep it in global memory.",
        OF_CONSTANT: "Pass the array as an argument.",
        USUAL: "Launch more blocks of fewer threads, or let each block ask for less memory.",
    },
}


def remedy_of(kind: str, what: str) -> str:
    """Return the remedy of a finding of this kind that says ``what``."""
    remedy = next(remedy for piece, remedy in REMEDIES[kind].items() if piece in what)
    other = NOT_ONE_STEP, EXCHANGED, OWN_RESULT, LOOP_STEP, LOOP_STEP_OF_BLOCKS
    if HARMLESS in what and not any(piece in what for piece in other):
        remedy += f" {MEANT}"
    return f"{remedy} {ONE_BLOCK}" if NO_ORDER in what else remedy


def names_barrier(kind: str, what: str) -> bool:
    """Return whether the remedy is a barrier of the threads of one block."""
    return NO_ORDER not in what and "cuda.sync" in remedy_of(kind, what)


def usual_remedy(kind: str) -> str:
    """Return the remedy of findings of this kind that no special row covers."""
    return REMEDIES[kind][USUAL]
