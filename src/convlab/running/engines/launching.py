"""Compiled kernels in the driver, and their launches: one by one or as one CUDA graph.

Numba's own launch takes 25 to 45 us, 50 to 115 us with PyTorch's tensors. Only the arrays'
addresses change from call to call of a plan, so everything else is done once, here, and all
launches of a plan become one CUDA graph (``packed_program.py``). A graph of three launches takes
1.7 us of the host's time instead of 12, and 0.6 us more to give one kernel another array.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from threading import Lock
from typing import NamedTuple

from cuda.bindings import driver

from convlab.device import BoxMap, WindowMap
from convlab.device.tensor_maps import TensorMap
from convlab.ladder.stage import (
    MOST_SHARED_BYTES,
    SHARED_BYTES,
    Argument,
    Flat,
    Images,
    Launch,
)
from convlab.problems.arrays import Array
from convlab.running.engines import address_of
from convlab.running.engines.cubin import Cubin
from convlab.running.engines.driver import driver_result
from convlab.running.engines.parameters import (
    ArrayParameters,
    ParameterMemory,
    array_parameters,
)
from convlab.running.engines.tensor_maps import NUMBERS, device_maps
from convlab.simulation.rules.coordinates import three

Shape = tuple[int, ...]

# Kernels in the driver.


class GpuArray(NamedTuple):
    """A C-contiguous array in a GPU's memory."""

    shape: Shape
    item_bytes: int
    address: int


class LoadedKernel:
    """A compiled kernel in the driver. It stays there until the process ends: somebody's CUDA graph
    may launch it, and does not keep it alive."""

    def __init__(self, cubin: Cubin, name: str) -> None:
        self.name, self._cubin = name, cubin
        library = driver_result(
            driver.cuLibraryLoadData(cubin.code, None, None, 0, None, None, 0), name
        )
        self._handle = driver_result(driver.cuLibraryGetKernel(library, cubin.name.encode()), name)
        # The dynamic shared memory that each GPU's function may have, by its handle.
        self._allowed: dict[int, int] = {}

    def function(self, shared_bytes: int = 0) -> driver.CUfunction:
        """Return the current GPU's function of the kernel: the driver launches that 0.5 us faster
        than the kernel, whose function it would have to look up. The function may have so much
        dynamic shared memory, for which the driver must be asked if a block then has more than 48
        KB."""
        function = driver_result(driver.cuKernelGetFunction(self._handle), self.name)
        together = self._cubin.shared_bytes + shared_bytes
        if together > MOST_SHARED_BYTES:
            raise ValueError(
                f"shared_bytes is {shared_bytes}: with {self._cubin.shared_bytes} of shared arrays "
                f"{self.name} has {together}, but a block has at most {MOST_SHARED_BYTES}"
            )
        handle = int(function)
        if together > SHARED_BYTES and shared_bytes > self._allowed.get(handle, 0):
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver_result(driver.cuFuncSetAttribute(function, most, shared_bytes), self.name)
            self._allowed[handle] = shared_bytes
        return function

    def parameters(self, arrays: Iterable[tuple[Sequence[int], int]]) -> list[ArrayParameters]:
        """Return the parameters of arrays of these shapes and bytes of an element. Raises
        ``RuntimeError`` if the machine code takes parameters of another size, as another version of
        the compiler may make it."""
        laid_out = [array_parameters(self._cubin.layout, *array) for array in arrays]
        if (nbytes := 8 * sum(map(len, laid_out))) != self._cubin.parameter_bytes:
            raise RuntimeError(
                f"kernel {self.name} takes {self._cubin.parameter_bytes} bytes of parameters, but "
                f"its arrays have {nbytes}: this version of its compiler is not supported"
            )
        return laid_out

    def launch(self, step: Launch, arrays: Sequence[GpuArray], stream: int) -> None:
        """Start it with these arrays, on the stream of that handle."""
        laid_out = self.parameters((array.shape, array.item_bytes) for array in arrays)
        values: list[int] = []
        for parameters, array in zip(laid_out, arrays, strict=True):
            values += parameters.at(array.address)
        _launch(self.function(step.shared_bytes), step, stream, ParameterMemory(values))


