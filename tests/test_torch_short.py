"""The short way of calls with PyTorch's tensors: what was checked once is not checked again. Here a
simulator pretends to be the GPU that PyTorch's tensors lie on."""

from __future__ import annotations

import copy
import math
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", "2.4", reason="the layer is PyTorch's, which is optional")

import convlab.torch as layers  # noqa: E402
from convlab import conv1d, conv2d, conv3d  # noqa: E402
from convlab.problems.arrays import Placement  # noqa: E402
from convlab.running import api, kept_plans, short_calls, torch_short, torch_tensors  # noqa: E402
from convlab.running.chosen_stages import stage_of_layer  # noqa: E402
from convlab.running.engines import choose  # noqa: E402
from convlab.running.engines.simulator import Simulator  # noqa: E402
from convlab.running.plans import Plan, plan  # noqa: E402

nn = torch.nn
NO_GPU = -1  # the number of the host, as PyTorch has it


class OnTheHost(Simulator):
    """A GPU whose memory is the host's."""

    name, is_gpu = "gpu", True
    device = "a GPU that is not here"

    def sm_count(self):
        return 4


def array_at(address, shape, dtype="float32"):
    """Return the array at an address of the host's memory, which begins at a multiple of 16."""
    assert address % 16 == 0
    kind = np.ctypeslib.as_ctypes_type(dtype)
    memory = (kind * math.prod(shape)).from_address(address)
    return np.ctypeslib.as_array(memory).reshape(shape)


