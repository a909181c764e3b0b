"""The plots of a report, by matplotlib, as SVG: each for wide screens and for narrow ones.

Text stays text. Words, axes and card have the colours of the documentation's pictures, which a page
may replace by its own for dark mode; what is plotted has colours that read on both.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from convlab.bench import analysis
from convlab.bench.analysis import Contender
from convlab.bench.palette import CARD, COLOURS, INK, LINE, QUIET
from convlab.bench.report_document import Figure
from convlab.bench.results import Results, tensor_bytes
from convlab.image import PlotsMissing
from convlab.workloads import paper_layer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*", "p", "d", "H", "8", "+", "x")
WIDE, NARROW = 8.2, 3.7  # inches
# Laid out in the font that comes with matplotlib, shown in the reader's own, which is narrower.
LAID_OUT_IN = "DejaVu Sans"
FONTS = (
    "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
)
MIB = 2**20
DOTS = 0.85  # how opaque: several on one place are darker, and each is 3:1 against its card

Draw = Callable[["Axes", bool], None]


def _figure(name: str, about: str, heights: tuple[float, float], draw: Draw) -> Figure:
    """A figure drawn by ``draw(axes, narrow)`` at both widths; ``heights`` are in inches."""
    wide, narrow = (
        _svg(f"{name}-{width}", width, height, draw)
        for width, height in zip((WIDE, NARROW), heights, strict=True)
    )
    return Figure(name, about, wide, narrow)


def _svg(salt: str, width: float, height: float, draw: Draw) -> str:
    narrow = width == NARROW
    with _style(salt, 8.5 if narrow else 9.5):
        from matplotlib.figure import Figure as Canvas

        figure = Canvas(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        draw(axes, narrow)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.set_axisbelow(True)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"font-family: [^;]*;", f"font-family: {FONTS};", file.getvalue())
    used = set(re.findall(r"#([\w.-]+)", text))  # several pictures on a page: no id twice
    text = re.sub(r' id="([\w.-]+)"', lambda found: found[0] * (found[1] in used), text)
    lines = text[text.index("<svg") :].splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


@contextmanager
def _style(salt: str, size: float) -> Iterator[None]:
    """matplotlib's settings for these pictures alone; the salt keeps ids of several apart and the
    same from run to run. Raises :class:`PlotsMissing`."""
    try:
        import matplotlib
    except ImportError as error:
        raise PlotsMissing(
            "plots need matplotlib: run make report, or python -m pip install -e '.[plots]'"
        ) from error
    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": salt, "font.family": [LAID_OUT_IN],
        "font.size": size, "text.color": INK, "axes.labelcolor": QUIET, "axes.edgecolor": LINE,
        "xtick.color": QUIET,
        "ytick.color": QUIET, "axes.facecolor": CARD, "figure.facecolor": CARD,
        "savefig.facecolor": CARD, "grid.color": LINE, "grid.linewidth": 0.6,
        "legend.frameon": False, "legend.labelcolor": INK, "axes.titlecolor": INK,
        "lines.markersize": 5 if size > 9 else 4, "axes.unicode_minus": False,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        yield


def _label(name: str) -> str:
    """A layer's name, short enough for an axis: its number."""
    return name.removeprefix("conv")


def _below(axes: Axes, columns: int) -> None:
    """The legend below the axes, where it hides nothing."""
    axes.figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns,
        handletextpad=0.3, columnspacing=1.2,
    )  # fmt: skip


def throughput(results: Results, shown: Sequence[Contender], name: str = "throughput") -> Figure:
    """TFLOP/s by layer of the systems that matter most."""
    layers = results.layers()

    def draw(axes: Axes, narrow: bool) -> None:
        for number, one in enumerate(shown):
            points = [
                (place, row.tflops)
                for place, layer in enumerate(layers)
                if (row := one.best(results, layer)) is not None and row.tflops
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True), label=one.title.partition(":")[0],
                    color=COLOURS[number % len(COLOURS)], marker=MARKERS[number], linewidth=0.9,
                    alpha=0.95,
                )  # fmt: skip
        peak = results.machine.fp32_flops
        tallest = max((row.tflops or 0 for row in results.rows.values() if _fp32(results, row)),
                      default=0)  # fmt: skip
        if peak and peak / 1e12 < 2 * tallest:
            axes.axhline(peak / 1e12, color=INK, linewidth=0.9, linestyle="--")
            _beside(axes, peak / 1e12, f"fp32 peak\n{peak / 1e12:.1f}")
        axes.set_xticks(range(len(layers)), [_label(layer) for layer, _ in layers])
        axes.set_xlabel("layer (Conv1 to Conv12 of the paper)" if not narrow else "layer: Conv ...")
        axes.set_ylabel("TFLOP/s of the convolution as defined" if not narrow else "TFLOP/s")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        _below(axes, 1 if narrow else 2)

    about = "TFLOP/s on each layer; more is better. Fourier and Winograd algorithms do fewer "
    about += "multiplications than the convolution has, tensor cores do more of them at a time: "
    about += "both may pass fp32's peak."
    extra = 0.17 * len(shown)
    return _figure(name, about, (4.0 + extra / 2, 3.2 + extra), draw)


