"""Refusals by Numba, slips in the text and float64 in a learner's kernel; notes on a right one."""

from __future__ import annotations

import inspect
from typing import Any

from numba.cuda.core import config

from convlab.checking import Check
from convlab.checking.launches import EVERYTHING, main_of
from convlab.checking.loading import maker
from convlab.checking.outcome import CompiledKernel
from convlab.checking.programs import program_with
from convlab.ladder import Launch, Program, Stage, short_name
from convlab.lessons.compiling import cause_of_error, refusal
from convlab.lessons.explanations import lines_of
from convlab.lessons.feedback import Mistake
from convlab.lessons.kernel_text import branched_stores, plain_zeros, slip
from convlab.lessons.pictures import joined
from convlab.lessons.readiness import function_of
from convlab.running.engines.compilation import float64_lines
from convlab.running.engines.kernels import argument_types


def numbas_refusal(stage: Stage, made: Any) -> Mistake | None:
    """Return what Numba refuses in a kernel; None if nothing, or if that is not known here."""
    program = program_with(stage, maker(made, stage), EVERYTHING, stage.tiny_tile)
    main = main_of(program)
    return refusal(main.kernel, argument_types(main, program))


def refused_or_slip(stage: Stage, made: Any, found: Check, *, compiled: bool) -> Mistake | None:
    """Return what Numba does not compile, or a slip in the text of a kernel with mistakes. Numba
    refuses nothing in a kernel that is ``compiled``."""
    if found.ok and compiled:
        return None
    if any(one.endless for one in found.answers):  # then not all problems have been tried
        return None
    raised = any(one.check is None and one.ended for one in found.wrong)
    program = program_with(stage, maker(made, stage), EVERYTHING, stage.tiny_tile)
    main = main_of(program)
    types = argument_types(main, program)
    if raised or not (found.wrong or found.findings):
        refused = (cause_of_error if raised else refusal)(main.kernel, types)
        if refused is not None:
            return refused
    if found.ok:
        return None
    own = [step for step in program.launches if isinstance(step, Launch) and _is_of(made, step)]
    for step in own or [main]:
        mistake = slip(step.kernel, [one.ndim for one in argument_types(step, program)])
        if mistake is not None:
            return mistake
    return None


def _is_of(made: Any, launch: Launch) -> bool:
    """Return whether the kernel of a launch is in the learner's cell."""
    function = function_of(inspect.unwrap(made))
    code = launch.kernel.py_func.__code__
    return function is not None and code.co_filename == function.__code__.co_filename


def checked_by_types(stage: Stage, made: Any) -> CompiledKernel | None:
    """Return the check of Numba's types, for machines without the compilers."""
    both = made, stage.prepare
    programs = [program_with(stage, maker(one, stage), EVERYTHING, stage.tiny_tile) for one in both]
    yours, stages = (_float64_lines(program) for program in programs)
    return (
        CompiledKernel(float64=tuple(f"line {n}" for n in yours)) if yours and not stages else None
    )


def notes_on(stage: Stage, made: Any, found: Check) -> tuple[str, ...]:
    """Return what could be better in a right kernel: stores in several branches, and arithmetic in
    float64."""
    if not found.ok:
        return ()
    function = function_of(inspect.unwrap(made))
    apart = () if function is None else branched_stores(function)
    if not found.float64:
        return apart
    program = program_with(stage, maker(made, stage), EVERYTHING, stage.tiny_tile)
    file = main_of(program).kernel.py_func.__code__.co_filename
    lines = lines_of(*((file, number) for number in _float64_lines(program) or ()))
    if not lines and function is not None:
        own = function.__code__.co_filename
        lines = lines_of(*((own, number) for number in plain_zeros(function)))
    where = "".join(f", in {line}: {line.code}" for line in lines[:1])
    told = f"""it computes in float64{where}, and {short_name(stage.name)} does not. Write
        float32(0) where a number of the arrays is missing or a sum begins, and neither 0 nor 0.0;
        write no / of integers."""
    return (*apart, joined(told))


def _float64_lines(program: Program) -> tuple[int, ...] | None:
    """Return the lines of a program's main kernel that compute in float64; None if they are not
    known, as in a process of Numba's simulator, which knows no types."""
    if config.ENABLE_CUDASIM:
        return None
    main = main_of(program)
    return float64_lines(main.kernel, argument_types(main, program))
