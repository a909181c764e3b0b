"""compute-sanitizer on every stage: ``python tests/tools/sanitizers.py [--json FILE]``.

Each of NVIDIA's four tools watches each stage's runs, in processes of their own, several at a time:
memcheck finds accesses out of bounds or misaligned, racecheck races in shared memory, initcheck
reads of uninitialised global memory, synccheck wrong barriers. ``make sanitize`` runs this.

``python tests/tools/sanitizers.py run [NAMES]`` is the program that a tool watches. It
runs small problems with remainders everywhere, because the tools slow kernels down a hundredfold,
with production tiles, tiny tiles, every candidate, every switch of the ablation, and ReLU of what
is not finite.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, TypedDict

import numpy as np

from convlab.ladder import (
    ABLATION,
    LADDER,
    Stage,
    Tile,
    allowances,
    candidates,
    production_tile,
    splits_for,
    stage_named,
)
from convlab.ladder.stage import RESIDUAL
from convlab.measuring import table
from convlab.measuring.machine import environment
from convlab.problems.oracle import CheckResult, Oracle, before_relu, random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import channels_first, cores
from convlab.running.able_stages import stages_for
from convlab.running.engines import Engine, EngineUnavailable, choose
from convlab.running.plans import Plan
from convlab.support.whole_files import write_whole

SCRIPT = Path(__file__)
STAGES = (*LADDER, ABLATION)
PROGRAM = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 3  # the exit code that tools are to give where they found something
INTERRUPTED = 130  # what shells give for Ctrl-C
TIMEOUT_SECONDS = 1800
MOST_PROCESSES = 16
MEMORY_A_PROCESS = 2 * 2**30  # of the GPU
NOTHING, SOMETHING, HANGS, FAILS = "nothing", "found", "hangs", "fails"

PROBLEMS = (
    ConvProblem(3, 5, 19, 17, 67, (3, 5), stride=(2, 3), padding=(2, 1), dilation=(1, 2)),
    ConvProblem(2, 3, 14, 13, 70, 3, padding="same"),  # 182 pixels an image
    ConvProblem(1, 4, 12, 12, 9, 1),  # whole float4 in the output
    ConvProblem(1, 64, 5, 5, 40, 3),  # few outputs of long sums: m15 splits K
)
# So many channels that tiles of all sizes are candidates; 72 columns, so that some stick out.
WIDE = ConvProblem(2, 16, 6, 6, 192, 3, padding=1)
# An infinity among its pixels, which t03 and t05 fix up; a float4 may cross into the next image.
INFINITE = ConvProblem(2, 5, 7, 5, 67, 3, padding=1)


class SanitizedRun(NamedTuple):
    """One run of a stage; with ReLU, the input has an infinity. A residual is added to an output of
    many channels."""

    problem: ConvProblem
    stage: Stage
    tile: Tile | None
    switches: dict[str, bool]


def switched_off(stage: Stage, problem: ConvProblem) -> list[dict[str, bool]]:
    """Return each switch of a stage turned off, without those that change no launch."""
    options = splits_for(stage, problem, production_tile(stage, problem), None)
    is_split = options.get("splits", 1) > 1
    return [{name: False} for name in stage.switches if name != "split_k" or is_split]


def cases(stages: tuple[Stage, ...]) -> Iterator[SanitizedRun]:
    """Every problem, stage, tile and switch that runs, in types that the stages take."""
    for given in PROBLEMS:
        for stage in stages:
            problem = stage.adapted(given)
            for switches in ({}, *switched_off(stage, problem)):
                tile = production_tile(stage, problem, **switches)
                yield SanitizedRun(problem, stage, tile, switches)
            if stage.tiny_tile is not None:
                yield SanitizedRun(problem, stage, stage.tiny_tile, {})
    for stage in stages:
        wide, infinite = stage.adapted(WIDE), stage.adapted(INFINITE)
        for tile in candidates(stage, wide):
            yield SanitizedRun(wide, stage, tile, {})
        if "relu" in stage.options:
            tile = production_tile(stage, infinite, relu=True)
            yield SanitizedRun(infinite, stage, tile, {"relu": True})
        if RESIDUAL in stage.options:
            tile = production_tile(stage, wide, residual=True)
            yield SanitizedRun(wide, stage, tile, {RESIDUAL: True})


def check(case: SanitizedRun, engine: Engine) -> CheckResult:
    """Run a case and check its output."""
    problem, stage, tile, switches = case
    relu = switches.get("relu", False)
    tensors = random_tensors(problem, 1)
    if relu:
        image = channels_first(problem, tensors[0])[0]
        image[0, problem.H_i // 2, problem.W_i // 2] = np.inf
    input, weight, bias = (engine.to_device(tensor, problem.dtype) for tensor in tensors)
    unwritten = np.full(problem.output_shape, np.nan, np.float32)
    output = engine.to_device(unwritten, problem.dtype)
    residual = added = None
    if switches.get(RESIDUAL, False):
        residual = np.resize(tensors[0], problem.output_shape)
        added = engine.to_device(residual, problem.dtype)
    Plan(problem, stage, tile, engine, workspace_limit=None, program=None, **switches)(
        input, weight, output, bias, residual=added
    )
    oracle = Oracle(problem, *tensors, residual=residual)
    found = engine.to_host(output, problem.dtype)
    found = before_relu(found, oracle.expected) if relu else found
    return oracle.check(found, **allowances(stage, problem))


def run_stages(names: Sequence[str]) -> int:
    """Run the cases of these stages, or of all, for a tool to watch; 0 if every output is right."""
    try:
        wanted = tuple(map(stage_named, names)) or STAGES
        engine = choose("gpu")
        stages, left_out = stages_for(engine, wanted)
        if left_out is not None and names:
            raise EngineUnavailable(left_out)
    except (ValueError, EngineUnavailable) as error:
        print(error, file=sys.stderr)
        return 2
    if left_out is not None:
        print(f"left out: {left_out}")
    results = []
    for case in cases(stages):
        results.append(check(case, engine))
        if not results[-1].ok:
            where = f"{case.stage.name} tile {case.tile} {case.switches} on {case.problem}"
            print(f"{where}: {results[-1]}")
    right = sum(result.ok for result in results)
    print(f"{right} of {len(results)} runs right")
    return int(right < len(results))


_at_work: set[subprocess.Popen[str]] = set()
_interrupted = Event()


def watched(tool: str, command: Sequence[str], seconds: float) -> tuple[str, str]:
    """Return a tool's result for a Python command, and all that the two printed.

    The result is ``nothing``, ``found``, ``hangs`` or ``fails``. It is ``fails`` without the tool's
    own summary, because the tool then checked nothing.
    """
    whole = [PROGRAM, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, *command]
    # In a session of its own, so that what it starts ends with it: on the GPU that hangs.
    process = subprocess.Popen(
        whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    _at_work.add(process)
    if _interrupted.is_set():  # while it was being started
        _end(process)
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


class ToolRow(TypedDict):
    """A tool's result for a stage; ``runs`` is None if none was counted."""

    stage: str
    tool: str
    says: str
    findings: int
    right: int
    runs: int | None
    seconds: float
    printed: str


