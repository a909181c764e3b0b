"""Chooses the engine of a launch, and joins what both find.

A launch begins on the engine that explains (:mod:`convlab.simulation.launch`). If the time of its
first blocks says that machine code is worth its cost, it begins anew as machine code. Blocks that
are suspect there run again on the first engine, which writes the findings; if it finds nothing in
them, it runs the whole launch.
"""

from __future__ import annotations

import sys
from time import thread_time
from typing import NamedTuple

from convlab.simulation.compiled import kernel_history
from convlab.simulation.compiled.kernel_history import KernelHistory
from convlab.simulation.compiled.launch_facts import LaunchFacts, MakeLaunch
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.launch import SimulatedLaunch
from convlab.simulation.launch.running_blocks import OnBlock
from convlab.simulation.rules.findings import SimulationError
from convlab.simulation.rules.launch_checks import hosts_in, with_arrays
from convlab.simulation.rules.orders import run_in_orders
from convlab.simulation.rules.outcomes import Outcome
from convlab.support.progress import say

RUNTIME = "convlab.simulation.compiled.runtime"  # has what all kernels share, once it is loaded
_ORDERS = "only the first engine tries the orders of threads that matter to it"
_LIBRARY = "a library that has not been written for machine code"
# Names in kernels that are not compiled, and why.
NOT_COMPILED = {
    **dict.fromkeys(("ldcv", "ldcg", "stwt", "stcg"), _ORDERS),
    **dict.fromkeys(("nanosleep", "cg", "this_grid"), _ORDERS),
    **dict.fromkeys(("fp16", "bf16", "libdevice"), _LIBRARY),
    "print": "each engine that runs a launch would print",
}


class Limits(NamedTuple):
    """A launch that is predicted to take so many seconds on the first engine runs as machine code.
    The seconds are the processor's for the launching thread, because other threads and other
    programs have work of their own."""

    # The launch alone, whatever compiling takes.
    alone: float = 2.0
    # A factor, unlike the others: of what compiling a launch's kernel is expected to take. As many
    # seconds must be left of the launch, on a machine that has what all kernels share.
    times_compiling: float = 1.0
    # The launch and those of the kernel before it.
    together: float = 3.0
    # The same, if the machine code is on disk. The first look there takes 0.05 seconds, because it
    # imports Numba's compiler for CPUs. If machine code is there, loading takes another 0.1.
    on_disk: float = 0.5
    # The launch alone, if the machine code is in memory. Then a launch as machine code needs 2 to 5
    # milliseconds beside its threads' work. Shorter launches never begin anew.
    in_memory: float = 0.02

    @classmethod
    def all_at(cls, seconds: float) -> Limits:
        """Return the same limit for all: 0 for machine code always, infinity for never."""
        return cls(*[seconds] * len(cls._fields))


limits = Limits()
# What compiling a kernel is expected to take. On quiet cores six kernels of courses took 0.6 to 1.1
# times as long; where compiling takes longer, so does the first engine.
SECONDS_A_KERNEL = 0.05
SECONDS_A_UNIT = 0.0004  # of the bytecode of the simulator's copy
SECONDS_OF_LOADING = 0.15  # the import of the compiler, and loading what all kernels share
# The part of a launch's blocks that may run again to explain what is found, for machine code to be
# worth its cost at the kernel's next launch.
MOST_EXPLAINED = 0.5
COPIES = 3  # of a launch's arrays that machine code makes, and the first engine does not


class _TakesLong(BaseException):
    """Ends a launch on the first engine. ``alone`` if only what is left of this launch says that
    compiling pays. No ``except`` of a kernel or a rule catches it."""

    def __init__(self, alone: bool) -> None:
        super().__init__(alone)
        self.alone = alone


