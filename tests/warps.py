"""What each warp of a kernel asks memory for, where no address depends on what is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from convlab.simulation.python_body import python_body
from convlab.stage import Launch

# A quarter of a warp moves 128 bytes at a time by fours: one pass of all banks.
WARP, BANKS, SECTOR, QUARTER = 32, 32, 32, 8

Access = tuple[str, str, int]  # which array, scalar or by fours and load or store, which element


class Recorder:
    """An array that holds nothing and writes down who asks for what."""

    def __init__(self, name: str, seen: list[Access]) -> None:
        self.name, self.seen = name, seen

    def load_run(self, index: int, count: int) -> tuple[float, ...]:
        self.seen.append((self.name, "load4", index))
        return (0.0,) * count

    def store_run(self, index: int, values: tuple[float, ...]) -> None:
        self.seen.append((self.name, "store4", index))

    def __getitem__(self, index: int) -> float:
        self.seen.append((self.name, "load", index))
        return 0.0

    def __setitem__(self, index: int, value: float) -> None:
        self.seen.append((self.name, "store", index))


def requests(launch: Launch, block: int) -> Iterator[tuple[str, str, list[int]]]:
    """What each warp of a block asks for at a time: one element, or four, of each lane.

    No thread waits for another: addresses do not depend on what is read.
    """
    x_size, y_size = (*launch.block, 1)[:2]
    seen: list[Access] = []  # by the thread that runs
    cuda = SimpleNamespace(
        threadIdx=SimpleNamespace(x=0, y=0),
        blockIdx=SimpleNamespace(x=block),
        shared=SimpleNamespace(array=lambda *_, **__: Recorder("shared", seen)),
        local=SimpleNamespace(array=lambda shape, dtype: np.zeros(shape)),
        syncthreads=lambda: None,
    )
    body = python_body(launch.kernel, cuda)
    threads: list[list[Access]] = []
    for y in range(y_size):
        for x in range(x_size):
            cuda.threadIdx.x, cuda.threadIdx.y = x, y
            body(*(Recorder(str(argument), seen) for argument in launch.arguments))
            threads.append(seen[:])
            seen.clear()
    for start in range(0, len(threads), WARP):
        warp = threads[start : start + WARP]
        assert len({len(seen) for seen in warp}) == 1, "lanes do different things: choose a block"
        for together in zip(*warp, strict=True):
            ((array, kind),) = {(array, kind) for array, kind, _ in together}
            yield array, kind, [index for _, _, index in together]


def sectors(indices: list[int], numbers: int = 4) -> int:
    """How many sectors of global memory hold the lanes' runs of four, or of that many."""
    return len({4 * (index + e) // SECTOR for index in indices for e in range(numbers)})


def wavefronts(indices: list[int], by_fours: bool) -> int:
    """How often shared memory has to be asked: a pass gives each bank's number once."""
    if not by_fours:
        by_bank = defaultdict(set)
        for index in indices:
            by_bank[index % BANKS].add(index)
        return max(map(len, by_bank.values()))
    quarters = [indices[at : at + QUARTER] for at in range(0, WARP, QUARTER)]
    return sum(
        wavefronts([index + e for index in quarter for e in range(4)], by_fours=False)
        for quarter in quarters
    )
