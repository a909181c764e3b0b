"""The state of a compiled launch that machine code and Python share: words of 64 bits.

One launch runs at a time, for which ``compiled_run`` has a lock. So its words lie at one address,
under a symbol that all machine code refers to. The words of a CUDA thread are in a record of its
own; ``CURRENT`` is the address of the record of the thread that runs.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.extending import intrinsic

SYMBOL = "convlab_compiled_launch"
WORD = 8  # bytes

# Words of the launch.
CURRENT = 0  # address of the running thread's record
SCHEDULER = 1  # the stack pointer of the scheduler while a thread runs
ENTRY = 2  # address of the kernel's machine code
ARGUMENTS = 3  # address of the launch's arguments
BLOCK, BLOCK_X, BLOCK_Y, BLOCK_Z = 4, 5, 6, 7
GRID_X, GRID_Y, GRID_Z = 8, 9, 10
SIZE_X, SIZE_Y, SIZE_Z = 11, 12, 13  # of a block
SITE = 14  # the number of the code's site that runs
PHASE = 15  # barriers passed by all blocks so far, counting the begin of a block as one
FIRST_PHASE = 16  # the phase in which the running block began
STEPS_LEFT = 17  # iterations of all loops that the launch may still have
ENDED = 18  # why the run ended before its end, as in ``suspects``; 0 while it goes on
SERIAL = 19  # local arrays that have been made so far
SHARED, SHARED_END, SHARED_LIMIT = 20, 21, 22  # addresses: of a block's shared memory
CELLS = 23  # address of the shadow memory of shared memory
DYNAMIC_BYTES = 24
OFFSETS = 25  # address of a table: by site, where the array that is requested there begins, plus 1
LOCAL_BYTES = 26  # of a thread's local arrays so far
SUSPECTS, SUSPECT_TABLE = 27, 28  # how many there are, and the address of the table
BEYOND = 29  # 1 or -1: a shuffle from beyond the warp gives another number than the lane's own
BEYOND_WARP = 30  # whether a shuffle has read from there
FIRST_PHASES = 31  # address of a table: the phase in which each block began
DYNAMIC_SITE = 32  # of the call that requested the dynamic part; 0 before
UNCHANGED = 33  # whether an atomic has left an element as it was: it may only have read it
BACKWARDS = 34  # whether blocks and threads run from the last to the first
BLOCKS = 35  # in all
GUESSES = 36  # address of a table: by number of a guess, two words, as in ``guesses``
# Whether an atomic has changed an element of global memory that another thread has read as a guess;
# the last phase in which that was so in shared memory.
CONFLICTS, CONFLICT_PHASE = 37, 38
# Messages by fences: the cell of the atomics that carry them, the phase in which the running block
# received them, and the address of a table: by block, which of its accesses are told.
BOARD, RECEIVED, TOLD = 39, 40, 41
WORDS = 42

# Words of a thread's record.
STACK_POINTER = 0
THREAD_X, THREAD_Y, THREAD_Z = 1, 2, 3
LANE = 4
STAMP = 6  # phase, epoch of its warp, number: see ``cells``
STATE = 7  # of those in ``states``
WAITS_AT = 8  # the site of the call in which it waits
PATH = 9  # a hash of the iterations and calls that have led it there
MASK, VALUE, OTHER, RESULT = 10, 11, 12, 13  # of a call of the warp
LOCAL = 14  # address of its local memory
LOOP_STEPS = 15  # iterations of all its loops in this block
STATUS = 16  # what the machine code returned: not 0 after an exception
PENDING = 17  # guesses since the last barrier that no atomic has checked, as bits
GUESSED, GUESS = 18, 22  # of some of the last guesses: their cells, and their numbers
LAST_GUESSES = 4
FENCED = 26  # the phase of its last fence in this block; 0 before
HAS_RECEIVED = 27  # whether it has received what other blocks tell
LAST_ATOMIC, LAST_SITE = 28, 29  # the cell and the site of its last atomic
RECORD = 30

LAUNCH = np.zeros(WORDS, np.int64)
llvm.add_symbol(SYMBOL, LAUNCH.ctypes.data)

_i64 = ir.IntType(64)


def load_word(builder: ir.IRBuilder, index: int) -> ir.Value:
    """Generate the load of a word of the launch."""
    return builder.load(_word_pointer(builder, index))


def store_word(builder: ir.IRBuilder, index: int, value: ir.Value) -> None:
    """Generate the store of a word of the launch."""
    builder.store(value, _word_pointer(builder, index))


def load_own(builder: ir.IRBuilder, index: int) -> ir.Value:
    """Generate the load of a word of the running thread."""
    return builder.load(_own_pointer(builder, index))


def store_own(builder: ir.IRBuilder, index: int, value: ir.Value) -> None:
    """Generate the store of a word of the running thread."""
    builder.store(value, _own_pointer(builder, index))


def _launch(builder: ir.IRBuilder) -> ir.Value:
    module = builder.module
    known = module.globals.get(SYMBOL)
    return ir.GlobalVariable(module, ir.ArrayType(_i64, WORDS), SYMBOL) if known is None else known


def _word_pointer(builder: ir.IRBuilder, index: int) -> ir.Value:
    return builder.gep(_launch(builder), [ir.Constant(ir.IntType(32), n) for n in (0, index)])


def _own_pointer(builder: ir.IRBuilder, index: int) -> ir.Value:
    record = builder.load(_word_pointer(builder, CURRENT))
    return builder.gep(
        builder.inttoptr(record, _i64.as_pointer()), [ir.Constant(ir.IntType(32), index)]
    )


def _reader(pointer):
    @intrinsic(prefer_literal=True)
    def read(typing, index):
        if not isinstance(index, types.IntegerLiteral):
            return None

        def generate(context, builder, signature, arguments):
            return builder.load(pointer(builder, index.literal_value))

        return types.int64(index), generate

    return read


def _writer(pointer):
    @intrinsic(prefer_literal=True)
    def write(typing, index, value):
        if not isinstance(index, types.IntegerLiteral):
            return None

        def generate(context, builder, signature, arguments):
            builder.store(arguments[1], pointer(builder, index.literal_value))
            return context.get_dummy_value()

        return types.none(index, types.int64), generate

    return write


# For machine code that Numba compiles. The index of a word must be a constant.
word: Callable[[int], int] = _reader(_word_pointer)
set_word: Callable[[int, int], None] = _writer(_word_pointer)
own: Callable[[int], int] = _reader(_own_pointer)
set_own: Callable[[int, int], None] = _writer(_own_pointer)


@intrinsic
def _load64(typing, address):

    def generate(context, builder, signature, arguments):
        return builder.load(builder.inttoptr(arguments[0], _i64.as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def _store64(typing, address, value):

    def generate(context, builder, signature, arguments):
        builder.store(arguments[1], builder.inttoptr(arguments[0], _i64.as_pointer()))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def _launch_address(typing, index):
    if not isinstance(index, types.IntegerLiteral):
        return None

    def generate(context, builder, signature, arguments):
        return builder.ptrtoint(_word_pointer(builder, index.literal_value), _i64)

    return types.int64(index), generate


load64: Callable[[int], int] = _load64  # by an address
store64: Callable[[int, int], None] = _store64  # to an address, a value
launch_address: Callable[[int], int] = _launch_address  # of a word of the launch
