"""Calls that cost the host little: which plans conv2d keeps on a GPU, and the benchmark."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from convlab import api, plans
from convlab.bench import calls, measured
from convlab.engines.simulator import Simulator
from convlab.oracle import Oracle, random_tensors
from convlab.plans import Plan
from convlab.problem import ConvProblem
from convlab.stages import Tile, stage_named


class PretendedGpu(Simulator):
    name, is_gpu, device = "gpu", True, "pretended GPU"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that conv2d makes, on a pretended GPU."""
    engine, made = PretendedGpu(strict=False), []

    def plan(problem: ConvProblem, stage: str, tile: Tile | None, name: str) -> Plan:
        chosen = stage_named(stage)
        made.append(Plan(problem, chosen, tile or chosen.tiny_tile, engine))
        return made[-1]

    monkeypatch.setattr(api, "choose", lambda name: engine)
    monkeypatch.setattr(api, "plan", plan)
    monkeypatch.setattr(api, "_current_gpu", lambda: 0)
    monkeypatch.setattr(api, "_kept", api._Kept())
    return made


def convolved(side: int, stage: str = "s10") -> np.ndarray:
    problem = ConvProblem(1, 1, side, side, 1, 2)
    input, weight, _ = random_tensors(problem, side)
    result = api.conv2d(input, weight, stage=stage)
    assert Oracle(problem, input, weight, None).check(result).ok
    return result


