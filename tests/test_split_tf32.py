"""t01 to t05, which multiply split numbers by tensor cores: float32 accuracy, what is not finite,
their arithmetic, memory, tiles and machine code. Their ways to fetch are in test_stages.py.

In Numba's own simulator a block is a thread of the system for each: there, few and small problems.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from computing import computed
from kernels.tensor_cores import split_product
from kernels.warpgroups import multiplied
from numba import cuda, float32
from numba.cuda.core import config
from test_stages import FEW, LONG, LONG_ODD, ODD, many, warpgroup_tile, where_it_runs

from convlab import ConvProblem, Stage, Tile, plan
from convlab.device import tensor_core, to_tf32
from convlab.ladder import LADDER, allowances, stage_named, tile_heuristic
from convlab.ladder.main import m13_window_copies
from convlab.ladder.stage import blocks_for
from convlab.ladder.tensor_cores import (
    t03_split_once,
    t04_swapped_operands,
)
from convlab.problems.oracle import Oracle, random_tensors
from convlab.running import plans
from convlab.running.engines import Engine, choose
from convlab.running.engines.disassembly import code_of, opcodes_of
from convlab.simulation.language import compiled_values
from convlab.tracing import trace_stage

STAGES = [stage for stage in LADDER if stage.precision == "3xtf32"]
M15, T03, T04, T05, T06 = map(stage_named, ("m15", "t03", "t04", "t05", "t06"))
UNPACKED = [stage_named(name) for name in ("t01", "t02")]  # split what they read
HEURISTIC = tile_heuristic.T05
F, INF, NAN, MOST = np.float32, np.inf, np.nan, float(np.finfo(np.float32).max)
# Numba's simulator has a thread for every thread: there, one or two warps and less of all will do.
RUN = [STAGES[0], T03, T05] if config.ENABLE_CUDASIM else STAGES
VALUES = [INF, NAN] if config.ENABLE_CUDASIM else [INF, -INF, NAN, MOST, -MOST]
IMAGE_WIDTHS = {"float4": 4} if config.ENABLE_CUDASIM else {"float4": 4, "scalar": 3}
LONG_PROBLEMS = pytest.mark.parametrize("problem", [LONG, LONG_ODD], ids=["float4", "scalar"])


def each(*stages: Stage) -> pytest.MarkDecorator:
    """The stages, skipped where they cannot run."""
    rows = [pytest.param(one, id=one.name, marks=where_it_runs(one.name)) for one in stages]
    return pytest.mark.parametrize("stage", rows)


def check_with_and_without_relu(
    stage: Stage, engine: Engine, problem: ConvProblem, numbers: Any
) -> np.ndarray:
    """The output without ReLU, right by the oracle; with it, the same and no negative numbers."""
    plain = computed(stage, engine, problem, numbers, stage.tiny_tile)
    result = Oracle(problem, *numbers).check(plain, split_products=True)
    assert result.ok, result
    if "relu" in stage.options:
        clipped = computed(stage, engine, problem, numbers, stage.tiny_tile, relu=True)
        np.testing.assert_array_equal(clipped, np.where(plain < 0, F(0), plain))
    return plain


def test_only_the_tensor_cores_split_products() -> None:
    assert {T03, T04, T05, T06, *UNPACKED} == {*STAGES}
    for stage in STAGES:
        products = {"split_products": True, "tf32_products": False, "cut_factors": False}
        assert allowances(stage, FEW) == {"atomic_additions": 0, **products}
    assert M15.precision == "fp32"


@each(M15, T03, T04, T05)
def test_places_that_do_not_fit_constant_memory_are_computed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, checked: Any
) -> None:
    monkeypatch.setattr(m13_window_copies, "TABLE_BYTES", 0)
    for problem in (many(16), FEW):
        plans._prepared.cache_clear()  # programs are kept
        assert checked(problem, stage, random_tensors(problem, 2), stage.tiny_tile).ok


def forget_programs() -> None:
    """A stage's, and the layout transform of the filter that several stages share."""
    plans._prepared.cache_clear()
    t03_split_once.pack_filter.cache_clear()