class TakesTensors:
    """A plan of the simulator's, called with PyTorch's tensors."""

    calls = 0
    packed = True

    def __init__(self, plan):
        self.plan, self.problem, self.program = plan, plan.problem, plan.program

    def start_at(self, input, weight, bias, output, workspace=(), *, stream=0):
        """Start it with arrays at these addresses."""
        problem, buffers = self.problem, self.program.buffers
        shapes = problem.input_shape, problem.weight_shape, problem.output_shape
        first, second, out = map(array_at, (input, weight, output), shapes)
        given = None if bias is None else array_at(bias, (problem.out_channels,))
        lent = [
            array_at(at, buffer.shape, buffer.dtype)
            for at, buffer in zip(workspace, buffers, strict=True)
        ]
        self(
            *map(torch.from_numpy, (first, second, out)),
            None if given is None else torch.from_numpy(given),
            stream=stream,
            workspace=list(map(torch.from_numpy, lent)),
        )

    def __call__(self, input, weight, out, bias=None, *, stream=None, workspace=()):
        assert stream == 77
        type(self).calls += 1
        tensors = input, weight, out, bias
        assert all(one is None or one.is_contiguous() for one in tensors)
        arrays = [None if one is None else one.detach().numpy() for one in tensors]
        self.plan(*arrays, workspace=[one.numpy() for one in workspace])
        return out


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Return how many plans the short way has called."""
    engine = OnTheHost()

    def is_there(tensor, index):
        plain = type(tensor) in torch_tensors.TENSORS and tensor.dtype is torch.float32
        return plain and tensor.layout is torch.strided and tensor.get_device() == index

    def ready_plan(number, problem, stage, engine):
        chosen = stage_of_layer(stage, engine, problem)
        return TakesTensors(Plan(problem, chosen, None, engine, own_workspace=False))

    def whole(tensor, number):
        return tensor.detach().resolve_neg().contiguous().clone()

    monkeypatch.setattr(torch_tensors, "is_there", is_there)
    monkeypatch.setattr(torch_tensors, "current_gpu", lambda: NO_GPU)
    monkeypatch.setattr(torch_short, "current_stream", lambda index: 77)
    monkeypatch.setattr(torch_tensors, "current_stream", lambda index: 77)
    monkeypatch.setattr(torch_short, "ready_plan", ready_plan)
    monkeypatch.setattr(torch_short, "whole", whole)
    monkeypatch.setattr(torch_short, "choose", lambda name: engine)
    monkeypatch.setattr(torch_short, "_seen", {})
    monkeypatch.setattr(TakesTensors, "calls", 0)
    torch.manual_seed(0)
    return TakesTensors


LAYERS = {
    "2-D": (layers.Conv2d, {"padding": 1, "stride": (2, 1)}, (2, 4, 5, 4)),
    "no bias": (layers.Conv2d, {"bias": False, "padding": "same"}, (1, 4, 3, 4)),
    "groups": (layers.Conv2d, {"groups": 2, "dilation": (1, 2)}, (1, 4, 4, 6)),
    "1-D": (layers.Conv1d, {"padding": 1}, (2, 4, 6)),
}


def alike(one, other):
    """Return whether two results agree: where a GPU is, the first call is its, which sums in an
    order of its own."""
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def results(layer, input, more=()):
    """The output and all gradients."""
    input = input.detach().requires_grad_()
    output = layer(input)
    torch.manual_seed(1)
    by = torch.randn_like(output)
    return [output, *torch.autograd.grad(output, [input, *layer.parameters(), *more], by)]


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "with a library"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_second_call_is_short_and_gives_the_same(name, packed, calls, monkeypatch):
    monkeypatch.setattr(calls, "packed", packed)
    kind, settings, shape = LAYERS[name]
    layer = kind(4, 2, 3, stage="m01", **settings)
    input = torch.randn(shape)
    first = results(layer, input)
    assert calls.calls == 0
    second = results(layer, input)
    assert calls.calls == 3  # and both gradients
    assert all(map(alike, first, second))
    with torch.no_grad():
        assert alike(layer(input), first[0])
    assert calls.calls == 4


def seen(stage="m01", **settings):
    """A layer that was called once, and its input."""
    layer = layers.Conv2d(3, 2, 2, stage=stage, **settings)
    layer(input := torch.randn(2, 3, 4, 3))
    return layer, input


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "with a library"])
@pytest.mark.parametrize("stage", ["m08", "m15"])
def test_a_plan_s_buffers_share_one_workspace(stage, packed, calls, monkeypatch):
    """These stages have a buffer for the convolution too; each begins where kernels can read it."""
    monkeypatch.setattr(calls, "packed", packed)
    layer = layers.Conv2d(3, 5, 3, stride=2, padding=1, stage=stage)
    plain = copy.deepcopy(layer)
    plain.__class__ = nn.Conv2d
    input = torch.randn(2, 3, 5, 5)
    results(layer, input)
    for ours, right in zip(results(layer, input), results(plain, input), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)
    assert calls.calls == 3


def test_a_gradient_that_kernels_cannot_take_is_copied_once(calls, monkeypatch):
    layer, input = seen()
    copied, plain = [], torch_short.whole

    def noted(tensor, number):
        copied.append(tuple(tensor.shape))
        return plain(tensor, number)

    monkeypatch.setattr(torch_short, "whole", noted)
    output = layer(input.requires_grad_())
    output.sum().backward()  # an expanded number
    assert copied == [tuple(output.shape)]
    assert calls.calls == 3


def test_a_backward_pass_in_another_thread_is_short(calls):
    """PyTorch has a thread of its own for each GPU's backward passes."""
    layer, input = seen()
    output = layer(input.requires_grad_())
    by = torch.ones_like(output)
    thread = threading.Thread(target=output.backward, args=(by,))
    thread.start()
    thread.join()
    assert calls.calls == 3
    assert input.grad is not None
    assert layer.weight.grad is not None


def test_second_derivatives_go_through_the_operators(calls):
    layer, input = seen()
    plain = copy.deepcopy(layer)
    plain.__class__ = nn.Conv2d
    found = []
    for one in (layer, plain):
        input = input.detach().requires_grad_()
        (slope,) = torch.autograd.grad(one(input).pow(2).sum(), input, create_graph=True)
        found.append(torch.autograd.grad(slope.pow(2).sum(), [input, one.weight]))
    assert calls.calls == 3  # the output, and both gradients in the last backward pass
    for ours, right in zip(*found, strict=True):
        torch.testing.assert_close(ours, right)


