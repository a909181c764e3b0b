"""Tests for a real GPU: production tiles, the paper's layers, large tensors, graphs."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.documentation import DOCUMENTED
from kernels.right import RIGHT
from kernels.tensor_cores import (
    bound,
    exact,
    products,
    random_products,
    roundings,
    splits,
)
from kernels.warpgroups import make_products, random_pairs
from numba import cuda
from sanitizers import PROBLEMS as AWKWARD
from strategies import problems, tensors

from convlab import ConvProblem, Stage, conv2d, plan
from convlab.device.products import multiply_add
from convlab.ladder import LADDER, allowances, stage_named
from convlab.problems.oracle import CheckResult, Oracle, random_tensors
from convlab.problems.workloads import LAYER_NAMES, TEACHING, paper_layer
from convlab.running import kept_plans
from convlab.running.able_stages import stages_for
from convlab.running.engines import Engine, choose, unavailable
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan, program_for

if (reason := unavailable("gpu")) is not None:
    pytest.skip(f"needs a GPU: {reason}", allow_module_level=True)

from cuda.bindings import driver

from convlab.measuring.timer import captured, measure
from convlab.running.engines import gpu

pytestmark = pytest.mark.gpu

# Without a library, or on an older GPU, some cannot run. The problems here are in float32, with the
# channels first.
OF_FLOATS = tuple(stage for stage in LADDER if stage.why_not(paper_layer("conv9")) is None)
STAGES, LEFT_OUT = stages_for(choose(), OF_FLOATS)
stages = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)


def stage_here(name: str) -> Stage:
    """The stage of that name; the test is skipped where it cannot run."""
    stage = stage_named(name)
    if stage not in STAGES:
        pytest.skip(str(LEFT_OUT))
    return stage


@stages
@given(problem=problems(max_macs=200_000), seed=st.integers(0, 2**16))
@settings(max_examples=15)
def test_production_tile_on_any_problem(stage, problem, seed, checked):
    result = checked(problem, stage, random_tensors(problem, seed, integers=True))
    assert result.ok, f"{stage.name} on {problem}: {result}"


@cache
def layer_case(layer: str, batch: int) -> tuple[Oracle, tuple[np.ndarray, ...]]:
    problem = paper_layer(layer, batch)
    numbers = random_tensors(problem, 4, integers=batch < 128)
    return Oracle(problem, *numbers), numbers


def poisoned(problem: ConvProblem) -> np.ndarray:
    return np.full(problem.output_shape, np.nan, np.float32)


def there(engine: Engine, problem: ConvProblem, numbers: Any) -> tuple[Any, ...]:
    """Return the arguments of a plan's call: input, weight, a poisoned output and bias."""
    input, weight, bias = numbers
    tensors = input, weight, poisoned(problem), bias
    return tuple(engine.to_device(tensor) for tensor in tensors)


def on_gpu(engine: Engine, problem: ConvProblem, seed: int) -> tuple[Any, ...]:
    """The same, of random numbers whose sums are exact in any order."""
    return there(engine, problem, random_tensors(problem, seed, integers=True))


def run_graph(graph: Any, stream: Any) -> None:
    (error,) = driver.cuGraphLaunch(graph, int(stream.handle))
    assert error == driver.CUresult.CUDA_SUCCESS
    stream.synchronize()


def check_layer(
    engine: Engine, stage: Stage, layer: str, batch: int, limit: int | None = None
) -> CheckResult:
    oracle, numbers = layer_case(layer, batch)
    plan = Plan(oracle.problem, stage, None, engine, limit)
    assert limit is None or plan.workspace_bytes <= limit
    assert plan.one_graph != stage.needs_library
    output = plan(*there(engine, oracle.problem, numbers))
    return oracle.check(engine.to_host(output), **allowances(stage, oracle.problem))


@pytest.mark.parametrize("layer", LAYER_NAMES)
@stages
def test_the_papers_layers(stage, layer, engine):
    result = check_layer(engine, stage, layer, batch=4)
    assert result.ok, result


