"""Files of compiled kernels on disk: a file for each, below convlab's cache folder.

A file is named by its kernel's key. Its first line names the format and a hash of the rest. No file
is trusted: one that is damaged or that another version wrote is passed over with a line on standard
error, and written anew. Many processes may use the folder at once, because a file is written whole
or not at all.

Where the folder cannot be used, as on a full disk or without a home folder, nothing is kept and
nothing fails.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from convlab.support.cache_folder import cache_folder
from convlab.support.progress import say
from convlab.support.values import shown
from convlab.support.whole_files import bytes_of, write_whole

LIMIT_VARIABLE = "CONVLAB_CACHE_LIMIT"
USUAL_LIMIT = 512  # MiB; the ladder's kernels of the paper's twelve layers take about 20
FORMAT = b"convlab kernel 1"
NAME = re.compile(r"[0-9a-f]{64}\.kernel")
# What a process that was killed left half-written, by `support.files.write_whole`.
UNFINISHED, UNFINISHED_SECONDS = ".convlab-*", 3600.0
KEPT_PART = 0.8  # of the limit, once it was reached: so that not every new file removes one


@dataclass(frozen=True)
class Usage:
    """The cache as ``convlab doctor`` shows it: its folder, or why there is none; its files."""

    folder: str | None
    why_not: str | None
    kernels: int
    bytes: int
    limit_bytes: int


def limit_bytes() -> int:
    """Return how many bytes the cache may have: ``$CONVLAB_CACHE_LIMIT`` MiB, where 0 keeps no
    kernels. Raises ``ValueError`` unless that is a number of MiB."""
    given = os.environ.get(LIMIT_VARIABLE) or str(USUAL_LIMIT)
    if not given.isascii() or not given.isdecimal() or len(given) > 9:
        raise ValueError(
            f"{LIMIT_VARIABLE} is {shown(given)}: it must be a number of MiB, 0 for no cache"
        )
    return int(given) * 2**20


def kernels_folder() -> Path:
    """Return the folder of the files. Raises ``RuntimeError`` as :func:`cache_folder` does."""
    return cache_folder() / "kernels"


# Reading and writing.


def read(key: str) -> bytes | None:
    """Return what was written under that key; None where the folder does not have it."""
    if not limit_bytes():
        return None
    try:
        file = kernels_folder() / f"{key}.kernel"
        content = bytes_of(file)
    except (OSError, RuntimeError):
        return None
    except ValueError as error:  # a folder or a pipe
        say(f"{file} is passed over: {error}")
        return None
    first, _, rest = content.partition(b"\n")
    form, _, digest = first.rpartition(b" ")
    if form != FORMAT:
        refuse(key, "this version of convlab did not write it")
        return None
    if sha256(rest).hexdigest().encode() != digest:
        refuse(key, "it is damaged")
        return None
    with suppress(OSError):
        os.utime(file)  # used now: of the files, those that were used long ago are removed first
    return rest


def refuse(key: str, why: str) -> None:
    """Say that a file is passed over."""
    say(f"{kernels_folder() / key}.kernel is passed over, and the kernel compiled: {why}")


def write(key: str, rest: bytes) -> None:
    """Keep something under that key, if the folder takes it."""
    content = FORMAT + b" " + sha256(rest).hexdigest().encode() + b"\n" + rest
    limit = limit_bytes()
    if len(content) > limit:
        return
    with suppress(OSError, RuntimeError):
        folder = kernels_folder()
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{key}.kernel", content)
        _keep_below(limit, folder)


# The folder as a whole.


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the cache's files in a folder, which other processes may be removing."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if NAME.fullmatch(entry.name):
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield Path(entry.path), found


def _keep_below(limit: int, folder: Path) -> None:
    """Remove the files that were used longest ago, if all have more bytes than the limit; and in
    any case those that killed processes left half-written."""
    _remove_unfinished(folder, older_than=UNFINISHED_SECONDS)
    files = sorted(_files(folder), key=lambda file: file[1].st_mtime_ns)
    total = sum(found.st_size for _, found in files)
    if total <= limit:
        return
    for path, found in files[:-1]:  # the last is the new one
        if total <= KEPT_PART * limit:
            break
        with suppress(OSError):
            path.unlink()
        total -= found.st_size


def _remove_unfinished(folder: Path, older_than: float) -> None:
    now = time.time()
    for path in folder.glob(UNFINISHED):
        with suppress(OSError):
            if now - path.stat().st_mtime > older_than:
                path.unlink()


def usage() -> Usage:
    """Return what the cache holds."""
    limit, folder, why_not = 0, None, None
    try:
        limit = limit_bytes()
        folder = kernels_folder()
    except (RuntimeError, ValueError) as error:
        why_not = str(error)
    if folder is None:
        return Usage(folder=None, why_not=why_not, kernels=0, bytes=0, limit_bytes=limit)
    sizes = [found.st_size for _, found in _files(folder)]
    return Usage(
        folder=str(folder),
        why_not=_why_not_kept(folder, limit),
        kernels=len(sizes),
        bytes=sum(sizes),
        limit_bytes=limit,
    )


def _why_not_kept(folder: Path, limit: int) -> str | None:
    """Return why no new kernel is kept there, in one sentence; None where it is."""
    if not limit:
        return f"{LIMIT_VARIABLE} is 0"
    there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if there is None or not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return f"{there or folder} cannot be written to"
    return None


def clear() -> Usage:
    """Remove all kernels, and return what there was. Raises ``OSError`` for a file that cannot be
    removed."""
    before = usage()
    if before.folder is not None:
        folder = Path(before.folder)
        for path, _ in _files(folder):
            path.unlink(missing_ok=True)
        _remove_unfinished(folder, older_than=UNFINISHED_SECONDS)
    return before
