"""Engines: the places where kernels run, and which engine is the default.

``gpu`` is Numba CUDA on an NVIDIA GPU. On the CPU, ``simulator`` is convlab's own, strict and
quick, and ``cudasim`` Numba's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from convlab.ladder.stage import Capability, Launch, Program, Step
from convlab.ladder.stage_choice import GpuLimits
from convlab.ladder.tile_heuristic import H200_SMS
from convlab.problems.arrays import Array
from convlab.problems.number_types import NUMBER_TYPES, as_in_kernels
from convlab.running.compilers import why_no_compiler
from convlab.simulation.rules.memory_traffic import Counts
from convlab.support.host_memory import host_bytes
from convlab.support.values import shown

if TYPE_CHECKING:
    from convlab.simulation.launch.running_blocks import OnBlock

__all__ = [
    "ENGINE_NAMES", "Counts", "CudaStream", "Engine", "EngineUnavailable", "Packed", "Start",
    "Stream", "address_of", "check_aligned", "choose", "stream_handle", "unavailable",
]  # fmt: skip

_CLASSES = {"gpu": "Gpu", "simulator": "Simulator", "cudasim": "CudaSim"}  # by their modules
ENGINE_NAMES = tuple(_CLASSES)
UNWRITTEN = 2.0**15  # in half the elements of a simulator's new arrays; float16 can hold it


class CudaStream(Protocol):
    """A stream of any library, in CUDA's protocol for exchanging them."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol, and the stream's handle."""


Stream = int | CudaStream | None  # a handle, a stream, or the default stream


class Start(Protocol):
    """A step that is ready to run: starts it with its arrays on a stream."""

    def __call__(self, arrays: Sequence[Any], stream: Stream = None) -> None: ...


class Packed(Protocol):
    """All steps of a program as one function, which costs less of the host's time."""

    one_graph: bool  # a call launches one CUDA graph

    def __call__(self, *arrays: Array, stream: Stream = None) -> None: ...

    def at(self, addresses: tuple[int, ...], handle: int) -> None:
        """Start them with arrays at these addresses on the stream of that handle."""


class EngineUnavailable(RuntimeError):
    """The engine asked for cannot run here; the message says why and what to do."""


class Engine:
    """A place where kernels run. The methods here are a simulator's, whose arrays are NumPy's and
    which has no GPU to ask. Engine ``gpu`` overrides every one; its arrays are Numba's device
    arrays."""

    name: str
    is_gpu = False
    # Of a simulator, to estimate waits: each is 0.7 to 1.6 times as fast, by stage.
    multiply_adds_per_second = 40_000
    on_block: OnBlock | None = None  # is told of each block that a simulator begins
    _counts: Counts | None = None  # where somebody counts

    @classmethod
    def why_not(cls) -> str | None:
        """Return why the engine cannot run here, in one sentence; None when it can."""
        return None

    @property
    def device(self) -> str:
        """The name of what runs the kernels."""
        raise NotImplementedError

    def free_bytes(self) -> int | None:
        """Memory that can still be allocated, in bytes; None where unknown. On the host, all memory
        that there is, because how much of it is free changes by the minute."""
        return host_bytes()

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> Any:
        """Return a new array of a problem's or a buffer's type. A simulator fills it so that an
        element which no kernel writes is wrong. Integers hold their type's largest value. Floats
        hold NaN and ``UNWRITTEN`` in turn: a kernel that recomputes sums that are not finite would
        hide NaN alone."""
        kind = NUMBER_TYPES[dtype].numpy if dtype in NUMBER_TYPES else np.dtype(dtype)
        if kind.kind == "u":
            return np.full(shape, np.iinfo(kind).max, kind)
        made = np.full(shape, np.nan, kind)
        made.reshape(-1)[1::2] = UNWRITTEN
        return made

    def to_device(self, host: np.ndarray, dtype: str = "float32") -> Any:
        """Return a copy of a host array in that type of a problem, C-contiguous, in the engine's
        memory."""
        return np.array(host, NUMBER_TYPES[dtype].numpy, order="C")

    def to_host(self, array: Array, dtype: str = "float32") -> np.ndarray:
        """Return a copy on the host of an array of that type; waits for work in flight."""
        return np.array(array)

    def for_kernels(self, array: Any) -> Any:
        """Return the array as kernels get it: 16-bit numbers as uint16. On a GPU it stays as it is,
        because kernels are given its address."""
        return as_in_kernels(array) if isinstance(array, np.ndarray) else array

    def check_array(self, name: str, array: Array) -> None:
        """Raise ``TypeError`` for an array that is not in the GPU's memory, ``ValueError`` for one
        that kernels cannot take there; a simulator's kernels take any."""

    def run(self, launch: Launch, arrays: Sequence[np.ndarray], stream: Stream = None) -> None:
        """Run one launch to its end. Only simulators have this method."""
        raise NotImplementedError

    def build(self, step: Step, program: Program) -> Start:
        """Return the compiled step, a function of its arrays and a stream. A GPU's returns before
        the work has ended; a simulator's library is NumPy. Raises :class:`EngineUnavailable` for a
        library call without a library."""
        if isinstance(step, Launch):
            return partial(self.run, step)

        def call(arrays: Sequence[np.ndarray], stream: Stream = None) -> None:
            with np.errstate(all="ignore"):  # a GPU says nothing when numbers overflow
                step.function(np, *arrays)

        return call

    def pack(
        self,
        program: Program,
        shapes: Mapping[str, tuple[int, ...]],
        held: Mapping[str, Array],
    ) -> Packed | None:
        """Return the program's steps as one function that starts them at less cost; None where
        there is no such function. ``shapes`` are the four tensors', ``held`` the arrays of the
        buffers that calls do not bring."""
        return None

    def why_no_library(self) -> str | None:
        """Return why there is no array library for library calls, in one sentence; None when
        there is."""
        return None

    def capability(self) -> Capability | None:
        """Return the GPU's compute capability; None on a simulator, which runs every stage."""
        return None

    def sm_count(self) -> int | None:
        """Return how many SMs share the blocks of a launch; None on a simulator."""
        return None

    def limits(self) -> GpuLimits:
        """Return the GPU's limits that stages are chosen by; an H200's where they are unknown."""
        return GpuLimits(sm_count=self.sm_count() or H200_SMS)

    def peak_flops(self, precision: str = "fp32") -> float | None:
        """Operations per second that no kernel exceeds in ``fp32``, ``tf32``, ``3xtf32`` (a third
        of ``tf32``), ``fp16`` or ``bf16`` (twice ``tf32``); None where unknown."""
        return None

    def synchronize(self) -> None:
        """Wait for everything started so far."""

    def freeing(self) -> AbstractContextManager[None]:
        """Inside, freed memory ends nobody's capture of a stream."""
        return nullcontext()

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """Count what the kernels inside the ``with`` do; all zero on a GPU. Counting in counting
        counts only the inner."""
        outer, self._counts = self._counts, Counts()
        try:
            yield self._counts
        finally:
            self._counts = outer


