"""Mistakes that people make in kernels, each as one change of a stage's code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from convlab.ladder import stage_named
from stage_mutants.mutant import Mutant
from stage_mutants.sources import code_of, imports_of

# By stage: the name of a mistake, a piece of the code of its file or of one that it imports, and
# what replaces the piece; ``pass`` if nothing is named. Comments and blank lines of the file do not
# count, so a piece may span them.
MISTAKES: dict[str, list[tuple[str, ...]]] = {
    "m01": [
        ("no padding above", "o_h * s_h + f_h * d_h - p_h", "o_h * s_h + f_h * d_h"),
        ("stride ignored", "o_w * s_w + f_w", "o_w + f_w"),
        ("strides swapped", "i_h = o_h * s_h", "i_h = o_h * s_w"),
        ("dilation ignored", "f_w * d_w", "f_w"),
        ("last channel left out", "range(C_i)", "range(C_i - 1)"),
        ("bias forgotten", "total + bias[o_c]", "total"),
        ("nothing written", "output[i_n, o_c, o_h, o_w] = total + bias[o_c]"),
        ("no guard of the grid", "        if i_n >= N_i:\n            return\n", ""),
        ("image bound too wide", "0 <= i_w < W_i", "0 <= i_w <= W_i"),
        ("edge pixel dropped", "0 <= i_h", "0 < i_h"),
        ("padding skipped, not multiplied",
         "pixel = input[i_n, i_c, i_h, i_w]\n                    total",
         "pixel = input[i_n, i_c, i_h, i_w]\n                        total"),
    ],
    "c02_receptive_field": [
        ("output not cleared", "output[e] = bias[e // PIXELS % C_o]"),
        ("a thread for a channel too many", " and i_c < C_i:", ":"),
        ("halo too narrow", "across + taps_across + 1", "across + 1"),
        ("field's padding not zeroed",
         "                    pixel = input[i_n, i_c0 + z, i_h, i_w]\n                S",
         "                    pixel = input[i_n, i_c0 + z, i_h, i_w]\n                    S"),
        ("field of one channel for all", "pixel = S[z, ", "pixel = S[0, "),
        ("no barrier after the field",
         "cuda.syncthreads()\n                if o_h < H_o", "if o_h < H_o"),
    ],
    "c01_input_channels": [
        ("bias of the wrong channel", "// PIXELS % C_o", "% C_o"),
        ("parts stored, not added",
         "cuda.atomic.add(output, ((i_n * C_o + o_c) * H_o + o_h) * W_o + o_w, partial)",
         "output[((i_n * C_o + o_c) * H_o + o_h) * W_o + o_w] += partial"),
        ("channels of one group for all", "% GROUPS * B_Z + z", "% 1 * B_Z + z"),
    ],
    "c03_output_channels": [
        ("stride ignored in the field", "x * s_w + f_w", "x + f_w"),
        ("next channels over what is read",
         "cuda.syncthreads()\n        if o_h < H_o", "pass\n        if o_h < H_o"),
        ("last channels left out", "range(0, C_i, B_Z)", "range(0, C_i - B_Z, B_Z)"),
        ("sum begun anew for each step", "for z in range(min(B_Z, C_i - i_c0)):",
         "total = float32(0)\n                    for z in range(min(B_Z, C_i - i_c0)):"),
    ],
    "i01_im2col": [
        ("windows past the end not zeroed", "if n < N and 0 <= i_h", "if 0 <= i_h"),
        ("matrix rows as m09 orders them", "k % (H_f * W_f) // W_f, k % W_f",
         "k % H_f, k % (H_f * W_f) // H_f"),
        ("rows past the last multiplied", "if k0 + k < K and n0", "if n0"),
        ("no barrier before the next slice",
         "cuda.syncthreads()\n        for j in", "pass\n        for j in"),
    ],
    "i02_im2col_per_image": [
        ("last image left out", "range(0, problem.N_i, images)",
         "range(0, problem.N_i - images, images)"),
    ],
    "i04_im2col_blas": [
        ("bias left to the library", "    output += bias.reshape(1, C_o, 1, 1)\n", ""),
        ("matrices of one image for all", "(i_n * K + k) * PIXELS + pixel", "k * PIXELS + pixel"),
    ],
    "i03_im2col_depth_last": [
        ("channels outermost in the packed filter", "k % C_i, k // C_i // W_f, k // C_i % W_f",
         "k // W_f // 2, k // W_f % 2, k % W_f"),
        ("not turned round", "S[at + c * ROW]", "S[at + c]"),
        ("no barrier after turning round",
         "cuda.syncthreads()\n            if AHEAD", "if AHEAD"),
        ("rows filled before they are empty",
         "cuda.syncthreads()\n    return", "pass\n    return"),
        ("depth written past the last channel", "if r < C_i and column < WIDTH:",
         "if column < WIDTH:"),
        ("pairs fetched twice", "(2 - 2 * f)", "(1 - f)"),
        ("depth of one slice for all", "load4(depth_last, START + slice_ * SLICE + at)",
         "load4(depth_last, START + at)"),
        ("last channels of a run forgotten", "if r + 2 < C_i:", "if r + 4 < C_i:"),
    ],
    "m02": [
        ("filter row and column swapped", "// W_f\n            f_w", "// H_f\n            f_w"),
        ("image index wrong", "i_n = n // (H_o * W_o)", "i_n = n // (H_o * W_i)"),
        ("last term left out", "range(K)", "range(K - 1)"),
    ],
    "m03": [
        ("no barrier after the load",
         "cuda.syncthreads()\n            for k in range(K_B)", "for k in range(K_B)"),
        ("filter slice not padded", "if row < M and k < K:", "if row < M:"),
    ],
    "m04": [
        ("accumulator not cleared",
         "        for i in range(M_T):\n            R_O[i] = float32(0)\n", ""),
        ("rows of a thread overlap", "S_F[ty + i * ROWS, k]", "S_F[ty + i, k]"),
    ],
    "m05": [
        ("fetched column is the computed one", "column = t % N_B", "column = tx"),
        ("remainder of K not zeroed", "if k < K and 0 <= i_h", "if 0 <= i_h"),
        ("columns past the end written", "if m < M and n < N", "if m < M"),
    ],
    "m06": [
        ("run of four misaligned", "(k, ty * FLOAT4 + i * ROWS)", "(k, ty + i * ROWS)"),
        ("packed filter not zeroed", "if k < K and m < M:", "if k < K:"),
        ("packed zeros not written",
         "                value = weight[m * K + k]\n            packed",
         "                value = weight[m * K + k]\n                packed"),
        ("run crosses two images", "H_o * W_o % FLOAT4 == 0", "H_o * W_o % 1 == 0"),
    ],
    "m07": [
        ("the first slice prefetched again and again", "slice_ * K_B + t // N_B", "t // N_B"),
        ("the last slice prefetched and not computed", "range(SLICES + 1)", "range(SLICES)"),
        ("the next slice stored over what others read",
         "cuda.syncthreads()\n            if slice_ <", "pass\n            if slice_ <"),
    ],
    "m08": [
        ("row of a run wrong", "m0 + ty * FLOAT4", "m0 + ty"),
        ("buffers not swapped", "row0 = uint32(K_B - row0)", "row0 = 0"),
        ("last slice not computed", "range(SLICES + 1)", "range(SLICES)"),
        ("last step of a slice forgotten",
         "if slice_ > 0:\n                multiply(R_F1, R_I1, R_O)",
         "if slice_ > 0:\n                pass"),
        ("stale operands", "S_I, row0 + k + 2, ty", "S_I, row0 + k, ty"),
    ],
    "m09": [
        ("windows one column short", "+ problem.window_shape[1]", ""),
        ("window order of m02", "% (H_f * W_f) // H_f", "% (H_f * W_f) // W_f"),
    ],
    "m10": [
        ("a float4's terms in one row", "FLOAT4 + c, e // K_4", "FLOAT4, e // K_4"),
        ("dilation ignored by float4", "+ term // G * G * (d_w - 1)", ""),
        ("zeros past K_W fetched", "if term < K_W:", "if term < SLICES * K_B:"),
    ],
    "m11": [
        ("last column of windows read as a line",
         "tile[at + 3 * PITCH])\n                for u", "tile[at + 3])\n                for u"),
        ("last column of the filter read as a line",
         "tile[at + 3 * PITCH])\n            m = m0", "tile[at + 3])\n            m = m0"),
        ("a pixel written to one row of windows",
         "for u in range(H_f):\n                    if row",
         "for u in range(1):\n                    if row"),
        ("rows of windows between strides", "(row - u * d_h) % s_h == 0",
         "(row - u * d_h) % s_h >= 0"),
        ("a band's rows all alike", "b * (s_h * C_i) + g", "g"),
        ("band not guarded", "if m0 + b < H_o and", "if"),
        ("channels beyond the last", "there = r < C_i and", "there ="),
        ("groups not rounded up", "blocks_for(problem.H_f * problem.C_i, FLOAT4) * FLOAT4",
         "problem.H_f * problem.C_i"),
        ("tail of a group not zeroed", "g >= ELEMENTS", "g < 0"),
        ("packed zeros of window order not written", "if e0 + column < K_P and",
         "if e0 + column < K and"),
        ("packed zeros in another's row", "if TAIL > 0 and e < W_f * G", "if e < 0"),
        ("no barrier in the transform of many channels",
         "cuda.syncthreads()\n        line = t % QUADS * FLOAT4\n", "line = t % QUADS * FLOAT4\n"),
        ("no barrier in the transform of few channels",
         "cuda.syncthreads()\n        for e in range(t, STORES", "for e in range(t, STORES"),
        ("no barrier in the transform of the filter",
         "cuda.syncthreads()\n        line, column", "line, column"),
        ("dilation ignored in groups", "+ term // G * G * (d_w - 1)", ""),
        ("tail of K not guarded", "(K_EVEN or term < K_W) and ", ""),
        ("windows of one image for all", "window // W_o * W_w", "window // W_o % 3 * W_w"),
        ("windows beyond the last", "THREADS) // K_4, N - 1", "THREADS), N"),
        ("one row of blocks' filter for all", "int64(m0) * K_P", "int64(0)"),
        ("filter packed for one row of blocks", "m // M_B * K_P + row_of", "row_of"),
        ("steps of a slice read from the other one", "at_F = uint32(row0 * M_B + ty * FLOAT4)",
         "at_F = uint32((K_B - row0) * M_B + ty * FLOAT4)"),
        ("a step of a slice left out", "range(0, K_B - 2, 2)", "range(0, K_B - 4, 2)"),
        ("last step of the last slice forgotten",
         "\n            multiply(R_F1, R_I1, R_O)\n        for j",
         "\n            if slice_ < SLICES: multiply(R_F1, R_I1, R_O)\n        for j"),
        ("rows of a slice stored without padding", "* PITCH + e // K_4", "* N_B + e // K_4"),
    ],
    "m12": [
        ("copies not waited for",
         "wait_copies(IN_FLIGHT)\n                cuda.syncthreads()", "cuda.syncthreads()"),
        ("zeros past K_W copied", "K_EVEN or term < K_W", "term < K_P"),
        ("a slice copied over the one in use", "slice_ + IN_FLIGHT, free,",
         "slice_ + IN_FLIGHT, pipe,"),
        ("one copy too few waited for",
         "wait_copies(IN_FLIGHT)\n                cuda", "wait_copies(2)\n                cuda"),
        ("no empty group after the last slice", "free, S_F, S_I)\n            commit_copies()",
         "free, S_F, S_I)\n                commit_copies()"),
    ],
    "m13": [
        ("windows of the row above", "pixel // W_o * s_h - p_h", "pixel // W_o * s_h"),
        ("copied windows of one image", "int64(i_n) * (C_i * H_i * W_i)", "int64(0)"),
        ("two lanes with one column", "lane % 16 // 2", "lane % 8 // 2"),
    ],
    "m14": [
        ("interleaved windows stored in order", "n0 + window_at(tx * FLOAT4)", "n0 + tx * 4"),
    ],
    "m15": [
        ("register buffers not exchanged",
         "steps(S_F, S_I, at_F, at_I, R_F1, R_I1, R_F0, R_I0, R_O)",
         "steps(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)"),
    ],
    "t01": [
        ("columns of the other float4", "j // 4 * 8 + j % 4", "j // 4 * 8 + j % 3"),
        ("lanes' terms exchanged", "at_I = thread_in_group *", "at_I = (3 - thread_in_group) *"),
        ("four terms of eight", "n + (k + 4) * I_PITCH", "n + k * I_PITCH"),
    ],
    "t02": [
        ("slices not waited for", "wait_copies(IN_FLIGHT)", "wait_copies(DEPTH)"),
        ("no barrier between slices", "cuda.syncthreads()\n            free", "free"),
        ("one stage of the pipeline for all", "at_F + pipe * F_SLICE", "at_F"),
    ],
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mistake(Mutant):
    """A mutant with the name of the mistake that it makes."""

    what: str


def mistakes_of(name: str) -> Iterator[Mistake]:
    """All mistakes of the stage whose name begins with ``name``."""
    for what, old, *new in MISTAKES[name]:
        yield find_mistake(name, what, old, *(new or ["pass"]))


def find_mistake(name: str, what: str, old: str, new: str) -> Mistake:
    """Find the one place where the code is ``old``: in the stage's file, else in its imports."""
    stage = stage_named(name).module
    pattern = re.escape(old).replace("\\\n", r"\n(?:\s*\n)?")
    for modules in ((stage,), imports_of(stage)):
        found = [(one, match) for one in modules for match in re.finditer(pattern, code_of(one))]
        if found:
            break
    assert len(found) == 1, f"{what}: {old!r} is found {len(found)} times in {name}"
    ((module, match),) = found
    before = code_of(module)[: match.start()]
    return Mistake(
        what=what, module=module, old=match[0], new=new,
        line=before.count("\n") + 1, column=len(before) - before.rfind("\n") - 1,
    )  # fmt: skip
