"""A GPU that is not here: what a process without it needs to know to compile for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from convlab.ladder.stage import Capability
from convlab.ladder.stage_choice import H200_BYTES_A_CLOCK, GpuLimits
from convlab.running.engines import Engine


@dataclass(frozen=True)
class GpuFacts:
    """The facts about a GPU that stages, tiles and machine code depend on."""

    device: str
    capability: Capability
    sm_count: int | None
    bytes_a_clock: float = H200_BYTES_A_CLOCK

    @classmethod
    def of(cls, engine: Engine) -> GpuFacts | None:
        """Return the facts about an engine's GPU; None for a simulator."""
        capability = engine.capability()
        if not engine.is_gpu or capability is None:
            return None
        return cls(engine.device, capability, engine.sm_count(), engine.limits().bytes_a_clock)


class AbsentGpu(Engine):
    """Engine ``gpu`` as far as programs are made and compiled; it has no memory and runs
    nothing."""

    name = "gpu"
    is_gpu = True

    def __init__(self, facts: GpuFacts) -> None:
        self._facts = facts

    @property
    def device(self) -> str:
        """The name of the GPU."""
        return self._facts.device

    def capability(self) -> Capability:
        """Return the GPU's compute capability."""
        return self._facts.capability

    def limits(self) -> GpuLimits:
        """Return the GPU's limits that stages are chosen by."""
        return replace(super().limits(), bytes_a_clock=self._facts.bytes_a_clock)

    def sm_count(self) -> int | None:
        """Return the number of the GPU's SMs; None if it is unknown."""
        return self._facts.sm_count
