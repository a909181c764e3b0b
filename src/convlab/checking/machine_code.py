"""Whether Numba compiles a kernel, and whether the machine code computes in float64.

No simulator can know either: it runs the kernel as Python.
"""

from __future__ import annotations

import re

from numba.cuda.core import config

from convlab.checking.records import Machine
from convlab.engines.offline import CompilerMissing, compile_launch, is_float64
from convlab.stage import Capability
from convlab.stages import Launch, Program

CAPABILITY: Capability = (9, 0)  # what is compiled for


def compiled(program: Program, stages: Program) -> Machine | None:
    """The main kernel compiled, beside the stage's; None where there are no compilers."""
    if config.ENABLE_CUDASIM:
        return None
    try:
        found = float64_in(program)
        return Machine(float64=found if found and not float64_in(stages) else ())
    except CompilerMissing:
        return None
    except Exception as error:  # Numba's own kinds are many, and not of one family
        return Machine(error=reason(error))


def float64_in(program: Program) -> tuple[str, ...]:
    """Opcodes of the main kernel that compute in float64."""
    main = program.launches[-1]
    assert isinstance(main, Launch)
    opcodes = compile_launch(main, program, CAPABILITY).opcodes()
    return tuple(sorted(opcode for opcode in opcodes if is_float64(opcode)))


def reason(error: Exception) -> str:
    """Numba's reason, of its many lines those that say it."""
    text = re.sub(r"Function\(<function ([\w.]+) at \w+>\)", r"\1", str(error))
    lines = [line.strip(" >") for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith("Failed in ")]
    first = said[0] if said else type(error).__name__
    if first.endswith(":") and len(said) > 1:
        first = f"{first} {said[1]}"
    first = first.removesuffix(".")
    line = re.search(r'File ".*", line (\d+)', text)
    if "shared.array" in first or "local.array" in first:
        first += "; its shape must be constant"
    return f"{first} (line {line[1]})" if line else first
