"""The table of ``convlab ladder``: a row for each stage, and the columns of each engine.

A column of counts is an entry of :data:`COUNTS`, a column of a GPU's table an entry of what
:func:`_timed` returns; :data:`LEGENDS` explains it below the table. The numbers come from
``StageResult`` (``measuring/ladder_run.py``), the counts among them from ``Counts``
(``simulation/rules/memory_traffic.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from convlab.commands.display import BAD, GOOD, Cell, number, table_of
from convlab.problems.problem import ConvProblem
from convlab.support.columns import Columns

if TYPE_CHECKING:
    from convlab.measuring.ladder_run import StageResult
    from convlab.running.engines import Engine

    # The cell of a stage in each column, by the column's heading.
    ColumnsOfStages = dict[str, Callable[[StageResult], Cell]]

# The counts that each simulator shows and their formats; Numba's simulator has no warps.
COUNTS = {
    "simulator": {
        "global\nreq.": ("global_requests", ",d"),
        "sectors\n/ req.": ("sectors_per_request", ".2f"),
        "shared\nreq.": ("shared_requests", ",d"),
        "wave-\nfronts\n/ req.": ("wavefronts_per_request", ".2f"),
        "bytes /\nFLOP": ("bytes_per_flop", ".3f"),
    },
    "cudasim": {
        "global\nloads": ("global_loads", ",d"),
        "shared\nloads": ("shared_loads", ",d"),
        "barriers": ("barriers", ",d"),
        "FLOP per\nbyte": ("flops_per_byte", ".2f"),
    },
}
ONLY_COUNTED = (
    "Only the stage's main kernel is counted, without layout transforms. A simulator's time says "
    "nothing about a GPU's, so work is counted, with tiles much smaller than a GPU's."
)
LEGENDS = {
    "gpu": "time: median and spread of repeated runs, layout transforms included. workspace: "
    "memory that a stage needs beside input, filter and output.",
    "simulator": "A request (req.) is one load or store of a warp's 32 threads. Global memory "
    "answers in sectors of 32 bytes, shared memory in wavefronts. bytes: whole sectors of global "
    f"memory. {ONLY_COUNTED}",
    "cudasim": "Loads and barriers are summed over all threads; a 128-bit load counts once. FLOP "
    f"per byte: of global memory read and written; more is better. {ONLY_COUNTED}",
}


def ladder_heading(problem: ConvProblem, engine: Engine) -> Text:
    """The problem and where it runs."""
    p = problem
    return Text(
        f"input * filter  {p} -> {'x'.join(map(str, p.output_shape))}\n"
        f"as a GEMM       M = {p.M:,}, N = {p.N:,}, K = {p.K:,}: {p.flops:,} FLOP\n"
        f"runs on         {engine.device}"
    )


def ladder_table(results: Sequence[StageResult], engine: Engine) -> Columns:
    """Return the table of all stages: times on a GPU, counts on a simulator."""
    columns = {
        "stage": lambda one: one.stage.name,
        "result": _status,
        "error /\nbound": lambda one: number(one.error_over_bound, ".3g"),
        **(_timed(results) if engine.is_gpu else _counted(engine.name)),
    }
    rows = [[cell(one) for cell in columns.values()] for one in results]
    return table_of([*columns], rows, words=2)


def _timed(results: Sequence[StageResult]) -> ColumnsOfStages:
    """Return the columns of a GPU's table."""
    from convlab.measuring.ladder_run import speedup

    def time(one: StageResult) -> Cell:
        timing = one.timing
        return f"{timing.median_ms:.3f} ±{timing.spread_percent:.1f}%" if timing else None

    def workspace(one: StageResult) -> Cell:
        nbytes = one.workspace_bytes
        return number(None if nbytes is None else nbytes / 2**20, ",.1f")

    return {
        "time ms": time,
        "TFLOP\n/ s": lambda one: number(one.tflops, ".2f"),
        "speedup\nvs m01": lambda one: number(speedup(one, results), ".2f"),
        "workspace\nMiB": workspace,
    }


def _counted(simulator: str) -> ColumnsOfStages:
    """Return the columns of a simulator's table."""

    def count(name: str, form: str) -> Callable[[StageResult], Cell]:
        return lambda one: number((one.counts or {}).get(name), form)

    return {heading: count(*column) for heading, column in COUNTS[simulator].items()}


def _status(result: StageResult) -> Text:
    return Text(result.status, GOOD if result.ok else BAD)


def ladder_legend(engine: Engine) -> Text:
    """Return the meaning of the ladder's columns."""
    bound = "error / bound: up to 1 is what float32 rounding explains."
    return Text(f"{bound} {LEGENDS[engine.name]}", "dim")


def ladder_errors(results: Sequence[StageResult]) -> list[Text]:
    """Return a line for each stage that is wrong."""
    wrong = [one for one in results if not one.ok]
    return [Text.assemble(f"{one.stage.name}: ", _status(one), f": {one.error}") for one in wrong]
