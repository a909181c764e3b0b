"""A stand-in for CuPy, for programs that hold their data in CuPy's arrays.

Where CuPy is not installed, a program that imports ``cupy`` gets this module while its launches are
simulated. An array is memory of the device, with which NumPy computes; kernels take it as they take
CuPy's, by ``__cuda_array_interface__``. The names are NumPy's, of an explicit list; any other name
is refused. As in CuPy, an array is never converted to NumPy's by itself, and a NumPy array is no
operand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Never

import numba.cuda
import numpy as np

from convlab.simulation.host.cupy_arrays import (
    array,
    asarray,
    asnumpy,
    empty,
    empty_like,
    ndarray,
    refused_value,
    wrapped,
)
from convlab.simulation.host.cupy_host_functions import COMPARISONS, load, of_the_host
from convlab.simulation.host.not_simulated import RefusedName

CREATION = """
    arange array ascontiguousarray asfortranarray diag eye full full_like geomspace identity indices
    linspace logspace meshgrid ones ones_like tri tril triu zeros zeros_like
"""
ELEMENTS = """
    abs absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_not
    bitwise_or bitwise_xor cbrt ceil conj conjugate copysign cos cosh deg2rad degrees divide
    divmod equal exp exp2 expm1 fabs floor floor_divide fmax fmin fmod greater greater_equal hypot
    invert isfinite isinf isnan ldexp left_shift less less_equal log log10 log1p log2 logaddexp
    logical_and logical_not logical_or logical_xor maximum minimum mod multiply negative nextafter
    not_equal power rad2deg radians reciprocal remainder right_shift rint sign sin sinh sqrt square
    subtract tan tanh true_divide trunc
"""
ARRAYS = """
    all allclose amax amin angle any append argmax argmin argsort argwhere around array_equal
    array_split atleast_1d atleast_2d average bincount broadcast_arrays broadcast_to clip
    concatenate convolve copy count_nonzero cov cross cumprod cumsum diff digitize dot
    einsum expand_dims flatnonzero flip fliplr flipud gradient histogram hsplit hstack imag
    inner interp isclose isin kron matmul max maximum mean median min moveaxis nan_to_num nanmax
    nanmean nanmin nanstd
    nansum ndim nonzero outer pad percentile prod ptp quantile ravel real repeat reshape roll
    rollaxis rot90 round searchsorted shape size sort split squeeze stack std sum swapaxes take
    take_along_axis tensordot tile trace transpose trapezoid unique unravel_index var vdot vsplit
    vstack where
"""
ATTEMPTED = [*CREATION.split(), *ELEMENTS.split(), *ARRAYS.split()]
VALUES = """
    bool_ complex128 complex64 dtype e euler_gamma float16 float32 float64 inf int16 int32 int64
    int8 intp nan newaxis pi uint16 uint32 uint64 uint8 uintp iinfo finfo result_type
    can_cast promote_types issubdtype integer floating number complexfloating
"""
LINALG = "cholesky det eigh eigvalsh inv lstsq norm pinv qr slogdet solve svd"
FFT = "fft fft2 fftfreq fftn fftshift ifft ifft2 ifftn ifftshift irfft irfftn rfft rfftfreq rfftn"
RANDOM = """
    beta binomial choice exponential gamma normal permutation poisson rand randint randn random
    random_sample seed shuffle standard_normal uniform
"""
COMPILED = "ElementwiseKernel RawKernel RawModule ReductionKernel fuse vectorize"


def get_array_module(*arguments: Any) -> ModuleType:
    """Return ``cupy`` if an argument is on the device, else NumPy."""
    return _CUPY if any(isinstance(one, ndarray) for one in arguments) else np


# Streams and the device.


class CupyStream:
    """A stream, as ``cupy.cuda.Stream``. ``ptr`` is its handle, for ``cuda.external_stream``."""

    null: CupyStream

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        self._own = None if null else numba.cuda.stream()

    @property
    def _stream(self) -> Any:
        return self._own or numba.cuda.default_stream()

    @property
    def ptr(self) -> int:
        """The number of the stream."""
        return int(self._stream)

    def synchronize(self) -> None:
        """Wait for the stream's operations."""
        self._stream.synchronize()

    def use(self) -> CupyStream:
        """Make this the stream in use."""
        _in_use[:] = [self]
        return self

    def __enter__(self) -> CupyStream:
        _in_use.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _in_use.pop()

    def __getattr__(self, name: str) -> Never:
        raise refused_value(f"cupy.cuda.Stream.{name}")


