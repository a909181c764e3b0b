"""Baselines in PyTorch: its convolutions, and im2col by its functions.

``torch_own_im2col`` is the im2win paper's baseline, "the im2col-based convolution in PyTorch using
cuBLAS": ``conv2d`` with cuDNN switched off, which makes one matrix and one product for each image.
Two others make the same calls from Python, image by image or batched. unfoldNd is the unfold of
Faster Convolution (article 002): a grouped convolution with one-hot filters, then einsum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from convlab.measuring.baselines import Singles, System, Unsupported, why_no_library
from convlab.problems.arrays import on_host
from convlab.problems.gradient import Gradient, Problem
from convlab.problems.number_types import as_in_kernels
from convlab.problems.problem import ConvProblem
from convlab.running.engines.gpu import torch_stream
from convlab.support.installing import how_to_add

if TYPE_CHECKING:
    from torch import Tensor

TOO_MANY_ELEMENTS = "canUse32BitIndexMath"  # what PyTorch says where a kernel counts in 32 bits
MOST_KERNELS = 4  # named in ``algorithm``, the longest first
LONGEST_NAME = 100

Compute = Callable[[], "Tensor"]
"""Starts one convolution; returns the output, a tensor of the problem's output shape."""
Make = Callable[[ConvProblem, "Tensor", "Tensor"], Compute]
"""Makes that for a problem, its input and its weight, tensors on the device."""


# Why PyTorch cannot run on a GPU here, in one sentence; None when it can.
why_no_torch = cache(partial(why_no_library, "torch", "PyTorch", "torch"))


def why_no_unfoldnd() -> str | None:
    """Return why PyTorch and unfoldNd cannot run on a GPU here; None when they can."""
    if find_spec("unfoldNd") is None:
        return f"unfoldNd is not installed: run {how_to_add('unfoldNd')}"
    return why_no_torch()


class OnTorch:
    """A computation of PyTorch's made ready for one problem: on the GPU, on the CPU without one.
    ``channels_last`` is the layout of input, weight and output; ``settings`` are those of
    :func:`flags`. cuDNN may try its kernels in the first run, which happens here."""

    capturable = True
    # Setting precision and library takes microseconds, which would count in every call. So PyTorch
    # keeps the settings of one computation, the holder, until another runs or the holder closes.
    _holder: ClassVar[OnTorch | None] = None
    _held: ClassVar[ExitStack] = ExitStack()

    def __init__(
        self,
        name: str,
        make: Make,
        settings: Mapping[str, bool],
        problem: ConvProblem,
        input: Singles,
        weight: Singles,
        *,
        channels_last: bool = False,
    ) -> None:
        import torch

        self._name, self._settings = name, settings
        self._torch, self._device = torch, None
        if torch.cuda.is_available():
            self._device = torch.device("cuda", torch.cuda.current_device())
            torch.mm(*torch.ones(2, 1, 1, device=self._device))  # cuBLAS's own memory, once
        self._compute: Compute | None = None
        self._output: Any = None
        self._gives_last = problem.channels_last
        memory = torch.channels_last if channels_last else torch.contiguous_format
        try:
            x, w = (
                self._as_tensor(array, problem)
                .to(self._device, copy=True)
                .contiguous(memory_format=memory)
                for array in (input, weight)
            )
            before = self._requested("current")
            self._compute = make(problem, x, w)
            self.run()
            self.workspace_bytes: int | None = self._measured_workspace(before)
        except BaseException as error:
            self.close()
            if TOO_MANY_ELEMENTS in str(error):
                raise Unsupported(
                    f"{name}: PyTorch's kernel for it takes no tensors of 2**31 elements and more"
                ) from None
            if isinstance(error, torch.OutOfMemoryError):
                raise MemoryError(f"{name}: {str(error).split(' If ')[0]}") from None
            raise

    def _as_tensor(self, array: np.ndarray, problem: Problem) -> Tensor:
        """Return an array of the problem as a tensor on the host, [N, C, H, W]."""
        bits = self._torch.from_numpy(as_in_kernels(np.ascontiguousarray(array)))
        tensor = bits.view(getattr(self._torch, problem.dtype))
        return tensor.permute(0, 3, 1, 2) if problem.channels_last else tensor

    def _requested(self, when: str) -> int:
        """Bytes that PyTorch's allocator was asked for: ``current`` or ``peak``."""
        if self._device is None:
            return 0
        return int(self._torch.cuda.memory_stats(self._device)[f"requested_bytes.all.{when}"])

    def _measured_workspace(self, before: int) -> int | None:
        """Return the peak of a run's allocations beyond ``before`` and its output."""
        if self._device is None:
            return None
        self._output = None
        self._torch.cuda.reset_peak_memory_stats(self._device)
        self.run()
        self._synchronize()
        output = self._output.numel() * self._output.element_size()
        return max(0, self._requested("peak") - before - int(output))

    def run(self, stream: int | None = None) -> None:
        """Start the computation on a raw CUDA stream."""
        if self._compute is None:
            raise RuntimeError(f"{self._name} has been closed")
        self._output = None  # so that its memory is there to be taken again
        if OnTorch._holder is not self:
            self._restore_settings()
            OnTorch._held.enter_context(flags(**self._settings))
            OnTorch._holder = self
        on_stream: AbstractContextManager[object] = nullcontext()
        if self._device is not None:
            on_stream = torch_stream(self._torch, self._device, stream or 0)
        with on_stream:
            self._output = self._compute()

    @staticmethod
    def _restore_settings() -> None:
        OnTorch._holder = None
        OnTorch._held.close()

    def poison(self) -> None:
        """Fill the output with NaN."""
        self._synchronize()
        self._output.fill_(float("nan"))
        self._synchronize()

    def output(self) -> Singles:
        """Return a copy of the output on the host."""
        self._synchronize()
        output = self._output.cpu()
        if self._gives_last:
            output = output.permute(0, 2, 3, 1).contiguous()
        return on_host(output)

    @property
    def algorithm(self) -> str | None:
        """The kernels of one run, the longest first, by PyTorch's profiler; None on the CPU.
        Profiling may slow down what follows: ask after timing."""
        if self._device is None:
            return None
        profiler = self._torch.profiler
        self._synchronize()
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
            self.run()
            self._synchronize()
        spent: dict[str, float] = {}
        for event in profile.events():
            if event.device_type == self._torch.autograd.DeviceType.CUDA:
                spent[event.name] = spent.get(event.name, 0.0) + event.device_time_total
        names = sorted(spent, key=spent.__getitem__, reverse=True)
        return "; ".join(name[:LONGEST_NAME] for name in names[:MOST_KERNELS]) or None

    def _synchronize(self) -> None:
        if self._device is not None:
            self._torch.cuda.synchronize(self._device)

    def close(self) -> None:
        """Free the tensors."""
        self._compute = self._output = None
        if OnTorch._holder is self:
            self._restore_settings()
        if self._device is not None:
            self._torch.cuda.empty_cache()


