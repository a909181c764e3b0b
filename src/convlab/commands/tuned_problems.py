"""The problems of ``convlab tune``: each with its tiles' rows, and the loop that measures them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from convlab.commands import exits
from convlab.problems.problem import ConvProblem

if TYPE_CHECKING:
    from convlab.commands.tune_gpus import Measuring
    from convlab.ladder import Stage, Tile
    from convlab.measuring.cases import BenchCase
    from convlab.measuring.results import ResultRow


@dataclass(frozen=True)
class Tuned:
    """A problem, its name, and each measured tile's row; ``model`` is the heuristic's tile."""

    name: str
    problem: ConvProblem
    model: Tile
    rows: dict[Tile, ResultRow]

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

    def as_json(self) -> dict[str, object]:
        """Return this problem's part of the document of ``convlab tune --json``."""
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


def measure_tiles(
    gpus: Measuring,
    stage: Stage,
    problems: Sequence[Tuned],
    tiles: Mapping[str, Sequence[Tile]],
) -> Iterator[bool]:
    """Measure the tiles of each problem, which ``tiles`` has by the problem's name, and remember
    the best one. Yields after each tile: True if it was the last of its problem."""
    from convlab.measuring.cases import crossed
    from convlab.measuring.systems import of_stage
    from convlab.running.tuned import remember

    by_name = {one.name: one for one in problems}
    tile_of_system: dict[str, Tile] = {}
    cases: list[BenchCase] = []
    for name, one in by_name.items():
        systems = [of_stage(stage, tile) for tile in tiles[name]]
        names = [system.name for system in systems]
        tile_of_system |= zip(names, tiles[name], strict=True)
        cases += crossed({name: one.problem}, systems)

    for row in gpus.rows(cases):
        tuned = by_name[row.layer]
        tuned.rows[tile_of_system[row.system]] = row
        complete = len(tuned.rows) == len(tiles[tuned.name])
        best = tuned.best
        if complete and best is not None and (ms := tuned.ms(best)) is not None:
            with exits.refusing(OSError):
                remember(tuned.problem, stage, gpus.engine.device, best, ms)
        yield complete
