"""What the elements of a simulated array are kept in, and what is there before anybody wrote."""

from __future__ import annotations

from typing import Any

import numpy as np

from convlab.engines.scalars import keeper


class _Items:
    """Element access for types that memoryview does not read, such as float16 and complex."""

    def __init__(self, host: np.ndarray) -> None:
        self._host = host

    def __getitem__(self, index: Any) -> Any:
        return self._host.item(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        with np.errstate(all="ignore"):
            self._host[index] = value


def quick(host: np.ndarray) -> Any:
    """The array with quick access to single elements: a memoryview gives Python numbers."""
    if host.dtype.kind in "fiub" and host.dtype.char != "e" and host.size and host.dtype.isnative:
        return memoryview(host)  # type: ignore[arg-type]
    return _Items(host)


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory that nobody wrote: NaN, or the largest integer, which no right kernel uses."""
    return np.full(shape, poison(dtype), dtype)


def poison(dtype: np.dtype[Any]) -> Any:
    """What memory of this type holds before anybody wrote it."""
    return dtype.type(np.iinfo(dtype).max if dtype.kind in "iu" else np.nan)


def converted(value: Any, dtype: np.dtype[Any]) -> Any:
    """The value as an array of that type keeps it."""
    return value if dtype.kind == "c" else keeper(dtype)(value)
