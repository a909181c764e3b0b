"""The problem: one convolution's shapes and parameters, checked when it is made."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

Pair = tuple[int, int]
IntOrPair = int | Sequence[int]
Padding = IntOrPair | Sequence[IntOrPair] | Literal["same", "valid"]
Shape = tuple[int, int, int, int]

LARGEST_AXIS = 2**31 - 1  # so that a coordinate, padding included, fits a signed 32-bit integer
LARGEST_TENSOR = 2**63 - 1  # so that an element's number fits a signed 64-bit integer


class _Entry:
    """One number of a field, under a short name: ``_Entry("stride", 0)`` is ``stride[0]``."""

    def __init__(self, field: str, *indices: int) -> None:
        self._field, self._indices = field, indices

    def __get__(self, problem: ConvProblem, owner: type) -> int:
        value: Any = getattr(problem, self._field)
        for index in self._indices:
            value = value[index]
        return int(value)


@dataclass(frozen=True, init=False)
class ConvProblem:
    """A 2-D convolution (cross-correlation, as in PyTorch's ``conv2d``) of float32 NCHW tensors.

    ``kernel_size``, ``stride``, ``padding`` and ``dilation`` are each an int or a (height, width)
    pair. ``padding`` is the zeros around the input: also ``((top, bottom), (left, right))``,
    ``'valid'`` (none) or ``'same'`` (output as large as the input; stride 1 only; an odd total puts
    the extra zero at the bottom and the right, as PyTorch does). The fields always hold pairs, and
    padding two pairs, so equal problems compare and hash equal.

    GEMM view (im2win paper (000), Algorithms 1-3): ``M = C_o``, ``N = N_i * H_o * W_o``,
    ``K = C_i * H_f * W_f``.

    Raises ``TypeError`` or ``ValueError`` naming the argument, its value and the rule.
    """

    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel_size: Pair
    stride: Pair
    padding: tuple[Pair, Pair]
    dilation: Pair

    # Written out, because the arguments are looser than the fields they become.
    def __init__(
        self,
        batch: int,
        in_channels: int,
        height: int,
        width: int,
        out_channels: int,
        kernel_size: IntOrPair,
        stride: IntOrPair = 1,
        padding: Padding = 0,
        dilation: IntOrPair = 1,
    ) -> None:
        sizes = (batch, in_channels, height, width, out_channels)
        names = ("batch", "in_channels", "height", "width", "out_channels")
        for name, size in zip(names, sizes, strict=True):
            object.__setattr__(self, name, integer(name, size, at_least=1))  # the class is frozen
        pairs = (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation))
        for name, value in pairs:
            object.__setattr__(self, name, pair(name, value, at_least=1))
        object.__setattr__(self, "padding", padding_pairs(padding, self.stride, self.window_shape))
        self._require_fit()

    def _require_fit(self) -> None:
        """Raise ``ValueError`` unless the filter fits the input and every index its integer."""
        for axis, padded, window in zip(
            ("height", "width"), self.padded_shape, self.window_shape, strict=True
        ):
            if padded > LARGEST_AXIS:
                raise ValueError(
                    f"padding {self.padding} makes the {axis} {padded}: it must be below 2**31, "
                    "because coordinates are 32-bit integers"
                )
            if window > padded:
                raise ValueError(
                    f"kernel_size {self.kernel_size} with dilation {self.dilation} spans {window} "
                    f"pixels of {axis}, but the padded input has {padded}: it must not span more"
                )
        for name in ("input", "weight", "output"):
            shape: Shape = getattr(self, f"{name}_shape")
            if math.prod(shape) > LARGEST_TENSOR:
                raise ValueError(
                    f"the {name} of shape {shape} has {math.prod(shape)} elements: it must have "
                    "fewer than 2**63, because 64-bit integers number them"
                )
        if self.K > LARGEST_AXIS:
            raise ValueError(
                f"kernel_size {self.kernel_size} over in_channels {self.in_channels} makes sums of "
                f"{self.K} terms: they must be below 2**31, for 32-bit integers"
            )

    # The same numbers under the paper's names (im2win paper (000), section 2.1).
    N_i = _Entry("batch")
    C_i = _Entry("in_channels")
    H_i = _Entry("height")  # without padding
    W_i = _Entry("width")
    C_o = _Entry("out_channels")
    H_f, W_f = _Entry("kernel_size", 0), _Entry("kernel_size", 1)  # without dilation
    s_h, s_w = _Entry("stride", 0), _Entry("stride", 1)
    d_h, d_w = _Entry("dilation", 0), _Entry("dilation", 1)
    p_h, p_w = _Entry("padding", 0, 0), _Entry("padding", 1, 0)  # zeros above, zeros on the left
    M = _Entry("out_channels")  # rows of the GEMM's result: output channels

    @property
    def H_o(self) -> int:
        """Output height."""
        return (self.padded_shape[0] - self.window_shape[0]) // self.s_h + 1

    @property
    def W_o(self) -> int:
        """Output width."""
        return (self.padded_shape[1] - self.window_shape[1]) // self.s_w + 1

    @property
    def N(self) -> int:
        """Columns of the GEMM's result: output pixels of all images."""
        return self.N_i * self.H_o * self.W_o

    @property
    def K(self) -> int:
        """Terms of each dot product: one window's elements over all input channels."""
        return self.C_i * self.H_f * self.W_f

    @property
    def padded_shape(self) -> Pair:
        """Height and width of the input with its zeros around it."""
        return self.height + sum(self.padding[0]), self.width + sum(self.padding[1])

    @property
    def window_shape(self) -> Pair:
        """Height and width in pixels that one filter spans, dilation included."""
        return (self.H_f - 1) * self.d_h + 1, (self.W_f - 1) * self.d_w + 1

    @property
    def input_shape(self) -> Shape:
        """``(N_i, C_i, H_i, W_i)``"""
        return self.N_i, self.C_i, self.H_i, self.W_i

    @property
    def weight_shape(self) -> Shape:
        """``(C_o, C_i, H_f, W_f)``"""
        return self.C_o, self.C_i, self.H_f, self.W_f

    @property
    def output_shape(self) -> Shape:
        """``(N_i, C_o, H_o, W_o)``"""
        return self.N_i, self.C_o, self.H_o, self.W_o

    @property
    def flops(self) -> int:
        """Floating-point operations: one multiplication and one addition per M*N*K."""
        return 2 * self.M * self.N * self.K

    @property
    def least_bytes(self) -> int:
        """Bytes any implementation must move: each float32 once, without the input pixels that no
        window reaches (beyond the last one, or between windows where the stride is large)."""
        (top, _), (left, _) = self.padding
        rows = _reached(self.H_i, self.H_o, self.s_h, self.H_f, self.d_h, top)
        columns = _reached(self.W_i, self.W_o, self.s_w, self.W_f, self.d_w, left)
        pixels = self.N_i * self.C_i * rows * columns
        return 4 * (pixels + math.prod(self.weight_shape) + math.prod(self.output_shape))

    @property
    def flops_per_byte(self) -> float:
        """The most arithmetic per byte of device memory that caching can reach."""
        return self.flops / self.least_bytes

    def __str__(self) -> str:
        n, c, h, w = self.input_shape
        text = f"{n}x{c}x{h}x{w} * {self.C_o}x{self.C_i}x{self.H_f}x{self.W_f}"
        for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1)):
            value = _short(getattr(self, name))
            if value != usual:
                text += f", {name} {value}"
        return text


