"""s13: its arithmetic and memory; test_split_tf32.py and test_tile_heuristics.py have the rest."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.tensor_cores import split, split_product
from split_products import INF, NAN, F, computed, many

from convlab import ConvProblem, Stage, Tile
from convlab.convolution import reference
from convlab.engines import choose
from convlab.oracle import Oracle, random_tensors
from convlab.stages import s13_tensor_cores as s13
from convlab.stages import stage_named
from convlab.tracing import trace_stage

S13 = s13.STAGE


# Accuracy


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("stage", [stage_named("s12e"), S13], ids=lambda stage: stage.name)
@pytest.mark.parametrize(("depth", "chain"), [(8, 1), (16, 2), (24, 1), (32, 2)])
def test_it_computes_what_its_arithmetic_says_to_the_bit(
    depth: int, chain: int, stage: Stage
) -> None:
    """So what is found of that arithmetic, as in test_oracle.py, is found of the stage. On tensor
    cores as the simulator has them: other GPUs than an H200 may cut elsewhere."""
    problem, tile = ConvProblem(1, 75, 4, 5, 16, 1), Tile(16, 32, depth, 2, 8)
    input, weight, _ = random_tensors(problem, depth, bias=False)
    output = computed(stage, choose("simulator"), problem, (input, weight, None), tile)
    wanted = split_product(weight.reshape(16, 75), input.reshape(75, 20), chain)
    np.testing.assert_array_equal(output.reshape(16, 20), wanted)


@pytest.mark.same_in_cudasim
def test_numbers_too_small_for_two_parts_are_off_by_what_the_pages_say() -> None:
    problem = ConvProblem(1, 64, 3, 3, 16, 1)
    input, weight, bias = random_tensors(problem, 1)
    weight = np.ldexp(weight, 100)
    errors = {}
    for exponent in (-113, -118, -130):
        numbers = np.ldexp(input, exponent), weight, 0 * bias
        output = computed(S13, choose("simulator"), problem, numbers)
        oracle = Oracle(problem, *numbers)
        assert oracle.check(output, split_products=True).ok
        assert oracle.check(output).ok == (exponent > -130)
        exact = reference(problem, *numbers)
        error = output - exact
        assert np.abs(error).max() <= 64 * (
            2.0**-136 * np.abs(weight).max() + 2.0**-24 * np.abs(exact).max()
        )
        errors[exponent] = np.linalg.norm(error) / np.linalg.norm(exact)
    assert errors[-113] < 2e-7
    assert 1e-6 < errors[-118] < 3e-6
    assert 4e-3 < errors[-130] < 7e-3


# The filter


@pytest.mark.same_in_cudasim
def test_the_parts_of_an_infinite_number() -> None:
    with np.errstate(invalid="ignore"):
        parts = np.ravel(split(np.array([INF], F)))  # of a pixel
    np.testing.assert_array_equal(parts, [INF, NAN])
    problem, tile, engine = ConvProblem(1, 8, 1, 1, 16, 1), S13.tiny_tile, choose("simulator")
    program = S13.prepare(problem, tile)
    packed = engine.to_device(np.zeros(program.buffers[0].shape, F).reshape(-1))
    weight = np.zeros(problem.weight_shape, F)
    weight[3, 5] = INF
    engine.build(program.launches[0], program)([weight.reshape(-1), packed])
    assert (packed[packed != 0] == INF).tolist() == [True, True]  # of a weight


# Memory


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("tile", [Tile(32, 64, 16, 4, 8), Tile(32, 64, 8, 2, 16)], ids=str)
def test_no_bank_is_asked_twice(tile: Tile) -> None:
    launch = trace_stage("s13", many(16), tile).main
    loads = [a for a in launch.accesses if a.space == "shared" and a.operation == "load"]
    assert {a.array for a in loads} == {"S_F", "S_I"}
    assert {a.width for a in loads} == {16}
    assert [a.wavefronts for a in loads] == [a.fewest_wavefronts for a in loads]