def _launch(
    function: driver.CUfunction, step: Launch, stream: int, parameters: ParameterMemory
) -> None:
    """Start a kernel; the driver has copied the parameters when this returns."""
    grid, block = three(step.grid, "grid"), three(step.block, "block")
    shape = (*grid, *block, step.shared_bytes)
    done = driver.cuLaunchKernel(function, *shape, stream, parameters.address, 0)
    driver_result(done, step.name)


_loaded: dict[bytes, LoadedKernel] = {}
_loading = Lock()


def loaded(cubin: Cubin, name: str) -> LoadedKernel:
    """Return the kernel of that machine code in the driver, loaded once; ``name`` is that of its
    Python function."""
    digest = sha256(cubin.code).digest()
    with _loading:
        if digest not in _loaded:
            _loaded[digest] = LoadedKernel(cubin, name)
        return _loaded[digest]


def map_address(tensor_map: TensorMap, address: int) -> int:
    """Return where the current GPU has the tensor map of an array at that address. It is copied
    there at the first call, which ends nobody's capture of a stream."""
    context = driver_result(driver.cuCtxGetId(current_context()), tensor_map.of)
    known = device_maps.known(context, tensor_map, address)
    if known is not None:
        return known
    with relaxed_capture():
        return device_maps.upload(context, tensor_map, address)


# Launches whose parameters lie ready.


class _ArrayPart(NamedTuple):
    """The part of a named array that an argument is: it begins some bytes behind the array's start,
    and has a shape of its own. Of a ``tensor_map`` it is 16 uint64 elsewhere."""

    array: str
    offset: int
    shape: Shape
    item_bytes: int
    tensor_map: TensorMap | None = None

    def address(self, array: int) -> int:
        """Return where the part lies if the array lies there."""
        if self.tensor_map is not None:
            return map_address(self.tensor_map, array)
        return array + self.offset


def _part(
    argument: Argument, shapes: Mapping[str, Shape], item_bytes: Mapping[str, int]
) -> _ArrayPart:
    """Return the part of an array that an argument is."""
    if isinstance(argument, Flat):
        part = _part(argument.of, shapes, item_bytes)
        return part._replace(shape=(math.prod(part.shape),))
    name = str(argument)
    if isinstance(argument, BoxMap | WindowMap):
        return _ArrayPart(name, 0, (NUMBERS,), 8, argument)
    nbytes = item_bytes.get(name, 4)
    if isinstance(argument, Images):
        images, *image = shapes[name]
        start, stop, _ = slice(argument.start, argument.stop).indices(images)
        offset = nbytes * math.prod(image) * start
        return _ArrayPart(name, offset, (stop - start, *image), nbytes)
    return _ArrayPart(name, 0, shapes[name], nbytes)


class _Moving(NamedTuple):
    """A parameter that changes from call to call: its place, and of which of the call's arrays it
    is the address of a part."""

    parameter: int
    array: int
    part: _ArrayPart


class PackedLaunch:
    """One launch whose parameters lie ready, but for the addresses of the arrays of a call."""

    def __init__(
        self,
        step: Launch,
        kernel: LoadedKernel,
        shapes: Mapping[str, Shape],
        held: Mapping[str, Array],
        of_calls: Sequence[str],
        item_bytes: Mapping[str, int],
    ) -> None:
        self.step, self._function = step, kernel.function(step.shared_bytes)
        parts = [_part(argument, shapes, item_bytes) for argument in step.arguments]
        laid_out = kernel.parameters((part.shape, part.item_bytes) for part in parts)
        values: list[int] = []
        self._moving: list[_Moving] = []
        for part, array in zip(parts, laid_out, strict=True):
            if part.array in held:
                values += array.at(part.address(address_of(held[part.array])))
                continue
            first = len(values) + len(array.before)
            number = of_calls.index(part.array)
            self._moving += [
                _Moving(parameter, number, part)
                for parameter in range(first, first + array.addresses)
            ]
            values += array.at(0)
        self.arrays = {moving.array for moving in self._moving}
        self._parameters = ParameterMemory(values)

    def write(self, addresses: Sequence[int]) -> None:
        """Store the addresses of a call's arrays in the parameters."""
        values = self._parameters.values
        for parameter, array, part in self._moving:
            values[parameter] = part.address(addresses[array])

    def launch(self, stream: int) -> None:
        """Start it by itself."""
        _launch(self._function, self.step, stream, self._parameters)

    def node(self) -> driver.CUDA_KERNEL_NODE_PARAMS:
        """Return the launch as a node of a graph; the driver reads its parameters later."""
        node = driver.CUDA_KERNEL_NODE_PARAMS()
        node.func, node.kernelParams = self._function, self._parameters.address
        node.gridDimX, node.gridDimY, node.gridDimZ = three(self.step.grid, "grid")
        node.blockDimX, node.blockDimY, node.blockDimZ = three(self.step.block, "block")
        node.sharedMemBytes = self.step.shared_bytes
        return node


