"""The tensor-core intrinsics for Numba's simulator, in plain Python. On convlab's strict simulator,
its own warps compute."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np

from convlab.device.emulations import together
from convlab.device.intrinsics import Four
from convlab.device.products import (
    TERMS,
    Float,
    check_width,
    checked_fragments,
    warp_mma,
    warp_product,
    warp_sum,
)

Two = tuple[Float, Float]


class NumberArray(Protocol):
    """A one-dimensional array of a simulator."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...

    def __setitem__(self, index: int, value: Float, /) -> None: ...


def mma_tf32(a: Four, b: Two, c: Four) -> Four:
    """Emulate ``mma_tf32``: return a lane's four float32 sums after a product of TF32 by its warp.
    ``a`` are four numbers of A, ``b`` two of B, ``c`` the four sums before."""
    d0, d1, d2, d3 = together("mma_tf32", checked_fragments(a, b, c), warp_mma)
    return d0, d1, d2, d3


_started = threading.local()  # started products, each with its ``D``


def fence_shared() -> None:
    """Emulate ``fence_shared``, which has no effect here: a simulator's memory has one path."""


def start_product(
    D: NumberArray, L: NumberArray, T: NumberArray, S: NumberArray, at: int, N: int
) -> None:
    """Emulate ``start_product``: start to add a warpgroup's product of split float32 numbers to
    ``D``. ``L`` and ``T`` hold a thread's eight large and small parts of A, ``S`` from ``at`` on
    B's 16 x N large and then its small parts, ``D`` the thread's N / 2 sums."""
    check_width(N)
    if L is T:
        raise ValueError("start_product: L and T are one array, but must be two")
    right = _right("start_product", D, S, at, 2 * TERMS * N)
    brought = [L[i] for i in range(8)], [T[i] for i in range(8)], right
    _under_way(D, N, together("start_product", brought, warp_product))


def start_one_product(D: NumberArray, A: NumberArray, S: NumberArray, at: int, N: int) -> None:
    """Emulate ``start_one_product``: start to add a warpgroup's product of TF32 numbers to ``D``.
    ``A`` holds a thread's eight numbers of A, ``S`` from ``at`` on B's 16 x N, ``D`` the thread's N
    / 2 sums."""
    check_width(N)
    right = _right("start_one_product", D, S, at, TERMS * N)
    brought = [A[i] for i in range(8)], right, [D[i] for i in range(N // 2)]
    _under_way(D, N, together("start_one_product", brought, warp_sum))


def _right(name: str, D: NumberArray, S: NumberArray, at: int, count: int) -> np.ndarray:
    """Return the numbers of B, which is in ``S``, after a check that no product for D is under
    way."""
    end = at + count
    if not 0 <= at <= end <= len(S):
        raise IndexError(f"{name}: S has {len(S)} numbers, but B is from {at} to {end}")
    if id(D) in vars(_started).get("products", {}):
        raise RuntimeError(f"{name}: the product before was not finished for D")
    # An engine's array counts reads by threads; this read is not a thread's.
    return np.array(getattr(S, "memory", S)[at:end], np.float32)


def _under_way(D: NumberArray, N: int, result: Any) -> None:
    """Note the product that ``finish_product`` stores to ``D``."""
    for i in range(N // 2):
        D[i] = np.nan
    vars(_started).setdefault("products", {})[id(D)] = D, result


def finish_product(D: NumberArray, N: int) -> None:
    """Emulate ``finish_product``: store the N / 2 float32 sums of the product that was started for
    ``D``."""
    known = vars(_started).get("products", {}).pop(id(D), None)
    if known is None or len(known[1]) != N // 2:
        raise RuntimeError(f"finish_product: no product of {N} columns was started for D")
    if not all(np.isnan(D[i]) for i in range(N // 2)):
        raise RuntimeError("finish_product: D was written to before it was finished")
    for i, number in enumerate(known[1]):
        D[i] = number
