"""The iterations that a checked kernel may run: a number, and a multiple of its stage's own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from convlab.checking.programs import copies_of
from convlab.ladder import Stage, Tile
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan
from convlab.simulation.recording.loops import UNLIMITED, EndlessLoop, Loops

# A kernel whose loops run more iterations than so many, and so many times those of the stage, is
# taken to be endless: that takes seconds.
ITERATIONS, TIMES = 200_000, 10


def limited_loops(own: Callable[[int], int]) -> Loops:
    """Return a count of the iterations that a kernel may run: ITERATIONS, and TIMES those of the
    stage. ``own(most)`` returns how many the stage runs, or ``most`` if these are more.

    The stage's are counted only when the kernel has run ITERATIONS, and only so far as the kernel
    needs them, because it takes as long as to run the stage. A thread counts them: the simulator
    keeps the state of a launch, which is then at work, by thread.
    """

    def more(added: int) -> int:
        most = max(ITERATIONS // TIMES, 4 * added // TIMES)
        with ThreadPoolExecutor(max_workers=1) as another:
            return TIMES * another.submit(own, most).result() - added

    return Loops(ITERATIONS, more=more)


@lru_cache(maxsize=256)
def stage_iterations(
    stage: Stage, problem: ConvProblem, tile: Tile | None, most: int = UNLIMITED
) -> int:
    """Count the iterations that all loops of all threads of the stage's kernels run together, at
    most ``most``."""
    program = stage.prepare(problem, tile)
    loops = Loops(most)
    simulator = Simulator(strict=False, loops=loops)
    ready = Plan(problem, stage, program.tile, simulator, program=program)
    try:
        ready(*copies_of(problem, random_tensors(problem, 0)))
    except EndlessLoop:
        return most
    return most - loops.left
