"""Bar and line charts: counts of traced launches, and what was measured on an H200.

Measured values come from ``docs/results``; every chart names the GPU and the date.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from convlab.lessons.pictures import COLOURS, FAINT, INK, PAPER, Picture, finished, sheet
from convlab.lessons.places import require_measured, result, results
from convlab.stages import short_name, stage_named
from convlab.tracing import LaunchTrace, Trace

Bars = Sequence[tuple[str, Mapping[str, float]]]  # a label and its stacked parts, for each bar

TRANSFORMS, MAIN = "layout transforms", "main kernel"

COUNTS: dict[str, Callable[[LaunchTrace], float]] = {
    "requests to global memory": lambda launch: launch.total("requests", launch.of(space="global")),
    "sectors of global memory": lambda launch: launch.total("sectors"),
    "sectors a request": lambda launch: (
        launch.total("sectors") / launch.total("requests", launch.of(space="global"))
    ),
    "requests to shared memory": lambda launch: launch.total("requests", launch.of(space="shared")),
    "wavefronts of shared memory": lambda launch: launch.total("wavefronts"),
    "atomic additions": lambda launch: launch.total(
        "requests", [access for access in launch.accesses if access.operation == "atomic"]
    ),
    "floating-point operations": lambda launch: launch.flops,
    "bytes an operation": lambda launch: launch.bytes_per_flop or 0,
}


def _brief(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"


def _chart(
    panels: Mapping[str, Bars], caption: str, colours: Mapping[str, str] | None = None, *,
    unit: str = "", label: Callable[[float], str] = _brief, line: float | None = None,
    high: float = 0.3, size: float = 9.5,
) -> Picture:  # fmt: skip
    """Horizontal bars with their totals, by the titles of panels side by side, of which the first
    has the bars' labels. ``colours`` are by part and give a legend, else each bar has the next
    colour. ``line`` is where a dotted line is drawn; ``high`` inches are for each bar."""
    rows = max(map(len, panels.values()))
    legend = 0.35 * bool(colours and len(colours) > 1)
    figure, axes = sheet(7.4, high * rows + 0.55 + legend, len(panels))
    told = []
    for axis, (title, bars) in zip(axes, panels.items(), strict=True):
        _draw_bars(axis, bars, title, label, colours, size)
        if line is not None:
            axis.axvline(line, color=INK, linewidth=1, linestyle=":")
        if axis is not axes[0]:
            axis.set_yticks([])
        values = [
            f"{name} {label(*parts.values())}{unit}" if len(parts) == 1 else
            f"{name}: " + ", ".join(f"{part} {label(value)}{unit}" for part, value in parts.items())
            for name, parts in bars if parts
        ]  # fmt: skip
        told.append(f"{title}: {'; '.join(values)}")
    return finished(figure, f"Bars, {'. '.join(told)}", caption)


def _draw_bars(
    panel: Any, bars: Bars, title: str, label: Callable[[float], str],
    colours: Mapping[str, str] | None, size: float,
) -> None:  # fmt: skip
    from matplotlib.patches import Patch

    most = max(sum(parts.values()) for _, parts in bars) or 1
    for row, (_, parts) in enumerate(bars):
        total = 0.0
        for part, value in parts.items():
            colour = colours[part] if colours else COLOURS[row % len(COLOURS)]
            panel.barh(row, value, left=total, height=0.75, color=colour)
            total += value
        panel.annotate(
            label(total) if parts else "", (total, row), xytext=(5, 0),
            textcoords="offset points", va="center",
            fontsize=size, color=INK, bbox={"fc": PAPER, "ec": "none", "pad": 0.3},
        )  # fmt: skip
    panel.set(xlim=(0, most * 1.25), ylim=(len(bars) - 0.4, -0.6), xticks=[], facecolor="none")
    panel.set_axis_on()
    panel.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=size, color=INK)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.set_title(title, fontsize=10, color=INK, loc="left")
    if colours and len(colours) > 1:
        panel.legend(
            handles=[Patch(color=colour, label=name) for name, colour in colours.items()],
            loc="upper left", bbox_to_anchor=(0, 0), ncols=3, fontsize=9, frameon=False,
            labelcolor=INK,
        )  # fmt: skip


def _one_each(values: Mapping[str, float]) -> Bars:
    return [(name, {name: value}) for name, value in values.items()]


def side_by_side(launches: dict[str, LaunchTrace], *counts: str) -> Picture:
    """Counts of several launches as bars, a panel for each count. Raises ``ValueError`` for one
    that is not in ``COUNTS``."""
    for count in counts:
        if count not in COUNTS:
            raise ValueError(f"count is {count!r}: it must be one of {', '.join(COUNTS)}")
    panels = {
        count: _one_each({name: COUNTS[count](one) for name, one in launches.items()})
        for count in counts
    }
    return _chart(panels, "Counted by the simulator; less is better.", high=0.36)


def as_bars(
    values: dict[str, float], unit: str, caption: str, right: float | None = None
) -> Picture:
    """Numbers as bars, each with its name; a dotted line at ``right``."""
    told = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    bars = {unit: _one_each(values)}
    return _chart(bars, f"{caption} {told}.", label="{:.3g}".format, line=right)


def global_traffic(**traces: Trace) -> Picture:
    """Which arrays of global memory the launches of stages read and write, and how large they
    are."""
    bars: list[tuple[str, dict[str, float]]] = []
    for stage, launch in (
        (stage, one) for stage, whole in traces.items() for one in whole.launches
    ):
        sizes = {
            one.name: one.itemsize * math.prod(one.shape) / 1024
            for one in launch.arrays if one.space == "global"
        }  # fmt: skip
        for verb, operation in (("reads", "load"), ("writes", "store")):
            found = {one.array for one in launch.accesses if one.operation == operation}
            for name in sorted(found & sizes.keys()):
                kind = "im2win tensor" if name == "windows" else "other arrays"
                bars.append((f"{stage}: {launch.kernel} {verb} {name}", {kind: sizes[name]}))
    caption = (
        "The arrays of global memory that the kernels of each stage read and write, and their "
        "sizes in KiB; orange is the im2win tensor."
    )
    colours = {"other arrays": COLOURS[0], "im2win tensor": COLOURS[1]}
    return _chart({"KiB": bars}, caption, colours, size=8.5, label="{:.1f}".format)


def stored(layer: str = "conv9") -> dict[str, Any]:
    """What was measured of the ladder on an H200 on a layer: ``convlab ladder --json``'s document.

    Raises ``ValueError`` naming the layers there are.
    """
    files = sorted(results().glob("ladder_*_h200.json"))
    require_measured("layer", layer, [file.name.split("_")[1] for file in files])
    return result(f"ladder_{layer}_h200")


def _of(stages: Iterable[str], measured: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured of these stages, by short name. Raises ``ValueError`` for one that was not
    measured."""
    names = [stage_named(stage).name for stage in stages]
    for name in names:
        require_measured("stage", name, measured)
    return {short_name(name): measured[name] for name in names}


