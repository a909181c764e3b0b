"""Kernel launches as one CUDA graph: the driver takes them all for less than one of them.

A launch is 4 us of a host's time on top of what Python takes, three launches are three times that;
a graph of them is less than 2. What a kernel is handed can be exchanged in the graph, 0.6 us each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cuda.bindings import driver

UNCAPTURED = (0, 1)  # streams that CUDA never captures: the default one by its two handles


class Parameters(Protocol):
    """A launch: a function of the driver's with its shape, and where its parameters lie."""

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: int  # the address of their addresses


def graph_of(launches: Sequence[Parameters]) -> LaunchGraph | None:
    """These launches as a graph; None where the driver makes none, as of a block that is too large:
    launched by itself, it says why."""
    try:
        return LaunchGraph(launches)
    except _Refused:
        return None


class LaunchGraph:
    """These launches, each after the one before it. Made by :func:`graph_of`."""

    def __init__(self, launches: Sequence[Parameters]) -> None:
        self._launches = launches
        graph = _made(driver.cuGraphCreate, 0)
        executable = None
        try:
            self._kernels = [_kernel(launch) for launch in launches]
            self._nodes: list[Any] = []
            for kernel in self._kernels:
                before = self._nodes[-1:]
                node = _made(driver.cuGraphAddKernelNode, graph, before, len(before), kernel)
                self._nodes.append(node)
            executable = _made(driver.cuGraphInstantiate, graph, 0)
        finally:
            if executable is None:
                driver.cuGraphDestroy(graph)
        self._executable = executable
        # Not when Python ends: by then the driver may have gone, and all of it goes with it.
        weakref.finalize(self, driver.cuGraphExecDestroy, executable).atexit = False
        weakref.finalize(self, driver.cuGraphDestroy, graph).atexit = False

    def update(self, place: int) -> Any:
        """Have the driver copy that launch's parameters as they lie now. Returns its error, or
        zero."""
        (error,) = driver.cuGraphExecKernelNodeSetParams(
            self._executable, self._nodes[place], self._kernels[place]
        )
        return error

    def launch(self, stream: int) -> Any:
        """Start all of them on the stream of that handle. Returns the driver's error, or zero."""
        (error,) = driver.cuGraphLaunch(self._executable, stream)
        return error


def is_capturing(stream: int) -> bool:
    """Whether somebody captures a graph from that stream: another cannot be launched there."""
    if stream in UNCAPTURED:
        return False
    error, status = driver.cuStreamIsCapturing(stream)
    return not error and status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


def _kernel(launch: Parameters) -> Any:
    kernel = driver.CUDA_KERNEL_NODE_PARAMS()
    kernel.func = launch.function
    kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ = launch.grid
    kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ = launch.block
    kernel.kernelParams = launch.parameters
    return kernel


class _Refused(Exception):
    pass


def _made(make: Callable[..., Any], *arguments: Any) -> Any:
    """What the driver makes of them."""
    error, thing = make(*arguments)
    if error:
        raise _Refused(error.name)
    return thing
