"""A GPU that a stage cannot run on, older than it needs or newer: refused in a sentence, left out,
and not what auto takes. The GPU is a simulator that says it is one."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from numba.cuda.core import config
from typer.testing import CliRunner

from convlab import ConvProblem, Tile, api, cli, doctor, engines, ladder, plans
from convlab.bench import measured, sanitizers, systems, tuning
from convlab.commands import lint as lint_command
from convlab.engines import EngineUnavailable
from convlab.engines.gpu import Gpu
from convlab.engines.simulator import Simulator
from convlab.lint import lint_stage
from convlab.oracle import Oracle, random_tensors
from convlab.plans import Plan, auto_stage, plan, stages_for
from convlab.stages import LADDER, Stage, stage_named
from convlab.tracing import trace_stage
from convlab.tuned import sources

pytestmark = pytest.mark.same_in_cudasim

PROBLEM = ConvProblem(1, 2, 5, 4, 3, 2)
COPYING = tuple(stage.name for stage in LADDER if stage.requires and not stage.requires.exact)
ALONE = "s14_warpgroups"
TOO_NEW = (*COPYING, ALONE)
COPIES = "a GPU of compute capability 8.0 or higher, for asynchronous copies"
HOPPER = "a GPU of compute capability 9.0, no other, for its tensor cores' own instruction, wgmma"
NEEDED = dict.fromkeys(COPYING, COPIES) | {ALONE: HOPPER}


def alone(gpu: str) -> str:
    return f"stage {ALONE} needs {HOPPER}: {gpu}"


def all_of_them(gpu: str) -> str:
    return f"stages {', '.join(COPYING)} need {COPIES}: {gpu}; {alone(gpu)}"


ALL = all_of_them("Tesla T4 has 7.5")


class PretendedGpu(Simulator):
    name, is_gpu = "gpu", True

    def __init__(self, *capability: int, device: str = "Tesla T4") -> None:
        super().__init__(strict=False)
        self._capability, self.device = capability, device

    def capability(self) -> Any:
        return self._capability


T4 = PretendedGpu(7, 5)
A100, H200 = PretendedGpu(8, 0, device="A100"), PretendedGpu(9, 0, device="H200")
B200 = PretendedGpu(10, 0, device="B200")


@pytest.fixture
def t4(monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    """Wherever an engine is chosen, it is that GPU."""
    for module in (api, engines, measured, plans, sanitizers, systems, tuning):
        monkeypatch.setattr(module, "choose", lambda name: T4)
    monkeypatch.setattr(api, "_current_gpu", lambda: 0)
    monkeypatch.setattr(api, "_kept", api._Kept())
    return T4


def convlab(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), prog_name="convlab")


def refused(*arguments: str) -> str:
    """The one line of standard error with which the command ends, status 2."""
    ran = convlab(*arguments)
    assert ran.exit_code == 2
    assert ran.stderr.count("\n") == 1
    return ran.stderr


# Which stages these are.


@pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.name)
def test_a_stage_requires_what_it_and_its_kernels_use(stage: Stage) -> None:
    text = "".join(
        file.read_text()
        for file in sources(stage.module)
        if file.parent.name in ("stages", "kernels")
    )
    newer, only_there = "commit_copies" in text or "mma_tf32" in text, "start_product" in text
    least = (9, 0) if only_there else (8, 0) if newer else None
    required = (None, False)
    if stage.requires is not None:
        required = stage.requires.capability, stage.requires.exact
    assert required == (least, only_there)
    assert (stage.name in TOO_NEW, stage.name == ALONE) == (newer, only_there)


@pytest.mark.parametrize(
    ("capability", "absent", "auto"),
    [
        ((7, 5), TOO_NEW, "s11"), ((8, 0), (ALONE,), "s12"), ((8, 9), (ALONE,), "s12"),
        ((9, 0), (), "s12"), ((10, 0), (ALONE,), "s12"), ((12, 0), (ALONE,), "s12"),
    ],
    ids=str,
)  # fmt: skip
def test_which_gpus_run_them(
    capability: tuple[int, int], absent: tuple[str, ...], auto: str
) -> None:
    gpu = PretendedGpu(*capability)
    assert tuple(stage.name for stage in LADDER if stage not in stages_for(gpu)[0]) == absent
    assert auto_stage(gpu) is stage_named(auto)


def test_simulators_and_an_h200_run_all() -> None:
    assert stages_for(H200) == (LADDER, None)
    for simulator in (Simulator(), engines.choose("cudasim")):
        assert simulator.capability() is None
        assert stages_for(simulator) == (LADDER, None)


@pytest.mark.parametrize(
    ("gpu", "has"), [(A100, "A100 has 8.0"), (B200, "B200 has 10.0")], ids=["A100", "B200"]
)
def test_s14_is_for_its_own_gpu_alone(gpu: PretendedGpu, has: str) -> None:
    assert stages_for(gpu)[1] == alone(has)
    with pytest.raises(EngineUnavailable, match=re.escape(alone(has))):
        Plan(PROBLEM, stage_named("s14"), None, gpu)
    assert doctor_says(gpu) == [f"{alone(has)}; stage auto is s12_fused_im2win"]


def doctor_says(gpu: PretendedGpu) -> list[str]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engines, "choose", lambda name: gpu)
        return doctor._stages_left_out("gpu")


def test_name_and_capability_are_the_current_gpu_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several, it may be another than a moment ago."""
    gpu = Gpu()
    for name, capability in ((b"Tesla T4", (7, 5)), ("NVIDIA H200", (9, 0))):
        device = SimpleNamespace(name=name, compute_capability=capability)
        monkeypatch.setattr("convlab.engines.gpu.cuda.get_current_device", lambda now=device: now)
        assert gpu.device == (name.decode() if isinstance(name, bytes) else name)
        assert gpu.capability() == capability


