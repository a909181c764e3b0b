"""What s12b to s14 share: how they fetch, sums of split numbers, to float32 accuracy, the fix-up of
sums that are not finite, and their packed filters.

In Numba's own simulator a block is a thread of the system for each: there, few and small problems.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernels.tensor_cores import split_product
from numba import cuda, float32
from numba.cuda.core import config
from split_products import (
    FEW,
    INF,
    MOST,
    NAN,
    ODD,
    TAIL,
    F,
    awkward_weight,
    both_parts,
    computed,
    many,
    name_of,
    packed_filter,
    warpgroup_tile,
)  # fmt: skip

from convlab import ConvProblem, Stage, Tile, plan, plans
from convlab.device import tensor_core, to_tf32
from convlab.engines import Engine, choose
from convlab.kernels import split_filter, window_copies
from convlab.oracle import Oracle, check_output, random_tensors
from convlab.plans import stages_for
from convlab.stages import LADDER, allowances, stage_named
from convlab.tracing import trace_stage

STAGES = [stage for stage in LADDER if stage.precision == "3xtf32"]
S12, S12E, S13, S14 = map(stage_named, ("s12", "s12e", "s13", "s14"))
UNPACKED = [stage_named(name) for name in ("s12b", "s12c", "s12d")]  # split what they read
# Numba's simulator has a thread for every thread: there, one or two warps and less of all will do.
RUN = [STAGES[0], S13, S14] if config.ENABLE_CUDASIM else STAGES
VALUES = [INF, NAN] if config.ENABLE_CUDASIM else [INF, -INF, NAN, MOST, -MOST]
WRITTEN = {True: "float4"} | ({} if config.ENABLE_CUDASIM else {False: "scalar"})
stages = pytest.mark.parametrize("stage", RUN, ids=lambda stage: stage.name)


@pytest.fixture(autouse=True)
def _where_it_runs(request: pytest.FixtureRequest) -> None:
    """On a GPU, the stages that it can run."""
    stage = request.node.callspec.params.get("stage") if hasattr(request.node, "callspec") else None
    if stage is not None and {"engine", "checked"} & set(request.fixturenames):
        able, reason = stages_for(choose(), (stage,))
        if stage not in able:
            pytest.skip(str(reason))


def with_and_without_relu(stage: Stage) -> list[dict[str, bool]]:
    return [{}, {"relu": True}] if "relu" in stage.options else [{}]


def test_only_the_tensor_cores_split_products() -> None:
    assert {S12E, S13, S14, *UNPACKED} <= {*STAGES}
    for stage in STAGES:
        assert allowances(stage, FEW) == {"atomic_additions": 0, "split_products": True}
    assert stage_named("s12").precision == "fp32"


# How they fetch

WARP_TILES = [
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
TRIED = [tile for tile in WARP_TILES if tile.threads * tile.K_B <= 512 or not config.ENABLE_CUDASIM]
WIDTHS = [8, 24, 64, 128]
if config.ENABLE_CUDASIM:
    WIDTHS = WIDTHS[:2]
elif choose().is_gpu:
    WIDTHS += [16, 40, 96, 120]


WAYS = [*((S13, tile) for tile in TRIED), *((S14, warpgroup_tile(width)) for width in WIDTHS)]


@pytest.mark.parametrize(
    ("stage", "tile", "few"),
    [(*way, (FEW, ODD, TAIL)[number % 3]) for number, way in enumerate(WAYS)],
    ids=name_of,
)
def test_every_way_to_fetch_and_multiply(
    stage: Stage, tile: Tile, few: ConvProblem, checked: Any
) -> None:
    for problem, group in ((many(tile.K_B), tile.K_B), (few, 1)):
        assert tile.channel_group(problem) == group
        result = checked(problem, stage, random_tensors(problem, 1, integers=group == 1), tile)
        assert result.ok, result


@pytest.mark.parametrize("stage", [S12, S12E, S13, S14], ids=lambda stage: stage.name)
def test_places_that_do_not_fit_constant_memory_are_computed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, checked: Any
) -> None:
    monkeypatch.setattr(window_copies, "TABLE_BYTES", 0)
    for problem in (many(16), FEW):
        plans._prepared.cache_clear()  # programs are kept
        assert checked(problem, stage, random_tensors(problem, 2), stage.tiny_tile).ok


def forget_programs() -> None:
    """A stage's, and the layout transform of the filter that several stages share."""
    plans._prepared.cache_clear()
    split_filter.pack_filter.cache_clear()


