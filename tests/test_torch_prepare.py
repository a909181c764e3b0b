"""``convlab.torch.prepare``: which kernels a model's first call will need."""

from __future__ import annotations

import pytest

from convlab.problems.gradient import Gradient

torch = pytest.importorskip("torch", "2.4", reason="the layer is PyTorch's, which is optional")

from pretended_gpu import PretendedGpu  # noqa: E402

import convlab.torch  # noqa: E402
from convlab.running import torch_prepare  # noqa: E402
from convlab.running.engines import choose  # noqa: E402

nn = torch.nn
GPU = PretendedGpu("a GPU that is not here", (9, 0), 132)


class Model(nn.Module):
    """Layers of all axes, one that needs no gradient and one that is called twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.twice = nn.Conv2d(4, 4, 3, padding="same", groups=2)
        self.frozen = nn.Conv2d(4, 2, 1, bias=False).requires_grad_(False)
        self.line = nn.Conv1d(2, 2, 3)
        self.seen = []

    def forward(self, images, *, scale=1):
        made = nn.functional.dropout(self.norm(self.first(images)).relu())
        made = self.frozen(self.twice(self.twice(made)))
        self.seen.append(made)
        return self.line(made.flatten(2)) * scale


@pytest.fixture
def compiled(monkeypatch):
    """The convolutions that would be compiled, in order, on a GPU."""
    found = []

    def compile_ahead(wanted, engine, processes):
        found.extend((one.problem, one.stage) for one in wanted)
        return len(found)

    monkeypatch.setattr(torch_prepare, "choose", lambda name: GPU)
    monkeypatch.setattr(torch_prepare, "compile_ahead", compile_ahead)
    monkeypatch.setattr(torch_prepare, "_called", set())
    return found


def named(problem):
    of, forward = "", problem
    if isinstance(problem, Gradient):
        of, forward = problem.of, problem.problem
    return forward.in_channels, forward.out_channels, forward.groups, of


def model_of(stage="m15"):
    model = Model()
    assert convlab.torch.replace(model, stage) == 4
    return model


def test_all_convolutions_and_the_gradients_that_are_needed(compiled):
    model = model_of()
    convlab.torch.prepare(model, torch.randn(2, 3, 6, 5))
    assert [named(problem) for problem, _ in compiled] == [
        (3, 4, 1, ""), (3, 4, 1, "weight"),
        *[(4, 4, 2, ""), (4, 4, 2, "input"), (4, 4, 2, "weight")] * 2,
        (4, 2, 1, ""), (4, 2, 1, "input"),
        (2, 2, 1, ""), (2, 2, 1, "input"), (2, 2, 1, "weight"),
    ]  # fmt: skip
    assert {stage for _, stage in compiled} == {"m15"}
    first, line = compiled[0][0], compiled[-3][0]
    assert first.input_shape == (2, 3, 6, 5)
    assert line.input_shape == (2, 2, 1, 30)


def test_no_gradients_in_evaluation_unless_they_are_asked_for(compiled):
    model = model_of().eval()
    example = ({"images": torch.randn(2, 3, 6, 5), "scale": 3}, {"backward": False})
    convlab.torch.prepare(model, example[0])
    assert all(not isinstance(problem, Gradient) for problem, _ in compiled)
    with torch.inference_mode():
        convlab.torch.prepare(model, example[0], backward=True)
    assert any(isinstance(problem, Gradient) for problem, _ in compiled)


def test_the_model_stays_as_it_is(compiled):
    model = model_of()
    called = []
    model.register_forward_hook(lambda *_: called.append("hook"))
    model.twice.register_forward_pre_hook(lambda *_: called.append("hook"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    example = torch.randn(2, 3, 6, 5)
    generator = torch.get_rng_state()
    convlab.torch.prepare(model, (example,))
    assert not called
    assert not model.seen
    assert len(model._forward_hooks) == len(model.twice._forward_pre_hooks) == 1
    assert all(type(one) is nn.Parameter and one.grad is None for one in model.parameters())
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(generator, torch.get_rng_state())


def test_a_wrapped_model_is_prepared_as_the_model_inside(compiled):
    wrapped = torch.compile(nn.DataParallel(model_of()), backend="eager")
    convlab.torch.prepare(wrapped, torch.randn(2, 3, 6, 5), backward=False)
    assert len(compiled) == 5


def test_a_wrapper_that_moves_its_inputs_is_given_those_of_the_host(compiled):
    """As DataParallel does on a machine with GPUs, where it moves the model as well."""
    wrapped = nn.DataParallel(model_of())
    wrapped.module.to("meta")
    wrapped.device_ids = [0]
    convlab.torch.prepare(wrapped, torch.randn(2, 3, 6, 5), backward=False)
    assert len(compiled) == 5


def test_no_images_and_a_simulator_need_no_kernels(compiled, monkeypatch):
    model = model_of()
    convlab.torch.prepare(model, torch.randn(0, 3, 6, 5))
    assert compiled == []
    monkeypatch.undo()
    monkeypatch.setattr(torch_prepare, "choose", lambda name: choose("simulator"))
    assert convlab.torch.prepare(model, torch.randn(2, 3, 6, 5)) == 0


class AsksForNumbers(nn.Module):
    def forward(self, images):
        return images if images.sum().item() > 0 else -images


WRONG = {
    "model": (({}, torch.ones(1)), TypeError, "model is {}: it must be a torch.nn.Module"),
    "example": ((Model(), [1]), TypeError, r"example is \[1\]: it must be a tensor, a tuple of"),
    "backward": ((Model(), torch.ones(1), 1), TypeError, "backward is 1: it must be True, False"),
    "kind": ((Model(), torch.ones(1), None, 1.5), TypeError, "processes is 1.5: it must be an"),
    "processes": ((Model(), torch.ones(1), None, 0), ValueError, "processes is 0: it must be at "),
    "channels": (
        (Model(), torch.ones(1, 2, 4, 4)), ValueError,
        "the model cannot be prepared, because it cannot be called without numbers: ",
    ),
    "numbers": ((AsksForNumbers(), torch.ones(1)), ValueError, "cannot be called without numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_prepared_is_refused(name, compiled):
    (model, example, *more), error, message = WRONG[name]
    keywords = dict(zip(("backward", "processes"), more, strict=False))
    with pytest.raises(error, match=message):
        convlab.torch.prepare(model, example, **keywords)
    assert compiled == []


# The first call. Its numbers come from a simulator: only what compiles believes in a GPU.


def test_the_first_call_compiles_what_all_layers_of_the_model_need(compiled):
    model = model_of("m01")
    called = []
    model.twice.register_forward_hook(lambda *_: called.append("hook"))
    model(torch.randn(1, 3, 4, 3), scale=2).sum().backward()
    (first, *rest) = [named(problem) for problem, _ in compiled]
    assert first == (3, 4, 1, "")
    assert rest.count((4, 4, 2, "input")) == 2
    assert (2, 2, 1, "weight") in rest
    assert len(model.seen) == 1
    assert called == ["hook"] * 2
    compiled.clear()
    model(torch.randn(1, 3, 4, 3))
    assert compiled == []  # known
    with torch.inference_mode():
        model(torch.randn(2, 3, 4, 3))
    assert {named(problem)[-1] for problem, _ in compiled} == {""}  # no gradients


def test_the_first_call_of_a_model_that_asks_for_numbers_goes_layer_by_layer(compiled):
    model = nn.Sequential(nn.Conv2d(3, 2, 1), AsksForNumbers(), nn.Conv2d(2, 1, 1, bias=False))
    convlab.torch.replace(model, "m01")
    model(torch.randn(1, 3, 2, 2))
    assert [named(problem) for problem, _ in compiled] == [
        (3, 2, 1, ""), (3, 2, 1, "weight"),
        (2, 1, 1, ""), (2, 1, 1, "input"), (2, 1, 1, "weight"),
    ]  # fmt: skip


def test_a_layer_by_itself_and_one_in_a_wrapper_are_prepared_too(compiled):
    layer = convlab.torch.Conv2d(3, 2, 1, stage="m01")
    layer(torch.randn(1, 3, 2, 2))
    assert [named(problem)[-1] for problem, _ in compiled] == ["", "weight"]
    compiled.clear()
    one_gpu = [0] if torch.cuda.is_available() else None  # to which DataParallel moves the model
    model = nn.Sequential(layer, nn.Flatten(2), nn.Conv1d(2, 4, 1))
    model = nn.DataParallel(model, device_ids=one_gpu)
    convlab.torch.replace(model, "m01")
    model(torch.randn(1, 3, 3, 2))
    assert [named(problem) for problem, _ in compiled][2:] == [
        (3, 2, 1, ""), (3, 2, 1, "weight"),
        (2, 4, 1, ""), (2, 4, 1, "input"), (2, 4, 1, "weight"),
    ]  # fmt: skip


def test_operators_that_somebody_counts_are_counted_once(compiled):
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Sequential(nn.Conv2d(3, 2, 1, bias=False), nn.Flatten(), nn.Linear(8, 5))
    convlab.torch.replace(model, "m01")
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(1, 3, 2, 2))
    assert counter.get_total_flops() == 2 * 8 * 5
    assert compiled


def test_kernels_that_cannot_be_compiled_are_the_layer_s_to_report(compiled, monkeypatch):
    def fails(*asked):
        raise RuntimeError("direct could not be compiled: no compiler")

    monkeypatch.setattr(torch_prepare, "compile_ahead", fails)
    layer = convlab.torch.Conv2d(3, 2, 1, stage="m01")
    assert layer(torch.randn(1, 3, 2, 2)).shape == (1, 2, 2, 2)  # by the simulator