def run_launch(
    facts: LaunchFacts, made: MakeLaunch, first: SimulatedLaunch, watch: Watch
) -> tuple[SimulatedLaunch, bool]:
    """Run a launch, whose first run on the first engine is ``first``; ``watch`` hears of that.
    Return the launch that has the notes, and whether machine code was enough. Raises
    ``SimulationError`` if something is found."""
    hosts = [host for one in facts.arguments for host in hosts_in(with_arrays(one))]
    hosts = [host for host in hosts if host.flags.writeable]
    begin = thread_time()
    before = Outcome.unnamed(hosts)
    copying = thread_time() - begin
    assert first.translation.types is not None  # by may_compile
    history = kernel_history.histories.of(facts.kernel, first.translation.types)
    watch.choice = EngineChoice(
        facts,
        history,
        in_memory=limits.in_memory + COPIES * copying,
        compiling=limits.times_compiling * _compiling_seconds(first) + COPIES * copying,
    )
    try:
        run_in_orders(first, made)
        history.seconds += watch.seconds()
        return first, False
    except SimulationError:
        history.seconds += watch.seconds()
        raise
    except _TakesLong as ended:
        alone = ended.alone
        watch.choice = None
        before.restore(hosts)
        if facts.touched is not None:
            facts.touched.clear()
    # Only launches that begin anew pay for the import of Numba's compiler for CPUs.
    from convlab.simulation.compiled.compiled_run import CompiledRun

    history.seconds = 0.0
    compiled = CompiledRun(
        facts=facts,
        history=history,
        made=made,
        on_block=watch.on_block,
        hosts=hosts,
        before=before,
    )
    try:
        compiled.run()
        history.ran_compiled = True
        return first, True
    except SimulationError:
        # A test suite may accept what is found, and launch the kernel again. Machine code pays if
        # few of the blocks ran again.
        pays = compiled.part_explained <= MOST_EXPLAINED
        history.ran_compiled |= pays
        if not pays:
            history.note_failure(alone=alone)
        raise
    except NeedsGreenlets as why:
        history.note_failure(alone=alone)
        if not alone:
            _report(first.kernel, history, str(why))
        before.restore(hosts)
        again = made(on_block=watch.on_block, touched=facts.touched)
        begin = thread_time()
        try:
            run_in_orders(again, made)
        finally:
            history.seconds += thread_time() - begin
            if history.seconds >= limits.alone:
                _report(first.kernel, history, str(why))
        return again, False


def _report(kernel: str, history: KernelHistory, why: str) -> None:
    """Say once that a kernel is not compiled."""
    if not history.is_reported:
        history.is_reported = True
        say(f"{kernel} takes long, and is not compiled: {why}")


def _compiling_seconds(launch: SimulatedLaunch) -> float:
    """Return how many seconds compiling the kernel of a launch is expected to take."""
    units = sum(len(code.co_code) for code in launch.translation.codes) // 2
    runtime = sys.modules.get(RUNTIME)
    loaded = runtime is not None and runtime.is_loaded()
    return SECONDS_A_KERNEL + SECONDS_A_UNIT * units + (0.0 if loaded else SECONDS_OF_LOADING)


def may_compile(launch: SimulatedLaunch) -> bool:
    """Return whether a launch may go on as machine code, by the names that its kernel uses."""
    facts = launch.translation
    return (
        launch.strict
        and launch.typed
        and not launch.untyped
        and not facts.names & NOT_COMPILED.keys()
        and facts.parted_at() is None
    )


