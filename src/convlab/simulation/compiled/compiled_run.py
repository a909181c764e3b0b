"""A launch as machine code: runs it, and what is suspect in it again on the first engine."""

from __future__ import annotations

import math
from functools import cache
from threading import Lock

import numpy as np

from convlab.simulation.compiled import runtime
from convlab.simulation.compiled.kernel_history import KernelHistory
from convlab.simulation.compiled.kernel_variants import KernelVariant
from convlab.simulation.compiled.launch_facts import LaunchFacts, MakeLaunch
from convlab.simulation.compiled.launches import CompiledLaunch, Result
from convlab.simulation.compiled.memory import ArgumentWords
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.compiled.suspects import ENDLESS, TWO_NAMES
from convlab.simulation.compiled.thread_switch import check_machine
from convlab.simulation.launch.running_blocks import OnBlock
from convlab.simulation.memory.unwritten_arrays import UnwrittenArrays
from convlab.simulation.rules.findings import SimulationError
from convlab.simulation.rules.launch_checks import argument_names, with_arrays
from convlab.simulation.rules.outcomes import Outcome, difference


class CompiledRun:
    """A launch as machine code. ``history`` is that of its kernel, ``hosts`` are the arrays that
    the launch may change, ``before`` what they held before it."""

    def __init__(
        self,
        facts: LaunchFacts,
        history: KernelHistory,
        made: MakeLaunch,
        on_block: OnBlock,
        hosts: list[np.ndarray],
        before: Outcome,
    ) -> None:
        self._facts, self._history = facts, history
        self._made, self._on_block = made, on_block
        self._hosts, self._before = hosts, before
        # The part of the blocks that the first engine runs again to explain what is found.
        self.part_explained = 1.0

    def run(self) -> None:
        """Run the launch, and what is suspect in it again on the first engine. Raises
        ``SimulationError`` for what that finds, :class:`NeedsGreenlets` unless machine code was
        enough."""
        with _one_at_a_time:
            try:
                self._run_all()
            except SimulationError:  # of a launch with too much memory, that is a MemoryError too
                raise
            except MemoryError as error:
                raise NeedsGreenlets("its shadow memory does not fit") from error

    def _run_all(self) -> None:
        result = self._run()
        left = self._outcome()
        if result.suspects:
            self._explain(result, left)
            # Whether a negative index is a mistake depends on the text of its line only.
            if not all(one.is_negative_index for one in result.suspects):
                raise NeedsGreenlets(
                    f"the other engine must check {result.reasons()} in the whole launch"
                )
        if result.beyond_warp and self._depends_on_own_numbers(left):
            raise NeedsGreenlets("results depend on what a shuffle reads from beyond the warp")
        if result.guesses_wrong:
            raise NeedsGreenlets("a plain read of what atomics change")
        if self._kernel.ranks and result.unchanged:
            raise NeedsGreenlets("an atomic reads what other threads may change")
        if self._kernel.ranks or self._kernel.ordered:
            forwards, left = left, self._in_the_other_order()
            if self._kernel.ordered and difference(forwards, left, self._before, set()):
                raise NeedsGreenlets("its results depend on the order of threads")
        left.restore(self._hosts)
        if self._facts.touched is not None:
            given = self._facts.arguments
            names = argument_names(self._facts.kernel.py_func, len(given))
            self._arguments.note_touched(names, self._facts.touched)
        if self._facts.unwritten is not None:
            self._facts.unwritten.keep(self._arguments.left_unwritten())

    def _outcome(self) -> Outcome:
        return Outcome.unnamed(self._hosts)

    def _run(self, beyond: int = 0, backwards: bool = False) -> Result:
        """Run the launch once as machine code, from the arrays as they were."""
        self._before.restore(self._hosts)
        facts = self._facts
        # Before the words of the arguments, because it refuses arguments of other types.
        variant = KernelVariant(facts, self._history)
        given = [with_arrays(one) for one in facts.arguments]
        self._arguments = ArgumentWords(given, facts.unwritten)
        self._kernel = variant.machine_code()
        name = self._kernel.name
        launch = CompiledLaunch(
            kernel=self._kernel,
            arguments=self._arguments,
            grid=facts.grid,
            block=facts.block,
            shared_bytes=facts.shared_bytes,
            steps=facts.steps,
            on_block=lambda number, blocks: self._on_block(name, number, blocks),
        )
        return launch.run(beyond, backwards)

    def _in_the_other_order(self) -> Outcome:
        """Return what the launch leaves with all threads from the last to the first. As on the
        first engine, the arrays keep that: results of atomics, such as places in a queue, depend
        on the order of the threads, and a program that relies on it sees another."""
        if self._run(backwards=True).suspects:
            raise NeedsGreenlets("another order of the threads is suspect")
        return self._outcome()

    def _depends_on_own_numbers(self, left: Outcome) -> bool:
        """Return whether larger and smaller numbers from beyond the warp both change the arrays."""
        for sign in (1, -1):
            result = self._run(beyond=sign)
            same = not difference(left, self._outcome(), self._before, set())
            if same and result.whole and not result.suspects:
                return False
        return True

    def _explain(self, result: Result, left: Outcome) -> None:
        """Run the suspect blocks on the first engine. Raises ``SimulationError`` with what it
        finds; the arrays become what the machine code has ``left`` in them."""
        if undecided := [one for one in result.suspects if one.reason in (ENDLESS, TWO_NAMES)]:
            raise NeedsGreenlets(f"the other engine must check {undecided[0].words}")
        self._before.restore(self._hosts)
        # What blocks wrote that do not run again is written.
        unwritten = UnwrittenArrays(self._arguments.left_unwritten(or_read=True))
        blocks = result.blocks()
        self.part_explained = len(blocks) / math.prod(self._facts.grid)
        launch = self._made(blocks=blocks, on_block=self._on_block, unwritten=unwritten)
        try:
            launch.run()
        except SimulationError as error:
            if not error.findings:
                raise
            if not error.ended or not result.whole:
                left.restore(self._hosts)
            raise


