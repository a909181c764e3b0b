"""The strict simulator's findings in the wrong kernels, beside NVIDIA's compute-sanitizer.

    export PYTHONPATH=src:tests:tests/tools
    python -m kernels.sanitized               the table of docs/mutants.md
    python -m kernels.sanitized --sanitize    runs new kernels on a GPU first

The second needs a GPU and compute-sanitizer, and runs the kernels of which docs/results holds no
result. Each of its four tools watches each kernel once, in a process of its own, because a wrong
kernel leaves nothing usable behind.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from numba import cuda

from convlab.measuring.machine import environment
from convlab.simulation.rules.remedies import REMEDIES
from convlab.support.whole_files import write_whole
from kernels.cases import findings_of
from kernels.documentation import DOCUMENTED
from kernels.right import RIGHT
from kernels.wrong import WRONG

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "docs/results/mutants_h200.json", ROOT / "docs/mutants.md"
TIMEOUT_SECONDS, AT_ONCE = 60, 16
BEGIN, END = "<!-- wrong:begin -->", "<!-- wrong:end -->"


def run_on_gpu(name):
    """One wrong kernel, for compute-sanitizer to watch."""
    case = next(case for case in WRONG if case.name == name)
    arrays = [
        cuda.to_device(value) if isinstance(value, np.ndarray) else value
        for value in case.arguments()
    ]
    case.kernel[case.grid, case.block, 0, case.shared_bytes](*arrays)
    cuda.synchronize()


def sanitize():
    """Store what each tool says of every wrong kernel without a result: ``found``, ``nothing``,
    ``hangs`` or ``fails``. A run that is stopped keeps the kernels that are done."""
    from sanitizers import TOOLS, watched

    def said(pair):
        name, tool = pair
        command = ("-W", "ignore", "-m", "kernels.sanitized", "--run", name)
        return watched(tool, command, TIMEOUT_SECONDS)[0]

    known = json.loads(RESULTS.read_text(encoding="utf-8"))["results"] if RESULTS.exists() else {}
    results = {case.name: known[case.name] for case in WRONG if case.name in known}
    made = environment([]) | {"command": "python -m kernels.sanitized --sanitize"}
    new = [case.name for case in WRONG if case.name not in known]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said_of = pool.map(said, product(new, TOOLS))
        for name in new:
            results[name] = {tool: next(said_of) for tool in TOOLS}
            document = {"environment": made, "results": results}
            write_whole(RESULTS, (json.dumps(document, indent=1) + "\n").encode())


def found_kinds(case):
    """The kinds of the strict simulator's findings."""
    return {finding.kind for finding in findings_of(case)}


def table(document):
    """For each kind of mistake: how many kernels, and how many of them each checker finds."""
    said = document["results"]
    tools = list(next(iter(said.values())))
    rows = []
    for kind in [*REMEDIES, "all"]:
        cases = [case for case in WRONG if kind in (case.kind, "all")]
        if not cases:
            continue
        watched = [said[case.name] for case in cases if case.name in said]
        counts = [
            len(cases),
            sum(case.kind in found_kinds(case) for case in cases),
            *(sum(results[tool] == "found" for results in watched) for tool in tools),
            sum("found" in results.values() for results in watched),
        ]
        rows.append(f"| {kind} | {' | '.join(map(str, counts))} |")
    made = document["environment"]
    right = [*RIGHT, *DOCUMENTED]
    return "\n".join([
        f"| mistake | kernels | simulator | {' | '.join(tools)} | any of the four |",
        f"|{' --- |' * (len(tools) + 4)}", *rows, "",
        f"Of {len(right)} right kernels the simulator finds a mistake in "
        f"{sum(bool(found_kinds(case)) for case in right)}. compute-sanitizer ran on "
        f"{sum(case.name in said for case in WRONG)} of the {len(WRONG)} wrong ones, on an "
        f"{made['gpu']['name']}, driver {made['gpu']['driver']}, {made['date'][:10]}.",
    ])  # fmt: skip


def page(text):
    """The page with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    return f"{before}{BEGIN}\n\n{table(document)}\n\n{END}{rest.partition(END)[2]}"


def main(arguments=None):
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sanitize", action="store_true", help="run new ones on a GPU first")
    parser.add_argument("--run", metavar="NAME", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.run:
        run_on_gpu(chosen.run)
        return 0
    if chosen.sanitize:
        if shutil.which("compute-sanitizer") is None:
            print("compute-sanitizer is not on the path: it comes with CUDA", file=sys.stderr)
            return 2
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        sanitize()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
