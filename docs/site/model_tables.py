"""The tables of whole models: ``convlab bench --cases models``, ``training`` and ``inference``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import papers

from convlab.measuring import table, training

Document = Mapping[str, Any]
TORCH, OURS = "torch_fp32", "convlab"
SYSTEMS = {
    "torch_bf16": "PyTorch, layer by layer",
    "torch_compile_bf16": "PyTorch, `torch.compile`",
    "torch_max_autotune_bf16": "PyTorch, `torch.compile`, max-autotune",
    "convlab_bf16": "convlab, `fuse`",
    "convlab_compile_bf16": "convlab, `fuse`, then `torch.compile`",
    "torch_fp32": "PyTorch",
    "torch_deterministic_fp32": "PyTorch, deterministic",
    "convlab": "convlab",
}
LAST = training.WINDOW  # steps whose losses are averaged


def models_table(document: Document) -> papers.Shown:
    """Return the milliseconds of ResNet-50's calls, PyTorch's beside convlab's."""
    times = {(row["layer"], row["system"]): row["time_ms"] for row in document["rows"]}
    whats = dict.fromkeys(row["layer"] for row in document["rows"])
    lines = []
    for what in whats:
        torch, ours = (times.get((what, system)) for system in (TORCH, OURS))
        ratio = f"{torch / ours:.2f}" if torch and ours else ""
        lines.append((what.removeprefix("resnet50 "), _ms(torch), _ms(ours), ratio))
    return table(("what", "PyTorch ms", "convlab ms", "PyTorch / convlab"), lines), ()


def inference_table(document: Document) -> papers.Shown:
    """Return each system's time as a CUDA graph, and its logits' distance from float32's."""
    of_graphs = [row for row in document["rows"] if row["layer"].endswith("CUDA graph")]
    lines = [
        (SYSTEMS[row["system"]], _ms(row["time_ms"]), f"{row['error']:.3f}") for row in of_graphs
    ]
    lines.sort(key=lambda line: float(line[1]))
    return table(("system", "ms", "distance from float32's logits"), lines), ()


def training_table(document: Document) -> papers.Shown:
    """Return each system's time of a step and its losses; the distance is the largest one between
    means of ten steps and PyTorch's."""
    rows = [row for row in document["rows"] if row["reason"] is None]
    distances = training.distances(rows)
    lines = [
        (
            SYSTEMS[row["system"]],
            _ms(row["time_ms"]),
            *(f"{_mean(row['losses'], first):.3f}" for first in _places(row["losses"])),
            f"{distances[row['system']]:.3f}",
        )
        for row in rows
    ]
    steps = [f"steps {first + 1} to {first + LAST}" for first in _places(rows[0]["losses"])]
    return table(("system", "ms a step", *steps, "distance"), lines), ()


def _places(losses: Sequence[float]) -> list[int]:
    """Return where five means of some steps begin, the first at the start, and where the last one
    ends with the last step."""
    return [round(number * (len(losses) - LAST) / 4) for number in range(5)]


def _mean(losses: Sequence[float], first: int) -> float:
    return sum(losses[first : first + LAST]) / LAST


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
