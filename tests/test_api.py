"""``conv2d`` and ``plan``: any kind of array, any stage; bad input refused in one sentence."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from pretended_gpu import PretendedGpu
from test_unfold import side_by_side

import convlab
from convlab import ConvProblem, EngineUnavailable, Tile
from convlab.ladder import stage_named
from convlab.problems.arrays import Placement, is_whole
from convlab.problems.oracle import check_output, random_tensors
from convlab.running import api, planes_and_groups, simulated_time
from convlab.running.engines import choose, unavailable
from convlab.support import progress

SETTINGS: dict[str, Any] = {"stride": (1, 2), "padding": 1}
PROBLEM = ConvProblem(2, 3, 5, 4, 6, (2, 3), **SETTINGS)


@pytest.fixture
def tensors():
    return random_tensors(PROBLEM, 11)


def test_conv2d_takes_and_writes_arrays_of_any_memory_order(tensors):
    input, weight, bias = tensors
    strided = np.zeros((2, 3, 5, 8), np.float32)[..., ::2]
    strided[...] = input
    out = np.full(PROBLEM.output_shape, np.nan, np.float32, order="F")
    given = strided, np.asfortranarray(weight), bias[::-1][::-1]
    before = [array.copy() for array in given]
    assert convlab.conv2d(*given, **SETTINGS, out=out, stage="m11") is out
    assert check_output(PROBLEM, out, *tensors).ok
    assert all(np.array_equal(*pair) for pair in zip(before, given, strict=True))
    settings = {"padding": "same", "dilation": 2}
    result = convlab.conv2d(input, weight, **settings, stage="m05_microkernel")
    assert isinstance(result, np.ndarray)
    assert check_output(ConvProblem(2, 3, 5, 4, 6, (2, 3), **settings), result, input, weight).ok


def test_a_thousand_groups_are_one_launch():
    problem = ConvProblem(1, 1000, 3, 3, 2000, 3, padding=1, groups=1000)
    tensors = random_tensors(problem, 5)
    ready = convlab.plan(problem)
    assert [step.name for step in ready.program.launches] == ["grouped"]
    assert check_output(problem, convlab.conv2d(*tensors, padding=1, groups=1000), *tensors).ok
    with pytest.raises(ValueError, match=r"^groups is 1000: it must be 1 for stage m03"):
        convlab.plan(problem, "m03")


def by_conv2d(engine: str) -> np.ndarray:
    return convlab.conv2d(*random_tensors(PROBLEM, 11), **SETTINGS, engine=engine, stage="m02")


def by_plan(engine: str) -> np.ndarray:
    ready = convlab.plan(PROBLEM, "m02", engine=engine)
    input, weight, bias = random_tensors(PROBLEM, 11)
    return ready(input, weight, ready.engine.empty(PROBLEM.output_shape), bias)


def by_plan_for_weight(engine: str) -> np.ndarray:
    ready = convlab.plan(PROBLEM, "m02", engine=engine)
    input, weight, bias = random_tensors(PROBLEM, 11)
    out = ready.engine.empty(PROBLEM.output_shape)
    return ready.for_weight(weight, bias)(input, out)


@pytest.mark.parametrize("call", [by_conv2d, by_plan, by_plan_for_weight])
@pytest.mark.parametrize("engine", ["simulator", "cudasim"])
def test_a_long_simulation_says_so_and_can_be_interrupted(
    call, engine, tensors, monkeypatch, capsys
):
    monkeypatch.setattr(simulated_time, "ANNOUNCED_FROM_SECONDS", 0)
    ticks = iter(range(0, 1000, 10))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    call(engine)
    first, *others = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"convlab: 2,592 multiply-adds on .* take about 0 seconds; Ctrl-C ends them", first
    )
    assert others[0] == "convlab: implicit_gemm: block 0 of 1 after 10 seconds; Ctrl-C ends it"

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "say", interrupt)  # how far it is, not how long it takes
    with pytest.raises(KeyboardInterrupt):
        call(engine)
    capsys.readouterr()
    monkeypatch.setattr(simulated_time, "ANNOUNCED_FROM_SECONDS", 99)
    assert check_output(PROBLEM, call(engine), *tensors).ok
    assert capsys.readouterr().err == ""


def test_a_convolution_of_many_calls_says_once_how_long_all_take(monkeypatch, capsys):
    """``plan`` computes each group for a stage that has none, and would announce each."""
    monkeypatch.setattr(simulated_time, "ANNOUNCED_FROM_SECONDS", 0)
    ticks = iter(range(1000))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(ticks) * 1e-3))
    convlab.conv2d(ones(1, 4, 3, 3), ones(4, 1, 3, 3), groups=4, stage="m02", engine="simulator")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convlab: 36 multiply-adds on ")


def test_gradients_say_how_long_they_take(monkeypatch, capsys):
    monkeypatch.setattr(simulated_time, "ANNOUNCED_FROM_SECONDS", 0)
    for of in ("input", "weight"):
        for stage in ("g01", "m03"):
            gradient = convlab.Gradient(PROBLEM, of)
            ready = convlab.plan(gradient, stage, engine="simulator")
            shapes = gradient.input_shape, gradient.weight_shape, gradient.output_shape
            ready(*(ones(*shape) for shape in shapes))
            assert "convlab: 2,592 multiply-adds on " in capsys.readouterr().err


def test_a_library_does_not_take_as_long_as_a_simulated_kernel():
    """The product that NumPy computes was counted as a simulated kernel's: minutes, for one."""
    problem = ConvProblem(1, 64, 56, 56, 64, 3, padding=1)
    simulator = choose("simulator")
    seconds = [
        simulated_time.simulated_seconds(problem, stage, None, simulator)
        for stage in map(stage_named, ("m01_direct", "i04_im2col_blas"))
    ]
    assert seconds[0] > 40 * seconds[1]


