"""Baselines that are built here from source: CUTLASS's convolution, and seven loops in C++.

CUTLASS's implicit GEMM is built with nvcc from the headers that its wheel ships. Article 001
compares with two of its kernels: *analytic* computes every pixel's address anew and takes any
filter; *optimized* keeps increments and masks and takes filters of at most 32 x 32. All tensors are
channels-last. Each baseline takes the fastest of several tiles (cutlass_conv.cu), as cuDNN's
benchmark mode and CUTLASS's own profiler do.

The C++ baseline of article 001 is one thread's, with g++ -O3. It is no measure of what a CPU can
do: no blocking, and no vector instructions in the inner loops, because without ``-ffast-math`` g++
may not reorder the sums.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import c_char_p, c_int, c_void_p
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convlab.measuring import timer
from convlab.measuring.baselines import OnGpu, Singles, System, Unsupported
from convlab.problems.problem import ConvProblem
from convlab.running.engines import unavailable
from convlab.support.cache_folder import cache_folder
from convlab.support.installing import how_to_add
from convlab.support.whole_files import fingerprint

LOOPS, CUTLASS = (Path(__file__).with_name(name) for name in ("seven_loops.cpp", "cutlass_conv.cu"))
LOOPS_OPTIONS = ("-O3", "-shared", "-fPIC")
CUTLASS_OPTIONS = ("-O3", "-std=c++17", "-shared", "-Xcompiler=-fPIC", "--expt-relaxed-constexpr")
# The fields of each source's `struct Sizes`. Padding at the bottom and the right follows from the
# output's size.
LOOPS_SIZES = "C_i H_i W_i C_o H_f W_f H_o W_o p_h p_w s_h s_w d_h d_w"
CUTLASS_SIZES = "N_i H_i W_i C_i C_o H_f W_f H_o W_o p_h p_w s_h s_w d_h d_w"
COMPILER = "g++"
TILE_AT_MOST_MS = 100.0  # of timed runs of each tile
FIRST_CAPABILITY = (8, 0)  # asynchronous copies to shared memory


@cache
def compiler_version(compiler: str) -> str:
    """Return the output of ``compiler --version``. Raises :class:`Unsupported` if it cannot run."""
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
    Raises :class:`Unsupported` with the compiler's first error, or where it cannot be written."""
    command = [compiler, *options]
    made_of = fingerprint([source, *headers], *command, compiler_version(compiler))
    library = cache_folder() / f"{source.stem}-{made_of}.so"
    if library.exists():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            unfinished = Path(folder) / library.name
            command += ["-o", str(unfinished), str(source)]
            run = subprocess.run(command, capture_output=True, text=True)
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


def sizes_of(problem: ConvProblem, names: str) -> ctypes.Array[ctypes.c_int]:
    """The problem's sizes of these names as the ``struct Sizes`` of a source."""
    sizes = [getattr(problem, name) for name in names.split()]
    return (c_int * len(sizes))(*sizes)


class SevenLoops:
    """The C++ baseline for one problem, on the host."""

    workspace_bytes = 0
    capturable = False

    def __init__(self, problem: ConvProblem, input: Singles, weight: Singles) -> None:
        self._input, self._weight = (
            np.ascontiguousarray(tensor, np.float32) for tensor in (input, weight)
        )
        self._output = np.full(problem.output_shape, np.nan, np.float32)
        self._sizes = sizes_of(problem, LOOPS_SIZES)
        self._loops = ctypes.CDLL(str(built(LOOPS, COMPILER, LOOPS_OPTIONS))).convlab_seven_loops
        self._loops.restype, self._loops.argtypes = None, [c_void_p] * 4
        self.algorithm = f"{compiler_version(COMPILER).splitlines()[0]} -O3, one thread"

    def run(self, stream: int | None = None) -> None:
        """Compute the output on the host's cores; there is no stream."""
        weight = self._weight.ctypes.data
        for image, result in zip(self._input, self._output, strict=True):  # Ctrl-C between images
            self._loops(self._sizes, image.ctypes.data, weight, result.ctypes.data)

    def poison(self) -> None:
        """Fill the output with NaN."""
        self._output.fill(np.nan)

    def output(self) -> Singles:
        """Return the output."""
        return self._output.copy()

    def close(self) -> None:
        """Free the arrays."""
        self._input = self._weight = self._output = np.empty((0, 1, 1, 1), np.float32)


def why_no_compiler() -> str | None:
    """Return why the C++ baseline cannot be built here; None when it can."""
    there = shutil.which(COMPILER) is not None
    return None if there else f"there is no {COMPILER} on the PATH to build it with"


class Variant(NamedTuple):
    """One way to build CUTLASS's source."""

    name: str
    iterator: str
    precision: str


VARIANTS = (
    Variant("cutlass_analytic", "kAnalytic", "fp32"),
    Variant("cutlass_optimized", "kOptimized", "fp32"),
    Variant("cutlass_tf32", "kOptimized", "tf32"),
)
_BUILDERS = ThreadPoolExecutor(len(VARIANTS))  # each waits for an nvcc


def why_no_cutlass() -> str | None:
    """Return why CUTLASS cannot run here; None when it can."""
    if (reason := unavailable("gpu")) is not None:
        return reason
    if _capability() < FIRST_CAPABILITY:
        return "its kernels here copy asynchronously, which takes a GPU of capability 8.0 or later"
    if nvcc() is None:
        return "there is no nvcc to build it with: it comes with NVIDIA's CUDA toolkit"
    if headers() is None:
        return (
            f"its headers are not here: run {how_to_add('--no-deps nvidia-cutlass')}, or give the "
            "folder of a clone in CUTLASS_PATH"
        )
    return None


