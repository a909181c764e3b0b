"""``convlab bench --cases``: its lists of cases, on a pretended GPU."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from bench_fakes import Fakes, interrupt_at, pretend_gpu, small_layer
from pretended_gpu import PretendedGpu
from typer.testing import CliRunner

from convlab.commands.cli import app
from convlab.ladder import ABLATION, BACKWARD, stage_named
from convlab.ladder.gradients.g02_exchanged_roles import through
from convlab.measuring import cases, systems
from convlab.measuring.baselines import unfold_table
from convlab.problems import workloads
from convlab.problems.oracle import Oracle, random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import GROUPED, LAYER_NAMES, UNSEEN, UNTUNED, paper_layer

pytestmark = pytest.mark.same_in_cudasim

SMALL = ConvProblem(1, 2, 6, 6, 3, 3)
SWEPT = (SMALL, ConvProblem(1, 2, 9, 9, 3, 3), ConvProblem(1, 2, 6, 6, 3, 1))  # each once
ON_CONVOLUTION, ON_GRADIENT = ((*own, *cases.GRADIENT_SYSTEMS) for own in cases.OF_EACH)
LINES = unfold_table.LINES
SIZE, *_, ANOTHER = UNTUNED


class Named(Fakes):
    """Any name is a system that computes rightly."""

    def system_named(self, name):
        return replace(super().system_named("right"), name=name)


@pytest.fixture
def first_calls(monkeypatch):
    """A GPU; problems that NumPy computes at once. What is returned is called for first calls."""
    calls = Mock(return_value={name: {"ms": 9.0} for name in LINES})
    pretend_gpu(monkeypatch, "test_experiments:Named")
    monkeypatch.setattr(unfold_table, "first_calls", calls)
    for name, value in {
        "PAPER_BATCH": 1,
        "paper_layer": small_layer,
        "LAYER_NAMES": ("conv12",),
        "UNFOLDED": SMALL,
        "SIZES": {SIZE: SMALL, ANOTHER: replace(SMALL, batch=2)},
        "UNSEEN_21": {"resnet_1 x 1": SMALL},
        "GROUPED": {"resnext50_1": ConvProblem(1, 4, 6, 6, 2, 3, groups=2)},
        "SWEEP_BASE": SMALL,
        "SWEEPS": {"size": (6, 9), "kernel_size": (1, 3)},
    }.items():
        monkeypatch.setattr(cases, name, value)
    return calls


def run(name, file, expected=0):
    result = CliRunner().invoke(app, ["bench", "--cases", name, "--json", str(file)])
    assert result.exit_code == expected, result.stderr
    return json.loads(file.read_text())


@pytest.mark.parametrize(
    ("name", "layers", "names"),
    [
        ("sizes", [SIZE, ANOTHER], cases.SIZE_SYSTEMS),
        ("unseen", ["resnet_1 x 1"], cases.UNSEEN_SYSTEMS),
        ("grouped", ["resnext50_1"], ("grouped", "torch_fp32")),
        ("gradients", ["conv12"], ON_CONVOLUTION),
        ("ablation", ["conv12"], (systems.WHOLE, *systems.VARIANTS)),
        ("sweeps", [*map(str, SWEPT)], cases.SWEEP_SYSTEMS),
        ("unfold_table", [str(SMALL)], cases.UNFOLD_SYSTEMS),
    ],
)
def test_every_system_is_measured_on_every_problem(name, layers, names, first_calls, tmp_path):
    file = tmp_path / "results.json"
    document = run(name, file)
    rows = document["rows"]
    expected = [(layer, one) for layer in layers for one in names]
    if name == "gradients":
        both = ("conv12 dinput", "conv12 dweight")
        expected += [(layer, one) for layer in both for one in ON_GRADIENT]
        assert [row["layer"] for row in rows] == sorted(row["layer"] for row in rows)
    assert sorted((row["layer"], row["system"]) for row in rows) == sorted(expected)
    assert {row["state"] for row in rows} == {"measured"}
    if name in ("sweeps", "unfold_table"):
        assert [row["problem"] for row in rows] == [row["layer"] for row in rows]
    assert document["ok"] is True
    assert len(document.get("points", ())) == (4 if name == "sweeps" else 0)
    assert ("first_calls" in document) == (name == "unfold_table")
    again = run(name, file)  # keeps all there is
    assert again.pop("commands") == 2 * document.pop("commands")
    assert again | {"environment": 0, "finished": 0} == document | {"environment": 0, "finished": 0}


def test_an_interrupted_run_goes_on_and_keeps_first_calls(first_calls, monkeypatch, tmp_path):
    file = tmp_path / "results.json"
    interrupt_at(monkeypatch, 4)
    kept = run("unfold_table", file, expected=130)["rows"]
    assert len(kept) == 3
    document = run("unfold_table", file)
    assert [row for row in document["rows"] if row in kept] == kept
    assert len(document["rows"]) == len(cases.UNFOLD_SYSTEMS)
    first_calls.assert_called_once()


def test_sizes_are_problems_that_no_tile_was_tuned_for():
    problems = [*map(str, [*UNTUNED.values(), *UNSEEN.values()])]
    assert len({*problems}) == len(problems) == len({*UNTUNED, *UNSEEN})
    assert not {*problems} & {str(paper_layer(name)) for name in LAYER_NAMES}


@pytest.mark.parametrize("name", GROUPED)
def test_the_kernel_for_groups_computes_each_layer_in_small(name, checked_in_simulator):
    whole = GROUPED[name]
    channels = 2 * whole.in_channels // whole.groups  # two groups as wide as the layer's
    sizes = {"in_channels": channels, "out_channels": channels, "groups": 2}
    small = replace(whole, batch=2, height=5, width=4, **sizes)
    assert checked_in_simulator(small, stage_named("grouped"), random_tensors(small, 1)).ok


def test_auto_is_the_stage_that_a_plan_takes(monkeypatch):
    hopper = PretendedGpu("H100", (9, 0), sms=132, strict=False)
    monkeypatch.setattr(systems, "choose", lambda name: hopper)
    auto = systems.system_named("auto")
    assert (auto.name, auto.kind, auto.why_absent()) == ("auto", "stage", None)
    assert auto.allowances(SMALL)["split_products"]
    assert auto.allowances(SMALL)["atomic_additions"] >= 0
    made = []
    monkeypatch.setattr(
        systems, "PreparedStage", lambda stage, *_: made.append(stage) or Mock(algorithm=None)
    )
    for batch, expected in ((1, "m15"), (32, "t06")):
        problem = ConvProblem(batch, 512, 7, 7, 512, 3, padding=1)
        auto.prepare(problem, None, None)
        assert made.pop() is stage_named(expected)


def test_a_variant_is_m11_with_one_switch_off():
    for name, switch in systems.VARIANTS.items():
        variant = systems.system_named(name)
        assert variant.name == name
        stage, tile, switches = variant.prepare.args  # of PreparedStage
        assert (stage, tile, switches) == (ABLATION, None, {switch: False})
        assert switch in ABLATION.switches
    assert systems.system_named(systems.WHOLE).prepare.args[2] == {}
    program = ABLATION.prepare(ConvProblem(1, 4, 8, 8, 8, 3), ABLATION.tiny_tile, microkernel=False)
    assert program.tile.M_T == program.tile.N_T == 1


def test_on_a_gradient_a_stage_is_b02_by_that_stage():
    g01, m15 = BACKWARD[0], stage_named("m15")
    for layer in workloads.gradients({"conv9": paper_layer("conv9", 1)}).values():
        assert systems.stage_on(layer, m15) is through(m15)
        assert systems.stage_on(layer, g01) is g01
        allowed = systems.system_named(m15.name).allowances(layer)
        assert allowed["atomic_additions"] > 0  # of split-K, in the convolution that g02 makes
    assert systems.stage_on(SMALL, m15) is m15


# Table 1 of article 002.


def test_failed_first_calls_are_tried_again(first_calls):
    whole = {"first_calls": {name: {"ms": 1.0} for name in LINES}}
    assert unfold_table.first_calls_once(whole) == whole
    first_calls.assert_not_called()
    broken = {"first_calls": whole["first_calls"] | {"conv2d": {"reason": "its process ended"}}}
    for older in ({}, broken):
        times = unfold_table.first_calls_once(older)["first_calls"]
        assert {one["ms"] for one in times.values()} == {9.0}


def test_first_calls_tell_of_each_row_in_turn(monkeypatch):
    absent = {name: "not installed" if "unfoldnd" in name else None for name in LINES}
    systems = {name: Mock(**{"why_absent.return_value": why}) for name, why in absent.items()}
    monkeypatch.setattr(unfold_table, "ROWS", systems)
    monkeypatch.setattr(unfold_table, "_tensors", lambda: [None, None])
    monkeypatch.setattr(unfold_table, "flags", lambda **_: nullcontext())
    monkeypatch.setattr(unfold_table, "computation", lambda line, *_: line)
    timed = {line: float(ms) for ms, line in enumerate(LINES.values())}
    assert unfold_table.time_first_calls(timed.__getitem__) == {
        name: {"reason": absent[name]} if absent[name] else {"ms": timed[line]}
        for name, line in LINES.items()
    }


def test_a_process_of_first_calls_that_says_nothing_is_a_reason(monkeypatch):
    ended = SimpleNamespace(stdout="", returncode=1)
    monkeypatch.setattr(unfold_table.subprocess, "run", lambda *_, **__: ended)
    assert "IndexError" in unfold_table.first_calls()["conv2d"]["reason"]


def test_where_tf32_may_round_the_row_is_checked_as_tf32():
    rounded = {name for name in LINES if systems.system_named(name).precision == "tf32"}
    assert rounded == {"conv2d_tf32", "fast_torch_tf32", "fast_unfoldnd", "fast_unfoldnd_tf32"}


def test_the_rows_compute_the_convolution():
    """Each row's own calls, by PyTorch on the CPU."""
    torch = pytest.importorskip("torch")
    input, weight, _ = random_tensors(SMALL, 0, bias=False)
    oracle = Oracle(SMALL, input, weight)
    for name, line in LINES.items():
        if line.by == "unfoldnd":
            pytest.importorskip("unfoldNd")
        tensors = [torch.from_numpy(array) for array in (input, weight)]
        output = unfold_table.computation(line, SMALL, *tensors)()
        assert oracle.check(output.numpy()).ok, name
