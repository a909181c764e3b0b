"""Engine ``simulator``: convlab's own, strict and quick, for any ``@cuda.jit`` kernel.

Runs the kernel's Python function once for each CUDA thread, in this process and always in the same
order (:mod:`convlab.simulation.threads.greenlets`). With ``strict`` every access is recorded and
checked (:mod:`convlab.simulation.rules.races`), and a kernel that is wrong anywhere raises
:class:`SimulationError` although its answer may be right; without, only what cannot go on is
refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from convlab.ladder.stage import Launch
from convlab.running.engines import Engine, Stream
from convlab.simulation.launch import Recorder, SimulatedLaunch
from convlab.simulation.recording.loops import Loops
from convlab.simulation.rules.coordinates import three
from convlab.simulation.rules.findings import Finding, NotSimulated, SimulationError
from convlab.simulation.rules.orders import Order, run_in_orders

__all__ = ["Finding", "NotSimulated", "SimulationError", "Simulator"]


class Simulator(Engine):
    """The strict simulator. Arrays are plain NumPy arrays; a launch returns when it has ended. With
    ``typed`` registers have Numba's types, as far as they are inferred: integers wrap, float32 is
    rounded by each operation. What Numba refuses raises ``NotSimulated`` with its reason."""

    name = "simulator"
    device = "convlab's strict simulator on the CPU"
    multiply_adds_per_second = 450_000

    def __init__(
        self,
        strict: bool = True,
        recorder: Recorder | None = None,
        loops: Loops | None = None,
        typed: bool = False,
    ) -> None:
        self.strict, self.recorder, self.loops, self.typed = strict, recorder, loops, typed

    def run(self, launch: Launch, arrays: Sequence[np.ndarray], stream: Stream = None) -> None:
        """Run one launch to its end."""
        shared_bytes = launch.shared_bytes
        self.launch(launch.kernel, launch.grid, launch.block, *arrays, shared_bytes=shared_bytes)

    def launch(
        self,
        kernel: Any,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Any,
        shared_bytes: int = 0,
    ) -> None:
        """Run anybody's kernel: ``kernel[grid, block, 0, shared_bytes](*arguments)``. Raises
        :class:`SimulationError` with its findings if it is wrong, :class:`NotSimulated` if it uses
        what is not known here, ``EndlessLoop`` for more iterations than ``loops`` allows."""
        made = partial(
            SimulatedLaunch,
            kernel,
            grid=three(grid, "grid"),
            block=three(block, "block"),
            arguments=arguments,
            shared_bytes=shared_bytes,
            strict=self.strict,
            typed=self.typed,
        )
        loops = None if self.loops is None else self.loops.afresh()  # as they are before the launch

        def again(order: Order) -> SimulatedLaunch:
            return made(loops=None if loops is None else loops.afresh(), order=order)

        first = made(
            counts=self._counts,
            recorder=self.recorder,
            loops=self.loops,
            on_block=self.on_block,
        )
        run_in_orders(first, again)
