"""Figures and tables of 001, 002 and 003 from our results: what is drawn, the tables, what was
claimed there and what is found here. :mod:`convlab.bench.seed_results` puts them on a page, and
:mod:`convlab.bench.seed_paper` has those of 000."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from convlab.bench import im2col, sweeps, unfold_table
from convlab.bench.bandwidth import is_settled
from convlab.bench.charts import Chart
from convlab.bench.seed_runs import marked, unsettled

# 001's own kernels.
THEIRS = ("s02_cin_naive", "s02_cout", "s02_cin")
SWEEP_TITLES = {
    "size": ("Figure 1", "Speedup over C++ along the image's size", "pixels a side"),
    "in_channels": ("Figure 2", "Speedup over C++ along input channels", "C_in"),
    "out_channels": ("Figure 3", "Speedup over C++ along output channels", "C_out"),
    "kernel_size": ("Figure 4", "Speedup over C++ along the filter's size", "K, of K x K"),
}


@dataclass(frozen=True)
class Shown:
    """A figure or table made again: what is drawn by file name, Markdown, and claims as (the
    document's words, where they stand, what is found here)."""

    charts: dict[str, Chart] = field(default_factory=dict)
    text: str = ""
    claims: Sequence[tuple[str, str, str]] = ()


# 001, from convlab.bench.sweeps.


def unsteady(document: dict[str, Any], name: str, *systems: str) -> list[int]:
    """The places of a sweep where a speedup is no better known than a time that was not steady:
    any of these systems', but for C++'s, which hardly ever is and is told of once."""
    points = [point["problem"] for point in document["points"] if point["sweep"] == name]
    return [
        place
        for place, problem in enumerate(points)
        if any(unsettled(document, problem, one) for one in systems if one != sweeps.BASELINE)
    ]


def sweep(document: dict[str, Any], name: str) -> Shown:
    """One of 001's Figures 1 to 4."""
    number, title, across = SWEEP_TITLES[name]
    chart = Chart(
        f"001's {number} on an {document['device']}: {title[0].lower()}{title[1:]}",
        [str(value) for value in sweeps.values_of(document, name)],
        across,
        "times as fast as seven loops in C++",
        {
            words: sweeps.speedups(document, name, system)
            for system, words in sweeps.SYSTEMS.items()
            if system != sweeps.BASELINE
        },
        log=True,
        over_one=True,
        unsettled={
            words: unsteady(document, name, system, sweeps.BASELINE)
            for system, words in sweeps.SYSTEMS.items()
        },
    )
    return Shown(
        {f"001-{number.lower().replace(' ', '-')}": chart},
        sweeps.show_sweep(document, name),
        SWEEP_CLAIMS[name](document, name),
    )


def ratios(document: dict[str, Any], name: str, one: str, other: str) -> dict[int, float]:
    """How many times as fast one system is as another, by the sweep's value."""
    pairs = zip(
        sweeps.values_of(document, name),
        sweeps.speedups(document, name, one),
        sweeps.speedups(document, name, other),
        strict=True,
    )
    return {value: mine / theirs for value, mine, theirs in pairs if mine and theirs}


def _against(document: dict[str, Any], name: str, one: str, other: str) -> str:
    """``C_in over CUTLASS optimized: 0.49 at 32, ~0.50 at 64``."""
    values = sweeps.values_of(document, name)
    marks = {values[place]: "~" for place in unsteady(document, name, one, other)}
    listed = ", ".join(
        f"{marks.get(value, '')}{ratio:.2f} at {value}"
        for value, ratio in ratios(document, name, one, other).items()
    )
    short = {"s02_cin": "C_in parallel", "s02_cout": "C_out parallel"}
    return f"{short[one]} over {sweeps.SYSTEMS[other]}: {listed}"


def _grows(document: dict[str, Any], name: str, system: str) -> str:
    rough = unsteady(document, name, system, sweeps.BASELINE)
    known = [
        f"{'~' if place in rough else ''}{ratio:,.0f}x"
        for place, ratio in enumerate(sweeps.speedups(document, name, system))
        if ratio
    ]
    return f"{known[0]} at the first point, {known[-1]} at the last"


def _size_claims(document: dict[str, Any], name: str) -> Sequence[tuple[str, str, str]]:
    return (
        (
            'C_in parallel is "even outperforming the CUTLASS optimized implementation"',
            "3.2, Figure 1",
            _against(document, name, "s02_cin", "cutlass_optimized"),
        ),
        (
            'both "scaled well with spatial dimensions"',
            "3.2, Figure 1",
            f"C_in parallel {_grows(document, name, 's02_cin')}; "
            f"C_out parallel {_grows(document, name, 's02_cout')}",
        ),
    )


def _channel_claims(document: dict[str, Any], name: str) -> Sequence[tuple[str, str, str]]:
    claimed, place = {
        "in_channels": ('"our methods are outperformed by the CUTLASS baselines"', "Figure 2"),
        "out_channels": ('"our methods are dwarfed by the CUTLASS baselines"', "Figure 3"),
    }[name]
    return tuple(
        (claimed, place, _against(document, name, one, other))
        for one in ("s02_cin", "s02_cout")
        for other in ("cutlass_analytic", "cutlass_optimized")
    )


def _filter_claims(document: dict[str, Any], name: str) -> Sequence[tuple[str, str, str]]:
    last = sweeps.values_of(document, name)[-1]
    known = last in ratios(document, name, "cutlass_optimized", sweeps.BASELINE)
    return (
        (
            'C_in parallel "outperforms all other methods including the optimized CUTLASS kernel"',
            "Figure 4",
            _against(document, name, "s02_cin", "cutlass_optimized"),
        ),
        (
            'C_out parallel "significantly outperforms the strong CUTLASS baselines"',
            "3.5",
            _against(document, name, "s02_cout", "cutlass_optimized"),
        ),
        (
            'no data for CUTLASS optimized at 64: it "requires K" <= 32',
            "Figure 4",
            f"at {last} it " + ("runs" if known else "refuses, as there"),
        ),
    )


SWEEP_CLAIMS: dict[str, Callable[[dict[str, Any], str], Sequence[tuple[str, str, str]]]] = {
    "size": _size_claims,
    "in_channels": _channel_claims,
    "out_channels": _channel_claims,
    "kernel_size": _filter_claims,
}


def headline(document: dict[str, Any]) -> Shown:
    """001's abstract: the most that its kernels gain anywhere."""

    def most(other: str) -> str:
        found = [
            (ratio, system, f"{name} {value}")
            for system in THEIRS
            for name in sweeps.SWEEPS
            for value, ratio in ratios(document, name, system, other).items()
        ]
        ratio, system, where = max(found)
        name, value = where.split(" ")
        place = sweeps.values_of(document, name).index(int(value))
        mark = "~" if place in unsteady(document, name, system, other) else ""
        return f"{mark}{ratio:,.{0 if ratio >= 10 else 1}f}x ({sweeps.SYSTEMS[system]}, {where})"

    claims = (
        ('"upto a 270x speedup over our C++ baseline"', "abstract", most(sweeps.BASELINE)),
        (
            '"upto a 2.8x speedup over a highly optimized CUTLASS kernel"',
            "abstract",
            f"{most('cutlass_optimized')} over optimized, {most('cutlass_analytic')} over analytic",
        ),
    )
    return Shown({}, f"{sweeps.heading(document)}\n", claims)


# 002, from convlab.bench.unfold_table.


def unfold(document: dict[str, Any]) -> Shown:
    """Its Table 1."""
    chart = Chart(
        f"002's Table 1 on an {document['device']}, beside the document's RTX A6000",
        ["conv2d", "conv2d TF32", "fast, torch", "fast, torch TF32", "fast, Nd", "fast, Nd TF32"],
        "the table's rows, in its order",
        "milliseconds",
        {
            "the document's, by its profiler": [line.claimed_ms for line in _claimed().values()],
            "the first call here": [
                document["first_calls"].get(name, {}).get("ms") for name in _claimed()
            ],
            "on the GPU here, replayed": [
                unfold_table.time_of(document, name) for name in _claimed()
            ],
        },
        log=True,
        joined=False,
        unsettled={
            "on the GPU here, replayed": [
                place
                for place, name in enumerate(_claimed())
                if unsettled(document, str(unfold_table.PROBLEM), name)
            ]
        },
    )

    def ratio(one: str, other: str) -> str:
        parts = []
        for words, times in (
            ("first calls", lambda name: document["first_calls"].get(name, {}).get("ms")),
            ("on the GPU", lambda name: unfold_table.time_of(document, name)),
        ):
            first, second = times(one), times(other)
            swings = words == "on the GPU" and any(
                unsettled(document, str(unfold_table.PROBLEM), name) for name in (one, other)
            )
            factor = marked(f"{first / second:.2f}x", swings) if first and second else "-"
            parts.append(f"{words} {factor}")
        return ", ".join(parts)

    claims = (
        (
            'conv2d_fast alone "offers more than 2x speed up compared to F.conv2d"',
            "4",
            ratio("conv2d", "fast_torch"),
        ),
        ('F.conv2d with TF32 in cuDNN: "over 15x speedup"', "4", ratio("conv2d", "conv2d_tf32")),
        (
            '"the native unfold functional" with TF32 in matmul: "~ 2x speedup"',
            "4",
            ratio("fast_torch", "fast_torch_tf32"),
        ),
        (
            '"the generalized unfoldNd functional" with TF32 in matmul: "~ 2x speedup"',
            "4",
            ratio("fast_unfoldnd", "fast_unfoldnd_tf32"),
        ),
    )
    return Shown({"002-table-1": chart}, unfold_table.show(document), claims)


def _claimed() -> dict[str, unfold_table.Line]:
    return {name: line for name, line in unfold_table.LINES.items() if line.claimed_ms is not None}


# 003, from convlab.bench.im2col.


def kernels_by_depth(document: dict[str, Any]) -> Shown:
    """Its kernels for each depth pitch."""
    kinds = {
        "the depth-last kernels": "depth_last",
        "a copy of as many bytes": "copy",
        "convlab's plain im2col": "plain",
        "PyTorch's unfold": "torch_unfold",
    }
    chart = Chart(
        f"003's kernels on an {document['device']}: how fast they move memory",
        [str(row["depth"]) for row in document["depths"]],
        "depth pitch",
        "TB/s, read and written",
        {
            words: [row[kind] and row[kind]["tb_per_s"] for row in document["depths"]]
            for words, kind in kinds.items()
        },
        unsettled={
            words: [
                place
                for place, row in enumerate(document["depths"])
                if row[kind] and not is_settled(row[kind])
            ]
            for words, kind in kinds.items()
        },
    )
    share = [row["depth_last"]["tb_per_s"] / row["copy"]["tb_per_s"] for row in document["depths"]]
    claim = (
        'a kernel for each dpitch, "to ensure the coalescing memory access of each warp"',
        "introduction",
        f"{100 * min(share):.0f} to {100 * max(share):.0f} % of a copy's bandwidth",
    )
    return Shown({"003-kernels": chart}, im2col.show(document), (claim,))
