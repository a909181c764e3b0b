"""How fast the im2col kernels move memory: ``python -m convlab.bench.im2col [--json FILE]``.

The depth-last kernels of source 003, at depths of 4, 8, 12 and 16, on 128 images of 56 x 56 pixels
with a 3 x 3 filter and one pixel of padding. Beside each, in the same run: the fastest device copy
that moves as many bytes, convlab's plain im2col kernel, and PyTorch's ``unfold`` where PyTorch is.
Bandwidth counts the tensor once and the matrix once. The matrix is compared with
its definition, element by element, after the timed runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from convlab.bench.bandwidth import Start, copy_rates, is_settled, rates
from convlab.bench.harness import SETTLED_PERCENT
from convlab.bench.measured import run_module, table
from convlab.bench.seed_runs import marked
from convlab.engines import Engine
from convlab.kernels.depth_last import depth_last_buffer, im2col_launches
from convlab.kernels.im2col import columns_buffer, im2col_launch
from convlab.problem import ConvProblem
from convlab.stage import Program
from convlab.unfold import unfold

DEPTHS = (4, 8, 12, 16)
BATCH, SIZE, FILTER, PADDING = 128, 56, 3, 1
LARGE_COPY = 2**30  # bytes: what a copy reaches that takes long
GOAL = 0.75  # of copy bandwidth


def problem_for(depth: int) -> ConvProblem:
    """The im2col of one depth; there is no filter to apply, so it has one."""
    return ConvProblem(BATCH, depth, SIZE, SIZE, 1, FILTER, padding=PADDING)


def measure(engine: Engine | None) -> dict[str, Any]:
    """The bandwidths at every depth."""
    assert engine is not None
    rows = [_row(problem_for(depth), engine) for depth in DEPTHS]
    return {
        "batch": BATCH,
        "size": SIZE,
        "filter": FILTER,
        "padding": PADDING,
        "large_copy": copy_rates(engine, 2 * LARGE_COPY),
        "depths": rows,
        "ok": all(row["right"] for row in rows),
    }


def _row(problem: ConvProblem, engine: Engine) -> dict[str, Any]:
    host = np.random.default_rng(problem.C_i).standard_normal(problem.input_shape, np.float32)
    elements = host.size + problem.K * problem.N
    nbytes = 4 * elements
    columns = engine.empty(columns_buffer(problem).shape).reshape(-1)

    depth_last = engine.to_device(host.transpose(0, 2, 3, 1).reshape(-1))
    by_runs = _kernel(problem, engine, [depth_last, columns])
    timed = rates(by_runs, nbytes)
    right = _is_right(problem, host, engine.to_host(columns))

    plain = im2col_launch(problem)
    program = Program((columns_buffer(problem),), (plain,))
    start = engine.build(plain, program)
    arrays = [engine.to_device(host), columns]
    return {
        "depth": problem.C_i,
        "bytes": nbytes,
        "depth_last": timed,
        "plain": rates(lambda stream: start(arrays, stream), nbytes),
        "copy": copy_rates(engine, nbytes),
        "torch_unfold": _torch_unfold(problem, host, nbytes),
        "right": right,
    }


def _kernel(problem: ConvProblem, engine: Engine, arrays: list[Any]) -> Start:
    (launch,) = im2col_launches(problem)
    program = Program((depth_last_buffer(problem), columns_buffer(problem)), (launch,))
    start = engine.build(launch, program)
    return lambda stream: start(arrays, stream)


def _torch_unfold(problem: ConvProblem, host: np.ndarray, nbytes: int) -> dict[str, Any] | None:
    """PyTorch's im2col on the same numbers; None where PyTorch, or its use of the GPU, is not."""
    try:
        import torch

        if not torch.cuda.is_available():
            return None
    except ImportError:
        return None
    images = torch.from_numpy(host).cuda()

    def start(stream: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(int(stream.handle))):
            torch.nn.functional.unfold(images, FILTER, padding=PADDING)

    return rates(start, nbytes)


def _is_right(problem: ConvProblem, host: np.ndarray, flat: np.ndarray) -> bool:
    p = problem
    columns = flat.reshape(columns_buffer(p).shape)[:, : p.N]
    # unfold's rows are channel, then place; the matrix's are place, then channel.
    expected = unfold(host, FILTER, 1, PADDING).reshape(p.N_i, p.C_i, p.H_f * p.W_f, -1)
    return np.array_equal(columns, expected.transpose(2, 1, 0, 3).reshape(p.K, p.N))


def show(document: dict[str, Any]) -> str:
    """The table, as docs/comparisons.md has it."""
    head = (
        "depth", "MB", "depth last ms", "TB/s", "of a copy's", "copy TB/s", "plain im2col TB/s",
        "torch unfold ms", "torch unfold TB/s",
    )  # fmt: skip
    rows = []
    for row in document["depths"]:
        ours, copy, torch = row["depth_last"], row["copy"], row["torch_unfold"]
        ratio = ours["tb_per_s"] / copy["tb_per_s"]
        rows.append(
            (
                f"{row['depth']}" + ("" if row["right"] else " (WRONG)"),
                f"{row['bytes'] / 1e6:,.0f}",
                f"{ours['time_ms']:.4f} ±{ours['time_spread']:.1f}%",
                _marked(f"{ours['tb_per_s']:.2f}", ours),
                _marked(f"{100 * ratio:.0f} %", ours, copy),
                _marked(f"{copy['tb_per_s']:.2f}", copy),
                _marked(f"{row['plain']['tb_per_s']:.2f}", row["plain"]),
                "-" if torch is None else _marked(f"{torch['time_ms']:.4f}", torch),
                "-" if torch is None else _marked(f"{torch['tb_per_s']:.2f}", torch),
            )
        )
    d = document
    return (
        f"{d['batch']} images of {d['size']} x {d['size']} pixels, filter {d['filter']} x "
        f"{d['filter']}, padding {d['padding']}, on an {d['device']}. A copy of 1 GiB reaches "
        f"{d['large_copy']['tb_per_s']:.2f} TB/s; those in the table move as many bytes as their "
        f"row does. {_how_copied(d)} The goal was {100 * GOAL:.0f} % of a copy. ~ where the runs' "
        f"spread stayed above {SETTLED_PERCENT:g} %.\n\n"
        f"{table(head, rows)}"
    )


def _marked(cell: str, *timed: dict[str, Any]) -> str:
    return marked(cell, not all(map(is_settled, timed)))


def _how_copied(document: dict[str, Any]) -> str:
    if "in_graph" in document["large_copy"]:
        return (
            "Each is the fastest of four: as long and a little longer, replayed from a graph, and "
            "started without one."
        )
    # What was measured before copies were tried in several ways says less than they can.
    return (
        "Each was timed at one length only, replayed from a graph, where copies of some lengths "
        "reach two thirds of what others do: a share may come out too high."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    about = "Bandwidth of the depth-last im2col kernels, next to a copy and PyTorch's unfold."
    return run_module("convlab.bench.im2col", about, measure, show, arguments, needs_gpu=True)


if __name__ == "__main__":
    sys.exit(main())
