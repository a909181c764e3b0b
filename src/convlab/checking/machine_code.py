"""A checked kernel in machine code: whether Numba compiles it, and whether it uses float64."""

from __future__ import annotations

import re
from typing import Any

from numba.cuda.core import config

from convlab.checking.launches import main_of
from convlab.checking.outcome import CompiledKernel
from convlab.ladder import Program
from convlab.ladder.stage import Capability
from convlab.running.engines.disassembly import is_float64, opcodes_of
from convlab.running.engines.kernels import CompilerMissing, compile_kernel, compile_launch

CAPABILITY: Capability = (9, 0)  # what is compiled for


def compiled(program: Program, stages: Program) -> CompiledKernel | None:
    """Compile the main kernel beside the stage's; None without compilers."""
    if config.ENABLE_CUDASIM:
        return None
    try:
        found = _float64_in(program)
        return CompiledKernel(float64=found if found and not _float64_in(stages) else ())
    except CompilerMissing:
        return None
    except Exception as error:  # Numba's own kinds are many, and not of one family
        return CompiledKernel(error=_reason(error))


def compiled_alone(kernel: Any, types: tuple[Any, ...]) -> CompiledKernel | None:
    """Compile a kernel for arguments of these types, and look for errors alone; None without
    compilers."""
    try:
        compile_kernel(kernel, types, CAPABILITY)
    except CompilerMissing:
        return None
    except Exception as error:  # Numba's own kinds are many, and not of one family
        return CompiledKernel(error=_reason(error))
    return CompiledKernel()


def _float64_in(program: Program) -> tuple[str, ...]:
    opcodes = opcodes_of(compile_launch(main_of(program), program, CAPABILITY))
    return tuple(sorted(filter(is_float64, opcodes)))


def _reason(error: Exception) -> str:
    """The lines of Numba's message that give its reason."""
    text = re.sub(r"Function\(<function ([\w.]+) at \w+>\)", r"\1", str(error))
    lines = (line.strip(" >") for line in text.splitlines())
    said = [line for line in lines if line and not line.startswith("Failed in ")]
    reason = " ".join(said[: 1 + said[0].endswith(":")] if said else [type(error).__name__])
    reason = reason.removesuffix(".")
    if "shared.array" in reason or "local.array" in reason:
        reason += "; its shape must be constant"
    line = re.search(r'File ".*", line (\d+)', text)
    return f"{reason} (line {line[1]})" if line else reason
