"""Tables with a GPU beside the other: what ``tests/tools/split_sweep.py`` measured on each.

Every file ``docs/results/splits_NAME.json`` is one GPU.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import papers

from convlab.ladder import short_name, stage_named, tile_named
from convlab.ladder.stage import Stage, Tile
from convlab.ladder.stage_choice import GpuLimits, fastest
from convlab.ladder.tile_heuristic import heuristic_of
from convlab.measuring import table
from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import UNSEEN_BATCHES, problem_of, unseen_layers

FILES = "splits_*.json"
STAGES = tuple(map(stage_named, ("m15", "t06")))  # those that auto chooses from on Hopper
LARGEST_ERROR = 16.0  # of a sum, in roundings of the sum of its products' sizes

Choice = tuple[str, Tile, int]  # a stage's short name, tile and number of splits


@dataclass(frozen=True)
class Layer:
    """A layer's times on a GPU in milliseconds: PyTorch's, and those of stages' tiles and
    splits."""

    name: str
    problem: ConvProblem
    torch: float
    times: dict[Choice, float]

    def best(self, stage: Stage | None = None) -> float:
        """Return the least time, of a stage or of all."""
        own = stage and short_name(stage.name)
        return min(ms for choice, ms in self.times.items() if own in (None, choice[0]))

    def chosen(self, gpu: GpuLimits) -> float:
        """Return the time of the stage that auto takes, with the cheapest of the measured tiles and
        splits by its model."""
        stage = fastest(STAGES, self.problem, gpu)
        heuristic = heuristic_of(stage)
        assert heuristic is not None, f"{stage.name} has a model"

        def cost(choice: Choice) -> float:
            _, tile, splits = choice
            return heuristic.estimated_cost(self.problem, tile, gpu.sm_count, splits)

        own = [choice for choice in self.times if choice[0] == short_name(stage.name)]
        return self.times[min(own, key=cost)]


@dataclass(frozen=True)
class Gpu:
    """A GPU and the layers that were measured on it."""

    device: str
    limits: GpuLimits
    layers: dict[str, Layer]


def read(file: Path) -> Gpu:
    """Return what a file holds. Raises ``ValueError`` for a wrong output or another layer."""
    whole = json.loads(file.read_text(encoding="utf-8"))
    known, torch = unseen_layers(), {}
    times: dict[str, dict[Choice, float]] = defaultdict(dict)
    for row in whole["rows"]:
        name = row["layer"]
        if not row["error"] < LARGEST_ERROR:
            raise ValueError(f"{file}: {row} was wrong")
        if problem_of(row["problem"]) != known.get(name):
            raise ValueError(f"{file}: {name} is another layer now: measure it again")
        if row["stage"] == "torch_fp32":
            torch[name] = row["ms"]
        else:
            times[name][row["stage"], tile_named(row["tile"]), row["splits"]] = row["ms"]
    layers = {name: Layer(name, known[name], torch[name], times[name]) for name in torch}
    bandwidth = whole.get("bytes_a_clock", GpuLimits().bytes_a_clock)
    return Gpu(whole["device"], GpuLimits(whole["sm_count"], bandwidth), layers)


def gpus() -> list[Gpu]:
    """Return all GPUs that have a file, in the order of the files' names."""
    return [read(file) for file in sorted((papers.ROOT / papers.RESULTS).glob(FILES))]


def mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    known = [*values]
    return math.prod(known) ** (1 / len(known))


def gpu_section(_: str = "") -> str:
    """Return the tables: means for each GPU and batch, then each layer on all GPUs."""
    known = gpus()
    rows = []
    for batch in UNSEEN_BATCHES:
        for gpu in known:
            of_batch = [one for one in gpu.layers.values() if one.problem.batch == batch]
            ratios = [one.torch / one.chosen(gpu.limits) for one in of_batch]
            over_best = mean(one.chosen(gpu.limits) / one.best() for one in of_batch)
            means = mean(ratios), min(ratios), over_best
            rows.append([str(batch), gpu.device, *(f"{value:.2f}" for value in means)])
    head = ("images", "GPU", "auto over PyTorch", "least", "auto's time over the best")
    of_each = ("PyTorch", *(short_name(stage.name) for stage in STAGES), "auto")
    columns = [f"{gpu.device.removeprefix('NVIDIA ')}: {name}" for gpu in known for name in of_each]
    lines = []
    for name in unseen_layers():
        cells = []
        for gpu in known:
            one = gpu.layers[name]
            own = [one.best(stage) for stage in STAGES]
            cells += [f"{ms:.4f}" for ms in (one.torch, *own, one.chosen(gpu.limits))]
        lines.append([name, *cells])
    return f"\n{table(head, rows, 2)}\n\n{table(('layer', *columns), lines)}\n\n"
