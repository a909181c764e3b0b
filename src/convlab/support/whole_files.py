"""Files written whole or not at all, and read only if they are files."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

LARGEST = 2**30  # bytes of a file that is read
PLAIN = 0o666  # the permissions of a new file, before the umask
# What is written to: never a file or a link that is there already.
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
NEW |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


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
