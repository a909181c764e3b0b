"""The ladder's tables in README.md and docs/ladder.md, and a sample of what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from convlab.bench.ladder_results import Results, Step
from convlab.bench.measured import table

SAMPLE_COMMAND = ("ladder", "--engine", "simulator")


def short_table(results: Results) -> str:
    """README.md's table: what each stage adds and what that gains."""
    rows = [
        (
            f"[{step.number}](src/{step.stage.module.replace('.', '/')}.py)",
            step.stage.title,
            _cell(step, step.time_ms, 3),
            _cell(step, step.tflops),
            _cell(step, step.speedup),
        )
        for step in results.steps
    ]
    return table(("stage", "idea", "ms", "TFLOP/s", "speedup"), rows, left=2)


def full_tables(every: Iterable[Results]) -> str:
    """docs/ladder.md's tables: all that is known of each stage, for each file of results."""
    return "\n".join(map(_section, every))


def _section(results: Results) -> str:
    head = (
        "stage", "ms", "spread %", "TFLOP/s", "speedup", "main kernel ms", "main kernel TFLOP/s",
        "workspace MiB",
    )  # fmt: skip
    rows = [
        (
            f"[{step.stage.name}](../src/{step.stage.module.replace('.', '/')}.py)",
            _cell(step, step.time_ms, 3),
            _cell(step, step.time_spread, 1),
            _cell(step, step.tflops),
            _cell(step, step.speedup),
            _cell(step, step.kernel_ms, 3),
            _cell(step, step.kernel_tflops),
            "-" if step.workspace_bytes is None else f"{step.workspace_bytes / 2**20:,.1f}",
        )
        for step in results.steps
    ]
    command = f" with `{results.command}`" if results.command else ""
    file = f"{results.name}.json"
    return (
        f"### {results.title}\n\n{results.shapes}.\n\n{table(head, rows)}\n"
        f"Measured{command} ({results.machine}): [{file}](results/{file}).\n"
    )


def _cell(step: Step, value: float | None, digits: int = 2) -> str:
    if not step.ok:
        return "failed"
    return "-" if value is None else f"{value:.{digits}f}"


def sample(json_file: Path | None = None) -> str:
    """What the ladder prints without a GPU, 80 columns wide; its JSON goes to the file, if any."""
    more = () if json_file is None else ("--json", str(json_file))
    code = "from convlab.cli import main; main()"
    output = subprocess.run(
        [sys.executable, "-c", code, *SAMPLE_COMMAND, *more],
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def same_but_for_rounding(one: str, other: str) -> bool:
    """Whether two samples differ in nothing but the last digit of an error / bound: NumPy sums
    the reference in another order on another CPU."""
    # What a library computes, whose work is not counted, it computes otherwise on another CPU.
    texts = (re.sub(r"OK {6} *[\d.e-]+(?= +-)", "LIBRARY", text) for text in (one, other))
    pieces = [re.split(r"(?<=OK {6} )( *[\d.e-]+)", text) for text in texts]
    if len(pieces[0]) != len(pieces[1]):
        return False
    for a, b in zip(*(part[::2] for part in pieces), strict=True):
        if a != b:
            return False
    errors = zip(*(map(float, part[1::2]) for part in pieces), strict=True)
    return all(abs(a - b) <= 0.011 * max(a, b) for a, b in errors)


def sample_section(stored: str) -> str:
    """The stored section where it still says what the ladder does, else a new one."""
    new = f"```text\n{sample()}```\n"
    return stored if same_but_for_rounding(stored, new) else new
