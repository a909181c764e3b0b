"""One launch of the strict simulator: threads are run, accesses checked, findings collected."""

from __future__ import annotations

import errno
import inspect
import linecache
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

import numpy as np
from greenlet import getcurrent
from numba.core import errors as core_errors
from numba.cuda import types as numba_types
from numba.cuda.core import errors
from numba.cuda.np.numpy_support import from_dtype
from numba.cuda.typing.typeof import Purpose, typeof
from numpy.lib.array_utils import byte_bounds

from convlab.device import emulation_of
from convlab.simulation.language.code_names import may_wait, names_used
from convlab.simulation.language.compiled_values import alike
from convlab.simulation.language.counters import said_of_counter
from convlab.simulation.language.inference import WIDEST, given_bits
from convlab.simulation.language.numbas_types import check_kernel
from convlab.simulation.language.python_body import Copier
from convlab.simulation.language.refusals import Refused, Untyped
from convlab.simulation.language.signatures import Declared
from convlab.simulation.language.typed_results import BY_ZERO
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.host_memory import owner_of, start_of
from convlab.simulation.memory.launch_memory import Memory
from convlab.simulation.memory.structured_arrays import Record, RecordArray
from convlab.simulation.memory.touched import Touched
from convlab.simulation.numbers.counted_operations import Arithmetic
from convlab.simulation.numbers.scalars import BUILTINS, WrapsAround, cast, meaning
from convlab.simulation.recording.access_log import (
    GLOBAL,
    AccessLog,
    Clock,
    EndlessLoop,
    Loops,
    Paths,
)
from convlab.simulation.recording.sites import (
    Sites,
    activemask_after_branch,
    innermost,
    is_raised,
    lines_setting,
    traces,
)
from convlab.simulation.rules.coordinates import Coordinates, coordinates_of
from convlab.simulation.rules.dynamic_memory import DynamicMemory
from convlab.simulation.rules.findings import NotSimulated, SimulationError, Stop
from convlab.simulation.rules.happens_before import BLOCK_FENCE, FENCE
from convlab.simulation.rules.launch_checks import (
    argument_names,
    check_arguments,
    check_shape,
    hosts_in,
    like,
    with_arrays,
)
from convlab.simulation.rules.memory_traffic import Counts, Requests, requests_of
from convlab.simulation.rules.orders import USUAL, Asked, Order
from convlab.simulation.rules.races import Race, few
from convlab.simulation.rules.remedies import IMPOSSIBLE, NO_VALUE, UNREPORTED
from convlab.simulation.rules.reports import Reports
from convlab.simulation.rules.shuffles import Shuffles
from convlab.simulation.threads.asynchronous import AsyncCopies, TensorCores
from convlab.simulation.threads.greenlets import Block
from convlab.simulation.threads.scheduler import Scheduler
from convlab.simulation.threads.simulated_cuda import NoRoom, SimulatedCuda
from convlab.support.values import shown

CAPTURED = 1 << 36  # where the addresses of device arrays begin that a kernel refers to by name
# What threads tell each other something by.
TELLING = {"threadfence", "threadfence_block", "threadfence_system", "atomic", "ldcv"}
SHUFFLES = {"shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"}
LONG = 60_000  # entries of the log that are looked at in one go


class Recorder(Protocol):
    """Is told all that a launch does, for a trace. ``loads_of`` is for :func:`requests_of`."""

    loads_of: Mapping[tuple[str, int], int]

    def look(self, launch: SimulatedLaunch, requests: Requests) -> None:
        """What some blocks, the next ones, asked of memory."""

    def barrier(self, site: int, threads: int) -> None:
        """Record that ``threads`` threads passed the barrier at ``site``."""

    def end(self, launch: SimulatedLaunch, operations: Mapping[int, int]) -> None:
        """The launch is over; floating-point operations by site."""


class Kept(NamedTuple):
    """What a block that has begun needs to go on."""

    phase: int
    shared: Any


