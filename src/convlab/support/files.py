"""JSON files: read as records, and values as strict JSON can hold them.

Every JSON file that convlab opens is read by :func:`document` or :func:`read`. What they refuse,
they refuse by a ``ValueError`` that names the place in the file, the value there and the rule; the
caller adds the file's name. The rules are the types of a record's fields, which msgspec checks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from convlab.support.values import shown
from convlab.support.whole_files import bytes_of

DEEPEST = 50  # lists in lists

Record = TypeVar("Record")
# Fields of records. The bounds keep sums, ratios and their logarithms finite.
Count = Annotated[int, Meta(ge=0, lt=2**53)]  # what JSON's readers hold exactly
Natural = Annotated[int, Meta(ge=1, lt=2**53)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Positive = Annotated[float, Meta(ge=1e-18, le=1e18)]
Name = Annotated[str, Meta(max_length=200)]
Short = Annotated[str, Meta(max_length=40)]  # what a plot has room for
Sentences = Annotated[str, Meta(max_length=10_000)]


def document(content: bytes | str) -> Any:
    """Return the value that JSON holds. Raises ``ValueError`` for what is not strict JSON (NaN is
    not) and for more than 50 levels of lists and objects."""
    try:
        value = msgspec.json.decode(content)
        _check_depth(value, DEEPEST)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeError:
        raise ValueError("it is not text in UTF-8") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not JSON: {str(error).removeprefix('JSON is ')}") from None
    return value


def _check_depth(value: object, left: int) -> None:
    if left == 0:
        raise RecursionError
    if isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            if isinstance(entry, dict | list):
                _check_depth(entry, left - 1)


def read(path: Path, kind: type[Record]) -> Record:
    """Return the record in a JSON file. Raises ``OSError`` where the file cannot be read,
    ``ValueError`` for anything but such a record."""
    return record(document(bytes_of(path)), kind)


def record(value: object, kind: type[Record]) -> Record:
    """Return a JSON value as a record: a dataclass, typed dictionary, list or other type whose
    fields have types. Keys that it does not have are left out. Raises ``ValueError`` with the
    place, the value there and the rule."""
    try:
        return msgspec.convert(value, kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise ValueError(_sentence(str(error), value)) from None


TYPES = {
    "str": "a string", "int": "an integer", "float": "a number", "bool": "true or false",
    "object": "an object", "array": "a list", "null": "null",
}  # fmt: skip
BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
EXPECTED = re.compile(
    r"Expected `(?P<types>[^`]*)`(?: (?P<bound>[<>]=?) (?P<number>\S+)| of (?P<size>.*?))?"
    r"(?:, got .*)?$"
)


def _sentence(said: str, value: object) -> str:
    """Return msgspec's message about a value as ``PLACE is VALUE: it must be RULE``."""
    said, _, path = said.partition(" - at `")
    path = path.removesuffix("`")
    there = _found(value, path)
    place = path.removeprefix("key in ").removeprefix("$").removeprefix(".")
    place = f"its {place}" if place else "it"
    is_what = f"{place} is {shown(there)}: it must be"
    if (rule := EXPECTED.match(said)) is not None:
        types = [TYPES.get(name, name) for name in rule["types"].split(" | ")]
        words = " or ".join(types)
        if rule["bound"]:
            words += f" {BOUNDS[rule['bound']]} {rule['number']}"
        return f"{is_what} {words}" + (
            f" of {rule['size'].replace('<=', 'at most')}" if rule["size"] else ""
        )
    if (absent := re.match(r"Object missing required field `(.*)`", said)) is not None:
        return f"{place} has no {absent[1]}: it must have one"
    if said.startswith("Invalid enum value"):
        return f"{is_what} a known {place.rpartition('.')[2].removeprefix('its ')}"
    if "out of range" in said:
        return f"{is_what} a number of usual size"
    return f"{place}: {said}" if path else said  # a sentence of the record's own


def _found(value: Any, path: str) -> Any:
    """The value at a path such as ``$.rows[3].time_ms``; of a path that leads through an object of
    any keys, ``[...]``, the object."""
    for name, number in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        with suppress(KeyError, IndexError, TypeError):
            if number == "...":
                return value
            value = value[name] if name else value[int(number)]
    return value


def strict(value: object) -> Any:
    """The value in types that JSON has, at any depth: NumPy's numbers become Python's, tuples
    become lists, and NaN and infinities become ``"nan"``, ``"inf"`` and ``"-inf"``."""
    if isinstance(value, Mapping):
        return {key: strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [strict(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
