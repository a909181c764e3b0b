"""How much host time a planned call takes, beside the same launches made by Numba.

``python -m convlab.bench.calls [--json FILE]``: on a GPU. Calls are made in runs that the launch
queue holds, and nothing is waited for inside a run, so that the host's time is seen and not the
GPU's. Stages take turns, a run each. Each figure is the median over runs but the first, which warms
up, with the middle half's width.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from statistics import quantiles
from typing import Any

import numpy as np

from convlab.api import conv2d
from convlab.bench.measured import run_module, table
from convlab.engines import Engine
from convlab.oracle import Oracle, random_tensors
from convlab.plans import Plan
from convlab.problem import ConvProblem
from convlab.stages import LADDER, Stage

PROBLEM = ConvProblem(1, 8, 14, 14, 16, 3)  # so small that the GPU keeps up
RUNS, CALLS = 40, 50  # a GPU's queue holds about a thousand launches
LIMIT_US = 15
MADE_BY = {
    "plan": "planned call",
    "moved": "the same, another output each time",
    "numba": "Numba's launches",
    "conv2d": "conv2d",
}

Put = Callable[[np.ndarray], Any]


def measure(engine: Engine | None) -> dict[str, Any]:
    """Host time of every way to call, for every stage that is measured and kind of array."""
    assert engine is not None
    cases = [
        _Case(stage, kind, put, engine)
        for stage in LADDER
        if _is_measured(stage)
        for kind, put in _kinds(engine)
    ]
    for _ in range(RUNS + 1):  # each in turn: a host that is slower for a while is so for all
        for case in cases:
            case.run_once()
    rows = [case.row() for case in cases]
    return {
        "ok": all(row["right"] for row in rows),
        "problem": str(PROBLEM),
        "runs": RUNS,
        "calls_a_run": CALLS,
        "limit_us": LIMIT_US,
        "rows": rows,
    }


def _is_measured(stage: Stage) -> bool:
    """The first stage, and the long launches at the end of the ladder."""
    return stage is LADDER[0] or stage.name >= "s09"


def _kinds(engine: Engine) -> Iterator[tuple[str, Put]]:
    """Kinds of arrays, and what puts a host array on the GPU as one."""
    yield "Numba", engine.to_device
    try:
        import torch
    except ImportError:
        return
    if torch.cuda.is_available():
        yield "PyTorch", lambda host: torch.tensor(host, device="cuda")


class _Case:
    """A stage with arrays of one kind: every way to call it, and how long its calls took so far."""

    def __init__(self, stage: Stage, kind: str, put: Put, engine: Engine) -> None:
        self._stage, self._kind, self._engine = stage, kind, engine
        self._plan = plan = Plan(PROBLEM, stage, None, engine)
        numbers = random_tensors(PROBLEM, 6)
        self._oracle = Oracle(PROBLEM, *numbers)
        input, weight, bias = map(put, numbers)
        planned, by_numba, *moved = (
            put(np.full(PROBLEM.output_shape, np.nan, np.float32)) for _ in range(4)
        )
        self._planned, self._by_numba = (planned, *moved), by_numba
        turns = cycle(moved)
        self._steps = steps = plan.steps(input, weight, by_numba, bias)

        def numbas_launches() -> None:
            for step in steps:
                step(None)

        self._ways: dict[str, Callable[[], Any]] = {
            "plan": lambda: plan(input, weight, planned, bias),
            "moved": lambda: plan(input, weight, next(turns), bias),
            "numba": numbas_launches,
        }
        if kind == "Numba":  # conv2d takes no others
            out = put(np.empty(PROBLEM.output_shape, np.float32))
            self._ways["conv2d"] = lambda: conv2d(input, weight, bias, stage=stage.name, out=out)
        self._samples: dict[str, list[float]] = {way: [] for way in self._ways}

    def run_once(self) -> None:
        """Time a run of calls, every way."""
        for way, call in self._ways.items():
            self._engine.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            self._samples[way].append((time.perf_counter() - start) / CALLS * 1e6)
        self._engine.synchronize()

    def row(self) -> dict[str, Any]:
        """What a call took the host: median in microseconds, spread in percent of it."""
        times = {way: quantiles(samples[1:], n=4) for way, samples in self._samples.items()}
        equal = {_bits(output) for output in self._planned} == {_bits(self._by_numba)}
        return {
            "stage": self._stage.name,
            "arrays": self._kind,
            "launches": len(self._steps),
            "packed": self._plan.packed,
            "one_graph": self._plan.one_graph,
            "equal": equal,
            "right": (equal or self._splits_sums()) and self._all_right(),
            **{f"{way}_us": median for way, (_, median, _) in times.items()},
            **{
                f"{way}_spread_percent": 100 * (high - low) / median
                for way, (low, median, high) in times.items()
            },
        }

    def _splits_sums(self) -> bool:
        """Whether parts of sums are added as the GPU comes to them, so that last bits differ."""
        return self._stage.atomic_additions(PROBLEM) > 0

    def _all_right(self) -> bool:
        allowances = self._stage.allowances(PROBLEM)
        outputs = map(_on_host, (*self._planned, self._by_numba))
        return all(self._oracle.check(output, **allowances).ok for output in outputs)


def _bits(array: Any) -> bytes:
    """What an array holds, NaN and all."""
    return _on_host(array).tobytes()


def _on_host(array: Any) -> np.ndarray:
    if hasattr(array, "copy_to_host"):
        array = array.copy_to_host()
    elif hasattr(array, "cpu"):
        array = array.cpu().numpy()
    return np.asarray(array)


def show(document: dict[str, Any]) -> str:
    """A table, a row a stage and kind of array."""
    head = ["stage", "arrays", "launches", *(f"{name} us" for name in MADE_BY.values())]
    rows = [
        [
            _name(row),
            row["arrays"],
            str(row["launches"]),
            *(_cell(row, way) for way in MADE_BY),
        ]
        for row in document["rows"]
    ]
    about = (
        f"{document['device']}; {document['problem']}, the output given; medians and spreads of "
        f"{document['runs']} runs of {document['calls_a_run']} calls. At most "
        f"{document['limit_us']} us are wanted of a planned call.\n"
    )
    return f"{about}\n{table(head, rows, left=2)}"


def _name(row: dict[str, Any]) -> str:
    """The stage, with what is to be said of its outputs. Files from before the key have no
    ``right``."""
    if not row.get("right", True):
        return f"{row['stage']} (WRONG)"
    return row["stage"] if row["equal"] else f"{row['stage']} (bits differ)"


def _cell(row: dict[str, Any], way: str) -> str:
    if f"{way}_us" not in row:
        return "-"
    return f"{row[f'{way}_us']:.1f} ±{row[f'{way}_spread_percent']:.0f}%"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show and write; returns the exit code."""
    about = "How much host time a planned call takes, beside Numba's launches."
    return run_module("convlab.bench.calls", about, measure, show, arguments, needs_gpu=True)


if __name__ == "__main__":
    sys.exit(main())
