"""Programs as they are: every launch of a program runs on the strict simulator.

Inside :func:`simulator` a program has device arrays, streams and events that need no GPU
(``host_api``), and its launches are simulated strictly.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.errors import normalize_kernel_dimensions
from numba.cuda.simulator.args import ArgHint, InOut
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from numba.cuda.simulator.kernel import FakeCUDAKernel, FakeOverload

from convlab.simulation.host.device_arrays import UnifiedArray, as_cuda_array
from convlab.simulation.host.host_api import check_types, host_api
from convlab.simulation.host.not_simulated import (
    OF_A_KERNEL,
    OF_AN_OVERLOAD,
    VALUES_OF_A_KERNEL,
    VALUES_OF_AN_OVERLOAD,
    functions,
    values,
)
from convlab.simulation.host.pinned import plain
from convlab.simulation.host.run_report import Report
from convlab.simulation.host.streams import DEFAULT, Streams, number_of, program_line
from convlab.simulation.language.compilations import keep_compiled, recompile
from convlab.simulation.language.signatures import as_declared, declared
from convlab.simulation.launch import SimulatedLaunch
from convlab.simulation.memory.host_memory import owner_of
from convlab.simulation.memory.touched import Touched
from convlab.simulation.recording.loops import Loops
from convlab.simulation.rules.coordinates import Coordinates, three
from convlab.simulation.rules.findings import (
    Finding,
    NotSimulated,
    SimulationError,
    impossible_launch,
)
from convlab.simulation.rules.launch_checks import (
    RefusedArgument,
    argument_names,
    check_arguments,
    check_dynamic,
    check_shape,
    like,
)
from convlab.simulation.rules.orders import USUAL, Order, run_in_orders
from convlab.support.progress import progress
from convlab.support.values import boolean, integer, shown

FORALL_BLOCK = 1024  # threads of a block where a program leaves their number to Numba


class UntypedRegisters(UserWarning):
    """A kernel ran with Python's numbers, and why Numba's types of them are not known."""


class OwnNumbers(UserWarning):
    """What a kernel leaves depends on numbers that shuffles read from beyond the warp."""


def simulate(
    kernel: Any,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    *arguments: Any,
    shared_bytes: int = 0,
    steps: int | None = None,
    typed: bool = True,
) -> None:
    """Run ``kernel[grid, block, 0, shared_bytes](*arguments)`` on the strict simulator.

    ``kernel`` is any ``@cuda.jit`` kernel; arrays are NumPy's, or device arrays of Numba's
    simulator. ``steps`` are how many iterations all loops of all threads may have together; more
    are a finding. If ``typed``, registers have Numba's types; where its type inference does not
    tell them, an :class:`UntypedRegisters` warns. An :class:`OwnNumbers` warns if what the kernel
    leaves depends on what a lane gets from beyond the warp, which is its own number.

    A launch of many blocks that takes longer than five seconds says on standard error how far it
    is. Raises ``SimulationError`` with its findings
    if the kernel is wrong, ``NotSimulated`` if it uses what is not known here or Numba refuses it,
    ``ImpossibleLaunch``, which is a ``SimulationError`` and a ``ValueError``, for a shape that CUDA
    does not launch and for too much shared memory, ``RefusedArgument``, which is ``NotSimulated``
    and a ``TypeError``, for arguments that the kernel or Numba does not take, and ``ValueError``
    for less than one step.
    """

    def warn(why: str, kind: type[UserWarning]) -> None:
        warnings.warn(why, kind, stacklevel=4)

    _simulate(kernel, grid, block, arguments, shared_bytes, steps, typed, warn, None)


def _simulate(
    kernel: Any,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: tuple[Any, ...],
    shared_bytes: int,
    steps: int | None,
    typed: bool,
    tell: Callable[[str, type[UserWarning]], None],
    touched: Touched | None,
) -> None:
    if steps is not None:
        steps = integer("steps", steps, at_least=1)
    boolean("typed", typed)
    sizes = _sizes(kernel, grid, block, shared_bytes)
    if inspect.isfunction(function := getattr(kernel, "py_func", None)):
        check_arguments(function, arguments)
        if signatures := getattr(kernel, "declared", None):
            try:
                arguments = tuple(as_declared(signatures, list(arguments)))
            except TypeError as error:
                raise RefusedArgument(f"{function.__name__}: {error}") from None

    on_block = progress()

    def made(order: Order = USUAL, touched: Touched | None = None) -> SimulatedLaunch:
        return SimulatedLaunch(
            kernel,
            grid=sizes[0],
            block=sizes[1],
            arguments=arguments,
            shared_bytes=shared_bytes,
            loops=None if steps is None else Loops(steps, finds=True),
            typed=typed,
            order=order,
            on_block=on_block,
            touched=touched,
        )

    launch = made(touched=touched)
    if launch.untyped:
        tell(launch.untyped, UntypedRegisters)
    run_in_orders(launch, made)
    for note in launch.notes:
        tell(note, OwnNumbers)


def _sizes(
    kernel: Any, grid: Any, block: Any, shared_bytes: Any
) -> tuple[Coordinates, Coordinates]:
    """The grid's and the block's sizes. Raises ``TypeError`` for what are none, and
    :class:`ImpossibleLaunch` for those that CUDA refuses, or too much dynamic shared memory."""
    try:
        sizes = three(grid, "grid"), three(block, "block")
        check_shape(*sizes)
        check_dynamic(shared_bytes)
    except ValueError as error:
        name = getattr(getattr(kernel, "py_func", kernel), "__name__", "a kernel")
        raise impossible_launch(name, str(error), *program_line()) from None
    return sizes


@contextmanager
def simulator(stop: bool = True, steps: int | None = None, typed: bool = True) -> Iterator[Report]:
    """Inside, ``numba.cuda`` needs no GPU and every launch is simulated strictly. Gives the
    :class:`Report` of what the launches were found to do wrong.

    A launch with findings raises ``SimulationError``; with ``stop=False`` only one that could not
    go on to its end does. ``steps`` and ``typed`` are :func:`simulate`'s. A program is best
    imported inside: Numba decides at its first import whether it needs a GPU, which
    ``NUMBA_ENABLE_CUDASIM=1`` denies.
    """
    if steps is not None:
        steps = integer("steps", steps, at_least=1)
    boolean("stop", stop)
    boolean("typed", typed)
    report = Report()

    def tell(finding: Finding) -> None:
        error = SimulationError(str(finding), (finding,), ended=False)
        report.add(error)
        if stop:
            raise error

    def note(what: str, kind: type[UserWarning]) -> None:
        report.note(what)

    streams = Streams(tell)

    def launch(self: _Configured, *arguments: Any, **named: Any) -> None:
        name = self.kernel.py_func.__name__
        if named:
            raise TypeError(
                f"{name}: a launch gives its arguments by position, and {next(iter(named))} is "
                "given by name"
            )
        write_back: list[Callable[[], Any]] = []
        with streams.lock:  # threads of the program share what a launch rounds numbers with
            report.launches += 1
            try:
                managed = streams.device_sees(_managed(arguments))
                hosts: list[np.ndarray] = []
                given = on_device(self, arguments, write_back, hosts)
                try:
                    run(self, given, managed, hosts)
                finally:
                    for copy_to_host in write_back:
                        copy_to_host()
            except SimulationError:
                raise
            except Exception as error:
                report.raised.append(f"{name}: {type(error).__name__}: {error}")
                raise

    def on_device(
        self: _Configured,
        arguments: tuple[Any, ...],
        write_back: list[Callable[[], Any]],
        hosts: list[np.ndarray],
    ) -> tuple[Any, ...]:
        names = argument_names(self.kernel.py_func, len(arguments))
        given = []
        for name, argument in zip(names, arguments, strict=True):
            try:
                given.append(_on_device(argument, self, write_back, streams, hosts))
            except NotSimulated as why:
                kernel = self.kernel.py_func.__name__
                error = NotSimulated(f"{kernel}: {name} is not on the device: {why}")
                report.add(error)
                raise error from None
        return tuple(given)

    def run(
        self: _Configured, given: tuple[Any, ...], managed: list[Any], hosts: list[np.ndarray]
    ) -> None:
        touched = Touched()
        looked_at = touched if managed or number_of(self.stream) != DEFAULT else None
        how = self.shared_bytes, steps, typed, note, looked_at
        try:
            _simulate(self.kernel, self.grid, self.block, given, *how)
        except SimulationError as error:
            report.add(error)
            if stop or error.ended:
                raise
        operation = streams.issue(self.stream, self.kernel.py_func.__name__, touched)
        streams.hide(operation, managed)
        for host in hosts:
            streams.reads(operation, host)

    with (
        host_api(streams),
        patch.object(_Configured, "__call__", launch, create=True),
        patch.multiple(FakeCUDAKernel, create=True, **_KERNEL),
        patch.multiple(FakeOverload, create=True, **_OVERLOAD),
        patch.multiple(CUDADispatcher, create=True, **_DISPATCHER),
    ):
        yield report
        streams.host_waits()


@dataclass(frozen=True)
class _Configured:
    """``kernel[grid, block, stream, shared]``. One of Numba's simulator is the kernel itself, so
    that of two configurations only the last counts."""

    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    stream: Any = 0
    shared_bytes: int = 0
    pre_launch_callbacks: list[Any] = field(default_factory=list)


def _configured(kernel: Any, configuration: Any) -> _Configured:
    if getattr(kernel, "_device", False):
        raise RuntimeError("Cannot compile a device function as a kernel")  # Numba's words
    if not isinstance(configuration, tuple) or len(configuration) not in (2, 3, 4):
        raise ValueError(
            f"{kernel.py_func.__name__}[{shown(configuration)}]: a launch has grid and block, and "
            "may have a stream and bytes of dynamic shared memory"
        )
    grid, block = normalize_kernel_dimensions(*configuration[:2])  # in Numba's words
    return _Configured(kernel, grid, block, *configuration[2:])


def _forall(kernel: Any, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
    """Whole blocks, as on a GPU; Numba's simulator starts exactly ``ntasks`` threads, which hides
    a missing bounds check."""
    if ntasks < 0:
        raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
    if ntasks == 0:
        return lambda *arguments: None
    block = tpb or FORALL_BLOCK
    return kernel[-(-ntasks // block), block, stream, sharedmem]


def _compile(kernel: Any, sig: Any) -> Any:
    """``kernel.compile(signature)``: what Numba refuses of it is refused here."""
    signatures = declared(sig) or []
    check_types(kernel.py_func, signatures)
    for arguments, _ in signatures:
        keep_compiled(kernel, arguments)
    return kernel.overloads[sig]


def _specialize(kernel: Any, *arguments: Any) -> Any:
    return kernel


def _nothing(kernel: Any, *arguments: Any) -> None:
    """For settings of what is not compiled."""


# What a kernel gets: of Numba's simulator, and, where a kernel is older than the simulation, of the
# dispatcher, by which Numba's compiler asks for the types of device functions.
_LAUNCHES: dict[str, Any] = {
    "__getitem__": _configured,
    "forall": _forall,
    "configure": lambda kernel, griddim, blockdim, stream=0, sharedmem=0: _configured(
        kernel, (griddim, blockdim, stream, sharedmem)
    ),
    "specialize": _specialize,
    "recompile": recompile,
}
_KERNEL = {
    **functions("kernel", OF_A_KERNEL),
    **values("kernel", VALUES_OF_A_KERNEL),
    **_LAUNCHES,
    "call": lambda kernel, args, launch_config: launch_config(*args),
    "compile": _compile,
    **dict.fromkeys(("disable_compile", "enable_caching"), _nothing),
    "mark_launch_config_sensitive": _nothing,
    **dict.fromkeys(("is_compiling", "specialized"), False),
}
_DISPATCHER = _LAUNCHES | {
    name: refuse
    for name, refuse in functions("kernel", OF_A_KERNEL).items()
    if name.startswith(("inspect_", "get_regs", "get_const", "get_local", "get_shared", "get_max"))
}
_OVERLOAD = {
    **functions("kernel.overloads[...]", OF_AN_OVERLOAD),
    **values("kernel.overloads[...]", VALUES_OF_AN_OVERLOAD),
}


def _managed(arguments: Iterable[Any]) -> Iterator[np.ndarray]:
    """The memory of managed and mapped arrays, each once."""
    found: dict[int, np.ndarray] = {}
    for one in arguments:
        if isinstance(one, tuple):
            found |= {id(memory): memory for memory in _managed(one)}
        elif isinstance(one, UnifiedArray):
            memory = owner_of(one)
            found[id(memory)] = np.asarray(memory)
    yield from found.values()


def _on_device(
    argument: Any,
    launch: _Configured,
    write_back: list[Callable[[], Any]],
    streams: Streams,
    hosts: list[np.ndarray],
) -> Any:
    """An argument as the kernel gets it: Numba copies each host array to a device array of its own
    and back after the launch, in the launch's stream. The ``hosts`` are those that it reads."""
    stream, how = launch.stream, (launch, write_back, streams, hosts)
    for extension in launch.kernel.extensions:
        _, argument = extension.prepare_args(None, argument, stream=stream, retr=write_back)
    if isinstance(argument, tuple):
        return like(argument, (_on_device(entry, *how) for entry in argument))
    if isinstance(argument, UnifiedArray):
        return np.asarray(argument)
    if isinstance(argument, np.void):
        return FakeCUDAArray(argument)
    if hasattr(argument, "__cuda_array_interface__"):
        return as_cuda_array(argument)
    if isinstance(argument, np.ndarray):
        argument = InOut(argument)
    if not isinstance(argument, ArgHint):
        return argument
    argument.value = plain(argument.value)
    if isinstance(argument.value, np.ndarray):
        streams.device_reads(argument.value)
        if getattr(argument, "copy_input", True):
            hosts.append(argument.value)
    return argument.to_device(write_back, stream)
