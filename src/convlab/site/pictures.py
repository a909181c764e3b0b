"""Pictures of a traced launch: what a block touches, and where the lanes of one warp go.

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

from convlab.problem import ConvProblem
from convlab.simulation.memory_rules import BANKS, SECTOR_BYTES, WARP, WORD_BYTES
from convlab.stages import LADDER, Stage, stage_named
from convlab.tracing import LaunchTrace, trace_stage
from convlab.tracing.records import Access, Request
from convlab.tracing.table import statement_of
from convlab.workloads import MODEL

SECTOR = SECTOR_BYTES // WORD_BYTES  # words
ROW, MOST_ROWS = 16, 4  # sectors side by side, rows of them in one picture
# Okabe and Ito's colours, which colour-blind people tell apart: untouched, read, written, both.
TOUCHED = ("#e4e2db", "#56b4e9", "#e69f00", "#cc79a7")
LANES_AT_ONCE = {4: (32,), 8: (16, 32), 16: (8, 16)}  # by width, in shared memory


def drawn(root: Path) -> Path:
    """The folder with each stage's trace: the pictures and, as JSON, the numbers. It is kept in
    ``build/traces`` for as long as no source file changes."""
    digest = hashlib.sha256()
    for path in sorted((root / "src/convlab").rglob("*.py")):
        if path.parent != Path(__file__).parent or path.name == Path(__file__).name:
            digest.update(path.read_bytes())
    folder = root / "build/traces" / digest.hexdigest()[:16]
    missing = [stage.name for stage in LADDER if not (folder / f"{stage.name}.json").is_file()]
    if missing:
        shutil.rmtree(root / "build/traces", ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"tracing {len(LADDER)} stages on the simulator", flush=True)
        with ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
            list(pool.map(draw, [stage.name for stage in LADDER], [folder] * len(LADDER)))
    return folder


def draw(name: str, folder: Path) -> None:
    """Trace a stage's main kernel on the small Conv9, and draw it; null where a library works."""
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
    told = draw_footprints(launch, shapes_of(stage, MODEL), folder / f"{name}-footprints.png")
    draw_requests(launch, folder / f"{name}-requests.png")
    lines = [
        {
            "where": f"{access.line}" if Path(access.file).name == f"{name}.py"
            else f"{Path(access.file).name}, {access.line}",
            "code": statement_of(launch, access.file, access.line),
            "space": access.space, "array": access.array, "operation": access.operation,
            "width": access.width, "lanes": len(request.lanes), "requests": access.requests,
            "total": access.sectors if access.space == "global" else access.passes,
            "fewest": access.fewest_sectors if access.space == "global" else access.fewest_passes,
        }
        for access, request in typical_requests(launch)
    ]  # fmt: skip
    number = launch.block_shown[0] + launch.grid[0] * launch.block_shown[1]
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    facts = {"kernel": launch.kernel, "block": number, "blocks": blocks, "touched": told,
             "problem": trace.about["problem"], "tile": trace.about.get("tile")}  # fmt: skip
    file.write_text(json.dumps(facts | {"lines": lines}), encoding="utf-8")


def shapes_of(stage: Stage, problem: ConvProblem) -> dict[str, tuple[int, ...]]:
    """The shape of each array of a stage; a kernel may see the array with one dimension."""
    program = stage.prepare(problem, stage.model_tile)
    return {
        "input": problem.input_shape,
        "weight": problem.weight_shape,
        "output": problem.output_shape,
        **{buffer.name: buffer.shape for buffer in program.buffers},
    }


def touched(launch: LaunchTrace, name: str, size: int) -> np.ndarray:
    """What the block shown does to each element of an array: 0 nothing, 1 read, 2 write, 3 both."""
    found = np.zeros(size, int)
    for footprint in launch.footprints:
        if footprint.array == name:
            for first, count in footprint.runs:
                found[first : first + count] |= 1 if footprint.operation == "load" else 2
    return found


def planes(elements: np.ndarray) -> np.ndarray:
    """An array as one image: its planes of rows and columns side by side, NaN between them."""
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
    """Draw every array of a launch with the elements that one block touches; returns the picture
    in words."""
    from matplotlib.colors import ListedColormap

    images = []
    for array in launch.arrays:
        shape = shapes.get(array.name, array.shape) if array.space == "global" else array.shape
        elements = touched(launch, array.name, math.prod(shape)).reshape(shape)
        if elements.ndim > 1 and elements.any():
            told = f"{array.name}, {array.space}, {' x '.join(map(str, shape))}"
            counts = f"{np.count_nonzero(elements):,} of {elements.size:,} elements"
            images.append((f"{told}: {counts}", planes(elements)))
    figure, axes = _panels([min(2.4, max(0.2, 0.06 * len(image))) for _, image in images])
    for axis, (title, image) in zip(axes, images, strict=True):
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_anchor("W")
        axis.imshow(image, cmap=ListedColormap(TOUCHED), vmin=0, vmax=3, interpolation="nearest")
    figure.savefig(file, dpi=110)
    return "; ".join(title for title, _ in images)


