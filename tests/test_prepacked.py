"""Planned calls without a GPU: what the driver is handed, beside what Numba's launch hands it."""

from __future__ import annotations

import ctypes
import math
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from numba.cuda.core import config

from convlab.engines import handles
from convlab.engines.gpu import Gpu, signature
from convlab.engines.handles import address_of, stream_handle
from convlab.plans import Plan, _pick
from convlab.problem import ConvProblem
from convlab.stages import LADDER, Stage, stage_named
from convlab.stages.base import Argument, Flat, Images, Launch, Program

if config.ENABLE_CUDASIM:
    pytest.skip("Numba runs as its CUDA simulator: it has no launch", allow_module_level=True)

from numba.cuda import dispatcher
from numba.cuda.cudadrv.devicearray import DeviceNDArray

from convlab.engines import launch_graph, prepacked

PROBLEM = ConvProblem(3, 5, 9, 7, 6, (3, 2), stride=(2, 1), padding=1)
SHAPES = {
    "input": PROBLEM.input_shape,
    "weight": PROBLEM.weight_shape,
    "bias": (6,),
    "output": PROBLEM.output_shape,
}
KERNEL, HANDLE = 0xCE11, 0xC0DE
STRICT = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
CAPTURED = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
INVALIDATED = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED
without_library = [stage for stage in LADDER if not stage.needs_library]


