"""The kinds of findings, and what usually fixes each: the place to change a remedy.

- ``REMEDIES`` has the remedy of each kind.
- ``SPECIAL`` has better ones for some findings of a kind, which it knows by a piece of their words.
  Its order counts: a finding gets the remedy of the first piece that it contains. Each piece is a
  constant, which the code that words the finding uses too.
- ``_OF_RACES`` has those entries of ``SPECIAL`` that shared and global races have in common.
- ``_UPDATES`` has those of ``_OF_RACES`` that name the atomic of an operator, such as ``add`` for
  ``+=``.

docs/findings.md says more about each kind.
"""

from __future__ import annotations

from convlab.simulation.recording.sites import BRANCH
from convlab.support.values import AT_LEAST

# Kinds with a name of their own.
UNREPORTED, STREAM_RACE = "unreported exception", "stream race"
ALIASED = "aliased memory"
IMPOSSIBLE = "impossible launch"

# Pieces of what a finding says, by which its remedy is known. BRANCH and AT_LEAST are two more.
SAME_WARP = ", of the same warp,"
NO_BARRIER, NO_ORDER = "with no barrier between", "and nothing orders the two blocks"
HARMLESS = " (harmless only if the old and the new number lead to the same result)"
NO_FENCE = "with no fence after the poll or lock that orders the two accesses"
UNFENCED = "with no fence before the atomic that the other thread waits for"
UNFENCED_BLOCKS = "with no fence before the atomic that the other block waits for"
ONE_LOCKED = "and the two do not hold the same lock"
NOT_ATOMIC = "and the update by {} is not atomic"
NOT_ONE_STEP = "and to read and to change it is not one atomic step"
AT_ONCE = "and no barrier can come between"
TWO_STORES = f"{NO_BARRIER} the two stores"
IN_A_BRANCH = ", in a branch that not all threads take"
ONE_BLOCK = "cuda.syncthreads() orders the threads of one block only"
PLAIN_POLL = ", which a plain load polls"
NO_VALUE = "has no value here"
GOES_ON = "goes on from"
IN_A_CALL = ", in a call in "
WHOLE_WARP, WHOLE_WARPGROUP = "needs the whole warp,", "needs the whole warpgroup,"
ALL_LOOPS = "all loops together have run"
DYNAMIC_BYTES = "bytes of dynamic shared memory"
OF_SHARED, OF_SHARED_ARRAYS = "bytes of shared memory", "bytes of shared arrays"
OF_LOCAL, OF_CONSTANT = "bytes of local memory", "bytes of constant memory"
OFF_ITS_SIZE = "is not at a multiple of its size"
NOT_RETRIED, EXCH_OVERWRITES = "is not tried again", "this exch overwrites the change"
FROM_OLD_VALUE = "has an operand that is computed from the old number"
WITHOUT_LOCK, GIVES_UP = "goes on without the lock", "gives up polling"
PARTED = "the result depends on which lanes activemask names, and lanes"
OF_PINNED, HOST_WRITES = "pinned memory", "the host writes to"
OTHER_ITERATION = "of a loop around it"
RETURNED_IN = ", this one returned in "
OF_PANELS = "a multiple of 1024 bytes"
BY_TENSOR_CORES = "by tensor cores"
WAITED_FOR = " waited for"
NOT_WAITED_FOR = f"has not{WAITED_FOR}"
COPY_OVERWRITES = "copy overwrites it"
OVERWRITES_PRODUCT = "is overwritten by a copy while tensor cores may read it"
MAY_READ = "while tensor cores may read it: thread"
LACKS = "which lacks"
NO_INIT = "is used before init_barrier"
NO_BARRIER_FENCE = "without fence_barriers after init_barrier"
NEEDS_REGISTERS = "registers more"
AT_NUMBER = "of sync_threads_of"
TOO_MANY_ARRIVE = "has all arrivals of"
WRONG_REGISTERS = "registers for each thread"

