"""What an engine is: the few operations that a plan, the ladder and the tests need."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import numpy as np

from convlab.simulation.memory_rules import Counts
from convlab.stage import Capability, Launch, LibraryCall, Program, Step

Start = Callable[..., None]


class Together(Protocol):
    """Starts all steps of a program at once; ``one_graph`` says whether as one CUDA graph."""

    @property
    def one_graph(self) -> bool: ...

    def __call__(
        self, input: Any, weight: Any, bias: Any, output: Any, stream: Any = None
    ) -> None: ...


class EngineUnavailable(RuntimeError):
    """The engine asked for cannot run here; the message says why and what to do."""


class Engine(Protocol):
    """Where kernels run. Arrays are the engine's own kind: device arrays or plain NumPy."""

    name: str
    is_gpu: bool

    @property
    def device(self) -> str:
        """What runs the kernels, in words."""

    def free_bytes(self) -> int | None:
        """Memory that can still be allocated, in bytes; None where that is unknown."""

    def empty(self, shape: tuple[int, ...]) -> Any:
        """An uninitialised float32 array."""

    def to_device(self, host: np.ndarray) -> Any:
        """A float32 copy of a host array, C-contiguous, in the engine's memory."""

    def to_host(self, array: Any) -> np.ndarray:
        """A host copy; waits for work in flight."""

    def build(self, step: Step, program: Program) -> Start:
        """The compiled step, a function of its arrays and a stream. A GPU's returns before the work
        has ended. Raises :class:`EngineUnavailable` for a library call without a library."""

    def prepack(
        self, program: Program, shapes: dict[str, tuple[int, ...]], held: dict[str, Any]
    ) -> Together | None:
        """The program's built steps as one function that starts them at less cost, or None.
        ``shapes`` are the four tensors', ``held`` the arrays of the buffers."""

    def why_no_library(self) -> str | None:
        """Why there is no array library for library calls, in one sentence; None when there is."""

    def capability(self) -> Capability | None:
        """The GPU's compute capability; None on a simulator, which runs every stage."""

    def sm_count(self) -> int | None:
        """How many SMs share the blocks of a launch; None on a simulator."""

    def peak_flops(self, precision: str = "fp32") -> float | None:
        """Operations per second that no kernel exceeds in ``fp32``, ``tf32`` or ``3xtf32`` (a third
        of ``tf32``); None where unknown."""

    def synchronize(self) -> None:
        """Wait for everything started so far."""

    def counting(self) -> AbstractContextManager[Counts]:
        """Count what the kernels inside the ``with`` do; all zero on a GPU."""


class OnTheHost:
    """What simulators share: NumPy arrays in host memory, and no GPU to ask."""

    is_gpu = False

    def free_bytes(self) -> int | None:
        """All memory there is: how much of it is free changes by the minute."""
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):  # not every system tells
            return None

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """Filled with NaN, so that an element that no kernel writes is wrong."""
        return np.full(shape, np.nan, np.float32)

    def to_device(self, host: np.ndarray) -> np.ndarray:
        return np.array(host, np.float32, order="C")

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def why_no_library(self) -> str | None:
        return None  # NumPy is always here

    def run(self, launch: Launch, arrays: list[np.ndarray], stream: Any = None) -> None:
        """Run one launch to its end."""
        raise NotImplementedError

    def build(self, step: Step, program: Program) -> Start:
        """The step as it is: a simulator compiles nothing, and NumPy does library calls."""
        return partial(_call, step) if isinstance(step, LibraryCall) else partial(self.run, step)

    def prepack(self, program: Program, shapes: object, held: object) -> None:
        """None: a start costs almost nothing compared with a run."""

    def capability(self) -> None:
        """None: what no GPU has is simulated too."""

    def sm_count(self) -> int | None:
        return None

    def peak_flops(self, precision: str = "fp32") -> float | None:
        return None

    def synchronize(self) -> None:
        """Every launch has ended when it returns."""


def _call(call: LibraryCall, arrays: list[np.ndarray], stream: Any = None) -> None:
    with np.errstate(all="ignore"):  # a GPU says nothing when numbers overflow
        call.function(np, *arrays)
