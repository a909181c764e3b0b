"""``convlab bench --cases models``, up to what needs a GPU."""

from __future__ import annotations

import json
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from convlab.commands import bench_models, requirements
from convlab.commands.cli import app
from convlab.measuring import inference, models, training
from convlab.measuring.case_lists import LISTS, MODELS
from convlab.measuring.cases import EXPERIMENTS
from convlab.running.engines import unavailable

PRINTS = """
import json, sys
from convlab.measuring.models import row_of
system, extent, name = sys.argv[1:]
print("a library says something")
print(json.dumps(row_of(system, "resnet50 " + name + ", forward", [3.0, 4.0, 5.0], error=0.5)))
{more}
"""
PRINTS_TRAINING = """
import json, sys
from convlab.measuring.models import row_of
(system,) = sys.argv[1:]
print(json.dumps(row_of(system, "resnet50 training, 200 steps", [2.0], losses=[3.0, *[0.5] * 12])))
"""
PRINTS_INFERENCE = """
import json, sys
from convlab.measuring.models import row_of
(system,) = sys.argv[1:]
print(json.dumps(row_of(system, "resnet50 inference, CUDA graph", [1.0], error=0.0625)))
"""


@pytest.mark.skipif(unavailable("gpu") is None, reason="there is a GPU")
def test_without_a_gpu_it_is_refused_in_a_sentence(tmp_path):
    file = tmp_path / "models.json"
    result = CliRunner().invoke(app, ["bench", "--cases", "models", "--json", str(file)])
    assert result.exit_code == 2
    assert "convlab bench needs a GPU, because a simulator's times mean nothing" in result.output
    assert not file.exists()


def on_gpu(monkeypatch, tmp_path, more="", cases="models"):
    """Run the command as if there were a GPU; return its result and its document."""
    monkeypatch.setattr(models, "START", PRINTS.format(more=more))
    monkeypatch.setattr(inference, "START", PRINTS_INFERENCE)
    monkeypatch.setattr(training, "START", PRINTS_TRAINING)
    monkeypatch.setattr(requirements, "refuse_without_gpu", lambda verb: None)
    monkeypatch.setattr("convlab.running.engines.choose", lambda name: None)
    monkeypatch.setattr(bench_models, "find_spec", lambda name: True)
    file = tmp_path / "models.json"
    result = CliRunner().invoke(app, ["bench", "--cases", cases, "--json", str(file)])
    return result, json.loads(file.read_text())


def test_each_system_has_a_process_and_rows_like_those_of_bench(monkeypatch, tmp_path):
    result, document = on_gpu(monkeypatch, tmp_path)
    assert result.exit_code == 0, result.output
    assert (document["format"], document["version"]) == ("convlab models", 1)
    rows = document["rows"]
    assert [(row["system"], row["layer"]) for row in rows] == [
        ("torch_fp32", "resnet50 first call, forward"),
        ("convlab", "resnet50 first call, forward"),
        ("convlab", "resnet50 next process, forward"),
    ]
    assert {row["state"] for row in rows} == {"measured"}
    assert (rows[0]["time_ms"], rows[0]["time_spread"], rows[0]["repeats"]) == (4.0, 50.0, 3)
    assert rows[0]["error"] == 0.5
    assert document["environment"]["packages"]
    assert "resnet50 next process, forward" in result.output


def test_a_process_that_fails_leaves_its_rows_and_the_reason(monkeypatch, tmp_path):
    result, document = on_gpu(monkeypatch, tmp_path, more="sys.exit(7)")
    assert result.exit_code == 1
    last = document["rows"][-1]
    assert (last["state"], last["time_ms"]) == ("failed", None)
    assert last["reason"] == "its process ended with exit code 7"
    assert len(document["rows"]) == 6


def test_the_time_until_a_call_returns_begins_on_an_idle_gpu():
    happened: list[str] = []
    cuda = SimpleNamespace(synchronize=lambda: happened.append("idle"))
    times = models.until_return(SimpleNamespace(cuda=cuda), lambda: happened.append("call"))
    assert len(times) == models.REPEATS
    assert min(times) > 0
    assert happened == ["idle", "call"] * (models.WARM_UPS + models.REPEATS) + ["idle"]


def test_inference_has_a_process_for_each_system(monkeypatch, tmp_path):
    result, document = on_gpu(monkeypatch, tmp_path, cases="inference")
    assert result.exit_code == 0, result.output
    rows = document["rows"]
    assert [row["system"] for row in rows] == [task.system for task in inference.TASKS]
    assert {row["layer"] for row in rows} == {"resnet50 inference, CUDA graph"}
    assert {row["error"] for row in rows} == {0.0625}
    assert (
        "convlab_bf16, resnet50 inference, CUDA graph: 1 ms, relative error 0.062" in result.output
    )


