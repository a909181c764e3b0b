"""Every plot of the report and of the documentation, by matplotlib, as SVG with text.

Words, axes and card have the documentation's colours, light or dark as the reader's system is. What
is plotted has colours that read on a light card and on a dark one.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from convlab.measuring import analysis
from convlab.measuring.analysis import Contender
from convlab.measuring.photograph import plots_needed
from convlab.measuring.results import Layer, Results
from convlab.problems.workloads import problem_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

LIGHT = {"panel": "#ffffff", "ink": "#1f2328", "quiet": "#59636e", "line": "#d1d9e0"}
DARK = {"panel": "#1c2129", "ink": "#e4e8ef", "quiet": "#98a2b5", "line": "#303743"}
CARD, INK, QUIET, LINE = LIGHT.values()
# At least 3:1 against both cards; markers tell them apart without colour.
COLOURS = (
    "#2f7fd6", "#c9731a", "#2e9e5b", "#9a6fd0", "#d6455d", "#7d8590", "#16969b", "#b0559c",
    "#8a7a1f", "#5c7a99",
)  # fmt: skip
BAD = COLOURS[4]
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*", "p", "d", "H", "8", "+", "x")
DOTS = 0.85  # opacity: dots that overlap are darker, and each has 3:1 against its card
WIDTH = 8.2  # inches
# Laid out in matplotlib's own font, shown in the reader's, which is narrower.
LAID_OUT_IN = "DejaVu Sans"
FONTS = (
    "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
)
STYLE: Any = {
    "svg.fonttype": "none", "font.family": [LAID_OUT_IN], "font.size": 9.5, "text.color": INK,
    "axes.labelcolor": QUIET, "axes.edgecolor": LINE, "xtick.color": QUIET, "ytick.color": QUIET,
    "axes.facecolor": CARD, "figure.facecolor": CARD, "savefig.facecolor": CARD,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "grid.color": LINE, "grid.linewidth": 0.6, "legend.frameon": False, "legend.labelcolor": INK,
    "axes.unicode_minus": False, "lines.markersize": 5,
}  # fmt: skip


def svg(salt: str, height: float, draw: Callable[[Axes], None], width: float = WIDTH) -> str:
    """One picture in inches; the same bytes for the same ``salt``, which no other picture of a page
    may have. Raises :class:`~convlab.measuring.photograph.PlotsMissing` where matplotlib is not
    installed."""
    with plots_needed("a plot"):
        import matplotlib
        from matplotlib.figure import Figure
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": salt}):
        figure = Figure(figsize=(width, height))
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
        draw(figure.add_subplot())
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return readable(file.getvalue(), dict(zip(LIGHT.values(), DARK.values(), strict=True)))


def readable(picture: str, dark: Mapping[str, str]) -> str:
    """Return matplotlib's SVG in the reader's fonts, with the colours of ``dark`` on dark pages.

    Only ids that are used stay, because a page has several pictures and an id is there once.
    """
    text = re.sub(r"font-family: [^;]*;", f"font-family: {FONTS};", picture)
    text = re.sub(rf"(font: [^;]*)'{LAID_OUT_IN}'[^;\"]*", rf"\1{FONTS}", text)
    used = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r' id="([\w.-]+)"', lambda found: found[0] if found[1] in used else "", text)
    lines = text[text.index("<svg") :].splitlines()
    return with_dark_mode("\n".join(line.rstrip() for line in lines) + "\n", dark)


def with_dark_mode(picture: str, dark: Mapping[str, str]) -> str:
    """Return a picture that has other colours where the page or the system is dark. ``dark`` holds
    the dark colours by the light ones."""
    rules = " ".join(
        f'[{what}="{light}"], [style*="{what}: {light}"] {{ {what}: {colour} !important }}'
        for light, colour in dark.items()
        for what in ("fill", "stroke")
        if f'{what}="{light}"' in picture or f"{what}: {light}" in picture
    )
    head, end, rest = picture.partition(">")
    style = f"<style>@media (prefers-color-scheme: dark) {{ {rules} }}</style>"
    return f"{head}{end}\n{style}{rest}"


def note(
    axes: Axes, at: tuple[float, float], text: str, away: tuple[float, float] = (0, 0), **style: Any
) -> Annotation:
    """Words beside a point, ``away`` from it in points; they may lie outside the axes."""
    style = {"fontsize": "small", "color": QUIET, "annotation_clip": False, **style}
    return axes.annotate(text, at, xytext=away, textcoords="offset points", **style)


def _level(axes: Axes, height: float, text: str) -> None:
    """A note on a level, at its right end outside the axes: inside there are points."""
    at = axes.get_yaxis_transform()
    note(axes, (1, height), text, (4, 0), xycoords=at, va="center")


def _legend_below(axes: Axes, columns: int = 2) -> None:
    axes.figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns,
        handletextpad=0.3, columnspacing=1.2,
    )  # fmt: skip


def _log2_axis(axes: Axes, low: float, high: float, step: int = 1) -> None:
    """A logarithmic x axis with every ``step``-th power of two from 2**low to 2**high."""
    ticks = [2.0**power for power in range(math.ceil(low), math.floor(high) + 1, step)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _series(axes: Axes, shown: Sequence[Contender], x: Sequence[float], line: str) -> list[float]:
    """Plots and returns the TFLOP/s of each system at the ``x`` of each layer."""
    reached = []
    for number, one in enumerate(shown):
        points = [
            (at, row.tflops) for at, row in zip(x, one.rows(), strict=True) if row and row.tflops
        ]
        reached += [height for _, height in points]
        if points:
            axes.plot(
                *zip(*points, strict=True), label=one.title.partition(":")[0], linestyle=line,
                color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
                linewidth=0.9, alpha=0.9,
            )  # fmt: skip
    return reached


def throughput(results: Results, salt: str = "throughput") -> str:
    """TFLOP/s by layer of the systems that matter most."""
    layers, shown = results.layers(), analysis.selected(results)
    peak = (results.machine.fp32_flops or 0) / 1e12
    in_fp32 = [
        row.tflops or 0
        for row in results.rows.values()
        if results.systems[row.system]["precision"] == "fp32"
    ]

    def draw(axes: Axes) -> None:
        _series(axes, shown, range(len(layers)), "-")
        if peak and peak < 2 * max(in_fp32, default=0):
            axes.axhline(peak, color=INK, linewidth=0.9, linestyle="--")
            _level(axes, peak, f"fp32 peak\n{peak:.1f}")
        axes.set_xticks(range(len(layers)), [layer.removeprefix("conv") for layer, _ in layers])
        labels = ("layer (Conv1 to Conv12 of the paper)", "TFLOP/s of the convolution as defined")
        axes.set(xlabel=labels[0], ylabel=labels[1], ylim=(0, None))
        axes.grid(axis="y")
        _legend_below(axes)

    return svg(salt, 4.0 + 0.085 * len(shown), draw)


def roofline(results: Results, salt: str = "roofline") -> str:
    """Every stage on every layer, below the GPU's two roofs."""
    machine, stages = results.machine, analysis.stages(results)
    intensity = [problem_named(*layer).flops_per_byte for layer in results.layers()]
    bandwidth = machine.memory_bytes_per_second or 0
    # In TFLOP/s; a roof of 0 is not known, or of no stage.
    split = any(results.systems[one.name]["precision"] == "3xtf32" for one in stages)
    peaks = {"fp32": machine.peak_flops("fp32"), "3xTF32": split and machine.peak_flops("3xtf32")}
    roofs = {words: (peak or 0) / 1e12 for words, peak in peaks.items()}

    def draw(axes: Axes) -> None:
        reached = _series(axes, [replace(one, title=one.name) for one in stages], intensity, "none")
        low, high = min(intensity) / 2, max(intensity) * 2
        slope = bandwidth / 1e12
        if bandwidth and (peak := roofs["fp32"]):
            low = min(low, peak / slope / 8)
            note(axes, (peak / slope, peak), f"memory {slope:.1f} TB/s", (-8, 2), ha="right")
        for (words, roof), digits in zip(roofs.items(), (1, 0), strict=True):
            if roof and bandwidth:
                heights = [low * slope, roof, roof]
                axes.plot([low, roof / slope, high], heights, color=INK, linewidth=1.2)
                _level(axes, roof, f"{words} peak\n{roof:.{digits}f}")
        if sgemm := machine.sgemm_tflops:
            first = sgemm / slope if bandwidth else low
            axes.plot([first, high], [sgemm] * 2, color=QUIET, linewidth=0.9, linestyle="--")
            # Where it begins: at its other end are the points of the fastest stage.
            note(axes, (first, sgemm), f"cuBLAS SGEMM {sgemm:.1f} TFLOP/s", (6, -10))
        bottom, top = min(reached, default=1.0) / 2, 3 * max(*reached, *roofs.values(), 1.0)
        axes.set(yscale="log", ylim=(bottom, top), ylabel="TFLOP/s")
        _log2_axis(axes, math.log2(low), math.log2(high))
        about = "FLOP per byte that has to move; at the top the layer, Conv ..."
        axes.set(xlim=(low, high), xlabel=about)
        steps = [step * 10.0**power for power in range(-4, 4) for step in (1, 2, 5)]
        heights = [step for step in steps if bottom <= step <= top]
        axes.set_yticks(heights, [f"{height:g}" for height in heights])
        _layer_names(axes, results.layers(), intensity, top)
        axes.grid()
        _legend_below(axes, 4)

    return svg(salt, 5.2, draw)