def test_only_the_gradients_that_are_needed_are_computed(calls):
    layer, input = seen()
    layer.weight.requires_grad_(False)
    layer(input).sum().backward()  # of the bias
    assert calls.calls == 1
    assert torch.equal(layer.bias.grad, torch.full((2,), 12.0))


AS_THEY_COME = {
    "channels last": lambda tensor: tensor.to(memory_format=torch.channels_last),
    "expanded": lambda tensor: tensor[:1].expand(2, 3, 4, 3),
    "misaligned": lambda tensor: torch.cat([tensor.flatten(), torch.zeros(1)])[1:].view(2, 3, 4, 3),
    "negated": lambda tensor: torch.complex(tensor, tensor).conj().imag,
    "a parameter": nn.Parameter,
}


@pytest.mark.parametrize("name", AS_THEY_COME)
def test_tensors_that_kernels_cannot_take_are_copied(name, calls):
    layer, input = seen()
    given = AS_THEY_COME[name](input)
    plain = copy.deepcopy(layer)
    plain.__class__ = nn.Conv2d
    torch.testing.assert_close(layer(given), plain(given))
    assert calls.calls == 1


@pytest.mark.parametrize("change", ["shape", "padding", "bias", "stage", "type", "images"])
def test_another_call_is_checked(change, calls):
    layer, input = seen()
    if change == "shape":
        assert layer(torch.randn(2, 3, 5, 3)).shape == (2, 2, 4, 2)
    elif change == "padding":
        layer.padding = (1, 1)
        assert layer(input).shape == (2, 2, 5, 4)
    elif change == "bias":
        layer.bias = None
        assert layer(input).shape == (2, 2, 3, 2)
    elif change == "stage":
        layer.stage = "m99"
        with pytest.raises(ValueError, match="stage is 'm99'"):
            layer(input)
    elif change == "type":
        with pytest.raises(TypeError, match=r"input has dtype torch\.float64"):
            layer(input.double())
    else:
        assert layer(input[:0]).shape == (0, 2, 3, 2)
    assert calls.calls == 0


def test_a_setting_without_a_hash_is_checked_each_time(calls):
    layer, input = seen()
    layer.stride = [1, 1]
    assert torch.equal(layer(input), layer(input))
    assert calls.calls == 0


class Derived(torch.Tensor):
    pass


def test_where_somebody_looks_at_operators_there_are_operators(calls):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    layer, input = seen()
    before = layer(input)
    assert calls.calls == 1
    per_image = torch.func.vmap(layer)(input.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(per_image, before)
    slope = torch.func.grad(lambda images: layer(images).sum())(input)
    assert slope.shape == input.shape
    with FlopCounterMode(display=False):
        layer(input)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        layer(fake.from_tensor(input))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(input, input)
        with pytest.raises(NotImplementedError, match="input has a tangent"):
            layer(dual)
    torch.jit.trace(layer, input, check_trace=False)
    layer(input.as_subclass(Derived))
    assert calls.calls == 1
    jacobian = torch.autograd.functional.jacobian(layer, input[:1], vectorize=True)
    assert jacobian.shape == (1, 2, 3, 2, 1, 3, 4, 3)


def test_the_profiler_sees_its_name(calls):
    layer, input = seen()
    with torch.profiler.profile() as profile:
        layer(input).sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"convlab::conv2d", "convlab::gradients"} <= names
    assert calls.calls == 2  # no gradient of the input


# conv1d to conv3d, whose first calls on a GPU leave their plans.


