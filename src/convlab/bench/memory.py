"""The memory that im2col and im2win need for the paper's twelve layers.

``python -m convlab.bench.memory [--json FILE]``: computed anywhere; on a GPU also measured, as the
difference in its free memory when a stage's workspace is allocated. The im2win paper (000), 4.3,
claims 23.1 % less than PyTorch's im2col with cuBLAS and 32.8 % less than cuDNN, on average; of
what, it does not say: here it is input, filter, output and workspace together.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from convlab.bench.measured import run_module, table
from convlab.engines import Engine
from convlab.problem import ConvProblem
from convlab.stage import Buffer
from convlab.stages import Stage, stage_named
from convlab.workloads import LAYER_NAMES, paper_layer

STAGES = ("s03_im2col", "s03_im2col_per_image", "s03_depth_last", "s10_im2win", "s11_im2win_full")
CLAIMED_PERCENT = {"im2col + cuBLAS": 23.1, "the fastest of cuDNN": 32.8}
COMPARED = ("s03_im2col", "s03_im2col_per_image")


def measure(engine: Engine | None) -> dict[str, Any]:
    """The workspaces of every layer, and how much less the im2win stages need in all."""
    layers = [_layer(name, engine) for name in LAYER_NAMES]
    return {
        "batch": paper_layer(LAYER_NAMES[0]).batch,
        "claimed_percent_less": CLAIMED_PERCENT,
        "layers": layers,
        "percent_less": {
            im2win: {im2col: _percent_less(layers, im2win, im2col) for im2col in COMPARED}
            for im2win in ("s10_im2win", "s11_im2win_full")
        },
    }


def _layer(name: str, engine: Engine | None) -> dict[str, Any]:
    problem = paper_layer(name)
    return {
        "layer": name,
        "tensor_bytes": tensor_bytes(problem),
        "workspace_bytes": {stage: _workspace(problem, stage_named(stage)) for stage in STAGES},
        "measured_bytes": {
            stage: None if engine is None else _measured(problem, stage_named(stage), engine)
            for stage in STAGES
        },
    }


def tensor_bytes(problem: ConvProblem) -> int:
    """Input, filter and output: what every convolution needs."""
    shapes = (problem.input_shape, problem.weight_shape, problem.output_shape)
    return 4 * sum(map(math.prod, shapes))


def _buffers(problem: ConvProblem, stage: Stage) -> tuple[Buffer, ...]:
    return stage.prepare(problem, stage.production_tile(problem)).buffers


def _workspace(problem: ConvProblem, stage: Stage) -> int:
    return sum(buffer.nbytes for buffer in _buffers(problem, stage))


def _measured(problem: ConvProblem, stage: Stage, engine: Engine) -> int | None:
    """How much free memory the workspace takes; None where it does not fit."""
    before = engine.free_bytes()
    if before is None or _workspace(problem, stage) > before:
        return None
    held = [engine.empty(buffer.shape) for buffer in _buffers(problem, stage)]
    after = engine.free_bytes()
    assert after is not None
    del held
    return before - after


def _percent_less(layers: Sequence[dict[str, Any]], less: str, more: str) -> float:
    """The mean over the layers of how much less one stage needs than another, tensors included."""
    ratios: list[float] = []
    for layer in layers:
        needs = {
            stage: layer["tensor_bytes"] + layer["workspace_bytes"][stage] for stage in (less, more)
        }
        ratios.append(1 - needs[less] / needs[more])
    return 100 * sum(ratios) / len(ratios)


def show(document: dict[str, Any]) -> str:
    """The tables, as docs/comparisons.md has them."""
    head = ("layer", "tensors", *STAGES)
    rows = [
        (
            layer["layer"],
            _mib(layer["tensor_bytes"]),
            *(
                _cell(layer["workspace_bytes"][stage], layer["measured_bytes"][stage])
                for stage in STAGES
            ),
        )
        for layer in document["layers"]
    ]
    less = [
        (im2win, *(f"{percent[im2col]:.1f} %" for im2col in COMPARED))
        for im2win, percent in document["percent_less"].items()
    ]
    claims = ", ".join(
        f"{percent} % less than {other}"
        for other, percent in document["claimed_percent_less"].items()
    )
    device = document["device"]
    measured = (
        f"; measured on an {device} in brackets" if device else ", computed; not measured yet"
    )
    return (
        f"MiB at batch {document['batch']}{measured}.\n\n{table(head, rows)}\n"
        "How much less memory im2win needs, input, filter and output included, on average over the "
        f"layers; below zero it needs more (the paper claims {claims}):\n\n"
        f"{table(('less than', *COMPARED), less)}"
    )


def _cell(computed: int, measured: int | None) -> str:
    return _mib(computed) if measured is None else f"{_mib(computed)} ({_mib(measured)})"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    about = "Memory that im2col and im2win need for the paper's twelve layers."
    module = "convlab.bench.memory"
    return run_module(module, about, measure, show, arguments, needs_gpu=False)


if __name__ == "__main__":
    sys.exit(main())
