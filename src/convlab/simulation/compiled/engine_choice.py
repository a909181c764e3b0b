"""Chooses the engine of a launch, and joins what both find.

A launch begins on the engine that explains (:mod:`convlab.simulation.launch`). If the time of its
first blocks says that it will take long, it begins anew as machine code. Blocks that are suspect
there run again on the first engine, which writes the findings; if it finds nothing in them, it runs
the whole launch.
"""

from __future__ import annotations

from time import process_time

from convlab.simulation.compiled.launch_facts import LaunchFacts, MakeLaunch
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.launch import SimulatedLaunch
from convlab.simulation.launch.running_blocks import OnBlock
from convlab.simulation.rules.launch_checks import hosts_in, with_arrays
from convlab.simulation.rules.orders import run_in_orders
from convlab.simulation.rules.outcomes import Outcome
from convlab.support.progress import say

LONG_SECONDS = 2.0  # a launch that will take longer on the first engine is compiled
_ORDERS = "only the first engine tries the orders of threads that matter to it"
_LIBRARY = "a library that has not been written for machine code"
# Names in kernels that are not compiled, and why.
NOT_COMPILED = {
    **dict.fromkeys(("ldcv", "ldcg", "stwt", "stcg"), _ORDERS),
    **dict.fromkeys(("nanosleep", "cg", "this_grid"), _ORDERS),
    **dict.fromkeys(("fp16", "bf16", "libdevice"), _LIBRARY),
    "print": "each engine that runs a launch would print",
}


class _TakesLong(BaseException):
    """Ends a launch on the first engine. No ``except`` of a kernel or a rule catches it."""


def run_launch(
    facts: LaunchFacts, made: MakeLaunch, first: SimulatedLaunch, on_block: OnBlock
) -> tuple[SimulatedLaunch, bool]:
    """Run a launch, whose first run on the first engine is ``first``; it was made with a
    :class:`Watch`. Return the launch that has the notes, and whether machine code was enough.
    Raises ``SimulationError`` if something is found."""
    hosts = [host for one in facts.arguments for host in hosts_in(with_arrays(one))]
    hosts = [host for host in hosts if host.flags.writeable]
    before = Outcome.unnamed(hosts)
    try:
        run_in_orders(first, made)
        return first, False
    except _TakesLong:
        before.restore(hosts)
        if facts.touched is not None:
            facts.touched.clear()
    # Only launches that take long pay for the import of Numba's compiler for CPUs.
    from convlab.simulation.compiled.compiled_run import CompiledRun

    try:
        CompiledRun(facts, made, on_block, hosts, before).run()
        return first, True
    except NeedsGreenlets as why:
        say(f"{first.kernel} takes long, and is not compiled: {why}")
        before.restore(hosts)
        again = made(on_block=on_block, touched=facts.touched)
        run_in_orders(again, made)
        return again, False


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


class Watch:
    """Hears of each block and barrier of a launch, and ends the launch if it will take long: so
    many seconds of this process, because the machine may have other work. They count from the first
    block on: a kernel with many device functions is typed for longer than it runs."""

    def __init__(self, on_block: OnBlock) -> None:
        self._on_block = on_block
        self._begin: float | None = None
        self.is_on = True

    def __call__(self, kernel: str, number: int, blocks: int) -> None:
        """Hear that a block begins, or that it has come to a barrier."""
        self._on_block(kernel, number, blocks)
        if not self.is_on:
            return
        if self._begin is None:
            self._begin = process_time()
        spent = process_time() - self._begin
        expected = spent * blocks / number if number else spent
        if expected >= LONG_SECONDS:
            raise _TakesLong
