"""h05: TF32 in panels. Float32 numbers go to the tensor cores as they are, by h03's pipeline.

Source: ours, beyond the paper. t07 multiplies in TF32 too, from channels first: its threads gather
the windows number by number, round each to TF32, and hand them over in registers. With the channels
last the copy engine fetches whole panels (h02), and no thread touches an input or a filter.

What changes against h03 is the type of the numbers (:mod:`convlab.ladder.half_precision.\
panel_format`):

- **A row of 128 bytes has 32 terms**, not 64. The tensor cores multiply half as many in a clock, so
  a slice takes them as long as before, and the pipeline stays in balance.
- **TF32 is cut, not rounded.** The tensor cores ignore the last 13 bits of a float32 number, which
  is like rounding toward zero. A factor loses up to ``2**-10`` of itself instead of ``2**-11``, a
  product up to ``2**-9``. To round, threads would have to read and write each panel. No finite
  number becomes infinity. A number below ``2**-136`` becomes zero, so an infinity times it is NaN:
  t07 computes such an output again, h05 does not. A NaN that differs from infinity only in those
  13 bits becomes infinity; no arithmetic makes such a NaN.
- **A lane's 16 bytes are four channels**, so the rows of the filter are interleaved in sixteens:
  row ``8 * j + 2 * g + e`` of a panel is channel ``4 * g + 2 * j + e``, for j of two. Nothing is
  rounded before the stores.

The difference to h03 is long (over 150 lines), because h03's kernel is not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda, int64

from convlab.device import FLOAT4, gpu_only, load4, store4, unrolled
from convlab.ladder.half_precision.h01_panels import HOPPER, shared_bytes
from convlab.ladder.half_precision.h02_copy_engine import tensor_maps
from convlab.ladder.half_precision.h03_warp_specialization import (
    H100_SMS,
    THREADS,
    make_kernel,
    pipeline_depth,
    production_tile,
    require_consumer_tile,
)
from convlab.ladder.half_precision.panel_format import FORMATS
from convlab.ladder.main.m14_epilogue import make_finish
from convlab.ladder.stage import Flat, Launch, Program, Stage, Tile, Tiles, blocks_for
from convlab.problems.problem import ConvProblem

FORMAT = FORMATS["float32"]
INTERLEAVED = FORMAT.interleaved  # channels whose rows are interleaved: sixteen


def make_epilogue(problem: ConvProblem, tile: Tile, relu: bool) -> Callable[..., None]:
    """Return ``epilogue(D, first, bias, output, m_t, n_t)``, which adds the bias to a lane's sums
    of one product, from ``D[first]`` on, and stores them: of windows n_t and n_t + 8, four
    neighbouring channels of every 16 from m_t on. h05's channels come in fours; those of a later
    stage may not, and are stored one by one."""
    M, N, finish = problem.M, problem.N, make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store_four(D, at, bias, output, m, n):  # 16 bytes: all of them there or none
        if m < M:
            b0, b1, b2, b3 = load4(bias, m)
            for row in range(2):
                if n + 8 * row < N:
                    r = at + 2 * row
                    v0, v1 = finish(D[r], b0), finish(D[r + 1], b1)
                    v2, v3 = finish(D[r + 4], b2), finish(D[r + 5], b3)
                    store4(output, int64(n + 8 * row) * M + m, (v0, v1, v2, v3))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store_scalars(D, at, bias, output, m, n):
        for row in range(2):
            for e in range(FLOAT4):
                if n + 8 * row < N and m + e < M:
                    value = finish(D[at + 4 * (e // 2) + 2 * row + e % 2], bias[m + e])
                    output[int64(n + 8 * row) * M + m + e] = value

    store = store_four if M % FLOAT4 == 0 else store_scalars

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store_part(q, D, first, bias, output, m_t, n_t):
        store(D, first + 8 * q, bias, output, m_t + q * INTERLEAVED, n_t)

    return unrolled(store_part, range(tile.M_B // INTERLEAVED))


def prepare(
    problem: ConvProblem, tile: Tile, relu: bool = False, sm_count: int = H100_SMS
) -> Program:
    """``relu`` replaces negative results by zero. There is one block per SM of a GPU with
    ``sm_count`` SMs, and no more than there are tiles."""
    require_consumer_tile(tile, FORMAT.terms)
    tiles = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    launch = Launch(
        make_kernel(problem, tile, relu, make_epilogue=make_epilogue),
        grid=(min(tiles, sm_count),),
        block=(THREADS,),
        arguments=(*tensor_maps(problem, tile), "bias", Flat("output")),
        shared_bytes=shared_bytes(tile, pipeline_depth(tile)),
    )
    return Program((), (launch,), tile)


STAGE = Stage(
    __name__,
    title="TF32 panels: float32, channels last, cut by the tensor cores",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("h03_warp_specialization",),
    prepare=prepare,
    tiles=Tiles(
        tiny=Tile(32, 64, 32, 8, 2),
        model=Tile(64, 64, 32, 16, 2),
        production=production_tile,
    ),
    precision="tf32",
    cuts_to_tf32=True,
    requires=HOPPER,
    channels_last=True,
    channel_multiples=(8, 16),  # C_i: terms of one wgmma; C_o: interleaved channels
)
