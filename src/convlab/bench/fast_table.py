"""The tables of docs/fast-table.md, s12 and s13 beside what was to beat, layer by layer; and what
docs/fast.md says of the same numbers.

``python -m convlab.bench.fast_table`` reads docs/results/bench_h200.json, which ``convlab bench``
wrote on a GPU, and rewrites what is between the pages' markers; where there is no such file yet it
says so and shows no number. ``--check`` rewrites nothing and exits 1 where a page differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from convlab.bench import analysis
from convlab.bench.analysis import CUDNN, GEMM_CLASS, TORCH, Contender, Layer, geometric_mean
from convlab.bench.generated import RESULTS, filled, holding, regenerate
from convlab.bench.measured import table
from convlab.bench.results import Results, open_results
from convlab.bench.rows import Row
from convlab.bench.seed_paper import memory_bytes
from convlab.stages import short_name
from convlab.stages.base import blocks_for
from convlab.workloads import paper_layer

PAGE, STORY, FILE = "docs/fast-table.md", "docs/fast.md", f"{RESULTS}/bench_h200.json"
COMMAND = f"convlab bench --json {FILE}"
OURS, DIRECT, IM2WIN = "s12_fused_im2win", "s01_direct", "s11_im2win_full"
TENSOR = "s13_tensor_cores"
BATCHED, PER_IMAGE = "im2col_cublas_batched", "im2col_cublas_per_image"
OWN, OWN_IN_WORDS = "s03_im2col_blas", "im2col + cuBLAS, batched, convlab's own (s03_im2col_blas)"
NOTHING, UNKNOWN, MIB = "-", "not measured", 2**20
CLAIMED = "*the paper, of im2win*"

# By what the columns are called: who, and what the paper (000) claims of im2win over it.
RIVALS = {
    "cuDNN's GEMM class": (GEMM_CLASS, ""),
    "cuDNN's fastest": (CUDNN, "1.1, up to 1.8"),
    "PyTorch fp32": (TORCH, ""),
    "im2col + cuBLAS, batched": (BATCHED, "3.5 on average"),
    "im2col + cuBLAS, per image": (PER_IMAGE, "3.5 on average"),
    OWN_IN_WORDS: (OWN, ""),
    "s01": (DIRECT, "5 to 155"),
}
CALLED = ("PyTorch fp32", "im2col + cuBLAS, batched", "im2col + cuBLAS, per image")
AIMS = (
    ("over cuDNN's GEMM class", GEMM_CLASS, 1.3, 0.9),
    ("over PyTorch fp32", TORCH, 1.0, None),
    ("over im2col + cuBLAS, batched", BATCHED, 3.0, None),
    (f"over {OWN_IN_WORDS}", OWN, 3.0, None),
    ("over im2col + cuBLAS, per image", PER_IMAGE, 8.0, None),
)
STORED = {
    "s12": (OURS, ""),
    "s13": (TENSOR, ""),
    "s11": (IM2WIN, ""),
    "im2col + cuBLAS, batched": (BATCHED, "23.1 %"),
    "im2col + cuBLAS, per image": (PER_IMAGE, "23.1 %"),
    "cuDNN's GEMM class": (GEMM_CLASS, ""),
    "cuDNN's fastest": (CUDNN, "32.8 %"),
    "PyTorch fp32": (TORCH, ""),
}


def contenders(results: Results) -> dict[str, Contender]:
    """Everybody who is in a table, by name."""
    groups = {one.name: one for one in analysis.fastest(results)}
    names = {OURS, TENSOR, IM2WIN, *(name for name, _ in RIVALS.values())}
    return {
        name: groups.get(name) or Contender(name, name, (name,))
        for name in names
        if name in groups or name in results.systems
    }


def ratios(
    results: Results, one: Contender | None, over: Contender | None, called: bool = False
) -> list[float | None]:
    """How many times as fast one is as the other, on each layer; None where a time is missing.
    ``called`` takes the times of ordinary calls."""
    found: list[float | None] = []
    for layer in results.layers():
        mine, other = (_time(results, who, layer, called) for who in (one, over))
        found.append(other / mine if mine and other else None)
    return found


def _time(results: Results, one: Contender | None, layer: Layer, called: bool) -> float | None:
    row = None if one is None else one.best(results, layer)
    return None if row is None else row.called_ms if called else row.time_ms


def speed_table(results: Results, stage: str = OURS) -> str:
    """A stage's time on each layer and its speed over each of the others', and the means."""
    everybody = contenders(results)
    ours = everybody.get(stage)
    columns = [ratios(results, ours, everybody.get(name)) for name, _ in RIVALS.values()]
    rows = [
        (
            name,
            *_numbers(None if ours is None else ours.best(results, (name, batch))),
            *(_cell(column[place]) for column in columns),
        )
        for place, (name, batch) in enumerate(results.layers())
    ]
    rows += _means(columns, ("", ""))
    rows.append((CLAIMED, "", "", *(claim for _, claim in RIVALS.values())))
    return table(("layer", f"{short_name(stage)} ms", "TFLOP/s", *RIVALS), rows)


def called_table(results: Results) -> str:
    """Ordinary calls beside replays of a graph, which hide what launches cost."""
    everybody = contenders(results)
    who = {"s12": OURS} | {words: RIVALS[words][0] for words in CALLED}
    columns = [(everybody.get(name), called) for name in who.values() for called in (False, True)]
    rows = [
        (layer[0], *(_cell(_time(results, one, layer, called), 3) for one, called in columns))
        for layer in results.layers()
    ]
    means = (
        _of_known(ratios(results, everybody.get(OURS), one, called), geometric_mean)
        for one, called in columns[2:]
    )
    rows.append(("**s12 is so many times as fast**", "", "", *(f"**{mean}**" for mean in means)))
    head = [f"{words}, {how}" for words in who for how in ("graph ms", "called ms")]
    return table(("layer", *head), rows)


def memory_table(results: Results) -> str:
    """Workspaces in MiB, and how much less s12 needs in all, on average over the layers."""
    everybody = contenders(results)
    found = {words: everybody.get(name) for words, (name, _) in STORED.items()}
    rows = []
    for layer in results.layers():
        cells = [_stored(one.best(results, layer) if one else None) for one in found.values()]
        rows.append((layer[0], f"{_filter_bytes(layer) / MIB:,.2f}", *cells))
    less = ["", *(_less(results, everybody.get(OURS), one) for one in found.values())]
    rows.append(("**s12 needs less by**", *less))
    rows.append((CLAIMED, "", *(claim for _, claim in STORED.values())))
    return table(("layer", "filter", *STORED), rows)


def _filter_bytes(layer: Layer, tile: str | None = None) -> int:
    """The filter's bytes; with a tile, such as ``64x128x16/8x8``, filled up to whole ones."""
    problem = paper_layer(*layer)
    M_B, _, K_B = map(int, tile.partition("/")[0].split("x")) if tile else (1, 1, 1)
    return 4 * blocks_for(problem.M, M_B) * M_B * blocks_for(problem.K, K_B) * K_B


