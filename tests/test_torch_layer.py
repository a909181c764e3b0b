"""``convlab.torch``: a layer that PyTorch trains. One file for the simulator and for a GPU."""

from __future__ import annotations

import copy
import pickle
import re
from importlib.util import find_spec
from itertools import pairwise
from shutil import which
from typing import Any

import pytest

from convlab import conv1d, conv2d
from convlab.running import simulated_time
from convlab.running.engines import unavailable

torch = pytest.importorskip("torch", "2.4", reason="the layer is PyTorch's, which is optional")

import convlab.torch as layers  # noqa: E402

ON_GPU = unavailable("gpu") is None and torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
STAGES = ("auto", "m03", "m15")
nn = torch.nn
# The whole compiler needs Triton and, for its launchers, a C compiler.
WHOLE = ON_GPU and find_spec("triton") is not None and (which("cc") or which("gcc"))
BACKEND = "inductor" if WHOLE else "aot_eager"

needs_gpu = pytest.mark.skipif(not ON_GPU, reason="there is no GPU for PyTorch")


@pytest.fixture(autouse=True)
def _in_float32():
    """PyTorch's own convolutions, which ours are compared with, may round to TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    yield
    torch.backends.cudnn.allow_tf32 = before


# Arguments of the layer, and the input's shape.
AWKWARD: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "plain": ({"kernel_size": 3}, (2, 3, 5, 6)),
    "one image": ({"kernel_size": 3, "padding": 1}, (3, 4, 4)),
    "stride": ({"kernel_size": 3, "stride": 2, "padding": 1}, (1, 3, 8, 8)),
    "rows untouched": ({"kernel_size": 2, "stride": (4, 3)}, (2, 3, 9, 8)),
    "dilation": ({"kernel_size": (2, 3), "dilation": (3, 2), "stride": (2, 1)}, (2, 3, 8, 9)),
    "larger than the image": ({"kernel_size": 5, "padding": 2}, (2, 3, 3, 3)),
    "more padding than filter": ({"kernel_size": 2, "padding": (5, 3)}, (1, 3, 2, 3)),
    "same": ({"kernel_size": (4, 3), "padding": "same"}, (2, 3, 5, 4)),
    "one by one": ({"kernel_size": 1, "stride": 2, "bias": False}, (2, 3, 6, 5)),
    "two groups": ({"kernel_size": 3, "groups": 2, "stride": 2, "padding": 2}, (2, 4, 5, 5)),
    "depthwise": ({"kernel_size": 3, "groups": 4, "padding": 1, "dilation": 2}, (3, 4, 5, 6)),
    "no images": ({"kernel_size": 3}, (0, 3, 5, 5)),
}
if ON_GPU:  # ResNet-18's kinds of layers, and one each of MobileNetV2 and ResNeXt-50
    AWKWARD |= {
        name: (
            {"out_channels": filters, "kernel_size": taps, "stride": stride, "padding": taps // 2,
             "groups": groups}, shape,
        )
        for name, filters, taps, stride, groups, shape in (
            ("stem", 64, 7, 2, 1, (4, 3, 224, 224)),
            ("3x3", 64, 3, 1, 1, (8, 64, 56, 56)),
            ("3x3 stride", 128, 3, 2, 1, (8, 64, 56, 56)),
            ("1x1 stride", 128, 1, 2, 1, (8, 64, 56, 56)),
            ("deep", 512, 3, 1, 1, (8, 512, 7, 7)),
            ("mobilenet", 96, 3, 2, 96, (8, 96, 112, 112)),
            ("resnext", 128, 3, 1, 32, (8, 128, 56, 56)),
        )
    }  # fmt: skip


def made(case: str, stage: str) -> tuple[Any, Any]:
    settings, shape = AWKWARD[case]
    settings = {"out_channels": 4, "in_channels": shape[-3], "device": DEVICE} | settings
    layer = layers.Conv2d(stage=stage, **settings)
    return layer, torch.randn(shape, device=DEVICE, requires_grad=True)


def assert_close(got: Any, right: Any, sizes: Any, terms: int) -> None:
    """Within the bound of float32 sums: ``sizes`` is the sum of the terms' sizes."""
    assert got.shape == right.shape
    assert got.dtype == torch.float32
    assert ((got - right).abs() <= 1.001 * terms * 2.0**-24 * sizes + 1e-37).all()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("case", AWKWARD)
def test_output_and_gradients_are_those_of_float64(case, stage):
    layer, input = made(case, stage)
    output = layer(input)
    by = torch.randn_like(output)
    tensors = [input, *layer.parameters()]
    got = [output, *torch.autograd.grad(output, tensors, by)]
    plain = copy.deepcopy(layer).double()
    plain.__class__ = nn.Conv2d

    def exact(sizes: bool) -> list[Any]:
        taken = torch.abs if sizes else (lambda tensor: tensor)
        doubles = [taken(one.detach().double()).requires_grad_() for one in tensors]
        names = dict(zip(("weight", "bias"), doubles[1:], strict=False))
        result = torch.func.functional_call(plain, names, doubles[0])  # PyTorch's own
        return [result, *torch.autograd.grad(result, doubles, taken(by.double()))]

    N, C_o, H_o, W_o = output.shape if output.dim() == 4 else (1, *output.shape)
    filter = layer.weight[0].numel()
    terms = filter + 1, filter * C_o, N * H_o * W_o + 1, N * H_o * W_o
    for result, right, sizes, most in zip(got, exact(False), exact(True), terms, strict=False):
        assert_close(result, right, sizes, most)


