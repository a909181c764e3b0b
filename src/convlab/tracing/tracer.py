"""``trace``: runs a kernel or a stage on the strict simulator and keeps what it did to memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import typeof

from convlab import workloads
from convlab.engines.offline import arch_of, shared_load_bytes
from convlab.engines.simulator import Simulator
from convlab.oracle import random_tensors
from convlab.plans import Plan, why_too_old
from convlab.problem import ConvProblem
from convlab.simulation.findings import NotSimulated, SimulationError, three
from convlab.stage import Capability
from convlab.stages import Launch, Tile, stage_named
from convlab.tracing.recorder import Recorder
from convlab.tracing.records import LaunchTrace, Trace


def trace(
    kernel: Any,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    *arguments: Any,
    shared_bytes: int = 0,
    block_shown: int = 0,
    compiled: Capability | None = None,
) -> Trace:
    """Run ``kernel[grid, block, 0, shared_bytes](*arguments)`` on the strict simulator and return
    its memory traffic by line and request.

    ``kernel`` is any ``@cuda.jit`` kernel. The kernel writes to NumPy arrays and to copies of
    device arrays. ``block_shown`` is the number of the block, x first, whose requests are kept. A
    faulty kernel is traced up to its fault; ``findings`` holds the faults. ``compiled=(9, 0)``
    counts loads from shared memory as the compiler merges them for that compute capability (``make
    gate`` installs the compilers).

    Raises ``ValueError`` for a launch that CUDA refuses or a ``block_shown`` outside it,
    ``NotSimulated`` for what the simulator does not know, ``CompilerMissing`` if ``compiled`` needs
    a compiler that is not installed, ``UnknownGPU`` for a GPU that the compilers do not know.
    """
    sizes = three(grid, "grid")
    _check_shown(block_shown, getattr(kernel, "__name__", str(kernel)), math.prod(sizes))
    hosts = [a.copy_to_host() if hasattr(a, "copy_to_host") else a for a in arguments]
    launch = _launch(kernel, grid, block, hosts, shared_bytes, block_shown, compiled)
    return Trace(launch.kernel, (launch,))


def trace_stage(
    stage: str,
    problem: ConvProblem | None = None,
    tile: Tile | None = None,
    *,
    block_shown: int = 0,
    compiled: Capability | None = None,
    seed: int = 0,
) -> Trace:
    """Trace every launch of a stage on random tensors.

    ``problem=None`` takes the small Conv9, ``tile=None`` the stage's tile for counting.

    Raises ``ValueError`` for an unknown stage, a stage without kernels, a tile that does not suit
    it or a GPU that cannot run it, and as :func:`trace`.
    """
    chosen = stage_named(stage)
    if compiled is not None:
        if (reason := why_too_old((chosen,), compiled, arch_of(compiled))) is not None:
            raise ValueError(f"compiled is {compiled}: {reason}")
    problem = workloads.MODEL if problem is None else problem
    ready = Plan(problem, chosen, tile or chosen.model_tile, Simulator(strict=False))
    input, weight, bias = random_tensors(problem, seed)
    output = np.full(problem.output_shape, np.nan, np.float32)
    launches: list[LaunchTrace] = []
    most = max((math.prod(one.grid) for one in ready.program.kernels), default=None)
    if most is not None:
        _check_shown(block_shown, chosen.name, most)
    bound = ready.bound(input, weight, output, bias)
    for (step, arrays), start in zip(bound, ready.steps(input, weight, output, bias), strict=True):
        if isinstance(step, Launch):
            where = step.grid, step.block
            shown = min(block_shown, math.prod(step.grid) - 1)  # transforms may have fewer blocks
            launches.append(_launch(step.kernel, *where, arrays, 0, shown, compiled))
        else:
            start(None)  # a library's work, which is not traced
    if not launches:
        raise ValueError(f"stage {chosen.name} has no kernel to trace: a library does its work")
    about = {"problem": str(problem), "idea": chosen.title, "source": chosen.source}
    if ready.tile is not None:
        about["tile"] = str(ready.tile)
    if compiled is not None:
        about["compiled"] = arch_of(compiled)
    return Trace(chosen.name, tuple(launches), about)


def _check_shown(shown: int, name: str, blocks: int) -> None:
    if blocks > 0 and not 0 <= shown < blocks:  # a launch without blocks is refused as such
        raise ValueError(f"block_shown is {shown}: {name} has blocks 0 to {blocks - 1} here")


def _launch(
    kernel: Any,
    grid: Any,
    block: Any,
    arguments: Sequence[Any],
    shared_bytes: int,
    shown: int,
    compiled: Capability | None,
) -> LaunchTrace:
    loads_of = None
    if compiled is not None:
        types = tuple(map(typeof, arguments))
        loads_of = shared_load_bytes(kernel, types, compiled)
    recorder = Recorder(shown, loads_of)
    try:
        Simulator(recorder=recorder).launch(
            kernel, grid, block, *arguments, shared_bytes=shared_bytes
        )
    except NotSimulated:
        raise
    except SimulationError as error:
        return recorder.trace(error.findings)
    return recorder.trace()
