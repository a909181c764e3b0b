"""Engine ``gpu``: Numba CUDA on the current NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import types
from numba.cuda.core import config

from convlab.engines import handles
from convlab.engines.base import Start, Together
from convlab.engines.handles import stream_handle
from convlab.simulation.memory_rules import Counts
from convlab.stage import Capability, Flat, Launch, LibraryCall, Program, Step


def why_not() -> str | None:
    """Why there is no GPU to run on, in one sentence; None when there is one."""
    if config.ENABLE_CUDASIM:
        return "NUMBA_ENABLE_CUDASIM=1 turns Numba's CUDA into its simulator; unset it"
    if not cuda.is_available():
        return "no NVIDIA GPU with a working driver was found"
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except Exception as error:  # the loader's own exception types differ between versions
        return (
            f"the CUDA compilers are not installed ({type(error).__name__}): "
            "make ladder installs them, or pip install -e '.[gpu-cu13]' (gpu-cu12 for CUDA 12)"
        )
    return None


def signature(launch: Launch, program: Program) -> tuple[Any, ...]:
    """Numba's types of the launch's arguments: C-contiguous float32 arrays."""
    ndim = {"input": 4, "weight": 4, "bias": 1, "output": 4}
    ndim |= {buffer.name: len(buffer.shape) for buffer in program.buffers}
    return tuple(
        types.Array(types.float32, 1 if isinstance(argument, Flat) else ndim[str(argument)], "C")
        for argument in launch.arguments
    )


# Dense TF32 multiply-adds per SM and clock, by compute capability: the TFLOP/s of NVIDIA's papers
# (A100 156, RTX 3090 36, H100 SXM 495, RTX 4090 83, B200 1,200, RTX 5090 105) over SMs and clock.
TF32_LANES = {
    (8, 0): 512, (8, 6): 128, (8, 7): 256, (8, 9): 128, (9, 0): 1024, (10, 0): 2048,
    (10, 3): 2048, (12, 0): 128,
}  # fmt: skip


def _lanes(precision: str, capability: Capability) -> float:
    """Fused multiply-adds that an SM starts per clock; 0 for an unknown GPU."""
    if precision in ("tf32", "3xtf32"):
        return TF32_LANES.get(capability, 0) / (3 if precision == "3xtf32" else 1)
    if capability >= (8, 6):
        return 128
    return 64 if capability >= (7, 0) else 0


@contextmanager
def _small_grids_allowed() -> Iterator[None]:
    """Numba warns of grids too small to fill a GPU; small problems are what people learn with."""
    usual = config.CUDA_LOW_OCCUPANCY_WARNINGS
    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
    try:
        yield
    finally:
        config.CUDA_LOW_OCCUPANCY_WARNINGS = usual


class Gpu:
    """The current GPU. Arrays are Numba device arrays; launches are asynchronous."""

    name = "gpu"
    is_gpu = True

    @property
    def device(self) -> str:
        name = cuda.get_current_device().name
        return name.decode() if isinstance(name, bytes) else str(name)

    def free_bytes(self) -> int | None:
        """What the driver says is free, once Numba has freed what is no longer referenced."""
        context = cuda.current_context()
        # Numba frees unreferenced memory later: arrays in one queue, code in another.
        for queue in (context.memory_manager.deallocations, context.deallocations):
            queue.clear()
        return int(context.get_memory_info().free)

    def empty(self, shape: tuple[int, ...]) -> Any:
        return cuda.device_array(shape, np.float32)

    def to_device(self, host: np.ndarray) -> Any:
        return cuda.to_device(np.ascontiguousarray(host, np.float32))

    def to_host(self, array: Any) -> np.ndarray:
        return np.asarray(array.copy_to_host())

    def why_no_library(self) -> str | None:
        return handles.why_no_library()

    def build(self, step: Step, program: Program) -> Start:
        """The launch compiled for this GPU; see :meth:`convlab.engines.base.Engine.build`."""
        if isinstance(step, LibraryCall):
            return handles.build_library_call(step)
        launch = step
        launch.kernel.compile(signature(launch, program))

        @lru_cache(maxsize=4)  # a plan is called on one stream, seldom on two
        def configured(handle: int) -> Any:
            stream = cuda.external_stream(handle) if handle else 0
            with _small_grids_allowed():
                return launch.kernel[launch.grid, launch.block, stream]

        configured(0)
        return lambda arrays, stream=None: configured(stream_handle(stream))(*arrays)

    def prepack(
        self, program: Program, shapes: dict[str, tuple[int, ...]], held: dict[str, Any]
    ) -> Together | None:
        """All launches with their parameters laid ready; None where one step is a library's."""
        launches = [step for step in program.launches if isinstance(step, Launch)]
        if len(launches) < len(program.launches):
            return None  # what a library does needs arrays, not addresses
        from convlab.engines import prepacked

        compiled = [(step, step.kernel.compile(signature(step, program))) for step in launches]
        buffers = {buffer.name: buffer.shape for buffer in program.buffers}
        return prepacked.prepack(compiled, shapes | buffers, held)

    def capability(self) -> Capability | None:
        major, minor = cuda.get_current_device().compute_capability
        return int(major), int(minor)

    def sm_count(self) -> int | None:
        return int(cuda.get_current_device().MULTIPROCESSOR_COUNT)

    def peak_flops(self, precision: str = "fp32") -> float | None:
        """Two operations a lane and clock, at the highest clock; None for an unknown GPU."""
        device = cuda.get_current_device()
        lanes = _lanes(precision, tuple(device.compute_capability))
        kilohertz = device.CLOCK_RATE  # the highest that it boosts to
        return 2e3 * lanes * device.MULTIPROCESSOR_COUNT * kilohertz or None

    def synchronize(self) -> None:
        cuda.synchronize()

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """All zero: a GPU counts nothing here."""
        yield Counts()
