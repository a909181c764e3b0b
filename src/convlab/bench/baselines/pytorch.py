"""PyTorch's baselines: ``conv2d``, ``torch.compile``, and convolution from a matrix product.

``torch_own_im2col`` is the im2win paper's baseline, "the im2col-based convolution in PyTorch using
cuBLAS": ``conv2d`` with cuDNN switched off, which makes one matrix and one product for each image.
The other two make the same calls from Python, image by image or batched. unfoldNd is the unfold of
Faster Convolution (article 002): a grouped convolution with one-hot filters, then einsum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from convlab.bench.baselines import Prepared, Singles, System, Unsupported, baseline, why_no_library
from convlab.problem import ConvProblem

TOO_MANY_ELEMENTS = "canUse32BitIndexMath"  # what PyTorch says where a kernel counts in 32 bits
MOST_KERNELS = 4  # named in ``algorithm``, the longest first
LONGEST_NAME = 100

Compute = Callable[[], Any]
"""Starts one convolution; returns the output, a tensor of the problem's output shape."""
Make = Callable[[ConvProblem, Any, Any], Compute]
"""Makes that for a problem, its input and its weight, tensors on the device."""


@cache
def why_no_torch() -> str | None:
    """Why PyTorch cannot run on a GPU here, in one sentence; None when it can."""
    return why_no_library("torch", "PyTorch", "torch")


def why_no_unfoldnd() -> str | None:
    """Why PyTorch and unfoldNd cannot run on a GPU here; None when they can."""
    if find_spec("unfoldNd") is None:
        return "unfoldNd is not installed: pip install unfoldNd"
    return why_no_torch()


