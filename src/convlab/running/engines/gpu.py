"""Engine ``gpu``: Numba CUDA on the current NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda
from numba.cuda.core import config

from convlab.device import BoundMap
from convlab.ladder.stage import ITEM_BYTES, Capability, Launch, LibraryCall, Program, Step
from convlab.ladder.stage_choice import GpuLimits
from convlab.problems.arrays import Array
from convlab.problems.number_types import NUMBER_TYPES, as_in_kernels
from convlab.running.compilers import why_no_compiler
from convlab.running.engines import (
    Engine,
    EngineUnavailable,
    Packed,
    Start,
    Stream,
    address_of,
    check_aligned,
    stream_handle,
)
from convlab.running.engines.kernels import compile_launch
from convlab.support.installing import how_to_install

if TYPE_CHECKING:
    from convlab.running.engines.launching import LoadedKernel

# Dense TF32 multiply-adds per SM and clock, by compute capability: the TFLOP/s of NVIDIA's papers
# (A100 156, RTX 3090 36, H100 SXM 495, RTX 4090 83, B200 1,200, RTX 5090 105) over SMs and clock.
TF32_LANES = {
    (8, 0): 512, (8, 6): 128, (8, 7): 256, (8, 9): 128, (9, 0): 1024, (10, 0): 2048,
    (10, 3): 2048, (12, 0): 128,
}  # fmt: skip


# Multiply-adds for one of TF32, on all of these.
TF32_SHARES = {"tf32": 1.0, "3xtf32": 1 / 3, "fp16": 2.0, "bf16": 2.0}


class Gpu(Engine):
    """The current GPU. Arrays are Numba device arrays; launches are asynchronous."""

    name = "gpu"
    is_gpu = True

    @classmethod
    def why_not(cls) -> str | None:
        """Return why no kernel can be compiled and run on a GPU here, in one sentence; None when
        one can."""
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
                f"run {how_to_install('gpu-cu13', 'make ladder')} (gpu-cu12 for CUDA 12)"
            )
        return why_no_compiler()

    @property
    def device(self) -> str:
        """The name of the current GPU."""
        name = cuda.get_current_device().name
        return name.decode() if isinstance(name, bytes) else str(name)

    def free_bytes(self) -> int | None:
        """Return what the driver says is free, after Numba has freed what nobody refers to."""
        context = cuda.current_context()
        # Numba frees unreferenced memory later: arrays in one queue, code in another.
        for queue in (context.memory_manager.deallocations, context.deallocations):
            queue.clear()
        return int(context.get_memory_info().free)

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> Any:
        """Return a device array of that shape, with no values yet."""
        kind = NUMBER_TYPES[dtype].in_kernels if dtype in NUMBER_TYPES else dtype
        return cuda.device_array(shape, np.dtype(kind))

    def to_device(self, host: np.ndarray, dtype: str = "float32") -> Any:
        """Return a C-contiguous copy of a host array on the GPU, as kernels take that type."""
        converted = np.ascontiguousarray(host, NUMBER_TYPES[dtype].numpy)
        return cuda.to_device(as_in_kernels(converted))

    def to_host(self, array: Any, dtype: str = "float32") -> np.ndarray:
        """Return a copy of a device array on the host, as numbers of that type."""
        return np.asarray(array.copy_to_host()).view(NUMBER_TYPES[dtype].numpy)

    def for_kernels(self, array: Any) -> Any:
        """Return the array as it is: kernels are given its address."""
        return array

    def check_array(self, name: str, array: Array) -> None:
        """Raise ``TypeError`` for an array that is not on the GPU, ``ValueError`` for one that is
        not aligned to 16 bytes."""
        check_aligned(name, address_of(array))

    def build(self, step: Step, program: Program) -> Start:
        """Return a function that starts the step: its kernel compiled and loaded, or a library's
        call."""
        if isinstance(step, LibraryCall):
            return _build_library_call(step)
        from convlab.running.engines.launching import (
            GpuArray,
            current_context,
            have_context,
            map_address,
        )
        from convlab.running.engines.tensor_maps import NUMBERS

        kernel = self._loaded(step, program)
        context, dtypes = current_context(), program.dtypes
        sizes = [ITEM_BYTES[dtypes[str(argument)]] for argument in step.arguments]

        def start(arrays: Sequence[Any], stream: Stream = None) -> None:
            have_context(context, step.name)
            placed = [
                GpuArray((NUMBERS,), 8, map_address(array.map, address_of(array.array)))
                if isinstance(array, BoundMap)
                else GpuArray(array.shape, nbytes, address_of(array))
                for array, nbytes in zip(arrays, sizes, strict=True)
            ]
            kernel.launch(step, placed, stream_handle(stream))

        return start

    def pack(
        self,
        program: Program,
        shapes: Mapping[str, tuple[int, ...]],
        held: Mapping[str, Array],
    ) -> Packed | None:
        """Return the program as one CUDA graph; None if a library does one of its steps."""
        launches = [step for step in program.launches if isinstance(step, Launch)]
        if len(launches) < len(program.launches):
            return None  # what a library does needs arrays, not addresses
        from convlab.running.engines.packed_program import PackedProgram

        kernels = [(step, self._loaded(step, program)) for step in launches]
        buffers = {buffer.name: buffer.shape for buffer in program.buffers}
        item_bytes = {name: ITEM_BYTES[dtype] for name, dtype in program.dtypes.items()}
        return PackedProgram(kernels, {**shapes, **buffers}, held, item_bytes)

    def _loaded(self, step: Launch, program: Program) -> LoadedKernel:
        """Return the step's kernel in the driver, compiled for the current GPU."""
        from convlab.running.engines.launching import loaded

        cubin = compile_launch(step, program, self.capability())
        return loaded(cubin, step.name)

    def why_no_library(self) -> str | None:
        """Return why there is no array library with arrays on the GPU; None when there is."""
        if _library_name() is not None:
            return None
        return "neither PyTorch nor CuPy that can use the GPU is installed here; install one"

    def capability(self) -> Capability:
        """Return the current GPU's compute capability."""
        major, minor = cuda.get_current_device().compute_capability
        return int(major), int(minor)

    def sm_count(self) -> int | None:
        """Return the number of the current GPU's SMs."""
        return int(cuda.get_current_device().MULTIPROCESSOR_COUNT)

    def limits(self) -> GpuLimits:
        """Return the current GPU's number of SMs and bytes of memory traffic in a clock."""
        device = cuda.get_current_device()
        bits = 2 * device.MEMORY_CLOCK_RATE * device.GLOBAL_MEMORY_BUS_WIDTH  # two in each clock
        return GpuLimits(
            sm_count=int(device.MULTIPROCESSOR_COUNT),
            bytes_a_clock=bits / 8 / device.CLOCK_RATE,
        )

    def peak_flops(self, precision: str = "fp32") -> float | None:
        """Two operations a lane and clock, at the highest clock; None for an unknown GPU."""
        device = cuda.get_current_device()
        capability = tuple(device.compute_capability)
        if precision in TF32_SHARES:
            lanes = TF32_LANES.get(capability, 0) * TF32_SHARES[precision]
        else:
            lanes = 128 if capability >= (8, 6) else 64 if capability >= (7, 0) else 0
        kilohertz = device.CLOCK_RATE  # the highest that it boosts to
        return 2e3 * lanes * device.MULTIPROCESSOR_COUNT * kilohertz or None

    def synchronize(self) -> None:
        """Wait for all work of the GPU."""
        cuda.synchronize()

    def freeing(self) -> AbstractContextManager[None]:
        """Return a context in which freed memory ends nobody's capture of a stream."""

        from convlab.running.engines.launching import relaxed_capture

        return relaxed_capture()