@pytest.fixture
def api_on_gpu(monkeypatch, calls):
    """The functions of the package, which take the host's tensors for a GPU's."""
    engine = OnTheHost()

    def on_gpu(given, call, asked, placement):
        problem = call.problem
        ready = kept_plans.kept_plan(problem, asked.stage, asked.tile, engine, 77)
        input = given["input"].detach().numpy().reshape(problem.input_shape)
        weight = given["weight"].detach().numpy().reshape(problem.weight_shape)
        bias = given["bias"].numpy() if "bias" in given else None
        made = ready.plan(input, weight, engine.empty(problem.output_shape), bias)
        return torch.from_numpy(made).view(call.shape)

    monkeypatch.setattr(api, "_on_gpu", on_gpu)
    monkeypatch.setattr(api, "choose", lambda name: engine)
    monkeypatch.setattr(kept_plans, "_current_gpu", lambda: NO_GPU)
    monkeypatch.setattr(kept_plans, "kept", type("Kept", (), {})())
    place = Placement("PyTorch", NO_GPU, "a GPU", torch)
    monkeypatch.setattr(api, "placement_of", lambda name, array: place)
    monkeypatch.setattr(
        kept_plans, "plan", lambda problem, stage, tile, name: TakesTensors(
            plan(problem, stage, tile, "simulator")
        ),
    )  # fmt: skip
    monkeypatch.setattr(TakesTensors, "workspace_bytes", 0, raising=False)
    return calls


def test_a_function_s_second_call_is_short(api_on_gpu):
    input, weight, bias = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 2, 2), torch.randn(2)
    for more in ({}, {"bias": bias, "padding": 1}, {"stride": (1, 2)}):
        before = api_on_gpu.calls
        first = conv2d(input, weight, stage="m01", **more)
        assert api_on_gpu.calls == before
        assert torch.equal(conv2d(input, weight, stage="m01", **more), first)
        assert api_on_gpu.calls == before + 1
    before = api_on_gpu.calls
    for function, images, filters in (
        (conv1d, torch.randn(2, 3, 6), torch.randn(2, 3, 2)),
        (conv1d, torch.randn(3, 6), torch.randn(2, 3, 2)),
        (conv2d, input[0], weight),
    ):
        first = function(images, filters, stage="m01")
        assert torch.equal(function(images, filters, stage="m01"), first)
    assert api_on_gpu.calls == before + 3


def test_a_function_s_other_calls_are_checked(api_on_gpu):
    input, weight = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 2, 2)
    conv2d(input, weight, stage="m01")
    conv2d(input, weight, stage="m01", stride=[1, 1])
    conv2d(input, weight, stage="m01", stride=[1, 1])
    conv2d(input, weight, stage="m03")
    with pytest.raises(TypeError, match="stage is 7"):
        conv2d(input, weight, stage=7)
    kept_plans.kept.plans.clear()  # as other problems' plans push them out
    conv2d(input, weight, stage="m01")
    assert api_on_gpu.calls == 0
    conv2d(input, weight, stage="m01")
    conv2d(input, nn.Parameter(weight, requires_grad=False), stage="m01")
    assert api_on_gpu.calls == 2
    with torch.no_grad():
        conv2d(input, nn.Parameter(weight), stage="m01")
    assert api_on_gpu.calls == 3


def test_kept_checks_are_few(api_on_gpu, monkeypatch):
    monkeypatch.setattr(short_calls, "KEPT_SHORT", 2)
    for width in range(2, 7):
        conv2d(torch.randn(1, 1, 2, width), torch.randn(1, 1, 2, 2), stage="m01")
        assert len(kept_plans.kept.short) <= 2


def test_a_simulator_s_calls_are_never_short(monkeypatch, calls):
    monkeypatch.setattr(torch_short, "choose", lambda name: choose("simulator"))
    layer, input = seen()
    layer(input)
    conv3d(torch.randn(1, 1, 2, 2, 2), torch.randn(1, 1, 1, 1, 1))
    assert calls.calls == 0
