"""The tables of pages that show one file of results each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ladder_results
import papers
import sanitizers
from ladder_results import HEADLINE
from model_tables import inference_table, models_table, training_table
from papers import RESULTS

from convlab.ladder import LADDER, short_name
from convlab.measuring import analysis, table
from convlab.measuring.analysis import Contender, Speedup, contender
from convlab.measuring.cases import M15, SIZES, TORCH_16_BITS, TORCH_TF32
from convlab.measuring.results import ResultRow, Results
from convlab.problems.workloads import (
    GROUPED,
    LAYER_NAMES,
    NETWORK_BATCH,
    STEMS,
    UNSEEN,
    UNTUNED,
    paper_layer,
    unseen_layers,
)
from convlab.running.chosen_stages import AUTO_TF32
from convlab.support.values import shown

LINT = f"{RESULTS}/lint_conv9_sm90"
OF = "dinput", "dweight"  # the gradients, as the names of rows have them


def read_ladder(file: Path) -> dict[str, Any]:
    """Return the ladder's results in a file. Raises ``ValueError`` naming any other file."""
    try:
        return ladder_results.read(file)
    except (ArithmeticError, LookupError) as error:
        raise ValueError(f"{file} is not a result of the ladder: {shown(error)}") from error


# Sizes for which no tile was tuned.


def sizes_tables(results: Results) -> papers.Shown:
    """Return two tables: speedups of m15, and the problems where it is slower."""
    ours, torch = (contender(results, name) for name in (M15, analysis.TORCH))
    libraries = [name for name in results.systems if name != M15]
    gemm_class = Contender(results, analysis.GEMM_CLASS, "", libraries, gemm_class=True)
    layers, means = results.layers(), []
    for words, other in (("the GEMM class", gemm_class), ("PyTorch", torch)):
        names = (name for name, _ in layers)
        over = dict(zip(names, ours.over(other).by_layer, strict=True))
        for which, of_it in (("fitted", UNTUNED), ("unseen", UNSEEN)):
            speedup = Speedup([over.get(name) for name in of_it])
            if ratios := speedup.known:
                values = (speedup.mean, min(ratios), max(ratios))
                below = sum(ratio < 1 for ratio in ratios)
                cells = (str(len(ratios)), *(f"{value:.2f}" for value in values), str(below))
                means.append((f"{words}, {which}", *cells))
    slower = sorted(
        (ratio, str(SIZES[layer[0]]), _time(ours.best(layer)), _time(gemm_class.best(layer)))
        for layer, ratio in zip(layers, ours.over(gemm_class).by_layer, strict=True)
        if ratio and ratio < 1
    )
    columns = ("m15 over", "problems", "geometric mean", "least", "most", "below 1")
    head = ("m15 is slower than the GEMM class", "m15 ms", "GEMM class ms", "ratio")
    lines = [(*cells, f"{ratio:.2f}") for ratio, *cells in slower]
    return "\n".join(filter(None, (table(columns, means), table(head, lines)))), ()


# The systems of ``--cases precisions`` that are compared, by the type in a layer's name, and what
# follows the layer's name in each layout that convlab has for it.
OF_TYPES = {
    "bfloat16": ("auto", TORCH_16_BITS, ("bfloat16",)),
    "float16": ("auto", TORCH_16_BITS, ("float16",)),
    "tf32": (AUTO_TF32, TORCH_TF32, ("tf32", "tf32-last")),
}
CHANNELS_LAST = ("bfloat16", "float16", "tf32-last")
THREE_CHANNELS = tuple(name for name in LAYER_NAMES if paper_layer(name).in_channels == 3)
LAYER_GROUPS = {
    "the twelve layers": LAYER_NAMES,
    "the four with three channels": THREE_CHANNELS,
    "21 others, 32 images": tuple(unseen_layers([NETWORK_BATCH])),
    "stems and odd channels": tuple(STEMS),
}


class InOneType(NamedTuple):
    """The faster layout's rows of a layer in one type, convlab's and PyTorch's."""

    layout: str
    ours: ResultRow
    torch: ResultRow

    @property
    def ratio(self) -> float:
        """PyTorch's time over convlab's."""
        assert self.ours.time_ms is not None
        assert self.torch.time_ms is not None
        return self.torch.time_ms / self.ours.time_ms


