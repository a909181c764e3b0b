"""Names of the files of a program's lines; a notebook's cells, which IPython compiles as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def file_said(file: str) -> str:
    """Return a file as a message names it: ``program.py``, ``this cell`` for the cell of a notebook
    that runs, ``cell [5]`` for another one, by its number in the margin."""
    return cell_said(file) or Path(file).name


def cell_said(file: str) -> str:
    """Return the name of a notebook's cell, from the file that IPython compiles it as; empty for
    any other file."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = name_of(file) if callable(name_of) else None
    if not isinstance(named, tuple) or not str(named[-1]).startswith("In["):
        return ""
    number = str(named[-1]).removeprefix("In")
    runs = len(shell.user_ns.get("In", ())) - 1  # its last entry is the cell that runs
    return "this cell" if number == f"[{runs}]" else f"cell {number}"
