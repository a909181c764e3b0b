"""Stages that are wrong on purpose: the tests' way of checking must catch every one.

A mutant is a stage with one piece of its source replaced, run and checked like any stage.
"""

from __future__ import annotations

import ast
import sys
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from unittest import mock

import numpy as np
import pytest
from strategies import Tensors, tensors

from convlab import ConvProblem, Stage, Tile
from convlab.ladder import stage_named

pytestmark = pytest.mark.same_in_cudasim

# Nothing divides anything: two images, remainders in M, N and K of every tiny tile; windows that
# read all four paddings.
PROBLEM = ConvProblem(2, 5, 5, 8, 5, (2, 3), stride=(2, 3), padding=(1, 2), dilation=(1, 2))
INSTEAD = {
    # Blocks that take several channels at a time: more than one block's worth, and a remainder.
    "c0": (ConvProblem(1, 9, 8, 66, 2, (2, 3), stride=(1, 2), padding=(1, 2)),),
    # Two whole slices of the depth, and one of pitch 12.
    "i03_im2col_depth_last": (ConvProblem(2, 43, 4, 5, 3, (2, 3), padding=(0, 1)),),
    # Few channels with dilation and without, which leaves several rows to a tile; many channels.
    "m11": (
        PROBLEM,
        ConvProblem(2, 1, 41, 4, 5, (3, 2), stride=(2, 1), padding=(1, 2)),
        ConvProblem(2, 12, 5, 5, 5, (3, 2), stride=(2, 1), padding=(1, 2)),
        ConvProblem(1, 3, 4, 5, 21, 2),  # two rows of blocks
    ),
}

# The tile of a stage's mutants where it is not the tiny one: slices of an odd depth.
TILES = {"m15_split_k": Tile(16, 32, 3, 4, 4)}


@cache
def numbers_for(problem: ConvProblem) -> list[Tensors]:
    """Return tensors of every kind that shows a mistake."""
    kinds = ("integers", "normal", "infinities")
    made = [tensors(problem, kind, 8, bias=True) for kind in (*kinds, "integers")]
    made[-1][0][:, :, 3] = np.inf  # one row's alone, for PROBLEM the last that a window reaches
    return made


