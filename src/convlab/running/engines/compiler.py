"""Which compiler reads kernels: numba-cuda or, with ``CONVLAB_COMPILER=mlir``, its successor
numba-cuda-mlir.

The difference between the two is here and in :mod:`convlab.device.mlir`, which gives a kernel the
successor's names and intrinsics. Both make LTO-IR, which the same linker makes machine code of.
Arrays, streams and devices stay numba-cuda's; what the successor compiled is loaded and launched by
the driver itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from threading import Lock
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from numba.cuda import types

from convlab.ladder.stage import Capability, Flat, Launch, Program
from convlab.running.compilers import MLIR, NAMES, NUMBA_CUDA, VARIABLE, compiler
from convlab.simulation.rules.coordinates import three
from convlab.support.installing import how_to_install

__all__ = [
    "MLIR", "NAMES", "NUMBA_CUDA", "VARIABLE", "LaunchRefused", "MlirKernel", "compiler",
    "driver_result", "mlirs_lto_ir", "own_instructions", "signature", "why_no_compiler",
]  # fmt: skip

_one_at_a_time = Lock()
MOST_ELEMENTS = 2**31 - 1  # of an array, by numba-cuda-mlir: 0.6.0 extends uint32 with a sign


def why_no_compiler() -> str | None:
    """Why the chosen compiler cannot be used, in one sentence; None when it can."""
    if compiler() == NUMBA_CUDA or find_spec("numba_cuda_mlir") is not None:
        return None
    install = how_to_install("mlir")
    return f"{VARIABLE} is 'mlir', but numba-cuda-mlir is not installed: run {install}"


def signature(launch: Launch, program: Program) -> tuple[Any, ...]:
    """Numba's types of the launch's arguments: C-contiguous float32 arrays."""
    ndim = {"input": 4, "weight": 4, "bias": 1, "output": 4}
    ndim |= {buffer.name: len(buffer.shape) for buffer in program.buffers}
    return tuple(
        types.Array(types.float32, 1 if isinstance(argument, Flat) else ndim[str(argument)], "C")
        for argument in launch.arguments
    )


def own_instructions(capability: Capability) -> str:
    """``sm_90a``: from 9.0 on kernels may use what only this kind of GPU has, such as wgmma."""
    return f"sm_{capability[0]}{capability[1]}{'a' * (capability >= (9, 0))}"


@lru_cache(maxsize=64)  # layout transforms, which the next stage on the ladder has too
def mlirs_lto_ir(
    kernel: Any, kinds: tuple[Any, ...], capability: Capability, lineinfo: bool = False
) -> tuple[bytes, str]:
    """The kernel for arguments of these types of numba-cuda's, and its name there. Raises what
    numba-cuda-mlir raises."""
    from numba_cuda_mlir import linker, mlir_optimization, tools

    from convlab.device import mlir

    dispatcher = mlir.translated(kernel, own_instructions(capability), lineinfo)
    with (
        _one_at_a_time,  # what is patched is the process's
        # It asks the driver for the GPU that is here, even where another one is named.
        mock.patch.object(tools, "_cached_cc", capability),
        # NVVM inlines device functions, once it has unrolled their loops. Inlined by MLIR, t03's
        # loop over its sums is not unrolled, which keeps them on the stack.
        mock.patch.object(mlir_optimization, "get_inline_pipeline", return_value="canonicalize"),
        # It links for itself, with other options.
        mock.patch.object(linker.Linker, "complete", return_value=SimpleNamespace(code=b"")),
    ):
        made = dispatcher.compile(tuple(map(mlir.type_of, kinds)))
    return made.metadata["ltoir"], made.metadata["func_name"]


class LaunchRefused(RuntimeError):
    """The driver's error, and the kernels that it does not launch, if it is about any."""


def driver_result(answer: tuple[Any, ...], names: str = "") -> Any:
    """The driver's result. Raises :class:`LaunchRefused` for an error, with the kernels' names."""
    error, *results = answer
    if error:
        what = f"CUDA could not launch {names}" if names else "CUDA driver"
        raise LaunchRefused(f"{what}: {error.name}")
    return results[0] if results else None


class MlirKernel:
    """A kernel that numba-cuda-mlir compiled, in the driver until the process ends; ``cubin`` is
    what it was linked to."""

    def __init__(self, cubin: bytes, name: str) -> None:
        from cuda.bindings import driver

        self._driver, self._name = driver, name
        loaded = driver.cuLibraryLoadData(cubin, None, None, 0, None, None, 0)
        library = driver_result(loaded, self._name)
        self.handle = driver_result(driver.cuLibraryGetKernel(library, name.encode()), self._name)

    @staticmethod
    def laid_out(shape: Sequence[int], address: int) -> list[int]:
        """The parameters of a C-contiguous array: MLIR's descriptor of a memref, which has the
        address twice, an offset, the extents, and the strides in elements. Raises ``ValueError``
        for an array that is too large."""
        if (elements := math.prod(shape)) > MOST_ELEMENTS:
            raise ValueError(
                f"an array has {elements:,} elements: kernels of numba-cuda-mlir take at most "
                f"{MOST_ELEMENTS:,}, because they read a larger uint32 index as a negative one"
            )
        strides = np.cumprod((1, *shape[:0:-1]))[::-1]
        return [address, address, 0, *shape, *map(int, strides)]

    def launch(
        self, step: Launch, arrays: Iterable[tuple[Sequence[int], int]], stream: int
    ) -> None:
        """Start it with arrays of these shapes at these addresses, on the stream of that handle."""
        where = *three(step.grid, "grid"), *three(step.block, "block")
        numbers = [number for array in arrays for number in self.laid_out(*array)]
        values = np.array(numbers, np.uint64)
        places = values.ctypes.data + 8 * np.arange(len(values), dtype=np.uint64)
        function = driver_result(self._driver.cuKernelGetFunction(self.handle), self._name)
        at = places.ctypes.data  # where the driver reads where each parameter lies
        driver_result(self._driver.cuLaunchKernel(function, *where, 0, stream, at, 0), self._name)
