"""What every system is to the harness: a name, a ``prepare``, and what that returns."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convlab.problem import ConvProblem

Singles = NDArray[np.float32]
REHEARSED = ConvProblem(2, 8, 16, 16, 8, 3)


class Unsupported(Exception):
    """The system cannot do this problem; says why in one sentence."""


class Prepared(Protocol):
    """A system made ready for one problem: tensors on their device, workspace allocated, kernels
    chosen. Not for several threads."""

    @property
    def workspace_bytes(self) -> int | None:
        """Memory beside input, weight and output; None where it cannot be known."""

    @property
    def algorithm(self) -> str | None:
        """What the library chose, where known. May start a profiler: ask after timing."""

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can capture ``run``, once it has run outside of one."""

    def run(self, stream: int | None) -> None:
        """Start one convolution; it may not be done when this returns. ``stream`` is a raw CUDA
        stream; 0 or None is the default one. May raise :class:`Unsupported` the first time."""

    def poison(self) -> None:
        """Fill with NaN the output that the last ``run``, or replays of its capture, write to."""

    def output(self) -> Singles:
        """That output on the host, ``[N_i, C_o, H_o, W_o]``, once the device is done."""

    def close(self) -> None:
        """Free everything. May be called twice."""


Prepare = Callable[[ConvProblem, Singles, Singles], Prepared]
"""Makes a system ready for a problem, its input ``[N_i, C_i, H_i, W_i]`` and its weight ``[C_o,
C_i, H_f, W_f]``, float32 on the host. Raises :class:`Unsupported`, or ``MemoryError`` where the
tensors or the workspace do not fit."""
Compile = Callable[[ConvProblem], Future[Any] | None]
"""Makes something ready ahead of time; returns a future where another thread does the work."""


@dataclass(frozen=True)
class System:
    """Something that computes a convolution without a bias: a stage or a baseline.

    Systems of one ``family`` share a process. ``precision`` is ``fp32``, or ``tf32`` where each
    factor is rounded to 10 bits of fraction first. ``method`` says which error bound fits:
    ``gemm``, ``direct``, ``fft``, ``winograd``, or ``any`` where the library chooses. ``on_gpu`` is
    false where the host computes and its clock measures. ``why_absent`` returns one
    sentence why the system cannot run here, or None. ``compile`` makes ready ahead of time what
    keeps no GPU memory: kernels for a problem, or a library. ``allowances`` returns further
    arguments of ``Oracle.check``.
    """

    name: str
    title: str
    kind: str  # "stage" or "baseline"
    family: str
    precision: str
    method: str
    on_gpu: bool
    why_absent: Callable[[], str | None]
    prepare: Prepare
    compile: Compile | None = None
    allowances: Callable[[ConvProblem], dict[str, Any]] = lambda problem: {}

    def as_json(self) -> dict[str, Any]:
        """What the results say of it."""
        names = ("name", "title", "kind", "family", "precision", "method", "on_gpu")
        return {name: getattr(self, name) for name in names}


def baseline(
    name: str,
    title: str,
    family: str,
    why_absent: Callable[[], str | None],
    prepare: Prepare,
    *,
    precision: str = "fp32",
    method: str = "gemm",
    compile: Compile | None = None,
) -> System:
    """A library's convolution on the GPU; unless it has a ``compile``, that is a rehearsal."""
    return System(
        name, title, "baseline", family, precision, method, True, why_absent, prepare,
        compile or rehearsal(why_absent, prepare),
    )  # fmt: skip


def rehearsal(why_absent: Callable[[], str | None], prepare: Prepare) -> Compile:
    """A ``compile`` that runs one small convolution. A library's first one takes seconds, because
    it imports the library, loads its parts and makes its handles."""

    def compile(problem: ConvProblem) -> None:
        with suppress(Unsupported):
            if why_absent() is not None:
                return
            input = np.zeros(REHEARSED.input_shape, np.float32)
            weight = np.zeros(REHEARSED.weight_shape, np.float32)
            prepared = prepare(REHEARSED, input, weight)
            try:
                prepared.run(None)
                prepared.output()
                _ = prepared.algorithm  # which may load a profiler
            finally:
                prepared.close()

    return compile


def why_no_library(module: str, name: str, packages: str) -> str | None:
    """Why an array library that has ``cuda.is_available`` cannot use a GPU here, in one sentence;
    None when it can. ``packages`` are what pip installs."""
    if find_spec(module) is None:
        return f"{name} is not installed: pip install {packages}"
    try:
        usable = import_module(module).cuda.is_available()
    except Exception as error:  # a broken installation raises what it likes
        return f"{name} is installed but cannot be imported ({type(error).__name__}: {error})"
    return None if usable else f"{name} is here, but finds no NVIDIA GPU that it can use"
