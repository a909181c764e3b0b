"""Plans of a thread's last calls of ``conv1d`` to ``conv3d`` on a GPU, kept for its next ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from threading import local
from typing import Any

from convlab.ladder import Tile
from convlab.problems.problem import ConvProblem
from convlab.running.engines import Engine
from convlab.running.plans import Plan, plan

# The GPU, its stream, and all that a plan is made for.
PlanKey = tuple[int, int, ConvProblem, str, Tile | None, tuple[str, ...]]
KEPT_PLANS, KEPT_BYTES = 16, 2**28  # of a thread's last calls on a GPU; bytes of workspace in all

# Each thread keeps its own plans: a plan runs one call at a time, and threads may have own streams.
kept = local()


def kept_plan(
    problem: ConvProblem,
    stage: str,
    tile: Tile | None,
    engine: Engine,
    stream: int = 0,
    options: tuple[str, ...] = (),
) -> Plan:
    """Return the problem's plan with these options of its stage; on a GPU an earlier call on the
    same stream may have kept it."""
    switches: dict[str, Any] = dict.fromkeys(options, True)
    prepare = partial(plan, problem, stage, tile, engine.name, **switches)
    asked = isinstance(stage, str) and isinstance(tile, Tile | None)  # plan says what is wrong
    if not (engine.is_gpu and asked):
        # On a simulator each call gets a fresh workspace of NaN, which shows unwritten elements.
        return prepare()
    plans: OrderedDict[PlanKey, Plan] = vars(kept).setdefault("plans", OrderedDict())
    key = (_current_gpu(), stream, problem, stage, tile, options)
    if (ready := plans.get(key)) is not None:
        plans.move_to_end(key)
        return ready
    try:
        ready = prepare()
    except MemoryError:  # the kept plans may hold the missing memory
        plans.clear()
        ready = prepare()
    if ready.workspace_bytes <= KEPT_BYTES:
        plans[key] = ready
        while len(plans) > KEPT_PLANS or _workspace_bytes(plans.values()) > KEPT_BYTES:
            plans.popitem(last=False)
    return ready


def _workspace_bytes(plans: Iterable[Plan]) -> int:
    return sum(plan.workspace_bytes for plan in plans)


def _current_gpu() -> int:
    from numba import cuda

    return int(cuda.get_current_device().id)