def in_one_type(results: Results, name: str, kind: str) -> InOneType | None:
    """Return a layer's rows in a type; None if convlab or PyTorch has no number there."""
    ours, baselines, words = OF_TYPES[kind]
    auto, torch = contender(results, ours), Contender(results, "PyTorch", "", baselines)
    keys = {layer: (layer, batch) for layer, batch in results.layers()}
    named = [keys[f"{name} {word}"] for word in words if f"{name} {word}" in keys]
    own, others = (
        [row for key in named if (row := one.best(key)) is not None] for one in (auto, torch)
    )
    if not own or not others:
        return None
    best, other = (min(rows, key=lambda row: row.time_ms or math.inf) for rows in (own, others))
    last = best.layer.endswith(CHANNELS_LAST)
    return InOneType("channels last" if last else "channels first", best, other)


def precisions_tables(results: Results) -> papers.Shown:
    """Return two tables: for each type and group of layers auto's speedup over the faster of
    PyTorch's two layouts, and each layer's times. In TF32 convlab too has two layouts."""
    means, lines = [], []
    for kind in OF_TYPES:
        for group, names in LAYER_GROUPS.items():
            found = {name: in_one_type(results, name, kind) for name in names}
            known = {name: one for name, one in found.items() if one is not None}
            if not known:
                continue
            speedup = Speedup([one.ratio for one in known.values()])
            least = min(known, key=lambda name: known[name].ratio)
            values = f"{speedup.mean:.2f}", f"{known[least].ratio:.2f} ({least})"
            means.append((kind, group, f"{len(known)} of {len(names)}", *values))
            lines += [
                (
                    f"{name} {kind}",
                    one.layout,
                    _time(one.ours),
                    _time(one.torch),
                    f"{one.ratio:.2f}",
                )
                for name, one in known.items()
            ]
    columns = ("type", "layers", "measured", "geometric mean over PyTorch", "least")
    head = (
        "layer", "convlab's layout", "convlab ms", "PyTorch ms, the faster layout",
        "PyTorch / convlab",
    )  # fmt: skip
    each = table(head, list(dict.fromkeys(lines)))  # three channels are in two groups
    return "\n".join(filter(None, (table(columns, means), each))), ()


def unseen_tables(results: Results) -> papers.Shown:
    """Return two tables: for each batch the speedup of auto, and of the stages that it chooses
    from, over PyTorch in float32, and each layer's times."""
    torch = contender(results, analysis.TORCH)
    names = results.names("stage")
    means, lines = [], []
    for batch in sorted({batch for _, batch in results.layers()}):
        keys = [key for key in results.layers() if key[1] == batch]
        for name in names:
            over = dict(
                zip(results.layers(), contender(results, name).over(torch).by_layer, strict=True)
            )
            ratios = [ratio for key in keys if (ratio := over[key]) is not None]
            if not ratios:
                continue
            speedup = Speedup(ratios)
            below = sum(ratio < 1 for ratio in ratios)
            values = f"{speedup.mean:.2f}", f"{min(ratios):.2f}", str(below)
            measured = f"{len(ratios)} of {len(unseen_layers([batch]))}"
            means.append((short_name(name), str(batch), measured, *values))
        auto = contender(results, "auto")
        for key in keys:
            mine, theirs = auto.best(key), torch.best(key)
            if mine is not None and theirs is not None and mine.time_ms and theirs.time_ms:
                stage = (mine.algorithm or "").split(" ")[0]
                times = _time(mine), _time(theirs), f"{theirs.time_ms / mine.time_ms:.2f}"
                lines.append((key[0], str(batch), short_name(stage), *times))
    columns = ("stage", "images", "measured", "geometric mean over PyTorch", "least", "below 1")
    head = ("layer", "images", "auto takes", "convlab ms", "PyTorch ms", "PyTorch / convlab")
    return f"{table(columns, means)}\n{table(head, lines)}", ()


