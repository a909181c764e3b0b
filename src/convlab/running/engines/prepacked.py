"""Launches whose parameters lie ready, so that a plan called again costs little host time.

Numba's own launch takes 25 to 45 us, 50 to 115 us with PyTorch's tensors. Only the arrays'
addresses change from call to call, so everything else is done once, here, and all launches of a
plan become one CUDA graph. A graph of three launches takes 1.7 us of the host's time instead of 12,
and 0.6 us more to give one kernel another array.

Numba itself lays out the parameters of an array with a marked address; the address belongs where
the mark appears. Where numba-cuda is not as this module expects, :func:`prepack` returns None, and
plans take Numba's own launch.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.bindings import driver

from convlab.ladder.stage import Argument, Flat, Images, Launch
from convlab.running.engines import address_of, check_aligned, stream_handle
from convlab.running.engines.compiler import LaunchRefused, MlirKernel, driver_result
from convlab.simulation.rules.coordinates import three

Shape = tuple[int, ...]

MARK = 0x5EED_0000_0000  # an address that no shape or stride can be
# What looking into another version's kernels can raise.
UNEXPECTED = (AttributeError, ImportError, LookupError, NotImplementedError, TypeError, ValueError)


def prepack(
    launches: Sequence[tuple[Launch, Any]], shapes: Mapping[str, Shape], held: Mapping[str, Any]
) -> Prepacked | None:
    """These launches, each with its compiled kernel, as one function of arrays; None
    where numba-cuda is not as this module knows it. ``shapes`` are all arrays' by name, ``held``
    those that stay the same from call to call. A call takes the others, in the order of shapes."""
    names = tuple(name for name in shapes if name not in held)
    try:
        packed = [_Packed(step, kernel, shapes, held, names) for step, kernel in launches]
        return Prepacked(packed, names)
    except UNEXPECTED:
        return None


class LaunchGraph:
    """These launches, each after the one before it. Its methods need the context in which it was
    made, or the driver crashes, and one thread at a time; they raise :class:`LaunchRefused`."""

    def __init__(self, launches: Sequence[_Packed]) -> None:
        self._launches = launches  # held: the driver reads their parameters
        self._names = ", ".join(dict.fromkeys(launch.name for launch in launches))
        context = _current_context()
        context_id = driver_result(driver.cuCtxGetId(context), self._names)
        graph, executable = driver_result(driver.cuGraphCreate(0), self._names), None
        try:
            self._kernels = [launch.node_parameters() for launch in launches]
            self._nodes: list[Any] = []
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
        """Have the driver copy that launch's parameters as they lie now."""
        node, kernel = self._nodes[number], self._kernels[number]
        done = driver.cuGraphExecKernelNodeSetParams(self._executable, node, kernel)
        driver_result(done, self._launches[number].name)

    def launch(self, stream: int) -> None:
        """Start all of them on the stream of that handle, one that is not captured."""
        driver_result(driver.cuGraphLaunch(self._executable, stream), self._names)


def _destroy(context: Any, context_id: int, graph: Any, executable: Any) -> None:
    """The last thread to let go of a graph destroys it. That thread may be capturing a graph of its
    own, which destroying another would end, or have no context. If the graph's context has gone,
    the graph went with it, and a driver asked to destroy it again hangs."""
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


def _is_capturing(stream: int) -> bool:
    """Whether somebody captures that stream: no graph can be launched there."""
    error, status = driver.cuStreamIsCapturing(stream)
    return not error and status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


class Prepacked:
    """Launches in order, their parameters packed for arrays of certain shapes."""

    def __init__(self, launches: list[_Packed], names: tuple[str, ...]) -> None:
        self._launches, self._names = launches, names
        self._context = _current_context()
        try:
            self._graph: LaunchGraph | None = LaunchGraph(launches)
        except LaunchRefused:  # as of a block that is too large: launched by itself, it says why
            self._graph = None
        self._in_graph: tuple[int, ...] = ()  # the addresses that its kernels are handed
        # A call is one launch of it, unless its stream is captured.
        self.one_graph = self._graph is not None
        # A thread owns the parameters and the graph until the driver has copied its launches.
        self._lock = Lock()

    def __call__(self, *arrays: Any, stream: Any = None) -> None:
        """Start them on a stream. Raises as :meth:`convlab.running.plans.Plan.__call__` does."""
        addresses = tuple(map(address_of, arrays))
        handle = stream_handle(stream)
        with self._lock:
            others = addresses != self._in_graph
            if others:
                for name, address in zip(self._names, addresses, strict=True):
                    check_aligned(name, address)
            self._have_context()
            if self._graph is None or _is_capturing(handle):
                for packed in self._launches:
                    packed.write(addresses)
                    packed.launch(handle)
                return
            if others:
                # Ctrl-C may come while some kernels take the new arrays and some do not.
                before, self._in_graph = self._in_graph or (None,) * len(addresses), ()
                moved = {tensor for tensor, now in enumerate(addresses) if before[tensor] != now}
                for number, packed in enumerate(self._launches):
                    if moved & packed.tensors:
                        packed.write(addresses)
                        self._graph.update(number)
                self._in_graph = addresses
            self._graph.launch(handle)

    def _have_context(self) -> None:
        """Make the plan's context current in a thread that has none; refuse another GPU's."""
        current = _current_context()
        if not current:
            driver_result(driver.cuCtxSetCurrent(self._context), self._launches[0].name)
        elif current != self._context:
            raise RuntimeError(
                "the current GPU is another than this plan's: a plan runs on the one that was "
                "current when it was made"
            )