def _fp32(results: Results, row: Any) -> bool:
    return bool(results.systems[row.system]["precision"] == "fp32")


def _roof(axes: Axes, span: tuple[float, float], peak: float, bandwidth: float, words: str) -> None:
    """What memory allows up to the ridge, and arithmetic beyond it."""
    low, high = span
    points = [(low, low * bandwidth), (peak / bandwidth, peak), (high, peak)]
    axes.plot(
        [at for at, _ in points], [rate / 1e12 for _, rate in points], color=INK, linewidth=1.2
    )
    _beside(axes, peak / 1e12, words)


def roofline(results: Results, name: str = "roofline") -> Figure:
    """Every stage on every layer, below the GPU's two roofs."""
    layers = results.layers()
    intensity = {layer: paper_layer(*layer).flops_per_byte for layer in layers}
    machine = results.machine

    def draw(axes: Axes, narrow: bool) -> None:
        reached = []
        for number, one in enumerate(analysis.stages(results)):
            points = [
                (intensity[layer], row.tflops)
                for layer in layers
                if (row := one.best(results, layer)) is not None and row.tflops
            ]
            reached += [height for _, height in points]
            if points:
                axes.plot(
                    *zip(*points, strict=True), label=one.name, linestyle="none", alpha=0.9,
                    color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
                )  # fmt: skip
        low, high = min(intensity.values()) / 2, max(intensity.values()) * 2
        peak, bandwidth = machine.fp32_flops, machine.memory_bytes_per_second
        precisions = {results.systems[name]["precision"] for name in results.names("stage")}
        split = machine.peak_flops("3xtf32") if "3xtf32" in precisions else None
        if peak and bandwidth:
            low = min(low, peak / bandwidth / 8)
            _roof(axes, (low, high), peak, bandwidth, f"fp32 peak\n{peak / 1e12:.1f}")
            ridge = peak / bandwidth, peak / 1e12
            _note(axes, ridge, f"memory {bandwidth / 1e12:.1f} TB/s", "right", (-8, 2))
        if split and bandwidth:
            _roof(axes, (low, high), split, bandwidth, f"3xTF32 peak\n{split / 1e12:.0f}")
        if machine.sgemm_tflops:
            first = 1e12 * machine.sgemm_tflops / bandwidth if bandwidth else low
            level = [machine.sgemm_tflops] * 2
            axes.plot([first, high], level, color=QUIET, linewidth=0.9, linestyle="--")
            # Where it begins: at its other end are the points of the fastest stage.
            text = f"cuBLAS SGEMM {machine.sgemm_tflops:.1f} TFLOP/s"
            _note(axes, (first, machine.sgemm_tflops), text, "left", (6, -10))
        axes.set(xscale="log", yscale="log", xlim=(low, high))
        bottom = min(reached, default=1.0) / 2
        top = max([*reached, (peak or 0) / 1e12, (split or 0) / 1e12, 1.0]) * 3
        axes.set_ylim(bottom, top)
        if not narrow:
            _layer_names(axes, intensity, top)
        ticks = [
            2.0**power
            for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        ]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        heights = [
            step * 10.0**power for power in range(-4, 4) for step in (1, 2, 5)
            if bottom <= step * 10.0**power <= top
        ]  # fmt: skip
        if narrow:
            heights = heights[::2]
        axes.set_yticks(heights, [f"{height:g}" for height in heights])
        numbers = "" if narrow else "; at the top the layer, Conv ..."
        axes.set_xlabel(f"FLOP per byte that has to move{numbers}")
        axes.set_ylabel("TFLOP/s")
        axes.grid()
        _below(axes, 2 if narrow else 4)

    about = "The roofline: this run's stages on every layer, below what arithmetic and memory "
    about += "allow; 3xTF32 is s13's and s14's. Bytes are the fewest that have to move, each "
    about += "number once."
    return _figure(name, about, (5.2, 4.4), draw)


def _beside(axes: Axes, height: float, text: str) -> None:
    """A note on a level, at its right end outside the axes: inside there are points."""
    axes.annotate(
        text, (1, height), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
        xytext=(4, 0), va="center", fontsize="small", color=QUIET, annotation_clip=False,
    )  # fmt: skip


def _note(
    axes: Axes, at: tuple[float, float], text: str, side: str, away: tuple[float, float] = (0, 4)
) -> None:
    axes.annotate(
        text, at, textcoords="offset points", xytext=away, ha=side, fontsize="small", color=QUIET
    )


def _layer_names(axes: Axes, intensity: dict[tuple[str, int], float], top: float) -> None:
    """The layers' numbers above their columns, those too near to each other together."""
    groups: list[tuple[list[float], list[str]]] = []
    for (layer, _), value in sorted(intensity.items(), key=lambda pair: pair[1]):
        if groups and value < 1.12 * groups[-1][0][-1]:
            groups[-1][0].append(value)
            groups[-1][1].append(_label(layer))
        else:
            groups.append(([value], [_label(layer)]))
    for values, names in groups:
        middle = math.sqrt(values[0] * values[-1])
        axes.annotate(
            "\n".join(names), (middle, top), textcoords="offset points", xytext=(0, -3),
            ha="center", va="top", fontsize="x-small", color=QUIET,
        )  # fmt: skip


