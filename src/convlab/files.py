"""Files written whole or not at all, and values as strict JSON can hold them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


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
