"""A baseline: the findings that a project has accepted, in a file.

A finding is recognised by its kind, its file, its function and the text of its line. The line's
number does not count, so a baseline stays right when lines above it come or go.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from convlab.simulation.rules.findings import Finding
from convlab.simulation.rules.remedies import REMEDIES
from convlab.support import files, whole_files
from convlab.support.values import counted, shown

OUTSIDE = "<module>"  # the function of a line that is in none, as Python calls it
INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, order=True)
class AcceptedFinding:
    """A finding as a baseline recognises it. ``file`` is relative to the baseline's folder, or to
    the folder of installed packages."""

    file: str
    function: str
    kind: str
    text: str

    def __post_init__(self) -> None:
        if self.kind not in REMEDIES:
            raise ValueError(f"{shown(self.kind)} is not a kind of finding")

    def __str__(self) -> str:
        return f"{self.file}: {self.kind}, {self.function}: {self.text}"


@dataclass(frozen=True)
class _Document:
    """The file of a baseline."""

    format: Literal["convlab baseline"]
    version: Literal[1]
    findings: list[AcceptedFinding]


class Baseline:
    """The accepted findings of a file, and those of a run. If it ``updates``, every finding of the
    run is accepted, to be written in the end, and the file need not be there before."""

    def __init__(self, path: Path, updates: bool = False) -> None:
        """Read the file. Raises ``ValueError`` with a sentence about one that is missing or is not
        a baseline."""
        self.path, self.updates = path, updates
        is_new = updates and not os.path.lexists(path)
        self.accepted = frozenset() if is_new else _read(path)
        self.seen: set[AcceptedFinding] = set()
        self._written: Sequence[AcceptedFinding] = ()
        self._file = path.absolute()  # the program may change the current folder

    def accepts(self, finding: Finding) -> bool:
        """Note that a run has the finding, and return whether it is accepted."""
        one = AcceptedFinding(
            file=_portable(finding.file, self._file.parent),
            function=_function_at(finding.file, finding.line) or finding.kernel,
            kind=finding.kind,
            text=" ".join(linecache.getline(finding.file, finding.line).split()),
        )
        self.seen.add(one)
        return self.updates or one in self.accepted

    @property
    def vanished(self) -> Sequence[AcceptedFinding]:
        """The accepted findings that the run does not have, in the order of the file."""
        return sorted(self.accepted - self.seen)

    def lines(self) -> list[str]:
        """Return the sentence about accepted findings that the run does not have, and a line for
        each; nothing if there are none."""
        if not (gone := self.vanished):
            return []
        return [
            f"{counted(len(gone), 'accepted finding')} of {self.path} did not appear in this run:",
            *(f"- {one}" for one in gone),
        ]

    def said_of_update(self) -> str:
        """Return the sentence that the file has been written."""
        return f"{self.path} has {counted(len(self._written), 'accepted finding')}"

    def write(self, also: Iterable[AcceptedFinding] = ()) -> None:
        """Write the run's findings, and those ``also`` accepted, as the accepted ones: the whole
        file or nothing. Raises ``OSError`` where it cannot be written."""
        self._written = sorted({*self.seen, *also})
        found = [asdict(one) for one in self._written]
        document = {"format": "convlab baseline", "version": 1, "findings": found}
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        whole_files.write_whole(self._file, text.encode())


def _read(path: Path) -> frozenset[AcceptedFinding]:
    try:
        return frozenset(files.read(path, _Document).findings)
    except OSError as error:
        said = error.strerror or "it cannot be read"
    except ValueError as error:
        said = str(error)
    raise ValueError(f"the baseline is {str(path)!r}: {said}")


def _portable(file: str, folder: Path) -> str:
    """Return a path as another machine has it: relative to the folder of the installed packages
    that it is in, or else to ``folder``."""
    parts = Path(file).parts
    for at in range(len(parts) - 1, -1, -1):
        if parts[at] in INSTALLED:
            return Path(*parts[at + 1 :]).as_posix()
    try:
        relative = os.path.relpath(os.path.realpath(file), os.path.realpath(folder))
    except ValueError:  # on another drive
        relative = file
    # A name that is not text in UTF-8 could not be written into the file.
    return Path(relative).as_posix().encode(errors="replace").decode()


@lru_cache(maxsize=100)
def _functions(file: str) -> Sequence[tuple[range, str]]:
    """Return the lines of each function of a file, outer ones first, and its name with those of the
    functions and classes around it; nothing for a file that cannot be read."""
    found: list[tuple[range, str]] = []

    def look(node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = around
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{around}.{child.name}".removeprefix(".")
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((range(child.lineno, (child.end_lineno or 0) + 1), name))
            look(child, name)

    try:
        look(ast.parse("".join(linecache.getlines(file))), "")
    except (SyntaxError, ValueError, RecursionError):
        return ()
    return found


def _function_at(file: str, line: int) -> str:
    """Return the innermost function around a line, or ``<module>``; empty without source."""
    if not linecache.getline(file, line):
        return ""
    names = [name for lines, name in _functions(file) if line in lines]
    return names[-1] if names else OUTSIDE