CupyStream.null = CupyStream(null=True)
_in_use: list[CupyStream] = []


def get_current_stream() -> CupyStream:
    """Return the stream that is in use."""
    return _in_use[-1] if _in_use else CupyStream.null


class CupyDevice:
    """The one device, as ``cupy.cuda.Device``."""

    id = 0
    compute_capability = "90"

    def __init__(self, device: int = 0) -> None:
        if int(device):
            raise RefusedName("cupy.cuda.Device: there is one device, number 0")

    def __enter__(self) -> CupyDevice:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def use(self) -> None:
        """Do nothing, because there is one device."""
        pass

    def synchronize(self) -> None:
        """Wait for all operations."""
        numba.cuda.synchronize()

    def __getattr__(self, name: str) -> Never:
        raise refused_value(f"cupy.cuda.Device.{name}")


# The modules.


def _refused(name: str) -> Callable[..., Never]:
    def refuse(*arguments: object, **named: object) -> Never:
        raise RefusedName(
            f"convlab does not simulate {name}; write the kernel with numba.cuda, or use a GPU"
        )

    return refuse


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Never:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refused_value(f"{self.__name__}.{name}")


def _of_numpy(name: str, of: Any, names: str) -> _Module:
    """Return a module with these functions of one of NumPy's."""
    module = _Module(f"cupy.{name}" if name else "cupy")
    for one in names.split():
        if hasattr(of, one):  # NumPy's names change
            setattr(module, one, wrapped(getattr(of, one), one))
    return module


_CUPY = _of_numpy("", np, " ".join(ATTEMPTED))
for _name in VALUES.split():
    setattr(_CUPY, _name, getattr(np, _name))
_CUPY.__dict__.update(
    ndarray=ndarray,
    asarray=asarray,
    array=array,
    asnumpy=asnumpy,
    empty=empty,
    empty_like=empty_like,
    get_array_module=get_array_module,
    load=load,
)
for _name in ("save", "savez", "savez_compressed"):
    setattr(_CUPY, _name, of_the_host(getattr(np, _name)))
_TESTING = _Module("cupy.testing")
for _name in COMPARISONS.split():
    setattr(_TESTING, _name, of_the_host(getattr(np.testing, _name)))
for _name in COMPILED.split():
    setattr(_CUPY, _name, _refused(f"cupy.{_name}"))

_CUDA, _RUNTIME = _Module("cupy.cuda"), _Module("cupy.cuda.runtime")
_STREAMS = _Module("cupy.cuda.stream")
_STREAMS.__dict__.update(Stream=CupyStream, get_current_stream=get_current_stream)
_RUNTIME.__dict__.update(
    deviceSynchronize=lambda: numba.cuda.synchronize(),
    getDeviceCount=lambda: 1,
    getDevice=lambda: 0,
)
_CUDA.__dict__.update(
    Stream=CupyStream,
    Device=CupyDevice,
    get_current_stream=get_current_stream,
    is_available=lambda: True,
    runtime=_RUNTIME,
    stream=_STREAMS,
)
_CUPY.__dict__.update(
    cuda=_CUDA,
    linalg=_of_numpy("linalg", np.linalg, LINALG),
    fft=_of_numpy("fft", np.fft, FFT),
    random=_of_numpy("random", np.random, RANDOM),
    testing=_TESTING,
    __version__="13.0.0",
    __path__=[],
)
MODULES = {
    module.__name__: module
    for module in (
        *(_CUPY, _CUDA, _RUNTIME, _STREAMS),
        *(_CUPY.linalg, _CUPY.fft, _CUPY.random, _TESTING),
    )
}


class _Finder(MetaPathFinder, Loader):
    """Gives the modules to a program that imports them."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return MODULES[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def cupy_stand_in() -> Iterator[None]:
    """Inside, ``import cupy`` gives the stand-in, unless CuPy is installed."""
    finder = _Finder()
    sys.meta_path.append(finder)  # the last: an installed CuPy is found before
    try:
        yield
    finally:
        finders = sys.meta_path or []  # none are left when Python ends
        if finder in finders:
            finders.remove(finder)
        for name, module in MODULES.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        _in_use.clear()
