"""The stage of a call: a named one, or the one that ``stage="auto"`` means on an engine."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from convlab import ladder
from convlab.device.sixteen_bits import EIGHT
from convlab.ladder import BACKWARD, GROUPED, Stage, short_name, stage_named
from convlab.ladder.gradients.g02_exchanged_roles import through
from convlab.ladder.half_precision.h01_panels import TERMS
from convlab.ladder.half_precision.h06_window_rows import has_rows
from convlab.ladder.half_precision.h08_padded_input import is_copied
from convlab.ladder.stage import RESIDUAL, Capability
from convlab.ladder.stage_choice import fastest
from convlab.problems.gradient import Gradient, Problem
from convlab.problems.problem import ConvProblem
from convlab.running.able_stages import why_too_old
from convlab.running.engines import Engine, EngineUnavailable
from convlab.support.values import shown

# What "auto" means. On a GPU it is the stage of these that the models find the fastest for a
# problem, of those that the GPU can run; m11 is for GPUs without asynchronous copies. On a
# simulator it is the stage with the fewest and simplest threads: every thread costs time.
AUTO_STAGES_GPU = ("m15_split_k", "t06_split_k", "m11_warp_tiling")
AUTO_STAGE_SIMULATOR = "m01_direct"
# For 16 bits on a GPU the first that takes a problem: h06 and h07 need input channels in sixteens,
# h06 also output channels in 32s; h08 takes any number. h04 needs a filter that fits shared memory,
# h01 whole 16-byte copies.
AUTO_STAGES_16_BITS = (
    "h06_window_rows",
    "h07_any_channels",
    "h08_padded_input",
    "h04_stem",
    "h01_panels",
)
# Where h08 copies the input: the others cannot read it, or by h08's estimate the copy saves more
# than it costs, as for 48 channels, of which a slice has 64 terms.
PADDED_16_BITS = (
    "h08_padded_input",
    "h06_window_rows",
    "h07_any_channels",
    "h04_stem",
    "h01_panels",
)
# With fewer channels than a panel has terms, copies reach past the channels, which the copy engine
# is slow at, unless rows of windows fill the slices: h04 goes first.
FEW_CHANNELS_16_BITS = (
    "h04_stem",
    "h06_window_rows",
    "h07_any_channels",
    "h08_padded_input",
    "h01_panels",
)
# The fewest channels for which h08 goes before h04. With fewer, its padded input is several times
# the input, and most terms of its slices are zeros. h04 fills its slices with neighbouring pixels,
# but stores outputs one by one unless they come in eights. On an H200, 32 images of 56 x 56 pixels,
# 64 filters of 3 x 3: h04 took 21 us for 31 channels and 28 for 40, h08 33 and 44. With 43, 53 or
# 101 filters h08 was faster by a fifth to two fifths.
LEAST_PADDED_16_BITS = 16
LEAST_PADDED_FOR_EIGHTS = 48  # where outputs come in eights, and not by rows of windows
# In TF32 and channels last on a GPU. Where h05 takes a problem, h09 only adds rows of windows. t07
# gathers windows number by number, from a copy with the channels first.
AUTO_STAGES_TF32 = ("h05_tf32_panels", "h09_tf32_channels", "t07_tf32")
PADDED_TF32 = ("h09_tf32_channels", "h05_tf32_panels", "t07_tf32")  # where h09 copies the input
# With fewer than LEAST_PADDED_TF32 channels a slice of 32 terms has at most seven that are not
# zeros, so t07 goes first. On the layer above with 8 channels t07 took 27 us and h05 36, but t07
# needs the channels first; with 24 channels t07 took 54 and h09 34.
FEW_CHANNELS_TF32 = ("t07_tf32", "h05_tf32_panels", "h09_tf32_channels")
LEAST_PADDED_TF32 = 8
AUTO_TF32 = "auto in tf32"  # how a call asks for "auto" with precision="tf32"
PRECISIONS = ("float32", "tf32")


def asked_stage(stage: str, precision: str | None, dtype: str = "float32") -> str:
    """Return the name by which a call asks for a stage of that precision. Raises ``ValueError`` for
    an unknown precision, one of 16-bit numbers, or a stage that computes in the other one."""
    if precision is None:
        return stage
    if not isinstance(precision, str) or precision not in PRECISIONS:
        rule = "it must be None, 'float32' or 'tf32'"
        raise ValueError(f"precision is {shown(precision)}: {rule}")
    if dtype != "float32":
        raise ValueError(f"precision is {precision!r}: it must be None for {dtype} numbers")
    if isinstance(stage, str) and stage == "auto":
        return AUTO_TF32 if precision == "tf32" else stage
    named = stage_named(stage)
    its = "tf32" if named.precision == "tf32" else "float32"
    if its != precision:
        must = f"it must be {its!r} for stage {named.name}"
        raise ValueError(f"precision is {precision!r}: {must}")
    return stage


def stage_for(
    name: str, engine: Engine, problem: Problem | None = None, adds_residual: bool = False
) -> Stage:
    """The stage of that name; ``"auto"`` is the engine's stage, ``grouped`` for groups, and
    :func:`reduced_stage` for 16-bit numbers and TF32. For a gradient it is g01, g02, g03, or g02
    through the named stage of the ladder; ``"auto"`` is g01 on a simulator, and on a GPU g03 where
    it runs. A stage of 16 bits, or with channels last, computes no gradients: its name means
    ``"auto"`` there. With ``adds_residual``, ``"auto"`` of 16-bit numbers is a stage that can add a
    tensor."""
    if isinstance(problem, Gradient) and isinstance(name, str):
        for stage in BACKWARD:
            if name in (stage.name, short_name(stage.name)):
                return stage
        name = name if _computes_gradients(name) else "auto"
        if name == "auto" and not engine.is_gpu:
            return BACKWARD[0]
        if name == "auto" and problem.groups == 1 and BACKWARD[-1].runs_on(engine.capability()):
            return BACKWARD[-1]
        return through(stage_for(name, engine))
    if not isinstance(name, str) or name not in ("auto", AUTO_TF32):
        return stage_named(name)
    if problem is not None and (name == AUTO_TF32 or problem.dtype != "float32"):
        return reduced_stage(engine, problem, adds_residual)
    return auto_stage(engine, problem) if problem is None or problem.groups == 1 else GROUPED


def _computes_gradients(name: str) -> bool:
    """Return whether g02 can compute gradients through the stage of that name: they are float32,
    with channels first."""
    if name in ("auto", AUTO_TF32):
        return name == "auto"
    stage = stage_named(name)
    return "float32" in stage.dtypes and not stage.channels_last


def stage_of_layer(
    name: str, engine: Engine, problem: Problem, adds_residual: bool = False
) -> Stage:
    """Return the stage of a layer that asks for that one: ``grouped`` where it has no groups."""
    stage = stage_for(name, engine, problem, adds_residual)
    return stage if problem.groups == 1 or stage.grouped else GROUPED


def auto_stage(engine: Engine, problem: Problem | None = None) -> Stage:
    """Return the stage that ``stage="auto"`` means on an engine for a problem, or without one for
    any problem."""
    if not engine.is_gpu:
        return stage_named(AUTO_STAGE_SIMULATOR)
    known = tuple(map(stage_named, AUTO_STAGES_GPU))
    able = tuple(stage for stage in known if stage.runs_on(engine.capability()))
    if not isinstance(problem, ConvProblem):
        return able[0]
    taking = tuple(stage for stage in able if stage.why_not(problem) is None)
    return fastest(taking or able, problem, engine.limits())


def reduced_stage(engine: Engine, problem: ConvProblem, adds_residual: bool = False) -> Stage:
    """Return the stage that ``"auto"`` means for 16-bit numbers, and for float32 numbers in TF32:
    on a GPU the first of :func:`preferred_stages`, else the last one on the ladder, of those with
    the problem's layout before the others, that takes one group of the problem; with
    ``adds_residual``, of those that can add a tensor.

    Raises ``EngineUnavailable`` if the engine's GPU can run none, ``ValueError`` if none takes the
    problem.
    """
    numbers = "TF32" if problem.dtype == "float32" else problem.dtype
    known = tuple(
        stage
        for stage in ladder.LADDER
        if _computes_in(stage, numbers) and (not adds_residual or RESIDUAL in stage.options)
    )
    able = tuple(stage for stage in known if stage.runs_on(engine.capability()))
    if known and not able:
        raise EngineUnavailable(why_too_old(known[-1:], engine.capability(), engine.device))
    found = _last_that_takes(able, problem, engine.is_gpu, engine.capability())
    if found is None:
        adding = " and adds a residual" if adds_residual else ""
        raise ValueError(f"problem is {problem}: no stage computes it in {numbers}{adding}")
    return found


def why_no_residual(stage: Stage, value: object) -> str:
    """Return why a stage refuses ``residual=True``."""
    adding = ", ".join(stage.name for stage in ladder.LADDER if RESIDUAL in stage.options)
    return (
        f"residual is {shown(value)}: stage {stage.name} adds no tensor; those that do are {adding}"
    )


def has_stage_for(engine: Engine, dtype: str, channels: tuple[int, int]) -> bool:
    """Return whether some stage of the engine takes numbers of that type, and so many input and
    output channels."""

    def takes(stage: Stage) -> bool:
        pairs = zip(channels, stage.channel_multiples, strict=True)
        whole = all(count % multiple == 0 for count, multiple in pairs)
        return dtype in stage.dtypes and whole and stage.runs_on(engine.capability())

    return any(map(takes, ladder.LADDER))


def computes_tf32(capability: Capability | None) -> bool:
    """Return whether a GPU of that compute capability has a stage that computes in TF32."""
    known = (stage for stage in ladder.LADDER if stage.precision == "tf32")
    return any(stage.runs_on(capability) for stage in known)


def _computes_in(stage: Stage, numbers: str) -> bool:
    if numbers == "TF32":
        return "float32" in stage.dtypes and stage.precision == "tf32"
    return numbers in stage.dtypes


def preferred_stages(problem: ConvProblem) -> tuple[str, ...]:
    """Return the names of the stages that ``"auto"`` tries first on a GPU, in order, for 16-bit
    numbers or TF32: a problem of one group."""
    if problem.dtype == "float32":
        if not problem.channels_last:
            return ()
        if problem.C_i < LEAST_PADDED_TF32:
            return FEW_CHANNELS_TF32
        return PADDED_TF32 if is_copied(problem) else AUTO_STAGES_TF32
    copied = is_copied(problem)
    by_rows = has_rows(problem) and not copied
    in_eights = problem.C_o % EIGHT == 0
    least = LEAST_PADDED_FOR_EIGHTS if in_eights and not by_rows else LEAST_PADDED_16_BITS
    if problem.C_i < least:
        return FEW_CHANNELS_16_BITS
    if copied:
        return PADDED_16_BITS
    return AUTO_STAGES_16_BITS if by_rows or problem.C_i >= TERMS else FEW_CHANNELS_16_BITS


@lru_cache(maxsize=256)
def _last_that_takes(
    stages: tuple[Stage, ...], problem: ConvProblem, is_gpu: bool, capability: Capability | None
) -> Stage | None:
    channels = (problem.in_channels, problem.out_channels)
    C_i, C_o = (count // problem.groups for count in channels)
    one_group = replace(problem, in_channels=C_i, out_channels=C_o, groups=1)
    order = preferred_stages(one_group)
    preferred = [stage for stage in stages if is_gpu and stage.name in order]
    preferred.sort(key=lambda stage: order.index(stage.name))
    # Of the others first those of the problem's layout: the tensors of another are copied.
    others = sorted(
        reversed(stages), key=lambda stage: stage.channels_last is not problem.channels_last
    )
    for stage in (*preferred, *others):
        adapted = replace(one_group, channels_last=stage.channels_last)
        tile = ladder.production_tile(stage, adapted) if is_gpu else stage.tiny_tile
        try:
            stage.prepare(adapted, tile)
        except ValueError:  # it says which problems it does not take
            continue
        return stage
    return None
