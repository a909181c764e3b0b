"""The im2win paper's (000) Figures 2, 3 and 4 and Table 3 from our results: what is drawn, the
tables, what was claimed there and what is found here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convlab.bench import ablation, analysis
from convlab.bench.analysis import CUDNN, GEMM_CLASS, Contender, geometric_mean
from convlab.bench.charts import Chart, Values
from convlab.bench.measured import table
from convlab.bench.results import Results, tensor_bytes
from convlab.bench.rows import Row
from convlab.bench.seed_figures import Shown
from convlab.bench.seed_runs import unsettled
from convlab.workloads import LAYER_NAMES, paper_layer

GIB = 2**30
UNKNOWN = "not measured"
TIE = 0.01  # a difference that another run may turn round
PYTORCHS, PER_IMAGE, BATCHED, DIRECT, IM2WIN = (
    "torch_own_im2col", "im2col_cublas_per_image", "im2col_cublas_batched", "s01_direct",
    "s11_im2win_full",
)  # fmt: skip
# What the paper calls im2col + cuBLAS is PyTorch's own. Runs from before it was a baseline lack it.
IM2COLS = {
    "PyTorch's own im2col + cuBLAS": PYTORCHS,
    "im2col + cuBLAS, per image": PER_IMAGE,
    "im2col + cuBLAS, batched": BATCHED,
}
# Not s13: it multiplies on tensor cores, which is as accurate and another arithmetic.
S11, FASTEST = "im2winGPU (s11)", "convlab's fastest in fp32 arithmetic"
# 000, Table 3: what cuDNN 8.0 chose on an RTX 3090.
TABLE_3 = dict(
    zip(
        LAYER_NAMES,
        ("IMPLICIT_GEMM",) * 4 + ("WINOGRAD",) + ("IMPLICIT_GEMM",) * 2 + ("FFT",)
        + ("WINOGRAD",) * 3 + ("IMPLICIT_GEMM",),
        strict=True,
    )
)  # fmt: skip

# 000, from what `convlab bench` wrote.


def of_interest(results: Results) -> dict[str, Contender]:
    """The paper's four systems, and beside them what else matters, by what they are called."""
    groups = {one.name: one for one in analysis.fastest(results)}
    best = analysis.best_stage(results)
    wanted = [
        ("direct (s01)", DIRECT),
        *IM2COLS.items(),
        ("the fastest of cuDNN", CUDNN),
        ("the fastest of cuDNN's GEMM class", GEMM_CLASS),
        (S11, IM2WIN),
    ]
    found = {
        words: groups.get(name) or analysis.contender(results, name)
        for words, name in wanted
        if name in groups or name in results.systems
    }
    if best is not None and best.name != IM2WIN:
        found[f"{FASTEST} ({best.name})"] = best
    return found


def figure_2(results: Results) -> Shown:
    """TFLOP/s of the systems on each layer."""
    layers, systems = results.layers(), of_interest(results)
    rows = {words: [one.best(results, layer) for layer in layers] for words, one in systems.items()}
    series = {
        words: [None if row is None else row.tflops for row in found]
        for words, found in rows.items()
    }
    at_places = {
        words: [place for place, row in enumerate(found) if row is not None and not row.settled]
        for words, found in rows.items()
    }
    chart = Chart(
        f"000's Figure 2 on an {results.device}: TFLOP/s on the twelve layers",
        _places(layers), "layer, Conv ...", "TFLOP/s of the convolution as defined", series,
        unsettled=at_places,
    )  # fmt: skip
    claims = (
        (
            '"about on average 3.5x TFLOPS than that of im2col+cuBLAS convolution"', "4.2",
            _over(results, systems, *IM2COLS),
        ),
        (
            '"5x to 155x TFLOPS compared with the direct convolution"', "4.2",
            _over(results, systems, "direct (s01)"),
        ),
        (
            'cuDNN: "on average achieving" 1.1x; "up to 1.8x TFLOPS (the first benchmark)"',
            "1 and 4.2",
            _over(
                results, systems, "the fastest of cuDNN", "the fastest of cuDNN's GEMM class"
            ),
        ),
    )  # fmt: skip
    return Shown({"000-figure-2": chart}, _by_layer(chart, layers, "{:.1f}"), claims)


def _ours(systems: dict[str, Contender]) -> list[tuple[str, str]]:
    """Ours among the systems: a short name, and what it is called there."""
    best = [words for words in systems if words.startswith(FASTEST)]
    return [("s11", S11)] + [(systems[words].name.partition("_")[0], words) for words in best]


def _over(results: Results, systems: dict[str, Contender], *others: str) -> str:
    """How many times as fast ours are as each of the others that the run has."""
    found = []
    for short, mine in _ours(systems):
        for other in filter(systems.__contains__, others):
            ratios: list[float] = []
            if mine in systems:
                every = (
                    analysis.speedup(results, systems[mine], systems[other], layer)
                    for layer in results.layers()
                )
                ratios = [ratio for ratio in every if ratio]
            found.append(f"{short} over {other}: {_ratios(ratios)}")
    return "; ".join(found) or UNKNOWN


def memory_bytes(results: Results, one: Contender, layer: tuple[str, int]) -> int | None:
    """Input, filter, output and workspace of what is fastest there; None where it is not known."""
    row = one.best(results, layer)
    if row is None or row.workspace_bytes is None:
        return None
    return tensor_bytes(paper_layer(*layer)) + row.workspace_bytes


