"""Tables and the picture of the documentation, from results of ``convlab ladder --json``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papers import compiler_of, date_of, read_json, versions_of

from convlab.ladder import (
    ABLATION,
    GROUPED,
    LADDER,
    Stage,
    family,
    production_tile,
    route_of,
    short_name,
    stage_named,
)
from convlab.measuring import table
from convlab.measuring.plots import BAD, COLOURS, INK, QUIET, note, svg
from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import LAYER_NAMES, paper_layer
from convlab.running.compilers import MLIR, NUMBA_CUDA
from convlab.support.values import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Step = Mapping[str, Any]  # a stage of the document
HEADLINE = "ladder_conv9_h200"  # the results that README.md and the site's first page show
# Names of the compilers other than numba-cuda, for tables and titles.
OTHER_COMPILERS = {MLIR: "numba-cuda-mlir"}
ALL = (*LADDER, ABLATION, GROUPED)  # the order of the rows of tables
DRIVER = {"driver": "driver", "cuda": "CUDA"}
PACKAGES = ("numba-cuda", "numba", "numpy")
TIMES = "\N{MULTIPLICATION SIGN}"
PALE = 0.3  # opacity of the bar of the main kernel alone
# For each family of stages: the memory that it reads, and the colour of its bars.
FAMILIES = {
    "plain": ("the input itself", COLOURS[0]),
    "im2col": ("the im2col matrix", COLOURS[1]),
    "im2win": ("im2win's windows", COLOURS[2]),
}
COLUMNS = {
    "ms": ("time_ms", 3), "TFLOP/s": ("tflops", 2), "speedup": ("speedup", 2),
    "main kernel ms": ("kernel_ms", 3),
}  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    """Return a GPU's result of ``convlab ladder --json``, with more keys for tables.

    ``layer`` and ``compiler`` are names; ``title`` (the problem and the GPU), ``shapes`` and
    ``machine`` are words. Each entry of ``stages`` also has its ``stage``, ``kernel_ms``, the time
    of its main kernel without the layout transforms, and its ``tile`` on a layer of the paper. The
    numbers of a stage that failed are None. ``steps`` holds the other stages by name.

    Raises ``ValueError`` naming a file that is not a GPU's result, or has unknown stages.
    """
    try:
        document: dict[str, Any] = read_json(path)
        if document["engine"] != "gpu":
            raise ValueError(f"its engine is {shown(document['engine'])}: only a GPU's times count")
        problem, environment = document["problem"], document.get("environment") or {}
        gpu = environment.get("gpu") or {}
        drivers = (f"{label} {gpu[key]}" for key, label in DRIVER.items() if gpu.get(key))
        versions = versions_of(environment, PACKAGES)
        machine = (document["device"], *drivers, *versions, date_of(environment))
        layer, paper = _layer(problem)
        compiler = compiler_of(environment)
        by = "" if compiler == NUMBA_CUDA else f", by {OTHER_COMPILERS.get(compiler, compiler)}"
        n, c, h, w = problem["input_shape"]
        c_o, _, h_f, w_f = problem["weight_shape"]
        for step in document["stages"]:
            if not step["ok"]:  # the times of a wrong stage mean nothing
                step |= dict.fromkeys(("time_ms", "time_spread", "tflops", "speedup"))
            kernel_ms = [*step["launch_ms"].values()][-1] if step["ok"] else None
            rate = kernel_ms and problem["flops"] / kernel_ms / 1e9
            stage = stage_named(step["name"])
            step |= {"stage": stage, "kernel_ms": kernel_ms, "kernel_tflops": rate}
            step["tile"] = paper and production_tile(stage, paper)
        # A file may be older than today's order of stages.
        document["stages"].sort(key=lambda step: ALL.index(step["stage"]))
        return document | {
            "steps": {step["name"]: step for step in document["stages"] if step["ok"]},
            "file": path.name,
            "layer": layer,
            "compiler": compiler,
            "title": f"{layer}, batch {n}, on an {document['device']}{by}",
            "shapes": f"{n} images of {h} x {w} pixels and {c} channels, {c_o} filters of "
            f"{h_f} x {w_f}: {problem['flops'] / 1e9:,.1f} GFLOP in float32",
            "machine": ", ".join(filter(None, machine)),
            "command": str(environment.get("command") or ""),
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a result of the ladder: {shown(error)}") from error


def by_name(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return the ladder's results by names such as ``Conv9`` or ``Conv9, numba-cuda-mlir``.

    A name has the layer, and the batch, the compiler and the GPU if other results differ in them.
    The results that README.md shows come first, then those with the most stages.

    Raises ``ValueError`` naming two files of the same layer, batch, compiler and GPU.
    """
    runs = sorted(map(read, paths), key=_order)
    batches: dict[str, set[int]] = {}
    for run in runs:
        batches.setdefault(run["layer"], set()).add(run["problem"]["batch"])
    devices = {run["device"] for run in runs}
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        parts = [run["layer"]]
        if len(batches[run["layer"]]) > 1:
            parts.append(f"batch {run['problem']['batch']}")
        if run["compiler"] != NUMBA_CUDA:
            parts.append(OTHER_COMPILERS.get(run["compiler"], run["compiler"]))
        if len(devices) > 1:
            parts.append(run["device"])
        name = ", ".join(parts)
        if name in found:
            files = f"{found[name]['file']} and {run['file']}"
            raise ValueError(f"{files} are both of {run['title']}: one must go")
        found[name] = run
    return found


