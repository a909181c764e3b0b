"""A faulty kernel for each kind of finding, and the edit that corrects it.

The page "Every finding, shown" of the site runs both. It prints what an :class:`Example` says
beside the kernel's source, so kernels have no docstrings here.
"""

from __future__ import annotations

import inspect
import linecache
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, uint32

# The edits call fence_shared and wait_copies.
from convlab.device import (
    commit_copies,
    copy_async,
    fence_shared,  # noqa: F401
    finish_product,
    load4,
    start_product,
    wait_copies,  # noqa: F401
)

ALL = 0xFFFFFFFF
EXAMPLES: list[Example] = []


@dataclass(frozen=True)
class Example:
    """A faulty kernel of two arrays of ``sizes`` elements. ``edits`` are pairs of source text, what
    is wrong and its replacement in the corrected kernel."""

    kind: str
    kernel: Any
    story: str
    remedy: str
    edits: tuple[tuple[str, str], ...]
    sizes: tuple[int, int]
    grid: int = 1
    block: int = 32

    def arguments(self) -> list[np.ndarray]:
        """New arrays for a launch."""
        return [np.arange(size, dtype=np.float32) for size in self.sizes]

    def corrected(self) -> Any:
        """The kernel with the edits made. Raises ``ValueError`` for an edit of no line."""
        source = inspect.getsource(self.kernel.py_func)
        for wrong, right in self.edits:
            if source.count(wrong) != 1:
                raise ValueError(f"{wrong!r} occurs {source.count(wrong)} times in {self.kind!r}")
            source = source.replace(wrong, right)
        file = f"<{self.kind}, corrected>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        names = dict(globals())
        exec(compile(source, file, "exec"), names)
        return names[self.kernel.py_func.__name__]


@cuda.jit
def doubled(a, b):
    i = cuda.grid(1)
    b[i] = 2 * a[i]


EXAMPLES.append(Example(
    "out of bounds", doubled,
    "The arrays have 40 elements and a block has 32 threads, so 24 threads of the second block "
    "have no element. On a GPU they write behind the array, which most often goes unnoticed.",
    "Each thread compares its index with the array's size.",
    (("    b[i] = 2 * a[i]", "    if i < b.size:\n        b[i] = 2 * a[i]"),),
    (40, 40), grid=2,
))  # fmt: skip


@cuda.jit
def every_four(a, b):
    i = cuda.grid(1)
    b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3] = load4(a, i)


EXAMPLES.append(Example(
    "misaligned", every_four,
    "A float4 load needs an address that is a multiple of 16 bytes. `load4` takes the index of an "
    "element, but this kernel passes the index of a float4. A GPU ends the program with an error "
    "that names no line.",
    "The index becomes a multiple of four.",
    (("load4(a, i)", "load4(a, 4 * i)"),),
    (32, 32), block=8,
))  # fmt: skip


@cuda.jit
def sums_of_rows(a, b):
    i = cuda.grid(1)
    totals = cuda.local.array(1, float32)
    for k in range(4):
        totals[0] += a[4 * i + k]
    b[i] = totals[0]


EXAMPLES.append(Example(
    "uninitialised", sums_of_rows,
    "Local and shared memory begin with what the last kernel left there. On Numba's simulator they "
    "begin with zeros, so this kernel passes every test there.",
    "The sum begins at zero.",
    (("    for k", "    totals[0] = float32(0)\n    for k"),),
    (32, 8), block=8,
))  # fmt: skip


