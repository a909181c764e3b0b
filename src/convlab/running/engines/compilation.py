"""A kernel's Python function compiled to a cubin, by either compiler.

numba-cuda or, with ``CONVLAB_COMPILER=mlir``, its successor numba-cuda-mlir makes LTO-IR of the
function; nvJitLink links either's LTO-IR to machine code. Both compile for a GPU that need not be
here. The differences between the two are here and in :mod:`convlab.device.mlir`, which gives a
kernel the successor's names and intrinsics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from threading import RLock, get_ident
from types import SimpleNamespace
from typing import Any
from unittest import mock

from convlab.ladder.stage import Capability, Kernel
from convlab.running.engines.cubin import Cubin, Layout, arch_of, kernel_in, own_instructions
from convlab.running.engines.device_functions import equal_functions_once
from convlab.running.engines.kernel_identity import ArgumentTypes
from convlab.support.numba_shortcuts import numba_shortcuts

# What is patched belongs to the whole process. Numba's own compilation takes a lock, too.
_one_at_a_time = RLock()

# From here on Numba lowers a kernel to the same LLVM IR for every GPU. Before 7.5 `tanh` with
# `fastmath` differs, before 6.0 an atomic addition of float64.
SAME_FROM: Capability = (7, 5)


def numba_lto_ir(
    kernel: Kernel, types: ArgumentTypes, capability: Capability, lineinfo: bool = False
) -> bytes:
    """Return the LTO-IR that numba-cuda makes of a kernel for arguments of these types. Raises
    what numba-cuda raises."""
    lowered_for = min(capability, SAME_FROM)
    with _one_at_a_time, equal_functions_once(lowered_for):
        library = _lowered(kernel, types, lowered_for, lineinfo)
    return bytes(library.get_ltoir(cc=capability))


def _compiled_by_numba(
    kernel: Kernel, types: ArgumentTypes, capability: Capability, lineinfo: bool
) -> Any:
    """Return Numba's code library of a kernel: LLVM IR, to be compiled for several GPUs. This part
    is Python and takes twice as long as the compilers."""
    from numba.cuda import compiler

    options = kernel.targetoptions
    with _one_at_a_time, _device_of(capability), numba_shortcuts():
        # The beginning of the public `cuda.compile`, which does all of it for each GPU.
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
        # A device function's code is there once for each function that calls it. NVVM needs one.
        library._llvm_strs = [str(module) for module in dict.fromkeys(library.modules)]
    return library


@contextmanager
def _device_of(capability: Capability) -> Iterator[None]:
    """Inside, this thread's device functions are compiled for that capability. Numba compiles them
    for "the current device", even where another one is named or there is none."""
    from numba.cuda import dispatcher

    usual: Callable[[], Any] = dispatcher.get_current_device
    thread, device = get_ident(), SimpleNamespace(compute_capability=capability)

    def current_device() -> Any:
        return device if get_ident() == thread else usual()

    with mock.patch.object(dispatcher, "get_current_device", current_device):
        yield


# For the kernels of a stage, which are next compiled for another GPU.
_lowered = lru_cache(maxsize=64)(_compiled_by_numba)


def mlir_lto_ir(
    kernel: Kernel, types: ArgumentTypes, capability: Capability, lineinfo: bool = False
) -> bytes:
    """Return the LTO-IR that numba-cuda-mlir makes of a kernel for arguments of these types of
    numba-cuda's. Raises what numba-cuda-mlir raises."""
    from numba_cuda_mlir import linker, mlir_optimization, tools

    from convlab.device import mlir

    dispatcher = mlir.translated(kernel, own_instructions(capability), lineinfo)
    with (
        _one_at_a_time,
        # It asks the driver for the GPU that is here, even where another one is named.
        mock.patch.object(tools, "_cached_cc", capability),
        # NVVM inlines device functions, once it has unrolled their loops. Inlined by MLIR, t03's
        # loop over its sums is not unrolled, which keeps them on the stack.
        mock.patch.object(mlir_optimization, "get_inline_pipeline", return_value="canonicalize"),
        # It links for itself, with other options.
        mock.patch.object(linker.Linker, "complete", return_value=SimpleNamespace(code=b"")),
    ):
        made = dispatcher.compile(tuple(map(mlir.type_of, types)))
    return bytes(made.metadata["ltoir"])


# From LTO-IR to machine code.


class UnknownGPU(ValueError):
    """The compilers that are here know no GPU of this compute capability."""


# Beside a driver, nvJitLink keeps what it linked, and says no registers of what it finds there.
OPTIONS = ("-lto", "-verbose", "-no-cache")

