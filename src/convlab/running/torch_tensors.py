"""PyTorch's tensors on a GPU, as far as a call must look at them each time. Every check here takes
less than a tenth of a microsecond."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad

TENSORS = (Tensor, torch.nn.Parameter)  # derived classes do things of their own
DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # that layers take
# The types of a stage's buffers; PyTorch has few operators for unsigned integers.
OF_BUFFERS = {
    "float32": torch.float32, "uint8": torch.uint8, "uint16": torch.int16, "uint32": torch.int32,
    "uint64": torch.int64,
}  # fmt: skip


def goes_short(index: int, *tensors: Tensor | None) -> bool:
    """Return True for dense float32 tensors on that GPU, where it is the current one, and nobody
    looks at operators: no compiler, tracer, transform or dispatch mode of PyTorch."""
    for tensor in tensors:  # a generator in all() would take a microsecond
        if tensor is not None and not is_there(tensor, index):
            return False
    return (
        current_gpu() == index  # which only a PyTorch with CUDA can say
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
        and forward_ad._current_level < 0
        and not torch.compiler.is_compiling()
    )


def is_there(tensor: Tensor, index: int) -> bool:
    """Return True for a dense float32 tensor on that GPU, of PyTorch's own classes, and none that a
    transform has left."""
    return (
        type(tensor) in TENSORS
        and tensor.dtype is torch.float32
        and tensor.is_cuda
        and tensor.get_device() == index
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def autocast_type(tensors: tuple[object, ...]) -> torch.dtype | None:
    """Return the type to which ``torch.autocast`` casts a convolution's tensors; None where it is
    off, or all have that type."""
    given: list[Tensor] = []
    for one in tensors:
        if isinstance(one, Tensor) and one.dtype in DTYPES:
            given.append(one)
        elif one is not None:
            return None  # it is refused
    kind = given[0].device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return None
    dtype: torch.dtype = torch.get_autocast_dtype(kind)
    return None if all(one.dtype == dtype for one in given) else dtype


def is_whole(tensor: Tensor) -> bool:
    """Return True if kernels can read the tensor without a copy."""
    whole: bool = tensor.is_contiguous() and not tensor.data_ptr() % 16 and not tensor.is_neg()
    return whole


def needs_gradient(tensors: Iterable[Tensor]) -> bool:
    """Return True where PyTorch keeps what derivatives need, and one of these has one."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def current_gpu() -> int:
    """Return the number of this thread's GPU. PyTorch's public function takes a microsecond."""
    number: int = torch._C._cuda_getDevice()
    return number


def current_stream(index: int) -> int:
    """Return the handle of this thread's stream on a GPU, as PyTorch's own compiler asks for it:
    the public way takes three microseconds."""
    handle: int = torch._C._cuda_getCurrentRawStream(index)
    return handle
