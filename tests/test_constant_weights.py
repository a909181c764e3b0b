"""``Plan.for_weight``: what depends on the weight alone is done once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numba.cuda.core import config
from pretended_gpu import PretendedGpu

import convlab
from convlab import LADDER, ConvProblem, Tile
from convlab.ladder import Stage, allowances, stage_named
from convlab.ladder.stage import Program, Step
from convlab.problems.oracle import Oracle, random_tensors
from convlab.running import plans
from convlab.running.able_stages import stages_for
from convlab.running.engines import Engine, Start
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan

PROBLEM = ConvProblem(2, 4, 3, 5, 6, (2, 3), stride=(1, 2), padding=1)


def transforms_filter(stage: Stage) -> bool:
    """Return whether a kernel of the stage reads the filter alone: it need not run again."""
    kernels = stage.prepare(stage.adapted(PROBLEM), stage.tiny_tile).kernels
    arguments = [set(map(str, kernel.arguments)) for kernel in kernels]
    return any("weight" in names and not names & {"input", "output"} for names in arguments)


PACKING = {stage.name for stage in LADDER if transforms_filter(stage)}


# In Numba's simulator, where each takes seconds, a few: what plans do is the same.
FEW = ("i01_im2col", "m06", "m11", "m15", "t03")
TRIED = [*map(stage_named, FEW)] if config.ENABLE_CUDASIM else LADDER


@pytest.mark.slow
@pytest.mark.parametrize("stage", TRIED, ids=lambda stage: stage.name)
def test_every_stage_with_a_constant_weight(stage: Stage, engine: Engine) -> None:
    """And with another in between, whose plan has a workspace of its own. Nothing of one call is
    left in that for the next."""
    if stage not in stages_for(engine)[0]:
        pytest.skip(str(stages_for(engine)[1]))
    problem = stage.adapted(PROBLEM)
    plan = Plan(problem, stage, stage.tiny_tile, engine)
    first, weight, bias = random_tensors(problem, 1, integers=True)
    second, other, _ = random_tensors(problem, 2, integers=True)
    on = partial(engine.to_device, dtype=problem.dtype)
    kept = on(weight)
    ready = plan.for_weight(kept, on(bias))
    left_out = len(plan.program.launches) - len(ready.plan.program.launches)
    assert left_out == (stage.name in PACKING)

    def check(output: Any, *numbers: Any) -> None:
        result = Oracle(problem, *numbers).check(
            engine.to_host(output, problem.dtype), **allowances(stage, problem)
        )
        assert result.ok, str(result)

    for input, used in ((first, other), (second, weight)):
        output, again = (on(np.full(problem.output_shape, np.nan, np.float32)) for _ in range(2))
        plan(on(input), on(used), output, None)
        check(output, input, used, None)
        assert ready(on(input), again) is again
        check(again, input, weight, bias)


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("name", ["m01", "m11", "m15", "t03", "t05"])
def test_what_is_done_once_has_ended_before_anything_else_can_start(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    class Recording(Simulator):
        def build(self, step: Step, program: Program) -> Start:
            start = super().build(step, program)

            def recorded(arrays: Any, stream: Any = None) -> None:
                happened.append(f"{step.name} on {stream}")
                start(arrays, stream)

            return recorded

        def synchronize(self) -> None:
            happened.append("synchronized")

    stage, engine = stage_named(name), Recording()
    input, weight, bias = random_tensors(PROBLEM, 1)
    plan = Plan(PROBLEM, stage, stage.tiny_tile, engine)
    ready = plan.for_weight(weight, bias, stream=5)
    packing = [step.name for step in plan.program.launches if "weight" in map(str, step.arguments)]
    once = [f"{packing[0]} on 5", "synchronized"] if stage.name in PACKING else []
    assert happened == once
    ready(input, engine.empty(PROBLEM.output_shape), stream=6)
    assert happened[len(once) :] == [f"{step.name} on 6" for step in ready.plan.program.launches]


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_misaligned_weight_or_bias_is_refused_on_a_gpu(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = dict(zip(("input", "weight", "bias"), random_tensors(PROBLEM, 1), strict=True))
    lies = {id(tensors[name]): 4100}
    monkeypatch.setattr(plans, "address_of", lambda array: lies.get(id(array), 4096))
    plan = Plan(PROBLEM, stage_named("m11"), Tile(16, 8, 8, 4, 4), PretendedGpu())
    monkeypatch.setattr(Plan, "__init__", lambda *_: pytest.fail("a workspace was allocated"))
    with pytest.raises(ValueError, match=rf"^{name} is .* address 0x1004: .* of 16 bytes"):
        plan.for_weight(tensors["weight"], tensors["bias"])


def test_no_bias_and_a_weight_that_is_written_to_later(engine: Engine) -> None:
    """The rest of the plan keeps its switches."""
    plan = convlab.plan(PROBLEM, "m15", engine=engine.name, relu=True)
    input, weight, _ = random_tensors(PROBLEM, 3)
    kept = engine.to_device(weight)
    ready = plan.for_weight(kept)
    assert ready.plan.switches == plan.switches == {"relu": True}
    kept[:] = 0
    output = engine.empty(PROBLEM.output_shape)
    ready(engine.to_device(input), output)
    wanted = np.maximum(Oracle(PROBLEM, input, weight, None).expected, 0)
    np.testing.assert_allclose(engine.to_host(output), wanted, rtol=1e-5, atol=1e-5)
