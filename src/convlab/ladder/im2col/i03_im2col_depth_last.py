"""i03, depth last: im2col by 128-bit loads and stores, transposed in shared memory.

Source: CUDA IM2COL Kernels Design (003). The matrix is :mod:`i01_im2col`'s, except that the depth
is innermost in the order of the rows, because the document flattens a filter so. The document's
kernels (:mod:`depth_last`) read a tensor in which the channels of a pixel are neighbours, so they
load and store float4s. A layout transform makes that tensor, because convlab's tensors are NCHW. A
network whose tensors are depth last does not need the transform.
"""

from numba import cuda, float32, uint32

from convlab.ladder.im2col import depth_last_layout as depth_last
from convlab.ladder.im2col.batch_slices import in_slices
from convlab.ladder.im2col.im2col_gemm import columns_buffer, product_launch
from convlab.ladder.layouts.filter_layout import pack_filter
from convlab.ladder.stage import Buffer, Kernel, Program, Stage, Step, Tile, Tiles
from convlab.problems.problem import ConvProblem


def make_pack_filter(problem: ConvProblem, K_P: int, M_P: int, THREADS: int) -> Kernel:
    """m06's packed filter with depth innermost: packed[(u * W_f + v) * C_i + r, m]."""
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
    """Return the program: the packed filter, then for slices of the batch the input with channels
    last, its im2col matrix and the product. The workspace is within ``workspace_limit`` bytes."""
    pack = pack_filter(problem, tile, make_pack_filter, "weight")

    def buffers(part: ConvProblem) -> tuple[Buffer, ...]:
        return depth_last.buffer(part), columns_buffer(part), *pack.buffers

    lanes = min(depth_last.WARP, tile.N_B)  # fewer only on a simulator

    def steps(part: ConvProblem) -> list[Step]:
        return [
            *depth_last.transform_launches(part),
            *depth_last.im2col_launches(part, lanes),
            product_launch(part, tile),
        ]

    made = in_slices(problem, buffers, steps, workspace_limit)
    return Program(made.buffers, (*pack.launches, *made.launches), tile)


STAGE = Stage(
    __name__,
    title="Depth-last im2col: 128-bit loads and stores, transposed in shared memory",
    source="CUDA IM2COL Kernels Design (003), 1",
    builds_on=("i01_im2col",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=8, K_B=4, M_T=4, N_T=4)),
    vectorized=True,
)
