"""How many passes shared memory takes for a pattern: ``python -m convlab.bench.banks FILE``.

NVIDIA documents the 32 banks and little of how accesses of 8 and 16 bytes are served. This runs
several hundred patterns, one warp each, under ``ncu`` and writes what the hardware counted; the
tests hold :func:`convlab.simulation.memory_rules.passes` to it. Needs a GPU and ``ncu``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda, float32, float64

from convlab.bench import ncu
from convlab.device import BYTES_16, load4, store4
from convlab.doctor import environment

WARP = 32
PLACES = 256  # of the array that are used, so many accesses wide
METRIC = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"


def patterns() -> Iterator[np.ndarray]:
    """Which place each lane wants: regular, random, and random in groups of equals."""
    random = np.random.default_rng(5)
    i = np.arange(WARP)
    regular = [
        0 * i, i, i // 2, i // 4, i // 8, i // 16, i % 2, i % 4, i % 8, i % 16, 2 * i, 4 * i, 8 * i,
        i ^ 1, i // 4 + 8 * (i % 4), i % 8 * 8, i % 4 * 8, i // 8 * 8, i // 2 * 8, i // 2 % 8,
        i // 4 * 2 + i % 2, i // 8 * 4 + i % 4, i // 16 * 8 + i % 8,
    ]  # fmt: skip
    yield from regular
    for places in (2, 3, 4, 8, 12, 16, 32, 64):
        for _ in range(3):
            yield random.integers(0, places, WARP)
    for places in (8, 16, 32):
        for _ in range(3):
            yield np.repeat(random.integers(0, places, 16), 2)
            yield np.repeat(random.integers(0, places, 8), 4)
            yield np.tile(random.integers(0, places, 16), 2)
            yield np.tile(random.integers(0, places, (8, 2)), 2).ravel()


def masks(pattern: int) -> np.ndarray:
    """Which lanes take part: all, or in every third pattern only some."""
    random = np.random.default_rng(pattern)
    if pattern % 3:
        return np.ones(WARP, np.int64)
    chosen = random.random(WARP) < random.choice([0.3, 0.6, 0.9])
    return np.asarray(chosen, np.int64)


@cuda.jit
def load_4(place, active, out):  # type: ignore[no-untyped-def]
    """One warp loads float32 from shared memory, the active lanes ``shared[place[lane]]``.

    ``place`` and ``active`` are int64, ``out`` float64, one entry for each of the 32 lanes; places
    count accesses of this kernel's width and are below 256. So do the other kernels' here.
    """
    shared = cuda.shared.array(256, float32)
    lane = cuda.threadIdx.x
    for k in range(lane, 256, WARP):
        shared[k] = float32(place[k % WARP])
    cuda.syncthreads()
    if active[lane]:
        out[lane] = shared[place[lane]]


@cuda.jit
def load_8(place, active, out):  # type: ignore[no-untyped-def]
    """As :func:`load_4`, float64: 8 bytes a lane."""
    shared = cuda.shared.array(256, float64)
    lane = cuda.threadIdx.x
    for k in range(lane, 256, WARP):
        shared[k] = float64(place[k % WARP])
    cuda.syncthreads()
    if active[lane]:
        out[lane] = shared[place[lane]]


@cuda.jit
def load_16(place, active, out):  # type: ignore[no-untyped-def]
    """As :func:`load_4`, four float32 by one 128-bit load: 16 bytes a lane."""
    shared = cuda.shared.array(1024, float32, alignment=BYTES_16)
    lane = cuda.threadIdx.x
    for k in range(lane, 1024, WARP):
        shared[k] = float32(place[k % WARP])
    cuda.syncthreads()
    if active[lane]:
        x, y, z, w = load4(shared, 4 * place[lane])
        out[lane] = x + y + z + w


@cuda.jit
def store_8(place, active, out):  # type: ignore[no-untyped-def]
    """The active lanes store float64 to ``shared[place[lane]]``: 8 bytes a lane.

    Lanes with the same place race, which changes no count; arguments as for :func:`load_4`.
    """
    shared = cuda.shared.array(256, float64)
    lane = cuda.threadIdx.x
    if active[lane]:
        shared[place[lane]] = float64(lane)
    cuda.syncthreads()
    out[lane] = shared[place[0]]


@cuda.jit
def store_16(place, active, out):  # type: ignore[no-untyped-def]
    """As :func:`store_8`, four float32 by one 128-bit store: 16 bytes a lane."""
    shared = cuda.shared.array(1024, float32, alignment=BYTES_16)
    lane = cuda.threadIdx.x
    one = float32(lane)
    if active[lane]:
        store4(shared, 4 * place[lane], (one, one, one, one))
    cuda.syncthreads()
    out[lane] = shared[4 * place[0]]


KERNELS = {"load_4": load_4, "load_8": load_8, "load_16": load_16, "store_8": store_8,
           "store_16": store_16}  # fmt: skip


def launches() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Kernel, places and active lanes of every launch."""
    for name in KERNELS:
        for number, pattern in enumerate(patterns()):
            yield name, pattern.astype(np.int64), masks(number)


def run_all() -> None:
    """Every launch, for ncu to watch."""
    for name, place, active in launches():
        out = cuda.device_array(WARP, np.float64)
        KERNELS[name][1, WARP](cuda.to_device(place), cuda.to_device(active), out)
    cuda.synchronize()


def counted() -> Iterator[dict[str, Any]]:
    """What the hardware took for each: passes, places in units of the access's width."""
    metrics = [METRIC.format(operation) for operation in ("ld", "st")]
    launched = ncu.counted(metrics, "convlab.bench.banks")
    for (name, place, active), (_, counts) in zip(launches(), launched, strict=True):
        operation, width = name.split("_")
        lanes = np.flatnonzero(active)
        passes = counts[METRIC.format("ld" if operation == "load" else "st")]
        yield {
            "operation": operation, "width": int(width), "lanes": lanes.tolist(),
            "places": place[lanes].tolist(), "passes": passes,
        }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Without a file: only run the patterns, which is what ncu watches."""
    files = sys.argv[1:] if arguments is None else arguments
    if not files:
        run_all()
        return 0
    command = "python -m convlab.bench.banks"
    head = {"environment": environment([]) | {"command": command}}
    rows = ",\n".join(f"  {json.dumps(row)}" for row in counted())
    text = json.dumps(head)[:-1] + f', "patterns": [\n{rows}\n]}}\n'
    Path(files[0]).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
