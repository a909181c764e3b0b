"""Planned calls without a GPU: what the driver is handed, beside what Numba's launch hands it, and
by which addresses and handles it knows anybody's arrays and streams."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from numba import cuda
from numba.cuda.core import config

from convlab.ladder import LADDER, Stage, production_program, stage_named
from convlab.ladder.stage import Argument, Images, Launch, LibraryCall, Program
from convlab.problems.number_types import NUMBER_TYPES
from convlab.running import engines
from convlab.running.engines import address_of, gpu
from convlab.running.engines.gpu import Gpu
from convlab.running.engines.kernels import argument_types
from convlab.running.launch_arguments import pick
from convlab.running.plans import Plan

if config.ENABLE_CUDASIM:
    pytest.skip("Numba runs as its CUDA simulator: it has no launch", allow_module_level=True)

from kernels.halves import DIRECT_16
from numba.cuda import dispatcher
from numba.cuda.cudadrv.devicearray import DeviceNDArray
from pretended_driver import (
    CAPTURED,
    INVALIDATED,
    KERNEL,
    OUT_OF_RESOURCES,
    PROBLEM,
    RELAXED,
    SHAPES,
    STRICT,
    arrays_at,
    cubin_of,
    device_array,
    m01,
    parameters_of,
    prepared,
    stage_packed,
)

from convlab.running.engines import launching, packed_program

# Those of 16 bits have tensor maps, which tests/test_tensor_maps.py is about.
without_library = [
    stage for stage in LADDER if not stage.needs_library and stage.why_not(PROBLEM) is None
]


def view_of(argument: Argument, arrays: dict[str, DeviceNDArray]) -> DeviceNDArray:
    """The array that a plan hands to a launch, cut out as NumPy cuts an array of that shape."""
    whole = arrays[str(argument)]
    host = np.empty(whole.shape, whole.dtype)
    part = pick(argument, {str(argument): host})
    behind = part.ctypes.data - host.ctypes.data
    return device_array(part.shape, address_of(whole) + behind, whole.dtype)


def handed_by_numba(step, program, arrays, monkeypatch) -> list[int]:
    """The parameters that Numba's own launch hands over."""
    kernel = object.__new__(dispatcher._Kernel)
    kernel.debug = kernel.cooperative = kernel.launch_config_sensitive = False
    kernel.extensions = []
    kernel.signature = SimpleNamespace(args=argument_types(step, program))
    function = SimpleNamespace(kernel="compiled", handle=driver.CUkernel(KERNEL))
    kernel._codelibrary = SimpleNamespace(get_cufunc=lambda: function)
    handed: list[Any] = []
    monkeypatch.setattr(dispatcher, "LaunchConfig", lambda **_: None)
    monkeypatch.setattr(dispatcher, "launch", lambda stream, config, kernel, *a: handed.extend(a))
    views = [view_of(argument, arrays) for argument in step.arguments]
    kernel.launch(views, step.grid, step.block)
    return handed


def programs(stage: Stage) -> list[Program]:
    """At its tile for a GPU, and in slices where it can."""
    made = [production_program(stage, PROBLEM)]
    if stage.in_slices:
        two = stage.prepare(replace(PROBLEM, batch=2), made[0].tile).workspace_bytes
        made.append(stage.prepare(PROBLEM, made[0].tile, workspace_limit=two))
        asked = [argument for step in made[1].launches for argument in step.arguments]
        assert any(isinstance(getattr(argument, "of", argument), Images) for argument in asked)
    return made


