"""Table 1 of Faster Convolution (article 002): PyTorch's conv2d beside unfold, einsum and fold.

``convlab bench --cases unfold_table`` measures its six rows: ``F.conv2d`` and
``conv2d_fast``, which unfolds by PyTorch or by unfoldNd, each with and without TF32 in cuDNN and in
the matrix product; one image of 3 x 1024 x 1024, 16 filters of 3 x 3, a bias.

There are two times. ``time_ms`` is the GPU's, by replays of a graph. The other is of the first
call, in a new process that calls the six rows in turn: it includes loading kernels and choosing an
algorithm, as the article's profiler did. ``python -m convlab.measuring.baselines.unfold_table`` is
that process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from convlab.measuring.baselines import System
from convlab.measuring.baselines.pytorch import (
    Compute,
    OnTorch,
    flags,
    why_no_torch,
    why_no_unfoldnd,
)
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem

if TYPE_CHECKING:
    from torch import Tensor

PROBLEM = ConvProblem(1, 3, 1024, 1024, 16, 3)
FIRST_CALLS_SECONDS = 240.0


class TableLine(NamedTuple):
    """A row of the table: what computes, and where TF32 is allowed."""

    by: str
    cudnn: bool = False
    matmul: bool = False

    @property
    def settings(self) -> dict[str, bool]:
        """Those of :func:`flags`; cuDNN chooses by PyTorch's default, as in the article."""
        return {"tf32": self.cudnn, "matmul": self.matmul, "benchmark": False}


CALLED = {
    "conv2d": "F.conv2d",
    "torch": "conv2d_fast, PyTorch's unfold",
    "unfoldnd": "conv2d_fast, unfoldNd",
}
LINES = {
    "conv2d": TableLine("conv2d"),
    "conv2d_tf32": TableLine("conv2d", cudnn=True),
    "fast_torch": TableLine("torch", cudnn=True),
    "fast_torch_tf32": TableLine("torch", cudnn=True, matmul=True),
    "fast_unfoldnd": TableLine("unfoldnd", cudnn=True),
    "fast_unfoldnd_tf32": TableLine("unfoldnd", cudnn=True, matmul=True),
}


def computation(line: TableLine, problem: ConvProblem, x: Tensor, w: Tensor) -> Compute:
    """Return a row's call, with a bias of zeros: the article's times include its addition."""
    import torch

    functions, bias = torch.nn.functional, x.new_zeros(problem.C_o)
    if line.by == "conv2d":
        return partial(functions.conv2d, x, w, bias)
    unfold, fold = functions.unfold, functions.fold
    if line.by == "unfoldnd":
        package: Any = import_module("unfoldNd")
        unfold, fold = package.unfoldNd, package.foldNd

    def fast() -> object:
        """Algorithm 1 of the article, step by step: pad, unfold, einsum, fold, bias."""
        padded = functions.pad(x, (0, 0, 0, 0))  # a copy, for nothing, as there
        columns = unfold(padded, kernel_size=problem.kernel_size, stride=1)
        products = torch.einsum("bis,oi->bos", columns, w.view(problem.C_o, -1))
        out = (problem.H_o, problem.W_o)
        folded = fold(products, output_size=out, kernel_size=(1, 1), stride=(1, 1))
        folded += bias.view(1, -1, 1, 1)
        return folded

    return fast


def _row(name: str, line: TableLine) -> System:
    allowed = [words for words, on in (("cuDNN", line.cudnn), ("matmul", line.matmul)) if on]
    title = f"{CALLED[line.by]}; " + (f"TF32 in {' and '.join(allowed)}" if allowed else "no TF32")
    # unfoldNd unfolds by a convolution, so cuDNN's TF32 rounds what is unfolded.
    rounds = line.matmul or (line.cudnn and line.by in ("conv2d", "unfoldnd"))
    return System(
        name, title, "pytorch", why_no_unfoldnd if line.by == "unfoldnd" else why_no_torch,
        partial(OnTorch, name, partial(computation, line), line.settings),
        precision="tf32" if rounds else "fp32", method="any" if name == "conv2d" else "gemm",
    )  # fmt: skip


ROWS = {name: _row(name, line) for name, line in LINES.items()}


def first_calls_once(older: Mapping[str, object]) -> dict[str, object]:
    """The first calls of the article's six rows: an older document's where it has all of them."""
    known = older.get("first_calls")
    if isinstance(known, dict) and all("ms" in known.get(name, {}) for name in LINES):
        return {"first_calls": known}
    return {"first_calls": first_calls()}


def first_calls() -> dict[str, dict[str, Any]]:
    """Each row's first call in one new process: ``{"ms": ...}``, or ``{"reason": ...}``."""
    command = [sys.executable, "-m", "convlab.measuring.baselines.unfold_table"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FIRST_CALLS_SECONDS)
        found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        reason = f"its process ended with {type(error).__name__}"
        return {name: {"reason": reason} for name in LINES}
    return found


def time_first_calls(timed: Callable[[Compute], float]) -> dict[str, Any]:
    """Each row's first call in milliseconds, by the clock ``timed``, or why there is none."""
    found: dict[str, Any] = {}
    for name, line in LINES.items():
        if (absent := ROWS[name].why_absent()) is not None:
            found[name] = {"reason": absent}
            continue
        with flags(**line.settings):
            found[name] = {"ms": timed(computation(line, PROBLEM, *_tensors()))}
    return found


def _tensors() -> list[Tensor]:
    import torch

    input, weight, _ = random_tensors(PROBLEM, 0, bias=False)
    return [torch.from_numpy(array).cuda() for array in (input, weight)]


def by_events(call: Compute) -> float:
    """Milliseconds between two events around one call, as the article's profiler measured."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    with torch.no_grad():
        begin.record()
        call()
        end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


if __name__ == "__main__":
    print(json.dumps(time_first_calls(by_events)))
