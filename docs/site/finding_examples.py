"""A faulty kernel for each kind of finding, and the edit that corrects it.

The site's page "Every finding, shown" runs both. Its template, findings.md.jinja, explains each
kernel, so the kernels have no docstrings here.
"""

from __future__ import annotations

import inspect
import linecache
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, uint32, uint64

# The edits call fence_shared and wait_copies.
from convlab.device import (
    BoundMap,
    BoxMap,
    arrive_barrier,
    commit_copies,
    copy_async,
    copy_box,
    expect_bytes,
    fence_barriers,
    fence_shared,  # noqa: F401
    finish_product,
    init_barrier,
    load4,
    start_product,
    swizzled_piece,
    wait_barrier,
    wait_copies,  # noqa: F401
)

ALL = 0xFFFFFFFF


EXAMPLES: list[Example] = []


@dataclass
class Example:
    """A faulty kernel of two arrays, which have ``sizes`` elements; used as its decorator.

    ``edits`` pairs each wrong piece of the kernel's source with its correction."""

    kind: str
    sizes: tuple[int, int]
    edits: dict[str, str]
    grid: int = 1
    block: int = 32
    shared_bytes: int = 0
    box: BoxMap | None = None  # of the first array, of which the kernel gets the tensor map
    kernel: Any = None

    def __call__(self, kernel: Any) -> Any:
        self.kernel = kernel
        EXAMPLES.append(self)
        return kernel

    def arguments(self) -> list[Any]:
        a, b = (np.arange(size, dtype=np.float32) for size in self.sizes)
        return [a if self.box is None else BoundMap(self.box, a), b]

    def lines(self) -> tuple[int, list[str]]:
        """Return the number of the kernel's first line in this file, and its lines."""
        lines, first = inspect.getsourcelines(self.kernel.py_func)
        above = lines.index("@cuda.jit\n")
        return first + above, lines[above:]

    def corrected(self) -> Any:
        """Return the corrected kernel. Raises ``ValueError`` if an edit matches no line."""
        source = "".join(self.lines()[1])
        for wrong, right in self.edits.items():
            if source.count(wrong) != 1:
                raise ValueError(f"{wrong!r} occurs {source.count(wrong)} times in {self.kind!r}")
            source = source.replace(wrong, right)
        file = f"<{self.kind}, corrected>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        names = dict(globals())
        exec(compile(source, file, "exec"), names)
        return names[self.kernel.py_func.__name__]


@Example(
    "out of bounds",
    (40, 40),
    {"    b[i] = 2 * a[i]": "    if i < b.size:\n        b[i] = 2 * a[i]"},
    grid=2,
)
@cuda.jit
def doubled(a, b):
    i = cuda.grid(1)
    b[i] = 2 * a[i]


@Example("misaligned", (32, 32), {"load4(a, i)": "load4(a, 4 * i)"}, block=8)
@cuda.jit
def every_four(a, b):
    i = cuda.grid(1)
    b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3] = load4(a, i)


@Example("uninitialised", (32, 8), {"    for k": "    totals[0] = float32(0)\n    for k"}, block=8)
@cuda.jit
def sums_of_rows(a, b):
    i = cuda.grid(1)
    totals = cuda.local.array(1, float32)
    for k in range(4):
        totals[0] += a[4 * i + k]
    b[i] = totals[0]


