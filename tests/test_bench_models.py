"""``convlab bench --cases models``, up to what needs a GPU."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from convlab.commands import bench as command
from convlab.commands import bench_models, requirements
from convlab.commands.cli import app
from convlab.measuring import models
from convlab.running.engines import unavailable

PRINTS = """
import json, sys
from convlab.measuring.models import row_of
system, extent, name = sys.argv[1:]
print("a library says something")
print(json.dumps(row_of(system, "resnet50 " + name + ", forward", [3.0, 4.0, 5.0], error=0.5)))
{more}
"""


@pytest.mark.skipif(unavailable("gpu") is None, reason="there is a GPU")
def test_without_a_gpu_it_is_refused_in_a_sentence(tmp_path):
    file = tmp_path / "models.json"
    result = CliRunner().invoke(app, ["bench", "--cases", "models", "--json", str(file)])
    assert result.exit_code == 2
    assert "convlab bench needs a GPU, because a simulator's times mean nothing" in result.output
    assert not file.exists()


def on_gpu(monkeypatch, tmp_path, more=""):
    """Run the command as if there were a GPU; return its result and its document."""
    monkeypatch.setattr(models, "START", PRINTS.format(more=more))
    monkeypatch.setattr(requirements, "refuse_without_gpu", lambda verb: None)
    monkeypatch.setattr("convlab.running.engines.choose", lambda name: None)
    monkeypatch.setattr(bench_models, "find_spec", lambda name: True)
    file = tmp_path / "models.json"
    result = CliRunner().invoke(app, ["bench", "--cases", "models", "--json", str(file)])
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


def test_without_pytorch_it_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(requirements, "refuse_without_gpu", lambda verb: None)
    monkeypatch.setattr("convlab.running.engines.choose", lambda name: None)
    monkeypatch.setattr(bench_models, "find_spec", lambda name: None)
    file = str(tmp_path / "models.json")
    result = CliRunner().invoke(app, ["bench", "--cases", command.MODELS, "--json", file])
    assert result.exit_code == 2
    assert "--cases models needs PyTorch" in result.output


@pytest.mark.skipif(find_spec("torch") is None, reason="the model is PyTorch's")
def test_the_model_is_resnet_50():
    import torch

    from convlab.measuring.baselines.resnet import resnet50

    with torch.device("meta"):
        model = resnet50()
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    assert sum(one.numel() for one in model.parameters()) == 25_557_032  # torchvision's
    assert sum(isinstance(one, torch.nn.Conv2d) for one in model.modules()) == 53
