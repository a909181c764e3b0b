"""The order of a warpgroup's products: their reads, and what a thread knows after a wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from convlab.device.products import WARPGROUP
from convlab.simulation.recording.access_log import LaunchClock
from convlab.simulation.rules.panel_access import PanelAccess
from convlab.simulation.rules.panel_accesses import PanelAccesses
from convlab.simulation.rules.thread_clocks import Knowledge, ThreadClocks, both
from convlab.simulation.threads.product_operands import Operands


@dataclass
class Warpgroup:
    """The products of one warpgroup: how many it has started, and what its threads knew when each
    began, together with all before it."""

    entry: int  # of the block's clocks
    started: int = 0
    begun: list[Knowledge] = field(default_factory=list)
    ended: dict[int, Knowledge] = field(default_factory=dict)  # what a wait for so many tells


class ProductOrder:
    """The warpgroups of a launch: notes the reads of their products in ``accesses``, and lets
    threads know that products have ended."""

    def __init__(self, clock: LaunchClock, clocks: ThreadClocks, accesses: PanelAccesses) -> None:
        self._clock, self._clocks, self._accesses = clock, clocks, accesses
        self._warpgroups: dict[tuple[int, int], Warpgroup] = {}  # by block and number in it

    def end_block(self) -> None:
        """Forget the warpgroups of the block, which has ended."""
        block = self._clock.block_number
        for key in [one for one in self._warpgroups if one[0] == block]:
            del self._warpgroups[key]

    def note(
        self,
        operands: Operands,
        threads: Sequence[int],
        panels: Sequence[tuple[int, np.ndarray]],
    ) -> None:
        """Note the reads of a product that these threads of the block start."""
        clocks, time = self._clocks.here, self._clocks.now()
        warpgroup = self._of(operands.thread)
        past = clocks.past_of(threads, time)
        if warpgroup.begun:
            past = both(past, warpgroup.begun[-1])
        warpgroup.begun.append(past)
        warpgroup.started += 1
        begin = clocks.known_to_each(threads)
        for first, data in panels:
            access = PanelAccess(
                first=first,
                end=first + data.size,
                writes=False,
                block=self._clock.block_number,
                thread=self._clock.first + operands.thread,
                site=operands.site,
                time=time,
                begin=begin,
                entry=warpgroup.entry,
                number=warpgroup.started,
                ends_with=f"product {warpgroup.started} of that warpgroup",
            )
            self._accesses.add(access)

    def learn(self, ended: int) -> None:
        """Let the thread that runs know that so many products of its warpgroup have ended."""
        thread = self._clock.thread
        warpgroup = self._of(thread)
        if ended not in warpgroup.ended:
            entry = warpgroup.entry
            news = both(warpgroup.begun[ended - 1], np.zeros(entry + 1, np.int64))
            news[entry] = ended
            warpgroup.ended[ended] = news
        self._clocks.here.learn(thread, warpgroup.ended[ended], self._clocks.now())

    def _of(self, thread: int) -> Warpgroup:
        key = self._clock.block_number, thread // WARPGROUP
        if key not in self._warpgroups:
            self._warpgroups[key] = Warpgroup(self._clocks.here.entry())
        return self._warpgroups[key]
