"""What the tile heuristics choose beside what tuning on an H200 found best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convlab.problem import ConvProblem
from convlab.stages import Tile, stage_named
from convlab.workloads import LAYER_NAMES, UNSEEN, UNTUNED, paper_layer

CLOSE = 1.1


@dataclass(frozen=True)
class Choice:
    """A problem, the heuristic's tile and the best one with their times; None for a tile that was
    not measured."""

    name: str
    problem: ConvProblem
    model: Tile
    model_ms: float | None
    best: Tile
    best_ms: float

    @property
    def ratio(self) -> float | None:
        return None if self.model_ms is None else self.model_ms / self.best_ms


def choices(document: dict[str, Any]) -> list[Choice]:
    """Today's choice for every problem of what ``convlab tune --all --json`` wrote."""
    problems = {name: paper_layer(name) for name in LAYER_NAMES} | UNTUNED | UNSEEN
    stage = stage_named(document["stage"])
    found = []
    for row in document["problems"]:
        problem = problems[row["name"]]
        assert str(problem) == row["problem"], f"{row['name']} changed: measure it again"
        times = {
            Tile(*one["tile"]): one["time_ms"] for one in row["tiles"] if one["time_ms"] is not None
        }
        model = stage.production_tile(problem, document["multiprocessors"])
        best = min(times, key=times.__getitem__)
        found.append(Choice(row["name"], problem, model, times.get(model), best, times[best]))
    return found