# The remedy of each kind.
REMEDIES = {
    "out of bounds": "guard the access with the array's size, or correct the index",
    "misaligned": "let the index be a multiple of the access's width and give the shared array "
    "alignment=16",
    "uninitialised": "write every element before it is read, and put a barrier between",
    "shared race": "put cuda.syncthreads() between the two accesses, or use an atomic",
    ALIASED: "cut both arrays out of one, whole = cuda.shared.array(0, ...), by slices that do not "
    "overlap",
    "copy in flight": "let the thread that copies call commit_copies() and then wait_copies() for "
    "that group, and put cuda.syncthreads() after it before other threads use the copy",
    "not fenced": "call fence_shared() after the stores, or after wait_copies(), and before the "
    "barrier that lets tensor cores read",
    "bytes not expected": "let expect_bytes await all bytes of the copies that arrive in the "
    "phase, whole boxes, also where they lie outside the tensor",
    "wrong phase": "let as many threads arrive in each phase as init_barrier says, each after its "
    "wait for the phase before",
    "global race": "put cuda.syncthreads() between the two accesses, let each element belong to "
    "one thread, or use an atomic",
    "barrier divergence": "move the barrier out of the branch, and let no thread return before it",
    "inactive lane": "let every lane that the mask names reach the call, and read from those only",
    "deadlock": "let each thread free its locks, set its flags and reach its barriers before it "
    "waits for others",
    "depends on order": "poll until the other threads are there, put a barrier between, retry the "
    "lock until it is free, or split the kernel into two launches",
    "endless loop": "change inside the loop a value that its condition tests",
    "wraps around": "compare before subtracting, or keep the number signed",
    "division by zero": "guard the division",
    UNREPORTED: "compile the kernel with @cuda.jit(debug=True, opt=False), or set a "
    "flag in an array that the host looks at",
    STREAM_RACE: "let the second stream wait for an event that is recorded after the first "
    "operation, or synchronise between the two",
    IMPOSSIBLE: "launch more blocks of fewer threads, or let each block ask for less memory",
}