@cuda.jit(device=True)
def large_part_alone(value):
    return to_tf32(value), float32(0)


def multiplier_of(stage: Stage) -> ModuleType:
    """Return the module in which a stage's windows are split: its own, or that of its base."""
    own = sys.modules[stage.module]
    return own if hasattr(own, "split_tf32") else multiplier_of(stage_named(stage.builds_on[0]))


SPLITTERS = [
    *((stage, tensor_core if stage in UNPACKED else multiplier_of(stage)) for stage in RUN),
    *((stage, t03_split_once) for stage in RUN if stage in (T04, T05)),  # of the filter
]


@pytest.mark.parametrize(
    ("stage", "module"),
    SPLITTERS,
    ids=lambda one: one.__name__ if isinstance(one, ModuleType) else one.name,
)
def test_a_forgotten_small_part_is_found(stage: Stage, module: ModuleType, checked: Any) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "split_tf32", large_part_alone)
        # Device functions keep what they are compiled with, and stages share them.
        patched.setattr(compiled_values, "_values", WeakKeyDictionary())
        forget_programs()
        result = checked(FEW, stage, random_tensors(FEW, 4), stage.tiny_tile)
    forget_programs()
    assert not result.ok
    assert result.error_over_bound > 10
    assert result.wrong > result.total / 2


# Infinities and NaN


@each(*RUN)
@pytest.mark.parametrize("width", IMAGE_WIDTHS.values(), ids=IMAGE_WIDTHS)
def test_what_is_not_finite_and_what_is_nearly_not(
    width: int, stage: Stage, engine: Engine
) -> None:
    """Each value is in the input of an image, in the weight of a filter (also where padding makes
    NaN of it) and in the bias of another; and one image and one filter have none, so that no other
    value hides what becomes of it."""
    several = len(VALUES)
    problem = ConvProblem(several + 1, 3, 4, width, 2 * several + 1, 3, padding=1)
    input, weight, bias = numbers = random_tensors(problem, 3)
    for number, value in enumerate(VALUES):
        input[number].reshape(-1)[2] = weight[number].reshape(-1)[2] = value
        bias[several + number] = value
    check_with_and_without_relu(stage, engine, problem, numbers)


@each(T05)
@LONG_PROBLEMS
def test_the_last_window_of_a_tail_is_computed_again_too(
    problem: ConvProblem, stage: Stage, engine: Engine
) -> None:
    """And nothing beyond it: the strict simulator sees what is written where."""
    numbers = random_tensors(problem, 6)
    numbers[0][-1, -1, -1, -1] = INF
    output = check_with_and_without_relu(stage, engine, problem, numbers)
    assert not np.isfinite(output[-1]).all()


@each(T05)
def test_a_gpu_s_own_nan_stays_one(stage: Stage, engine: Engine) -> None:
    """Its large part is a zero, as of a number whose mantissa rounds up, and up."""
    problem = ConvProblem(1, 3, 1, 4, 4, 1)
    for which in range(2):
        numbers = random_tensors(problem, 8, bias=False)
        numbers[which].reshape(-1)[:2].view(np.uint32)[:] = 0x7FFFFFFF, 0xFFFFFFFF
        output = check_with_and_without_relu(stage, engine, problem, numbers)
        assert np.isnan(output).sum() == (8, 4)[which]


@each(*RUN)
def test_a_sum_that_overflows_is_added_in_another_order(stage: Stage, engine: Engine) -> None:
    """The sum of one channel after the other passes through minus infinity, the sum of one place
    of the filter after the other does not."""
    problem = ConvProblem(1, 8, 1, 3, 1, (1, 3))
    input, weight = np.ones(problem.input_shape, F), np.zeros(problem.weight_shape, F)
    weight[0, :2, 0] = [[-3e38, 3e38, 0], [-3e38, 0, 3.3e38]]
    output = check_with_and_without_relu(stage, engine, problem, (input, weight, None))
    assert output.item() == pytest.approx(3e37, rel=1e-6)


