"""The depth-last im2col kernels' addresses, warp by warp: whole sectors, no bank conflict."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from convlab import ConvProblem, trace
from convlab.ladder.im2col import depth_last_layout as depth_last
from convlab.ladder.im2col.depth_last_layout import DEEPEST, depth_slices
from convlab.ladder.im2col.im2col_gemm import columns_buffer
from convlab.ladder.stage import Program
from convlab.running.engines import Engine


# 256 columns a block, rows of 64 pixels: a warp's pixels are neighbours in the input.
@pytest.mark.same_in_cudasim
@pytest.mark.parametrize(
    ("depth", "filter_size"), [(3, 1), (4, 3), (8, 1), (11, 1), (11, 3), (16, 1), (24, 1), (24, 3)]
)
def test_whole_sectors_and_no_bank_conflict(depth: int, filter_size: int) -> None:
    more = filter_size - 1
    problem = ConvProblem(1, depth, 4 + more, 64 + more, 1, filter_size)
    buffers = depth_last.buffer(problem), columns_buffer(problem)
    arrays = [np.zeros(prod(buffer.shape), np.float32) for buffer in buffers]
    launches = depth_last.im2col_launches(problem)
    for launch, slices in zip(launches, depth_slices(depth), strict=True):
        accesses = trace(launch.kernel, launch.grid, launch.block, *arrays).main.accesses
        assert [(a.array, a.operation, a.width) for a in accesses] == [
            ("depth_last", "load", 16), ("S", "store", 4), ("S", "load", 16),
            ("columns", "store", 16),
        ]  # fmt: skip
        for one in accesses:
            assert one.wavefronts == one.fewest_wavefronts
            # A request is sixteen sectors, and one more where a row of pixels begins amid a
            # sector: a filter column further is half a sector further at pitches 4 and 12.
            amid = one.array == "depth_last" and slices.pitch % 8 and filter_size > 1
            most = one.fewest_sectors + (one.requests if amid else 0)
            assert one.fewest_sectors <= one.sectors <= most


@pytest.mark.parametrize("depth", range(1, 40))
def test_the_depth_goes_through_in_slices_of_16(depth: int) -> None:
    slices = depth_slices(depth)
    pitches = [slice_.pitch for slice_ in slices for _ in range(slice_.number)]
    assert pitches[:-1] == [DEEPEST] * ((depth - 1) // DEEPEST)
    assert pitches[-1] in (4, 8, 12, 16)
    assert 0 <= sum(pitches) - depth < 4
    problem = ConvProblem(2, depth, 3, 5, 1, 1)
    assert prod(depth_last.buffer(problem).shape) == 2 * 3 * 5 * sum(pitches)


@pytest.mark.parametrize("depth", [3, 8, 11, 13, 30])
@pytest.mark.parametrize(
    "settings",
    [{}, {"padding": (1, 2), "stride": (2, 1), "dilation": (1, 2)}, {"padding": "same"}],
    ids=["plain", "all at once", "same"],
)
def test_the_matrix_at_a_gpus_width(depth: int, settings: dict[str, Any], engine: Engine) -> None:
    """With warps of 32, which tiny tiles never have: element by element, the rows' zeros too."""
    p = ConvProblem(3, depth, 7, 9, 1, (2, 3), **settings)
    program = Program(
        (depth_last.buffer(p), columns_buffer(p)),
        (*depth_last.transform_launches(p), *depth_last.im2col_launches(p)),
    )
    input = np.random.default_rng(1).standard_normal(p.input_shape, np.float32)
    arrays = {buffer.name: engine.empty(buffer.shape) for buffer in program.buffers}
    flat = arrays["columns"].reshape(-1)
    arrays = {"input": engine.to_device(input.reshape(-1)), **arrays, "columns": flat}
    for launch in program.launches:
        start = engine.build(launch, program)
        start([arrays[str(argument)] for argument in launch.arguments], None)
    got = engine.to_host(flat).reshape(columns_buffer(p).shape)
    padded = np.pad(input, ((0, 0), (0, 0), *p.padding))
    for u, v, r in np.ndindex(p.H_f, p.W_f, p.C_i):
        seen = padded[:, r, u * p.d_h :: p.s_h, v * p.d_w :: p.s_w][:, : p.H_o, : p.W_o]
        row = got[(u * p.W_f + v) * p.C_i + r]
        assert np.array_equal(row[: p.N], seen.reshape(-1))
        assert not row[p.N :].any()
