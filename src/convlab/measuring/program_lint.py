"""The machine code of any kernel: the source lines that compute in float64 or use local memory.

Local memory holds arrays that are indexed at run time, and spills: values that have found no
register. The compiler addresses a spill by a constant offset from the stack pointer, but also an
element whose index it knows. So the two cannot always be told apart.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from textwrap import shorten
from typing import Any

from convlab.ladder.stage import Capability, Kernel
from convlab.running.engines.cubin import arch_of
from convlab.running.engines.disassembly import SourceLine, instructions_by_line, is_float64
from convlab.running.engines.kernel_identity import ArgumentTypes
from convlab.running.engines.kernels import CompilerMissing, compile_kernel

FLOAT64, LOCAL, SPILLS = "float64", "local memory", "spills"
EITHER = f"{SPILLS} or {LOCAL}"
GPU: Capability = (9, 0)
LONGEST = 240  # characters of a compiler's message
STACK_POINTER = re.compile(r"\[R1\b")


@dataclass(frozen=True, order=True)
class LineUse:
    """The instructions of a source line that compute in float64 or use local memory, by opcode."""

    file: str
    line: int
    kind: str
    opcodes: dict[str, int]

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {opcode}" for opcode, count in self.opcodes.items())
        return f"{self.kind}: {counted}"


@dataclass(frozen=True)
class LintedKernel:
    """A kernel as machine code; ``error`` says why it cannot be compiled here, and is empty if it
    can. ``types`` are Numba's types of its arguments."""

    kernel: str
    types: str
    arch: str
    registers: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0
    lines: Sequence[LineUse] = ()
    error: str = ""

    def __str__(self) -> str:
        signature = f"{self.kernel}({self.types})"
        if self.error:
            return f"{signature} cannot be compiled for {self.arch} here: {self.error}"
        return (
            f"{signature} on {self.arch}: {self.registers} registers, {self.stack_bytes} bytes of "
            f"local memory, {self.spill_bytes} bytes of spills"
        )

    def as_json(self) -> dict[str, Any]:
        """Return what ``convlab run --json`` writes of it."""
        return asdict(self) | {"error": self.error or None}


def lint_kernel(
    kernel: Kernel | None, name: str, types: ArgumentTypes, error: str = "", gpu: Capability = GPU
) -> LintedKernel:
    """Compile a kernel for arguments of these types, and look at its instructions. Without a kernel
    the result has the ``error``. Raises ``CompilerMissing`` without the compilers."""
    arch, shown = arch_of(gpu), ", ".join(map(str, types))
    if kernel is None:
        return LintedKernel(name, shown, arch, error=error)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Could not find source for function")
            cubin = compile_kernel(kernel, types, gpu, lineinfo=True)
    except CompilerMissing:
        raise
    except Exception as refused:  # such as a typing error, of which Numba has many types
        said = shorten(f"{type(refused).__name__}: {refused}", LONGEST)
        return LintedKernel(name, shown, arch, error=said)
    return LintedKernel(
        kernel=name,
        types=shown,
        arch=arch,
        registers=cubin.registers,
        stack_bytes=cubin.stack_bytes,
        spill_bytes=cubin.spill_bytes,
        lines=_uses(instructions_by_line(cubin), cubin.spill_bytes),
    )


def _uses(instructions: Iterable[tuple[SourceLine, str]], spill_bytes: int) -> Sequence[LineUse]:
    """Return what the lines use, in the order of the source."""
    counted: dict[tuple[SourceLine, str], Counter[str]] = defaultdict(Counter)
    local: list[tuple[SourceLine, str]] = []
    for line, instruction in instructions:
        opcode = instruction.split(None, 1)[0]
        if is_float64(opcode):
            counted[line, FLOAT64][opcode] += 1
        if opcode.split(".")[0] in ("LDL", "STL"):
            local.append((line, instruction))
    has_arrays = any(not STACK_POINTER.search(instruction) for _, instruction in local)
    for line, instruction in local:
        kind = LOCAL
        if spill_bytes and STACK_POINTER.search(instruction):
            kind = EITHER if has_arrays else SPILLS
        counted[line, kind][instruction.split(None, 1)[0]] += 1
    return [
        LineUse(*line, kind, dict(sorted(opcodes.items())))
        for (line, kind), opcodes in sorted(counted.items(), key=lambda item: item[0])
    ]
