"""CUDA's driver for planned calls, where there is none: it keeps what it is handed."""

from __future__ import annotations

import ctypes
import math
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.bindings import driver
from numba.cuda.cudadrv.devicearray import DeviceNDArray

from convlab.ladder import production_program, stage_named
from convlab.problems.problem import ConvProblem
from convlab.running.engines import launching, packed_program
from convlab.running.engines.cubin import Cubin
from convlab.running.engines.kernels import argument_types

PROBLEM = ConvProblem(3, 5, 9, 7, 6, (3, 2), stride=(2, 1), padding=1)
SHAPES = {
    "input": PROBLEM.input_shape,
    "weight": PROBLEM.weight_shape,
    "bias": (6,),
    "output": PROBLEM.output_shape,
}
LIBRARY, KERNEL, HANDLE = 0x11B, 0xCE11, 0xC0DE
STRICT = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
CAPTURED = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
INVALIDATED = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED

ATTRIBUTE = driver.CUfunction_attribute
OUT_OF_RESOURCES = driver.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES


def device_array(shape, address, dtype="float32"):
    """An array of Numba's that says it lies there."""
    memory = SimpleNamespace(device_ctypes_pointer=ctypes.c_size_t(address))
    kind = np.dtype(dtype)
    strides = [kind.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return DeviceNDArray(shape, strides, kind, gpu_data=memory)


PER_ARRAY = {"numba": 5, "memref": 3}  # parameters, beside an extent and a stride for each axis


def cubin_of(step, program, layout="numba", **changed):
    """A launch's compiled kernel, but for the machine code."""
    kinds = argument_types(step, program)[: len(step.arguments)]  # the others have no parameters
    facts = {
        "capability": (9, 0), "name": f"_Z{step.name}", "layout": layout,
        "parameter_bytes": 8 * sum(PER_ARRAY[layout] + 2 * kind.ndim for kind in kinds),
        "registers": 32, "stack_bytes": 0, "spill_bytes": 0, "shared_bytes": 0,
        "code": f"machine code of {step.name}".encode(),
    }  # fmt: skip
    return Cubin(**(facts | changed))


def kernel_of(step, program, layout="numba"):
    """That kernel in the driver."""
    return launching.LoadedKernel(cubin_of(step, program, layout), step.name)


class Driver:
    """CUDA's, as far as launches go: keeps what it is handed, read as the GPU would read it."""

    CUfunction, CUkernel, CUresult = driver.CUfunction, driver.CUkernel, driver.CUresult
    CUDA_KERNEL_NODE_PARAMS = driver.CUDA_KERNEL_NODE_PARAMS
    CUfunction_attribute = ATTRIBUTE
    CUstreamCaptureMode, CUstreamCaptureStatus = (
        driver.CUstreamCaptureMode, driver.CUstreamCaptureStatus,
    )  # fmt: skip
    done = driver.CUresult.CUDA_SUCCESS

    def cuLibraryLoadData(self, code, *options):
        assert code.startswith(b"machine code of ")
        self.loaded.append(code)
        return self._answer("cuLibraryLoadData"), driver.CUlibrary(LIBRARY)

    def cuLibraryGetKernel(self, library, name):
        assert int(library) == LIBRARY
        assert name.startswith(b"_Z")
        return self._answer("cuLibraryGetKernel"), driver.CUkernel(KERNEL)

    def cuKernelGetFunction(self, kernel):
        known = int(kernel) == KERNEL
        error = "CUDA_SUCCESS" if known else "CUDA_ERROR_INVALID_HANDLE"
        return getattr(driver.CUresult, error), driver.CUfunction(HANDLE if known else 0)

    def __init__(self):
        self.launches: list[dict[str, Any]] = []
        self.loaded: list[bytes] = []
        self.allowed: list[int] = []  # dynamic shared memory that the function was allowed
        self.alone = 0  # how many of them were in no graph
        self.answers: dict[str, list[Any]] = {}  # to which call, instead of CUDA_SUCCESS
        self.parameters: list[int] = []
        self.capturing: dict[int, Any] = {}  # streams, and the status of each
        self.mode = STRICT  # in which graphs are captured: not relaxed, it ends at unsafe calls
        self.context, self.name = 1, 41  # that one's number among all there ever were
        self.gone: list[Any] = []
        self.finalizers: list[Any] = []

    def _answer(self, call):
        answers = self.answers.get(call)
        return answers.pop(0) if answers else self.done

    def cuFuncSetAttribute(self, function, attribute, value):
        assert int(function) == HANDLE
        assert attribute == ATTRIBUTE.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.allowed.append(value)
        return (self._answer("cuFuncSetAttribute"),)

    def _launch(self, which, function, shape, pointers, shared):
        assert int(function) == HANDLE
        assert shared <= max(48 * 1024, *self.allowed, 0), "the driver must be asked for more"
        count = self.parameters[which % len(self.parameters)]
        places = (ctypes.c_void_p * count).from_address(pointers)
        values = [ctypes.c_uint64.from_address(place).value for place in places]
        shape = {"grid": tuple(shape[:3]), "block": tuple(shape[3:])}
        return shape | {"values": values, "shared": shared}

    def cuLaunchKernel(self, function, *numbers):
        *shape, shared, stream, pointers, extra = numbers
        assert extra == 0
        launch = self._launch(self.alone, function, shape, pointers, shared)
        self.alone += 1
        self.launches.append(launch | {"stream": stream})
        return (self._answer("cuLaunchKernel"),)

    def cuGraphCreate(self, flags):
        return self._answer("cuGraphCreate"), SimpleNamespace(nodes=[])

    def cuGraphAddKernelNode(self, graph, before, count, kernel):
        node = len(graph.nodes)
        assert before == ([node - 1] if node else []), "each after the one before it"
        assert count == len(before)
        grid, block = self._shape(kernel)
        # How many parameters there are, some tests only know once a plan is made.
        graph.nodes.append(
            self._launch(
                node, kernel.func, grid + block, int(kernel.kernelParams), kernel.sharedMemBytes
            )
            if self.parameters
            else None
        )
        return self._answer("cuGraphAddKernelNode"), node

    def _shape(self, kernel):
        return (
            (kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ),
            (kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ),
        )

    def cuGraphInstantiate(self, graph, flags):
        return self._answer("cuGraphInstantiate"), SimpleNamespace(graph=graph)

    def _unsafe(self):
        assert self.context, "a driver without a context crashes here"
        assert not self.capturing or self.mode == RELAXED, "that ends a capture"

    def cuGraphExecKernelNodeSetParams(self, made, node, kernel):
        self._unsafe()
        grid, block = self._shape(kernel)
        pointers, shared = int(kernel.kernelParams), kernel.sharedMemBytes
        launch = self._launch(node, kernel.func, grid + block, pointers, shared)
        made.graph.nodes[node] = launch
        return (self._answer("cuGraphExecKernelNodeSetParams"),)

    def cuGraphLaunch(self, made, stream):
        assert self.context, "a driver without a context crashes here"
        assert stream not in self.capturing
        self.launches += [launch | {"stream": stream} for launch in made.graph.nodes]
        return (self._answer("cuGraphLaunch"),)

    def cuStreamIsCapturing(self, stream):
        error = self._answer("cuStreamIsCapturing")
        none = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        return error, None if error else self.capturing.get(stream, none)

    def cuCtxGetCurrent(self):
        return self.done, driver.CUcontext(self.context)

    def cuCtxSetCurrent(self, context):
        error = self._answer("cuCtxSetCurrent")
        if not error:
            self.context = int(context)
        return (error,)

    def cuCtxGetId(self, context):
        assert int(context) == 1
        error = self._answer("cuCtxGetId")
        return error, None if error else self.name

    def cuCtxPushCurrent(self, context):
        self.below, self.context = self.context, int(context)
        return (self.done,)

    def cuCtxPopCurrent(self):
        self.context = self.below
        return self.done, None

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.mode, before = mode, self.mode
        return self.done, before

    def cuGraphDestroy(self, graph):
        self._unsafe()
        self.gone.append("graph")

    def cuGraphExecDestroy(self, made):
        self._unsafe()
        self.gone.append("executable")


def pretended_driver(monkeypatch):
    """Replace the driver while a test's fixture lasts."""
    fake = Driver()
    monkeypatch.setattr(launching, "driver", fake)
    monkeypatch.setattr(launching, "_loaded", {})

    def finalize(*arguments):
        fake.finalizers.append(weakref.finalize(*arguments))
        return fake.finalizers[-1]

    monkeypatch.setattr(launching, "weakref", SimpleNamespace(finalize=finalize))
    yield fake
    for finalizer in fake.finalizers:
        finalizer.detach()  # what outlives the test has no driver to go to


def prepared(fake, program, held):
    """A program's launches, packed, and their kernels."""
    launches = [(step, kernel_of(step, program)) for step in program.launches]
    shapes = SHAPES | {buffer.name: buffer.shape for buffer in program.buffers}
    fake.parameters = parameters_of(program)
    return packed_program.PackedProgram(launches, shapes, held), launches


def parameters_of(program, layout="numba"):
    """Return the number of parameters of each launch, of eight bytes each."""
    cubins = [cubin_of(step, program, layout) for step in program.launches]
    return [cubin.parameter_bytes // 8 for cubin in cubins]


def stage_packed(fake, name):
    stage = stage_named(name)
    program = production_program(stage, PROBLEM)
    held = {
        buffer.name: device_array(buffer.shape, 0x7F00_0000_0000 + 0x100000 * place)
        for place, buffer in enumerate(program.buffers)
    }
    return prepared(fake, program, held)[0], program


def m01(fake):
    stage = stage_named("m01")
    return prepared(fake, stage.prepare(PROBLEM, None), {})[0]


def arrays_at(base):
    return {
        name: device_array(shape, base + 0x10000 * place)
        for place, (name, shape) in enumerate(SHAPES.items())
    }
