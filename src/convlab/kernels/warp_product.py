"""The inner loop of s13: a slice's product by tensor cores, to float32 accuracy.

A warp computes 8*M_T channels of 4*N_T windows. One instruction, ``mma_tf32``, multiplies 16
channels x 8 terms by 8 terms x 8 windows, 1,024 multiply-adds, where the 32 lanes of s12 do one
each. It has two weaknesses, and both are mended here, as Ootomo and Yokota do ("Recovering single
precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022):

- It multiplies TF32. Each number is split in two, and three of the four products are added::

      x * w  =  large_x * large_w + large_x * small_w + small_x * large_w   (+ small_x * small_w)

  What is left out is at most 2**-22 of the product, and as much again goes with the small parts'
  last bit: they have 12, TF32 has 11. Together that is eight times float32's rounding of one
  product, and nothing beside its rounding of a sum.
- It cuts where others round, every time it adds. So it adds 16 terms at most, the small products of
  a step first, and begins again; these parts are added to the sums by ordinary additions, which
  round.

What costs time beside the tensor cores are other instructions, for these are issued in between. So
the filter comes split (:mod:`filter_fragments`), and a window's number is split once for all
channels of the warp. Which window is which column of the matrices is free: a lane's four columns
are neighbours in shared memory, one load, and its sums are neighbours in the output, one store.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32

from convlab.device import gpu_only, load4, mma_tf32, split_tf32
from convlab.kernels.filter_fragments import FRAGMENTS, TERMS
from convlab.stage import Tile
from convlab.stages.s08_vectorized import RUN

GAP = 4  # elements after a row of windows: lanes of four rows read four runs of banks
WARP_ROWS, WARP_COLUMNS = 8, 4  # lanes of a warp along M and N, in what each has of the sums


def chain(tile: Tile) -> int:
    """Steps of 8 terms whose products the tensor cores add up before they begin again."""
    return 2 if tile.K_B % (2 * TERMS) == 0 else 1


def make_place(tile: Tile) -> Any:
    """Which channel and which window of the block's are a warp's first."""
    ROWS, COLUMNS = WARP_ROWS * tile.M_T, WARP_COLUMNS * tile.N_T
    ACROSS = tile.N_B // COLUMNS  # warps along N

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def place(t):
        warp = t // 32
        return warp // ACROSS * ROWS, warp % ACROSS * COLUMNS

    return place


def make_multiply(tile: Tile) -> Any:
    """``multiply(S_F, S_I, at_F, at_I, k, R_O)``: adds the products of terms k to k + 7, or k + 15,
    of the slices, from where in the ring the lane's own numbers begin. ``L_`` are large parts,
    ``T_`` small ones, their tails."""
    M_B, PITCH, M_T, N_T = tile.M_B, tile.N_B + GAP, tile.M_T, tile.N_T
    CHAIN = chain(tile)
    I_SHAPE, F_SHAPE = (2 * CHAIN, N_T // 2), (CHAIN, 4)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_windows(S_I, at, L_I, T_I):
        for half in range(2 * CHAIN):  # of a step: rows t and t + 4 of its eight
            for j in range(0, N_T // 2, RUN):
                x, y, z, w = load4(S_I, at + (4 * half * PITCH + j * WARP_ROWS))
                L_I[half, j], T_I[half, j] = split_tf32(x)
                L_I[half, j + 1], T_I[half, j + 1] = split_tf32(y)
                L_I[half, j + 2], T_I[half, j + 2] = split_tf32(z)
                L_I[half, j + 3], T_I[half, j + 3] = split_tf32(w)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_filter(S_F, at, L_F, T_F):
        for c in range(CHAIN):
            L_F[c, 0], L_F[c, 1], L_F[c, 2], L_F[c, 3] = load4(S_F, at + c * (2 * TERMS * M_B))
            T_F[c, 0], T_F[c, 1], T_F[c, 2], T_F[c, 3] = load4(
                S_F, at + (c * (2 * TERMS * M_B) + FRAGMENTS)
            )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(S_F, S_I, at_F, at_I, k, R_O):
        L_I, T_I = cuda.local.array(I_SHAPE, float32), cuda.local.array(I_SHAPE, float32)
        L_F, T_F = cuda.local.array(F_SHAPE, float32), cuda.local.array(F_SHAPE, float32)
        zero = float32(0)
        read_windows(S_I, at_I + k * PITCH, L_I, T_I)
        for i in range(0, M_T, 2):
            read_filter(S_F, at_F + (k * (2 * M_B) + i // 2 * (2 * FRAGMENTS)), L_F, T_F)
            for j in range(N_T // 2):
                part = (zero, zero, zero, zero)
                for c in range(CHAIN):
                    large_f = L_F[c, 0], L_F[c, 1], L_F[c, 2], L_F[c, 3]
                    small_f = T_F[c, 0], T_F[c, 1], T_F[c, 2], T_F[c, 3]
                    large_i = L_I[2 * c, j], L_I[2 * c + 1, j]
                    small_i = T_I[2 * c, j], T_I[2 * c + 1, j]
                    part = mma_tf32(small_f, large_i, part)
                    part = mma_tf32(large_f, small_i, part)
                    part = mma_tf32(large_f, large_i, part)
                # Column j of an even run of four windows; part[1] and [3] are of the odd run's.
                left = j // RUN * (2 * RUN) + j % RUN
                R_O[i, left] += part[0]
                R_O[i, left + RUN] += part[1]
                R_O[i + 1, left] += part[2]
                R_O[i + 1, left + RUN] += part[3]

    return multiply


def make_compute(tile: Tile) -> Any:
    """All of a slice, its steps written out: each is a call with its own k, a constant."""
    multiply, STEP = make_multiply(tile), TERMS * chain(tile)

    def steps_from(k: int) -> Any:
        if k == tile.K_B:

            @cuda.jit(device=True, **gpu_only(forceinline=True))
            def nothing(S_F, S_I, at_F, at_I, R_O):
                pass

            return nothing
        following = steps_from(k + STEP)

        @cuda.jit(device=True, **gpu_only(forceinline=True))
        def step(S_F, S_I, at_F, at_I, R_O):
            multiply(S_F, S_I, at_F, at_I, k, R_O)
            following(S_F, S_I, at_F, at_I, R_O)

        return step

    return steps_from(0)
