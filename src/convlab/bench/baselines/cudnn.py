"""cuDNN, each forward algorithm by itself, through the C API ``cudnnConvolutionForward``.

PyTorch picks among cuDNN's algorithms and does not say which one. Here each is a baseline: float32
NCHW tensors, math type ``CUDNN_FMA_MATH`` (no tensor cores), cross-correlation. cuDNN 9 marks this
API as deprecated and still runs it. Names and numbers are those of NVIDIA's cuDNN API reference
(``cudnnConvolutionFwdAlgo_t`` and its neighbours).
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from convlab.bench.baselines.base import Singles, Unsupported, baseline
from convlab.bench.baselines.on_gpu import OnGpu, why_no_gpu
from convlab.problem import ConvProblem

# Each algorithm's number in cudnnConvolutionFwdAlgo_t, and how it computes.
ALGORITHMS: dict[str, tuple[int, str]] = {
    "IMPLICIT_GEMM": (0, "gemm"),
    "IMPLICIT_PRECOMP_GEMM": (1, "gemm"),
    "GEMM": (2, "gemm"),
    "DIRECT": (3, "direct"),
    "FFT": (4, "fft"),
    "FFT_TILING": (5, "fft"),
    "WINOGRAD": (6, "winograd"),
    "WINOGRAD_NONFUSED": (7, "winograd"),
}
TENSOR_NCHW, DATA_FLOAT, CROSS_CORRELATION, FMA_MATH = 0, 0, 1, 3
SONAMES = ("libcudnn.so.9", "libcudnn.so.8", "cudnn64_9.dll", "cudnn64_8.dll")


def why_absent() -> str | None:
    """Why cuDNN cannot run here; None when it can."""
    if (reason := why_no_gpu()) is not None:
        return reason
    try:
        library()
    except OSError as error:
        return str(error)
    return None


@cache
def library() -> Any:
    """cuDNN, of the package that PyTorch installs (``nvidia-cudnn-cu13``) or of the system.

    Raises ``OSError`` where there is none that can be loaded.
    """
    _load_cublas()
    failures = []
    for path in _places():
        try:
            return _declared(ctypes.CDLL(path))
        except OSError as error:
            if os.path.isabs(path):  # it is there, but does not load
                failures.append(f"{path} does not load: {error}")
    raise OSError(
        "; ".join(failures) or "no cuDNN was found: pip install nvidia-cudnn-cu13 has one"
    )


def _places() -> list[str]:
    """Where cuDNN may be: files of the package first, then names for the loader to look up."""
    try:
        package = find_spec("nvidia.cudnn")
    except ModuleNotFoundError:  # not even `nvidia`
        package = None
    folders = package.submodule_search_locations or () if package else ()
    files = [
        Path(folder, below, name) for folder in folders for below in ("lib", "bin")
        for name in SONAMES
    ]  # fmt: skip
    return [str(file) for file in files if file.exists()] + list(SONAMES)


def _load_cublas() -> None:
    """cuDNN looks for cuBLAS among the libraries that are loaded already, then on the system."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    for name in ("cublasLt", "cublas"):
        try:
            load_nvidia_dynamic_lib(name)
        except DynamicLibNotFoundError:
            continue  # then cuDNN says what it lacks, where it needs it


def _declared(cudnn: Any) -> Any:
    """The library with what ctypes cannot guess: results that are not int, arguments beyond it."""
    cudnn.cudnnGetErrorString.restype = ctypes.c_char_p
    cudnn.cudnnGetVersion.restype = c_size_t
    # fmt: off
    cudnn.cudnnConvolutionForward.argtypes = [
        c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p,
        c_size_t, c_void_p, c_void_p, c_void_p,
    ]
    # fmt: on
    return cudnn


def call(cudnn: Any, function: str, *arguments: Any) -> None:
    """Call a function of cuDNN's that returns a status.

    Raises :class:`Unsupported` where cuDNN says that it does not do this, ``RuntimeError`` for any
    other error.
    """
    status = getattr(cudnn, function)(*arguments)
    if status == 0:
        return
    message = f"{function}: {cudnn.cudnnGetErrorString(status).decode()}{_last_error(cudnn)}"
    # CUDNN_STATUS_NOT_SUPPORTED is 9 before cuDNN 9, and 3000 with its kinds up to 3999 from then.
    raise (Unsupported if status == 9 or 3000 <= status < 4000 else RuntimeError)(message)