def _reached(size: int, outputs: int, stride: int, taps: int, dilation: int, before: int) -> int:
    """How many of an axis's ``size`` pixels at least one window reads.

    A filter tap reads pixels ``stride`` apart: consecutive ones among those of one remainder by
    ``stride``. Taps come in order, so each adds what is beyond the last.
    """
    count = 0
    ends: dict[int, int] = {}
    for tap in range(taps):
        first, remainder = divmod(tap * dilation - before, stride)
        inside = -(-(size - remainder) // stride)  # how many pixels have that remainder
        start = max(first, ends.get(remainder, 0))
        end = min(first + outputs, inside)
        if end > start:
            count += end - start
            ends[remainder] = end
    return count


def _short(value: object) -> object:
    """1 for ((1, 1), (1, 1)), but ((1, 0), (1, 0)) as it is: (1, 0) is another padding."""
    short = value
    while isinstance(short, tuple) and short[0] == short[1]:
        short = short[0]
    return value if isinstance(short, tuple) else short


def problem_of(
    input: Any,
    weight: Any,
    stride: IntOrPair = 1,
    padding: Any = 0,
    dilation: IntOrPair = 1,
) -> ConvProblem:
    """The problem of an input ``[N_i, C_i, H_i, W_i]`` and a weight ``[C_o, C_i, H_f, W_f]``.
    Raises ``ValueError`` for other shapes, and what :class:`ConvProblem` raises."""
    for name, array in (("input", input), ("weight", weight)):
        if len(array.shape) != 4:
            raise ValueError(f"{name} has shape {tuple(array.shape)}: it must have 4 dimensions")
    N_i, C_i, H_i, W_i = input.shape
    C_o, channels, *kernel_size = weight.shape
    if channels != C_i:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}: its second size must be input's "
            f"{C_i} channels (convlab has no groups)"
        )
    return ConvProblem(N_i, C_i, H_i, W_i, C_o, kernel_size, stride, padding, dilation)


