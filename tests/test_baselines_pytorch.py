"""Baselines that are PyTorch's, on the CPU: the same calls, the answer checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bench_fakes import Fakes
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import problems

from convlab.bench.baselines import System, pytorch, rehearsal
from convlab.bench.baselines.pytorch import OnTorch, flags
from convlab.bench.bounds import Checked
from convlab.bench.harness import Outcome, measure
from convlab.bench.systems import BASELINES, baseline_named
from convlab.oracle import Oracle, random_tensors
from convlab.problem import ConvProblem
from convlab.workloads import TEACHING

pytestmark = pytest.mark.same_in_cudasim

torch = pytest.importorskip("torch", reason="runs baselines of PyTorch's, which is optional")

OF_TORCH = [
    baseline for baseline in BASELINES if baseline.family in ("pytorch", "cublas", "unfoldnd")
]
LOPSIDED = ConvProblem(1, 3, 6, 7, 2, (4, 2), padding="same")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch does on a GPU is tested there, in test_baselines_gpu."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def check(baseline: System, problem: ConvProblem, seed: int) -> None:
    input, weight, _ = random_tensors(problem, seed, bias=False, integers=True)
    prepared = baseline.prepare(problem, input, weight)
    prepared.poison()
    assert np.isnan(prepared.output()).all()
    prepared.run(None)
    result = Oracle(problem, input, weight).check(prepared.output())
    assert result.ok, f"{baseline.name} on {problem}: {result}"
    assert prepared.workspace_bytes is None  # nobody knows, on a CPU
    whose = pytorch.whose_unfold() if baseline.name == "unfoldnd" else None
    assert prepared.algorithm == whose
    prepared.close()
    prepared.close()
    with pytest.raises(RuntimeError, match=f"{baseline.name} has been closed"):
        prepared.run(None)


@pytest.mark.parametrize("problem", [TEACHING, LOPSIDED], ids=str)
@pytest.mark.parametrize(
    "baseline", [p for p in OF_TORCH if "compile" not in p.name], ids=lambda baseline: baseline.name
)
def test_each_gives_the_same(baseline, problem):
    check(baseline, problem, 0)


def test_compiled_gives_the_same_for_one_shape_after_another():
    (baseline,) = (baseline for baseline in OF_TORCH if baseline.name == "torch_compile_fp32")
    for problem in (TEACHING, LOPSIDED):
        check(baseline, problem, 0)


@given(problem=problems(), seed=st.integers(0, 2**16))
@settings(max_examples=25)
def test_the_one_hot_unfold_is_pytorchs(problem, seed):
    (top, bottom), (left, right) = problem.padding
    images = torch.from_numpy(random_tensors(problem, seed, bias=False)[0])
    images = torch.nn.functional.pad(images, (left, right, top, bottom))
    how = {"dilation": problem.dilation, "padding": 0, "stride": problem.stride}
    unfold = pytorch.one_hot_unfold(problem, images)
    expected = torch.nn.functional.unfold(images, problem.kernel_size, **how)
    assert torch.equal(unfold(images, problem.kernel_size, **how), expected)


@pytest.mark.parametrize(
    ("found", "said"), [(None, "convlab's own unfold"), (object(), "the package's unfold")]
)
def test_the_row_says_whose_unfold_ran(monkeypatch, found, said):
    monkeypatch.setattr(pytorch, "find_spec", lambda name: found)
    assert pytorch.whose_unfold() == said


def test_flags_are_put_back():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def now():
        return cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32

    before = now()
    for tf32, library in ((False, True), (True, True), (False, False)):
        with flags(tf32, library):
            assert now() == (library, True, tf32, tf32)
    assert now() == before


def test_flags_stay_for_one_computation_until_another_or_its_end():
    """Nobody who calls a convolution often sets it at every call."""
    cudnn = torch.backends.cudnn
    before = (cudnn.benchmark, cudnn.allow_tf32)
    tensors = random_tensors(TEACHING, 0, bias=False)[:2]
    exact, rough = (
        OnTorch("a test", TEACHING, *tensors, pytorch.conv2d, tf32=tf32) for tf32 in (False, True)
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
        prepared = baseline_named(name).prepare(
            TEACHING, *random_tensors(TEACHING, 0, bias=False)[:2]
        )
        for _ in range(3):
            prepared.run(None)
        prepared.close()
    assert {name: set(was) for name, was in seen.items()} == {
        "torch_fp32": {True}, "torch_own_im2col": {False},
    }  # fmt: skip
    assert [one["cudnn"] for one in sets] == [True, False]
    assert torch.backends.cudnn.enabled


@pytest.mark.parametrize("size", [1, 3])
def test_what_pytorch_runs_on_a_gpu_without_cudnn(size):
    """Asked of PyTorch about tensors that are only said to be on a GPU."""
    fake = pytest.importorskip("torch._subclasses.fake_tensor")

    def chosen(dilation: int) -> str:
        both = [dilation, dilation]
        return torch._C._select_conv_backend(
            x, w, None, [1, 1], [0, 0], both, False, [0, 0], 1
        ).name  # fmt: skip

    with fake.FakeTensorMode(), flags(tf32=False, cudnn=False):
        x = torch.empty(2, 8, 16, 16, device="cuda")
        w = torch.empty(8, 8, size, size, device="cuda")
        assert (chosen(1), chosen(2)) == ("Slow2d", "SlowDilated2d")


@pytest.mark.parametrize("baseline", OF_TORCH, ids=lambda baseline: baseline.name)
def test_a_rehearsal_runs_and_closes_each(baseline, monkeypatch):
    """On the CPU, too, where the baseline is said to be here."""
    made, close = [], OnTorch.close
    monkeypatch.setattr(OnTorch, "close", lambda self: (made.append(self), close(self)))
    rehearsal(lambda: None, baseline.prepare)(TEACHING)
    assert [type(one) for one in made] == [OnTorch]


def measured(error: Exception) -> Outcome:
    """What comes of a computation that raises this in its first run."""

    def make(problem, x, w):
        def compute():
            raise error

        return compute

    def prepare(problem, input, weight):
        return OnTorch("mine", problem, input, weight, make)

    chosen = replace(OF_TORCH[0], name="mine", why_absent=lambda: None, prepare=prepare)
    tensors = random_tensors(TEACHING, 0, bias=False)[:2]
    return measure(chosen, TEACHING, tensors, Fakes(), lambda output: Checked("fp32", 0.0))


def test_tensors_that_pytorch_s_kernels_cannot_count_are_unsupported():
    error = RuntimeError("Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output)")
    outcome = measured(error)
    assert outcome.state == "unsupported"
    assert outcome.reason == (
        "mine: PyTorch's kernel for it takes no tensors of 2**31 elements and more"
    )
    assert outcome.healthy
    assert measured(RuntimeError("something else")).state == "failed"


def test_too_little_memory_in_the_first_run_is_that():
    error = torch.OutOfMemoryError("CUDA out of memory. Tried 9 GiB. If reserved, see docs")
    outcome = measured(error)
    assert outcome.state == "out of memory"
    assert outcome.reason == "mine: CUDA out of memory. Tried 9 GiB."
    assert outcome.healthy  # PyTorch goes on: no reason to load it anew
