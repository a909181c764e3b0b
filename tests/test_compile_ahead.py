"""Kernels compiled before the first call, in several processes. Nothing here needs a GPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from numba.cuda.core import config

if config.ENABLE_CUDASIM:
    pytest.skip("Numba runs as its CUDA simulator: it compiles nothing", allow_module_level=True)

from pretended_gpu import PretendedGpu

from convlab.problems.gradient import Gradient
from convlab.problems.problem import ConvProblem
from convlab.running import compile_ahead as ahead
from convlab.running.compile_ahead import compile_ahead
from convlab.running.compile_worker import Wanted
from convlab.running.engines import kernel_identity, kernels
from convlab.running.engines.kernels import compile_launch

PROBLEM = ConvProblem(3, 8, 9, 7, 16, (3, 2), stride=(2, 1), padding=1)
GPU = PretendedGpu("a GPU that is not here", (9, 0), 132)
# The second has the first's layout transform, the third four of its own.
WANTED = [Wanted(PROBLEM, "m08"), Wanted(PROBLEM, "m01"), Wanted(Gradient(PROBLEM, "input"), "m01")]
# Kernels that also do what follows a convolution.
HALVES = ConvProblem(2, 16, 5, 5, 32, 1, dtype="bfloat16", channels_last=True)
WANTED += [Wanted(HALVES, options=options) for options in (("relu",), ("relu", "residual"))]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A cache of the test's own, and a process that has compiled nothing yet."""
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONVLAB_CACHE_LIMIT")  # which is 0 in other tests
    monkeypatch.setattr(kernels, "_from_others", {})
    kernels._compiled.cache_clear()
    return tmp_path / "cache" / "kernels"


def refuse_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process compiles nothing from now on."""
    kernels._compiled.cache_clear()
    monkeypatch.setattr(kernels, "numba_lto_ir", lambda *_: pytest.fail("it was compiled"))


def all_names(wanted: list[Wanted] = WANTED) -> list[str]:
    """Compile, or find, every kernel as plans on the engine would; return their names."""
    names = []
    for one in wanted:
        program = one.program(GPU)
        names += [launch.name for launch in program.kernels]
        for launch in program.kernels:
            assert compile_launch(launch, program, (9, 0)).capability == (9, 0)
    return names


@pytest.mark.gate
@pytest.mark.parametrize("on_disk", [True, False])
def test_plans_find_what_other_processes_compiled(on_disk, folder, monkeypatch, capsys):
    """A worker's keys are those that the engine asks for, with a cache on disk and without."""
    if not on_disk:
        monkeypatch.setenv("CONVLAB_CACHE_LIMIT", "0")
    refuse_to_compile(monkeypatch)
    count = compile_ahead(WANTED, GPU, processes=2)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        rf"convlab: compiling {count} kernels in 2 processes: about \d+ seconds?; "
        r"Ctrl-C ends it and keeps those that are compiled",
        first,
    )
    assert re.fullmatch(rf"convlab: compiled {count} kernels in \d+ seconds?", last)
    assert len(set(all_names())) <= count
    assert folder.exists() == on_disk
    if on_disk:  # the next process
        monkeypatch.setattr(kernels, "_from_others", {})
        kernels._compiled.cache_clear()
        all_names()
        assert len([*folder.iterdir()]) == count
    assert compile_ahead(WANTED, GPU) == 0  # and says nothing
    assert capsys.readouterr().err == ""


@pytest.mark.gate
def test_one_kernel_is_compiled_in_this_process(monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process began"))
    assert compile_ahead([Wanted(PROBLEM, "m01")] * 2, GPU) == 1
    assert capsys.readouterr().err.startswith("convlab: compiling 1 kernel: about 1 second; ")
    refuse_to_compile(monkeypatch)
    all_names([Wanted(PROBLEM, "m01")])


def test_a_simulator_has_nothing_to_compile(capsys):
    from convlab.running.engines import choose

    assert compile_ahead(WANTED, choose("simulator")) == 0
    assert capsys.readouterr().err == ""


def test_a_process_that_ends_is_named_and_its_kernels_are_left(monkeypatch, capsys):
    monkeypatch.setattr(ahead, "START", "import sys; sys.exit(3)")
    with pytest.raises(RuntimeError, match=r"^\w+ could not be compiled: its process ended with e"):
        compile_ahead(WANTED, GPU, processes=2)
    assert "compiled" in capsys.readouterr().err


@pytest.mark.gate
def test_a_kernel_that_cannot_be_compiled_does_not_cost_the_others(monkeypatch):
    unknown = PretendedGpu("a GPU of later years", (99, 0), 132)
    with pytest.raises(RuntimeError, match=r"^direct could not be compiled: UnknownGPU: no compil"):
        compile_ahead([Wanted(PROBLEM, "m01")], unknown)


@pytest.mark.gate
def test_another_kernel_than_the_one_that_was_asked_for_is_refused():
    (kernel,) = ahead._missing([Wanted(PROBLEM, "m01")], GPU, ahead.GpuFacts("a", (9, 0), 132))
    other = ahead.CompileTask(kernel.task.wanted, 0, "0" * 64, kernel.task.gpu)
    assert "another process would compile another" in ahead.compiled(other).error


def test_processes_of_torchrun_share_the_cores_and_begin_apart(monkeypatch):
    begun: list[tuple[list[str], int]] = []

    def compile(found, processes):
        begun.append(([kernel.name for kernel in found], processes))

    monkeypatch.setattr(ahead, "_compile", compile)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    compile_ahead(WANTED, GPU)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank in "01":
        monkeypatch.setenv("LOCAL_RANK", rank)
        compile_ahead(WANTED, GPU)
    (alone, cores), (first, half), (second, _) = begun
    assert (cores, half) == (16, 8)
    assert first == alone
    middle = len(alone) // 2
    assert second == alone[middle:] + alone[:middle]
    for given in ("", "many", "-1", "²"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", given)
        assert ahead._local_processes() == 1


# With no guard of `__main__`, as people write scripts.
SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_compile_ahead import GPU, WANTED
from convlab.running.compile_ahead import compile_ahead
print(compile_ahead(WANTED, GPU, processes=2), flush=True)
"""


@pytest.mark.gate
@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is sent as a signal")
def test_ctrl_c_ends_it_at_once_and_the_next_run_goes_on_from_there(tmp_path, folder):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    said = process.stderr.readline()
    count = int(re.findall(r"compiling (\d+) kernels", said)[0])
    assert "compiling " in process.stderr.readline()  # one is compiled
    os.killpg(process.pid, signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert rest.endswith("KeyboardInterrupt\n")
    kept = len([*folder.glob("*.kernel")])
    assert 0 < kept < count
    again = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert int(again.stdout) == count - kept


@pytest.mark.gate
def test_workers_have_the_compilers_that_this_process_has_loaded(tmp_path):
    """PyTorch brings such compilers, for example: another library would give another key."""
    library = Path(kernel_identity.compiler_libraries()[1]).resolve()
    other = tmp_path / library.name
    other.write_bytes(library.read_bytes() + b"another build of it")
    script = f"""
import ctypes, sys
ctypes.CDLL({str(other)!r})
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_compile_ahead import GPU, WANTED
from convlab.running.compile_ahead import compile_ahead
from convlab.running.engines.kernel_identity import compiler_libraries
assert {str(tmp_path)!r} in compiler_libraries()[1], compiler_libraries()
print(compile_ahead(WANTED[1:], GPU, processes=2))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
