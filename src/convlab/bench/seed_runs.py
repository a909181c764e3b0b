"""What the benchmarks of the seeds' figures share: cases measured as ``convlab bench`` does, each
in a process of its family, judged before and after; a row each, as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convlab.bench import runner, watch
from convlab.bench.crew import Crew
from convlab.bench.laboratory import current_gpu
from convlab.bench.results import identity, library_versions
from convlab.bench.roofline import Machine
from convlab.bench.rows import JUDGED_WRONG, LASTING, Row
from convlab.bench.runner import Case
from convlab.bench.strict_json import strict


def measure_cases(
    cases: Sequence[Case],
    laboratory: str | None = None,
    *,
    older: Mapping[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:
    """The machine, what was installed and the rows of these cases, as a document of :mod:`json`.

    Rows of an ``older`` such document that measuring again would not change (same machine, versions
    and code) are taken over. ``keep`` gets the document so far, after each row.

    ``laboratory`` is where systems are looked up by name (``MODULE:CLASS``, as
    :class:`~convlab.bench.crew.Crew` takes it). A line for each row goes to standard error as it
    comes. Raises :class:`~convlab.bench.crew.WorkerDied` where no process can measure.
    """
    gpu = current_gpu()
    crew = Crew(laboratory, foreign=watch.processes(gpu)())
    try:
        facts = crew.facts()
        machine, known = Machine(**facts["machine"]), facts["environment"]
        known["packages"] = known["packages"] | library_versions()
        document: dict[str, Any] = {
            "machine": machine.as_json(),
            "packages": known["packages"],
            "identity": identity(known, gpu),
            "systems": list({case.system.name: case.system.as_json() for case in cases}.values()),
            "rows": _taken_over(older or {"rows": []}, identity(known, gpu)),
        }
        rows = document["rows"]
        have = {(row["layer"], row["problem"], row["system"]) for row in rows}
        todo = [
            case for case in cases if (case.layer, str(case.problem), case.system.name) not in have
        ]
        _say(f"compiling for {len(todo)} rows" + (f", {len(rows)} are there" if rows else ""))
        measured = runner.run(todo, crew, machine, document["identity"])
        for number, (case, row) in enumerate(zip(todo, measured, strict=True), start=1):
            rows.append({"problem": str(case.problem)} | strict(row.as_json()))
            keep(document)
            _say(f"{number:4} of {len(todo)}  {row.layer:16} {row.system:32} {_outcome(row)}")
    finally:
        crew.close()
    return document | {"ok": not any(row["state"] in JUDGED_WRONG for row in rows)}


def _taken_over(older: Mapping[str, Any], same: str) -> list[dict[str, Any]]:
    return [row for row in older["rows"] if row["identity"] == same and row["state"] in LASTING]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _outcome(row: Row) -> str:
    return f"{row.time_ms:.4f} ms" if row.ok else f"{row.state}: {row.reason}"


def row_of(document: Mapping[str, Any], layer: str, system: str) -> dict[str, Any] | None:
    """The row of that system there; None where there is none."""
    for row in document["rows"]:
        if row["layer"] == layer and row["system"] == system:
            found: dict[str, Any] = row
            return found
    return None


def number_of(document: Mapping[str, Any], layer: str, system: str, key: str) -> float | None:
    """One number of that row, such as ``time_ms``; None where it has none."""
    row = row_of(document, layer, system)
    return None if row is None or row[key] is None else float(row[key])


def numberless(document: Mapping[str, Any]) -> list[tuple[str, str, str, list[str]]]:
    """System, state, reason and where, of the rows without a number; alike ones together."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in document["rows"]:
        if row["state"] != "measured":
            key = row["system"], row["state"], row["reason"]
            found.setdefault(key, []).append(row["layer"])
    return [(*key, layers) for key, layers in found.items()]
