"""s12 beside PyTorch and cuDNN's GEMM class on sizes that nobody tuned for, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convlab.bench.analysis import TORCH, geometric_mean, in_gemm_class
from convlab.bench.measured import table
from convlab.bench.rows import Row
from convlab.problem import ConvProblem
from convlab.workloads import UNSEEN, UNTUNED

PROBLEMS = UNTUNED | UNSEEN
OURS = "s12_fused_im2win"
SYSTEMS = (OURS, TORCH, "cudnn_implicit_gemm", "cudnn_implicit_precomp_gemm", "cudnn_gemm")


def marked(cell: str, unsettled: bool) -> str:
    return f"~{cell}" if unsettled else cell


def numberless(document: Mapping[str, Any]) -> list[tuple[str, str, str, list[str]]]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in document["rows"]:
        if row["state"] != "measured":
            key = row["system"], row["state"], row["reason"]
            found.setdefault(key, []).append(row["layer"])
    return [(*key, layers) for key, layers in found.items()]


@dataclass(frozen=True)
class Size:
    """A problem and its rows, by system."""

    name: str
    problem: ConvProblem
    rows: Mapping[str, Row]

    def time_ms(self, system: str) -> float | None:
        """A system's time; None where it has none."""
        row = self.rows.get(system)
        return None if row is None else row.time_ms

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
        ours = self.time_ms(OURS)
        return row.time_ms / ours if row is not None and row.time_ms and ours else None


def sizes(document: Mapping[str, Any]) -> list[Size]:
    """The problems of the document that are still those of their names, in their order."""
    found = {name: Size(name, problem, {}) for name, problem in PROBLEMS.items()}
    for row in document["rows"]:
        size = found.get(row["layer"])
        if size is not None and row["problem"] == str(size.problem):
            found[size.name] = Size(
                size.name, size.problem, {**size.rows, row["system"]: Row.from_json(row)}
            )
    return [size for size in found.values() if size.rows]


def show(document: Mapping[str, Any]) -> str:
    """Two tables: how many times as fast s12 is, and the problems where it is slower."""
    found = sizes(document)
    groups: dict[str, Callable[[Size], Row | None]] = {
        "the GEMM class": lambda size: size.gemm_class,
        "PyTorch": lambda size: size.rows.get(TORCH),
    }
    means = [
        (f"{words}, {which}", *_summary(ratios))
        for words, other in groups.items()
        for which, names in (("fitted", UNTUNED), ("unseen", UNSEEN))
        if (
            ratios := [
                value for size in found if size.name in names and (value := size.over(other(size)))
            ]
        )
    ]
    slow = sorted(
        ((ratio, size) for size in found if (ratio := size.over(size.gemm_class)) and ratio < 1),
        key=lambda pair: pair[0],
    )
    head = ("s12 over", "problems", "geometric mean", "least", "most", "below 1")
    slower = ("s12 is slower than the GEMM class", "s12 ms", "GEMM class ms", "ratio")
    rows = [(str(size.problem), *_times(size), f"{ratio:.2f}") for ratio, size in slow]
    return f"{table(head, means)}\n{table(slower, rows)}" if rows else table(head, means)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value]


def _summary(ratios: Sequence[float]) -> tuple[str, ...]:
    values = (geometric_mean(ratios), min(ratios), max(ratios))
    below = sum(ratio < 1 for ratio in ratios)
    return (str(len(ratios)), *(f"{value:.2f}" for value in values), str(below))


def _times(size: Size) -> tuple[str, str]:
    """The times of s12 and of the GEMM class, with ~ where the runs' spread stayed above 2 %."""
    rows = (size.rows[OURS], size.gemm_class)
    return tuple(  # type: ignore[return-value]
        "-" if row is None else f"{'~' if row.settled is False else ''}{row.time_ms:.4g}"
        for row in rows
    )
