"""Files of measurements: written by modules that run on a GPU, read and shown by pages."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convlab.bench.pool import WorkerDied
from convlab.doctor import environment
from convlab.engines import Engine, EngineUnavailable, choose
from convlab.files import write_whole

RESULTS = "docs/results"
VERSIONS = ("numba-cuda", "numpy", "torch")
INTERRUPTED = 130  # what shells give for Ctrl-C
GPU_ONLY = "its times mean nothing without one"


def run_module(
    module: str,
    about: str,
    measure: Callable[[Engine | None], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
    arguments: Sequence[str] | None,
    *,
    needs_gpu: bool,
    without: str = GPU_ONLY,
) -> int:
    """Measure, show, and write ``--json FILE``; returns the exit code: 1 where something measured
    is wrong (``ok`` false), 2 where it cannot run, 130 after Ctrl-C. ``without`` says why
    it needs a GPU."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to FILE")
    chosen = parser.parse_args(arguments)
    engine: Engine | None = None
    try:
        engine = choose("gpu")
    except EngineUnavailable as error:
        if needs_gpu:
            print(f"convlab: {error}: {without}", file=sys.stderr)
            return 2
    typed = f"python -m {module}" + (f" --json {chosen.json}" if chosen.json else "")
    try:
        document = measure(engine)
    except KeyboardInterrupt:
        print("convlab: interrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    except EngineUnavailable as error:  # one of what is measured, on an older GPU
        print(f"convlab: {error}", file=sys.stderr)
        return 2
    except WorkerDied as error:
        print(f"convlab: no process can measure here: {error}", file=sys.stderr)
        return 2
    document["device"] = None if engine is None else engine.device
    document["environment"] = None if engine is None else environment([]) | {"command": typed}
    print(show(document))
    if chosen.json is not None:
        write_results(chosen.json, document)
    return 0 if document.get("ok", True) else 1


def write_results(file: Path, document: dict[str, Any]) -> None:
    """Write the results whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, (json.dumps(document, indent=1) + "\n").encode())


def read_json(file: Path) -> Any:
    """The document in a file. Raises ``ValueError`` naming a file that holds no JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error


def source(file: str, environment: Mapping[str, Any] | None, command: str) -> str:
    """The line below a table: the command that writes its file today, and of what is stored the
    date and the versions."""
    known = environment or {}
    packages = known.get("packages") or {}
    when = [str(known.get("date") or "")[:10]]
    when += [f"{name} {packages[name]}" for name in VERSIONS if packages.get(name)]
    words = ", ".join(filter(None, when))
    return f"{command}{f' ({words})' if words else ''}: [{file}](results/{file}).\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; words stand in its first ``left`` columns, numbers in the others."""
    rule = ["---" if column < left else "---:" for column in range(len(head))]
    return "".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in row)} |\n"
        for row in (head, rule, *rows)
    )
