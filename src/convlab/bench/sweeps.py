"""Speedup over seven loops in C++: ``python -m convlab.bench.sweeps [--json FILE]``.

Figures 1 to 4 of source 001: one image, and one size at a time changed: its sides, its channels,
the number of filters, their sides. All seven systems of the document are there, and beside them
CUTLASS on tensor cores and s11. The document gives no sizes but a filter of 64 x 64, too large for
CUTLASS's optimized iterator, which ends at 32 x 32. Those here are ours, and small enough that the
C++ loops, on one processor core, take a second or two at most.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from convlab.bench.baselines import Prepared
from convlab.bench.cases import Case
from convlab.bench.gpu_backend import GpuBackend
from convlab.bench.harness import SETTLED_PERCENT
from convlab.bench.measured import table
from convlab.bench.seed_runs import marked, number_of, numberless, run_cases, unsettled
from convlab.bench.systems import system_named
from convlab.problem import ConvProblem

BASELINE = "cpp_seven_loops"
# In the document's words, and what it does not have.
SYSTEMS = {
    BASELINE: "Baseline: C++, g++ -O3, one core",
    "s02_cin_naive": "CUDA naive",
    "s02_cout": "CUDA C_out parallel",
    "s02_cin": "CUDA C_in parallel",
    "cutlass_analytic": "CUTLASS analytic",
    "cutlass_optimized": "CUTLASS optimized",
    "torch_compile_fp32": "torch.compile, fp32",
    "torch_compile_tf32": "torch.compile, TF32",
    "cutlass_tf32": "CUTLASS optimized, TF32",
    "s11_im2win_full": "convlab's s11",
}
BASE = ConvProblem(1, 4, 128, 128, 16, 3)
SWEEPS: dict[str, tuple[int, ...]] = {
    "size": (32, 64, 128, 256, 512, 1024),
    "in_channels": (1, 4, 16, 64, 256),
    "out_channels": (1, 4, 16, 64, 256),
    "kernel_size": (1, 3, 7, 16, 32, 64),
}
BACKEND = "convlab.bench.sweeps:Sweeping"
HOST_MS = 500.0  # of timed work on the host, where a run is short


class Sweeping(GpuBackend):
    """The GPU, and a quick clock for the C++ loops, of which there are many sizes."""

    def time(self, prepared: Prepared, on_gpu: bool) -> Any:
        """Time its ``run``; on the host at least three times, and no more once it took half a
        second."""
        if on_gpu:
            return super().time(prepared, on_gpu)
        from convlab import timer

        return timer.measure_host(prepared.run, prepared.poison, at_most_ms=HOST_MS)


def problem_at(sweep: str, value: int) -> ConvProblem:
    """The base with one of its sizes changed."""
    if sweep == "size":
        return replace(BASE, height=value, width=value)
    return replace(BASE, **{sweep: value})  # type: ignore[arg-type]


def cases() -> list[Case]:
    """Every system at every point; a problem that several sweeps share is measured once."""
    places = [(sweep, value) for sweep, values in SWEEPS.items() for value in values]
    problems = dict.fromkeys(problem_at(*place) for place in places)
    systems = [system_named(name) for name in SYSTEMS]
    return [Case(str(problem), problem, system) for problem in problems for system in systems]


def points() -> list[dict[str, Any]]:
    """The points of all sweeps, and the problem at each."""
    return [
        {"sweep": sweep, "value": value, "problem": str(problem_at(sweep, value))}
        for sweep, values in SWEEPS.items()
        for value in values
    ]


def values_of(document: dict[str, Any], sweep: str) -> list[int]:
    """The values that a sweep went through."""
    return [point["value"] for point in document["points"] if point["sweep"] == sweep]


def speedups(document: dict[str, Any], sweep: str, name: str) -> list[float | None]:
    """How many times as fast as the C++ loops, point by point; None unless both have a time."""
    found: list[float | None] = []
    for point in document["points"]:
        if point["sweep"] == sweep:
            mine, theirs = (
                number_of(document, point["problem"], one, "time_ms") for one in (name, BASELINE)
            )
            found.append(theirs / mine if mine and theirs else None)
    return found


def show(document: dict[str, Any]) -> str:
    """The tables: one a sweep, the baseline's time and every other system's speedup."""
    sections = [show_sweep(document, sweep) for sweep in SWEEPS]
    return f"{heading(document)}\n\n" + "\n".join(
        f"#### {sweep}\n\n{section}" for sweep, section in zip(SWEEPS, sections, strict=True)
    )


def heading(document: dict[str, Any]) -> str:
    """What the numbers are."""
    return (
        f"On an {document['device']}, one image: how many times as fast as seven loops in C++ on "
        f"one core of its host. Where a size is not changed it is that of {BASE}: input, then "
        f"filters. ~ stands where the runs' spread of a system's own time stayed above "
        f"{SETTLED_PERCENT:g} %.{_spreads(document)}"
    )


def _spreads(document: dict[str, Any]) -> str:
    """How far C++'s runs are apart, which every factor shares, and the others'."""
    rows = [row for row in document["rows"] if row.get("time_spread") is not None]
    spreads = [
        [row["time_spread"] for row in rows if (row["system"] == BASELINE) is baseline]
        for baseline in (True, False)
    ]
    if not all(spreads):
        return ""
    ours, others = (f"{median(some):.1f} % (median; at most {max(some):.1f})" for some in spreads)
    return (
        f" C++'s runs spread by {ours}, which no mark says again: no factor over it is better "
        f"known than that. The others' spread by {others}."
    )


def show_sweep(document: dict[str, Any], sweep: str) -> str:
    """One sweep's table, and why numbers are missing from it."""
    others = [name for name in SYSTEMS if name != BASELINE]
    columns = {name: speedups(document, sweep, name) for name in others}

    def cells(place: int, problem: str) -> Iterator[str]:
        baseline = unsettled(document, problem, BASELINE)
        yield marked(_time(number_of(document, problem, BASELINE, "time_ms")), baseline)
        for name, column in columns.items():
            ratio = column[place]
            yield marked(_ratio(ratio), ratio is not None and unsettled(document, problem, name))

    points = [point for point in document["points"] if point["sweep"] == sweep]
    rows = [
        (f"{point['value']}", *cells(place, point["problem"])) for place, point in enumerate(points)
    ]
    where = {point["problem"]: f"{point['value']}" for point in points}
    reasons = [
        f"- {SYSTEMS[system]} at {', '.join(where[layer] for layer in layers if layer in where)}: "
        f"{state}, {reason}\n"
        for system, state, reason, layers in numberless(document)
        if any(layer in where for layer in layers)
    ]
    head = (sweep, "C++ ms", *(SYSTEMS[name] for name in others))
    return table(head, rows) + ("\nWithout a number:\n\n" + "".join(reasons) if reasons else "")


def _time(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    about = "Speedups over seven loops in C++ along image size, channels and filter size."
    return run_cases(
        "convlab.bench.sweeps", about, cases(), BACKEND, show, arguments,
        more=lambda older: {"points": points()},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
