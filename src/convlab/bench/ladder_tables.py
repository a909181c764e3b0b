"""The ladder's results as the tables of README.md and docs/ladder.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from convlab.bench.ladder_results import Results, Step

NOTHING = "-"


def short_table(results: Results) -> str:
    """README.md's table: what each stage adds and what that gains."""
    rows = (
        (
            f"[{step.number}](src/{step.stage.module.replace('.', '/')}.py)",
            step.stage.title,
            _cell(step, step.time_ms, 3),
            _cell(step, step.tflops),
            _cell(step, step.speedup),
        )
        for step in results.steps
    )
    return _table(("stage", "idea", "ms", "TFLOP/s", "speedup"), "llrrr", rows)


def full_tables(every: Iterable[Results]) -> str:
    """docs/ladder.md's tables: all that is known of each stage, for each file of results."""
    return "\n".join(_section(results) for results in every)


def _section(results: Results) -> str:
    head = (
        "stage", "ms", "spread %", "TFLOP/s", "speedup", "main kernel ms", "main kernel TFLOP/s",
        "workspace MiB",
    )  # fmt: skip
    rows = (
        (
            f"[{step.stage.name}](../src/{step.stage.module.replace('.', '/')}.py)",
            _cell(step, step.time_ms, 3),
            _cell(step, step.time_spread, 1),
            _cell(step, step.tflops),
            _cell(step, step.speedup),
            _cell(step, step.kernel_ms, 3),
            _cell(step, step.kernel_tflops),
            NOTHING if step.workspace_bytes is None else f"{step.workspace_bytes / 2**20:,.1f}",
        )
        for step in results.steps
    )
    command = f" with `{results.command}`" if results.command else ""
    file = f"{results.name}.json"
    return (
        f"### {results.title}\n\n{results.shapes}.\n\n{_table(head, 'lrrrrrrr', rows)}\n"
        f"Measured{command} ({results.machine}): [{file}](results/{file}).\n"
    )


def _cell(step: Step, value: float | None, digits: int = 2) -> str:
    if not step.ok:
        return "failed"
    return NOTHING if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    rule = ["---:" if side == "r" else "---" for side in align]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))
