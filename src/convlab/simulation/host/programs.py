"""Unchanged programs: every launch of a program runs on the strict simulator.

Inside :func:`simulator` a program has device arrays, streams and events that need no GPU
(``host_api``), and its launches are simulated strictly.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from numba.cuda.simulator.kernel import FakeCUDAKernel, FakeOverload

from convlab.simulation.compiled.engine_choice import Watch, may_compile, run_launch
from convlab.simulation.compiled.launch_facts import LaunchFacts
from convlab.simulation.host.cupy_stand_in import cupy_stand_in
from convlab.simulation.host.host_accesses import UnifiedMemory
from convlab.simulation.host.host_api import host_api
from convlab.simulation.host.launch_arguments import LaunchArguments, unified_memory
from convlab.simulation.host.launch_configuration import (
    DISPATCHER,
    KERNEL,
    OVERLOAD,
    ConfiguredKernel,
    SimulatorsKernel,
)
from convlab.simulation.host.run_report import Report
from convlab.simulation.host.stream_order import DEFAULT, number_of, program_line
from convlab.simulation.host.streams import Streams
from convlab.simulation.language.signatures import as_declared
from convlab.simulation.language.toolchains import dispatcher_class
from convlab.simulation.launch import SimulatedLaunch
from convlab.simulation.launch.running_blocks import OnBlock
from convlab.simulation.launch.translation import checked_kernel, has_debug
from convlab.simulation.memory.touched import Touched
from convlab.simulation.memory.unwritten_arrays import UnwrittenArrays
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
    check_all_given,
    check_arguments,
    check_dynamic,
    check_shape,
    hosts_in,
    with_arrays,
)
from convlab.simulation.rules.orders import USUAL, Order, run_in_orders
from convlab.support.progress import progress
from convlab.support.values import boolean, integer


class UntypedRegisters(UserWarning):
    """Warns that a kernel ran with Python's numbers, and why Numba's types are not known."""


class OwnNumbers(UserWarning):
    """Warns that results depend on numbers that shuffles read from beyond the warp."""


class NotFenced(UserWarning):
    """Warns that a thread waits for a flag and then reads, by an atomic, what may come later."""


class DependsOnOrder(UserWarning):
    """Warns that a seeded order of threads leads to other results, though nothing is found."""


@dataclass(frozen=True)
class Options:
    """The options of a simulation. ``steps`` limits the iterations of all loops of all threads of a
    launch; if ``typed``, registers have Numba's types. Each launch also runs in so many random
    ``orders``, with this ``seed`` and those that follow it."""

    steps: int | None = None
    typed: bool = True
    orders: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps is not None:
            object.__setattr__(self, "steps", integer("steps", self.steps, at_least=1))
        boolean("typed", self.typed)
        for name in "orders", "seed":
            object.__setattr__(self, name, integer(name, getattr(self, name), at_least=0))

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds of the orders."""
        return range(self.seed, self.seed + self.orders)


Note = Callable[[str, type[UserWarning]], None]  # receives what may be a mistake


def simulate(
    kernel: Any,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    *arguments: Any,
    shared_bytes: int = 0,
    steps: int | None = None,
    typed: bool = True,
    orders: int = 0,
    seed: int = 0,
) -> None:
    """Run ``kernel[grid, block, 0, shared_bytes](*arguments)`` on the strict simulator.

    ``kernel`` is any ``@cuda.jit`` kernel; arrays are NumPy's, or device arrays of Numba's
    simulator. ``steps`` is how many iterations all loops of all threads may have together; more
    are a finding. If ``typed``, registers have Numba's types. If Numba's type inference does not
    know them, an :class:`UntypedRegisters` warns. An :class:`OwnNumbers` warns if results depend on
    what a lane gets from beyond the warp, which is its own number.

    The launch also runs in ``orders`` random orders of its blocks and warps, with ``seed`` and the
    seeds that follow it; the arrays keep the numbers that they have without. What fails there names
    its seed, and ``orders=1`` with that seed repeats it. A :class:`DependsOnOrder` warns if the
    results differ though nothing is found.

    A launch of many blocks that takes longer than five seconds reports its progress on standard
    error.

    Raises

    - ``SimulationError`` with its findings if the kernel is wrong,
    - ``NotSimulated`` if it uses what the simulator lacks or Numba refuses it,
    - ``ImpossibleLaunch``, a ``SimulationError`` and ``ValueError``, for a shape that CUDA does not
      launch and for too much shared memory,
    - ``RefusedArgument``, a ``NotSimulated`` and ``TypeError``, for arguments that the kernel or
      Numba does not take,
    - ``ValueError`` for less than one step, and for negative ``orders`` or a negative ``seed``.
    """

    def warn(why: str, kind: type[UserWarning]) -> None:
        warnings.warn(why, kind, stacklevel=4)

    _simulate(
        kernel=kernel,
        grid=grid,
        block=block,
        arguments=arguments,
        shared_bytes=shared_bytes,
        options=Options(steps, typed, orders, seed),
        note=warn,
    )