class SimulatedLaunch(Clock):
    """One launch, in an order of its blocks and threads."""

    def __init__(
        self,
        kernel: Any,
        grid: Coordinates,
        block: Coordinates,
        arguments: tuple[Any, ...],
        shared_bytes: int,
        strict: bool,
        counts: Counts | None,
        recorder: Recorder | None = None,
        loops: Loops | None = None,
        typed: bool = False,
        order: Order = USUAL,
    ) -> None:
        check_shape(grid, block)
        function = getattr(kernel, "py_func", None)
        if not inspect.isfunction(function):
            raise TypeError(f"kernel is {shown(kernel)}, which is no kernel: it needs @cuda.jit")
        check_arguments(function, arguments)
        by_request = counts is not None or recorder is not None
        block_size = math.prod(block)
        log = AccessLog(block_size) if strict or by_request else None
        super().__init__(log, block_size)
        self.strict, self.counts, self.recorder = strict, counts, recorder
        self.on_block: Callable[[str, int, int], None] | None = None
        self.touched: Touched | None = None  # what it does to global memory, if that is asked
        self.grid, self.block_shape = grid, block
        self.kernel: str = function.__name__
        self.reports = Reports(self.kernel, grid, block, strict, self)
        self.paths = Paths(log, loops) if log is not None and by_request else None
        self.arithmetic = Arithmetic() if recorder is not None else None
        number = self.arithmetic.number if self.arithmetic else None
        self.memory = Memory(log, self._of_array, number)
        self.cuda = SimulatedCuda(
            grid, block, self.memory, shared_bytes, getcurrent().switch, self._fence
        )
        self.copies = AsyncCopies(self, strict)
        self.tensor_cores = TensorCores(self.cuda, self, self.arithmetic)
        own = self.copies.intrinsics | self.tensor_cores.intrinsics
        self.intrinsics = {emulation_of(one): does for one, does in own.items()}
        self.called: list[Callable[..., Any]] = []  # intrinsics that the kernel refers to
        builtins = dict(BUILTINS)
        options = getattr(kernel, "targetoptions", {})  # of Numba's simulator it is an attribute
        self.debug = options.get("debug") or getattr(kernel, "_debug", False)
        if self.debug:
            builtins[BY_ZERO] = lambda divisor: divisor  # with debug=True Numba raises an error
        if self.arithmetic is not None:
            builtins["float"] = self.arithmetic.cast(BUILTINS["float"])
            self.cuda.fma = self.arithmetic.fma
        self._loops = loops
        self.loops = self.paths or loops  # what hears of loops and calls
        self.scheduler = Scheduler(self)
        self._global: dict[int, tuple[np.ndarray, Any]] = {}
        how = self._emulation, self.loops, self.scheduler.endless, kernel
        makes = self.cuda, self._meaning, builtins, *how
        copier = Copier(*makes)
        self.typed, self.untyped = typed and self.arithmetic is None, ""
        try:
            signatures = getattr(kernel, "declared", None) or []
            types: Any = _types(arguments, signatures) if self.typed else (None,)
            if self.typed:
                check_kernel(function, types[0])
            self.body = copier.copy(function, *types)
        except Refused as refused:
            raise NotSimulated(f"Numba refuses {self.kernel}: {refused}") from None
        except Untyped as why:
            self.typed, copier = False, Copier(*makes)
            self.untyped = f"{self.kernel} ran without Numba's types: {why}"
            self.called.clear()
            self.body = copier.copy(function)
        self.codes: tuple[CodeType, ...] = tuple(copier.codes())
        self.sites = self.reports.sites = Sites(self.codes, self.body.__code__, copier.calls)
        self.reports.counter_at = partial(self._counter_at, copier)
        cores = self.tensor_cores
        cores.used = cores.start in self.called
        used = copier.used.union(*map(names_used, self.codes))
        self.may_tell = bool(used & TELLING)
        self.shuffles = bool(used & SHUFFLES)
        after = (activemask_after_branch(code, code.co_filename) for code in self.codes)
        self.parts = next(filter(None, after), None) if "activemask" in used else None  # a site
        self.reports.syncs_warps = "syncwarp" in used
        self.deep = any(may_wait(code) for code in self.codes if code is not self.body.__code__)
        self.arguments = self._as_seen(arguments)
        self.race = Race(self.sites)
        self.fenced = False
        self.asked = self.cuda.asked = Asked(self, order)
        self.dynamic_memory = DynamicMemory()
        self.lanes = Shuffles(self, order.undefined, order.beyond)
        self.notes: list[str] = []  # what is no fault, but may be a mistake
        self.race.swaps, self.race.checks = self.asked.swaps, self.asked.checks
        self.phases = self.epoch = 0  # how many there were, of all blocks and warps
        self.order = order

    def _counter_at(self, copier: Copier, site: int) -> str:
        """What is said of a narrow counter of the loop at a site; empty if there is none."""
        code = self.sites.code(site)
        original = None if code is None else copier.original(code)
        if code is None or original is None:
            return ""
        function, types = original
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        values = {**function.__globals__, **({} if frame is None else frame.f_locals)}
        return said_of_counter(function, types, self.sites.line(site)[1], values)

    def _emulation(self, value: object) -> Callable[..., Any] | None:
        """What an intrinsic does in this launch; None for anything else, and for a device function:
        this simulator runs the function itself, though others need its emulation."""
        emulation = None if hasattr(value, "py_func") else emulation_of(value)
        if emulation is None:
            return None
        self.called.append(found := self.intrinsics.get(emulation, emulation))
        return found

    def _meaning(self, value: Any) -> Any:
        """What a global means in this launch."""
        if isinstance(value, np.ndarray):  # a constant of the kernel's, which is compiled into it
            constant = value.copy()
            constant.flags.writeable = False
            return Memory(None, self.reports.of_array).array(constant, "a constant array", 0)
        if hasattr(value, "__cuda_array_interface__"):  # a device array: global memory
            return self._captured(value)
        meant = meaning(value)
        if self.typed and callable(meant) and hasattr(meant, "dtype"):
            return cast(meant.dtype.name, False) if meant.dtype.kind in "iufb" else meant
        if self.arithmetic is None or not callable(meant):
            return meant
        if getattr(meant, "dtype", None) is None:
            return self.arithmetic.function(meant)
        return self.arithmetic.cast(meant) if meant.dtype.kind == "f" else meant

    def _captured(self, value: Any) -> Any:
        """A device array that a kernel refers to by its name, beyond the addresses of arguments."""
        host = value.__cuda_array_interface__.get("host")
        if host is None:
            kind = type(value).__name__
            raise NotSimulated(f"a {kind} of another library in a kernel is not simulated")
        if id(host) not in self._global:
            base = CAPTURED + sum(-(-one.nbytes // 256) * 256 for one, _ in self._global.values())
            self._global[id(host)] = host, self.memory.array(host, "a global array", base)
        return self._global[id(host)][1]

    def _of_array(self, kind: str, what: str, site: int, array: Any, *where: Any) -> None:
        """Note a finding about an array, and how large dynamic shared memory is, if it is there."""
        if kind == "out of bounds" and self.cuda.shared.is_dynamic(array):
            given = self.cuda.shared.dynamic_bytes
            what += f": the launch gives {given} bytes of dynamic shared memory"
        self.reports.of_array(kind, what, site, array, *where)

    def _as_seen(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as the kernel sees them, arrays placed in global memory. Raises
        :class:`NotSimulated` for those that cannot be."""
        names = argument_names(self.body, len(arguments))
        arguments = tuple(map(with_arrays, arguments))
        hosts = [host for argument in arguments for host in hosts_in(argument)]
        starts = addresses(hosts)
        if any(
            np.may_share_memory(one, host) for one, _ in self._global.values() for host in hosts
        ):
            raise NotSimulated("a global array that is an argument too is not simulated")

        def seen(name: str, argument: Any) -> Any:
            if isinstance(argument, tuple):
                names = (f"{name}[{n}]" for n in range(len(argument)))
                return like(argument, map(seen, names, argument))
            for host in hosts_in(argument):
                made = self.memory.array(host, name, starts[id(host)])
                return made._part((), 0) if host.ndim == 0 and host.dtype.names else made
            plain = argument
            if isinstance(argument, np.generic) and argument.dtype.kind not in "mM":
                plain = argument.item()
            return self.arithmetic.counted(plain) if self.arithmetic else plain

        return tuple(map(seen, names, arguments))

    def run(self) -> None:
        """Run it all; raises ``SimulationError`` if there are findings, else what the kernel
        raised. What was seen before an exception counts too."""
        try:
            self._run()
        finally:  # keep no array alive: what is left of a launch refers to itself in many ways
            self.arguments = ()
            self.memory.let_go()
            for part in self.copies, self.tensor_cores, self.cuda.shared:
                vars(part).clear()

    def _run(self) -> None:
        error: Exception | None = None
        where, ended = "", True
        if self.arithmetic is not None:
            self.arithmetic.codes.update(map(id, self.codes))
        try:
            self.scheduler.run(self._blocks())
            ended = False
        except Stop:
            pass
        except KeyboardInterrupt as interrupt:
            if self.log is not None:
                self.log.forget_half_an_entry()
            said = [f"{self.kernel} was interrupted in {self._where(interrupt)}"]
            interrupt.add_note("; ".join([*said, *map(str, self.scheduler.waits())]))
            raise
        except (WrapsAround, ZeroDivisionError) as stopped:
            if self.debug and isinstance(stopped, ZeroDivisionError):
                error, where = stopped, self._where(stopped)
            else:
                kind = "wraps around" if isinstance(stopped, WrapsAround) else "division by zero"
                self.reports.add(kind, str(stopped), self._site(stopped), self.thread)
        except NotSimulated as unknown:
            raise NotSimulated(f"{unknown}, {self._where(unknown)}") from None
        except Exception as raised:
            error, where = raised, self._where(raised)
            if isinstance(raised, EndlessLoop):
                file, line = self.sites.line(raised.site)
                raised.code, where = linecache.getline(file, line).strip(), f"{file}:{line}"
                if self._loops is not None and self._loops.finds:
                    error, what = None, f"all loops together have run {self._loops.limit:,} times"
                    what += f", this one {raised.iterations:,} times in one thread"
                    self.reports.add("endless loop", what, raised.site, self.thread)
            if isinstance(raised, NoRoom):
                self.reports.add(IMPOSSIBLE, str(raised), self._site(raised), None)
            if (unset := self._unset(raised)) is not None:
                error = None
                self.reports.add("uninitialised", unset, self._site(raised), self.thread, ends=True)
            if raised.args[:1] == (errno.ERANGE,):
                what = "a power beyond the largest float is not simulated: write math.pow"
                error = NotSimulated(f"{what}, {where}")
        if self.log is not None:  # the rest, and what blocks did to each other
            self._look(whole=True)
            if self.strict:
                for conflict in self.race.finish():
                    self.reports.conflict(conflict, self.log)
        if error is not None:
            block, thread = self.reports.block(self.block_number), self.reports.thread(self.thread)
            if self._is_own(error):  # said as Numba says it
                which = f"tid={[*thread]} ctaid={[*block]}"
                error.args = (f"{which}: {error}" if str(error) else which,)
                if not self.debug and is_raised(error):
                    what = f"{type(error).__name__} is raised, and without debug=True"
                    what += " a GPU ends the thread and says nothing"
                    self.reports.add(UNREPORTED, what, self._site(error), self.thread)
            error.add_note(f"in {self.kernel}, block {block}, thread {thread}, {where}")
        elif self.recorder is not None and self.arithmetic is not None:
            self.recorder.end(self, self.arithmetic.operations)
        try:
            self.reports.raise_any(ended)
        except SimulationError as found:
            for note in getattr(error, "__notes__", ()) if isinstance(error, NoRoom) else ():
                found.add_note(note)
            raise found from error
        if error is not None:
            raise error

    def _blocks(self) -> Iterator[Block]:
        """The blocks one after the other, each ready to run."""
        block_size, blocks = math.prod(self.block_shape), range(math.prod(self.grid))
        indices = [coordinates_of(number, self.block_shape) for number in range(block_size)]
        complain = self.reports.add if self.strict else None
        hooks = self._enterer(), self._barrier, self._warp_barrier, complain, self.lanes
        for number in reversed(blocks) if self.order.backwards else blocks:
            if self.on_block is not None:
                self.on_block(self.kernel, number, len(blocks))
            how = number, self.order, self.deep
            block = Block(self.body, self.arguments, indices, *hooks, *how)
            self.cuda.shared.new_block()
            self.phases += 1
            self._enter_block(number, self.phases)
            yield block

    def _enter_block(self, number: int, phase: int) -> None:
        where = coordinates_of(number, self.grid)
        index = self.cuda.blockIdx
        index.x, index.y, index.z = where
        self.block_number, self.first, self.phase = number, number * self.block_size, phase

    def leave(self, block: Block) -> None:
        """Another block runs from here on: keep what this one needs to go on, or, at its end, look
        at what it did."""
        if block.waiting:
            block.kept = Kept(self.phase, self.cuda.shared.keep())
            return
        for part in self.copies, self.tensor_cores, self.asked:
            part.end_block()
        if self.log is not None and not self.scheduler.waiting and len(self.log.addresses) > LONG:
            self._look(whole=True)

    def resume(self, block: Block) -> None:
        """Let a block go on that has waited for others."""
        self._enter_block(block.number, block.kept.phase)
        self.cuda.shared.put_back(block.kept.shared)

    def global_arrays(self) -> Iterator[CheckedArray]:
        """The arrays among the arguments."""
        rest = list(self.arguments)
        while rest:
            one = rest.pop()
            if isinstance(one, tuple):
                rest += one
                continue
            one = one._array if isinstance(one, Record) else one
            one = one._whole if isinstance(one, RecordArray) else one
            if isinstance(one, CheckedArray):
                yield one

    # What happens while it runs.

    def _enterer(self) -> Callable[[int, Coordinates], None]:
        """What is done before each switch to a thread: often, so with everything at hand."""
        cuda, index, epochs, paths = self.cuda, self.cuda.threadIdx, self.epochs, self.paths
        addresses = None if self.log is None else self.log.addresses
        mark = None if self.log is None else self.log.marks.extend

        def enter(number: int, thread_index: Coordinates) -> None:
            index.x, index.y, index.z = thread_index
            cuda.laneid = number & 31
            self.thread = number
            if mark is not None and addresses is not None:
                thread = self.first + number
                mark((len(addresses), thread, self.phase, epochs[thread]))
                if paths is not None:
                    paths.enter(thread)

        return enter

    def _barrier(self, threads: int, site: int) -> None:
        self.phases += 1
        self.phase = self.phases
        self.scheduler.barrier(site)
        if self.counts is not None:
            self.counts.barriers += threads
        if self.recorder is not None:
            self.recorder.barrier(site, threads)
        elif self.log is not None and len(self.log.addresses) > LONG and self.scheduler.alone:
            self._look(whole=False)

    def _warp_barrier(self, threads: list[int], whole: bool) -> None:
        if whole:
            self.epoch += 1
            for number in threads:
                self.epochs[self.first + number] = self.epoch
        elif self.strict:
            met = {self.first + number for number in threads}
            self.race.warp_barriers.append((self.position, met))

    def _fence(self, far: bool) -> None:
        self.fenced = True
        if self.strict:
            self.race.fences.append(self.access(FENCE if far else BLOCK_FENCE))

    def _look(self, whole: bool) -> None:
        """Count and check what the log holds, and empty it. It is ``whole`` if the last block has
        ended; else that has only come to a barrier."""
        assert self.log is not None
        if self.paths is not None and self.log.addresses:
            loads_of = {} if self.recorder is None else self.recorder.loads_of
            requests = requests_of(self.log, self.sites, loads_of)
            if self.counts is not None:
                self.counts.add(requests)
            if self.recorder is not None:
                self.recorder.look(self, requests)
        if self.strict:
            looks = self.copies.look, self.tensor_cores.look, self.race.analyse
            for conflict in few(chain(*(look(self.log, whole) for look in looks))):
                self.reports.conflict(conflict, self.log)
            for aliased in self.dynamic_memory.look(self.log, whole):
                self.reports.aliased(aliased)
            self.lanes.look(self.log.columns())
        if self.touched is not None:
            self.touched.look(self.log.columns(), self.global_arrays())
        self.log.clear()

    def _unset(self, error: Exception) -> str | None:
        """What is said of a kernel that reads a local variable which no line has set; None for any
        other error."""
        if not isinstance(error, NameError) or not self._is_own(error):
            return None
        if (said := re.search(r"(?:local|free) variable '(\w+)'", str(error))) is None:
            return None
        trace = innermost(error)
        assert trace is not None
        codes = (
            {trace.tb_frame.f_code, *self.codes} if "free" in said[0] else [trace.tb_frame.f_code]
        )
        lines = sorted({line for code in codes for line in lines_setting(code, said[1])})
        which = f" ({', '.join(f'line {line}' for line in lines)})" if lines else ""
        return (
            f"{said[1]} {NO_VALUE}: this thread has passed no line that sets it{which}, and a GPU "
            "goes on with whatever its register holds"
        )

    def _where(self, error: BaseException) -> str:
        file, line = self.sites.line(self._site(error))
        return f"{file}:{line}"

    def _is_own(self, error: BaseException) -> bool:
        """Whether the kernel itself raised it."""
        trace = innermost(error)
        return trace is not None and self.sites.knows(trace.tb_frame.f_code)

    def _site(self, error: BaseException) -> int:
        """The innermost instruction of the kernel that an exception came through."""
        for trace in reversed(traces(error)):
            if self.sites.knows(code := trace.tb_frame.f_code):
                return id(code) + trace.tb_lasti
        return 0


def _types(
    arguments: tuple[Any, ...], signatures: Declared
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Numba's types of the arguments, and of integers how many bits they have at most. Those of a
    declared signature, if it is of these types, for which the kernel has been compiled."""
    given: list[Any] = [with_arrays(argument) for argument in arguments]
    try:
        types = tuple(
            from_dtype(one.dtype) if _is_record(one) else typeof(one, Purpose.argument)
            for one in given
        )
    except (ValueError, errors.NumbaError, core_errors.NumbaError) as error:
        raise Untyped(str(error)) from None
    for takes, _ in signatures:
        if tuple(map(alike, takes)) == tuple(map(alike, types)):
            types = takes
    return types, tuple(
        given_bits(int(one).bit_length() if isinstance(kind, numba_types.Integer) else WIDEST)
        for one, kind in zip(given, types, strict=True)
    )


def _is_record(argument: Any) -> bool:
    return isinstance(argument, np.ndarray) and argument.ndim == 0 and bool(argument.dtype.names)


def addresses(hosts: list[np.ndarray]) -> dict[int, int]:
    """A simulated address for each array, by its id: allocations in the order of the arguments,
    each from a multiple of 256 on; views of one allocation keep their distances."""
    allocations: list[tuple[int, int]] = []  # low and high end
    for low, high in sorted({byte_bounds(owner_of(host)) for host in hosts}):
        if allocations and low < allocations[-1][1]:
            low, high = allocations[-1][0], max(high, allocations.pop()[1])
        allocations.append((low, high))
    begins: dict[int, int] = {}  # where an allocation is here, by its low end
    starts: dict[int, int] = {}
    free = GLOBAL
    for host in hosts:
        real = start_of(host)
        low, high = max((ends for ends in allocations if ends[0] <= real), default=(real, real))
        if low not in begins:
            begins[low] = free
            free = -(-(free + high - low) // 256) * 256 + 256
        starts[id(host)] = begins[low] + real - low
    return starts