@each(*(stage for stage in RUN if stage is not UNPACKED[0]))  # t01 packs nothing
def test_a_constant_weight(stage: Stage, engine: Engine) -> None:
    """Sums that are computed again are of the weight that was there, too."""
    problem = ConvProblem(1, 8, 4, 6, 5, (2, 3), padding=(1, 0))
    input, weight, bias = random_tensors(problem, 7)
    weight[1, 2, 0, 1] = INF
    on = engine.to_device
    kept = on(weight)
    ready = plan(problem, stage.name, stage.tiny_tile, engine.name).for_weight(kept, on(bias))
    kept[:] = 0
    output = on(np.full(problem.output_shape, NAN, F))
    ready(on(input), output)
    found = engine.to_host(output)
    result = Oracle(problem, input, weight, bias).check(found, split_products=True)
    assert result.ok, result
    assert np.isnan(found).any()


# Arithmetic


def as_a_warpgroup_does(windows: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """``windows @ filters`` to the bit: 16 terms by tensor cores, added up by float32 additions."""
    more = -windows.shape[1] % 16  # zeros, up to whole slices
    windows, filters = np.pad(windows, ((0, 0), (0, more))), np.pad(filters, ((0, more), (0, 0)))
    total = np.zeros((len(windows), filters.shape[1]), F)
    for k in range(0, windows.shape[1], 16):
        total += multiplied(windows[:, k : k + 16], filters[k : k + 16])
    return total


WHOLE, FOURS, SCALARS = (
    ConvProblem(1, channels, height, width, filters, 1)
    for channels, height, width, filters in ((75, 4, 5, 16), (43, 4, 5, 9), (43, 5, 7, 9))
)
BY_ARITHMETIC = [
    *(("t03", WHOLE, Tile(16, 32, depth, 2, 8)) for depth in (8, 16, 24, 32)),
    *((name, FOURS, warpgroup_tile(width)) for name in ("t04", "t05") for width in (8, 24)),
    *(("t05", SCALARS, warpgroup_tile(width)) for width in (8, 24)),
]


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize(("name", "problem", "tile"), BY_ARITHMETIC, ids=str)
def test_it_computes_what_its_arithmetic_says_to_the_bit(
    name: str, problem: ConvProblem, tile: Tile
) -> None:
    """So what is found of that arithmetic, as in test_oracle.py, is found of the stage. On tensor
    cores as the simulator has them: other GPUs than an H200 may cut elsewhere."""
    input, weight, _ = random_tensors(problem, tile.K_B, bias=False)
    filters, windows = weight.reshape(problem.M, -1), input.reshape(problem.K, -1)
    output = computed(stage_named(name), choose("simulator"), problem, (input, weight, None), tile)
    if name == "t03":
        wanted = split_product(filters, windows, 1 if tile.K_B % 16 else 2)
    else:
        by_warps = split_product(windows.T, filters.T, 2).T
        by_warpgroups = as_a_warpgroup_does(windows.T, filters.T).T
        assert (by_warps != by_warpgroups).any()  # so the test can tell
        wanted = by_warpgroups if name == "t05" else by_warps
    np.testing.assert_array_equal(output.reshape(wanted.shape), wanted)


@pytest.mark.same_in_cudasim
def test_numbers_too_small_for_two_parts_are_off_by_what_the_pages_say() -> None:
    problem = ConvProblem(1, 64, 3, 3, 16, 1)
    input, weight, bias = random_tensors(problem, 1)
    weight = np.ldexp(weight, 100)
    for exponent, least, most in ((-113, 0, 2e-7), (-118, 1e-6, 3e-6), (-130, 4e-3, 7e-3)):
        numbers = np.ldexp(input, exponent), weight, 0 * bias
        output = computed(T03, choose("simulator"), problem, numbers, T03.tiny_tile)
        oracle = Oracle(problem, *numbers)
        assert oracle.check(output, split_products=True).ok
        assert oracle.check(output).ok == (exponent > -130)
        off = np.linalg.norm(output - oracle.expected) / np.linalg.norm(oracle.expected)
        assert least < off < most


# Memory


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("tile", [Tile(32, 64, 16, 4, 8), Tile(32, 64, 8, 2, 16)], ids=str)
def test_no_bank_is_asked_twice(tile: Tile) -> None:
    launch = trace_stage("t03", many(16), tile).main
    loads = [a for a in launch.accesses if a.space == "shared" and a.operation == "load"]
    assert {a.array for a in loads} == {"S_F", "S_I"}
    assert {a.width for a in loads} == {16}
    assert [a.wavefronts for a in loads] == [a.fewest_wavefronts for a in loads]


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize(
    ("tile", "problem"),
    [
        (warpgroup_tile(width), problem)
        for width, problems in {8: [FEW], 96: [ODD, many(16)], 128: [FEW, many(16)]}.items()
        for problem in problems
    ],
    ids=str,
)
def test_no_bank_is_asked_twice_and_the_filter_is_written_by_neighbours(
    tile: Tile, problem: ConvProblem
) -> None:
    """The requests are those of threads: what tensor cores read of the filter is no request."""
    trace = trace_stage("t05", problem, tile)
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
        tile = warpgroup_tile(channels)
        T05.prepare(FEW, tile)
        assert tile.threads == 128
        padding, rotation = t04_swapped_operands.padding_or_rotation(tile)
        assert (padding, rotation) == ((0, 8) if channels == 128 else (8, 0))
        assert tile.fits(t04_swapped_operands.DEPTH * 16 * (2 * channels + 128 + padding))
    widths = 128, 112, 96, 64, 32
    blocks = [HEURISTIC.resident_blocks(warpgroup_tile(width)) for width in widths]
    assert blocks == [2, 2, 2, 3, 4]


# Machine code


def compiled(problem: ConvProblem, tile: Tile) -> Any:
    from convlab.running.engines.kernels import compile_launch

    program = T05.prepare(problem, tile)
    return compile_launch(program.launches[-1], program, (9, 0))


@pytest.mark.gate
@pytest.mark.parametrize(
    ("problem", "tile"),
    [
        *((LONG, warpgroup_tile(width)) for width in (8, 24, 32, 64, 88, 96, 112, 120, 128)),
        *((LONG_ODD, warpgroup_tile(width)) for width in (8, 24, 32, 64, 88, 96)),
    ],
    ids=lambda value: str(value) if isinstance(value, Tile) else f"{value.W_o} across",
)
def test_every_width_stays_in_registers(problem: ConvProblem, tile: Tile) -> None:
    cubin = compiled(problem, tile)
    assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)
    assert cubin.registers * tile.threads * HEURISTIC.resident_blocks(tile) <= 65536
    opcodes = opcodes_of(cubin)
    products = [name for name in opcodes.elements() if name.startswith("HGMMA")]
    assert set(products) == {f"HGMMA.64x{tile.M_B}x8.F32.TF32"}
    assert ("STG.E.128" in opcodes) == (problem is LONG)


@pytest.mark.gate
@pytest.mark.parametrize(("depth", "asked_later"), [(16, False), (32, False), (48, True)])
def test_two_slices_are_asked_for_at_once_where_they_are_all(depth: int, asked_later: bool) -> None:
    cubin = compiled(ConvProblem(8, depth, 4, 8, 64, 1), warpgroup_tile(64))
    opcodes = [line.split()[0] for line in code_of(cubin)]
    barriers = [at for at, name in enumerate(opcodes) if name.startswith("BAR.SYNC")]
    copies = [at for at, name in enumerate(opcodes) if name.startswith("LDGSTS")]
    assert copies[0] < barriers[0]
    assert (copies[-1] > barriers[0]) == asked_later
