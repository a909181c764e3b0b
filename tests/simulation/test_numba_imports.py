"""numba-cuda can be imported with a NumPy that has no ``row_stack``, and without CUDA's runtime
library: whoever imports it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.same_in_cudasim, pytest.mark.slow]

SOURCE = Path(__file__).parents[2] / "src"
# As NumPy 2.5 is, whichever is installed. Numba itself asks for NumPy's version.
NO_ROW_STACK = """
import numba.np.arrayobj
import numpy as np
if vars(np).pop("row_stack", None):
    np.__all__.remove("row_stack")
"""
# That warnings are errors is for what the program does, not for numba-cuda's own.
STRICT = "import warnings; warnings.simplefilter('error', DeprecationWarning)\n"
KERNEL = """
from numba import cuda

@cuda.jit
def halves(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = i / 2

def launched():
    out = np.zeros(40)
    halves[2, 32](out)
    assert (out == np.arange(40) / 2).all()
    print("a GPU's numbers" if not hasattr(np, "row_stack") else "row_stack stays")
"""
CHILD = """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=launched)
    child.start()
    child.join()
    assert child.exitcode == 0
    launched()
"""
SIMULATED = "\nimport convlab\nwith convlab.simulator(): launched()\n"
COMPILED = """
import convlab
from numba.cuda.np import arrayobj
print("a GPU's numbers" if not hasattr(np, "row_stack") else "row_stack stays")
"""


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if "CUDASIM" not in name}
    return subprocess.run(
        [sys.executable, *words],
        env=inherited | {"PYTHONPATH": str(SOURCE)} | environment, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ("", KERNEL + SIMULATED),
        ("", STRICT + "import convlab\n" + KERNEL + SIMULATED),
        ("", COMPILED),
        ("-m convlab run", KERNEL + CHILD),
        ("-m pytest -q -s --cuda=strict", KERNEL + "def test_it(): launched()"),
    ],
    ids=["numba first", "convlab first", "compiler", "run, and its children", "pytest"],
)
def test_no_row_stack_is_needed_or_left_behind(tmp_path, words, program) -> None:
    file = tmp_path / "test_program.py"
    file.write_text(NO_ROW_STACK + program)
    done = python(*words.split(), str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a GPU's numbers" in done.stdout
    assert "stays" not in done.stdout
    assert "without Numba's types" not in done.stdout + done.stderr


@pytest.mark.parametrize("error", ["NotImplementedError", "pathfinder.DynamicLibNotFoundError"])
def test_cuda_s_runtime_library_need_not_be_there(error) -> None:
    """The one on Windows, the other where CUDA is not installed."""
    program = f"""
from cuda import pathfinder
from cuda.bindings import runtime
def asked(): raise {error}("in vain")
runtime.getLocalRuntimeVersion = asked
import convlab
from convlab.running.engines import choose
from numba.cuda.debuginfo import DEBUG_POLY_SUPPORTED
print(choose("simulator").name, DEBUG_POLY_SUPPORTED, runtime.getLocalRuntimeVersion is asked)
"""
    done = python("-c", program)
    assert done.stdout.split() == ["simulator", "False", "True"], done.stderr
