"""What a baseline is: somebody else's convolution, on the same problem and the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from convlab.problem import ConvProblem

Singles = NDArray[np.float32]
REHEARSED = ConvProblem(2, 8, 16, 16, 8, 3)

Family = Literal["pytorch", "cudnn", "cublas", "cutlass", "cpu", "unfoldnd", "cupy", "ceiling"]
Precision = Literal["fp32", "tf32"]
Method = Literal["gemm", "direct", "fft", "winograd", "any"]


class Unsupported(Exception):
    """The baseline cannot do this problem; says why in one sentence."""


class Prepared(Protocol):
    """A baseline made ready for one problem: tensors on their device, workspace allocated, kernels
    chosen. Not for several threads, and of no use after ``close``."""

    @property
    def workspace_bytes(self) -> int | None:
        """What it asks for beside input, weight and output as it computes; None where nobody can
        know."""

    @property
    def algorithm(self) -> str | None:
        """What the library chose, where known. May start a profiler: ask after timing."""

    @property
    def capturable(self) -> bool:
        """Whether ``run`` can be captured in a CUDA graph, once it has run outside of one."""

    def run(self, stream: int | None) -> None:
        """Start one convolution; it may not be done when this returns. ``stream`` is a raw CUDA
        stream; 0 or None is the default one. May raise :class:`Unsupported` the first time."""

    def poison(self) -> None:
        """Fill with NaN the output that the last ``run``, or replays of its capture, write to."""

    def output(self) -> Singles:
        """That output on the host, its axes N, C, H, W however they lie in memory, once all work on
        the device is done."""

    def close(self) -> None:
        """Give everything back. May be called twice."""


Compile = Callable[[ConvProblem], Future[Any] | None]
"""Makes something ready ahead of time; returns what to wait for where that goes on elsewhere."""
Prepare = Callable[[ConvProblem, Singles, Singles, Singles | None], Prepared]


@dataclass(frozen=True)
class Baseline:
    """One baseline. Making one imports nothing of its library."""

    name: str
    """What ``--baseline`` takes, and the key in JSON, such as ``cudnn_implicit_gemm``."""
    title: str
    """In words, for tables."""
    family: Family
    """Whose it is."""
    precision: Precision
    """What it multiplies in. ``tf32`` rounds each factor to 10 bits of fraction first."""
    method: Method
    """Which error bound fits and which class it is in; ``any``: the library chooses."""
    on_gpu: bool
    """False where the host computes: timed by the host's clock then."""
    why_absent: Callable[[], str | None]
    """One sentence why it cannot run here; None when it can."""
    prepare: Prepare
    """Makes it ready for a problem: input ``[N_i, C_i, H_i, W_i]``, weight ``[C_o, C_i, H_f, W_f]``
    and bias ``[C_o]`` or None, float32 on the host. All compute without a bias, to do the same
    work: a bias of anything but zeros raises :class:`Unsupported`, as does a problem that the
    baseline cannot do. ``MemoryError`` where it or its workspace does not fit."""
    compile: Compile | None = None
    """Makes its library ready for any problem, so that the first ``prepare`` need not: builds it,
    or a :func:`rehearsal`. Leaves it to ``why_absent`` to say that there is none."""


def rehearsal(why_absent: Callable[[], str | None], prepare: Prepare) -> Compile:
    """A ``compile`` that runs a small convolution as a benchmark would, whichever problem it is
    given: seconds go by until a library is imported and has loaded its parts and made its
    handles."""

    def compile(problem: ConvProblem) -> None:
        with suppress(Unsupported):
            if why_absent() is not None:
                return
            input = np.zeros(REHEARSED.input_shape, np.float32)
            weight = np.zeros(REHEARSED.weight_shape, np.float32)
            prepared = prepare(REHEARSED, input, weight, None)
            try:
                prepared.run(None)
                prepared.output()
                _ = prepared.algorithm  # which may load a profiler
            finally:
                prepared.close()

    return compile


def require_no_bias(name: str, bias: Singles | None) -> None:
    """Raise :class:`Unsupported` for a bias that would change the result."""
    if bias is not None and bias.any():
        raise Unsupported(
            f"{name} is measured without a bias, but one that is not zero was given: give None"
        )


def why_no_library(module: str, name: str, packages: str) -> str | None:
    """Why an array library cannot use a GPU here, in one sentence; None when it can. ``name`` is
    what people call it, ``packages`` what they install; it has ``cuda.is_available``."""
    if find_spec(module) is None:
        return f"{name} is not installed: pip install {packages}"
    try:
        usable = import_module(module).cuda.is_available()
    except Exception as error:  # a broken installation raises what it likes
        return f"{name} is installed but cannot be imported ({type(error).__name__}: {error})"
    return None if usable else f"{name} is here, but finds no NVIDIA GPU that it can use"