@pytest.mark.parametrize("case", ["stride", "two groups", "same"])
def test_operators_are_what_pytorch_asks_of_them(case):
    """Schema, fake tensors, autograd, and the compiler's view of all of it."""
    layer, input = made(case, "auto")
    left, right, top, bottom = layer._reversed_padding_repeated_twice
    padding = [top, bottom, left, right]
    settings = list(layer.stride), padding, list(layer.dilation), layer.groups, "auto", "auto"
    gradient, weight = torch.randn_like(layer(input)).requires_grad_(), layer.weight
    for operator, arguments in (
        (layers.conv2d, (input, weight, layer.bias)),
        (layers.input_gradient, (gradient, weight, list(input.shape))),
        (layers.weight_gradient, (input, gradient, list(weight.shape))),
    ):
        torch.library.opcheck(operator, (*arguments, *settings))


def test_a_gradient_has_gradients():
    layer, input = made("stride", "auto")
    weight = layer.weight

    def second(convolve: Any) -> list[Any]:
        output = convolve(input)
        tensors = torch.autograd.grad(output.pow(2).sum(), (input, weight), create_graph=True)
        return torch.autograd.grad(sum(one.pow(2).sum() for one in tensors), (input, weight))

    theirs = second(lambda it: nn.functional.conv2d(it, weight, layer.bias, 2, 1))
    for got, right in zip(second(layer), theirs, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("change", ["channels last", "misaligned", "transposed", "negated"])
def test_any_strides_are_taken(change):
    layer, input = made("stride", "auto")
    shape = input.shape
    other = {
        "channels last": lambda: input.detach().contiguous(memory_format=torch.channels_last),
        "misaligned": lambda: torch.cat([input.new_zeros(1), input.flatten()])[1:].view(shape),
        "transposed": lambda: input.detach().mT.contiguous().mT,
        "negated": lambda: torch._neg_view(-input.detach()),
    }[change]()
    assert torch.equal(layer(other), layer(input))


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in parts"])
def test_conv2d_in_a_compiled_function_says_what_to_use(whole):
    """Parts may also be called as they are; outside, before and after, the layer works."""
    tensors = torch.ones(1, 1, 2, 2, device=DEVICE), torch.ones(1, 1, 1, 1, device=DEVICE)
    compiled = torch.compile(lambda x, w: conv2d(x, w) + 1, fullgraph=whole, backend="eager")
    other = torch.compile(lambda x, w: conv1d(x, w) + 1, fullgraph=whole, backend="eager")
    as_it_is = torch.compiler.disable(conv2d)
    outside = torch.compile(lambda x, w: as_it_is(x, w) + 0, backend="eager")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"torch.compile, .* use convlab.torch.Conv2d"):
            compiled(*tensors)
        with pytest.raises(RuntimeError, match=r"torch.compile, .* use convlab.torch.Conv1d"):
            other(*(tensor[0] for tensor in tensors))
        assert torch.equal(conv2d(*tensors), tensors[0])
        assert torch.equal(outside(*tensors), tensors[0])


def test_compiled_whole():
    layer, input = made("stride", "auto")
    model = nn.Sequential(layer, nn.ReLU())
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
    for call in (model, compiled):
        model.zero_grad()
        call(input).sum().backward()
        if call is model:
            right = model(input).detach(), layer.weight.grad.clone()
    torch.testing.assert_close((compiled(input).detach(), layer.weight.grad), right)


@needs_gpu
def test_captured_in_a_cuda_graph():
    """Training, on memory of PyTorch's alone, on a stream of its own."""
    layer = layers.Conv2d(8, 8, 3, padding=1, device="cuda")
    input = torch.randn(4, 8, 16, 16, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(layer), (input,))
    for _ in range(3):
        other = torch.randn_like(input).requires_grad_()
        results = []
        for one in (layer, graphed):
            one.zero_grad()
            output = one(other)
            (of_input,) = torch.autograd.grad(output.sum(), other, retain_graph=True)
            output.sum().backward()
            results.append((output, of_input, one.weight.grad))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    new = torch.randn(1, 8, 9, 9, device="cuda")
    early = pytest.raises(RuntimeError, match="captured in a CUDA graph before its first call")
    with early, torch.cuda.graph(torch.cuda.CUDAGraph()):
        layer(new)


def test_the_state_dict_is_pytorchs():
    ours, theirs = layers.Conv2d(4, 6, 3, groups=2), nn.Conv2d(4, 6, 3, groups=2)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(copy.deepcopy(ours).state_dict())
    assert [*ours.state_dict()] == ["weight", "bias"]
    assert repr(ours) == "Conv2d(4, 6, kernel_size=(3, 3), stride=(1, 1), groups=2, stage=auto, " \
        "engine=auto)"  # fmt: skip


