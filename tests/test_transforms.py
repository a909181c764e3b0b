"""s11's pre-passes: every element against the definition, each warp's addresses, the benchmark."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.cuda.core import config
from strategies import problems
from warps import WARP, passes, requests, sectors

from convlab import ConvProblem
from convlab.bench import measured, transforms
from convlab.engines import Engine, EngineUnavailable
from convlab.engines.offline import compile_launch
from convlab.engines.simulator import Simulator
from convlab.kernels.im2win_layout import (
    Band,
    band_for,
    group_size,
    pack_launch,
    packed_buffer,
    transform_launch,
    windows_buffer,
)
from convlab.lint import is_float64
from convlab.stage import SHARED_BYTES, Buffer, Launch, Program, Tile, blocks_for
from convlab.workloads import LAYER_NAMES, paper_layer

FOURS = ConvProblem(1, 64, 6, 32, 64, 3)  # everything aligned, channels by the many
FEW = ConvProblem(1, 4, 40, 65, 8, (3, 2), (1, 2))  # rows of 65 pixels: only stores are aligned
FEW_BY_FOURS = ConvProblem(1, 4, 40, 32, 8, 3)

# By what they are about; several of each, so that each kernel gets them.
CASES = {
    "plain": ConvProblem(2, 24, 9, 8, 6, 3),
    "planes not by fours": ConvProblem(2, 24, 7, 7, 6, 3),
    "few channels": ConvProblem(2, 3, 40, 35, 4, (7, 3), stride=(2, 1)),
    "few by fours": ConvProblem(2, 3, 70, 36, 4, 3, padding=(1, 4)),
    "one channel": ConvProblem(2, 1, 19, 9, 3, (2, 3)),
    "odd channels": ConvProblem(2, 5, 21, 9, 7, (3, 5), padding=(2, 1)),
    "parts of groups": ConvProblem(1, 33, 14, 32, 3, (12, 2)),
    "parts, dilated": ConvProblem(1, 45, 18, 11, 3, (9, 2), (1, 2), (2, (2, 3)), (2, 3)),
    "bands, dilated": ConvProblem(2, 2, 44, 9, 4, (4, 2), (3, 1), 0, (3, 2)),
    "padded, many channels": ConvProblem(2, 28, 6, 5, 3, 3, 1, ((1, 0), (2, 3))),
    "strided, dilated": ConvProblem(1, 40, 9, 7, 3, (3, 2), (2, 1), (2, 1), (2, 3)),
    "stride beyond the filter": ConvProblem(2, 36, 9, 5, 3, 2, 4),
    "few, stride beyond the filter": ConvProblem(2, 2, 23, 9, 3, 2, 5),
}


def run(engine: Engine, launch: Launch, buffer: Buffer, source: np.ndarray) -> np.ndarray:
    """The buffer as the launch leaves it, poisoned with NaN before."""
    program = Program((buffer,), (launch,))
    target = engine.to_device(np.full(buffer.shape, np.nan, np.float32).reshape(-1))
    engine.build(launch, program)([engine.to_device(source.reshape(-1)), target], None)
    return engine.to_host(target).reshape(buffer.shape)


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    """Every one another, and what must come through unchanged."""
    made = np.arange(1, np.prod(shape) + 1, dtype=np.float32)
    made[:: max(len(made) // 5, 1)] = np.inf
    made[len(made) // 2] = np.nan
    return made.reshape(shape)


def expected_windows(problem: ConvProblem, input: np.ndarray) -> np.ndarray:
    p = problem
    images = [transforms.expected_windows(p, image) for image in input]
    return np.concatenate(images).reshape(windows_buffer(p).shape)


def right_windows(problem: ConvProblem, side: int, engine: Engine) -> bool:
    launch, input = transform_launch(problem, side), numbers(problem.input_shape)
    found = run(engine, launch, windows_buffer(problem), input)
    return np.array_equal(found, expected_windows(problem, input), equal_nan=True)


def right_filters(problem: ConvProblem, side: int, engine: Engine) -> bool:
    tile, weight = Tile(16, 8, 8), numbers(problem.weight_shape)
    launch, buffer = pack_launch(problem, tile, side), packed_buffer(problem, tile)
    found = run(engine, launch, buffer, weight)
    expected = transforms.expected_filters(problem, weight, buffer.shape)
    return np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("problem", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("side", [8, WARP])
def test_every_element(problem: ConvProblem, side: int, engine: Engine) -> None:
    assert right_windows(problem, side, engine)
    assert right_filters(problem, side, engine)


@given(problem=problems(), side=st.sampled_from([4, 8, WARP]))
@settings(max_examples=25, deadline=None)
def test_every_element_of_any_problem(problem: ConvProblem, side: int, engine: Engine) -> None:
    assert right_windows(problem, side, engine)
    assert right_filters(problem, side, engine)


@pytest.mark.gpu
@pytest.mark.parametrize("layer", LAYER_NAMES)
def test_every_element_of_the_papers_layers(layer: str, engine: Engine) -> None:
    if not engine.is_gpu:
        pytest.skip("needs a GPU: the layers are too large for a simulator")
    assert right_windows(paper_layer(layer, 2), WARP, engine)
    assert right_filters(paper_layer(layer, 2), WARP, engine)


def test_what_is_expected_is_the_definition() -> None:
    """The docstring's formula, one element at a time."""
    p = CASES["strided, dilated"]
    input, weight = numbers(p.input_shape), numbers(p.weight_shape)
    windows = expected_windows(p, input)
    filters = transforms.expected_filters(p, weight, (-(-p.M // 2), p.W_f * group_size(p), 2))
    for row, k, u, r in np.ndindex(*windows.shape[:2], p.H_f, p.C_i):
        i, m = divmod(row, p.H_o)
        i_h, i_w = m * p.s_h + u * p.d_h - p.p_h, k - p.p_w
        inside = 0 <= i_h < p.H_i and 0 <= i_w < p.W_i
        pixel = input[i, r, i_h, i_w] if inside else 0
        np.testing.assert_equal(windows[row, k, u * p.C_i + r], pixel)
    for j, r, u, v in np.ndindex(*p.weight_shape):
        found = filters[j // 2, v * group_size(p) + u * p.C_i + r, j % 2]
        np.testing.assert_equal(found, weight[j, r, u, v])
    p = CASES["odd channels"]
    assert group_size(p) == p.H_f * p.C_i + 1
    assert not expected_windows(p, numbers(p.input_shape))[..., -1].any()


def test_cases_reach_every_kind_of_tile() -> None:
    kernels = Counter(transform_launch(p, WARP).name for p in CASES.values())
    assert set(kernels) == {"im2win_transform_by_pixels", "im2win_transform_by_groups"}
    few = [
        p for p in CASES.values() if transform_launch(p, WARP).name == "im2win_transform_by_groups"
    ]
    assert {band_for(p, WARP).whole for p in few} == {True, False}
    assert any(1 < band_for(p, WARP).rows < p.H_o for p in few)


# A block amid the image, so that every lane of a warp does the same.
@pytest.mark.parametrize(
    ("problem", "kinds"),
    [
        (FOURS, {("input", "load4"), ("windows", "store4")}),
        (FEW_BY_FOURS, {("input", "load4"), ("windows", "store4")}),
        (FEW, {("input", "load"), ("windows", "store4")}),
    ],
    ids=["pixels", "groups by fours", "groups"],
)
def test_whole_sectors_and_few_bank_conflicts(
    problem: ConvProblem, kinds: set[tuple[str, str]]
) -> None:
    found = set()
    for array, kind, indices in requests(transform_launch(problem, WARP), block=0):
        if array == "shared":
            # Groups of three runs: numbers of up to three columns apart share a bank.
            assert passes(indices, by_fours=False) <= (1 if problem is FOURS else 3)
            continue
        found.add((array, kind))
        run = 1 if kind == "load" else 4
        # A row that begins amid a sector takes one more.
        assert sectors(indices, run) - 4 * run in ((0, 1) if kind == "load" else (0,))
    assert found == kinds


@pytest.mark.parametrize("problem", [FOURS, FEW_BY_FOURS], ids=["pixels", "groups"])
def test_how_often_a_pixel_is_read(problem: ConvProblem) -> None:
    """Once by pixels; by groups a row beside the band again."""
    launch = transform_launch(problem, WARP)
    read = Counter(
        index // 4
        for block in range(launch.grid[0])
        for array, _, indices in requests(launch, block)
        if array == "input"
        for index in indices
    )
    rows = problem.H_i
    if problem is FOURS:
        assert set(read.values()) == {1}
        assert len(read) == np.prod(problem.input_shape) // 4
    else:
        band = band_for(problem, WARP)
        assert band.rows < problem.H_o
        again = (blocks_for(problem.H_o, band.rows) - 1) * (problem.H_f - 1)
        assert sum(read.values()) * 4 == problem.C_i * problem.W_i * (rows + again)


def test_filters_leave_and_arrive_in_whole_sectors() -> None:
    seen = set()
    for array, kind, indices in requests(pack_launch(FOURS, Tile(64, 8, 8), WARP), block=1):
        seen.add((array, kind))
        if array == "shared":
            assert passes(indices, by_fours=False) == 1
        else:
            assert sectors(indices) == 16
    assert {("weight", "load4"), ("packed", "store4")} < seen


@given(problem=problems())
@settings(max_examples=100)
def test_a_band_fits_and_covers(problem: ConvProblem) -> None:
    band = band_for(problem, WARP)
    assert 4 * band.lines * (band.columns + 1) <= SHARED_BYTES
    assert 1 <= band.rows <= problem.H_o
    assert band.columns % 4 == 0
    assert band.whole or (band.rows == 1 and band.lines % 4 == 0)


def test_how_often_a_band_reads() -> None:
    conv7 = paper_layer("conv7")
    assert Band(1, 9, 32, whole=True).reads(conv7) == 3  # each row for each window above it
    assert Band(2, 12, 32, whole=True).reads(conv7) == 2
    assert band_for(conv7, WARP).reads(conv7) < 1.1
    assert Band(1, 12, 32, whole=False).reads(conv7) == 3
    sparse = ConvProblem(1, 1, 50, 50, 1, 2, stride=5)
    assert Band(2, 7, 32, whole=True).reads(sparse) == 7 / 4  # three rows between that none needs


@pytest.mark.gate
@pytest.mark.parametrize("problem", [FOURS, FEW_BY_FOURS, FEW], ids=["pixels", "groups", "ones"])
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_machine_code(problem: ConvProblem, capability: tuple[int, int]) -> None:
    """By fours where rows are aligned, and then all of a tile's loads before one is waited for."""
    if config.ENABLE_CUDASIM:
        pytest.skip("the gate compiles for real; NUMBA_ENABLE_CUDASIM=1 is set")
    tile = Tile(64, 8, 8, 8, 8)
    program = Program((windows_buffer(problem), packed_buffer(problem, tile)), ())
    for launch in (transform_launch(problem, WARP), pack_launch(problem, tile, WARP)):
        code = compile_launch(launch, program, capability)
        opcodes = [line.split()[0] for line in code.instructions()]
        loads = [at for at, opcode in enumerate(opcodes) if opcode.startswith("LDG")]
        stores = [at for at, opcode in enumerate(opcodes) if opcode.startswith("STS")]
        wide = problem is not FEW or launch.name.startswith("pack")
        assert {"128" in opcodes[at] for at in loads} == {wide}
        assert not wide or max(loads) < min(stores)
        assert "STG.E.128" in opcodes
        assert code.spill_bytes == code.stack_bytes == 0
        assert not any(map(is_float64, opcodes))


class PretendedGpu(Simulator):
    """The simulator, saying that it is a GPU."""

    name, is_gpu, device = "gpu", True, "pretended GPU"

    def empty(self, shape: tuple[int, ...]) -> Any:
        made = super().empty(shape)
        return made.view(HostArray) if isinstance(made, np.ndarray) else made


class HostArray(np.ndarray):
    """With what the benchmark asks of a device's arrays."""

    def copy_to_host(self) -> np.ndarray:
        return np.asarray(self)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    """A GPU with a timer, which calls once and measures half a millisecond; two small layers."""

    def measure(
        call: Callable[[Any], None], as_graph: bool, spread_percent: float
    ) -> SimpleNamespace:
        call(None)
        return SimpleNamespace(median_ms=0.5, spread_percent=1.5, repeats=10)

    timer = ModuleType("convlab.timer")
    timer.measure = measure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "convlab.timer", timer)
    monkeypatch.setattr(
        "convlab.bench.bandwidth.copy_start", lambda engine, nbytes: lambda stream: None
    )
    monkeypatch.setattr(transforms, "LAYER_NAMES", ("conv7", "conv9"))
    small = {"conv7": ConvProblem(2, 3, 7, 9, 5, 3), "conv9": ConvProblem(2, 24, 5, 5, 6, 3)}
    monkeypatch.setattr(transforms, "paper_layer", small.__getitem__)
    engine = PretendedGpu(strict=False)
    monkeypatch.setattr(measured, "choose", lambda name: engine)
    return engine


def test_the_bandwidth_of_the_transforms(gpu: PretendedGpu, capsys, tmp_path) -> None:
    file = tmp_path / "transforms.json"
    assert transforms.main(["--json", str(file)]) == 0
    document = json.loads(file.read_text())
    conv7, conv9 = document["layers"]
    assert conv7["right"] is conv9["right"] is True
    transform, pack = conv7["transform"], conv7["pack"]
    assert transform["kernel"] == "im2win_transform_by_groups"
    assert conv9["transform"]["kernel"] == "im2win_transform_by_pixels"
    assert transform["bytes"] == 4 * (2 * 3 * 7 * 9 + 2 * 5 * 9 * 12)
    assert transform["tb_per_s"] == transform["bytes"] / 0.5e-3 / 1e12
    assert pack["bytes"] == 4 * (5 * 27 + 40 * 16)
    said = capsys.readouterr().out
    assert "| conv9 | " in said
    assert said.count("100 %") == 4


def test_a_wrong_transform_is_said_and_exits_1(gpu: PretendedGpu, capsys, monkeypatch) -> None:
    right = transforms.expected_windows
    monkeypatch.setattr(transforms, "expected_windows", lambda *of: right(*of) + 1)
    assert transforms.main([]) == 1
    assert "conv7 (WRONG)" in capsys.readouterr().out


def test_it_needs_a_gpu(capsys, monkeypatch) -> None:
    def choose(name: str) -> None:
        raise EngineUnavailable("there is none")

    monkeypatch.setattr(measured, "choose", choose)
    assert transforms.main([]) == 2
    assert "its times mean nothing" in capsys.readouterr().err