def _layer_names(
    axes: Axes, layers: Sequence[Layer], intensity: Sequence[float], top: float
) -> None:
    """The layers' numbers above their columns; layers of nearly the same intensity share one."""
    groups: list[list[tuple[float, str]]] = []
    for value, (layer, _) in sorted(zip(intensity, layers, strict=True)):
        if not groups or value >= 1.12 * groups[-1][-1][0]:
            groups.append([])
        groups[-1].append((value, layer.removeprefix("conv")))
    for group in groups:
        middle = math.sqrt(group[0][0] * group[-1][0])
        names = "\n".join(name for _, name in group)
        note(axes, (middle, top), names, (0, -3), ha="center", va="top", fontsize="x-small")


def speedups(results: Results, salt: str = "speedups") -> str:
    """The best stage over the others: each layer a dot, their geometric mean a stroke."""
    one = analysis.best_stage(results)
    assert one is not None
    over = {other.name: one.over(other) for other in analysis.comparators(results)}
    known = {other: ratios for other, ratios in over.items() if ratios.mean and other != one.name}

    def draw(axes: Axes) -> None:
        dots: Any = {"color": COLOURS[0], "alpha": DOTS, "markersize": 4, "markeredgewidth": 0}
        for place, ratios in enumerate(known.values()):
            mean = ratios.mean or 1.0
            axes.plot(ratios.known, [place] * len(ratios.known), "o", **dots)
            axes.plot([mean], [place], "|", color=INK, markersize=13, markeredgewidth=2)
            said = f"{mean:.2f}{ratios.few}"
            note(axes, (mean, place), said, (0, 8), ha="center", color=INK)
        axes.axvline(1, color=QUIET, linewidth=0.9)
        every = [1.0, *chain.from_iterable(ratios.known for ratios in known.values())]
        first = math.floor(math.log2(min(every)))
        last = max(first + 1, math.ceil(math.log2(max(every))))
        _log2_axis(axes, first, last, 1 + (last - first) // 11)
        axes.set_yticks(range(len(known)), known)
        axes.set(
            xlim=(2.0**first / 1.06, 2.0**last * 1.06),  # a dot at the end is whole
            ylim=(len(known) - 0.4, -0.8),
            xlabel=f"times as fast: {one.name} over each (below 1 it is slower)\n"
            "a dot a layer, the stroke their geometric mean",
        )
        axes.grid(axis="x")

    return svg(salt, 1.0 + 0.36 * max(1, len(known)), draw)


def memory(results: Results, salt: str = "memory") -> str:
    """Device memory in all over that of the tensors alone, computed and measured."""
    every = {
        one.name: [kind.ratio for kind in analysis.memory(one)]
        for one in analysis.everybody(results)
    }
    ratios = {name: means for name, means in every.items() if any(means)}

    def draw(axes: Axes) -> None:
        strokes: Any = {"color": INK, "markersize": 12, "markeredgewidth": 2, "label": "computed"}
        dots: Any = {"color": COLOURS[1], "markeredgewidth": 0, "label": "measured"}
        for number, (marker, style) in enumerate((("|", strokes), ("o", dots))):
            means = [(one[number], place) for place, one in enumerate(ratios.values())]
            if points := [(value, place) for value, place in means if value]:
                axes.plot(*zip(*points, strict=True), marker, alpha=0.9, **style)
        axes.set_yticks(range(len(ratios)), ratios)
        axes.axvline(1, color=QUIET, linewidth=0.9)
        most = max(filter(None, chain.from_iterable(ratios.values())), default=2.0)
        last = max(1, math.ceil(math.log2(most)))
        _log2_axis(axes, 0, last)
        about = "memory in all, over the tensors' (1: no workspace)"
        axes.set(xlim=(0.9, 2.0**last * 1.1), ylim=(len(ratios) - 0.4, -0.6), xlabel=about)
        axes.grid()
        _legend_below(axes)

    return svg(salt, 1.4 + 0.27 * max(1, len(ratios)), draw)