def _stored(row: Row | None) -> str:
    if row is None or row.workspace_bytes is None:
        return NOTHING
    return f"{row.workspace_bytes / MIB:,.2f}"


def _less(results: Results, one: Contender | None, than: Contender | None) -> str:
    """By how much less one needs than another, input, filter and output included."""
    if one is None or than is None or one == than:
        return ""
    needs = [
        (memory_bytes(results, one, layer), memory_bytes(results, than, layer))
        for layer in results.layers()
    ]
    parts = [1 - mine / other for mine, other in needs if mine and other]
    return f"**{100 * sum(parts) / len(parts):.1f} %**" if parts else NOTHING


def goals_table(results: Results) -> str:
    """What was aimed at, and what was found of s12 and s13."""
    found = [_goals(results, stage) for stage in (OURS, TENSOR)]
    rows = [
        (what, wanted, *(cell for goals in found for cell in goals[what, wanted]))
        for what, wanted in found[0]
    ]
    return table(("", "aimed at", "s12", "reached", "s13", "reached"), rows, left=6)


Goals = dict[tuple[str, str], tuple[str, str]]


def _goals(results: Results, stage: str) -> Goals:
    """By what was aimed at: what was found, and whether that is enough."""
    everybody = contenders(results)
    ours = everybody.get(stage)
    goals: Goals = {}

    def add(what: str, wanted: str, found: str, reached: bool | None) -> None:
        goals[what, wanted] = found, "" if reached is None else "yes" if reached else "no"

    def known(name: str, called: bool = False) -> list[float]:
        every = ratios(results, ours, everybody.get(name), called)
        return [ratio for ratio in every if ratio is not None]

    for words, name, mean, least in AIMS:
        wanted = f"{mean:.1f} on average" + (f", {least} on every layer" if least else "")
        for called in (False, True) if name in (BATCHED, OWN, PER_IMAGE) else (False,):
            found = known(name, called)
            enough = bool(found) and geometric_mean(found) >= mean
            reached: bool | None = enough and (least is None or min(found) >= least)
            how = ", called" if called else ""
            add(words + how, wanted, _spread(found), reached if found else None)
    add("over s01", "the range, beside the paper's 5 to 155", _spread(known(DIRECT)), None)
    more = [
        row.workspace_bytes - _filter_bytes(layer, row.algorithm)
        for layer in results.layers()
        if ours is not None
        and (row := ours.best(results, layer)) is not None
        and row.workspace_bytes is not None
    ]
    said = f"{max(more):,} bytes more at most" if more else UNKNOWN
    reached = max(more) == 0 if more and stage == OURS else None
    add("workspace", "the re-ordered filter, in whole tiles", said, reached)
    machine = results.machine
    for layer in results.layers():
        row = ours.best(results, layer) if ours else None
        rate = None if row is None else row.tflops
        if layer[0] in ("conv4", "conv8"):
            peak = machine.sgemm_tflops
            said = (
                f"{rate:.1f} of {peak:.1f} TFLOP/s: {rate / peak:.1%}" if rate and peak else UNKNOWN
            )
            reached = rate / peak >= 0.85 if rate and peak else None
            add(f"{layer[0]}, share of cuBLAS's SGEMM, all in", "85 %", said, reached)
        if layer[0] == "conv7":
            copy, time_ms = machine.copy_bytes_per_second, row.time_ms if row else None
            said, reached = UNKNOWN, None
            if copy and time_ms:
                moved = paper_layer(*layer).least_bytes / time_ms * 1e3
                said = f"{moved / 1e12:.2f} of {copy / 1e12:.2f} TB/s: {moved / copy:.1%}"
                reached = moved / copy >= 0.6
            add("conv7, share of a copy's bandwidth, necessary bytes", "60 %", said, reached)
    return goals


