"""The switch from one CUDA thread's stack to another's, in assembly, because no compiler has a word
for it.

It saves the registers that a C function must preserve. What all kernels share calls it by its
symbol, and a missing symbol would end the process. So :mod:`convlab.simulation.compiled.runtime`
loads it first.
"""

from __future__ import annotations

import platform
import sys
from functools import cache

import llvmlite.binding as llvm

from convlab.simulation.compiled.context import (
    CURRENT,
    ENTRY,
    SCHEDULER,
    STACK_POINTER,
    STATE,
    STATUS,
    SYMBOL,
    WORDS,
)
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.compiled.states import DONE

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
