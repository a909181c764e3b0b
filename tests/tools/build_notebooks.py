"""Make the lessons' notebooks from their sources, and run them to store their outputs.

``python tests/tools/build_notebooks.py [NAME...]`` in a checkout writes ``lessons/NAME.ipynb`` and
``lessons/solutions/NAME.ipynb`` of the lessons named, or of all. With ``--texts`` it runs nothing
where only texts have changed: cells of code keep their outputs. With ``--for-nbgrader FOLDER`` it
writes nbgrader's source notebooks there instead.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convlab.lessons.paths import place_of
from convlab.lessons.progress import MARK, given, number_of
from convlab.lessons.sliders import WIDGET
from convlab.lessons.source import LEARNER, NBGRADER, SOLUTION, Lesson, place, read, sources
from convlab.support.installing import CHECKOUT
from convlab.support.version import __version__
from convlab.support.whole_files import write_whole

CELL_SECONDS = 120
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RELEASE = {"name": PROJECT["name"], "url": PROJECT["urls"]["Repository"], "version": __version__}
# Colab has CUDA 12, and an older Numba.
INSTALL = """\
# Installs convlab where it is missing, as on Colab; anywhere else this cell does nothing.
from importlib.util import find_spec
from shutil import which

if find_spec("convlab") is None:
    gpu = ",gpu-cu12" if which("nvidia-smi") else ""
    %pip install -q "{name}[plots{{gpu}}] @ git+{url}@v{version}\""""
STATUS = """\
# What you have done; `convlab lessons FOLDER --status` prints the same table.
from convlab.lessons import status

status("{}")"""
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
METADATA = {"kernelspec": KERNEL, "language_info": {"name": "python"}}


def notebook(lesson: Lesson, kind: str) -> Any:
    """Return the ``nbformat`` notebook without outputs, with nbgrader's metadata of schema 3."""
    from nbformat import v4

    exercises = [cell.name for cell in lesson.exercises()]
    short = number_of(lesson.name)
    cells = []
    for number, cell in enumerate(lesson.cells):
        text = cell.of(kind)
        if number == 0 and kind != NBGRADER:
            title, _, rest = text.partition("\n")
            stands = place_of(lesson, [path.stem for path in sources()])
            text = f"{title}\n\n{badges(lesson.name, kind)}\n\n{stands}\n{rest}"
        if cell.role == "check" and kind == LEARNER:
            text = f"{MARK.format(short, cell.name)}\n{text}"
        if cell.type == "markdown" and kind == SOLUTION:  # solutions are a folder deeper
            text = text.replace("](../", "](../../").replace("](solutions/", "](")
        made = v4.new_markdown_cell(text) if cell.type == "markdown" else v4.new_code_cell(text)
        made.id = f"{short}-{number:02d}"
        if cell.role:
            made.metadata["tags"] = [cell.role]
        if kind == LEARNER:
            own = f"{cell.role}-{cell.name}" if cell.name else made.id
            made.metadata["convlab"] = given(own, text)
        # nbgrader empties cells that are marked as solutions, so a hunt stays an ordinary cell.
        if cell.name in exercises and cell.role in ("exercise", "capstone", "check"):
            checks = cell.role == "check"
            made.metadata["nbgrader"] = {
                "grade": checks, "solution": not checks, "locked": checks, "task": False,
                "schema_version": 3, "grade_id": f"{cell.role}-{lesson.name}-{cell.name}",
            } | ({"points": 1} if checks else {})  # fmt: skip
        cells.append(made)
        if number == 0 and kind != NBGRADER:
            cells.append(v4.new_code_cell(INSTALL.format(**RELEASE), id=f"{short}-install"))
            cells[-1].metadata["convlab"] = {"cell": "install", "given": ""}
        if number == 0 and kind == LEARNER:
            cells.append(v4.new_code_cell(STATUS.format(lesson.name), id=f"{short}-status"))
            cells[-1].metadata["convlab"] = {"cell": "status", "given": ""}
    return v4.new_notebook(cells=cells, metadata=METADATA)


