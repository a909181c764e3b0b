"""The interface of a recorder, which receives every event of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Protocol

from convlab.simulation.recording.access_log import AccessLog
from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.coordinates import Coordinates
from convlab.simulation.rules.memory_traffic import Requests


@dataclass(frozen=True)
class RecordedLaunch:
    """A launch as a recorder sees it. ``codes`` are the kernel's and its device functions'."""

    kernel: str
    grid: Coordinates
    block_shape: Coordinates
    log: AccessLog
    sites: Sites
    codes: tuple[CodeType, ...]


class Recorder(Protocol):
    """Receives every event of a launch, for a trace. ``loads_of`` is for :func:`requests_of`."""

    loads_of: Mapping[tuple[str, int], int]

    def look(self, launch: RecordedLaunch, requests: Requests) -> None:
        """Receive the requests of the next blocks."""

    def barrier(self, site: int, threads: int) -> None:
        """Record that ``threads`` threads passed the barrier at ``site``."""

    def end(self, launch: RecordedLaunch, operations: Mapping[int, int]) -> None:
        """Receive the floating-point operations by site: the launch is over."""