def test_what_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding_mode="circular"))
    rule = r"^1: padding_mode is 'circular': it must be 'zeros', or skip must select '1'$"
    with pytest.raises(ValueError, match=rule):
        layers.replace(model)
    assert type(model[0]) is nn.Conv2d
    with pytest.raises(TypeError, match=r"^model is 3: it must be a torch.nn.Module$"):
        layers.replace(3)
    layer = layers.Conv2d(3, 4, 3, device=DEVICE)
    with pytest.raises(TypeError, match=r"^input is \[1\]: it must be a torch.Tensor$"):
        layer([1])
    with pytest.raises(TypeError, match=r"^input has dtype torch.float16: it must be torch.float"):
        layer(torch.zeros(1, 3, 4, 4, dtype=torch.float16, device=DEVICE))
    image = torch.ones(1, 3, 4, 4, device=DEVICE)
    with pytest.raises(NotImplementedError, match=r"^input has a tangent: it must have none, "):
        torch.func.jvp(layer, (image,), (image,))
    with pytest.raises(TypeError, match=r"^input has layout torch.sparse_coo: it must be torch.s"):
        layer(image.to_sparse())
    for shape in ((1, 2, 4, 4), (3, 3), (1, 3, 2, 4)):
        with pytest.raises(ValueError, match=r"it must|must not"):
            layer(torch.zeros(shape, device=DEVICE))


def test_replace_changes_each_convolution_in_place():
    shared = nn.Conv2d(3, 3, 1)
    calls: list[Any] = []
    shared.register_forward_hook(lambda *_: calls.append(1))
    model = nn.Sequential(shared, nn.Sequential(shared, nn.Conv1d(3, 3, 1)), nn.Conv2d(3, 2, 1))
    weight = shared.weight
    replaced = layers.replace(model, stage="m03")
    assert replaced == 3
    assert replaced.replaced == ("0", "1.1", "2")
    assert replaced.skipped == {}
    assert model[0] is shared
    assert type(shared) is layers.Conv2d
    assert shared.weight is weight
    assert shared.stage == model[2].stage == model[1][1].stage == "m03"
    assert type(model[1][1]) is layers.Conv1d
    assert layers.replace(shared) == 1  # the root, and again
    shared.to(DEVICE)(torch.ones(1, 3, 2, 2, device=DEVICE))
    assert calls == [1]
    assert shared.stage == "auto"


@pytest.mark.parametrize("stage", ["auto", "m15"])
def test_a_small_network_trains_as_with_pytorch(stage):
    theirs = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.ReLU(), nn.Flatten(), nn.Linear(64, 3),
    ).to(DEVICE)  # fmt: skip
    ours = copy.deepcopy(theirs)
    assert layers.replace(ours, stage=stage) == 2
    images, classes = torch.randn(6, 1, 8, 8, device=DEVICE), torch.arange(6, device=DEVICE) % 3
    curves = []
    for model in (theirs, ours):
        optimizer, losses = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9), []
        for _ in range(12):
            loss = nn.functional.cross_entropy(model(images), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    assert curves[0][-1] < 0.5 * curves[0][0]
    torch.testing.assert_close(*map(torch.tensor, curves), rtol=1e-3, atol=1e-4)


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters),
            nn.ReLU(), nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters),
        )  # fmt: skip
        narrow = nn.Conv2d(channels, filters, 1, stride, bias=False)
        more = (narrow, nn.BatchNorm2d(filters)) if channels != filters else ()
        self.shortcut = nn.Sequential(*more)

    def forward(self, input: Any) -> Any:
        return torch.relu(self.way(input) + self.shortcut(input))


def resnet18(width: int) -> Any:
    """ResNet-18 is of width 64; its twenty convolutions are the same in a narrow one."""
    blocks = []
    for before, filters in pairwise((width, width, 2 * width, 4 * width, 8 * width)):
        blocks += [Block(before, filters, 1 + (filters > before)), Block(filters, filters, 1)]
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8 * width, 10),
    )  # fmt: skip


def test_resnet18_has_the_same_outputs_and_gradients():
    """PyTorch's gradients differ as much from those of float64: where a number is nearly 0, a
    rounding changes what a ReLU lets through, and with it all gradients before it by some
    thousandths."""
    width, shape = (64, (8, 3, 224, 224)) if ON_GPU else (2, (4, 3, 32, 32))
    theirs = resnet18(width).to(DEVICE)
    ours, exact = copy.deepcopy(theirs), copy.deepcopy(theirs).double()
    assert layers.replace(ours) == 20
    images = torch.randn(shape, device=DEVICE)
    results = []
    for model, input in ((exact, images.double()), (theirs, images), (ours, images)):
        output = model(input)
        output.square().sum().backward()
        results.append([output.detach(), *(one.grad for one in model.parameters())])

    def error(one: Any, right: Any) -> float:
        return float((one - right).norm() / (right.norm() + 1e-12))

    for number, (right, their, our) in enumerate(zip(*results, strict=True)):
        least = 0.02 if number and ON_GPU else 1e-4
        assert error(our, right) <= 10 * error(their, right) + least


