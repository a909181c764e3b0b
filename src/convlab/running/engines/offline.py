"""Compile kernels for a GPU that is not here, the way Numba really does when one is.

What runs is the link-time-optimised build: LTO-IR from NVVM, linked to a cubin by nvJitLink. The
PTX that ``cuda.compile_ptx`` shows is another build with other registers and other loads. Needs the
compilers as Python packages (the extra ``lint`` has them); neither a GPU nor a driver. Of the two
compilers of kernels (:mod:`convlab.running.engines.compiler`) the chosen one makes the LTO-IR.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from struct import unpack_from as _at
from types import SimpleNamespace
from typing import Any
from unittest import mock

from convlab.ladder.stage import Capability, Launch, Program
from convlab.running.engines.compiler import (
    MLIR,
    MlirKernel,
    compiler,
    mlirs_lto_ir,
    own_instructions,
    signature,
)
from convlab.support.installing import how_to_install


class CompilerMissing(RuntimeError):
    """The compiler wheels are not installed; the message says what to do."""


class UnknownGPU(ValueError):
    """The compilers that are here know no GPU of this compute capability."""


@dataclass(frozen=True)
class Cubin:
    """What one kernel compiled to: resources per thread or block, and the machine code."""

    capability: Capability
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    code: bytes

    @cached_property
    def instructions(self) -> list[str]:
        """The instructions of this kernel; :func:`instructions_of` describes them."""
        return instructions_of([self])[0]

    def opcodes(self) -> Counter[str]:
        """How often the code has each opcode with its modifiers: ``LDG.E.128``, ..."""
        return Counter(line.split()[0] for line in self.instructions)


INSTRUCTION_BYTES = 16
MULTIPLY_ADDS = ("FFMA", "HMMA", "HGMMA")
_BRANCH = re.compile(r"BRA(?:\.\w+)* (?:`\()?(0x[0-9a-f]+)")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][^;]*?)\s*;")


def compile_launch(launch: Launch, program: Program, capability: Capability) -> Cubin:
    """Build one launch's kernel for ``capability``, such as (9, 0). Raises :class:`CompilerMissing`
    without the compilers, :class:`UnknownGPU` when they do not know such a GPU."""
    return compile_kernel(launch.kernel, signature(launch, program), capability)


def compile_kernel(kernel: Any, types: tuple[Any, ...], capability: Capability) -> Cubin:
    """Build any kernel for arguments of those Numba types; raises the same errors."""
    code, log = _built(kernel, types, capability)
    registers, stack, stores, loads, shared = (
        int((re.findall(pattern, log) or [0])[-1])
        for pattern in (
            r"Used (\d+) registers", r"(\d+) bytes stack frame", r"(\d+) bytes spill stores",
            r"(\d+) bytes spill loads", r"(\d+) bytes smem",
        )
    )  # fmt: skip
    if not registers:  # every budget would be kept
        raise RuntimeError(f"nvJitLink did not say how many registers {kernel.__name__} takes")
    return Cubin(capability, registers, stack, stores + loads, shared, code)


@lru_cache(maxsize=256)  # a plan needs it to launch it and to put it in a graph
def mlir_kernel(kernel: Any, types: tuple[Any, ...], capability: Capability) -> MlirKernel:
    """The kernel for the current GPU, by numba-cuda-mlir; raises as :func:`compile_kernel`."""
    code, _ = _built_by(MLIR, kernel, types, capability, False)
    return MlirKernel(code, mlirs_lto_ir(kernel, types, capability)[1])


def instructions_of(cubins: Sequence[Cubin]) -> list[list[str]]:
    """The instructions of each in order, opcode first (``FFMA R1, R2, R3, R1``). A branch names the
    byte of its kernel that it leads to. One process disassembles all for one GPU, because nvdisasm
    takes 0.4 s to start. Raises :class:`CompilerMissing` without nvdisasm."""
    parts: list[list[str]] = [[] for _ in cubins]
    for capability in {cubin.capability for cubin in cubins}:
        numbers = [n for n, cubin in enumerate(cubins) if cubin.capability == capability]
        codes = [_machine_code(cubins[n].code) for n in numbers]
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


def _machine_code(cubin: bytes) -> bytes:
    """The instructions' bytes: the ELF file's sections .text, one for each function."""
    begin, (size, count, names) = *_at("<Q", cubin, 0x28), _at("<3H", cubin, 0x3A)
    # Of each section: where its name is, its offset in the file, its size.
    sections = [
        (_at("<I", cubin, begin + size * n)[0], *_at("<2Q", cubin, begin + size * n + 0x18))
        for n in range(count)
    ]
    strings = sections[names][1]
    return b"".join(
        cubin[start : start + length]
        for name, start, length in sections
        if cubin[strings + name :].startswith(b".text.")
    )


def main_loop(code: Sequence[str]) -> list[str]:
    """The loop with the most multiply-adds of a kernel's :func:`instructions_of`; of several, the
    shortest. Empty where no loop has any."""
    loops = []
    for end, instruction in enumerate(code):
        if (branch := _BRANCH.match(instruction)) is not None:
            begin = int(branch[1], 16) // INSTRUCTION_BYTES
            loops.append(list(code[begin : end + 1]))  # empty for a branch forward
    best = max(loops, key=lambda loop: (multiply_adds(loop), -len(loop)), default=[])
    return best if multiply_adds(best) else []


def multiply_adds(code: Sequence[str]) -> int:
    """How many instructions multiply and add float32 or TF32: a thread's, warp's, warpgroup's."""
    return sum(line.split(None, 1)[0].split(".")[0] in MULTIPLY_ADDS for line in code)


