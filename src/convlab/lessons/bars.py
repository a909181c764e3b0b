"""Pictures that compare: counts of launches, and times that were measured on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convlab.bench.ladder_results import changed
from convlab.bench.results import open_results
from convlab.lessons import places
from convlab.lessons.pictures import COLOURS, INK, Picture, bars_of, finished, sheet
from convlab.stages import short_name, stage_named
from convlab.tracing import LaunchTrace

Count = Callable[[LaunchTrace], float]
COUNTS: dict[str, Count] = {
    "requests to global memory": lambda launch: launch.total("requests", launch.of(space="global")),
    "sectors of global memory": lambda launch: launch.total("sectors"),
    "sectors a request": lambda launch: (
        launch.total("sectors") / launch.total("requests", launch.of(space="global"))
    ),
    "requests to shared memory": lambda launch: launch.total("requests", launch.of(space="shared")),
    "passes of shared memory": lambda launch: launch.total("passes"),
    "atomic additions": lambda launch: sum(
        access.requests for access in launch.accesses if access.operation == "atomic"
    ),
    "floating-point operations": lambda launch: launch.flops,
    "bytes an operation": lambda launch: launch.bytes_per_flop or 0,
}


def side_by_side(launches: dict[str, LaunchTrace], *counts: str) -> Picture:
    """Counts of several launches as bars, a panel for each count. Raises ``ValueError`` for one
    that is not in ``COUNTS``."""
    for count in counts:
        if count not in COUNTS:
            raise ValueError(f"count is {count!r}: it must be one of {', '.join(COUNTS)}")
    values = {count: [COUNTS[count](one) for one in launches.values()] for count in counts}
    figure, panels = sheet(7.4, 0.36 * len(launches) + 0.6, len(counts))
    names = list(launches)
    for place, (panel, (count, numbers)) in enumerate(zip(panels, values.items(), strict=True)):
        _bars(panel, names if place == 0 else [""] * len(names), numbers, count)
    said = "; ".join(
        f"{count}: " + ", ".join(f"{n} {_brief(v)}" for n, v in zip(names, numbers, strict=True))
        for count, numbers in values.items()
    )
    return finished(figure, f"Bars. {said}", f"Counted by the simulator, less is better: {said}.")


def _bars(panel: Any, names: Sequence[str], values: Sequence[float], title: str) -> None:
    rows = range(len(values))
    panel.barh(rows, values, color=[COLOURS[row % len(COLOURS)] for row in rows], height=0.7)
    most = max(values) or 1
    for row, value in enumerate(values):
        panel.text(value + most * 0.02, row, _brief(value), va="center", fontsize=9.5, color=INK)
    panel.set_xlim(0, most * 1.4)
    panel.set_yticks(list(rows), names, fontsize=10, color=INK)
    panel.invert_yaxis()
    bars_of(panel, title)


def _brief(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"


def stored(layer: str = "conv9") -> dict[str, Any]:
    """What was measured of the ladder on an H200 on a layer: ``convlab ladder --json``'s document.

    Raises ``ValueError`` naming the layers there are.
    """
    files = sorted(places.results().glob("ladder_*_h200.json"))
    places.require_measured("layer", layer, [file.name.split("_")[1] for file in files])
    return places.result(f"ladder_{layer}_h200")


def changed_since(document: dict[str, Any], layer: str, stages: Sequence[str]) -> str:
    """Which of these times a newer run of ``convlab bench`` found otherwise, as after a change of a
    stage's code: a sentence for a caption, empty where there are none."""
    newer = open_results(places.results() / "bench_h200.json")
    date, batch = document["environment"]["date"], document["problem"]["batch"]
    times = {one["name"]: one["time_ms"] for one in document["stages"] if one["name"] in stages}
    found = [
        f"{short_name(name)} as a whole takes {_brief(row.time_ms)} ms, which is "
        f"{_brief(row.tflops)} TFLOP/s"
        for name, row in changed(newer, document["device"], date, layer, batch, times).items()
        if row.time_ms is not None and row.tflops is not None
    ]
    on = str(newer.environment["date"])[:10]
    return f" Changed since, by a run of {on}: {'; '.join(found)}." if found else ""


def measured(*stages: str, layer: str = "conv9") -> Picture:
    """How long these stages took on an H200, from the stored results; which of them were not
    measured is said. Raises ``ValueError`` where none was."""
    document = stored(layer)
    entries = {entry["name"]: entry for entry in document["stages"]}
    names = [stage_named(stage).name for stage in stages]
    found = {name: entries[name]["time_ms"] for name in names if name in entries}
    times = {short_name(name): time for name, time in found.items() if time is not None}
    missing = ", ".join(one for one in map(short_name, names) if one not in times)
    if not times:
        raise ValueError(f"stages are {missing}: none was measured on {layer}")
    figure, (panel,) = sheet(6.4, 0.36 * len(times) + 0.6)
    _bars(panel, list(times), list(times.values()), f"milliseconds for {layer.capitalize()}")
    said = ", ".join(f"{name} {_brief(time)} ms" for name, time in times.items())
    problem = document["problem"]
    images, channels, height, width = problem["input_shape"]
    filters = "x".join(map(str, problem["kernel_size"]))
    about = (
        f"{images} images of {channels} channels and {height}x{width} pixels, "
        f"{problem['out_channels']} filters of {filters}: {problem['flops'] / 1e9:.1f} billion "
        "floating-point operations"
    )
    unknown = f" Not measured on this layer yet: {missing}." if missing else ""
    unknown += changed_since(document, layer, names)
    date = document["environment"]["date"][:10]
    caption = (
        f"How long stages take for the layer {layer.capitalize()}, measured on an "
        f"{document['device']}, {date}; shorter is better: {said}. {layer.capitalize()} is "
        f"{about}.{unknown}"
    )
    return finished(figure, f"Bars of times on an {document['device']}: {said}", caption)
