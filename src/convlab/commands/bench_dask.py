"""``convlab bench --dask ADDRESS``: the layers, measured by the workers of a Dask scheduler."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from convlab.commands import exits, output_files

if TYPE_CHECKING:
    from convlab.measuring.cases import BenchCase
    from convlab.measuring.results import ResultRow, Results

Save = Callable[["Results", str], None]
Conclude = Callable[[Console, "Results", Sequence["ResultRow"], float, str], None]


def bench_on_workers(
    address: str,
    cases: Sequence[BenchCase],
    *,
    json_file: str,
    console: Console,
    words: Sequence[str],
    again: bool,
    seconds: float,
    save: Save,
    conclude: Conclude,
) -> None:
    """Measure the cases on the scheduler's workers and merge their rows into one file.

    Refuses workers whose GPUs, versions or code differ: their rows cannot stand in one table.
    Ctrl-C keeps the layers that are measured."""
    from convlab.measuring.gpu_workers import gpu_workers, worker_identity
    from convlab.measuring.results import Results, open_results, set_aside

    started = time.monotonic()
    with exits.refusing(ValueError, OSError, RuntimeError):
        older = None
        if json_file != output_files.STANDARD_OUTPUT and Path(json_file).is_file():
            older = open_results(Path(json_file))
        with gpu_workers(address, seconds) as workers:
            first = workers.first
            command = shlex.join(["convlab", *words])
            known = first.environment | {"command": command}
            identity = worker_identity(first)
            results = Results(first.machine, known, identity, commands=[command])
            left = {*results.take_up(older, [case.key for case in cases], again)}
            todo = {case.key: case for case in cases if case.key in left}
            _say(console, f"runs on  workers at {address}, each with {results.device}")
            _say(console, f"rows     {len(todo)} of {len(cases)} to measure")
            if older is not None and older.rows and older.identity != results.identity:
                aside = set_aside(Path(json_file), older)
                _say(console, f"aside    {json_file} was of other machines: it is in {aside} now")
            try:
                for measured in workers.run([*todo.values()]):
                    for row in measured.rows:
                        left.remove(row.key)
                        results.add(row, todo[row.key].system)
                    save(results, json_file)
                    layers = dict.fromkeys(row.layer for row in measured.rows)
                    _say(console, f"measured {', '.join(layers)}: {len(measured.rows)} rows")
            except KeyboardInterrupt:
                goes_on = "begins anew" if again else "goes on"
                rows = f"{len(left)} of {len(cases)} rows are left"
                exits.fail(f"interrupted, {rows}: the same command {goes_on}", exits.INTERRUPTED)
    shown = [results.rows[case.key] for case in cases]
    conclude(console, results, shown, time.monotonic() - started, json_file)


def _say(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True)
