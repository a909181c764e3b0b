"""``convlab bench --cases models``, ``training`` and ``inference``: a whole model, each system in a
process."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from convlab.commands import display, exits, output_files
from convlab.support.installing import how_to_install

if TYPE_CHECKING:
    from convlab.measuring.models import Row, Task


def bench_models(cases: str, json_file: str, console: Console, arguments: Sequence[str]) -> None:
    """Measure, print a table, and write the file after every row. ``cases`` is ``models``,
    ``training`` or ``inference``. Exits 1 if a process failed."""
    from convlab.measuring import inference, models, training
    from convlab.measuring.machine import environment

    if find_spec("torch") is None:
        exits.refuse(
            f"--cases {cases} needs PyTorch, which it measures beside: run "
            f"{how_to_install('baselines')}"
        )
    document: dict[str, Any] = {
        "format": models.FORMAT,
        "version": models.VERSION,
        "environment": environment(arguments),
        "rows": [],
    }

    def keep(row: Row) -> None:
        document["rows"].append(row)
        console.print(Text(line_of(row), "red" if row["reason"] else ""), soft_wrap=True)
        if json_file != output_files.STANDARD_OUTPUT:
            output_files.write_json(json_file, document, indent=1)

    try:
        of_cases: dict[str, Sequence[Task]] = {
            "models": models.TASKS,
            "training": training.TASKS,
            "inference": inference.TASKS,
        }
        rows = models.measured(keep, of_cases[cases])
    except KeyboardInterrupt:
        exits.fail("interrupted: the same command begins anew", exits.INTERRUPTED)
    console.print("", table_of(rows), "", sep="\n")
    if cases == "training":
        for system, distance in training.distances(rows).items():
            console.print(f"{system}: ten steps' mean loss is within {distance:.3g} of the first's")
    output_files.write_json(json_file, document, indent=1)
    if any(row["reason"] for row in rows):
        raise typer.Exit(exits.WRONG)


def line_of(row: Row) -> str:
    """Return a row as one line."""
    if row["reason"]:
        return f"{row['system']}, {row['layer']}: {row['reason']}"
    if "losses" in row:
        first, last = row["losses"][0], sum(row["losses"][-10:]) / len(row["losses"][-10:])
        losses = f", loss {first:.3f} at first, {last:.3f} over the last ten steps"
        return f"{row['system']}, {row['layer']}: {row['time_ms']:.4g} ms a step{losses}"
    error = f", relative error {row['error']:.2g}" if "error" in row else ""
    return f"{row['system']}, {row['layer']}: {row['time_ms']:.4g} ms{error}"


def table_of(rows: Sequence[Row]) -> object:
    """Return the table of all rows, the systems beside one another."""
    times = {(row["layer"], row["system"]): row["time_ms"] for row in rows}
    systems = list(dict.fromkeys(row["system"] for row in rows))
    lines = [
        (what, *(display.number(times.get((what, system)), ".4g") for system in systems))
        for what in dict.fromkeys(row["layer"] for row in rows)
    ]
    return display.table_of(("", *(f"{system}\nms" for system in systems)), lines, words=1)
