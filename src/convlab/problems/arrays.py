"""Arrays of NumPy, Numba, CuPy, PyTorch and JAX: their library, and their memory without a copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from convlab.problems.number_types import BFLOAT16, FLOAT16, NUMBER_TYPES
from convlab.support.installing import how_to_install
from convlab.support.values import shown


class Array(Protocol):
    """An array of any library, as far as type checkers need to know it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""

    @property
    def dtype(self) -> Any:
        """The type of the elements, as the library names it."""


class ApiArray(Array, Protocol):
    """An array of NumPy, CuPy or PyTorch, as the array API has it."""

    @property
    def ndim(self) -> int:
        """The number of axes."""

    @property
    def device(self) -> object:
        """The device that holds the array, as the library names it."""

    def __getitem__(self, key: Any, /) -> Any:
        """Elements of the array."""


# One library's arrays: what goes in comes out.
ArrayT = TypeVar("ArrayT", bound=Array)
ApiArrayT = TypeVar("ApiArrayT", bound=ApiArray)


@dataclass(frozen=True)
class Placement:
    """An array's library, and the number of the GPU that holds the array, None on the host."""

    library: str
    gpu: int | None = None
    device: object = None  # as the library names it
    xp: Any = field(default=np, compare=False)  # the library with the array API's names, but Numba

    def __str__(self) -> str:
        return f"{self.library} on {self.device or ('the host' if self.gpu is None else 'the GPU')}"

    def empty(
        self, shape: tuple[int, ...], dtype: str = "float32", *, channels_last: bool = False
    ) -> Any:
        """A new array of the library, on the same device; with ``channels_last`` PyTorch's tensor
        of four axes has its channels last in memory."""
        if self.library == "Numba":
            from numba import cuda

            return cuda.device_array(shape, NUMBER_TYPES[dtype].numpy)
        if self.library == "PyTorch":
            torch = self.xp
            form = torch.channels_last if channels_last else torch.contiguous_format
            kind = getattr(torch, dtype)
            return torch.empty(shape, dtype=kind, device=self.device, memory_format=form)
        return self.xp.empty(shape, dtype=NUMBER_TYPES[dtype].numpy, device=self.device)

    def from_host(self, array: np.ndarray) -> Any:
        """An array of the library with the elements of a host's, which it may keep."""
        if self.library == "Numba":
            from numba import cuda

            return cuda.to_device(array)
        if self.library == "PyTorch" and array.dtype == BFLOAT16.numpy:  # unknown to PyTorch
            bits = self.xp.asarray(array.view(np.int16), device=self.device)
            return bits.view(self.xp.bfloat16)
        return self.xp.asarray(array, device=self.device)

    def stream(self) -> int:
        """The handle of the stream that the library's next work runs on; 0 is the default one."""
        if self.library == "PyTorch":
            import torch

            return int(torch.cuda.current_stream(self.gpu).cuda_stream)
        if self.library == "CuPy":
            import cupy

            return int(cupy.cuda.get_current_stream(self.gpu).ptr)
        return 0


def compat() -> Any:
    """array-api-compat. Raises ``ModuleNotFoundError`` with what installs it."""
    try:
        import array_api_compat
    except ModuleNotFoundError:
        install = how_to_install("arrays")
        raise ModuleNotFoundError(
            f"arrays of CuPy, PyTorch and JAX need array-api-compat: run {install}"
        ) from None
    return array_api_compat


def check_unmasked(name: str, array: object) -> None:
    """Raise ``TypeError`` for a masked array."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: convlab has no masks, give its data")


def check_dense(name: str, tensor: Any) -> None:
    """Raise ``TypeError`` for a tensor of PyTorch's that is sparse or nested."""
    layout = "nested" if tensor.is_nested else str(tensor.layout)
    if layout != "torch.strided":
        raise TypeError(f"{name} has layout {layout}: it must be torch.strided")


def placement_of(name: str, array: object) -> Placement:
    """Return the array's placement. Raises ``TypeError`` naming what convlab cannot take."""
    check_unmasked(name, array)
    if isinstance(array, np.ndarray):
        return Placement("NumPy")
    if is_numbas(array):
        from numba import cuda

        return Placement("Numba", getattr(cuda.get_current_device(), "id", 0))
    kind = type(array).__module__.partition(".")[0].replace("jaxlib", "jax")
    if kind in _LIBRARIES:
        is_one, place = _LIBRARIES[kind]
        if getattr(compat(), is_one)(array):
            return Placement(*place(name, array), compat().array_namespace(array))
    raise TypeError(
        f"{name} is a {type(array).__name__}: it must be an array of NumPy, Numba, CuPy, PyTorch "
        "or JAX"
    )


def is_numbas(array: object) -> bool:
    """Return whether it is Numba's device array, which alone has ``copy_to_host``."""
    return hasattr(array, "copy_to_host") and hasattr(array, "shape")


