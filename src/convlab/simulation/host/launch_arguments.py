"""The arguments of a program's launch as the kernel gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numba.core import errors as core_errors
from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.simulator.args import ArgHint, InOut, Out
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from numba.cuda.typing.typeof import Purpose, typeof

from convlab.simulation.host.device_arrays import (
    UnifiedArray,
    as_cuda_array,
    fill_with_poison,
    is_cuda_array,
)
from convlab.simulation.host.launch_configuration import ConfiguredKernel
from convlab.simulation.host.pinned import plain
from convlab.simulation.host.streams import Streams
from convlab.simulation.memory.host_memory import owner_of
from convlab.simulation.memory.unwritten_arrays import UnwrittenArrays
from convlab.simulation.rules.findings import NotSimulated
from convlab.simulation.rules.launch_checks import argument_names, like


@dataclass
class LaunchArguments:
    """Moves the arguments of one launch to the device. ``write_back`` copies results to host
    arrays after the launch; ``hosts`` are the host arrays that the launch reads."""

    launch: ConfiguredKernel
    streams: Streams
    unwritten: UnwrittenArrays
    write_back: list[Callable[[], object]] = field(default_factory=list)
    hosts: list[np.ndarray] = field(default_factory=list)

    def on_device(self, arguments: tuple[object, ...]) -> tuple[object, ...]:
        """Return the arguments as the kernel gets them. Raises ``NotSimulated`` for an array of
        another library, and names it."""
        names = argument_names(self.launch.kernel.py_func, len(arguments))
        given = []
        for name, argument in zip(names, arguments, strict=True):
            try:
                given.append(self._on_device(argument))
            except NotSimulated as why:
                what = f"{self.launch.name}: {name} is not on the device: {why}"
                raise NotSimulated(what) from None
        return tuple(given)

    def _on_device(self, argument: object) -> object:
        """Return an argument as the kernel gets it. As in Numba, a host array is copied to a device
        array of its own, and back after the launch, in the launch's stream."""
        if self.launch.kernel.extensions:
            argument = self._extended(argument)
        if isinstance(argument, tuple):
            return like(argument, map(self._on_device, argument))
        if isinstance(argument, UnifiedArray):
            return np.asarray(argument)
        if isinstance(argument, np.void):
            return FakeCUDAArray(argument)
        if is_cuda_array(argument):
            return as_cuda_array(argument)
        if isinstance(argument, np.ndarray):
            argument = InOut(argument)
        return self._copied(argument) if isinstance(argument, ArgHint) else argument

    def _extended(self, argument: object) -> object:
        """Return what the kernel's extensions make of an argument. Raises ``NotSimulated`` if they
        give the kernel other values than those of the argument's type, which only code that is
        compiled for the type can read."""
        own_type = kind = _type_of(argument)
        given = argument
        for extension in reversed(self.launch.kernel.extensions):
            kind, given = extension.prepare_args(
                kind, given, stream=self.launch.stream, retr=self.write_back
            )
        are_arrays = isinstance(own_type, types.Array) and isinstance(kind, types.Array)
        if own_type is not None and kind != own_type and not are_arrays:
            raise NotSimulated(
                f"the type {own_type} of an extension is compiled for a GPU only; "
                "pass the arrays that it holds"
            )
        return given

    def _copied(self, hint: ArgHint) -> object:
        """Return the device array of ``In``, ``Out`` or ``InOut``."""
        hint.value = plain(hint.value)
        if isinstance(hint.value, np.ndarray):
            self.streams.device_reads(hint.value)
            if getattr(hint, "copy_input", True):
                self.hosts.append(hint.value)
        made = hint.to_device(self.write_back, self.launch.stream)
        if isinstance(hint, Out) and isinstance(hint.value, np.ndarray):
            fill_with_poison(made._ary)
            self.unwritten.add(owner_of(made._ary))
        return made


def _type_of(argument: object) -> types.Type | None:
    """Return Numba's type of an argument; None for a type that only the extension knows."""
    try:
        found: types.Type = typeof(argument, Purpose.argument)
    except (ValueError, errors.NumbaError, core_errors.NumbaError):
        return None
    return found


def unified_memory(arguments: Iterable[object]) -> Iterator[tuple[np.ndarray, str]]:
    """Yield the memory of managed and mapped arrays among the arguments, each once, and its name in
    findings."""
    found: dict[int, tuple[np.ndarray, str]] = {}
    for one in arguments:
        if isinstance(one, tuple):
            found |= {id(memory): (memory, name) for memory, name in unified_memory(one)}
        elif isinstance(one, UnifiedArray):
            memory = owner_of(one)
            found[id(memory)] = np.asarray(memory), one.of_memory
    yield from found.values()