def device_array(shape: tuple[int, ...], address: int) -> DeviceNDArray:
    """An array of Numba's that says it lies there."""
    memory = SimpleNamespace(device_ctypes_pointer=ctypes.c_size_t(address))
    strides = [4 * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return DeviceNDArray(shape, strides, np.float32, gpu_data=memory)


def kernel_of(step: Launch, program: Program) -> Any:
    """Numba's compiled kernel of a launch, but for the machine code."""
    kernel = object.__new__(dispatcher._Kernel)
    kernel.debug = kernel.cooperative = kernel.launch_config_sensitive = False
    kernel.extensions = []
    kernel.signature = SimpleNamespace(args=signature(step, program))
    function = SimpleNamespace(kernel="compiled", handle=driver.CUkernel(KERNEL))
    kernel._codelibrary = SimpleNamespace(get_cufunc=lambda: function)
    return kernel


class Driver:
    """CUDA's, as far as launches go: keeps what it is handed, read as the GPU would read it."""

    CUfunction, CUkernel, CUresult = driver.CUfunction, driver.CUkernel, driver.CUresult
    CUDA_KERNEL_NODE_PARAMS = driver.CUDA_KERNEL_NODE_PARAMS
    CUstreamCaptureMode, CUstreamCaptureStatus = (
        driver.CUstreamCaptureMode, driver.CUstreamCaptureStatus,
    )  # fmt: skip
    done = driver.CUresult.CUDA_SUCCESS

    def cuKernelGetFunction(self, kernel: Any) -> tuple[Any, Any]:
        known = int(kernel) == KERNEL
        error = "CUDA_SUCCESS" if known else "CUDA_ERROR_INVALID_HANDLE"
        return getattr(driver.CUresult, error), driver.CUfunction(HANDLE if known else 0)

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.alone = 0  # how many of them were in no graph
        self.answers: dict[str, list[Any]] = {}  # to which call, instead of CUDA_SUCCESS
        self.parameters: list[int] = []
        self.capturing: dict[int, Any] = {}  # streams, and the status of each
        self.mode = STRICT  # in which graphs are captured: not relaxed, it ends at unsafe calls
        self.context, self.name = 1, 41  # that one's number among all there ever were
        self.gone: list[Any] = []
        self.finalizers: list[Any] = []

    def _answer(self, call: str) -> Any:
        answers = self.answers.get(call)
        return answers.pop(0) if answers else self.done

    def _launch(self, which: int, function: Any, shape: Any, pointers: int) -> dict[str, Any]:
        assert int(function) == HANDLE
        count = self.parameters[which % len(self.parameters)]
        places = (ctypes.c_void_p * count).from_address(pointers)
        values = [ctypes.c_uint64.from_address(place).value for place in places]
        return {"grid": tuple(shape[:3]), "block": tuple(shape[3:]), "values": values}

    def cuLaunchKernel(self, function: Any, *numbers: int) -> tuple[Any]:
        *shape, shared, stream, pointers, extra = numbers
        assert (shared, extra) == (0, 0)
        launch = self._launch(self.alone, function, shape, pointers)
        self.alone += 1
        self.launches.append(launch | {"stream": stream})
        return (self._answer("cuLaunchKernel"),)

    def cuGraphCreate(self, flags: int) -> tuple[Any, Any]:
        return self._answer("cuGraphCreate"), SimpleNamespace(nodes=[])

    def cuGraphAddKernelNode(
        self, graph: Any, before: list[int], count: int, kernel: Any
    ) -> tuple[Any, Any]:
        node = len(graph.nodes)
        assert before == ([node - 1] if node else []), "each after the one before it"
        assert count == len(before)
        grid, block = self._shape(kernel)
        # How many parameters there are, some tests only know once a plan is made.
        graph.nodes.append(
            self._launch(node, kernel.func, grid + block, int(kernel.kernelParams))
            if self.parameters
            else None
        )
        return self._answer("cuGraphAddKernelNode"), node

    def _shape(self, kernel: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        assert kernel.sharedMemBytes == 0
        return (
            (kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ),
            (kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ),
        )

    def cuGraphInstantiate(self, graph: Any, flags: int) -> tuple[Any, Any]:
        return self._answer("cuGraphInstantiate"), SimpleNamespace(graph=graph)

    def _unsafe(self) -> None:
        assert self.context, "a driver without a context crashes here"
        assert not self.capturing or self.mode == RELAXED, "that ends a capture"

    def cuGraphExecKernelNodeSetParams(self, made: Any, node: int, kernel: Any) -> tuple[Any]:
        self._unsafe()
        grid, block = self._shape(kernel)
        launch = self._launch(node, kernel.func, grid + block, int(kernel.kernelParams))
        made.graph.nodes[node] = launch
        return (self._answer("cuGraphExecKernelNodeSetParams"),)

    def cuGraphLaunch(self, made: Any, stream: int) -> tuple[Any]:
        assert self.context, "a driver without a context crashes here"
        assert stream not in self.capturing
        self.launches += [launch | {"stream": stream} for launch in made.graph.nodes]
        return (self._answer("cuGraphLaunch"),)

    def cuStreamIsCapturing(self, stream: int) -> tuple[Any, Any]:
        error = self._answer("cuStreamIsCapturing")
        none = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        return error, None if error else self.capturing.get(stream, none)

    def cuCtxGetCurrent(self) -> tuple[Any, Any]:
        return self.done, driver.CUcontext(self.context)

    def cuCtxSetCurrent(self, context: int) -> tuple[Any]:
        error = self._answer("cuCtxSetCurrent")
        if not error:
            self.context = int(context)
        return (error,)

    def cuCtxGetId(self, context: Any) -> tuple[Any, Any]:
        assert int(context) == 1
        error = self._answer("cuCtxGetId")
        return error, None if error else self.name

    def cuCtxPushCurrent(self, context: Any) -> tuple[Any]:
        self.below, self.context = self.context, int(context)
        return (self.done,)

    def cuCtxPopCurrent(self) -> tuple[Any, Any]:
        self.context = self.below
        return self.done, None

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> tuple[Any, Any]:
        self.mode, before = mode, self.mode
        return self.done, before

    def cuGraphDestroy(self, graph: Any) -> None:
        self._unsafe()
        self.gone.append("graph")

    def cuGraphExecDestroy(self, made: Any) -> None:
        self._unsafe()
        self.gone.append("executable")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    fake = Driver()
    monkeypatch.setattr(prepacked, "driver", fake)
    monkeypatch.setattr(launch_graph, "driver", fake)

    def finalize(*arguments: Any) -> Any:
        fake.finalizers.append(weakref.finalize(*arguments))
        return fake.finalizers[-1]

    monkeypatch.setattr(launch_graph, "weakref", SimpleNamespace(finalize=finalize))
    yield fake
    for finalizer in fake.finalizers:
        finalizer.detach()  # what outlives the test has no driver to go to


def prepared(
    fake: Driver, program: Program, held: dict[str, Any]
) -> tuple[prepacked.Prepacked, list[tuple[Launch, Any]]]:
    """A program's launches, packed, and their kernels."""
    launches = [(step, kernel_of(step, program)) for step in program.launches]
    shapes = SHAPES | {buffer.name: buffer.shape for buffer in program.buffers}
    # Numba's ABI of an array: five numbers, then shape and strides, one parameter each.
    fake.parameters = [sum(5 + 2 * kind.ndim for kind in k.argument_types) for _, k in launches]
    packed = prepacked.prepack(launches, shapes, held)
    assert packed is not None
    return packed, launches


def view_of(argument: Argument, arrays: dict[str, DeviceNDArray]) -> DeviceNDArray:
    """What a plan hands to Numba's launch, cut out as NumPy cuts an array of that shape."""
    whole = arrays[str(argument)]
    host = np.empty(whole.shape, np.float32)
    part = _pick(argument, {str(argument): host})
    behind = part.ctypes.data - host.ctypes.data
    return device_array(part.shape, address_of(whole) + behind)


def handed_by_numba(
    kernel: Any, step: Launch, arrays: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """The parameters that Numba's own launch hands over."""
    handed: list[Any] = []
    monkeypatch.setattr(dispatcher, "LaunchConfig", lambda **_: None)
    monkeypatch.setattr(dispatcher, "launch", lambda stream, config, kernel, *a: handed.extend(a))
    views = [view_of(argument, arrays) for argument in step.arguments]
    kernel.launch(views, step.grid, step.block)
    return handed


def arrays_at(base: int) -> dict[str, DeviceNDArray]:
    return {
        name: device_array(shape, base + 0x10000 * place)
        for place, (name, shape) in enumerate(SHAPES.items())
    }


def programs(stage: Stage) -> list[Program]:
    """At its tile for a GPU, and in slices where it can."""
    made = [stage.prepare(PROBLEM, stage.production_tile(PROBLEM))]
    if stage.in_slices:
        two = stage.prepare(replace(PROBLEM, batch=2), made[0].tile).workspace_bytes
        made.append(stage.prepare(PROBLEM, made[0].tile, workspace_limit=two))
        asked = [argument for step in made[1].launches for argument in step.arguments]
        assert any(isinstance(getattr(argument, "of", argument), Images) for argument in asked)
    return made


@pytest.mark.parametrize("stage", without_library, ids=lambda stage: stage.name)
def test_every_parameter_is_what_numbas_launch_hands_over(
    stage: Stage, fake: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in programs(stage):
        fake.launches.clear()
        held = {
            buffer.name: device_array(buffer.shape, 0x7F00_0000_0000 + 0x100000 * place)
            for place, buffer in enumerate(program.buffers)
        }
        packed, launches = prepared(fake, program, held)
        for base in (0x7E00_0000_0000, 0x7D00_0000_0000):  # other arrays in the second call
            arrays = arrays_at(base)
            packed(*arrays.values(), 7)
            for (step, kernel), launched in zip(launches, fake.launches, strict=True):
                handed = handed_by_numba(kernel, step, arrays | held, monkeypatch)
                assert launched["values"] == handed
                assert launched["grid"] == (*step.grid, 1, 1)[:3]
                assert launched["block"] == (*step.block, 1, 1)[:3]
                assert launched["stream"] == 7
            fake.launches.clear()


def test_a_part_of_a_tensor_begins_behind_its_start() -> None:
    image = 5 * 9 * 7
    cases: list[tuple[Argument, tuple[str, int, tuple[int, ...]]]] = [
        ("input", ("input", 0, (3, 5, 9, 7))),
        (Flat("input"), ("input", 0, (3 * image,))),
        (Images("input", 1, 3), ("input", 4 * image, (2, 5, 9, 7))),
        (Flat(Images("input", 2, 5)), ("input", 8 * image, (image,))),
    ]
    for argument, place in cases:
        assert prepacked._place(argument, SHAPES) == place


def test_a_part_of_a_buffer_begins_behind_its_start(fake: Driver) -> None:
    """No stage has such an argument yet."""
    program = stage_named("s01").prepare(PROBLEM, None)
    step = replace(
        program.launches[0], arguments=(Images("input", 1, 3), "weight", "bias", "output")
    )
    held = {"input": device_array(SHAPES["input"], 0x7000_0000_0000)}
    packed, _ = prepared(fake, replace(program, launches=(step,)), held)
    packed(*arrays_at(0x1000).values())
    assert 0x7000_0000_0000 + 4 * 5 * 9 * 7 in fake.launches[0]["values"]


def test_only_what_takes_another_array_is_updated(fake: Driver) -> None:
    """s09 packs the weight and then takes all but that."""
    call, _ = stage_packed(fake, "s09")
    updated, plain = [], fake.cuGraphExecKernelNodeSetParams

    def noted(made: Any, node: int, kernel: Any) -> tuple[Any]:
        updated.append(node)
        return plain(made, node, kernel)

    fake.cuGraphExecKernelNodeSetParams = noted  # type: ignore[method-assign]
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


def test_the_same_addresses_are_not_written_again(fake: Driver) -> None:
    call, arrays = s01(fake), arrays_at(0x1000)
    call(*arrays.values())
    (packed,) = call._launches
    packed.write = None  # type: ignore[assignment]
    call(*arrays.values())
    assert fake.launches[0] == fake.launches[1]
    with pytest.raises(TypeError):
        call(*arrays_at(0x2000).values())


@pytest.mark.parametrize("name", prepacked.TENSORS)
def test_an_array_that_starts_between_is_refused(name: str, fake: Driver) -> None:
    call, arrays = s01(fake), arrays_at(0x1000)
    call(*arrays.values())
    shifted = arrays | {name: device_array(SHAPES[name], 0x5000_0004)}
    with pytest.raises(ValueError, match=f"^{name} is a device array that starts at .*0x50000004"):
        call(*shifted.values())
    call(*arrays.values())
    assert fake.launches[0] == fake.launches[1]
    assert len(fake.launches) == 2


@pytest.mark.parametrize("name", ["s01", "s09", "s11"])
@pytest.mark.parametrize("how", ["Ctrl-C before", "Ctrl-C after", "refused"])
@pytest.mark.parametrize("captured", [False, True])
def test_a_call_that_ends_half_way_harms_no_later_one(
    name: str, how: str, captured: bool, fake: Driver
) -> None:
    """While some kernels take the new arrays and some still the old ones."""
    call, program = stage_packed(fake, name)
    first, second = arrays_at(0x1000_0000), arrays_at(0x2000_0000)
    assert call._graph is not None
    update = call._graph.update
    for last in range(len(program.launches)):
        fake.capturing = {}
        call(*first.values(), 7)
        right = list(fake.launches)
        left = [last]

        def half(place: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0 and how == "Ctrl-C before":
                raise KeyboardInterrupt
            if left[0] < 0 and how == "refused":
                fake.answers = {"cuGraphExecKernelNodeSetParams": [OUT_OF_RESOURCES]}
            update(place)
            if left[0] < 0:
                raise KeyboardInterrupt

        call._graph.update = half  # type: ignore[method-assign]
        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            call(*second.values(), 7)
        call._graph.update = update  # type: ignore[method-assign]
        fake.launches.clear()
        fake.capturing = {7: CAPTURED} if captured else {}
        call(*first.values(), 7)
        assert fake.launches == right
        fake.launches.clear()


def stage_packed(fake: Driver, name: str) -> tuple[prepacked.Prepacked, Program]:
    stage = stage_named(name)
    program = stage.prepare(PROBLEM, stage.production_tile(PROBLEM))
    held = {
        buffer.name: device_array(buffer.shape, 0x7F00_0000_0000 + 0x100000 * place)
        for place, buffer in enumerate(program.buffers)
    }
    return prepared(fake, program, held)[0], program


def s01(fake: Driver) -> prepacked.Prepacked:
    stage = stage_named("s01")
    return prepared(fake, stage.prepare(PROBLEM, None), {})[0]


def test_a_handle_of_a_function_is_taken_as_it_is(fake: Driver) -> None:
    for handle in (HANDLE, driver.CUfunction(HANDLE)):
        assert int(prepacked._function(handle)) == HANDLE


OUT_OF_RESOURCES = driver.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES


@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuGraphExecKernelNodeSetParams"])
def test_a_launch_that_the_driver_refuses_raises(call: str, fake: Driver) -> None:
    fake.answers = {call: [OUT_OF_RESOURCES]}
    refused = "^CUDA could not launch direct: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES$"
    launch, arrays = s01(fake), arrays_at(0x1000)
    with pytest.raises(RuntimeError, match=refused):
        launch(*arrays.values())
    assert len(fake.launches) == (call == "cuGraphLaunch")
    launch(*arrays.values())  # with the arrays' addresses, whether or not they were copied before
    assert address_of(arrays["input"]) in fake.launches[-1]["values"]


def test_an_error_names_the_kernels_of_a_graph_once_each(fake: Driver) -> None:
    call, _ = stage_packed(fake, "s09")
    fake.answers = {"cuGraphLaunch": [OUT_OF_RESOURCES]}
    with pytest.raises(RuntimeError, match=r"^CUDA could not launch pack_filter, double_buffer: "):
        call(*arrays_at(0x1000).values())
    in_slices = stage_named("s03_im2col")
    least = in_slices.prepare(replace(PROBLEM, batch=1), in_slices.production_tile(PROBLEM))
    program = in_slices.prepare(PROBLEM, least.tile, workspace_limit=least.workspace_bytes)
    assert len(program.launches) > len({step.name for step in program.launches})
    held = {buffer.name: device_array(buffer.shape, 0x7F00_0000_0000) for buffer in program.buffers}
    call, _ = prepared(fake, program, held)
    fake.answers = {"cuGraphLaunch": [OUT_OF_RESOURCES]}
    with pytest.raises(RuntimeError) as refused:
        call(*arrays_at(0x1000).values())
    for step in program.launches:
        assert str(refused.value).count(step.name) == 1


def test_a_thread_without_a_context_gets_the_plan_s(fake: Driver) -> None:
    call, arrays = s01(fake), arrays_at(0x1000)
    for launches in (1, 2):  # in the second call there is nothing to write
        fake.context = 0
        call(*arrays.values())
        assert fake.context == 1
        assert len(fake.launches) == launches
    fake.context = 0
    fake.answers = {"cuCtxSetCurrent": [driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED]}
    with pytest.raises(RuntimeError, match=r"^CUDA could not launch direct: .*DESTROYED$"):
        call(*arrays.values())


def test_another_gpu_s_context_is_refused(fake: Driver) -> None:
    call, arrays = s01(fake), arrays_at(0x1000)
    fake.context = 2
    with pytest.raises(RuntimeError, match=r"^the current GPU is another than this plan's: "):
        call(*arrays.values())
    assert fake.launches == []
    fake.context = 1
    call(*arrays.values())
    assert len(fake.launches) == 1


@pytest.mark.parametrize("stream", [0, 2, 7])
@pytest.mark.parametrize("status", [CAPTURED, INVALIDATED])
def test_a_captured_stream_gets_launches_of_their_own(
    stream: int, status: Any, fake: Driver
) -> None:
    """A graph cannot be launched while another is captured, nor may it be updated. What the
    capture's arrays were is none of a later call's, and the other way round."""
    call, program = stage_packed(fake, "s11")
    first, second = arrays_at(0x1000_0000), arrays_at(0x2000_0000)
    expected = {}
    for name, arrays in (("first", first), ("second", second)):
        call(*arrays.values(), stream)
        expected[name] = list(fake.launches)
        fake.launches.clear()
    assert fake.alone == 0
    assert expected["first"] != expected["second"]
    for captured, name in ((True, "first"), (False, "first"), (True, "second"), (False, "first")):
        fake.capturing = {stream: status} if captured else {}
        call(*(first if name == "first" else second).values(), stream)
        assert fake.launches == expected[name]
        fake.launches.clear()
    assert fake.alone == 2 * len(program.launches)
    fake.capturing = {stream: status}
    fake.answers = {"cuLaunchKernel": [fake.done, OUT_OF_RESOURCES]}
    with pytest.raises(RuntimeError, match=f"^CUDA could not launch {program.launches[1].name}: "):
        call(*first.values(), stream)


def test_where_a_stream_cannot_be_asked_the_graph_is_tried(fake: Driver) -> None:
    """The default one, while another that blocks it is captured."""
    fake.answers = {"cuStreamIsCapturing": [driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT]}
    s01(fake)(*arrays_at(0x1000).values())
    assert (len(fake.launches), fake.alone) == (1, 0)


@pytest.mark.parametrize("call", ["cuGraphCreate", "cuGraphAddKernelNode", "cuGraphInstantiate"])
def test_where_the_driver_makes_no_graph_launches_go_singly(call: str, fake: Driver) -> None:
    fake.answers = {call: [OUT_OF_RESOURCES]}
    launch, arrays = s01(fake), arrays_at(0x1000)
    assert fake.gone == ([] if call == "cuGraphCreate" else ["graph"])
    launch(*arrays.values())
    assert fake.alone == 1
    assert address_of(arrays["input"]) in fake.launches[0]["values"]


@pytest.mark.parametrize("context", [0, 1, 2])
@pytest.mark.parametrize("capturing", [{}, {7: CAPTURED}])
def test_a_graph_goes_with_what_launches_it(
    context: int, capturing: dict[int, Any], fake: Driver
) -> None:
    """In whichever thread: without a context, in another's, while a graph is captured."""
    call = s01(fake)
    call(*arrays_at(0x1000).values())
    assert fake.gone == []
    fake.context, fake.capturing = context, capturing
    del call
    assert sorted(fake.gone) == ["executable", "graph"]
    assert (fake.context, fake.mode) == (context, STRICT)


@pytest.mark.parametrize("another", [False, True])
def test_a_graph_has_gone_with_its_context(another: bool, fake: Driver) -> None:
    """Even where another context has taken its place."""
    call = s01(fake)
    if another:
        fake.name += 1
    else:
        fake.answers = {"cuCtxGetId": [driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED]}
    del call
    assert fake.gone == []
    assert (fake.context, fake.mode) == (1, STRICT)


def test_a_graph_is_left_where_python_ends(fake: Driver) -> None:
    """By then there may be no driver to ask."""
    call = s01(fake)
    assert [finalizer.atexit for finalizer in fake.finalizers] == [False]
    assert fake.finalizers[0].alive
    del call


def test_threads_do_not_mix_their_arrays(fake: Driver) -> None:
    """One thread is inside a launch, its addresses written, while another calls."""
    plain, inside = fake.cuGraphLaunch, threading.Event()

    def slow(*arguments: Any) -> tuple[Any]:
        inside.set()
        time.sleep(0.1)  # the driver lets other threads run, too
        return plain(*arguments)

    fake.cuGraphLaunch = slow  # type: ignore[method-assign]
    call = s01(fake)
    first = threading.Thread(target=call, args=tuple(arrays_at(0x1000_0000).values()))
    first.start()
    assert inside.wait(5)
    call(*arrays_at(0x2000_0000).values())
    first.join()
    highest = [max(launch["values"]) >> 28 for launch in fake.launches]
    assert highest == [1, 2]


class Surprise:
    """A kernel of a numba-cuda that is not as expected."""

    def __init__(self, **changed: Any) -> None:
        self.changed = changed

    def __call__(self, step: Launch, program: Program) -> Any:
        kernel = kernel_of(step, program)
        for name, value in self.changed.items():
            setattr(kernel, name, value)
        return kernel


SURPRISES = {
    "no code library": Surprise(_codelibrary=None),
    "no handle": Surprise(_codelibrary=SimpleNamespace(get_cufunc=lambda: SimpleNamespace())),
    "another handle": Surprise(
        _codelibrary=SimpleNamespace(
            get_cufunc=lambda: SimpleNamespace(handle=driver.CUkernel(KERNEL + 1))
        )
    ),
    "no such method": Surprise(_prepare_args=None),
    "other arguments": Surprise(_prepare_args=lambda kind, value: None),
    "no address": Surprise(_prepare_args=lambda *a: a[-1].extend([0, 0, 1, 4, 7, 1, 4])),
    "two addresses": Surprise(_prepare_args=lambda *a: a[-1].extend(2 * [prepacked.MARK])),
    "not numbers": Surprise(
        _prepare_args=lambda *a: a[-1].extend([prepacked.MARK, ctypes.c_uint32(4)])
    ),
    "debug": Surprise(debug=True),
    "cooperative": Surprise(cooperative=True),
    "sensitive": Surprise(launch_config_sensitive=True),
    "extensions": Surprise(extensions=[object()]),
}


@pytest.mark.parametrize("surprise", SURPRISES)
def test_where_numba_is_not_as_expected_nothing_is_packed(surprise: str, fake: Driver) -> None:
    program = stage_named("s01").prepare(PROBLEM, None)
    (step,) = program.launches
    assert prepacked.prepack([(step, kernel_of(step, program))], SHAPES, {}) is not None
    assert prepacked.prepack([(step, SURPRISES[surprise](step, program))], SHAPES, {}) is None


class Recording(Gpu):
    """The GPU engine with everything that needs a GPU taken out: what is launched, and how."""

    device = "none"  # type: ignore[assignment]

    def __init__(self, surprise: Surprise | None = None) -> None:
        self.kernel_for = surprise or Surprise()
        self.plain: list[tuple[str, Any]] = []
        self.address = 0x7000_0000_0000

    def free_bytes(self) -> None:
        return None

    def capability(self) -> tuple[int, int]:
        return (9, 0)

    def empty(self, shape: tuple[int, ...]) -> DeviceNDArray:
        self.address += 0x1000000
        return device_array(shape, self.address)

    def to_device(self, host: np.ndarray) -> DeviceNDArray:
        return self.empty(host.shape)

    def build(self, step: Any, program: Program) -> Any:
        if isinstance(step, Launch):
            step.kernel.compile = lambda _: self.kernel_for(step, program)
        return lambda arrays, stream=None: self.plain.append((step.name, stream))


def test_where_numba_has_put_its_arrays_elsewhere_nothing_is_packed(
    fake: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = stage_named("s01").prepare(PROBLEM, None)
    (step,) = program.launches
    monkeypatch.setitem(sys.modules, "numba.cuda.cudadrv.devicearray", None)
    assert prepacked.prepack([(step, kernel_of(step, program))], SHAPES, {}) is None


@pytest.mark.parametrize("name", ["s09", "s11"])
def test_a_plan_takes_the_packed_launches(name: str, fake: Driver) -> None:
    engine = Recording()
    plan = Plan(PROBLEM, stage_named(name), None, engine)
    fake.parameters = [
        sum(5 + 2 * plan.program.ndim(argument) for argument in step.arguments)
        for step in plan.program.launches
    ]
    input, weight, out = (engine.empty(SHAPES[key]) for key in ("input", "weight", "output"))
    assert plan(input, weight, out, stream=9) is out
    assert engine.plain == []
    assert plan.one_graph
    assert len(fake.launches) == len(plan.program.launches)
    handed = {value for launch in fake.launches for value in launch["values"]}
    assert {address_of(array) for array in (input, weight, out, plan._no_bias)} <= handed


@pytest.mark.parametrize(
    ("name", "surprise"), [("s11", SURPRISES["no handle"]), ("s03_im2col_blas", Surprise())]
)
def test_a_plan_takes_numbas_launches_where_it_must(
    name: str, surprise: Surprise, fake: Driver
) -> None:
    engine = Recording(surprise)
    plan = Plan(PROBLEM, stage_named(name), None, engine)
    input, weight, out = (engine.empty(SHAPES[key]) for key in ("input", "weight", "output"))
    assert not plan.packed
    assert not plan.one_graph
    assert plan(input, weight, out, stream=9) is out
    assert fake.launches == []
    assert engine.plain == [(step.name, 9) for step in plan.program.launches]


# Arrays and streams.


class Tensor:
    """As much of PyTorch's tensor as is asked."""

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
def test_where_an_array_lies(array: Any) -> None:
    assert address_of(array) == 0xABC0
    assert address_of(array) == 0xABC0  # by the reader that is kept


@pytest.mark.parametrize("array", [np.ones(3, np.float32), Tensor(is_cuda=False), [1.0], None])
def test_what_is_not_on_a_gpu_is_refused(array: Any) -> None:
    name = type(array).__name__
    for _ in range(2):
        with pytest.raises(TypeError, match=f"^an array is a {name} in the host's memory: a plan"):
            address_of(array)


def test_a_tensor_that_moves_is_looked_at_again() -> None:
    assert address_of(Tensor()) == 0xABC0
    with pytest.raises(TypeError):
        address_of(Tensor(is_cuda=False))
    assert Tensor in handles._readers


class Stream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0x55


def test_a_stream_by_any_name() -> None:
    from numba import cuda

    numbas = cuda.cudadrv.driver.Stream(driver.CUstream(0x55))
    default = cuda.cudadrv.driver.Stream(driver.CUstream(0))
    for stream, handle in ((None, 0), (0, 0), (0x55, 0x55), (Stream(), 0x55), (numbas, 0x55)):
        assert stream_handle(stream) == handle
    assert stream_handle(default) == 0
    with pytest.raises(TypeError, match=r"^stream is 'fast': it must be None, a stream's handle"):
        stream_handle("fast")
