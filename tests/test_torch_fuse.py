"""``convlab.torch.fuse``: models for inference, whose convolutions do what follows them."""

from __future__ import annotations

import re

import pytest
from numba.cuda.core import config

from convlab.running.engines import choose, unavailable

torch = pytest.importorskip("torch", "2.4", reason="the model is PyTorch's, which is optional")

import convlab.torch as layers  # noqa: E402
from convlab.running import torch_fused, torch_prepare  # noqa: E402

nn = torch.nn
ON_GPU = unavailable("gpu") is None and torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
HOPPER = not choose().is_gpu or choose().capability() == (9, 0)


class Block(nn.Module):
    """A residual block, whose sum is written as models write it."""

    def __init__(self, channels: int, add: str, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(channels, channels, 1)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = shortcut or nn.Identity()
        self.add = add

    def forward(self, x):
        made = self.norm2(self.second(self.relu(self.norm1(self.first(x)))))
        other = self.shortcut(x)
        if self.add == "operator":
            return nn.functional.relu(made + other)
        if self.add == "swapped":
            return torch.relu(torch.add(other, made))
        if self.add == "in place":
            made += other
            return self.relu(made)
        return made.add_(other).relu()


def with_statistics(model: nn.Module, images) -> nn.Module:
    """The model with norms that do something."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    with torch.no_grad():
        model.train()(images)
    return model.eval()


def model_of(add: str = "operator", shortcut: bool = False) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    images = torch.randn(1, 3, 6, 7)
    other = nn.Sequential(nn.Conv2d(32, 32, 1), nn.BatchNorm2d(32)) if shortcut else None
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), Block(32, add, other),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    return with_statistics(model, images), images


def fused_layers(model: nn.Module) -> list[layers.FusedConv2d]:
    return [one for one in model.modules() if isinstance(one, layers.FusedConv2d)]


ADDITIONS = ("operator", "swapped", "in place", "method")


@pytest.mark.parametrize("shortcut", [False, True], ids=["identity", "convolution"])
@pytest.mark.parametrize("add", ADDITIONS)
def test_all_of_a_block_is_fused(add: str, shortcut: bool) -> None:
    model, images = model_of(add, shortcut)
    wanted = model(images)
    fused = layers.fuse(model)
    kinds = [type(one) for one in fused.modules()]
    assert nn.BatchNorm2d not in kinds
    assert nn.ReLU not in kinds
    assert len(fused_layers(fused)) == 3 + shortcut
    calls = [node for node in fused.graph.nodes if node.op in ("call_function", "call_method")]
    assert not calls
    assert sum(one.relu for one in fused_layers(fused)) == 3
    torch.testing.assert_close(fused.to(DEVICE)(images.to(DEVICE)).cpu(), wanted)
    torch.testing.assert_close(model(images), wanted)  # the model stays as it was


@pytest.mark.skipif(not HOPPER, reason="the stages for 16 bits need a Hopper GPU")
@pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the same Python, a minute of it")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_16_bits_a_layer_is_one_kernel(dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = model_of()
    wanted = model(images)
    fused = layers.fuse(model).to(DEVICE, dtype, memory_format=torch.channels_last)
    asked = []
    compute = torch_fused.compute

    def noted(*arguments, options):
        asked.append(options)
        return compute(*arguments, options=options)

    monkeypatch.setattr(torch_fused, "compute", noted)
    made = fused(images.to(DEVICE, dtype, memory_format=torch.channels_last))
    assert asked == [("relu",), ("relu",), ("relu", "residual")]
    error = (made.float().cpu() - wanted).norm() / wanted.norm()
    assert error < (2e-2 if dtype is torch.bfloat16 else 3e-3)


@pytest.mark.skipif(not HOPPER, reason="the stages for 16 bits need a Hopper GPU")
def test_a_layer_in_16_bits_with_and_without_a_residual() -> None:
    torch.manual_seed(2)
    convolution = nn.Conv2d(16, 32, 1).to(DEVICE, torch.bfloat16)
    images = torch.randn(1, 16, 3, 5).to(DEVICE, torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)
    residual = torch.randn(1, 32, 3, 5).to(DEVICE, torch.bfloat16)
    layer = layers.FusedConv2d(convolution, relu=True)
    for added in (None, residual, residual[:, :1], residual[0]):  # the last two are broadcast
        wanted = convolution(images).float() + (0 if added is None else added.float())
        made = layer(images, added)
        torch.testing.assert_close(made.float(), wanted.relu(), rtol=2e-2, atol=2e-2)
        assert made.is_contiguous(memory_format=torch.channels_last)
    one = layer(images[0], residual[0])
    torch.testing.assert_close(one, layer(images, residual)[0])


class Awkward(nn.Module):
    """A model whose layers must not be fused."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.groups = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1, groups=2)
        self.case = case
        if case == "a convolution's hook":
            self.second.register_forward_hook(lambda module, given, made: made * 2)
        if case == "a norm's hook":
            self.norm.register_forward_pre_hook(lambda module, given: (given[0] + 1,))

    def forward(self, x):
        first = self.first(x)
        if self.case == "used twice":
            return self.norm(first) + first
        if self.case == "to itself":
            return first + first
        if self.case == "written before the sum":
            made = self.second(first)
            first.relu_()
            return torch.relu(made + first)
        if self.case == "written by an out":
            made = self.second(first)
            other = torch.mul(first, 2, out=first)
            return made + other
        if self.case == "in place on the other":
            other = x * 2
            other += first
            return other
        if self.case == "a scaled sum":
            return torch.add(first, x, alpha=2)
        if self.case == "a number":
            return torch.relu(first + 1)
        if self.case == "groups":
            return self.norm(self.groups(x))
        if self.case == "called twice":
            return self.norm(self.first(torch.relu(first)))
        if self.case == "its weight is used":
            return self.norm(first) * self.first.weight.sum()
        return self.norm(self.second(x)) + self.second(x)


@pytest.mark.parametrize(
    "case",
    [
        "used twice", "to itself", "written before the sum", "in place on the other",
        "a scaled sum", "a number", "groups", "called twice", "its weight is used",
        "a norm of one call", "written by an out", "a convolution's hook", "a norm's hook",
    ],
)  # fmt: skip
def test_the_result_stays_where_a_graph_is_awkward(case: str) -> None:
    torch.manual_seed(3)
    images = torch.randn(1, 4, 5, 5)
    model = with_statistics(Awkward(case), images)
    fused = layers.fuse(model).to(DEVICE)
    with torch.no_grad():  # or out= is refused
        wanted = model(images.clone())
        torch.testing.assert_close(fused(images.to(DEVICE)).cpu(), wanted)


class Copied(nn.Module):
    def __deepcopy__(self, memo):
        raise RuntimeError("not this one")


class Depends(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((nn.Conv2d,), TypeError, "model is <class 'torch.nn.modules.conv.Conv2d'>: it must be"),
        ((nn.Identity(), "m99"), ValueError, "m99"),
        ((nn.Identity(), "m15", "tpu"), ValueError, "tpu"),
        ((Depends(),), ValueError, "the model cannot be fused, because torch.fx: symbolically"),
        ((Copied(),), ValueError, "because it cannot be copied: not this one"),
    ],
    ids=["a class", "stage", "engine", "control flow", "no copy"],
)
def test_what_is_refused(arguments, error, says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        layers.fuse(*arguments)


def test_prepare_compiles_the_fused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from pretended_gpu import PretendedGpu

    found = []
    monkeypatch.setattr(
        torch_prepare, "compile_ahead", lambda wanted, engine, processes: found.extend(wanted)
    )
    gpu = PretendedGpu(strict=False)
    model, images = model_of()
    fused = layers.fuse(model).to(torch.bfloat16, memory_format=torch.channels_last)
    monkeypatch.setattr(torch_prepare, "choose", lambda name: gpu)
    layers.prepare(fused, images.to(torch.bfloat16))
    assert [one.options for one in found] == [("relu",), ("relu",), ("relu", "residual")]
    assert {one.problem.dtype for one in found} == {"bfloat16"}


def test_it_has_no_derivatives() -> None:
    layer = layers.FusedConv2d(nn.Conv2d(2, 2, 1), relu=True)
    assert not any(one.requires_grad for one in layer.parameters())
    assert repr(layer) == (
        "FusedConv2d(2, 2, kernel_size=(1, 1), stride=(1, 1), padding=(0, 0), relu=True, "
        "stage=auto)"
    )


@pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the same Python, a minute of it")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_fused_model_is_compiled_without_a_graph_break(backend: str) -> None:
    """torch.compile takes each layer as one operator, and torch.fx as one call."""
    model, images = model_of()
    fused = layers.fuse(model).to(DEVICE)
    kinds = [node.op for node in torch.fx.symbolic_trace(fused).graph.nodes]
    assert kinds.count("call_module") == 7  # three layers and all else
    if HOPPER:  # an operator of its own
        fused, images = fused.bfloat16(), images.bfloat16()
    images = images.to(DEVICE)
    with torch.no_grad():
        made = torch.compile(fused, backend=backend, fullgraph=True, dynamic=False)(images)
    torch.testing.assert_close(made, fused(images))
