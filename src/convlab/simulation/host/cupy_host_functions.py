"""Functions of the stand-in for CuPy that move arrays to or from the host: files, and the
comparisons of ``cupy.testing``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convlab.simulation.host.cupy_arrays import asarray, asnumpy, ndarray

COMPARISONS = """
    assert_allclose assert_array_almost_equal assert_array_equal assert_array_less
"""


class StoredArrays:
    """An open file of several arrays, as ``cupy.load`` returns it."""

    def __init__(self, stored: Any) -> None:
        self._stored = stored

    @property
    def files(self) -> list[str]:
        """The names of the arrays in the file."""
        return list(self._stored.files)

    def __getitem__(self, name: str) -> ndarray:
        return asarray(self._stored[name])

    def __enter__(self) -> StoredArrays:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stored.close()


def load(file: Any, **more: Any) -> ndarray | StoredArrays:
    """Return the array of a file on the device, or the arrays of a file of several."""
    found = np.load(file, **more)
    return asarray(found) if isinstance(found, np.ndarray) else StoredArrays(found)


def of_the_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return NumPy's function, called with arrays of the device as arrays of the host."""

    def called(*arguments: Any, **named: Any) -> Any:
        return function(*map(_moved, arguments), **{n: _moved(one) for n, one in named.items()})

    called.__name__ = called.__qualname__ = function.__name__
    return called


def _moved(value: Any) -> Any:
    return asnumpy(value) if isinstance(value, ndarray) else value
