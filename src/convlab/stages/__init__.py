"""The ladder: every stage, in order."""

from __future__ import annotations

from convlab.stages import (
    s01_direct,
    s02_cin,
    s02_cin_naive,
    s02_cout,
    s03_depth_last,
    s03_im2col,
    s03_im2col_blas,
    s03_im2col_per_image,
    s03_unfold_einsum,
    s04_implicit_gemm,
    s05_shared_memory,
    s06_block_tiling,
    s07_microkernel,
    s08_vectorized,
    s09_double_buffer,
    s10_im2win,
    s11_im2win_full,
    s12_fused_im2win,
    s13_tensor_cores,
    s14_warpgroups,
)
from convlab.stages.base import Buffer, Launch, LibraryCall, Program, Stage, Step
from convlab.stages.tiles import Tile

LADDER: tuple[Stage, ...] = (
    s01_direct.STAGE,
    s02_cin_naive.STAGE,
    s02_cin.STAGE,
    s02_cout.STAGE,
    s03_im2col.STAGE,
    s03_im2col_per_image.STAGE,
    s03_im2col_blas.STAGE,
    s03_depth_last.STAGE,
    s03_unfold_einsum.STAGE,
    s04_implicit_gemm.STAGE,
    s05_shared_memory.STAGE,
    s06_block_tiling.STAGE,
    s07_microkernel.STAGE,
    s08_vectorized.STAGE,
    s09_double_buffer.STAGE,
    s10_im2win.STAGE,
    s11_im2win_full.STAGE,
    s12_fused_im2win.STAGE,
    s13_tensor_cores.STAGE,
    s14_warpgroups.STAGE,
)

__all__ = [
    "LADDER", "Buffer", "Launch", "LibraryCall", "Program", "Stage", "Step", "Tile", "family",
    "short_name", "stage_named",
]  # fmt: skip


def short_name(name: str) -> str:
    """``s05`` of ``s05_shared_memory``; the whole name where the number is several stages'."""
    number = name.split("_")[0]
    alike = [stage for stage in LADDER if stage.name.split("_")[0] == number]
    return number if len(alike) < 2 else name


def family(stage: Stage) -> str:
    """Where its windows come from: ``im2win`` for what builds on im2win's, however far down the
    ladder, ``im2col`` for s03's variants, which make that matrix, ``plain`` for the input as it
    is."""
    if "im2win" in stage.name:
        return "im2win"
    bases = {family(stage_named(name)) for name in stage.builds_on}
    if "im2win" in bases:
        return "im2win"
    return "im2col" if stage.name.startswith("s03_") else "plain"


def stage_named(name: str) -> Stage:
    """The stage of that name, ``s05_shared_memory``, or short, where the number is one stage's
    alone, ``s05``.

    Raises ``ValueError`` naming the stages it could be for anything else.
    """
    for stage in LADDER:
        if name in (stage.name, short_name(stage.name)):
            return stage
    numbered = [stage.name for stage in LADDER if stage.name.split("_")[0] == name]
    names = ", ".join(numbered or [stage.name for stage in LADDER])
    raise ValueError(f"stage is {name!r}: it must be one of {names}")
