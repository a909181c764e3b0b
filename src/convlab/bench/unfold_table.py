"""Table 1 of Faster Convolution (article 002): PyTorch's conv2d beside unfold, einsum and fold.

``python -m convlab.bench.experiments unfold_table`` measures it: ``F.conv2d`` and ``conv2d_fast``,
which unfolds by PyTorch or by unfoldNd, each with and without TF32 in cuDNN and in the matrix
product; one image of 3 x 1024 x 1024, 16 filters of 3 x 3, a bias. Beside the six rows:
:func:`convlab.unfold.unfold_einsum` on PyTorch's arrays and on CuPy's, and s11.

There are two times. ``time_ms`` is the GPU's, by replays of a graph. The other is of the first
call, in a new process that calls the six rows in turn (``python -m convlab.bench.unfold_table ROW
...``): it includes loading kernels and choosing an algorithm, as the article's profiler did.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from convlab.bench.baselines import Prepared, System
from convlab.bench.baselines.cupy_gemm import why_absent as why_no_cupy
from convlab.bench.baselines.pytorch import Compute, OnTorch, matmul_tf32, why_no_torch
from convlab.bench.cases import Case
from convlab.bench.gpu_backend import GpuBackend
from convlab.bench.systems import system_named
from convlab.engines.handles import cupy_stream
from convlab.oracle import random_tensors
from convlab.problem import ConvProblem
from convlab.unfold import unfold_einsum

PROBLEM = ConvProblem(1, 3, 1024, 1024, 16, 3)
BACKEND = "convlab.bench.unfold_table:Rows"
FIRST_CALLS_SECONDS = 240.0


@dataclass(frozen=True)
class Line:
    """A row of the table: what computes (``conv2d``, ``torch``, ``unfoldnd`` or ``convlab``), its
    name in words, and where TF32 is allowed."""

    by: str
    called: str
    cudnn: bool
    matmul: bool

    @property
    def title(self) -> str:
        """The row in words."""
        allowed = [name for name in ("cuDNN", "matmul") if getattr(self, name.lower())]
        return f"{self.called}; " + (f"TF32 in {' and '.join(allowed)}" if allowed else "no TF32")


FAST = ("conv2d_fast, PyTorch's unfold", "conv2d_fast, unfoldNd")
EINSUM = "unfold_einsum on PyTorch's arrays"
LINES = {
    "conv2d": Line("conv2d", "F.conv2d", False, False),
    "conv2d_tf32": Line("conv2d", "F.conv2d", True, False),
    "fast_torch": Line("torch", FAST[0], True, False),
    "fast_torch_tf32": Line("torch", FAST[0], True, True),
    "fast_unfoldnd": Line("unfoldnd", FAST[1], True, False),
    "fast_unfoldnd_tf32": Line("unfoldnd", FAST[1], True, True),
    "unfold_einsum": Line("convlab", EINSUM, False, False),
    "unfold_einsum_tf32": Line("convlab", EINSUM, False, True),
}
CUPY, OURS = "unfold_einsum_cupy", "s11_im2win_full"


def computation(line: Line, problem: ConvProblem, x: Any, w: Any) -> Compute:
    """What the row calls, with a bias of zeros: its addition is part of the article's times.

    cuDNN chooses as PyTorch has it do unless told otherwise (no ``benchmark``), as in the article.
    """
    import torch

    functions, bias = torch.nn.functional, x.new_zeros(problem.C_o)
    unfold, fold = functions.unfold, functions.fold
    if line.by == "unfoldnd":
        package: Any = import_module("unfoldNd")
        unfold, fold = package.unfoldNd, package.foldNd

    def fast(x: Any, w: Any, bias: Any) -> Any:
        """Algorithm 1 of the article, step by step: pad, unfold, einsum, fold, bias."""
        padded = functions.pad(x, (0, 0, 0, 0))  # a copy, for nothing, as there
        columns = unfold(padded, kernel_size=problem.kernel_size, stride=1)
        products = torch.einsum("bis,oi->bos", columns, w.view(problem.C_o, -1))
        out = (problem.H_o, problem.W_o)
        folded = fold(products, output_size=out, kernel_size=(1, 1), stride=(1, 1))
        folded += bias.view(1, -1, 1, 1)
        return folded

    convolve = {"conv2d": functions.conv2d, "convlab": unfold_einsum}.get(line.by, fast)

    def compute() -> Any:
        cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=line.cudnn)
        with cudnn, matmul_tf32(line.matmul):
            return convolve(x, w, bias)

    return compute


class OnCupy:
    """:func:`~convlab.unfold.unfold_einsum` on CuPy's arrays; each call is started anew, because
    cuBLAS cannot be captured from CuPy."""

    workspace_bytes: int | None = None  # CuPy's pool keeps it
    algorithm: str | None = None
    capturable = False

    def __init__(self, problem: ConvProblem, input: Any, weight: Any) -> None:
        import cupy

        self._cupy = cupy
        self._arrays = [cupy.asarray(tensor) for tensor in (input, weight)]
        self._arrays.append(cupy.zeros(problem.C_o, "f4"))
        self._output: Any = None

    def run(self, stream: int | None) -> None:
        """Start one convolution."""
        self._output = None
        with cupy_stream(self._cupy, stream or 0):
            self._output = unfold_einsum(*self._arrays)

    def poison(self) -> None:
        """Fill the output with NaN."""
        self._cupy.cuda.runtime.deviceSynchronize()
        self._output.fill(float("nan"))
        self._cupy.cuda.runtime.deviceSynchronize()

    def output(self) -> Any:
        """The output on the host."""
        self._cupy.cuda.runtime.deviceSynchronize()
        return self._cupy.asnumpy(self._output)

    def close(self) -> None:
        """Give the memory back."""
        self._arrays, self._output = [], None
        self._cupy.get_default_memory_pool().free_all_blocks()


def row_system(name: str) -> System:
    """The system of a row's name; a stage or a baseline for any other."""
    if name == CUPY:
        title = "unfold_einsum on CuPy's arrays; no TF32"
        why = _also("array_api_compat", "array-api-compat", why_no_cupy)
        return System(name, title, "baseline", "cupy", "fp32", "gemm", True, why, OnCupy)
    if name not in LINES:
        return system_named(name)
    line = LINES[name]
    # unfoldNd unfolds by a convolution, so cuDNN's TF32 rounds what is unfolded.
    rounds = line.matmul or (line.cudnn and line.by in ("conv2d", "unfoldnd"))
    why = why_no_torch
    if line.by == "unfoldnd":
        why = _also("unfoldNd", "unfoldNd", why_no_torch)
    elif line.by == "convlab":
        why = _also("array_api_compat", "array-api-compat", why_no_torch)

    def prepare(problem: ConvProblem, input: Any, weight: Any) -> Prepared:
        return OnTorch(name, problem, input, weight, partial(computation, line))

    precision, method = "tf32" if rounds else "fp32", "any" if name == "conv2d" else "gemm"
    return System(name, line.title, "baseline", "pytorch", precision, method, True, why, prepare)