def arch_of(capability: Capability) -> str:
    """``sm_90`` for (9, 0)."""
    return f"sm_{capability[0]}{capability[1]}"


def is_float64(opcode: str) -> bool:
    """DADD, DMUL, DFMA, DSETP, ... and every conversion to or from F64."""
    return opcode.startswith(("DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "DMMA")) or "F64" in opcode


def shared_load_bytes(
    kernel: Any, types: tuple[Any, ...], capability: Capability
) -> dict[tuple[str, int], int]:
    """The widest load from shared memory that each source line became, in bytes, by file and line:
    where the compiler unrolls a loop, it merges loads of neighbouring numbers. ``types`` are
    Numba's types of the arguments. Raises as :func:`compile_launch` does."""
    code, _ = _built(kernel, types, capability, lineinfo=True)
    widest: dict[tuple[str, int], int] = {}
    line = ("", 0)
    for text in _disassemble(code, "-c", "-g").splitlines():
        if (named := re.search(r'//## File "(.*?)", line (\d+)', text)) is not None:
            line = named[1], int(named[2])
        elif (load := re.search(r"\bLDS(?:\.\w+)*", text)) is not None:
            bits = next((int(part) for part in load[0].split(".") if part in ("64", "128")), 32)
            widest[line] = max(widest.get(line, 0), bits // 8)
    return widest


def _built(
    kernel: Any, types: tuple[Any, ...], capability: Capability, lineinfo: bool = False
) -> tuple[bytes, str]:
    """The cubin, and the linker's log."""
    return _built_by(compiler(), kernel, types, capability, lineinfo)


@lru_cache(maxsize=64)  # layout transforms, which the next stage on the ladder has too
def _built_by(
    name: str, kernel: Any, types: tuple[Any, ...], capability: Capability, lineinfo: bool
) -> tuple[bytes, str]:
    from numba.cuda.core import config

    if config.ENABLE_CUDASIM:
        raise CompilerMissing("Numba runs as its CUDA simulator, which compiles nothing")
    from cuda.pathfinder import DynamicLibNotFoundError
    from numba.cuda.cudadrv.error import CCSupportError, CudaSupportError, NvvmSupportError

    try:
        if name == MLIR:
            lto_ir, _ = mlirs_lto_ir(kernel, types, capability, lineinfo)
        else:
            library = _lowered(kernel, types, min(capability, _SAME_FROM), lineinfo)
            lto_ir = bytes(library.get_ltoir(cc=capability))
        return _link(lto_ir, capability, *["-lineinfo"] * lineinfo)
    except CCSupportError as error:
        raise UnknownGPU(f"no compiler here knows {arch_of(capability)}: {error}") from error
    except (CudaSupportError, NvvmSupportError, ImportError, DynamicLibNotFoundError) as error:
        said = str(error).partition("\n")[0]
        install = how_to_install("lint", "make gate")
        raise CompilerMissing(f"no CUDA compiler here ({said}): run {install}") from error


# From here on Numba lowers a kernel to the same LLVM IR for every GPU. Before 7.5 `tanh` with
# `fastmath` differs, before 6.0 an atomic addition of float64.
_SAME_FROM = (7, 5)


def _compiled_by_numba(
    kernel: Any, types: tuple[Any, ...], capability: Capability, lineinfo: bool
) -> Any:
    """The kernel as Numba's code library: LLVM IR, to be compiled for several GPUs. This part is
    Python and takes twice as long as the compilers."""
    from numba.cuda import compiler, dispatcher

    options = kernel.targetoptions
    # Device functions are compiled for "the current device"; without one, this is it.
    device = SimpleNamespace(compute_capability=capability)
    # What the public `cuda.compile` begins with; it would do all of it for each GPU.
    with mock.patch.object(dispatcher, "get_current_device", return_value=device):
        library, _ = compiler._compile_pyfunc_with_fixup(
            kernel.py_func,
            types,
            device=False,
            abi="numba",
            cc=capability,
            launch_bounds=options.get("launch_bounds"),
            fastmath=options.get("fastmath", False),
            lineinfo=lineinfo,
            lto=True,
        )
    return library


# For the kernels of a stage, which are next compiled for another GPU.
_lowered = lru_cache(maxsize=64)(_compiled_by_numba)


def float64_lines(launch: Launch, program: Program) -> tuple[int, ...] | None:
    """The lines of the launch's kernel whose arithmetic has a float64 result, by Numba's type
    inference alone, which needs no compiler. None where that does not come to an end, as for a
    kernel that calls device functions."""
    from numba.cuda import compiler, types
    from numba.cuda.core import ir
    from numba.cuda.core.compiler_machinery import PassManager

    states: list[Any] = []

    class OnlyTyped(compiler.CUDACompiler):  # type: ignore[misc]
        def define_cuda_lowering_pipeline(self, state: Any) -> Any:
            states.append(state)
            return PassManager("nothing")

    with mock.patch.object(compiler, "CUDACompiler", OnlyTyped), suppress(Exception):
        # What comes after the types ends in an exception, as there is no code to go on with.
        _compiled_by_numba(launch.kernel, signature(launch, program), _SAME_FROM, lineinfo=False)
    if len(states) != 1 or states[0].calltypes is None:
        return None
    return tuple(
        sorted(
            expression.loc.line
            for expression, found in states[0].calltypes.items()
            if isinstance(expression, ir.Expr)
            and expression.op in ("binop", "inplace_binop")
            and found.return_type == types.float64
        )
    )


def _link(lto_ir: bytes, capability: Capability, *more: str) -> tuple[bytes, str]:
    from cuda.bindings import nvjitlink

    arch = own_instructions(capability)
    # Beside a driver, nvJitLink keeps what it linked, and of what it finds there it tells nothing.
    options = [f"-arch={arch}", "-lto", "-verbose", "-no-cache", *more]
    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as error:
        if "UNRECOGNIZED_ARCH" in str(error):
            raise UnknownGPU(f"no compiler here knows {arch_of(capability)}: {error}") from error
        raise
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, lto_ir, len(lto_ir), "kernel")
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), log.decode(errors="replace")


def _disassemble(cubin: bytes, *options: str) -> str:
    from cuda.pathfinder import find_nvidia_binary_utility

    program = find_nvidia_binary_utility("nvdisasm")
    if program is None:
        install = how_to_install("lint", "make gate")
        raise CompilerMissing(f"nvdisasm is not here: run {install}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        # -ndf: no analysis of where branches lead, which is slow.
        command = [program, *options, "-ndf", str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
