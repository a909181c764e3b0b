"""Pictures of what was measured on a GPU beyond whole times: parts of a stage, memory."""

from __future__ import annotations

import math
from typing import Any

from convlab.lessons.bars import changed_since, stored
from convlab.lessons.pictures import COLOURS, INK, PAPER, Picture, bars_of, finished, sheet
from convlab.lessons.places import require_measured, result
from convlab.stages import short_name, stage_named
from convlab.tracing import Trace

ON_PAPER = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.3}  # a label no line goes through


def _row(panel: Any, row: int, name: str, parts: dict[str, float], colours: dict[str, str]) -> None:
    left = 0.0
    for part, value in parts.items():
        panel.barh(row, value, left=left, color=colours[part], height=0.7)
        left += value
    panel.annotate(
        f"{left:.3g}", (left, row), xytext=(6, 0), textcoords="offset points", va="center",
        fontsize=9.5, color=INK, bbox=ON_PAPER,
    )  # fmt: skip


def _panel(rows: int, names: list[str], longest: float, title: str) -> tuple[Any, Any]:
    figure, (panel,) = sheet(7.4, 0.34 * rows + 0.95)
    panel.set_xlim(0, longest * 1.2)
    panel.set_ylim(rows - 0.4, -0.6)
    panel.set_yticks(range(rows), names, fontsize=10, color=INK)
    bars_of(panel, title)
    return figure, panel


