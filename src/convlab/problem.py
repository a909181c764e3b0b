"""The problem: one convolution's shapes and parameters, checked when it is made."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

Pair = tuple[int, int]
Shape = tuple[int, int, int, int]
IntOrPair = int | Sequence[int]
Padding = IntOrPair | Sequence[IntOrPair] | Literal["same", "valid"]

LARGEST_AXIS = 2**31 - 1  # so that a coordinate, padding included, fits a signed 32-bit integer
LARGEST_TENSOR = 2**63 - 1  # so that an element's number fits a signed 64-bit integer


@dataclass(frozen=True, init=False)
class ConvProblem:
    """A 2-D convolution (cross-correlation, as in PyTorch's ``conv2d``) of float32 NCHW tensors.

    ``kernel_size``, ``stride``, ``padding`` and ``dilation`` are each an int or a (height, width)
    pair. ``padding`` is zeros around the input; an entry of its pair may itself be a pair, (top,
    bottom) or (left, right), and it may also be ``'valid'`` (none) or ``'same'`` (output as large
    as the input, stride 1 only; an odd total puts the extra zero at the bottom and the right, as
    PyTorch does). The fields hold pairs and ``((top, bottom), (left, right))``, however they were
    given, so equal problems compare and hash equal.

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
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)  # frozen for everybody else

        put("batch", _integer("batch", batch, at_least=1))
        put("in_channels", _integer("in_channels", in_channels, at_least=1))
        put("height", _integer("height", height, at_least=1))
        put("width", _integer("width", width, at_least=1))
        put("out_channels", _integer("out_channels", out_channels, at_least=1))
        put("kernel_size", _pair("kernel_size", kernel_size, at_least=1))
        put("stride", _pair("stride", stride, at_least=1))
        put("dilation", _pair("dilation", dilation, at_least=1))
        put("padding", _padding(padding, self.stride, self.window_shape))
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
                    "fewer than 2**63, because they are numbered with 64-bit integers"
                )
        if self.K > LARGEST_AXIS:
            raise ValueError(
                f"kernel_size {self.kernel_size} over in_channels {self.in_channels} makes sums of "
                f"{self.K} terms: there must be fewer than 2**31, because kernels number them with "
                "32-bit integers"
            )

    # The same numbers under the paper's names (im2win paper (000), section 2.1).
    @property
    def N_i(self) -> int:
        """Batch size."""
        return self.batch

    @property
    def C_i(self) -> int:
        """Input channels."""
        return self.in_channels

    @property
    def H_i(self) -> int:
        """Input height, without padding."""
        return self.height

    @property
    def W_i(self) -> int:
        """Input width, without padding."""
        return self.width

    @property
    def C_o(self) -> int:
        """Output channels, which is the number of filters."""
        return self.out_channels

    @property
    def H_f(self) -> int:
        """Filter height, without dilation."""
        return self.kernel_size[0]

    @property
    def W_f(self) -> int:
        """Filter width, without dilation."""
        return self.kernel_size[1]

    @property
    def s_h(self) -> int:
        """Input rows from one output row's window to the next."""
        return self.stride[0]

    @property
    def s_w(self) -> int:
        """Input columns from one output column's window to the next."""
        return self.stride[1]

    @property
    def d_h(self) -> int:
        """Input rows from one filter row to the next."""
        return self.dilation[0]

    @property
    def d_w(self) -> int:
        """Input columns from one filter column to the next."""
        return self.dilation[1]

    @property
    def p_h(self) -> int:
        """Zero rows above the input."""
        return self.padding[0][0]

    @property
    def p_w(self) -> int:
        """Zero columns left of the input."""
        return self.padding[1][0]

    @property
    def H_o(self) -> int:
        """Output height."""
        return (self.padded_shape[0] - self.window_shape[0]) // self.s_h + 1

    @property
    def W_o(self) -> int:
        """Output width."""
        return (self.padded_shape[1] - self.window_shape[1]) // self.s_w + 1

    @property
    def M(self) -> int:
        """Rows of the GEMM's result: output channels."""
        return self.C_o

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
        """Bytes any implementation must move: each float32 that is needed, once.

        Input pixels that no window reaches (between windows where the stride is larger than the
        filter, or beyond the last window) are not needed.
        """
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
        for name, value, usual in (
            ("stride", self.stride, (1, 1)),
            ("padding", self.padding, ((0, 0), (0, 0))),
            ("dilation", self.dilation, (1, 1)),
        ):
            if value != usual:
                text += f", {name} {_short(value)}"
        return text


def _integer(name: str, value: object, *, at_least: int, whole: object = None) -> int:
    """The value as an int; ``whole`` is the sequence it is an entry of, for the message."""
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


def _pair(name: str, value: object, *, at_least: int, whole: object = None) -> Pair:
    if not _is_sequence(value):
        number = _integer(name, value, at_least=at_least, whole=whole)
        return number, number
    whole = value if whole is None else whole
    if len(value) != 2:
        raise ValueError(f"{name} is {whole!r}: it must be an int or a pair, not {len(value)} long")
    first, second = (_integer(name, entry, at_least=at_least, whole=whole) for entry in value)
    return first, second


def _padding(padding: object, stride: Pair, window_shape: Pair) -> tuple[Pair, Pair]:
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
        first, second = (_pair("padding", side, at_least=0, whole=padding) for side in padding)
        return first, second
    pad_h, pad_w = _pair("padding", padding, at_least=0)
    return (pad_h, pad_h), (pad_w, pad_w)


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _reached(size: int, outputs: int, stride: int, taps: int, dilation: int, before: int) -> int:
    """How many of an axis's ``size`` pixels at least one window reads.

    One filter tap reads pixels ``stride`` apart: a run of consecutive numbers among the pixels
    with its remainder by ``stride``. Taps come in order, so each adds what is beyond the last.
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
    """One number where all entries agree, ((1, 1), (1, 1)) reads 1; else all of them, because the
    constructor takes (1, 0) for another padding than ((1, 0), (1, 0))."""
    short = value
    while isinstance(short, tuple) and short[0] == short[1]:
        short = short[0]
    return value if isinstance(short, tuple) else short
