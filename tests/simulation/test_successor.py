"""The simulator where numba-cuda-mlir is installed and numba-cuda is not.

``.ci/run`` makes such an environment, with the newest NumPy, and runs these tests there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from convlab.support.numba_successor import only_successor

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.same_in_cudasim, pytest.mark.slow]
needs_it = pytest.mark.skipif(
    not only_successor(), reason="needs numba-cuda-mlir, and no numba-cuda"
)

# Sums of blocks, by a tree in shared memory. BARRIER is what ends a step.
SUMS = """
import numpy as np
from numba_cuda_mlir import cuda
from numba_cuda_mlir.cuda import shared
from numba_cuda_mlir.types import float32

THREADS = 32

@cuda.jit(device=True)
def half(x):
    return x / float32(2)

@cuda.jit
def sums(a, out):
    staged = shared.array(THREADS, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    staged[t] = half(a[i]) if i < a.size else 0
    cuda.syncthreads()
    step = THREADS // 2
    while step:
        if t < step:
            staged[t] += staged[t + step]
        BARRIER
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = staged[0]

def launched():
    a, out = cuda.to_device(np.arange(60, dtype=np.float32)), cuda.device_array(2, np.float32)
    sums[2, THREADS](a, out)
    return out.copy_to_host().tolist()
"""
# What registers hold, and names that programs import. It says so if a kernel has no types.
TYPED = """
import numpy as np
from numba_cuda_mlir import cuda, types
from numba_cuda_mlir.cuda import shfl_down_sync
from numba_cuda_mlir.numba_cuda.cudadrv.devicearray import DeviceNDArray

@cuda.jit("void(int32, int64[:])")
def numbers(x, out):
    out[0] = types.uint32(x) - types.uint32(2)
    out[1] = x // 3 + (x << 40)
    out[2] = types.float32(1) / types.float32(3) != 1 / 3

@cuda.jit
def lanes(out):
    i = cuda.laneid
    out[i] = shfl_down_sync(0xFFFFFFFF, i, 1) + cuda.popc(types.int32(-1))

def test_numbers():
    out = np.zeros(3, np.int64)
    numbers[1, 1](1, out)
    assert out.tolist() == [-1, 1 << 40, 1]

def test_names():
    out = cuda.to_device(np.zeros(32, np.int64))
    lanes[1, 32](out)
    assert isinstance(out, DeviceNDArray) and cuda.is_available()
    assert out.copy_to_host()[:31].tolist() == [*range(33, 64)]
    assert cuda.reduce(lambda x, y: x + y)(np.arange(100)) == 4950
    from numba import cuda as numbas
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
    assert numbas is cuda and isinstance(out, FakeCUDAArray)

if __name__ == "__main__":
    test_numbers()
    test_names()
"""
# From Python, in a process that has imported numba-cuda-mlir, and made a kernel, before.
FROM_PYTHON = """
import convlab
host, out = np.arange(60, dtype=np.float32), np.zeros(2, np.float32)
convlab.simulate(sums, 2, THREADS, host, out)
print(out.tolist())
with convlab.simulator(stop=False) as report:
    print(launched(), report.summary())
"""
REFUSED = """
import numba, numpy as np
from numba_cuda_mlir import cuda, types
own, plain = numba.float32, lambda x: x

def launched(function):
    cuda.jit(function)[1, 1](np.ones(4, np.float32))

def an_own_type(a): a[0] = own(1)
def a_plain_function(a): a[0] = plain(1)
def a_shape(a): a[0] = cuda.local.array((2, int(a[0])), types.float32)[0, 0]
for function in an_own_type, a_plain_function, a_shape:
    try:
        launched(function)
    except Exception as error:
        print(error)
"""


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, in which Numba's switch is off."""
    inherited = {name: value for name, value in os.environ.items() if "CUDASIM" not in name}
    return subprocess.run(
        [sys.executable, *words],
        env=inherited | {"PYTHONPATH": str(ROOT / "src")} | environment,
        capture_output=True, text=True,
    )  # fmt: skip


@needs_it
@pytest.mark.parametrize("switch", [{}, {"NUMBA_ENABLE_CUDASIM": "1"}], ids=["unset", "on"])
def test_a_program_runs(tmp_path: Path, switch: dict[str, str]) -> None:
    """A program for numba-cuda-mlir may refuse Numba's switch, which convlab leaves alone."""
    program = tmp_path / "program.py"
    given = switch.get("NUMBA_ENABLE_CUDASIM")
    text = SUMS.replace("BARRIER", "pass") + "\nimport os\nlaunched()\n"
    program.write_text(f"{text}assert os.environ.get('NUMBA_ENABLE_CUDASIM') == {given!r}\n")
    done = python("-m", "convlab", "run", str(program), **switch)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "program.py:22: shared race, sums, line 22 of program.py: thread" in done.stderr
    assert "without Numba's types" not in done.stderr


@needs_it
def test_types_and_names_are_those_of_the_successor(tmp_path: Path) -> None:
    file = tmp_path / "test_program.py"
    file.write_text(TYPED)
    words = "pytest", "-q", "-p", "no:cacheprovider", "--cuda=strict"
    for done in python("-m", *words, str(file)), python("-m", "convlab", "run", str(file)):
        assert done.returncode == 0, done.stdout + done.stderr
        assert "without Numba's types" not in done.stdout + done.stderr


@needs_it
def test_the_simulator_starts_from_python() -> None:
    done = python("-c", SUMS.replace("BARRIER", "cuda.syncthreads()") + FROM_PYTHON)
    found = ["[248.0, 637.0]", "[248.0, 637.0] nothing found in 1 launch"]
    assert done.stdout.splitlines() == found, done.stderr


@needs_it
def test_what_it_cannot_type_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(REFUSED)
    done = python("-m", "convlab", "run", str(program))
    assert done.returncode == 2, done.stderr
    for line, why in zip(
        done.stdout.splitlines(),
        ("import it from numba_cuda_mlir.types", "decorate it", "a shape known only at run time"),
        strict=True,
    ):
        assert line.startswith("Numba refuses a")
        assert why in line


@needs_it
def test_numbas_own_cuda_must_not_come_first() -> None:
    done = python("-c", "import numba.cuda, convlab; convlab.simulate")
    assert "ImportError: numba.cuda was imported before convlab" in done.stderr.splitlines()[-1]


def test_one_of_the_packages_is_needed(tmp_path: Path) -> None:
    """A module that is None cannot be imported, as one that is not installed."""
    file = tmp_path / "none.py"
    file.write_text("import sys\nsys.modules |= {'numba_cuda': None, 'numba_cuda_mlir': None}\n")
    says = "neither numba-cuda nor numba-cuda-mlir is installed: install one of them"
    for words in (
        ("-c", "import none, convlab; convlab.simulate"),
        ("-c", "import none, convlab.__main__; convlab.__main__.main()", "run", str(file)),
        ("-m", "pytest", "-p", "none", "--cuda=strict", str(file)),
    ):
        done = python(*words, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT / "src")]))
        assert done.returncode, done.stdout
        assert says in " ".join(done.stderr.split()), done.stderr


def test_the_page_installs_it_with_what_convlab_depends_on() -> None:
    """All but numba-cuda, which the page leaves out."""
    page = (ROOT / "docs/simulator.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n([^`]*numba-cuda-mlir[^`]*)```", page)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = [one for one in project["optional-dependencies"]["mlir"] if "mlir" in one]
    needed = [one for one in project["dependencies"] if not one.startswith("numba-cuda")]
    assert re.findall(r'"([^"]*)"', block) == [extra.replace("[cu13]", ""), *needed]
