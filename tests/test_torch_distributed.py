"""Models with convlab's layers are trained by several processes, as with PyTorch's own layers: with
gloo and the simulator, with NCCL where there are two GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", "2.4", reason="the layer is PyTorch's, which is optional")

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

WORKER = Path(__file__).parent / "distributed_training.py"
WAYS = ["ddp", "fully_shard", "compile", "ddp compile"]


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_train_with_pytorch_s_losses(way, tmp_path):
    if "fully_shard" in way:
        sharding = pytest.importorskip("torch.distributed.fsdp")
        if not hasattr(sharding, "fully_shard"):
            pytest.skip("this PyTorch has no fully_shard: 2.6 and later have it")
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), way, str(rank), "2", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, printed, strict=True):
        assert process.returncode == 0, errors
    found = [json.loads(out.splitlines()[-1]) for out, _ in printed]
    assert found[0] == found[1]  # each has the losses of both
    assert found[0]["ours"] == pytest.approx(found[0]["pytorch"], rel=1e-5)
    assert len(set(found[0]["ours"])) == 3
