"""How fast s11's pre-passes move memory: ``python -m convlab.bench.transforms [--json FILE]``.

The im2win transform and the filter's re-ordering, on the twelve layers at batch 128. Beside each,
in the same run and timed the same way: the device copy of as many bytes. Bandwidth counts
what has to be moved: pixels that a window reaches once, filters once, the results once. After the
timed runs the first and the last image's windows and all filters are compared with their
definition, element by element.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from convlab.bench.bandwidth import copy_rates, rates
from convlab.bench.measured import run_module, table
from convlab.engines import Engine
from convlab.kernels.im2win_layout import group_size
from convlab.problem import ConvProblem
from convlab.stage import Launch
from convlab.stages import stage_named
from convlab.workloads import LAYER_NAMES, PAPER_BATCH, paper_layer

STAGE = "s11_im2win_full"
GOAL = 0.7  # of copy bandwidth


def measure(engine: Engine | None) -> dict[str, Any]:
    """The bandwidths on every layer."""
    assert engine is not None
    layers = [_row(name, paper_layer(name), engine) for name in LAYER_NAMES]
    return {
        "batch": PAPER_BATCH,
        "stage": STAGE,
        "layers": layers,
        "ok": all(row["right"] for row in layers),
    }


def _row(name: str, problem: ConvProblem, engine: Engine) -> dict[str, Any]:
    stage = stage_named(STAGE)
    program = stage.prepare(problem, stage.production_tile(problem))
    transform, pack, _ = program.launches
    numbers = np.random.default_rng(1)
    host = {
        "input": numbers.random(problem.input_shape, np.float32),
        "weight": numbers.random(problem.weight_shape, np.float32),
    }
    arrays = {name: engine.to_device(tensor) for name, tensor in host.items()}
    arrays |= {buffer.name: engine.empty(buffer.shape) for buffer in program.buffers}

    def timed(launch: Any, elements: int) -> dict[str, Any]:
        assert isinstance(launch, Launch)
        start = engine.build(launch, program)
        flat = [arrays[str(argument)].reshape(-1) for argument in launch.arguments]
        nbytes = 4 * elements
        return {
            "kernel": launch.name,
            "bytes": nbytes,
            **rates(lambda stream: start(flat, stream), nbytes),
            "copy": copy_rates(engine, nbytes),
        }

    windows, packed = (arrays[buffer.name] for buffer in program.buffers)
    weights = prod(problem.weight_shape)
    pixels = problem.least_bytes // 4 - weights - prod(problem.output_shape)
    row = {
        "layer": name,
        "transform": timed(transform, pixels + prod(windows.shape)),
        "pack": timed(pack, weights + prod(packed.shape)),
    }
    H_o = problem.H_o
    right = all(
        np.array_equal(windows[first * H_o : (first + 1) * H_o].copy_to_host(), expected)
        for first in (0, problem.N_i - 1)
        for expected in [expected_windows(problem, host["input"][first])]
    )
    filters = expected_filters(problem, host["weight"], packed.shape)
    return row | {"right": right and np.array_equal(engine.to_host(packed), filters)}


def expected_windows(problem: ConvProblem, image: np.ndarray) -> np.ndarray:
    """The im2win tensor of one image, by its definition."""
    p = problem
    padded = np.pad(image, ((0, 0), *p.padding))
    columns = (p.W_o - 1) * p.s_w + p.window_shape[1]
    windows = np.zeros((p.H_o, columns, group_size(p)), np.float32)
    for u in range(p.H_f):
        rows = padded[:, u * p.d_h :: p.s_h, :columns][:, : p.H_o]
        windows[..., u * p.C_i : (u + 1) * p.C_i] = rows.transpose(1, 2, 0)
    return windows


def expected_filters(
    problem: ConvProblem, weight: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """The packed filters, by their definition: for every M_B channels one matrix."""
    p = problem
    blocks, K_P, M_B = shape
    packed = np.zeros((K_P, blocks * M_B), np.float32)
    for v in range(p.W_f):
        for u in range(p.H_f):
            first = v * group_size(p) + u * p.C_i
            packed[first : first + p.C_i, : p.M] = weight[:, :, u, v].T
    return np.ascontiguousarray(packed.reshape(K_P, blocks, M_B).transpose(1, 0, 2))


def show(document: dict[str, Any]) -> str:
    """The table, as docs/comparisons.md has it."""
    head = (
        "layer", "transform MB", "ms", "TB/s", "copy TB/s", "of a copy's",
        "filter MB", "ms", "TB/s", "copy TB/s", "of a copy's",
    )  # fmt: skip
    rows = []
    for row in document["layers"]:
        cells = [row["layer"] + ("" if row["right"] else " (WRONG)")]
        for pass_ in (row["transform"], row["pack"]):
            copy = pass_["copy"]["tb_per_s"]
            cells += [
                f"{pass_['bytes'] / 1e6:,.1f}",
                f"{pass_['time_ms']:.4f} ±{pass_['time_spread']:.1f}%",
                f"{pass_['tb_per_s']:.2f}",
                f"{copy:.2f}",
                f"{100 * pass_['tb_per_s'] / copy:.0f} %",
            ]
        rows.append(cells)
    fastest = max(row["transform"]["copy"]["tb_per_s"] for row in document["layers"])
    beyond = [
        f" {row['layer']}'s transform outruns its copy, and reaches "
        f"{100 * row['transform']['tb_per_s'] / fastest:.0f} % of the fastest in the table."
        for row in document["layers"]
        if row["transform"]["tb_per_s"] > row["transform"]["copy"]["tb_per_s"]
    ]
    return (
        f"{document['stage']}'s pre-passes at batch {document['batch']}, on an "
        f"{document['device']}. The copies move as many bytes as what they stand beside. The goal "
        f"was {100 * GOAL:.0f} % of a copy.{''.join(beyond)}\n\n{table(head, rows)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    about = "Bandwidth of the im2win transform and the filter's re-ordering, next to a copy."
    return run_module("convlab.bench.transforms", about, measure, show, arguments, needs_gpu=True)


if __name__ == "__main__":
    sys.exit(main())
