"""The problem: one convolution's shapes and parameters, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from convlab.problems.number_types import NumberType, number_type
from convlab.problems.settings import (
    IntOrEach,
    Padding,
    Pair,
    Windows,
    pixels_read,
    windows_of,
)
from convlab.support.values import LARGEST_AXIS, integer, shown

TensorShape = tuple[int, int, int, int]  # of input, weight or output


class _Entry:
    """One number of a field, under a short name: ``_Entry("stride", 0)`` is ``stride[0]``."""

    def __init__(self, field: str, *indices: int) -> None:
        self._field, self._indices = field, indices

    def __get__(self, problem: ConvProblem, owner: type) -> int:
        value = getattr(problem, self._field)
        for index in self._indices:
            value = value[index]
        return int(value)


@dataclass(frozen=True, init=False)
class ConvProblem:
    """A 2-D convolution (cross-correlation, as in PyTorch's ``conv2d``).

    ``kernel_size``, ``stride``, ``padding`` and ``dilation`` are each an int, alone or in a tuple,
    or a (height, width) pair. ``padding`` is the zeros around the input; it may also be
    ``((top, bottom), (left, right))``, ``'valid'`` (none) or ``'same'`` (output as large as the
    input, at stride 1; an odd zero goes to the bottom and the right). Each filter sees one of
    ``groups`` groups of channels. ``dtype`` is the type of the numbers of all tensors, bias
    included: ``'float32'``, ``'float16'`` or ``'bfloat16'``. Shapes are those of the tensors as
    they lie in memory: [N_i, C_i, H_i, W_i], or with ``channels_last`` [N_i, H_i, W_i, C_i], and
    the weight [C_o, H_f, W_f, C_i]. Fields hold pairs, and padding two pairs, so equal problems
    compare equal. Raises ``TypeError`` or ``ValueError`` naming argument and rule."""

    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel_size: Pair
    stride: Pair
    padding: tuple[Pair, Pair]
    dilation: Pair
    groups: int = 1
    dtype: str = "float32"
    channels_last: bool = False

    # Written out, because the arguments may have more types than the fields.
    def __init__(
        self,
        batch: int,
        in_channels: int,
        height: int,
        width: int,
        out_channels: int,
        kernel_size: IntOrEach,
        stride: IntOrEach = 1,
        padding: Padding = 0,
        dilation: IntOrEach = 1,
        groups: int = 1,
        dtype: str = "float32",
        channels_last: bool = False,
    ) -> None:
        own = vars(self)  # the class is frozen
        sizes = {"batch": batch, "in_channels": in_channels, "height": height, "width": width}
        for name, size in (sizes | {"out_channels": out_channels}).items():
            own[name] = integer(name, size, at_least=1)
        own["groups"] = integer("groups", groups, at_least=1)
        if own["in_channels"] % own["groups"] or own["out_channels"] % own["groups"]:
            channels = f"in_channels {self.in_channels} and out_channels {self.out_channels}"
            raise ValueError(f"groups is {self.groups}: it must divide {channels}")
        own["dtype"] = number_type(dtype).name
        if not isinstance(channels_last, bool):
            raise TypeError(f"channels_last is {shown(channels_last)}: it must be True or False")
        own["channels_last"] = channels_last
        windows = windows_of(2, kernel_size, stride, padding, dilation)
        own["kernel_size"], own["stride"] = windows.kernel, windows.stride
        own["padding"], own["dilation"] = windows.padding, windows.dilation
        for name in ("input", "weight", "output"):
            elements = math.prod(shape := getattr(self, f"{name}_shape"))
            if elements >= 2**63:
                has = f"the {name} of shape {shape} has {elements} elements"
                raise ValueError(f"{has}: it must have fewer than 2**63, for 64-bit integers")
        if self.K > LARGEST_AXIS:
            raise ValueError(
                f"kernel_size {self.kernel_size} over in_channels {self.in_channels} makes sums of "
                f"{self.K} terms: they must be below 2**31, for 32-bit integers"
            )

    # The same numbers under the paper's names (im2win paper (000), section 2.1).
    N_i: ClassVar[_Entry] = _Entry("batch")
    C_i: ClassVar[_Entry] = _Entry("in_channels")
    H_i: ClassVar[_Entry] = _Entry("height")  # without padding
    W_i: ClassVar[_Entry] = _Entry("width")
    C_o: ClassVar[_Entry] = _Entry("out_channels")
    H_f: ClassVar[_Entry] = _Entry("kernel_size", 0)  # without dilation
    W_f: ClassVar[_Entry] = _Entry("kernel_size", 1)
    s_h: ClassVar[_Entry] = _Entry("stride", 0)
    s_w: ClassVar[_Entry] = _Entry("stride", 1)
    d_h: ClassVar[_Entry] = _Entry("dilation", 0)
    d_w: ClassVar[_Entry] = _Entry("dilation", 1)
    p_h: ClassVar[_Entry] = _Entry("padding", 0, 0)  # zeros above
    p_w: ClassVar[_Entry] = _Entry("padding", 1, 0)  # zeros on the left
    H_o: ClassVar[_Entry] = _Entry("output_size", 0)
    W_o: ClassVar[_Entry] = _Entry("output_size", 1)
    M: ClassVar[_Entry] = _Entry("out_channels")  # rows of the GEMM's result: output channels

    @property
    def N(self) -> int:
        """Columns of the GEMM's result: output pixels of all images."""
        return self.batch * math.prod(self.output_size)

    @property
    def K(self) -> int:
        """Terms of each dot product: one window's elements over a group's input channels."""
        return self.C_i // self.groups * self.H_f * self.W_f

    @property
    def padded_shape(self) -> Pair:
        """Height and width of the input with its zeros around it."""
        return self.height + sum(self.padding[0]), self.width + sum(self.padding[1])

    @property
    def window_shape(self) -> Pair:
        """Height and width in pixels that one filter spans, dilation included."""
        return (self.H_f - 1) * self.d_h + 1, (self.W_f - 1) * self.d_w + 1

    @property
    def output_size(self) -> Pair:
        """Output height and width."""
        windows = Windows(self.kernel_size, self.stride, self.padding, self.dilation)
        rows, columns = windows.outputs((self.height, self.width), bits=32)
        return rows, columns

    @property
    def number_type(self) -> NumberType:
        """The type of the numbers of all tensors."""
        return number_type(self.dtype)

    @property
    def input_shape(self) -> TensorShape:
        """The shape of the input as it lies in memory: ``[N_i, C_i, H_i, W_i]``, or with channels
        last."""
        return self._in_memory(self.N_i, self.C_i, self.H_i, self.W_i)

    @property
    def weight_shape(self) -> TensorShape:
        """The shape of the filters as they lie in memory: ``[C_o, C_i / groups, H_f, W_f]``, or
        with channels last."""
        return self._in_memory(self.C_o, self.C_i // self.groups, self.H_f, self.W_f)

    @property
    def output_shape(self) -> TensorShape:
        """The shape of the output as it lies in memory: ``[N_i, C_o, H_o, W_o]``, or with channels
        last."""
        return self._in_memory(self.N_i, self.C_o, *self.output_size)

    def _in_memory(self, first: int, channels: int, rows: int, columns: int) -> TensorShape:
        if self.channels_last:
            return first, rows, columns, channels
        return first, channels, rows, columns

    @property
    def flops(self) -> int:
        """Floating-point operations: one multiplication and one addition per M*N*K."""
        return 2 * self.M * self.N * self.K

    @property
    def least_bytes(self) -> int:
        """Bytes any method must move: each weight, each output, each input that a window reads."""
        (top, _), (left, _) = self.padding
        rows = pixels_read(self.H_i, self.H_o, self.s_h, self.H_f, self.d_h, top)
        columns = pixels_read(self.W_i, self.W_o, self.s_w, self.W_f, self.d_w, left)
        pixels = self.N_i * self.C_i * rows * columns
        numbers = pixels + math.prod(self.weight_shape) + math.prod(self.output_shape)
        return self.number_type.nbytes * numbers

    @property
    def flops_per_byte(self) -> float:
        """The most arithmetic per byte of device memory that caching can reach."""
        return self.flops / self.least_bytes

    def __str__(self) -> str:
        text = " * ".join(
            "x".join(map(str, shape)) for shape in (self.input_shape, self.weight_shape)
        )
        for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1)):
            value = getattr(self, name)
            numbers = {*value} if name != "padding" else {*value[0], *value[1]}
            if numbers != {usual}:
                text += f", {name} {value if len(numbers) > 1 else numbers.pop()}"
        if self.groups > 1:
            text += f", groups {self.groups}"
        if self.dtype != "float32":
            text += f", {self.dtype}"
        return f"{text}, channels last" if self.channels_last else text
