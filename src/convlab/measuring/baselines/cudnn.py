"""cuDNN, each forward algorithm by itself, through the C API ``cudnnConvolutionForward``.

PyTorch picks among cuDNN's algorithms and does not say which one. Here each is a baseline: float32
NCHW tensors, math type ``CUDNN_FMA_MATH`` (no tensor cores), cross-correlation. cuDNN 9 marks this
API as deprecated and still runs it. Names and numbers are those of NVIDIA's cuDNN API reference
(``cudnnConvolutionFwdAlgo_t`` and its neighbours).
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from convlab.measuring.baselines import OnGpu, Singles, System, Unsupported
from convlab.problems.problem import ConvProblem
from convlab.running.engines import unavailable
from convlab.running.plans import check_fits
from convlab.support.installing import how_to_add

# In the order of cudnnConvolutionFwdAlgo_t, from 0; and how each computes.
ALGORITHMS = {
    "IMPLICIT_GEMM": "gemm", "IMPLICIT_PRECOMP_GEMM": "gemm", "GEMM": "gemm", "DIRECT": "direct",
    "FFT": "fft", "FFT_TILING": "fft", "WINOGRAD": "winograd", "WINOGRAD_NONFUSED": "winograd",
}  # fmt: skip
TENSOR_NCHW, DATA_FLOAT, CROSS_CORRELATION, FMA_MATH = 0, 0, 1, 3
SONAMES = ("libcudnn.so.9", "libcudnn.so.8", "cudnn64_9.dll", "cudnn64_8.dll")


def why_absent() -> str | None:
    """Return why cuDNN cannot run here; None when it can."""
    if (reason := unavailable("gpu")) is not None:
        return reason
    try:
        library()
    except OSError as error:
        return str(error)
    return None


@cache
def library() -> Any:
    """cuDNN, of the package that PyTorch installs (``nvidia-cudnn-cu13``) or of the system. Raises
    ``OSError`` where there is none that can be loaded."""
    _load_cublas()
    failures = []
    for path in _candidates():
        try:
            cudnn = ctypes.CDLL(path)
        except OSError as error:
            if os.path.isabs(path):  # it is there, but does not load
                failures.append(f"{path} does not load: {error}")
            continue
        cudnn.cudnnGetErrorString.restype = ctypes.c_char_p
        cudnn.cudnnConvolutionForward.argtypes = [
            *[c_void_p] * 7, c_int, c_void_p, c_size_t, *[c_void_p] * 3,
        ]  # fmt: skip
        return cudnn
    raise OSError(
        "; ".join(failures) or f"no cuDNN was found: run {how_to_add('nvidia-cudnn-cu13')}"
    )


def _candidates() -> list[str]:
    """Files of the package first, then names for the loader to look up."""
    try:
        package = find_spec("nvidia.cudnn")
    except ModuleNotFoundError:  # not even `nvidia`
        package = None
    folders = package.submodule_search_locations or () if package else ()
    files = (Path(one, lib, name) for one in folders for lib in ("lib", "bin") for name in SONAMES)
    return [str(file) for file in files if file.exists()] + list(SONAMES)


def _load_cublas() -> None:
    """cuDNN looks for cuBLAS among the loaded libraries first, then on the system."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    for name in ("cublasLt", "cublas"):
        with suppress(DynamicLibNotFoundError):  # then cuDNN says what it lacks, when it needs it
            load_nvidia_dynamic_lib(name)


