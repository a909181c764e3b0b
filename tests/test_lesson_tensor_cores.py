"""The pictures and checks of lesson 13: what lanes hold, and how exact sums are."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from numba import cuda, float32

from convlab import lessons
from convlab.device import mma_tf32
from convlab.lessons import sum_errors, tensor_cores
from convlab.lessons.feedback import ANSWER, COUNTS
from convlab.running.engines.simulator import Simulator

pytestmark = pytest.mark.same_in_cudasim


def test_the_lanes_of_the_picture_are_those_of_the_instruction():
    """A tensor core multiplies right only what lies in the right lanes."""
    A, B = tensor_cores.numbered_matrices(16)
    C = np.full((16, 8), np.nan, np.float32)
    Simulator().launch(tensor_cores._one_warp, 1, 32, A, B, C)
    assert np.array_equal(C, A @ B)
    found = tensor_cores.products_of(tensor_cores._one_warp, A, B)
    (lanes,) = found.calls
    for lane, (a, b, _) in lanes.items():
        assert [found.names[float(one)] for one in (*a, *b)] == tensor_cores.wanted_of(lane)


@cuda.jit
def in_the_dark(A, B, C):
    """Lanes without a row stay away."""
    group_id, thread_in_group = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    zero = float32(0)
    if group_id < A.shape[0]:
        a = (A[group_id, thread_in_group], zero, A[group_id, thread_in_group + 4], zero)
        b = (B[thread_in_group, group_id], B[thread_in_group + 4, group_id])
        d = mma_tf32(a, b, (zero, zero, zero, zero))
        C[group_id, 2 * thread_in_group], C[group_id, 2 * thread_in_group + 1] = d[0], d[1]


def test_lanes_that_stay_away_are_seen_and_told():
    assert "Lanes 24-31 do not come" in lessons.who_holds_what(in_the_dark, rows=6).caption
    found = lessons.check_one_warp(in_the_dark, rows=(6,))
    assert found.reasons == (ANSWER, "inactive lane")
    assert "so their elements of B (of columns 6-7) are missing" in found.mistakes[0].what


@cuda.jit
def without_tensor_cores(A, B, C):
    lane = cuda.threadIdx.x
    for e in range(lane, A.shape[0] * 8, 32):
        total = float32(0)
        for k in range(8):
            total += A[e // 8, k] * B[k, e % 8]
        C[e // 8, e % 8] = total


def test_a_right_product_without_the_tensor_core_is_no_answer():
    found = lessons.check_one_warp(without_tensor_cores)
    assert found.reasons == (COUNTS,)
    assert "0 times" in found.mistakes[0].what


@pytest.mark.parametrize("value", [-1 / 3, 1e-20])
def test_both_parts_make_the_number(value):
    alt = lessons.bits_of_split(value).alt
    x, large, small = (
        np.uint32(int(bits, 2)).view(np.float32) for bits in re.findall("[01]{32}", alt)
    )
    assert x == np.float32(value)
    assert np.float64(large) + np.float64(small) == np.float64(x)
    assert int(large.view(np.uint32)) % 2**13 == 0
    assert abs(small) <= 2.0**-11 * abs(x)


def test_what_lesson_13_says_of_errors_is_what_is_computed():
    errors = sum_errors.errors_of_ways()
    alone, one_chain, short, thread = errors.values()
    for before, after in pairwise(one_chain):
        assert after > 3 * before  # the cuts add up
    assert one_chain[-1] > alone[-1] / 2  # and eat up what was gained
    for ours, theirs in zip(short, thread, strict=True):
        assert ours < 1.1 * theirs  # as exact as float32 in a thread, or better
    assert short[0] < alone[0] / 100
    assert f"{short[-1]:.1e}" in lessons.errors_by_terms().alt
