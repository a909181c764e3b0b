"""``convlab lessons``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import util
from itertools import count
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.text import Text

from convlab.commands.display import table_of
from convlab.commands.exits import refuse, refusing
from convlab.commands.options import JsonFile
from convlab.commands.output_files import console_for, write_json, write_whole
from convlab.support.installing import how_to_install
from convlab.support.values import counted

FIRST = "00_start_here.ipynb"
Notebooks = dict[Path, bytes]


def lessons(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where your notebooks are.")
    ] = Path("my-lessons"),
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Copy the notebooks and do not open them.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Show what you have done.")] = False,
    hint: Annotated[str, typer.Option(metavar="NN", help="The next tip of a lesson.")] = "",
    reset: Annotated[
        str, typer.Option(metavar="NN", help="Write a lesson again as it was given.")
    ] = "",
    update: Annotated[
        bool, typer.Option("--update", help="Take this release's notebooks; answers stay.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """The lessons: copy the notebooks to a folder of yours and open them in JupyterLab.

    Notebooks that exist already are kept, so that your work is safe. --reset and --update keep
    the old notebook as NAME.old.ipynb.
    """
    console = console_for(json_file)
    given = sum(map(bool, (status, hint, reset, update)))
    if given > 1:
        refuse("--status, --hint, --reset and --update exclude each other: give one")
    if json_file is not None and (hint or reset or update):
        refuse("--json has nothing to write with --hint, --reset or --update: give --status")
    if folder.exists() and not folder.is_dir():
        refuse(f"folder is {str(folder)!r}, which is a file: give a folder")
    if given:
        if not folder.is_dir():
            refuse(f"folder is {str(folder)!r}, which does not exist: run convlab lessons first")
        with refusing(OSError, ValueError):
            if hint:
                console.print(Text(_next_tip(folder, hint)))
            elif status:
                from convlab.lessons.paths import status_rows

                rows = status_rows(folder)
                cells = [[*map(str, row.values())] for row in rows]
                console.print(table_of([*rows[0]], cells))
                write_json(json_file, {"folder": str(folder), "lessons": rows})
            else:
                changed = _rewritten(folder, reset)
                console.print(Text(f"Wrote {', '.join(changed) or 'nothing: all is up to date'}."))
        return
    if not no_open and util.find_spec("jupyterlab") is None:
        command = how_to_install("lessons", "make lessons")
        refuse(f"JupyterLab is not installed: run {command}; --no-open works without it")
    written, kept = _copy(folder)
    if written:
        console.print(Text(f"Copied {counted(len(written), 'notebook')} to {folder}."))
    if many := len(kept):
        which = "notebooks that were" if many != 1 else "notebook that was"
        console.print(Text(f"Kept {many} {which} there already."))
    write_json(json_file, {"folder": str(folder), "written": written, "kept": kept})
    if no_open:
        console.print(Text(f"Open {folder / FIRST} to begin."))
    else:
        console.print(Text("Opening JupyterLab in your browser; Ctrl-C here ends it."))
        _open(folder.resolve())


def _copy(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the notebooks that were written, and of the notebooks that existed."""
    from convlab.lessons import progress
    from convlab.lessons.source import copies

    written: list[str] = []
    kept: list[str] = []
    with refusing(OSError, ValueError):
        folder.mkdir(parents=True, exist_ok=True)
        progress.write(folder, progress.read(folder))  # checks write to it only if it exists
        for path, content in copies(folder):
            (kept if path.exists() else written).append(path.relative_to(folder).as_posix())
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content)
    return written, kept


def _notebooks(folder: Path, lesson: str = "") -> Notebooks:
    """This release's notebooks, or one lesson's by number or name (``ValueError`` if unknown). A
    number may lack its zeros: 1 is 01."""
    from convlab.lessons.progress import number_of
    from convlab.lessons.source import copies

    found = {path: text for path, text in copies(folder) if path.parent == folder}
    numbers = {number_of(path.stem): path for path in found}
    if not lesson:
        return found
    for number, path in numbers.items():
        if lesson in (path.stem, path.name) or _without_zeros(lesson) == _without_zeros(number):
            return {path: found[path]}
    raise ValueError(f"lesson is {lesson!r}: it must be one of {', '.join(numbers)}")


def _without_zeros(number: str) -> str:
    """``1`` of ``01``, ``0b`` of ``00b``."""
    return re.sub(r"^0+(?=\d)", "", number, flags=re.ASCII)


def _next_tip(folder: Path, lesson: str) -> str:
    """The lesson's next tip, which counts as shown; after the last tip, the last tip again."""
    from convlab.lessons import progress

    ((path, text),) = _notebooks(folder, lesson).items()
    state, tips = progress.read(folder), progress.tips(json.loads(text))
    number = progress.number_of(path.stem)
    if not tips:
        return "This lesson has no tips."
    shown = min(state["hints"].get(number, 0) + 1, len(tips))
    state["hints"][number] = shown
    progress.write(folder, state)
    return f"Tip {shown} of {len(tips)}: {': '.join(tips[shown - 1])}"


def _rewritten(folder: Path, reset: str) -> list[str]:
    """Write the lesson ``reset`` as it was given or, without ``reset``, all lessons with their
    answers. Returns the names of the notebooks that changed; their old versions are kept beside
    them."""
    from convlab.lessons import progress

    state, changed = progress.read(folder), []
    for path, text in _notebooks(folder, reset).items():
        there = path.read_bytes() if path.is_file() else None
        if there is not None and not reset:
            mine = progress.notebook_of(path, there)
            if (made := progress.updated(mine, json.loads(text))) == mine:
                continue
            text = (json.dumps(made, indent=1, ensure_ascii=False) + "\n").encode()
        if there is not None:
            numbers = (str(number) if number > 1 else "" for number in count(1))
            old = (path.with_suffix(f".old{number}.ipynb") for number in numbers)
            # A link, too, is there, wherever it leads.
            write_whole(next(name for name in old if not os.path.lexists(name)), there)
        write_whole(path, text)
        changed.append(path.name)
        if reset:
            progress.forget(state, path.stem)
    progress.write(folder, state)
    return changed


def _open(folder: Path) -> None:
    """Run JupyterLab until it is stopped. Its root is the checkout if the folder is in the
    checkout, so that links to source and documentation work."""
    from convlab.support.installing import CHECKOUT, in_checkout

    root = CHECKOUT if in_checkout() and folder.is_relative_to(CHECKOUT) else folder
    # In a container the user is root; JupyterLab must be told that this is intended.
    allow = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    # The printed address opens the first lesson too, for readers who open it by hand.
    first = f"--LabApp.default_url=/lab/tree/{quote((folder / FIRST).relative_to(root).as_posix())}"
    options = [*allow, f"--ServerApp.root_dir={root}", first]
    process = subprocess.Popen([sys.executable, "-m", "jupyterlab", *options])
    while True:
        try:
            if code := process.wait():
                raise typer.Exit(code)
            return
        except KeyboardInterrupt:  # JupyterLab gets it too, and asks whether to end
            continue
