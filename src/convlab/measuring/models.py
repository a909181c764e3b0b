"""A whole model, measured: what somebody meets who puts convlab's layers into it.

A process of its own for each system, so that "first" means first. convlab's first call begins with
an empty cache of kernels; "next process" is another process that finds the kernels on disk.
:func:`measured` starts the processes, :func:`main` is what each runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median, quantiles
from threading import Timer
from typing import Any, Protocol

FORMAT, VERSION = "convlab models", 1
MODEL, BATCH, SIZE = "resnet50", 32, 224
HOST_SHAPE, HOST_CHANNELS = (1, 64, 14, 14), 64  # of calls whose arithmetic takes less than a call
WARM_UPS, REPEATS, HOST_CALLS, HOST_ROUNDS = 3, 20, 200, 31
PROCESS_SECONDS = 600.0  # a process may take no longer
START = "from convlab.measuring.models import main; main()"

# The systems by name: whether their layers are convlab's, and the stage of these.
SYSTEMS: dict[str, str | None] = {"torch_fp32": None, "convlab": "auto"}

Row = dict[str, Any]


@dataclass(frozen=True)
class ModelRun:
    """A system to measure in a process; if not ``steady``, only its first calls."""

    system: str
    steady: bool
    name: str  # of the first calls: "first call" or "next process"

    def program(self) -> list[str]:
        """Return the Python program of the process, and its arguments."""
        return [START, self.system, "steady" if self.steady else "first", self.name]


TASKS = (
    ModelRun("torch_fp32", True, "first call"),
    ModelRun("convlab", True, "first call"),
    ModelRun("convlab", False, "next process"),
)


class Task(Protocol):
    """A process that measures a system; ``name`` is that of the row if it fails."""

    @property
    def system(self) -> str: ...

    @property
    def name(self) -> str: ...

    def program(self) -> list[str]: ...


def measured(on_row: Callable[[Row], None], tasks: Sequence[Task] = TASKS) -> list[Row]:
    """Measure the model in one process after the other, and return all rows; ``on_row`` is told of
    each. A process that fails leaves a row with the reason."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="convlab-models-") as cache:
        for task in tasks:
            for row in _of_process(task, cache):
                rows.append(row)
                on_row(row)
    return rows


