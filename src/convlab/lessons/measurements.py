"""Pictures of what else was measured on a GPU: where a stage's time goes, its memory, sweeps."""

from __future__ import annotations

from convlab.lessons.bars import _bars, stored
from convlab.lessons.pictures import COLOURS, FAINT, INK, Picture, bars_of, finished, note, sheet
from convlab.lessons.places import require_measured, result
from convlab.stages import short_name, stage_named

MARKERS = "osD^"


def measured_sweep(sweep: str, *stages: str) -> Picture:
    """How many times as fast as s01 these stages are as one size of a small problem changes.

    Raises ``ValueError`` for a sweep or stage that was not measured.
    """
    document = result("channel_sweeps_h200")
    require_measured("sweep", sweep, dict.fromkeys(one["sweep"] for one in document["points"]))
    points = [point for point in document["points"] if point["sweep"] == sweep]
    values = [point["value"] for point in points]
    lines = {}
    for stage in stages:
        name = stage_named(stage).name
        require_measured("stage", name, points[0]["stages"])
        times = [
            [point["stages"][one]["time_ms"] for one in ("s01_direct", name)] for point in points
        ]
        lines[short_name(name)] = [s01 / own for s01, own in times]
    figure, (panel,) = sheet(6.4, 2.9)
    panel.set_axis_on()
    panel.set_facecolor("none")
    panel.axhline(1, color=INK, linewidth=1, linestyle="--")
    note(panel, len(values) - 0.35, 1, "s01", 9, ha="right", va="bottom")
    places_ = range(len(values))
    for line, (name, speedups) in enumerate(lines.items()):
        panel.plot(
            places_, speedups, color=COLOURS[line], marker=MARKERS[line], markeredgecolor=INK,
            markeredgewidth=0.6, label=name,
        )  # fmt: skip
    panel.set_xticks(list(places_), [str(value) for value in values], fontsize=9, color=INK)
    panel.set_xlim(-0.4, len(values) - 0.3)
    panel.set_ylim(0)
    panel.tick_params(labelsize=9, colors=INK)
    panel.grid(axis="y", color=FAINT, alpha=0.3)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.set_xlabel(sweep, fontsize=9, color=INK)
    panel.set_title("times as fast as s01", fontsize=10, color=INK, loc="left")
    panel.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper left")
    said = "; ".join(
        f"{name}: " + ", ".join(f"{v} at {s}" for s, v in zip(values, map(_two, line), strict=True))
        for name, line in lines.items()
    )
    images, filters = points[0]["problem"].split(" * ")
    caption = (
        f"Measured on an {document['device']}, {document['environment']['date'][:10]}: how many "
        f"times as fast as s01 they are as {sweep} grows; above the dashed line they win. The "
        f"first problem is {images} (images, channels, rows, columns) with filters {filters}."
    )
    return finished(figure, f"Lines: times as fast as s01 by {sweep}. {said}", caption)


def _two(value: float) -> str:
    return f"{value:.2f}"


def measured_kernels(*stages: str, layer: str = "conv9") -> Picture:
    """How long each kernel of these stages took on an H200: the parts of a stage as one bar.

    Raises ``ValueError`` for a stage that was not measured on the layer.
    """
    document = stored(layer)
    entries = {entry["name"]: entry for entry in document["stages"]}
    bars = {}
    for stage in stages:
        name = stage_named(stage).name
        if name not in entries or not entries[name].get("launch_ms"):
            raise ValueError(f"stage is {name}: its parts were not measured on {layer}")
        bars[short_name(name)] = entries[name]["launch_ms"]
    longest = max(sum(parts.values()) for parts in bars.values())
    shown = {
        name: {part: time for part, time in parts.items() if time > longest / 100}
        for name, parts in bars.items()
    }
    kinds = list(dict.fromkeys(part for parts in shown.values() for part in parts))
    figure, (panel,) = sheet(7.4, 0.42 * len(bars) + 0.9)
    for kind, part in enumerate(kinds):
        widths = [parts.get(part, 0) for parts in shown.values()]
        lefts = [
            sum(list(parts.values())[: list(parts).index(part)]) if part in parts else 0
            for parts in shown.values()
        ]
        panel.barh(range(len(bars)), widths, left=lefts, height=0.7, color=COLOURS[kind],
                   edgecolor="white", label=part)  # fmt: skip
    for row, parts in enumerate(shown.values()):
        whole = sum(parts.values())
        note(panel, whole + longest * 0.015, row, _milli(whole), 9.5)
    panel.set_xlim(0, longest * 1.12)
    panel.set_yticks(range(len(bars)), list(bars), fontsize=9.5, color=INK)
    panel.invert_yaxis()
    bars_of(panel, f"milliseconds for {layer.capitalize()}")
    panel.legend(
        frameon=False, fontsize=9, labelcolor=INK, ncols=min(4, len(kinds)), loc="upper left",
        bbox_to_anchor=(0, 0),
    )  # fmt: skip
    said = "; ".join(
        f"{name}: " + ", ".join(f"{part} {_milli(time)} ms" for part, time in parts.items())
        for name, parts in shown.items()
    )
    date = document["environment"]["date"][:10]
    caption = (
        f"Measured on an {document['device']}, {date}: which kernels a stage's time goes to. "
        f"{said}. Parts under a hundredth of the longest bar are left out."
    )
    return finished(figure, f"Bars of the parts of stages. {said}", caption)


def _milli(time: float) -> str:
    return f"{time:.3g}"


def measured_memory(*stages: str, layer: str = "conv9") -> Picture:
    """How much memory these stages took on an H200 beside input, filter and output.

    Raises ``ValueError`` for a layer or stage that was not measured.
    """
    document = result("memory")
    entries = {entry["layer"]: entry for entry in document["layers"]}
    require_measured("layer", layer, entries)
    taken = entries[layer]["measured_bytes"]
    names = [stage_named(stage).name for stage in stages]
    for name in names:
        require_measured("stage", name, taken)
    tensors = "input, filter, output"
    sizes = {tensors: entries[layer]["tensor_bytes"] / 2**20}
    sizes |= {short_name(name): taken[name] / 2**20 for name in names}
    figure, (panel,) = sheet(7.0, 0.36 * len(sizes) + 0.6)
    _bars(panel, list(sizes), list(map(round, sizes.values())), f"MiB for {layer.capitalize()}")
    said = ", ".join(f"{name} {size:,.0f} MiB" for name, size in sizes.items() if name != tensors)
    caption = (
        f"Memory that the stages took beside the tensors on an {document['device']}, batch "
        f"{document['batch']}: {said}. Input, filter and output together are "
        f"{sizes[tensors]:,.0f} MiB."
    )
    return finished(figure, f"Bars of memory on an {document['device']}: {said}", caption)
