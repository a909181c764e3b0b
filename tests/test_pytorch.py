"""Comparisons with PyTorch, on the CPU: one skip for all of it where it is not installed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from test_unfold import assert_right, by_definition, cases, settings
from test_workspace import PROBLEM

from convlab.ladder import LibraryCall, stage_named
from convlab.problems.oracle import check_output, random_tensors
from convlab.problems.unfold import unfold, unfold_einsum
from convlab.running.engines import choose
from convlab.running.engines.gpu import in_float32
from convlab.running.launch_arguments import pick

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is optional")


@given(cases())
def test_pytorch_gives_the_same(case):
    input, weight, bias = case.tensors()
    tensors = [None if t is None else torch.from_numpy(t) for t in (input, weight, bias)]
    convolve = getattr(torch.nn.functional, f"conv{input.ndim - 2}d")
    theirs = convolve(*tensors, **settings(case))
    ours = unfold_einsum(input, weight, bias, **settings(case))
    _, sizes = by_definition(case)
    bound = 2.02 * (np.prod(case.weight[1:]) + 1) * 2.0**-24 * sizes  # both may be off
    assert (abs(theirs.numpy() - ours) <= bound).all()


@given(cases())
def test_pytorch_tensors_stay_pytorch_tensors(case):
    pytest.importorskip("array_api_compat", reason="needs array-api-compat, which is optional")
    tensors = [None if t is None else torch.from_numpy(t) for t in case.tensors()]
    got = unfold_einsum(*tensors, **settings(case))
    assert isinstance(got, torch.Tensor)
    assert_right(got.numpy(), case)


@given(cases(2, 2))
def test_unfold_is_pytorch_s(case):
    input, weight, _ = case.tensors()
    theirs = torch.nn.functional.unfold(
        torch.from_numpy(input), weight.shape[2:], **settings(case)
    ).numpy()
    assert np.array_equal(unfold(input, weight.shape[2:], **settings(case)), theirs)


@pytest.mark.parametrize("name", ["i04_im2col_blas", "i05_unfold_einsum"])
@pytest.mark.parametrize("limited", [False, True])
def test_library_calls_are_any_library_s(name, limited):
    """PyTorch's, on the CPU, as they run on a GPU."""
    stage = stage_named(name)
    program = stage.prepare(PROBLEM, None, **({"workspace_limit": 10**4} if limited else {}))
    numbers = random_tensors(PROBLEM, 2, integers=True)
    arrays = dict(zip(("input", "weight", "bias"), numbers, strict=True))
    arrays["output"] = np.full(PROBLEM.output_shape, np.nan, np.float32)
    arrays |= {buffer.name: np.full(buffer.shape, np.nan, np.float32) for buffer in program.buffers}
    simulator = choose("simulator")
    for step in program.launches:
        picked = [pick(argument, arrays) for argument in step.arguments]
        if isinstance(step, LibraryCall):
            step.function(torch, *map(torch.from_numpy, picked))
        else:
            simulator.build(step, program)(picked)
    assert check_output(PROBLEM, arrays["output"], *numbers).ok


@pytest.mark.parametrize(("name", "rounded"), [("allow_tf32", True), ("fp32_precision", "tf32")])
def test_pytorch_rounds_again_behind_a_library_call(name, rounded):
    """However its user asked for TF32: the old name may not even be read where the new one was."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, name):
        pytest.skip("PyTorch before 2.9 has one name")
    before = getattr(matmul, name)
    setattr(matmul, name, rounded)
    try:
        with in_float32(matmul):
            assert getattr(matmul, "fp32_precision", "ieee") == "ieee"
        assert getattr(matmul, name) == rounded
    finally:
        setattr(matmul, name, before)
