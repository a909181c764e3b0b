"""The ladder: every stage, in order."""

from __future__ import annotations

from convlab.stages import (
    s01_direct,
    s02_cin,
    s02_cin_naive,
    s02_cout,
    s04_implicit_gemm,
    s05_shared_memory,
    s06_block_tiling,
    s07_microkernel,
    s08_vectorized,
    s09_double_buffer,
    s10_im2win,
    s11_im2win_full,
)
from convlab.stages.base import Buffer, Launch, Program, Stage
from convlab.stages.tiles import Tile

LADDER: tuple[Stage, ...] = (
    s01_direct.STAGE,
    s02_cin_naive.STAGE,
    s02_cin.STAGE,
    s02_cout.STAGE,
    s04_implicit_gemm.STAGE,
    s05_shared_memory.STAGE,
    s06_block_tiling.STAGE,
    s07_microkernel.STAGE,
    s08_vectorized.STAGE,
    s09_double_buffer.STAGE,
    s10_im2win.STAGE,
    s11_im2win_full.STAGE,
)

__all__ = ["LADDER", "Buffer", "Launch", "Program", "Stage", "Tile", "stage_named"]


def stage_named(name: str) -> Stage:
    """The stage of that name, ``s05_shared_memory``, or short, where the number is one stage's
    alone, ``s05``.

    Raises ``ValueError`` naming the stages it could be for anything else.
    """
    numbered = [stage for stage in LADDER if stage.name.split("_")[0] == name]
    for stage in numbered if len(numbered) == 1 else LADDER:
        if name == stage.name or len(numbered) == 1:
            return stage
    names = ", ".join(stage.name for stage in numbered or LADDER)
    raise ValueError(f"stage is {name!r}: it must be one of {names}")