@pytest.mark.parametrize("lent", [False, True], ids=["own workspace", "lent workspace"])
@pytest.mark.parametrize("stage", without_library, ids=lambda stage: stage.name)
def test_every_parameter_is_what_numbas_launch_hands_over(stage, lent, fake, monkeypatch):
    for program in programs(stage):
        fake.launches.clear()
        held = {
            buffer.name: device_array(buffer.shape, 0x7F00_0000_0000 + 0x100000 * place)
            for place, buffer in enumerate(program.buffers)
        }
        packed, launches = prepared(fake, program, {} if lent else held)
        for base in (0x7E00_0000_0000, 0x7D00_0000_0000):  # other arrays in the second call
            arrays = arrays_at(base)
            packed(*arrays.values(), *(held.values() if lent else ()), stream=7)
            for (step, _), launched in zip(launches, fake.launches, strict=True):
                handed = handed_by_numba(step, program, arrays | held, monkeypatch)
                assert launched["values"] == handed
                assert launched["grid"] == (*step.grid, 1, 1)[:3]
                assert launched["block"] == (*step.block, 1, 1)[:3]
                assert launched["stream"] == 7
            fake.launches.clear()


@pytest.mark.parametrize("name", SHAPES)
def test_an_array_that_starts_between_is_refused(name, fake):
    call, arrays = m01(fake), arrays_at(0x1000)
    call(*arrays.values())
    shifted = arrays | {name: device_array(SHAPES[name], 0x5000_0004)}
    with pytest.raises(ValueError, match=f"^{name} is a device array that starts at .*0x50000004"):
        call(*shifted.values())
    call(*arrays.values())
    assert fake.launches[0] == fake.launches[1]
    assert len(fake.launches) == 2


def test_a_kernel_whose_parameters_have_another_size_is_refused(fake):
    """A version of a compiler that passes arrays in another way makes such kernels."""
    program = stage_named("m01").prepare(PROBLEM, None)
    (step,) = program.launches
    cubin = cubin_of(step, program, parameter_bytes=40)
    said = (
        r"^kernel direct takes 40 bytes of parameters, but its arrays have 368: "
        r"this version of its compiler is not supported$"
    )
    with pytest.raises(RuntimeError, match=said):
        packed_program.PackedProgram([(step, launching.loaded(cubin, "direct"))], SHAPES, {})


def test_machine_code_is_loaded_once(fake):
    program = stage_named("m01").prepare(PROBLEM, None)
    (step,) = program.launches
    first = launching.loaded(cubin_of(step, program), "direct")
    assert launching.loaded(cubin_of(step, program), "direct") is first
    assert launching.loaded(cubin_of(step, program, code=b"machine code of 2"), "2") is not first
    assert fake.loaded == [b"machine code of direct", b"machine code of 2"]


@pytest.mark.parametrize("call", ["cuLibraryLoadData", "cuLibraryGetKernel"])
def test_machine_code_that_the_driver_refuses_raises(call, fake):
    program = stage_named("m01").prepare(PROBLEM, None)
    (step,) = program.launches
    fake.answers = {call: [driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU]}
    with pytest.raises(RuntimeError, match=r"^CUDA could not launch direct: .*NO_BINARY_FOR_GPU$"):
        launching.loaded(cubin_of(step, program), "direct")
    launching.loaded(cubin_of(step, program), "direct")  # the refusal is not kept


def in_kernels(dtype: str) -> str:
    return NUMBER_TYPES[dtype].in_kernels if dtype in NUMBER_TYPES else dtype


class Recording(Gpu):
    """The GPU engine with everything that needs a GPU taken out: what is launched, and how."""

    device = "none"  # type: ignore[assignment]

    def __init__(self) -> None:
        self.called: list[tuple[str, Any]] = []  # libraries' work
        self.address = 0x7000_0000_0000

    def free_bytes(self) -> None:
        return None

    def capability(self) -> tuple[int, int]:
        return (9, 0)

    def sm_count(self) -> int:
        return 132

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> DeviceNDArray:
        self.address += 0x1000000
        return device_array(shape, self.address, in_kernels(dtype))

    def to_device(self, host: np.ndarray, dtype: str = "float32") -> DeviceNDArray:
        return self.empty(host.shape, dtype)

    def build(self, step: Any, program: Program) -> Any:
        if isinstance(step, Launch):
            return super().build(step, program)
        return lambda arrays, stream=None: self.called.append((step.name, stream))