# By stage what is wrong, a piece of its file or of one that it imports, and what replaces it.
MUTANTS = {
    "m01": [
        ("no padding above", "o_h * s_h + u * d_h - p_h", "o_h * s_h + u * d_h"),
        ("stride ignored", "o_w * s_w + v", "o_w + v"),
        ("strides swapped", "i_h = o_h * s_h", "i_h = o_h * s_w"),
        ("dilation ignored", "v * d_w", "v"),
        ("last channel left out", "range(C_i)", "range(C_i - 1)"),
        ("bias forgotten", "total + bias[j]", "total"),
        ("nothing written", "output[i, j, o_h, o_w] = total + bias[j]"),
        ("no guard of the grid", "        if i >= N_i:\n            return\n", ""),
        ("image bound too wide", "0 <= i_w < W_i", "0 <= i_w <= W_i"),
        ("edge pixel dropped", "0 <= i_h", "0 < i_h"),
        ("padding skipped, not multiplied",
         "pixel = input[i, r, i_h, i_w]\n                    total",
         "pixel = input[i, r, i_h, i_w]\n                        total"),
    ],
    "c02_receptive_field": [
        ("output not cleared", "output[e] = bias[e // PIXELS % C_o]"),
        ("a thread for a channel too many", " and r < C_i:", ":"),
        ("halo too narrow", "across + taps_across + 1", "across + 1"),
        ("field's padding not zeroed",
         "                    pixel = input[i, r0 + z, i_h, i_w]\n                S",
         "                    pixel = input[i, r0 + z, i_h, i_w]\n                    S"),
        ("field of one channel for all", "pixel = S[z, ", "pixel = S[0, "),
        ("no barrier after the field",
         "cuda.syncthreads()  # nobody computes before all have fetched"),
    ],
    "c01_input_channels": [
        ("bias of the wrong channel", "// PIXELS % C_o", "% C_o"),
        ("parts stored, not added",
         "cuda.atomic.add(output, ((i * C_o + j) * H_o + o_h) * W_o + o_w, partial)",
         "output[((i * C_o + j) * H_o + o_h) * W_o + o_w] += partial"),
        ("channels of one group for all", "% GROUPS * B_Z + z", "% 1 * B_Z + z"),
    ],
    "c03_output_channels": [
        ("stride ignored in the field", "x * s_w + v", "x + v"),
        ("next channels over what is read", "cuda.syncthreads()  # nobody fetches the next"),
        ("last channels left out", "range(0, C_i, B_Z)", "range(0, C_i - B_Z, B_Z)"),
        ("sum begun anew for each step", "for z in range(min(B_Z, C_i - r0)):",
         "total = float32(0)\n                    for z in range(min(B_Z, C_i - r0)):"),
    ],
    "i01_im2col": [
        ("windows past the end not zeroed", "if n < N and 0 <= i_h", "if 0 <= i_h"),
        ("matrix rows as m09 orders them", "k % (H_f * W_f) // W_f, k % W_f",
         "k % H_f, k % (H_f * W_f) // H_f"),
        ("rows past the last multiplied", "if k0 + k < K and n0", "if n0"),
        ("no barrier before the next slice", "cuda.syncthreads()  # nobody fetches the next"),
    ],
    "i02_im2col_per_image": [
        ("last image left out", "range(0, problem.N_i, images)",
         "range(0, problem.N_i - images, images)"),
    ],
    "i04_im2col_blas": [
        ("bias left to the library", "    output += bias.reshape(1, C_o, 1, 1)\n", ""),
        ("matrices of one image for all", "(i * K + k) * PIXELS + pixel", "k * PIXELS + pixel"),
    ],
    "i03_im2col_depth_last": [
        ("channels outermost in the packed filter", "k % C_i, k // C_i // W_f, k // C_i % W_f",
         "k // W_f // 2, k // W_f % 2, k % W_f"),
        ("not turned round", "S[at + c * ROW]", "S[at + c]"),
        ("no barrier after turning round", "cuda.syncthreads()  # nobody reads a row"),
        ("rows filled before they are empty", "cuda.syncthreads()  # nobody fills the rows"),
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
         "cuda.syncthreads()  # nobody computes before all have fetched"),
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
        ("the next slice stored over what others read", "cuda.syncthreads()  # nobody stores"),
    ],
    "m08": [
        ("row of a run wrong", "m0 + ty * FLOAT4", "m0 + ty"),
        ("buffers not swapped", "k0 = uint32(K_B - k0)", "k0 = 0"),
        ("last slice not computed", "range(SLICES + 1)", "range(SLICES)"),
        ("last step of a slice forgotten", "                multiply(R_F1, R_I1, R_O)  # line 19",
         "                pass  # line 19"),
        ("stale operands", "S_I, k0 + k + 2, ty", "S_I, k0 + k, ty"),
    ],
    "m09": [
        ("windows one column short", "+ problem.window_shape[1]", ""),
        ("window order of m02", "% (H_f * W_f) // H_f", "% (H_f * W_f) // W_f"),
    ],
    "m10": [
        ("a float4's terms in one row", "FLOAT4 + c, e // K_4", "FLOAT4, e // K_4"),
        ("dilation ignored by float4", "+ k // G * G * (d_w - 1)", ""),
        ("zeros past K_W fetched", "if k < K_W:", "if k < SLICES * K_B:"),
    ],
    "m12": [
        ("copies not waited for", "wait_copies(IN_FLIGHT)  # lines", "pass  # lines"),
        ("zeros past K_W copied", "K_EVEN or k < K_W", "k < K_P"),
        ("a slice copied over the one in use", "slice_ + IN_FLIGHT, free,",
         "slice_ + IN_FLIGHT, pipe,"),
        ("one copy too few waited for", "wait_copies(IN_FLIGHT)  # l", "wait_copies(2)  # l"),
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
        ("no barrier between slices", "cuda.syncthreads()  # then"),
        ("one stage of the pipeline for all", "at_F + pipe * F_SLICE", "at_F"),
    ],
    "m11": [
        ("column read as a line", "tile[at + PITCH]", "tile[at + 1]"),
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
        ("no barrier in the transform", "cuda.syncthreads()  # all threads have filled the tile"),
        ("dilation ignored in groups", "+ k // G * G * (d_w - 1)", ""),
        ("tail of K not guarded", "(K_EVEN or k < K_W) and ", ""),
        ("windows of one image for all", "window // W_o * W_w", "window // W_o % 3 * W_w"),
        ("windows beyond the last", "THREADS) // K_4, N - 1", "THREADS), N"),
        ("one row of blocks' filter for all", "int64(m0) * K_P", "int64(0)"),
        ("filter packed for one row of blocks", "m // M_B * K_P + row_of", "row_of"),
        ("steps of a slice read from the other one", "at_F = uint32(k0 * M_B + ty * FLOAT4)",
         "at_F = uint32((K_B - k0) * M_B + ty * FLOAT4)"),
        ("a step of a slice left out", "range(0, K_B - 2, 2)", "range(0, K_B - 4, 2)"),
        ("last step of the last slice forgotten",
         "            multiply(R_F1, R_I1, R_O)  # line 19",
         "            if slice_ < SLICES:\n                multiply(R_F1, R_I1, R_O)  # line 19"),
        ("rows of a slice stored without padding", "* PITCH + e // K_4", "* N_B + e // K_4"),
    ],
}  # fmt: skip


