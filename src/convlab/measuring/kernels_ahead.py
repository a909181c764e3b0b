"""The kernels of a benchmark compiled before its first row, in a process for each core.

Each measuring process would compile the kernels of its own rows, and rows share kernels: ``auto``
is one of the stages, and stages have layout transforms in common. Here every kernel is compiled
once, and the measuring processes find it on disk. The GPU has nothing to do meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from convlab.measuring.baselines import System
from convlab.problems.problem import ConvProblem
from convlab.running.compile_ahead import compile_ahead
from convlab.running.engines.absent import AbsentGpu, GpuFacts


def compile_kernels(cases: Iterable[tuple[ConvProblem, System]], gpu: GpuFacts | None) -> int:
    """Compile the kernels that these systems need for their problems on that GPU and that the cache
    lacks; return how many there were. None is not a GPU: there is nothing to compile.

    Says on standard error how far it is. A kernel that cannot be compiled is left to its row, which
    gives the reason.
    """
    if gpu is None:
        return 0
    engine = AbsentGpu(gpu)
    found = (system.wanted(problem, engine) for problem, system in cases if system.wanted)
    with suppress(RuntimeError):
        return compile_ahead([one for one in found if one is not None], engine)
    return 0
