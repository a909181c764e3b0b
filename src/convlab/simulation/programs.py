"""Programs as they are: the launches of Numba's own CUDA simulator, run by the strict one.

Under ``NUMBA_ENABLE_CUDASIM=1`` Numba gives a program device arrays, streams and events that need
no GPU. Inside :func:`simulator` a launch keeps all of that and runs strictly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from numba.cuda.errors import normalize_kernel_dimensions
from numba.cuda.simulator.args import ArgHint, InOut
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from numba.cuda.simulator.kernel import FakeCUDAKernel

from convlab.simulation.findings import Finding, SimulationError, three
from convlab.simulation.simulated_launch import SimulatedLaunch

FORALL_BLOCK = 128  # threads of a block where a program leaves their number to Numba


def simulate(
    kernel: Any,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    *arguments: Any,
    shared_bytes: int = 0,
) -> None:
    """Run ``kernel[grid, block, 0, shared_bytes](*arguments)`` on the strict simulator.

    ``kernel`` is any ``@cuda.jit`` kernel; arrays are NumPy's, or device arrays of Numba's
    simulator. Raises ``SimulationError`` with its findings if the kernel is wrong, ``NotSimulated``
    if it uses what is not known here, and ``ValueError`` for a shape that CUDA does not launch.
    """
    sizes = three(grid, "grid"), three(block, "block")
    SimulatedLaunch(kernel, *sizes, arguments, shared_bytes, True, None).run()


@contextmanager
def simulator() -> Iterator[list[Finding]]:
    """Inside, the launches of Numba's simulator (``NUMBA_ENABLE_CUDASIM=1``) run strictly. Gives
    the list that their findings are added to; a launch with findings raises ``SimulationError``."""
    found: list[Finding] = []
    call = FakeCUDAKernel.__call__

    def launch(self: Any, *arguments: Any) -> Any:
        if self._device:
            return call(self, *arguments)
        grid, block = normalize_kernel_dimensions(self.grid_dim, self.block_dim)
        write_back: list[Callable[[], Any]] = []
        given = [_on_device(self, argument, write_back) for argument in arguments]
        try:
            simulate(self, grid, block, *given, shared_bytes=self.dynshared_size)
        except SimulationError as error:
            found.extend(error.findings)
            raise
        finally:
            for copy_to_host in write_back:
                copy_to_host()

    with patch.multiple(FakeCUDAKernel, __call__=launch, __getitem__=_configured, forall=_forall):
        yield found


def _configured(self: Any, configuration: Any) -> Any:
    """``kernel[grid, block, stream, shared]``: a kernel of its own, as Numba's compiled ones; its
    simulator changes the kernel, so that two configurations are the last."""
    made = copy.copy(self)
    made.grid_dim, made.block_dim = normalize_kernel_dimensions(*configuration[:2])
    made.dynshared_size = configuration[3] if len(configuration) == 4 else 0
    return made


def _forall(self: Any, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
    """Whole blocks, as on a GPU; Numba's simulator starts exactly ``ntasks`` threads, which hides
    a missing bounds check."""
    if ntasks < 0:
        raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
    if ntasks == 0:
        return lambda *arguments: None
    block = tpb or min(ntasks, FORALL_BLOCK)
    return self[-(-ntasks // block), block, stream, sharedmem]


def _on_device(kernel: Any, argument: Any, write_back: list[Callable[[], Any]]) -> Any:
    """An argument as the kernel gets it: Numba copies each host array to a device array of its own
    and back after the launch."""
    for extension in kernel.extensions:
        _, argument = extension.prepare_args(None, argument, stream=0, retr=write_back)
    if isinstance(argument, tuple):
        make = getattr(type(argument), "_make", tuple)  # a named tuple's
        return make([_on_device(kernel, entry, write_back) for entry in argument])
    if isinstance(argument, np.void):
        return FakeCUDAArray(argument)
    if isinstance(argument, np.ndarray):
        argument = InOut(argument)
    return argument.to_device(write_back) if isinstance(argument, ArgHint) else argument