def figure_3(results: Results) -> Shown:
    """GiB of the systems on each layer."""
    layers, systems = results.layers(), of_interest(results)
    in_bytes = {
        words: [memory_bytes(results, one, layer) for layer in layers]
        for words, one in systems.items()
    }
    series = {
        words: [None if one is None else one / GIB for one in values]
        for words, values in in_bytes.items()
    }
    chart = Chart(
        f"000's Figure 3 on an {results.device}: memory on the twelve layers",
        _places(layers), "layer, Conv ...",
        "GiB: input, filter, output and workspace, computed", series, log=True,
    )  # fmt: skip

    def less(*others: str) -> str:
        found = []
        for short, mine in _ours(systems):
            for other in filter(systems.__contains__, others):
                pairs = zip(in_bytes.get(mine, []), in_bytes.get(other, []), strict=False)
                parts = [1 - one / two for one, two in pairs if one and two]
                mean = f"{100 * sum(parts) / len(parts):.1f} %" if parts else UNKNOWN
                found.append(f"{short} less than {other}: {mean}")
        return "; ".join(found) or UNKNOWN

    claims = (
        (
            '"23.1% less memory than cuBLAS", on average', "4.3",
            less(*IM2COLS),
        ),
        (
            '"32.8% less memory than cuDNN", on average', "4.3",
            less("the fastest of cuDNN"),
        ),
        (
            '"slightly higher memory usage than the direct convolution"', "4.3",
            less("direct (s01)"),
        ),
    )  # fmt: skip
    return Shown({"000-figure-3": chart}, _by_layer(chart, layers, "{:.2f}"), claims)


def table_3(results: Results) -> Shown:
    """cuDNN's fastest algorithm on each layer, of those that its API has a name for, and those as
    good as it."""
    rows, same, alone = [], 0, 0
    for layer in results.layers():
        near = _as_fast_as_any(results, layer)
        names = [row.system.removeprefix("cudnn_").upper() for row in near]
        same += TABLE_3[layer[0]] in names
        alone += names[:1] == [TABLE_3[layer[0]]]
        spent = [f"{'' if row.settled else '~'}{row.time_ms:.3f}" for row in near]
        rows.append(
            (layer[0], TABLE_3[layer[0]], *(", ".join(one) or "-" for one in (names, spent)))
        )
    head = ("layer", "cuDNN 8.0 on an RTX 3090", f"today's on an {results.device}", "ms")
    claim = (
        '"the fastest algorithm automatically chosen by cuDNN"', "4.2, Table 3",
        f"the same algorithm on {same} of {len(rows)} layers, on {alone} by the median alone",
    )  # fmt: skip
    said = f"Algorithms within {100 * TIE:.0f} % of the fastest stand beside it: which of them is "
    said += "ahead may change from run to run."
    return Shown({}, f"{said}\n\n{table(head, rows, left=3)}", (claim,))


def _as_fast_as_any(results: Results, layer: tuple[str, int]) -> list[Row]:
    """cuDNN's fastest algorithm on a layer and those within :data:`TIE` of it, in their order."""
    rows = [results.row(*layer, name) for name in analysis.cudnn_algorithms(results).members]
    timed = [(row.time_ms, row) for row in rows if row is not None and row.time_ms is not None]
    timed.sort(key=lambda pair: pair[0])
    return [row for time_ms, row in timed if time_ms <= (1 + TIE) * timed[0][0]]


def _places(layers: Sequence[tuple[str, int]]) -> list[str]:
    return [name.removeprefix("conv") for name, _ in layers]


def _by_layer(chart: Chart, layers: Sequence[tuple[str, int]], form: str) -> str:
    """What a chart shows, as a table; ~ where it was not steady."""

    def cell(words: str, values: Values, place: int) -> str:
        value = values[place]
        mark = "~" if place in chart.unsettled.get(words, ()) else ""
        return "-" if value is None else mark + form.format(value)

    rows = [
        (name, *(cell(words, values, place) for words, values in chart.series.items()))
        for place, (name, _) in enumerate(layers)
    ]
    return table(("layer", *chart.series), rows)


# 000's Figure 4, from convlab.bench.ablation.


def figure_4(document: dict[str, Any]) -> Shown:
    """The ablation."""
    layers = ablation.layers_of(document)
    words = {ablation.WHOLE: "s11 whole"} | {
        name: about for name, (_, about) in ablation.VARIANTS.items()
    }
    series = {
        about: [ablation.tflops(document, layer, name) for layer in layers]
        for name, about in words.items()
    }
    at_places = {
        about: [at for at, layer in enumerate(layers) if unsettled(document, layer, name)]
        for name, about in words.items()
    }
    chart = Chart(
        f"000's Figure 4 on an {document['device']}: s11 whole and without each technique",
        [layer.removeprefix("conv") for layer in layers], "layer, Conv ...",
        "TFLOP/s of the convolution as defined", series, unsettled=at_places,
    )  # fmt: skip
    gains = {
        about.removeprefix("without "): geometric_mean(ratios)
        for name, (_, about) in ablation.VARIANTS.items()
        if (ratios := ablation.worth(document, name))
    }
    found = sorted(gains.items(), key=lambda pair: -pair[1])
    claim = (
        '"the micro-kernel technique gives the greatest performance boost, followed by the '
        'vectorized load, and the prefetching gives the poorest performance boost"',
        "4.4",
        ", then ".join(f"{about} {gain:.2f}x" for about, gain in found),
    )  # fmt: skip
    return Shown({"000-figure-4": chart}, ablation.show(document), (claim,))


def _ratios(values: Sequence[float]) -> str:
    if not values:
        return UNKNOWN
    return f"{geometric_mean(values):.2f}x ({min(values):.2f} to {max(values):.2f})"
