"""Tensor cores of a simulated launch: what the lanes of a warp multiply together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from convlab import device
from convlab.device import twin_of
from convlab.device.fragments import MULTIPLY_ADDS, WARP, checked_fragments
from convlab.engines.access_log import site_of
from convlab.engines.arithmetic import Arithmetic
from convlab.engines.simulated_cuda import MMA, Request, SimulatedCuda

ALL_LANES = (1 << WARP) - 1
# A multiply-add is two operations; each lane has its part of the warp's.
OPERATIONS_OF_A_LANE = 2 * MULTIPLY_ADDS // WARP


class TensorCores:
    """What stands for ``to_tf32`` and ``mma_tf32``. ``used``: the second is in the kernel, so that
    its threads wait for each other, whatever they call it."""

    def __init__(self, cuda: SimulatedCuda, arithmetic: Arithmetic | None) -> None:
        self.used = False
        self._cuda, self._arithmetic = cuda, arithmetic
        rounded = twin_of(device.to_tf32)
        assert rounded is not None
        self._instead: Mapping[Any, Callable[..., Any]] = {
            rounded: _as_float(rounded) if arithmetic is None else arithmetic.cast(rounded),
            twin_of(device.mma_tf32): self.mma,
        }

    def twin(self, twin: Any) -> Any:
        """What stands for an intrinsic with that twin in this launch."""
        instead = self._instead.get(twin, twin)
        self.used = self.used or instead == self.mma
        return instead

    def mma(self, a: Any, b: Any, c: Any) -> Any:
        """``mma_tf32``: this lane's four numbers of the product, once all 32 have come."""
        brought = checked_fragments(a, b, c)
        if self._arithmetic is None:
            return self._cuda.hub(Request(MMA, site_of(1), brought, ALL_LANES))
        self._arithmetic.count(OPERATIONS_OF_A_LANE)
        result = self._cuda.hub(Request(MMA, site_of(1), brought, ALL_LANES))
        return tuple(map(self._arithmetic.counted, result))


def _as_float(function: Callable[..., Any]) -> Callable[..., float]:
    """Registers hold Python's numbers."""
    return lambda value: float(function(value))
