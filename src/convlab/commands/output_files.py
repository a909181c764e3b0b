"""Files that a verb writes: checked before any work is done, and written whole."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console

from convlab.commands.exits import refuse, refusing
from convlab.support import whole_files
from convlab.support.terminal import Terminal

STANDARD_OUTPUT = "-"


def console_for(json_file: str | None) -> Console:
    """Return the console for people's output; refuse a JSON file that cannot be written."""
    if json_file is not None and json_file != STANDARD_OUTPUT:
        check_writable("--json", Path(json_file))
    return Terminal(stderr=json_file == STANDARD_OUTPUT)


def write_json(json_file: str | None, document: object, indent: int | None = 2) -> None:
    """Write the document where ``--json`` says, if it does; on one line for ``indent=None``."""
    if json_file is None:
        return
    text = json.dumps(document, indent=indent, allow_nan=False) + "\n"
    if json_file == STANDARD_OUTPUT:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_whole(Path(json_file), text.encode())


def check_writable(option: str, path: Path, instead: str = "") -> None:
    """:func:`convlab.support.whole_files.check_writable`, refused in one sentence if it fails."""
    with refusing(ValueError):
        whole_files.check_writable(option, path, instead)


def check_files(
    written: Mapping[str, str | Path | None], read: Iterable[str | Path] = (), as_what: str = ""
) -> None:
    """Refuse a file that cannot be ``written`` or that would overwrite another file. ``written``
    has the files by their options; ``read`` are files that the verb reads, and the message calls
    them ``as_what``."""
    taken = {os.path.realpath(file): as_what for file in read}
    for option, file in written.items():
        if file is None or file == STANDARD_OUTPUT:
            continue
        check_writable(option, Path(file))
        if what := taken.get(os.path.realpath(file)):
            refuse(f"{option} is {str(file)!r}, {what}: give another file")
        taken[os.path.realpath(file)] = f"the file of {option}"


def how_made(file: str | Path, command: str) -> str:
    """Return the end of a message about a missing file: the command that makes it."""
    return "" if os.path.lexists(file) else f"; {command} makes it"


def write_whole(path: Path, content: bytes) -> None:
    """:func:`convlab.support.whole_files.write_whole`, refused in one sentence if it fails."""
    with refusing(OSError):
        whole_files.write_whole(path, content)