def _class_of(name: str) -> type[Engine]:
    """Return an engine's class. It is imported now, because a broken driver must not break the
    others."""
    found: type[Engine] = getattr(import_module(f"convlab.running.engines.{name}"), _CLASSES[name])
    return found


_made: dict[str, Engine] = {}


def unavailable(name: str) -> str | None:
    """Return why an engine cannot run here, in one sentence; None when it can."""
    return _class_of(name).why_not()


def choose(name: str = "auto") -> Engine:
    """Return the engine of that name; ``'auto'`` is the GPU where there is one, Numba's simulator
    where ``NUMBA_ENABLE_CUDASIM=1`` turns that on, else convlab's. Raises ``ValueError`` for an
    unknown name or ``CONVLAB_COMPILER``, :class:`EngineUnavailable` for an engine that cannot
    run."""
    if not isinstance(name, str):  # an array compares with no word
        raise TypeError(f"engine is {shown(name)}: it must be a name, such as 'simulator'")
    no_compiler = why_no_compiler()
    if name == "auto":
        from numba.cuda.core import config

        if no_compiler is not None:  # somebody asked for it: no simulator stands in for it
            raise EngineUnavailable(no_compiler)
        usual = "cudasim" if config.ENABLE_CUDASIM else "simulator"
        name = "gpu" if unavailable("gpu") is None else usual
    if name not in ENGINE_NAMES:
        raise ValueError(
            f"engine is {shown(name)}: it must be 'auto', 'gpu', 'simulator' or 'cudasim'"
        )
    if (reason := unavailable(name)) is not None:
        raise EngineUnavailable(f"engine is {name!r}, which cannot run here: {reason}")
    if name not in _made:
        _made[name] = _class_of(name)()
    return _made[name]


# What the driver knows arrays and streams by: addresses and handles, whichever library's they are.
# Numba's own conversion of an argument takes 5 to 20 us; reading an address takes less than one.

Reader = Callable[[Any], int | None]  # of one library's arrays
_readers: dict[type, Reader] = {}


def address_of(array: object) -> int:
    """Return the address at which an array of any library with ``__cuda_array_interface__`` begins.
    Raises ``TypeError`` for one that is not there, such as NumPy's."""
    kind = type(array)
    if kind not in _readers:
        _readers[kind] = _reader_for(array)
    address = _readers[kind](array)
    if address is None:
        raise TypeError(
            f"an array is a {kind.__name__} in the host's memory: a plan on a GPU takes arrays in "
            "the GPU's"
        )
    return address


def _reader_for(array: object) -> Reader:
    """Return the fastest function that reads the address of any array of this array's type. It
    returns None for an array on the host."""
    if hasattr(array, "device_ctypes_pointer"):
        return lambda numbas: int(numbas.device_ctypes_pointer.value)
    if hasattr(array, "data_ptr") and hasattr(array, "is_cuda"):
        return lambda tensor: int(tensor.data_ptr()) if tensor.is_cuda else None
    if hasattr(array, "__cuda_array_interface__") and hasattr(getattr(array, "data", None), "ptr"):
        return lambda cupys: int(cupys.data.ptr)
    return _address_by_interface


def _address_by_interface(array: Any) -> int | None:
    """Return the address by ``__cuda_array_interface__``; None for an array without it. Arrays of
    one type may lie on a GPU or on the host, as JAX's do: only the former have it."""
    interface = getattr(array, "__cuda_array_interface__", None)
    return None if interface is None else int(interface["data"][0])


def check_aligned(name: str, address: int) -> None:
    """Raise ``ValueError`` naming the array unless it begins at a multiple of 16 bytes: a
    misaligned 128-bit access ends the GPU's context, with all that is in it."""
    if address % 16:
        raise ValueError(
            f"{name} is a device array that starts at address {address:#x}: it must start at a "
            "multiple of 16 bytes, because stages move four numbers at a time"
        )


def stream_handle(stream: Stream) -> int:
    """Return the handle of a stream of any library with ``__cuda_stream__``, of a handle, or of
    None, the default stream: 0. Raises ``TypeError`` for anything else."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise TypeError(
        f"stream is {stream!r}: it must be None, a stream's handle or an object that has "
        "__cuda_stream__, such as numba.cuda.stream()"
    )
