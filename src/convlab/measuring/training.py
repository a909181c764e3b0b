"""A whole model's training: the losses of many steps by convlab's layers and by PyTorch's.

Every system begins with the same ResNet-50 and sees the same batches: images of ten classes, each a
pattern of its own under noise. Sums in another order make losses differ more from step to step, so
PyTorch trains twice, the second time with the algorithms that it calls deterministic. Its two
curves say how far apart the same training may come. Each system has a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from convlab.measuring.models import BATCH, MODEL, SIZE, Row, row_of

START = "from convlab.measuring.training import main; main()"
STEPS, PATTERNS, PATTERN_SIZE = 200, 10, 7  # a pattern has so many rows and columns
WARM_UPS, WINDOW = 10, 10  # steps whose times do not count; steps whose losses are averaged
RATE, MOMENTUM, NOISE = 0.005, 0.9, 2.0


@dataclass(frozen=True)
class TrainingRun:
    """A system that trains in a process of its own; ``stage`` is that of convlab's layers, None for
    PyTorch's."""

    system: str
    stage: str | None = None
    deterministic: bool = False

    @property
    def name(self) -> str:
        """The name of the row if the process fails."""
        return "training"

    def program(self) -> list[str]:
        """Return the Python program of the process, and its arguments."""
        return [START, self.system]


TASKS = (
    TrainingRun("torch_fp32"),
    TrainingRun("torch_deterministic_fp32", deterministic=True),
    TrainingRun("convlab", stage="auto"),
)


# A process.


def main() -> None:
    """Train the system that the argument names, and print a JSON object for each row."""
    (task,) = (one for one in TASKS if one.system == sys.argv[1])
    for row in rows_of(task):
        print(json.dumps(row), flush=True)


def rows_of(task: TrainingRun, device: str = "cuda", steps: int = STEPS) -> Iterator[Row]:
    """Yield the row of a training: its ``losses``, and the time of a step, the first ten left out.
    Needs PyTorch."""
    import torch

    from convlab.measuring.baselines.resnet import resnet50

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = not task.deterministic
    torch.backends.cudnn.deterministic = task.deterministic
    torch.manual_seed(0)
    model = resnet50().to(device)
    if task.stage is not None:
        from convlab.running.torch_layers import replace

        replace(model, task.stage)
    losses, times = trained(torch, model, device, steps)
    what = f"{MODEL} training, {steps} steps"
    yield row_of(task.system, what, times[min(WARM_UPS, steps - 1) :], losses=losses)


def trained(torch: Any, model: Any, device: str, steps: int) -> tuple[list[float], list[float]]:
    """Train a model, and return the loss of each step and its milliseconds."""
    on_gpu = device == "cuda"
    generator = torch.Generator(device).manual_seed(1)
    patterns = torch.randn(
        PATTERNS, 3, PATTERN_SIZE, PATTERN_SIZE, generator=generator, device=device
    )
    patterns = torch.nn.functional.interpolate(patterns, size=(SIZE, SIZE))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    losses: list[Any] = []
    moments: list[Any] = []

    def moment() -> None:
        moments.append(torch.cuda.Event(enable_timing=True) if on_gpu else None)
        if on_gpu:
            moments[-1].record()

    moment()
    for _ in range(steps):
        labels = torch.randint(PATTERNS, (BATCH,), generator=generator, device=device)
        noise = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator, device=device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(patterns[labels] + NOISE * noise), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        moment()
    if not on_gpu:
        return torch.stack(losses).tolist(), [0.0] * steps
    torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in pairwise(moments)]
    return torch.stack(losses).tolist(), times


def distances(
    rows: list[Row], window: int = WINDOW, reference: str = TASKS[0].system
) -> dict[str, float]:
    """Return, by system, the largest distance of its losses from those of the reference, as means
    over so many steps; empty if the reference has no losses."""
    means = {
        row["system"]: [
            sum(row["losses"][first : first + window]) / window
            for first in range(len(row["losses"]) - window + 1)
        ]
        for row in rows
        if row["reason"] is None
    }
    if (first := means.get(reference)) is None:
        return {}
    return {
        system: max(abs(one - other) for one, other in zip(its, first, strict=True))
        for system, its in means.items()
    }
