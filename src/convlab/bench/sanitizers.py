"""What NVIDIA's compute-sanitizer says of every stage: ``python -m convlab.bench.sanitizers [--json
FILE]``, which ``make sanitize`` runs on a GPU.

Each of its four tools watches each stage's runs (:mod:`convlab.bench.sanitize`), in processes of
their own, several at a time: memcheck finds accesses out of bounds or misaligned, racecheck races
in shared memory, initcheck reads of global memory that nobody wrote, synccheck wrong barriers.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from convlab.bench.measured import run_module, table
from convlab.bench.tuning import processes
from convlab.engines import Engine, EngineUnavailable
from convlab.plans import stages_for
from convlab.stages import LADDER

PROGRAM = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 3  # the exit code that tools are to give where they found something
PATIENCE_SECONDS = 1800
NOTHING, SOMETHING, HANGS, FAILS = "nothing", "found", "hangs", "fails"


_at_work: set[subprocess.Popen[str]] = set()


def watched(tool: str, command: Sequence[str], seconds: float) -> tuple[str, str]:
    """What a tool says of a Python command, ``nothing``, ``found``, ``hangs`` or ``fails``, and all
    that the two printed. Without the tool's own summary it watched nothing, and that fails."""
    whole = [PROGRAM, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, *command]
    # Of a session of its own, so that what it starts can be ended with it: on the GPU that hangs.
    process = subprocess.Popen(
        whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    _at_work.add(process)
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return HANGS, process.communicate()[0]
    finally:
        _at_work.discard(process)
    counts = counts_in(text)
    if any(counts):
        return SOMETHING, text
    return NOTHING if counts and process.returncode == 0 else FAILS, text


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def counts_in(text: str) -> list[int]:
    """The errors and hazards that a tool's summaries count: none where it gave no summary."""
    counts = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", text)
    return list(map(int, counts))


def of_stage(tool: str, stage: str) -> dict[str, Any]:
    """What a tool says of a stage, and how many of its runs were right."""
    started = time.monotonic()
    command = ("-W", "ignore", "-m", "convlab.bench.sanitize", "--stage", stage)
    says, text = watched(tool, command, PATIENCE_SECONDS)
    counted = re.search(r"(\d+) of (\d+) runs right", text)
    if says == NOTHING and counted is None:  # nobody knows of what
        says = FAILS
    return {
        "stage": stage,
        "tool": tool,
        "says": says,
        "findings": sum(counts_in(text)),
        "right": int(counted[1]) if counted else 0,
        "runs": int(counted[2]) if counted else None,
        "seconds": round(time.monotonic() - started, 1),
        "printed": "" if says == NOTHING else text[-4000:],
    }


def measure(engine: Engine | None) -> dict[str, Any]:
    """Every stage that the GPU can run, under every tool. Raises ``EngineUnavailable`` where there
    are no tools."""
    assert engine is not None
    if shutil.which(PROGRAM) is None:
        raise EngineUnavailable(
            f"there is no {PROGRAM} on the path: it comes with NVIDIA's CUDA toolkit"
        )
    stages, left_out = stages_for(engine, LADDER)
    # The last stages have the most runs: begun first, nobody waits for them alone at the end.
    work = [(tool, stage.name) for stage in reversed(stages) for tool in TOOLS]
    rows = []
    with _pool(processes(engine)) as pool:
        for row in pool.map(lambda pair: of_stage(*pair), work):
            rows.append(row)
            print(
                f"{len(rows):3} of {len(work)}  {row['stage']:20} {row['tool']:10} {_cell(row)}",
                file=sys.stderr,
                flush=True,
            )
    order = [stage.name for stage in stages]
    rows.sort(key=lambda row: (order.index(row["stage"]), TOOLS.index(row["tool"])))
    return {
        "sanitizer": _version(),
        "rows": rows,
        "left_out": left_out,
        "ok": all(row["says"] == NOTHING and row["right"] == row["runs"] for row in rows),
    }


@contextmanager
def _pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that wait for processes; after Ctrl-C no others are begun, and these are ended."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in [*_at_work]:
            _end(process)
        raise
    finally:
        pool.shutdown()


def _version() -> str:
    """As the program names itself."""
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"[Vv]ersion (\S+)", said)
    return version[1] if version else "unknown"


def show(document: dict[str, Any]) -> str:
    """The table: a stage's runs, and what each tool found."""
    by_stage: dict[str, dict[str, dict[str, Any]]] = {}
    for row in document["rows"]:
        by_stage.setdefault(row["stage"], {})[row["tool"]] = row
    rows = []
    for stage, found in by_stage.items():
        runs = {row["runs"] for row in found.values() if row["runs"] is not None}
        rows.append(
            (stage, ", ".join(map(str, sorted(runs))), *(_cell(found[tool]) for tool in TOOLS))
        )
    left_out = f"\nLeft out: {document['left_out']}\n" if document["left_out"] else ""
    return (
        f"compute-sanitizer {document['sanitizer']} on an {document['device']}: what each tool "
        f"finds in a stage's runs.\n\n{table(('stage', 'runs', *TOOLS), rows)}{left_out}"
    )


def _cell(row: dict[str, Any]) -> str:
    said = row["says"] if row["says"] != SOMETHING else f"**found {row['findings']}**"
    if row["runs"] is not None and row["right"] < row["runs"]:
        said += f", **{row['runs'] - row['right']} of {row['runs']} wrong**"
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 1 where a tool found something or a run was wrong."""
    about = "compute-sanitizer's four tools on every stage's runs, on a GPU."
    return run_module(
        "convlab.bench.sanitizers", about, measure, show, arguments,
        needs_gpu=True, without="its tools watch a GPU's kernels",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
