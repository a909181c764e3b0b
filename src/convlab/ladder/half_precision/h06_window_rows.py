"""h06: rows of windows. A copy brings terms of a whole filter row, not of one pixel.

Source: im2win paper (000), section 3.1: the numbers of a window's row are neighbours; ours. In h03
a slice has channels of one place (u, v). With 96 channels every second slice is half full, and the
copy engine is slow at such copies. But in channels last the W_f pixels of a window's row are
neighbours, W_f * C_i numbers, as in im2win's tensor. Here they are the channels of one pixel: the
tensor map says that a pixel has W_f * C_i channels, and that the next pixel begins C_i numbers
later (``run`` in :mod:`convlab.device.tensor_maps`). Neighbouring pixels overlap in memory, which
the copy engine does not mind, so nothing is stored twice: im2win's tensor without its memory.

For the kernel this is another convolution: W_f times as many channels, and a filter one pixel wide.
A filter in channels last already has its numbers in this order. So h03's kernel computes it. With
96 channels and a filter 5 pixels wide, a row has 480 terms: 8 slices instead of 10.

The pixels of a run must lie in the image and side by side. So where the problem has padding or
dilation along W, or where rows save no slices, each slice has one place as in h03.

The difference to h03 is long (over 150 lines), because h03's kernel is not repeated here.
"""

from __future__ import annotations

from dataclasses import replace

from convlab.device import BoxMap, WindowMap
from convlab.ladder.half_precision import h03_warp_specialization as h03
from convlab.ladder.half_precision.h01_panels import HOPPER
from convlab.ladder.half_precision.h02_copy_engine import tensor_maps
from convlab.ladder.half_precision.panel_format import FORMATS
from convlab.ladder.stage import Program, Stage, Tile, Tiles, blocks_for
from convlab.problems.problem import ConvProblem


def of_rows(problem: ConvProblem) -> ConvProblem:
    """Return the convolution of a filter one pixel wide whose channels are those of a row of the
    problem's filter."""
    return replace(
        problem,
        in_channels=problem.W_f * problem.C_i,
        width=problem.W_i - problem.W_f + 1,
        kernel_size=(problem.H_f, 1),
        dilation=(problem.d_h, 1),
    )


def has_rows(problem: ConvProblem) -> bool:
    """Return whether the rows of the problem's windows are runs of the image, and a row of the
    filter has fewer slices than its places have one by one."""
    are_runs = problem.padding[1] == (0, 0) and problem.d_w == 1
    terms = FORMATS[problem.dtype].terms
    by_places = problem.W_f * blocks_for(problem.C_i, terms)
    return are_runs and blocks_for(problem.W_f * problem.C_i, terms) < by_places


def computed_and_maps(problem: ConvProblem, tile: Tile) -> tuple[ConvProblem, WindowMap, BoxMap]:
    """Return the problem that h03's kernel computes, by rows where there are any, and the maps of
    its windows and of the filter."""
    if not has_rows(problem):
        return problem, *tensor_maps(problem, tile)
    rows = of_rows(problem)
    windows, filter = tensor_maps(rows, tile)
    return rows, replace(windows, shape=problem.input_shape, run=problem.W_f), filter


def production_tile(problem: ConvProblem, sm_count: int = h03.H100_SMS) -> Tile:
    """Return the tile that h03's estimate takes the least time for."""
    return h03.production_tile(of_rows(problem) if has_rows(problem) else problem, sm_count)


def prepare(
    problem: ConvProblem,
    tile: Tile,
    relu: bool = False,
    residual: bool = False,
    sm_count: int = h03.H100_SMS,
) -> Program:
    """``residual`` adds a tensor to the sums; ``relu`` replaces negative results by zero. There is
    one block per SM of a GPU with ``sm_count`` SMs, and no more than there are tiles."""
    computed, windows, filter = computed_and_maps(problem, tile)
    program = h03.prepare(computed, tile, relu=relu, residual=residual, sm_count=sm_count)
    (launch,) = program.launches
    _, _, *others = launch.arguments  # h03's maps, of pixels that do not overlap
    launch = replace(launch, arguments=(windows, filter, *others))
    return replace(program, launches=(launch,))


STAGE = Stage(
    __name__,
    title="Rows of windows: im2win's runs by the copy engine",
    source="im2win paper (000), section 3.1; ours",
    builds_on=("h03_warp_specialization",),
    prepare=prepare,
    tiles=Tiles(
        tiny=Tile(32, 64, 64, 8, 2),
        model=Tile(64, 64, 64, 16, 2),
        production=production_tile,
    ),
    requires=HOPPER,
    dtypes=("float16", "bfloat16"),
    channels_last=True,
    channel_multiples=(16, 32),  # as h02
)
