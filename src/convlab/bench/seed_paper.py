"""The im2win paper's (000) Figures 2, 3 and 4 and Table 3 from our results: what is drawn, the
tables, what was claimed there and what is found here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convlab.bench import ablation, analysis
from convlab.bench.analysis import Contender, geometric_mean
from convlab.bench.charts import Chart
from convlab.bench.measured import table
from convlab.bench.results import Results, tensor_bytes
from convlab.bench.seed_figures import Shown
from convlab.workloads import LAYER_NAMES, paper_layer

GIB = 2**30
PER_IMAGE, BATCHED, DIRECT, IM2WIN = (
    "im2col_cublas_per_image", "im2col_cublas_batched", "s01_direct", "s11_im2win_full",
)  # fmt: skip
CUDNN, GEMM_CLASS = "cudnn_fastest", "cudnn_gemm_class"
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
        ("im2col + cuBLAS, per image", PER_IMAGE),
        ("im2col + cuBLAS, batched", BATCHED),
        ("the fastest of cuDNN", CUDNN),
        ("the fastest of cuDNN's GEMM class", GEMM_CLASS),
        ("im2winGPU (s11)", IM2WIN),
    ]
    found = {
        words: groups.get(name) or analysis.contender(results, name)
        for words, name in wanted
        if name in groups or name in results.systems
    }
    if best is not None and best.name != IM2WIN:
        found[f"convlab's fastest ({best.name})"] = best
    return found


def figure_2(results: Results) -> Shown:
    """TFLOP/s of the systems on each layer."""
    layers, systems = results.layers(), of_interest(results)
    rows = {words: [one.best(results, layer) for layer in layers] for words, one in systems.items()}
    series = {
        words: [None if row is None else row.tflops for row in found]
        for words, found in rows.items()
    }
    chart = Chart(
        f"Figure 2 on an {results.device}: TFLOP/s on the twelve layers",
        _places(layers), "layer, Conv ...", "TFLOP/s of the convolution as defined", series,
    )  # fmt: skip
    ours = analysis.contender(results, IM2WIN)

    def over(name: str, words: str) -> str:
        return _over(results, ours, systems.get(name), words)

    claims = (
        (
            "im2winGPU has on average 3.5x the TFLOPS of im2col+cuBLAS", "4.2",
            f"{over('im2col + cuBLAS, per image', 'image by image')}; "
            f"{over('im2col + cuBLAS, batched', 'batched')}",
        ),
        (
            "5x to 155x the TFLOPS of the direct convolution", "4.2",
            over("direct (s01)", "s01"),
        ),
        (
            "on average 1.1x, up to 1.8x (the first benchmark) the fastest of cuDNN",
            "1 and 4.2",
            f"{over('the fastest of cuDNN', 'all algorithms')}; "
            f"{over('the fastest of cuDNN' + chr(39) + 's GEMM class', 'the GEMM class')}",
        ),
    )  # fmt: skip
    return Shown({"000-figure-2": chart}, _by_layer(layers, series, "{:.1f}"), claims)


def _over(results: Results, ours: Contender, other: Contender | None, words: str) -> str:
    if other is None:
        return f"{words}: not measured"
    ratios = [
        ratio
        for layer in results.layers()
        if (ratio := analysis.speedup(results, ours, other, layer))
    ]
    return f"{words}: {_ratios(ratios)}"


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
        f"Figure 3 on an {results.device}: memory on the twelve layers",
        _places(layers), "layer, Conv ...", "GiB: input, filter, output and workspace", series,
        log=True,
    )  # fmt: skip

    def less(words: str) -> str:
        ours, other = in_bytes.get("im2winGPU (s11)", []), in_bytes.get(words, [])
        parts = [1 - one / two for one, two in zip(ours, other, strict=False) if one and two]
        if not parts:
            return f"than {words}: not measured"
        return f"{100 * sum(parts) / len(parts):.1f} % less than {words}"

    claims = (
        (
            "on average 23.1 % less than im2col+cuBLAS", "4.3",
            f"{less('im2col + cuBLAS, per image')}; {less('im2col + cuBLAS, batched')}",
        ),
        ("on average 32.8 % less than cuDNN's fastest", "4.3", less("the fastest of cuDNN")),
        ("slightly more than the direct convolution", "4.3", less("direct (s01)")),
    )  # fmt: skip
    return Shown({"000-figure-3": chart}, _by_layer(layers, series, "{:.2f}"), claims)


def table_3(results: Results) -> Shown:
    """cuDNN's fastest algorithm on each layer."""
    groups = {one.name: one for one in analysis.fastest(results)}
    cudnn = groups.get(CUDNN)
    rows, same = [], 0
    for layer in results.layers():
        row = cudnn.best(results, layer) if cudnn else None
        name = row.system.removeprefix("cudnn_").upper() if row else "-"
        same += name == TABLE_3[layer[0]]
        spent = f"{row.time_ms:.3f}" if row and row.time_ms else "-"
        rows.append((layer[0], TABLE_3[layer[0]], name, spent))
    head = ("layer", "cuDNN 8.0 on an RTX 3090", f"today's on an {results.device}", "ms")
    claim = (
        "the fastest is chosen automatically", "4.2, Table 3",
        f"the same algorithm on {same} of {len(rows)} layers",
    )  # fmt: skip
    return Shown({}, table(head, rows, left=3), (claim,))


def _places(layers: Sequence[tuple[str, int]]) -> list[str]:
    return [name.removeprefix("conv") for name, _ in layers]


def _by_layer(
    layers: Sequence[tuple[str, int]], series: dict[str, list[float | None]], form: str
) -> str:
    rows = [
        (name, *(_form(values[place], form) for values in series.values()))
        for place, (name, _) in enumerate(layers)
    ]
    return table(("layer", *series), rows)


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
    chart = Chart(
        f"Figure 4 on an {document['device']}: s11 whole and without each technique",
        [layer.removeprefix("conv") for layer in layers], "layer, Conv ...",
        "TFLOP/s of the convolution as defined", series,
    )  # fmt: skip
    gains = {
        about.removeprefix("without "): geometric_mean(ratios)
        for name, (_, about) in ablation.VARIANTS.items()
        if (ratios := ablation.worth(document, name))
    }
    found = sorted(gains.items(), key=lambda pair: -pair[1])
    claim = (
        "the micro-kernel boosts most, then the vectorized load, prefetching least", "4.4",
        ", then ".join(f"{about} {gain:.2f}x" for about, gain in found),
    )  # fmt: skip
    return Shown({"000-figure-4": chart}, ablation.show(document), (claim,))


def _ratios(values: Sequence[float]) -> str:
    if not values:
        return "not measured"
    return f"{geometric_mean(values):.2f}x ({min(values):.2f} to {max(values):.2f})"


def _form(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
