"""Stages that are wrong on purpose: the tests' way of judging must catch every one.

A mutant is a stage's own source with one piece replaced, run and judged like any stage.
"""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest

from convlab import ConvProblem, Stage
from convlab.oracle import random_tensors
from convlab.stages import stage_named

# Nothing divides anything: two images, remainders in M, N and K of every tiny tile.
PROBLEM = ConvProblem(2, 5, 5, 8, 5, (2, 3), stride=(2, 3), padding=(1, 2), dilation=(1, 2))

MUTANTS = {
    "no padding above": ("s01", "m * s_h + u * d_h - p_h", "m * s_h + u * d_h"),
    "stride ignored": ("s01", "n * s_w + v", "n + v"),
    "strides swapped": ("s01", "ih = m * s_h", "ih = m * s_w"),
    "dilation ignored": ("s01", "v * d_w", "v"),
    "last channel left out": ("s01", "range(C_i)", "range(C_i - 1)"),
    "bias forgotten": ("s01", "total + bias[j]", "total"),
    "nothing written": ("s01", "output[i, j, m, n] = total + bias[j]", "pass"),
    "no guard of the grid": ("s01", "        if i >= N_i:\n            return\n", ""),
    "image bound too wide": ("s01", "0 <= iw < W_i", "0 <= iw <= W_i"),
    "edge pixel dropped": ("s01", "0 <= ih", "0 < ih"),
    "filter transposed": ("s04", "// W_f\n            f_w", "// H_f\n            f_w"),
    "image index wrong": ("s04", "i_n = n // (H_o * W_o)", "i_n = n // (H_o * W_i)"),
    "last term left out": ("s04", "range(K)", "range(K - 1)"),
    "no barrier after the load": (
        "s05",
        "cuda.syncthreads()  # nobody computes before all have fetched",
        "pass",
    ),
    "filter slice not padded": ("s05", "if row < M and k < K:", "if row < M:"),
    "accumulator not cleared": (
        "s06",
        "        for i in range(M_T):\n            R_O[i] = float32(0)\n",
        "",
    ),
    "rows of a thread overlap": ("s06", "S_F[ty + i * ROWS, k]", "S_F[ty + i, k]"),
    "fetched column is the computed one": ("s07", "column = t % N_B", "column = tx"),
    "remainder of K not zeroed": ("s07", "if k < K and 0 <= i_h", "if 0 <= i_h"),
    "columns past the end written": ("s07", "if m < M and n < N", "if m < M"),
    "run of four misaligned": ("s08", "(k, ty * 4 + i * ROWS)", "(k, ty + i * ROWS)"),
    "packed filter not zeroed": ("s08", "if k < K and m < M:", "if k < K:"),
    "run crosses two images": ("s08", "4 if H_o * W_o % 4 == 0 else 1", "4"),
    "buffers not swapped": ("s09", "buffer = 1 - buffer", "buffer = 1"),
    "last slice not computed": (
        "s09",
        "for slice in range(SLICES + 1)",
        "for slice in range(SLICES)",
    ),
    "last step of a slice forgotten": (
        "s09",
        "                multiply(R_F1, R_I1, R_O)  # line 19",
        "                pass  # line 19",
    ),
    "stale operands": ("s09", "buffer, k + 2, ty", "buffer, k, ty"),
    "windows one column short": ("s10", "* problem.s_w + problem.window_shape[1]", "* problem.s_w"),
    "window order of s04": ("s10", "% (H_f * W_f) // H_f", "% (H_f * W_f) // W_f"),
    "square read as written": ("s11", "square[tx, y + ty]\n", "square[y + ty, tx]\n"),
    "groups not rounded up": (
        "s11",
        "blocks_for(problem.H_f * problem.C_i, 4) * 4",
        "problem.H_f * problem.C_i",
    ),
    "dilation ignored in groups": ("s11", "+ k // G * G * (d_w - 1)", ""),
    "tail of K not guarded": ("s11", "if k < K_W and e", "if e"),
    "windows of one image for all": ("s11", "window // W_o * W_w", "window // W_o % H_o * W_w"),
}


def mutant(name: str, old: str, new: str, folder: Path) -> Stage:
    """The stage with ``old`` replaced by ``new`` in its source, imported under another name."""
    original = util.find_spec(stage_named(name).module)
    assert original is not None
    assert original.origin is not None
    source = Path(original.origin).read_text()
    assert old in source, f"{name} no longer contains {old!r}: mend the mutant"
    path = folder / "mutant.py"
    path.write_text(source.replace(old, new))
    spec = util.spec_from_file_location(f"mutant_of_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stage: Stage = module.STAGE
    return stage


def survives(stage: Stage, judged) -> bool:
    """Whether a stage is judged right, with nothing raised, on whole numbers and on normal ones."""
    try:
        return all(
            judged(PROBLEM, stage, random_tensors(PROBLEM, 8, integers=whole), stage.tiny_tile).ok
            for whole in (True, False)
        )
    except (IndexError, OverflowError, RuntimeError, ValueError):
        return False


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS.values(), ids=MUTANTS.keys())
def test_mutant_is_caught(
    name: str, old: str, new: str, judged_in_simulator, tmp_path: Path
) -> None:
    assert not survives(mutant(name, old, new, tmp_path), judged_in_simulator)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in MUTANTS.values()}))
def test_the_original_is_not(name: str, judged_in_simulator, tmp_path: Path) -> None:
    """Or the mutants would be caught for nothing."""
    assert survives(mutant(name, "", "", tmp_path), judged_in_simulator)