@pytest.mark.parametrize(
    ("name", "value"),
    [("in_channels", "3"), ("in_channels", -1), ("out_channels", 2**40), ("groups", ()),
     ("groups", 5), ("kernel_size", 0), ("stride", (1, 1, 1)), ("padding", ((1, 1), (1, 1))),
     ("padding", 1.5), ("padding", -1), ("dilation", True), ("stage", ["m15"]), ("stage", "s99"),
     ("padding_mode", "reflect")],
)  # fmt: skip
def test_a_layer_names_what_is_wrong_with_it(name, value):
    usual = {"in_channels": 3, "out_channels": 4, "kernel_size": 3}
    with pytest.raises((TypeError, ValueError), match=rf"^{name} is .*: it"):
        layers.Conv2d(**usual | {name: value})


@pytest.mark.skipif(ON_GPU, reason="a GPU takes no time that is announced")
def test_a_long_simulation_of_a_layer_says_so(monkeypatch, capsys):
    """Forwards and backwards, as ``conv2d`` and ``plan`` do."""
    monkeypatch.setattr(simulated_time, "ANNOUNCED_FROM_SECONDS", 0)
    layer = layers.Conv2d(3, 4, 3)
    output = layer(torch.ones(1, 3, 5, 5))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convlab: 972 multiply-adds on ")
    output.sum().backward()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convlab: 972 multiply-adds on ")


