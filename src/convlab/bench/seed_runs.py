"""What the benchmarks of the seeds' figures share: cases measured as ``convlab bench`` does, each
in a process of its family, judged before and after; a row each, as JSON, kept as it comes."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convlab.bench import cases as runner
from convlab.bench import monitor
from convlab.bench.cases import Case
from convlab.bench.gpu_backend import current_gpu
from convlab.bench.measured import GPU_ONLY, INTERRUPTED, write_results
from convlab.bench.pool import WorkerDied, WorkerPool
from convlab.bench.results import Results, identity, library_versions
from convlab.bench.roofline import Machine
from convlab.bench.rows import LASTING, WRONG_STATES, Row
from convlab.doctor import environment
from convlab.engines import EngineUnavailable, choose
from convlab.files import beside, strict

Document = Mapping[str, Any]
UNSETTLED = "~"
AGREES = 0.1  # of a time: what two runs of the same code may differ by


def run_cases(
    module: str,
    about: str,
    cases: Sequence[Case],
    laboratory: str,
    show: Callable[[dict[str, Any]], str],
    arguments: Sequence[str] | None,
    more: Callable[[Document | None], dict[str, Any]] = lambda older: {},
) -> int:
    """The command of a module that measures cases; returns its exit code, as
    :func:`convlab.bench.measured.run_module` does.

    ``--json FILE`` is written after each row, and the same command goes on where it was stopped.
    ``more`` is what else belongs into the document (:func:`measure_cases`).
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--json", metavar="FILE", type=Path, help="kept after every row")
    file: Path | None = parser.parse_args(arguments).json
    try:
        older = None if file is None else read(file)
        device = choose("gpu").device
    except ValueError as error:
        return _refused(str(error))
    except EngineUnavailable as error:
        return _refused(f"{error}: {GPU_ONLY}")
    typed = f"python -m {module}" + (f" --json {shlex.quote(str(file))}" if file else "")
    here = {"device": device, "environment": environment([]) | {"command": typed}}
    aside = older

    def keep(document: dict[str, Any]) -> None:
        nonlocal aside
        if file is not None:
            if aside is not None and aside["identity"] != document["identity"]:
                _put_aside(file, aside["identity"])
            aside = None
            write_results(file, document | here)

    try:
        document = measure_cases(cases, laboratory, older=older, keep=keep, more=more)
    except WorkerDied as error:
        return _refused(f"no process can measure here: {error}")
    except KeyboardInterrupt:
        left = "the same command goes on" if file else "nothing was written"
        print(f"convlab: interrupted, {left}", file=sys.stderr)
        return INTERRUPTED
    keep(document)
    print(show(document | here))
    return 0 if document["ok"] else 1