class LaunchGraph:
    """Launches as a CUDA graph, each after the one before it. Its methods need the context in which
    it was made, or the driver crashes, and one thread at a time; they raise
    :class:`LaunchRefused`."""

    def __init__(self, launches: Sequence[PackedLaunch]) -> None:
        self._launches = launches  # kept: the driver reads their parameters
        self._names = ", ".join(dict.fromkeys(launch.step.name for launch in launches))
        context = current_context()
        context_id = driver_result(driver.cuCtxGetId(context), self._names)
        graph, executable = driver_result(driver.cuGraphCreate(0), self._names), None
        try:
            self._kernels = [launch.node() for launch in launches]
            self._nodes: list[driver.CUgraphNode] = []
            for kernel in self._kernels:
                before = self._nodes[-1:]
                added = driver.cuGraphAddKernelNode(graph, before, len(before), kernel)
                self._nodes.append(driver_result(added, self._names))
            executable = driver_result(driver.cuGraphInstantiate(graph, 0), self._names)
        finally:
            if executable is None:
                driver.cuGraphDestroy(graph)
        self._executable = executable
        # Not when Python ends: the driver may have gone by then, and the graph with it.
        weakref.finalize(self, _destroy, context, context_id, graph, executable).atexit = False

    def update(self, number: int) -> None:
        """Have the driver copy that launch's parameters as they are now."""
        node, kernel = self._nodes[number], self._kernels[number]
        done = driver.cuGraphExecKernelNodeSetParams(self._executable, node, kernel)
        driver_result(done, self._launches[number].step.name)

    def launch(self, stream: int) -> None:
        """Start all of them on the stream of that handle, one that is not captured."""
        driver_result(driver.cuGraphLaunch(self._executable, stream), self._names)


def _destroy(
    context: int, context_id: int, graph: driver.CUgraph, executable: driver.CUgraphExec
) -> None:
    """Destroy a graph, in the last thread to let go of it. That thread may be capturing a graph of
    its own, which destroying another would end, or have no context. If the graph's context has
    gone, the graph went with it, and a driver asked to destroy it again hangs."""
    error, now = driver.cuCtxGetId(context)  # another context's, where one has taken its place
    if error or now != context_id:
        return
    with relaxed_capture():
        driver.cuCtxPushCurrent(context)
        driver.cuGraphExecDestroy(executable)
        driver.cuGraphDestroy(graph)
        driver.cuCtxPopCurrent()


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Inside, this thread's calls end nobody's capture, even those that free memory."""
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    error, mode = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    try:
        yield
    finally:
        if not error:  # there is one where the driver has gone, as Python ends
            driver.cuThreadExchangeStreamCaptureMode(mode)


def is_capturing(stream: int) -> bool:
    """Return True if somebody captures that stream: no graph can be launched there."""
    error, status = driver.cuStreamIsCapturing(stream)
    return not error and status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


def current_context() -> int:
    """Return this thread's context, by its handle; 0 where it has none."""
    _, context = driver.cuCtxGetCurrent()
    return int(context)


def have_context(context: int, name: str) -> None:
    """Make a plan's context current in a thread that has none. Raises ``RuntimeError`` where
    another GPU's is, :class:`LaunchRefused` of the step ``name`` where the driver refuses it."""
    current = current_context()
    if not current:
        driver_result(driver.cuCtxSetCurrent(context), name)
    elif current != context:
        raise RuntimeError(
            "the current GPU is another than this plan's: a plan runs on the one that was "
            "current when it was made"
        )
