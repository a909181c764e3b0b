"""Fences: what a block may know of another one.

A thread calls a fence and then an atomic: it tells all accesses before the fence. A thread that
calls an atomic at the same address later receives that, as the last block of a sum does. Only the
first element by which blocks tell something carries messages here; what others tell is suspect.
"""

from __future__ import annotations

from numba.core import types
from numba.core.extending import intrinsic

from convlab.simulation.compiled.cells import AFTER_FENCE, TOLD_WORDS, WHO
from convlab.simulation.compiled.context import (
    BLOCK,
    BOARD,
    FENCED,
    HAS_RECEIVED,
    LAST_ATOMIC,
    LAST_SITE,
    PHASE,
    RECEIVED,
    SITE,
    STAMP,
    TOLD,
    WORD,
    load64,
    own,
    set_own,
    set_word,
    store64,
    word,
)
from convlab.simulation.compiled.names import CUDA
from convlab.simulation.compiled.runtime import call, shared_code

NOBODY = -1


@shared_code("void()")
def fence() -> None:
    """Note a fence of the whole GPU."""
    set_own(FENCED, word(PHASE))
    set_own(STAMP, own(STAMP) | AFTER_FENCE)


@shared_code("void(int64)")
def exchange_messages(cell: int) -> None:
    """Note that the running thread calls an atomic, which receives what other threads have told
    there, and tells what the thread's fence puts before it."""
    polls = own(LAST_ATOMIC) == cell and own(LAST_SITE) == word(SITE)
    set_own(LAST_ATOMIC, cell)
    set_own(LAST_SITE, word(SITE))
    if word(BOARD) == 0 and own(FENCED):
        set_word(BOARD, cell)
    if word(BOARD) != cell:
        return
    if not polls:  # a thread that polls must call a fence itself, which the other engine knows
        set_own(HAS_RECEIVED, 1)
        if word(RECEIVED) == 0:
            set_word(RECEIVED, word(PHASE))
    if own(FENCED):
        address, me = word(TOLD) + word(BLOCK) * TOLD_WORDS * WORD, own(STAMP) & WHO
        if load64(address) < own(FENCED):
            store64(address, own(FENCED))
            store64(address + WORD, me)
        elif load64(address) == own(FENCED) and load64(address + WORD) != me:
            store64(address + WORD, NOBODY)


@intrinsic
def _threadfence(typing):
    def generate(context, builder, types_, arguments):
        call(builder, "fence")
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def _threadfence_block(typing):
    def generate(context, builder, types_, arguments):
        return context.get_dummy_value()

    return types.none(), generate


CUDA.threadfence, CUDA.threadfence_system = _threadfence, _threadfence
CUDA.threadfence_block = _threadfence_block