def _also(
    module: str, package: str, why_no_library: Callable[[], str | None]
) -> Callable[[], str | None]:
    """Why a row cannot run that needs a package beside its library."""

    def why() -> str | None:
        if find_spec(module) is None:
            return f"{package} is not installed: pip install {package}"
        return why_no_library()

    return why


class Rows(GpuBackend):
    """The GPU, for processes that know the rows by name."""

    def system_named(self, name: str) -> System:
        """The row of that name."""
        return row_system(name)


def cases() -> list[Case]:
    """A case for each row."""
    return [Case(str(PROBLEM), PROBLEM, row_system(name)) for name in (*LINES, CUPY, OURS)]


def first_calls_once(older: Mapping[str, Any] | None) -> dict[str, Any]:
    """The first calls of the article's six rows: an older document's where it has all of them."""
    names = [name for name, line in LINES.items() if line.by != "convlab"]
    known = {} if older is None else older.get("first_calls", {})
    every = all("ms" in known.get(name, {}) for name in names)
    return {"first_calls": known if every else first_calls(names)}


def first_calls(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The time of each row's first call in one new process: ``{"ms": ...}``, or ``{"reason":
    ...}``."""
    command = [sys.executable, "-m", "convlab.bench.unfold_table", *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FIRST_CALLS_SECONDS)
        found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        reason = f"its process ended with {type(error).__name__}"
        return {name: {"reason": reason} for name in names}
    return found


def time_first_calls(
    names: Sequence[str], timed: Callable[[Callable[[], Any]], float]
) -> dict[str, Any]:
    """Each row's first call in milliseconds, by the clock ``timed``, or the reason why there is
    none."""
    found: dict[str, Any] = {}
    for name in names:
        absent = row_system(name).why_absent()
        if absent is not None:
            found[name] = {"reason": absent}
            continue
        found[name] = {"ms": timed(computation(LINES[name], PROBLEM, *_tensors()))}
    return found


def _tensors() -> list[Any]:
    import torch

    input, weight, _ = random_tensors(PROBLEM, 0, bias=False)
    return [torch.from_numpy(array).cuda() for array in (input, weight)]


def by_events(call: Callable[[], Any]) -> float:
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
    print(json.dumps(time_first_calls(sys.argv[1:], by_events)))
