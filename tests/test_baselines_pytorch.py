"""Baselines that are PyTorch's, on the CPU: the same calls, the answer checked."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from bench_fakes import Fakes

from convlab.measuring.baselines import Unsupported, pytorch
from convlab.measuring.baselines.pytorch import OnTorch, flags
from convlab.measuring.bounds import Checked
from convlab.measuring.harness import measure
from convlab.measuring.systems import BASELINES, baseline_named
from convlab.problems.gradient import Gradient
from convlab.problems.oracle import Oracle, random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import TEACHING

pytestmark = pytest.mark.same_in_cudasim

torch = pytest.importorskip("torch", reason="runs baselines of PyTorch's, which is optional")

OF_TORCH = [
    baseline for baseline in BASELINES if baseline.family in ("pytorch", "cublas", "unfoldnd")
]
TENSORS = random_tensors(TEACHING, 0, bias=False)[:2]
LOPSIDED = ConvProblem(1, 3, 6, 7, 2, (4, 2), padding="same")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    """PyTorch sees no GPU here: test_baselines_gpu has the tests that need one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(params=OF_TORCH, ids=lambda baseline: baseline.name)
def baseline(request):
    if request.param.family == "unfoldnd":
        pytest.importorskip("unfoldNd")
    return request.param


def check(baseline, problem):
    input, weight, _ = random_tensors(problem, 0, bias=False, integers=True)
    prepared = baseline.prepare(problem, input, weight)
    prepared.poison()
    assert np.isnan(prepared.output()).all()
    prepared.run(None)
    result = Oracle(problem, input, weight).check(prepared.output())
    assert result.ok, f"{baseline.name} on {problem}: {result}"
    assert prepared.workspace_bytes is None  # nobody knows, on a CPU
    assert prepared.algorithm is None
    prepared.close()
    prepared.close()
    with pytest.raises(RuntimeError, match=f"{baseline.name} has been closed"):
        prepared.run(None)


def test_each_gives_the_same_for_one_shape_after_another(baseline):
    """``torch.compile`` takes long for each shape, so TF32, which a CPU has not, gets one."""
    for problem in (TEACHING, LOPSIDED)[: 1 if baseline.name == "torch_compile_tf32" else 2]:
        check(baseline, problem)


def test_groups_are_pytorch_s_too():
    check(baseline_named("torch_fp32"), ConvProblem(2, 4, 5, 6, 6, (3, 2), 2, 1, groups=2))


@pytest.mark.parametrize("of", ["input", "weight"])
def test_gradients_are_pytorch_s_too(of):
    torch_fp32, strided = baseline_named("torch_fp32"), {"stride": (2, 1), "padding": 1}
    check(torch_fp32, Gradient(ConvProblem(2, 4, 5, 6, 6, (3, 2), **strided, groups=2), of))
    with pytest.raises(Unsupported, match="pads both ends of an axis alike"):
        torch_fp32.prepare(Gradient(LOPSIDED, of), *TENSORS)


def test_flags_are_put_back():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def now():
        return cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32

    before = now()
    for tf32, library in ((False, True), (True, True), (False, False)):
        with flags(tf32, cudnn=library):
            assert now() == (library, True, tf32, tf32)
    assert now() == before


def test_flags_stay_for_one_computation_until_another_or_its_end():
    """Nobody who calls a convolution often sets it at every call."""
    cudnn = torch.backends.cudnn
    before = (cudnn.benchmark, cudnn.allow_tf32)
    exact, rough = (
        OnTorch("a test", pytorch.conv2d, {"tf32": tf32}, TEACHING, *TENSORS)
        for tf32 in (False, True)
    )
    for computation, tf32 in ((exact, False), (rough, True), (exact, False), (exact, False)):
        computation.run()
        assert (cudnn.benchmark, cudnn.allow_tf32) == (True, tf32)
    rough.close()  # it is not its precision that is set
    assert cudnn.benchmark
    exact.close()
    assert (cudnn.benchmark, cudnn.allow_tf32) == before


def test_one_baseline_alone_runs_without_cudnn_and_sets_it_once(monkeypatch):
    seen, sets = {}, []
    monkeypatch.setattr(pytorch, "flags", lambda **its: (sets.append(its), flags(**its))[1])

    def convolve(*arguments, **more):
        seen[name].append(torch.backends.cudnn.enabled)
        return original(*arguments, **more)

    original = torch.nn.functional.conv2d
    monkeypatch.setattr(torch.nn.functional, "conv2d", convolve)
    for name in ("torch_fp32", "torch_own_im2col"):
        seen[name] = []
        prepared = baseline_named(name).prepare(TEACHING, *TENSORS)
        for _ in range(3):
            prepared.run(None)
        prepared.close()
    assert {name: set(was) for name, was in seen.items()} == {
        "torch_fp32": {True}, "torch_own_im2col": {False},
    }  # fmt: skip
    assert [one.get("cudnn", True) for one in sets] == [True, False]
    assert torch.backends.cudnn.enabled


@pytest.mark.parametrize("size", [1, 3])
def test_what_pytorch_runs_on_a_gpu_without_cudnn(size):
    """Asked of PyTorch about tensors that are only said to be on a GPU."""
    fake = pytest.importorskip("torch._subclasses.fake_tensor")

    def chosen(dilation):
        both = [dilation, dilation]
        return torch._C._select_conv_backend(
            x, w, None, [1, 1], [0, 0], both, False, [0, 0], 1
        ).name  # fmt: skip

    with fake.FakeTensorMode(), flags(tf32=False, cudnn=False):
        x = torch.empty(2, 8, 16, 16, device="cuda")
        w = torch.empty(8, 8, size, size, device="cuda")
        assert (chosen(1), chosen(2)) == ("Slow2d", "SlowDilated2d")


def test_a_rehearsal_runs_and_closes_each(baseline, monkeypatch):
    """On the CPU, too, where the baseline is said to be here."""
    made, close = [], OnTorch.close
    monkeypatch.setattr(OnTorch, "close", lambda self: (made.append(self), close(self)))
    replace(baseline, why_absent=lambda: None).make_ready(TEACHING)
    assert [type(one) for one in made] == [OnTorch]


@pytest.mark.parametrize(
    ("error", "state", "said"),
    [
        (RuntimeError("Expected canUse32BitIndexMath(input)"), "unsupported", "2**31 elements"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried 9 GiB. If reserved, see docs"),
         "out of memory", "mine: CUDA out of memory. Tried 9 GiB."),
        (RuntimeError("something else"), "failed", "something else"),
    ],
)  # fmt: skip
def test_what_the_first_run_raises_is_the_row_s_state(error, state, said):
    def make(problem, x, w):
        return Mock(side_effect=error)

    chosen = replace(
        OF_TORCH[0],
        name="mine",
        why_absent=lambda: None,
        prepare=partial(OnTorch, "mine", make, {}),
    )
    outcome = measure(chosen, TEACHING, TENSORS, Fakes(), lambda output: Checked("fp32", 0.0))
    assert outcome.state == state
    assert said in outcome.reason
    assert "see docs" not in outcome.reason
    assert outcome.healthy == (state != "failed")  # PyTorch goes on: no reason to load it anew
