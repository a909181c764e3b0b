"""One of several processes that train a small model together: ``python distributed_training.py WAY
RANK PROCESSES FOLDER``. Prints its losses as JSON, with PyTorch's layers and with convlab's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import convlab.torch

STEPS = 3


def model_of() -> nn.Module:
    """Return a model with two convolutions, equal in all processes."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 2, bias=False), nn.Flatten(),
        nn.Linear(24, 1),
    )  # fmt: skip


def together(way: str, model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model as its way of training takes it."""
    if "fully_shard" in way:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif "ddp" in way:
        model = DistributedDataParallel(model, [device.index] if device.type == "cuda" else None)
    return torch.compile(model, backend="aot_eager") if "compile" in way else model


def losses(way: str, rank: int, device: torch.device, ours: bool) -> list[float]:
    """Train on this process's part of the images; return the losses of all processes' parts."""
    model = model_of().to(device)
    if ours:
        assert convlab.torch.replace(model, "m01" if device.type == "cpu" else "auto") == 2
    model = together(way, model, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    found = []
    for _ in range(STEPS):
        images, right = torch.randn(2, 2, 4, 5, device=device), torch.randn(2, 1, device=device)
        loss = (model(images) - right).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        found.append(float(whole))
    return found


def main() -> None:
    way, rank, processes, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.backends.cudnn.allow_tf32 = False  # losses are compared to float32's accuracy
    on_gpus = torch.cuda.device_count() >= processes
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    store = Path(folder, "store").as_uri()
    dist.init_process_group(
        "nccl" if on_gpus else "gloo", init_method=store, rank=rank, world_size=processes
    )
    found = {name: losses(way, rank, device, name == "ours") for name in ("pytorch", "ours")}
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