def test_plan_writes_out_and_returns_it(engine, tensors):
    ready = convlab.plan(PROBLEM, stage="m06")
    input, weight, bias = (engine.to_device(tensor) for tensor in tensors)
    out = engine.to_device(np.full(PROBLEM.output_shape, np.nan, np.float32))
    assert ready(input, weight, out, bias) is out
    assert check_output(PROBLEM, engine.to_host(out), *tensors).ok
    assert ready.workspace_bytes == 4 * sum(
        np.prod(buffer.shape) for buffer in ready.program.buffers
    )
    assert "m06_vectorized" in repr(ready)


def test_plan_takes_a_tile_and_switches():
    tile = Tile(8, 4, 4, 4, 4)
    ready = convlab.plan(PROBLEM, "ablation", tile, vectorized=False)
    assert ready.tile == tile
    assert ready.switches == {"vectorized": False}
    assert convlab.plan(PROBLEM, "m03").workspace_bytes == 0
    with pytest.raises(ValueError, match=r"switch 'prefetch' is not one of m08.*none"):
        convlab.plan(PROBLEM, "m08", prefetch=False)
    with pytest.raises(ValueError, match=r"switch 'fast'.*microkernel, vectorized, prefetch"):
        convlab.plan(PROBLEM, "ablation", fast=True)


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def read_only(*shape: int) -> np.ndarray:
    array = ones(*shape)
    array.flags.writeable = False
    return array


IMAGE, FILTER = ones(1, 2, 5, 5), ones(3, 2, 3, 3)

# What is wrong, the call's arguments, the exception and what its sentence must name.
BAD_CALLS = {
    "input a list": ({"input": [[1.0]]}, TypeError, "input is a list"),
    "input 2-D": ({"input": ones(5, 5)}, ValueError, r"input has shape \(5, 5\).*4 dim"),
    "input float64": ({"input": ones(1, 2, 5, 5, dtype=np.float64)}, TypeError, "input.*float64"),
    "weight None": ({"weight": None}, TypeError, "weight is a NoneType"),
    "weight 2-D": ({"weight": ones(3, 2)}, ValueError, r"weight has shape \(3, 2\)"),
    "channels differ": ({"weight": ones(3, 4, 3, 3)}, ValueError, "weight has shape.*2 channels"),
    "bias too long": ({"bias": ones(4)}, ValueError, r"bias has shape \(4,\).*\(3,\)"),
    "bias float64": ({"bias": ones(3, dtype=np.float64)}, TypeError, "bias.*float64"),
    "out of another shape": ({"out": ones(1, 3, 5, 5)}, ValueError, r"out has.*\(1, 3, 3, 3\)"),
    "out float64": ({"out": ones(1, 3, 3, 3, dtype=np.float64)}, TypeError, "out.*float64"),
    "out read-only": ({"out": read_only(1, 3, 3, 3)}, ValueError, "out is read-only"),
    "no rows": ({"input": ones(1, 2, 0, 5)}, ValueError, "height is 0"),
    "dilation float": ({"dilation": 1.5}, TypeError, r"dilation is 1\.5"),
    "groups do not divide": ({"groups": 2}, ValueError, "groups is 2: .* 2 channels .* 3 filters"),
    "groups for another weight": (
        {"input": ones(1, 9, 5, 5), "groups": 3},
        ValueError,
        "weight has shape .* 9 channels / 3 groups",
    ),
    "groups a bool": ({"groups": True}, TypeError, "groups is True: .* not bool"),
    "one image, out of a batch": (
        {"input": ones(2, 5, 5), "out": ones(1, 3, 3, 3)},
        ValueError,
        r"out has .*\(3, 3, 3\)",
    ),
    "a sum beyond memory": ({"padding": 2**29}, MemoryError, "copying .* needs .* (GiB|bytes)"),
    "stage an array": ({"stage": IMAGE}, TypeError, r"stage is array\(.* must be a name"),
    "engine an array": ({"engine": IMAGE}, TypeError, r"engine is array\(.* must be a name"),
    "no such stage": ({"stage": "s99"}, ValueError, "stage is 's99'.*m01_direct"),
    "no such engine": ({"engine": "tpu"}, ValueError, "engine is 'tpu'.*'gpu'"),
    "tile where none": ({"stage": "m01", "tile": Tile(4, 4, 4)}, ValueError, "m01_direct has no"),
    "tile unsuited": ({"stage": "m06", "tile": Tile(4, 4, 4)}, ValueError, "M_T and N_T must"),
}


