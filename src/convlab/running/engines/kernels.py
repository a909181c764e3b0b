"""Compiled kernels: the one place that is asked for the machine code of a kernel.

What runs on a GPU is the link-time-optimised build: one of two compilers makes LTO-IR of the Python
function, and nvJitLink links that to a cubin. The same is done for a GPU that is not here, so that
``convlab lint`` looks at the code that runs. The PTX that ``cuda.compile_ptx`` shows is another
build with other registers and other loads. Needs the compilers as Python packages (the extra
``lint`` has them); neither a GPU nor a driver.

Compiled kernels stay on disk (:func:`convlab.running.engines.cubin.store`), so that the next
process only loads them. Other processes may compile them (:mod:`convlab.running.compile_ahead`) and
hand them over.
"""

from __future__ import annotations

from functools import lru_cache

from numba.cuda import types as numba_types

from convlab.device import BoxMap, WindowMap
from convlab.ladder.stage import Capability, Flat, Kernel, Launch, Program
from convlab.running.compilers import MLIR, compiler
from convlab.running.engines.compilation import (
    UnknownGPU,
    linked,
    mlir_lto_ir,
    numba_lto_ir,
)
from convlab.running.engines.cubin import Cubin, arch_of, store, stored
from convlab.running.engines.kernel_identity import ArgumentTypes, kernel_key
from convlab.support import kernel_files
from convlab.support.installing import how_to_install
from convlab.support.kernel_defaults import kept_defaults

__all__ = [
    "CompilerMissing", "UnknownGPU", "argument_types", "compile_kernel", "compile_launch",
    "is_ready", "key_of", "take_over",
]  # fmt: skip


class CompilerMissing(RuntimeError):
    """The compiler wheels are not installed; the message says what to do."""


def argument_types(launch: Launch, program: Program) -> ArgumentTypes:
    """Return Numba's types of the launch's arguments: C-contiguous arrays, of uint64 for a tensor
    map. Parameters that the launch leaves at their defaults take none of the machine code's
    parameters."""
    ndim = {"input": 4, "weight": 4, "bias": 1, "residual": 4, "output": 4}
    ndim |= {buffer.name: len(buffer.shape) for buffer in program.buffers}
    dtypes = program.dtypes
    given = tuple(
        numba_types.Array(numba_types.uint64, 1, "C")
        if isinstance(argument, BoxMap | WindowMap)
        else numba_types.Array(
            getattr(numba_types, dtypes[str(argument)]),
            1 if isinstance(argument, Flat) else ndim[str(argument)],
            "C",
        )
        for argument in launch.arguments
    )
    kept = kept_defaults(launch.kernel.py_func, len(given))
    return given + tuple(map(numba_types.Omitted, kept))


def compile_launch(launch: Launch, program: Program, capability: Capability) -> Cubin:
    """Return one launch's kernel, compiled for ``capability``, such as (9, 0). Raises
    :class:`CompilerMissing` without the compilers, :class:`UnknownGPU` when they do not know such a
    GPU."""
    return compile_kernel(launch.kernel, argument_types(launch, program), capability)


def compile_kernel(
    kernel: Kernel, types: ArgumentTypes, capability: Capability, *, lineinfo: bool = False
) -> Cubin:
    """Return any kernel, compiled for arguments of those Numba types by the compiler that the
    environment asks for, with the source's lines if ``lineinfo``. Raises as
    :func:`compile_launch`, and ``ValueError`` for a wrong ``CONVLAB_CACHE_LIMIT``."""
    return _compiled(compiler(), kernel, types, capability, lineinfo)


# Kernels from other processes.

# By their keys. They need no folder on disk, and they stay: a plan may be made much later.
_from_others: dict[str, Cubin] = {}


def key_of(launch: Launch, program: Program, capability: Capability) -> str | None:
    """Return the key of a launch's kernel, by which any process finds it; None for a kernel that
    depends on something which has no key."""
    return kernel_key(launch.kernel, argument_types(launch, program), capability, compiler())


def is_ready(key: str) -> bool:
    """Return True where the kernel of that key need not be compiled any more. It is then in this
    process's memory."""
    if key not in _from_others and (kept := stored(key)) is not None:
        _from_others[key] = kept
    return key in _from_others


def take_over(key: str, cubin: Cubin) -> None:
    """Use the kernel that another process compiled under that key."""
    _from_others[key] = cubin


# A plan needs each kernel by itself and in its graph, and the next stage on the ladder has the same
# layout transforms.
@lru_cache(maxsize=256)
def _compiled(
    chosen: str, kernel: Kernel, types: ArgumentTypes, capability: Capability, lineinfo: bool
) -> Cubin:
    from numba.cuda.core import config

    if config.ENABLE_CUDASIM:
        raise CompilerMissing("Numba runs as its CUDA simulator, which compiles nothing")
    kernel_files.limit_bytes()  # a wrong limit is refused before anything is compiled
    key = None if lineinfo else kernel_key(kernel, types, capability, chosen)
    if key is not None and (kept := _from_others.get(key) or stored(key)) is not None:
        return kept
    cubin = _newly_compiled(chosen, kernel, types, capability, lineinfo)
    if key is not None:
        store(key, cubin)
    return cubin


def _newly_compiled(
    chosen: str, kernel: Kernel, types: ArgumentTypes, capability: Capability, lineinfo: bool
) -> Cubin:
    from cuda.pathfinder import DynamicLibNotFoundError
    from numba.cuda.cudadrv.error import CCSupportError, CudaSupportError, NvvmSupportError

    try:
        lto_ir = (mlir_lto_ir if chosen == MLIR else numba_lto_ir)(
            kernel, types, capability, lineinfo
        )
        return linked(
            lto_ir,
            capability,
            kernel=kernel.py_func.__name__,
            layout="memref" if chosen == MLIR else "numba",
            max_registers=kernel.targetoptions.get("max_registers"),
            lineinfo=lineinfo,
        )
    except CCSupportError as error:
        raise UnknownGPU(f"no compiler here knows {arch_of(capability)}: {error}") from error
    except (CudaSupportError, NvvmSupportError, ImportError, DynamicLibNotFoundError) as error:
        said = str(error).partition("\n")[0]
        install = how_to_install("lint", "make gate")
        raise CompilerMissing(f"no CUDA compiler here ({said}): run {install}") from error
