"""Kinds of findings that have a name, and pieces of findings' sentences.

The code that words a finding uses these pieces, and :mod:`convlab.simulation.rules.remedies` knows
by them which remedy a finding has. ``BRANCH`` of :mod:`convlab.simulation.recording.sites` and
``AT_LEAST`` of :mod:`convlab.support.values` are two more pieces.

A finding's sentence also quotes the user's names and expressions. So no piece may be something
that a user can write there: each is at least two words of English, and no Python expression. A test
holds this.
"""

from __future__ import annotations

# Kinds with a name of their own.
UNREPORTED, STREAM_RACE = "unreported exception", "stream race"
ALIASED = "aliased memory"
IMPOSSIBLE = "impossible launch"

# Pieces of what findings say.
SAME_WARP = ", of the same warp,"
NO_BARRIER, NO_ORDER = "with no barrier between", "and nothing orders the two blocks"
HARMLESS = " (harmless only if the old and the new number lead to the same result)"
NO_FENCE = "with no fence after the poll or lock that orders the two accesses"
UNFENCED = "with no fence before the atomic that the other thread waits for"
UNFENCED_BLOCKS = "with no fence before the atomic that the other block waits for"
ONE_LOCKED = "and the two do not hold the same lock"
SEEN_BY_ANOTHER = (
    "with no barrier after the atomic by which another thread of its block sees the signal"
)
NARROW_FENCE = "with only threadfence_block before the atomic that the other block waits for"
LOCK_OF_BLOCK = "and the lock in shared memory is another one in each block"
BLOCKS_TOO = "and other blocks race on these lines too"
OF_COOPERATIVE = ", in a kernel that synchronises the grid"
BLOCKS_TOO_OF_COOPERATIVE = f"{BLOCKS_TOO}{OF_COOPERATIVE}"
NO_ORDER_OF_COOPERATIVE = f"{NO_ORDER}{OF_COOPERATIVE}"
# Threads may be in different steps of a loop.
LOOP_STEP = f"{NO_BARRIER}, in a loop whose steps read and change such elements"
LOOP_STEP_OF_BLOCKS = f"{NO_ORDER}, in a loop whose steps read and change such elements"
UPDATE = "and the update by "
NOT_ATOMIC = f"{UPDATE}{{}} is not atomic"
NOT_ONE_STEP = "and to read and to change it is not one atomic step"
EXCHANGED = "and to read and to replace it is not one atomic step"
OWN_RESULT = "after an atomic of its own that has returned its number"
EARLY_MESSAGE = (
    "with no barrier before the fence and atomic by which another thread of its block signals that "
    "block"
)
AT_ONCE = "and no barrier can come between"
TWO_STORES = f"{NO_BARRIER} the two stores"
IN_A_BRANCH = ", in a branch that not all threads take"
PLAIN_POLL = ", which a plain load polls"
NO_VALUE = "has no value here"
NOT_FILLED = "is read before a copy or a kernel has written to it"
GOES_ON = "goes on from"
NO_NEW_NUMBERS = "no new numbers"
STALE_CAS = "a cas expects, takes no new numbers"
IN_A_CALL = ", in a call in "
WHOLE_WARP, WHOLE_WARPGROUP = "needs the whole warp,", "needs the whole warpgroup,"
ALL_LOOPS = "all loops together have run"
DYNAMIC_BYTES = "bytes of dynamic shared memory"
OF_SHARED, OF_SHARED_ARRAYS = "bytes of shared memory", "bytes of shared arrays"
OF_LOCAL, OF_CONSTANT = "bytes of local memory", "bytes of constant memory"
OFF_ITS_SIZE = "is not at a multiple of its size"
NOT_RETRIED, EXCH_OVERWRITES = "is not tried again", "this exch overwrites the change"
EXCH_OVERWRITES_THAT = "this exch overwrites that"  # after a decision by another element
FROM_OLD_VALUE = "has an operand that is computed from the old number"
WITHOUT_LOCK, GIVES_UP = "goes on without the lock", "gives up polling"
PARTED = "the result depends on which lanes activemask names, and lanes"
OF_PINNED, HOST_WRITES, HOST_READS = "pinned memory", "the host writes to", "the host reads"
MANAGED, MAPPED = "managed memory", "mapped memory"
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
