"""Where the channel-parallel stages win: ``python -m convlab.bench.channel_sweeps [--json FILE]``.

s01 and the three of s02 on one image with few channels, changing one size at a time (``SWEEPS`` in
:mod:`convlab.workloads`): image size, input channels, output channels, filter size. Every result
is judged before it is timed and again after. Source 001 reports that C_in-parallel wins with large
images and filters and loses with many channels; what is found is shown as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from convlab.bench.measured import run_module, table
from convlab.bench.measuring import SETTLED_PERCENT
from convlab.bench.seed_runs import marked
from convlab.engines import Engine
from convlab.oracle import Oracle, random_tensors
from convlab.plans import Plan
from convlab.problem import ConvProblem
from convlab.stages import stage_named
from convlab.workloads import SWEEPS, sweep_problem

STAGES = ("s01_direct", "s02_cin_naive", "s02_cin", "s02_cout")
BASELINE = STAGES[0]


def measure(engine: Engine | None) -> dict[str, Any]:
    """Every stage at every point of every sweep."""
    assert engine is not None
    points: list[dict[str, Any]] = [
        {
            "sweep": sweep,
            "value": value,
            "problem": str(sweep_problem(sweep, value)),
            "stages": _point(sweep_problem(sweep, value), engine),
        }
        for sweep, values in SWEEPS.items()
        for value in values
    ]
    right = all(stage["ok"] for point in points for stage in point["stages"].values())
    return {"points": points, "ok": right}


def _point(problem: ConvProblem, engine: Engine) -> dict[str, Any]:
    tensors = random_tensors(problem, 0)
    oracle = Oracle(problem, *tensors)
    arrays = [engine.to_device(tensor) for tensor in tensors]
    return {name: _timed(problem, name, engine, oracle, arrays) for name in STAGES}


def _timed(
    problem: ConvProblem, name: str, engine: Engine, oracle: Oracle, arrays: Sequence[Any]
) -> dict[str, Any]:
    from convlab.timer import measure as time_graph  # needs a GPU

    stage = stage_named(name)
    ready = Plan(problem, stage, None, engine)
    input, weight, bias = arrays
    output = engine.to_device(np.full(problem.output_shape, np.nan, np.float32))

    def right() -> bool:
        verdict = oracle.check(engine.to_host(output), **stage.allowances(problem))
        return verdict.ok

    ready(input, weight, output, bias)
    if not right():
        return {"ok": False, "time_ms": None, "time_spread": None}
    timing = time_graph(lambda stream: ready(input, weight, output, bias, stream=stream))
    return {
        "ok": right(),
        "time_ms": timing.median_ms,
        "time_spread": timing.spread_percent,
    }


def speedup(point: dict[str, Any], name: str) -> float | None:
    """How many times as fast as s01 at this point; None unless both are right."""
    ours, theirs = point["stages"][name], point["stages"][BASELINE]
    if not (ours["ok"] and theirs["ok"]):
        return None
    return float(theirs["time_ms"] / ours["time_ms"])


def show(document: dict[str, Any]) -> str:
    """The tables, as docs/comparisons.md has them: one a sweep."""
    sections = []
    for sweep in SWEEPS:
        rows = [
            (
                f"{point['value']}",
                *(_time(point["stages"][name]) for name in STAGES),
                *(_ratio(point, name) for name in STAGES[1:]),
            )
            for point in document["points"]
            if point["sweep"] == sweep
        ]
        head = (sweep, *(f"{name} ms" for name in STAGES), *(f"{name} x" for name in STAGES[1:]))
        sections.append(f"#### {sweep}\n\n{table(head, rows)}")
    first = document["points"][0]["problem"]
    said = (
        f"On an {document['device']}; times in ms, and `x` is how many times as fast as "
        f"{BASELINE}: below 1 it loses; ~ where the runs' spread, of either time where it is a "
        f"ratio's, stayed above {SETTLED_PERCENT:g} %. The first point is {first}."
    )
    return "\n\n".join([said, "\n".join(sections)])


def _time(stage: dict[str, Any]) -> str:
    return marked(f"{stage['time_ms']:.4f}", _rough(stage)) if stage["ok"] else "wrong"


def _ratio(point: dict[str, Any], name: str) -> str:
    value, stages = speedup(point, name), point["stages"]
    if value is None:
        return "-"
    return marked(f"{value:.2f}", _rough(stages[name]) or _rough(stages[BASELINE]))


def _rough(stage: dict[str, Any]) -> bool:
    return bool(stage["time_spread"] > SETTLED_PERCENT)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    about = "Sweeps of size, channels and filter: s01 and the channel-parallel stages."
    module = "convlab.bench.channel_sweeps"
    return run_module(module, about, measure, show, arguments, needs_gpu=True)


if __name__ == "__main__":
    sys.exit(main())
