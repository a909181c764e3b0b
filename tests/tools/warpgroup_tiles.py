"""Time the tiles of stages that multiply by warpgroups on a GPU: what ``WARPGROUP_RATES`` of
``ladder/tile_heuristic.py`` and ``SLICE_NS`` of ``ladder/gradients/g03_shared_pixels.py`` are
fitted to.

    PYTHONPATH=src python tests/tools/warpgroup_tiles.py --json OUT/warpgroup_tiles.json

Convolutions are t06's, on layers with few output channels, some as gradients of the input;
gradients of the weight are g03's. Each is compared with PyTorch's float64 before it is timed, and
the error is the largest difference relative to the largest output.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple

from convlab.ladder.gradients import g03_shared_pixels as g03
from convlab.ladder.stage import Capability, Program, Stage, Tile
from convlab.ladder.tensor_cores.t06_split_k import STAGE as T06
from convlab.ladder.tile_heuristic import WARPGROUP_RATES
from convlab.problems.gradient import Gradient
from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import LAYER_NAMES, paper_layer
from convlab.running.engines import choose
from convlab.running.engines.gpu import torch_stream
from convlab.running.engines.kernels import compile_launch
from convlab.running.plans import Plan

BATCH = 32
MOST_ERROR = 1e-5  # of the largest output; float32 sums of a million terms differ by 2e-6
LAYERS = {name: paper_layer(name, BATCH) for name in LAYER_NAMES} | {
    "7x7 stem": ConvProblem(BATCH, 3, 224, 224, 64, 7, stride=2, padding=3),
    "64 channels": ConvProblem(BATCH, 64, 56, 56, 64, 3, padding=1),
    "128 channels": ConvProblem(BATCH, 128, 28, 28, 128, 3, padding=1),
    "512 channels": ConvProblem(BATCH, 512, 7, 7, 512, 3, padding=1),
    "64 to 256 channels": ConvProblem(BATCH, 64, 56, 56, 256, 1),
    "256 to 64 channels": ConvProblem(BATCH, 256, 56, 56, 64, 1),
}
_TO_FEW = ConvProblem(BATCH, 64, 56, 56, 1, 3, padding=1)
FEW_CHANNELS = {
    f"to {M}": replace(_TO_FEW, out_channels=M) for M in (1, 3, 8, 12, 16, 24, 40, 48, 72, 80, 96)
}


Computed = Literal["output", "input", "weight"]


class Choice(NamedTuple):
    """A tile for a convolution, ``of`` "output", or for a gradient."""

    layer: str
    problem: ConvProblem
    of: Computed
    tile: Tile

    @property
    def stage(self) -> Stage:
        return T06 if self.of == "output" else g03.STAGE

    @property
    def computed(self) -> ConvProblem | Gradient:
        """The convolution or the gradient, as a plan takes it."""
        return self.problem if self.of == "output" else Gradient(self.problem, self.of)

    def program(self) -> Program:
        """Return the stage's program with this tile."""
        prepare: Callable[..., Program] = self.stage.prepare
        return prepare(self.computed, self.tile)


