"""Problems of their own, for stages that ``convlab check`` does not take: those of gradients, and
those in which a library does the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from typing import Literal

import numpy as np

from convlab import Stage, Tile
from convlab.checking.launches import PIXEL
from convlab.checking.loop_limits import limited_loops
from convlab.checking.unwritten import unwritten
from convlab.ladder import BACKWARD, LADDER, Launch, Program, allowances
from convlab.problems.gradient import Gradient
from convlab.problems.number_types import FLOAT32
from convlab.problems.oracle import Oracle, random_tensors
from convlab.problems.problem import ConvProblem
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan
from convlab.simulation.recording.loops import EndlessLoop, Loops
from convlab.simulation.rules.findings import SimulationError


@dataclass(frozen=True)
class Case:
    """A convolution or a gradient of it, with a tile, options of the stage, and whole or other
    numbers."""

    problem: ConvProblem
    of: Literal["input", "weight", "output"]
    tile: Tile | None = None
    numbers: Literal["integers", "normal", "extreme", "hidden"] = "integers"
    options: dict[str, int] = field(default_factory=dict, hash=False)

    @property
    def computed(self) -> ConvProblem | Gradient:
        return self.problem if self.of == "output" else Gradient(self.problem, self.of)

    def tensors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the two tensors that are read. Of extreme numbers one is infinite and one is the
        largest float32, which TF32 rounds to infinity; what it is multiplied by is below one. Of
        hidden numbers the largest meets only zeros, so TF32 makes NaN of sums that are small."""
        integers = self.numbers == "integers"
        input, weight, _ = random_tensors(self.computed, 0, bias=False, integers=integers)
        if self.numbers == "extreme":
            input /= 8
            weight.flat[weight.size // 2] = FLOAT32.largest
            weight.flat[-1] = np.inf
        if self.numbers == "hidden":
            input[-1], weight[-1, 0, 0, 0] = 0, FLOAT32.largest
        return input, weight


SIDES = ("input", "weight")
# Strides, padding, dilation and sizes that differ; rows that no window reads; windows of padding;
# more padding than filter; groups of several channels and of one.
AWKWARD = (
    ConvProblem(1, 2, 7, 8, 3, (3, 2), (2, 3), ((0, 3), (2, 1)), (2, 1)),
    ConvProblem(2, 2, 9, 8, 3, 2, (4, 3)),
    ConvProblem(3, 3, 6, 5, 2, (2, 3), 1, ((5, 7), (1, 4)), (1, 2)),
    ConvProblem(1, 2, 11, 9, 4, (2, 3), (3, 2), (4, 9), (2, 3)),
    ConvProblem(2, 4, 5, 6, 6, (3, 2), (1, 2), 1, groups=2),
    ConvProblem(2, 6, 10, 7, 6, (3, 1), 2, (1, 0), groups=6),
    ConvProblem(5, 7, 6, 11, 5, (2, 3), (1, 2)),  # several blocks of 256 threads
    ConvProblem(1, 2, 5, 6, 3, 1, stride=2),  # a column of maps more would lie outside the array
    ConvProblem(1, 9, 4, 5, 10, (2, 3)),  # several blocks of 256 weights
)
TINY = Tile(8, 128, 16, 2, 4)
# By the start of a stage's name.
CASES: dict[str, tuple[Case, ...]] = {
    "i0": tuple(Case(problem, "output") for problem in AWKWARD if problem.groups == 1),
    "g0": tuple(Case(problem, side) for problem, side in product(AWKWARD, SIDES)),
    # dL/dweight by blocks that share the pixels: tails of pixels, taps and channels, several blocks
    # of each; float4s of dL/doutput; an image that begins within four pixels; more parts than
    # threads that add them; sums that are added once more.
    "g03": (
        Case(ConvProblem(2, 2, 7, 8, 3, (3, 2), (2, 3), ((0, 3), (2, 1)), (2, 1)), "weight"),
        Case(ConvProblem(3, 2, 5, 5, 9, 3, padding=1), "weight", TINY, options={"splits": 2}),
        Case(
            ConvProblem(3, 2, 5, 6, 9, (3, 2), padding=(1, 2), stride=(2, 1), dilation=(1, 2)),
            "weight", TINY, "extreme", {"splits": 2},
        ),
        Case(ConvProblem(2, 17, 4, 6, 9, 3, padding=1), "weight", TINY, options={"splits": 2}),
        Case(
            ConvProblem(2, 2, 4, 7, 37, 2), "weight", Tile(40, 128, 16, 10, 4),
            options={"splits": 2},
        ),
        Case(ConvProblem(2, 2, 3, 5, 37, 2), "weight", Tile(40, 128, 16, 10, 4)),
        Case(ConvProblem(37, 3, 3, 2, 8, (3, 2)), "weight", TINY, options={"splits": 3}),
        Case(ConvProblem(17, 1, 5, 5, 3, 3), "weight", TINY, "normal", {"splits": 10}),
        Case(
            ConvProblem(3, 2, 5, 6, 9, (3, 2), padding=(1, 2), stride=2, dilation=(1, 2)),
            "weight", TINY, "hidden", {"splits": 2},
        ),
        Case(
            ConvProblem(2, 3, 7, 6, 9, 3, padding=1), "weight", Tile(16, 64, 16, 4, 2),
            options={"splits": 2},
        ),
    ),
}  # fmt: skip


@cache
def stages() -> dict[str, Stage]:
    """Return the stages that have problems of their own, by name."""
    ended_by_library = [one for one in LADDER if not isinstance(_last_step(one), Launch)]
    return {stage.name: stage for stage in (*ended_by_library, *BACKWARD)}


def _last_step(stage: Stage) -> object:
    """Return the last step of a stage's program: the main kernel's launch, or a library's work."""
    return stage.prepare(stage.adapted(PIXEL), stage.tiny_tile).launches[-1]


def attempts(stage: Stage, prepare: Callable[..., Program]) -> Iterator[bool]:
    """Yield for each problem whether a program is right, with no findings, and ends."""
    starts = [start for start in sorted(CASES, reverse=True) if stage.name.startswith(start)]
    assert starts, f"CASES has no problems for {stage.name}"
    for case in CASES[starts[0]]:
        yield _is_right(stage, prepare, case)


def _is_right(stage: Stage, prepare: Callable[..., Program], case: Case) -> bool:
    loops = limited_loops(partial(_iterations, stage.name, case))
    try:
        output, partly_unwritten = _run(stage, prepare, case, strict=True, loops=loops)
    except (SimulationError, EndlessLoop):
        return False
    except Exception:  # whatever a wrong kernel raises is its result
        return False
    # Extreme and hidden numbers make NaN of sums in a buffer.
    if partly_unwritten and case.numbers in ("integers", "normal"):
        return False
    oracle = Oracle(case.computed, *case.tensors())
    return bool(oracle.check(output, **allowances(stage, case.computed)).ok)


@cache
def _iterations(name: str, case: Case, most: int) -> int:
    """Count the iterations that all loops of all threads of the stage's kernels run together, at
    most ``most``."""
    stage, loops = stages()[name], Loops(most)
    try:
        _run(stage, stage.prepare, case, strict=False, loops=loops)
    except EndlessLoop:
        return most
    return most - loops.left


def _run(
    stage: Stage, prepare: Callable[..., Program], case: Case, strict: bool, loops: Loops
) -> tuple[np.ndarray, str]:
    """Return the result, and the name of a buffer that is partly unwritten."""
    tile = case.tile or stage.tiny_tile
    program = prepare(case.computed, tile, **case.options)
    simulator = Simulator(strict, loops=loops)
    output = np.full(case.computed.output_shape, np.nan, np.float32)
    plan = Plan(case.computed, stage, tile, simulator, program=program)
    no_bias = np.zeros(case.computed.out_channels, np.float32)
    arrays = *case.tensors(), output, no_bias
    plan(*arrays)
    return output, unwritten(plan, arrays)
