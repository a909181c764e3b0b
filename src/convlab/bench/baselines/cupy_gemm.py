"""CuPy: im2col by strides and cuBLAS.

CuPy has no convolution for neural networks, so its users write this: a view of the padded input
with an axis for each position in the window, copied into a matrix for each image, and one batched
``matmul``. A graph cannot capture its launches.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from convlab.bench.baselines import Singles, baseline, require_free, why_no_library
from convlab.engines.gpu import cupy_stream
from convlab.problem import ConvProblem


@cache
def why_absent() -> str | None:
    """Why CuPy cannot run here; None when it can."""
    return why_no_library("cupy", "CuPy", "cupy-cuda13x (cupy-cuda12x for CUDA 12)")


class Im2col:
    """The convolution made ready for one problem."""

    capturable = False  # CuPy refuses to call cuBLAS while a stream is captured
    algorithm = "as_strided, matmul"

    def __init__(self, problem: ConvProblem, input: Singles, weight: Singles) -> None:
        import cupy

        p = problem
        self._cupy, self._problem = cupy, p
        pads = p.padded_shape != (p.H_i, p.W_i)
        windows = (p.N_i, p.C_i, p.H_f, p.W_f, p.H_o, p.W_o)
        padded_shape = (p.N_i, p.C_i, *p.padded_shape)
        self.workspace_bytes = 4 * int(np.prod(windows) + (np.prod(padded_shape) if pads else 0))
        tensors = input.nbytes + weight.nbytes + 4 * int(np.prod(p.output_shape))
        require_free(tensors + self.workspace_bytes, "its tensors and im2col matrix take")

        self._input = cupy.asarray(input)
        self._padded = cupy.empty(padded_shape, "f4") if pads else self._input
        self._columns = cupy.empty(windows, "f4")
        self._filters = cupy.broadcast_to(cupy.asarray(weight).reshape(p.M, p.K), (p.N_i, p.M, p.K))
        self._output = cupy.empty(p.output_shape, "f4")
        self.run()  # loads kernels and sets cuBLAS up

    def run(self, stream: int | None = None) -> None:
        p = self._problem
        with cupy_stream(self._cupy, stream or 0):
            if self._padded is not self._input:
                self._padded.fill(0)
                self._padded[:, :, p.p_h : p.p_h + p.H_i, p.p_w : p.p_w + p.W_i] = self._input
            self._columns[:] = windows_of(self._cupy, p, self._padded)
            self._cupy.matmul(
                self._filters,
                self._columns.reshape(p.N_i, p.K, -1),
                out=self._output.reshape(p.N_i, p.M, -1),
            )

    def poison(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()
        self._output.fill(np.nan)
        self._cupy.cuda.runtime.deviceSynchronize()

    def output(self) -> Singles:
        self._cupy.cuda.runtime.deviceSynchronize()
        return np.asarray(self._cupy.asnumpy(self._output))

    def close(self) -> None:
        self._input = self._padded = self._columns = self._filters = self._output = None
        self._cupy.get_default_memory_pool().free_all_blocks()


def windows_of(library: Any, problem: ConvProblem, padded: Any) -> Any:
    """A view ``[N_i, C_i, H_f, W_f, H_o, W_o]`` of the padded input: each output's window.
    ``library`` is CuPy or NumPy."""
    p = problem
    image, channel, row, column = padded.strides
    return library.lib.stride_tricks.as_strided(
        padded,
        (p.N_i, p.C_i, p.H_f, p.W_f, p.H_o, p.W_o),
        (image, channel, row * p.d_h, column * p.d_w, row * p.s_h, column * p.s_w),
    )


BASELINE = baseline(
    "cupy_im2col", "CuPy: im2col by strides, matmul, fp32", "cupy", why_absent, Im2col
)
