"""What an engine is: the few things a plan, the ladder and the tests ask of a place to run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, astuple, dataclass
from typing import Any, Protocol

import numpy as np

from convlab.engines.memory_rules import SECTOR_BYTES
from convlab.stage import Capability, Program, Step

Start = Callable[..., None]


class Together(Protocol):
    """Starts all steps of a program at once."""

    @property
    def one_graph(self) -> bool:
        """Whether that is one launch of a CUDA graph."""

    def __call__(self, input: Any, weight: Any, bias: Any, output: Any, stream: Any = None) -> None:
        """On these arrays, on that stream."""


class EngineUnavailable(RuntimeError):
    """The engine asked for cannot run here; the message says why and what to do."""


@dataclass
class Counts:
    """What kernels did. Loads, stores, barriers and ``global_bytes`` are counted per thread: one
    access is one instruction, 32 or 128 bits wide; one barrier is one thread arriving at
    ``syncthreads``. The rest is counted per request, a memory instruction of a whole warp: 32-byte
    sectors of global memory and passes of shared memory; None from an engine that knows no warps.
    """

    global_loads: int = 0
    global_stores: int = 0
    shared_loads: int = 0
    shared_stores: int = 0
    barriers: int = 0
    global_bytes: int = 0
    global_requests: int | None = None
    global_sectors: int | None = None
    shared_requests: int | None = None
    shared_passes: int | None = None

    def __add__(self, other: Counts) -> Counts:
        both = zip(astuple(self), astuple(other), strict=True)
        sums: Any = (None if one is None or two is None else one + two for one, two in both)
        return Counts(*sums)

    def add_requests(self, far: int, sectors: int, near: int, passes: int) -> None:
        """Count requests for global memory and their sectors, for shared memory and its passes."""
        self.global_requests = (self.global_requests or 0) + far
        self.global_sectors = (self.global_sectors or 0) + sectors
        self.shared_requests = (self.shared_requests or 0) + near
        self.shared_passes = (self.shared_passes or 0) + passes

    def as_dict(self, flops: int) -> dict[str, float | None]:
        """The counts and what follows from them: ``flops_per_byte``, the problem's arithmetic over
        the bytes that threads ask of global memory; ``sectors_per_request``,
        ``passes_per_request``; and ``bytes_per_flop``, the bytes that global memory moves, whole
        sectors, over the arithmetic. None where there is nothing to divide by.
        """
        moved = None if self.global_sectors is None else SECTOR_BYTES * self.global_sectors
        return {
            **asdict(self),
            "flops_per_byte": flops / self.global_bytes if self.global_bytes else 0.0,
            "sectors_per_request": _ratio(self.global_sectors, self.global_requests),
            "passes_per_request": _ratio(self.shared_passes, self.shared_requests),
            "bytes_per_flop": _ratio(moved, flops),
        }


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if whole and part is not None else None


class Engine(Protocol):
    """Where kernels run. Arrays are the engine's own kind: device arrays or plain NumPy."""

    name: str
    is_gpu: bool

    @property
    def device(self) -> str:
        """What runs the kernels, in words."""

    def free_bytes(self) -> int | None:
        """Memory that can still be allocated, in bytes; None where nobody knows."""

    def empty(self, shape: tuple[int, ...]) -> Any:
        """An uninitialised float32 array."""

    def to_device(self, host: np.ndarray) -> Any:
        """A float32 copy of a host array, C-contiguous, in the engine's memory."""

    def to_host(self, array: Any) -> np.ndarray:
        """A host copy; waits for work in flight."""

    def build(self, step: Step, program: Program) -> Start:
        """The step made ready, compiled included: a function of its arrays and a stream, which
        starts it and does nothing else. A GPU's returns before the work has ended.

        Raises :class:`EngineUnavailable` for a library call where there is no library."""

    def prepack(
        self, program: Program, shapes: dict[str, tuple[int, ...]], held: dict[str, Any]
    ) -> Together | None:
        """The program's steps, which are built, as one function that starts them at less cost than
        one by one; None where there is no such way. ``shapes`` are the four tensors', ``held`` the
        arrays of its buffers."""

    def why_no_library(self) -> str | None:
        """Why there is no array library for library calls, in one sentence; None when there is."""

    def capability(self) -> Capability | None:
        """The GPU's compute capability; None on a simulator, which runs every stage."""

    def sm_count(self) -> int | None:
        """How many SMs share the blocks of a launch; None on a simulator."""

    def peak_flops(self, precision: str = "fp32") -> float | None:
        """The operations a second that no kernel can exceed; None where nobody knows. ``tf32`` is
        what tensor cores do, ``3xtf32`` a third of that."""

    def synchronize(self) -> None:
        """Wait for everything started so far."""

    def counting(self) -> AbstractContextManager[Counts]:
        """Count what the kernels inside the ``with`` do; all zero on a GPU."""