def read(file: Path) -> Document | None:
    """What an earlier run wrote; None where there is no file.

    Raises ``ValueError`` for a file of something else, and for one that could not be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside(file).touch()
        beside(file).unlink()
    except OSError as error:
        raise ValueError(
            f"--json is {str(file)!r}, which cannot be written ({error.strerror}): give another"
        ) from None
    try:
        document: Document = json.loads(file.read_text(encoding="utf-8"))
        document["identity"]
        for row in document["rows"]:
            row["identity"], row["state"], row["problem"], row["layer"], row["system"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"--json is {str(file)!r}, no file of this benchmark: {error!r}") from None
    return document


def _put_aside(file: Path, identity: str) -> None:
    """Rows of another machine, other versions or other code are measured again: keep the old."""
    other = file.with_name(f"{file.stem}-{identity}{file.suffix}")
    file.replace(other)
    _say(f"what {file} held is of another machine, other versions or other code: now in {other}")


def _refused(reason: str) -> int:
    print(f"convlab: {reason}", file=sys.stderr)
    return 2


def measure_cases(
    cases: Sequence[Case],
    laboratory: str | None = None,
    *,
    older: Document | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda document: None,
    more: Callable[[Document | None], dict[str, Any]] = lambda older: {},
) -> dict[str, Any]:
    """The machine, what was installed and the rows of these cases, as a document of :mod:`json`.

    Rows of an ``older`` such document that measuring again would not change (same machine, versions
    and code) are taken over. ``keep`` gets the document so far, after each row. ``more`` is asked
    before the first for what else belongs into it; it gets ``older``, or None unless all that is
    the same.

    ``laboratory`` is where systems are looked up by name (``MODULE:CLASS``, as
    :class:`~convlab.bench.pool.WorkerPool` takes it). A line for each row goes to standard error
    as it comes. Raises :class:`~convlab.bench.pool.WorkerDied` where no process can measure.
    """
    gpu = current_gpu()
    pool = WorkerPool(laboratory, foreign=monitor.processes(gpu)())
    try:
        facts = pool.facts()
        machine, known = Machine(**facts["machine"]), facts["environment"]
        known["packages"] = known["packages"] | library_versions()
        same = identity(known, gpu)
        document: dict[str, Any] = {
            "machine": machine.as_json(),
            "packages": known["packages"],
            "identity": same,
            "systems": list({case.system.name: case.system.as_json() for case in cases}.values()),
            "rows": _taken_over(older or {"rows": []}, same),
        }
        document |= more(older if older and older["identity"] == same else None)
        rows = document["rows"]
        have = {(row["layer"], row["problem"], row["system"]) for row in rows}
        todo = [
            case for case in cases if (case.layer, str(case.problem), case.system.name) not in have
        ]
        _say(f"compiling for {len(todo)} rows" + (f", {len(rows)} are there" if rows else ""))
        problems = {case.key: str(case.problem) for case in todo}
        measured = runner.run(todo, pool, machine, document["identity"])
        for number, row in enumerate(measured, start=1):
            rows.append({"problem": problems[row.key]} | strict(row.as_json()))
            keep(document)
            _say(f"{number:4} of {len(todo)}  {row.layer:16} {row.system:32} {_outcome(row)}")
    finally:
        pool.close()
    return document | {"ok": not any(row["state"] in WRONG_STATES for row in rows)}


def _taken_over(older: Document, same: str) -> list[dict[str, Any]]:
    return [row for row in older["rows"] if row["identity"] == same and row["state"] in LASTING]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _outcome(row: Row) -> str:
    return f"{row.time_ms:.4f} ms" if row.ok else f"{row.state}: {row.reason}"


def row_of(document: Document, layer: str, system: str) -> dict[str, Any] | None:
    """The row of that system there; None where there is none."""
    for row in document["rows"]:
        if row["layer"] == layer and row["system"] == system:
            found: dict[str, Any] = row
            return found
    return None


def number_of(document: Document, layer: str, system: str, key: str) -> float | None:
    """One number of that row, such as ``time_ms``; None where it has none."""
    row = row_of(document, layer, system)
    return None if row is None or row[key] is None else float(row[key])


def unsettled(document: Document, layer: str, system: str) -> bool:
    """Whether that row has a number, and its runs' spread stayed above 2 %."""
    row = row_of(document, layer, system)
    return row is not None and row.get("settled") is False


def beside_bench(document: Document, bench: Results, system: str) -> str:
    """A sentence where these results are of another machine, other versions or other code than a
    run of ``convlab bench``, with how far a system differs that both measured; else nothing."""
    if document["identity"] == bench.identity:
        return ""
    ratios = {
        row["layer"]: row["time_ms"] / other.time_ms
        for row in document["rows"]
        if row["system"] == system and row["time_ms"]
        for other in [bench.row(row["layer"], row["batch"], system)]
        if other is not None and other.time_ms
    }
    found = "Measured with other code or versions, or elsewhere, than the run of `convlab bench`"
    if not ratios:
        return f"{found}.\n"
    far = [layer for layer, ratio in ratios.items() if abs(ratio - 1) > AGREES]
    return (
        f"{found}: here {system} takes {min(ratios.values()):.2f} to {max(ratios.values()):.2f} "
        f"times as long as there"
        + (f", more than {100 * AGREES:.0f} % off on {', '.join(far)}" if far else "")
        + ".\n"
    )


def marked(cell: str, unsettled: bool) -> str:
    """What a table's cell holds, with the mark of a number that did not settle."""
    return f"{UNSETTLED}{cell}" if unsettled else cell


def numberless(document: Document) -> list[tuple[str, str, str, list[str]]]:
    """System, state, reason and where, of the rows without a number; alike ones together."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in document["rows"]:
        if row["state"] != "measured":
            key = row["system"], row["state"], row["reason"]
            found.setdefault(key, []).append(row["layer"])
    return [(*key, layers) for key, layers in found.items()]


def reasons_below(document: Document) -> str:
    """What stands below a table: why numbers are missing from it. Empty where none is."""
    reasons = "".join(
        f"- {system} on {', '.join(layers)}: {state}, {reason}\n"
        for system, state, reason, layers in numberless(document)
    )
    return f"\nWithout a number:\n\n{reasons}" if reasons else ""
