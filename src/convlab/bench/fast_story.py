"""What docs/fast.md says of the fastest stages' times: tables, and sentences that follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convlab.bench.analysis import Contender, geometric_mean
from convlab.bench.fast_goals import (
    AIMS,
    BATCHED,
    IM2COLS,
    IM2WIN,
    NOTHING,
    OURS,
    OWN,
    PER_IMAGE,
    PYTORCHS,
    PYTORCHS_IN_WORDS,
    TENSOR,
    WARPGROUPS,
    called_means,
    cell_of,
    contenders,
    goals_of,
    most_possible,
    ms_and_rate,
    of_known,
    ratios,
    stages_in,
    tried,
)
from convlab.bench.measured import table
from convlab.bench.results import Results
from convlab.stages import short_name

COUNTS = {3.0: "Three", 8.0: "Eight"}
TITLES = {
    PYTORCHS: f"**{PYTORCHS_IN_WORDS}**, image by image in C++ (`{PYTORCHS}`)",
    BATCHED: "**PyTorch's im2col + cuBLAS, batched**",
    PER_IMAGE: "**PyTorch's im2col + cuBLAS, per image**, a loop in Python",
    OWN: "**convlab's own im2col + cuBLAS, batched** (`s03_im2col_blas`)",
}


def im2col_in_words(results: Results, others: Sequence[Results] = ()) -> str:
    """What stages reach against each im2col that some run has, by ordinary calls in other runs too,
    what could be reached at most, and how far these are from each other."""
    everybody = contenders(results)
    aims = {name: COUNTS[mean] for _, name, mean, _ in AIMS if name in IM2COLS}
    lines = []
    for name, words in TITLES.items():
        if not tried(name, (results, *others)):
            continue
        found = [
            f"{short_name(stage)} reaches {_mean(results, everybody, stage, name)} by graph "
            f"replays, {_called((results, *others), stage, name)} by ordinary calls"
            for stage in stages_in((results, *others))
        ]
        most, three = (
            cell_of(most_possible(results, everybody.get(name), precision))
            for precision in ("fp32", "3xtf32")
        )
        lines.append(
            f"- {words}: {aims[name]} times was the aim. {'; '.join(found)}. At the roofline on "
            f"every layer, which nothing reaches, float32 would come to {most} by graph replays, "
            f"three products of `mma.sync` to {three}.\n"
        )
    ratio = _mean(results, everybody, OWN, BATCHED)
    more = f"\nOf the two batched ones convlab's is {ratio} times as fast as PyTorch's.\n"
    return "".join(lines) + more


def _called(runs: Sequence[Results], one: str, over: str) -> str:
    """The mean of the only run, or between which those of all runs are."""
    means = called_means(runs, one, over)
    if len(means) < 2:
        return cell_of(means[0] if means else None)
    return f"{min(means):.2f} to {max(means):.2f}"


def _mean(results: Results, everybody: dict[str, Contender], one: str, over: str) -> str:
    return of_known(ratios(results, everybody.get(one), everybody.get(over)), geometric_mean)


def peaks_in_words(results: Results) -> str:
    """How near s12 comes to what a GPU can do, and what s13 and s14 add."""
    everybody = contenders(results)
    found = {what: found for (what, _), (found, _) in goals_of(results, OURS).items()}
    said = [
        f"{what.partition(',')[0].capitalize()} stands at {number} of cuBLAS's product, all in."
        for what, number in found.items()
        if "share of cuBLAS" in what
    ]
    said += [
        f"Conv7 moves its necessary bytes at {number} of a copy's rate."
        for what, number in found.items()
        if "share of a copy" in what
    ]
    for stage, before in ((TENSOR, OURS), (WARPGROUPS, TENSOR)):
        if stage not in everybody:
            continue
        rows = [everybody[stage].best(results, layer) for layer in results.layers()]
        if rates := [row.tflops for row in rows if row is not None and row.tflops]:
            gain = _mean(results, everybody, stage, before)
            said.append(
                f"{short_name(stage)} is {gain} times as fast as {short_name(before)}, up to "
                f"{max(rates):.0f} TFLOP/s."
            )
    return " ".join(said) + "\n"


def s11_table(results: Results) -> str:
    """s11, which has a transform, beside s12, which has none, with their tiles on each layer."""
    everybody = contenders(results)
    transforming, fused = everybody.get(IM2WIN), everybody.get(OURS)
    times = ratios(results, fused, transforming)
    rows: list[tuple[str, ...]] = []
    for layer, ratio in zip(results.layers(), times, strict=True):
        cells = []
        for one in (transforming, fused):
            row = None if one is None else one.best(results, layer)
            cells += [(row.algorithm if row else None) or NOTHING, *ms_and_rate(row)]
        rows.append((layer[0], *cells, cell_of(ratio)))
    mean = of_known(times, geometric_mean)
    rows.append(("**geometric mean**", *[""] * 6, f"**{mean}**"))
    each = ("tile", "ms", "TFLOP/s")
    head = [f"{short}, {what}" for short in ("s11", "s12") for what in each]
    return table(("layer", *head, "s12 over s11"), rows)


SECTIONS: dict[str, Callable[[Results], str]] = {
    "s11": s11_table,
    "peaks": peaks_in_words,
    "im2col": im2col_in_words,
}
