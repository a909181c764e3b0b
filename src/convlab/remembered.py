"""Tiles that tuning found best, remembered on disk: per problem, GPU, stage and code.

One file of JSON, ``tiles.json`` in :func:`cache_folder`, which holds a list of entries. Only a
tuner writes it. What cannot be read is no entry: a plan never fails because of this file, it takes
the model's tile. An entry is for its code alone: :func:`code_of` changes with any file that the
stage is made of and with numba-cuda's version, so that a kernel that was edited is not run with a
tile that suited another.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Callable, Container, Iterable
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from convlab.problem import ConvProblem
from convlab.stages import Stage, Tile

FORMAT = 1
SOURCE = Path(__file__).parent
KERNEL_PARTS = ("stages", "stage", "kernels", "device")  # what kernels are made of
Key = tuple[str, str, str]
Write = Callable[[Path, bytes], None]


@dataclass(frozen=True)
class Entry:
    """The best tile of a problem, which is written as ``str`` does: where it was found, with which
    code, its time in ms and when, in UTC."""

    problem: str
    gpu: str
    stage: str
    code: str
    tile: tuple[int, ...]
    time_ms: float
    date: str

    @property
    def key(self) -> Key:
        """What there is one entry for: problem, GPU and stage."""
        return self.problem, self.gpu, self.stage


def cache_folder() -> Path:
    """Where convlab keeps what can be made again: ``$CONVLAB_CACHE``, else ``convlab`` in
    ``$XDG_CACHE_HOME`` (``~/.cache``; ``%LOCALAPPDATA%`` on Windows)."""
    if own := os.environ.get("CONVLAB_CACHE"):
        return Path(own)
    if sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local"
    else:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "convlab"


def tiles_file() -> Path:
    """The file that tiles are remembered in."""
    return cache_folder() / "tiles.json"


def remembered_tile(problem: ConvProblem, stage: Stage, gpu: str) -> Tile | None:
    """The tile that tuning found best for this problem on this GPU with this code; None where none
    is remembered, or one that is no candidate."""
    try:
        entry = _entries_once(tiles_file()).get((str(problem), gpu, stage.name))
        if entry is None or entry.code != code_of(stage.module):
            return None
    except (OSError, RuntimeError, SyntaxError):  # no home; no source to read
        return None
    return next((tile for tile in stage.candidates(problem) if astuple(tile) == entry.tile), None)


def entry_for(problem: ConvProblem, stage: Stage, gpu: str, tile: Tile, time_ms: float) -> Entry:
    """What to remember of a tile found best with today's code."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    sizes = astuple(tile)
    return Entry(str(problem), gpu, stage.name, code_of(stage.module), sizes, time_ms, now)


def remember(entry: Entry, write: Write) -> None:
    """Put the entry in the file, in the place of what was remembered for the same problem, GPU and
    stage. ``write(file, content)`` writes the file whole."""
    file = tiles_file()
    write(file, as_bytes((read(file) | {entry.key: entry}).values()))
    _entries_once.cache_clear()


def forget(problems: Container[str] | None, write: Write) -> int:
    """Take out of the file what is remembered for these problems, all where that is None; says how
    many entries that were. A file that is none of ours is replaced by an empty one."""
    file = tiles_file()
    if not file.exists():
        return 0
    entries = read(file).values()
    kept = [entry for entry in entries if problems is not None and entry.problem not in problems]
    write(file, as_bytes(kept))
    _entries_once.cache_clear()
    return len(entries) - len(kept)


def read(file: Path) -> dict[Key, Entry]:
    """The file's entries; none where there is no file or it is not one of ours."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            return {}
        rows: list[Any] = list(document["tiles"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
    entries = [entry for row in rows if (entry := _entry(row)) is not None]
    return {entry.key: entry for entry in entries}


def _entry(row: Any) -> Entry | None:
    """The row as an entry; None where it is none."""
    try:
        entry = Entry(**(row | {"tile": tuple(row["tile"])}))
        words = (*entry.key, entry.date)
        numbers = all(type(size) is int for size in entry.tile)
    except (TypeError, KeyError):
        return None
    usable = all(isinstance(word, str) for word in words) and numbers
    return entry if usable and isinstance(entry.time_ms, int | float) else None


def as_bytes(entries: Iterable[Entry]) -> bytes:
    """The file that holds these entries."""
    document = {"format": FORMAT, "tiles": [asdict(entry) for entry in entries]}
    return (json.dumps(document, indent=1) + "\n").encode()


@lru_cache(maxsize=1)
def _entries_once(file: Path) -> dict[Key, Entry]:
    """Read once by a process, so that planning again costs nothing."""
    return read(file)


@cache
def code_of(module: str) -> str:
    """A hash of the stage's file, of the parts of kernels that it imports, directly or not, and of
    numba-cuda's version."""
    digest = hashlib.sha256(_version("numba-cuda").encode())
    for file in sorted(sources(module)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def sources(module: str) -> set[Path]:
    """The files of a stage's module and of all that it is made of."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        file = _file_of(waiting.pop())
        if file is None or file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _file_of(module: str) -> Path | None:
    """The file of a module that kernels are made of. Not the ladder's list: it imports all."""
    parts = module.split(".")
    if parts[0] != "convlab" or parts[1:2] not in ([part] for part in KERNEL_PARTS):
        return None
    if module == "convlab.stages":
        return None
    path = SOURCE.joinpath(*parts[1:])
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
