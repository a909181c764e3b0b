"""The rules that one launch is held to: some hear of its threads, others read its log."""

from __future__ import annotations

from convlab.simulation.launch.simulated_gpu import SimulatedGpu
from convlab.simulation.launch.translation import Translation
from convlab.simulation.recording.access_log import LaunchClock
from convlab.simulation.rules.atomic_history import AtomicHistory
from convlab.simulation.rules.orders import Order
from convlab.simulation.rules.races import Race
from convlab.simulation.rules.shuffles import Shuffles
from convlab.simulation.rules.synchronization import Synchronization


class LaunchRules:
    """The rules of a launch in an order. ``history``, ``shuffles`` and ``synchronization`` hear of
    the threads while they run, ``race`` reads the log."""

    def __init__(
        self, translation: Translation, gpu: SimulatedGpu, clock: LaunchClock, order: Order
    ) -> None:
        self.history = AtomicHistory(
            clock,
            translation.sites,
            slow=order.slow,
            patience=order.patience,
            random=order.random("atomics"),
        )
        self.history.messages.matter = translation.may_poll
        self.history.pairs_matter = translation.updates_by_two_atomics
        self.shuffles = Shuffles(
            clock,
            undefined=order.undefined,
            only=order.undefined_at,
            beyond=order.beyond,
        )
        hopper = gpu.hopper if gpu.hopper.clocks.used else None
        self.synchronization = Synchronization(
            swaps=self.history.swaps,
            grid_barriers=gpu.scheduler.grid_barriers,
            clocks=None if hopper is None else hopper.clocks,
        )
        self.race = Race(
            translation.sites,
            self.synchronization,
            checks=self.history.checks,
            unwritten=gpu.memory.unwritten,
            copied=None if hopper is None else hopper.accesses.copied,
        )