class CudnnConvolution(OnGpu):
    """One algorithm made ready for one problem: a cuDNN handle, descriptors and memory."""

    def __init__(
        self, algorithm: str, problem: ConvProblem, input: Singles, weight: Singles
    ) -> None:
        (top, bottom), (left, right) = problem.padding
        if top != bottom or left != right:
            raise Unsupported(
                f"cuDNN pads both ends of an axis alike, but padding is {problem.padding}"
            )
        super().__init__(f"cudnn_{algorithm.lower()}")
        self.algorithm = algorithm
        self._number = [*ALGORITHMS].index(algorithm)
        self._cudnn = library()
        self._made: list[tuple[str, c_void_p]] = []
        nchw, filters = (TENSOR_NCHW, DATA_FLOAT), (DATA_FLOAT, TENSOR_NCHW)
        sizes = (top, left, *problem.stride, *problem.dilation)
        size = c_size_t()
        try:
            self._handle = self._create("cudnnCreate", "cudnnDestroy")
            self._x = self._describe("Tensor", "4d", *nchw, *problem.input_shape)
            self._y = self._describe("Tensor", "4d", *nchw, *problem.output_shape)
            self._w = self._describe("Filter", "4d", *filters, *problem.weight_shape)
            self._convolution = self._describe(
                "Convolution", "2d", *sizes, CROSS_CORRELATION, DATA_FLOAT
            )
            self._call("cudnnSetConvolutionMathType", self._convolution, FMA_MATH)
            self._call(
                "cudnnGetConvolutionForwardWorkspaceSize", self._handle, self._x, self._w,
                self._convolution, self._y, self._number, byref(size),
            )  # fmt: skip
            self.workspace_bytes = size.value
            self.place(input, weight, problem.output_shape)
            if size.value:
                check_fits("the workspace that it asks for", size.value, self._gpu)
                self._arrays.append(self._gpu.empty((-(-size.value // 4),)))
            self.run()  # loads kernels, which a capture must not; some refuse only here
        except BaseException:
            self.close()
            raise

    def _call(self, function: str, *arguments: Any) -> None:
        """Call a function that returns a status. Raises :class:`Unsupported` where cuDNN says that
        it does not do this, ``RuntimeError`` for any other error."""
        status = getattr(self._cudnn, function)(*arguments)
        if status == 0:
            return
        message = f"{function}: {self._cudnn.cudnnGetErrorString(status).decode()}"
        if hasattr(self._cudnn, "cudnnGetLastErrorString"):  # from cuDNN 9
            text = ctypes.create_string_buffer(1024)
            self._cudnn.cudnnGetLastErrorString(text, c_size_t(len(text)))
            words = " ".join(text.value.decode(errors="replace").split())
            message += f" ({words})" if words else ""
        # CUDNN_STATUS_NOT_SUPPORTED is 9 before cuDNN 9, and from then 3000 to 3999, by its kinds.
        raise (Unsupported if status == 9 or 3000 <= status < 4000 else RuntimeError)(message)

    def _create(self, create: str, destroy: str) -> c_void_p:
        made = c_void_p()
        self._call(create, byref(made))
        self._made.append((destroy, made))
        return made

    def _describe(self, kind: str, axes: str, *values: int) -> c_void_p:
        made = self._create(f"cudnnCreate{kind}Descriptor", f"cudnnDestroy{kind}Descriptor")
        self._call(f"cudnnSet{kind}{axes}Descriptor", made, *values)
        return made

    def run(self, stream: int | None = None) -> None:
        """Start the convolution on a raw CUDA stream."""
        input, weight, output, *workspace = self.pointers
        one, zero = c_float(1), c_float(0)
        self._call("cudnnSetStream", self._handle, c_void_p(stream or 0))
        self._call(
            "cudnnConvolutionForward", self._handle, byref(one), self._x, input, self._w, weight,
            self._convolution, self._number, workspace[0] if workspace else None,
            self.workspace_bytes, byref(zero), self._y, output,
        )  # fmt: skip

    def close(self) -> None:
        """Destroy cuDNN's handle and descriptors, and free the memory."""
        while self._made:  # the handle last
            destroy, made = self._made.pop()
            getattr(self._cudnn, destroy)(made)
        super().close()


BASELINES = tuple(
    System(
        f"cudnn_{algorithm.lower()}", f"cuDNN {algorithm}, fp32", "cudnn", why_absent,
        partial(CudnnConvolution, algorithm), method=method,
    )
    for algorithm, method in ALGORITHMS.items()
)  # fmt: skip
