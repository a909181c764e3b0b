"""The plain-Python twins of what kernels call beyond ``numba.cuda``."""

from __future__ import annotations

import numpy as np
import pytest
from numba.cuda.core import config

from convlab.device import gpu_only, load4, store4, twin_of

load4_twin = twin_of(load4) or load4  # under NUMBA_ENABLE_CUDASIM=1 the names are the twins
store4_twin = twin_of(store4) or store4


def test_load4_takes_four_neighbours() -> None:
    row = np.arange(12, dtype=np.float32)
    assert load4_twin(row, 4) == (4, 5, 6, 7)
    assert load4_twin(row.reshape(3, 4), (2, 0)) == (8, 9, 10, 11)
    assert load4_twin(row.reshape(1, 1, 12), (0, 0, np.uint32(8))) == (8, 9, 10, 11)


def test_store4_writes_four_neighbours_and_nothing_else() -> None:
    row = np.zeros((2, 8), np.float32)
    store4_twin(row, (1, 4), (1, 2, 3, 4))
    assert row.tolist() == [[0] * 8, [0, 0, 0, 0, 1, 2, 3, 4]]


@pytest.mark.parametrize("index", [1, 2, 3, 6, (0, 5)])
def test_a_misaligned_access_is_refused(index) -> None:
    array = np.zeros(8 if isinstance(index, int) else (1, 8), np.float32)
    with pytest.raises(IndexError, match="multiple of 4"):
        load4_twin(array, index)
    with pytest.raises(IndexError, match="multiple of 4"):
        store4_twin(array, index, (0, 0, 0, 0))


@pytest.mark.parametrize("index", [-4, 8, 12])
def test_an_access_out_of_bounds_is_refused(index) -> None:
    for size in (8, 11):  # 11: the run would begin inside
        if index + 4 > size or index < 0:
            with pytest.raises(IndexError, match="outside"):
                load4_twin(np.zeros(size, np.float32), index)


def test_only_intrinsics_have_twins() -> None:
    assert twin_of(len) is None
    assert twin_of(None) is None


def test_options_that_numbas_simulator_does_not_know_are_left_out() -> None:
    options = {"launch_bounds": 128, "forceinline": True}
    assert gpu_only(**options) == ({} if config.ENABLE_CUDASIM else options)