def _legend(panel: Any, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    panel.legend(
        handles=[Patch(color=colour, label=name) for name, colour in colours.items()],
        loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=3, fontsize=9, frameon=False,
    )  # fmt: skip


PARTS = {"pre-passes": COLOURS[1], "main kernel": COLOURS[0]}


def measured_parts(*stages: str, layer: str = "conv9") -> Picture:
    """How long these stages' pre-passes and main kernels took on an H200, each timed alone, from
    the stored results. What was not measured yet is said in the caption."""
    document = stored(layer)
    entries = {entry["name"]: entry for entry in document["stages"]}
    found: dict[str, dict[str, float]] = {}
    missing = []
    for stage in stages:
        name = stage_named(stage).name
        launches = entries.get(name, {}).get("launch_ms")
        if not launches:
            missing.append(short_name(name))
            continue
        *before, main = launches.values()
        found[short_name(name)] = {"pre-passes": sum(before), "main kernel": main}
    longest = max(sum(parts.values()) for parts in found.values())
    title = f"milliseconds for {layer.capitalize()}"
    figure, panel = _panel(len(found), list(found), longest, title)
    for row, (name, parts) in enumerate(found.items()):
        _row(panel, row, name, parts, PARTS)
    _legend(panel, PARTS)
    said = "; ".join(
        f"{name}: pre-passes {parts['pre-passes']:.3g}, main kernel {parts['main kernel']:.3g}"
        for name, parts in found.items()
    )
    where = f"an {document['device']}, {document['environment']['date'][:10]}"
    caption = (
        f"Milliseconds of each part alone, on {where}. {said}. Pre-passes bring input or filter "
        "into another order; in a whole run they leave in the cache some of what comes next, so "
        "that the stage can be quicker than its parts together."
    )
    if missing:
        caption += f" Not measured on this layer yet: {', '.join(missing)}."
    caption += changed_since(document, layer, [stage_named(stage).name for stage in stages])
    return finished(figure, f"Bars of milliseconds on {where}. {said}.", caption)


def memory() -> dict[str, Any]:
    """What was computed and measured of workspaces: ``docs/results/memory.json``."""
    return result("memory")


def workspaces(*stages: str, layers: tuple[str, ...] = ()) -> Picture:
    """What stages store beside input, filter and output, in parts of what these three take, on
    the paper's layers.

    Raises ``ValueError`` for a layer or stage that was not measured.
    """
    measured = {row["layer"]: row for row in memory()["layers"]}
    for layer in layers:
        require_measured("layer", layer, measured)
    rows = [row for layer, row in measured.items() if not layers or layer in layers]
    names = [stage_named(stage).name for stage in stages]
    for name in names:
        require_measured("stage", name, rows[0]["workspace_bytes"])
    colours = {short_name(name): COLOURS[n] for n, name in enumerate(names)}
    most = max(row["workspace_bytes"][n] / row["tensor_bytes"] for row in rows for n in names)
    count = len(rows)
    figure, (panel,) = sheet(7.4, 0.14 * count * (len(names) + 1) + 0.9)
    told = []
    for place, row in enumerate(rows):
        parts = [row["workspace_bytes"][name] / row["tensor_bytes"] for name in names]
        for n, (short, part) in enumerate(zip(colours, parts, strict=True)):
            at = place * (len(names) + 1) + n
            panel.barh(at, part, color=colours[short], height=0.9)
            panel.text(
                part + most * 0.012, at, f"{part:.2f}", va="center", fontsize=8, color=INK,
                bbox=ON_PAPER,
            )  # fmt: skip
        each = ", ".join(f"{short} {part:.2f}" for short, part in zip(colours, parts, strict=True))
        told.append(f"{row['layer'].capitalize()}: {each}")
    middle = [place * (len(names) + 1) + (len(names) - 1) / 2 for place in range(count)]
    panel.set_yticks(middle, [row["layer"].capitalize() for row in rows], fontsize=9, color=INK)
    panel.set_ylim(count * (len(names) + 1) - 0.5, -0.8)
    panel.set_xlim(0, most * 1.1)
    panel.axvline(1, color=INK, linewidth=1, linestyle=":")
    bars_of(panel, "workspace / (input + filter + output)")
    _legend(panel, colours)
    caption = (
        "What a stage stores in global memory beside input, filter and output, divided by what "
        f"these three take together (1 is the dotted line), for {memory()['batch']} images."
    )
    return finished(figure, f"Bars of workspace over tensors. {'; '.join(told)}.", caption)


def global_traffic(**traces: Trace) -> Picture:
    """Which arrays of global memory the launches of stages read and write, and how large they
    are."""
    rows: list[tuple[str, str, int, bool]] = []
    told = []
    for stage, whole in traces.items():
        total = 0
        for launch in whole.launches:
            sizes = {
                one.name: one.itemsize * math.prod(one.shape)
                for one in launch.arrays if one.space == "global"
            }  # fmt: skip
            for verb, operation in (("reads", "load"), ("writes", "store")):
                for name in sorted({a.array for a in launch.accesses if a.operation == operation}):
                    if name in sizes:
                        label = f"{stage}: {launch.kernel} {verb} {name}"
                        rows.append((label, name, sizes[name], name == "windows"))
                        total += sizes[name]
        told.append(f"{stage} {total / 1024:.0f} KiB")
    figure, (panel,) = sheet(7.4, 0.25 * len(rows) + 0.5)
    most = max(size for _, _, size, _ in rows)
    for row, (_, _, size, marked) in enumerate(rows):
        panel.barh(row, size, color=COLOURS[1 if marked else 0], height=0.75)
        kib = f" {size / 1024:.0f}" if size >= 1024 else f" {size / 1024:.1f}"
        panel.text(size, row, kib, va="center", fontsize=8.5, color=INK)
    panel.set_xlim(0, most * 1.15)
    panel.set_yticks(range(len(rows)), [label for label, *_ in rows], fontsize=8.5, color=INK)
    panel.set_ylim(len(rows) - 0.4, -0.6)
    bars_of(panel, "KiB")
    each = ", ".join(told)
    caption = (
        "The arrays of global memory that the kernels of each stage read and write, and their "
        f"sizes in KiB; orange is the im2win tensor. Each array counted once for each line: {each}."
    )
    alt = f"Bars of KiB. {'; '.join(f'{label} {size / 1024:.1f}' for label, _, size, _ in rows)}."
    return finished(figure, alt, caption)


def as_bars(
    values: dict[str, float], unit: str, caption: str, right: float | None = None
) -> Picture:
    """Numbers as bars, each with its name; a dotted line where ``right`` is."""
    figure, panel = _panel(len(values), list(values), max(values.values()), unit)
    for row, (name, value) in enumerate(values.items()):
        _row(panel, row, name, {"": value}, {"": COLOURS[row % len(COLOURS)]})
    if right is not None:
        panel.axvline(right, color=INK, linewidth=1, linestyle=":")
    said = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    return finished(figure, f"Bars, {unit}: {said}.", f"{caption} {said}.")


def ladder_speeds(layer: str = "conv9") -> Picture:
    """How fast each step of the ladder is on an H200, from the stored results: floating-point
    operations a second."""
    document = stored(layer)
    names = [one for one in document["stages"] if one["tflops"]]
    steps = {short_name(one["name"]): one["tflops"] for one in names}
    where = f"{document['device']}, {document['environment']['date'][:10]}"
    caption = (
        f"Every stage on {layer.capitalize()}, on an {where}: the convolution's operations divided "
        "by the time of the whole stage, transforms and all, in TFLOP/s (10^12 a second). More is "
        f"better.{changed_since(document, layer, [one['name'] for one in names])}"
    )
    return as_bars(steps, f"TFLOP/s on {layer.capitalize()}", caption)
