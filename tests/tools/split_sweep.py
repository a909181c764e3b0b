"""Time tiles and splits of stages with split-K on a GPU: what the tile heuristic's constants are
fitted to.

    PYTHONPATH=src:tests/tools python tests/tools/split_sweep.py --json OUT/splits.json
    PYTHONPATH=src:tests/tools python tests/tools/split_sweep.py --stage m15 --batch 1 --tiles 9

For each problem the script takes the tiles that the model finds the cheapest, and for each tile no
split-K, the model's number of splits and its neighbours. Each is checked against PyTorch's float64
before it is timed, beside PyTorch's float32. The error is the largest of all outputs, in float32
roundings (2**-24) of the sum of the products' sizes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from convlab.ladder import stage_named
from convlab.ladder.stage import Capability, Tile
from convlab.ladder.tile_heuristic import H200_SMS, Heuristic, heuristic_of
from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import UNSEEN_BATCHES, unseen_layers
from convlab.running.engines import choose
from convlab.running.engines.gpu import torch_stream
from convlab.running.engines.kernels import compile_launch
from convlab.running.plans import Plan

CLOCKS_PER_MS = 1.755e6  # of an H100 or H200 under load, to show clocks of the model as times


class Choice(NamedTuple):
    """A tile and a number of splits of a stage for a problem."""

    problem: ConvProblem
    stage: str
    tile: Tile
    splits: int

    @property
    def options(self) -> dict[str, int]:
        return {} if self.splits == 1 else {"splits": self.splits}

    def clocks(self, sm_count: int) -> float:
        """Return the model's time."""
        heuristic = model_of(self.stage)
        return heuristic.estimated_cost(self.problem, self.tile, sm_count, self.splits)


def model_of(name: str) -> Heuristic:
    """Return the model of the stage of that name."""
    heuristic = heuristic_of(stage_named(name))
    assert heuristic is not None, f"stage {name} has no model"
    return heuristic


def choices(problem: ConvProblem, name: str, tiles: int, sm_count: int) -> Iterator[Choice]:
    """Yield the model's cheapest tiles, each with several splits."""
    heuristic = model_of(name)

    def splits_of(tile: Tile) -> int:
        return heuristic.best_splits(problem, tile, sm_count)

    def cost(tile: Tile) -> float:
        return heuristic.estimated_cost(problem, tile, sm_count, splits_of(tile))

    for tile in sorted(heuristic.candidates(problem), key=cost)[:tiles]:
        known, best = heuristic.splits, splits_of(tile)
        at = known.index(best)
        near = {1, best, known[max(at - 2, 0)], known[min(at + 2, len(known) - 1)]}
        spills = heuristic.most_split_sums < tile.M_T * tile.N_T
        most = 1 if spills or heuristic.most_outputs < problem.M * problem.N else 2**30
        yield from (
            Choice(problem, name, tile, splits) for splits in sorted(near) if splits <= most
        )


def compile_choice(choice: Choice, capability: Capability) -> None:
    """Compile a choice's kernels, which stay in convlab's cache on disk."""
    program = stage_named(choice.stage).prepare(choice.problem, choice.tile, **choice.options)
    for launch in program.kernels:
        compile_launch(launch, program, capability)


def rows_of(problem: ConvProblem, of_problem: list[Choice]) -> Iterator[dict[str, Any]]:
    """Yield a row for PyTorch and for each choice: time, error, and the model's estimate."""
    import torch

    from convlab.measuring.baselines.pytorch import conv2d, flags
    from convlab.measuring.timer import measure

    engine = choose("gpu")
    torch.manual_seed(0)
    input = torch.randn(problem.input_shape, device="cuda")
    weight = torch.randn(problem.weight_shape, device="cuda")
    expected = conv2d(problem, input.double(), weight.double())()
    sizes = conv2d(problem, input.double().abs(), weight.double().abs())()

    def error(output: torch.Tensor) -> float:
        return float(((output.double() - expected).abs() / sizes).max()) * 2.0**24

    def run_library(stream: Any) -> None:
        with torch_stream(torch, input.device, int(stream.handle)):
            by_library()

    with flags():  # float32, and cuDNN chooses by trial
        by_library = conv2d(problem, input, weight)
        found = error(by_library())
        yield {"stage": "torch_fp32", "ms": measure(run_library).median_ms, "error": found}
    for choice in of_problem:
        output = torch.full(problem.output_shape, float("nan"), device="cuda")
        stage = stage_named(choice.stage)
        program = stage.prepare(problem, choice.tile, **choice.options)
        plan = Plan(problem, stage, choice.tile, engine, program=program)

        def run(stream: Any, plan: Plan = plan, output: torch.Tensor = output) -> None:
            plan(input, weight, output, stream=stream)

        for _ in range(2):  # the second call finds the counts that the first call left
            run(None)
        torch.cuda.synchronize()
        found = error(output)
        yield {
            "stage": choice.stage, "tile": str(choice.tile), "splits": choice.splits,
            "ms": measure(run).median_ms,
            "model_ms": choice.clocks(engine.sm_count() or H200_SMS) / CLOCKS_PER_MS,
            "error": found,
        }  # fmt: skip


def main() -> None:
    """Compile all choices in several processes, then check and time them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stage", action="append", help="default: m15 and t06")
    parser.add_argument("--batch", type=int, action="append", help="default: 1 and 32")
    parser.add_argument("--tiles", type=int, default=2, help="of each stage")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    engine = choose("gpu")
    layers = unseen_layers(chosen.batch or UNSEEN_BATCHES)
    of_layer = {
        name: [
            choice
            for stage in chosen.stage or ("m15", "t06")
            for choice in choices(problem, stage, chosen.tiles, engine.sm_count() or H200_SMS)
        ]
        for name, problem in layers.items()
    }
    everything = [choice for of_one in of_layer.values() for choice in of_one]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        compile_one = partial(compile_choice, capability=engine.capability() or (9, 0))
        list(pool.map(compile_one, everything, chunksize=4))
    rows = []
    for name, problem in layers.items():
        for row in rows_of(problem, of_layer[name]):
            rows.append({"layer": name, "problem": str(problem)} | row)
            print(json.dumps(rows[-1]), flush=True)
    if chosen.json:
        document = {
            "command": "python tests/tools/split_sweep.py --json FILE",
            "device": engine.device,
            "sm_count": engine.sm_count(),
            "bytes_a_clock": engine.limits().bytes_a_clock,
            "rows": rows,
        }
        chosen.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
