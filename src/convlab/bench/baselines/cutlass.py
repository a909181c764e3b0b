"""CUTLASS's implicit GEMM convolution, built here with nvcc from the headers that its wheel ships.

Article 001 compares with two of its kernels: *analytic* computes every pixel's address anew and
takes any filter; *optimized* keeps increments and masks and takes filters of at most 32 x 32. All
tensors are channels-last. Each baseline takes the fastest of several tiles (cutlass_conv.cu), as
cuDNN's benchmark mode and CUTLASS's own profiler do.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import c_char_p, c_int, c_void_p
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convlab.bench.baselines import OnGpu, Singles, Unsupported, baseline, built, sizes_of, times_ms
from convlab.engines import unavailable
from convlab.problem import ConvProblem

SOURCE = Path(__file__).with_name("cutlass_conv.cu")
OPTIONS = ("-O3", "-std=c++17", "-shared", "-Xcompiler=-fPIC", "--expt-relaxed-constexpr")
# Padding at the bottom and the right follows from the output's size.
SIZES = "N_i H_i W_i C_i C_o H_f W_f H_o W_o p_h p_w s_h s_w d_h d_w"
FIRST_CAPABILITY = (8, 0)  # asynchronous copies to shared memory


class Variant(NamedTuple):
    """One way to build the source."""

    name: str
    iterator: str
    precision: str


VARIANTS = (
    Variant("cutlass_analytic", "kAnalytic", "fp32"),
    Variant("cutlass_optimized", "kOptimized", "fp32"),
    Variant("cutlass_tf32", "kOptimized", "tf32"),
)
_BUILDERS = ThreadPoolExecutor(len(VARIANTS))  # each waits for an nvcc


def why_absent() -> str | None:
    """Why CUTLASS cannot run here; None when it can."""
    if (reason := unavailable("gpu")) is not None:
        return reason
    if _capability() < FIRST_CAPABILITY:
        return "its kernels here copy asynchronously, which takes a GPU of capability 8.0 or later"
    if nvcc() is None:
        return "there is no nvcc to build it with: it comes with NVIDIA's CUDA toolkit"
    if headers() is None:
        return (
            "its headers are not here: pip install --no-deps nvidia-cutlass, or give the folder of "
            "a clone in CUTLASS_PATH"
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
    """The variant's library; the first build takes a quarter of a minute.

    Raises :class:`Unsupported` where it cannot be built.
    """
    compiler, folder = nvcc(), headers()
    if compiler is None or folder is None:
        raise Unsupported(str(why_absent()))
    options = [
        *OPTIONS, "-arch=sm_{}{}".format(*_capability()), f"-I{folder}",
        f"-DCONVLAB_ITERATOR={variant.iterator}",
        f"-DCONVLAB_TF32={int(variant.precision == 'tf32')}",
    ]  # fmt: skip
    cutlass = ctypes.CDLL(str(built(SOURCE, compiler, options, [folder / "cutlass/version.h"])))
    cutlass.convlab_choices.argtypes = []
    cutlass.convlab_choices.restype = c_int
    cutlass.convlab_name.argtypes = [c_int]
    cutlass.convlab_can_run.argtypes = [c_int, c_void_p]
    cutlass.convlab_run.argtypes = [c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]
    for name in ("convlab_name", "convlab_can_run", "convlab_run"):
        getattr(cutlass, name).restype = c_char_p
    return cutlass


def compile(variant: Variant, problem: ConvProblem) -> Future[Any] | None:
    """Start to build the variant's library, which serves every problem, beside the others."""
    return _BUILDERS.submit(library, variant) if why_absent() is None else None


def _capability() -> tuple[int, int]:
    from numba import cuda

    major, minor = cuda.get_current_device().compute_capability
    return int(major), int(minor)


class Convolution(OnGpu):
    """A variant made ready for one problem, with the fastest of its tiles."""

    workspace_bytes = 0  # the point of implicit GEMM without split-K

    def __init__(
        self, variant: Variant, problem: ConvProblem, input: Singles, weight: Singles
    ) -> None:
        super().__init__(variant.name)
        self._library = library(variant)
        self._sizes = sizes_of(problem, SIZES)
        able = self._able()
        N_i, C_o, H_o, W_o = problem.output_shape
        self.place(channels_last(input), channels_last(weight), (N_i, H_o, W_o, C_o))
        try:
            times = {tile: min(times_ms(partial(self._start, tile))) for tile in able}
            self._tile = min(times, key=times.__getitem__)
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

    def run(self, stream: int | None = None) -> None:
        self._start(self._tile, stream)

    def _start(self, tile: int, stream: int | None) -> None:
        pointers = self.pointers
        error: bytes | None = self._library.convlab_run(tile, self._sizes, *pointers, stream or 0)
        if error is not None:
            raise RuntimeError(f"{self._name}: CUTLASS says {error.decode()}")

    def output(self) -> Singles:
        return super().output().transpose(0, 3, 1, 2)


def channels_last(tensor: Singles) -> Singles:
    """NCHW to NHWC, OIHW to OHWI. An image a thread: NumPy takes seconds for them in one."""
    moved = tensor.transpose(0, 2, 3, 1)
    copy = np.empty(moved.shape, np.float32)
    with ThreadPoolExecutor() as pool:
        list(pool.map(np.copyto, copy, moved))
    return copy


BASELINES = tuple(
    baseline(
        variant.name,
        f"CUTLASS {variant.iterator[1:].lower()}, {variant.precision.replace('tf', 'TF')}",
        "cutlass", why_absent, partial(Convolution, variant),
        precision=variant.precision, compile=partial(compile, variant),
    )
    for variant in VARIANTS
)  # fmt: skip
