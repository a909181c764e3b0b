"""The program for compute-sanitizer: every kernel that a stage has, split sums included."""

from __future__ import annotations

import numpy as np
import pytest
import sanitizers
from numba import cuda

from convlab import ConvProblem
from convlab.ladder import LADDER, stage_named, tile_heuristic
from convlab.ladder.main import m14_epilogue
from convlab.ladder.tensor_cores import t01_mma
from convlab.running import plans
from convlab.running.able_stages import stages_for
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import program_for

M15, T03, T05 = map(stage_named, ("m15", "t03", "t05"))
SMALL = ConvProblem(1, 3, 4, 3, 5, 3, padding=1)


def test_every_stage_runs_with_its_production_tile_and_its_tiny_one():
    found = {(case.stage.name, case.tile) for case in sanitizers.cases(sanitizers.STAGES)}
    for stage in sanitizers.STAGES:
        assert (stage.name, stage.tiny_tile) in found
        assert {tile for name, tile in found if name == stage.name} - {stage.tiny_tile} or (
            stage.tiny_tile is None
        )


def test_split_sums_are_among_them_and_whole_ones():
    kernels = [
        [launch.name for launch in program_for(case.problem, M15, case.tile, Simulator()).launches]
        for case in sanitizers.cases((M15,))
    ]
    assert any("clear" in names for names in kernels)
    assert any("clear" not in names for names in kernels)


@pytest.mark.parametrize(
    ("stage", "heuristic"),
    [(M15, tile_heuristic.M15), (T03, tile_heuristic.T03), (T05, tile_heuristic.T05)],
)
def test_nearly_all_shapes_that_there_are_to_choose_from_run(stage, heuristic):
    tiles = [case.tile for case in sanitizers.cases((stage,)) if case.tile is not None]
    assert len(tiles) < 20
    if stage is T05:
        assert {M_B for M_B, *_ in heuristic.rates} <= {tile.M_B for tile in tiles}
        return
    shapes = {(tile.M_B, tile.N_B, tile.M_T, tile.N_T) for tile in tiles}
    assert set(heuristic.rates) - shapes <= {(16, 128, 4, 8)}  # for ten channels and fewer


def of_what_is_not_finite():
    """With tiles that a simulator runs in a blink."""
    found = [case for case in sanitizers.cases(LADDER) if "relu" in case.switches]
    return [
        case._replace(tile=case.stage.tiny_tile, problem=case.stage.adapted(SMALL))
        for case in found
    ]


def test_relu_of_what_is_not_finite_runs_once_a_stage_and_is_right(engine):
    found = of_what_is_not_finite()
    assert [case.stage for case in found] == [stage for stage in LADDER if "relu" in stage.options]
    able, _ = stages_for(engine)
    for case in (one for one in found if one.stage in able):
        assert case.switches == {"relu": True}
        result = sanitizers.check(case, engine)
        assert result.ok, result


def test_a_residual_is_added_once_a_stage_and_right(engine):
    found = [case for case in sanitizers.cases(LADDER) if "residual" in case.switches]
    assert [case.stage for case in found] == [one for one in LADDER if "residual" in one.options]
    able, _ = stages_for(engine)
    for case in (one for one in found if one.stage in able):
        small = case._replace(tile=case.stage.tiny_tile, problem=case.stage.adapted(SMALL))
        result = sanitizers.check(small, engine)
        assert result.ok, result


@pytest.mark.parametrize("stage", [T03, T05], ids=["t03", "t05"])
def test_what_is_wrong_with_it_is_found(stage, monkeypatch, engine):
    if stage not in stages_for(engine)[0]:
        pytest.skip(str(stages_for(engine)[1]))
    (case,) = (case for case in of_what_is_not_finite() if case.stage is stage)
    with monkeypatch.context() as patched:
        patched.setattr(t01_mma, "make_fix_up", lambda *_, **__: left_out)
        plans._prepared.cache_clear()
        assert not sanitizers.check(case, engine).ok
        patched.undo()
        for module in (m14_epilogue, t01_mma):
            patched.setattr(module, "make_finish", lambda relu: only_added)
        plans._prepared.cache_clear()
        assert not sanitizers.check(case, engine).ok
    plans._prepared.cache_clear()


@cuda.jit(device=True)
def left_out(input, packed, bias, output, m0, n0):
    pass


@cuda.jit(device=True)
def only_added(value, b):
    return value + b


def test_a_zero_after_relu_stands_for_what_was_negative_and_nothing_else_does():
    output = np.array([0, 0, 0, 2, -1, np.inf], np.float32)
    expected = np.array([-3, -np.inf, 1, 2, -1, np.inf])
    np.testing.assert_array_equal(
        sanitizers.before_relu(output, expected), [-3, -np.inf, 0, 2, np.nan, np.inf]
    )


def test_an_unknown_stage_is_refused(capsys):
    assert sanitizers.main(["run", "s99"]) == 2
    assert "s99" in capsys.readouterr().err
