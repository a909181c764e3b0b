"""Times that no kernel can be below, and how near a time comes to them."""

from __future__ import annotations

from dataclasses import replace

import bench_samples
import pytest
from bench_samples import H200_LIKE

from convlab.measuring.cases import BenchCase, row_of
from convlab.measuring.harness import MeasuringOutcome
from convlab.measuring.roofline import Machine, floor_seconds, least_flops, too_fast
from convlab.problems.workloads import LAYER_NAMES, paper_layer

pytestmark = pytest.mark.same_in_cudasim

CONV7, CONV9 = paper_layer("conv7"), paper_layer("conv9")
NO_CACHE = replace(H200_LIKE, l2_bytes=0)


@pytest.mark.parametrize("layer", LAYER_NAMES)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "3xtf32"])
def test_what_is_refused_is_what_is_below_the_floor(layer, precision):
    problem = paper_layer(layer)
    floor = 1e3 * floor_seconds(problem, NO_CACHE, precision)
    assert too_fast(problem, 1.001 * floor, NO_CACHE, precision, "gemm") is None
    assert "above the roofline" in too_fast(problem, 0.999 * floor, NO_CACHE, precision, "gemm")


@pytest.mark.parametrize(
    ("problem", "time_ms", "precision", "said"),
    [
        (CONV9, 0.40, "fp32", "TFLOP/s"),
        (CONV7, 0.30, "tf32", "TB/s"),
        (CONV9, 0.15, "tf32", None),  # tensor cores have a peak of their own
        (CONV9, 0.20, "3xtf32", None),
        (CONV9, 0.15, "3xtf32", "can do 178.3 in 3xtf32 at most"),  # a third, for three products
    ],
)
def test_arithmetic_of_each_precision_and_bytes_refuse(problem, time_ms, precision, said):
    refused = too_fast(problem, time_ms, H200_LIKE, precision, "gemm")
    assert refused is None if said is None else said in refused
    assert Machine("a new GPU", fp32_flops=1e12).peak_flops("3xtf32") is None


@pytest.mark.parametrize("method", ["fft", "winograd", "any"])
def test_algorithms_with_fewer_multiplications_may_pass_the_peak(method):
    assert too_fast(CONV9, 0.2, H200_LIKE, "fp32", "gemm")
    assert too_fast(CONV9, 0.2, H200_LIKE, "fp32", method) is None
    assert too_fast(CONV9, 0.01, H200_LIKE, "fp32", method)
    assert least_flops(CONV9, method) == CONV9.flops / 9


def row(time_ms, machine=H200_LIKE, algorithm=None):
    chosen = bench_samples.system("torch_fp32", "baseline", "pytorch", "any", "fp32")
    outcome = MeasuringOutcome("measured", None, time_ms, 0.1, 20, algorithm=algorithm)
    return row_of(BenchCase("conv9", CONV9, chosen), outcome, machine, "one", 1.0)


@pytest.mark.parametrize(
    ("algorithm", "refused"),
    [
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw", True),
        ("void fft2d_r2c_32x32<float, false>; sm80_xmma_gemm_cf32cf32", False),
        (None, False),  # nobody knows what it was
    ],
)
def test_a_library_that_chose_a_product_over_windows_is_held_to_it(algorithm, refused):
    """Half the time that all multiplications take: a ninth of them is possible, all are not."""
    found = row(0.5e3 * CONV9.flops / H200_LIKE.fp32_flops, algorithm=algorithm)
    assert found.state == ("refused" if refused else "measured")
    if refused:
        assert "can do 66.9 in fp32 at most" in found.reason
        assert found.time_ms is found.tflops is found.settled is None
        assert found.algorithm == algorithm


@pytest.mark.parametrize("time_ms", [0.0, -1.0, float("nan")])
def test_a_time_that_is_none_is_refused_on_any_machine(time_ms):
    found = row(time_ms, Machine("a new GPU"))
    assert (found.state, found.time_ms) == ("refused", None)
    assert found.reason == f"the clock said {time_ms} ms, which no work takes"


def test_an_output_that_fits_the_cache_need_not_reach_memory():
    problem = paper_layer("conv12", 8)
    bare = 1e3 * problem.least_bytes / H200_LIKE.memory_bytes_per_second
    fast = replace(NO_CACHE, fp32_flops=1e18)
    assert too_fast(problem, 0.97 * bare, fast, "fp32", "gemm")
    assert too_fast(problem, 0.97 * bare, replace(fast, l2_bytes=2**26), "fp32", "gemm") is None


def test_the_floor_is_of_arithmetic_or_of_bytes_and_unknown_of_an_unknown_machine():
    unknown = Machine("a new GPU")
    assert too_fast(CONV9, 1e-9, unknown, "fp32", "gemm") is None
    assert floor_seconds(CONV9, unknown) is None
    assert floor_seconds(CONV9, H200_LIKE) == pytest.approx(CONV9.flops / 66.9e12)
    assert floor_seconds(CONV7, H200_LIKE) == pytest.approx(CONV7.least_bytes / 4.9e12)