def _order(run: Mapping[str, Any]) -> tuple[bool, bool, int, str]:
    other_compiler = run["compiler"] != NUMBA_CUDA
    return run["file"] != f"{HEADLINE}.json", other_compiler, -len(run["steps"]), run["file"]


def _layer(problem: dict[str, Any]) -> tuple[str, ConvProblem | None]:
    """Return ``Conv9`` and the paper's layer; for another problem, its shape and None."""
    shapes = ("input_shape", "weight_shape", "output_shape")
    for name in LAYER_NAMES:
        paper = paper_layer(name, problem["batch"])
        if all(list(getattr(paper, key)) == problem[key] for key in shapes):
            return name.capitalize(), paper
    return "x".join(map(str, problem["input_shape"])), None


def _cells(step: Step, columns: Iterable[str]) -> Iterator[str]:
    for name, digits in map(COLUMNS.__getitem__, columns):
        value, known = step[name], "-" if step["ok"] else "failed"
        yield known if value is None else f"{value:.{digits}f}"


def source_of(stage: Stage) -> str:
    """Return the path of a stage's file from the repository's root."""
    return f"src/{stage.module.replace('.', '/')}.py"


def ladder_table(results: Mapping[str, Any]) -> str:
    """Return README.md's table: the stages of the main route, then of the tensor cores.

    Each row has the stage's idea, its gain over the stage that it builds on, and its speed.
    """
    columns = ("ms", "TFLOP/s", "speedup")
    rows = [
        (f"[{short_name(one['name'])}]({source_of(one['stage'])})", one["stage"].title,
         gain(one, results["steps"]), *_cells(one, columns))
        for one in results["stages"]
        if route_of(one["stage"]) in ("main", "tensor_cores")
    ]  # fmt: skip
    return table(("stage", "idea", "gain", *columns), rows, left=2)


def gain(step: Step, steps: Mapping[str, Step]) -> str:
    """Return how many times as fast a stage is as its base: ``1.52 x m04``, or ``-``."""
    base = next((steps[name] for name in step["stage"].builds_on if name in steps), None)
    if base is None or not step["ok"]:
        return "-"
    return f"{base['time_ms'] / step['time_ms']:.2f} x {short_name(base['name'])}"


def ladder_section(results: Mapping[str, Any]) -> str:
    """Return the section of docs/ladder.md that shows one file of results."""
    rows = []
    for step in results["stages"]:
        workspace = step["workspace_bytes"]
        mib = "-" if workspace is None else f"{workspace / 2**20:,.1f}"
        name, tile = f"[{step['name']}](../{source_of(step['stage'])})", str(step["tile"] or "-")
        rows.append((name, *_cells(step, COLUMNS), mib, tile))
    file, spread = results["file"], max(step["time_spread"] or 0 for step in results["stages"])
    return (
        f"### {results['title']}\n\n{results['shapes']}. The middle half of a stage's runs spans "
        f"at most {spread:.1f} % of the median.\n\n"
        f"{table(('stage', *COLUMNS, 'workspace MiB', 'tile'), rows)}\n"
        f"Measured with `{results['command']}` ({results['machine']}): [{file}](results/{file}).\n"
    )


