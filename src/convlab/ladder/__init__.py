"""The ladder: routes of stages, each a whole kernel in one file.

A route is a folder, and each file ``xNN_idea.py`` in it with a ``STAGE`` is a stage: the letter is
the route's, the numbers are the order in which the stages are built, and the rest is the idea. No
list names the stages, so a new stage is one new file.

In a kernel, a comment such as ``line 8`` names a line of an algorithm of the im2win paper:
Algorithm 1 in m02, Algorithm 2 in m09, Algorithm 3 in m08 and from m10 on.

``STAGE.prepare(problem, tile)`` returns a ``Program``: buffers to allocate, and launches whose
arguments are names (``"input"``, ``"packed"``). ``convlab.plan`` lets an engine allocate the
buffers and build the launches. A call of the plan binds the names to arrays and starts the
launches. docs/design.md describes every step from the command to the launch."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module

from convlab.ladder.stage import Buffer, Launch, LibraryCall, Program, Stage, Step, Tile
from convlab.ladder.tile_heuristic import (
    allowances,
    candidates,
    production_program,
    production_tile,
    splits_for,
)
from convlab.ladder.variants.ablation import ABLATION
from convlab.ladder.variants.grouped import GROUPED
from convlab.support.values import shown

# The routes of the convolution, the main one first. The gradients are a route of their own.
ROUTES = ("main", "tensor_cores", "half_precision", "channels", "im2col")


def stages_of(route: str) -> tuple[Stage, ...]:
    """Return the stages of a route, in the order of their numbers."""
    folder = import_module(f"{__name__}.{route}")
    names = sorted(file.name for file in pkgutil.iter_modules(folder.__path__))
    return tuple(
        import_module(f"{folder.__name__}.{name}").STAGE
        for name in names
        if re.match(r"[a-z]\d\d_", name)
    )


LADDER = tuple(stage for route in ROUTES for stage in stages_of(route))
BACKWARD = stages_of("gradients")  # the gradients of a convolution

# Earlier names of stages and today's. Several joined the stage that they led to.
RENAMED = {
    "s01_direct": "m01_direct",
    "s04_implicit_gemm": "m02_implicit_gemm",
    "s05_shared_memory": "m03_shared_memory",
    "s06_block_tiling": "m04_block_tiling",
    "s07_microkernel": "m05_microkernel",
    "s08_vectorized": "m06_vectorized",
    "s08b_prefetch": "m07_prefetch",
    "s09_double_buffer": "m08_double_buffer",
    "s10_im2win": "m09_im2win",
    "s10b_im2win_vectorized": "m10_im2win_vectorized",
    "s11_im2win_full": "m11_warp_tiling",
    "s10c_warp_tile": "m11_warp_tiling",
    "s10d_unrolled_steps": "m11_warp_tiling",
    "s11c_multistage": "m12_async_copies",
    "s11b_async_copies": "m12_async_copies",
    "s11d_window_copies": "m13_window_copies",
    "s11e_epilogue": "m14_epilogue",
    "s12_fused_im2win": "m15_split_k",
    "s11f_any_depth": "m15_split_k",
    "s12b_mma": "t01_mma",
    "s12d_mma_pipeline": "t02_mma_pipeline",
    "s12c_mma_im2win": "t02_mma_pipeline",
    "s13_tensor_cores": "t03_split_once",
    "s12e_split_once": "t03_split_once",
    "s13d_whole_slice": "t04_swapped_operands",
    "s13b_swapped_operands": "t04_swapped_operands",
    "s13c_warpgroup_tile": "t04_swapped_operands",
    "s14_warpgroups": "t05_warpgroups",
    "s02_cin_naive": "c01_input_channels",
    "s02_cin": "c02_receptive_field",
    "s02_cout": "c03_output_channels",
    "s03_im2col": "i01_im2col",
    "s03_im2col_per_image": "i02_im2col_per_image",
    "s03_depth_last": "i03_im2col_depth_last",
    "s03_im2col_blas": "i04_im2col_blas",
    "s03_unfold_einsum": "i05_unfold_einsum",
    "b01_gradients": "g01_direct_gradients",
    "b02_exchanged_roles": "g02_exchanged_roles",
}

__all__ = [
    "ABLATION", "BACKWARD", "GROUPED", "LADDER", "RENAMED", "ROUTES", "Buffer", "Launch",
    "LibraryCall", "Program", "Stage", "Step", "Tile", "allowances", "candidates", "family",
    "production_program", "production_tile", "renamed", "route_of", "short_name", "splits_for",
    "stage_named", "stages_of", "tile_named",
]  # fmt: skip


def short_name(name: str) -> str:
    """``m03`` for ``m03_shared_memory``; a name without a number, such as ``grouped``, stays."""
    number = name.split("_")[0]
    return number if re.fullmatch(r"[a-z]\d\d", number) else name


def route_of(stage: Stage) -> str:
    """The route of a stage, such as ``main``: the folder of its file."""
    return stage.module.split(".")[-2]


def family(stage: Stage) -> str:
    """The family of a stage: ``im2win`` if it builds on im2win, directly or indirectly, ``im2col``
    for that route, which makes the im2col matrix, otherwise ``plain``, which reads NCHW."""
    if "im2win" in stage.name:
        return "im2win"
    bases = {family(stage_named(name)) for name in stage.builds_on}
    if "im2win" in bases:
        return "im2win"
    return "im2col" if route_of(stage) == "im2col" else "plain"


def renamed(name: str) -> str | None:
    """Return one sentence that names today's stage if ``name`` is an earlier name, whole (as
    ``s05_shared_memory``) or short (``s05``); otherwise None."""
    if name in RENAMED:
        return f"{name} is {RENAMED[name]} now"
    today = dict.fromkeys(new for old, new in RENAMED.items() if old.split("_")[0] == name)
    return f"{name} is {' or '.join(today)} now" if today else None


def stage_named(name: str) -> Stage:
    """The stage of that name, such as ``m03_shared_memory``, or of its short name, ``m03``.
    ``ablation`` is m11 with switches that leave techniques out, ``grouped`` is the kernel for
    groups.

    Raises ``TypeError`` unless ``name`` is a string, and ``ValueError`` for a stage of
    ``BACKWARD``, for an earlier name (:data:`RENAMED`), with today's, and for an unknown name.
    """
    if not isinstance(name, str):
        raise TypeError(f"stage is {shown(name)}: it must be a name, such as 'm03'")
    for stage in (*LADDER, ABLATION, GROUPED):
        if name in (stage.name, short_name(stage.name)):
            return stage
    for stage in BACKWARD:
        if name in (stage.name, short_name(stage.name)):
            computes = f"{stage.name} computes gradients"
            raise ValueError(f"stage is {name!r}: it must compute a convolution, but {computes}")
    if (sentence := renamed(name)) is not None:
        raise ValueError(f"stage is {name!r}: {sentence}")
    first, second, *_, last = (stage.name for stage in stages_of("main"))
    raise ValueError(
        f"stage is {shown(name)}: it must be one of {first}, {second} and so on to {last}, or one "
        "of the other routes, which `convlab stages` lists"
    )


def tile_named(text: str) -> Tile:
    """The tile of a text such as ``8x32x8/1x1``, or ``8x32x8`` for short."""
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)(?:/(\d+)x(\d+))?", text, re.ASCII)
    if found is None:
        wanted = "M_BxN_BxK_B or M_BxN_BxK_B/M_TxN_T, such as 8x32x8/1x1"
        raise ValueError(f"tile is {shown(text)}: it must be {wanted}")
    return Tile(*(int(size) for size in found.groups() if size is not None))
