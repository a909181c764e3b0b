"""How fast something moves memory, and how fast a device copy of as many bytes is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convlab.engines import Engine

Start = Callable[[Any], None]


def rates(start: Start, nbytes: int) -> dict[str, float]:
    """Time, spread and bandwidth of what moves so many bytes."""
    from convlab.bench.timer import measure as time_graph  # needs a GPU

    timing = time_graph(start)
    return {
        "time_ms": timing.median_ms,
        "time_spread": timing.spread_percent,
        "tb_per_s": nbytes / timing.median_ms / 1e9,
    }


def copy_rates(engine: Engine, nbytes: int) -> dict[str, float]:
    """The device copy that moves so many bytes, as fast as it goes.

    At some lengths, unlike those a few KiB off, the driver's copy reaches only two thirds of what
    it reaches at most. So this is the fastest of three: as long, and a little longer.
    """
    half = nbytes // 2
    lengths = {half, _up(half, 2**12), _up(half, 2**21) + 2**16}
    found = [rates(copy_start(engine, length), nbytes) for length in sorted(lengths)]
    return max(found, key=lambda rate: rate["tb_per_s"])


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def copy_start(engine: Engine, nbytes: int) -> Start:
    """What starts a device copy of so many bytes: the measure for kernels that only move them."""
    from cuda.bindings import driver

    source, target = (engine.empty((nbytes // 4,)) for _ in range(2))
    addresses = [array.__cuda_array_interface__["data"][0] for array in (target, source)]
    arrays = source, target  # kept as long as the function is

    def start(stream: Any) -> None:
        (error,) = driver.cuMemcpyDtoDAsync(*addresses, arrays[0].nbytes, int(stream.handle))
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA driver: {error.name}")

    return start