def of_stage(tool: str, stage: str) -> ToolRow:
    """Return a tool's result for a stage, and how many of the stage's runs were right."""
    started = time.monotonic()
    command = ("-W", "ignore", str(SCRIPT), "run", stage)
    says, text = watched(tool, command, TIMEOUT_SECONDS)
    counted = re.search(r"(\d+) of (\d+) runs right", text)
    if says == NOTHING and counted is None:  # nothing ran
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


def processes(engine: Engine) -> int:
    """Return how many processes run at a time: each takes a core, and a context in GPU memory."""
    room = (engine.free_bytes() or 0) // MEMORY_A_PROCESS
    return max(1, min(cores(), room, MOST_PROCESSES))


def measure(engine: Engine, wanted: tuple[Stage, ...] = STAGES) -> dict[str, Any]:
    """Every wanted stage that the GPU can run, under every tool. Ctrl-C ends the tools that run."""
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"[Vv]ersion (\S+)", said)
    stages, left_out = stages_for(engine, wanted)
    # Those with the most runs begin first, so that none runs alone at the end.
    longest = sorted(stages, key=lambda stage: -sum(1 for _ in cases((stage,))))
    work = [(tool, stage.name) for stage in longest for tool in TOOLS]
    rows: list[ToolRow] = []
    _interrupted.clear()
    with ThreadPoolExecutor(processes(engine)) as pool:
        try:
            for row in pool.map(of_stage, *zip(*work, strict=True)):
                rows.append(row)
                done = f"{len(rows):3} of {len(work)}  {row['stage']:20} {row['tool']:10}"
                print(done, _cell(row), file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            _interrupted.set()
            for process in [*_at_work]:
                _end(process)
            raise
    names = [stage.name for stage in stages]
    rows.sort(key=lambda row: (names.index(row["stage"]), TOOLS.index(row["tool"])))
    return {
        "sanitizer": version[1] if version else "unknown",
        "rows": rows,
        "left_out": left_out,
        "ok": all(row["says"] == NOTHING and row["right"] == row["runs"] for row in rows),
    }


def show(document: dict[str, Any]) -> str:
    """The table: a stage's runs, and what each tool found."""
    by_cells: dict[tuple[str, ...], list[str]] = {}
    for stage, found in groupby(document["rows"], key=itemgetter("stage")):
        its = sorted(found, key=lambda row: TOOLS.index(row["tool"]))
        runs = {row["runs"] for row in its if row["runs"] is not None}
        told = f"{stage} ({', '.join(map(str, sorted(runs)))})"
        by_cells.setdefault(tuple(map(_cell, its)), []).append(told)
    rows = [(", ".join(stages), *cells) for cells, stages in by_cells.items()]
    left_out = f"\nLeft out: {document['left_out']}\n" if document["left_out"] else ""
    return (
        f"compute-sanitizer {document['sanitizer']} on an {document['device']}: what each tool "
        f"finds, by stage (runs).\n\n{table(('stages (runs)', *TOOLS), rows)}{left_out}"
    )


def _cell(row: ToolRow) -> str:
    said = row["says"] if row["says"] != SOMETHING else f"**found {row['findings']}**"
    if row["runs"] is not None and row["right"] < row["runs"]:
        said += f", **{row['runs'] - row['right']} of {row['runs']} wrong**"
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 for a finding or a wrong run, 2 if nothing can run, 130 after Ctrl-C."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["run"]:
        return run_stages(words[1:])
    about = "compute-sanitizer's four tools on every stage's runs, on a GPU."
    parser = argparse.ArgumentParser(prog="python tests/tools/sanitizers.py", description=about)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to FILE")
    parser.add_argument("--stage", metavar="NAME", action="append", help="only these stages")
    chosen = parser.parse_args(words)
    file: Path | None = chosen.json
    try:
        wanted = tuple(map(stage_named, chosen.stage or ())) or STAGES
        engine = choose("gpu")
        if shutil.which(PROGRAM) is None:
            raise EngineUnavailable(
                f"there is no {PROGRAM} on the path: it comes with NVIDIA's CUDA toolkit"
            )
        document = measure(engine, wanted)
    except KeyboardInterrupt:
        print("convlab: interrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    except (RuntimeError, ValueError) as error:
        print(f"convlab: {error}", file=sys.stderr)
        return 2
    typed = " ".join(("python tests/tools/sanitizers.py", *words))
    document |= {"device": engine.device, "environment": environment([]) | {"command": typed}}
    print(show(document))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (json.dumps(document, indent=1) + "\n").encode())
    return 0 if document["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