def ladder_picture(results: Mapping[str, Any]) -> str:
    """Return an SVG picture with a bar for each stage: TFLOP/s, speedup and idea."""
    steps, shapes = results["stages"], results["shapes"]
    paragraphs = (
        f"{TIMES} is the speedup over the first bar, red where a stage is slower. Every layout "
        "transform is part of a time. Each result was checked, element by element, against a "
        f"float64 reference. {shapes[0].upper()}{shapes[1:]}.",
        f"Measured on: {results['machine']}.",
        results["command"],
    )
    lines = [line for text in paragraphs for line in textwrap.wrap(text, 92)]

    def draw(axes: Axes) -> None:
        from matplotlib.patches import Patch

        for row, step in enumerate(steps):
            _bar(axes, row, step, [one["name"] for one in steps[:row]])
        keys = [Patch(color=one, label=f"reads {words}") for words, one in FAMILIES.values()]
        keys.append(Patch(color=FAMILIES["im2win"][1], alpha=PALE, label="main kernel alone"))
        longest = max(filter(None, map(_reach, steps)), default=1.0)
        axes.set(xlim=(0, 1.35 * longest), ylim=(len(steps) - 0.6, -0.8))
        axes.set_axis_off()
        title = f"From seven loops to im2win: one convolution in {len(steps)} stages\n"
        axes.set_title(title, loc="left", fontsize=13, fontweight="bold")
        axes.text(0, 1, f"{results['title']}. Longer is faster.", transform=axes.transAxes)
        below = {
            "bbox_to_anchor": (1.35 * longest, min(3.45, len(steps) - 0.6)),
            "bbox_transform": axes.transData,
        }
        axes.legend(handles=keys, loc="upper right", fontsize="small", borderpad=0, **below)
        style: Any = {"x": 0.02, "ha": "left", "fontsize": "small", "color": QUIET}
        axes.figure.supxlabel("\n".join(lines), **style)

    # A few bars leave the legend no room.
    height = max(4.0, 1.6 + 0.5 * len(steps) + 0.16 * len(lines))
    return svg("ladder", height, draw, width=6.4)


def _bar(axes: Axes, row: int, step: Step, above: Sequence[str]) -> None:
    """Draw a stage's bar and its words; ``above`` names the stages of the rows above it."""
    stage, tflops, reach = step["stage"], step["tflops"], _reach(step)
    name, _, idea = stage.title.partition(": ")
    base = [one for one in stage.builds_on if one in above]
    if base and above[-1] not in base:
        idea += f" (starts again from {', '.join(one.partition('_')[0] for one in base)})"
    strong: Any = {"fontsize": "medium", "fontweight": "bold", "color": INK}
    heading = f"{stage.name.partition('_')[0]} {name}"
    first = note(axes, (0, row - 0.3), heading, va="baseline", **strong)
    note(axes, (1, 0), idea, (6, 0), xycoords=first, va="bottom")
    if tflops is None or reach is None:
        note(axes, (0, row), "failed", va="center", **strong | {"color": BAD})
        return
    colour, said = FAMILIES[family(stage)][1], f"{_brief(tflops)} TFLOP/s"
    if reach > tflops:
        axes.barh(row, reach, 0.36, color=colour, alpha=PALE)
        said += f" ({_brief(reach)} alone)"
    axes.barh(row, tflops, 0.36, color=colour)
    rate = note(axes, (reach, row), said, (6, 0), va="center", color=INK, fontsize="medium")
    if (speedup := step["speedup"]) is not None:
        times, strong["color"] = f"{_brief(speedup)}{TIMES}", BAD if speedup < 1 else INK
        note(axes, (1, 0.5), times, (8, 0), xycoords=rate, va="center", **strong)


def _reach(step: Step) -> float | None:
    """Return TFLOP/s without layout transforms if those take over 2 %, otherwise with them."""
    whole: float | None = step["tflops"]
    alone: float | None = step["kernel_tflops"]
    return alone if whole and alone and alone > 1.02 * whole else whole


def _brief(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"
