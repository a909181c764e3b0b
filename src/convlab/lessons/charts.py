"""Charts of traced launches, and of measurements on an H200.

Measured values come from ``docs/results``; every chart names the GPU and the date, and raises
``ValueError`` for a layer, stage or sweep that was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from convlab.ladder import stage_named
from convlab.lessons.pictures import COLOURS, Grid, Picture, bars, lines
from convlab.lessons.source import folder_of
from convlab.support.files import Amount, Count, Natural, Record, read
from convlab.tracing import LaunchTrace, Trace

MORE_IS_BETTER = "operations per byte"
COUNTS: dict[str, Callable[[LaunchTrace], float]] = {
    "requests to global memory": lambda launch: launch.total("requests", launch.of(space="global")),
    "sectors of global memory": lambda launch: launch.total("sectors"),
    "sectors a request": lambda launch: (
        launch.total("sectors") / launch.total("requests", launch.of(space="global"))
    ),
    "requests to shared memory": lambda launch: launch.total("requests", launch.of(space="shared")),
    "wavefronts of shared memory": lambda launch: launch.total("wavefronts"),
    "atomic additions": lambda launch: sum(
        one.requests for one in launch.accesses if one.operation == "atomic"
    ),
    "floating-point operations": lambda launch: launch.flops,
    MORE_IS_BETTER: lambda launch: 1 / launch.bytes_per_flop if launch.bytes_per_flop else 0,
}


def side_by_side(launches: dict[str, LaunchTrace], *counts: str) -> Picture:
    """Draw counts of several launches as bars, a panel for each count. Raises ``ValueError`` for a
    count that is not in ``COUNTS``."""
    for count in counts:
        _require("count", count, COUNTS, "it must be one of")
    panels = {
        count: {name: COUNTS[count](launch) for name, launch in launches.items()}
        for count in counts
    }
    caption = "Counted by the simulator; less is better."
    if MORE_IS_BETTER in counts:
        caption = f"Counted by the simulator; less is better, but more {MORE_IS_BETTER}."
    return bars(panels, caption, high=0.36)


def as_bars(
    values: dict[str, float], unit: str, caption: str, right: float | None = None
) -> Picture:
    """Draw numbers as bars, each with its name, and a dotted line at ``right``."""
    told = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    return bars({unit: values}, f"{caption} {told}.", label="{:.3g}".format, line=right)


def global_traffic(**traces: Trace) -> Picture:
    """Draw the arrays of global memory that the stages' launches access, with their sizes."""
    panel = []
    launches = [(stage, one) for stage, trace in traces.items() for one in trace.launches]
    for stage, launch in launches:
        arrays = {one.name: one for one in launch.arrays if one.space == "global"}
        for verb, operation in (("reads", "load"), ("writes", "store")):
            found = {one.array for one in launch.accesses if one.operation == operation}
            for name in sorted(found & arrays.keys()):
                kind = "im2win tensor" if name == "windows" else "other arrays"
                size = arrays[name].itemsize * math.prod(arrays[name].shape) / 1024
                panel.append((f"{stage}: {launch.kernel} {verb} {name}", {kind: size}))
    caption = """The arrays of global memory that the kernels of each stage read and write, and
        their sizes in KiB. The im2win tensor is orange."""
    colours = {"other arrays": COLOURS[0], "im2win tensor": COLOURS[1]}
    return bars({"KiB": panel}, caption, colours, size=8.5, label="{:.1f}".format)


class Environment(TypedDict):
    """The environment of a measurement."""

    date: str


class ProblemSizes(TypedDict):
    """The problem that a ladder was measured on."""

    input_shape: tuple[int, int, int, int]
    kernel_size: tuple[int, int]
    out_channels: int
    flops: int


class Step(TypedDict):
    """A stage's row in a measured ladder."""

    name: str
    time_ms: Amount | None
    launch_ms: dict[str, Amount] | None
    tflops: Amount | None


class LadderResult(TypedDict):
    """The keys of ``convlab ladder --json`` that charts show."""

    device: str
    environment: Environment
    problem: ProblemSizes
    stages: list[Step]


class MemoryRow(TypedDict):
    """The memory of stages on one layer."""

    layer: str
    tensor_bytes: Natural
    measured_bytes: dict[str, Count]
    workspace_bytes: dict[str, Count]


class MemoryResult(TypedDict):
    """The stored measurements of the stages' memory."""

    device: str
    batch: Natural
    layers: list[MemoryRow]


class Time(TypedDict):
    """The time of a stage at a point of a sweep."""

    time_ms: float


class Point(TypedDict):
    """A point of a sweep over sizes: one problem, measured with several stages."""

    sweep: str
    value: int
    problem: str
    stages: dict[str, Time]


class SweepResult(TypedDict):
    """The keys of the sweeps over sizes that charts show."""

    device: str
    environment: Environment
    points: list[Point]