def _spread(values: Sequence[float]) -> str:
    if not values:
        return UNKNOWN
    return f"{geometric_mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _numbers(row: Row | None) -> tuple[str, str]:
    if row is None or row.time_ms is None or row.tflops is None:
        return NOTHING, NOTHING
    return f"{row.time_ms:.3f}", f"{row.tflops:.1f}"


def _means(
    columns: Sequence[Sequence[float | None]], before: Sequence[str]
) -> list[tuple[str, ...]]:
    made: dict[str, Callable[[Sequence[float]], float]] = {
        "**geometric mean**": geometric_mean, "least": min, "most": max,
    }  # fmt: skip
    return [
        (words, *before, *(_of_known(column, make) for column in columns))
        for words, make in made.items()
    ]


def _of_known(column: Sequence[float | None], make: Callable[[Sequence[float]], float]) -> str:
    known = [value for value in column if value is not None]
    return _cell(make(known)) if known else NOTHING


def _cell(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


# What docs/fast.md says of these numbers.

COUNTS = {3.0: "Three", 8.0: "Eight"}
IM2COLS = {
    BATCHED: "**PyTorch's im2col + cuBLAS, batched**",
    PER_IMAGE: "**PyTorch's im2col + cuBLAS, per image**",
    OWN: "**convlab's own im2col + cuBLAS, batched** (`s03_im2col_blas`)",
}


def im2col_in_words(results: Results) -> str:
    """What s12 and s13 reach against each im2col, and how far these are from each other."""
    everybody = contenders(results)
    aims = {name: COUNTS[mean] for _, name, mean, _ in AIMS if name in IM2COLS}
    lines = []
    for name, words in IM2COLS.items():
        found = [
            f"{short_name(stage)} reaches {_mean(results, everybody, stage, name, False)} by graph "
            f"replays, {_mean(results, everybody, stage, name, True)} by ordinary calls"
            for stage in (OURS, TENSOR)
        ]
        lines.append(f"- {words}: {aims[name]} times was the aim. {'; '.join(found)}.\n")
    ratio = _mean(results, everybody, OWN, BATCHED, False)
    more = f"\nOf the two batched ones convlab's is {ratio} times as fast as PyTorch's.\n"
    return "".join(lines) + more


def _mean(
    results: Results, everybody: dict[str, Contender], one: str, over: str, called: bool
) -> str:
    every = ratios(results, everybody.get(one), everybody.get(over), called)
    return _of_known(every, geometric_mean)


def peaks_in_words(results: Results) -> str:
    """How near s12 comes to what a GPU can do, and what s13 adds."""
    everybody = contenders(results)
    found = {what: found for (what, _), (found, _) in _goals(results, OURS).items()}
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
    rows = [
        everybody[TENSOR].best(results, layer) for layer in results.layers() if TENSOR in everybody
    ]
    rates = [row.tflops for row in rows if row is not None and row.tflops]
    if rates:
        gain = _mean(results, everybody, TENSOR, OURS, False)
        said.append(f"s13 is {gain} times as fast as s12, up to {max(rates):.0f} TFLOP/s.")
    return " ".join(said) + "\n"


def untuned_table(results: Results) -> str:
    """s11, whose tile is by one rule, beside s12, whose tile is chosen, on each layer."""
    everybody = contenders(results)
    untuned, tuned = everybody.get(IM2WIN), everybody.get(OURS)
    times = ratios(results, tuned, untuned)
    rows: list[tuple[str, ...]] = []
    for layer, ratio in zip(results.layers(), times, strict=True):
        cells = []
        for one in (untuned, tuned):
            row = None if one is None else one.best(results, layer)
            cells += [(row.algorithm if row else None) or NOTHING, *_numbers(row)]
        rows.append((layer[0], *cells, _cell(ratio)))
    mean = _of_known(times, geometric_mean)
    rows.append(("**geometric mean**", *[""] * 6, f"**{mean}**"))
    each = ("tile", "ms", "TFLOP/s")
    head = [f"{short}, {what}" for short in ("s11", "s12") for what in each]
    return table(("layer", *head, "s12 over s11"), rows)


SECTIONS: dict[str, Callable[[Results], str]] = {
    "goals": goals_table,
    "speed": speed_table,
    "tensor": partial(speed_table, stage=TENSOR),
    "called": called_table,
    "memory": memory_table,
}
STORY_SECTIONS: dict[str, Callable[[Results], str]] = {
    "untuned": untuned_table,
    "peaks": peaks_in_words,
    "im2col": im2col_in_words,
}


def generated(root: Path) -> dict[Path, str]:
    """The pages as they have to be.

    Raises ``ValueError`` saying what is missing or is no result.
    """
    results = open_results(root / FILE) if (root / FILE).is_file() else None
    missing = f"Not measured yet: `{COMMAND}` on a GPU writes it.\n"
    files = {}
    for page, sections in ((PAGE, SECTIONS), (STORY, STORY_SECTIONS)):
        shown = {
            name: holding(missing if results is None else make(results))
            for name, make in sections.items()
        }
        files[root / page] = filled(root / page, shown)
    return files


def main(arguments: Sequence[str] | None = None) -> int:
    """Regenerate, or with ``--check`` only compare; returns the exit code."""
    about = f"Make the tables of {PAGE} and {STORY} from {FILE}."
    return regenerate("convlab.bench.fast_table", about, generated, arguments)


if __name__ == "__main__":
    sys.exit(main())
