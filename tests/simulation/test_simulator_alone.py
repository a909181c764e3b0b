"""The strict simulator needs none of the packages that only the command and the plots need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Of the command, of plots and pages, of notebooks and of libraries that convlab compares with.
NOT_NEEDED = (
    *("typer", "click", "rich", "pygments", "msgspec", "matplotlib", "PIL", "jinja2"),
    *("markdown_it", "IPython", "jupyterlab", "scipy", "torch", "cupy", "array_api_compat"),
    "ml_dtypes",
)
# Rooms of convlab that are not the simulator's.
OTHERS = (
    "ladder",
    "problems",
    "running",
    "tracing",
    "checking",
    "measuring",
    "lessons",
    "commands",
)
BLOCKED = f"""
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_NEEDED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""
PROGRAM = """
import convlab
import convlab.simulation

with convlab.simulator(stop=False) as report:
    import numpy as np
    from numba import cuda

    @cuda.jit
    def paired(a, b):
        i = cuda.grid(1)
        if i < a.size:
            b[i // 2] = a[i]

    a = cuda.to_device(np.arange(32, dtype=np.float32))
    b = cuda.device_array_like(a)
    paired[2, 32](a, b)
    print(report.summary(), [finding.kind for finding in report.findings])

one, copy = np.ones(1), np.zeros(1)
convlab.simulate(paired, 1, 1, one, copy)
assert copy[0] == 1
others = sorted(name for name in sys.modules if name.startswith(PREFIXES))
print("imported:", *others)
"""


@pytest.mark.slow
@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("cudasim", ["0", "1"])
def test_it_runs_without_the_packages_of_command_and_plots(tmp_path: Path, cudasim: str) -> None:
    program = tmp_path / "program.py"
    rooms = tuple(f"convlab.{room}" for room in OTHERS)
    program.write_text(f"{BLOCKED}\nPREFIXES = {rooms!r}\n{PROGRAM}", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": cudasim},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, imported = done.stdout.strip().splitlines()
    assert found == "1 finding in 1 launch ['global race']"
    assert imported == "imported:"
