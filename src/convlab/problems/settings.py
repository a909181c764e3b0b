"""A convolution's settings as integers, pairs and one for each axis, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeGuard

from convlab.support.values import entries_of, integer, shown

Pair = tuple[int, int]
IntOrEach = int | Sequence[int]
Padding = IntOrEach | Sequence[IntOrEach] | Literal["same", "valid"]


def each(
    name: str, value: object, axes: int, *, at_least: int, whole: object = None
) -> tuple[int, ...]:
    """One integer for each axis, of an int or a sequence of one or as many. Raises as `integer`."""
    if not _is_sequence(value):
        return (integer(name, value, at_least=at_least, whole=whole),) * axes
    whole = value if whole is None else whole
    if (given := entries_of(name, value, (1, axes))) is None:
        rule = f"it must be {_one_or(axes)}, not {len(value)} long"
        raise ValueError(f"{name} is {shown(whole)}: {rule}")
    entries = tuple(integer(name, entry, at_least=at_least, whole=whole) for entry in given)
    return entries * (axes // len(entries))


def _one_or(axes: int) -> str:
    return {1: "an int", 2: "an int or a pair"}.get(axes, f"an int or {axes} of them")


def pair(name: str, value: object, *, at_least: int, whole: object = None) -> Pair:
    """The (height, width) pair that an int or a pair stands for. Raises as :func:`integer` does."""
    first, second = each(name, value, 2, at_least=at_least, whole=whole)
    return first, second


def paddings(padding: object, strides: Sequence[int], spans: Sequence[int]) -> tuple[Pair, ...]:
    """For each axis, the zeros before and behind it; ``spans`` are the sizes that a filter spans.
    Raises ``TypeError`` or ``ValueError``."""
    axes = len(spans)
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            given = f"padding is {shown(padding)}"
            raise ValueError(f"{given}: the words it may be are 'same' and 'valid'")
        if padding == "valid":
            return ((0, 0),) * axes
        if {*strides} != {1}:
            raise ValueError(
                f"padding is 'same' with stride {shown(tuple(strides))}: 'same' needs stride 1, "
                "because the output must be as large as the input"
            )
        return tuple(((span - 1) // 2, span // 2) for span in spans)
    if _is_sequence(padding):
        sides = entries_of("padding", padding, (1, axes))
        pairs = "((top, bottom), (left, right))" if axes == 2 else f"{axes} pairs"
        if sides is None:
            rule = f"{_one_or(axes)}, or {pairs}, not {len(padding)} long"
            raise ValueError(f"padding is {shown(padding)}: it must be {rule}")
        if any(map(_is_sequence, sides)):
            if len(sides) != axes:
                raise ValueError(f"padding is {shown(padding)}: it must be {pairs}")
            return tuple(pair("padding", side, at_least=0, whole=padding) for side in sides)
    return tuple((p, p) for p in each("padding", padding, axes, at_least=0))


class Windows(NamedTuple):
    """A convolution's settings, an entry for each axis; ``padding`` has the zeros before and
    behind."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[Pair, ...]
    dilation: tuple[int, ...]

    @property
    def spans(self) -> tuple[int, ...]:
        """The size that a filter spans, dilation included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def outputs(self, size: Sequence[int], bits: int | None = 64) -> tuple[int, ...]:
        """The outputs of an input of that size, whose last two axes are height and width. Raises
        ``ValueError`` if a filter spans more of an axis than the padded input has, or integers of
        so many bits do not count that; ``bits=None`` is for sizes that are not known yet."""
        outputs = []
        axes = zip(size, self.spans, self.stride, self.padding, strict=True)
        for axis, (n, span, stride, zeros) in enumerate(axes):
            padded, left = n + sum(zeros), axis - len(size)
            name = ("depth", "height", "width")[left] if left >= -3 else f"axis {axis}"
            if bits is not None and padded >= 2 ** (bits - 1):
                made = f"padding {shown(self.padding)} makes the {name} {padded}"
                raise ValueError(f"{made}: it must be below 2**{bits - 1}, for {bits}-bit integers")
            if span > padded:
                filters = f"kernel_size {shown(self.kernel)} with dilation {shown(self.dilation)}"
                raise ValueError(
                    f"{filters} spans {span} pixels of {name}, but the padded input has {padded}: "
                    "it must not span more"
                )
            outputs.append((padded - span) // stride + 1)
        return tuple(outputs)


def windows_of(
    axes: int, kernel_size: object, stride: object, padding: object, dilation: object
) -> Windows:
    """The settings as given, each a number or one for each axis. Raises as :func:`each` does."""
    kernel = each("kernel_size", kernel_size, axes, at_least=1)
    strides = each("stride", stride, axes, at_least=1)
    dilations = each("dilation", dilation, axes, at_least=1)
    spans = Windows(kernel, strides, (), dilations).spans
    return Windows(kernel, strides, paddings(padding, strides, spans), dilations)


def pixels_read(size: int, outputs: int, stride: int, taps: int, dilation: int, before: int) -> int:
    """Count the pixels of an axis that at least one window reads.

    ``size`` are the axis's pixels and ``before`` the zeros before them. A filter tap reads pixels
    ``stride`` apart: consecutive ones among those of one remainder by ``stride``. Taps come in
    order, so each adds the pixels beyond the last.
    """
    count, ends = 0, dict[int, int]()
    for tap in range(taps):
        first, remainder = divmod(tap * dilation - before, stride)
        inside = -(-(size - remainder) // stride)  # how many pixels have that remainder
        end = min(first + outputs, inside)
        start = max(first, ends.get(remainder, 0))
        count += max(0, end - start)
        ends[remainder] = max(start, end)
    return count


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