@pytest.fixture
def recording(fake, monkeypatch) -> Recording:
    """That engine; its kernels are not compiled."""
    monkeypatch.setattr(gpu, "compile_launch", lambda step, program, _: cubin_of(step, program))
    return Recording()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_plan_of_16_bits_hands_over_what_numba_does(dtype, recording, fake, monkeypatch):
    """Elements of two bytes, and dynamic shared memory, in the graph and by steps."""
    problem = replace(PROBLEM, dtype=dtype, channels_last=True)
    plan = Plan(problem, DIRECT_16, None, recording)
    fake.parameters = parameters_of(plan.program)
    arrays = {
        "input": recording.empty(problem.input_shape, dtype),
        "weight": recording.empty(problem.weight_shape, dtype),
        "out": recording.empty(problem.output_shape, dtype),
    }
    plan(**arrays, stream=7)
    known = arrays | plan._own | {"output": arrays["out"], "bias": plan._no_bias}
    for step, launched in zip(plan.program.launches, fake.launches, strict=True):
        assert launched["values"] == handed_by_numba(step, plan.program, known, monkeypatch)
        assert launched["shared"] == step.shared_bytes
    assert [step.shared_bytes for step in plan.program.launches] == [0, 4 * problem.C_o]
    graph = list(fake.launches)
    fake.launches.clear()
    for step in plan.steps(**arrays):
        step(7)
    assert fake.launches == graph
    assert fake.allowed == []  # up to 48 KB nobody need be asked


def test_a_plan_with_a_residual_hands_it_over(recording, fake, monkeypatch):
    """The residual is the kernel's last parameter. In a plan without one, the kernel's parameter
    has its default, and the machine code no parameter."""
    problem = replace(PROBLEM, in_channels=8, dtype="bfloat16", channels_last=True)
    shapes = problem.input_shape, problem.weight_shape, problem.output_shape
    input, weight, out = (recording.empty(shape, problem.dtype) for shape in shapes)
    code = count()
    monkeypatch.setattr(
        gpu,
        "compile_launch",
        lambda step, program, _: cubin_of(
            step, program, code=f"machine code of {next(code)}".encode()
        ),
    )
    for residual in (None, recording.empty(out.shape, problem.dtype), out):
        adds = {} if residual is None else {"residual": True}
        plan = Plan(problem, stage_named("h01"), None, recording, **adds)
        fake.parameters = parameters_of(plan.program)
        fake.launches.clear()
        plan(input, weight, out, residual=residual, stream=7)
        known = {"input": input, "weight": weight, "bias": plan._no_bias, "output": out}
        known |= {"residual": residual}
        (step,) = plan.program.launches
        (launched,) = fake.launches
        assert launched["values"] == handed_by_numba(step, plan.program, known, monkeypatch)
        assert len(step.arguments) == 4 + len(adds)


def with_shared_memory(nbytes: int, static: int = 0) -> tuple[Launch, launching.LoadedKernel]:
    """A launch with so much dynamic shared memory, and its kernel, which has shared arrays."""
    program = stage_named("m01").prepare(PROBLEM, None)
    step = replace(program.launches[0], shared_bytes=nbytes)
    facts = {"shared_bytes": static, "code": f"machine code of {static}".encode()}
    return step, launching.loaded(cubin_of(step, program, **facts), "direct")


def test_the_driver_is_asked_once_for_more_than_48_kb(fake):
    fake.parameters = parameters_of(stage_named("m01").prepare(PROBLEM, None))
    arrays = [arrays_at(0x1000)[name] for name in SHAPES]
    for nbytes, static, allowed in (
        (48 * 1024, 0, []),
        (48 * 1024, 16, [48 * 1024]),
        (100_000, 0, [48 * 1024, 100_000]),
        (90_000, 0, [48 * 1024, 100_000]),
        (227 * 1024, 0, [48 * 1024, 100_000, 227 * 1024]),
    ):
        step = with_shared_memory(nbytes, static)
        packed = packed_program.PackedProgram([step], SHAPES, {})
        packed(*arrays)
        fake.capturing = {5: CAPTURED}
        packed(*arrays, stream=5)
        fake.capturing = {}
        assert [launch["shared"] for launch in fake.launches[-2:]] == [nbytes] * 2
        assert fake.allowed == allowed