@pytest.mark.parametrize(("arguments", "kind", "names"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_a_bad_call_is_refused_in_a_sentence(arguments, kind, names):
    call = {"input": IMAGE, "weight": FILTER, **arguments}
    with pytest.raises(kind, match=names) as refusal:
        convlab.conv2d(**call)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


BAD_TILES = [
    ((0, 4, 4), "M_B is 0"),
    ((4, 4.0, 4), "N_B is 4.0"),
    ((6, 4, 4, 4), "M_B must be a multiple"),
    ((4, 6, 4, 1, 4), "N_B must be a multiple"),
    ((10**9999, 4, 4), "M_B is a 33216-bit int: it must be"),
    ((64, 64, 4), "4096 threads"),
]


@pytest.mark.parametrize(("sizes", "names"), BAD_TILES, ids=[names for _, names in BAD_TILES])
def test_a_bad_tile_is_refused(sizes, names):
    with pytest.raises(ValueError, match=re.escape(names)):
        Tile(*sizes)


class Ready(NamedTuple):
    plan: Any
    run: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)

    def __call__(self, *arrays: Any, residual: None, stream: Any) -> None:
        self.run(*arrays, stream=stream)


@pytest.fixture
def planned(monkeypatch) -> list[tuple[Any, ...]]:
    """Arguments of the calls of a pretended GPU's plans; a simulator does their work."""
    calls: list[tuple[Any, ...]] = []

    def ready(problem: ConvProblem, stage: str, *_: Any) -> Any:
        plan = convlab.plan(problem, stage, engine="simulator")

        def run(*arrays: Any, stream: Any) -> None:
            calls.append(arrays)
            plan(*(None if array is None else array._ary for array in arrays))

        return Ready(plan, run)

    monkeypatch.setattr(api, "choose", lambda name: PretendedGpu(strict=False))
    monkeypatch.setattr(
        PretendedGpu, "empty", lambda gpu, shape, dtype: FakeCUDAArray(np.empty(shape, dtype))
    )
    monkeypatch.setattr(planes_and_groups, "kept_plan", ready)
    monkeypatch.setattr(api, "placement_of", lambda *_: Placement("Numba", 0))
    return calls


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_device_arrays_are_copied_where_four_numbers_cannot_move(planned, behind, groups, axes):
    def placed(array: np.ndarray) -> Any:
        room = np.zeros(array.size + 8, np.float32)
        start = (-room.ctypes.data // 4) % 4 + behind
        part = room[start : start + array.size].reshape(array.shape)
        part[...] = array
        return FakeCUDAArray(part)

    random = np.random.default_rng(1)
    shapes = (2, 4, *[5] * axes), (6, 4 // groups, *[3] * axes), (6,)
    tensors = [random.integers(-9, 9, shape).astype(np.float32) for shape in shapes]
    given = [placed(tensor) for tensor in tensors]
    out = placed(np.zeros((2, 6, *[3] * axes), np.float32))
    function = convlab.conv2d if axes == 2 else convlab.conv3d
    stage = "m01" if axes == 2 else "auto"
    assert function(*given, groups=groups, stage=stage, out=out) is out
    assert np.array_equal(out._ary, side_by_side(*tensors, groups))
    for call in planned:
        assert all(is_whole(array) for array in call if array is not None)
    if axes == 2 and groups == 1:
        assert np.shares_memory(planned[0][0]._ary, given[0]._ary) == (behind == 0)


def test_a_refused_call_leaves_out_alone():
    out = np.full((1, 3, 3, 3), 7, np.float32)
    with pytest.raises(ValueError, match="stage"):
        convlab.conv2d(IMAGE, FILTER, out=out, stage="s99")
    assert (out == 7).all()
    same = ones(1, 1, 4, 4)
    with pytest.raises(ValueError, match="out shares memory with input"):
        convlab.conv2d(same, ones(1, 1, 1, 1), out=same)


@pytest.mark.skipif(unavailable("gpu") is None, reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(EngineUnavailable, match="engine is 'gpu', which cannot run here"):
        convlab.conv2d(IMAGE, FILTER, engine="gpu")


def test_public_names():
    for name in convlab.__all__:
        assert getattr(convlab, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'conv4d'"):
        convlab.conv4d  # noqa: B018
    assert set(convlab.__all__) <= set(dir(convlab))
