"""One run of every stage on awkward problems, for NVIDIA's compute-sanitizer to watch.

``compute-sanitizer --tool racecheck python -m convlab.bench.sanitize``; ``make sanitize`` runs its
four tools. Production tiles and tiny ones, and every switch of the ablation: small problems with
remainders everywhere, since the tools slow kernels down a hundredfold. ``--stage NAME``, which may
be repeated, runs those alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from convlab.engines import EngineUnavailable, choose
from convlab.oracle import Oracle, random_tensors
from convlab.plans import Plan, stages_for
from convlab.problem import ConvProblem
from convlab.stages import Stage, Tile, stage_named

PROBLEMS = (
    ConvProblem(3, 5, 19, 17, 67, (3, 5), stride=(2, 3), padding=(2, 1), dilation=(1, 2)),
    ConvProblem(2, 3, 14, 13, 70, 3, padding="same"),  # 182 pixels an image
    ConvProblem(1, 4, 12, 12, 9, 1),  # whole runs of four in the output
    ConvProblem(1, 64, 5, 5, 40, 3),  # few outputs of long sums, which s12 splits
)


def cases(
    stages: tuple[Stage, ...],
) -> Iterator[tuple[ConvProblem, Stage, Tile | None, dict[str, bool]]]:
    """Every problem, stage, tile and switch that is run."""
    for problem in PROBLEMS:
        for stage in stages:
            for switches in ({}, *({name: False} for name in stage.switches)):
                yield problem, stage, stage.production_tile(problem), switches
            if stage.tiny_tile is not None:
                yield problem, stage, stage.tiny_tile, {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them on the GPU; 0 when all are right."""
    parser = argparse.ArgumentParser(prog="python -m convlab.bench.sanitize")
    parser.add_argument("--stage", action="append", default=[], metavar="NAME", help="not all")
    asked = parser.parse_args(arguments).stage
    try:
        chosen = [stage_named(name) for name in asked]
    except ValueError as error:
        parser.error(str(error))
    try:
        engine = choose("gpu")
    except EngineUnavailable as error:
        print(error, file=sys.stderr)
        return 2
    stages, left_out = stages_for(engine)
    if left_out is not None:
        print(f"left out: {left_out}")
    stages = tuple(stage for stage in stages if not asked or stage in chosen)
    wrong = runs = 0
    for problem, stage, tile, switches in cases(stages):
        tensors = random_tensors(problem, 1)
        input, weight, bias = (engine.to_device(tensor) for tensor in tensors)
        output = engine.to_device(np.full(problem.output_shape, np.nan, np.float32))
        Plan(problem, stage, tile, engine, **switches)(input, weight, output, bias)
        verdict = Oracle(problem, *tensors).judge(
            engine.to_host(output), **stage.allowances(problem)
        )
        runs += 1
        if not verdict.ok:
            wrong += 1
            print(f"{stage.name} tile {tile} {switches} on {problem}: {verdict}")
    print(f"{runs - wrong} of {runs} runs right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