def _simulate(
    *,
    kernel: object,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: tuple[object, ...],
    shared_bytes: int,
    options: Options,
    note: Note,
    touched: Touched | None = None,
    unwritten: UnwrittenArrays | None = None,
) -> bool:
    """Simulate one launch in all its orders; return whether it ran as machine code. ``touched``
    collects the bytes that it touches. What it writes of ``unwritten`` arrays is written then."""
    grid_sizes, block_sizes = _sizes(kernel, grid, block, shared_bytes)
    if inspect.isfunction(function := getattr(kernel, "py_func", None)):
        check_arguments(function, arguments)
        check_all_given(function, arguments)
        if signatures := getattr(kernel, "declared", None):
            try:
                arguments = tuple(as_declared(signatures, list(arguments)))
            except TypeError as error:
                raise RefusedArgument(f"{function.__name__}: {error}") from None

    on_block = progress()

    def made(
        order: Order = USUAL,
        *,
        on_block: OnBlock | None = on_block,
        touched: Touched | None = None,
        blocks: Sequence[int] | None = None,
        unwritten: UnwrittenArrays | None = unwritten,
    ) -> SimulatedLaunch:
        return SimulatedLaunch(
            kernel,
            grid=grid_sizes,
            block=block_sizes,
            arguments=arguments,
            shared_bytes=shared_bytes,
            loops=None if options.steps is None else Loops(options.steps, finds=True),
            typed=options.typed,
            order=order,
            on_block=on_block,
            touched=touched,
            blocks=blocks,
            unwritten=unwritten,
        )

    watch = Watch(on_block)
    launch = made(on_block=watch, touched=touched)
    if launch.untyped:
        note(launch.untyped, UntypedRegisters)
    if not options.seeds and not has_debug(kernel) and may_compile(launch):
        facts = LaunchFacts(
            kernel=checked_kernel(kernel),
            grid=grid_sizes,
            block=block_sizes,
            arguments=arguments,
            shared_bytes=shared_bytes,
            steps=options.steps,
            touched=touched,
            unwritten=unwritten,
        )
        launch, is_compiled = run_launch(facts, made, launch, watch)
    else:
        is_compiled = False
        run_in_orders(launch, made, options.seeds)
    if unwritten is not None and not is_compiled:
        unwritten.keep(launch.left_unwritten)
    for what in launch.notes:
        note(what, OwnNumbers)
    for site, what in launch.history.messages.unordered.items():
        note(f"{launch.kernel}, {launch.sites.where(site)}: {what}", NotFenced)
    for what in launch.order_notes:
        note(what, DependsOnOrder)
    return is_compiled


def _sizes(
    kernel: object, grid: object, block: object, shared_bytes: int
) -> tuple[Coordinates, Coordinates]:
    """Return the grid's and the block's sizes. Raises ``TypeError`` for anything but sizes, and
    :class:`ImpossibleLaunch` for sizes that CUDA refuses or too much dynamic shared memory."""
    try:
        sizes = three(grid, "grid"), three(block, "block")
        check_shape(*sizes)
        check_dynamic(shared_bytes)
    except ValueError as error:
        name = getattr(getattr(kernel, "py_func", kernel), "__name__", "a kernel")
        raise impossible_launch(name, str(error), *program_line()) from None
    return sizes