@pytest.mark.parametrize("layer", LAYER_NAMES)
def test_m11_on_the_papers_layers_at_the_papers_batch(layer, engine):
    try:
        result = check_layer(engine, stage_named("m11"), layer, batch=128)
    finally:
        layer_case.cache_clear()  # gigabytes
    assert result.ok, result


@stages
@pytest.mark.parametrize("kind", ["normal", "nan", "infinities", "denormals", "huge"])
@pytest.mark.parametrize("problem", AWKWARD, ids=str)
def test_production_tile_on_awkward_problems(stage, problem, kind, checked):
    """More rows than one tile, remainders, padding and dilation at production size."""
    result = checked(problem, stage, tensors(problem, kind, 9, bias=True))
    assert result.ok, result


def _becomes_free(engine: Engine, needed: float, seconds: float = 60) -> bool:
    """Return whether so many bytes become free: other processes of the tests have some for a
    while, and one of them may ask for as much at this moment."""
    total = cuda.current_context().get_memory_info().total
    least = 1.05 * needed  # a library may want some
    if total < least:
        return False
    wanted, end = max(least, min(2 * needed, 0.9 * total)), time.monotonic() + seconds
    while engine.free_bytes() < wanted:
        if time.monotonic() > end:
            return engine.free_bytes() >= least
        time.sleep(0.2)
    return True


@stages
def test_tensors_beyond_32_bit_indices(stage, engine):
    """The last elements of an input and an output of more than 2**31 elements."""
    side = 2**15 + 24
    problem = ConvProblem(2, 1, side, side, 1, 1)
    assert np.prod(problem.output_shape) > 2**31
    needed = problem.least_bytes + program_for(problem, stage, None, engine).workspace_bytes
    if not _becomes_free(engine, needed):
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of GPU memory")
    row = np.random.default_rng(5).integers(-999, 999, side).astype(np.float32)  # twice it is exact
    image, output = (cuda.device_array(problem.input_shape, np.float32) for _ in range(2))
    for place in ((0, 0, 0), (1, 0, side - 1)):
        image[place].copy_to_device(row)
        output[place].copy_to_device(np.full(side, np.nan, np.float32))
    weight = cuda.to_device(np.full(problem.weight_shape, 2, np.float32))
    Plan(problem, stage, None, engine)(image, weight, output)
    for place in ((0, 0, 0), (1, 0, side - 1)):
        assert np.array_equal(output[place].copy_to_host(), 2 * row)


@stages
def test_a_plan_can_be_captured_and_allocates_nothing(stage, engine):
    """The plan's very first call is captured; what the graph computes is checked."""
    oracle, numbers = layer_case("conv12", 4)
    arrays = there(engine, oracle.problem, numbers)
    plan = Plan(oracle.problem, stage, None, engine)
    stream = cuda.stream()
    held = cuda.current_context().allocations
    before = len(held)
    with captured(lambda own: plan(*arrays, stream=own), stream) as graph:
        run_graph(graph, stream)
    for _ in range(3):
        plan(*arrays, stream=stream)
    stream.synchronize()
    assert len(held) == before
    assert oracle.check(engine.to_host(arrays[2])).ok


@pytest.mark.parametrize(
    "stage", [stage for stage in STAGES if not stage.needs_library], ids=lambda stage: stage.name
)
@pytest.mark.parametrize("problem", AWKWARD, ids=str)
def test_packed_launches_are_numbas_own(stage, problem, engine):
    """Bit by bit, with other arrays and without bias in later calls."""
    plan = Plan(problem, stage, None, engine)
    assert plan.packed
    assert plan.one_graph
    for seed in (3, 4):
        input, weight, output, bias = on_gpu(engine, problem, seed)
        for added in (bias, None):
            plan(input, weight, output, added)
            packed = engine.to_host(output)
            assert np.isfinite(packed).all()
            output.copy_to_device(poisoned(problem))
            for step in plan.steps(input, weight, output, added):
                step(None)
            assert np.array_equal(packed, engine.to_host(output))