@Example("shared race", (64, 64), {"    b[i]": "    cuda.syncthreads()\n    b[i]"}, block=64)
@cuda.jit
def reversed_block(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    staged[i] = a[i]
    b[i] = staged[63 - i]


@Example(
    "aliased memory",
    (32, 32),
    {"double = cuda.shared.array(0, float32)": "double = tile[32:]"},
    shared_bytes=256,
)
@cuda.jit
def two_tiles(a, b):
    tile = cuda.shared.array(0, float32)
    double = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    tile[i] = a[i]
    double[i] = 2 * a[i]
    b[i] = tile[i]


@Example(
    "copy in flight",
    (64, 64),
    {"    cuda.syncthreads": "    wait_copies(0)\n    cuda.syncthreads"},
    block=64,
)
@cuda.jit
def staged_copy(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    copy_async(staged, i, a, i, True)
    commit_copies()
    cuda.syncthreads()
    b[i] = staged[63 - i]


@Example(
    "not fenced",
    (256, 128),
    {"    cuda.syncthreads": "    fence_shared()\n    cuda.syncthreads"},
    block=128,
)
@cuda.jit
def sums_of_columns(a, b):
    S = cuda.shared.array(256, float32, alignment=16)
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    for k in range(8):
        L[k], T[k] = float32(1), float32(0)
    S[i], S[i + 128] = a[i], a[i + 128]
    cuda.syncthreads()
    start_product(D, L, T, S, 0, 8)
    finish_product(D, 8)
    b[i] = D[0]


@Example(
    "bytes not expected",
    (256, 256),
    {"expect_bytes(bars, 0, 512)": "expect_bytes(bars, 0, 1024)"},
    box=BoxMap("a", extents=(32, 8), strides=(32,), box=(32, 8), dtype="float32"),
)
@cuda.jit
def rows_of_a_box(a, b):
    S = cuda.shared.array(256, float32, alignment=1024)
    bars = cuda.shared.array(1, uint64)
    i = cuda.threadIdx.x
    if i == 0:
        init_barrier(bars, 0, 1)
        fence_barriers()
        expect_bytes(bars, 0, 512)
        copy_box(S, 0, a, (0, 0), bars, 0)
    cuda.syncthreads()
    wait_barrier(bars, 0, 0)
    for row in range(8):
        b[32 * row + i] = S[swizzled_piece(row, i // 4) * 4 + i % 4]


@Example(
    "wrong phase",
    (64, 64),
    {"init_barrier(bars, 0, 1)": "init_barrier(bars, 0, 64)", "        if i == 63:\n    ": ""},
    block=64,
)
@cuda.jit
def phases(a, b):
    bars = cuda.shared.array(1, uint64)
    i = cuda.threadIdx.x
    if i == 0:
        init_barrier(bars, 0, 1)
    cuda.syncthreads()
    for k in range(2):
        if i == 63:
            arrive_barrier(bars, 0)
        wait_barrier(bars, 0, k % 2)
    b[i] = a[i]


@Example("global race", (64, 1), {"b[0] += a[i]": "cuda.atomic.add(b, 0, a[i])"}, grid=2)
@cuda.jit
def sum_of_all(a, b):
    i = cuda.grid(1)
    b[0] += a[i]


@Example(
    "barrier divergence",
    (40, 40),
    {"        cuda.syncthreads()\n": "    cuda.syncthreads()\n    if i < a.size:\n"},
    block=64,
)
@cuda.jit
def shifted(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < a.size:
        staged[i] = a[i]
        cuda.syncthreads()
        b[i] = staged[(i + 1) % a.size]


@Example(
    "inactive lane",
    (32, 16),
    {
        "+ cuda.shfl_down_sync(ALL, a[i], 1)": "+ neighbour",
        "    if i": "    neighbour = cuda.shfl_down_sync(ALL, a[i], 1)\n    if i",
    },
)
@cuda.jit
def sum_of_pairs(a, b):
    i = cuda.threadIdx.x
    if i % 2 == 0:
        b[i // 2] = a[i] + cuda.shfl_down_sync(ALL, a[i], 1)


@Example("deadlock", (32, 32), {"            pass": "            break"})
@cuda.jit
def waits_for_a_flag(a, b):
    i = cuda.grid(1)
    if i == 0:
        while cuda.atomic.add(a, 0, 0) == 0:
            pass
    cuda.syncthreads()
    if i == 1:
        cuda.atomic.exch(a, 0, 1)


@Example("depends on order", (32, 32), {"    if i == 31": "    cuda.syncthreads()\n    if i == 31"})
@cuda.jit
def last_thread_takes_the_count(a, b):
    i = cuda.grid(1)
    cuda.atomic.add(a, 0, 1)
    if i == 31:
        b[0] = cuda.atomic.add(a, 0, 0)


@Example("endless loop", (32, 32), {"        b[i] = k": "        b[i] = k\n        k += 1"})
@cuda.jit
def count_to_eight(a, b):
    i = cuda.grid(1)
    k = 0
    while k < 8:
        b[i] = k


@Example("wraps around", (32, 32), {"    b[i]": "    if i > 0:\n        b[i]"})
@cuda.jit
def left_neighbour(a, b):
    i = uint32(cuda.grid(1))
    b[i] = a[uint32(i - 1)]


@Example("division by zero", (32, 32), {"    b[i]": "    if int(a[0]) != 0:\n        b[i]"})
@cuda.jit
def share_of_each(a, b):
    i = cuda.grid(1)
    b[i] = int(a[i]) // int(a[0])


@Example(
    "unreported exception",
    (32, 32),
    {'raise ValueError("too large")': "b[i] = -1  # the host looks for it\n        return"},
)
@cuda.jit
def checked_root(a, b):
    i = cuda.grid(1)
    if a[i] > 30:
        raise ValueError("too large")
    b[i] = a[i] ** 0.5


@Example("impossible launch", (32, 32), {"16384": "32"})
@cuda.jit
def staged_whole(a, b):
    staged = cuda.shared.array(16384, float32)
    i = cuda.threadIdx.x
    staged[i] = a[i]
    b[i] = staged[i]