@contextmanager
def flags(
    tf32: bool = False, *, matmul: bool | None = None, cudnn: bool = True, benchmark: bool = True
) -> Iterator[None]:
    """Inside the ``with``: fp32 or TF32 in cuDNN, and in cuBLAS (``matmul``, as in cuDNN unless
    given); without ``cudnn`` PyTorch convolves by its own code; ``benchmark`` lets cuDNN choose by
    trial."""
    import torch

    in_cublas = torch.backends.cuda.matmul
    before = in_cublas.allow_tf32  # PyTorch's older name, as cuDNN's flags are
    with torch.backends.cudnn.flags(enabled=cudnn, benchmark=benchmark, allow_tf32=tf32):
        in_cublas.allow_tf32 = tf32 if matmul is None else matmul
        try:
            yield
        finally:
            in_cublas.allow_tf32 = before


def padded(problem: ConvProblem, x: Tensor) -> tuple[Callable[[], Tensor], tuple[int, int]]:
    """A function that returns the input to convolve, and the padding that is left to do. PyTorch
    pads both ends of an axis alike. Where the problem does not, the function pads at each call, and
    its copy counts in the time."""
    import torch

    (top, bottom), (left, right) = problem.padding
    if top == bottom and left == right:
        return lambda: x, (top, left)
    return lambda: torch.nn.functional.pad(x, (left, right, top, bottom)), (0, 0)


def conv2d(problem: Problem, x: Tensor, w: Tensor) -> Compute:
    """``F.conv2d``; for a gradient ``aten.convolution_backward``, which is asked for it alone."""
    import torch

    if isinstance(problem, Gradient):
        return _gradient(problem, x, w)
    taken, padding = padded(problem, x)
    settings = problem.stride, padding, problem.dilation, problem.groups
    return lambda: torch.nn.functional.conv2d(taken(), w, None, *settings)


def _gradient(gradient: Gradient, x: Tensor, w: Tensor) -> Compute:
    import torch

    p, of_input = gradient.problem, gradient.of == "input"
    if any(before != after for before, after in p.padding):
        raise Unsupported(f"PyTorch pads both ends of an axis alike, but padding is {p.padding}")
    # Of the tensor whose gradient it is, only the shape is read.
    shaped = x.new_empty(1).expand(gradient.output_shape)
    tensors = (x, shaped, w) if of_input else (w, x, shaped)
    settings = p.stride, (p.p_h, p.p_w), p.dilation, False, (0, 0), p.groups
    wanted = of_input, not of_input, False
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(*tensors, None, *settings, wanted)[0 if of_input else 1]