def grouped_tables(results: Results) -> papers.Shown:
    """Return the table of grouped layers' times beside PyTorch's."""
    ours, torch = (contender(results, name) for name in ("grouped", analysis.TORCH))
    ratios = zip(results.layers(), ours.over(torch).by_layer, strict=True)
    lines = [
        (name, str(GROUPED[name]), _time(ours.best((name, batch))),
         _time(torch.best((name, batch))), f"{over:.2f}")
        for (name, batch), over in sorted(ratios, key=lambda pair: len(pair[0][0]))
    ]  # fmt: skip
    return table(("name", "layer", "convlab ms", "PyTorch ms", "PyTorch / convlab"), lines), ()


def _mean_and_least(ratios: Mapping[str, float]) -> tuple[str, str, str]:
    """Return how many of the twelve layers have a speedup, the geometric mean, and the least."""
    least = min(ratios, key=lambda name: ratios[name])
    mean = Speedup(list(ratios.values())).mean
    return f"{len(ratios)} of {len(LAYER_NAMES)}", f"{mean:.2f}", f"{ratios[least]:.2f} ({least})"


def gradients_tables(results: Results) -> papers.Shown:
    """Return two tables: the mean speedup of g03 over PyTorch for each gradient, and both gradients
    of each layer by g01, g02 with m15, g03, and PyTorch."""
    systems = "g01_direct_gradients", M15, "g03_shared_pixels", analysis.TORCH
    contenders = [contender(results, name) for name in systems]
    g03, torch = contenders[2:]
    layers = {name: (name, batch) for name, batch in results.layers()}
    speedups = zip(layers, g03.over(torch).by_layer, strict=True)
    known = {name: speedup for name, speedup in speedups if speedup is not None}
    means = []
    for of, tensor in zip(OF, ("input", "weight"), strict=True):
        ratios = {name: known[f"{name} {of}"] for name in LAYER_NAMES if f"{name} {of}" in known}
        means.append((tensor, *_mean_and_least(ratios)))

    def best_time(one: Contender, gradient: str) -> str:
        # An interrupted run may lack a gradient.
        return _time(one.best(layers[gradient])) if gradient in layers else ""

    lines = []
    for name in LAYER_NAMES:
        gradients = [f"{name} {of}" for of in OF]
        if any(gradient in layers for gradient in gradients):
            times = [best_time(one, gradient) for gradient in gradients for one in contenders]
            lines.append((name, *times))
    head = [f"{of}: {by}" for of in OF for by in ("g01", "g02", "g03", "PyTorch")]
    columns = "gradient of", "layers with both times", "g03 over PyTorch, geometric mean", "least"
    return f"{table(columns, means)}\n{table(('layer', *head), lines)}", ()


def float32_tables(results: Results) -> papers.Shown:
    """Return two tables: the mean speedup of the fastest stage over the fastest library, which is
    PyTorch or an algorithm of cuDNN in float32, and the names and times of both on each layer."""
    kinds = ("stage", "baseline")
    own, others = (Contender(results, kind, kind, results.names(kind)) for kind in kinds)
    ratios, lines = {}, []
    for name, batch in results.layers():
        mine, theirs = own.best((name, batch)), others.best((name, batch))
        if mine is None or theirs is None or not mine.time_ms or not theirs.time_ms:
            continue
        ratios[name] = theirs.time_ms / mine.time_ms
        stage, times = short_name(mine.system), (_time(mine), _time(theirs))
        lines.append((name, stage, theirs.system, *times, f"{ratios[name]:.2f}"))
    columns = ("layers measured", "geometric mean over the fastest library", "least")
    head = ("layer", "stage", "library", "convlab ms", "library ms", "library / convlab")
    return f"{table(columns, [_mean_and_least(ratios)])}\n{table(head, lines)}", ()


def _time(row: ResultRow | None) -> str:
    """Return milliseconds, with ~ if the runs' spread stayed above 2 %."""
    return "" if row is None else f"{'~' if row.settled is False else ''}{row.time_ms:.4g}"


# The two compilers.

COMPILERS = "", "_mlir"  # endings of the names of their results


