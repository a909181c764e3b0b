"""s14: tails, what is not finite, its arithmetic, memory and tiles. What it shares with other
stages of tensor cores is in test_split_tf32.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.warpgroups import SIX_PRODUCTS, multiplied
from split_products import FEW, INF, ODD, F, computed, many
from split_products import warpgroup_tile as tile_of

from convlab import ConvProblem, Tile
from convlab.engines import Engine, choose
from convlab.kernels import tile_heuristic, window_copies
from convlab.oracle import Oracle, random_tensors
from convlab.plans import stages_for
from convlab.stage import blocks_for
from convlab.stages import s14_warpgroups as s14
from convlab.stages import stage_named
from convlab.tracing import trace_stage

S14 = s14.STAGE
HEURISTIC = tile_heuristic.S14
_, LEFT_OUT = stages_for(choose(), (S14,))


# More than a block's windows, and a tail: two of eighteen and of nine images. Three rows of blocks
# of eight channels, and a tail.
LONG = ConvProblem(18, 3, 4, 3, 20, (2, 1), padding=((0, 1), (0, 0)))
LONG_ODD = ConvProblem(9, 3, 4, 5, 20, (2, 1))


@pytest.fixture(autouse=True)
def _where_it_runs(request: pytest.FixtureRequest) -> None:
    """On a GPU, 9.0 alone."""
    if LEFT_OUT is not None and {"engine", "checked"} & set(request.fixturenames):
        pytest.skip(LEFT_OUT)


def test_groups_of_channels_follow_one_another(checked: Any) -> None:
    problem = ConvProblem(1, 48, 3, 4, 9, (2, 1))
    result = checked(problem, S14, random_tensors(problem, 3, integers=True), S14.tiny_tile)
    assert result.ok, result


@pytest.mark.parametrize("problem", [LONG, LONG_ODD], ids=["float4", "scalar"])
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "relu"])
def test_several_blocks_with_tails_both_ways(
    relu: bool, problem: ConvProblem, engine: Engine
) -> None:
    assert problem.N > 128
    assert problem.M > 16
    assert all((problem.N % 128, problem.M % 8))
    numbers = random_tensors(problem, 5, integers=True)
    output = computed(S14, engine, problem, numbers, relu=relu)
    wanted = Oracle(problem, *numbers).expected
    np.testing.assert_array_equal(output, np.maximum(wanted, 0) if relu else wanted)


@pytest.mark.parametrize("depth", [1, 15, 16, 17, 32, 33, 48, 49])
def test_sums_of_one_slice_and_of_some(depth: int, checked: Any) -> None:
    """Up to 32 terms are two slices, asked for at once."""
    problem = ConvProblem(1, depth, 1, 3, 5, 1)
    result = checked(problem, S14, random_tensors(problem, depth, integers=True), S14.tiny_tile)
    assert result.ok, result


# Accuracy


def in_slices(windows: Any, weight: Any, products: Any = SIX_PRODUCTS) -> Any:
    """``windows @ weight``, N x K by K x M, to the bit: 16 terms by tensor cores, added up by
    float32 additions."""
    more = -windows.shape[1] % 16  # zeros, up to whole slices
    windows, weight = np.pad(windows, ((0, 0), (0, more))), np.pad(weight, ((0, more), (0, 0)))
    total = np.zeros((len(windows), weight.shape[1]), F)
    for k in range(0, windows.shape[1], 16):
        total += multiplied(windows[:, k : k + 16], weight[k : k + 16], products)
    return total


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("tile", [tile_of(8), tile_of(24)], ids=str)
@pytest.mark.parametrize("width", [5, 7], ids=["float4", "scalar"])
def test_it_computes_what_its_arithmetic_says_to_the_bit(width: int, tile: Tile) -> None:
    """On tensor cores as the simulator has them."""
    problem = ConvProblem(1, 43, 4 if width == 5 else 5, width, 9, 1)
    numbers = input, weight, _ = random_tensors(problem, tile.M_B, bias=False)
    output = computed(S14, choose("simulator"), problem, numbers, tile)
    windows, filters = input.reshape(problem.K, -1).T, weight.reshape(problem.M, -1).T
    wanted = in_slices(windows, filters)
    np.testing.assert_array_equal(output.reshape(problem.M, -1), wanted.T)
    # In the order of mma it would not be the same, so the test can tell: s13b to s13d have that.
    of_mma = [(a, b, k) for k in (0, 8) for a, b, _ in SIX_PRODUCTS[:2] + SIX_PRODUCTS[4:5]]
    other = in_slices(windows, filters, of_mma)
    assert (other != wanted).any()
    for name in ("s13b", "s13c", "s13d") if width == 5 else ():
        output = computed(stage_named(name), choose("simulator"), problem, numbers, tile)
        np.testing.assert_array_equal(output.reshape(problem.M, -1), other.T)


# Infinities and NaN


@pytest.mark.parametrize("problem", [LONG, LONG_ODD], ids=["float4", "scalar"])
def test_the_last_window_of_a_tail_is_computed_again_too(
    problem: ConvProblem, engine: Engine
) -> None:
    """And nothing beyond it: the strict simulator sees what is written where."""
    input, weight, bias = random_tensors(problem, 6)
    input[-1, -1, -1, -1] = INF
    output = computed(S14, engine, problem, (input, weight, bias))
    result = Oracle(problem, input, weight, bias).check(output, split_products=True)
    assert result.ok, result
    assert not np.isfinite(output[-1]).all()


# The filter


def test_a_gpu_s_own_nan_stays_one(engine: Engine) -> None:
    """Its large part is a zero, as of a number whose mantissa rounds up, and up."""
    problem = ConvProblem(1, 3, 1, 4, 4, 1)
    for which in range(2):
        numbers = random_tensors(problem, 8, bias=False)
        numbers[which].reshape(-1)[:2].view(np.uint32)[:] = 0x7FFFFFFF, 0xFFFFFFFF
        output = computed(S14, engine, problem, numbers)
        assert Oracle(problem, *numbers).check(output, split_products=True).ok
        assert np.isnan(output).sum() == (8, 4)[which]


# Memory


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize(
    ("tile", "problem"),
    [
        (tile_of(8), FEW),
        (tile_of(96), many(16)),
        (tile_of(96), ODD),
        (tile_of(128), many(16)),
        (tile_of(128), FEW),
    ],
    ids=str,
)
def test_no_bank_is_asked_twice_and_the_filter_is_written_by_neighbours(
    tile: Tile, problem: ConvProblem
) -> None:
    """By threads: what the tensor cores read of the filter is nobody's request."""
    trace = trace_stage("s14", problem, tile)
    launch = trace.main
    accesses = [a for a in launch.accesses if a.space == "shared"]
    assert {(a.array, a.operation, a.width) for a in accesses} == {
        ("S_F", "store", 16), ("S_I", "store", 4), ("S_I", "load", 16),
    }  # fmt: skip
    assert [a.wavefronts for a in accesses] == [a.fewest_wavefronts for a in accesses]
    slices = blocks_for(problem.K, 16) * launch.grid[0] * launch.grid[1]
    (loads,) = (a for a in accesses if a.operation == "load")
    assert loads.requests == slices * 4 * 4  # four rows of each by each of four warps
    assert launch.barriers == slices * 128
    stores = [a for a in trace.launches[0].accesses if a.array == "packed"]
    # Large parts, and small ones.
    assert [(a.operation, a.width) for a in stores] == [("store", 16), ("store", 16)]
    assert [32 * a.sectors for a in stores] == [16 * a.lanes for a in stores]  # in bytes