def mutant(name: str, old: str, new: str, folder: Path) -> Stage:
    """The stage, imported anew, with ``old`` replaced by ``new`` in its source or, where it has no
    ``old``, in those of the modules of ``stages`` and ``kernels`` that it imports."""
    stage = stage_named(name).module
    imports = imports_of(stage)
    targets = {stage} if old in source_of(stage) else {m for m in imports if old in source_of(m)}
    assert targets, f"{name} no longer contains {old!r}: mend the mutant"
    return remade(stage, {one: source_of(one).replace(old, new) for one in targets}, folder)


def remade(stage: str, texts: dict[str, str], folder: Path) -> Stage:
    """The stage of that module, imported anew with other sources of modules, by their names."""
    imports = imports_of(stage)
    # Each mutant has a folder of its own, because linecache takes a file of the same size and time
    # for the same file.
    folder = Path(mkdtemp(dir=folder))
    with ExitStack() as patched:
        for module in [m for m in [*imports, stage] if texts.keys() & {m, *imports_of(m)}]:
            made = _changed(module, texts.get(module) or source_of(module), folder)
            package, _, short = module.rpartition(".")
            patched.enter_context(mock.patch.dict(sys.modules, {module: made}))
            patched.enter_context(mock.patch.object(sys.modules[package], short, made))
    return made.STAGE  # type: ignore[no-any-return]


@cache
def source_of(module: str) -> str:
    return Path(import_module(module).__file__ or "").read_text()


@cache
def imports_of(module: str) -> tuple[str, ...]:
    """The modules of ``stages`` and ``kernels`` that it imports, followed to the end; one that is
    imported stands before those that import it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source_of(module))):
        if not isinstance(node, ast.ImportFrom):
            continue
        name = node.module or ""
        for one in (name, *(f"{name}.{alias.name}" for alias in node.names)):
            if (
                one.startswith(("convlab.ladder.", "convlab.ladder.layouts."))
                and one in sys.modules
            ):
                found += [*imports_of(one), one]
    return tuple(dict.fromkeys(found))


def _changed(module: str, text: str, folder: Path) -> ModuleType:
    path = folder / f"{module.rpartition('.')[2]}.py"
    path.write_text(text)
    changed = ModuleType(module)
    with mock.patch.dict(sys.modules, {module: changed}):  # its dataclasses look themselves up
        exec(compile(text, path, "exec", dont_inherit=True), vars(changed))
    return changed


Case = tuple[ConvProblem, int]  # and which kind of numbers


def cases(name: str) -> list[Case]:
    """All that a stage and its mutants are checked on, the plainest numbers first."""
    instead = (INSTEAD[start] for start in INSTEAD if name.startswith(start))
    return [(problem, kind) for kind in range(4) for problem in next(instead, (PROBLEM,))]


def is_right(stage: Stage, case: Case, checked) -> bool:
    """Return whether a stage is right on these numbers, with nothing raised."""
    problem, kind = case
    try:
        tile = TILES.get(stage.name, stage.tiny_tile)
        return checked(problem, stage, numbers_for(problem)[kind], tile).ok
    except (IndexError, OverflowError, RuntimeError, ValueError):
        return False


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught_and_the_original_is_not(
    name: str, checked_in_simulator, tmp_path: Path
) -> None:
    """The original is right on each case that catches one: or mutants would be caught for nothing,
    as by a mistake in how they are made."""
    caught: set[Case] = set()
    for what, old, *new in MUTANTS[name]:
        made = mutant(name, old, *(new or ["pass  #"]), tmp_path)
        wrong = (case for case in cases(name) if not is_right(made, case, checked_in_simulator))
        case = next(wrong, None)
        assert case is not None, f"{what}: nobody sees it"
        caught.add(case)
    original = mutant(name, "", "", tmp_path)
    for case in caught:
        assert is_right(original, case, checked_in_simulator), case
