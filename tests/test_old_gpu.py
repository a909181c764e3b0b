"""A GPU that a stage cannot run on, older than it needs or newer: refused in a sentence, left out,
and not what auto takes. The GPU is a simulator that says it is one."""

from __future__ import annotations

import re
from threading import local
from types import SimpleNamespace
from typing import Any

import pytest
import sanitizers
from numba.cuda.core import config
from pretended_gpu import PretendedGpu
from test_cli import convlab_, refused
from test_layering import SOURCE, imports

from convlab import ConvProblem, Tile
from convlab.commands import requirements
from convlab.ladder import LADDER, Stage, stage_named
from convlab.measuring import cases, systems
from convlab.measuring import machine as doctor
from convlab.measuring import machine_code as gate
from convlab.problems import workloads
from convlab.problems.oracle import Oracle, random_tensors
from convlab.running import api, engines, kept_plans, plans
from convlab.running.able_stages import stages_for, why_too_old
from convlab.running.chosen_stages import auto_stage
from convlab.running.engines import EngineUnavailable
from convlab.running.engines.gpu import Gpu
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan, plan
from convlab.tracing import trace_stage

pytestmark = pytest.mark.same_in_cudasim

PROBLEM = ConvProblem(1, 2, 5, 4, 3, 2)
COPYING = tuple(stage.name for stage in LADDER if stage.requires and not stage.requires.exact)
ALONE = tuple(stage.name for stage in LADDER if stage.requires and stage.requires.exact)
TOO_NEW = tuple(stage.name for stage in LADDER if stage.requires)


T4 = PretendedGpu("Tesla T4", (7, 5), strict=False)


def reason(*names: str, gpu: str = "Tesla T4", capability: tuple[int, int] = (7, 5)) -> str:
    """Return why that GPU cannot run these stages, or those of the ladder that it cannot."""
    said = why_too_old([*map(stage_named, names)] or LADDER, capability, gpu)
    assert said is not None
    return said


@pytest.fixture
def t4(monkeypatch):
    """Wherever an engine is chosen, it is that GPU."""
    for module in (api, engines, plans, sanitizers, systems):
        monkeypatch.setattr(module, "choose", lambda name: T4)
    monkeypatch.setattr(engines, "unavailable", lambda name: None)
    monkeypatch.setattr(kept_plans, "_current_gpu", lambda: 0)
    monkeypatch.setattr(kept_plans, "kept", local())
    return T4


# Which stages these are.


def source_of(module: str) -> str:
    """The text of a module."""
    return SOURCE.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


def whole_source(stage: Stage) -> str:
    """The source of a stage and of all that it imports, directly or not, from the ladder's
    folders."""
    seen: dict[str, str] = {}
    ahead = [stage.module]
    while ahead:
        module = ahead.pop()
        if module.startswith("convlab.ladder.") and module not in seen:
            seen[module] = source_of(module)
            ahead += [name for _, name in imports(seen[module])]
    return "".join(seen.values())


@pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.name)
def test_a_stage_requires_what_it_and_its_kernels_use(stage):
    text = whole_source(stage)
    newer = "commit_copies" in text or re.search(r"mma_\w*tf32", text) is not None
    only_there = re.search(r"start_(one_)?product", text) is not None
    least = (9, 0) if only_there else (8, 0) if newer else None
    required = (None, False)
    if stage.requires is not None:
        required = stage.requires.capability, stage.requires.exact
    assert required == (least, only_there)
    assert (stage.name in TOO_NEW, stage.name in ALONE) == (newer, only_there)


@pytest.mark.parametrize(
    ("capability", "absent", "auto"),
    [
        ((7, 5), TOO_NEW, "m11"), ((8, 0), ALONE, "m15"), ((8, 9), ALONE, "m15"),
        ((9, 0), (), "m15"), ((10, 0), ALONE, "m15"), ((12, 0), ALONE, "m15"),
    ],
    ids=str,
)  # fmt: skip
def test_which_gpus_run_them(capability, absent, auto, monkeypatch):
    gpu = PretendedGpu("Tesla T4", capability, strict=False)
    stages, left_out = stages_for(gpu)
    assert tuple(stage.name for stage in LADDER if stage not in stages) == absent
    assert auto_stage(gpu) is stage_named(auto)
    assert left_out == why_too_old(LADDER, capability, "Tesla T4")
    monkeypatch.setattr(engines, "choose", lambda name: gpu)
    assert doctor._stages_left_out("simulator") == []
    assert doctor._stages_left_out("gpu") == (
        [f"{left_out}; stage auto is {stage_named(auto).name}"] if absent else []
    )
    for name in absent:
        with pytest.raises(EngineUnavailable, match=re.escape(reason(name, capability=capability))):
            Plan(PROBLEM, stage_named(name), None, gpu)


