"""Convolution from a matrix product, by PyTorch itself and as its users build it: im2col and
cuBLAS, unfoldNd.

im2col + cuBLAS is the im2win paper's (000) baseline, "the im2col-based convolution in PyTorch using
cuBLAS". That is *PyTorch's own*, which it runs where there is no cuDNN: Caffe's way, a matrix and a
product for each image in turn, in C++. *Per image* does the same as a loop in Python, so that its
ordinary calls hold Python's time. *Batched* makes a matrix for all images and one batched product.
All three take PyTorch's im2col kernel, which it starts once an image each time, and cuBLAS's SGEMM.

unfoldNd is Faster Convolution's (002) unfold: a grouped convolution with one-hot filters, then
einsum. The package's own function where it is installed, the same few lines where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from convlab.bench.baselines.base import (
    Baseline,
    Family,
    Prepared,
    Singles,
    rehearsal,
    require_no_bias,
)
from convlab.bench.baselines.on_torch import Compute, Make, OnTorch, padded, why_no_torch
from convlab.bench.baselines.pytorch import conv2d
from convlab.problem import ConvProblem


def pytorchs_own(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """``F.conv2d`` with cuDNN switched off, which :class:`OnTorch` does once for all its calls.

    PyTorch then runs ``aten::_slow_conv2d_forward``: it zeroes the output, and for each image
    starts the im2col kernel and an SGEMM that adds to the output. For filters of 1 x 1 with stride
    1 and no padding the image is its own matrix, and there is no im2col. With dilation PyTorch runs
    ``aten::slow_conv_dilated2d``, which goes the same way and always makes the matrix.
    """
    return conv2d(problem, x, w)


def per_image(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """For each image, in a loop in Python: its im2col matrix, and the product that writes its
    output."""
    p, filters = problem, w.reshape(problem.M, problem.K)
    taken, padding = padded(problem, x)
    columns = x.new_empty(1, p.K, p.H_o * p.W_o)
    output = x.new_empty(p.output_shape)

    def compute() -> Any:
        images = taken()
        for i in range(p.N_i):
            _im2col(p, images[i : i + 1], padding, columns)
            _library().mm(filters, columns[0], out=output[i].view(p.M, -1))
        return output

    return compute


def batched(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """The im2col matrices of all images, and one batched product that writes the output."""
    p, filters = problem, w.reshape(1, problem.M, problem.K).expand(problem.N_i, -1, -1)
    taken, padding = padded(problem, x)
    columns = x.new_empty(p.N_i, p.K, p.H_o * p.W_o)
    output = x.new_empty(p.output_shape)

    def compute() -> Any:
        _im2col(p, taken(), padding, columns)
        _library().bmm(filters, columns, out=output.view(p.N_i, p.M, -1))
        return output

    return compute


def unfold_and_einsum(problem: ConvProblem, x: Any, w: Any) -> Compute:
    """unfoldNd's unfold, then einsum, then the output's shape."""
    p, filters = problem, w.reshape(problem.M, problem.K)
    taken, padding = padded(problem, x)
    unfold = _unfold_of_the_package if _has_the_package() else one_hot_unfold(p, x)

    def compute() -> Any:
        columns = unfold(
            taken(), p.kernel_size, dilation=p.dilation, padding=padding, stride=p.stride
        )
        return _library().einsum("ok,nkl->nol", filters, columns).reshape(p.output_shape)

    return compute


def whose_unfold() -> str:
    """Which of the two unfolds runs, for who reads the results."""
    return "the package's unfold" if _has_the_package() else "convlab's own unfold"


def _has_the_package() -> bool:
    return find_spec("unfoldNd") is not None


def _unfold_of_the_package(*arguments: Any, **settings: Any) -> Any:
    return import_module("unfoldNd").unfoldNd(*arguments, **settings)


def one_hot_unfold(problem: ConvProblem, x: Any) -> Any:
    """Unfold as a convolution: each channel by itself, a filter for each place in the window that
    has a 1 there and zeros elsewhere. The filters are made here, once."""
    torch = _library()
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
    p = problem
    _library().ops.aten.im2col.out(
        images, p.kernel_size, p.dilation, padding, p.stride, out=columns
    )


def _library() -> Any:
    import torch

    return torch


def _prepare(
    name: str,
    make: Make,
    cudnn: bool,
    note: Callable[[], str] | None,
    problem: ConvProblem,
    input: Singles,
    weight: Singles,
    bias: Singles | None,
) -> Prepared:
    require_no_bias(name, bias)
    return OnTorch(name, problem, input, weight, make, cudnn=cudnn, note=note and note())


def _baseline(
    name: str,
    title: str,
    family: Family,
    make: Make,
    *,
    cudnn: bool = True,
    note: Callable[[], str] | None = None,
) -> Baseline:
    prepare = partial(_prepare, name, make, cudnn, note)
    return Baseline(
        name=name,
        title=f"{title}, fp32",
        family=family,
        precision="fp32",
        method="gemm",
        on_gpu=True,
        why_absent=why_no_torch,
        prepare=prepare,
        compile=rehearsal(why_no_torch, prepare),
    )


BASELINES = (
    _baseline(
        "torch_own_im2col",
        "PyTorch without cuDNN: im2col + cuBLAS, image by image",
        "cublas",
        pytorchs_own,
        cudnn=False,
    ),
    _baseline("im2col_cublas_per_image", "im2col + cuBLAS, image by image", "cublas", per_image),
    _baseline("im2col_cublas_batched", "im2col + cuBLAS, batched", "cublas", batched),
    _baseline(
        "unfoldnd",
        "unfoldNd: one-hot convolution and einsum",
        "unfoldnd",
        unfold_and_einsum,
        note=whose_unfold,
    ),
)
