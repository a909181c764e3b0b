"""PyTorch's layers with tensors of 16 bits, TF32 and autocast, on the simulator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("array_api_compat")

from kernels.halves import DIRECT_16  # noqa: E402
from pretended_gpu import PretendedGpu  # noqa: E402

import convlab  # noqa: E402
import convlab.torch  # noqa: E402
from convlab import ladder  # noqa: E402
from convlab.running import torch_layers  # noqa: E402
from convlab.running.chosen_stages import AUTO_TF32  # noqa: E402

F = torch.nn.functional
of_halves = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@pytest.fixture
def with_halves(monkeypatch):
    """The ladder with one stage of 16 bits."""
    floats = tuple(stage for stage in ladder.LADDER if stage.dtypes == ("float32",))
    monkeypatch.setattr(ladder, "LADDER", (*floats, DIRECT_16))


@pytest.fixture
def without_halves(monkeypatch):
    floats = tuple(stage for stage in ladder.LADDER if stage.dtypes == ("float32",))
    monkeypatch.setattr(ladder, "LADDER", floats)


def integers(*shape, dtype):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def layer_of(dtype, **more):
    layer = convlab.torch.Conv2d(3, 4, (2, 3), padding=1, engine="simulator", **more).to(dtype)
    with torch.no_grad():
        layer.weight.copy_(integers(4, 3, 2, 3, dtype=dtype))
        layer.bias.copy_(integers(4, dtype=dtype))
    return layer


@of_halves
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_a_layer_takes_and_gives_16_bits_in_its_input_s_layout(dtype, last, with_halves):
    layer, form = layer_of(dtype), torch.channels_last if last else torch.contiguous_format
    input = integers(2, 3, 4, 5, dtype=dtype).contiguous(memory_format=form)
    with torch.no_grad():
        output = layer(input)
        direct = convlab.conv2d(input, layer.weight, layer.bias, padding=1, engine="simulator")
    expected = F.conv2d(input.float(), layer.weight.float(), layer.bias.float(), padding=1)
    for found in (output, direct):
        assert found.dtype == dtype
        assert torch.equal(found.float(), expected)
    assert output.is_contiguous(memory_format=form)


@of_halves
def test_gradients_of_16_bits_are_those_of_float32_rounded_once(dtype, with_halves):
    layer = layer_of(dtype)
    input = integers(2, 3, 4, 5, dtype=dtype).requires_grad_()
    layer(input).square().sum().backward()
    floats = layer_of(torch.float32)
    same = input.detach().float().requires_grad_()
    floats(same).square().sum().backward()
    pairs = ((input, same), (layer.weight, floats.weight), (layer.bias, floats.bias))
    for one, other in pairs:
        assert one.grad.dtype == dtype
        assert torch.allclose(one.grad.float(), other.grad, rtol=2.0**-7, atol=1e-2)


@of_halves
def test_autocast_casts_as_for_pytorch_s_layer(dtype, with_halves):
    layer = layer_of(torch.float32)
    input = integers(1, 3, 4, 5, dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        output = layer(input)
        expected = F.conv2d(input, layer.weight, layer.bias, padding=1)
    assert output.dtype == expected.dtype == dtype
    assert torch.equal(output, expected)
    assert layer(input).dtype == torch.float32


def test_autocast_without_a_stage_rounds_the_result(without_halves):
    layer = layer_of(torch.float32)
    input = integers(1, 3, 4, 5, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(input)
        output.sum().backward()
    assert output.dtype == torch.bfloat16
    assert layer.weight.grad.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        grouped = convlab.torch.Conv2d(4, 4, 2, groups=2, engine="simulator")
        assert grouped(torch.ones(1, 4, 3, 3)).dtype == torch.bfloat16


def test_types_that_do_not_fit_are_refused(with_halves):
    layer = layer_of(torch.float16)
    with pytest.raises(
        TypeError, match=r"^input has dtype torch.float32: it must be torch.float16"
    ):
        layer(torch.ones(1, 3, 4, 5))
    with pytest.raises(
        TypeError, match=r"^input has dtype torch.float64: it must be torch.float16"
    ):
        layer(torch.ones(1, 3, 4, 5, dtype=torch.float64))
    grouped = convlab.torch.Conv2d(4, 4, 2, groups=2, engine="simulator").half()
    with pytest.raises(
        ValueError, match=r"^dtype is float16: it must be float32 for stage grouped"
    ):
        grouped(torch.ones(1, 4, 3, 3).half())


def test_without_numbers_a_layer_infers_type_and_layout(with_halves):
    layer = layer_of(torch.bfloat16).to("meta")
    input = torch.empty(2, 3, 4, 5, dtype=torch.bfloat16, device="meta")
    output = layer(input.contiguous(memory_format=torch.channels_last))
    assert output.dtype == torch.bfloat16
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert layer(input).is_contiguous()


def test_a_layer_s_precision_is_its_own_or_pytorch_s(monkeypatch):
    layer = convlab.torch.Conv2d(1, 1, 1, engine="simulator")
    input = torch.ones(1, 1, 1, 1)
    before = torch.backends.cudnn.allow_tf32
    hopper, ampere = PretendedGpu(capability=(9, 0)), PretendedGpu(capability=(8, 0))
    try:
        for allowed, engine, expected in (
            (True, hopper, AUTO_TF32), (False, hopper, "auto"), (True, ampere, "auto"),
        ):  # fmt: skip
            monkeypatch.setattr(torch_layers, "choose", lambda name, engine=engine: engine)
            torch_layers._has_tf32.cache_clear()
            torch.backends.cudnn.allow_tf32 = allowed
            assert torch_layers._stage_now(layer, input) == expected
            assert torch_layers._stage_now(layer, input.half()) == "auto"
        layer.precision = "tf32"
        assert torch_layers._stage_now(layer, input) == AUTO_TF32
        layer.precision = "float32"
        torch.backends.cudnn.allow_tf32 = True
        assert torch_layers._stage_now(layer, input) == "auto"
    finally:
        torch.backends.cudnn.allow_tf32 = before
        torch_layers._has_tf32.cache_clear()


def test_replace_gives_layers_a_precision():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1))
    convlab.torch.replace(model, engine="simulator", precision="tf32")
    assert model[0].precision == "tf32"
    assert "precision=tf32" in repr(model)
    output = model(torch.full((1, 1, 2, 2), 1 + 2.0**-15))
    assert output.shape == (1, 1, 2, 2)
    with pytest.raises(
        ValueError, match=r"^precision is 'tf23': it must be None, 'float32' or 'tf32'"
    ):
        convlab.torch.Conv2d(1, 1, 1, precision="tf23")


@pytest.mark.parametrize(
    ("stage", "dtype", "precision"),
    [("h05", torch.float32, "tf32"), ("h03", torch.bfloat16, None)],
)
def test_a_stage_with_channels_last_trains_a_layer(stage, dtype, precision):
    """Its gradients are those of "auto": no stage with channels last computes them."""
    torch.manual_seed(0)
    images = torch.randn(2, 16, 4, 5, dtype=dtype)
    layers = [
        convlab.torch.Conv2d(16, 32, 3, stage=one, engine="simulator", precision=its).to(dtype)
        for one, its in ((stage, precision), ("auto", None))
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    given = [images.clone().requires_grad_() for _ in layers]
    made = [layer(one) for layer, one in zip(layers, given, strict=True)]
    torch.testing.assert_close(made[0], made[1], rtol=0.02, atol=0.02)
    for one in made:
        one.float().sum().backward()
    torch.testing.assert_close(given[0].grad, given[1].grad, rtol=0, atol=0)
    torch.testing.assert_close(layers[0].weight.grad, layers[1].weight.grad, rtol=0, atol=0)