# Layers of 1, 2 and 3 axes: arguments, and the input's shape.
AXES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "1-D": ("Conv1d", {"kernel_size": 3}, (2, 4, 7)),
    "1-D all": (
        "Conv1d",
        {"kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2, "groups": 2},
        (2, 4, 9),
    ),
    "1-D same": ("Conv1d", {"kernel_size": 4, "padding": "same", "bias": False}, (2, 4, 6)),
    "1-D one image": ("Conv1d", {"kernel_size": (3,), "padding": "valid"}, (4, 6)),
    "3-D": ("Conv3d", {"kernel_size": 2}, (2, 4, 3, 4, 3)),
    "3-D all": (
        "Conv3d",
        {"kernel_size": (2, 3, 2), "stride": (2, 1, 3), "padding": (1, 2, 0), "dilation": (3, 1, 2),
         "groups": 2},
        (2, 4, 5, 4, 6),
    ),
    "3-D same": ("Conv3d", {"kernel_size": (2, 3, 4), "padding": "same"}, (1, 4, 3, 4, 4)),
    "3-D one image": ("Conv3d", {"kernel_size": 1, "stride": 2, "bias": False}, (4, 3, 3, 4)),
    "3-D no images": ("Conv3d", {"kernel_size": 2}, (0, 4, 3, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("case", AXES)
def test_layers_of_other_axes_are_pytorchs(case):
    """Whole numbers, whose sums are exact: output, gradients and their gradient."""
    kind, settings, shape = AXES[case]
    ours = getattr(layers, kind)(4, 6, **settings, device=DEVICE)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randint(-3, 4, parameter.shape))
    theirs = copy.deepcopy(ours)
    theirs.__class__ = getattr(nn, kind)
    input = torch.randint(-3, 4, shape, device=DEVICE).float()
    results = []
    for layer in (ours, theirs):
        tensors = [input.clone().requires_grad_(), *layer.parameters()]
        output = layer(tensors[0])
        gradients = torch.autograd.grad(output.square().sum(), tensors, create_graph=True)
        of_gradients = torch.autograd.grad(
            sum(one.sum() for one in gradients[:2]), tensors[:2], materialize_grads=True
        )
        results.append([output, *gradients, *of_gradients])
    for got, right in zip(*results, strict=True):
        assert torch.equal(got, right)
    assert results[0][0].is_contiguous()
    assert layers.replace(nn.Sequential(theirs)) == 1
    assert type(theirs) is type(ours)
    assert torch.equal(theirs(input), results[0][0])


@pytest.mark.parametrize("case", ["1-D all", "3-D all"])
def test_layers_of_other_axes_compile(case):
    kind, settings, shape = AXES[case]
    layer, input = getattr(layers, kind)(4, 6, **settings), torch.randn(shape)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(input), layer(input))


def test_a_layer_whose_settings_were_changed_computes_with_the_new_ones():
    """Segmentation models change stride, padding and dilation of ready layers."""
    layer = nn.Conv2d(3, 4, 3, padding=1, stride=2)
    layer.stride, layer.padding, layer.dilation = (1, 1), (2, 2), (2, 2)
    input = torch.randn(1, 3, 6, 5)
    right = layer(input)
    layers.replace(layer)
    torch.testing.assert_close(layer.to(DEVICE)(input.to(DEVICE)).cpu(), right)
    layer.padding = 0
    assert layer(input.to(DEVICE)).shape == (1, 4, 2, 1)


def test_settings_in_tuples_of_one_are_taken_everywhere():
    layer = layers.Conv2d(3, 4, (3,), stride=(2,), padding=(1,), dilation=(1,))
    assert layer.to("meta")(torch.ones(2, 3, 8, 6, device="meta")).shape == (2, 4, 4, 3)
    old = nn.Conv2d(3, 4, 3, stride=(2,), padding=(1,))
    layers.replace(old)
    assert old.to("meta")(torch.ones(2, 3, 8, 6, device="meta")).shape == (2, 4, 4, 3)


# A layer; the shape and type of its input, or other parameters; and what the refusal says.
UNSUITED: dict[str, tuple[str, dict[str, Any], str]] = {
    "channels": ("Conv2d", {"input": (1, 2, 5, 5)}, r"input has shape \(1, 2, 5, 5\): .* 3 ch"),
    "channels of one": (
        "Conv2d",
        {"input": (2, 5, 5)},
        r"input has shape \(2, 5, 5\): .* 3 channels",
    ),
    "no channels": (
        "Conv2d",
        {"input": (1, 0, 5, 5)},
        r"input has shape .*: it must have 3 channels",
    ),
    "two axes": (
        "Conv2d",
        {"input": (5, 5)},
        r"input has shape \(5, 5\): it must have 4 dim.*, or 3",
    ),
    "five axes": (
        "Conv2d",
        {"input": (1, 1, 3, 5, 5)},
        r"input has shape .*: it must have 4 dim.*, or 3",
    ),
    "too low": (
        "Conv2d",
        {"input": (1, 3, 2, 5)},
        r"kernel_size \(3, 3\).* spans 3 pixels of height",
    ),
    "no columns": (
        "Conv2d",
        {"input": (1, 3, 5, 0)},
        r"kernel_size \(3, 3\).* spans 3 pixels of width",
    ),
    "float16": ("Conv2d", {"dtype": torch.float16}, "input has dtype torch.float16: it must be"),
    "integers": ("Conv2d", {"dtype": torch.int64}, "input has dtype torch.int64: it must be"),
    "float64 weight": ("Conv2d", {"weight": torch.ones(4, 3, 3, 3).double()}, "weight has dtype"),
    "flat weight": (
        "Conv2d",
        {"weight": torch.ones(4, 3, 3)},
        r"weight has shape .*: it must have 4",
    ),
    "large weight": (
        "Conv2d",
        {"weight": torch.ones(4, 3, 7, 3)},
        r"kernel_size \(7, 3\) .* spans 7",
    ),
    "short bias": ("Conv2d", {"bias": torch.ones(3)}, r"bias has shape \(3,\): it must be \(4,\)"),
    "bias of none": ("Conv2d", {"bias": torch.ones(())}, r"bias has shape \(\): it must be \(4,\)"),
    "float64 bias": ("Conv2d", {"bias": torch.ones(4).double()}, "bias has dtype torch.float64"),
    "1-D channels": ("Conv1d", {"input": (1, 2, 5)}, r"input has shape \(1, 2, 5\): .* 3 channels"),
    "1-D axes": (
        "Conv1d",
        {"input": (1, 3, 5, 5)},
        r"input has shape .*: it must have 3 dim.*, or 2",
    ),
    "1-D short": ("Conv1d", {"input": (1, 3, 2)}, r"kernel_size \(3,\).* spans 3 pixels of width"),
    "3-D channels": ("Conv3d", {"input": (1, 2, 5, 5, 5)}, r"input has shape .*: .* 3 channels"),
    "3-D axes": ("Conv3d", {"input": (5, 5, 5)}, r"input has shape .*: it must have 5 dim.*, or 4"),
    "3-D shallow": (
        "Conv3d",
        {"input": (1, 3, 2, 5, 5)},
        r"kernel_size .* spans 3 pixels of depth",
    ),
}


def unsuited(case: str, device: str) -> tuple[Any, Any, str]:
    """A layer, a function of nothing that calls it wrongly, and what the refusal says."""
    kind, given, says = UNSUITED[case]
    layer = getattr(layers, kind)(3, 4, 3, device=device)
    axes = {"Conv1d": 1, "Conv2d": 2, "Conv3d": 3}[kind]
    input = torch.ones(given.pop("input", (1, 3, *[5] * axes)), dtype=given.pop("dtype", None))
    for name, tensor in given.items():
        setattr(layer, name, nn.Parameter(tensor.to(device)))
    return layer, input.to(device), says


@pytest.fixture(autouse=True)
def _cases_are_kept(monkeypatch):
    for case, (kind, given, says) in UNSUITED.items():
        monkeypatch.setitem(UNSUITED, case, (kind, dict(given), says))


@pytest.mark.parametrize("where", [DEVICE, "meta"])
@pytest.mark.parametrize("case", UNSUITED)
def test_what_does_not_fit_is_refused_with_and_without_numbers(case, where):
    layer, input, says = unsuited(case, where)
    with pytest.raises((TypeError, ValueError), match=f"^{says}"):
        layer(input)
    with pytest.raises((TypeError, ValueError), match=f"^1.0: {says}"):
        nn.Sequential(nn.Identity(), nn.Sequential(layer))(input)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("case", ["channels", "too low", "float16", "short bias", "3-D channels"])
def test_what_does_not_fit_is_refused_by_export(case, strict):
    layer, input, says = unsuited(case, "cpu")
    with pytest.raises(Exception, match=says):
        torch.export.export(nn.Sequential(layer), (input,), strict=strict)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", ["channels", "too low", "float16", "short bias", "1-D channels"])
def test_what_does_not_fit_is_refused_by_the_compiler(case, dynamic):
    layer, input, says = unsuited(case, "cpu")
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="eager")
    # Open sizes have names in its message, not numbers.
    with pytest.raises(Exception, match=re.sub(r"\\\(.*?\\\)", ".*", says)):
        compiled(input)


