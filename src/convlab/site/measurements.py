"""The results in docs/results as a page: every stage on every layer, and what each file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from convlab.bench.ladder_results import Results
from convlab.site.links import RESULTS
from convlab.site.markup import table
from convlab.site.stage_pages import LINT_COMMAND
from convlab.stages import LADDER
from convlab.workloads import GPU_DEFAULT

NOTHING = "-"
# What makes the files that do not say it themselves.
WITHOUT_ENVIRONMENT = {"lint_conv9_sm90.json": LINT_COMMAND}
HEAD = """# Measurements

Every time and speed on this site was measured; the files below hold them as the command wrote them.
[ladder.md](ladder.md) says why a stage gains or does not, and [results.md](results.md) compares the
stages with libraries.

## The ladder, layer by layer

TFLOP/s with every layout transform, and behind it the speedup over s01. A stage with no number has
not been measured on that layer.

"""
FILES = """
## The files

"""


def ladders(root: Path) -> list[Results]:
    """The ladder's results on a GPU: the layer with the most stages first, and of several such the
    one that the ladder takes by itself."""
    usual = [list(shape) for shape in (GPU_DEFAULT.input_shape, GPU_DEFAULT.weight_shape)]

    def place(results: Results) -> tuple[int, bool, str]:
        shapes = [results.problem["input_shape"], results.problem["weight_shape"]]
        return -len(results.steps), shapes != usual, results.name

    found = [Results.read(path) for path in sorted((root / RESULTS).glob("ladder_*.json"))]
    return sorted(found, key=place)


def measurements_page(root: Path, every: list[Results]) -> str:
    """The page, as Markdown."""
    rows = []
    for stage in LADDER:
        cells = [f"[{stage.name}](stages/{stage.name}.md)"]
        for results in every:
            step = next((one for one in results.steps if one.stage.name == stage.name), None)
            if step is None or step.tflops is None or step.speedup is None:
                cells.append(NOTHING)
            else:
                cells.append(f"{step.tflops:.1f} ({step.speedup:.2f})")
        rows.append(cells)
    head = ["stage", *(results.layer or results.name for results in every)]
    machines = sorted({results.machine for results in every})
    return "".join([
        HEAD,
        table(head, "l" + "r" * len(every), rows),
        f"\nMeasured on: {'; '.join(machines)}.\n",
        FILES,
        table(("file", "measured on", "date", "made by"), "llll", _files(root)),
    ])  # fmt: skip


def _files(root: Path) -> list[tuple[str, str, str, str]]:
    rows = []
    for path in sorted((root / RESULTS).rglob("*.json")):
        name = path.relative_to(root / RESULTS).as_posix()
        document = json.loads(path.read_text(encoding="utf-8"))
        environment: dict[str, Any] = {}
        if isinstance(document, dict):
            environment = document.get("environment") or {}
        gpu = environment.get("gpu")
        device = gpu.get("name") if isinstance(gpu, dict) else None
        command = environment.get("command") or WITHOUT_ENVIRONMENT.get(name)
        rows.append((
            f'<a href="results/{name}">{name}</a>',
            device or "no GPU needed",
            str(environment.get("date") or NOTHING)[:10],
            f"`{command}`" if command else NOTHING,
        ))  # fmt: skip
    return rows