_FENCE = "call cuda.threadfence() after that poll or lock, because the compiler may read earlier"
_LOOP = "let all threads run the loop equally often, and guard what they do in it, not the barrier"
_WARP = "put cuda.syncwarp() between the two accesses, or use an atomic"
_RETRY = (
    "repeat the read and the cas in a while loop until cas returns what was read, or use an atomic "
    "that does both, such as cuda.atomic.add"
)
_AT_ONCE = (
    "use an atomic that reads and changes at once, such as cuda.atomic.add, or a cas that a loop "
    "repeats until it returns what was read"
)
_RELEASE = "put cuda.threadfence() before {}, and another one after the wait"
_OF_ATOMICS = {
    **{"+=": "add", "-=": "sub", "|=": "or_", "&=": "and_", "^=": "xor"},
    **{"max": "max", "min": "min"},
}
_UPDATES = {
    NOT_ATOMIC.format(by): f"use cuda.atomic.{name}, or let each element belong to one thread"
    for by, name in _OF_ATOMICS.items()
}
# Remedies of races in which threads hold a lock or wait for a flag, so that a barrier would hang,
# or in which both threads change the element, so that a barrier does not help, as a rule.
_OF_RACES = {
    UNFENCED: _RELEASE.format("the atomic that frees the lock or sets the flag"),
    UNFENCED_BLOCKS: _RELEASE.format(
        "the atomic that frees the lock, or before an atomic flag that the other block waits for"
    ),
    ONE_LOCKED: "take the same lock around both accesses, with cuda.threadfence() after it is "
    "taken and before it is freed; a barrier may only stand before all locks",
    NOT_ONE_STEP: "use an atomic that does both, such as cuda.atomic.max or cuda.atomic.add, or "
    "repeat both in a loop until cuda.atomic.cas returns what was read",
    TWO_STORES: "let each element belong to one thread, put cuda.syncthreads() between the two "
    "stores, or use an atomic",
    **_UPDATES,
    NOT_ATOMIC.split("{}")[0]: "let each element belong to one thread, or repeat the update in a "
    "loop until cuda.atomic.cas has done it",
    IN_A_BRANCH: "end the branch between the two accesses and put cuda.syncthreads() there, where "
    "all threads of the block reach it, or use an atomic",
    AT_ONCE: "let each element belong to one thread, or use an atomic",
}
# The remedies of findings with a piece in their words. The order counts: the first piece that a
# finding contains has its remedy.
SPECIAL = {
    ("global race", IN_A_CALL): "call it with an element of the thread's own, such as that of "
    "cuda.grid(1)",
    **{("shared race", piece): remedy for piece, remedy in _OF_RACES.items()},
    **{("global race", piece): remedy for piece, remedy in _OF_RACES.items()},
    ("shared race", SAME_WARP): _WARP,
    ("global race", SAME_WARP): _WARP,
    ("shared race", NO_FENCE): _FENCE.replace("threadfence", "threadfence_block"),
    ("global race", NO_FENCE): _FENCE,
    ("shared race", PLAIN_POLL): "poll with an atomic, because the compiler "
    "may make a plain load only once",
    ("global race", PLAIN_POLL): "poll with cuda.ldcv or an atomic, and set the flag with "
    "cuda.stwt or an atomic, because the compiler may make a plain load only once",
    ("global race", NO_ORDER): "let each element belong to one thread, use an atomic, put "
    "cuda.threadfence() before an atomic flag that the other block waits for, or split the kernel "
    "into two launches",
    ("copy in flight", BY_TENSOR_CORES): "let all threads of the warpgroup call wait_barrier for "
    "the phase in which the copy arrives, before they start the product",
    ("copy in flight", WAITED_FOR): "wait for the phase in which the copy arrives, by "
    "wait_barrier with parity 0, 1, 0, ...",
    ("shared race", COPY_OVERWRITES): "let readers arrive at a barrier after they have read, and "
    "the thread that copies wait for it",
    ("shared race", OVERWRITES_PRODUCT): "let each warpgroup arrive at a barrier after "
    "wait_products, and the thread that copies wait for it",
    ("shared race", MAY_READ): "let each warpgroup arrive at a barrier after wait_products, and "
    "the threads that write wait for it",
    ("uninitialised", NO_INIT): "let one thread call init_barrier and then fence_barriers, and put "
    "cuda.syncthreads() before the first use",
    ("not fenced", NO_BARRIER_FENCE): "let the thread that initialises the barrier call "
    "fence_barriers() after it, and put cuda.syncthreads() before the first copy",
    ("deadlock", LACKS): "let as many threads arrive in each phase as init_barrier says, expect "
    "the bytes that copies bring, and wait for the parities 0, 1, 0, ... in turn",
    ("deadlock", NEEDS_REGISTERS): "let other warpgroups give registers first: all threads of the "
    "block have 65,536 together, shared by the blocks of launch_bounds",
    ("deadlock", AT_NUMBER): "let as many threads come to the number as the call says",
    ("inactive lane", WRONG_REGISTERS): "give registers to have fewer, take registers to have more",
    ("inactive lane", WHOLE_WARP): "let all 32 lanes of the warp reach the call",
    ("inactive lane", WHOLE_WARPGROUP): "let all 128 threads of the warpgroup reach the call",
    (
        "endless loop",
        GOES_ON,
    ): "count in a wider type, such as int64, or compare with a number that the type reaches",
    ("endless loop", ALL_LOOPS): "end the loops earlier, or allow more steps",
    ("out of bounds", DYNAMIC_BYTES): "give the launch as many bytes as its arrays have, "
    "kernel[grid, block, stream, BYTES]",
    ("uninitialised", NO_VALUE): "give it a value on every path, such as before the branch or loop",
    (IMPOSSIBLE, AT_LEAST): "launch at least one block of one thread, or nothing at all",
    (IMPOSSIBLE, OF_SHARED): "let the block use less shared memory",
    (IMPOSSIBLE, OF_SHARED_ARRAYS): "make the arrays smaller, or give the launch dynamic shared "
    "memory, cuda.shared.array(0, ...) and kernel[grid, block, stream, BYTES]",
    (IMPOSSIBLE, OF_LOCAL): "make the array smaller, or keep it in global memory",
    (IMPOSSIBLE, OF_CONSTANT): "pass the array as an argument",
    ("misaligned", OF_PANELS): "begin panels at multiples of 1,024 bytes after panel_start(S), or "
    "give the shared array alignment=BYTES_1024",
    ("misaligned", OFF_ITS_SIZE): "align the field, or begin the view at a "
    "multiple of its element's size",
    ("depends on order", NOT_RETRIED): _RETRY,
    ("depends on order", EXCH_OVERWRITES): _AT_ONCE,
    ("depends on order", FROM_OLD_VALUE): _AT_ONCE,
    ("depends on order", WITHOUT_LOCK): "retry the lock until it is free",
    (
        "depends on order",
        GIVES_UP,
    ): "poll until the other thread has changed it, or split the kernel into two launches",
    ("depends on order", PARTED): "take the mask of the lanes that have to come, such as "
    "0xFFFFFFFF or a ballot_sync before the branch",
    (STREAM_RACE, OF_PINNED): "wait for the copy before the host touches the memory: by "
    "stream.synchronize(), or by an event that is recorded after the copy",
    (STREAM_RACE, HOST_WRITES): "call cuda.synchronize() before the host touches the array",
    ("barrier divergence", BRANCH.format("for")): _LOOP,
    ("barrier divergence", BRANCH.format("while")): _LOOP,
    ("barrier divergence", OTHER_ITERATION): _LOOP,
    ("barrier divergence", BRANCH.format("if")): "move the barrier out of the branch",
    ("barrier divergence", RETURNED_IN): "let no thread return before the barrier: put the "
    "work that it skips in a branch",
}


def remedy_of(kind: str, what: str) -> str:
    """Return the remedy of a finding of this kind that says ``what``."""
    special = (
        remedy
        for (its_kind, piece), remedy in SPECIAL.items()
        if its_kind == kind and piece in what
    )
    found = next(special, REMEDIES[kind])
    return f"{found}; {ONE_BLOCK}" if NO_ORDER in what else found
