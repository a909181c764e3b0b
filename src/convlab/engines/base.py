"""What an engine is: the few things a plan, the ladder and the tests ask of a place to run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from convlab.stages.base import Program, Step

Start = Callable[..., None]


class EngineUnavailable(RuntimeError):
    """The engine asked for cannot run here; the message says why and what to do."""


@dataclass
class Counts:
    """What kernels did, counted per thread: one access is one load or store instruction, 32 or
    128 bits wide; one barrier is one thread arriving at ``syncthreads``."""

    global_loads: int = 0
    global_stores: int = 0
    shared_loads: int = 0
    shared_stores: int = 0
    barriers: int = 0
    global_bytes: int = 0

    def as_dict(self, flops: int) -> dict[str, float]:
        """The counts and ``flops_per_byte``: the problem's arithmetic over global traffic."""
        ratio = flops / self.global_bytes if self.global_bytes else 0.0
        return {**asdict(self), "flops_per_byte": ratio}


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

    def why_no_library(self) -> str | None:
        """Why there is no array library for library calls, in one sentence; None when there is."""

    def peak_flops(self) -> float | None:
        """The float32 operations a second that no kernel can exceed; None where nobody knows."""

    def synchronize(self) -> None:
        """Wait for everything started so far."""

    def counting(self) -> AbstractContextManager[Counts]:
        """Count what the kernels inside the ``with`` do; all zero on a GPU."""
