"""t06: sums split among blocks, which the last block of a tile adds up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from computing import computed
from numba.cuda.core import config
from test_stages import LEFT_OUT, LONG_ODD, STAGES

from convlab import ConvProblem, Tile
from convlab.ladder import production_program, stage_named
from convlab.ladder.tile_heuristic import H200_SMS, T06, allowances, splits_for
from convlab.problems.oracle import Oracle, before_relu, random_tensors
from convlab.running.engines import Engine, choose
from convlab.running.engines.kernels import compile_launch
from convlab.running.plans import Plan

T06_STAGE = stage_named("t06")
SMALL = Tile(8, 128, 16, 2, 4)
RUNS = pytest.mark.skipif(T06_STAGE not in STAGES, reason=str(LEFT_OUT))
# 512 filters of 512 channels on 7 x 7 pixels, as late layers of ResNet-50 have them.
LATE = ConvProblem(32, 512, 7, 7, 512, 3, padding=1)

# Five slices of 16 terms, the last with a tail, in shares of 2, 2 and 1; outputs are scalars.
TAIL = replace(LONG_ODD, in_channels=33)
# Channels of one place, whose outputs are float4s.
PLACES = ConvProblem(1, 16, 4, 4, 9, 3, padding=1)


@pytest.mark.slow
@RUNS
@pytest.mark.parametrize(("problem", "splits"), [(TAIL, 3), (PLACES, 2), (PLACES, 100)], ids=str)
def test_sums_split_among_blocks(problem: ConvProblem, splits: int, checked: Any) -> None:
    plan = Plan(problem, T06_STAGE, SMALL, choose("simulator"), splits=splits)
    assert plan.program.launches[-1].grid[2] > 1
    tensors = random_tensors(problem, seed=splits)
    assert checked(problem, T06_STAGE, tensors, SMALL, splits=splits).ok


@pytest.mark.slow
@RUNS
def test_sums_that_are_not_finite_and_relu(engine: Engine) -> None:
    """An infinity in one part is the whole sum's; with ReLU minus infinity is zero."""
    problem = ConvProblem(1, 48, 2, 3, 9, 1)
    input, weight, bias = random_tensors(problem, 5)
    input[0, 0, 0, 0] = np.inf  # of the first block's terms
    input[0, 47, 1, 2] = np.nan  # of the last block's
    tensors = input, weight, bias
    output = computed(T06_STAGE, engine, problem, tensors, SMALL, splits=3)
    oracle, allowed = Oracle(problem, *tensors), allowances(T06_STAGE, problem)
    assert oracle.check(output, **allowed).ok
    assert np.isinf(output[0, :, 0, 0]).all()
    assert np.isnan(output[0, :, 1, 2]).all()
    rectified = computed(T06_STAGE, engine, problem, tensors, SMALL, splits=3, relu=True)
    assert oracle.check(before_relu(rectified, oracle.expected), **allowed).ok
    assert (rectified[0, weight[:, 0, 0, 0] < 0, 0, 0] == 0).all()


@pytest.mark.slow
@RUNS
def test_a_plan_s_calls_give_the_same_bits(engine: Engine) -> None:
    """The last block sets its tile's count back, and adds the parts in the order of z."""
    problem = ConvProblem(1, 48, 2, 3, 9, 1)
    input, weight, bias = map(engine.to_device, random_tensors(problem, 1))
    plan = Plan(problem, T06_STAGE, SMALL, engine, splits=3)
    found = []
    for _ in range(2):
        output = engine.to_device(np.full(problem.output_shape, np.nan, np.float32))
        found.append(engine.to_host(plan(input, weight, output, bias)))
    assert np.array_equal(*found)


@pytest.mark.slow
@RUNS
def test_calls_for_one_weight_find_the_counts_at_zero(engine: Engine) -> None:
    """Such a plan fills the counts with zeros once; then each last block sets its count back."""
    problem = ConvProblem(1, 48, 2, 3, 9, 1)
    tensors = random_tensors(problem, 2)
    input, weight, bias = map(engine.to_device, tensors)
    program = T06_STAGE.prepare(problem, SMALL, splits=3)
    ready = Plan(problem, T06_STAGE, SMALL, engine, program=program).for_weight(weight, bias)
    for _ in range(2):
        output = engine.to_device(np.full(problem.output_shape, np.nan, np.float32))
        found = engine.to_host(ready(input, output))
        result = Oracle(problem, *tensors).check(found, **allowances(T06_STAGE, problem))
        assert result.ok, str(result)


@pytest.mark.same_in_cudasim
def test_without_split_k_it_is_t05() -> None:
    tile = Tile(32, 128, 16, 8, 4)
    whole = T06_STAGE.prepare(LATE, tile)
    assert [step.name for step in whole.launches] == ["split_filter", "warpgroups"]
    with pytest.raises(ValueError, match=r"splits is 2: with split_k=False it must be 1"):
        T06_STAGE.prepare(LATE, tile, split_k=False, splits=2)


@pytest.mark.same_in_cudasim
def test_the_model_splits_where_tiles_are_few() -> None:
    late = T06.best_tile(LATE)
    blocks = -(-LATE.M // late.M_B) * -(-LATE.N // late.N_B)
    splits = splits_for(T06_STAGE, LATE, late, None)["splits"]
    assert blocks < H200_SMS < blocks * splits
    assert splits_for(T06_STAGE, LATE, late, None, relu=True) == {"splits": splits}
    assert splits_for(T06_STAGE, LATE, late, None, split_k=False) == {}
    many = replace(LATE, batch=4096)
    assert splits_for(T06_STAGE, many, T06.best_tile(many), None) == {"splits": 1}
    assert allowances(T06_STAGE, LATE)["atomic_additions"] == 0


@pytest.mark.gate
@pytest.mark.usefixtures("compiled_once")
@pytest.mark.skipif(bool(config.ENABLE_CUDASIM), reason="the gate compiles for real")
@pytest.mark.parametrize("problem", [LATE, replace(LATE, height=8, width=8)], ids=str)
def test_split_k_keeps_as_many_blocks_resident_as_t05_and_spills_nothing(
    problem: ConvProblem,
) -> None:
    scalar = problem.H_o * problem.W_o % 4 != 0
    most = min(T06.most_split_sums, T06.most_scalar_sums if scalar else 128)
    for M_B in sorted(M_B for M_B, *_ in T06.rates if most >= M_B):
        tile = Tile(M_B, 128, 16, M_B // 4, 4)
        program = T06_STAGE.prepare(problem, tile, splits=4)
        cubin = compile_launch(program.launches[-1], program, (9, 0))
        assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)
        assert cubin.registers * tile.threads * T06.resident_blocks(tile) <= 65536
    assert production_program(T06_STAGE, problem).launches[-1].name == "split_warpgroups"
