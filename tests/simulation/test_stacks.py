"""The stacks of CUDA threads in machine code."""

from __future__ import annotations

import os
import traceback

import numpy as np
import pytest
from numba import cuda, int32

import convlab
from convlab.simulation.compiled import engine_choice

pytestmark = pytest.mark.same_in_cudasim

BLOCKS, THREADS, ROUNDS = 200, 64, 20


@cuda.jit
def rotated(values, out):
    shared = cuda.shared.array(THREADS, int32)
    i = cuda.threadIdx.x
    number = values[cuda.grid(1)]
    for _ in range(ROUNDS):
        shared[i] = number
        cuda.syncthreads()
        number = shared[(i + 1) % THREADS]
        cuda.syncthreads()
    out[cuda.grid(1)] = number


def launch(seed: int) -> None:
    """Rotate each block's numbers by a launch as machine code. ``AssertionError`` for a wrong
    result."""
    values = np.random.default_rng(seed).integers(0, 1 << 30, (BLOCKS, THREADS), np.int32)
    out = np.zeros(values.size, np.int32)
    convlab.simulate(rotated, BLOCKS, THREADS, values.ravel(), out)
    expected = np.roll(values, -ROUNDS, axis=1)
    np.testing.assert_array_equal(out.reshape(values.shape), expected)


def forked(seed: int) -> int:
    """Launch in a copy of this process; return the number of the copy, whose status is 0 if its
    result is right."""
    if number := os.fork():
        return number
    status = 1
    try:
        launch(seed)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_processes_have_stacks_of_their_own(monkeypatch):
    monkeypatch.setattr(engine_choice, "limits", engine_choice.Limits.all_at(0.0))
    launch(seed=0)
    children = [forked(seed) for seed in range(1, 5)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