def test_fake_tensors_are_refused_as_others():
    from torch._subclasses.fake_tensor import FakeTensorMode

    layer = layers.Conv2d(3, 4, 3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert layer(torch.ones(2, 3, 5, 6)).shape == (2, 4, 3, 4)
        with pytest.raises(ValueError, match=r"^input has shape \(1, 2, 5, 5\): it must have 3 ch"):
            layer(torch.ones(1, 2, 5, 5))


def test_a_weight_without_numbers_gives_no_numbers():
    """PyTorch's own gives the memory as it found it."""
    layer = layers.Conv2d(3, 4, 3, device="meta")
    with pytest.raises(ValueError, match=r"^weight is on meta: it must have numbers, as input on"):
        layer(torch.ones(1, 3, 5, 5))


@pytest.mark.parametrize("device", [DEVICE, "meta"])
def test_the_operators_check_what_they_are_given(device):
    def ones(*shape: int) -> Any:
        return torch.ones(shape, device=device)

    settings = [1, 1], [0, 0, 0, 0], [1, 1], 1, "auto", "auto"
    input, weight, gradient = ones(1, 3, 5, 5), ones(4, 3, 3, 3), ones(1, 4, 3, 3)
    for operator, arguments, says in (
        (
            layers.input_gradient,
            (input, weight, [1, 3, 5, 5]),
            r"gradient has shape \(1, 3, 5, 5\)",
        ),
        (
            layers.input_gradient,
            (gradient, weight, [1, 2, 5, 5]),
            r"input has shape \(1, 2, 5, 5\)",
        ),
        (
            layers.weight_gradient,
            (input, input, [4, 3, 3, 3]),
            r"gradient has shape \(1, 3, 5, 5\)",
        ),
        (layers.weight_gradient, (input, gradient, [4, 3, 3]), r"weight has shape \(4, 3, 3\): "),
        (layers.weight_gradient, (input, gradient.half(), [4, 3, 3, 3]), "gradient has dtype"),
        (layers.conv2d, (input[0], weight, None), r"input has shape \(3, 5, 5\): it must have 4"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{says}"):
            operator(*arguments, *settings)
    for changed, says in (
        (([0, 1], *settings[1:]), r"stride is \[0, 1\]: it must be at least 1"),
        (([1], [0] * 4, [1, 1, 1], *settings[3:]), "dilation is "),
        ((*settings[:3], 2, *settings[4:]), r"input has shape .* it must have 6 channels"),
        ((*settings[:4], "s99", "auto"), "stage is 's99': it must be one of"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            layers.conv2d(input, weight, None, *changed)


def test_sizes_may_stay_open_in_an_exported_program():
    layer = layers.Conv2d(3, 4, 3, padding=1, stride=2)
    sizes = {
        0: torch.export.Dim("n"),
        2: torch.export.Dim("h", min=4),
        3: torch.export.Dim("w", min=4),
    }
    exported = torch.export.export(layer, (torch.ones(2, 3, 7, 8),), dynamic_shapes=(sizes,))
    other = torch.randn(3, 3, 9, 6)
    torch.testing.assert_close(exported.module()(other), layer(other))


def traced_as_torchvision(model: Any) -> Any:
    """Return what torchvision's ``create_feature_extractor`` reads: each node's module, and the
    graph."""

    class Tracer(torch.fx.Tracer):
        def __init__(self) -> None:
            super().__init__(autowrap_functions=())
            self.names: dict[str, str] = {}
            self.inside = ""

        def call_module(self, module: Any, *arguments: Any) -> Any:
            before, self.inside = self.inside, self.path_of_module(module)
            try:
                return super().call_module(module, *arguments)
            finally:
                self.inside = before

        def create_proxy(self, kind: str, *arguments: Any, **more: Any) -> Any:
            proxy = super().create_proxy(kind, *arguments, **more)
            self.names[proxy.node.name] = f"{self.inside}|{kind}"
            return proxy

    tracer = Tracer()
    graph = tracer.trace(model)
    return tracer.names, torch.fx.GraphModule(model, graph)


def test_a_replaced_model_is_traced_as_before():
    """``torch.fx`` takes each layer as one call under its name, hooks included."""

    def model() -> Any:
        torch.manual_seed(1)
        made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 2, 1)))
        made[0].register_forward_hook(lambda layer, inputs, output: 2 * output)
        return made.to(DEVICE)

    theirs, ours = model(), model()
    assert layers.replace(ours) == 2
    (right, _), (names, traced) = map(traced_as_torchvision, (theirs, ours))
    assert names == right
    image = torch.randn(1, 3, 5, 5, device=DEVICE)
    for graph in (traced, torch.fx.symbolic_trace(ours), torch.fx.symbolic_trace(traced)):
        torch.testing.assert_close(graph(image), theirs(image))
        torch.testing.assert_close(graph(image), ours(image))
        assert [*graph.state_dict()] == [*theirs.state_dict()]
    again = torch.fx.symbolic_trace(copy.deepcopy(ours))
    torch.testing.assert_close(again(image), ours(image))


@pytest.mark.parametrize("kind", ["Conv1d", "Conv2d", "Conv3d"])
def test_a_layer_itself_is_traced(kind):
    layer = getattr(layers, kind)(3, 4, 3, padding=1)
    traced = torch.fx.symbolic_trace(layer)
    for shape in ((2, 3), (3,)):
        input = torch.randn(*shape, *[4] * layer.axes)
        torch.testing.assert_close(traced(input), layer(input))


def test_layers_and_what_replace_returns_are_pickled():
    layer = layers.Conv2d(3, 4, 3, stage="m03")
    input = torch.randn(1, 3, 4, 4)
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        torch.testing.assert_close(other(input), layer(input))
    replaced = layers.replace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 4, 3)))
    same = pickle.loads(pickle.dumps(copy.deepcopy(replaced)))
    assert same == 1
    assert (same.replaced, same.skipped) == (replaced.replaced, replaced.skipped)