def typical_requests(launch: LaunchTrace) -> list[tuple[Access, Request]]:
    """Each line's accesses, and for each the first request with the most lanes, which no edge of
    the problem cuts short."""
    found = []
    for access in sorted(launch.accesses, key=lambda one: (one.file, one.line)):
        key = (access.file, access.line, access.array, access.operation, access.width)
        alike = [
            one
            for one in launch.requests
            if (one.file, one.line, one.array, one.operation, one.width) == key
        ]
        if alike:
            found.append((access, max(alike, key=lambda one: len(one.lanes))))
    return found


def draw_requests(launch: LaunchTrace, file: Path) -> None:
    """Draw one request for each line and array: the sectors or the banks to which its lanes go."""
    starts = {array.name: array.start for array in launch.arrays}
    strips = []
    for access, request in typical_requests(launch):
        image = request_image(request, access.space, starts[access.array])
        code = statement_of(launch, access.file, access.line)
        title = f"line {access.line}, {access.operation} {access.array}: {code}"
        strips.append((title[:124], access.space, image))
    figure, axes = _panels([0.26 + 0.13 * len(image) for _, _, image in strips])
    for axis, (title, space, image) in zip(axes, strips, strict=True):
        axis.set_title(title, fontsize=8, loc="left", family="monospace", parse_math=False)
        axis.imshow(image, cmap=_lane_colours(), vmin=0, vmax=WARP - 1, aspect="auto",
                    interpolation="nearest")  # fmt: skip
        step = SECTOR if space == "global" else 1
        axis.vlines(np.arange(0, image.shape[1] + 1, step) - 0.5, -0.5, len(image) - 0.5,
                    colors="#8b929a", linewidths=0.6)  # fmt: skip
        axis.hlines(np.arange(len(image) + 1) - 0.5, -0.5, image.shape[1] - 0.5,
                    colors="#fbfaf6", linewidths=1.5)  # fmt: skip
    figure.savefig(file, dpi=110)


def _panels(heights: list[float]) -> tuple[Any, Any]:
    """A figure of one panel below the other, of those heights in inches."""
    from matplotlib.figure import Figure

    size = (9, sum(heights) + 0.35 * len(heights) + 0.1)
    figure = Figure(figsize=size, layout="constrained", facecolor="#fbfaf6")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis in axes:
        axis.set_axis_off()
    return figure, axes


def _lane_colours() -> Any:
    """From blue, lane 0, to orange, lane 31; grey where no lane goes."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("lanes", ["#1f6fd6", "#7a5cc0", "#d0762a"])
    colours.set_bad(TOUCHED[0])
    return colours


def request_image(request: Request, space: str, start: int = 0) -> np.ndarray:
    """The lane that wants each word, NaN where none does: a row has 16 sectors of global memory, or
    the 32 banks of shared memory in one pass. ``start`` is where the array begins.

    Raises ``ValueError`` where the image would have another number of passes than the trace.
    """
    lanes: dict[int, list[int]] = {}
    for lane, offset in zip(request.lanes, request.offsets, strict=True):
        first = (start + offset) // WORD_BYTES
        for word in range(first, first + max(1, request.width // WORD_BYTES)):
            lanes.setdefault(word, []).append(lane)
    return _sectors(lanes) if space == "global" else _banks(lanes, request)


def _sectors(lanes: dict[int, list[int]]) -> np.ndarray:
    sectors = sorted({word // SECTOR for word in lanes})
    rows = -(-len(sectors) // ROW)
    image = np.full(rows * ROW * SECTOR, np.nan)
    for word, wanted in lanes.items():
        image[sectors.index(word // SECTOR) * SECTOR + word % SECTOR] = wanted[0]
    return image.reshape(rows, -1)[:MOST_ROWS]


def _banks(lanes: dict[int, list[int]], request: Request) -> np.ndarray:
    rows: list[np.ndarray] = []
    for at_once in LANES_AT_ONCE[max(WORD_BYTES, request.width)]:
        rows = []
        for first in range(0, WARP, at_once):
            depth = np.zeros(BANKS, int)
            group: list[np.ndarray] = []
            for word, wanted in lanes.items():
                some = [lane for lane in wanted if first <= lane < first + at_once]
                if some:
                    bank = word % BANKS
                    if depth[bank] == len(group):
                        group.append(np.full(BANKS, np.nan))
                    group[depth[bank]][bank] = some[0]
                    depth[bank] += 1
            rows += group
        if len(rows) == request.passes:
            return np.array(rows)
    raise ValueError(f"a request of {request.array} in line {request.line} has {request.passes} "
                     f"passes, and its picture would have {len(rows)}")  # fmt: skip
