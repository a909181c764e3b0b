"""Hold the compiled engine to mutants: does it reject those that ``convlab check`` rejects, and no
others?

    PYTHONPATH=src:tests python -m stage_mutants.engines --sample 300 --seed 0
    PYTHONPATH=src:tests python -m stage_mutants.engines --jobs 32 --results engines.jsonl

The second one tries all stored mutants, writes each result to a file as it comes, and goes on there
if it was interrupted. Each launch that can be compiled runs as machine code, and the result is
compared with the stored one. Launches that count memory traffic or leave a residual out stay
as they are. The order is random, so what has been tried is a sample of all. Right mutants of parts
that many stages share take minutes, wrong ones seconds: ``--stored rejected`` tries the wrong ones.

    PYTHONPATH=src:tests python -m stage_mutants.engines --results engines.jsonl --sum-up

counts what the file has, for docs/mutants.md, and tries nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from time import process_time
from typing import Any, NamedTuple
from unittest.mock import patch

from convlab.measuring.machine import environment
from convlab.running.engines.simulator import Simulator
from convlab.simulation.compiled import compiled_run, engine_choice
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.host import programs
from convlab.simulation.host.programs import simulate
from convlab.simulation.recording.loops import Loops
from convlab.simulation.rules.findings import SimulationError
from convlab.support.kernel_defaults import kept_defaults
from convlab.support.whole_files import write_whole
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
    # Stages that can add a residual leave it out. Numba's launches, as of ``simulate``, cannot.
    kept = kept_defaults(kernel.py_func, len(arguments))
    if not self.strict or counted or kept:
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


def _noted(self: compiled_run.CompiledRun) -> None:
    end = "an error"
    try:
        _run(self)
        end = "compiled"
    except SimulationError:
        end = "found"
        raise
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


def summary(tried: Mapping[Generated, Judged], stored: Mapping[Generated, str]) -> str:
    """Return the document of ``SUMMARY``: how many mutants have which stored result and which one
    as machine code, with their processor seconds, and the ends of their launches."""
    mutants, seconds = Counter[tuple[str, str]](), defaultdict[tuple[str, str], float](float)
    only_python, launches = Counter[tuple[str, str]](), Counter[str]()
    for mutant, now in tried.items():
        results = stored[mutant], now.result
        mutants[results] += 1
        only_python[results] += not (now.ends["compiled"] or now.ends["found"])
        seconds[results] += now.seconds
        launches += now.ends
    rows = [
        {
            "stored": results[0],
            "now": results[1],
            "mutants": count,
            "only_python": only_python[results],  # whose launches all stayed with the first engine
            "cpu_seconds": round(seconds[results]),
        }
        for results, count in sorted(mutants.items())
    ]
    facts = environment([]) | {"command": f"{COMMAND} --results engines.jsonl --sum-up"}
    del facts["gpu"], facts["clocks_mhz"]  # neither plays a part
    document = {
        "environment": facts,
        "stored": Counter(stored.values()),
        "launches": dict(launches.most_common()),
        "rows": rows,
    }
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
    if chosen.sum_up and not (chosen.results and chosen.results.is_file()):
        parser.error("--sum-up needs --results FILE with results")
    if chosen.sum_up and (chosen.stored or chosen.sample is not None):
        parser.error("--sum-up counts all: not with --stored or --sample")
    stored = stored_results()
    if chosen.stored is not None:
        stored = {one: result for one, result in stored.items() if result == chosen.stored}
    most = len(stored) if chosen.sample is None else min(chosen.sample, len(stored))
    mutants = Random(chosen.seed).sample([*stored], most)
    known = known_results(chosen.results)
    before = [(one, known[one.key]) for one in mutants if one.key in known]
    if chosen.sum_up:
        write_whole(SUMMARY, summary(dict(before), stored).encode())
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
