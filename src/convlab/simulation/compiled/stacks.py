"""Stacks of CUDA threads, and the switch from one to another, in machine code.

A thread that waits leaves its stack as it is; another one goes on where it has left its own. That
takes some nanoseconds, and works in any function that a kernel calls.
:mod:`convlab.simulation.compiled.thread_switch` has the switch itself.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.extending import intrinsic

from convlab.simulation.compiled.context import (
    CURRENT,
    RECORD,
    SCHEDULER,
    STACK_POINTER,
    WORD,
    word,
)
from convlab.simulation.compiled.runtime import shared_code
from convlab.simulation.compiled.thread_switch import BEGIN, SWITCH, machine_code

STACK_BYTES = 128 << 10  # of a thread; only what it touches takes memory
# In the last word of each stack. Frames of kernels have some hundred bytes, because local arrays
# lie elsewhere, so none jumps over it.
GUARD = 0x5AFE57AC5AFE57AC


@lru_cache(maxsize=1)  # to touch the memory for the first time may take longer than a launch
def _memory(threads: int) -> np.ndarray:
    """Return the memory of the stacks. Only one launch runs at a time, so the next one uses it
    again. It is private: a forked process has a copy, because its launch may run beside this
    process's. It has small pages: of each stack, a few kilobytes are used."""
    memory = mmap.mmap(-1, threads * STACK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a system without large pages does not know the advice
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.int64).reshape(threads, STACK_BYTES // 8)


class Stacks:
    """The stacks of a block's threads, used again for every block. ``records`` are the threads'."""

    def __init__(self, threads: int) -> None:
        self.begin = machine_code().get_function_address(BEGIN)
        self.memory = _memory(threads)
        self.memory[:, 0] = GUARD
        self.records = np.zeros((threads, RECORD), np.int64)

    @property
    def overflown(self) -> bool:
        """Return whether a thread has used more than its stack."""
        return bool((self.memory[:, 0] != GUARD).any())


@intrinsic
def _switch_stacks(typing, save, to):

    def generate(context, builder, signature, arguments):
        i64 = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [i64.as_pointer(), i64])
        module = builder.module
        known = module.globals.get(SWITCH)
        function = ir.Function(module, kind, SWITCH) if known is None else known
        save, to = arguments
        builder.call(function, [builder.inttoptr(save, i64.as_pointer()), to])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), generate


@intrinsic
def _interrupted(typing):
    def generate(context, builder, types_, arguments):
        kind, name = ir.FunctionType(ir.IntType(32), []), "PyErr_CheckSignals"
        known = builder.module.globals.get(name)
        function = ir.Function(builder.module, kind, name) if known is None else known
        raised = builder.call(function, [])
        return builder.icmp_signed("!=", raised, ir.IntType(32)(0))

    return types.boolean(), generate


# Returns whether a signal has come that raises an exception, such as Ctrl-C's. Only the scheduler
# asks: Python must find its own stack.
interrupted: Callable[[], bool] = _interrupted
# Saves the stack pointer at an address, and goes on with another stack.
switch_stacks: Callable[[int, int], None] = _switch_stacks


@shared_code("void()")
def switch_out() -> None:
    """Go on with the scheduler; return when it switches back to this thread."""
    switch_stacks(word(CURRENT) + STACK_POINTER * WORD, word(SCHEDULER))
