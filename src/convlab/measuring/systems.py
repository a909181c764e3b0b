"""The systems that a benchmark measures: convlab's stages and the baselines."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from convlab.ladder import (
    ABLATION,
    BACKWARD,
    LADDER,
    Stage,
    Tile,
    allowances,
    stage_named,
    tile_named,
)
from convlab.ladder.gradients.g02_exchanged_roles import through
from convlab.measuring.baselines import (
    OnGpu,
    Singles,
    System,
    Unsupported,
    compiled,
    cudnn,
    cupy_im2col,
    pytorch,
)
from convlab.measuring.baselines.unfold_table import ROWS as UNFOLD_ROWS
from convlab.problems.gradient import Gradient, Problem
from convlab.problems.oracle import Allowances
from convlab.problems.problem import ConvProblem
from convlab.running.able_stages import stages_for
from convlab.running.chosen_stages import (
    AUTO_STAGES_GPU,
    AUTO_TF32,
    preferred_stages,
    stage_for,
)
from convlab.running.compile_worker import Wanted
from convlab.running.engines import Engine, EngineUnavailable, choose
from convlab.running.plans import Plan, program_for, tile_by_rule

BASELINES: tuple[System, ...] = (
    *pytorch.BY_TORCH,
    *cudnn.BASELINES,
    *pytorch.FROM_A_PRODUCT,
    *compiled.OF_CUTLASS,
    cupy_im2col.BY_CUPY,
    compiled.SEVEN_LOOPS,
)
NAMED = {baseline.name: baseline for baseline in BASELINES}
STAGE_FAMILY = "convlab"
# In the ladder's order.
DEFAULT_STAGES = (
    "m01_direct", "m05_microkernel", "m06_vectorized", "m08_double_buffer", "m09_im2win",
    "m11_warp_tiling", "m15_split_k", "t03_split_once", "t05_warpgroups", "i04_im2col_blas",
)  # fmt: skip
QUICK_STAGES = ("m01_direct", "m11_warp_tiling", "m15_split_k", "i04_im2col_blas")
SLOW_START = "torch_compile"  # seconds a layer, to call the same kernel: not in a quick run
ALL, NONE = "all", "none"
AUTO = "auto"
# The ablation of Figure 4 of the im2win paper: a variant's name, and the switch that is off.
WHOLE = "m11_warp_tiling"
VARIANTS = {
    "without_prefetch": "prefetch",
    "without_vectorized": "vectorized",
    "without_microkernel": "microkernel",
}


def system_named(name: str) -> System:
    """The stage, variant, baseline or row of article 002's table of that name; a stage's name may
    end in a tile, ``m15_split_k 64x128x16/8x8``. Raises ``ValueError`` for any other."""
    if name in VARIANTS:
        whole = of_stage(ABLATION, None, **{VARIANTS[name]: False})
        return replace(whole, name=name, title=f"m11 without {VARIANTS[name]}")
    known = UNFOLD_ROWS | NAMED | {one.name: one for one in pytorch.IN_16_BITS}
    if name in known:
        return known[name]
    if name == AUTO:
        return _auto()
    if name == AUTO_TF32:
        in_tf32 = "The stage that a plan takes in TF32"
        return replace(_auto(AUTO_TF32), name=name, title=in_tf32, precision="tf32")
    word, _, tile = name.partition(" ")
    backward = {stage.name: stage for stage in BACKWARD}
    return of_stage(backward.get(word) or stage_named(word), tile_named(tile) if tile else None)


def _first_in_tf32(problem: ConvProblem) -> Stage | None:
    """Return the stage that a plan tries first for a problem in TF32, on a GPU that can run all
    stages; None where none of the preferred ones takes it."""
    for name in preferred_stages(problem) or ("t07_tf32",):
        stage = stage_named(name)
        if stage.why_not(replace(problem, channels_last=stage.channels_last)) is None:
            return stage
    return None


def _auto(word: str = AUTO) -> System:
    """Return the stage that ``plan`` takes for a problem without being told, each problem's own."""

    def stage_of(problem: ConvProblem) -> Stage:
        try:
            return stage_for(word, choose("gpu"), problem)
        except (ValueError, EngineUnavailable) as error:
            raise Unsupported(str(error)) from error

    def compile(problem: ConvProblem) -> None:
        compiled = of_stage(stage_of(problem)).compile
        if compiled is not None:
            compiled(problem)

    def wanted(problem: Problem, engine: Engine) -> Wanted | None:
        try:
            chosen = stage_for(word, engine, problem)
        except (ValueError, EngineUnavailable):  # no stage computes it there
            return None
        return _wanted(chosen, None, problem, engine)

    def prepare(problem: ConvProblem, input: Singles, weight: Singles) -> PreparedStage:
        prepared = PreparedStage(stage_of(problem), None, {}, problem, input, weight)
        taken = [stage_of(problem).name, *filter(None, [prepared.algorithm])]
        prepared.algorithm = " ".join(taken)
        return prepared

    def allowed(problem: ConvProblem) -> Allowances:
        if problem.dtype != "float32":
            return {}
        if word == AUTO_TF32:
            taken = _first_in_tf32(problem)
            return {
                "tf32_products": True,
                "cut_factors": taken is not None and taken.cuts_to_tf32,
            }
        # Products of either arithmetic: which GPU measures is not known here.
        both = [allowances(stage_named(name), problem) for name in AUTO_STAGES_GPU]
        return {
            "atomic_additions": max(one["atomic_additions"] for one in both),
            "split_products": any(one["split_products"] for one in both),
            "tf32_products": False,
        }

    return replace(
        of_stage(stage_named(AUTO_STAGES_GPU[0])),
        name=AUTO,
        title="The stage that a plan takes by itself",
        why_absent=lambda: None,
        prepare=prepare,
        precision="3xtf32",
        compile=compile,
        wanted=wanted,
        allowances=allowed,
    )


