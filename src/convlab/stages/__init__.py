"""The ladder: every file ``sNN_name.py`` or ``sNNb_name.py`` here is a stage, found by its name.

In a kernel, a comment such as ``line 8`` names a line of an algorithm
of the im2win paper: Algorithm 1 in s04, Algorithm 2 in s10, Algorithm 3 in s09 and from s10b on.

``STAGE.prepare(problem, tile)`` returns a ``Program``: buffers to allocate, and launches whose
arguments are names (``"input"``, ``"packed"``). ``convlab.plan`` lets an engine allocate the
buffers and build the launches. A call of the plan binds the names to arrays and starts the
launches. docs/design.md describes every step from the command to the launch."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module

from convlab.arguments import shown
from convlab.kernels.ablation import ABLATION
from convlab.kernels.grouped import GROUPED
from convlab.kernels.tile_heuristic import (
    allowances,
    candidates,
    production_program,
    production_tile,
    splits_for,
)
from convlab.stage import Buffer, Launch, LibraryCall, Program, Stage, Step, Tile
from convlab.stages import b01_gradients, b02_exchanged_roles


def _ladder() -> tuple[Stage, ...]:
    """The stages in order of number; a stage follows the stages of its number that it builds on."""
    names = [file.name for file in pkgutil.iter_modules(__path__)]
    stages = [
        import_module(f"{__name__}.{name}").STAGE
        for name in names
        if re.match(r"s\d\d[a-z]?_", name)
    ]
    by_name = {stage.name: stage for stage in stages}

    def depth(stage: Stage) -> int:
        number = stage.name.partition("_")[0]
        below = [by_name[name] for name in stage.builds_on if name.startswith(f"{number}_")]
        return 1 + max(map(depth, below), default=0)

    order = [(stage.name.partition("_")[0], depth(stage), stage.name) for stage in stages]
    return tuple(by_name[name] for *_, name in sorted(order))


LADDER = _ladder()
# Stages that became part of a later one, under whose name all that they taught is found.
RENAMED = {
    "s10c_warp_tile": "s11_im2win_full",
    "s10d_unrolled_steps": "s11_im2win_full",
    "s11b_async_copies": "s11c_multistage",
    "s11f_any_depth": "s12_fused_im2win",
    "s12c_mma_im2win": "s12d_mma_pipeline",
    "s12e_split_once": "s13_tensor_cores",
    "s13b_swapped_operands": "s13d_whole_slice",
    "s13c_warpgroup_tile": "s13d_whole_slice",
}
BACKWARD = b01_gradients.STAGE, b02_exchanged_roles.STAGE  # the gradients of a convolution

__all__ = [
    "ABLATION", "BACKWARD", "GROUPED", "LADDER", "RENAMED", "Buffer", "Launch", "LibraryCall",
    "Program", "Stage", "Step", "Tile", "allowances", "candidates", "family", "production_program",
    "production_tile", "renamed", "short_name", "splits_for", "stage_named", "tile_named",
]  # fmt: skip


def short_name(name: str) -> str:
    """``s05`` for ``s05_shared_memory``; the whole name if several stages share the number."""
    number = name.split("_")[0]
    alike = [stage for stage in LADDER if stage.name.split("_")[0] == number]
    return number if len(alike) < 2 else name


def family(stage: Stage) -> str:
    """The family of a stage: ``im2win`` if it builds on im2win, directly or indirectly, ``im2col``
    for s03's variants, which make the im2col matrix, otherwise ``plain``, which reads NCHW."""
    if "im2win" in stage.name:
        return "im2win"
    bases = {family(stage_named(name)) for name in stage.builds_on}
    if "im2win" in bases:
        return "im2win"
    return "im2col" if stage.name.startswith("s03_") else "plain"


def renamed(name: str) -> str | None:
    """Return one sentence that names today's stage if ``name`` is an earlier name, whole (as
    ``s10c_warp_tile``) or short (``s10c``); otherwise None."""
    for old, new in RENAMED.items():
        if name in (old, old.split("_")[0]):
            return f"{old} is part of {new} now"
    return None


def stage_named(name: str) -> Stage:
    """The stage of that name, such as ``s05_shared_memory``, or of a short name, such as ``s05``,
    if only one stage has the number. ``ablation`` is s11 with switches that leave techniques out,
    ``grouped`` is the kernel for groups.

    Raises ``TypeError`` unless ``name`` is a string, and ``ValueError`` for a stage of
    ``BACKWARD``, for an earlier name (:data:`RENAMED`), with today's, and for an unknown name,
    with a list of known names.
    """
    if not isinstance(name, str):
        raise TypeError(f"stage is {shown(name)}: it must be a name, such as 's05'")
    for stage in (*LADDER, ABLATION, GROUPED):
        if name in (stage.name, short_name(stage.name)):
            return stage
    for stage in BACKWARD:
        if name in (stage.name, short_name(stage.name)):
            computes = f"{stage.name} computes gradients"
            raise ValueError(f"stage is {name!r}: it must compute a convolution, but {computes}")
    if (sentence := renamed(name)) is not None:
        raise ValueError(f"stage is {name!r}: {sentence}")
    numbered = [stage.name for stage in LADDER if stage.name.split("_")[0] == name]
    first, second, *_, last = (stage.name for stage in LADDER)
    all_names = f"{first}, {second} and so on to {last}, which `convlab stages` lists"
    known = ", ".join(numbered) or all_names
    raise ValueError(f"stage is {shown(name)}: it must be one of {known}")


def tile_named(text: str) -> Tile:
    """The tile of a text such as ``8x32x8/1x1``, or ``8x32x8`` for short."""
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)(?:/(\d+)x(\d+))?", text, re.ASCII)
    if found is None:
        wanted = "M_BxN_BxK_B or M_BxN_BxK_B/M_TxN_T, such as 8x32x8/1x1"
        raise ValueError(f"tile is {shown(text)}: it must be {wanted}")
    return Tile(*(int(size) for size in found.groups() if size is not None))
