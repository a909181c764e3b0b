"""A convolution's settings as integers, pairs and one for each axis, checked; memory too."""

from __future__ import annotations

import operator
import os
import re
import sys
import time
from collections.abc import Callable, Container, Sequence
from itertools import islice
from reprlib import Repr
from typing import Any, Literal, NamedTuple, TypeGuard

Pair = tuple[int, int]
IntOrEach = int | Sequence[int]
Padding = IntOrEach | Sequence[IntOrEach] | Literal["same", "valid"]
LARGEST_AXIS = 2**31 - 1  # so that a coordinate, padding included, fits a signed 32-bit integer
SHOWN = 100  # characters of a value that a message repeats
PROGRESS_SECONDS = 5.0  # at least, between two lines that say how far a launch is


class _Short(Repr):
    """A value's beginning and end, found without a look at all that is between."""

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write numbers of more than 4300 digits, and takes long for fewer."""
        return (
            super().repr_int(x, level) if x.bit_length() < 1000 else f"a {x.bit_length()}-bit int"
        )


_short = _Short()
_short.maxlevel, _short.maxtuple, _short.maxlist = 3, 8, 8
_short.maxstring = _short.maxother = _short.maxlong = SHOWN // 2


def shown(value: object) -> str:
    """The value for a message, on one line, short however large it is or what its own ``repr``
    does."""
    try:
        text = " ".join(_short.repr(value).split())
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]}...{text[-SHOWN // 3 :]}"


def integer(name: str, value: object, *, at_least: int, whole: object = None) -> int:
    """The value as an int; ``whole`` is the sequence that holds it, for the message. Raises
    ``TypeError`` unless it is an integer, ``ValueError`` out of range."""
    held = value if whole is None else whole
    try:
        if isinstance(value, bool):  # an integer to Python, a mistake here
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # takes NumPy's integers too
    except Exception:  # of an __index__ of its own, too
        rule = "it must be an integer" if whole is None else "its entries must be integers"
        raise TypeError(f"{name} is {shown(held)}: {rule}, not {type(value).__name__}") from None
    if not at_least <= number <= LARGEST_AXIS:
        raise ValueError(f"{name} is {shown(held)}: it must be at least {at_least} and below 2**31")
    return number


def boolean(name: str, value: object) -> bool:
    """The value if it is ``True`` or ``False``. Raises ``TypeError`` for any other, which Python
    would take for one of them."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {shown(value)}: it must be True or False")
    return value


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


def entries_of(name: str, value: Sequence[object], lengths: Container[int]) -> list[object] | None:
    """The entries of a sequence that has one of these lengths; None for another length, which costs
    no look at the entries. Raises ``TypeError`` for a sequence that does not have the entries that
    it says, or raises an error of its own."""
    try:
        if (length := len(value)) not in lengths:
            return None
        entries = [*islice(iter(value), length + 1)]
    except Exception as error:
        why = f"it must be a sequence that can be read, which raised {type(error).__name__}"
        raise TypeError(f"{name} is {shown(value)}: {why}") from None
    if len(entries) != length:
        rule = f"it must be a sequence of {length} entries, as its length says"
        raise TypeError(f"{name} is {shown(value)}: {rule}")
    return entries


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
    """How many of an axis's ``size`` pixels at least one window reads; ``before`` are zeros. A
    filter tap reads pixels ``stride`` apart: consecutive ones among those of one remainder by
    ``stride``. Taps come in order, so each adds what is beyond the last."""
    count, ends = 0, dict[int, int]()
    for tap in range(taps):
        first, remainder = divmod(tap * dilation - before, stride)
        inside = -(-(size - remainder) // stride)  # how many pixels have that remainder
        end = min(first + outputs, inside)
        start = max(first, ends.get(remainder, 0))
        count += max(0, end - start)
        ends[remainder] = max(start, end)
    return count


def _is_sequence(value: Any) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def host_bytes() -> int | None:
    """All memory of this machine; None where unknown. How much is free changes by the minute."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return None


def check_memory(
    what: str, needed: int, there: int | None, where: str = "this machine", hint: str = ""
) -> None:
    """Raise ``MemoryError`` with the sizes for more bytes than there are; None is 2**63."""
    if needed >= 2**63:
        raise MemoryError(f"{what} needs more than 2**63 bytes: no machine has them{hint}")
    if there is not None and needed > there:
        sizes = f"{_size(needed)}, but {_size(there)} are all there is on {where}"
        raise MemoryError(f"{what} needs {sizes}{hint}")


def _size(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"


def duration(seconds: float) -> str:
    """Seconds as people say them: "5 minutes"."""
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} second{'s' * (round(seconds) != 1)}"


def progress() -> Callable[[str, int, int], None]:
    """A function to be called for each block that begins, with the kernel's name, the number of the
    block and how many there are: it says on standard error how far a long launch is."""
    begun = last = time.monotonic()

    def on_block(kernel: str, number: int, blocks: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > max(PROGRESS_SECONDS, (now - begun) / 20):
            last = now
            spent = duration(now - begun)
            say(f"{kernel}: block {number} of {blocks} after {spent}; Ctrl-C ends it")

    return on_block


# Characters that a terminal or a page obeys instead of showing them: C0 and C1 without tabs and
# line breaks, those that join, hide or separate, and those that turn the direction of writing.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """The text with each hidden character as Python would write it: ``\\x1b``."""
    return HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def say(line: str) -> None:
    """Print a line on standard error, as the command does."""
    print("convlab:", visible(line).replace("\n", "\\n"), file=sys.stderr, flush=True)