def compiled_conv2d(problem: ConvProblem, x: Tensor, w: Tensor) -> Compute:
    """``torch.compile`` of ``F.conv2d``, for these shapes alone."""
    import torch

    torch.compiler.reset()  # what it learnt from other shapes would make this one general

    def convolve(x: Tensor, w: Tensor) -> Tensor:
        return conv2d(problem, x, w)()

    return partial(torch.compile(convolve, dynamic=False, fullgraph=True), x, w)


def im2col_and_product(problem: ConvProblem, x: Tensor, w: Tensor, batched: bool) -> Compute:
    """The im2col matrix and the product that writes the output, image by image in a loop or, if
    ``batched``, of all images at once."""
    import torch

    p, (taken, padding) = problem, padded(problem, x)
    at_once = p.N_i if batched else 1
    filters = w.reshape(p.M, p.K)
    for_all = filters.expand(p.N_i, -1, -1)
    columns = x.new_empty(at_once, p.K, p.H_o * p.W_o)
    output = x.new_empty(p.output_shape)
    products = output.view(p.N_i, p.M, -1)
    im2col = partial(torch.ops.aten.im2col.out, out=columns)

    def compute() -> Tensor:
        images = taken()
        for i in range(0, p.N_i, at_once):
            im2col(images[i : i + at_once], p.kernel_size, p.dilation, padding, p.stride)
            if batched:
                torch.bmm(for_all, columns, out=products)
            else:
                torch.mm(filters, columns[0], out=products[i])
        return output

    return compute


def unfold_and_einsum(problem: ConvProblem, x: Tensor, w: Tensor) -> Compute:
    """unfoldNd's unfold, then einsum, then the output's shape."""
    import torch

    p, filters = problem, w.reshape(problem.M, problem.K)
    taken, padding = padded(problem, x)
    unfold = import_module("unfoldNd").unfoldNd
    settings = {"dilation": p.dilation, "padding": padding, "stride": p.stride}

    def compute() -> Tensor:
        columns = unfold(taken(), p.kernel_size, **settings)
        return torch.einsum("ok,nkl->nol", filters, columns).reshape(p.output_shape)

    return compute


def _of_torch(
    name: str,
    title: str,
    family: str,
    make: Make,
    method: str = "gemm",
    last: bool = False,
    **settings: bool,
) -> System:
    why_absent = why_no_unfoldnd if family == "unfoldnd" else why_no_torch
    precision = "tf32" if settings.get("tf32") else "fp32"
    prepare = partial(OnTorch, name, make, settings, channels_last=last)
    return System(name, title, family, why_absent, prepare, precision=precision, method=method)


# PyTorch chooses the algorithm.
BY_TORCH = tuple(
    _of_torch(name, title, "pytorch", make, "any", "last" in name, tf32="tf32" in name)
    for name, title, make in (
        ("torch_fp32", "PyTorch conv2d, fp32, NCHW", conv2d),
        ("torch_fp32_channels_last", "PyTorch conv2d, fp32, channels-last", conv2d),
        ("torch_tf32", "PyTorch conv2d, TF32, NCHW", conv2d),
        ("torch_tf32_channels_last", "PyTorch conv2d, TF32, channels-last", conv2d),
        ("torch_compile_fp32", "torch.compile(conv2d), fp32, NCHW", compiled_conv2d),
        ("torch_compile_tf32", "torch.compile(conv2d), TF32, NCHW", compiled_conv2d),
    )
)
# Of problems in 16 bits, whichever they are.
IN_16_BITS = tuple(
    _of_torch(name, title, "pytorch", conv2d, "any", "last" in name)
    for name, title in (
        ("torch_16_bits", "PyTorch conv2d, 16 bits, NCHW"),
        ("torch_16_bits_channels_last", "PyTorch conv2d, 16 bits, channels-last"),
    )
)
OWN = "PyTorch without cuDNN: im2col + cuBLAS, image by image, fp32"
FROM_A_PRODUCT = (
    _of_torch("torch_own_im2col", OWN, "cublas", conv2d, cudnn=False),
    _of_torch(
        "im2col_cublas_per_image", "im2col + cuBLAS, image by image, fp32", "cublas",
        partial(im2col_and_product, batched=False),
    ),
    _of_torch(
        "im2col_cublas_batched", "im2col + cuBLAS, batched, fp32", "cublas",
        partial(im2col_and_product, batched=True),
    ),
    _of_torch(
        "unfoldnd", "unfoldNd: one-hot convolution and einsum, fp32", "unfoldnd", unfold_and_einsum
    ),
)  # fmt: skip
