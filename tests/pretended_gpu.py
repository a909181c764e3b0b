"""The strict simulator, saying that it is a GPU: for what is decided on a GPU alone."""

from __future__ import annotations

from typing import Any

from convlab.running.engines.simulator import Simulator


class PretendedGpu(Simulator):
    name, is_gpu = "gpu", True

    def __init__(
        self, device: str = "pretended GPU", capability: Any = None, sms: int = 4, **options: bool
    ) -> None:
        super().__init__(**options)
        self.device, self._capability, self._sms = device, capability, sms

    def capability(self) -> Any:
        return self._capability

    def sm_count(self) -> int:
        return self._sms
