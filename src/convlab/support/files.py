"""Files: written whole or not at all, read as records, and values as strict JSON can hold them.

Every JSON file that convlab opens is read by :func:`document` or :func:`read`. What they refuse,
they refuse by a ``ValueError`` that names the place in the file, the value there and the rule; the
caller adds the file's name. The rules are the types of a record's fields, which msgspec checks.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from convlab.support.values import shown

DEEPEST = 50  # lists in lists
LARGEST = 2**30  # bytes of a file that is read
PLAIN = 0o666  # the permissions of a new file, before the umask
# What is written to: never a file or a link that is there already.
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
NEW |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

Record = TypeVar("Record")
# Fields of records. The bounds keep sums, ratios and their logarithms finite.
Count = Annotated[int, Meta(ge=0, lt=2**53)]  # what JSON's readers hold exactly
Natural = Annotated[int, Meta(ge=1, lt=2**53)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Positive = Annotated[float, Meta(ge=1e-18, le=1e18)]
Name = Annotated[str, Meta(max_length=200)]
Short = Annotated[str, Meta(max_length=40)]  # what a plot has room for
Sentences = Annotated[str, Meta(max_length=10_000)]


# Writing.


@contextmanager
def new_file_beside(target: Path, permissions: int = PLAIN) -> Iterator[tuple[BinaryIO, Path]]:
    """Create an empty file in the folder of ``target`` under a name that nobody can guess; yields
    the open file and its path. In the end it is closed, and removed if it is still there. Raises
    ``OSError`` where the folder takes no file."""
    path = target.with_name(f".convlab-{secrets.token_hex(16)}")
    with os.fdopen(os.open(path, NEW, permissions), "wb") as file:
        try:
            yield file, path
        finally:
            file.close()  # Windows removes no open file
            path.unlink(missing_ok=True)


def check_room_for(target: Path) -> None:
    """Raise ``OSError`` if :func:`write_whole` could not write a file of that name."""
    if not target.exists():
        # The folder may take new files, but not of this name, such as one that is too long.
        os.close(os.open(target, NEW, PLAIN))
        target.unlink()
    with new_file_beside(target):
        pass


def check_writable(option: str, path: Path, instead: str = "") -> None:
    """Raise ``ValueError``, before any work is done, about a file that could not be written after
    the work. ``instead`` is what to do if no option names another file."""
    given = f"{option} is {str(path)!r}"
    try:
        target = path.resolve()
        if path.is_dir():
            raise ValueError(f"{given}, which is a folder: {instead or 'give a file'}")
        folder = target.parent if path.is_symlink() else path.parent
        if not folder.is_dir():
            raise ValueError(f"{given}, but there is no folder {str(folder)!r}: make it first")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError
        if not path.exists() or path.is_file():  # not a pipe or a device
            check_room_for(target)
    except (OSError, RuntimeError) as error:  # RuntimeError: links that form a circle
        said = " ".join(str(error).split())
        reason = getattr(error, "strerror", None) or said or "it is write-protected"
        raise ValueError(
            f"{given}, which cannot be written ({reason}): {instead or 'give another file'}"
        ) from None


def write_whole(path: Path, content: bytes) -> None:
    """Write the file whole or not at all. Raises ``OSError`` where it cannot be written.

    The content goes to a new file in the same folder, which then takes the place of the old one,
    with the permissions of the old one or those of any new file. If ``path`` is a link, the file
    that it leads to is replaced and the link stays: a person who links ``bench.json`` to another
    disk wants the results there. No other link is followed. A pipe or a device is written to.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    target = path.resolve()
    kept = stat.S_IMODE(target.stat().st_mode) & 0o777 if target.exists() else None
    with new_file_beside(target, PLAIN if kept is None else kept) as (file, temporary):
        if kept is not None and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), kept)  # what the umask took away
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # else a crash may leave the new name with nothing behind it
        file.close()
        os.replace(temporary, target)


def fingerprint(files: Iterable[Path], *more: str, below: Path | None = None) -> str:
    """A short word for what files hold and for ``more``, and for the files' names if they are
    ``below`` a folder. Raises ``OSError`` where one cannot be read."""
    digest = hashlib.sha256("\0".join(more).encode())
    for file in files:
        name = "" if below is None else file.relative_to(below).as_posix()
        digest.update(f"\0{name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


# Reading.

KINDS_OF_FILE = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def check_is_file(path: Path) -> None:
    """Raise ``ValueError`` for a folder, for a pipe or device, which may have no end, and for a
    file that is larger than any that convlab writes; ``OSError`` for one that is not there."""
    found = os.stat(path)
    if (kind := KINDS_OF_FILE.get(stat.S_IFMT(found.st_mode))) is not None:
        raise ValueError(f"it is {kind}, and must be a file")
    if found.st_size > LARGEST:
        raise ValueError(f"it has {found.st_size:,} bytes, and must have at most {LARGEST:,}")


def bytes_of(path: Path) -> bytes:
    """Return what a file holds. Raises as :func:`check_is_file` does."""
    check_is_file(path)
    return path.read_bytes()


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