def badges(name: str, kind: str) -> str:
    """Return links that open a stored notebook on Colab and on Binder, at the same release."""
    path = place(name, kind).relative_to(CHECKOUT).as_posix()
    where = RELEASE["url"].removeprefix("https://github.com/")
    colab = f"https://colab.research.google.com/github/{where}/blob/v{__version__}/{path}"
    binder = f"https://mybinder.org/v2/gh/{where}/v{__version__}?urlpath=lab/tree/{path}"
    return f"[▶ Open in Colab]({colab}) · [▶ Open in Binder]({binder})"


def execute(made: Any, folder: Path) -> None:
    """Run a notebook's cells in ``folder`` and keep their outputs in it. Raises nbclient's
    ``CellExecutionError`` if a cell raises."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    with tempfile.TemporaryDirectory() as sockets:
        apart = Config()
        if os.name == "posix":
            # Ports are picked some time before they are used, and of several notebooks run at once
            # two may pick the same. Paths of sockets have to be short.
            apart.KernelManager.transport = "ipc"
            apart.KernelManager.connection_file = str(Path(sockets) / "kernel.json")
        NotebookClient(
            made, timeout=CELL_SECONDS, kernel_name="python3", record_timing=False,
            coalesce_streams=True,  # a busy machine sends a line in several pieces
            resources={"metadata": {"path": str(folder)}}, config=apart,
        ).execute()  # fmt: skip
    made.metadata = METADATA
    for cell in made.cells:
        for output in cell.get("outputs", ()):
            output.get("metadata", {}).pop("transient", None)
            output.get("data", {}).pop(WIDGET, None)  # it needs the kernel that made it


def with_stored_outputs(made: Any, path: Path) -> bool:
    """Give a notebook's cells of code the outputs that are stored for them. Returns False, and
    changes nothing, unless the stored notebook has the same code."""
    import nbformat

    stored = nbformat.read(path, as_version=4) if path.exists() else nbformat.v4.new_notebook()
    code, before = (
        [cell for cell in one.cells if cell.cell_type == "code"] for one in (made, stored)
    )
    if [cell.source for cell in code] != [cell.source for cell in before]:
        return False
    for cell, same in zip(code, before, strict=True):
        cell.outputs, cell.execution_count = same.outputs, same.execution_count
    return True


def lessons_named(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> tuple[argparse.Namespace, list[Lesson]]:
    """Return the options, and the named lessons, or all. Exits with 2 for an unknown name."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as 05_shared_memory")
    options = parser.parse_args(arguments)
    try:
        return options, [read(path) for path in sources(options.names)]
    except ValueError as error:
        parser.error(str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the notebooks of the lessons named, or of all, and run every cell of them."""
    parser = argparse.ArgumentParser(
        prog="python tests/tools/build_notebooks.py", description=__doc__
    )
    parser.add_argument("--for-nbgrader", type=Path, metavar="FOLDER")
    parser.add_argument("--texts", action="store_true", help="keep the outputs of unchanged code")
    options, lessons = lessons_named(parser, arguments)
    for lesson in lessons:
        if options.for_nbgrader is not None:
            path = options.for_nbgrader / "source" / lesson.name / f"{lesson.name}.ipynb"
            _write(path, notebook(lesson, NBGRADER))
            continue
        for kind in (LEARNER, SOLUTION):
            made, path = notebook(lesson, kind), place(lesson.name, kind)
            if not (options.texts and with_stored_outputs(made, path)):
                execute(made, path.parent)
            _write(path, made)
    return 0


def _write(path: Path, made: Any) -> None:
    """Write a notebook. Raises ``nbformat.ValidationError`` for any other document."""
    import nbformat

    nbformat.validate(made)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (str(nbformat.writes(made)).rstrip("\n") + "\n").encode())
    print(f"wrote {path}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
