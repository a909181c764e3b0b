"""A launch as both engines need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from convlab.simulation.language.compilations import NumbaKernel
from convlab.simulation.launch import SimulatedLaunch
from convlab.simulation.launch.running_blocks import OnBlock
from convlab.simulation.memory.touched import Touched
from convlab.simulation.memory.unwritten_arrays import UnwrittenArrays
from convlab.simulation.rules.coordinates import Coordinates
from convlab.simulation.rules.orders import USUAL, Order


class MakeLaunch(Protocol):
    """Makes the launch on the first engine: in an order, of some of its blocks only."""

    def __call__(
        self,
        order: Order = USUAL,
        *,
        on_block: OnBlock | None = None,
        touched: Touched | None = None,
        blocks: Sequence[int] | None = None,
        unwritten: UnwrittenArrays | None = None,
    ) -> SimulatedLaunch: ...


@dataclass(frozen=True)
class LaunchFacts:
    """A launch as both engines need it."""

    kernel: NumbaKernel
    grid: Coordinates
    block: Coordinates
    arguments: tuple[object, ...]
    shared_bytes: int
    steps: int | None
    touched: Touched | None = None  # collects the bytes that the launch touches
    unwritten: UnwrittenArrays | None = None  # device arrays, not all written