@pytest.mark.parametrize("kind", ["Conv1d", "Conv2d", "Conv3d"])
def test_layers_are_traced_by_jit(kind):
    """With any number of images and any size afterwards."""
    layer = getattr(layers, kind)(3, 4, 3, padding=1, stride=2)
    traced = torch.jit.trace(layer, torch.randn(2, 3, *[4] * layer.axes))
    other = torch.randn(3, 3, *[5, 4, 6][: layer.axes])
    torch.testing.assert_close(traced(other), layer(other))


# What is differentiated or mapped: a function of a layer, its weight, bias and an input.
def _loss(layer: Any, weight: Any, bias: Any, input: Any) -> Any:
    output = torch.func.functional_call(layer, {"weight": weight, "bias": bias}, input)
    return output.square().sum()


TRANSFORMED: dict[str, Any] = {
    "grad of the weight": lambda f, *tensors: torch.func.grad(f)(*tensors),
    "grad of all": lambda f, *tensors: torch.func.grad(f, (0, 1, 2))(*tensors),
    "jacrev": lambda f, w, b, x: torch.func.jacrev(lambda x: f(w, b, x))(x),
    "vjp": lambda f, *tensors: torch.func.vjp(f, *tensors)[1](torch.ones(())),
    "per sample": lambda f, w, b, x: torch.func.vmap(
        torch.func.grad(f, (0, 1, 2)), (None, None, 0)
    )(w, b, torch.stack([x, 2 * x])),
    "ensemble": lambda f, w, b, x: torch.func.vmap(f, (1, 0, None))(
        torch.stack([w, 2 * w], 1), torch.stack([b, 3 * b]), x
    ),
    "ensemble's grad": lambda f, w, b, x: torch.func.vmap(torch.func.grad(f, 2), (0, None, None))(
        torch.stack([w, 2 * w]), b, x
    ),
    "biases": lambda f, w, b, x: torch.func.vmap(f, (None, 0, None))(w, torch.stack([b, 3 * b]), x),
    "images": lambda f, w, b, x: torch.func.vmap(f, (None, None, -1))(
        w, b, torch.stack([x, 2 * x], -1)
    ),
    "nested": lambda f, w, b, x: torch.func.vmap(
        torch.func.vmap(f, (0, None, None)), (None, None, 0)
    )(torch.stack([w, 2 * w]), b, torch.stack([x, 3 * x, -x])),
    "second": lambda f, w, b, x: torch.func.jacrev(torch.func.grad(lambda b: f(w, b, x)))(b),
    "Hessian": lambda f, w, b, x: torch.func.jacrev(
        torch.func.grad(lambda part: f(torch.cat([part, w[:, :, 1:]], 2), b, x))
    )(w[:, :, :1]),
    "mapped twice": lambda f, w, b, x: torch.func.vmap(
        torch.func.grad(lambda w, x: torch.func.grad(f, 2)(w, b, x).square().sum()), (None, 0)
    )(w, torch.stack([x, 2 * x])),
}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transform", TRANSFORMED)
def test_functions_are_transformed_as_with_pytorch(transform, groups):
    """Whole numbers, so that all sums are exact."""
    ours = layers.Conv2d(4, 2, (3, 2), stride=(2, 1), padding=1, groups=groups)
    theirs = copy.deepcopy(ours)
    theirs.__class__ = nn.Conv2d
    shapes = ours.weight.shape, ours.bias.shape, (2, 4, 3, 2)
    tensors = [torch.randint(-2, 3, shape).float() for shape in shapes]
    got, right = (
        TRANSFORMED[transform](lambda *t, one=layer: _loss(one, *t), *tensors)
        for layer in (ours, theirs)
    )
    pairs = zip(*(one if isinstance(one, tuple) else (one,) for one in (got, right)), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_transformed_functions_compile():
    layer = layers.Conv2d(3, 4, 3)
    tensors = layer.weight.detach(), layer.bias.detach(), torch.randn(1, 3, 4, 4)
    gradient = torch.func.grad(lambda *tensors: _loss(layer, *tensors))
    compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), gradient(*tensors))