def compilers_table() -> str:
    """Return the table of each stage's main kernel by both compilers.

    It has the machine code's registers and instructions, and times if both compilers' kernels were
    timed. A cell with one number holds for both.
    """
    made = [
        # The last row of a stage is its main kernel's.
        {row["stage"]: row for row in papers.read_json(papers.ROOT / f"{LINT}{end}.json")}
        for end in COMPILERS
    ]
    timed = [papers.ROOT / RESULTS / f"{HEADLINE}{end}.json" for end in COMPILERS]
    times = [read_ladder(file)["steps"] for file in timed] if timed[1].exists() else []
    rows = []
    for name in (stage.name for stage in LADDER if stage.name in made[0]):
        both = [one[name] for one in made]
        if not both[0]["multiply_adds"]:  # a library's work
            continue
        cells = [[str(row["registers"]) for row in both], [_per_multiply_add(row) for row in both]]
        if times:
            cells.append([f"{one[name]['time_ms']:.3f}" if name in one else "-" for one in times])
        rows.append((short_name(name), *("/".join(dict.fromkeys(cell)) for cell in cells)))
    columns = "stage", "registers", "loop instructions per multiply-add"
    return table((*columns, "ms") if times else columns, rows)


def _per_multiply_add(row: Mapping[str, Any]) -> str:
    adds = row["loop_multiply_adds"]
    return f"{row['loop_instructions'] / adds:.3g}" if adds else "-"


# Mutants of the stages.

KINDS = "synchronisation", "index", "bound", "constant"


def mutants_tables(document: dict[str, Any]) -> papers.Shown:
    """Return the tables of mutants: results by kind of change, reasons why a mutant is equivalent,
    the files of which a sample was tried, and the mutants that no check tells from the stage."""
    rows = document["rows"]
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS}
    lines = []
    for name, tried in [*kinds.items(), ("all", rows)]:
        found = Counter(
            "left" if row["result"] != "rejected" and not row["equivalent"] else row["result"]
            for row in tried
        )
        counts = [found[one] for one in ("rejected", "told", "survived", "left")]
        shares = (counts[0] / n for n in (len(tried), counts[0] + counts[-1]))
        cells = (*map(str, (len(tried), *counts)), *(f"{100 * share:.1f} %" for share in shares))
        lines.append((name, *cells))
    results = "rejected", "told", "equivalent", "left"
    head = "change", "mutants", *results, "rejected of all", "of the rest"
    reasons = Counter(row["equivalent"] for row in rows if row["equivalent"])
    same = [(why, str(many)) for why, many in reasons.most_common()]
    left = [
        (row["module"].rpartition(".")[2], f"`{row['code']}`", f"`{row['old']}`", f"`{row['new']}`")
        for row in rows
        if row["result"] != "rejected" and not row["equivalent"]
    ]
    tables = [table(head, lines), table(("right, because", "mutants"), same)]
    tried = Counter(row["module"] for row in rows)
    samples = [
        (module.rpartition(".")[2], str(tried[module]), str(made))
        for module, made in document["made"].items()
        if tried[module] < made
    ]
    if samples:
        tables.append(table(("a random sample of", "tried", "of"), samples))
    if left:
        tables.append(table(("file", "line", "is", "becomes"), left))
    return "\n".join(tables), ()


ENDS = {"compiled": "ended so, with nothing found", "found": "ended with a finding"}


def engine_mutants_table(document: dict[str, Any]) -> papers.Shown:
    """Return the tables of mutants as machine code: how many have which result, beside that of
    ``convlab check``, the time that they took, and how their launches ended."""
    rows, launches = document["rows"], document["launches"]
    tried = [
        f"{sum(row['mutants'] for row in rows if row['stored'] == result)} of {count} {result}"
        for result, count in document["stored"].items()
    ]
    said = f"Tried, by the result of `convlab check`: {', '.join(tried)}."
    names = "stored", "now", "mutants", "only_python", "cpu_seconds"
    lines = [tuple(str(row[name]) for name in names) for row in rows]
    head = "`convlab check`", "here", "mutants", "of them, all launches as Python", "CPU seconds"
    ends = [(words, str(launches[end])) for end, words in ENDS.items()]
    ends += [
        (f"went on as Python: {end}", str(count))
        for end, count in launches.items()
        if end not in ENDS
    ]
    tables = table(head, lines, left=2), table(("launches begun as machine code", "how many"), ends)
    return "\n".join([said, "", *tables]), ()


# Public programs on the simulator.