class OnTorch:
    """A computation of PyTorch's made ready for one problem: on the GPU, on the CPU without one.

    ``tf32`` lets cuDNN and cuBLAS take tensor cores. ``channels_last`` is the layout of input,
    weight and so the output, before the clock starts. cuDNN may try its kernels (``benchmark``) in
    the first run, which happens here; without ``cudnn`` PyTorch convolves by its own code.
    """

    capturable = True
    # Setting precision and library takes microseconds, which would count in every call. So PyTorch
    # keeps the settings of one computation, the holder, until another runs or the holder closes.
    _holder: ClassVar[OnTorch | None] = None
    _held: ClassVar[ExitStack] = ExitStack()

    def __init__(
        self,
        name: str,
        problem: ConvProblem,
        input: Singles,
        weight: Singles,
        make: Make,
        *,
        tf32: bool = False,
        channels_last: bool = False,
        cudnn: bool = True,
    ) -> None:
        import torch

        self._name = name
        self._flags = {"tf32": tf32, "cudnn": cudnn}
        self._torch, self._device = torch, None
        if torch.cuda.is_available():
            self._device = torch.device("cuda", torch.cuda.current_device())
            torch.mm(*torch.ones(2, 1, 1, device=self._device))  # cuBLAS's own memory, once
        self._compute: Compute | None = None
        self._output: Any = None
        memory = torch.channels_last if channels_last else torch.contiguous_format
        try:
            x, w = (
                torch.from_numpy(np.ascontiguousarray(array))
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

    def _requested(self, when: str) -> int:
        """Bytes that PyTorch's allocator was asked for: ``current`` or ``peak``."""
        if self._device is None:
            return 0
        return int(self._torch.cuda.memory_stats(self._device)[f"requested_bytes.all.{when}"])

    def _measured_workspace(self, before: int) -> int | None:
        """What a run has allocated at its peak beyond ``before`` and its output."""
        if self._device is None:
            return None
        self._output = None
        self._torch.cuda.reset_peak_memory_stats(self._device)
        self.run()
        self._synchronize()
        output = self._output.numel() * self._output.element_size()
        return max(0, self._requested("peak") - before - int(output))

    def run(self, stream: int | None = None) -> None:
        if self._compute is None:
            raise RuntimeError(f"{self._name} has been closed")
        self._output = None  # so that its memory is there to be taken again
        if OnTorch._holder is not self:
            self._restore_settings()
            OnTorch._held.enter_context(flags(**self._flags))
            OnTorch._holder = self
        with self._on(stream):
            self._output = self._compute()

    @staticmethod
    def _restore_settings() -> None:
        OnTorch._holder = None
        OnTorch._held.close()

    def _on(self, stream: int | None) -> AbstractContextManager[Any]:
        if self._device is None:
            return nullcontext()
        cuda = self._torch.cuda
        # PyTorch takes the handle 0 for "any new stream", not for CUDA's default one.
        chosen = (
            cuda.ExternalStream(stream, self._device)
            if stream
            else cuda.default_stream(self._device)
        )
        context: AbstractContextManager[Any] = cuda.stream(chosen)
        return context

    def poison(self) -> None:
        self._synchronize()
        self._output.fill_(float("nan"))
        self._synchronize()

    def output(self) -> Singles:
        self._synchronize()
        output: Singles = self._output.cpu().numpy()
        return output

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
        self._compute = self._output = None
        if OnTorch._holder is self:
            self._restore_settings()
        if self._device is not None:
            self._torch.cuda.empty_cache()


@contextmanager
def flags(tf32: bool, cudnn: bool = True) -> Iterator[None]:
    """fp32 or TF32 in cuDNN and cuBLAS, and cuDNN's choice by trial or no cuDNN, inside the
    ``with``."""
    import torch

    chosen = torch.backends.cudnn.flags(enabled=cudnn, benchmark=True, allow_tf32=tf32)
    with chosen, matmul_tf32(tf32):
        yield


@contextmanager
def matmul_tf32(allowed: bool) -> Iterator[None]:
    """TF32 in cuBLAS or not, inside the ``with``; by PyTorch's older name, as cuDNN's flags are."""
    import torch

    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, allowed
    try:
        yield
    finally:
        matmul.allow_tf32 = before


def padded(problem: ConvProblem, x: Any) -> tuple[Callable[[], Any], tuple[int, int]]:
    """A function that returns the input to convolve, and the padding that is left to do.

    PyTorch pads both ends of an axis alike. Where the problem does not, the function pads at each
    call, and its copy counts in the time.
    """
    import torch

    (top, bottom), (left, right) = problem.padding
    if top == bottom and left == right:
        return lambda: x, (top, left)
    return lambda: torch.nn.functional.pad(x, (left, right, top, bottom)), (0, 0)


def conv2d(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """``F.conv2d``."""
    import torch

    taken, padding = padded(problem, x)
    stride, dilation = problem.stride, problem.dilation
    return lambda: torch.nn.functional.conv2d(taken(), w, None, stride, padding, dilation)


def compiled_conv2d(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """``torch.compile`` of ``F.conv2d``, for these shapes alone."""
    import torch

    torch.compiler.reset()  # what it learnt from other shapes would make this one general

    def convolve(x: Any, w: Any) -> Any:
        return conv2d(problem, x, w)()

    return partial(torch.compile(convolve, dynamic=False, fullgraph=True), x, w)


def per_image(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """For each image, in a loop in Python: its im2col matrix, and the product that writes its
    output."""
    import torch

    p, filters = problem, w.reshape(problem.M, problem.K)
    taken, padding = padded(problem, x)
    columns = x.new_empty(1, p.K, p.H_o * p.W_o)
    output = x.new_empty(p.output_shape)

    def compute() -> Any:
        images = taken()
        for i in range(p.N_i):
            _im2col(p, images[i : i + 1], padding, columns)
            torch.mm(filters, columns[0], out=output[i].view(p.M, -1))
        return output

    return compute


def batched(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """The im2col matrices of all images, and one batched product that writes the output."""
    import torch

    p, filters = problem, w.reshape(1, problem.M, problem.K).expand(problem.N_i, -1, -1)
    taken, padding = padded(problem, x)
    columns = x.new_empty(p.N_i, p.K, p.H_o * p.W_o)
    output = x.new_empty(p.output_shape)

    def compute() -> Any:
        _im2col(p, taken(), padding, columns)
        torch.bmm(filters, columns, out=output.view(p.N_i, p.M, -1))
        return output

    return compute


def _im2col(problem: ConvProblem, images: Any, padding: tuple[int, int], columns: Any) -> None:
    import torch

    p = problem
    torch.ops.aten.im2col.out(images, p.kernel_size, p.dilation, padding, p.stride, out=columns)


def unfold_and_einsum(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """unfoldNd's unfold, then einsum, then the output's shape."""
    import torch

    p, filters = problem, w.reshape(problem.M, problem.K)
    taken, padding = padded(problem, x)
    unfold = import_module("unfoldNd").unfoldNd
    settings = {"dilation": p.dilation, "padding": padding, "stride": p.stride}

    def compute() -> Any:
        columns = unfold(taken(), p.kernel_size, **settings)
        return torch.einsum("ok,nkl->nol", filters, columns).reshape(p.output_shape)

    return compute


def _baseline(
    name: str,
    title: str,
    family: str,
    make: Make,
    *,
    precision: str = "fp32",
    method: str = "gemm",
    why_absent: Callable[[], str | None] = why_no_torch,
    **options: bool,
) -> System:
    def prepare(problem: ConvProblem, input: Singles, weight: Singles) -> Prepared:
        tf32 = precision == "tf32"
        return OnTorch(name, problem, input, weight, make, tf32=tf32, **options)

    return baseline(name, title, family, why_absent, prepare, precision=precision, method=method)


# PyTorch chooses the algorithm.
BASELINES = tuple(
    _baseline(
        f"{name}_{precision}" + ("_channels_last" if last else ""),
        f"{title}, {precision.replace('tf', 'TF')}, {'channels-last' if last else 'NCHW'}",
        "pytorch", make, precision=precision, method="any", channels_last=last,
    )
    for name, title, make, layouts in (
        ("torch", "PyTorch conv2d", conv2d, (False, True)),
        ("torch_compile", "torch.compile(conv2d)", compiled_conv2d, (False,)),
    )
    for precision in ("fp32", "tf32")
    for last in layouts
)  # fmt: skip
FROM_A_PRODUCT = tuple(
    _baseline(name, f"{title}, fp32", family, make, **options)
    for name, title, family, make, options in (
        ("torch_own_im2col", "PyTorch without cuDNN: im2col + cuBLAS, image by image", "cublas",
         conv2d, {"cudnn": False}),
        ("im2col_cublas_per_image", "im2col + cuBLAS, image by image", "cublas", per_image, {}),
        ("im2col_cublas_batched", "im2col + cuBLAS, batched", "cublas", batched, {}),
        ("unfoldnd", "unfoldNd: one-hot convolution and einsum", "unfoldnd", unfold_and_einsum,
         {"why_absent": why_no_unfoldnd}),
    )
)  # fmt: skip
