"""Read machine code: the instructions of compiled kernels, and facts about them.

Needs nvdisasm (the extra ``lint`` has it), no GPU and no driver.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from convlab.ladder.stage import Capability, Kernel
from convlab.running.engines.cubin import Cubin, instruction_bytes, own_instructions
from convlab.running.engines.kernel_identity import ArgumentTypes
from convlab.running.engines.kernels import CompilerMissing, compile_kernel
from convlab.support.installing import how_to_install

SourceLine = tuple[str, int]  # file and line
INSTRUCTION_BYTES = 16
MULTIPLY_ADDS = ("FFMA", "HMMA", "HGMMA")
_BRANCH = re.compile(r"BRA(?:\.\w+)* (?:`\()?(0x[0-9a-f]+)")
_SOURCE_LINE = re.compile(r'//## File "(.*?)", line (\d+)')
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][^;]*?)\s*;")


def instructions_of(cubins: Sequence[Cubin]) -> list[list[str]]:
    """Return the instructions of each in order, opcode first (``FFMA R1, R2, R3, R1``). A branch
    names the byte of its kernel that it leads to. One process disassembles all for one GPU, because
    nvdisasm takes 0.4 s to start. Raises :class:`CompilerMissing` without nvdisasm."""
    parts: list[list[str]] = [[] for _ in cubins]
    for capability in {cubin.capability for cubin in cubins}:
        numbers = [n for n, cubin in enumerate(cubins) if cubin.capability == capability]
        codes = [instruction_bytes(cubins[n].code) for n in numbers]
        ends = [*accumulate(map(len, codes))]
        kind = own_instructions(capability).replace("sm_", "SM")
        for at, instruction in _INSTRUCTION.findall(
            _disassemble(b"".join(codes), "--binary", kind)
        ):
            which = bisect_right(ends, int(at, 16))
            start = ends[which] - len(codes[which])
            if (branch := _BRANCH.match(instruction)) is not None:
                instruction = f"BRA {int(branch[1], 16) - start:#x}"
            parts[numbers[which]].append(instruction)
    return parts


@lru_cache(maxsize=16)
def code_of(cubin: Cubin) -> tuple[str, ...]:
    """Return the instructions of one kernel, as :func:`instructions_of` does."""
    (code,) = instructions_of([cubin])
    return tuple(code)


def opcodes_of(cubin: Cubin) -> Counter[str]:
    """Count the kernel's opcodes with their modifiers: ``LDG.E.128``, ..."""
    return Counter(line.split()[0] for line in code_of(cubin))


def main_loop(code: Sequence[str]) -> list[str]:
    """Return the loop with the most multiply-adds of a kernel's :func:`instructions_of`; of
    several, the shortest. Empty where no loop has any."""
    loops = []
    for end, instruction in enumerate(code):
        if (branch := _BRANCH.match(instruction)) is not None:
            begin = int(branch[1], 16) // INSTRUCTION_BYTES
            loops.append(list(code[begin : end + 1]))  # empty for a branch forward
    best = max(loops, key=lambda loop: (multiply_adds(loop), -len(loop)), default=[])
    return best if multiply_adds(best) else []


def multiply_adds(code: Sequence[str]) -> int:
    """Count the instructions that multiply and add float32 or TF32: those of a thread, of a warp
    and of a warpgroup alike."""
    return sum(line.split(None, 1)[0].split(".")[0] in MULTIPLY_ADDS for line in code)


def is_float64(opcode: str) -> bool:
    """Return True for DADD, DMUL, DFMA, DSETP, ... and every conversion to or from F64."""
    return opcode.startswith(("DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "DMMA")) or "F64" in opcode


def shared_load_bytes(
    kernel: Kernel, types: ArgumentTypes, capability: Capability
) -> dict[SourceLine, int]:
    """Return the widest load from shared memory that each source line became, in bytes, by file and
    line: where the compiler unrolls a loop, it merges loads of neighbouring numbers. ``types`` are
    Numba's types of the arguments. Raises as :func:`compile_kernel` does."""
    cubin = compile_kernel(kernel, types, capability, lineinfo=True)
    widest: dict[SourceLine, int] = {}
    for line, instruction in instructions_by_line(cubin):
        kind, *modifiers = instruction.split(None, 1)[0].split(".")
        if kind == "LDS":
            bits = next((int(part) for part in modifiers if part in ("64", "128")), 32)
            widest[line] = max(widest.get(line, 0), bits // 8)
    return widest


def instructions_by_line(cubin: Cubin) -> Iterator[tuple[SourceLine, str]]:
    """Yield each instruction of a kernel that was compiled with ``lineinfo``, opcode first, with
    the source line that it comes from. Raises as :func:`instructions_of` does."""
    line: SourceLine = ("", 0)
    for text in _disassemble(cubin.code, "-c", "-g").splitlines():
        if (named := _SOURCE_LINE.search(text)) is not None:
            line = named[1], int(named[2])
        elif (instruction := _INSTRUCTION.search(text)) is not None:
            yield line, instruction[2]


def _disassemble(code: bytes, *options: str) -> str:
    """Return what nvdisasm prints. Raises :class:`CompilerMissing` without it, ``RuntimeError``
    with what it says where it fails."""
    from cuda.pathfinder import find_nvidia_binary_utility

    program = find_nvidia_binary_utility("nvdisasm")
    if program is None:
        install = how_to_install("lint", "make gate")
        raise CompilerMissing(f"nvdisasm is not here: run {install}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code)
        # -ndf: no analysis of where branches lead, which is slow.
        command = [program, *options, "-ndf", str(path)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip() or "it does not say why"
        raise RuntimeError(f"nvdisasm failed with exit status {done.returncode}: {reason}")
    return done.stdout
