"""The layout of h04's filter: panels of 64 terms, in the order in which lanes read strips."""

from __future__ import annotations

from numba import cuda, uint16, uint32

from convlab.device import gpu_only
from convlab.device.sixteen_bits import EIGHT
from convlab.device.swizzled_products import swizzled_piece
from convlab.ladder.half_precision.h01_panels import INTERLEAVED
from convlab.ladder.half_precision.window_spans import PANEL_TERMS, Spans
from convlab.ladder.stage import DeviceFunction, Kernel, blocks_for
from convlab.problems.problem import ConvProblem

STEP = 16  # terms of one wgmma


def make_channel_of(problem: ConvProblem) -> DeviceFunction:
    """Return ``channel_of(column)``: which channel of a block is a column of the products."""
    EIGHTS = problem.C_o % EIGHT == 0

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def channel_of(column):
        thread_in_group, e = column % 8 // 2, column % 2  # the lane that has the column
        if EIGHTS:  # eight neighbouring channels for each lane, of every 32
            first = column // INTERLEAVED * INTERLEAVED + thread_in_group * 8
            return first + column // 8 % 4 * 2 + e
        return column // 8 * 8 + e * 4 + thread_in_group  # the four lanes have neighbours

    return channel_of


def make_pack(problem: ConvProblem, spans: Spans, M_B: int) -> Kernel:
    """Return the layout transform of the filter: for each block of M_B channels the panels of each
    slice, with the terms in the order in which lanes read strips."""
    C_o, F_ROWS, RUN = problem.C_o, spans.filter_rows, spans.run
    STRIP, PARTS, ROWS, SLICES = spans.strip, spans.parts, spans.rows, spans.slices
    AT_A_TIME, FOURS, STEPS, PANELS = spans.rows_at_a_time, spans.fours, spans.steps, spans.panels
    TOTAL = blocks_for(C_o, M_B) * spans.filter_numbers(M_B)
    channel_of = make_channel_of(problem)

    @cuda.jit
    def pack_strips(weight, packed):
        i = uint32(cuda.grid(1))  # the number's index if panels were not swizzled
        if i >= TOTAL:
            return
        panel, column, k = i // (M_B * PANEL_TERMS), i // PANEL_TERMS % M_B, i % PANEL_TERMS
        block, slice_ = panel // (SLICES * PANELS), panel // PANELS % SLICES
        step = panel % PANELS * 4 + k // STEP
        # The lane whose A has the term, in which of its two words, and which half of the word.
        word, thread_in_group, e = k % STEP // 8, k % 8 // 2, k % 2
        u = slice_ * ROWS + step // FOURS * AT_A_TIME + thread_in_group // PARTS
        x = thread_in_group % PARTS * STRIP + step % FOURS * 4 + word * 2 + e
        m = block * M_B + channel_of(column)
        inside = step < STEPS and u < F_ROWS and x < RUN and m < C_o
        at = panel * M_B * PANEL_TERMS + swizzled_piece(column, k // EIGHT) * EIGHT + k % EIGHT
        packed[at] = weight[(m * F_ROWS + u) * RUN + x] if inside else uint16(0)

    return pack_strips
