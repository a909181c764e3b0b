"""The C++ baseline of article 001: seven nested loops, compiled with g++ -O3, one thread.

It is no measure of what a CPU can do: no blocking, and no vector instructions in the inner loops,
because without ``-ffast-math`` g++ may not reorder the sums.
"""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np

from convlab.bench.baselines import Singles, System, built, compiler_version, sizes_of
from convlab.problem import ConvProblem

SOURCE = Path(__file__).with_name("seven_loops.cpp")
OPTIONS = ("-O3", "-shared", "-fPIC")
SIZES = "C_i H_i W_i C_o H_f W_f H_o W_o p_h p_w s_h s_w d_h d_w"
COMPILER = "g++"


def why_absent() -> str | None:
    """Why the baseline cannot be built here; None when it can."""
    there = shutil.which(COMPILER) is not None
    return None if there else f"there is no {COMPILER} on the PATH to build it with"


class SevenLoops:
    """The baseline for one problem, on the host."""

    workspace_bytes = 0
    capturable = False

    def __init__(self, problem: ConvProblem, input: Singles, weight: Singles) -> None:
        self._input = np.ascontiguousarray(input, np.float32)
        self._weight = np.ascontiguousarray(weight, np.float32)
        self._output = np.full(problem.output_shape, np.nan, np.float32)
        self._sizes = sizes_of(problem, SIZES)
        library = ctypes.CDLL(str(built(SOURCE, COMPILER, OPTIONS)))
        self._loops = library.convlab_seven_loops
        self._loops.restype = None
        self._loops.argtypes = [ctypes.c_void_p] * 4

    @property
    def algorithm(self) -> str:
        """The compiler and its options."""
        return f"{compiler_version(COMPILER).splitlines()[0]} {OPTIONS[0]}, one thread"

    def run(self, stream: int | None = None) -> None:
        for image, result in zip(self._input, self._output, strict=True):  # Ctrl-C between images
            self._loops(
                self._sizes, image.ctypes.data, self._weight.ctypes.data, result.ctypes.data
            )

    def poison(self) -> None:
        self._output.fill(np.nan)

    def output(self) -> Singles:
        return self._output.copy()

    def close(self) -> None:
        self._input = self._weight = self._output = np.empty((0, 1, 1, 1), np.float32)


BASELINE = System(
    "cpp_seven_loops", "C++, seven nested loops, g++ -O3, one thread", "baseline", "cpu", "fp32",
    "direct", False, why_absent, SevenLoops,
)  # fmt: skip