@cuda.jit
def reversed_block(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    staged[i] = a[i]
    b[i] = staged[63 - i]


EXAMPLES.append(Example(
    "shared race", reversed_block,
    "Each thread reads what another thread writes, and no barrier stands between. With two warps "
    "the answer depends on which warp runs first.",
    "A barrier separates the write from the read.",
    (("    b[i]", "    cuda.syncthreads()\n    b[i]"),),
    (64, 64), block=64,
))  # fmt: skip


@cuda.jit
def staged_copy(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    copy_async(staged, i, a, i, True)
    commit_copies()
    cuda.syncthreads()
    b[i] = staged[63 - i]


EXAMPLES.append(Example(
    "copy in flight", staged_copy,
    "A thread starts an asynchronous copy and continues. A barrier waits for threads, not for "
    "their copies.",
    "Each thread waits for its own copies before the barrier.",
    (("    cuda.syncthreads", "    wait_copies(0)\n    cuda.syncthreads"),),
    (64, 64), block=64,
))  # fmt: skip


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


EXAMPLES.append(Example(
    "not fenced", sums_of_columns,
    "Four warps multiply a matrix of ones by a matrix in shared memory. Tensor cores read shared "
    "memory through another path, the asynchronous proxy, and a barrier alone does not make the "
    "threads' stores visible there.",
    "Each thread fences its stores before the barrier.",
    (("    cuda.syncthreads", "    fence_shared()\n    cuda.syncthreads"),),
    (256, 128), block=128,
))  # fmt: skip


@cuda.jit
def sum_of_all(a, b):
    i = cuda.grid(1)
    b[0] += a[i]


EXAMPLES.append(Example(
    "global race", sum_of_all,
    "An addition reads, adds and writes. If two threads read before either writes, only one of "
    "their numbers is added. No barrier works across blocks.",
    "The addition is atomic. A reduction in shared memory and one atomic a block are faster.",
    (("b[0] += a[i]", "cuda.atomic.add(b, 0, a[i])"),),
    (64, 1), grid=2,
))  # fmt: skip


@cuda.jit
def shifted(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < a.size:
        staged[i] = a[i]
        cuda.syncthreads()
        b[i] = staged[(i + 1) % a.size]


EXAMPLES.append(Example(
    "barrier divergence", shifted,
    "The block has 64 threads and the arrays 40 elements, so 24 threads never reach the barrier at "
    "which the others wait. A GPU may hang, or let the others through.",
    "The barrier stands outside the branch, where every thread reaches it.",
    (("        cuda.syncthreads()\n", "    cuda.syncthreads()\n    if i < a.size:\n"),),
    (40, 40), block=64,
))  # fmt: skip


@cuda.jit
def sum_of_pairs(a, b):
    i = cuda.threadIdx.x
    if i % 2 == 0:
        b[i // 2] = a[i] + cuda.shfl_down_sync(ALL, a[i], 1)


EXAMPLES.append(Example(
    "inactive lane", sum_of_pairs,
    "A shuffle exchanges numbers between the lanes of a warp. The mask names all 32 lanes, but "
    "half of them never reach the shuffle, so what is read from them is undefined.",
    "All lanes shuffle, and half of them use the result.",
    (
        ("+ cuda.shfl_down_sync(ALL, a[i], 1)", "+ neighbour"),
        ("    if i", "    neighbour = cuda.shfl_down_sync(ALL, a[i], 1)\n    if i"),
    ),
    (32, 16),
))  # fmt: skip


@cuda.jit
def left_neighbour(a, b):
    i = uint32(cuda.grid(1))
    b[i] = a[uint32(i - 1)]


EXAMPLES.append(Example(
    "wraps around", left_neighbour,
    "Unsigned indices make kernels faster, and cannot be negative: the first thread's index "
    "becomes 4,294,967,295.",
    "The kernel compares before it subtracts.",
    (("    b[i]", "    if i > 0:\n        b[i]"),),
    (32, 32),
))  # fmt: skip


@cuda.jit
def share_of_each(a, b):
    i = cuda.grid(1)
    b[i] = a[i] / a[0]


EXAMPLES.append(Example(
    "division by zero", share_of_each,
    "Python raises an error. A GPU continues with infinity or NaN, which may show much later.",
    "A condition guards the division.",
    (("    b[i]", "    if a[0] != 0:\n        b[i]"),),
    (32, 32),
))  # fmt: skip