def test_the_reason_names_the_stages_what_they_need_and_the_gpu():
    older, other = reason(*COPYING[:2], ALONE[0]).split("; ")
    for said, words in (
        (older, (*COPYING[:2], "capability 8.0 or higher", "copies", "Tesla T4 has 7.5")),
        (other, (ALONE[0], "capability 9.0, no other", "wgmma", "Tesla T4 has 7.5")),
        (reason(), TOO_NEW),
        (reason(gpu="B200", capability=(10, 0)), (ALONE[0], "capability 9.0, no", "B200 has 10.0")),
    ):
        assert all(one in said for one in words), said


def test_name_and_capability_are_the_current_gpu_s(monkeypatch):
    """With several GPUs, the current one may be another than a moment ago."""
    gpu = Gpu()
    for name, capability in ((b"Tesla T4", (7, 5)), ("NVIDIA H200", (9, 0))):
        device = SimpleNamespace(name=name, compute_capability=capability)
        monkeypatch.setattr(
            "convlab.running.engines.gpu.cuda.get_current_device", lambda now=device: now
        )
        assert gpu.device == (name.decode() if isinstance(name, bytes) else name)
        assert gpu.capability() == capability


# Plans.


@pytest.mark.parametrize("name", [COPYING[0], ALONE[0]])
def test_a_plan_is_refused_before_anything_is_made(name, t4, monkeypatch):
    monkeypatch.setattr(plans, "program_for", lambda *_, **__: pytest.fail("it was prepared"))
    for call in (
        lambda: plan(PROBLEM, name),
        lambda: Plan(PROBLEM, stage_named(name), None, t4),
        lambda: api.conv2d(*random_tensors(PROBLEM, 0), stage=name),
    ):
        with pytest.raises(EngineUnavailable, match=f"^{re.escape(reason(name))}$"):
            call()


def test_auto_works_on_an_older_gpu(t4):
    assert plan(PROBLEM).stage is stage_named("m11")
    assert plan(PROBLEM, tile=Tile(16, 8, 8, 4, 4)).tile == Tile(16, 8, 8, 4, 4)
    input, weight, bias = random_tensors(PROBLEM, 3)
    result = api.conv2d(input, weight, bias)
    assert Oracle(PROBLEM, input, weight, bias).check(result).ok
    (kept,) = kept_plans.kept.plans.values()
    assert kept.stage is stage_named("m11")


# What is left out of the ladder.


def test_among_some_stages_only_those_are_named(monkeypatch):
    m11, m15 = stage_named("m11"), stage_named("m15")
    assert stages_for(T4, (m11,)) == ((m11,), None)
    assert stages_for(T4, (m11, m15)) == ((m11,), reason("m15"))
    # Where there is no library either, both reasons are said.
    monkeypatch.setattr(PretendedGpu, "why_no_library", lambda self: "there is none")
    stages, left_out = stages_for(T4)
    assert len(stages) == len(LADDER) - len(TOO_NEW) - 2
    assert left_out == f"{reason()}; i04_im2col_blas, i05_unfold_einsum: there is none"
    monkeypatch.setattr(PretendedGpu, "why_no_library", lambda self: pytest.fail("it is imported"))
    assert stages_for(T4, (m15,))[1] == reason("m15")


def test_the_ladder_leaves_them_out_in_a_line(monkeypatch):
    monkeypatch.setattr(Simulator, "capability", lambda self: (7, 5))
    monkeypatch.setattr(Simulator, "device", "Tesla T4")
    monkeypatch.setitem(workloads.DEFAULTS, "simulator", PROBLEM)
    few = tuple(map(stage_named, ("m01", "m11", "m15", "t05")))
    monkeypatch.setattr("convlab.ladder.LADDER", few)
    ran = convlab_("ladder", "--engine", "simulator")
    assert ran.exit_code == 0, ran.output
    assert f"left out        {reason('m15', 't05')}\n" in ran.stdout
    assert "All 2 stages are right" in ran.stdout
    told = refused("ladder", "--engine", "simulator", "--stage", "m15", "--stage", "m01")
    assert reason("m15") in told


