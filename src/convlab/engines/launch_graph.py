"""Kernel launches as one CUDA graph: the driver takes them all in for less than one of them.

Three launches take the driver 12 us of the host's time, a graph of them 1.7. To hand a kernel in it
another array takes another 0.6.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from cuda.bindings import driver


class Refused(RuntimeError):
    """The driver's error, and what it was to launch."""


class ReadyLaunch(Protocol):
    """A launch: a function of the driver's with its shape, and where its parameters lie."""

    name: str
    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters_at: int  # the address of their addresses


def graph_of(launches: Sequence[ReadyLaunch]) -> LaunchGraph | None:
    """These launches as a graph; None where the driver makes none, as of a block that is too large:
    launched by itself, it says why."""
    try:
        return LaunchGraph(launches)
    except Refused:
        return None


class LaunchGraph:
    """These launches, each after the one before it. Made by :func:`graph_of`. What is called here
    needs the context in which it was made, or the driver crashes; by one thread at a time.

    Methods raise :class:`Refused` with the driver's error.
    """

    def __init__(self, launches: Sequence[ReadyLaunch]) -> None:
        self._launches = launches  # held: the driver reads their parameters
        self._names = ", ".join(dict.fromkeys(launch.name for launch in launches))
        context = self._made(driver.cuCtxGetCurrent())
        context_id = self._made(driver.cuCtxGetId(context))
        graph, executable = self._made(driver.cuGraphCreate(0)), None
        try:
            self._kernels = [_kernel(launch) for launch in launches]
            self._nodes: list[Any] = []
            for kernel in self._kernels:
                before = self._nodes[-1:]
                added = driver.cuGraphAddKernelNode(graph, before, len(before), kernel)
                self._nodes.append(self._made(added))
            executable = self._made(driver.cuGraphInstantiate(graph, 0))
        finally:
            if executable is None:
                driver.cuGraphDestroy(graph)
        self._executable = executable
        # Not when Python ends: by then the driver may have gone, and all of it goes with it.
        weakref.finalize(self, _destroy, context, context_id, graph, executable).atexit = False

    def update(self, place: int) -> None:
        """Have the driver copy that launch's parameters as they lie now."""
        (error,) = driver.cuGraphExecKernelNodeSetParams(
            self._executable, self._nodes[place], self._kernels[place]
        )
        require(error, self._launches[place].name)

    def launch(self, stream: int) -> None:
        """Start all of them on the stream of that handle, one that is not captured."""
        (error,) = driver.cuGraphLaunch(self._executable, stream)
        require(error, self._names)

    def _made(self, answer: tuple[Any, Any]) -> Any:
        error, thing = answer
        require(error, self._names)
        return thing


def require(error: Any, names: str) -> None:
    """Raise :class:`Refused` where the driver says so of a launch of these kernels."""
    if error:
        raise Refused(f"CUDA could not launch {names}: {error.name}")


def is_capturing(stream: int) -> bool:
    """Whether somebody captures a graph from that stream: no graph can be launched there."""
    error, status = driver.cuStreamIsCapturing(stream)
    return not error and status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


def _kernel(launch: ReadyLaunch) -> Any:
    kernel = driver.CUDA_KERNEL_NODE_PARAMS()
    kernel.func = launch.function
    kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ = launch.grid
    kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ = launch.block
    kernel.kernelParams = launch.parameters_at
    return kernel


def _destroy(context: Any, context_id: int, graph: Any, executable: Any) -> None:
    """By whichever thread lets go of it last: one that captures a graph of its own, perhaps, which
    destroying another would end, or one without a context. Where the graph's own has gone, the
    graph went with it, and the driver hangs that is asked to destroy it again."""
    error, now = driver.cuCtxGetId(context)  # another context's, where one has taken its place
    if error or now != context_id:
        return
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _, mode = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    driver.cuCtxPushCurrent(context)
    driver.cuGraphExecDestroy(executable)
    driver.cuGraphDestroy(graph)
    driver.cuCtxPopCurrent()
    driver.cuThreadExchangeStreamCaptureMode(mode)