def speedups(
    results: Results, one: Contender, over: Sequence[Contender], name: str = "speedups"
) -> Figure:
    """One system over the others: each layer a dot, their geometric mean a bar."""
    layers = results.layers()
    known: list[tuple[Contender, float, list[float]]] = []
    for other in over:
        mean = analysis.mean_speedup(results, one, other)
        if mean is not None and other.name != one.name:
            ratios = [analysis.speedup(results, one, other, layer) for layer in layers]
            known.append((other, mean[0], [ratio for ratio in ratios if ratio]))

    def draw(axes: Axes, narrow: bool) -> None:
        for place, (_, mean, ratios) in enumerate(known):
            axes.plot(
                ratios, [place] * len(ratios), "o", color=COLOURS[0], alpha=DOTS, markersize=4,
                markeredgewidth=0,
            )  # fmt: skip
            axes.plot([mean], [place], "|", color=INK, markersize=13, markeredgewidth=2)
            few = "" if len(ratios) == len(layers) else f" ({len(ratios)})"
            axes.annotate(
                f"{mean:.2f}{few}", (mean, place), textcoords="offset points", xytext=(0, 8),
                ha="center", fontsize="small",
            )  # fmt: skip
        axes.axvline(1, color=QUIET, linewidth=0.9)
        axes.set_xscale("log", base=2)
        every = [ratio for *_, ratios in known for ratio in ratios] or [1.0]
        first = math.floor(math.log2(min([*every, 1.0])))
        last = max(first + 1, math.ceil(math.log2(max([*every, 1.0]))))
        powers = range(first, last + 1, 1 + (last - first) // (6 if narrow else 11))
        axes.set_xlim(2.0**first / 1.06, 2.0**last * 1.06)  # a dot at the end is whole
        axes.set_xticks([2.0**power for power in powers], [f"{2.0**power:g}" for power in powers])
        axes.minorticks_off()
        axes.set_yticks(range(len(known)), [other.name for other, *_ in known])
        axes.set_ylim(len(known) - 0.4, -0.8)
        wide = f"times as fast: {one.name} over each (below 1 it is slower)\n"
        wide += "a dot a layer, the stroke their geometric mean"
        axes.set_xlabel("times as fast" if narrow else wide)
        axes.grid(axis="x")

    height = 1.0 + 0.36 * max(1, len(known))
    about = f"{one.name} over each of the others: a dot a layer, the stroke their geometric mean."
    return _figure(name, about, (height, height), draw)


def _mean(values: Sequence[float]) -> float | None:
    return analysis.geometric_mean(values) if values else None


def memory(results: Results, name: str = "memory") -> Figure:
    """Device memory in all over that of the tensors alone, computed and measured."""
    ratios: list[tuple[str, float | None, float | None]] = []
    for one in [*analysis.stages(results), *analysis.baselines(results)]:
        computed, measured = [], []
        for layer in results.layers():
            row = results.row(*layer, one.name)
            if row is None or not row.ok:
                continue
            own = tensor_bytes(paper_layer(*layer))
            if row.workspace_bytes is not None:
                computed.append((own + row.workspace_bytes) / own)
            if row.peak_bytes:
                measured.append(row.peak_bytes / own)
        if computed or measured:
            ratios.append((one.name, _mean(computed), _mean(measured)))

    def draw(axes: Axes, narrow: bool) -> None:
        for words, values, marker, colour in (
            ("computed", [one[1] for one in ratios], "|", INK),
            ("measured", [one[2] for one in ratios], "o", COLOURS[1]),
        ):
            points = [(value, place) for place, value in enumerate(values) if value]
            if points:
                size, edge = (12, 2) if marker == "|" else (5, 0)
                axes.plot(
                    *zip(*points, strict=True), marker, color=colour, label=words, alpha=0.9,
                    markersize=size, markeredgewidth=edge,
                )  # fmt: skip
        axes.set_yticks(range(len(ratios)), [one[0] for one in ratios])
        axes.set_ylim(len(ratios) - 0.4, -0.6)
        axes.set_xscale("log", base=2)
        axes.axvline(1, color=QUIET, linewidth=0.9)
        most = max((value for one in ratios for value in one[1:] if value), default=2.0)
        powers = range(max(1, math.ceil(math.log2(most))) + 1)
        axes.set_xlim(0.9, 2.0 ** powers[-1] * 1.1)
        axes.set_xticks([2**power for power in powers], [str(2**power) for power in powers])
        axes.minorticks_off()
        axes.set_xlabel(
            "over the tensors'" if narrow else "memory in all, over the tensors' (1: no workspace)"
        )
        axes.grid()
        _below(axes, 2)

    height = 1.4 + 0.27 * max(1, len(ratios))
    about = "Device memory in all, as a multiple of what input, filter and output take: geometric "
    about += "mean over the layers that each can do, computed from what it asks for, and measured."
    return _figure(name, about, (height, height), draw)
