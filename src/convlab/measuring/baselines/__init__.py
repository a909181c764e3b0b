"""Baselines: the libraries that convlab is compared with, each optional and found at run time.

Here is what every system, stage or baseline, is to the harness; each module has some libraries'.
Importing this package imports none of them. docs/baselines.md says what each computes, what is
timed and how it is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convlab.problems.arrays import dtype_name
from convlab.problems.gradient import Problem
from convlab.problems.oracle import Allowances
from convlab.problems.problem import ConvProblem
from convlab.running.compile_worker import Wanted
from convlab.running.engines import Engine, address_of, choose
from convlab.running.plans import check_fits
from convlab.support.installing import how_to_add

Singles = NDArray[np.float32]
REHEARSED = ConvProblem(2, 8, 16, 16, 8, 3)
NAN_BITS = 0x7FC00000  # a quiet NaN
NAN_BITS_16 = 0x7FFF  # in float16 and in bfloat16


class Unsupported(Exception):
    """The system cannot do this problem; says why in one sentence."""


class Prepared(Protocol):
    """A system ready for one problem: tensors, workspace, kernels. Not for several threads."""

    @property
    def workspace_bytes(self) -> int | None:
        """Memory beside input, weight and output; None where it cannot be known."""

    @property
    def algorithm(self) -> str | None:
        """Return the library's algorithm, if known. May start a profiler: ask after timing."""

    @property
    def capturable(self) -> bool:
        """Return whether a CUDA graph can capture ``run``, after it has run outside of one."""

    def run(self, stream: int | None) -> None:
        """Start one convolution; it may not be done when this returns. ``stream`` is a raw CUDA
        stream; 0 or None is the default one. May raise :class:`Unsupported` the first time."""

    def poison(self) -> None:
        """Fill with NaN the output that the last ``run``, or replays of its capture, write to."""

    def output(self) -> Singles:
        """The output on the host, ``[N_i, C_o, H_o, W_o]``, once the device is done."""

    def close(self) -> None:
        """Free everything. May be called twice."""


@dataclass(frozen=True)
class System:
    """Something that computes a convolution without a bias: a stage or a baseline.

    Systems of one ``family`` share a process. ``why_absent`` returns one sentence why the system
    cannot run here, or None. ``prepare`` takes a problem, its input ``[N_i, C_i, H_i, W_i]`` and
    its weight ``[C_o, C_i, H_f, W_f]``, float32 on the host; it raises :class:`Unsupported`, or
    ``MemoryError`` where the tensors or the workspace do not fit. ``kind`` is ``stage`` or
    ``baseline``. ``precision`` is ``fp32``, or ``tf32`` where each factor is rounded to 10 bits of
    fraction first. ``method`` says which error bound fits: ``gemm``, ``direct``, ``fft``,
    ``winograd``, or ``any`` where the library chooses. ``on_gpu`` is false where the host computes
    and its clock measures. ``compile`` compiles ahead of time for a problem; it returns a future
    where another thread does the work. ``wanted`` returns the convolution whose kernels other
    processes may compile for a GPU, or None where the system cannot compute the problem there.
    ``allowances`` returns further arguments of ``Oracle.check``.
    """

    name: str
    title: str
    family: str
    why_absent: Callable[[], str | None]
    prepare: Callable[[ConvProblem, Singles, Singles], Prepared]
    kind: str = "baseline"
    precision: str = "fp32"
    method: str = "gemm"
    on_gpu: bool = True
    compile: Callable[[ConvProblem], Future[object] | None] | None = None
    wanted: Callable[[Problem, Engine], Wanted | None] | None = None
    allowances: Callable[[ConvProblem], Allowances] = lambda problem: {}

    def as_json(self) -> dict[str, Any]:
        """The system as the results store it."""
        names = ("name", "title", "kind", "family", "precision", "method", "on_gpu")
        return {name: getattr(self, name) for name in names}

    def precision_on(self, problem: Problem) -> str:
        """The arithmetic of a problem's products: ``precision``, or ``fp16`` or ``bf16``."""
        return {"float16": "fp16", "bfloat16": "bf16"}.get(problem.dtype, self.precision)

    def make_ready(self, problem: ConvProblem) -> Future[object] | None:
        """Do ahead of time what keeps no GPU memory: ``compile``, or a rehearsal."""
        if self.why_absent() is not None:
            return None
        if self.compile is not None:
            return self.compile(problem)
        # A library's first convolution takes seconds, because it imports the library, loads its
        # parts and makes its handles.
        shapes = REHEARSED.input_shape, REHEARSED.weight_shape
        tensors = [np.zeros(shape, np.float32) for shape in shapes]
        with suppress(Unsupported), closing(self.prepare(REHEARSED, *tensors)) as prepared:
            prepared.run(None)
            prepared.output()
            _ = prepared.algorithm  # which may load a profiler
        return None


def why_no_library(module: str, name: str, packages: str) -> str | None:
    """Return why an array library that has ``cuda.is_available`` cannot use a GPU here, in one
    sentence; None when it can. ``packages`` are what is to be installed."""
    if find_spec(module) is None:
        return f"{name} is not installed: run {how_to_add(packages)}"
    try:
        usable = import_module(module).cuda.is_available()
    except Exception as error:  # a broken installation raises what it likes
        return f"{name} is installed but cannot be imported ({type(error).__name__}: {error})"
    return None if usable else f"{name} is here, but finds no NVIDIA GPU that it can use"


class OnGpu:
    """A :class:`Prepared` whose input, weight, output and workspace lie in the GPU's memory,
    float32 in the axis order given. A subclass has ``run``, and calls :meth:`place` when it is
    made. ``name`` is the system's.
    """

    capturable = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._gpu = choose("gpu")
        self._arrays: list[Any] = []
        self._dtype = "float32"

    def place(self, input: Singles, weight: Singles, output_shape: tuple[int, ...]) -> None:
        """Copy both to the GPU beside an empty output of their type. Raises ``MemoryError`` without
        room."""
        outputs = int(np.prod(output_shape, dtype=np.int64))
        needed = input.nbytes + weight.nbytes + input.itemsize * outputs
        check_fits("input, weight and output", needed, self._gpu)
        self._dtype = dtype_name(input)
        placed = [self._gpu.to_device(array, self._dtype) for array in (input, weight)]
        self._arrays = [*placed, self._gpu.empty(output_shape, self._dtype)]

    @property
    def pointers(self) -> tuple[int, ...]:
        """Addresses of input, weight, output and workspace. Raises ``RuntimeError`` once closed."""
        if not self._arrays:
            raise RuntimeError(f"{self._name} has been closed")
        return tuple(map(address_of, self._arrays))

    def poison(self) -> None:
        """Fill the output with NaN, and wait for it."""

        from cuda.bindings import driver

        from convlab.running.engines.driver import driver_result

        self._gpu.synchronize()
        output = self._arrays[2]
        if self._dtype == "float32":
            driver_result(driver.cuMemsetD32(address_of(output), NAN_BITS, output.size))
        else:
            driver_result(driver.cuMemsetD16(address_of(output), NAN_BITS_16, output.size))
        self._gpu.synchronize()

    def output(self) -> Singles:
        """Wait for the GPU, and return a copy of the output on the host."""
        self._gpu.synchronize()
        return self._gpu.to_host(self._arrays[2], self._dtype)

    def close(self) -> None:
        """Free the arrays."""
        self._arrays = []
        self._gpu.free_bytes()  # Numba frees unused memory later, unless asked