@pytest.mark.parametrize("transform", ["jacfwd", "hessian"])
def test_forward_mode_is_refused_in_any_transform(transform):
    layer = layers.Conv2d(3, 4, 3)
    transformed = getattr(torch.func, transform)(lambda image: layer(image).square().sum())
    with pytest.raises(NotImplementedError, match=r"^(input|gradient) has a tangent: it must h"):
        transformed(torch.ones(1, 3, 4, 4))


class Derived(nn.Conv2d):
    pass


def mixed() -> Any:
    """A model with every kind of convolution that may stay as it is."""
    named = {
        "plain": nn.Conv2d(3, 3, 1),
        "reflect": nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"),
        "derived": Derived(3, 3, 1),
        "weighed": torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1)),
        "lazy": nn.LazyConv2d(3, 1),
        "transposed": nn.ConvTranspose2d(3, 3, 1),
        "inner": nn.Sequential(nn.Conv1d(3, 3, 1), nn.Conv3d(3, 3, 1), nn.ReLU()),
    }
    return nn.ModuleDict(named)


def test_replace_lists_what_it_leaves_alone_and_why():
    model = mixed()
    replaced = layers.replace(model, skip="reflect")
    assert replaced == 3
    assert str(replaced) == "3"
    assert replaced.replaced == ("plain", "inner.0", "inner.1")
    assert [*replaced.skipped] == ["reflect", "derived", "weighed", "lazy", "transposed"]
    for name, words in (
        ("reflect", "skip selects it"),
        ("derived", "Derived is derived from torch.nn.modules.conv.Conv2d, and may compute"),
        ("weighed", "ParametrizedConv2d is parametrized: replace the layer first"),
        ("lazy", "LazyConv2d has no sizes until its first call"),
        ("transposed", "ConvTranspose2d is a transposed convolution"),
    ):
        assert replaced.skipped[name].startswith(words)
        assert f"{name!r}: " in repr(replaced)
    assert type(model["reflect"]) is nn.Conv2d


@pytest.mark.parametrize(
    ("skip", "left"),
    [
        (["reflect", "inner"], ["inner.0", "inner.1"]),
        ({"reflect", "inner.1"}, ["inner.1"]),
        (lambda name, layer: layer.padding_mode != "zeros", []),
        (lambda name, layer: not isinstance(layer, nn.Conv3d), ["inner.0", "plain"]),
        ("", ["inner.0", "inner.1", "plain"]),
    ],
)
def test_skip_selects_by_name_or_function(skip, left):
    model = mixed()
    skipped = layers.replace(model, skip=skip).skipped
    chosen = sorted(name for name, why in skipped.items() if why == "skip selects it")
    assert chosen == sorted([*left, "reflect"])
    assert all(type(model.get_submodule(name)).__module__.startswith("torch.nn") for name in chosen)


def test_skip_knows_each_name_of_a_shared_layer():
    shared = nn.Conv2d(1, 1, 1)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    assert layers.replace(model, skip=["b"]).skipped == {"a": "skip selects it"}


def test_a_wrong_skip_is_refused():
    for skip, says in (
        ("nose", "skip has 'nose': it must name"),
        (3, "skip is 3: it must be a name"),
    ):
        model = mixed()
        with pytest.raises((TypeError, ValueError), match=says):
            layers.replace(model, skip=skip)
        assert type(model["plain"]) is nn.Conv2d


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.ReLU(), layers.Conv2d(3, 4, 3))

    def forward(self, input: Any) -> Any:
        return self.body(input)


def test_errors_in_a_model_name_the_layer():
    """Compiled in parts, too, and in whatever the model is wrapped."""
    input = torch.ones(1, 2, 4, 4)
    for model in (Net(), torch.compiler.disable(Net())):
        with pytest.raises(ValueError, match=r"^body.1: input has shape \(1, 2, 4, 4\): it must"):
            model(input)
    with pytest.raises(TypeError, match=r"^0.body.1: input has dtype torch.float16: it must"):
        nn.Sequential(Net())(input.half())
    model = Net()
    del model.body[1].weight
    with pytest.raises(AttributeError, match="weight"):
        model(input)
