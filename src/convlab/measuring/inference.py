"""A whole model's inference in bfloat16, measured: convlab's fused layers beside PyTorch's best.

Every system gets the same ResNet-50, its batch norms folded into the convolutions, its tensors in
bfloat16 with their channels last, and is timed as a CUDA graph. Each has a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from convlab.measuring.models import BATCH, MODEL, SIZE, Row, by_events, row_of

START = "from convlab.measuring.inference import main; main()"
REPEATS = 100  # of the graph, which takes a millisecond or two

# How torch.compile compiles a system's model; None where PyTorch runs layer by layer.
EAGER, DEFAULT, TUNED = None, "default", "max-autotune-no-cudagraphs"


@dataclass(frozen=True)
class InferenceRun:
    """A system to measure in a process of its own: the layers are convlab's if ``fused``, and
    torch.compile compiles the model in that ``mode`` unless it is None."""

    system: str
    fused: bool = False
    mode: str | None = EAGER

    @property
    def name(self) -> str:
        """The name of the row if the process fails."""
        return "inference"

    def program(self) -> list[str]:
        """Return the Python program of the process, and its arguments."""
        return [START, self.system]


# What takes the longest to compile comes last.
TASKS = (
    InferenceRun("torch_bf16"),
    InferenceRun("convlab_bf16", fused=True),
    InferenceRun("convlab_compile_bf16", fused=True, mode=DEFAULT),
    InferenceRun("torch_compile_bf16", mode=DEFAULT),
    InferenceRun("torch_max_autotune_bf16", mode=TUNED),
)


# A process.


def main() -> None:
    """Measure the system that the argument names, and print a JSON object for each row."""
    begun = time.perf_counter()
    (task,) = (one for one in TASKS if one.system == sys.argv[1])
    for row in rows_of(task, begun):
        print(json.dumps(row), flush=True)


def rows_of(task: InferenceRun, begun: float) -> Iterator[Row]:
    """Yield a process's rows. Needs PyTorch and a GPU."""
    import torch

    from convlab.measuring.baselines.resnet import resnet50, with_statistics

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIZE, SIZE, device="cuda")
    accurate = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False)
    with torch.no_grad(), accurate:
        model = with_statistics(resnet50().cuda(), images)
        wanted = model(images)  # in float32
    images = images.to(torch.bfloat16, memory_format=torch.channels_last)
    torch.cuda.synchronize()
    before = time.perf_counter()
    ready = prepared(torch, task, model, images)
    with torch.no_grad():
        ready(images)
        torch.cuda.synchronize()
        first = time.perf_counter()
        yield row_of(
            task.system, f"{MODEL} inference, compiling and first call", [1e3 * (first - before)]
        )
        yield row_of(task.system, f"{MODEL} inference, whole process", [1e3 * (first - begun)])
        graph, logits = captured(torch, lambda: ready(images))
        times = by_events(torch, graph.replay, REPEATS)
        error = ((logits.float() - wanted).norm() / wanted.norm()).item()
    yield row_of(task.system, f"{MODEL} inference, CUDA graph", times, error=error)


def prepared(torch: Any, task: InferenceRun, model: Any, images: Any) -> Any:
    """Return the model for inference in bfloat16 as the system has it, for such images."""
    from convlab.measuring.baselines.resnet import folded

    if task.fused:
        from convlab.running.torch_fuse import fuse

        ready = fuse(model)
    else:
        ready = folded(model)
    ready = ready.to(torch.bfloat16, memory_format=torch.channels_last)
    if task.fused:
        from convlab.running.torch_prepare import prepare

        prepare(ready, images)
    if task.mode is EAGER:
        return ready
    import torch._inductor.config as inductor

    inductor.freezing = not task.fused  # constants are folded and laid out when it compiles
    return torch.compile(ready, mode=task.mode, dynamic=False, fullgraph=True)


def captured(torch: Any, call: Callable[[], Any]) -> tuple[Any, Any]:
    """Return a CUDA graph of the call, which was called before, and the tensor that it writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    graph.replay()
    torch.cuda.synchronize()
    return graph, result