def test_they_are_not_tuned(t4, tmp_path, monkeypatch):
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cases, "run", lambda *_: pytest.fail("work was done"))
    tuned = [name for name in ALONE if stage_named(name).tiles.heuristic]
    for name in ("m15_split_k", *tuned):
        assert reason(name) in refused("tune", "--stage", name)
    assert not (tmp_path / "cache").exists()


def test_they_are_absent_from_benchmarks(t4, monkeypatch):
    for name in TOO_NEW:
        system = systems.system_named(name)
        assert system.why_absent() == reason(name)
    assert systems.system_named("m11_warp_tiling").why_absent() is None
    monkeypatch.setattr(systems, "program_for", lambda *_, **__: pytest.fail("it was prepared"))
    system.make_ready(PROBLEM)


def test_the_sanitizer_is_told(t4, monkeypatch, capsys):
    asked: list[Stage] = []
    monkeypatch.setattr(sanitizers, "cases", lambda stages: asked.extend(stages) or [])
    assert sanitizers.run_stages([]) == 0
    assert [stage.name for stage in LADDER if stage not in asked] == [*TOO_NEW]
    assert capsys.readouterr().out.startswith(f"left out: {reason()}\n")
    assert sanitizers.run_stages(["t03", "m01"]) == 2
    assert capsys.readouterr().err == f"{reason('t03')}\n"


def test_the_doctor_warns(t4, monkeypatch):
    monkeypatch.setattr(doctor, "_would_use", lambda *_: {"engine": "gpu", "why": "it works"})
    line = f"{reason()}; stage auto is m11_warp_tiling"
    assert doctor.facts()["warnings"][-1] == line
    ran = convlab_("doctor")
    assert ran.exit_code == 0
    assert f"Warning: {line}" in " ".join(ran.stdout.split())


# What is compiled for a GPU that is not here.


@pytest.mark.skipif(bool(config.ENABLE_CUDASIM), reason="lint needs the real Numba")
def test_lint_refuses_them_by_name_and_leaves_them_out_otherwise(monkeypatch):
    of_s12 = reason("m15", gpu="sm_75")
    of_s14 = reason("t05", gpu="sm_80", capability=(8, 0))
    assert of_s12 in refused("lint", "m15", "--arch", "sm_90", "--arch", "sm_75")
    assert of_s14 in refused("lint", "t05", "--arch", "sm_80", "--arch", "sm_90")
    assert f"--compiled is 'sm_75': {of_s12}" in refused("trace", "m15", "--compiled", "sm_75")

    asked: list[tuple[str, tuple[int, int]]] = []

    def lint_all(tasks: list[gate.StageCompilation], jobs: int) -> Any:
        asked.extend((task.stage, gpu) for task in tasks for gpu in task.capabilities)
        return iter(())

    monkeypatch.setattr(gate, "lint_all", lint_all)
    monkeypatch.setattr(requirements, "check_compilers", lambda user: None)
    gpus = {(9, 0): (), (7, 5): TOO_NEW, (10, 0): ALONE}
    named = [word for gpu in gpus for word in ("--arch", "sm_{}{}".format(*gpu))]
    ran = convlab_("lint", *named, "--layer", "conv12")
    assert ran.exit_code == 0, ran.output
    older, newer = reason(gpu="sm_75"), reason(gpu="sm_100", capability=(10, 0))
    assert ran.stdout.startswith(f"left out: {older}\nleft out: {newer}\n")
    for gpu, absent in gpus.items():
        names = [stage.name for stage in LADDER if stage.name not in absent]
        assert [name for name, for_gpu in asked if for_gpu == gpu] == names

    # Nobody named sm_80, so nobody is refused.
    asked.clear()
    ran = convlab_("lint", "t05", "--layer", "conv12")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith(f"left out: {of_s14}\n")
    assert asked == [("t05_warpgroups", (9, 0))]


@pytest.mark.parametrize(("name", "gpu"), [("m15", (7, 5)), ("t05", (8, 0)), ("t05", (10, 0))])
def test_none_is_compiled_for_another_gpu(name, gpu):
    said = re.escape(reason(name, gpu="sm_{}{}".format(*gpu), capability=gpu))
    with pytest.raises(ValueError, match=f"^{said}$"):
        next(gate.lint_stage(stage_named(name), capabilities=((9, 0), gpu)))
    with pytest.raises(ValueError, match=rf"^compiled is {re.escape(str(gpu))}: {said}$"):
        trace_stage(name, compiled=gpu)
