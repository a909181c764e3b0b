"""Pictures of a traced launch: the elements that a block touches, and the requests of one warp.

Every number comes from the strict simulator's run of the real kernel (:mod:`convlab.tracing`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from convlab.ladder import LADDER, Stage, stage_named
from convlab.lessons.pictures import INK, PAPER, finished
from convlab.lessons.requests import one_request
from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import MODEL
from convlab.tracing import LaunchTrace, trace_stage
from convlab.tracing.recorded import LineAccess
from convlab.tracing.views import statement_of

ROOT = Path(__file__).parents[2]  # of the repository
# Okabe and Ito's colours, which colour-blind people can tell apart: untouched, read, written, both.
# The first is seen on light paper and on dark.
TOUCHED = ("#8b929a48", "#56b4e9", "#e69f00", "#cc79a7")


def drawn() -> Path:
    """Return the folder with each stage's trace: pictures, and numbers as JSON.

    The folder is kept in ``build/traces`` until one of the traces' source files changes.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for package in ("ladder", "device", "running/engines", "simulation", "tracing", "lessons"):
        for path in sorted((ROOT / "src/convlab" / package).rglob("*.py")):
            digest.update(path.read_bytes())
    folder = ROOT / "build/traces" / digest.hexdigest()[:16]
    missing = [stage.name for stage in LADDER if not (folder / f"{stage.name}.json").is_file()]
    if missing:
        shutil.rmtree(ROOT / "build/traces", ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"tracing {len(LADDER)} stages on the simulator", flush=True)
        with ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
            list(pool.map(draw, [stage.name for stage in LADDER], [folder] * len(LADDER)))
    return folder


def draw(name: str, folder: Path) -> None:
    """Trace a stage's main kernel on the small Conv9 and draw it. A stage of library calls has no
    kernel, and its file holds null."""
    stage = stage_named(name)
    file = folder / f"{name}.json"
    try:
        trace = trace_stage(name)
    except ValueError:
        if not stage.needs_library:
            raise
        file.write_text("null", encoding="utf-8")
        return
    launch = trace.main
    shapes = shapes_of(stage, stage.adapted(MODEL))
    told = draw_footprints(launch, shapes, folder / f"{name}-footprints.svg")
    lines = [
        line_of(launch, access, folder / f"{name}-{number}.svg")
        for number, access in enumerate(launch.accesses)
    ]
    facts = {
        "kernel": launch.kernel, "touched": told, "problem": trace.about["problem"],
        "tile": trace.about.get("tile"), "block": launch.block_shown[0],
        "blocks": math.prod(launch.grid), "lines": [line for line in lines if line],
    }  # fmt: skip
    file.write_text(json.dumps(facts), encoding="utf-8")


def line_of(launch: LaunchTrace, access: LineAccess, file: Path) -> dict[str, Any] | None:
    """Return the traffic of a line to an array, with a picture of one request.

    The picture shows the request with the most lanes, which no edge of the problem cuts short. The
    result is None if the block shown makes no request.
    """
    alike = launch.requests_of(access.array, access.operation)
    own = [one for one in alike if (one.line, one.width) == (access.line, access.width)]
    if not own:
        return None
    number = alike.index(max(own, key=lambda one: len(one.lanes)))
    picture = one_request(launch, access.array, access.operation, number)
    file.write_bytes(picture.data)
    return {
        "file": Path(access.file).name, "line": access.line, "space": access.space,
        "array": access.array, "operation": access.operation, "width": access.width,
        "code": statement_of(launch, access.file, access.line), "requests": access.requests,
        "total": access.cost.total, "fewest": access.cost.fewest,
        "picture": file.name, "points": picture.width, "alt": picture.alt,
        "caption": picture.caption, "legend": list(picture.legend),
    }  # fmt: skip


def shapes_of(stage: Stage, problem: ConvProblem) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a stage, even if the kernel indexes it with one index."""
    program = stage.prepare(problem, stage.model_tile)
    return {
        "input": problem.input_shape,
        "weight": problem.weight_shape,
        "output": problem.output_shape,
        **{buffer.name: buffer.shape for buffer in program.buffers},
    }


def touched(launch: LaunchTrace, name: str, size: int) -> np.ndarray:
    """Return for each element of an array what the block shown does: 0 nothing, 1 read, 2 write,
    3 both."""
    found = np.zeros(size, int)
    for footprint in launch.footprints:
        if footprint.array == name:
            for first, count in footprint.runs:
                found[first : first + count] |= 1 if footprint.operation == "load" else 2
    return found


def planes(elements: np.ndarray) -> np.ndarray:
    """Return an array as one image: its planes side by side, with NaN between them."""
    *_, height, width = elements.shape
    if height * width <= 64 and elements.ndim == 4:  # a small filter: one row for each
        height, width = elements.shape[0], math.prod(elements.shape[1:])
    found = elements.reshape(-1, height, width).astype(float)
    across = max(1, min(len(found), 128 // (width + 1)))
    padded = np.full((-(-len(found) // across) * across, height + 1, width + 1), np.nan)
    padded[: len(found), :height, :width] = found
    rows = padded.reshape(-1, across, height + 1, width + 1).swapaxes(1, 2)
    return rows.reshape(-1, across * (width + 1))[:-1, :-1]


def draw_footprints(launch: LaunchTrace, shapes: dict[str, tuple[int, ...]], file: Path) -> str:
    """Draw every array of a launch with the elements that one block touches.

    Returns a description of the picture.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    images = []
    for array in launch.arrays:
        shape = shapes.get(array.name, array.shape) if array.space == "global" else array.shape
        elements = touched(launch, array.name, math.prod(shape)).reshape(shape)
        if elements.ndim > 1 and elements.any():
            told = f"{array.name}, {array.space}, {' x '.join(map(str, shape))}"
            counts = f"{np.count_nonzero(elements):,} of {elements.size:,} elements"
            images.append((f"{told}: {counts}", planes(elements)))
    heights = [min(2.4, max(0.2, 0.06 * len(image))) for _, image in images]
    size = (7.5, sum(heights) + 0.35 * len(heights) + 0.1)
    figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (title, image) in zip(axes, images, strict=True):
        axis.set_title(title, fontsize=10, loc="left", color=INK)
        axis.set_anchor("W")
        axis.set_axis_off()
        axis.imshow(image, cmap=ListedColormap(TOUCHED), vmin=0, vmax=3, interpolation="nearest")
    alt = "; ".join(title for title, _ in images)
    file.write_bytes(finished(figure, alt).data)
    return alt