ArrayLocation = tuple[str, int | None, object]  # the first fields of a Placement


def _cupys(name: str, array: Any) -> ArrayLocation:
    return "CuPy", int(array.device.id), array.device


def _pytorchs(name: str, tensor: Any) -> ArrayLocation:
    import torch

    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{name} requires a gradient: the layers of convlab.torch compute it; here give "
            f"{name}.detach() or call under torch.no_grad()"
        )
    check_dense(name, tensor)
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name} is on {tensor.device}: it must be on 'cpu' or 'cuda'")
    return "PyTorch", tensor.device.index, tensor.device


def _jaxs(name: str, array: Any) -> ArrayLocation:
    import jax

    if isinstance(array, jax.core.Tracer):
        raise TypeError(f"{name} is a tracer: it must be an array, so call outside of jax.jit")
    if array.is_deleted():
        raise ValueError(f"{name} is an array that JAX has deleted: it must be there")
    devices = list(array.devices())
    if len(devices) > 1 or devices[0].platform not in ("cpu", "gpu"):
        where = ", ".join(map(str, devices))
        raise TypeError(f"{name} is on {shown(where)}: it must be on one CPU or GPU")
    gpu = None if devices[0].platform == "cpu" else devices[0].local_hardware_id
    return "JAX", gpu, devices[0]


_LIBRARIES = {
    "torch": ("is_torch_array", _pytorchs),
    "cupy": ("is_cupy_array", _cupys),
    "jax": ("is_jax_array", _jaxs),
}


def dtype_name(array: Array) -> str:
    """``float32`` for every library's; NumPy's with the byte order if it is not the machine's."""
    return str(array.dtype).split(".")[-1]


def on_host(array: Any) -> np.ndarray:
    """The array's elements as NumPy's: the same memory where that is the host's, else a copy."""
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "__cuda_array_interface__") or is_numbas(array):
        from numba import cuda

        cuda.synchronize()
        return np.asarray(on_gpu(array).copy_to_host())
    if hasattr(array, "resolve_neg"):  # PyTorch's
        array = array.detach().resolve_neg()
        if dtype_name(array) == BFLOAT16.name:  # NumPy gets PyTorch's numbers as bits
            import torch

            return array.view(torch.int16).numpy().view(BFLOAT16.numpy)  # type: ignore[no-any-return]
    return np.asarray(array)


def on_gpu(array: Any, stream: int = 0) -> Any:
    """An array in a GPU's memory as Numba's device array: the same memory, used on that stream.
    Numbers of 16 bits are uint16 there."""
    of_16_bits = dtype_name(array) in (FLOAT16.name, BFLOAT16.name)
    if is_numbas(array):
        return array.view(np.uint16) if of_16_bits else array
    from numba import cuda

    if hasattr(array, "detach"):
        array = array.detach()
        if of_16_bits:
            import torch

            array = array.view(torch.int16)
    elif of_16_bits and hasattr(array, "view"):
        array = array.view(np.uint16)
    if hasattr(array, "block_until_ready"):  # JAX's have streams of their own
        array.block_until_ready()
    described = dict(array.__cuda_array_interface__, stream=stream or None)
    if of_16_bits:
        described["typestr"] = "<u2"
    return cuda.from_cuda_array_interface(described, owner=array, sync=False)


def has_channels_last(tensor: Any) -> bool:
    """Return True for PyTorch's tensor of four axes whose channels are last in memory."""
    import torch

    last: bool = tensor.is_contiguous(memory_format=torch.channels_last)
    return last and not tensor.is_contiguous()


def with_channels_last(array: Any) -> Any:
    """NumPy's or Numba's array [a, b, c, d] as [a, c, d, b], in the same memory."""
    if isinstance(array, np.ndarray) or not hasattr(array, "gpu_data"):
        return array.transpose(0, 2, 3, 1)
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    shape, strides = (
        [each[axis] for axis in (0, 2, 3, 1)] for each in (array.shape, array.strides)
    )
    return DeviceNDArray(shape, strides, array.dtype, gpu_data=array.gpu_data)


def is_whole(array: Any) -> bool:
    """Return True if a stage can read NumPy's or Numba's array without a copy, also by float4
    loads."""
    if isinstance(array, np.ndarray):
        return bool(array.flags.c_contiguous)
    return bool(array.is_c_contiguous()) and extent(array)[0] % 16 == 0


def extent(array: Any) -> tuple[int, int]:
    """The addresses that the elements of NumPy's or Numba's array lie between."""
    if isinstance(array, np.ndarray):
        return np.lib.array_utils.byte_bounds(array)
    if not hasattr(array, "device_ctypes_pointer"):  # an array of Numba's simulator
        return extent(array._ary)
    start = int(array.device_ctypes_pointer.value)
    steps = zip(array.shape, array.strides, strict=True)
    return start, start + array.dtype.itemsize + sum((size - 1) * step for size, step in steps)