def test_conv2d_plans_a_convolution_once(made: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    for side in (4, 5, 4, 5, 4):
        convolved(side)
    assert len(made) == 2
    convolved(4, "s01")
    assert len(made) == 3
    monkeypatch.setattr(api, "_current_gpu", lambda: 1)
    convolved(4)
    assert len(made) == 4


def test_conv2d_keeps_the_last_plans_only(
    made: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "KEPT_PLANS", 2)
    for side in (4, 5, 4, 6, 4):  # 5 was used longest ago when 6 came
        convolved(side)
    assert [plan.problem.height for plan in made] == [4, 5, 6]
    convolved(5)
    assert len(made) == 4


def test_conv2d_keeps_little_workspace(made: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    convolved(4)
    one = made[0].workspace_bytes
    assert one > 0
    monkeypatch.setattr(api, "KEPT_BYTES", 2 * one)
    convolved(5)  # larger: with it, the other is too much
    assert [key[1].height for key in api._kept.plans] == [5]
    monkeypatch.setattr(api, "KEPT_BYTES", one)
    convolved(6)  # too large alone: used and not kept, and what is kept stays
    assert [key[1].height for key in api._kept.plans] == [5]
    assert len(made) == 3


def test_conv2d_plans_anew_in_every_thread(made: list[Plan]) -> None:
    convolved(4)
    thread = threading.Thread(target=convolved, args=(4,))
    thread.start()
    thread.join()
    assert len(made) == 2


def test_what_is_kept_makes_room_where_memory_is_short(
    made: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    convolved(4)
    plan = api.plan

    def short(*asked: Any) -> Plan:
        if api._kept.plans:
            raise MemoryError("too little")
        return plan(*asked)

    monkeypatch.setattr(api, "plan", short)
    convolved(5)
    assert [key[1].height for key in api._kept.plans] == [5]


@pytest.mark.parametrize("wrong", [{"stage": ["s01"]}, {"tile": {}}])
def test_what_cannot_be_a_key_is_plans_to_refuse(
    wrong: dict[str, Any], made: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "plan", lambda *asked: plans.plan(*asked[:3], "simulator"))
    with pytest.raises((TypeError, ValueError), match=r"^(stage|tile) is "):
        api.conv2d(np.ones((1, 1, 4, 4), "f4"), np.ones((1, 1, 2, 2), "f4"), **wrong)


# The benchmark, on a pretended GPU.


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PretendedGpu(strict=False)
    monkeypatch.setattr(measured, "choose", lambda name: engine)
    monkeypatch.setattr(calls, "conv2d", lambda *arrays, **options: None)
    monkeypatch.setattr(calls, "PROBLEM", ConvProblem(1, 1, 4, 4, 1, 2))
    monkeypatch.setattr(calls, "LADDER", tuple(map(stage_named, ("s01", "s02_cin", "s10"))))
    monkeypatch.setattr(calls, "_kinds", lambda engine: [("Numba", engine.to_device)])
    monkeypatch.setattr(calls, "RUNS", 2)
    monkeypatch.setattr(calls, "CALLS", 1)
    monkeypatch.setattr(Plan, "__init__", tiny(Plan.__init__))


def tiny(make: Any) -> Any:
    """Plans with the tiny tile: the simulator runs a GPU's, but slowly."""
    return lambda plan, problem, stage, tile, engine: make(
        plan, problem, stage, stage.tiny_tile, engine
    )


def test_the_benchmark_measures_and_writes(pretended, capsys, tmp_path) -> None:
    file = tmp_path / "calls.json"
    assert calls.main(["--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert [(row["stage"], row["arrays"]) for row in document["rows"]] == [
        ("s01_direct", "Numba"), ("s10_im2win", "Numba"),
    ]  # fmt: skip
    assert document["rows"][1]["launches"] == 2
    for row in document["rows"]:
        assert row["equal"]
        assert row["right"]
        assert row["packed"] is row["one_graph"] is False  # the simulator has nothing to pack
        assert min(row[f"{way}_us"] for way in ("plan", "moved", "numba", "conv2d")) > 0
    said = capsys.readouterr().out
    assert "At most 15 us are wanted" in said
    assert said.count("| s") == 3


def test_stages_take_turns(pretended, monkeypatch) -> None:
    called, call = [], Plan.__call__

    def noted(plan, *arrays, **options):
        called.append(plan.stage.name)
        return call(plan, *arrays, **options)

    monkeypatch.setattr(Plan, "__call__", noted)
    assert calls.main([]) == 0
    assert called == ["s01_direct", "s01_direct", "s10_im2win", "s10_im2win"] * 3


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_every_output_is_compared(wrong: int, pretended, monkeypatch) -> None:
    """That of planned calls, and both that calls take in turn."""
    case = ran("s01")
    assert case.row()["equal"]
    assert case.row()["right"]
    case._planned[wrong][0, 0, 0, 0] += 1
    assert not case.row()["equal"]
    assert not case.row()["right"]


def ran(stage: str) -> calls._Case:
    engine = PretendedGpu(strict=False)
    case = calls._Case(stage_named(stage), "Numba", engine.to_device, engine)
    for _ in range(3):  # the first warms up; every output once
        case.run_once()
    return case


@pytest.mark.parametrize(("stage", "right"), [("s01", False), ("s12", True)])
def test_the_last_bits_may_differ_where_sums_are_split(
    stage: str, right: bool, pretended, monkeypatch
) -> None:
    monkeypatch.setattr(calls, "PROBLEM", ConvProblem(1, 64, 3, 3, 4, 3))
    assert (stage_named(stage).atomic_additions(calls.PROBLEM) > 0) is right
    case = ran(stage)
    output = case._planned[0]
    output[0, 0, 0, 0] = np.nextafter(output[0, 0, 0, 0], np.float32(np.inf))
    row = case.row()
    assert (row["equal"], row["right"]) == (False, right)
    assert calls._name(row) == row["stage"] + (" (bits differ)" if right else " (WRONG)")
    output[0, 0, 0, 0] += 1
    assert not case.row()["right"]


def test_results_that_are_wrong_are_said_and_exit_1(pretended, capsys, monkeypatch) -> None:
    monkeypatch.setattr(Plan, "__call__", lambda *arrays, **options: None)
    assert calls.main([]) == 1
    assert "| s01_direct (WRONG) | Numba |" in capsys.readouterr().out