# The array library for a stage's library calls is PyTorch or CuPy; kernels need neither. Arrays are
# passed without a copy, on the kernels' stream, so that one graph can capture both. PyTorch
# multiplies in float32 here even where its user allows TF32; CuPy unless ``CUPY_TF32=1`` is set.
Adapter = tuple[Any, Callable[[Any], Any], Callable[[int], AbstractContextManager[Any]]]


def _build_library_call(call: LibraryCall) -> Start:
    name = _library_name()
    if name is None:
        raise EngineUnavailable(f"{call.name} is a library's work: {Gpu().why_no_library()}")
    from convlab.running.engines.launching import current_context, have_context

    library, convert, on_stream = _ADAPTERS[name]()
    context = current_context()

    def start(arrays: Sequence[Any], stream: Stream = None) -> None:
        have_context(context, call.name)
        with on_stream(stream_handle(stream)):
            call.function(library, *map(convert, arrays))

    return start


@cache
def _library_name() -> str | None:
    for name in _ADAPTERS:
        try:
            if import_module(name).cuda.is_available():
                return name
        except Exception:  # a broken installation raises what it likes, and is as good as none
            continue
    return None


def _torch() -> Adapter:
    import torch

    device = torch.device("cuda", cuda.get_current_device().id)
    torch.mm(*torch.ones(2, 1, 1, device=device))  # sets cuBLAS up, which a capture must not

    @contextmanager
    def on_stream(handle: int) -> Iterator[None]:
        with torch_stream(torch, device, handle), in_float32(torch.backends.cuda.matmul):
            yield

    return torch, lambda array: torch.as_tensor(array, device=device), on_stream