class EngineChoice:
    """Says whether machine code is worth its cost for a launch: not if the launch takes fewer
    seconds than ``in_memory``. It is if at least ``compiling`` seconds are left of the launch."""

    def __init__(
        self, facts: LaunchFacts, history: KernelHistory, in_memory: float, compiling: float
    ) -> None:
        self._facts, self._history, self._in_memory = facts, history, in_memory
        self._compiling = float("inf") if history.failed_alone else compiling
        # Fewer seconds than these need no further thought.
        self.least = limits.alone if history.failed else min(limits.alone, in_memory)

    def look(self, expected: float, spent: float) -> None:
        """Raise :class:`_TakesLong` if a launch that is expected to take so many seconds on the
        first engine, of which some are ``spent``, shall begin anew as machine code."""
        if self._is_long(expected):
            raise _TakesLong(alone=False)
        if self._pays(expected - spent):
            raise _TakesLong(alone=True)
        self.least = self._next_look(expected, spent)

    def _is_long(self, expected: float) -> bool:
        """Return whether the launch, alone or with those of its kernel before it, takes longer than
        one of the limits."""
        history = self._history
        if expected >= limits.alone:
            if history.failed and (why := self._refusal()):
                _report(self._facts.kernel.py_func.__name__, history, why)
                return False
            return True
        if history.failed or expected < self._in_memory:
            return False
        if history.ran_compiled and self._is_in_memory():
            return True
        together = history.seconds + expected
        return together >= limits.together or (together >= limits.on_disk and self._is_on_disk())

    def _pays(self, left: float) -> bool:
        """Return whether the seconds that are left of the launch are more than compiling takes,
        which is all that is to be done."""
        if self._history.failed or left < self._compiling:
            return False
        if self._needs_only_the_kernel():
            return True
        self._compiling = float("inf")
        return False

    def _next_look(self, expected: float, spent: float) -> float:
        """Return how many seconds must be expected before another look may tell more."""
        history = self._history
        if expected >= limits.alone:  # it is refused
            return float("inf")
        if history.failed:
            return limits.alone
        together = history.seconds + expected
        following = limits.on_disk if together < limits.on_disk else limits.together
        return min(limits.alone, following - history.seconds, spent + self._compiling)

    # The imports take long: only launches that may run as machine code pay for them.

    def _refusal(self) -> str:
        from convlab.simulation.compiled.compiled_run import refusal

        return refusal(self._facts, self._history)

    def _needs_only_the_kernel(self) -> bool:
        from convlab.simulation.compiled.compiled_run import needs_only_the_kernel

        return needs_only_the_kernel(self._facts, self._history)

    def _is_in_memory(self) -> bool:
        from convlab.simulation.compiled.compiled_run import is_in_memory

        return is_in_memory(self._facts, self._history)

    def _is_on_disk(self) -> bool:
        from convlab.simulation.compiled.compiled_run import is_on_disk

        return is_on_disk(self._facts, self._history)


class Watch:
    """Hears of each block and barrier of a launch, and ends the launch if its ``choice`` prefers
    machine code. Seconds count from the first block on: a kernel with many device functions is
    typed for longer than it runs."""

    def __init__(self, on_block: OnBlock) -> None:
        self.on_block = on_block
        self.choice: EngineChoice | None = None
        self._begin: float | None = None
        self._block = 0  # the number of the last that has begun; those before it may still wait
        self._before = 0.0  # seconds before it
        self._slowest = 0.0  # seconds of a block

    def __call__(self, kernel: str, number: int, blocks: int) -> None:
        """Hear that a block begins, or that it has come to a barrier."""
        self.on_block(kernel, number, blocks)
        if self.choice is None:
            return
        if self._begin is None:
            self._begin = thread_time()
        spent = self.seconds()
        expected = self._expected(number, blocks, spent)
        if expected >= self.choice.least:
            asked = thread_time()
            self.choice.look(expected, spent)
            self._begin += thread_time() - asked  # the look on disk is no part of the launch

    def seconds(self) -> float:
        """Return the seconds since the first block began."""
        return 0.0 if self._begin is None else thread_time() - self._begin

    def _expected(self, number: int, blocks: int, spent: float) -> float:
        """Return the seconds that the launch is expected to take, by the blocks that are over. The
        slowest of them does not count: Python may have collected garbage there, which takes longer
        than many a launch. Of the block that runs, only the seconds so far are known."""
        if number > self._block:
            self._slowest = max(self._slowest, spent - self._before)
            self._block, self._before = number, spent
        if self._block < 2:
            return spent
        return max(spent, (self._before - self._slowest) * blocks / (self._block - 1))
