"""Tensors on the GPU, for stages and for baselines that take plain pointers; a simple timer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convlab.bench.baselines.base import Singles
from convlab.engines import choose, unavailable

NAN_BITS = 0x7FC00000  # a quiet NaN
Start = Callable[[int | None], None]
"""Starts work on a raw CUDA stream; 0 or None is the default one."""


def why_no_gpu() -> str | None:
    """Why there is no GPU to run on, in one sentence; None when there is one."""
    return unavailable("gpu")


class OnGpu:
    """Input, weight, output and workspace in the GPU's memory, float32 in the axis order given.

    A subclass has ``run``, and calls :meth:`place` when it is made. ``name`` is the baseline's.
    """

    capturable = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._gpu = choose("gpu")
        self._arrays: list[Any] = []

    def place(self, input: Singles, weight: Singles, output_shape: tuple[int, ...]) -> None:
        """Copy both to the GPU beside an empty output. Raises ``MemoryError`` without room."""
        needed = input.nbytes + weight.nbytes + 4 * int(np.prod(output_shape, dtype=np.int64))
        require_free(needed, "input, weight and output take")
        self._arrays = [
            self._gpu.to_device(input),
            self._gpu.to_device(weight),
            self._gpu.empty(output_shape),
        ]

    def place_workspace(self, nbytes: int) -> int | None:
        """The address of that many bytes more; None for none."""
        if nbytes == 0:
            return None
        require_free(nbytes, "it asks for a workspace of")
        self._arrays.append(self._gpu.empty((-(-nbytes // 4),)))
        return pointer(self._arrays[-1])

    @property
    def pointers(self) -> tuple[int, int, int]:
        """The addresses of input, weight and output. Raises ``RuntimeError`` after ``close``."""
        if not self._arrays:
            raise RuntimeError(f"{self._name} has been closed")
        input, weight, output = map(pointer, self._arrays[:3])
        return input, weight, output

    def poison(self) -> None:
        """Fill the output with NaN; done when this returns."""
        from cuda.bindings import driver

        self._gpu.synchronize()
        output = self._arrays[2]
        (error,) = driver.cuMemsetD32(pointer(output), NAN_BITS, output.size)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA driver: {error.name} while filling the output with NaN")
        self._gpu.synchronize()

    def output(self) -> Singles:
        """The output on the host, once the GPU is done."""
        self._gpu.synchronize()
        return self._gpu.to_host(self._arrays[2])

    def close(self) -> None:
        """Free the memory."""
        self._arrays = []
        self._gpu.free_bytes()  # Numba frees unused memory later, unless asked


def pointer(array: Any) -> int:
    """Where a device array begins."""
    return int(array.__cuda_array_interface__["data"][0])


def require_free(nbytes: int, what: str) -> None:
    """Raise ``MemoryError`` unless the GPU has that much memory free."""
    free = choose("gpu").free_bytes()
    if free is not None and nbytes > free:
        raise MemoryError(
            f"{what} {nbytes / 2**30:.2f} GiB of the GPU's memory, but {free / 2**30:.2f} are free"
        )


def fastest(starts: Mapping[int, Start]) -> int:
    """The key of the work that takes the least time on the GPU."""
    times = {key: min(times_ms(start)) for key, start in starts.items()}
    return min(times, key=times.__getitem__)


def times_ms(start: Start, repeats: int = 5) -> list[float]:
    """How long ``start`` keeps the GPU busy, by events on the default stream, after one run that
    does not count. Below some 0.1 ms a time includes the launch."""
    from numba import cuda

    start(None)
    samples = []
    for _ in range(repeats):
        begin, end = cuda.event(), cuda.event()
        begin.record()
        start(None)
        end.record()
        end.synchronize()
        samples.append(float(cuda.event_elapsed_time(begin, end)))
    return samples
