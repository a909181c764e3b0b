"""Hold the compiled engine to mutants: does it reject those that ``convlab check`` rejects, and no
others?

    PYTHONPATH=src:tests python -m stage_mutants.engines --sample 300 --seed 0
    PYTHONPATH=src:tests python -m stage_mutants.engines --jobs 32 --results engines.jsonl

The second one tries all stored mutants, writes each result to a file as it comes, and goes on there
if it was interrupted. Each launch that can be compiled runs as machine code, and the result is
compared with the stored one. Launches that count memory traffic or keep a kernel's defaults stay
as they are. The order is random, so what has been tried is a sample of all. Right mutants of parts
that many stages share take minutes, wrong ones seconds: ``--stored rejected`` tries the wrong ones.

    PYTHONPATH=src:tests python -m stage_mutants.engines --results engines.jsonl --sum-up

counts what the file has, for docs/mutants.md, and tries nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from time import process_time
from types import FunctionType
from typing import Any, NamedTuple
from unittest.mock import patch

from convlab.measuring.machine import environment
from convlab.running.engines.simulator import Simulator
from convlab.simulation.compiled import compiled_run, engine_choice
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.host import programs
from convlab.simulation.host.programs import simulate
from convlab.simulation.recording.loops import Loops
from stage_mutants.generated import Generated
from stage_mutants.results import REJECTED, RESULTS, SURVIVED, TOLD, result_of, stored_results

COMMAND = "python -m stage_mutants.engines"
SUMMARY = RESULTS.with_name("engine_mutants.json")
MORE_STEPS = 50  # times the limit of a check: seconds of machine code
ends: Counter[str] = Counter()  # of launches as machine code: "compiled", "found", or why not
_on_the_first_engine = Simulator.launch
_run = compiled_run.CompiledRun.run


def _launch(
    self: Simulator, kernel: Any, grid: Any, block: Any, *arguments: Any, shared_bytes: int = 0
) -> None:
    counted = self.recorder is not None or self._counts is not None
    if not self.strict or counted or keeps_defaults(kernel.py_func, arguments):
        _on_the_first_engine(self, kernel, grid, block, *arguments, shared_bytes=shared_bytes)
        return
    with ExitStack() as patches:
        if (loops := self.loops) is not None:
            # As machine code a loop may run longer. One that seems endless there is run again by
            # the first engine, where each launch has the check's limit, which grows with the
            # stage's own loops.
            patches.enter_context(patch.object(programs, "Loops", partial(_loops_of_check, loops)))
        simulate(
            kernel,
            grid,
            block,
            *arguments,
            shared_bytes=shared_bytes,
            steps=None if loops is None else MORE_STEPS * loops.left,
            typed=True,  # machine code needs types, which `convlab check` does without
        )


def _loops_of_check(loops: Loops, _left: int, finds: bool) -> Loops:
    """Return the iterations that a launch may run on the first engine, instead of ``_left``."""
    return loops.afresh(finds=finds)


def keeps_defaults(function: FunctionType, arguments: tuple[object, ...]) -> bool:
    """Return whether a launch leaves parameters at their defaults, which Numba's launches cannot.
    Stages that can add a residual are launched so."""
    return len(arguments) < function.__code__.co_argcount


def _noted(self: compiled_run.CompiledRun) -> None:
    end = "found"
    try:
        _run(self)
        end = "compiled"
    except NeedsGreenlets as why:
        end = str(why)
        raise
    finally:
        ends[end] += 1


class Judged(NamedTuple):
    """The result of a mutant, the ends of its launches, and its processor seconds."""

    result: str
    ends: Counter[str]
    seconds: float


def judged(mutant: Generated) -> Judged:
    """Check a mutant with every launch as machine code that can be."""
    ends.clear()
    begin = process_time()
    with (
        patch.object(Simulator, "launch", _launch),
        patch.object(engine_choice, "limits", engine_choice.Limits.all_at(0.0)),
        patch.object(engine_choice, "say", lambda line: None),
        patch.object(compiled_run.CompiledRun, "run", _noted),
    ):
        result = result_of(mutant)
    return Judged(result, Counter(ends), process_time() - begin)


def known_results(file: Path | None) -> dict[tuple[str | int, ...], Judged]:
    """Return the results that a file has, by the mutants' keys."""
    if file is None or not file.exists():
        return {}
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {
        tuple(row["key"]): Judged(row["result"], Counter(row["ends"]), row["seconds"])
        for row in rows
    }