def is_in_memory(facts: LaunchFacts, history: KernelHistory) -> bool:
    """Return whether this process has the machine code for a launch. ``history`` is that of its
    kernel. It takes no lock, because a look at what is known changes nothing."""
    try:
        return KernelVariant(facts, history).is_in_memory()
    except NeedsGreenlets:
        return False


def is_on_disk(facts: LaunchFacts, history: KernelHistory) -> bool:
    """Return whether the machine code for a launch is on disk, and not in memory; False while
    another thread compiles or runs machine code, for which no short launch shall wait."""
    if not _one_at_a_time.acquire(blocking=False):
        return False
    try:
        return KernelVariant(facts, history).is_on_disk()
    except NeedsGreenlets:
        return False
    finally:
        _one_at_a_time.release()


def needs_only_the_kernel(facts: LaunchFacts, history: KernelHistory) -> bool:
    """Return whether compiling its kernel is all that is left to do before a launch runs as machine
    code. False for a kernel that is known to be refused, while another thread compiles or runs
    machine code, and on a machine that lacks what all kernels share, or for which there is none."""
    if not _one_at_a_time.acquire(blocking=False):
        return False
    try:
        variant = KernelVariant(facts, history)
        if variant.is_on_disk():
            return True
        return not variant.refusal() and _is_shared_code_there()
    except NeedsGreenlets:
        return False
    finally:
        _one_at_a_time.release()


@cache
def _is_shared_code_on_disk() -> bool:
    """Return whether it was there at the first look. No short launch needs another one."""
    return runtime.is_kept()


def _is_shared_code_there() -> bool:
    """Return whether what all kernels share need not be compiled. Raises :class:`NeedsGreenlets` on
    a machine for which there is none."""
    check_machine()
    return runtime.is_loaded() or _is_shared_code_on_disk()


def refusal(facts: LaunchFacts, history: KernelHistory) -> str:
    """Return why a launch cannot run as machine code, as far as its kernel and the types of its
    arguments tell; else an empty text. It takes no lock, as :func:`is_in_memory`."""
    try:
        return KernelVariant(facts, history).refusal()
    except NeedsGreenlets as why:
        return str(why)


_one_at_a_time = Lock()  # because the words of a launch lie at one address
