"""``convlab lessons``."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from convlab.shell import console_for, refuse, refusing, write_json, write_whole

FIRST = "00_start_here.ipynb"
INSTALL = "make lessons installs it, or python -m pip install 'convlab[lessons]'"


def lessons(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the notebooks are copied to.")
    ] = Path("my-lessons"),
    no_open: Annotated[bool, typer.Option("--no-open", help="Copy them, and no more.")] = False,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Also write JSON to FILE; - is standard output."
        ),
    ] = None,
) -> None:
    """The lessons: copies the notebooks to a folder of yours and opens them in JupyterLab.

    What is there already is kept, so that your work is safe: to start a lesson anew, delete or
    rename its file.
    """
    console = console_for(json_file)
    if not no_open and util.find_spec("jupyterlab") is None:
        refuse(f"JupyterLab is not installed: {INSTALL}; --no-open does without")
    written, kept = _copy(folder)
    if written:
        console.print(Text(f"Copied {_notebooks(written)} to {folder}."))
    if kept:
        console.print(Text(f"Kept {_notebooks(kept)} that {_were(kept)} there already."))
    document = {
        "folder": str(folder),
        "written": [path.relative_to(folder).as_posix() for path in written],
        "kept": [path.relative_to(folder).as_posix() for path in kept],
    }
    write_json(json_file, document)
    if no_open:
        console.print(Text(f"Open {folder / FIRST} to begin."))
        return
    _open(folder, console)


def _copy(folder: Path) -> tuple[list[Path], list[Path]]:
    from convlab.lessons.places import copies

    if folder.exists() and not folder.is_dir():
        refuse(f"folder is {str(folder)!r}, which is a file: give a folder")
    written: list[Path] = []
    kept: list[Path] = []
    with refusing(OSError):
        for path, content in copies(folder):
            if path.exists():
                kept.append(path)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
            written.append(path)
    return written, kept


def _notebooks(paths: list[Path]) -> str:
    return f"{len(paths)} notebook{'s' * (len(paths) != 1)}"


def _were(paths: list[Path]) -> str:
    return "were" if len(paths) != 1 else "was"


def _open(folder: Path, console: Console) -> None:
    """Run JupyterLab until it is stopped. Its root is the checkout where the folder is in it, so
    that links to source and documentation can be followed."""
    from convlab.lessons import places

    there = folder.resolve()
    inside = places.in_checkout() and there.is_relative_to(places.CHECKOUT)
    root = places.CHECKOUT if inside else there
    console.print(Text("Opening JupyterLab in your browser; Ctrl-C here ends it."))
    # In a container one is root, which JupyterLab must be told is meant.
    allow = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    command = [
        sys.executable, "-m", "jupyterlab", *allow, f"--ServerApp.root_dir={root}",
        str(there / FIRST),
    ]  # fmt: skip
    code = _waited_for(subprocess.Popen(command))
    if code:
        raise typer.Exit(code)


def _waited_for(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. Ctrl-C reaches it, too, and it asks whether it shall end: wait on."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