# Tiles


def test_every_tile_is_a_warpgroup_s_and_fits() -> None:
    for channels in range(8, 129, 8):
        tile = tile_of(channels)
        S14.prepare(FEW, tile)
        assert tile.threads == 128
        padding, rotation = window_copies.padding_or_rotation(tile)
        assert (padding, rotation) == ((0, 8) if channels == 128 else (8, 0))
        assert tile.fits(s14.DEPTH * 16 * (2 * channels + 128 + padding))
    widths = (128, 112, 96, 64, 32)
    assert [HEURISTIC.resident_blocks(tile_of(channels)) for channels in widths] == [2, 2, 2, 3, 4]


# Machine code


def code_of(problem: ConvProblem, tile: Tile) -> Any:
    from convlab.engines.offline import compile_launch

    program = S14.prepare(problem, tile)
    return compile_launch(program.launches[-1], program, (9, 0))


@pytest.mark.gate
@pytest.mark.parametrize(
    ("problem", "tile"),
    [
        *((LONG, tile_of(width)) for width in (8, 24, 32, 64, 88, 96, 112, 120, 128)),
        *((LONG_ODD, tile_of(width)) for width in (8, 24, 32, 64, 88, 96)),
    ],
    ids=lambda value: str(value) if isinstance(value, Tile) else f"{value.W_o} across",
)
def test_every_width_stays_in_registers(problem: ConvProblem, tile: Tile) -> None:
    cubin = code_of(problem, tile)
    assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)
    assert cubin.registers * tile.threads * HEURISTIC.resident_blocks(tile) <= 65536
    opcodes = cubin.opcodes()
    products = [name for name in opcodes.elements() if name.startswith("HGMMA")]
    assert set(products) == {f"HGMMA.64x{tile.M_B}x8.F32.TF32"}
    assert ("STG.E.128" in opcodes) == (problem is LONG)


@pytest.mark.gate
@pytest.mark.parametrize(("depth", "asked_later"), [(16, False), (32, False), (48, True)])
def test_two_slices_are_asked_for_at_once_where_they_are_all(depth: int, asked_later: bool) -> None:
    code = code_of(ConvProblem(8, depth, 4, 8, 64, 1), tile_of(64))
    opcodes = [line.split()[0] for line in code.instructions]
    barriers = [at for at, name in enumerate(opcodes) if name.startswith("BAR.SYNC")]
    copies = [at for at, name in enumerate(opcodes) if name.startswith("LDGSTS")]
    assert copies[0] < barriers[0]
    assert (copies[-1] > barriers[0]) == asked_later