def _of_process(task: Task, cache: str) -> Iterator[Row]:
    """Yield the rows of a task's process."""
    environment = os.environ | {
        "CONVLAB_CACHE": cache,
        "CONVLAB_CACHE_LIMIT": "512",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", *task.program()],
        stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    limit = Timer(PROCESS_SECONDS, process.kill)
    limit.start()
    try:
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
        code = process.wait()
    finally:  # also where the reader was interrupted
        limit.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
    if code:
        reason = f"its process ended with exit code {code}"
        yield row_of(task.system, f"{MODEL} {task.name}", reason=reason)


def row_of(
    system: str, what: str, times_ms: list[float] | None = None, reason: str | None = None,
    **more: object,
) -> Row:  # fmt: skip
    """Return a row in the shape of ``convlab bench``'s: a number, or the reason why there is
    none."""
    row: Row = {
        "layer": what,
        "batch": BATCH,
        "system": system,
        "state": "failed" if times_ms is None else "measured",
        "reason": reason,
        "time_ms": None,
        "time_spread": None,
        "repeats": None,
    }
    if times_ms is not None:
        middle = median(times_ms)
        low, _, high = quantiles(times_ms, n=4) if len(times_ms) > 1 else (middle,) * 3
        row |= {
            "time_ms": middle,
            "time_spread": 100 * (high - low) / middle,
            "repeats": len(times_ms),
        }
    return row | more | {"date": datetime.now(UTC).isoformat(timespec="seconds")}


# A process.


def main() -> None:
    """Measure the system that the arguments name, and print a JSON object for each row."""
    system, extent, name = sys.argv[1:4]
    begun = time.perf_counter()
    for row in rows_of(system, SYSTEMS[system], extent == "steady", name, begun):
        print(json.dumps(row), flush=True)


def rows_of(system: str, stage: str | None, steady: bool, name: str, begun: float) -> Iterator[Row]:
    """Yield a process's rows. Needs PyTorch and a GPU."""
    import torch

    from convlab.measuring.baselines.resnet import resnet50

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    model = resnet50().cuda()
    images = torch.randn(BATCH, 3, SIZE, SIZE, device="cuda")
    labels = torch.randint(0, 1000, (BATCH,), device="cuda")
    right = None
    if stage is not None:
        from convlab.running.torch_layers import replace

        if steady:
            right = _loss(torch, model, images, labels).item()  # by PyTorch's layers
        replace(model, stage)
    torch.cuda.synchronize()
    ready = time.perf_counter()
    loss = _loss(torch, model, images, labels)
    torch.cuda.synchronize()
    forward = time.perf_counter()
    loss.backward()
    torch.cuda.synchronize()
    backward = time.perf_counter()
    error = {} if right is None else {"error": abs(loss.item() - right) / abs(right)}
    yield row_of(system, f"{MODEL} {name}, forward", [1e3 * (forward - ready)], **error)
    yield row_of(system, f"{MODEL} {name}, backward", [1e3 * (backward - forward)])
    yield row_of(system, f"{MODEL} {name}, whole process", [1e3 * (backward - begun)])
    if steady:
        yield from _steady(torch, system, stage, model, images, labels)


def _loss(torch: Any, model: Any, images: Any, labels: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(images), labels)


def _steady(
    torch: Any, system: str, stage: str | None, model: Any, images: Any, labels: Any
) -> Iterator[Row]:
    """Yield the rows of calls after the first."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        _loss(torch, model, images, labels).backward()
        optimizer.step()

    yield row_of(system, f"{MODEL} training step", by_events(torch, step))
    yield row_of(system, f"{MODEL} training step, host", until_return(torch, step))
    model.eval()
    with torch.no_grad():
        yield row_of(system, f"{MODEL} forward, eager", by_events(torch, lambda: model(images)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(images)
        yield row_of(system, f"{MODEL} forward, CUDA graph", by_events(torch, graph.replay))
    yield from _host(torch, system, stage)


def by_events(torch: Any, call: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Return the milliseconds of single calls on an idle GPU, the host's part included."""
    times = []
    for number in range(WARM_UPS + repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        if number >= WARM_UPS:
            times.append(first.elapsed_time(last))
    return times


def until_return(torch: Any, call: Callable[[], object]) -> list[float]:
    """Return the milliseconds until single calls return, on an idle GPU. If a call returns only as
    the GPU ends, the GPU has waited for the host, or the host for the GPU."""
    times = []
    for number in range(WARM_UPS + REPEATS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        if number >= WARM_UPS:
            times.append(1e3 * (time.perf_counter() - begun))
    torch.cuda.synchronize()
    return times


def _host(torch: Any, system: str, stage: str | None) -> Iterator[Row]:
    """Yield the host's time of one small layer's call, of its backward pass too, and of
    ``conv2d``'s."""
    from convlab.running.api import conv2d
    from convlab.running.torch_layers import Conv2d

    kind = torch.nn.Conv2d if stage is None else Conv2d
    layer = kind(HOST_CHANNELS, HOST_CHANNELS, 3, padding=1, device="cuda")
    image = torch.randn(HOST_SHAPE, device="cuda")
    weight, bias = layer.weight.detach(), layer.bias.detach()
    leaf, of_output = image.clone().requires_grad_(), torch.ones_like(layer(image))
    function = torch.nn.functional.conv2d if stage is None else conv2d
    calls: dict[str, Callable[[], object]] = {
        "layer": lambda: layer(image),
        "layer, forward and backward": lambda: layer(leaf).backward(of_output),
        "layer, no gradients": torch.no_grad()(lambda: layer(image)),
        "conv2d": lambda: function(image, weight, bias, 1, 1),
    }
    for call in calls.values():
        for _ in range(WARM_UPS):
            call()
    # In turn: the host may be slower for a second, which is longer than all rounds of one call.
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(HOST_ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(HOST_CALLS):
                call()
            rounds[name].append(1e3 * (time.perf_counter() - begun) / HOST_CALLS)
    torch.cuda.synchronize()
    for name, times in rounds.items():
        yield row_of(system, f"host time, {name}", times)