def test_more_shared_memory_than_a_block_has_is_refused_before_the_launch(fake):
    step = with_shared_memory(227 * 1024, static=64)
    said = (
        r"^shared_bytes is 232448: with 64 of shared arrays direct has 232512, but a block has at "
        r"most 232448$"
    )
    with pytest.raises(ValueError, match=said):
        packed_program.PackedProgram([step], SHAPES, {})
    assert fake.launches == []


def test_a_driver_that_refuses_the_shared_memory_is_told_of(fake):
    fake.answers = {"cuFuncSetAttribute": [driver.CUresult.CUDA_ERROR_INVALID_VALUE]}
    with pytest.raises(RuntimeError, match=r"^CUDA could not launch direct: .*INVALID_VALUE$"):
        packed_program.PackedProgram([with_shared_memory(100_000)], SHAPES, {})


@pytest.mark.parametrize("name", ["m01", "m08", "m11", "m15"])
def test_a_plan_s_graph_launches_what_its_steps_launch(name, recording, fake):
    plan = Plan(PROBLEM, stage_named(name), None, recording)
    fake.parameters = parameters_of(plan.program)
    input, weight, out = (recording.empty(SHAPES[key]) for key in ("input", "weight", "output"))
    assert plan(input, weight, out, stream=9) is out
    assert plan.packed
    assert plan.one_graph
    graph = list(fake.launches)
    fake.launches.clear()
    for step in plan.steps(input, weight, out):
        step(9)
    assert fake.launches == graph
    assert fake.alone == len(graph) == len(plan.program.launches)
    handed = {value for launch in graph for value in launch["values"]}
    assert {address_of(array) for array in (input, weight, out, plan._no_bias)} <= handed


