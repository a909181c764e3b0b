"""What the strict simulator says of every kernel here, beside NVIDIA's compute-sanitizer.

    PYTHONPATH=src:tests python -m kernels.verdicts               the tables of docs/mutants.md
    PYTHONPATH=src:tests python -m kernels.verdicts --sanitize    runs them on a GPU first

The second needs a GPU and compute-sanitizer. It runs each wrong kernel once under each of the four
tools, in a process of its own, because a wrong kernel leaves nothing usable behind; what was found
is kept in docs/results/mutants_h200.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda

from convlab.bench import textbook
from convlab.bench.sanitizers import PROGRAM, TOOLS, watched
from convlab.doctor import environment
from convlab.engines.simulator import Simulator
from convlab.simulation.findings import SimulationError
from convlab.tracing import trace
from kernels.cases import Case
from kernels.documentation import DOCUMENTED
from kernels.right import RIGHT
from kernels.wrong import WRONG

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "docs/results/mutants_h200.json", ROOT / "docs/mutants.md"
PATIENCE_SECONDS, AT_ONCE = 60, 8


# On a GPU.


def run_on_gpu(name: str) -> None:
    """One wrong kernel, for compute-sanitizer to watch."""
    case = next(case for case in WRONG if case.name == name)
    arrays = [
        cuda.to_device(value) if isinstance(value, np.ndarray) else value
        for value in case.arguments()
    ]
    case.kernel[case.grid, case.block, 0, case.shared_bytes](*arrays)
    cuda.synchronize()


def sanitized(name: str, tool: str) -> str:
    """``found``, ``nothing``, ``hangs`` or ``fails``: what the tool says of a wrong kernel."""
    command = ("-W", "ignore", "-m", "kernels.verdicts", "--run", name)
    return watched(tool, command, PATIENCE_SECONDS)[0]


def sanitize_all() -> dict[str, Any]:
    """Every wrong kernel under every tool."""
    work = [(case.name, tool) for case in WRONG for tool in TOOLS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = list(pool.map(lambda pair: sanitized(*pair), work))
    verdicts: dict[str, dict[str, str]] = {case.name: {} for case in WRONG}
    for (name, tool), verdict in zip(work, said, strict=True):
        verdicts[name][tool] = verdict
    command = "python -m kernels.verdicts --sanitize"
    return {"environment": environment([]) | {"command": command}, "verdicts": verdicts}


# The tables.


def wrong_table(document: dict[str, Any]) -> str:
    """Every wrong kernel: what it must get, what it got, what compute-sanitizer's tools say."""
    head = f"| kernel | must get | gets | {' | '.join(TOOLS)} |"
    lines = [head, f"|{' --- |' * (3 + len(TOOLS))}"]
    for case in WRONG:
        kinds = ", ".join(sorted(found_kinds(case)))
        said = document["verdicts"].get(case.name, {})
        cells = [
            "**found**" if said.get(tool) == "found" else said.get(tool, "-") for tool in TOOLS
        ]
        lines.append(f"| `{case.name}` | {case.kind} | {kinds} | {' | '.join(cells)} |")
    known = [said for case in WRONG if (said := document["verdicts"].get(case.name))]
    seen = [said for said in known if "found" in said.values()]
    found = document["environment"]
    gpu = found["gpu"]
    return "\n".join([
        *lines, "",
        f"The simulator finds {sum(case.kind in found_kinds(case) for case in WRONG)} of "
        f"{len(WRONG)}, compute-sanitizer {len(seen)} of the {len(known)} that it has watched. "
        f"Right kernels: {len(RIGHT)} tricky ones and {len(DOCUMENTED)} of numba-cuda's "
        "documentation; "
        f"{sum(bool(found_kinds(case)) for case in (*RIGHT, *DOCUMENTED))} of them get a finding.",
        "",
        f"Measured with `{found['command']}` ({gpu['name']}, driver {gpu['driver']}, "
        f"{found['date'][:10]}).",
    ])  # fmt: skip


def found_kinds(case: Case) -> set[str]:
    """The kinds of the strict simulator's findings."""
    try:
        Simulator().launch(
            case.kernel, case.grid, case.block, *case.arguments(), shared_bytes=case.shared_bytes
        )
    except SimulationError as error:
        return {finding.kind for finding in error.findings}
    return set()


def slow_table() -> str:
    """Kernels that are right and slow: what a trace says of them."""
    lines = ["| kernel | what it does | sectors (fewest) | passes (fewest) |", f"|{' --- |' * 4}"]
    for case in textbook.CASES:
        launch = trace(case.kernel, case.grid, case.block, *case.arguments()).main
        said = (case.kernel.py_func.__doc__ or "").split("\n")[0]
        pairs = [
            f"{launch.total(unit):,} ({launch.total(f'fewest_{unit}'):,})"
            if launch.total(unit)
            else ""
            for unit in ("sectors", "passes")
        ]
        lines.append(f"| `{case.name}` | {said} | {' | '.join(pairs)} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with its tables made anew."""
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    for name, table in (("wrong", wrong_table(document)), ("slow", slow_table())):
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sanitize", action="store_true", help="run the wrong ones on a GPU first")
    parser.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    parser.add_argument("--run", metavar="NAME", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.run:
        run_on_gpu(chosen.run)
        return 0
    if chosen.sanitize:
        if shutil.which(PROGRAM) is None:
            print(f"{PROGRAM} is not on the path: it comes with CUDA", file=sys.stderr)
            return 2
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        chosen.results.write_text(json.dumps(sanitize_all(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
