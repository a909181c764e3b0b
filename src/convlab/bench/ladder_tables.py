"""The ladder's results as the tables of README.md and docs/ladder.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from convlab.bench import results as bench
from convlab.bench.ladder_results import NEAR, Results, Step, changed
from convlab.bench.report_docs import PAGE as BENCH_PAGE

NOTHING = "-"


def short_table(results: Results, newer: bench.Results | None = None) -> str:
    """README.md's table: what each stage adds and what that gains; below it what :func:`differing`
    says."""
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
    said = differing(results, newer, BENCH_PAGE)
    return _table(("stage", "idea", "ms", "TFLOP/s", "speedup"), "llrrr", rows) + said


def full_tables(every: Iterable[Results], newer: bench.Results | None = None) -> str:
    """docs/ladder.md's tables: all that is known of each stage, for each file of results."""
    return "\n".join(_section(results, newer) for results in every)


def differing(results: Results, newer: bench.Results | None, page: str) -> str:
    """The stages that a newer run of ``convlab bench`` on the same kind of GPU found faster or
    slower, as after a change of their code; ``page`` shows that run. Empty where there are none."""
    if newer is None or results.layer is None:
        return ""
    times = {step.stage.name: step.time_ms for step in results.steps}
    date, batch = str(results.environment.get("date") or ""), results.problem["batch"]
    rows = changed(newer, results.device, date, results.layer.lower(), batch, times)
    found = [f"{name} takes {row.time_ms:.3f} ms" for name, row in rows.items()]
    if not found:
        return ""
    name = page.rpartition("/")[2]
    return (
        f"\nChanged by more than {NEAR:.0%} since, by the newer run of [{name}]({page}): "
        f"{', '.join(found)}.\n"
    )


def _section(results: Results, newer: bench.Results | None) -> str:
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
        f"{differing(results, newer, BENCH_PAGE.rpartition('/')[2])}"
    )


def _cell(step: Step, value: float | None, digits: int = 2) -> str:
    if not step.ok:
        return "failed"
    return NOTHING if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    rule = ["---:" if side == "r" else "---" for side in align]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))