class Level(TypedDict):
    """A level of a GPU's memory."""

    name: str
    bytes: Natural
    latency_cycles: Amount
    bytes_per_second: Amount | None


class LevelsResult(TypedDict):
    """The stored measurements of a GPU's memories."""

    device: str
    environment: Environment
    levels: list[Level]


def result(name: str, kind: type[Record]) -> Record:
    """Return a file of measurements by its name without ending. Raises ``ValueError`` naming a file
    that holds anything else."""
    file = folder_of("docs/results", "results") / f"{name}.json"
    try:
        return read(file, kind)
    except ValueError as error:
        raise ValueError(f"{str(file)!r} is not a file of results: {error}") from error


def _require(kind: str, name: str, known: Iterable[str], rule: str = "measured were") -> None:
    """Raise ``ValueError`` for an unknown name, with ``rule`` and the known names."""
    there = list(dict.fromkeys(known))
    if name not in there:
        raise ValueError(f"{kind} is {name!r}: {rule} {', '.join(there)}")


def stored(layer: str = "conv9") -> LadderResult:
    """Return the ladder's stored results on a layer: the document of ``convlab ladder --json``."""
    files = sorted(folder_of("docs/results", "results").glob("ladder_*_h200.json"))
    _require("layer", layer, [file.name.split("_")[1] for file in files])
    return result(f"ladder_{layer}_h200", LadderResult)


