"""A benchmark's kernels are compiled before its rows, for a GPU that need not be here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench_fakes import MACHINE, system
from numba.cuda.core import config

from convlab.ladder import LADDER, stage_named
from convlab.measuring import cases as all_cases
from convlab.measuring import kernels_ahead, systems
from convlab.measuring.baselines import System
from convlab.measuring.cases import Bench, crossed
from convlab.measuring.kernels_ahead import compile_kernels
from convlab.measuring.roofline import Machine
from convlab.measuring.systems import stage_on, system_named
from convlab.problems.gradient import Gradient
from convlab.problems.problem import ConvProblem
from convlab.running import plans
from convlab.running.chosen_stages import stage_of_layer
from convlab.running.compile_worker import Wanted
from convlab.running.engines import kernels
from convlab.running.engines.absent import AbsentGpu, GpuFacts
from convlab.running.plans import program_for, tile_by_rule

H100 = GpuFacts("NVIDIA H100", (9, 0), 132)
GPU = AbsentGpu(H100)
T4 = AbsentGpu(GpuFacts("Tesla T4", (7, 5), 40))
PROBLEM = ConvProblem(3, 8, 9, 7, 16, (3, 2), stride=(2, 1), padding=1)
CHANNELS_LAST = ConvProblem(2, 64, 9, 7, 64, 3, padding=1, dtype="bfloat16", channels_last=True)


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("name", [stage.name for stage in LADDER])
@pytest.mark.parametrize("problem", [PROBLEM, Gradient(PROBLEM, "weight"), CHANNELS_LAST], ids=str)
def test_what_is_wanted_is_the_program_that_the_row_runs(name, problem):
    stage = stage_named(name)
    its = stage_on(problem, stage)
    wanted = system_named(name).wanted(problem, GPU)
    assert (wanted is None) == (its.why_not(problem) is not None)
    if wanted is not None:
        compiled = program_for(problem, stage_of_layer(name, GPU, problem), wanted.tile, GPU)
        run = program_for(problem, its, tile_by_rule(problem, its, GPU), GPU)
        assert compiled is run  # a program that is prepared twice is kept


@pytest.mark.same_in_cudasim
def test_a_remembered_tile_changes_nothing_and_a_named_one_is_kept(monkeypatch):
    rule = tile_by_rule(PROBLEM, stage_named("m15"), GPU)
    monkeypatch.setattr(plans, "tuned_tile", lambda *_: pytest.fail("it was asked for"))
    assert system_named("m15_split_k").wanted(PROBLEM, GPU) == Wanted(PROBLEM, "m15_split_k", rule)
    wanted = system_named("m15_split_k 32x32x8/4x4").wanted(PROBLEM, GPU)
    assert str(wanted.tile) == "32x32x8/4x4" != str(rule)


@pytest.mark.same_in_cudasim
def test_auto_wants_the_stage_of_the_gpu_and_what_no_stage_computes_is_left():
    auto = system_named("auto")
    assert auto.wanted(CHANNELS_LAST, GPU).stage == "h06_window_rows"
    assert auto.wanted(CHANNELS_LAST, T4) is None
    assert auto.wanted(PROBLEM, T4).stage == "m11_warp_tiling"
    in_tf32 = system_named("auto in tf32")
    assert in_tf32.wanted(PROBLEM, GPU).stage == "t07_tf32"
    floats = replace(CHANNELS_LAST, dtype="float32")
    assert in_tf32.wanted(floats, GPU).stage == "h05_tf32_panels"
    assert system_named("t05_warpgroups").wanted(PROBLEM, T4) is None
    # A variant's switches, and a library, are for the process that measures.
    assert system_named("without_prefetch").wanted is system_named("torch_fp32").wanted is None


@pytest.mark.same_in_cudasim
def test_all_rows_kernels_are_asked_for_before_any_process_measures(monkeypatch):
    log = []

    class Pool:
        def compile(self, ahead):
            log.append("the processes")
            return iter(())

    def compile_ahead(wanted, engine):
        log.append([one.stage for one in wanted])
        assert engine.device == "NVIDIA H100"
        raise RuntimeError("m01 could not be compiled")  # its row will say so

    monkeypatch.setattr(kernels_ahead, "compile_ahead", compile_ahead)
    monkeypatch.setattr(all_cases, "_layer", lambda cases, bench: iter([cases[0].layer]))
    names = ("m01_direct", "torch_fp32", "auto", "h01_panels")
    cases = crossed({"a": PROBLEM, "b": PROBLEM}, names)
    bench = Bench(Pool(), Machine(**MACHINE), {}, "same", H100)
    assert [*all_cases.run(cases, bench)] == ["a", "b"]
    of_each = ["m01_direct", system_named("auto").wanted(PROBLEM, GPU).stage]
    assert log == [of_each * 2, "the processes"]
    log.clear()
    assert [*all_cases.run(cases, bench._replace(gpu=None))] == ["a", "b"]
    assert log == ["the processes"]


@pytest.mark.same_in_cudasim
def test_a_backend_without_a_gpu_has_no_facts_of_one():
    assert compile_kernels([(PROBLEM, system("right"))], H100) == 0
    assert compile_kernels([(PROBLEM, system_named("m01_direct"))], None) == 0


@pytest.mark.gate
@pytest.mark.skipif(config.ENABLE_CUDASIM, reason="Numba's simulator compiles nothing")
def test_a_process_that_measures_finds_each_kernel_on_disk(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path))
    monkeypatch.delenv("CONVLAB_CACHE_LIMIT")  # which is 0 in other tests
    monkeypatch.setattr(kernels, "_from_others", {})
    kernels._compiled.cache_clear()
    # m06 and m07 have one layout transform; the other two are one stage, and m08 is twice there.
    names = ["m06_vectorized", "m07_prefetch", "m08_double_buffer", "m08_double_buffer"]
    cases: list[tuple[ConvProblem, System]] = [(PROBLEM, system_named(name)) for name in names]
    count = compile_kernels(cases, H100)
    assert count == len([*(tmp_path / "kernels").iterdir()]) < 2 * len(names)
    said = capsys.readouterr().err
    assert f"compiling {count} kernels in " in said
    assert f"compiled {count} kernels in " in said

    # The next process, which measures.
    monkeypatch.setattr(kernels, "_from_others", {})
    monkeypatch.setattr(kernels, "numba_lto_ir", lambda *_: pytest.fail("it was compiled"))
    kernels._compiled.cache_clear()
    monkeypatch.setattr(systems, "choose", lambda name: GPU)

    def build(launch, program):
        return kernels.compile_launch(launch, program, (9, 0))

    monkeypatch.setattr(GPU, "build", build, raising=False)
    for problem, one in cases:
        one.compile(problem)
    assert compile_kernels(cases, H100) == 0
    assert capsys.readouterr().err == ""
