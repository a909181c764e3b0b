"""A baseline in CuPy, which has no convolution for neural networks: its users write im2col."""

from __future__ import annotations

from functools import cache, partial

import numpy as np

from convlab.measuring.baselines import OnGpu, Singles, System, why_no_library
from convlab.problems.problem import ConvProblem
from convlab.running.engines.gpu import cupy_stream
from convlab.running.plans import check_fits

CUPY_PACKAGES = "cupy-cuda13x (cupy-cuda12x for CUDA 12)"
# Why CuPy cannot run on a GPU here, in one sentence; None when it can.
why_no_cupy = cache(partial(why_no_library, "cupy", "CuPy", CUPY_PACKAGES))


class CupyIm2col(OnGpu):
    """CuPy's convolution made ready for one problem: a view of the padded input with an axis for
    each position in the window, copied into a matrix for each image, and one batched ``matmul``."""

    capturable = False  # CuPy refuses to call cuBLAS while a stream is captured
    algorithm = "as_strided, matmul"

    def __init__(self, problem: ConvProblem, input: Singles, weight: Singles) -> None:
        import cupy

        super().__init__("cupy_im2col")
        p = problem
        self._cupy, self._problem = cupy, p
        pads = p.padded_shape != (p.H_i, p.W_i)
        windows = (p.N_i, p.C_i, p.H_f, p.W_f, p.H_o, p.W_o)
        padded_shape = (p.N_i, p.C_i, *p.padded_shape)
        self.workspace_bytes = 4 * int(np.prod(windows) + (np.prod(padded_shape) if pads else 0))
        try:
            self.place(input, weight, p.output_shape)
            check_fits("its im2col matrix", self.workspace_bytes, self._gpu)
            self._input, filters, self._output = map(cupy.asarray, self._arrays)  # views
            self._filters = cupy.broadcast_to(filters.reshape(p.M, p.K), (p.N_i, p.M, p.K))
            self._padded = cupy.empty(padded_shape, "f4") if pads else self._input
            self._columns = cupy.empty(windows, "f4")
            self.run()  # loads kernels and sets cuBLAS up
        except BaseException:
            self.close()
            raise

    def run(self, stream: int | None = None) -> None:
        """Start the computation on a raw CUDA stream."""
        p = self._problem
        with cupy_stream(self._cupy, stream or 0):
            if self._padded is not self._input:
                self._padded.fill(0)
                self._padded[:, :, p.p_h : p.p_h + p.H_i, p.p_w : p.p_w + p.W_i] = self._input
            # A view [N_i, C_i, H_f, W_f, H_o, W_o] of the padded input: each output's window.
            image, channel, row, column = self._padded.strides
            steps = (image, channel, row * p.d_h, column * p.d_w, row * p.s_h, column * p.s_w)
            as_strided = self._cupy.lib.stride_tricks.as_strided
            self._columns[:] = as_strided(self._padded, self._columns.shape, steps)
            self._cupy.matmul(
                self._filters,
                self._columns.reshape(p.N_i, p.K, -1),
                out=self._output.reshape(p.N_i, p.M, -1),
            )

    def close(self) -> None:
        """Free the arrays."""
        self._input = self._padded = self._columns = self._filters = self._output = None
        self._cupy.get_default_memory_pool().free_all_blocks()
        super().close()


BY_CUPY = System(
    "cupy_im2col", "CuPy: im2col by strides, matmul, fp32", "cupy", why_no_cupy, CupyIm2col
)