class SimulatedProgram:
    """The launches of a program: simulates each and collects what is found in a report."""

    def __init__(self, stop: bool, options: Options) -> None:
        self.stop, self.options = stop, options
        self.report = Report()
        # Receives the kernel and the arguments of each launch before it runs.
        self.on_launch: Callable[[SimulatorsKernel, tuple[object, ...]], object] | None = None
        self.streams = Streams(self._found_in_streams)
        self.unwritten = UnwrittenArrays()

    def _found_in_streams(self, finding: Finding) -> None:
        error = SimulationError(str(finding), (finding,), ended=False)
        self.report.add(error)
        if self.stop:
            raise error

    def _note(self, what: str, kind: type[UserWarning]) -> None:
        self.report.note(what)

    def launch(self, launch: ConfiguredKernel, *arguments: object, **named: object) -> None:
        """Simulate ``kernel[grid, block](*arguments)`` of the program."""
        if named:
            raise TypeError(
                f"{launch.name}: a launch gives its arguments by position, and "
                f"{next(iter(named))} is given by name"
            )
        with self.streams.lock:  # only one launch at a time: they share what rounds numbers
            self.report.launches += 1
            try:
                self._launch(launch, arguments)
            except SimulationError:
                raise
            except Exception as error:
                self.report.raised.append(f"{launch.name}: {type(error).__name__}: {error}")
                raise

    def _launch(self, launch: ConfiguredKernel, arguments: tuple[object, ...]) -> None:
        unified = self.streams.device_sees(unified_memory(arguments))
        prepared = LaunchArguments(launch, self.streams, self.unwritten)
        try:
            try:
                given = prepared.on_device(arguments)
            except NotSimulated as error:
                self.report.add(error)
                raise
            self._run(launch, given, unified, prepared.hosts)
        finally:
            for copy_to_host in prepared.write_back:
                copy_to_host()

    def _run(
        self,
        launch: ConfiguredKernel,
        arguments: tuple[object, ...],
        unified: list[UnifiedMemory],
        hosts: list[np.ndarray],
    ) -> None:
        if self.on_launch is not None:
            self.on_launch(launch.kernel, arguments)
        touched = Touched()
        try:
            self.report.compiled += _simulate(
                kernel=launch.kernel,
                grid=launch.grid,
                block=launch.block,
                arguments=arguments,
                shared_bytes=launch.shared_bytes,
                options=self.options,
                note=self._note,
                touched=touched if unified or number_of(launch.stream) != DEFAULT else None,
                unwritten=self.unwritten,
            )
        except BaseException as error:
            # What such a launch leaves is no mistake of those that follow.
            self.unwritten.forget(host for one in arguments for host in hosts_in(with_arrays(one)))
            if not isinstance(error, SimulationError):
                raise
            self.report.add(error)
            if self.stop or error.ended:
                raise
        operation = self.streams.issue(launch.stream, launch.name, touched)
        self.streams.hide(operation, unified)
        for host in hosts:
            self.streams.reads(operation, host)


@contextmanager
def simulator(
    stop: bool = True,
    steps: int | None = None,
    typed: bool = True,
    orders: int = 0,
    seed: int = 0,
) -> Iterator[Report]:
    """Inside, ``numba.cuda`` needs no GPU and every launch is simulated strictly. Gives the
    :class:`Report` of what is wrong with the launches.

    A launch with findings raises ``SimulationError``. With ``stop=False`` it raises only if it
    could not go on to its end. ``steps``, ``typed``, ``orders`` and ``seed`` are
    :func:`simulate`'s. Import a program inside: at its first import Numba decides whether it needs
    a GPU, which ``NUMBA_ENABLE_CUDASIM=1`` denies.
    """
    options = Options(steps, typed, orders, seed)
    with simulated_program(SimulatedProgram(boolean("stop", stop), options)) as program:
        yield program.report


@contextmanager
def simulated_program(program: SimulatedProgram) -> Iterator[SimulatedProgram]:
    """Inside, every launch is one of this program."""

    def launch(self: ConfiguredKernel, *arguments: object, **named: object) -> None:
        program.launch(self, *arguments, **named)

    with (
        host_api(program.streams, program.unwritten),
        cupy_stand_in(),
        patch.object(ConfiguredKernel, "__call__", launch, create=True),
        patch.multiple(FakeCUDAKernel, create=True, **KERNEL),
        patch.multiple(FakeOverload, create=True, **OVERLOAD),
        patch.multiple(dispatcher_class(), create=True, **DISPATCHER),
    ):
        yield program
        program.streams.host_waits()
