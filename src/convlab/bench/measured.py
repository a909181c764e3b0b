"""Files of measurements: written by what runs on a GPU, shown as Markdown tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from convlab.bench.pool import WorkerDied
from convlab.doctor import environment
from convlab.engines import Engine, EngineUnavailable, choose
from convlab.files import write_whole

INTERRUPTED = 130  # what shells give for Ctrl-C
GPU_ONLY = "its times mean nothing without one"


def run_module(
    module: str,
    about: str,
    measure: Callable[[Engine], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
    arguments: Sequence[str] | None,
    why_gpu: str,
) -> int:
    """Measure on a GPU, show, and write ``--json FILE``; returns the exit code: 1 where something
    measured is wrong (``ok`` false), 2 where it cannot run, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to FILE")
    file = parser.parse_args(arguments).json
    typed = f"python -m {module}" + (f" --json {file}" if file else "")
    try:
        engine = choose("gpu")
    except EngineUnavailable as error:
        print(f"convlab: {error}: {why_gpu}", file=sys.stderr)
        return 2
    try:
        document = measure(engine)
    except KeyboardInterrupt:
        print("convlab: interrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    except (EngineUnavailable, WorkerDied) as error:  # of an older GPU, of a process that measures
        why = "no process can measure here: " if isinstance(error, WorkerDied) else ""
        print(f"convlab: {why}{error}", file=sys.stderr)
        return 2
    document["device"] = engine.device
    document["environment"] = environment([]) | {"command": typed}
    print(show(document))
    if file is not None:
        write_results(file, document)
    return 0 if document.get("ok", True) else 1


def write_results(file: Path, document: dict[str, Any]) -> None:
    """Write the results whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, (json.dumps(document, indent=1) + "\n").encode())


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table, or nothing where there are no rows; words stand in its first ``left``
    columns, numbers in the others."""
    if not rows:
        return ""
    rule = ["---" if column < left else "---:" for column in range(len(head))]
    return "".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in row)} |\n"
        for row in (head, rule, *rows)
    )
