"""How long a thread waits for a number of each memory, and how many bytes a second all threads get.

    python -m convlab.bench.memory_levels --json FILE

Latency: one thread follows a random circle of indices, each load waits for the one before; the time
of twice as many steps, less that of as many, is free of the launch. A step is the load and the
address's arithmetic. Bandwidth: all SMs read an array that fits the level, again and again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda, float32, uint32

from convlab.doctor import environment
from convlab.engines import choose
from convlab.files import write_whole
from convlab.timer import measure

LINE, STEPS, THREADS = 32, 2**16, 1024  # LINE: uint32s of a cache line
# Bytes of the circles; the steps go all round the first three.
SHARED, L1, L2, MEMORY = 2**14, 2**14, 2**22, 2**28
WORDS = SHARED // 4


@cuda.jit
def follow(circle, steps, stop):
    i = uint32(0)
    for _ in range(steps):
        i = circle[i]
    stop[0] = i


@cuda.jit
def follow_in_shared_memory(circle, steps, stop):
    copy = cuda.shared.array(WORDS, uint32)
    for i in range(circle.size):
        copy[i] = circle[i]
    i = uint32(0)
    for _ in range(steps):
        i = copy[i]
    stop[0] = i


@cuda.jit
def read(numbers, times, sums):
    total = float32(0)
    step = cuda.gridsize(1)
    for time in range(times):
        # Each time another block's part, which this SM's L1 cache does not hold.
        i = (cuda.grid(1) + time * THREADS) % step
        while i < numbers.size:  # a multiple of four steps
            a, b = numbers[i], numbers[i + step]
            c, d = numbers[i + 2 * step], numbers[i + 3 * step]
            total += (a + b) + (c + d)
            i += 4 * step
    sums[cuda.grid(1)] = total


def circle_of(nbytes: int) -> np.ndarray:
    """Indices that lead from line to line in a random order, through all, and back."""
    order = LINE * np.random.default_rng(0).permutation(nbytes // 4 // LINE).astype(np.uint32)
    circle = np.zeros(nbytes // 4, np.uint32)
    circle[order] = np.roll(order, -1)
    return circle


def latency_ns(kernel: Any, nbytes: int) -> float:
    circle, stop = cuda.to_device(circle_of(nbytes)), cuda.device_array(1, np.uint32)

    def start(stream: Any, steps: int) -> None:
        kernel[1, 1, stream](circle, steps, stop)

    once, twice = (measure(partial(start, steps=n)).median_ms for n in (STEPS, 2 * STEPS))
    return 1e6 * (twice - once) / STEPS


def bytes_per_second(nbytes: int, times: int) -> float:
    gpu = choose("gpu")
    blocks = 2 * cuda.get_current_device().MULTIPROCESSOR_COUNT
    step = 4 * blocks * THREADS
    nbytes = nbytes // 4 // step * step * 4
    numbers, sums = gpu.empty((nbytes // 4,)), gpu.empty((blocks * THREADS,))

    def start(stream: Any, times: int) -> None:
        read[blocks, THREADS, stream](numbers, times, sums)

    once, twice = (measure(partial(start, times=n)).median_ms for n in (times, 2 * times))
    return 1e3 * times * nbytes / (twice - once)


def measured() -> dict[str, Any]:
    """Bytes of each memory (an SM's share), latencies in ns and cycles, bytes a second."""
    found = environment([]) | {"command": "python -m convlab.bench.memory_levels"}
    cycles_a_ns = found["clocks_mhz"]["max_sm"] / 1e3
    device = cuda.get_current_device()
    shared = device.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    rows = [
        ("shared memory", shared, latency_ns(follow_in_shared_memory, SHARED), None),
        ("L1 cache", shared, latency_ns(follow, L1), None),
        ("L2 cache", device.L2_CACHE_SIZE, latency_ns(follow, L2), bytes_per_second(4 * L2, 32)),
        ("global memory", found["gpu"]["memory_bytes"], latency_ns(follow, MEMORY),
         bytes_per_second(16 * MEMORY, 1)),
    ]  # fmt: skip
    levels = [
        {"name": name, "bytes": size, "latency_ns": ns, "latency_cycles": ns * cycles_a_ns,
         "bytes_per_second": bandwidth}
        for name, size, ns, bandwidth in rows
    ]  # fmt: skip
    return {"device": choose("gpu").device, "environment": found, "levels": levels,
            "multiprocessors": device.MULTIPROCESSOR_COUNT}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m convlab.bench.memory_levels")
    parser.add_argument("--json", metavar="FILE", type=Path, required=True)
    file: Path = parser.parse_args(arguments).json
    try:
        document = measured()
    except RuntimeError as error:
        print(f"convlab: {error}", file=sys.stderr)
        return 2
    for level in document["levels"]:
        print(level)
    write_whole(file, (json.dumps(document, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
