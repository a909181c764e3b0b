"""Files written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


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
