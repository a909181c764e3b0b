"""Files written whole or not at all, and values as strict JSON can hold them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

DEEPEST = 50  # lists in lists


def beside(target: Path) -> Path:
    """Where a file is written before it takes the place of ``target``."""
    return target.with_name(f".{target.name}.{os.getpid()}")


def write_whole(path: Path, content: bytes) -> None:
    """Write the file whole or not at all. Raises ``OSError`` where it cannot be written."""
    if path.exists() and not path.is_file():  # a pipe or a device must not be replaced
        path.write_bytes(content)
        return
    target = path.resolve()  # a link stays a link
    temporary = beside(target)
    try:
        temporary.write_bytes(content)
        if target.exists():
            temporary.chmod(target.stat().st_mode)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def fingerprint(files: Iterable[Path], *more: str, below: Path | None = None) -> str:
    """A short word for what files hold and for ``more``, and for the files' names if they are
    ``below`` a folder. Raises ``OSError`` where one cannot be read."""
    digest = hashlib.sha256("\0".join(more).encode())
    for file in files:
        name = "" if below is None else file.relative_to(below).as_posix()
        digest.update(f"\0{name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def text_of(path: Path) -> str:
    """What a file says. Raises ``OSError`` where it cannot be read, ``ValueError`` for what is no
    text, or a device, which may have no end."""
    if path.is_char_device():
        raise ValueError("it is a device, and must be a file")
    return path.read_text(encoding="utf-8")


def json_of(text: str) -> Any:
    """What JSON says. Raises ``ValueError`` for other text and for more than 50 levels."""
    try:
        _check_depth(value := json.loads(text), DEEPEST)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _check_depth(value: Any, left: int) -> None:
    if left == 0:
        raise RecursionError
    for entry in value.values() if isinstance(value, dict) else value:
        if isinstance(entry, dict | list):
            _check_depth(entry, left - 1)


def strict(value: Any) -> Any:
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
