"""The tables of docs/fast-table.md, s12, s13 and s14 beside what was to beat, layer by layer; and
what docs/fast.md says of the same numbers.

``python -m convlab.bench.fast_table`` reads docs/results/bench_h200.json, which ``convlab bench``
wrote on a GPU, and rewrites what is between
the pages' markers; where there is no such file yet it says so and shows no number. ``--check``
rewrites nothing and exits 1 where a page differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from convlab.bench import fast_story
from convlab.bench.analysis import (
    CUDNN,
    GEMM_CLASS,
    TORCH,
    Contender,
    Layer,
    geometric_mean,
)
from convlab.bench.baselines_before import BEFORE_MS
from convlab.bench.fast_goals import (
    BATCHED,
    IM2WIN,
    NOTHING,
    OURS,
    PER_IMAGE,
    PYTORCHS,
    PYTORCHS_IN_WORDS,
    RIVALS,
    TENSOR,
    WARPGROUPS,
    cell_of,
    contenders,
    filter_bytes,
    goals_of,
    ms_and_rate,
    of_known,
    ratios,
    stages_in,
    time_of,
    tried,
)
from convlab.bench.generated import (
    RUNS,
    filled,
    holding,
    not_yet,
    regenerate,
)
from convlab.bench.measured import table
from convlab.bench.results import Results, open_results
from convlab.bench.rows import Row
from convlab.bench.seed_paper import memory_bytes
from convlab.stages import short_name

PAGE, STORY, FILE = "docs/fast-table.md", "docs/fast.md", RUNS[0]
COMMAND = f"convlab bench --json {FILE}"
MIB = 2**20
CLAIMED = "*the paper, of im2win*"
CALLED = (
    "PyTorch fp32", PYTORCHS_IN_WORDS, "im2col + cuBLAS, batched", "im2col + cuBLAS, per image",
)  # fmt: skip
STORED = {
    "s12": (OURS, ""),
    "s13": (TENSOR, ""),
    "s14": (WARPGROUPS, ""),
    "s11": (IM2WIN, ""),
    PYTORCHS_IN_WORDS: (PYTORCHS, "23.1 %"),
    "im2col + cuBLAS, batched": (BATCHED, "23.1 %"),
    "im2col + cuBLAS, per image": (PER_IMAGE, "23.1 %"),
    "cuDNN's GEMM class": (GEMM_CLASS, ""),
    "cuDNN's fastest": (CUDNN, "32.8 %"),
    "PyTorch fp32": (TORCH, ""),
}


def speed_table(results: Results, stage: str = OURS) -> str:
    """A stage's time on each layer and its speed over each of the others', and the means."""
    everybody, rivals = contenders(results), _in(RIVALS, results)
    ours = everybody.get(stage)
    columns = [ratios(results, ours, everybody[name]) for name, _ in rivals.values()]
    rows = [
        (
            name,
            *ms_and_rate(None if ours is None else ours.best(results, (name, batch))),
            *(cell_of(column[place]) for column in columns),
        )
        for place, (name, batch) in enumerate(results.layers())
    ]
    rows += _means(columns, ("", ""))
    rows.append((CLAIMED, "", "", *(claim for _, claim in rivals.values())))
    return table(("layer", f"{short_name(stage)} ms", "TFLOP/s", *rivals), rows)


def _in(claims: dict[str, tuple[str, str]], results: Results) -> dict[str, tuple[str, str]]:
    """The columns whose system a run has."""
    return {words: one for words, one in claims.items() if tried(one[0], (results,))}


def called_table(results: Results) -> str:
    """Ordinary calls beside replays of a graph, which hide what launches cost."""
    everybody = contenders(results)
    rivals = _in(RIVALS, results)
    ours = {short_name(stage): stage for stage in (OURS, WARPGROUPS) if tried(stage, (results,))}
    ours = ours or {short_name(OURS): OURS}
    who = ours | {words: rivals[words][0] for words in CALLED if words in rivals}
    columns = [(everybody.get(name), called) for name in who.values() for called in (False, True)]
    rows = [
        (layer[0], *(cell_of(time_of(results, one, layer, called), 3) for one, called in columns))
        for layer in results.layers()
    ]
    own = 2 * len(ours)
    for short, stage in ours.items():
        means = (
            of_known(ratios(results, everybody.get(stage), one, called), geometric_mean)
            for one, called in columns[own:]
        )
        cells = *[""] * own, *(f"**{mean}**" for mean in means)
        rows.append((f"**{short} is so many times as fast**", *cells))
    head = [f"{words}, {how}" for words in who for how in ("graph ms", "called ms")]
    return table(("layer", *head), rows)


def runs_table(runs: Sequence[Results]) -> str:
    """How many times as fast stages are as PyTorch's im2col, in each run that has them; a dash for
    one that does not have both. By ordinary calls that is the host's speed as well."""
    names = [name for name in (PYTORCHS, BATCHED, PER_IMAGE) if tried(name, runs)]
    words = {name: words for words, (name, _) in RIVALS.items()}
    rows = []
    for number, results in enumerate(runs, start=1):
        everybody = contenders(results)
        date = str(results.environment.get("date") or NOTHING)[:16].replace("T", " ")
        for stage in stages_in([results]):
            means = [
                of_known(
                    ratios(results, everybody.get(stage), everybody.get(name), called),
                    geometric_mean,
                )
                for name in names
                for called in (False, True)
            ]
            rows.append((str(number), date, short_name(stage), *means))
    head = [f"over {words[name]}, {how}" for name in names for how in ("graph", "called")]
    return table(("run", "of (UTC)", "", *head), rows, left=3)


