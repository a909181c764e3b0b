"""s13: every way in which it fetches and multiplies, what is not finite, its filter and tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.tensor_cores import split, split_product
from numba.cuda.core import config
from split_products import (
    FEW,
    INF,
    NAN,
    ODD,
    F,
    awkward_weight,
    both_parts,
    computed,
    many,
    numbers_had_back,
    packed_filter,
)

from convlab import ConvProblem, Stage, Tile
from convlab.convolution import reference
from convlab.engines import Engine, choose
from convlab.kernels import tile_heuristic, window_copies
from convlab.kernels.tile_heuristic import H200_SMS
from convlab.oracle import Oracle, check_output, random_tensors
from convlab.stage import SHARED_BYTES
from convlab.stages import s13_tensor_cores as s13
from convlab.stages import stage_named
from convlab.tracing import trace_stage
from convlab.workloads import LAYER_NAMES, paper_layer

S13 = s13.STAGE
HEURISTIC = tile_heuristic.S13
TILES = [
    Tile(16, 32, 8, 2, 8),  # one warp
    Tile(32, 32, 8, 2, 8),  # two along M, which fetch two rows of a slice at a time
    Tile(16, 64, 8, 2, 8),  # two along N
    Tile(64, 64, 8, 4, 8),  # two along both
    Tile(48, 32, 8, 6, 8),
    Tile(16, 64, 8, 2, 16),  # twice as many windows as threads
    Tile(128, 32, 8, 16, 8),
    Tile(16, 32, 16, 2, 8),  # chains of 16 terms
    Tile(32, 64, 24, 4, 8),  # of 8, for 16 does not divide 24
    Tile(16, 32, 32, 2, 8),
]
TRIED = [tile for tile in TILES if tile.threads * tile.K_B <= 512 or not config.ENABLE_CUDASIM]


@pytest.mark.parametrize("tile", TRIED, ids=str)
def test_every_way_to_fetch_and_multiply(tile: Tile, checked: Any) -> None:
    problem = many(tile.K_B)
    assert window_copies.channel_group(problem, tile) == tile.K_B
    result = checked(problem, S13, random_tensors(problem, 1), tile)
    assert result.ok, result
    assert window_copies.channel_group(FEW, tile) == 1
    for few in (FEW, ODD):
        result = checked(few, S13, random_tensors(few, 2, integers=True), tile)
        assert result.ok, result


# Accuracy


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("stage", [stage_named("s12e"), S13], ids=lambda stage: stage.name)
@pytest.mark.parametrize(("depth", "chain"), [(8, 1), (16, 2), (24, 1), (32, 2)])
def test_it_computes_what_its_arithmetic_says_to_the_bit(
    depth: int, chain: int, stage: Stage
) -> None:
    """So what is found of that arithmetic, as in test_oracle.py, is found of the stage. On tensor
    cores as the simulator has them: other GPUs than an H200 may cut elsewhere."""
    problem, tile = ConvProblem(1, 75, 4, 5, 18, 1), Tile(16, 32, depth, 2, 8)
    input, weight, _ = random_tensors(problem, depth, bias=False)
    output = computed(stage, choose("simulator"), problem, (input, weight, None), tile)
    wanted = split_product(weight.reshape(18, 75), input.reshape(75, 20), chain)
    np.testing.assert_array_equal(output.reshape(18, 20), wanted)


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


# Infinities and NaN


def test_all_infinite(engine: Engine) -> None:
    input, weight, bias = random_tensors(FEW, 6)
    numbers = np.full_like(input, INF), abs(weight), bias
    output = computed(S13, engine, FEW, numbers, Tile(32, 32, 16, 4, 8))
    assert check_output(FEW, output, *numbers).ok


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


packings = pytest.mark.parametrize(
    ("problem", "tile"),
    [(many(16), Tile(32, 32, 16, 2, 8)), (many(24), Tile(16, 32, 24, 2, 8)), (FEW, S13.tiny_tile)],
    ids=["groups of 16", "groups of 24", "no groups"],
)


@packings
def test_the_filter_lies_as_it_is_said_to(problem: ConvProblem, tile: Tile, engine: Engine) -> None:
    weight = awkward_weight(problem)
    found = engine.to_host(packed_filter(S13, problem, tile, weight, engine))
    parts = both_parts(S13, problem, tile, weight)
    # part, row block, 16 channels, upper half, g, 8 terms, second half, t
    seen = parts.reshape(2, -1, tile.M_B // 16, 2, 8, parts.shape[2] // 8, 2, 4)
    wanted = seen.transpose(1, 5, 2, 0, 4, 7, 6, 3)
    np.testing.assert_array_equal(found, wanted.reshape(-1))


@packings
def test_every_number_can_be_had_back(problem: ConvProblem, tile: Tile, engine: Engine) -> None:
    weight = awkward_weight(problem)
    found = numbers_had_back(S13, s13, problem, tile, weight, engine)
    np.testing.assert_array_equal(found, weight)


# Memory


@pytest.mark.parametrize("tile", [Tile(32, 64, 16, 4, 8), Tile(32, 64, 8, 2, 16)], ids=str)
def test_no_bank_is_asked_twice(tile: Tile) -> None:
    launch = trace_stage("s13", many(16), tile).main
    loads = [a for a in launch.accesses if a.space == "shared" and a.operation == "load"]
    assert {a.array for a in loads} == {"S_F", "S_I"}
    assert {a.width for a in loads} == {16}
    assert [a.wavefronts for a in loads] == [a.fewest_wavefronts for a in loads]


# Tiles


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ((16, 32, 8, 1, 8), "M_T must be a multiple of 2"),
        ((16, 32, 8, 2, 4), "N_T of 8"),
        ((12, 32, 8, 2, 8), "M_B must be a multiple of 8"),
        ((16, 48, 8, 2, 8), "N_B of 4 "),
        ((16, 32, 12, 2, 8), "K_B must be a multiple of 8"),
        ((16, 32, 4, 2, 8), "K_B must be a multiple of 8"),
        ((48, 64, 8, 2, 16), "a multiple or a divisor of N_B"),
        ((128, 64, 24, 8, 8), "shared memory"),
    ],
)
def test_a_tile_that_does_not_suit_is_refused(sizes: tuple[int, ...], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        S13.prepare(FEW, Tile(*sizes))


def test_the_ring_holds_three_slices_where_they_fit() -> None:
    assert s13.slice_elements(Tile(128, 64, 8, 8, 8)) == 8 * (2 * 128 + 64 + 4)
    for tile, slots in ((Tile(128, 64, 8, 8, 8), 3), (Tile(128, 64, 16, 8, 8), 2)):
        assert tile.pipeline_depth(s13.slice_elements(tile)) == slots
        assert 4 * slots * s13.slice_elements(tile) <= SHARED_BYTES


@pytest.mark.parametrize("layer", LAYER_NAMES)
def test_every_candidate_suits_its_layer_and_the_choice_is_the_cheapest(layer: str) -> None:
    problem = paper_layer(layer)
    tiles = HEURISTIC.candidates(problem)
    costs = {tile: HEURISTIC.estimated_cost(problem, tile) for tile in tiles}
    for tile in tiles:
        S13.prepare(problem, tile)
        assert (
            4 * tile.pipeline_depth(s13.slice_elements(tile)) * s13.slice_elements(tile)
            <= SHARED_BYTES
        )
        assert HEURISTIC.slice_depth(problem) == tile.K_B
        assert -(-problem.M // tile.M_B) * tile.M_B <= 1.4 * problem.M
    assert S13.production_tile(problem) in tiles
    assert costs[S13.production_tile(problem)] == min(costs.values())


def test_every_problem_has_a_candidate() -> None:
    for channels in (1, 31, 33, 64, 65, 96, 97, 129, 200, 1000):
        for width in (8, 7):
            tiles = HEURISTIC.candidates(ConvProblem(1, 3, 1, width, channels, 1))
            assert tiles
            assert width == 8 or all(HEURISTIC.most_scalar_sums >= t.M_T * t.N_T for t in tiles)


@pytest.mark.parametrize(
    ("channels", "filter_size", "depth"),
    [(64, 3, 16), (24, 1, 8), (8, 3, 8), (3, 11, 16), (3, 3, 8), (1, 1, 8), (48, 1, 16)],
)
def test_how_deep_slices_are(channels: int, filter_size: int, depth: int) -> None:
    assert HEURISTIC.slice_depth(ConvProblem(1, channels, 16, 16, 8, filter_size)) == depth


def test_the_choice_follows_channels_and_multiprocessors() -> None:
    wide, narrow = paper_layer("conv8"), paper_layer("conv9")
    assert (HEURISTIC.best_tile(wide).M_B, HEURISTIC.best_tile(narrow).M_B) == (128, 64)
    assert HEURISTIC.best_tile(paper_layer("conv1")).M_B == 96
    few = ConvProblem(1, 64, 8, 4 * H200_SMS, 128, 1)
    one, all_ = HEURISTIC.best_tile(few, 1), HEURISTIC.best_tile(few)
    assert one.M_B * one.N_B > all_.M_B * all_.N_B
