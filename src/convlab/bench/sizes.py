"""s12 on sizes that nobody tuned for, beside PyTorch and cuDNN's GEMM class.

``python -m convlab.bench.sizes [--json FILE] [--problem NAME ...]``: on a GPU. Each is measured as
``convlab bench`` measures, judged before and after, s12 with the tile that its model chooses. With
``--json`` the file is written after each row, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convlab.bench import size_tables
from convlab.bench.cases import Case
from convlab.bench.measured import GPU_ONLY, INTERRUPTED, write_results
from convlab.bench.pool import BACKEND, WorkerDied
from convlab.bench.seed_runs import measure_cases
from convlab.bench.size_tables import PROBLEMS, SYSTEMS
from convlab.bench.systems import system_named
from convlab.doctor import environment
from convlab.engines import EngineUnavailable, choose


def cases_for(names: Sequence[str]) -> list[Case]:
    """Every system on the problems of these names, all where there are none.

    Raises ``ValueError`` for an unknown name.
    """
    for name in names:
        if name not in PROBLEMS:
            raise ValueError(f"problem is {name!r}: it must be one of {', '.join(PROBLEMS)}")
    return [
        Case(name, problem, system_named(system))
        for name, problem in PROBLEMS.items()
        if not names or name in names
        for system in SYSTEMS
    ]


def read(file: Path | None) -> Mapping[str, Any] | None:
    """What an earlier run wrote; None where there is no file.

    Raises ``ValueError`` for a file of something else.
    """
    if file is None or not file.exists():
        return None
    try:
        document: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        [(row["identity"], row["state"], row["problem"]) for row in document["rows"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"--json is {str(file)!r}, no file of this benchmark: {error!r}") from None
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code, as :func:`convlab.bench.measured.run_module` does."""
    about = "s12 on sizes that nobody tuned for, beside PyTorch and cuDNN's GEMM class."
    parser = argparse.ArgumentParser(prog="python -m convlab.bench.sizes", description=about)
    parser.add_argument("--json", metavar="FILE", type=Path, help="kept after every row")
    parser.add_argument("--problem", metavar="NAME", action="append", default=[], help="not all")
    chosen = parser.parse_args(arguments)
    try:
        cases, older = cases_for(chosen.problem), read(chosen.json)
        device = choose("gpu").device
    except ValueError as error:
        return _refused(str(error))
    except EngineUnavailable as error:
        return _refused(f"{error}: {GPU_ONLY}")
    typed = ["python -m convlab.bench.sizes", *(f"--problem {name}" for name in chosen.problem)]
    typed += [f"--json {chosen.json}"] if chosen.json else []
    here = {"device": device, "environment": environment([]) | {"command": " ".join(typed)}}

    def keep(document: dict[str, Any]) -> None:
        if chosen.json is not None:
            write_results(chosen.json, document | here)

    try:
        document = measure_cases(cases, BACKEND, older=older, keep=keep)
    except WorkerDied as error:
        return _refused(f"no process can measure here: {error}")
    except KeyboardInterrupt:
        left = "the same command goes on" if chosen.json else "nothing was written"
        print(f"convlab: interrupted, {left}", file=sys.stderr)
        return INTERRUPTED
    keep(document)
    print(size_tables.show(document | here))
    return 0 if document["ok"] else 1


def _refused(reason: str) -> int:
    print(f"convlab: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
