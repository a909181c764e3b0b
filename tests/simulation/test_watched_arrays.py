"""Watched arrays notify of each read, and NumPy's functions give views of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from convlab.simulation.host.watched_arrays import WatchedArray


class Recorder:
    """A watcher that counts what it receives."""

    def __init__(self) -> None:
        self.reads: list[np.ndarray] = []
        self.writes: list[np.ndarray] = []

    def host_reads(self, memory: np.ndarray) -> None:
        self.reads.append(memory)

    def host_wrote(self, memory: np.ndarray) -> None:
        self.writes.append(memory)

    def has_read(self, array: np.ndarray) -> bool:
        """Return whether memory of the array was read."""
        return any(np.shares_memory(array, memory) for memory in self.reads)


class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray


def watched(array: np.ndarray) -> tuple[WatchedArray, Recorder]:
    made, recorder = array.view(WatchedArray), Recorder()
    made.watcher = recorder
    return made, recorder


MASKS: dict[str, Callable[[WatchedArray], object]] = {
    "an index of a watched array": lambda mask: watched(np.arange(4))[0][mask],
    "an index of an assignment": lambda mask: watched(np.arange(4))[0].__setitem__(mask, 1),
    "an index of a row": lambda mask: watched(np.ones((4, 2)))[0][mask, 0],
    "where": lambda mask: np.add(1, np.arange(4), where=mask, out=np.zeros(4, int)),
    "where of a sum": lambda mask: np.add.reduce(np.arange(4), where=mask),
}


@pytest.mark.parametrize("use", MASKS.values(), ids=MASKS)
def test_a_mask_is_read(use: Callable[[WatchedArray], object]) -> None:
    mask, recorder = watched(np.array([True, False, True, True]))
    use(mask)
    assert recorder.has_read(mask)
    assert not recorder.writes


VIEWS: dict[str, Callable[[WatchedArray], WatchedArray]] = {
    "reshape": lambda matrix: np.reshape(matrix, 6),
    "ravel": np.ravel,
    "transpose": np.transpose,
    "moveaxis": lambda matrix: np.moveaxis(matrix, 0, 1),
    "swapaxes": lambda matrix: np.swapaxes(matrix, 0, 1),
    "expand_dims": lambda matrix: np.expand_dims(matrix, 0),
    "broadcast_to": lambda matrix: np.broadcast_to(matrix, (4, 2, 3)),
    "atleast_3d": np.atleast_3d,
    "atleast_1d": lambda matrix: np.atleast_1d(matrix, matrix)[1],
    "split": lambda matrix: np.split(matrix, 2)[1],
    "array_split": lambda matrix: np.array_split(matrix, 2, axis=1)[1],
}


@pytest.mark.parametrize("look", VIEWS.values(), ids=VIEWS)
def test_a_view_by_numpy_is_watched_too(look: Callable[[WatchedArray], WatchedArray]) -> None:
    matrix, recorder = watched(np.arange(6).reshape(2, 3))
    view = look(matrix)
    assert not recorder.reads
    assert isinstance(view, WatchedArray)
    view.sum()
    assert recorder.has_read(matrix)
    if view.flags.writeable:
        view[...] = 1
        assert len(recorder.writes) == 1


COPIES: dict[str, Callable[[WatchedArray], np.ndarray]] = {
    "np.reshape": lambda matrix: np.reshape(matrix.T, 6),
    "np.ravel": lambda matrix: np.ravel(matrix.T),
    "reshape": lambda matrix: matrix.T.reshape(6),
    "ravel": lambda matrix: matrix.T.ravel(),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_copy_reads_and_is_not_watched(copy: Callable[[WatchedArray], np.ndarray]) -> None:
    matrix, recorder = watched(np.arange(6).reshape(2, 3))
    copied = copy(matrix)
    assert recorder.has_read(matrix)
    assert copied.tolist() == [0, 3, 1, 4, 2, 5]
    assert type(copied) is np.ndarray


def test_a_named_tuple_of_arrays_goes_to_numpys_functions() -> None:
    one, recorder = watched(np.arange(3))
    assert np.concatenate(Pair(one, np.arange(2))).tolist() == [0, 1, 2, 0, 1]
    assert recorder.has_read(one)