@pytest.mark.parametrize("lent", [False, True], ids=["own workspace", "lent workspace"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_plan_started_at_addresses_launches_what_a_call_does(lent, with_bias, recording, fake):
    plan = Plan(PROBLEM, stage_named("m08"), None, recording, own_workspace=not lent)
    fake.parameters = parameters_of(plan.program)
    input, weight, out = (recording.empty(SHAPES[key]) for key in ("input", "weight", "output"))
    bias = recording.empty(SHAPES["bias"]) if with_bias else None
    buffers = [recording.empty(buffer.shape) for buffer in plan.program.buffers if lent]
    plan(input, weight, out, bias, stream=9, workspace=buffers)
    called = list(fake.launches)
    fake.launches.clear()
    plan.start_at(
        address_of(input),
        address_of(weight),
        None if bias is None else address_of(bias),
        address_of(out),
        list(map(address_of, buffers)),
        stream=9,
    )
    assert fake.launches == called
    assert len(called) == 2
    with pytest.raises(ValueError, match=r"^input is a device array that starts at address 0x4"):
        plan.start_at(4, address_of(weight), None, address_of(out), list(map(address_of, buffers)))


def test_a_plan_with_a_library_s_work_is_not_packed(recording, fake):
    plan = Plan(PROBLEM, stage_named("i04_im2col_blas"), None, recording)
    steps = plan.program.launches
    kernels = [step for step in steps if isinstance(step, Launch)]
    fake.parameters = [cubin_of(step, plan.program).parameter_bytes // 8 for step in kernels]
    input, weight, out = (recording.empty(SHAPES[key]) for key in ("input", "weight", "output"))
    assert plan(input, weight, out, stream=9) is out
    assert not plan.packed
    assert not plan.one_graph
    assert recording.called == [(step.name, 9) for step in steps if step not in kernels]
    assert [launch["stream"] for launch in fake.launches] == [9] * len(kernels)


@pytest.mark.parametrize("name", ["m01", "i04_im2col_blas"], ids=["packed", "with a library"])
def test_steps_check_arrays_and_the_gpu_as_a_call_does(name, recording, fake):
    plan = Plan(PROBLEM, stage_named(name), None, recording)
    arrays = {key: recording.empty(shape) for key, shape in SHAPES.items()}
    arrays["out"] = arrays.pop("output")
    for key, array in arrays.items():
        told = "output" if key == "out" else key
        misaligned = arrays | {key: device_array(array.shape, 0x5000_0004)}
        on_the_host = arrays | {key: np.ones(array.shape, np.float32)}
        for start in (plan, plan.steps):
            with pytest.raises(ValueError, match=f"^{told} is a device array that starts at "):
                start(**misaligned)
            with pytest.raises(TypeError, match=r"^an array is a ndarray in the host's memory: "):
                start(**on_the_host)
    kernels = [step for step in plan.program.launches if isinstance(step, Launch)]
    fake.parameters = [cubin_of(step, plan.program).parameter_bytes // 8 for step in kernels]
    started = plan.steps(**arrays)
    fake.context = 0  # a thread that has none gets the plan's
    started[0](0)
    assert fake.context == 1
    launched, fake.context = len(fake.launches), 2
    for step, start in zip(plan.program.launches, started, strict=True):
        if isinstance(step, Launch):
            with pytest.raises(RuntimeError, match=r"^the current GPU is another than this plan's"):
                start(0)
    assert len(fake.launches) == launched


def test_a_library_s_work_checks_the_gpu(fake, monkeypatch):
    called: list[str] = []
    adapter = ("library", lambda array: array, lambda handle: nullcontext())
    monkeypatch.setattr(gpu, "_library_name", lambda: "torch")
    monkeypatch.setitem(gpu._ADAPTERS, "torch", lambda: adapter)
    call = LibraryCall(lambda library, *arrays: called.append(library), ())
    start = Gpu().build(call, stage_named("m01").prepare(PROBLEM, None))
    fake.context = 2
    with pytest.raises(RuntimeError, match=r"^the current GPU is another than this plan's"):
        start([])
    assert not called
    fake.context = 0
    start([])
    assert (called, fake.context) == (["library"], 1)


def test_threads_inside_together_share_pytorch_s_setting():
    matmul = SimpleNamespace(allow_tf32=True)
    first, second = gpu.in_float32(matmul), gpu.in_float32(matmul)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # the second still multiplies
    assert matmul.allow_tf32 is False
    second.__exit__(None, None, None)
    assert matmul.allow_tf32 is True
    assert not gpu._inside_float32


# What the driver knows arrays and streams by.


class Tensor:
    """A tensor of PyTorch, as far as plans read it."""

    def __init__(self, is_cuda: bool = True) -> None:
        self.is_cuda = is_cuda

    def data_ptr(self) -> int:
        return 0xABC0


class Interface:
    """Somebody's array on a GPU; CuPy's has ``data.ptr`` beside it."""

    __cuda_array_interface__ = {"data": (0xABC0, False), "shape": (1,), "version": 3}  # noqa: RUF012


class CuPys(Interface):
    data = SimpleNamespace(ptr=0xABC0)


@pytest.mark.parametrize("array", [device_array((1,), 0xABC0), Tensor(), Interface(), CuPys()])
def test_where_an_array_lies(array):
    assert address_of(array) == 0xABC0
    reader = engines._readers[type(array)]
    assert address_of(array) == 0xABC0
    assert engines._readers[type(array)] is reader  # it is kept


@pytest.mark.parametrize("array", [np.ones(3, np.float32), Tensor(is_cuda=False), [1.0], None])
def test_what_is_not_on_a_gpu_is_refused(array):
    name = type(array).__name__
    assert address_of(Tensor()) == 0xABC0  # by a reader that is kept, of a type whose tensors move
    for _ in range(2):
        with pytest.raises(TypeError, match=f"^an array is a {name} in the host's memory: a plan"):
            address_of(array)


class Movable:
    """An array of a library whose arrays on the host have the same type, as JAX's."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu = on_gpu

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self.on_gpu:
            raise AttributeError("it is on the host")
        return Interface.__cuda_array_interface__


@pytest.mark.parametrize("gpu_first", [True, False])
def test_arrays_of_one_type_may_lie_on_the_gpu_or_on_the_host(gpu_first, monkeypatch):
    monkeypatch.setattr(engines, "_readers", {})
    for on_gpu in (gpu_first, not gpu_first, gpu_first):
        if on_gpu:
            assert address_of(Movable(on_gpu)) == 0xABC0
        else:
            with pytest.raises(TypeError, match=r"^an array is a Movable in the host's memory: "):
                address_of(Movable(on_gpu))


class Stream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0x55


def test_a_stream_by_any_name():
    numbas = cuda.cudadrv.driver.Stream(driver.CUstream(0x55))
    default = cuda.cudadrv.driver.Stream(driver.CUstream(0))
    for stream, handle in ((None, 0), (0, 0), (0x55, 0x55), (Stream(), 0x55), (numbas, 0x55)):
        assert engines.stream_handle(stream) == handle
    assert engines.stream_handle(default) == 0
    with pytest.raises(TypeError, match=r"^stream is 'fast': it must be None"):
        engines.stream_handle("fast")


# A plan's launches as one graph: which arrays each call is of, whatever happens.


@pytest.fixture
def one_graph(monkeypatch):
    """A plan has one graph, which its calls with other arrays update."""
    monkeypatch.setattr(packed_program, "MOST_GRAPHS", 1)


@pytest.fixture
def updated(fake):
    """Return the list of the nodes that are updated."""
    found, plain = [], fake.cuGraphExecKernelNodeSetParams

    def noted(made, node, kernel):
        found.append(node)
        return plain(made, node, kernel)

    fake.cuGraphExecKernelNodeSetParams = noted
    return found


@pytest.mark.parametrize("name", ["m01", "m08", "m11"])
def test_each_of_the_last_sets_of_arrays_has_a_graph(name, fake, updated, monkeypatch):
    monkeypatch.setattr(packed_program, "MOST_GRAPHS", 3)
    call, program = stage_packed(fake, name)
    sets = [arrays_at(base * 0x1000_0000) for base in (1, 2, 3, 4)]

    def launched(number):
        fake.launches.clear()
        updated.clear()
        call(*sets[number].values(), stream=7)
        assert fake.alone == 0
        return list(fake.launches)

    whole = list(range(len(program.launches)))
    first = [launched(0)]
    assert updated == whole  # the graph that was made with the plan
    for number in (1, 2):
        first.append(launched(number))
        assert updated == []  # of a new graph
    assert len({str(launches) for launches in first}) == 3
    for number in (0, 1, 2, 1, 0):
        assert launched(number) == first[number]
        assert updated == []
    last = launched(3)  # in the graph that nobody has asked for the longest: the third
    assert updated == [node for node in whole if last[node] != first[2][node]]
    for number in (0, 1):
        assert launched(number) == first[number]
        assert updated == []
    assert launched(2) == first[2]
    assert updated != []


def test_where_the_driver_makes_no_more_graphs_one_is_updated(fake, updated):
    call, arrays = m01(fake), arrays_at(0x1000)
    call(*arrays.values())
    fake.answers = {"cuGraphInstantiate": [OUT_OF_RESOURCES]}
    updated.clear()
    call(*arrays_at(0x2000_0000).values())
    assert updated == [0]
    assert fake.gone == ["graph"]
    assert 0x2000_0000 in fake.launches[-1]["values"]
    call(*arrays.values())  # by a graph of its own
    assert updated == [0]
    assert fake.launches[-1] == fake.launches[0]
    assert fake.alone == 0


def test_a_graph_is_made_while_another_thread_captures_one(fake):
    """Making it allocates memory, which would end the capture."""
    call, plain, modes = m01(fake), fake.cuGraphInstantiate, []

    def noted(graph, flags):
        modes.append(fake.mode)
        return plain(graph, flags)

    fake.cuGraphInstantiate = noted
    for base in (0x1000_0000, 0x2000_0000):
        call(*arrays_at(base).values())
    assert modes == [RELAXED]
    assert fake.mode == STRICT


def test_only_what_takes_another_array_is_updated(fake, updated, one_graph):
    """m08 packs the weight and then takes all but that."""
    call, _ = stage_packed(fake, "m08")
    arrays = arrays_at(0x1000)
    for name, nodes in (("input", [0, 1]), ("output", [1]), ("weight", [0]), ("bias", [1])):
        updated.clear()
        arrays[name] = device_array(SHAPES[name], address_of(arrays[name]) + 0x4000_0000)
        call(*arrays.values())
        assert updated == nodes
        handed = [value for launch in fake.launches[-2:] for value in launch["values"]]
        assert all(address_of(array) in handed for array in arrays.values())
    updated.clear()
    call(*arrays.values())
    assert updated == []


@pytest.mark.parametrize("name", ["m01", "m08", "m11"])
@pytest.mark.parametrize("how", ["Ctrl-C before", "Ctrl-C after", "refused"])
@pytest.mark.parametrize("captured", [False, True])
def test_a_call_that_ends_half_way_harms_no_later_one(
    name, how, captured, fake, one_graph, monkeypatch
):
    """While some kernels take the new arrays and some still the old ones."""
    call, program = stage_packed(fake, name)
    first, second = arrays_at(0x1000_0000), arrays_at(0x2000_0000)
    update = launching.LaunchGraph.update
    for last in range(len(program.launches)):
        fake.capturing = {}
        call(*first.values(), stream=7)
        right = list(fake.launches)
        left = [last]

        def half(graph, place, left=left):
            left[0] -= 1
            if left[0] < 0 and how == "Ctrl-C before":
                raise KeyboardInterrupt
            if left[0] < 0 and how == "refused":
                fake.answers = {"cuGraphExecKernelNodeSetParams": [OUT_OF_RESOURCES]}
            update(graph, place)
            if left[0] < 0:
                raise KeyboardInterrupt

        monkeypatch.setattr(launching.LaunchGraph, "update", half)
        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            call(*second.values(), stream=7)
        monkeypatch.setattr(launching.LaunchGraph, "update", update)
        fake.launches.clear()
        fake.capturing = {7: CAPTURED} if captured else {}
        call(*first.values(), stream=7)
        assert fake.launches == right
        fake.launches.clear()


@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuGraphExecKernelNodeSetParams"])
def test_a_launch_that_the_driver_refuses_raises(call, fake):
    fake.answers = {call: [OUT_OF_RESOURCES]}
    refused = "^CUDA could not launch direct: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES$"
    launch, arrays = m01(fake), arrays_at(0x1000)
    with pytest.raises(RuntimeError, match=refused):
        launch(*arrays.values())
    assert len(fake.launches) == (call == "cuGraphLaunch")
    launch(*arrays.values())  # with the arrays' addresses, whether or not they were copied before
    assert address_of(arrays["input"]) in fake.launches[-1]["values"]
    several, _ = stage_packed(fake, "m08")
    fake.answers = {"cuGraphLaunch": [OUT_OF_RESOURCES]}
    with pytest.raises(RuntimeError, match=r"^CUDA could not launch pack_filter, double_buffer: "):
        several(*arrays.values())


def test_a_thread_without_a_context_gets_the_plan_s_and_another_gpu_s_is_refused(fake):
    call, arrays = m01(fake), arrays_at(0x1000)
    for launches in (1, 2):  # in the second call there is nothing to write
        fake.context = 0
        call(*arrays.values())
        assert fake.context == 1
        assert len(fake.launches) == launches
    fake.context = 0
    fake.answers = {"cuCtxSetCurrent": [driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED]}
    with pytest.raises(RuntimeError, match=r"^CUDA could not launch direct: .*DESTROYED$"):
        call(*arrays.values())
    fake.context = 2
    with pytest.raises(RuntimeError, match=r"^the current GPU is another than this plan's: "):
        call(*arrays.values())
    assert len(fake.launches) == 2
    fake.context = 1
    call(*arrays.values())
    assert len(fake.launches) == 3


@pytest.mark.parametrize("stream", [0, 2, 7])
@pytest.mark.parametrize("status", [CAPTURED, INVALIDATED])
def test_a_captured_stream_gets_launches_of_their_own(stream, status, fake):
    """A graph cannot be launched while another is captured, nor may it be updated. What the
    capture's arrays were is none of a later call's, and the other way round."""
    call, program = stage_packed(fake, "m11")
    first, second = arrays_at(0x1000_0000), arrays_at(0x2000_0000)
    expected = {}
    for name, arrays in (("first", first), ("second", second)):
        call(*arrays.values(), stream=stream)
        expected[name] = list(fake.launches)
        fake.launches.clear()
    assert fake.alone == 0
    assert expected["first"] != expected["second"]
    for captured, name in ((True, "first"), (False, "first"), (True, "second"), (False, "first")):
        fake.capturing = {stream: status} if captured else {}
        call(*(first if name == "first" else second).values(), stream=stream)
        assert fake.launches == expected[name]
        fake.launches.clear()
    assert fake.alone == 2 * len(program.launches)
    fake.capturing = {stream: status}
    fake.answers = {"cuLaunchKernel": [fake.done, OUT_OF_RESOURCES]}
    with pytest.raises(RuntimeError, match=f"^CUDA could not launch {program.launches[1].name}: "):
        call(*first.values(), stream=stream)


def test_where_a_stream_cannot_be_asked_the_graph_is_tried(fake):
    """The default one, while another that blocks it is captured."""
    fake.answers = {"cuStreamIsCapturing": [driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT]}
    m01(fake)(*arrays_at(0x1000).values())
    assert (len(fake.launches), fake.alone) == (1, 0)


@pytest.mark.parametrize("call", ["cuGraphCreate", "cuGraphAddKernelNode", "cuGraphInstantiate"])
def test_where_the_driver_makes_no_graph_launches_go_singly(call, fake):
    fake.answers = {call: [OUT_OF_RESOURCES]}
    launch, arrays = m01(fake), arrays_at(0x1000)
    assert fake.gone == ([] if call == "cuGraphCreate" else ["graph"])
    said = "CUDA could not launch direct: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    assert launch.why_no_graph == said
    assert m01(fake).why_no_graph is None
    launch(*arrays.values())
    assert fake.alone == 1
    assert address_of(arrays["input"]) in fake.launches[0]["values"]


@pytest.mark.parametrize("context", [0, 1, 2])
@pytest.mark.parametrize("capturing", [{}, {7: CAPTURED}])
def test_a_graph_goes_with_what_launches_it(context, capturing, fake):
    """Any thread may release it: without a context, in another's, while a graph is captured."""
    call = m01(fake)
    call(*arrays_at(0x1000).values())
    assert fake.gone == []
    fake.context, fake.capturing = context, capturing
    del call
    assert sorted(fake.gone) == ["executable", "graph"]
    assert (fake.context, fake.mode) == (context, STRICT)


@pytest.mark.parametrize("another", [False, True])
def test_a_graph_has_gone_with_its_context_and_is_left_where_python_ends(another, fake):
    """Even where another context has taken its place; at Python's end there may be no driver."""
    call = m01(fake)
    assert [finalizer.atexit for finalizer in fake.finalizers] == [False]
    assert fake.finalizers[0].alive
    if another:
        fake.name += 1
    else:
        fake.answers = {"cuCtxGetId": [driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED]}
    del call
    assert fake.gone == []
    assert (fake.context, fake.mode) == (1, STRICT)


def test_threads_do_not_mix_their_arrays(fake):
    """One thread is inside a launch, its addresses written, while another calls."""
    plain, inside = fake.cuGraphLaunch, threading.Event()

    def slow(*arguments):
        inside.set()
        time.sleep(0.1)  # the driver lets other threads run, too
        return plain(*arguments)

    fake.cuGraphLaunch = slow
    call = m01(fake)
    first = threading.Thread(target=call, args=tuple(arrays_at(0x1000_0000).values()))
    first.start()
    assert inside.wait(5)
    call(*arrays_at(0x2000_0000).values())
    first.join()
    highest = [max(launch["values"]) >> 28 for launch in fake.launches]
    assert highest == [1, 2]
