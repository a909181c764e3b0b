"""Files of the documentation that are made from results: filled in, written, compared."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = "docs/results"
# Runs of ``convlab bench``: the one that everything is made from, and those to compare it with. The
# first seven are of every system, the last of s12, s13 and a few.
WHICH = ("", "_again", "_third", "_fourth", "_fifth", "_sixth", "_seventh", "_eighth")
RUNS = tuple(f"{RESULTS}/bench_h200{which}.json" for which in WHICH)
WHOLE_RUNS = 7
VERSIONS = ("numba-cuda", "numpy", "torch")


def filled(path: Path, makers: dict[str, Callable[[str], str]]) -> str:
    """The file's text with each marked section made anew; a maker gets what stands there now."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"there is no {path}: run this in convlab's source folder") from error
    for name, make in makers.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        marked = re.compile(f"(?<={begin}\n).*?(?={end})", re.DOTALL)
        found = marked.findall(text)
        if len(found) != 1:
            raise ValueError(f"{path} must have {begin} and {end} once")
        section = make(found[0])
        text = text.replace(f"{begin}\n{found[0]}{end}", f"{begin}\n{section}{end}")
    return text


def document_of(file: Path) -> Any | None:
    """A document of results; None where there is no such file. Raises ``ValueError`` for a file of
    anything but JSON."""
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from error


def command_of(environment: Mapping[str, Any] | None, otherwise: str) -> str:
    """The command that results say they were written by; ``otherwise`` where they do not say."""
    return str((environment or {}).get("command") or otherwise)


def source(file: str, environment: Mapping[str, Any] | None, otherwise: str) -> str:
    """The line below what is made from a file of results: the command that it says wrote it, when,
    with which versions, and where it is."""
    known = environment or {}
    packages = known.get("packages") or {}
    when = [str(known.get("date") or "")[:10]]
    when += [f"{name} {packages[name]}" for name in VERSIONS if packages.get(name)]
    words = ", ".join(filter(None, when))
    by = f"By `{command_of(environment, otherwise)}`" + (f" ({words})" if words else "")
    return f"{by}: [{file}](results/{file}).\n"


def not_yet(command: str) -> str:
    """What stands where nothing was measured so far."""
    return f"Not measured yet: `{command}` on a GPU writes it.\n"


def section(root: Path, file: str, command: str, show: Callable[[Any], str]) -> str:
    """What ``show`` makes of a file of results, and where that is from; or that there is none yet.

    Raises ``ValueError`` for a file of something else.
    """
    document = document_of(root / RESULTS / file)
    if document is None:
        return not_yet(command)
    try:
        shown = show(document)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{root / RESULTS / file} is no result of it: {error!r}") from error
    return f"{shown}\n{source(file, document.get('environment'), command)}"


def holding(text: str) -> Callable[[str], str]:
    """What :func:`filled` takes for a section that is to hold this text, whatever it held."""
    return lambda _: f"\n{text}\n"


def differing(files: dict[Path, str]) -> list[Path]:
    """The files that do not hold what they have to."""
    return [
        path
        for path, text in files.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def regenerate(
    module: str,
    about: str,
    generated: Callable[[Path], dict[Path, str]],
    arguments: Sequence[str] | None,
) -> int:
    """The command of a module that makes files from results; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    parser.add_argument("--root", type=Path, default=Path(), help="convlab's source folder")
    chosen = parser.parse_args(arguments)
    try:
        files = generated(chosen.root)
    except ValueError as error:
        print(f"convlab: {error}", file=sys.stderr)
        return 2
    stale = differing(files)
    for path in stale:
        if chosen.check:
            print(f"{path} is not what {RESULTS} gives: run make results", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8", newline="\n")
            print(f"wrote {path}")
    return 1 if chosen.check and stale else 0