def _current_context() -> int:
    _, context = driver.cuCtxGetCurrent()
    return int(context)


class _Packed:
    """One launch: its parameters, eight bytes each, and the driver's call that reads them."""

    def __init__(
        self,
        step: Launch,
        kernel: Any,
        shapes: Mapping[str, Shape],
        held: Mapping[str, Any],
        names: tuple[str, ...],
    ) -> None:
        self.name = step.name
        places = [_place(argument, shapes) for argument in step.arguments]
        # Held: it owns the machine code.
        self._compiled, laid_out = _read(kernel, step.name, [shape for *_, shape in places])
        numbers: list[int] = []
        self._moving: list[tuple[int, int, int]] = []  # which parameter, whose address, plus what
        for (name, offset, _), parameters in zip(places, laid_out, strict=True):
            addresses = [at for at, number in enumerate(parameters, len(numbers)) if number == MARK]
            numbers += parameters
            for address in addresses:
                if name in held:
                    numbers[address] = address_of(held[name]) + offset
                else:
                    self._moving.append((address, names.index(name), offset))
        self.tensors = {tensor for _, tensor, _ in self._moving}
        self._values = (ctypes.c_uint64 * len(numbers))(*numbers)
        first = ctypes.addressof(self._values)
        at = range(first, first + 8 * len(numbers), 8)
        self._pointers = (ctypes.c_void_p * len(numbers))(*at)
        self.parameters_at = ctypes.addressof(self._pointers)
        self.function = _function(self._compiled.handle)
        self.grid, self.block = three(step.grid, "grid"), three(step.block, "block")

    def write(self, addresses: Sequence[int]) -> None:
        """Store where the tensors begin in the parameters."""
        values = self._values
        for parameter, tensor, offset in self._moving:
            values[parameter] = addresses[tensor] + offset

    def node_parameters(self) -> Any:
        """The launch as a node of a graph."""
        node = driver.CUDA_KERNEL_NODE_PARAMS()
        node.func, node.kernelParams = self.function, self.parameters_at
        node.gridDimX, node.gridDimY, node.gridDimZ = self.grid
        node.blockDimX, node.blockDimY, node.blockDimZ = self.block
        return node

    def launch(self, stream: int) -> None:
        """Start it by itself."""
        shape = *self.grid, *self.block
        done = driver.cuLaunchKernel(self.function, *shape, 0, stream, self.parameters_at, 0)
        driver_result(done, self.name)


def _function(handle: Any) -> Any:
    """The current GPU's function of a kernel, which the driver then need not look up: 0.5 us."""
    if not isinstance(handle, driver.CUkernel):
        return driver.CUfunction(int(handle))
    error, function = driver.cuKernelGetFunction(handle)
    if error:
        raise ValueError(f"the driver knows no function of a kernel: {error.name}")
    return function


def _place(argument: Argument, shapes: Mapping[str, Shape]) -> tuple[str, int, Shape]:
    """Which array an argument is of, how many bytes behind its start it begins, and its shape."""
    if isinstance(argument, Flat):
        name, offset, shape = _place(argument.of, shapes)
        return name, offset, (math.prod(shape),)
    if isinstance(argument, Images):
        images, *image = shapes[argument.name]
        start, stop, _ = slice(argument.start, argument.stop).indices(images)
        return argument.name, 4 * math.prod(image) * start, (stop - start, *image)
    return argument, 0, shapes[argument]


def _read(kernel: Any, name: str, shapes: Sequence[Shape]) -> tuple[Any, list[list[int]]]:
    """What holds the kernel's handle, and its parameters for arrays of these shapes."""
    if isinstance(kernel, MlirKernel):
        return kernel, [kernel.laid_out(shape, MARK) for shape in shapes]
    special = kernel.debug, kernel.cooperative, kernel.launch_config_sensitive
    if any(special) or kernel.extensions:
        raise ValueError(f"{name} needs more for a launch than its arguments")
    kinds = zip(kernel.argument_types, shapes, strict=True)
    laid_out = [_laid_out(kernel, kind, shape) for kind, shape in kinds]
    return kernel._codelibrary.get_cufunc(), laid_out


def _laid_out(kernel: Any, kind: Any, shape: Shape) -> list[int]:
    """What Numba hands to the driver for a float32 array of that shape which begins at MARK."""
    from numba.cuda.cudadrv.devicearray import DeviceNDArray  # here, as it may not be there

    strides = 4 * np.cumprod((1, *shape[:0:-1]))[::-1]
    memory = SimpleNamespace(device_ctypes_pointer=ctypes.c_size_t(MARK))
    array = DeviceNDArray(shape, tuple(map(int, strides)), np.float32, gpu_data=memory)
    numbers: list[Any] = []
    kernel._prepare_args(kind, array, 0, [], numbers)
    if numbers.count(MARK) != 1 or not all(type(number) is int for number in numbers):
        raise ValueError(f"Numba lays an array out as {numbers}")
    return numbers
