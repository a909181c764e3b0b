"""Values that people give: shown in messages, and checked as integers, booleans and sequences."""

from __future__ import annotations

import operator
import re
from collections.abc import Container, Sequence
from itertools import islice
from reprlib import Repr

LARGEST_AXIS = 2**31 - 1  # so that a coordinate, padding included, fits a signed 32-bit integer
SHOWN = 100  # characters of a value that a message repeats
AT_LEAST = "it must be at least"  # a number, in the message of an integer out of range


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
        raise ValueError(f"{name} is {shown(held)}: {AT_LEAST} {at_least} and below 2**31")
    return number


def boolean(name: str, value: object) -> bool:
    """The value if it is ``True`` or ``False``. Raises ``TypeError`` for any other, which Python
    would take for one of them."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {shown(value)}: it must be True or False")
    return value


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


# Characters that a terminal or a page obeys instead of showing them: C0 and C1 without tabs and
# line breaks, those that join, hide or separate, and those that turn the direction of writing.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """The text with each hidden character as Python would write it: ``\\x1b``."""
    return HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is one: ``1,024 bytes``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
