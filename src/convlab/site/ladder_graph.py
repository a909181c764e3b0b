"""The ladder as a graph: what builds on what, how fast each stage is, every stage a link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from convlab.bench.ladder_results import Results, Step
from convlab.site.markup import figure
from convlab.stages import LADDER, Stage, family, short_name

ROW, LANE, RADIUS = 56, 20, 6  # pixels
TIMES = "\N{MULTIPLICATION SIGN}"


def lanes(stages: Sequence[Stage] = LADDER) -> dict[str, int]:
    """Each stage's column: the last that builds on a stage goes on below it, the others branch
    off into the first column that is free for as long as they and what follows them need it."""
    order = {stage.name: row for row, stage in enumerate(stages)}
    children: dict[str, list[str]] = {name: [] for name in order}
    for stage in stages:
        for base in stage.builds_on[:1]:
            children[base].append(stage.name)

    def last_row(name: str) -> int:
        return max([order[name], *map(last_row, children[name])])

    taken: dict[int, int] = {}  # column -> the row up to which it is in use
    found: dict[str, int] = {}
    for stage in stages:
        column = 0
        if stage.builds_on:
            parent = stage.builds_on[0]
            column = found[parent] + (children[parent][-1] != stage.name)
            while column > found[parent] and taken.get(column, -1) >= order[stage.name]:
                column += 1
        found[stage.name] = column
        taken[column] = max(taken.get(column, -1), last_row(stage.name))
    return found


def graph(results: Results, folder: str = "stages/", here: str | None = None) -> str:
    """The figure, as HTML in a MyST page; ``folder`` leads to the stages' pages."""
    steps = {step.stage.name: step for step in results.steps}
    longest = max((step.tflops for step in results.steps if step.tflops), default=1.0)
    rungs = "\n".join(
        _rung(stage, steps.get(stage.name), longest, folder, here) for stage in LADDER
    )
    caption = (
        "The ladder, from seven plain loops (top) to the full im2win convolution (bottom). A line "
        "leads from each stage to those that build on it; choose one for its page. "
        '<span class="key plain"></span> reads the input as it lies in memory, '
        '<span class="key im2col"></span> the im2col matrix, <span class="key im2win"></span> '
        "im2win's windows. The bar is its measured speed with every layout transform, the number "
        "behind it the speedup over s01, red where it is slower. "
        f"Measured: {escape(results.title)}; {escape(results.shapes)}."
    )
    body = f'<div class="ladder-body">\n{_rail()}\n<ol class="rungs">\n{rungs}\n</ol>\n</div>'
    return figure(body, caption, "ladder")


def _rail() -> str:
    """The nodes and edges, left of the rows."""
    columns = lanes()
    width, height = LANE * (max(columns.values()) + 1), ROW * len(LADDER)
    shapes = [*_edges(columns)]
    for row, stage in enumerate(LADDER):
        x, y = _place(columns[stage.name], row)
        kind = family(stage)
        shapes.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="{RADIUS}"/>')
    told = "; ".join(
        f"{short_name(stage.name)} builds on {', '.join(map(short_name, stage.builds_on))}"
        for stage in LADDER
        if stage.builds_on
    )
    return (
        f'<svg class="rail" role="img" aria-label="{escape(told)}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">{"".join(shapes)}</svg>'
    )


def _edges(columns: dict[str, int]) -> Iterator[str]:
    rows = {stage.name: row for row, stage in enumerate(LADDER)}
    for stage in LADDER:
        x, y = _place(columns[stage.name], rows[stage.name])
        for base in stage.builds_on:
            x0, y0 = _place(columns[base], rows[base])
            bend = y - ROW
            curve = f"C {x0} {bend + ROW / 2} {x} {bend + ROW / 2} {x} {y}" if x != x0 else ""
            yield f'<path d="M {x0} {y0} V {bend if curve else y} {curve}"/>'


def _place(column: int, row: int) -> tuple[float, float]:
    return LANE * (column + 0.5), ROW * (row + 0.5)


def _rung(stage: Stage, step: Step | None, longest: float, folder: str, here: str | None) -> str:
    name, _, rest = stage.title.partition(": ")
    measured = '<span class="speed">not measured yet</span>'
    if step is not None and step.tflops is not None:
        slower = ' class="slower"' if (step.speedup or 1) < 1 else ""
        measured = (
            f'<span class="bar"><span class="{family(stage)}" '
            f'style="width: {100 * step.tflops / longest:.1f}%"></span></span>'
            f'<span class="speed">{step.tflops:.1f} TFLOP/s '
            f"<b{slower}>{step.speedup:.2f}{TIMES}</b></span>"
        )
    current = ' aria-current="page"' if stage.name == here else ""
    return (
        f'<li><a href="{folder}{stage.name}.html" title="{escape(rest)}"{current}>'
        f'<span class="name"><b>{stage.name.split("_")[0]}</b> {escape(name)}</span>'
        f'<span class="measured">{measured}</span></a></li>'
    )
