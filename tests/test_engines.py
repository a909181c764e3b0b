"""Choosing an engine; what the simulator counts, and what it is stricter about than Numba's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import cuda, float32, uint16, uint32
from numba.cuda.core import config

from convlab.device import commit_copies, copy_async8, load_pairs, store_pairs, wait_copies
from convlab.ladder.stage import Launch
from convlab.running.engines import ENGINE_NAMES, UNWRITTEN, choose, unavailable
from convlab.running.engines.cudasim import CudaSim
from convlab.simulation.language.python_body import python_body

SIM = CudaSim()


def run(kernel, grid: int, block: int, *arrays: np.ndarray) -> None:
    names = kernel.py_func.__code__.co_varnames[: len(arrays)]
    SIM.run(Launch(kernel, (grid,), (block,), names), list(arrays))


@cuda.jit(device=True)
def doubled(value):
    return value + value


@cuda.jit
def double_all(array, result):
    i = uint32(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if i < array.size:
        result[i] = doubled(array[i])


@cuda.jit
def reverse_in_block(array):
    staged = cuda.shared.array(8, float32, alignment=16)
    i = cuda.threadIdx.x
    staged[i] = array[i]
    cuda.syncthreads()
    array[i] = staged[7 - i]


@cuda.jit
def two_arrays_on_one_line(result):
    first, second = cuda.shared.array(1, float32), cuda.shared.array(1, float32)
    first[0], second[0] = float32(1), float32(2)
    result[0] = first[0]


@cuda.jit
def forgotten_barrier(result):
    staged = cuda.shared.array(4, float32)
    i = cuda.threadIdx.x
    if i == 3:
        staged[0] = float32(1)
    result[i] = staged[0]


@cuda.jit
def stale_shared_memory(result):
    staged = cuda.shared.array(1, float32)
    if cuda.blockIdx.x == 0:
        staged[0] = float32(1)
    result[cuda.blockIdx.x] = staged[0]


@cuda.jit
def uninitialised_accumulator(result):
    total = cuda.local.array(1, float32)
    total[0] += float32(1)
    result[0] = total[0]


@cuda.jit
def one_further(array, by):
    array[cuda.threadIdx.x + by[0]] = float32(0)


@cuda.jit
def wraps_around(array):
    array[uint32(cuda.threadIdx.x - 1) % 4] = float32(0)


@cuda.jit
def overflows(array):
    array[0] = array[0] * array[0]


def test_device_functions_shared_memory_and_atomics():
    array, result = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    run(double_all, 2, 3, array, result)
    assert result.tolist() == [0, 2, 4, 6, 8]
    run(two_arrays_on_one_line, 1, 1, result)
    run(add, 2, 3, result)  # a kernel named like an attribute that it uses
    assert result[0] == 1 + 6


@pytest.mark.parametrize(
    ("kernel", "grid", "block"),
    [(forgotten_barrier, 1, 4), (stale_shared_memory, 2, 1), (uninitialised_accumulator, 1, 1)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_memory_that_nobody_wrote_is_nan(kernel, grid, block):
    result = np.zeros(max(grid, block), np.float32)
    run(kernel, grid, block, result)
    assert np.isnan(result).any()


@pytest.mark.parametrize("by", [1, -1])
def test_an_index_out_of_bounds_raises(by):
    with pytest.raises(IndexError, match=r"is outside array of shape \(4,\)"):
        run(one_further, 1, 4, np.ones(4, np.float32), np.array([by]))


def test_numbers_and_indices_are_a_gpus():
    with pytest.raises(OverflowError, match=r"uint32\(-1\) does not fit"):
        run(wraps_around, 1, 1, np.ones(4, np.float32))
    array = np.array([1e30], np.float32)
    run(overflows, 1, 1, array)  # in silence
    assert np.isinf(array[0])
    with pytest.raises(IndexError, match="1 indices for array of shape"):
        run(double_all, 1, 1, np.ones((1, 1), np.float32), np.ones((1, 1), np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["simulator", "cudasim"])
def test_a_number_that_nobody_wrote_is_nan_or_large(name: str, dtype: str) -> None:
    """A kernel that computes again what is not finite hides NaN, one that multiplies by zero hides
    numbers."""
    made = choose(name).empty((2, 3), dtype).astype(np.float32)
    assert np.isnan(made.flat[::2]).all()
    assert (made.flat[1::2] == UNWRITTEN).all()
    assert choose(name).empty((2,), "uint16").tolist() == [65535, 65535]


def test_what_is_counted():
    array = np.arange(8, dtype=np.float32)
    with SIM.counting() as counts:
        run(reverse_in_block, 1, 8, array)
    accesses = ("global_loads", "global_stores", "shared_loads", "shared_stores", "barriers")
    found = counts.as_dict(flops=128)
    assert {name: one for name, one in found.items() if one is not None} == {
        **dict.fromkeys(accesses, 8), "global_bytes": 64, "flops_per_byte": 2,
    }  # fmt: skip
    assert found["global_requests"] is None  # Numba's simulator has no warps
    with SIM.counting() as counts:
        pass
    assert counts.as_dict(flops=1)["flops_per_byte"] == 0


@cuda.jit
def copy_of_eights(halves, copied):
    staged = cuda.shared.array(24, uint16, alignment=16)
    i = uint32(8) * cuda.threadIdx.x
    copy_async8(staged, i, halves, i, i != 8)
    commit_copies()
    wait_copies(0)
    cuda.syncthreads()
    store_pairs(copied, i, load_pairs(staged, i))


def test_a_128_bit_access_of_eight_numbers_is_counted_once():
    halves, copied = np.arange(24, dtype=np.uint16), np.full(24, 99, np.uint16)
    with SIM.counting() as counts:
        run(copy_of_eights, 1, 3, halves, copied)
    assert copied.tolist() == [*range(8), *[0] * 8, *range(16, 24)]
    found = counts.as_dict(flops=0)
    assert (found["global_loads"], found["global_stores"]) == (2, 3)
    assert (found["shared_loads"], found["shared_stores"]) == (3, 3)
    assert found["global_bytes"] == 16 * (2 + 3)


@cuda.jit
def writes_its_source(input):
    input[cuda.threadIdx.x] = float32(0)


@cuda.jit
def raises_what_cannot_be_rebuilt(array):
    staged = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 1:
        "\xff".encode("ascii")
    cuda.syncthreads()
    array[0] = staged[0]


@cuda.jit
def interrupted(array):
    if cuda.threadIdx.x == 1:
        raise KeyboardInterrupt
    cuda.syncthreads()


@cuda.jit
def add(array):
    cuda.atomic.add(array, 0, float32(1))


def test_what_a_kernel_raises_comes_out():
    with pytest.raises(IndexError, match=r"writes to input\[\d\], which is not its output"):
        run(writes_its_source, 1, 4, np.ones(4, np.float32))
    with pytest.raises(UnicodeEncodeError):
        run(raises_what_cannot_be_rebuilt, 1, 4, np.ones(4, np.float32))
    with pytest.raises(KeyboardInterrupt):
        run(interrupted, 1, 16, np.ones(4, np.float32))


def test_launches_at_the_same_time():
    arrays = [np.arange(8, dtype=np.float32) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda array: run(reverse_in_block, 1, 8, array), arrays))
    assert all(array.tolist() == [7, 6, 5, 4, 3, 2, 1, 0] for array in arrays)


def test_the_kernel_itself_is_not_changed():
    before = dict(double_all.py_func.__globals__)
    body = python_body(double_all, fake_cuda=object())
    assert body is not double_all.py_func
    assert double_all.py_func.__globals__ == before


def test_choosing():
    assert unavailable("cudasim") is None
    assert choose("cudasim").name == "cudasim"
    without_gpu = "cudasim" if config.ENABLE_CUDASIM else "simulator"
    expected = "gpu" if unavailable("gpu") is None else without_gpu
    assert choose("auto").name == expected
    assert choose("auto") is choose(expected)
    with pytest.raises(ValueError, match="engine is 'cpu': it must be 'auto', 'gpu'"):
        choose("cpu")
    assert set(ENGINE_NAMES) == {"gpu", "simulator", "cudasim"}


def test_a_block_whose_threads_wait_for_ever_is_no_success(monkeypatch):
    monkeypatch.setattr(
        "convlab.running.engines.cudasim.Block.run", lambda block: not block._start()
    )
    with pytest.raises(RuntimeError, match=r"8 threads of block \(0, 0, 0\) wait for others"):
        run(reverse_in_block, 1, 8, np.zeros(8, np.float32))