# Plans.


@pytest.mark.parametrize("name", TOO_NEW)
def test_a_plan_is_refused_before_anything_is_made(
    name: str, t4: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "program_for", lambda *_, **__: pytest.fail("it was prepared"))
    for call in (
        lambda: plan(PROBLEM, name),
        lambda: Plan(PROBLEM, stage_named(name), None, t4),
        lambda: api.conv2d(*random_tensors(PROBLEM, 0), stage=name),
    ):
        with pytest.raises(EngineUnavailable, match=rf"^stage {name} needs .* Tesla T4 has 7\.5$"):
            call()


def test_auto_works_on_an_older_gpu(t4: PretendedGpu) -> None:
    assert plan(PROBLEM).stage is stage_named("s11")
    assert plan(PROBLEM, tile=Tile(16, 8, 8, 4, 4)).tile == Tile(16, 8, 8, 4, 4)
    input, weight, bias = random_tensors(PROBLEM, 3)
    result = api.conv2d(input, weight, bias)
    assert Oracle(PROBLEM, input, weight, bias).check(result).ok
    (kept,) = api._kept.plans.values()
    assert kept.stage is stage_named("s11")


# What is left out of the ladder.


def test_they_are_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    stages, left_out = stages_for(T4)
    assert [stage.name for stage in LADDER if stage not in stages] == list(TOO_NEW)
    assert left_out == ALL
    s11, s12 = stage_named("s11"), stage_named("s12")
    assert stages_for(T4, (s11,)) == ((s11,), None)
    of_s12 = f"stage s12_fused_im2win needs {COPIES}: Tesla T4 has 7.5"
    assert stages_for(T4, (s11, s12)) == ((s11,), of_s12)
    # Where there is no library either, both reasons are said.
    monkeypatch.setattr(PretendedGpu, "why_no_library", lambda self: "there is none")
    stages, left_out = stages_for(T4)
    assert len(stages) == len(LADDER) - len(TOO_NEW) - 2
    assert left_out == f"{ALL}; s03_im2col_blas, s03_unfold_einsum: there is none"
    monkeypatch.setattr(PretendedGpu, "why_no_library", lambda self: pytest.fail("it is imported"))
    assert stages_for(T4, (s12,))[1] == of_s12


def test_the_ladder_leaves_them_out_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulator, "capability", lambda self: (7, 5))
    monkeypatch.setattr(Simulator, "device", "Tesla T4")
    monkeypatch.setattr(ladder, "default_problem", lambda engine: PROBLEM)  # a second
    ran = convlab("ladder", "--engine", "simulator")
    assert ran.exit_code == 0, ran.output
    assert f"left out        {ALL}\n" in ran.stdout
    assert f"All {len(LADDER) - len(TOO_NEW)} stages are right" in ran.stdout
    told = refused("ladder", "--engine", "simulator", "--stage", "s12", "--stage", "s01")
    assert f"stage s12_fused_im2win needs {COPIES}: Tesla T4 has 7.5" in told


@pytest.mark.parametrize("name", [name for name in TOO_NEW if stage_named(name).tiles.candidates])
def test_they_are_not_tuned(
    name: str, t4: PretendedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "measure_all", lambda *_: pytest.fail("work was done"))
    said = f"stage {name} needs {NEEDED[name]}: Tesla T4 has 7.5"
    assert said in refused("tune", "--stage", name)
    assert not (tmp_path / "cache").exists()


