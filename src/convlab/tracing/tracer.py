"""``trace``: runs a kernel or a stage on the strict simulator and records what it did to memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numba import typeof

from convlab.ladder import Launch, Tile, stage_named
from convlab.ladder.stage import Capability, Kernel
from convlab.problems import workloads
from convlab.problems.arrays import Array
from convlab.problems.gradient import Gradient, Problem
from convlab.problems.oracle import random_tensors
from convlab.running.able_stages import why_too_old
from convlab.running.chosen_stages import stage_for
from convlab.running.engines.cubin import arch_of
from convlab.running.engines.disassembly import shared_load_bytes
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan, check_asked
from convlab.simulation.launch.translation import checked_kernel
from convlab.simulation.recording.loops import Loops
from convlab.simulation.rules.coordinates import three
from convlab.simulation.rules.findings import NotSimulated, SimulationError
from convlab.simulation.rules.launch_checks import check_all_given
from convlab.support.values import integer, shown
from convlab.tracing.recorded import (
    LaunchTrace,
    Trace,
)
from convlab.tracing.traffic_recorder import TrafficRecorder


def trace(
    kernel: Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    *arguments: object,
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
    blocks = math.prod(three(grid, "grid"))
    check_all_given(checked_kernel(kernel).py_func, arguments)
    _check_compiled(compiled)
    _check_shown(block_shown, str(getattr(kernel, "__name__", "the kernel")), blocks)
    hosts = [a.copy_to_host() if hasattr(a, "copy_to_host") else a for a in arguments]
    launch = _launch(
        kernel,
        grid=grid,
        block=block,
        arguments=hosts,
        shared_bytes=shared_bytes,
        shown=block_shown,
        compiled=compiled,
    )
    return Trace(launch.kernel, (launch,))


def trace_stage(
    stage: str,
    problem: Problem | None = None,
    tile: Tile | None = None,
    *,
    block_shown: int = 0,
    compiled: Capability | None = None,
    seed: int = 0,
) -> Trace:
    """Trace every launch of a stage on random tensors.

    ``problem=None`` takes the small Conv9, in a type and layout that the stage takes, ``tile=None``
    the stage's tile for counting. Of a ``Gradient`` the stage is ``g01``, ``g02``, or one that g02
    runs.

    Raises ``ValueError`` for an unknown stage, a stage without kernels, a tile that does not suit
    it or a GPU that cannot run it, and as :func:`trace`.
    """
    default, problem = problem is None, workloads.MODEL if problem is None else problem
    check_asked(problem, tile)
    _check_compiled(compiled)
    integer("seed", seed, at_least=0)
    simulator, is_gradient = Simulator(strict=False), isinstance(problem, Gradient)
    chosen = stage_for(stage, simulator, problem) if is_gradient else stage_named(stage)
    if default:
        problem = chosen.adapted(workloads.MODEL)
    if compiled is not None:
        if (reason := why_too_old((chosen,), compiled, arch_of(compiled))) is not None:
            raise ValueError(f"compiled is {compiled}: {reason}")
    ready = Plan(problem, chosen, tile or chosen.model_tile, simulator)
    if not ready.program.kernels:
        raise ValueError(f"stage {chosen.name} has no kernel to trace: a library does its work")
    blocks = max(math.prod(one.grid) for one in ready.program.kernels)
    _check_shown(block_shown, chosen.name, blocks)
    input, weight, bias = random_tensors(problem, seed, not is_gradient)
    output = simulator.empty(problem.output_shape, problem.dtype)
    launches = trace_steps(
        ready, input, weight, output, bias, block_shown=block_shown, compiled=compiled
    )
    about = {"problem": str(problem), "idea": chosen.title, "source": chosen.source}
    if ready.tile is not None:
        about["tile"] = str(ready.tile)
    if compiled is not None:
        about["compiled"] = arch_of(compiled)
    return Trace(chosen.name, launches, about)


def trace_launch(launch: Launch, arrays: Sequence[object], *, block_shown: int = 0) -> LaunchTrace:
    """Run a launch of a stage's program and return its memory traffic, as :func:`trace` does for
    anybody's kernel. The kernel may keep defaults, as stages without a residual do."""
    _check_shown(block_shown, launch.kernel.py_func.__name__, math.prod(launch.grid))
    return _launch(
        launch.kernel,
        grid=launch.grid,
        block=launch.block,
        arguments=arrays,
        shared_bytes=launch.shared_bytes,
        shown=block_shown,
        compiled=None,
    )


def trace_steps(
    ready: Plan,
    input: Array,
    weight: Array,
    output: Array,
    bias: Array | None,
    *,
    block_shown: int = 0,
    compiled: Capability | None = None,
    loops: Loops | None = None,
    branches_together: bool = False,
) -> tuple[LaunchTrace, ...]:
    """Run a plan's steps, trace each launch. Raises ``EndlessLoop`` when ``loops`` are used up.
    With ``branches_together`` stores in branches that exclude each other are one request."""
    launches = []
    bound = ready.bound(input, weight, output, bias)
    for (step, arrays), start in zip(bound, ready.steps(input, weight, output, bias), strict=True):
        if isinstance(step, Launch):
            shown = min(block_shown, math.prod(step.grid) - 1)  # transforms may have fewer blocks
            launch = _launch(
                step.kernel,
                grid=step.grid,
                block=step.block,
                arguments=arrays,
                shared_bytes=step.shared_bytes,
                shown=shown,
                compiled=compiled,
                loops=loops,
                branches_together=branches_together,
            )
            launches.append(launch)
        else:
            start(None)  # a library's work, which is not traced
    return tuple(launches)


def _check_shown(number: object, name: str, blocks: int) -> None:
    if not isinstance(number, int | np.integer) or isinstance(number, bool):
        raise TypeError(f"block_shown is {shown(number)}: it must be an integer")
    if blocks > 0 and not 0 <= number < blocks:  # a launch without blocks is refused as such
        raise ValueError(
            f"block_shown is {shown(number)}: {name} has blocks 0 to {blocks - 1} here"
        )


def _check_compiled(capability: object) -> None:
    if capability is None:
        return
    parts = capability if isinstance(capability, tuple) else ()
    if len(parts) != 2 or not all(type(part) is int and 0 <= part < 100 for part in parts):
        rule = "it must be None or a pair of integers, such as (9, 0)"
        raise TypeError(f"compiled is {shown(capability)}: {rule}")


def _launch(
    kernel: Kernel,
    *,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[object],
    shared_bytes: int,
    shown: int,
    compiled: Capability | None,
    loops: Loops | None = None,
    branches_together: bool = False,
) -> LaunchTrace:
    loads_of = None
    if compiled is not None:
        loads_of = shared_load_bytes(kernel, tuple(map(typeof, arguments)), compiled)
    recorder = TrafficRecorder(shown, loads_of, branches_together)
    simulator = Simulator(recorder=recorder, loops=loops)
    try:
        simulator.launch(kernel, grid, block, *arguments, shared_bytes=shared_bytes)
    except NotSimulated:
        raise
    except SimulationError as error:
        return recorder.trace(error.findings, ended=error.ended)
    return recorder.trace()
