"""Programs as they are: what the strict simulator does with a program that nobody wrote for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import convlab

SOURCE = Path(convlab.__file__).parents[1]
pytestmark = pytest.mark.same_in_cudasim

# Each in a process of its own, because Numba decides at its first import whether it simulates CUDA.
WITHIN = """
import numpy as np
from numba import cuda, float32, int32
from convlab.simulation.programs import simulator
from convlab.simulation.findings import SimulationError

def findings(launch, *arguments):
    try:
        launch(*arguments)
    except SimulationError as error:
        return {(finding.kind, finding.array) for finding in error.findings}

@cuda.jit("void(float32[:], float32[:])")
def double(a, b):
    i = cuda.grid(1)
    if i < a.size:
        b[i] = 2 * a[i]

@cuda.jit
def unguarded(a):
    a[cuda.grid(1)] += 1

@cuda.jit
def reverse(a, b):
    staged, i = cuda.shared.array(0, float32), cuda.threadIdx.x
    staged[i] = a[i]
    cuda.syncthreads()
    b[i] = staged[cuda.blockDim.x - 1 - i]

with simulator() as found:
    {lines}
"""
LINES = {
    "arrays, streams and events": """
    stream, event = cuda.stream(), cuda.event()
    a = cuda.to_device(np.arange(70, dtype=np.float32), stream)
    b = cuda.device_array_like(a)
    with stream.auto_synchronize():
        double[3, 32, stream](a, b)
        event.record(stream)
    assert (b.copy_to_host() == 2 * np.arange(70)).all()
    """,
    "host arrays are copied, each to an array of its own": """
    a = np.arange(40, dtype=np.float32)
    double[1, 64](a, a)
    assert (a == 2 * np.arange(40)).all()
    out = np.zeros(40, np.float32)
    double[1, 64](cuda.In(a), cuda.Out(out))
    assert (out == 2 * a).all() and not found.findings
    """,
    "two configurations of one kernel, and dynamic shared memory": """
    first, second = reverse[1, 8, 0, 32], reverse[1, 16, 0, 64]
    a, b, c = np.arange(16, dtype=np.float32), np.zeros(16, np.float32), np.zeros(16, np.float32)
    first(a[:8], b[:8])
    second(a, c)
    assert (b[:8] == a[7::-1]).all() and (c == a[::-1]).all()
    assert findings(reverse[1, 16], a, b) == {("out of bounds", "staged")}
    """,
    "forall starts whole blocks": """
    a = np.zeros(200, np.float32)
    double.forall(200)(a, a)
    assert findings(unguarded.forall(200), a) == {("out of bounds", "a")}
    assert [finding.kind for finding in found.findings] == ["out of bounds"]
    double.forall(0)(a, a)
    """,
}


def run(source: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", source],
        env=os.environ | {"PYTHONPATH": str(SOURCE)} | environment, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_a_launch_of_numbas_simulator_is_strict(lines: str) -> None:
    done = run(WITHIN.replace("{lines}", lines.strip()), NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 0, done.stderr