def torch_stream(torch: Any, device: Any, handle: int) -> AbstractContextManager[Any]:
    """PyTorch's work inside the ``with`` goes to the stream of that handle; ``torch`` is the
    module, which takes 0 for "any new stream", not for CUDA's default one."""
    cuda = torch.cuda
    stream = cuda.ExternalStream(handle, device) if handle else cuda.default_stream(device)
    return cuda.stream(stream)  # type: ignore[no-any-return]


# The setting belongs to the whole process: by its object, how many threads are inside, and its
# value before the first of them.
_float32_lock = Lock()
_inside_float32: dict[int, tuple[int, Any]] = {}


@contextmanager
def in_float32(matmul: Any) -> Iterator[None]:
    """PyTorch's matrix products in float32, by ``torch.backends.cuda.matmul``; then as before. Of
    several threads inside, and of blocks inside one another, the last to end restores it."""
    # From PyTorch 2.9 on the old name raises where somebody has used the new one.
    new = hasattr(matmul, "fp32_precision")
    name = "fp32_precision" if new else "allow_tf32"
    with _float32_lock:
        users, before = _inside_float32.get(id(matmul), (0, None))
        if not users:
            before = getattr(matmul, name)
        setattr(matmul, name, "ieee" if new else False)
        _inside_float32[id(matmul)] = users + 1, before
    try:
        yield
    finally:
        with _float32_lock:
            users, before = _inside_float32.pop(id(matmul))
            if users > 1:
                _inside_float32[id(matmul)] = users - 1, before
            else:
                setattr(matmul, name, before)


def cupy_stream(cupy: Any, handle: int) -> AbstractContextManager[Any]:
    """CuPy's work inside the ``with`` goes to the stream of that handle; ``cupy`` is the module."""
    if not hasattr(cupy.cuda.Stream, "from_external"):  # before CuPy 14
        return cupy.cuda.ExternalStream(handle)  # type: ignore[no-any-return]
    return cupy.cuda.Stream.from_external(_Stream(handle))  # type: ignore[no-any-return]


@dataclass
class _Stream:
    """A stream in CUDA's protocol for exchanging them."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle  # version of the protocol, and the stream


def _cupy() -> Adapter:
    import cupy

    cupy.matmul(*cupy.ones((2, 1, 1), "f4"))  # sets cuBLAS up, which a capture must not
    return cupy, cupy.asarray, partial(cupy_stream, cupy)


_ADAPTERS: dict[str, Callable[[], Adapter]] = {"torch": _torch, "cupy": _cupy}
