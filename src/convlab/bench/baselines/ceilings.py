"""The ceilings that a library reaches on this GPU: cuBLAS's SGEMM, and a copy in GPU memory.

No program reaches the datasheet's peaks, so a convolution's speed is compared with these. Both go
through C interfaces and need no PyTorch.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_void_p
from typing import Any

import numpy as np

from convlab.bench.baselines import pointer, times_ms

SGEMM_SIZE = 8192
COPY_BYTES = 2**31
CHECKED = 64  # entries of the product, by a sum in float64


def sgemm_tflops(size: int = SGEMM_SIZE) -> float:
    """TFLOP/s of cuBLAS's fp32 matrix product of ``size`` x ``size`` random matrices.

    Raises ``RuntimeError`` where cuBLAS fails or its product is wrong.
    """
    from convlab.engines import choose
    from convlab.timer import measure

    gpu, cublas = choose("gpu"), _cublas()
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((size, size), np.float32) for _ in range(2))
    a, b, c = gpu.to_device(left), gpu.to_device(right), gpu.empty((size, size))
    one, zero = c_float(1), c_float(0)
    handle = c_void_p()
    _check(cublas.cublasCreate_v2(byref(handle)))
    try:

        def start(stream: Any) -> None:
            _check(cublas.cublasSetStream_v2(handle, c_void_p(int(stream.handle))))
            # Column by column to cuBLAS, so that it sees all three transposed: C' = B' A'.
            x, y, z = (c_void_p(pointer(matrix)) for matrix in (b, a, c))
            n, alpha, beta = size, byref(one), byref(zero)
            _check(cublas.cublasSgemm_v2(handle, 0, 0, n, n, n, alpha, x, n, y, n, beta, z, n))

        timing = measure(start)
    finally:
        cublas.cublasDestroy_v2(handle)
    product = gpu.to_host(c)
    for row, column in np.random.default_rng(1).integers(size, size=(CHECKED, 2)):
        x, y = left[row].astype(np.float64), right[:, column].astype(np.float64)
        bound = size * 2.0**-24 * (abs(x) @ abs(y))
        if not abs(product[row, column] - x @ y) <= bound:
            raise RuntimeError(
                f"cuBLAS's product is wrong at [{row}, {column}]: {product[row, column]:.9g}, "
                f"expected {x @ y:.9g}"
            )
    return 2 * size**3 / timing.median_ms / 1e9


def copy_bytes_per_second(nbytes: int = COPY_BYTES) -> float:
    """Bytes that a copy within the GPU's memory reads and writes in a second."""
    from cuda.bindings import driver

    from convlab.engines import choose

    gpu = choose("gpu")
    source, target = (gpu.empty((nbytes // 4,)) for _ in range(2))
    copied = 4 * (nbytes // 4)

    def start(stream: int | None) -> None:
        (error,) = driver.cuMemcpyDtoDAsync(pointer(target), pointer(source), copied, stream or 0)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA driver: {error.name} while copying")

    # Not through a graph: copies of this length take half as long again there.
    return 2 * copied / (float(np.median(times_ms(start, repeats=20))) / 1e3)


def _cublas() -> Any:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"cuBLAS: status {status}")
