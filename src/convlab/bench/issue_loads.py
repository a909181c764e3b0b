"""What ``issue_loads`` does for s11: ``python -m convlab.bench.issue_loads [--json FILE]``.

s11 as it is, and its own source but for that one line, so that the compiler asks for the next slice
when it likes. On the twelve layers at batch 128, where a multiprocessor's blocks take turns, and on
the single images of :mod:`convlab.bench.sweeps`, where a block is often alone. Each is measured as
``convlab bench`` measures stages, one right after the other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from numba import cuda

from convlab.bench import sweeps
from convlab.bench.laboratory import Gpu
from convlab.bench.measured import table
from convlab.bench.measuring import SETTLED_PERCENT
from convlab.bench.runner import Case
from convlab.bench.seed_runs import (
    marked,
    number_of,
    reasons_below,
    row_of,
    run_cases,
    unsettled,
)
from convlab.bench.systems import System, of_stage
from convlab.device import gpu_only
from convlab.problem import ConvProblem
from convlab.stage import Launch, Program, blocks_for
from convlab.stages import Tile, stage_named
from convlab.workloads import LAYER_NAMES, PAPER_BATCH, paper_layer

WITH, WITHOUT = "s11_im2win_full", "without_issue_loads"
LABORATORY = "convlab.bench.issue_loads:BothWays"
S11 = stage_named(WITH)


@cuda.jit(device=True, **gpu_only(forceinline=True))
def nothing():  # type: ignore[no-untyped-def]
    """Stands where ``issue_loads`` stood."""


def prepare_without(problem: ConvProblem, tile: Tile) -> Program:
    """s11's program, with ``issue_loads`` left out of its main kernel."""
    program = S11.prepare(problem, tile)
    *passes, main = program.launches
    assert isinstance(main, Launch)
    body = main.kernel.py_func
    without = FunctionType(
        body.__code__,
        body.__globals__ | {"issue_loads": nothing},
        body.__name__,
        closure=body.__closure__,
    )
    kernel = cuda.jit(**gpu_only(launch_bounds=tile.threads))(without)
    return replace(program, launches=(*passes, replace(main, kernel=kernel)))


def system(name: str) -> System:
    """s11 with that line, or without. Raises ``KeyError`` for any other name."""
    left_out = replace(
        S11, module=WITHOUT, title="s11 without issue_loads", prepare=prepare_without
    )
    return of_stage({WITH: S11, WITHOUT: left_out}[name])


class BothWays(Gpu):
    """The GPU, for processes that know the two by name."""

    def system_named(self, name: str) -> System:
        """The system of that name."""
        return system(name)


def cases() -> list[Case]:
    """Both ways on every layer, and on every image of the sweeps."""
    problems = {name: paper_layer(name, PAPER_BATCH) for name in LAYER_NAMES}
    problems |= {case.layer: case.problem for case in sweeps.cases()}
    return [
        Case(name, problem, system(which))
        for name, problem in problems.items()
        for which in (WITH, WITHOUT)
    ]


def problems() -> list[dict[str, Any]]:
    """What the document says of each problem: the terms of a sum, channels and columns of the
    output."""
    found = {case.layer: case.problem for case in cases()}
    return [
        {"name": name, "problem": str(one), "K": one.K, "M": one.M, "N": one.N}
        for name, one in found.items()
    ]


def blocks(problem: dict[str, Any], tile: str) -> int:
    """How many blocks s11's product has there with that tile, as a row names it."""
    M_B, N_B, *_ = map(int, tile.partition("/")[0].split("x"))
    return blocks_for(problem["M"], M_B) * blocks_for(problem["N"], N_B)


def less_time(document: dict[str, Any], name: str) -> float | None:
    """By how many percent less time s11 takes for that line; None where a number is missing."""
    kept, without = (number_of(document, name, which, "time_ms") for which in (WITH, WITHOUT))
    return 100 * (1 - kept / without) if kept and without else None


def show(document: dict[str, Any]) -> str:
    """The table."""
    head = (
        "problem", "tile", "terms of a sum", "blocks", "without it, ms", "with it, ms",
        "takes less, %",
    )  # fmt: skip
    rows = []
    for problem in document["problems"]:
        name = problem["name"]
        row, less = row_of(document, name, WITH), less_time(document, name)
        tile = row["algorithm"] if row else None
        rows.append(
            (
                name,
                tile or "-",
                f"{problem['K']:,}",
                f"{blocks(problem, tile):,}" if tile else "-",
                *(_time(document, name, which) for which in (WITHOUT, WITH)),
                "-" if less is None else marked(f"{less:.1f}", _either_unsettled(document, name)),
            )
        )
    return (
        f"On an {document['device']}: s11 with `issue_loads` and without, the twelve layers at "
        f"batch {PAPER_BATCH} and single images. ~ where the runs' spread, of either time in the "
        f"last column, stayed above {SETTLED_PERCENT:g} %.\n\n{table(head, rows)}"
        f"{reasons_below(document)}"
    )


def _either_unsettled(document: dict[str, Any], name: str) -> bool:
    return any(unsettled(document, name, which) for which in (WITH, WITHOUT))


def _time(document: dict[str, Any], name: str, which: str) -> str:
    time_ms = number_of(document, name, which, "time_ms")
    return "-" if time_ms is None else marked(f"{time_ms:.4f}", unsettled(document, name, which))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    about = "s11 with issue_loads and without, on the twelve layers and on single images."
    return run_cases(
        "convlab.bench.issue_loads", about, cases(), LABORATORY, show, arguments,
        more=lambda older: {"problems": problems()},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