def baseline_named(name: str) -> System:
    """The baseline of that name. Raises ``ValueError``, listing the names, for any other."""
    if name not in NAMED:
        raise ValueError(f"baseline is {name!r}: it must be one of {', '.join(NAMED)}")
    return NAMED[name]


def of_stage(stage: Stage, tile: Tile | None = None, **switches: bool) -> System:
    """A stage with that tile; None is its production tile, whatever ``convlab tune`` remembers: the
    same code gives the same row. ``switches`` turn off techniques of stages that have any."""

    def compile(problem: ConvProblem) -> None:
        engine, its = choose("gpu"), stage_on(problem, stage)
        chosen = tile or tile_by_rule(problem, its, engine, **switches)
        program = program_for(problem, its, chosen, engine, **switches)
        for step in program.launches:  # a library's, too: that imports the library
            engine.build(step, program)

    return System(
        name=stage.name if tile is None else f"{stage.name} {tile}",
        title=stage.title,
        family=STAGE_FAMILY,
        why_absent=lambda: stages_for(choose("gpu"), (stage,))[1],
        prepare=partial(PreparedStage, stage, tile, switches),
        kind="stage",
        precision=stage.precision,
        method="direct" if stage.name.startswith(("m01", "c0", "grouped")) else "gemm",
        compile=compile,
        wanted=None if switches else partial(_wanted, stage, tile),
        allowances=lambda problem: allowances(stage_on(problem, stage), problem),
    )


def _wanted(stage: Stage, tile: Tile | None, problem: Problem, engine: Engine) -> Wanted | None:
    """Return what a plan of the stage with that tile compiles; None where it would be refused."""
    its, shapes = stage_on(problem, stage), cast(ConvProblem, problem)  # which a Gradient has too
    if not its.runs_on(engine.capability()) or its.why_not(shapes) is not None:
        return None
    try:
        return Wanted(problem, stage.name, tile or tile_by_rule(shapes, its, engine))
    except ValueError:  # the row of the system has the reason
        return None


def stage_on(problem: Problem, stage: Stage) -> Stage:
    """The stage, or for a gradient g02 by the stage, unless it computes gradients itself."""
    return through(stage) if isinstance(problem, Gradient) and stage not in BACKWARD else stage


class PreparedStage(OnGpu):
    """A stage's plan with its tensors on the GPU. The bias is zeros: baselines have none."""

    def __init__(
        self,
        stage: Stage,
        tile: Tile | None,
        switches: dict[str, bool],
        problem: ConvProblem,
        input: Singles,
        weight: Singles,
    ) -> None:
        super().__init__(stage.name)
        stage = stage_on(problem, stage)
        if (reason := stage.why_not(problem)) is not None:
            raise Unsupported(reason)
        tile = tile or tile_by_rule(problem, stage, self._gpu, **switches)
        self._plan: Plan | None = Plan(
            problem, stage, tile, self._gpu, workspace_limit=None, program=None, **switches
        )
        self.workspace_bytes: int | None = self._plan.workspace_bytes
        self.algorithm = None if self._plan.tile is None else str(self._plan.tile)
        self.place(input, weight, problem.output_shape)

    def run(self, stream: int | None) -> None:
        """Start the stage's launches on a raw CUDA stream."""
        assert self._plan is not None, "it is closed"
        self._plan(*self._arrays, stream=stream)

    def close(self) -> None:
        """Free the plan and its arrays."""
        self._plan, self._arrays = None, []
        gc.collect()  # arrays and what was made of them may hold each other
        super().close()


def chosen(
    stages: Sequence[str] | None, baselines: Sequence[str] | None, quick: bool = False
) -> tuple[System, ...]:
    """The systems of these names: stages in the ladder's order, then baselines in theirs. None
    means the usual ones, ``all`` every one, ``none`` not one. Raises ``ValueError`` for an unknown
    name, and where nothing is left."""
    slow = SLOW_START if quick else ()
    usual = [one.name for one in BASELINES if one.on_gpu and not one.name.startswith(slow)]
    found: list[System] = []
    for given, default, every, named in (
        (stages, QUICK_STAGES if quick else DEFAULT_STAGES, map(of_stage, LADDER), stage_named),
        (baselines, usual, BASELINES, baseline_named),
    ):
        names = {named(name).name for name in given or default if name not in (ALL, NONE)}
        found += [one for one in every if one.name in names or ALL in (given or ())]
    if not found:
        raise ValueError("--stage and --baseline are both none: there is nothing to measure")
    return tuple(found)
