"""``convlab lessons``."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from convlab.installing import how_to_install
from convlab.shell import JsonFile, console_for, refuse, refusing, write_json, write_whole

FIRST = "00_start_here.ipynb"


def lessons(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the notebooks are copied to.")
    ] = Path("my-lessons"),
    no_open: Annotated[bool, typer.Option("--no-open", help="Copy them, and no more.")] = False,
    json_file: JsonFile = None,
) -> None:
    """The lessons: copies the notebooks to a folder of yours and opens them in JupyterLab.

    What is there already is kept, so that your work is safe: to start a lesson anew, delete or
    rename its file.
    """
    console = console_for(json_file)
    if not no_open and util.find_spec("jupyterlab") is None:
        command = how_to_install("lessons", "make lessons")
        refuse(f"JupyterLab is not installed: run {command}; --no-open does without")
    if folder.exists() and not folder.is_dir():
        refuse(f"folder is {str(folder)!r}, which is a file: give a folder")
    written, kept = _copy(folder)
    if (count := len(written)) > 0:
        console.print(Text(f"Copied {count} notebook{'s' * (count != 1)} to {folder}."))
    if (count := len(kept)) > 0:
        which = "notebooks that were" if count != 1 else "notebook that was"
        console.print(Text(f"Kept {count} {which} there already."))
    write_json(json_file, {"folder": str(folder), "written": written, "kept": kept})
    if no_open:
        console.print(Text(f"Open {folder / FIRST} to begin."))
    else:
        console.print(Text("Opening JupyterLab in your browser; Ctrl-C here ends it."))
        _open(folder.resolve())


def _copy(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the notebooks that were written, and of those that were there."""
    from convlab.lessons.source import copies

    written: list[str] = []
    kept: list[str] = []
    with refusing(OSError):
        for path, content in copies(folder):
            (kept if path.exists() else written).append(path.relative_to(folder).as_posix())
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content)
    return written, kept


def _open(folder: Path) -> None:
    """Run JupyterLab until it is stopped. Its root is the checkout where the folder is in it, so
    that links to source and documentation can be followed."""
    from convlab.installing import CHECKOUT, in_checkout

    root = CHECKOUT if in_checkout() and folder.is_relative_to(CHECKOUT) else folder
    # In a container one is root, which JupyterLab must be told is meant.
    allow = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    options = [*allow, f"--ServerApp.root_dir={root}", str(folder / FIRST)]
    process = subprocess.Popen([sys.executable, "-m", "jupyterlab", *options])
    while True:
        try:
            if code := process.wait():
                raise typer.Exit(code)
            return
        except KeyboardInterrupt:  # it reaches JupyterLab, too, which asks whether it shall end
            continue
