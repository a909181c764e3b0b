"""What commands that measure with NVIDIA's tools have in common, and Markdown tables."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from convlab.doctor import environment
from convlab.engines import Engine, EngineUnavailable, choose
from convlab.files import write_whole

Document = dict[str, Any]


def run_tool(
    module: str,
    about: str,
    tool: str,
    measure: Callable[[Engine, list[str]], Document],
    show: Callable[[Document], str],
    words: Sequence[str] | None,
    only: str | None = None,
) -> int:
    """Measure under a tool, show, and write ``--json FILE``; returns the exit code: 1 where
    something measured is wrong (``ok`` false), 2 where it cannot run, 130 after Ctrl-C. ``only``
    says what ``--only NAME`` chooses, whose names ``measure`` gets."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to FILE")
    if only is not None:
        parser.add_argument("--only", metavar="NAME", action="append", help=only)
    chosen = vars(parser.parse_args(words))
    file, names = chosen["json"], chosen.get("only") or []
    typed = f"python -m {module}" + "".join(f" --only {name}" for name in names)
    typed += f" --json {file}" if file else ""
    try:
        engine = choose("gpu")
        if shutil.which(tool) is None:
            raise EngineUnavailable(
                f"there is no {tool} on the path: it comes with NVIDIA's CUDA toolkit"
            )
        document = measure(engine, names)
    except KeyboardInterrupt:
        print("convlab: interrupted, nothing was written", file=sys.stderr)
        return 130  # what shells give for Ctrl-C
    except (RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        print(f"convlab: {error}", file=sys.stderr)
        return 2
    document["device"] = engine.device
    document["environment"] = environment([]) | {"command": typed}
    print(show(document))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (json.dumps(document, indent=1) + "\n").encode())
    return 0 if document["ok"] else 1


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
