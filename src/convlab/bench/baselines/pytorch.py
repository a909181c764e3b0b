"""PyTorch's ``conv2d``: what somebody would use who has PyTorch.

With ``torch.backends.cudnn.benchmark``, so that cuDNN's kernels are tried out (PyTorch's limit of
ten stays) and the fastest is kept. ``torch.compile`` has its default mode: for a lone convolution
it calls what ``conv2d`` calls, but may turn the tensors channels-last around it, at each call, by
kernels of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from convlab.bench.baselines.base import (
    Baseline,
    Precision,
    Prepared,
    Singles,
    rehearsal,
    require_no_bias,
)
from convlab.bench.baselines.on_torch import Compute, OnTorch, padded, why_no_torch
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


def _prepare(
    name: str,
    make: Any,
    tf32: bool,
    channels_last: bool,
    problem: ConvProblem,
    input: Singles,
    weight: Singles,
    bias: Singles | None,
) -> Prepared:
    require_no_bias(name, bias)
    return OnTorch(name, problem, input, weight, make, tf32=tf32, channels_last=channels_last)


def _baseline(
    precision: Precision, *, channels_last: bool = False, compiled: bool = False
) -> Baseline:
    name = "torch_compile" if compiled else "torch"
    title = "torch.compile(conv2d)" if compiled else "PyTorch conv2d"
    name += f"_{precision}" + ("_channels_last" if channels_last else "")
    make = compiled_conv2d if compiled else conv2d
    prepare = partial(_prepare, name, make, precision == "tf32", channels_last)
    return Baseline(
        name=name,
        title=f"{title}, {precision.upper() if precision == 'tf32' else precision}, "
        + ("channels-last" if channels_last else "NCHW"),
        family="pytorch",
        precision=precision,
        method="any",
        on_gpu=True,
        why_absent=why_no_torch,
        prepare=prepare,
        compile=rehearsal(why_no_torch, prepare),
    )


BASELINES = (
    _baseline("fp32"),
    _baseline("fp32", channels_last=True),
    _baseline("tf32"),
    _baseline("tf32", channels_last=True),
    _baseline("fp32", compiled=True),
    _baseline("tf32", compiled=True),
)
