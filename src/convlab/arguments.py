"""A convolution's settings as integers and pairs, checked."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Literal, TypeGuard

Pair = tuple[int, int]
IntOrPair = int | Sequence[int]
Padding = IntOrPair | Sequence[IntOrPair] | Literal["same", "valid"]
LARGEST_AXIS = 2**31 - 1  # so that a coordinate, padding included, fits a signed 32-bit integer


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
        first, second = (pair("padding", side, at_least=0, whole=padding) for side in padding)
        return first, second
    p_h, p_w = pair("padding", padding, at_least=0)
    return (p_h, p_h), (p_w, p_w)


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
