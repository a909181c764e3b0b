"""PyTorch's baselines: ``conv2d``, ``torch.compile``, and convolution from a matrix product.

``conv2d`` runs with ``torch.backends.cudnn.benchmark``: PyTorch tries cuDNN's kernels (at most ten)
and keeps the fastest. ``torch.compile`` has its default mode: for a lone convolution it calls what
``conv2d`` calls, but its own kernels may make the tensors channels-last around it, at each call.

im2col + cuBLAS is the im2win paper's baseline, "the im2col-based convolution in PyTorch using
cuBLAS". ``torch_own_im2col`` is *PyTorch's own*: ``conv2d`` with cuDNN switched off runs
``aten::_slow_conv2d_forward``, which as Caffe makes one matrix and one product for each image in
turn, in C++. A 1 x 1 filter with stride 1 and no padding needs no matrix; with dilation PyTorch
runs ``aten::slow_conv_dilated2d``, which always makes it. *Per image* does the same in a Python
loop, so that its ordinary calls include Python's time. *Batched* makes the matrix of all images and
one batched product. All three use PyTorch's im2col kernel, once per image, and cuBLAS's SGEMM.

unfoldNd is the unfold of Faster Convolution (article 002): a grouped convolution with one-hot
filters, then einsum; the package's own function where it is installed, else the same few lines.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from convlab.bench.baselines.base import Prepared, Singles, System, baseline
from convlab.bench.baselines.on_torch import Compute, Make, OnTorch, padded, why_no_torch
from convlab.problem import ConvProblem


def conv2d(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """``F.conv2d``."""
    import torch

    taken, padding = padded(problem, x)
    stride, dilation = problem.stride, problem.dilation

    def compute() -> Any:
        return torch.nn.functional.conv2d(taken(), w, None, stride, padding, dilation)

    return compute


def compiled_conv2d(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """``torch.compile`` of ``F.conv2d``, for these shapes alone."""
    import torch

    torch.compiler.reset()  # what it learnt from other shapes would make this one general

    def convolve(x: Any, w: Any) -> Any:
        taken, padding = padded(problem, x)
        return torch.nn.functional.conv2d(
            taken(), w, None, problem.stride, padding, problem.dilation
        )

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


def unfold_and_einsum(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """unfoldNd's unfold, then einsum, then the output's shape."""
    import torch

    p, filters = problem, w.reshape(problem.M, problem.K)
    taken, padding = padded(problem, x)
    unfold = import_module("unfoldNd").unfoldNd if _has_package() else one_hot_unfold(p, x)

    def compute() -> Any:
        columns = unfold(
            taken(), p.kernel_size, dilation=p.dilation, padding=padding, stride=p.stride
        )
        return torch.einsum("ok,nkl->nol", filters, columns).reshape(p.output_shape)

    return compute


def whose_unfold() -> str:
    """Which of the two unfolds runs, for readers of the results."""
    return "the package's unfold" if _has_package() else "convlab's own unfold"


def _has_package() -> bool:
    return find_spec("unfoldNd") is not None


def one_hot_unfold(problem: ConvProblem, x: Any) -> Any:
    """Unfold as a grouped convolution: for each position in the window a filter with a 1 there and
    zeros elsewhere. The filters are made here, once."""
    import torch

    C_i, places = problem.C_i, problem.H_f * problem.W_f
    one_hot = torch.eye(places, dtype=x.dtype, device=x.device)
    filters = one_hot.reshape(places, 1, *problem.kernel_size).repeat(C_i, 1, 1, 1)

    def unfold(images: Any, kernel_size: Any, *, dilation: Any, padding: Any, stride: Any) -> Any:
        unfolded = torch.nn.functional.conv2d(
            images, filters, None, stride, padding, dilation, groups=C_i
        )
        return unfolded.flatten(2)

    return unfold


def _im2col(problem: ConvProblem, images: Any, padding: tuple[int, int], columns: Any) -> None:
    import torch

    p = problem
    torch.ops.aten.im2col.out(images, p.kernel_size, p.dilation, padding, p.stride, out=columns)


def _baseline(
    name: str,
    title: str,
    family: str,
    make: Make,
    *,
    precision: str = "fp32",
    method: str = "gemm",
    note: Callable[[], str] | None = None,
    **options: bool,
) -> System:
    def prepare(problem: ConvProblem, input: Singles, weight: Singles) -> Prepared:
        said, tf32 = note and note(), precision == "tf32"
        return OnTorch(name, problem, input, weight, make, tf32=tf32, note=said, **options)

    return baseline(name, title, family, why_no_torch, prepare, precision=precision, method=method)


def _pytorchs_choice(
    name: str, title: str, make: Make, precision: str, *, channels_last: bool = False
) -> System:
    """``conv2d`` or its compiled form: PyTorch chooses the algorithm."""
    return _baseline(
        f"{name}_{precision}" + ("_channels_last" if channels_last else ""),
        f"{title}, {'TF32' if precision == 'tf32' else precision}, "
        + ("channels-last" if channels_last else "NCHW"),
        "pytorch", make, precision=precision, method="any", channels_last=channels_last,
    )  # fmt: skip


_TORCH = ("torch", "PyTorch conv2d", conv2d)
_COMPILED = ("torch_compile", "torch.compile(conv2d)", compiled_conv2d)
BASELINES = (
    _pytorchs_choice(*_TORCH, "fp32"),
    _pytorchs_choice(*_TORCH, "fp32", channels_last=True),
    _pytorchs_choice(*_TORCH, "tf32"),
    _pytorchs_choice(*_TORCH, "tf32", channels_last=True),
    _pytorchs_choice(*_COMPILED, "fp32"),
    _pytorchs_choice(*_COMPILED, "tf32"),
)
FROM_A_PRODUCT = (
    _baseline(
        "torch_own_im2col", "PyTorch without cuDNN: im2col + cuBLAS, image by image, fp32",
        "cublas", conv2d, cudnn=False,
    ),
    _baseline(
        "im2col_cublas_per_image", "im2col + cuBLAS, image by image, fp32", "cublas", per_image
    ),
    _baseline("im2col_cublas_batched", "im2col + cuBLAS, batched, fp32", "cublas", batched),
    _baseline(
        "unfoldnd", "unfoldNd: one-hot convolution and einsum, fp32", "unfoldnd",
        unfold_and_einsum, note=whose_unfold,
    ),
)  # fmt: skip
