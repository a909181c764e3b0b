"""Every tile of a stage on a problem, measured as ``convlab bench`` measures the heuristic's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from convlab.bench.cases import Bench, crossed, run
from convlab.bench.results import Row
from convlab.bench.systems import of_stage
from convlab.doctor import environment
from convlab.engines import Engine
from convlab.problem import ConvProblem
from convlab.stages import Stage, Tile, candidates


@dataclass(frozen=True)
class Tuned:
    """A problem, its name, and each measured tile's row; ``model`` is the heuristic's tile."""

    name: str
    problem: ConvProblem
    model: Tile
    rows: dict[Tile, Row]

    def ms(self, tile: Tile | None) -> float | None:
        """The median time of a tile; None where there is none."""
        return self.rows[tile].time_ms if tile in self.rows else None

    @property
    def best(self) -> Tile | None:
        """The fastest; None where none has a time."""
        times = {tile: ms for tile in self.rows if (ms := self.ms(tile)) is not None}
        return min(times, key=times.__getitem__, default=None)

    @property
    def ratio(self) -> float | None:
        """The time of the heuristic's tile over the best time; None where either has none."""
        model, best = self.ms(self.model), self.ms(self.best)
        return model / best if model and best else None

    def as_json(self) -> dict[str, Any]:
        """As ``convlab tune --json`` writes it."""
        return {
            "name": self.name,
            "problem": str(self.problem),
            "flops": self.problem.flops,
            "model": astuple(self.model),
            "best": self.best and astuple(self.best),
            "ratio": self.ratio,
            "tiles": [
                {"tile": astuple(tile), "time_ms": row.time_ms, "time_spread": row.time_spread,
                 "error": row.reason}
                for tile, row in self.rows.items()
            ],
        }  # fmt: skip


def tiles_of(stage: Stage, problems: dict[str, ConvProblem]) -> list[tuple[str, Tile]]:
    """The candidates of every problem, each with the problem's name.

    Raises ``ValueError`` for a stage that has nothing to choose from.
    """
    found = [(name, tile) for name, one in problems.items() for tile in candidates(stage, one)]
    if not found:
        raise ValueError(f"stage is {stage.name!r}: it has one tile for a problem, none to choose")
    return found


def measured(
    name: str, problem: ConvProblem, stage: Stage, bench: Bench
) -> Iterator[tuple[Tile, Row]]:
    """The row of every candidate; an unsteady one comes last, after a second try."""
    systems = {of_stage(stage, tile): tile for tile in candidates(stage, problem)}
    tiles = {system.name: tile for system, tile in systems.items()}
    for row in run(crossed({name: problem}, systems), bench):
        yield tiles[row.system], row


def as_json(
    found: Sequence[Tuned], stage: Stage, engine: Engine, *, arguments: Sequence[str] = ()
) -> dict[str, Any]:
    """What ``convlab tune --json`` writes; ``arguments`` is what was typed after ``convlab``."""
    return {
        "device": engine.device,
        "multiprocessors": engine.sm_count(),
        "stage": stage.name,
        "environment": environment(arguments),
        "problems": [tuned.as_json() for tuned in found],
    }
