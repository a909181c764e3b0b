"""Baselines: the libraries that convlab is compared with, each optional and found at run time.

Here is what every system, stage or baseline, is to the harness; each module has one library's.
Importing this package imports none of them. docs/baselines.md says what each computes, what is
timed and how it is installed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convlab.engines import choose
from convlab.problem import ConvProblem
from convlab.tuned import cache_folder

Singles = NDArray[np.float32]
REHEARSED = ConvProblem(2, 8, 16, 16, 8, 3)
NAN_BITS = 0x7FC00000  # a quiet NaN


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
        """The output on the host, ``[N_i, C_o, H_o, W_o]``, once the device is done."""

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


class OnGpu:
    """Input, weight, output and workspace in the GPU's memory, float32 in the axis order given.

    A subclass has ``run``, and calls :meth:`place` when it is made. ``name`` is the system's. What
    has no description here is as :class:`Prepared` says.
    """

    capturable = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._gpu = choose("gpu")
        self._arrays: list[Any] = []

    def place(self, input: Singles, weight: Singles, output_shape: tuple[int, ...]) -> None:
        """Copy both to the GPU beside an empty output. Raises ``MemoryError`` without room."""
        needed = input.nbytes + weight.nbytes + 4 * int(np.prod(output_shape, dtype=np.int64))
        require_free(needed, "input, weight and output take")
        self._arrays = [
            self._gpu.to_device(input),
            self._gpu.to_device(weight),
            self._gpu.empty(output_shape),
        ]

    def place_workspace(self, nbytes: int) -> int | None:
        """The address of that many bytes more; None for none."""
        if nbytes == 0:
            return None
        require_free(nbytes, "it asks for a workspace of")
        self._arrays.append(self._gpu.empty((-(-nbytes // 4),)))
        return pointer(self._arrays[-1])

    @property
    def pointers(self) -> tuple[int, int, int]:
        """The addresses of input, weight and output. Raises ``RuntimeError`` after ``close``."""
        if not self._arrays:
            raise RuntimeError(f"{self._name} has been closed")
        input, weight, output = map(pointer, self._arrays[:3])
        return input, weight, output

    def poison(self) -> None:
        from cuda.bindings import driver

        self._gpu.synchronize()
        output = self._arrays[2]
        (error,) = driver.cuMemsetD32(pointer(output), NAN_BITS, output.size)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA driver: {error.name} while filling the output with NaN")
        self._gpu.synchronize()

    def output(self) -> Singles:
        self._gpu.synchronize()
        return self._gpu.to_host(self._arrays[2])

    def close(self) -> None:
        self._arrays = []
        self._gpu.free_bytes()  # Numba frees unused memory later, unless asked


def pointer(array: Any) -> int:
    """Where a device array begins."""
    return int(array.__cuda_array_interface__["data"][0])


def require_free(nbytes: int, what: str) -> None:
    """Raise ``MemoryError`` unless the GPU has that much memory free."""
    free = choose("gpu").free_bytes()
    if free is not None and nbytes > free:
        raise MemoryError(
            f"{what} {nbytes / 2**30:.2f} GiB of the GPU's memory, but {free / 2**30:.2f} are free"
        )


def times_ms(start: Callable[[int | None], None], repeats: int = 5) -> list[float]:
    """How long ``start(stream)`` keeps the GPU busy, by events on the default stream, after one run
    that does not count. Below some 0.1 ms a time includes the launch."""
    from numba import cuda

    start(None)
    samples = []
    for _ in range(repeats):
        begin, end = cuda.event(), cuda.event()
        begin.record()
        start(None)
        end.record()
        end.synchronize()
        samples.append(float(cuda.event_elapsed_time(begin, end)))
    return samples


def sizes_of(problem: ConvProblem, names: str) -> ctypes.Array[ctypes.c_int]:
    """The problem's sizes of these names as the ``struct Sizes`` of a C++ or CUDA source."""
    sizes = [getattr(problem, name) for name in names.split()]
    return (ctypes.c_int * len(sizes))(*sizes)


@cache
def compiler_version(compiler: str) -> str:
    """What ``compiler --version`` prints. Raises :class:`Unsupported` where it cannot run."""
    try:
        run = subprocess.run([compiler, "--version"], capture_output=True, text=True)
    except OSError as error:
        raise Unsupported(f"{compiler} cannot be run: {error.strerror}") from error
    return run.stdout.strip()


def built(
    source: Path, compiler: str, options: Sequence[str], headers: Sequence[Path] = ()
) -> Path:
    """The shared library that ``compiler OPTIONS -o LIBRARY SOURCE`` makes, kept in convlab's cache
    folder. A change of the source, the ``headers``, the options or the compiler builds it anew.

    Raises :class:`Unsupported` with the compiler's first error, or where it cannot be written.
    """
    command = [compiler, *options]
    digest = hashlib.sha256()
    for file in (source, *headers):
        digest.update(file.read_bytes())
    digest.update("\0".join([*command, compiler_version(compiler)]).encode())
    library = cache_folder() / f"{source.stem}-{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            unfinished = Path(folder) / library.name
            run = subprocess.run(
                [*command, "-o", str(unfinished), str(source)], capture_output=True, text=True
            )
            if run.returncode != 0:
                lines = [line.strip() for line in (run.stderr + run.stdout).splitlines()]
                errors = [line for line in lines if "error" in line.lower()]
                said = next(filter(None, errors + lines), f"it ended with code {run.returncode}")
                raise Unsupported(f"{Path(compiler).name} could not build {source.name}: {said}")
            os.replace(unfinished, library)  # whole or not at all, also beside another process
    except OSError as error:
        raise Unsupported(
            f"{source.name} could not be built in {library.parent}: {error.strerror or error}"
        ) from error
    return library
