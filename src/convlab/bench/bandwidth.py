"""How fast something moves memory, and how fast a device copy of as many bytes is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convlab.bench.harness import SETTLED_PERCENT
from convlab.engines import Engine

Start = Callable[[Any], None]


def rates(start: Start, nbytes: int, *, as_graph: bool = True) -> dict[str, Any]:
    """Time, spread and bandwidth of what moves so many bytes."""
    from convlab.timer import measure as time_graph  # needs a GPU

    timing = time_graph(start, as_graph=as_graph, spread_percent=SETTLED_PERCENT)
    return {
        "time_ms": timing.median_ms,
        "time_spread": timing.spread_percent,
        "tb_per_s": nbytes / timing.median_ms / 1e9,
    }


def is_settled(rate: dict[str, Any]) -> bool:
    """Whether such a time's runs agreed."""
    return bool(rate["time_spread"] <= SETTLED_PERCENT)


def copy_rates(engine: Engine, nbytes: int) -> dict[str, Any]:
    """The device copy that moves so many bytes, as fast as it goes: the fastest of four.

    Replayed from a graph, copies of some lengths reach only two thirds of what others do. On an
    H200 with CUDA 13.0 those of 1, 2 and 3.6 GB were such (2.77 TB/s), one of 0.8 GB was not
    (4.25), and started without a graph one of 2 GiB reached 4.21. So three are replayed, as long
    and a little longer, and one is started without a graph. ``length`` (bytes) and ``in_graph``
    tell which was the fastest.
    """
    half = nbytes // 2
    lengths = {half, _up(half, 2**12), _up(half, 2**21) + 2**16}
    found = [
        rates(copy_start(engine, length), nbytes, as_graph=in_graph)
        | {"length": length, "in_graph": in_graph}
        for length, in_graph in [*((length, True) for length in sorted(lengths)), (half, False)]
    ]
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