def integer(name: str, value: object, *, at_least: int, whole: object = None) -> int:
    """The value as an int; ``whole`` is the sequence that holds it, for the message. Raises
    ``TypeError`` unless it is an integer, ``ValueError`` out of range."""
    given = repr(value if whole is None else whole)
    try:
        if isinstance(value, bool):  # an integer to Python, a mistake here
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # takes NumPy's integers too
    except TypeError:
        rule = "it must be an integer" if whole is None else "its entries must be integers"
        raise TypeError(f"{name} is {given}: {rule}, not {type(value).__name__}") from None
    if not at_least <= number <= LARGEST_AXIS:
        raise ValueError(f"{name} is {given}: it must be at least {at_least} and below 2**31")
    return number


def pair(name: str, value: object, *, at_least: int, whole: object = None) -> Pair:
    """The (height, width) pair that an int or a pair stands for. Raises as :func:`integer` does."""
    if not _is_sequence(value):
        number = integer(name, value, at_least=at_least, whole=whole)
        return number, number
    whole = value if whole is None else whole
    if len(value) != 2:
        raise ValueError(f"{name} is {whole!r}: it must be an int or a pair, not {len(value)} long")
    first, second = (integer(name, entry, at_least=at_least, whole=whole) for entry in value)
    return first, second


def padding_pairs(padding: object, stride: Pair, window_shape: Pair) -> tuple[Pair, Pair]:
    """((top, bottom), (left, right)) in pixels. Raises ``TypeError`` or ``ValueError``."""
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"padding is {padding!r}: the words it may be are 'same' and 'valid'")
        if padding == "valid":
            return (0, 0), (0, 0)
        if stride != (1, 1):
            raise ValueError(
                f"padding is 'same' with stride {stride}: 'same' needs stride 1, because the "
                "output must be as large as the input"
            )
        total_h, total_w = (size - 1 for size in window_shape)
        return (total_h // 2, total_h - total_h // 2), (total_w // 2, total_w - total_w // 2)
    if _is_sequence(padding) and any(_is_sequence(side) for side in padding):
        if len(padding) != 2:
            raise ValueError(f"padding is {padding!r}: it must be ((top, bottom), (left, right))")
        rows, columns = (pair("padding", side, at_least=0, whole=padding) for side in padding)
        return rows, columns
    p_h, p_w = pair("padding", padding, at_least=0)
    return (p_h, p_h), (p_w, p_w)


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
