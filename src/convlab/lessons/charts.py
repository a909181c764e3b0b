"""Bar and line charts: counts of traced launches, and what was measured on an H200.

Measured values come from ``docs/results``; every chart names the GPU and the date.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from convlab.lessons.pictures import COLOURS, FAINT, INK, PAPER, Picture, finished, note, sheet
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


def _draw_bars(
    panel: Any, bars: Bars, title: str, label: Callable[[float], str],
    colours: Mapping[str, str] | None = None, size: float = 9.5,
) -> None:  # fmt: skip
    """Horizontal bars with their totals; ``colours`` are by part and give a legend, else each bar
    has the next colour. A bar without parts is a gap."""
    from matplotlib.patches import Patch

    most = max(sum(parts.values()) for _, parts in bars) or 1
    for row, (_, parts) in enumerate(bars):
        total = 0.0
        for part, value in parts.items():
            colour = colours[part] if colours else COLOURS[row % len(COLOURS)]
            panel.barh(row, value, left=total, height=0.75, color=colour)
            total += value
        if parts:
            panel.annotate(
                label(total), (total, row), xytext=(5, 0), textcoords="offset points", va="center",
                fontsize=size, color=INK, bbox={"fc": PAPER, "ec": "none", "pad": 0.3},
            )  # fmt: skip
    panel.set(xlim=(0, most * 1.25), ylim=(len(bars) - 0.4, -0.6), xticks=[], facecolor="none")
    panel.set_axis_on()
    named = {row: name for row, (name, _) in enumerate(bars) if name}
    panel.set_yticks(list(named), list(named.values()), fontsize=size, color=INK)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.set_title(title, fontsize=10, color=INK, loc="left")
    if colours and len(colours) > 1:
        panel.legend(
            handles=[Patch(color=colour, label=name) for name, colour in colours.items()],
            loc="upper left", bbox_to_anchor=(0, 0), ncols=3, fontsize=9, frameon=False,
            labelcolor=INK,
        )  # fmt: skip


def _chart(
    bars: Bars, title: str, caption: str, colours: Mapping[str, str] | None = None, *,
    unit: str = "", label: Callable[[float], str] = _brief, line: float | None = None,
    high: float = 0.3, size: float = 9.5,
) -> Picture:  # fmt: skip
    """One panel of bars as a picture, whose words have all its numbers in place of the caption's
    ``{}``. ``line`` is where a dotted line is drawn, ``high`` inches are for each bar."""
    legend = 0.35 * bool(colours and len(colours) > 1)
    figure, (panel,) = sheet(7.4, high * len(bars) + 0.55 + legend)
    _draw_bars(panel, bars, title, label, colours, size)
    if line is not None:
        panel.axvline(line, color=INK, linewidth=1, linestyle=":")
    said = "; ".join(
        f"{name}{':' * (len(parts) > 1)} "
        + ", ".join(
            f"{part} {label(value)}{unit}" if len(parts) > 1 else f"{label(value)}{unit}"
            for part, value in parts.items()
        )
        for name, parts in bars if parts
    )  # fmt: skip
    return finished(figure, f"Bars, {title}: {said}.", caption.replace("{}", said))


def _one_each(values: Mapping[str, float]) -> Bars:
    return [(name, {name: value}) for name, value in values.items()]


def side_by_side(launches: dict[str, LaunchTrace], *counts: str) -> Picture:
    """Counts of several launches as bars, a panel for each count. Raises ``ValueError`` for one
    that is not in ``COUNTS``."""
    for count in counts:
        if count not in COUNTS:
            raise ValueError(f"count is {count!r}: it must be one of {', '.join(COUNTS)}")
    figure, panels = sheet(7.4, 0.36 * len(launches) + 0.6, len(counts))
    told = []
    for panel, count in zip(panels, counts, strict=True):
        values = {name: COUNTS[count](one) for name, one in launches.items()}
        bars = [(name * (panel is panels[0]), {name: value}) for name, value in values.items()]
        _draw_bars(panel, bars, count, _brief)
        told.append(f"{count}: " + ", ".join(f"{n} {_brief(v)}" for n, v in values.items()))
    said = "; ".join(told)
    return finished(figure, f"Bars. {said}", f"Counted by the simulator; less is better. {said}.")


def as_bars(
    values: dict[str, float], unit: str, caption: str, right: float | None = None
) -> Picture:
    """Numbers as bars, each with its name; a dotted line at ``right``."""
    label, caption = "{:.3g}".format, f"{caption} {{}}."
    return _chart(_one_each(values), unit, caption, label=label, line=right, high=0.34)


def global_traffic(**traces: Trace) -> Picture:
    """Which arrays of global memory the launches of stages read and write, and how large they
    are."""
    bars: list[tuple[str, dict[str, float]]] = []
    totals = []
    for stage, whole in traces.items():
        first = len(bars)
        for launch in whole.launches:
            sizes = {
                one.name: one.itemsize * math.prod(one.shape) / 1024
                for one in launch.arrays if one.space == "global"
            }  # fmt: skip
            for verb, operation in (("reads", "load"), ("writes", "store")):
                found = {a.array for a in launch.accesses if a.operation == operation}
                for name in sorted(found & sizes.keys()):
                    kind = "im2win tensor" if name == "windows" else "other arrays"
                    bars.append((f"{stage}: {launch.kernel} {verb} {name}", {kind: sizes[name]}))
        total = sum(value for _, parts in bars[first:] for value in parts.values())
        totals.append(f"{stage} {total:.0f} KiB")
    caption = (
        "The arrays of global memory that the kernels of each stage read and write, and their "
        "sizes in KiB; orange is the im2win tensor. Each line counts its array once: "
        f"{', '.join(totals)}."
    )
    colours = {"other arrays": COLOURS[0], "im2win tensor": COLOURS[1]}
    return _chart(bars, "KiB", caption, colours, size=8.5, label="{:.1f}".format)


def stored(layer: str = "conv9") -> dict[str, Any]:
    """What was measured of the ladder on an H200 on a layer: ``convlab ladder --json``'s document.

    Raises ``ValueError`` naming the layers there are.
    """
    files = sorted(results().glob("ladder_*_h200.json"))
    require_measured("layer", layer, [file.name.split("_")[1] for file in files])
    return result(f"ladder_{layer}_h200")


def _of_stages(layer: str, stages: Iterable[str], value: str) -> tuple[dict[str, Any], str]:
    """A value that was measured of each of these stages, by short name; and where and when.

    Raises ``ValueError`` for a stage that was not measured on the layer.
    """
    document = stored(layer)
    entries = {one["name"]: one[value] for one in document["stages"] if one[value]}
    names = [stage_named(stage).name for stage in stages]
    for name in names:
        require_measured("stage", name, entries)
    return {short_name(name): entries[name] for name in names}, _where(document)


def _where(document: dict[str, Any]) -> str:
    return f"an {document['device']}, {document['environment']['date'][:10]}"


def measured(*stages: str, layer: str = "conv9") -> Picture:
    """How long these stages took on an H200. Raises ``ValueError`` for one that was not measured
    on the layer."""
    times, where = _of_stages(layer, stages, "time_ms")
    problem = stored(layer)["problem"]
    images, channels, height, width = problem["input_shape"]
    caption = (
        f"The time of each stage for the layer {layer.capitalize()}, on {where}; "
        f"shorter is better: {{}}. {layer.capitalize()} is {images} images of {channels} channels "
        f"and {height}x{width} pixels, {problem['out_channels']} filters of "
        f"{'x'.join(map(str, problem['kernel_size']))}: {problem['flops'] / 1e9:.1f} billion "
        "floating-point operations."
    )
    return _chart(_one_each(times), f"milliseconds for {layer.capitalize()}", caption, unit=" ms")


def measured_kernels(*stages: str, layer: str = "conv9") -> Picture:
    """How long each kernel of these stages took on an H200, timed alone: the parts of a stage as
    one bar. Raises as :func:`measured`."""
    times, where = _of_stages(layer, stages, "launch_ms")
    least = max(sum(parts.values()) for parts in times.values()) / 100
    bars = [(n, {one: t for one, t in parts.items() if t > least}) for n, parts in times.items()]
    more = "The chart leaves out parts under a hundredth of the longest bar."
    return _parts(
        layer, where, bars, dict.fromkeys(one for _, parts in bars for one in parts), more
    )


def measured_parts(*stages: str, layer: str = "conv9") -> Picture:
    """How long these stages' layout transforms and main kernels took on an H200, each timed alone.
    Raises as :func:`measured`."""
    found, where = _of_stages(layer, stages, "launch_ms")
    times = {name: list(parts.values()) for name, parts in found.items()}
    bars = [(n, {TRANSFORMS: sum(parts[:-1]), MAIN: parts[-1]}) for n, parts in times.items()]
    more = (
        "A layout transform reorders the input or the filter. In a whole run it leaves some of "
        "its output in the cache, so the stage can be faster than the sum of its parts."
    )
    return _parts(layer, where, bars, (MAIN, TRANSFORMS), more)


def _parts(layer: str, where: str, bars: Bars, kinds: Iterable[str], more: str) -> Picture:
    colours = dict(zip(kinds, COLOURS, strict=False))
    title = f"milliseconds for {layer.capitalize()}"
    caption = f"Milliseconds of each part alone, on {where}. {{}}. {more}"
    return _chart(bars, title, caption, colours, unit=" ms", label="{:.3g}".format)


def _memory(
    layers: Sequence[str], stages: Iterable[str], value: str
) -> tuple[dict[str, Any], list[tuple[str, int, dict[str, int]]]]:
    """The measurements of memory; and of each layer its name, its tensors' bytes and a value of
    each stage by short name.

    Raises ``ValueError`` for a layer or stage that was not measured.
    """
    document = result("memory")
    entries = {row["layer"]: row for row in document["layers"]}
    names = [stage_named(stage).name for stage in stages]
    found = []
    for layer in layers or entries:
        require_measured("layer", layer, entries)
        for name in names:
            require_measured("stage", name, entries[layer][value])
        bytes_of = {short_name(name): entries[layer][value][name] for name in names}
        found.append((layer.capitalize(), entries[layer]["tensor_bytes"], bytes_of))
    return document, found


def measured_memory(*stages: str, layer: str = "conv9") -> Picture:
    """How much memory these stages took on an H200 beside input, filter and output.

    Raises ``ValueError`` for a layer or stage that was not measured.
    """
    document, ((name, tensors, taken),) = _memory([layer], stages, "measured_bytes")
    caption = (
        f"The memory that the stages took beside the tensors, on an {document['device']}, batch "
        f"{document['batch']}: {{}}."
    )
    bytes_of = {"input, filter, output": tensors, **taken}
    sizes = {name: round(size / 2**20) for name, size in bytes_of.items()}
    return _chart(_one_each(sizes), f"MiB for {name}", caption, unit=" MiB")


def workspaces(*stages: str, layers: tuple[str, ...] = ()) -> Picture:
    """What stages store beside input, filter and output, as a part of the size of these three, on
    these or all of the paper's layers.

    Raises ``ValueError`` for a layer or stage that was not measured.
    """
    document, found = _memory(layers, stages, "workspace_bytes")
    bars: list[tuple[str, dict[str, float]]] = []
    told = []
    for layer, tensors, bytes_of in found:
        parts = {name: size / tensors for name, size in bytes_of.items()}
        for number, (name, part) in enumerate(parts.items()):
            bars.append((layer * (number == (len(parts) - 1) // 2), {name: part}))
        bars.append(("", {}))
        told.append(f"{layer}: " + ", ".join(f"{name} {part:.2f}" for name, part in parts.items()))
    figure, (panel,) = sheet(7.4, 0.14 * len(bars) + 0.9)
    colours = dict(zip(found[0][2], COLOURS, strict=False))
    title = "workspace / (input + filter + output)"
    _draw_bars(panel, bars[:-1], title, "{:.2f}".format, colours, size=8)
    panel.axvline(1, color=INK, linewidth=1, linestyle=":")
    caption = (
        "What a stage stores in global memory beside input, filter and output, divided by the "
        f"size of these three (1 is the dotted line), for {document['batch']} images."
    )
    return finished(figure, f"Bars of workspace over tensors. {'; '.join(told)}.", caption)


def ladder_speeds(layer: str = "conv9") -> Picture:
    """How fast each stage of the ladder is on an H200: floating-point operations a second."""
    document = stored(layer)
    speeds = {short_name(one["name"]): one["tflops"] for one in document["stages"] if one["tflops"]}
    caption = (
        f"Every stage on {layer.capitalize()}, on {_where(document)}: the convolution's operations "
        "divided by the time of the whole stage with its layout transforms, in TFLOP/s (10^12 a "
        "second). More is better."
    )
    return as_bars(speeds, f"TFLOP/s on {layer.capitalize()}", caption)


def line_chart(
    panel: Any, x: Sequence[float], lines: Mapping[str, Sequence[float]], title: str
) -> None:
    """Lines with markers and a legend on a panel."""
    for (name, values), marker, colour in zip(lines.items(), "osD^", COLOURS, strict=False):
        panel.plot(x, values, marker=marker, markeredgecolor=INK, markeredgewidth=0.6, label=name,
                   color=colour)  # fmt: skip
    panel.set_axis_on()
    panel.set_facecolor("none")
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=9, colors=INK)
    panel.grid(axis="y", color=FAINT, alpha=0.3)
    panel.set_title(title, fontsize=10, color=INK, loc="left")
    panel.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")


def measured_sweep(sweep: str, *stages: str) -> Picture:
    """How many times as fast as s01 these stages are as one size of a small problem changes.

    Raises ``ValueError`` for a sweep or stage that was not measured.
    """
    document = result("channel_sweeps_h200")
    require_measured("sweep", sweep, dict.fromkeys(one["sweep"] for one in document["points"]))
    points = [point for point in document["points"] if point["sweep"] == sweep]
    values = [point["value"] for point in points]
    lines = {}
    for name in [stage_named(stage).name for stage in stages]:
        require_measured("stage", name, points[0]["stages"])
        runs = [{n: run["time_ms"] for n, run in point["stages"].items()} for point in points]
        lines[short_name(name)] = [run["s01_direct"] / run[name] for run in runs]
    figure, (panel,) = sheet(6.4, 2.9)
    line_chart(panel, range(len(values)), lines, "times as fast as s01")
    panel.axhline(1, color=INK, linewidth=1, linestyle="--")
    note(panel, len(values) - 0.35, 1, "s01", 9, ha="right", va="bottom")
    panel.set_xticks(range(len(values)), [str(value) for value in values])
    panel.set(xlim=(-0.4, len(values) - 0.3), ylim=(0, None), xlabel=sweep)
    said = "; ".join(
        f"{name}: " + ", ".join(f"{v:.2f} at {s}" for s, v in zip(values, line, strict=True))
        for name, line in lines.items()
    )
    images, filters = points[0]["problem"].split(" * ")
    caption = (
        f"How many times as fast as s01 the stages are as {sweep} grows, on {_where(document)}; "
        f"above the dashed line they win. The first problem is {images} (images, channels, rows, "
        f"columns) with filters {filters}."
    )
    return finished(figure, f"Lines: times as fast as s01 by {sweep}. {said}", caption)
