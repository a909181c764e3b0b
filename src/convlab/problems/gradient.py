"""The gradients of a convolution, as problems: what is read, what is written, and the convolution
that computes them, with the roles of the three tensors exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from convlab.problems.number_types import NumberType
from convlab.problems.problem import ConvProblem, TensorShape
from convlab.problems.settings import Pair
from convlab.support.values import shown

AXES = (0, 1)  # height and width


@dataclass(frozen=True)
class Gradient:
    """dL/dinput or dL/dweight of ``problem`` from dL/doutput, for :func:`convlab.plan`.

    ``of="input"`` takes dL/doutput as ``input`` and the weight as ``weight``, ``of="weight"`` the
    input as ``input`` and dL/doutput as ``weight``; both write the gradient to the output. Shapes
    are theirs: those of ``problem``'s tensors. Raises ``TypeError`` or ``ValueError`` for others.
    """

    problem: ConvProblem
    of: Literal["input", "weight"]

    def __post_init__(self) -> None:
        if not isinstance(self.problem, ConvProblem):
            raise TypeError(f"problem is {shown(self.problem)}: it must be a ConvProblem")
        if not isinstance(self.of, str) or self.of not in ("input", "weight"):
            raise ValueError(f"of is {shown(self.of)}: it must be 'input' or 'weight'")
        if self.problem.dtype != "float32" or self.problem.channels_last:
            rule = "it must be float32 and not channels last, because gradients have no others yet"
            raise ValueError(f"problem is {self.problem}: {rule}")

    @property
    def input_shape(self) -> TensorShape:
        """The shape of the first tensor: dL/doutput for dL/dinput, else the input."""
        return self.problem.output_shape if self.of == "input" else self.problem.input_shape

    @property
    def weight_shape(self) -> TensorShape:
        """The shape of the second tensor: the filter for dL/dinput, else dL/doutput."""
        return self.problem.weight_shape if self.of == "input" else self.problem.output_shape

    @property
    def output_shape(self) -> TensorShape:
        """The shape of the gradient."""
        return self.problem.input_shape if self.of == "input" else self.problem.weight_shape

    @property
    def batch(self) -> int:
        """The number of images."""
        return self.problem.batch

    @property
    def kernel_size(self) -> Pair:
        """The rows and columns of a filter."""
        return self.problem.kernel_size

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        return self.problem.groups

    @property
    def dtype(self) -> str:
        """The name of the type of the numbers of all tensors."""
        return self.problem.dtype

    @property
    def number_type(self) -> NumberType:
        """The type of the numbers of all tensors."""
        return self.problem.number_type

    @property
    def channels_last(self) -> bool:
        """True if channels are innermost in memory."""
        return self.problem.channels_last

    @property
    def flops(self) -> int:
        """The operations of the convolution: each product of an output and a tap has one here."""
        return self.problem.flops

    @property
    def least_bytes(self) -> int:
        """The bytes of the convolution, whose three tensors are the same."""
        return self.problem.least_bytes

    @property
    def flops_per_byte(self) -> float:
        """The arithmetic intensity: operations for each byte that must be moved."""
        return self.problem.flops_per_byte

    @property
    def out_channels(self) -> int:
        """Output channels of the convolution that computes the gradient."""
        return self.as_convolution.out_channels

    @property
    def K(self) -> int:
        """The most terms that are not padding in an element's sum."""
        p = self.problem
        if self.of == "weight":
            return p.N
        return p.C_o // p.groups * p.H_f * p.W_f

    def phases(self, axis: int) -> int:
        """Input pixels a stride apart see the same filter taps. Each such phase is a channel of its
        own in dL/dinput's convolution, but for those that see no tap."""
        return min(self.problem.stride[axis], self.problem.window_shape[axis])

    @property
    def parts(self) -> int:
        """Sums that an element of dL/dweight is split in: one an image where there are groups,
        which have few outputs, each a sum over all pixels. Without, the stage splits it itself."""
        return 1 if self.groups == 1 else self.problem.batch

    def tap_step(self, axis: int) -> int:
        """Gradient pixels from one filter tap that a phase sees to the next."""
        return self.problem.dilation[axis] if self.problem.stride[axis] == 1 else 1

    def _span(self, axis: int) -> int:
        """Gradient pixels from the first to the last that an input pixel sees, less one."""
        p, step = self.problem, self.tap_step(axis)
        reach = (p.kernel_size[axis] - 1) * p.dilation[axis]
        return reach // p.stride[axis] // step * step

    def first_row(self, axis: int) -> int:
        """dL/dinput: the row of the padded input, in strides, that the convolution writes first."""
        return min(self.problem.padding[axis][0] // self.problem.stride[axis], self._span(axis))

    @cached_property
    def as_convolution(self) -> ConvProblem:
        """The convolution that computes it: docs/training.md has the roles of the tensors."""
        p, groups = self.problem, self.groups
        if self.of == "weight":
            rows, columns = ((p.output_size[a] - 1) * p.stride[a] + p.window_shape[a] for a in AXES)
            images = p.C_i // groups, groups * p.batch, rows, columns
            swapped = p.output_size, p.dilation, 0, p.stride
            return ConvProblem(*images, self.parts * p.C_o, *swapped, groups * self.parts)
        zeros: list[Pair] = []
        for a in AXES:
            first, span = self.first_row(a), self._span(a)
            rows = (p.input_shape[2 + a] - 1 + p.padding[a][0]) // p.stride[a] - first + 1
            before = span - first
            zeros.append((before, max(0, rows + span - before - p.output_size[a])))
        steps = [self.tap_step(a) for a in AXES]
        taps = [self._span(a) // steps[a] + 1 for a in AXES]
        channels = p.C_i * self.phases(0) * self.phases(1)
        return ConvProblem(*p.output_shape, channels, taps, 1, zeros, steps, groups)

    def __str__(self) -> str:
        return f"gradient of the {self.of} of {self.problem}"


Problem = ConvProblem | Gradient
