"""Tiles that tuning found best, kept on disk per problem, GPU, stage and code.

``tiles.json`` in :func:`cache_folder` holds a list of entries, which only ``convlab tune`` writes.
A plan ignores an entry that it cannot read, or of other code (:func:`code_of`): another kernel may
want another tile. It then takes the heuristic's.
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
from importlib.metadata import version
from pathlib import Path
from typing import Any

from convlab.problem import ConvProblem
from convlab.stage import Stage, Tile

FORMAT = 1
SOURCE = Path(__file__).parent
CODE = ("stage", "stages", "kernels", "device")  # what a stage is made of
Key = tuple[str, str, str]
Write = Callable[[Path, bytes], None]


@dataclass(frozen=True)
class Entry:
    """The best tile of a problem (``str`` of it): where, by which code, in which time, and when."""

    problem: str
    gpu: str
    stage: str
    code: str
    tile: tuple[int, ...]
    time_ms: float
    date: str  # UTC

    @property
    def key(self) -> Key:
        """Problem, GPU and stage: there is one entry for each."""
        return self.problem, self.gpu, self.stage


def cache_folder() -> Path:
    """``$CONVLAB_CACHE``, else ``convlab`` in ``$XDG_CACHE_HOME`` (``~/.cache``;
    ``%LOCALAPPDATA%`` on Windows)."""
    if own := os.environ.get("CONVLAB_CACHE"):
        return Path(own)
    windows = sys.platform == "win32"
    name, usual = ("LOCALAPPDATA", "AppData/Local") if windows else ("XDG_CACHE_HOME", ".cache")
    return Path(os.environ.get(name) or Path.home() / usual) / "convlab"


def tiles_file() -> Path:
    return cache_folder() / "tiles.json"


def tuned_tile(problem: ConvProblem, stage: Stage, gpu: str) -> Tile | None:
    """The tile that tuning found best here with this code; None where there is none."""
    try:
        entry = _entries_once(tiles_file()).get((str(problem), gpu, stage.name))
        if entry is None or entry.code != code_of(stage.module):
            return None
    except (OSError, RuntimeError, SyntaxError):  # no home folder; no source to read
        return None
    return next((tile for tile in stage.candidates(problem) if astuple(tile) == entry.tile), None)


def entry_for(problem: ConvProblem, stage: Stage, gpu: str, tile: Tile, time_ms: float) -> Entry:
    """The entry of a tile that was found best with today's code."""
    now, code = datetime.now(UTC).isoformat(timespec="seconds"), code_of(stage.module)
    return Entry(str(problem), gpu, stage.name, code, astuple(tile), time_ms, now)


def remember(entry: Entry, write: Write) -> None:
    """Replace the entry of the same key; ``write(file, content)`` writes a whole file."""
    file = tiles_file()
    _save(file, (read(file) | {entry.key: entry}).values(), write)


def forget(problems: Container[str] | None, write: Write) -> int:
    """Remove the entries of these problems, all for None; returns how many."""
    file = tiles_file()
    if not file.exists():
        return 0
    entries = read(file).values()
    kept = [entry for entry in entries if problems is not None and entry.problem not in problems]
    _save(file, kept, write)
    return len(entries) - len(kept)


def read(file: Path) -> dict[Key, Entry]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        rows: list[Any] = list(document["tiles"]) if document["format"] == FORMAT else []
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
    entries = [entry for row in rows if (entry := _entry(row)) is not None]
    return {entry.key: entry for entry in entries}


def _entry(row: Any) -> Entry | None:
    try:
        entry = Entry(**(row | {"tile": tuple(row["tile"])}))
        words = (*entry.key, entry.date)
        numbers = all(type(size) is int for size in entry.tile)
    except (TypeError, KeyError):
        return None
    usable = all(isinstance(word, str) for word in words) and numbers
    return entry if usable and isinstance(entry.time_ms, int | float) else None


def _save(file: Path, entries: Iterable[Entry], write: Write) -> None:
    document = {"format": FORMAT, "tiles": [asdict(entry) for entry in entries]}
    write(file, (json.dumps(document, indent=1) + "\n").encode())
    _entries_once.cache_clear()


@lru_cache(maxsize=1)
def _entries_once(file: Path) -> dict[Key, Entry]:
    return read(file)  # once per process, so that planning again costs nothing


@cache
def code_of(module: str) -> str:
    """A hash of the stage's file, of all that it imports from ``CODE``, and of numba-cuda."""
    digest = hashlib.sha256(version("numba-cuda").encode())
    for file in sorted(sources(module)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def sources(module: str) -> set[Path]:
    """The files of a stage's module and of all that it imports from ``CODE``."""
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
    """The file of a module in ``CODE``, but not the ladder's own list, which imports all."""
    top, *parts = module.split(".")
    if top != "convlab" or parts[:1] not in [[name] for name in CODE] or parts == ["stages"]:
        return None
    path = SOURCE.joinpath(*parts)
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)
