"""``convlab.torch``: a layer that PyTorch trains. One file for the simulator and for a GPU."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from itertools import pairwise
from shutil import which
from typing import Any

import pytest

from convlab import conv2d, plans
from convlab.engines import unavailable

torch = pytest.importorskip("torch", "2.4", reason="the layer is PyTorch's, which is optional")

import convlab.torch as layers  # noqa: E402

ON_GPU = unavailable("gpu") is None and torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
STAGES = ("auto", "s05", "s12")
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
    """Where parts are called as they are too; outside, before and after, it works."""
    tensors = torch.ones(1, 1, 2, 2, device=DEVICE), torch.ones(1, 1, 1, 1, device=DEVICE)
    compiled = torch.compile(lambda x, w: conv2d(x, w) + 1, fullgraph=whole, backend="eager")
    as_it_is = torch.compiler.disable(conv2d)
    outside = torch.compile(lambda x, w: as_it_is(x, w) + 0, backend="eager")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"torch.compile, .* use convlab.torch.Conv2d"):
            compiled(*tensors)
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
    with pytest.raises(ValueError, match=r"^1: padding_mode is 'circular': it must be 'zeros'$"):
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
    assert layers.replace(model, stage="s05") == 2
    assert model[0] is shared
    assert type(shared) is layers.Conv2d
    assert shared.weight is weight
    assert shared.stage == model[2].stage == "s05"
    assert type(model[1][1]) is nn.Conv1d
    assert layers.replace(shared) == 1  # the root, and again
    shared.to(DEVICE)(torch.ones(1, 3, 2, 2, device=DEVICE))
    assert calls == [1]
    assert shared.stage == "auto"


@pytest.mark.parametrize("stage", ["auto", "s12"])
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
    """Of the float64 ones PyTorch's differ as much: where a number is nearly 0, a rounding changes
    what a ReLU lets through, and with it all gradients before it by some thousandths."""
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
     ("padding", 1.5), ("dilation", True), ("stage", ["s12"]), ("stage", "s99"),
     ("padding_mode", "reflect")],
)  # fmt: skip
def test_a_layer_names_what_is_wrong_with_it(name, value):
    usual = {"in_channels": 3, "out_channels": 4, "kernel_size": 3}
    with pytest.raises((TypeError, ValueError), match=rf"^{name} is .*: it"):
        layers.Conv2d(**usual | {name: value})


@pytest.mark.skipif(ON_GPU, reason="a GPU takes no time that is announced")
def test_a_long_simulation_of_a_layer_says_so(monkeypatch, capsys):
    """Forwards and backwards, as ``conv2d`` and ``plan`` do."""
    monkeypatch.setattr(plans, "PATIENCE_SECONDS", 0)
    layer = layers.Conv2d(3, 4, 3)
    output = layer(torch.ones(1, 3, 5, 5))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convlab: 972 multiply-adds on ")
    output.sum().backward()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convlab: 972 multiply-adds on ")
