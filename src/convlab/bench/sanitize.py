"""One run of every stage on awkward problems, for NVIDIA's compute-sanitizer to watch.

``compute-sanitizer --tool racecheck python -m convlab.bench.sanitize``; all four tools on every
stage are :mod:`convlab.bench.sanitizers`. Production tiles and tiny ones, every tile that there is
to choose from, every switch of the ablation, and ReLU of what is not finite: small problems with
remainders everywhere, since the tools slow kernels down a hundredfold. ``--stage NAME``, which may
be repeated, runs those alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from convlab.engines import Engine, EngineUnavailable, choose
from convlab.oracle import CheckResult, Oracle, random_tensors
from convlab.plans import Plan, stages_for
from convlab.problem import ConvProblem
from convlab.stages import LADDER, Stage, Tile, stage_named

PROBLEMS = (
    ConvProblem(3, 5, 19, 17, 67, (3, 5), stride=(2, 3), padding=(2, 1), dilation=(1, 2)),
    ConvProblem(2, 3, 14, 13, 70, 3, padding="same"),  # 182 pixels an image
    ConvProblem(1, 4, 12, 12, 9, 1),  # whole runs of four in the output
    ConvProblem(1, 64, 5, 5, 40, 3),  # few outputs of long sums, which s12 splits
)
# So many channels that tiles of all sizes are candidates; 72 columns, so that some stick out.
WIDE = ConvProblem(2, 16, 6, 6, 192, 3, padding=1)
# An infinity among its pixels: what s13 and s14 compute again, with runs that cross into the next
# image.
INFINITE = ConvProblem(2, 5, 7, 5, 67, 3, padding=1)


class Case(NamedTuple):
    """What is run once; ``infinite`` puts an infinity into the input."""

    problem: ConvProblem
    stage: Stage
    tile: Tile | None
    switches: dict[str, bool]
    infinite: bool = False


def cases(stages: tuple[Stage, ...]) -> Iterator[Case]:
    """Every problem, stage, tile and switch that is run."""
    for problem in PROBLEMS:
        for stage in stages:
            for switches in ({}, *({name: False} for name in stage.switches)):
                yield Case(problem, stage, stage.production_tile(problem), switches)
            if stage.tiny_tile is not None:
                yield Case(problem, stage, stage.tiny_tile, {})
    for stage in stages:
        for tile in stage.candidates(WIDE):
            yield Case(WIDE, stage, tile, {})
        if "relu" in stage.options:
            chosen = stage.production_tile(INFINITE, relu=True)
            yield Case(INFINITE, stage, chosen, {"relu": True}, infinite=True)


def check(case: Case, engine: Engine) -> CheckResult:
    """Run it and check its output."""
    problem, stage, tile, switches, infinite = case
    tensors = random_tensors(problem, 1)
    if infinite:
        tensors[0][0, 0, problem.H_i // 2, problem.W_i // 2] = np.inf
    input, weight, bias = (engine.to_device(tensor) for tensor in tensors)
    output = engine.to_device(np.full(problem.output_shape, np.nan, np.float32))
    Plan(problem, stage, tile, engine, None, None, **switches)(input, weight, output, bias)
    oracle, found = Oracle(problem, *tensors), engine.to_host(output)
    if switches.get("relu"):
        found = before_relu(found, oracle.expected)
    return oracle.check(found, **stage.allowances(problem))


def before_relu(output: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """What was there before the ReLU, as far as one can know: a zero may have been any negative
    number, so it was the right one where that is negative. A negative number is NaN, which is
    wrong: no ReLU leaves one."""
    sums = np.where((output == 0) & (expected < 0), expected, output).astype(np.float32)
    return np.where(output < 0, np.float32(np.nan), sums)


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
    stages, left_out = stages_for(
        engine, tuple(stage for stage in LADDER if not asked or stage in chosen)
    )
    if left_out is not None and asked:
        print(left_out, file=sys.stderr)
        return 2
    if left_out is not None:
        print(f"left out: {left_out}")
    wrong = runs = 0
    for case in cases(stages):
        result = check(case, engine)
        runs += 1
        if not result.ok:
            wrong += 1
            where = f"{case.stage.name} tile {case.tile} {case.switches} on {case.problem}"
            print(f"{where}: {result}")
    print(f"{runs - wrong} of {runs} runs right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