@cuda.jit(device=True)
def large_part_alone(value):
    return to_tf32(value), float32(0)


@pytest.mark.parametrize(
    ("stage", "module"),
    [(stage, sys.modules[stage.module]) for stage in RUN if stage not in UNPACKED]
    + [(stage, tensor_core) for stage in RUN if stage in UNPACKED]
    + [(stage, split_filter) for stage in (S13, S14)],
    ids=lambda one: one.__name__ if isinstance(one, ModuleType) else one.name,
)
def test_a_forgotten_small_part_is_found(stage: Stage, module: ModuleType, checked: Any) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "split_tf32", large_part_alone)
        forget_programs()
        result = checked(FEW, stage, random_tensors(FEW, 4), stage.tiny_tile)
    forget_programs()
    assert not result.ok
    assert result.error_over_bound > 10
    assert result.wrong > result.total / 2


@stages
@pytest.mark.parametrize("whole_runs", WRITTEN, ids=WRITTEN.get)
def test_what_is_not_finite_and_what_is_nearly_not(
    whole_runs: bool, stage: Stage, engine: Engine
) -> None:
    """Right without ReLU, by the oracle; with it, the same and no negative numbers. Each value is
    in the input of an image, in the weight of a filter and in the bias of another; and one image
    and one filter have none, so that no other value hides what becomes of it."""
    several = len(VALUES)
    problem = ConvProblem(several + 1, 3, 4, 4 if whole_runs else 3, 2 * several + 1, 3, padding=1)
    input, weight, bias = numbers = random_tensors(problem, 3)
    for number, value in enumerate(VALUES):
        input[number].reshape(-1)[2] = weight[number].reshape(-1)[2] = value
        bias[several + number] = value
    plain = computed(stage, engine, problem, numbers)
    result = Oracle(problem, *numbers).check(plain, split_products=True)
    assert result.ok, result
    if "relu" not in stage.options:
        return
    clipped = computed(stage, engine, problem, numbers, relu=True)
    np.testing.assert_array_equal(clipped, np.where(plain < 0, F(0), plain))


@pytest.mark.parametrize("stage", [S13, S14], ids=name_of)
def test_all_infinite(stage: Stage, engine: Engine) -> None:
    input, weight, bias = random_tensors(ODD, 6)
    numbers = np.full_like(input, INF), abs(weight), bias
    assert check_output(ODD, computed(stage, engine, ODD, numbers), *numbers).ok


@stages
def test_padding_with_an_infinite_weight_is_nan(stage: Stage, engine: Engine) -> None:
    problem = ConvProblem(1, 8, 4, 4, 2, 3, padding=1)
    input, weight, bias = random_tensors(problem, 5)
    weight[1, 3, 0, 0] = INF
    for options in with_and_without_relu(stage):
        output = computed(stage, engine, problem, (input, weight, bias), **options)[0]
        nan = np.zeros((4, 4), bool)
        nan[0], nan[:, 0] = True, True
        np.testing.assert_array_equal(np.isnan(output[1]), nan)
        assert np.isfinite(output[0]).all()


@stages
def test_a_sum_that_overflows_is_added_in_another_order(stage: Stage, engine: Engine) -> None:
    """By channels it passes through minus infinity, by places it does not."""
    problem = ConvProblem(1, 8, 1, 3, 1, (1, 3))
    input, weight = np.ones(problem.input_shape, F), np.zeros(problem.weight_shape, F)
    weight[0, :2, 0] = [[-3e38, 3e38, 0], [-3e38, 0, 3.3e38]]
    for options in with_and_without_relu(stage):
        output = computed(stage, engine, problem, (input, weight, None), **options)
        assert output.item() == pytest.approx(3e37, rel=1e-6)


