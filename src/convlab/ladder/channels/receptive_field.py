"""A block's receptive field, shared by the channel-parallel stages: its size, and its loading.

A block computes a region of B_Y x B_X output pixels. The part of an input channel that the region
sees, its receptive field, is a rectangle with a halo as wide as the filter. Neighbouring pixels see
almost the same elements, so the block fetches the field once into shared memory. A field that does
not fit (because of a very large filter, stride or dilation) is taken in parts: fewer filter rows
and columns at a time, and a smaller region.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from numba import cuda, float32, uint32

from convlab.device import gpu_only
from convlab.ladder.layouts.output_fill import bias_launch
from convlab.ladder.stage import SHARED_BYTES, Flat, Launch, Program, blocks_for
from convlab.problems.problem import ConvProblem

REGION = (8, 32)  # rows and columns of output pixels; neighbouring threads are neighbouring columns
MOST_THREADS = 1024  # of a block
MOST_CHANNELS = 64  # CUDA's largest block in z


@dataclass(frozen=True)
class Field:
    """A block's region (B_Y x B_X outputs), the input channels B_Z and the filter rows and columns
    U x V that it takes at a time, and the rows and columns S_H x S_W that these see."""

    B_Z: int
    B_Y: int
    B_X: int
    U: int
    V: int
    S_H: int
    S_W: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """The part of the input that is staged at a time."""
        return self.B_Z, self.S_H, self.S_W

    def regions(self, problem: ConvProblem) -> tuple[int, int]:
        """Return the number of regions that cover the output, down and across."""
        return blocks_for(problem.H_o, self.B_Y), blocks_for(problem.W_o, self.B_X)

    def parts(self, problem: ConvProblem) -> int:
        """Return the number of parts in which the filter is taken."""
        return blocks_for(problem.H_f, self.U) * blocks_for(problem.W_f, self.V)


def field_for(problem: ConvProblem, most_channels: int) -> Field:
    """The field that fits shared memory, with at most ``most_channels`` channels at a time."""
    p = problem
    sizes = [min(REGION[0], p.H_o), min(REGION[1], p.W_o), p.H_f, p.W_f]
    steps = (p.s_h, p.s_w, p.d_h, p.d_w)

    def spans() -> list[int]:
        return [(size - 1) * step for size, step in zip(sizes, steps, strict=True)]

    def seen() -> tuple[int, int]:
        """The rows and columns that the region sees through these filter rows and columns."""
        down, across, taps_down, taps_across = spans()
        return down + taps_down + 1, across + taps_across + 1

    while 4 * prod(seen()) > SHARED_BYTES:
        widest = spans().index(max(spans()))
        sizes[widest] = blocks_for(sizes[widest], 2)
    B_Y, B_X, U, V = sizes
    S_H, S_W = seen()
    fit = min(MOST_CHANNELS, SHARED_BYTES // (4 * S_H * S_W))
    return Field(min(p.C_i, most_channels, fit), B_Y, B_X, U, V, S_H, S_W)


def channel_parallel_field(problem: ConvProblem) -> Field:
    """The field of a block with a thread for each pixel of its region and each input channel. Paper
    001 takes the largest possible block."""
    pixels = min(REGION[0], problem.H_o) * min(REGION[1], problem.W_o)
    return field_for(problem, MOST_THREADS // pixels)


def make_stage_field(problem: ConvProblem, field: Field, THREADS: int) -> Any:
    """A device function: the block's threads together fetch the field of channels i_c0.. and
    filter part (f_h0, f_w0), with zeros for padding and for channels that do not exist."""
    p = problem
    _, C_i, H_i, W_i = p.input_shape
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    S_H, S_W, ELEMENTS = field.S_H, field.S_W, field.B_Z * field.S_H * field.S_W

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def stage_field(input, S, i_n, i_c0, h0, w0, f_h0, f_w0, t):
        # Every thread takes equally many turns, so the compiler unrolls them and issues all loads
        # before it waits for any. With range(t, ELEMENTS, THREADS) lanes would leave at different
        # turns.
        for first in range(0, ELEMENTS, THREADS):
            e = uint32(first) + t  # 32-bit divisions cost a third of 64-bit ones
            if e < ELEMENTS:
                z, y, x = e // (S_H * S_W), e % (S_H * S_W) // S_W, e % S_W
                i_h = h0 * s_h + f_h0 * d_h + y - p_h
                i_w = w0 * s_w + f_w0 * d_w + x - p_w
                pixel = float32(0)
                if i_c0 + z < C_i and 0 <= i_h < H_i and 0 <= i_w < W_i:
                    pixel = input[i_n, i_c0 + z, i_h, i_w]
                S[z, y, x] = pixel

    return stage_field


def channel_parallel_program(problem: ConvProblem, field: Field, kernel: Any) -> Program:
    """Fills the outputs with the bias, then starts a thread for each pixel and input channel."""
    down, across = field.regions(problem)
    launch = Launch(
        kernel,
        grid=(across * down * blocks_for(problem.C_i, field.B_Z) * problem.N_i,),
        block=(field.B_X, field.B_Y, field.B_Z),
        arguments=("input", "weight", Flat("output")),
    )
    return Program((), (bias_launch(problem), launch))