def test_training_has_the_losses_of_each_system(monkeypatch, tmp_path):
    result, document = on_gpu(monkeypatch, tmp_path, cases="training")
    assert result.exit_code == 0, result.output
    rows = document["rows"]
    assert [row["system"] for row in rows] == [task.system for task in training.TASKS]
    said = "training, 200 steps: 2 ms a step, loss 3.000 at first, 0.500 over the last ten steps"
    assert f"convlab, resnet50 {said}" in result.output
    assert "convlab: ten steps' mean loss is within 0 of the first's" in result.output


def test_the_distance_of_two_trainings_is_that_of_their_means():
    rows = [
        models.row_of("first", "training", [1.0], losses=[1.0] * 12),
        models.row_of("noisy", "training", [1.0], losses=[1.5, 0.5] * 6),
        models.row_of("other", "training", [1.0], losses=[1.0] * 11 + [3.0]),
        models.row_of("failed", "training", reason="it failed"),
    ]
    assert training.distances(rows) == {}  # PyTorch has no losses
    assert training.distances(rows, reference="first") == {
        "first": 0.0,
        "noisy": 0.0,
        "other": pytest.approx(0.2),
    }


@pytest.mark.skipif(find_spec("torch") is None, reason="the model is PyTorch's")
def test_a_training_sees_the_same_batches_each_time():
    import torch

    def losses(bias: float) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.AvgPool2d(32), torch.nn.Flatten(), torch.nn.Linear(147, 10)
        )
        with torch.no_grad():
            model[2].bias += bias
        return training.trained(torch, model, "cpu", steps=12)[0]

    first, again, other = losses(0), losses(0), losses(0.5)
    assert first == again
    assert first[-1] < 0.5 * first[0]
    assert other == pytest.approx(first, rel=0.05)  # all classes alike


@pytest.mark.parametrize("cases", MODELS)
def test_without_pytorch_it_is_refused(cases, monkeypatch, tmp_path):
    monkeypatch.setattr(requirements, "refuse_without_gpu", lambda verb: None)
    monkeypatch.setattr("convlab.running.engines.choose", lambda name: None)
    monkeypatch.setattr(bench_models, "find_spec", lambda name: None)
    file = str(tmp_path / "models.json")
    result = CliRunner().invoke(app, ["bench", "--cases", cases, "--json", file])
    assert result.exit_code == 2
    assert f"--cases {cases} needs PyTorch" in result.output


def test_help_and_errors_name_all_cases():
    assert (*EXPERIMENTS,) == (*LISTS,)
    said = " ".join(CliRunner().invoke(app, ["bench", "--help"]).output.split())
    words = " ".join(word for word in said.split() if word != "│")
    for name in (*LISTS, *MODELS):
        assert name in words


@pytest.mark.skipif(find_spec("torch") is None, reason="the model is PyTorch's")
def test_the_model_is_resnet_50():
    import torch

    from convlab.measuring.baselines.resnet import resnet50

    with torch.device("meta"):
        model = resnet50()
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    assert sum(one.numel() for one in model.parameters()) == 25_557_032  # torchvision's
    assert sum(isinstance(one, torch.nn.Conv2d) for one in model.modules()) == 53


@pytest.mark.skipif(find_spec("torch") is None, reason="the model is PyTorch's")
def test_all_of_resnet_50_is_fused(monkeypatch):
    """PyTorch computes what the layers are asked for: as much as a simulator cannot."""
    import torch

    import convlab.torch
    from convlab.measuring.baselines.resnet import folded, resnet50, with_statistics

    def forward(layer, input, residual=None):
        weight, bias = layer.weight, layer.bias
        made = torch.nn.functional.conv2d(input, weight, bias, layer.stride, layer.padding)
        made = made if residual is None else made + residual
        return torch.relu(made) if layer.relu else made

    monkeypatch.setattr(convlab.torch.FusedConv2d, "forward", forward)
    torch.manual_seed(0)
    images = torch.randn(4, 3, 40, 40)
    with torch.no_grad():
        model = with_statistics(resnet50(), images)
        wanted = model(images)
        fused = convlab.torch.fuse(model)
        torch.testing.assert_close(fused(images), wanted, rtol=1e-3, atol=1e-3)
        layers = [one for one in fused.modules() if isinstance(one, convlab.torch.FusedConv2d)]
        assert (len(layers), sum(one.relu for one in layers)) == (53, 49)
        adding = [node for node in fused.graph.nodes if len(node.args) == 2]
        assert len(adding) == 16
        kinds = {type(one) for one in fused.modules()}
        assert not kinds & {torch.nn.BatchNorm2d, torch.nn.ReLU, torch.nn.Conv2d}
        torch.testing.assert_close(folded(model)(images), wanted, rtol=1e-3, atol=1e-3)
        assert not any(isinstance(one, torch.nn.BatchNorm2d) for one in model.modules())