def _of_layer(layer: str, stages: Iterable[str], value: str) -> tuple[dict[str, Any], str, str]:
    """A value of each of these stages on a layer, the chart's title, and where and when it was
    measured."""
    document = stored(layer)
    there = {one["name"]: one[value] for one in document["stages"] if one[value]}
    return _of(stages, there), f"milliseconds for {layer.capitalize()}", _where(document)


def _where(document: dict[str, Any]) -> str:
    return f"an {document['device']}, {document['environment']['date'][:10]}"


def measured(*stages: str, layer: str = "conv9") -> Picture:
    """How long these stages took on an H200. Raises ``ValueError`` for one that was not measured
    on the layer."""
    times, title, where = _of_layer(layer, stages, "time_ms")
    problem = stored(layer)["problem"]
    images, channels, height, width = problem["input_shape"]
    caption = (
        f"The time of each stage on {where}; shorter is better. {layer.capitalize()} is {images} "
        f"images of {channels} channels and {height}x{width} pixels, {problem['out_channels']} "
        f"filters of {'x'.join(map(str, problem['kernel_size']))}: {problem['flops'] / 1e9:.1f} "
        "billion floating-point operations."
    )
    return _chart({title: _one_each(times)}, caption, unit=" ms")


def measured_kernels(*stages: str, layer: str = "conv9") -> Picture:
    """How long each kernel of these stages took on an H200, timed alone: the parts of a stage as
    one bar. Raises as :func:`measured`."""
    times, title, where = _of_layer(layer, stages, "launch_ms")
    least = max(sum(parts.values()) for parts in times.values()) / 100
    bars = [(n, {one: t for one, t in parts.items() if t > least}) for n, parts in times.items()]
    more = "The chart leaves out parts under a hundredth of the longest bar."
    return _parts({title: bars}, where, more)


def measured_parts(*stages: str, layer: str = "conv9") -> Picture:
    """How long these stages' layout transforms and main kernels took on an H200, each timed alone.
    Raises as :func:`measured`."""
    found, title, where = _of_layer(layer, stages, "launch_ms")
    times = {name: list(parts.values()) for name, parts in found.items()}
    bars = [(n, {TRANSFORMS: sum(parts[:-1]), MAIN: parts[-1]}) for n, parts in times.items()]
    more = (
        "A layout transform reorders the input or the filter. In a whole run it leaves some of "
        "its output in the cache, so the stage can be faster than the sum of its parts."
    )
    return _parts({title: bars}, where, more)


def _parts(panels: Mapping[str, Bars], where: str, more: str) -> Picture:
    kinds = dict.fromkeys(part for bars in panels.values() for _, parts in bars for part in parts)
    colours = dict(zip(kinds, COLOURS, strict=False))
    caption = f"Milliseconds of each part alone, on {where}. {more}"
    return _chart(panels, caption, colours, unit=" ms", label="{:.3g}".format)