def test_they_are_absent_from_benchmarks(
    t4: PretendedGpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, needed in NEEDED.items():
        system = systems.system_named(name)
        assert system.why_absent() == f"stage {name} needs {needed}: Tesla T4 has 7.5"
    assert systems.system_named("s11_im2win_full").why_absent() is None
    monkeypatch.setattr(systems, "program_for", lambda *_, **__: pytest.fail("it was prepared"))
    system.compile(PROBLEM)

    def measure(engine: Any) -> dict[str, Any]:
        return {"plan": Plan(PROBLEM, stage_named("s12"), None, engine)}

    assert measured.run_module("here", "", measure, str, [], needs_gpu=True) == 2
    assert capsys.readouterr().err.startswith("convlab: stage s12_fused_im2win needs a GPU of")


def test_the_sanitizer_is_told(
    t4: PretendedGpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def cases(stages: tuple[Stage, ...]) -> list[Any]:
        asked.extend(stage.name for stage in stages)
        return []

    monkeypatch.setattr(sanitizers, "cases", cases)
    assert sanitizers.run_stages([]) == 0
    assert asked == [one.name for one in sanitizers.STAGES if one.name not in TOO_NEW]
    assert capsys.readouterr().out.startswith(f"left out: {ALL}\n")
    assert sanitizers.run_stages(["--stage", "s13", "--stage", "s01"]) == 2
    said = f"stage s13_tensor_cores needs {COPIES}: Tesla T4 has 7.5\n"
    assert capsys.readouterr().err == said


def test_the_doctor_says_so(t4: PretendedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_would_use", lambda *_: {"engine": "gpu", "why": "it works"})
    line = f"{ALL}; stage auto is s11_im2win_full"
    assert doctor.facts()["warnings"][-1] == line
    ran = convlab("doctor")
    assert ran.exit_code == 0
    assert f"Warning: {line}" in " ".join(ran.stdout.split())
    assert doctor_says(H200) == doctor._stages_left_out("simulator") == []


# What is compiled for a GPU that is not here.


real_numba = pytest.mark.skipif(bool(config.ENABLE_CUDASIM), reason="lint needs the real Numba")


@real_numba
def test_lint_refuses_them_by_name_and_leaves_them_out_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from convlab import lint as gate

    of_s12 = f"stage s12_fused_im2win needs {COPIES}: sm_75 has 7.5"
    assert of_s12 in refused("lint", "s12", "--arch", "sm_90", "--arch", "sm_75")
    assert alone("sm_80 has 8.0") in refused("lint", "s14", "--arch", "sm_80", "--arch", "sm_90")
    told = refused("trace", "s12", "--compiled", "sm_75")
    assert "--compiled is 'sm_75': stage s12_fused_im2win needs a GPU of" in told

    asked: list[tuple[str, tuple[int, int]]] = []

    def lint_all(tasks: list[gate.Task], jobs: int) -> Any:
        asked.extend((task.stage, task.capability) for task in tasks)
        return ([] for _ in tasks)

    monkeypatch.setattr(gate, "lint_all", lint_all)
    monkeypatch.setattr(lint_command, "check_compilers", lambda user: None)
    gpus = ("--arch", "sm_90", "--arch", "sm_75", "--arch", "sm_100")
    ran = convlab("lint", *gpus, "--layer", "conv12")
    assert ran.exit_code == 0, ran.output
    old, new = (
        f"left out: {said}\n" for said in (all_of_them("sm_75 has 7.5"), alone("sm_100 has 10.0"))
    )
    assert ran.stdout.startswith(old + new)
    names = [stage.name for stage in LADDER]
    assert [name for name, gpu in asked if gpu == (9, 0)] == names
    assert [name for name, gpu in asked if gpu == (7, 5)] == [
        name for name in names if name not in TOO_NEW
    ]
    assert [name for name, gpu in asked if gpu == (10, 0)] == names[:-1]

    # Nobody named sm_80, so nobody is refused.
    asked.clear()
    ran = convlab("lint", "s14", "--layer", "conv12")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith(f"left out: {alone('sm_80 has 8.0')}\n")
    assert asked == [(ALONE, (9, 0))]


@pytest.mark.parametrize(
    ("name", "gpu", "has"),
    [("s12", (7, 5), "sm_75 has 7.5"), ("s14", (8, 0), "sm_80 has 8.0"),
     ("s14", (10, 0), "sm_100 has 10.0")],
)  # fmt: skip
def test_none_is_compiled_for_another_gpu(name: str, gpu: tuple[int, int], has: str) -> None:
    stage = stage_named(name)
    said = re.escape(f"stage {stage.name} needs {NEEDED[stage.name]}: {has}")
    with pytest.raises(ValueError, match=f"^{said}$"):
        next(lint_stage(stage, capabilities=((9, 0), gpu)))
    with pytest.raises(ValueError, match=rf"^compiled is {re.escape(str(gpu))}: {said}$"):
        trace_stage(name, compiled=gpu)
