"""Programs that hold their data in CuPy run with the stand-in, where CuPy is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from numba import cuda

import convlab
from convlab.simulation.host.cupy_stand_in import ATTEMPTED, MODULES
from convlab.simulation.rules.findings import NotSimulated

pytestmark = pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
F = np.float32


@cuda.jit
def scale(a, factor, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * factor


@pytest.fixture
def cupy():
    with convlab.simulator():
        import cupy

        yield cupy
    assert not MODULES.keys() & sys.modules.keys()


def test_a_program_that_holds_its_data_in_cupy(cupy):
    host = np.arange(6, dtype=F)
    a, out = cupy.asarray(host), cupy.zeros(6, dtype=cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        scale[1, 32, cuda.external_stream(cupy.cuda.get_current_stream().ptr)](a, 2, out)
    stream.synchronize()
    shifted = cupy.where(out > 4, out + 1, -out).reshape(2, 3)
    np.testing.assert_array_equal(shifted.get(), [[0, -2, -4], [7, 9, 11]])
    np.testing.assert_array_equal(cupy.asnumpy(shifted.T[1:].sum(axis=0)), [-6, 20])
    assert (float(cupy.max(out)), out[2].shape, shifted.dtype) == (10, (), F)
    out[cupy.asarray([0, 1])] = 5
    out -= cupy.ones_like(out)
    assert out.tolist() == [4, 4, 3, 5, 7, 9]
    assert np.sqrt(out[:1]).get() == 2
    assert np.zeros_like(out, shape=2, dtype=np.int8).get().tolist() == [0, 0]
    assert np.linalg.norm(np.concatenate([out[:1], out[2:3]])).get() == 5
    assert out[2:].data.ptr == out.data.ptr + 8 == out[2:].__cuda_array_interface__["data"][0]
    assert host[1] == 1
    assert cupy.get_array_module(out) is cupy
    assert cupy.get_array_module(host) is np


def test_memory_of_numba_is_shared(cupy):
    on_device = cuda.to_device(np.arange(3, dtype=F))
    view = cupy.asarray(on_device)
    view += 1
    assert on_device.copy_to_host().tolist() == [1, 2, 3]
    assert cuda.as_cuda_array(view).copy_to_host().tolist() == [1, 2, 3]


def test_arrays_are_stored_in_files(cupy, tmp_path):
    a, b = cupy.arange(3), cupy.zeros((2, 2), dtype=F)
    cupy.save(tmp_path / "one.npy", a)
    cupy.savez_compressed(tmp_path / "two.npz", a, b=b)
    cupy.testing.assert_array_equal(cupy.load(tmp_path / "one.npy"), a)
    with cupy.load(tmp_path / "two.npz") as stored:
        assert stored.files == ["b", "arr_0"]
        assert isinstance(stored["b"], cupy.ndarray)
        cupy.testing.assert_array_equal(stored["b"], np.zeros((2, 2)))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        cupy.testing.assert_allclose(a, desired=a + 1)


def test_a_mistake_is_found(cupy):
    a = cupy.empty(4, F)
    assert np.isnan(a.get()).all()
    with pytest.raises(convlab.SimulationError, match="out of bounds"):
        scale[1, 32](a, 2, cupy.zeros(8, F))


def test_a_program_may_end_inside():
    code = "import convlab; inside = convlab.simulator(); inside.__enter__(); import cupy"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (lambda cupy: cupy.RawKernel("", "f"), NotSimulated, "cupy.RawKernel"),
        (lambda cupy: cupy.fuse(abs), NotSimulated, "cupy.fuse"),
        (lambda cupy: cupy.get_default_memory_pool(), NotSimulated, "default_memory_pool"),
        (lambda cupy: cupy.cuda.nvtx, NotSimulated, "cupy.cuda.nvtx"),
        (lambda cupy: cupy.zeros(3).data.copy_from, NotSimulated, "cupy.cuda.MemoryPointer.copy_f"),
        (lambda cupy: cupy.zeros(3).toDlpack(), AttributeError, "ndarray.toDlpack"),
        (lambda cupy: cupy.cuda.Device(1), NotSimulated, "one device"),
        (lambda cupy: cupy.zeros(3) + np.zeros(3), TypeError, "Unsupported type"),
        (lambda cupy: cupy.add(cupy.zeros(3), np.zeros(3)), TypeError, "Unsupported type"),
        (lambda cupy: np.asarray(cupy.zeros(3)), TypeError, r"use `\.get\(\)`"),
        (lambda cupy: np.concatenate([cupy.ones(1), np.ones(1)]), TypeError, "Unsupported type"),
        (lambda cupy: np.poly(cupy.ones(1)), TypeError, "no implementation found for 'numpy.poly'"),
    ],
)
def test_what_is_missing_is_refused_by_its_name(cupy, use, error, words):
    with pytest.raises(error, match=words):
        use(cupy)
    assert not hasattr(cupy, "get_default_memory_pool")


def test_every_name_of_the_list_is_numpys(cupy):
    missing = [name for name in ATTEMPTED if not hasattr(np, name)]
    assert missing == []
