"""Tiles that tuning found best, kept on disk per problem, GPU, stage, compiler and code.

``tiles.json`` in convlab's cache folder has a row for each problem, GPU, stage and compiler; only
``convlab tune`` writes them. A plan ignores a row that it cannot read, or of other code
(:func:`code`): another kernel may want another tile. The plan then takes the heuristic's tile.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import astuple
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict

from convlab.ladder import candidates, renamed
from convlab.ladder.stage import Stage, Tile
from convlab.problems.problem import ConvProblem
from convlab.running.compilers import MLIR, compiler
from convlab.support.cache_folder import cache_folder
from convlab.support.files import document, record
from convlab.support.whole_files import bytes_of, fingerprint, write_whole

FORMAT = 1
SOURCE = Path(__file__).parents[1]
CODE = ("ladder/**/*.py", "device/*.py")  # what a stage is made of
Row = dict[str, Any]  # as JSON has it: its values are checked where they are used
Rows = dict[tuple[str, ...], Row]


class _Key(TypedDict):
    """The key of a row."""

    problem: str
    gpu: str
    stage: str
    compiler: str


KEY = (*_Key.__annotations__,)


class _File(TypedDict):
    format: int
    tiles: list[Any]


def tiles_file() -> Path:
    """Return the file of this machine's tuned tiles. Raises ``RuntimeError`` without a home
    folder."""
    return cache_folder() / "tiles.json"


def _key(problem: ConvProblem, stage: Stage, gpu: str) -> tuple[str, ...]:
    """Return a row's values of ``KEY``."""
    return str(problem), gpu, stage.name, compiler()


def tuned_tile(problem: ConvProblem, stage: Stage, gpu: str) -> Tile | None:
    """Return the tile that tuning found best here with this code; None where there is none."""
    try:
        row = _rows_once(tiles_file()).get(_key(problem, stage, gpu))
        if row is None or row.get("code") != code():
            return None
    except (OSError, RuntimeError):  # no home folder; no source to read
        return None
    sizes = row.get("tile")
    if not isinstance(sizes, list) or any(type(size) is not int for size in sizes):
        return None
    return next((tile for tile in candidates(stage, problem) if [*astuple(tile)] == sizes), None)


def remember(problem: ConvProblem, stage: Stage, gpu: str, tile: Tile, time_ms: float) -> None:
    """Keep the tile that was found best with today's code, in the place of an older one. Raises
    ``OSError`` where the file cannot be written; it is written whole or not at all."""
    key = _key(problem, stage, gpu)
    row = dict(zip(KEY, key, strict=True)) | {
        "code": code(),
        "tile": astuple(tile),
        "time_ms": time_ms,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    _save((read(tiles_file()) | {key: row}).values())


def forget(problems: Container[str] | None) -> int:
    """Remove the rows of these problems, all for None; returns how many."""
    if not tiles_file().exists():
        return 0
    rows = read(tiles_file()).values()
    kept = [row for row in rows if problems is not None and row["problem"] not in problems]
    _save(kept)
    return len(rows) - len(kept)


def read(file: Path) -> Rows:
    """Return the rows of a file; no rows if the file cannot be read."""
    try:
        whole = record(document(bytes_of(file)), _File)
    except (OSError, ValueError):
        return {}
    rows: Rows = {}
    for row in whole["tiles"] if whole["format"] == FORMAT else ():
        with suppress(ValueError):  # a row that is broken does not cost the others
            key = record(row, _Key)
            rows[key["problem"], key["gpu"], key["stage"], key["compiler"]] = row
    return rows


def _save(rows: Iterable[Row]) -> None:
    whole = {"format": FORMAT, "tiles": list(rows)}
    write_whole(tiles_file(), (json.dumps(whole, indent=1) + "\n").encode())
    _rows_once.cache_clear()


@lru_cache(maxsize=1)
def _rows_once(file: Path) -> Rows:
    """Read the file once per process, so that planning again costs nothing, and warn of tiles that
    are kept under an earlier name of a stage: no plan takes them."""
    rows = read(file)
    for stage in sorted({row["stage"] for row in rows.values()}):
        if (sentence := renamed(stage)) is not None:
            warnings.warn(
                f"{file} has tiles of an earlier name: {sentence}. `convlab tune` measures anew.",
                stacklevel=3,
            )
    return rows


@cache
def code() -> str:
    """Return a hash of all that stages are made of, and of the compiler."""
    files = sorted(file for files in CODE for file in SOURCE.glob(files))
    packages = ["numba-cuda"]
    if compiler() == MLIR:
        packages.append("numba-cuda-mlir")
    return fingerprint(files, *map(version, packages), below=SOURCE)
