"""The parts of a launch that only Hopper has: barriers in shared memory, the copy engine, products
from panels, and roles of warps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from convlab import device
from convlab.device.sixteen_bits import BFLOAT16, FLOAT16, number_of
from convlab.simulation.memory.sixteen_bits import load_pair, load_pairs, store_pairs
from convlab.simulation.numbers.counted_operations import Arithmetic
from convlab.simulation.recording.access_log import AccessLog, LaunchClock
from convlab.simulation.rules.panel_accesses import PanelAccesses
from convlab.simulation.rules.reports import Reports
from convlab.simulation.rules.thread_clocks import ThreadClocks
from convlab.simulation.threads.copy_engine import CopyEngine, Panels
from convlab.simulation.threads.panel_products import PanelProducts
from convlab.simulation.threads.shared_barriers import SharedBarriers
from convlab.simulation.threads.simulated_cuda import SimulatedCuda
from convlab.simulation.threads.warp_roles import WarpRoles, blocks_per_sm


class Hopper:
    """Hopper's parts in one launch. ``options`` are those of the kernel's ``@cuda.jit``."""

    def __init__(
        self,
        cuda: SimulatedCuda,
        clock: LaunchClock,
        reports: Reports,
        arithmetic: Arithmetic | None,
        options: Mapping[str, object],
        strict: bool,
    ) -> None:
        self.clocks = clocks = ThreadClocks(clock, strict)
        self.accesses = PanelAccesses(clocks, clock.log, reports if strict else None)
        panels = Panels(cuda.shared)
        barriers = SharedBarriers(cuda, clock, clocks, reports, strict)
        engine = CopyEngine(clock, clocks, barriers, panels, self.accesses, strict)
        products = PanelProducts(
            cuda=cuda,
            clock=clock,
            clocks=clocks,
            panels=panels,
            accesses=self.accesses,
            arithmetic=arithmetic,
            strict=strict,
        )
        roles = WarpRoles(cuda, clock, reports, blocks_per_sm(options))
        self._parts = barriers, products, roles
        self.intrinsics: dict[object, Callable[..., object]] = {
            **barriers.intrinsics,
            **engine.intrinsics,
            **products.intrinsics,
            **roles.intrinsics,
            device.load_pair: load_pair,
            device.load_pairs: load_pairs,
            device.store_pairs: store_pairs,
            # Registers hold Python's numbers.
            device.widen_f16: partial(number_of, kind=FLOAT16),
            device.widen_bf16: partial(number_of, kind=BFLOAT16),
        }
        # Without these, barriers of a block and of warps are all that orders threads.
        self._order_threads = {
            *barriers.intrinsics.values(),
            *products.intrinsics.values(),
            *roles.intrinsics.values(),
        }

    def note_used(self, called: Iterable[Callable[..., object]]) -> None:
        """Have clocks if the kernel calls what needs them, by its intrinsics."""
        self.clocks.used = any(one in self._order_threads for one in called)

    def meet(self, threads: Iterable[int]) -> None:
        """Note that these threads of the block have met at a barrier."""
        self.clocks.meet(threads)

    def end_block(self) -> None:
        """End the block's unfinished work: report copies in flight, and forget them, products,
        barriers and registers."""
        for part in self._parts:
            part.end_block()

    def look(self, log: AccessLog, whole: bool) -> None:
        """Check the accesses in the log. ``whole`` if the last block has ended."""
        self.accesses.look(log, whole)