def ledger_table(document: Mapping[str, Any]) -> papers.Shown:
    """Return the table of public programs: what was found in each, and whether it is a fault."""
    head = "program", "ran", "found", "result", "why", "launches", "CPU s"
    lines = [
        (_program(row), _ran(row), _found(row), row["result"], row["why"], str(row["launches"]),
         f"{row['cpu_seconds']:.0f}")
        for row in document["rows"]
    ]  # fmt: skip
    return table(head, lines, left=5), ()


def _program(row: Mapping[str, Any]) -> str:
    """Return a link to the program's file as it was at the commit that ran."""
    repository, commit, path = row["repository"], row["commit"], row["path"]
    link = f"[`{Path(path).name}`](https://github.com/{repository}/blob/{commit}/{path})"
    return f"{link} of {repository} at `{commit[:7]}`"


def _ran(row: Mapping[str, Any]) -> str:
    return f"{row['ran']}; {row['changed']}" if row["changed"] else row["ran"]


def _found(row: Mapping[str, Any]) -> str:
    """Return the kinds of findings, each with the lines that it names."""
    kinds = []
    for one in row["findings"]:
        lines = ", ".join(map(str, one["lines"]))
        kinds.append(f"{one['kind']}, {'lines' if len(one['lines']) > 1 else 'line'} {lines}")
    return "; ".join(kinds) or "-"


# The ladder before and after it had routes.


def routes_table(document: Mapping[str, Any]) -> papers.Shown:
    """Return the table of each stage's main kernel and time, before and after the routes."""
    head = "stage", "before", "registers", "instructions per multiply-add", "ms", "after / before"
    lines = []
    for row in document["rows"]:
        code, times = row["machine_code"], row["time_ms"]
        before, after = (min(times[when]) for when in ("before", "after"))
        lines.append(
            (
                row["stage"],
                row["before"],
                _both(code, _registers_used),
                _both(code, _per_multiply_add),
                f"{before:.3f}, {after:.3f}",
                f"{after / before:.3f}",
            )
        )
    return table(head, lines, left=2), ()


def _both(code: Mapping[str, Any], shown: Callable[[Mapping[str, Any]], str]) -> str:
    """Return a figure of the kernel before and after, once if it is the same."""
    figures = [shown(code[when]) if code[when] else "-" for when in ("before", "after")]
    return ", ".join(dict.fromkeys(figures))


def _registers_used(kernel: Mapping[str, Any]) -> str:
    return str(kernel["registers"])


# The sections that show one file of results each, by their names in pages.
SECTIONS = {
    "sizes": papers.of_cases("", "sizes", sizes_tables),
    "precisions": papers.of_cases("", "precisions", precisions_tables, "h200"),
    "unseen": papers.of_cases("", "unseen", unseen_tables),
    "grouped": papers.of_cases("", "grouped", grouped_tables),
    "gradients": papers.of_cases("", "gradients", gradients_tables),
    "float32": papers.Section(
        "", "float32_h200.json", "`convlab bench` with three stages and cuDNN's algorithms",
        float32_tables,
    ),
    "sanitizers": papers.Section(
        "", "sanitizers_h200.json", "`make sanitize`",
        lambda document: (sanitizers.show(document), ()), of_rows=False,
    ),
    "ledger": papers.Section(
        "", "ledger.json", "`convlab run --json`", ledger_table, of_rows=False
    ),
    "routes": papers.Section(
        "", "routes_h100.json", "`convlab ladder --layer conv9 --json` and `convlab lint --json`",
        routes_table, of_rows=False,
    ),
    "models": papers.Section(
        "", "models_h200.json", "`convlab bench --cases models`", models_table, of_rows=False
    ),
    "inference": papers.Section(
        "", "inference_h200.json", "`convlab bench --cases inference`", inference_table,
        of_rows=False,
    ),
    "training": papers.Section(
        "", "training_h100.json", "`convlab bench --cases training`", training_table, of_rows=False
    ),
    "stage-mutants": papers.Section(
        "", "stage_mutants.json", "`python -m stage_mutants`", mutants_tables, of_rows=False
    ),
    "engine-mutants": papers.Section(
        "", "engine_mutants.json", "`python -m stage_mutants.engines --sum-up`",
        engine_mutants_table, of_rows=False,
    ),
}  # fmt: skip