@pytest.mark.parametrize("name", ["m01", "m08", "m11"])
def test_packed_launches_with_pytorch(name, engine):
    """Its tensors, parameters that train, and host tensors."""
    torch = pytest.importorskip("torch", reason="needs PyTorch, which is optional")
    problem = AWKWARD[0]
    plan = Plan(problem, stage_named(name), None, engine)
    arrays = on_gpu(engine, problem, 3)
    expected = engine.to_host(plan(*arrays))
    input, weight, output, bias = (
        torch.as_tensor(array, device="cuda").clone() for array in arrays
    )
    torch.cuda.synchronize()
    plan(input, torch.nn.Parameter(weight), output.fill_(np.nan), bias, stream=None)
    assert np.array_equal(expected, output.cpu().numpy())
    with pytest.raises(TypeError, match="Tensor in the host's memory"):
        plan(input.cpu(), weight, output, bias)


def test_packed_launches_in_cuda_cores_graph(engine):
    from cuda.core import Device

    problem = AWKWARD[0]
    plan = Plan(problem, stage_named("m11"), None, engine)
    arrays = on_gpu(engine, problem, 3)
    output = plan(*arrays)
    expected = engine.to_host(output)
    output.copy_to_device(poisoned(problem))
    device = Device()
    device.set_current()
    builder = device.create_graph_builder().begin_building()
    plan(*arrays, stream=builder)
    graph = builder.end_building().complete()
    stream = device.create_stream()
    graph.launch(stream)
    stream.sync()
    assert np.array_equal(expected, engine.to_host(output))


def test_packed_launches_from_other_threads(engine):
    """Threads that never used CUDA, at once, each with arrays of its own: no workspace to share."""
    problem = AWKWARD[0]
    plan = Plan(problem, stage_named("m01"), None, engine)
    sets = [on_gpu(engine, problem, seed) for seed in range(8)]
    expected = [engine.to_host(plan(*arrays)) for arrays in sets]
    for _, _, output, _ in sets:
        output.copy_to_device(poisoned(problem))

    def many(arrays: Any) -> Any:
        for _ in range(200):
            output = plan(*arrays)
        return output

    with ThreadPoolExecutor(len(sets)) as pool:
        for output, right in zip(pool.map(many, sets), expected, strict=True):
            assert np.array_equal(right, engine.to_host(output))


@pytest.mark.parametrize("name", ["m01", "m08", "m11"])
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_capture_with_other_arrays_goes_on_while_plans_go(mode, name, engine):
    """Nothing that a call or the end of a plan does may be what ends a capture."""
    torch = pytest.importorskip("torch", reason="needs PyTorch, which is optional")
    problem = AWKWARD[0]
    # More than the ten arrays that Numba lets wait before it frees them.
    plan, *leaving = (Plan(problem, stage_named(name), None, engine) for _ in range(13))
    input, weight, output, bias = on_gpu(engine, problem, 3)
    expected = engine.to_host(plan(input, weight, output, bias))
    leaving[0](input, weight, output, bias)
    input, weight, bias = (torch.as_tensor(a, device="cuda") for a in (input, weight, bias))
    others = [torch.full(problem.output_shape, np.nan, device="cuda") for _ in range(2)]
    gc.collect()  # or what other tests left is freed during the capture, which ends it
    torch.cuda.synchronize()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
        plan(input, weight, others[0], bias, stream=stream.cuda_stream)
        del leaving
        gc.collect()
        plan(input, weight, others[1], bias, stream=stream.cuda_stream)
    assert all(other.isnan().all() for other in others)
    graph.replay()
    assert all(np.array_equal(expected, other.cpu().numpy()) for other in others)
    assert np.array_equal(expected, engine.to_host(plan(input, weight, output, bias)))


LAST_MOMENTS = {
    "in a thread without a context": "t = Thread(target=plans.clear); t.start(); t.join()",
    "after its context": "cuda.close(); plans.clear()",
    "with its context": "plans.clear(); cuda.close()",
    "where Python ends": "keep = plans",
}