def _of(stages: Iterable[str], measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored results of these stages, by the names that charts show: number and idea."""
    names = [stage_named(stage).name for stage in stages]
    for name in names:
        _require("stage", name, measured)
    return {in_words(name): measured[name] for name in names}


def in_words(name: str) -> str:
    """Return a stage's name as words: ``m03 shared memory``."""
    return name.replace("_", " ")


def _of_layer(layer: str, stages: Iterable[str], value: str) -> tuple[dict[str, Any], str, str]:
    """Return a value of each stage on a layer, the chart's title, and the GPU and the date."""
    document = stored(layer)
    rows: list[Any] = [*document["stages"]]
    there = {row["name"]: row[value] for row in rows if row[value]}
    return _of(stages, there), f"milliseconds for {layer.capitalize()}", _where(document)


def _where(document: LadderResult | SweepResult | LevelsResult) -> str:
    return f"an {document['device']}, {document['environment']['date'][:10]}"


def measured(*stages: str, layer: str = "conv9") -> Picture:
    """Draw the times of these stages."""
    times, title, where = _of_layer(layer, stages, "time_ms")
    problem = stored(layer)["problem"]
    images, channels, height, width = problem["input_shape"]
    caption = f"""The time of each stage on {where}; shorter is better. {layer.capitalize()} is
        {images} images of {channels} channels and {height}x{width} pixels,
        {problem["out_channels"]} filters of {"x".join(map(str, problem["kernel_size"]))}:
        {problem["flops"] / 1e9:.1f} billion floating-point operations."""
    return bars({title: times}, caption, unit=" ms")


def measured_kernels(*stages: str, layer: str = "conv9") -> Picture:
    """Draw the times of these stages' kernels, each timed alone: one bar for each stage."""
    times, title, where = _of_layer(layer, stages, "launch_ms")
    least = max(sum(parts.values()) for parts in times.values()) / 100
    parts = {n: {one: t for one, t in parts.items() if t > least} for n, parts in times.items()}
    more = "The chart leaves out parts under a hundredth of the longest bar."
    return _parts(title, parts, where, more)


def measured_parts(*stages: str, layer: str = "conv9") -> Picture:
    """Draw the times of these stages' layout transforms and main kernels, each timed alone."""
    times, title, where = _of_layer(layer, stages, "launch_ms")
    parts = {}
    for name, launches in times.items():
        *transforms, main = launches.values()
        parts[name] = {"layout transforms": sum(transforms), "main kernel": main}
    more = """A layout transform reorders the input or the filter. In a whole run it leaves some of
        its output in the cache, so the stage can be faster than the sum of its parts."""
    return _parts(title, parts, where, more)


def _parts(title: str, parts: dict[str, dict[str, float]], where: str, more: str) -> Picture:
    kinds = dict.fromkeys(kind for one in parts.values() for kind in one)
    colours = dict(zip(kinds, COLOURS, strict=False))
    caption = f"Milliseconds of each part alone, on {where}. {more}"
    panels = {title: list(parts.items())}
    return bars(panels, caption, colours, unit=" ms", label="{:.3g}".format)


def _memory(layers: Iterable[str]) -> tuple[MemoryResult, list[MemoryRow]]:
    """Return the measurements of memory, and the rows of these layers, or of all layers."""
    document = result("memory", MemoryResult)
    rows = {row["layer"]: row for row in document["layers"]}
    for layer in layers:
        _require("layer", layer, rows)
    return document, [rows[layer] for layer in layers or rows]


def measured_memory(*stages: str, layer: str = "conv9") -> Picture:
    """Draw the memory that these stages took beside input, filter and output."""
    document, (row,) = _memory([layer])
    taken = {"input, filter, output": row["tensor_bytes"], **_of(stages, row["measured_bytes"])}
    caption = f"""The memory that the stages took beside the tensors, on an {document["device"]},
        batch {document["batch"]}."""
    sizes = {name: size / 2**20 for name, size in taken.items()}
    title = f"MiB for {layer.capitalize()}"
    return bars({title: sizes}, caption, unit=" MiB", label="{:,.0f}".format)


def workspaces(stages: Mapping[str, str], layers: tuple[str, ...] = ()) -> Picture:
    """Draw the stages' workspace relative to input, filter and output, on the paper's layers.

    ``stages`` holds a stage for each label.
    """
    document, rows = _memory(layers)
    named = {label: stage_named(stage).name for label, stage in stages.items()}
    panel: list[tuple[str, dict[str, float]]] = []
    for row in rows:
        sizes = _of(named.values(), row["workspace_bytes"]).values()
        for label, size in zip(stages, sizes, strict=True):
            bar = {label: size / row["tensor_bytes"]}
            panel.append((f"{row['layer'].capitalize()} {label}", bar))
        panel.append(("", {}))
    caption = f"""The memory that a stage takes beside input, filter and output, divided by the size
        of these three, for {document["batch"]} images. At the dotted line a stage takes as much
        memory as these three. The stages are {", ".join(map(in_words, named.values()))}."""
    panels = {"workspace / (input + filter + output)": panel}
    colours = dict(zip(stages, COLOURS, strict=False))
    return bars(panels, caption, colours, label="{:.2f}".format, line=1, high=0.15, size=8)


def ladder_speeds(layer: str = "conv9") -> Picture:
    """Draw the speed of each stage of the ladder in TFLOP/s."""
    document = stored(layer)
    speeds = {in_words(one["name"]): one["tflops"] for one in document["stages"] if one["tflops"]}
    caption = f"""Every stage on {layer.capitalize()}, on {_where(document)}: the convolution's
        operations divided by the time of the whole stage with its layout transforms, in TFLOP/s
        (10^12 a second). More is better."""
    return bars({f"TFLOP/s on {layer.capitalize()}": speeds}, caption)


def measured_sweep(sweep: str, *stages: str) -> Picture:
    """Draw these stages' speedups over m01 as one size of a small problem changes."""
    document = result("channel_sweeps_h200", SweepResult)
    _require("sweep", sweep, [one["sweep"] for one in document["points"]])
    points = [point for point in document["points"] if point["sweep"] == sweep]
    found: dict[str, list[float]] = {}
    for point in points:
        for name, one in _of(["m01", *stages], point["stages"]).items():
            m01 = point["stages"]["m01_direct"]["time_ms"]
            found.setdefault(name, []).append(m01 / one["time_ms"])
    images, filters = points[0]["problem"].split(" * ")
    caption = f"""How many times as fast as m01 the stages are as {sweep} grows, on
        {_where(document)}. The first problem is {images} (images, channels, rows, columns) with
        filters {filters}."""
    values = [point["value"] for point in points]
    return lines(values, found, "times as fast as m01", caption, ylim=(0, None), xlabel=sweep)


def memory_levels() -> Picture:
    """Draw the memories of a GPU with their sizes, bandwidths and latencies."""
    document = result("memory_levels_h200", LevelsResult)
    grid, told = Grid(0.34), []
    for row, level in enumerate(document["levels"]):
        wide = 5 + 2.2 * row
        of_sm = " in each SM" if level["bytes"] < 2**20 else ""
        facts = [f"{_size(level['bytes'])}{of_sm}", f"{level['latency_cycles']:.0f} cycles"]
        if level["bytes_per_second"]:
            facts.append(f"{level['bytes_per_second'] / 1e12:.1f} TB/s")
        grid.cell(6 - wide / 2, 1.7 * row, COLOURS[row], level["name"], wide=wide, high=1.3, size=9)
        grid.note(12.2, 1.7 * row + 0.65, ", ".join(facts), 9)
        told.append(f"{level['name']}: {', '.join(facts)}")
    caption = f"""The memories of {_where(document)}: the size of each, the cycles that a thread
        waits for a number from it (the latency, with the arithmetic of the address), and how much
        all threads together read from it in a second. Shared memory and the L1 cache are one
        memory, which each kernel divides between the two."""
    return grid.finished(f"The memories of a GPU. {'; '.join(told)}", caption)


def _size(nbytes: int) -> str:
    power = (nbytes.bit_length() - 1) // 10
    return f"{nbytes / 2 ** (10 * power):.0f} {('B', 'KiB', 'MiB', 'GiB')[power]}"
