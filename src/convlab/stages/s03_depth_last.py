"""s03, depth last: im2col by 128-bit loads and stores, transposed in shared memory.

Source: CUDA IM2COL Kernels Design (003). The matrix is :mod:`s03_im2col`'s, except that its rows
have the depth innermost, as the document flattens a filter. The kernels of :mod:`depth_last` read
a tensor in which the channels of a pixel are neighbours, so they load and store float4s. A layout
transform makes that tensor, because convlab's tensors are NCHW. A network whose tensors are depth
last does not need it.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, uint32

from convlab.kernels.batch_slices import in_slices, largest, slices
from convlab.kernels.depth_last import (
    WARP,
    depth_last_buffer,
    im2col_launches,
    to_depth_last_launches,
)
from convlab.kernels.filter_layout import pack_launch, packed_buffer
from convlab.kernels.gemm import product_launch
from convlab.kernels.im2col import columns_buffer
from convlab.problem import ConvProblem
from convlab.stage import Flat, Program, Stage, Step, Tile, Tiles


def make_pack_filter(problem: ConvProblem, K_P: int, M_P: int, THREADS: int) -> Any:
    """s08's packed filter with depth innermost: packed[(u * W_f + v) * C_i + r, m]."""
    M, K, C_i, W_f = problem.M, problem.K, problem.C_i, problem.W_f

    @cuda.jit
    def pack_filter(weight, packed):
        e = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        k, m = e // M_P, e % M_P
        if k < K_P:
            value = float32(0)
            if k < K and m < M:
                value = weight[m, k % C_i, k // C_i // W_f, k // C_i % W_f]
            packed[k, m] = value

    return pack_filter


def prepare(problem: ConvProblem, tile: Tile, workspace_limit: int | None = None) -> Program:
    """The stage made ready for a problem: what to allocate and what to launch."""
    packed = packed_buffer(problem, tile)
    pack = pack_launch(problem, tile, make_pack_filter, "weight")

    def nbytes(part: ConvProblem) -> int:
        return packed.nbytes + depth_last_buffer(part).nbytes + columns_buffer(part).nbytes

    def steps(part: ConvProblem) -> list[Step]:
        return [
            *to_depth_last_launches(part),
            *im2col_launches(part, min(WARP, tile.N_B)),  # narrower only on a simulator
            product_launch(part, tile, Flat("output")),
        ]

    parts = slices(problem, nbytes, workspace_limit)
    part = largest(problem, parts)
    return Program(
        (depth_last_buffer(part), columns_buffer(part), packed),
        (pack, *in_slices(problem, parts, steps)),
        tile,
    )


STAGE = Stage(
    __name__,
    title="Depth-last im2col: 128-bit loads and stores, transposed in shared memory",
    source="CUDA IM2COL Kernels Design (003), 1",
    builds_on=("s03_im2col",),
    prepare=prepare,
    tiles=Tiles.of_paper(tiny=Tile(M_B=16, N_B=8, K_B=4, M_T=4, N_T=4)),
    vectorized=True,
)