@pytest.mark.parametrize("moment", LAST_MOMENTS)
def test_a_plan_ends_at_any_moment(moment, engine):
    """The plan has a process of its own: a driver that is asked too late crashes."""
    script = f"""
from threading import Thread
from numba import cuda
from convlab.running.engines import choose
from convlab.problems.oracle import random_tensors
from convlab.running.plans import plan
from convlab.problems.problem import ConvProblem

problem, engine = ConvProblem(1, 8, 14, 14, 16, 3), choose("gpu")
plans = [plan(problem, "m11", engine="gpu")]
input, weight, _ = map(engine.to_device, random_tensors(problem, 1))
plans[0](input, weight, engine.empty(problem.output_shape))
del input, weight
{LAST_MOMENTS[moment]}
print("ended")
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["ended"]), done.stderr


@pytest.mark.parametrize("name", ["m01", "m15", "m11"])  # one launch, two and three
def test_calls_under_way_keep_their_arrays(name, engine):
    """Thirty calls are handed over before the first has ended, each with other arrays."""
    problem = ConvProblem(8, 32, 56, 56, 64, 3)
    plan = Plan(problem, stage_here(name), None, engine)
    sets = [on_gpu(engine, problem, seed) for seed in range(3)]
    outputs = [on_gpu(engine, problem, 0)[2] for _ in range(30)]
    for call, output in enumerate(outputs):
        input, weight, _, bias = sets[call % 3]
        plan(input, weight, output, bias)
    results = [engine.to_host(output) for output in outputs]
    for arrays, result in zip(sets, results, strict=False):
        for step in plan.steps(*arrays):
            step(None)
        assert np.array_equal(result, engine.to_host(arrays[2]))
    assert all(np.array_equal(one, results[call % 3]) for call, one in enumerate(results))
    assert not np.array_equal(results[0], results[1])


def test_conv2d_again_with_other_arrays(engine, monkeypatch):
    monkeypatch.setattr(kept_plans, "kept", type(kept_plans.kept)())
    problem = AWKWARD[0]
    options = {"stride": problem.stride, "padding": problem.padding, "dilation": problem.dilation}
    for seed in range(3):
        numbers = random_tensors(problem, seed)
        input, weight, bias = (engine.to_device(tensor) for tensor in numbers)
        result = conv2d(input, weight, bias, **options)
        assert Oracle(problem, *numbers).check(engine.to_host(result)).ok
        assert Oracle(problem, *numbers[:2], None).check(conv2d(*numbers[:2], **options)).ok
    assert len(kept_plans.kept.plans) == 1


def test_a_packed_launch_that_cannot_be_raises(engine):
    problem = AWKWARD[0]
    made = Plan(problem, stage_named("m01"), None, engine)
    (step,) = made.program.launches
    too_large = replace(made.program, launches=(replace(step, block=(2048,)),))
    plan = Plan(problem, made.stage, made.tile, engine, program=too_large)
    arrays = on_gpu(engine, problem, 3)
    with pytest.raises(RuntimeError, match=r"^CUDA could not launch direct: CUDA_ERROR_"):
        plan(*arrays)
    assert np.isnan(engine.to_host(arrays[2])).all()
    # What was refused harms nothing after it.
    assert np.isfinite(engine.to_host(made(*arrays))).all()


@stages
def test_times_are_possible(stage, engine):
    oracle, numbers = layer_case("conv12", 4)
    arrays = there(engine, oracle.problem, numbers)
    plan = Plan(oracle.problem, stage, None, engine)
    timing = measure(lambda stream: plan(*arrays, stream=stream))
    assert 0 < timing.median_ms < 1000
    assert oracle.problem.flops / timing.median_ms * 1e3 < engine.peak_flops()


def test_a_workspace_larger_than_the_gpu_is_refused(engine):
    problem = ConvProblem(4096, 512, 512, 512, 1, 3)
    with pytest.raises(MemoryError, match=r"m11_warp_tiling's workspace needs [\d.]+ GiB"):
        plan(problem, "m11")


@pytest.mark.parametrize("name", ["i01_im2col", "i04_im2col_blas", "i03_im2col_depth_last"])
def test_a_large_batch_in_slices(name, engine):
    """Conv9 in 64 MiB, the last slice smaller than the others."""
    result = check_layer(engine, stage_here(name), "conv9", 37, 2**26)
    assert result.ok, result


@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("name", ["i04_im2col_blas", "i05_unfold_einsum"])
def test_library_calls_by_either_library(name, library, engine, monkeypatch):
    """On a stream of its own, then, by the library that can, replayed from a graph."""
    pytest.importorskip(library, reason=f"needs {library}, which is optional")
    monkeypatch.setattr(gpu, "_library_name", lambda: library)
    problem = AWKWARD[1]
    numbers = random_tensors(problem, 5, integers=True)
    oracle = Oracle(problem, *numbers)
    arrays = there(engine, problem, numbers)
    plan = Plan(problem, stage_named(name), None, engine)
    stream = cuda.stream()
    output = plan(*arrays, stream=stream)
    stream.synchronize()
    assert oracle.check(engine.to_host(output)).ok
    if library == "cupy":
        return  # it refuses cuBLAS while a graph is captured: docs/engines.md
    output.copy_to_device(poisoned(problem))
    with captured(lambda own: plan(*arrays, stream=own), stream) as graph:
        assert np.isnan(engine.to_host(output)).all()  # captured, not run
        run_graph(graph, stream)
    assert oracle.check(engine.to_host(output)).ok


@pytest.mark.parametrize("name", ["i04_im2col_blas", "i05_unfold_einsum"])
def test_pytorch_s_calls_are_float32_where_its_user_allows_tf32(name, engine):
    torch = pytest.importorskip("torch", reason="needs PyTorch, which is optional")
    matmul, problem = torch.backends.cuda.matmul, TEACHING
    numbers = random_tensors(problem, 6)
    arrays = there(engine, problem, numbers)
    matmul.allow_tf32 = True
    try:
        a, b = (torch.rand(64, 64, device="cuda") for _ in range(2))
        assert (a @ b - (a.double() @ b.double())).abs().max() > 1e-4  # it does round
        output = Plan(problem, stage_named(name), None, engine)(*arrays)
        assert matmul.allow_tf32
    finally:
        matmul.allow_tf32 = False
    assert Oracle(problem, *numbers).check(engine.to_host(output)).ok


@pytest.mark.parametrize("case", [*RIGHT, *DOCUMENTED], ids=lambda case: case.name)
def test_kernels_that_the_simulator_calls_right_are_right(case):
    if case.capability not in (None, here := cuda.get_current_device().compute_capability):
        pytest.skip(f"needs a GPU of compute capability {case.capability}, and this has {here}")
    arguments = case.arguments()
    arrays = [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in arguments]
    case.kernel[case.grid, case.block, 0, case.shared_bytes](*arrays)
    result = arrays[-1].copy_to_host()
    np.testing.assert_allclose(result, case.result(case.arguments()), rtol=1e-5)


def on_the_gpu(kernel: Any, grid: Any, block: Any, *arrays: np.ndarray) -> np.ndarray:
    """The last array afterwards, which begins as NaN."""
    there = [cuda.to_device(array) for array in arrays[:-1]]
    last = cuda.to_device(np.full_like(arrays[-1], np.nan))
    kernel[grid, block](*there, last)
    return last.copy_to_host()


def check_as_simulated(kernel: Any, grid: Any, block: Any, *arrays: np.ndarray) -> None:
    """The GPU gives the last array the same numbers as the strict simulator."""
    wanted = arrays[-1]
    Simulator().launch(kernel, grid, block, *arrays)
    np.testing.assert_array_equal(on_the_gpu(kernel, grid, block, *arrays), wanted)


@pytest.mark.parametrize("spread", [0, 3, 20])
def test_tensor_cores_are_within_the_stated_bound(spread):
    a, b, c = random_products(1000, 7, spread)
    error = np.abs(on_the_gpu(products, len(a), 32, a, b, c, c) - exact(a, b, c))
    assert (error <= bound(a, b, c)).all()


# How far numbers are spread, and the powers of two that A, B and C are scaled by: the last ones
# make operands, sums and results subnormal, or infinite.
BITS = [
    (0, 0, 0, 0), (3, 0, 0, 0), (20, 0, 0, 0), (3, -130, 100, -32), (3, -133, 100, -200),
    (3, -60, -80, -200), (3, -70, -70, -138), (3, -75, -75, -145), (3, 63, 63, 126),
]  # fmt: skip


def only_on_hopper(because: str) -> None:
    if (here := cuda.get_current_device().compute_capability) != (9, 0):
        pytest.skip(f"needs a GPU of compute capability 9.0, and this has {here}: {because}")


@pytest.mark.filterwarnings("ignore:overflow")
def test_hopper_s_tensor_cores_are_the_simulator_s_to_the_bit():
    only_on_hopper("other GPUs cut terms elsewhere")
    for spread, *powers in BITS:
        scaled = zip(random_products(200, 21, spread), powers, strict=True)
        a, b, c = (np.ldexp(numbers, power).astype(np.float32) for numbers, power in scaled)
        wanted = np.stack([multiply_add(*each) for each in zip(a, b, c, strict=True)])
        np.testing.assert_array_equal(on_the_gpu(products, len(a), 32, a, b, c, c), wanted)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("N", "groups"), [(8, 1), (24, 2), (96, 1), (256, 1)])
def test_a_warpgroup_s_products_are_the_simulator_s_to_the_bit(N, groups):
    only_on_hopper("other GPUs have no wgmma")
    for seed, (spread, of_a, of_b, _) in enumerate(BITS):
        scaled = zip(random_pairs(2, N, seed, spread), (of_a, of_b), strict=True)
        a, b = (np.ldexp(numbers, power).astype(np.float32) for numbers, power in scaled)
        if not seed:
            a[0, 2, 5], a[1, 33, 15], b[0, 1, 3], b[1, 9, 7] = NAN, INF, -INF, NAN
        wanted = np.full((2, 64, N), NAN, np.float32)
        check_as_simulated(make_products(N, groups), 2 // groups, 128 * groups, a, b, wanted)


INF, NAN, MOST = np.inf, np.nan, float(np.finfo(np.float32).max)
# A product's two factors and what is added to it.
SPECIAL = [
    (INF, 0, 0), (INF, 1, 1), (INF, -1, INF), (INF, 1, INF), (0, NAN, 0), (0, 0, NAN),
    (NAN, INF, 1), (1, 1, -INF), (1 + 2.0**-10 - 2.0**-23, -3, 0), (2.0**-100, 2.0**-49, 0),
    (2.0**-130, 8, 2.0**-140), (MOST, 2, 0), (MOST, 1, MOST), (2.0**127, 2.0**127, -MOST),
]  # fmt: skip


def test_tensor_cores_have_the_simulator_s_special_values():
    left, right, total = (
        np.array(column, np.float32).reshape(-1, 1, 1) for column in zip(*SPECIAL, strict=True)
    )
    a, b = np.zeros((len(SPECIAL), 16, 8), np.float32), np.zeros((len(SPECIAL), 8, 8), np.float32)
    a[:, :, :1], b[:, :1], c = left, right, np.broadcast_to(total, a.shape).copy()
    check_as_simulated(products, len(a), 32, a, b, c, np.empty_like(c))


@pytest.mark.parametrize("kernel", [roundings, splits])
def test_numbers_are_rounded_to_tf32_and_split_as_by_the_simulator(kernel):
    tie = 2.0**-11
    special = [MOST, -MOST, -INF, NAN, -0.0, 2.0**-149, 2.0**-137, 3 * 2.0**-137, 1 + tie, -1 - tie]
    special = np.array([*special, 1 + 3 * tie], np.float32)
    numbers = np.append(random_products(100, 8, 40)[0].ravel(), special)
    wanted = np.empty((numbers.size, 2) if kernel is splits else numbers.size, np.float32)
    check_as_simulated(kernel, 1 + numbers.size // 256, 256, numbers, wanted)