@cache
def nvcc() -> str | None:
    """The compiler: on the PATH, else where NVIDIA's packages and toolkits put it."""
    from cuda.pathfinder import find_nvidia_binary_utility

    return shutil.which("nvcc") or find_nvidia_binary_utility("nvcc")


def headers() -> Path | None:
    """The folder to include from: ``$CUTLASS_PATH/include``, else that of the wheel."""
    roots: list[str] = []
    if given := os.environ.get("CUTLASS_PATH"):
        roots = [given]
    elif (package := find_spec("cutlass_library")) is not None:
        roots = [f"{root}/source" for root in package.submodule_search_locations or ()]
    found = (Path(root, "include") for root in roots)
    return next((folder for folder in found if (folder / "cutlass/cutlass.h").is_file()), None)


@cache
def library(variant: Variant) -> Any:
    """The variant's library, which serves every problem; the first build takes a quarter of a
    minute. Raises :class:`Unsupported` where it cannot be built."""
    compiler, folder = nvcc(), headers()
    if compiler is None or folder is None:
        raise Unsupported(str(why_no_cutlass()))
    options = [
        *CUTLASS_OPTIONS, "-arch=sm_{}{}".format(*_capability()), f"-I{folder}",
        f"-DCONVLAB_ITERATOR={variant.iterator}",
        f"-DCONVLAB_TF32={int(variant.precision == 'tf32')}",
    ]  # fmt: skip
    cutlass = ctypes.CDLL(str(built(CUTLASS, compiler, options, [folder / "cutlass/version.h"])))
    for name, result, arguments in (
        ("choices", c_int, []),
        ("name", c_char_p, [c_int]),
        ("can_run", c_char_p, [c_int, c_void_p]),
        ("run", c_char_p, [c_int, *[c_void_p] * 5]),
    ):
        function = getattr(cutlass, f"convlab_{name}")
        function.restype, function.argtypes = result, arguments
    return cutlass


def compile(variant: Variant, problem: ConvProblem) -> Future[object]:
    """Start to build the variant's library, beside the others."""
    return _BUILDERS.submit(library, variant)


def _capability() -> tuple[int, int]:
    from numba import cuda

    major, minor = cuda.get_current_device().compute_capability
    return int(major), int(minor)


class Cutlass(OnGpu):
    """A variant made ready for one problem, with the fastest of its tiles."""

    workspace_bytes = 0  # the point of implicit GEMM without split-K

    def __init__(
        self, variant: Variant, problem: ConvProblem, input: Singles, weight: Singles
    ) -> None:
        super().__init__(variant.name)
        self._library = library(variant)
        self._sizes = sizes_of(problem, CUTLASS_SIZES)
        able = self._able()
        N_i, C_o, H_o, W_o = problem.output_shape
        self.place(channels_last(input), channels_last(weight), (N_i, H_o, W_o, C_o))
        try:
            self._tile = min(able, key=self._milliseconds)
        except BaseException:
            self.close()
            raise

    def _able(self) -> list[int]:
        """The tiles that can do the problem. Raises :class:`Unsupported` where none can."""
        tiles = range(self._library.convlab_choices())
        said = {tile: self._library.convlab_can_run(tile, self._sizes) for tile in tiles}
        able = [tile for tile, error in said.items() if error is None]
        if not able:
            errors = sorted({error.decode() for error in said.values()})
            raise Unsupported(
                f"CUTLASS says of each of its {len(said)} kernels: {', '.join(errors)} (it takes "
                "no tensors of 2 GiB and more, nor filters above 32 x 32 with the optimized "
                "iterator)"
            )
        return able

    @property
    def algorithm(self) -> str:
        """The fastest tile: output pixels x channels x slice of K."""
        name: bytes = self._library.convlab_name(self._tile)
        return name.decode()

    def _milliseconds(self, tile: int) -> float:
        self._tile = tile
        return timer.measure(
            lambda stream: self.run(int(stream.handle)), as_graph=False, at_most_ms=TILE_AT_MOST_MS
        ).median_ms

    def run(self, stream: int | None = None) -> None:
        """Start the computation on a raw CUDA stream."""
        error = self._library.convlab_run(self._tile, self._sizes, *self.pointers, stream or 0)
        if error is not None:
            raise RuntimeError(f"{self._name}: CUTLASS says {error.decode()}")

    def output(self) -> Singles:
        """Return a copy of the output on the host."""
        return super().output().transpose(0, 3, 1, 2)


def channels_last(tensor: Singles) -> Singles:
    """NCHW to NHWC, OIHW to OHWI. An image a thread: NumPy takes seconds for them in one."""
    moved = tensor.transpose(0, 2, 3, 1)
    copy = np.empty(moved.shape, np.float32)
    with ThreadPoolExecutor() as pool:
        list(pool.map(np.copyto, copy, moved))
    return copy


SEVEN_LOOPS = System(
    "cpp_seven_loops", "C++, seven nested loops, g++ -O3, one thread", "cpu", why_no_compiler,
    SevenLoops, method="direct", on_gpu=False,
)  # fmt: skip
OF_CUTLASS = tuple(
    System(
        variant.name,
        f"CUTLASS {variant.iterator[1:].lower()}, {variant.precision.replace('tf', 'TF')}",
        "cutlass", why_no_cutlass, partial(Cutlass, variant),
        precision=variant.precision, compile=partial(compile, variant),
    )
    for variant in VARIANTS
)  # fmt: skip