def _last_error(cudnn: Any) -> str:
    """What cuDNN 9 says beyond its status."""
    if not hasattr(cudnn, "cudnnGetLastErrorString"):
        return ""
    text = ctypes.create_string_buffer(1024)
    cudnn.cudnnGetLastErrorString(text, c_size_t(len(text)))
    words = " ".join(text.value.decode(errors="replace").split())
    return f" ({words})" if words else ""


class Descriptors:
    """A cuDNN handle, and the descriptors of a problem's tensors and convolution."""

    def __init__(self, cudnn: Any, problem: ConvProblem) -> None:
        (top, bottom), (left, right) = problem.padding
        if top != bottom or left != right:
            raise Unsupported(
                f"cuDNN pads both ends of an axis alike, but padding is {problem.padding}"
            )
        self._cudnn = cudnn
        self._made: list[tuple[str, c_void_p]] = []
        nchw, sizes = (TENSOR_NCHW, DATA_FLOAT), (top, left, *problem.stride, *problem.dilation)
        try:
            self.handle = self._create("cudnnCreate", "cudnnDestroy")
            self.input = self._make("Tensor", "Tensor4d", *nchw, *problem.input_shape)
            self.output = self._make("Tensor", "Tensor4d", *nchw, *problem.output_shape)
            self.weight = self._make(
                "Filter", "Filter4d", DATA_FLOAT, TENSOR_NCHW, *problem.weight_shape
            )
            self.convolution = self._make(
                "Convolution", "Convolution2d", *sizes, CROSS_CORRELATION, DATA_FLOAT
            )
            call(cudnn, "cudnnSetConvolutionMathType", self.convolution, FMA_MATH)
        except BaseException:
            self.close()
            raise

    def _create(self, create: str, destroy: str) -> c_void_p:
        made = c_void_p()
        call(self._cudnn, create, byref(made))
        self._made.append((destroy, made))
        return made

    def _make(self, kind: str, setter: str, *values: int) -> c_void_p:
        made = self._create(f"cudnnCreate{kind}Descriptor", f"cudnnDestroy{kind}Descriptor")
        call(self._cudnn, f"cudnnSet{setter}Descriptor", made, *values)
        return made

    def workspace_bytes(self, algorithm: int) -> int:
        """What that algorithm asks for; raises :class:`Unsupported` where it cannot do this."""
        size = c_size_t()
        call(
            self._cudnn, "cudnnGetConvolutionForwardWorkspaceSize", self.handle, self.input,
            self.weight, self.convolution, self.output, algorithm, byref(size),
        )  # fmt: skip
        return size.value

    def close(self) -> None:
        """Destroy all of them, the handle last."""
        while self._made:
            destroy, made = self._made.pop()
            getattr(self._cudnn, destroy)(made)


class Convolution(OnGpu):
    """One algorithm made ready for one problem."""

    def __init__(
        self, algorithm: str, problem: ConvProblem, input: Singles, weight: Singles
    ) -> None:
        super().__init__(name_of(algorithm))
        self.algorithm = algorithm
        self._number, _ = ALGORITHMS[algorithm]
        self._cudnn = library()
        self._descriptors = Descriptors(self._cudnn, problem)
        try:
            self.workspace_bytes = self._descriptors.workspace_bytes(self._number)
            self.place(input, weight, problem.output_shape)
            self._workspace = self.place_workspace(self.workspace_bytes)
            self.run()  # loads kernels, which a capture must not; some refuse only here
        except BaseException:
            self.close()
            raise

    def run(self, stream: int | None = None) -> None:
        """Start one convolution."""
        input, weight, output = self.pointers
        d, one, zero = self._descriptors, c_float(1), c_float(0)
        call(self._cudnn, "cudnnSetStream", d.handle, c_void_p(stream or 0))
        call(
            self._cudnn, "cudnnConvolutionForward", d.handle, byref(one), d.input, input,
            d.weight, weight, d.convolution, self._number, self._workspace, self.workspace_bytes,
            byref(zero), d.output, output,
        )  # fmt: skip

    def close(self) -> None:
        """Free descriptors, handle and memory."""
        self._descriptors.close()
        super().close()


def name_of(algorithm: str) -> str:
    """The baseline's name."""
    return f"cudnn_{algorithm.lower()}"


BASELINES = tuple(
    baseline(
        name_of(algorithm),
        f"cuDNN {algorithm}, fp32",
        "cudnn",
        why_absent,
        partial(Convolution, algorithm),
        method=method,
    )
    for algorithm, (_, method) in ALGORITHMS.items()
)
