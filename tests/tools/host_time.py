"""The host's time of a call, without a GPU: ``python tests/tools/host_time.py``.

The tensors are small ones of the host, and plans launch nothing. So the table shows what the
layers, their backward passes and ``conv2d`` add to a launch, beside ``torch.nn.Conv2d`` with its
arithmetic. A launch of a plan adds about 6 us. Seconds are the processor's. Needs PyTorch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from time import process_time
from typing import Any
from unittest import mock

import numpy as np
import torch

import convlab.torch
from convlab.ladder.stage import Program, Step
from convlab.problems.arrays import Array
from convlab.running import kept_plans, short_calls, torch_short, torch_tensors
from convlab.running.chosen_stages import stage_of_layer
from convlab.running.convolution_call import call_of
from convlab.running.engines import Engine, Start, Stream
from convlab.running.engines.absent import AbsentGpu, GpuFacts
from convlab.running.planes_and_groups import Chosen
from convlab.running.plans import Plan

ROUNDS, CALLS = 7, 2000
LAYERS, BACKWARD_CALLS = 10, 300  # of a backward pass, and passes
HOST = -1  # the number of the host among PyTorch's GPUs
SHAPE, CHANNELS = (1, 4, 4, 4), 4


class LaunchesNothing(AbsentGpu):
    """An H100 whose plans do nothing."""

    def build(self, step: Step, program: Program) -> Start:
        return lambda arrays, stream=None: None

    def pack(
        self, program: Program, shapes: Mapping[str, tuple[int, ...]], held: Mapping[str, Array]
    ) -> Any:
        return _Nothing()

    def free_bytes(self) -> None:
        return None

    def to_device(self, host: np.ndarray, dtype: str = "float32") -> Any:
        return _Nowhere()


class _Nothing:
    one_graph = True

    def __call__(self, *arrays: Array, stream: Stream = None) -> None:
        """Launch nothing."""

    def at(self, addresses: tuple[int, ...], handle: int) -> None:
        """Launch nothing."""


class _Nowhere:
    """An array on the GPU that is not there."""

    __cuda_array_interface__ = {"data": (0, False), "shape": (1,), "version": 3}  # noqa: RUF012


def microseconds(call: Callable[[], object]) -> float:
    """Return the median over rounds of the processor's time for one call."""
    rounds = []
    for _ in range(ROUNDS):
        begun = process_time()
        for _ in range(CALLS):
            call()
        rounds.append((process_time() - begun) / CALLS * 1e6)
    return median(rounds)


def plan_of(number: int, problem: Any, stage: str, engine: Engine) -> Plan:
    """Return a plan that launches nothing."""
    chosen = stage_of_layer(stage, engine, problem)
    return Plan(problem, chosen, None, engine, own_workspace=False)


def on_host(index: int) -> int:
    """Return the handle of the default stream."""
    return 0


def chosen(engine: Engine) -> Callable[[str], Engine]:
    """Return a function that chooses that engine under any name."""
    return lambda name: engine


def pretended(engine: LaunchesNothing) -> ExitStack:
    """Inside, the host's tensors count as the GPU's."""

    def is_there(tensor: torch.Tensor, index: int) -> bool:
        return (
            type(tensor) in torch_tensors.TENSORS
            and tensor.dtype is torch.float32
            and not tensor.is_cuda
            and tensor.get_device() == index
            and tensor.layout is torch.strided
            and not tensor.is_nested
        )

    patches: Sequence[tuple[object, str, object]] = (
        (torch_tensors, "is_there", is_there),
        (torch_tensors, "current_gpu", lambda: HOST),
        (torch_tensors, "current_stream", on_host),
        (torch_short, "current_stream", on_host),
        (torch_short, "ready_plan", plan_of),
        (torch_short, "choose", chosen(engine)),
    )
    with ExitStack() as stack:
        for target, name, value in patches:
            stack.enter_context(mock.patch.object(target, name, value))
        return stack.pop_all()


def of_backward(layers: torch.nn.Module, input: torch.Tensor) -> float:
    """Return the median of the processor's time for the backward pass, by layer."""
    output = layers(input)
    by = torch.ones_like(output)
    times = []
    for _ in range(BACKWARD_CALLS):
        output = layers(input)
        layers.zero_grad()
        begun = process_time()
        output.backward(by)
        times.append((process_time() - begun) / LAYERS * 1e6)
    return median(times)


def remember(layer: convlab.torch.Conv2d, input: torch.Tensor) -> None:
    """Let the layer's calls with such a tensor be short."""
    settings = layer.stride, layer.padding, layer.dilation, 1, layer.stage, layer.engine
    torch_short.remember(2, input, layer.weight, layer.bias, settings)
    assert torch_short.seen_before(2, input, layer.weight, layer.bias, settings) is not None


def main() -> None:
    torch.set_num_threads(1)
    engine = LaunchesNothing(GpuFacts("NVIDIA H100", (9, 0), 132))
    input = torch.randn(SHAPE, requires_grad=True)
    image = input.detach()
    kinds = {
        "torch.nn.Conv2d, with its arithmetic": torch.nn.Conv2d,
        "convlab.torch.Conv2d": convlab.torch.Conv2d,
    }
    with pretended(engine):
        for name, kind in kinds.items():
            layer = kind(CHANNELS, CHANNELS, 3, padding=1)
            if isinstance(layer, convlab.torch.Conv2d):
                remember(layer, input)
            print(f"{microseconds(partial(layer, input)):6.1f} us  {name}")
            with torch.no_grad():
                print(f"{microseconds(partial(layer, image)):6.1f} us  {name}, no gradients")
        for name, kind in kinds.items():
            for bias in (False, True):
                layers = torch.nn.Sequential(
                    *(kind(CHANNELS, CHANNELS, 3, padding=1, bias=bias) for _ in range(LAYERS))
                )
                if isinstance(layers[0], convlab.torch.Conv2d):
                    remember(layers[0], input)
                also = " and bias" if bias else ""
                took = of_backward(layers, input)
                print(f"{took:6.1f} us  {name}, gradients of input, weight{also}")
        weight, vector = layer.weight.detach(), layer.bias.detach()
        call = call_of(2, SHAPE, tuple(weight.shape), (1, 1, 1, 1))
        asked = Chosen("auto", None, engine)
        given = (1, 1, 1, 1, "auto", None, "auto", None)
        short_calls.remember(2, (image, weight, vector, None), given, call, asked)
        ready = plan_of(HOST, call.problem, "auto", engine)
        kept_plans.kept.plans = OrderedDict({(HOST, 0, call.problem, "auto", None, ()): ready})
        function = microseconds(lambda: convlab.conv2d(image, weight, vector, 1, 1))
        assert short_calls.again(2, (image, weight, vector, None), given) is not None
        print(f"{function:6.1f} us  convlab.conv2d")


if __name__ == "__main__":
    main()
