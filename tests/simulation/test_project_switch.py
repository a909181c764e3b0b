"""Projects that have a branch for Numba's simulator, and its switch ``NUMBA_ENABLE_CUDASIM``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.same_in_cudasim, pytest.mark.slow]
SOURCE = Path(__file__).parents[2] / "src"
# To import those of other packages takes as long as the tests.
NO_OTHER_PLUGINS = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_PLUGINS": "convlab.simulation.host.pytest_plugin",
}

# As projects do it: one branch for each, stand-ins for what Numba's simulator lacks.
KERNELS = """
import os
from numba import config, cuda

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
assert SIMULATED == bool(config.ENABLE_CUDASIM)
if SIMULATED:
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray as DeviceArray
    from numba.cuda.simulator.kernel import FakeCUDAKernel
    options = {}

    @cuda.jit(device=True)
    def selp(condition, yes, no):
        return yes if condition else no
else:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray as DeviceArray
    options = {"lineinfo": True, "fastmath": True}

    @cuda.jit(device=True)
    def selp(condition, yes, no):
        return cuda.selp(condition, yes, no)

@cuda.jit(**options)
def doubled(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] *= selp(a[i] > 0, 2, 1)

@cuda.jit
def raced(a):
    a[0] = cuda.grid(1)
"""
CONFTEST = """
import pytest
from kernels import SIMULATED

def pytest_collection_modifyitems(items):
    for item in items:
        if SIMULATED and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="Numba's simulator cannot"))

def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
"""
TESTS = """
import numpy as np
import pytest
from numba import cuda
from kernels import SIMULATED, DeviceArray, doubled, raced

def test_right():
    a = cuda.to_device(np.ones(40, np.float32))
    assert isinstance(a, DeviceArray)
    doubled[2, 32](a)
    assert a.copy_to_host().sum() == 80

def test_wrong():
    raced[2, 32](np.zeros(1, np.float32))

@pytest.mark.gpu
def test_of_a_gpu():
    a = np.ones(40, np.float32)
    doubled[2, 32](a)
    assert a.sum() == 80 and not SIMULATED

if __name__ == "__main__":
    test_right()
    test_wrong()
"""
BOTH = pytest.mark.parametrize(
    ("switch", "ends"),
    [
        (None, "1 failed, 1 passed, 1 skipped"),
        ("1", "1 failed, 1 passed, 1 skipped"),
        ("0", "1 failed, 2 passed"),
    ],
    ids=["unset", "on", "off"],
)


def python(*words: str, switch: str | None) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, because Numba reads its switch when it is imported."""
    environment = {name: value for name, value in os.environ.items() if "CUDASIM" not in name}
    environment["PYTHONPATH"] = str(SOURCE)
    environment |= NO_OTHER_PLUGINS
    if switch is not None:
        environment["NUMBA_ENABLE_CUDASIM"] = switch
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project with a suite, in the current folder."""
    for name, text in ("kernels", KERNELS), ("conftest", CONFTEST), ("test_kernels", TESTS):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)


@BOTH
def test_a_suite_runs_strictly_whatever_its_switch_says(project, switch, ends) -> None:
    """Switched off, it takes its branch for a GPU."""
    done = python(*("-m", "pytest", "-q", "-p", "no:cacheprovider", "--cuda=strict"), switch=switch)
    assert f"\n{ends} in" in done.stdout, done.stdout + done.stderr
    assert "kernels.py:31: global race, raced" in done.stdout
    assert "without Numba's types" not in done.stdout


@BOTH
def test_a_program_runs_strictly_whatever_its_switch_says(project, switch, ends) -> None:
    done = python("-m", "convlab", "run", "test_kernels.py", switch=switch)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "kernels.py:31: global race, raced" in done.stderr
    assert done.stderr.endswith("convlab: 1 finding in 2 launches\n")


INTRINSICS = """
import numpy as np
from numba import cuda
from convlab.device import load4, store4

@cuda.jit
def copied(a, b):
    i = 4 * cuda.threadIdx.x
    store4(b, i, load4(a, i))

a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
copied[1, 16](a, b)
assert (a == b).all()
"""


def test_convlabs_intrinsics_run_in_a_program(tmp_path: Path) -> None:
    """Switched on, they are plain functions, which Numba cannot type."""
    program = tmp_path / "program.py"
    program.write_text(INTRINSICS)
    done = python("-m", "convlab", "run", str(program), switch="1")
    assert done.returncode == 0, done.stderr
    assert "copied ran without Numba's types" in done.stderr