@pytest.mark.parametrize("stage", RUN[1:], ids=lambda stage: stage.name)  # s12b packs nothing
def test_a_constant_weight(stage: Stage, engine: Engine) -> None:
    """What is computed again is, too, of the weight that was there."""
    problem = ConvProblem(1, 8, 4, 6, 5, (2, 3), padding=(1, 0))
    input, weight, bias = random_tensors(problem, 7)
    weight[1, 2, 0, 1] = INF
    on = engine.to_device
    kept = on(weight)
    ready = plan(problem, stage.name, stage.tiny_tile, engine.name).for_weight(kept, on(bias))
    kept[:] = 0
    output = on(np.full(problem.output_shape, NAN, F))
    ready(on(input), output)
    result = Oracle(problem, input, weight, bias).check(
        found := engine.to_host(output), split_products=True
    )
    assert result.ok, result
    assert np.isnan(found).any()


# How the filter lies

# By stage: axes of (part, row block, m, k), m and k split in two or three, and their order. s13:
# 16 channels, upper half, g; s14: 8 channels, c // 4, c % 4; both: 8 terms, second half, t.
LAYOUTS = {
    "s13": (16, (2, 8), (1, 5, 2, 0, 4, 7, 6, 3)),
    "s14": (8, (2, 4), (1, 5, 0, 6, 2, 4, 3, 7)),
}


@pytest.mark.parametrize(
    ("stage", "problem", "tile"),
    [
        (S13, many(16), Tile(32, 32, 16, 2, 8)),
        (S13, many(24), Tile(16, 32, 24, 2, 8)),
        (S13, FEW, S13.tiny_tile),
        (S14, many(16), warpgroup_tile(8)),
        (S14, many(32), warpgroup_tile(16)),
        (S14, replace(many(16), out_channels=70), warpgroup_tile(24)),  # three rows of blocks
        (S14, FEW, S14.tiny_tile),
    ],
    ids=name_of,
)
def test_the_filter_lies_as_it_is_said_to(
    stage: Stage, problem: ConvProblem, tile: Tile, engine: Engine
) -> None:
    weight = awkward_weight(problem)
    found = engine.to_host(packed_filter(stage, problem, tile, weight, engine))
    parts = both_parts(stage, problem, tile, weight)
    channels, within, order = LAYOUTS[stage.name[:3]]
    seen = parts.reshape(2, -1, tile.M_B // channels, *within, parts.shape[2] // 8, 2, 4)
    np.testing.assert_array_equal(found, seen.transpose(order).reshape(-1))


# s13: its arithmetic and memory


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("stage", [S12E, S13], ids=lambda stage: stage.name)
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
    for exponent, least, most in ((-113, 0, 2e-7), (-118, 1e-6, 3e-6), (-130, 4e-3, 7e-3)):
        numbers = np.ldexp(input, exponent), weight, 0 * bias
        output = computed(S13, choose("simulator"), problem, numbers)
        oracle = Oracle(problem, *numbers)
        assert oracle.check(output, split_products=True).ok
        assert oracle.check(output).ok == (exponent > -130)
        off = np.linalg.norm(output - oracle.expected) / np.linalg.norm(oracle.expected)
        assert least < off < most


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("tile", [Tile(32, 64, 16, 4, 8), Tile(32, 64, 8, 2, 16)], ids=str)
def test_no_bank_is_asked_twice(tile: Tile) -> None:
    launch = trace_stage("s13", many(16), tile).main
    loads = [a for a in launch.accesses if a.space == "shared" and a.operation == "load"]
    assert {a.array for a in loads} == {"S_F", "S_I"}
    assert {a.width for a in loads} == {16}
    assert [a.wavefronts for a in loads] == [a.fewest_wavefronts for a in loads]