def tiles_of(M: int) -> Iterator[Tile]:
    """Yield the warpgroup's tiles that compute less than twice M channels and eight more."""
    for M_B in WARPGROUP_RATES:
        if -(-M // M_B) * M_B < 2 * M + 8:
            yield Tile(M_B, 128, 16, M_B // 4, 4)


def choices() -> Iterator[Choice]:
    """Yield all that is timed."""
    for name, problem in FEW_CHANNELS.items():
        yield from (Choice(name, problem, "output", tile) for tile in tiles_of(problem.C_o))
    for name, problem in LAYERS.items():
        made = Gradient(problem, "input").as_convolution
        if made.C_o < 96:
            yield from (Choice(name, problem, "input", tile) for tile in tiles_of(made.C_o))
        for M_B, N_B in g03.SLICE_NS:
            if 2 * max(32, problem.C_o) > M_B:
                tile = Tile(M_B, N_B, 16, M_B // 4, N_B // 32)
                yield Choice(name, problem, "weight", tile)


def compile_choice(choice: Choice, capability: Capability) -> None:
    """Compile a choice's kernels, which stay in convlab's cache on disk."""
    program = choice.program()
    for launch in program.kernels:
        compile_launch(launch, program, capability)


def rows_of(of_one: list[Choice]) -> Iterator[dict[str, Any]]:
    """Yield a row for PyTorch and for each choice, which are of one layer and tensor."""
    import torch

    from convlab.measuring.baselines.pytorch import flags
    from convlab.measuring.timer import measure

    problem, of = of_one[0].problem, of_one[0].of
    engine = choose("gpu")
    torch.manual_seed(0)
    input = torch.randn(problem.input_shape, device="cuda")
    weight = torch.randn(problem.weight_shape, device="cuda") / problem.K**0.5
    of_output = torch.randn(problem.output_shape, device="cuda")
    padding = [problem.padding[0][0], problem.padding[1][0]]
    wanted = [of == "input", of == "weight", False]
    tensors = {
        "output": (input, weight),
        "input": (of_output, weight),
        "weight": (input, of_output),
    }

    def by_pytorch(*tensors: torch.Tensor) -> torch.Tensor:
        settings = problem.stride, padding, problem.dilation
        if of == "output":
            return torch.nn.functional.conv2d(*tensors, None, *settings)
        found = torch.ops.aten.convolution_backward(
            *tensors, None, *settings, False, [0, 0], 1, wanted
        )
        return found[0 if of == "input" else 1]

    of_pytorch = (input, weight) if of == "output" else (of_output, input, weight)

    def run_library(stream: Any) -> None:
        with torch_stream(torch, input.device, int(stream.handle)):
            by_pytorch(*of_pytorch)

    expected = by_pytorch(*(tensor.double() for tensor in of_pytorch))
    with flags():  # float32, and cuDNN chooses by trial
        by_pytorch(*of_pytorch)
        yield {"stage": "torch_fp32", "ms": measure(run_library).median_ms}
    for choice in of_one:
        output = torch.full_like(expected, float("nan"), dtype=torch.float32)
        program = choice.program()
        plan = Plan(choice.computed, choice.stage, choice.tile, engine, program=program)

        def run(stream: Any, plan: Plan = plan, output: torch.Tensor = output) -> None:
            plan(*tensors[of], output, stream=stream)

        run(None)
        torch.cuda.synchronize()
        error = float((output.double() - expected).abs().max() / expected.abs().max())
        if not error <= MOST_ERROR:  # NaN is no error that is small enough
            raise AssertionError(f"{choice}: the largest error is {error} of the largest output")
        tile, ms = str(choice.tile), measure(run).median_ms
        yield {"stage": choice.stage.name, "tile": tile, "ms": ms, "error": error}


def main() -> None:
    """Compile all choices in several processes, then check and time them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    engine = choose("gpu")
    everything = [*choices()]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        compile_one = partial(compile_choice, capability=engine.capability() or (9, 0))
        list(pool.map(compile_one, everything, chunksize=4))
    of_tensor: dict[tuple[str, str], list[Choice]] = {}
    for choice in everything:
        of_tensor.setdefault((choice.layer, choice.of), []).append(choice)
    rows = []
    for (layer, of), of_one in of_tensor.items():
        for row in rows_of(of_one):
            problem = str(of_one[0].problem)
            rows.append({"layer": layer, "problem": problem, "of": of} | row)
            print(json.dumps(rows[-1]), flush=True)
    if chosen.json:
        document = {
            "command": "python tests/tools/warpgroup_tiles.py --json FILE",
            "device": engine.device,
            "sm_count": engine.sm_count(),
            "rows": rows,
        }
        chosen.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