# Facts that the linker's log states, each by the pattern of its line. It states the stack and the
# spills of the kernel and those of every function that is not inlined.
_KERNEL = re.compile(r"Compiling entry function '(\S+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)\n")
_REGISTERS = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame")
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")
_SHARED = re.compile(r"(\d+) bytes smem")


def linked(
    lto_ir: bytes,
    capability: Capability,
    *,
    kernel: str,
    layout: Layout,
    max_registers: int | None = None,
    lineinfo: bool = False,
) -> Cubin:
    """Return the kernel of this LTO-IR as machine code; ``kernel`` is its Python function's name,
    for errors. Raises :class:`UnknownGPU` where the linker does not know the GPU, ``RuntimeError``
    where it refuses the kernel, with what it says, or does not say what the kernel takes."""
    options = [f"-arch={own_instructions(capability)}", *OPTIONS]
    if lineinfo:
        options.append("-lineinfo")
    if max_registers:
        options.append(f"-maxrregcount={max_registers}")
    code, log = _link(lto_ir, capability, options, kernel)
    registers = _last(_REGISTERS, log)
    if not registers:  # every budget would be kept
        raise RuntimeError(f"nvJitLink did not say how many registers {kernel} takes")
    name, parameter_bytes = kernel_in(code)
    properties = _properties_of_kernel(log)
    return Cubin(
        capability=capability,
        name=name,
        layout=layout,
        parameter_bytes=parameter_bytes,
        registers=registers,
        stack_bytes=_last(_STACK, properties),
        spill_bytes=sum(map(int, _SPILLS.findall(properties)[-2:])),
        shared_bytes=_last(_SHARED, log),
        code=code,
    )


def _properties_of_kernel(log: str) -> str:
    """Return the lines about the kernel itself; the whole log if it does not tell them apart."""
    _, *parts = _FUNCTION.split(log)
    kernel = _KERNEL.search(log)
    lines = dict(zip(parts[::2], parts[1::2], strict=True))
    return lines.get(kernel[1], log) if kernel else log


def _last(pattern: re.Pattern[str], log: str) -> int:
    """Return the number in the last match, or 0 without one: the kernel's line comes last."""
    found = pattern.findall(log)
    return int(found[-1]) if found else 0


def _link(
    lto_ir: bytes, capability: Capability, options: list[str], kernel: str
) -> tuple[bytes, str]:
    """Return the cubin and the linker's log."""
    from cuda.bindings import nvjitlink

    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as error:
        if "UNRECOGNIZED_ARCH" in str(error):
            raise UnknownGPU(f"no compiler here knows {arch_of(capability)}: {error}") from error
        raise
    try:
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, lto_ir, len(lto_ir), "kernel")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            said = bytearray(nvjitlink.get_error_log_size(handle))
            nvjitlink.get_error_log(handle, said)
            reason = said.decode(errors="replace").strip("\0 \n") or "it does not say why"
            raise RuntimeError(f"nvJitLink refused {kernel} ({error}): {reason}") from error
        code = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, code)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    finally:
        nvjitlink.destroy(handle)
    return bytes(code), log.decode(errors="replace")


# Types alone.


def float64_lines(kernel: Kernel, types: ArgumentTypes) -> tuple[int, ...] | None:
    """Return the lines of a kernel whose operators or calls, such as ``max``, have a float64
    result, by Numba's type inference alone, which needs no compiler; None where inference does not
    come to an end, as for a kernel that calls device functions."""
    from numba.cuda import compiler
    from numba.cuda import types as numba_types
    from numba.cuda.core import ir
    from numba.cuda.core.compiler_machinery import PassManager

    states: list[Any] = []

    class OnlyTyped(compiler.CUDACompiler):  # type: ignore[misc]
        def define_cuda_lowering_pipeline(self, state: Any) -> Any:
            states.append(state)
            return PassManager("nothing")

    with (
        _one_at_a_time,
        mock.patch.object(compiler, "CUDACompiler", OnlyTyped),
        suppress(Exception),
    ):
        # What comes after the types ends in an exception, as there is no code to go on with.
        _compiled_by_numba(kernel, types, SAME_FROM, lineinfo=False)
    if len(states) != 1 or states[0].calltypes is None:
        return None
    return tuple(
        sorted(
            expression.loc.line
            for expression, found in states[0].calltypes.items()
            if isinstance(expression, ir.Expr)
            and expression.op in ("binop", "inplace_binop", "call")
            and found.return_type == numba_types.float64
        )
    )