def memory_table(results: Results) -> str:
    """Workspaces in MiB, and how much less s12 needs in all, on average over the layers:
    as each asks for it, and by measured peaks."""
    everybody, stored = contenders(results), _in(STORED, results)
    found = {words: everybody[name] for words, (name, _) in stored.items()}
    rows = []
    for layer in results.layers():
        cells = [_stored(one.best(results, layer)) for one in found.values()]
        rows.append((layer[0], f"{filter_bytes(layer) / MIB:,.2f}", *cells))
    needs = {"computed": memory_bytes, "measured": _peak_bytes}
    for words, need in needs.items():
        less = (_less(results, everybody.get(OURS), one, need) for one in found.values())
        rows.append((f"**s12 needs less by**, {words}", "", *less))
    rows.append((CLAIMED, "", *(claim for _, claim in stored.values())))
    return table(("layer", "filter", *stored), rows)


def _stored(row: Row | None) -> str:
    if row is None or row.workspace_bytes is None:
        return NOTHING
    return f"{row.workspace_bytes / MIB:,.2f}"


def _peak_bytes(results: Results, one: Contender, layer: Layer) -> int | None:
    row = one.best(results, layer)
    return None if row is None else row.peak_bytes


def _less(
    results: Results,
    one: Contender | None,
    than: Contender | None,
    need: Callable[[Results, Contender, Layer], int | None],
) -> str:
    """By how much less one needs than another, input, filter and output included: the arithmetic
    mean over the layers."""
    if one is None or than is None or one == than:
        return ""
    needs = [(need(results, one, layer), need(results, than, layer)) for layer in results.layers()]
    parts = [1 - mine / other for mine, other in needs if mine and other]
    return f"**{100 * sum(parts) / len(parts):.1f} %**" if parts else NOTHING


def goals_table(results: Results, others: Sequence[Results] = ()) -> str:
    """What was aimed at, and what was found of each stage; by ordinary calls in other runs too."""
    stages = stages_in((results, *others))
    found = [goals_of(results, stage, others) for stage in stages]
    rows = [
        (what, wanted, *(cell for goals in found for cell in goals[what, wanted]))
        for what, wanted in found[0]
    ]
    head = [cell for stage in stages for cell in (short_name(stage), "reached")]
    return table(("", "aimed at", *head), rows, left=2 + len(head))


def origin_in_words(results: Results) -> str:
    """What was known of PyTorch's im2col when the aims were set, and what is reached over that."""
    said = []
    for stage in stages_in([results]):
        means = [
            of_known(_over_before(results, stage, name), geometric_mean)
            for name in (BATCHED, PER_IMAGE)
        ]
        said.append(f"{short_name(stage)} is {' and '.join(means)} times as fast")
    times = BEFORE_MS[PER_IMAGE].values()
    return (
        "What was known of PyTorch's im2col when the aims were set are [times taken before]"
        "(baselines.md#beside-figures-taken-before), by events around ordinary calls, per image "
        f"{min(times):.1f} ms at the least. Over those very times {', '.join(said)} (batched and "
        "per image, replayed from graphs).\n"
    )


def _over_before(results: Results, stage: str, name: str) -> list[float | None]:
    ours = contenders(results).get(stage)
    found: list[float | None] = []
    for layer in results.layers():
        time_ms = time_of(results, ours, layer, called=False)
        found.append(BEFORE_MS[name][layer[0]] / time_ms if time_ms else None)
    return found


def _means(
    columns: Sequence[Sequence[float | None]], before: Sequence[str]
) -> list[tuple[str, ...]]:
    made: dict[str, Callable[[Sequence[float]], float]] = {
        "**geometric mean**": geometric_mean, "least": min, "most": max,
    }  # fmt: skip
    return [
        (words, *before, *(of_known(column, make) for column in columns))
        for words, make in made.items()
    ]


SECTIONS: dict[str, Callable[[Results], str]] = {
    "goals": goals_table,
    "speed": speed_table,
    "tensor": partial(speed_table, stage=TENSOR),
    "warpgroups": partial(speed_table, stage=WARPGROUPS),
    "called": called_table,
    "memory": memory_table,
}


def generated(root: Path) -> dict[Path, str]:
    """The pages as they have to be.

    Raises ``ValueError`` saying what is missing or is no result.
    """
    runs = [open_results(root / file) for file in RUNS if (root / file).is_file()]
    results = runs[0] if (root / FILE).is_file() else None
    files = {}
    of_every_run: dict[str, Callable[[Results], str]] = {
        "runs": lambda _: runs_table(runs),
        "goals": lambda first: goals_table(first, runs[1:]),
        "origin": origin_in_words,
    }
    in_the_story: dict[str, Callable[[Results], str]] = {
        "im2col": lambda first: fast_story.im2col_in_words(first, runs[1:]),
    }
    for page, sections in (
        (PAGE, SECTIONS | of_every_run),
        (STORY, fast_story.SECTIONS | in_the_story),
    ):
        shown = {
            name: holding(not_yet(COMMAND) if results is None else make(results))
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
