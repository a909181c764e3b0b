"""Stacks of CUDA threads, and the switch from one to another, in machine code.

A thread that waits leaves its stack as it is; another one goes on where it has left its own. That
takes some nanoseconds, and works in any function that a kernel calls. The switch saves the
registers that a C function must preserve, and is written in assembly, because no compiler has a
word for it.
"""

from __future__ import annotations

import mmap
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.extending import intrinsic

from convlab.simulation.compiled.context import (
    CURRENT,
    ENTRY,
    RECORD,
    SCHEDULER,
    STACK_POINTER,
    STATE,
    STATUS,
    SYMBOL,
    WORD,
    WORDS,
    word,
)
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.compiled.runtime import shared_code
from convlab.simulation.compiled.states import DONE

STACK_BYTES = 128 << 10  # of a thread; only what it touches takes memory
# In the last word of each stack. Frames of kernels have some hundred bytes, because local arrays
# lie elsewhere, so none jumps over it.
GUARD = 0x5AFE57AC5AFE57AC
SAVED = 6  # registers that the switch saves

SWITCH, BEGIN = "convlab_switch_stacks", "convlab_begin_thread"

# ``switch(i64* save, i64 to)``: save the stack pointer, go on with another one.
_ASSEMBLY = r"""
target triple = "{triple}"
@{launch} = external global {words}

define void @{switch}(i64* %save, i64 %to) naked noinline nounwind {{
  call void asm sideeffect "
    pushq %rbp\0A pushq %rbx\0A pushq %r12\0A pushq %r13\0A pushq %r14\0A pushq %r15\0A
    movq %rsp, (%rdi)\0A
    movq %rsi, %rsp\0A
    popq %r15\0A popq %r14\0A popq %r13\0A popq %r12\0A popq %rbx\0A popq %rbp\0A
    retq", ""()
  unreachable
}}

define void @{begin}() noinline nounwind {{
  %entry_word = load i64, i64* getelementptr ({words}, {words}* @{launch}, i64 0, i64 {entry})
  %kernel = inttoptr i64 %entry_word to i32 (i8**, i8**)*
  %result = alloca i8*
  %raised = alloca i8*
  %status = call i32 %kernel(i8** %result, i8** %raised)
  %status_word = sext i32 %status to i64
  %record_word = load i64, i64* getelementptr ({words}, {words}* @{launch}, i64 0, i64 {current})
  %record = inttoptr i64 %record_word to i64*
  %status_place = getelementptr i64, i64* %record, i64 {status}
  store i64 %status_word, i64* %status_place
  %state_place = getelementptr i64, i64* %record, i64 {state}
  store i64 {done}, i64* %state_place
  %pointer_place = getelementptr i64, i64* %record, i64 {stack_pointer}
  %scheduler = load i64, i64* getelementptr ({words}, {words}* @{launch}, i64 0, i64 {scheduler})
  call void @{switch}(i64* %pointer_place, i64 %scheduler)
  unreachable
}}
"""


def check_machine() -> None:
    """Raise :class:`NeedsGreenlets` on a machine whose registers the switch does not know."""
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform == "win32":
        raise NeedsGreenlets(f"stacks of {sys.platform} on {platform.machine()} are not switched")


@cache
def machine_code() -> llvm.ExecutionEngine:
    """Return the engine that holds the machine code of the switch. Other machine code finds it by
    its symbol."""
    check_machine()
    for prepare in (
        llvm.initialize_native_target,
        llvm.initialize_native_asmprinter,
        llvm.initialize_native_asmparser,
    ):
        prepare()
    target = llvm.Target.from_default_triple()
    source = _ASSEMBLY.format(
        triple=target.triple,
        words=f"[{WORDS} x i64]",
        launch=SYMBOL,
        switch=SWITCH,
        begin=BEGIN,
        entry=ENTRY,
        current=CURRENT,
        status=STATUS,
        state=STATE,
        done=DONE,
        stack_pointer=STACK_POINTER,
        scheduler=SCHEDULER,
    )
    module = llvm.parse_assembly(source.replace("\\0A\n", "\\0A "))
    module.verify()
    engine = llvm.create_mcjit_compiler(module, target.create_target_machine())
    engine.finalize_object()
    llvm.add_symbol(SWITCH, engine.get_function_address(SWITCH))
    return engine


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
