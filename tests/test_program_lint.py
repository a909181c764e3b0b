"""``convlab run --lint``: the machine code of a program's kernels, by source line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convlab.commands import requirements
from convlab.measuring.program_lint import EITHER, FLOAT64, LOCAL, SPILLS, LineUse, _uses
from convlab.running.engines.compilation import _properties_of_kernel

HELPERS = """
from numba import cuda

@cuda.jit(device=True)
def halved(x):
    return x * 0.5  # float64 in a device function of another file
"""
PROGRAM = """
import numpy as np
from numba import cuda, float32
import helpers

N = 32
kept = float32(2)

@cuda.jit(device=True)
def doubled(x):
    return x * kept

def make(factor):
    @cuda.jit(fastmath=True)
    def from_a_factory(a):
        a[cuda.threadIdx.x] *= factor  # float32 with this factor
    return from_a_factory

@cuda.jit
def fine(a):
    a[cuda.threadIdx.x] = doubled(a[cuda.threadIdx.x])

@cuda.jit
def slow(a, n):
    t = cuda.local.array(N, float32)
    for k in range(N):
        t[k] = a[k]
    total = 0.0
    for k in range(n):
        total += helpers.halved(t[k * 7 % N])  # local memory and float64
    a[cuda.threadIdx.x] = total

@cuda.jit(max_registers=32)
def spilling(a):
    t = cuda.local.array(96, float32)
    for k in range(96):
        t[k] = a[k]
    for r in range(3):
        for k in range(96):
            t[k] = t[k] * a[r] + t[(k + 1) % 96]
    total = float32(0)
    for k in range(96):
        total += t[k]
    a[cuda.threadIdx.x] = total

@cuda.jit("void(float64[::1], int32)")
def declared(a, n):
    a[n] += 1  # float64, as declared

@cuda.jit
def refused(a):
    a[0] = sorted([1])[0]

a = np.ones(96, np.float32)
for kernel in fine, make(np.float32(3)), spilling:
    kernel[1, 1](a)
slow[1, 1](a, 5)
fine[1, 1](a)
declared[1, 1](np.ones(8), 3)
kept = "no number any more"
try:
    refused[1, 1](a)
except Exception:
    pass
"""
GATE = pytest.mark.gate


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in two files; the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helpers.py").write_text(HELPERS)
    return tmp_path


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "convlab", "run", *words]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )


@GATE
@pytest.mark.parametrize("simulates", ["0", "1"])
def test_the_lines_of_a_program_s_kernels_are_named(folder: Path, simulates: str) -> None:
    """It compiles even where the environment asks for Numba's simulator."""
    done = run("--lint", "--json", "out.json", "program.py", NUMBA_ENABLE_CUDASIM=simulates)
    assert done.returncode == 2, done.stderr  # a launch is refused
    document = json.loads((folder / "out.json").read_text())
    kernels: dict[str, dict[str, Any]] = {one["kernel"]: one for one in document["lint"]}
    assert len(document["lint"]) == 6  # fine has been launched twice with the same types

    def lines(name: str) -> set[tuple[str, str, str]]:
        return {
            (Path(one["file"]).name, one["kind"], Path(one["file"]).read_text().splitlines()[
                one["line"] - 1
            ].strip())
            for one in kernels[name]["lines"]
        }  # fmt: skip

    assert lines("fine") == lines("from_a_factory") == set()
    assert kernels["fine"]["types"] == "array(float32, 1d, C)"
    assert kernels["fine"]["registers"] > 0
    where = "total += helpers.halved(t[k * 7 % N])  # local memory and float64"
    assert {("program.py", FLOAT64, where), ("program.py", LOCAL, where)} <= lines("slow")
    its = "return x * 0.5  # float64 in a device function of another file"
    assert ("helpers.py", FLOAT64, its) in lines("slow")
    assert kernels["slow"]["stack_bytes"] >= 128
    assert kernels["slow"]["spill_bytes"] == 0
    assert kernels["spilling"]["spill_bytes"] > 0
    assert {kind for _, kind, _ in lines("spilling")} == {SPILLS}
    assert kernels["declared"]["types"] == "array(float64, 1d, C), int32"
    assert {kind for _, kind, _ in lines("declared")} == {FLOAT64}
    assert kernels["refused"]["error"].startswith("TypingError: ")
    number = PROGRAM.splitlines().index(f"        {where}") + 1
    assert f"program.py:{number}: slow, float64: " in done.stderr
    said = "refused(array(float32, 1d, C)) cannot be compiled for sm_90 here: TypingError: "
    assert f"convlab: {said}" in done.stderr


@pytest.mark.slow
def test_without_lint_nothing_is_compiled(folder: Path) -> None:
    done = run("--json", "-", "program.py")
    assert json.loads(done.stdout)["lint"] == []


def test_without_compilers_it_is_refused_before_the_program_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process does it, where Numba may be its simulator: both are refused in a sentence."""
    import typer

    monkeypatch.setattr(requirements, "refuse_simulator", lambda: None)
    monkeypatch.setattr("convlab.measuring.machine.compilers", lambda: [
        {"name": "nvdisasm", "found": None, "install": "pip install it"}
    ])  # fmt: skip
    from convlab.commands.run import run as verb

    with pytest.raises(typer.Exit) as refused:
        verb("program.py", lint=True)
    assert refused.value.exit_code == 2


def test_spills_and_arrays_are_told_apart_by_their_addresses() -> None:
    line = "k.py", 7
    spill, array = (line, "STL [R1+0x10], R4"), (line, "LDL R2, [R9]")
    assert _uses([spill], 8) == [LineUse(*line, SPILLS, {"STL": 1})]
    assert _uses([spill], 0) == [LineUse(*line, LOCAL, {"STL": 1})]
    both = [LineUse(*line, LOCAL, {"LDL": 1}), LineUse(*line, EITHER, {"STL": 1})]
    assert _uses([spill, array], 8) == both
    assert _uses([(line, "STL [R12], R4")], 8) == [LineUse(*line, LOCAL, {"STL": 1})]


LOG = """ptxas info    : Compiling entry function '_k' for 'sm_90a'
ptxas info    : Function properties for _k
ptxas         .     176 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 176 bytes cumulative stack size
ptxas info    : Function properties for __internal_trig_reduction_slowpathd
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""


def test_the_stack_is_the_kernel_s_and_not_that_of_a_function_that_it_calls() -> None:
    assert "176 bytes stack frame" in _properties_of_kernel(LOG)
    assert "slowpath" not in _properties_of_kernel(LOG)
    assert _properties_of_kernel("something else") == "something else"