def _memory(
    layers: Iterable[str], stages: Iterable[str], value: str
) -> tuple[dict[str, Any], dict[str, tuple[int, dict[str, int]]]]:
    """The measurements of memory; and by layer its tensors' bytes and a value of each stage.

    Raises ``ValueError`` for a layer or stage that was not measured.
    """
    document = result("memory")
    entries = {row["layer"]: row for row in document["layers"]}
    found = {}
    for layer in layers or entries:
        require_measured("layer", layer, entries)
        row = entries[layer]
        found[layer.capitalize()] = row["tensor_bytes"], _of(stages, row[value])
    return document, found


def measured_memory(*stages: str, layer: str = "conv9") -> Picture:
    """How much memory these stages took on an H200 beside input, filter and output.

    Raises ``ValueError`` for a layer or stage that was not measured.
    """
    document, found = _memory([layer], stages, "measured_bytes")
    ((name, (tensors, taken)),) = found.items()
    sizes = {one: size / 2**20 for one, size in {"input, filter, output": tensors, **taken}.items()}
    caption = (
        f"The memory that the stages took beside the tensors, on an {document['device']}, batch "
        f"{document['batch']}."
    )
    return _chart(
        {f"MiB for {name}": _one_each(sizes)}, caption, unit=" MiB", label="{:,.0f}".format
    )


def workspaces(*stages: str, layers: tuple[str, ...] = ()) -> Picture:
    """What stages store beside input, filter and output, as a part of the size of these three, on
    these or all of the paper's layers.

    Raises ``ValueError`` for a layer or stage that was not measured.
    """
    document, found = _memory(layers, stages, "workspace_bytes")
    bars: list[tuple[str, dict[str, float]]] = []
    for layer, (tensors, sizes) in found.items():
        bars += [(f"{layer} {name}", {name: size / tensors}) for name, size in sizes.items()]
        bars.append(("", {}))
    colours = dict(zip(next(iter(found.values()))[1], COLOURS, strict=False))
    caption = (
        "What a stage stores in global memory beside input, filter and output, divided by the "
        f"size of these three (1 is the dotted line), for {document['batch']} images."
    )
    title = {"workspace / (input + filter + output)": bars}
    return _chart(title, caption, colours, label="{:.2f}".format, line=1, high=0.15, size=8)


def ladder_speeds(layer: str = "conv9") -> Picture:
    """How fast each stage of the ladder is on an H200: floating-point operations a second."""
    document = stored(layer)
    speeds = {short_name(one["name"]): one["tflops"] for one in document["stages"] if one["tflops"]}
    caption = (
        f"Every stage on {layer.capitalize()}, on {_where(document)}: the convolution's operations "
        "divided by the time of the whole stage with its layout transforms, in TFLOP/s (10^12 a "
        "second). More is better."
    )
    return _chart({f"TFLOP/s on {layer.capitalize()}": _one_each(speeds)}, caption)


def lines(
    x: Sequence[float], lines: Mapping[str, Sequence[float]], title: str, caption: str,
    label: str = "{:.2f}", **axes: Any,
) -> Picture:  # fmt: skip
    """Lines with markers and a legend, as a picture; ``axes`` are matplotlib's, of the panel."""
    figure, (panel,) = sheet(7, 3)
    for (name, values), marker, colour in zip(lines.items(), "osD^", COLOURS, strict=False):
        panel.plot(range(len(x)), values, marker=marker, markeredgecolor=INK, markeredgewidth=0.6,
                   label=name, color=colour)  # fmt: skip
    panel.set_axis_on()
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=9, colors=INK)
    panel.grid(axis="y", color=FAINT, alpha=0.3)
    panel.set_title(title, fontsize=10, color=INK, loc="left")
    panel.set_xticks(range(len(x)), map(str, x))
    panel.set(facecolor="none", **axes)
    panel.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
    said = "; ".join(
        f"{name} " + ", ".join(f"{label.format(y)} at {at}" for at, y in zip(x, line, strict=True))
        for name, line in lines.items()
    )
    return finished(figure, f"Lines, {title}: {said}", caption)


def measured_sweep(sweep: str, *stages: str) -> Picture:
    """How many times as fast as s01 these stages are as one size of a small problem changes.

    Raises ``ValueError`` for a sweep or stage that was not measured.
    """
    document = result("channel_sweeps_h200")
    require_measured("sweep", sweep, dict.fromkeys(one["sweep"] for one in document["points"]))
    points = [point for point in document["points"] if point["sweep"] == sweep]
    values = [point["value"] for point in points]
    found: dict[str, list[float]] = {}
    for point in points:
        s01 = point["stages"]["s01_direct"]
        for name, one in {"s01": s01, **_of(stages, point["stages"])}.items():
            found.setdefault(name, []).append(s01["time_ms"] / one["time_ms"])
    images, filters = points[0]["problem"].split(" * ")
    caption = (
        f"How many times as fast as s01 the stages are as {sweep} grows, on {_where(document)}. "
        f"The first problem is {images} (images, channels, rows, columns) with filters {filters}."
    )
    return lines(values, found, "times as fast as s01", caption, ylim=(0, None), xlabel=sweep)
