"""A call of ``conv1d``, ``conv2d`` or ``conv3d``: its settings, checked, as a 2-D problem."""

from __future__ import annotations

from typing import NamedTuple

from convlab.problems.problem import ConvProblem
from convlab.problems.settings import IntOrEach, Padding, Windows, windows_of
from convlab.support.values import integer, shown

Settings = tuple[IntOrEach, Padding, IntOrEach, int]  # stride, padding, dilation, groups


class Call(NamedTuple):
    """A call's settings, checked: the 2-D problem that it becomes, and its output's shape."""

    problem: ConvProblem
    depth: int  # input planes; 0 for fewer axes
    windows: Windows  # of all axes
    shape: tuple[int, ...]
    is_empty: bool


def call_of(
    axes: int,
    input: tuple[int, ...],
    weight: tuple[int, ...],
    settings: Settings,
    dtype: str = "float32",
) -> Call:
    """Check a call's shapes and settings. Raises ``TypeError`` or ``ValueError`` where they do not
    fit."""
    stride, padding, dilation, groups = settings
    groups = integer("groups", groups, at_least=1)
    for name, shape in (("input", input), ("weight", weight)):
        if len(shape) != axes + 2 and not (name == "input" and len(shape) == axes + 1):
            may = f"{axes + 2} dimensions{f', or {axes + 1}' if name == 'input' else ''}"
            raise ValueError(f"{name} has shape {shown(shape)}: it must have {may}")
    batched = input if len(input) == axes + 2 else (1, *input)
    N_i, C_i, *size = batched
    C_o, channels, *kernel = weight
    if C_i % groups or C_o % groups:
        must = f"it must divide input's {C_i} channels and weight's {C_o} filters"
        raise ValueError(f"groups is {groups}: {must}")
    if channels != C_i // groups:
        raise ValueError(
            f"weight has shape {shown(weight)}: its second size must be input's {C_i} channels"
            f"{'' if groups == 1 else f' / {groups} groups'}"
        )
    windows = windows_of(axes, kernel, stride, padding, dilation)
    taps, strides, zeros, dilations = windows
    if axes == 1:
        size, taps, strides, dilations = [1, *size], (1, *taps), (1, *strides), (1, *dilations)
        zeros = ((0, 0), *zeros)
    depth, planes_out, planes_seen = 0, 1, 1
    if axes == 3:
        depth = integer("input's depth", size[0], at_least=1)
        planes_out, planes_seen = windows.outputs(size)[0], taps[0]
    problem = ConvProblem(
        max(N_i, 1) * planes_out, max(C_i, groups) * planes_seen, size[-2], size[-1], C_o,
        taps[-2:], strides[-2:], zeros[-2:], dilations[-2:], groups, dtype,
    )  # fmt: skip
    sizes = (planes_out, *problem.output_size)[3 - axes :]
    shape = (C_o if C_i else 0, *sizes)  # as in PyTorch, no channels if the input has none
    whole = (N_i, *shape) if len(input) == axes + 2 else shape
    return Call(problem, depth, windows, whole, not (N_i and C_i))