def judged_by_processes(
    mutants: Iterable[Generated], jobs: int, file: Path | None
) -> Iterator[tuple[Generated, Judged]]:
    """Yield each mutant with its result as it comes, which the file has by then."""
    with ProcessPoolExecutor(jobs) as pool:
        futures = {pool.submit(judged, one): one for one in mutants}
        try:
            for future in as_completed(futures):
                one, now = futures[future], future.result()
                if file is not None:
                    row = {"key": one.key, **now._asdict()}
                    with file.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(row) + "\n")
                yield one, now
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # only those that run are waited for


def summary(judged_before: Mapping[Generated, Judged], stored: Mapping[Generated, str]) -> str:
    """Return the document of ``SUMMARY`` for these mutants: for each stored result and the present
    one how many there are and their processor seconds, and how often launches ended as they did."""
    mutants, seconds = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    ends = Counter[str]()
    for one, now in judged_before.items():
        mutants[stored[one], now.result] += 1
        seconds[stored[one], now.result] += now.seconds
        ends += now.ends
    told = environment([]) | {"command": f"{COMMAND} --results engines.jsonl --sum-up"}
    del told["gpu"], told["clocks_mhz"]  # neither plays a part
    rows = [
        {"stored": kind[0], "now": kind[1], "mutants": many, "cpu_seconds": round(seconds[kind])}
        for kind, many in sorted(mutants.items())
    ]
    launches = {"compiled": ends["compiled"], "found": ends["found"], "all": ends.total()}
    made = Counter(stored.values())
    document = {"environment": told, "made": made, "launches": launches, "rows": rows}
    return json.dumps(document, indent=1) + "\n"


def main() -> int:
    """Print the results; 1 if a wrong mutant is lost or a right one blamed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", metavar="N", type=int, help="at most N; without it, all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stored", choices=(REJECTED, TOLD, SURVIVED), help="only of this result")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--results", metavar="FILE", type=Path, help="JSON, a line for a mutant")
    parser.add_argument("--sum-up", action="store_true", help=f"write {SUMMARY.name}")
    chosen = parser.parse_args()
    stored = stored_results()
    if chosen.stored is not None:
        stored = {one: result for one, result in stored.items() if result == chosen.stored}
    most = len(stored) if chosen.sample is None else min(chosen.sample, len(stored))
    mutants = Random(chosen.seed).sample([*stored], most)
    known = known_results(chosen.results)
    before = [(one, known[one.key]) for one in mutants if one.key in known]
    if chosen.sum_up:
        SUMMARY.write_text(summary(dict(before), stored), encoding="utf-8")
        return 0
    left = [one for one in mutants if one.key not in known]
    results, of_launches = Counter[str](), Counter[str]()
    differ, seconds = 0, 0.0
    pairs = chain(before, judged_by_processes(left, chosen.jobs, chosen.results))
    for number, (one, now) in enumerate(pairs, 1):
        results[f"{stored[one]}, now {now.result}"] += 1
        of_launches += now.ends
        seconds += now.seconds
        if (stored[one] == REJECTED) != (now.result == REJECTED):
            differ += 1
            what = "lost" if stored[one] == REJECTED else "blamed"
            print(f"{what}: {one.module}, line {one.line}: {one.old} -> {one.new}", flush=True)
        if number == len(mutants) or (number % 10 == 0 and number > len(before)):
            said = f"{number} of {len(mutants)} mutants, {seconds:.0f} processor seconds"
            print(f"{said}: {dict(results)}", flush=True)
            print(f"    launches: {dict(of_launches.most_common(8))}", flush=True)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
