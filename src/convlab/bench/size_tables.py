"""s12 beside PyTorch and cuDNN's GEMM class on sizes that nobody tuned for, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from convlab.bench.analysis import TORCH, in_gemm_class
from convlab.bench.measured import table
from convlab.bench.rows import Row
from convlab.problem import ConvProblem
from convlab.workloads import UNSEEN, UNTUNED

PROBLEMS = UNTUNED | UNSEEN
OURS = "s12_fused_im2win"
SYSTEMS = (OURS, TORCH, "cudnn_implicit_gemm", "cudnn_implicit_precomp_gemm", "cudnn_gemm")


@dataclass(frozen=True)
class Size:
    """A problem and its rows, by system."""

    name: str
    problem: ConvProblem
    rows: dict[str, Row]

    @property
    def gemm_class(self) -> Row | None:
        """The fastest that does every multiplication: of cuDNN's three, and PyTorch's choice."""
        others = [
            row
            for name, row in self.rows.items()
            if name != OURS
            and row.time_ms is not None
            and in_gemm_class("any" if name == TORCH else "gemm", row)
        ]
        return min(others, key=lambda row: row.time_ms or 0.0, default=None)

    def over(self, row: Row | None) -> float | None:
        """How many times as fast as that row s12 is; None unless both have a time."""
        ours = self.rows.get(OURS)
        if row is None or ours is None or not (row.time_ms and ours.time_ms):
            return None
        return row.time_ms / ours.time_ms


def sizes(document: Mapping[str, Any]) -> list[Size]:
    """The problems of the document that are still those of their names, in their order."""
    found = {name: Size(name, problem, {}) for name, problem in PROBLEMS.items()}
    for row in document["rows"]:
        size = found.get(row["layer"])
        if size is not None and row["problem"] == str(size.problem):
            size.rows[row["system"]] = Row.from_json(row)
    return [size for size in found.values() if size.rows]


def show(document: Mapping[str, Any]) -> str:
    """Two tables: how many times as fast s12 is, and the problems where it is slower."""
    found, means = sizes(document), []
    for words in ("the GEMM class", "PyTorch"):
        for which, names in (("fitted", UNTUNED), ("unseen", UNSEEN)):
            ratios = [
                ratio
                for size in found
                if size.name in names
                and (
                    ratio := size.over(
                        size.rows.get(TORCH) if words == "PyTorch" else size.gemm_class
                    )
                )
            ]
            if ratios:
                values = (geometric_mean(ratios), min(ratios), max(ratios))
                below = sum(ratio < 1 for ratio in ratios)
                means.append((
                    f"{words}, {which}", str(len(ratios)),
                    *(f"{value:.2f}" for value in values), str(below),
                ))  # fmt: skip
    slow = sorted(
        (ratio, str(size.problem), _time(size.rows[OURS]), _time(size.gemm_class))
        for size in found
        if (ratio := size.over(size.gemm_class)) and ratio < 1
    )
    head = ("s12 over", "problems", "geometric mean", "least", "most", "below 1")
    slower = ("s12 is slower than the GEMM class", "s12 ms", "GEMM class ms", "ratio")
    rows = [(problem, ours, theirs, f"{ratio:.2f}") for ratio, problem, ours, theirs in slow]
    return f"{table(head, means)}\n{table(slower, rows)}" if rows else table(head, means)


def _time(row: Row | None) -> str:
    """Milliseconds, with ~ where the runs' spread stayed above 2 %."""
    return "-" if row is None else f"{'~' if row.settled is False else ''}{row.time_ms:.4g}"
