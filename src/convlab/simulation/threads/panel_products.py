"""Products of warpgroups from panels of shared memory, which the tensor cores read.

The matrix on the left may come from registers instead: then a thread's array ``A`` has no numbers
until a wait that covers the product.

The tensor cores read both panels at some time between the start of a product and the wait that
covers it. Here they read where the last thread of the warpgroup comes to the start, and
:mod:`convlab.simulation.rules.panel_accesses` finds what others do to the panels until then. A
warpgroup's products end in their order. A thread's sums are with the tensor cores until a wait:
then its array ``D`` has no numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from convlab import device
from convlab.device.panel_products import (
    ITEM_BYTES,
    PANEL_ROW_BYTES,
    PANEL_ROWS,
    check_terms,
    panel_of_words,
    panel_product,
    sums_of,
)
from convlab.device.products import WARPGROUP, check_width
from convlab.device.register_products import words_of
from convlab.device.swizzled_products import check_columns, check_wait
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.local_arrays import LocalArray
from convlab.simulation.numbers.counted_operations import Arithmetic
from convlab.simulation.recording.access_log import LaunchClock
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.panel_accesses import PanelAccesses
from convlab.simulation.rules.thread_clocks import ThreadClocks
from convlab.simulation.threads.async_copies import is_shared
from convlab.simulation.threads.copy_engine import Panels
from convlab.simulation.threads.product_operands import (
    KINDS,
    InFlight,
    Operands,
    ReadRegisters,
    Registers,
    Sums,
    check_sums,
    mismatch,
    numbers_before,
)
from convlab.simulation.threads.product_order import ProductOrder
from convlab.simulation.threads.simulated_cuda import SimulatedCuda
from convlab.simulation.threads.waiting import (
    ALL_THREADS,
    PRODUCTS_DONE,
    START_BF16,
    START_BF16_REGISTERS,
    START_F16,
    START_F16_REGISTERS,
    START_TF32,
    WaitingCall,
)


class PanelProducts:
    """The products of a launch's warpgroups from panels."""

    def __init__(
        self,
        cuda: SimulatedCuda,
        clock: LaunchClock,
        clocks: ThreadClocks,
        panels: Panels,
        accesses: PanelAccesses,
        arithmetic: Arithmetic | None,
        strict: bool,
    ) -> None:
        self._cuda, self._clock, self._panels = cuda, clock, panels
        self._arithmetic, self._strict = arithmetic, strict
        self._order = ProductOrder(clock, clocks, accesses)
        # The starts of panels that have been checked.
        self._checked: set[object] = set()
        # The number of products started, by the thread's number in the launch.
        self._started: dict[int, int] = {}
        # The products in flight, by the thread's number, then by the id of their array and the
        # first of their sums.
        self._in_flight: dict[int, dict[tuple[int, int], InFlight]] = {}
        self._registers = ReadRegisters()
        self.intrinsics: dict[object, Callable[..., object]] = {
            device.panel_start: panels.start,
            device.start_product_f16: partial(self._start, START_F16),
            device.start_product_bf16: partial(self._start, START_BF16),
            device.start_product_tf32: partial(self._start, START_TF32),
            device.start_product_f16_registers: partial(self._start_left, START_F16_REGISTERS),
            device.start_product_bf16_registers: partial(self._start_left, START_BF16_REGISTERS),
            device.wait_products: self.wait,
        }

    def end_block(self) -> None:
        """Forget the products of the block, which has ended."""
        self._order.end_block()
        first = self._clock.first
        for thread in range(first, first + self._clock.block_size):
            self._started.pop(thread, None)
            self._in_flight.pop(thread, None)
            self._registers.forget(thread)

    # The intrinsics that a kernel calls.

    def _start(
        self,
        name: str,
        D: LocalArray,
        first: int,
        S: CheckedArray,
        at_A: int,
        at_B: int,
        N: int,
        TERMS: int,
    ) -> None:
        """``start_product_f16`` and its like: start a product once all 128 threads have come."""
        self._start_with(
            name,
            site_of(1),
            D=D,
            first=int(first),
            S=S,
            at_A=int(at_A),
            at_B=int(at_B),
            N=N,
            terms=TERMS,
            left=None,
        )

    def _start_left(
        self,
        name: str,
        D: LocalArray,
        first: int,
        A: LocalArray,
        S: CheckedArray,
        at_B: int,
        N: int,
        TERMS: int,
    ) -> None:
        """``start_product_f16_registers`` and its like: the same with A from registers."""
        site = site_of(1)
        check_terms(name, KINDS[name], TERMS)
        count = words_of(KINDS[name], TERMS)
        left = self._registers.of_left(
            thread=self._clock.number, name=name, A=A, count=count, site=site
        )
        self._start_with(
            name,
            site,
            D=D,
            first=int(first),
            S=S,
            at_A=None,
            at_B=int(at_B),
            N=N,
            terms=TERMS,
            left=left,
        )

    def _start_with(
        self,
        name: str,
        site: int,
        *,
        D: LocalArray,
        first: int,
        S: CheckedArray,
        at_A: int | None,
        at_B: int,
        N: int,
        terms: int,
        left: Registers | None,
    ) -> None:
        """Start a product whose A is in a panel at ``at_A``, or is ``left`` in registers."""
        number = self._clock.number
        check_width(N)
        check_terms(name, KINDS[name], terms)
        check_sums(name, D, first, N // 2)
        mine = self._in_flight.setdefault(number, {})
        before = mine.get((id(D), first))
        sums: Sums | list[float]
        if before is None:
            sums = numbers_before(D, first, N // 2, site)
        else:
            sums = before.sums
            check_columns(name, range(sums.numbers.shape[1] // 2), N)
            before.check_untouched(name)
        operands = Operands(
            name=name,
            S=S,
            at_A=at_A,
            at_B=at_B,
            N=N,
            terms=terms,
            site=site,
            thread=self._clock.thread,
            sums=sums,
            of_all=self.multiply,
            words=left.words if left is not None else (),
        )
        # One thread's check is enough for the others, and for the next time.
        known = is_shared(S) and (S.base, S.shape, S.dtype.str, name, at_A, at_B, N)
        if not known or known not in self._checked:
            self._check_panels(operands)
            self._checked.add(known)
        if self._arithmetic is not None:
            self._arithmetic.count(2 * PANEL_ROWS * N * terms // WARPGROUP)
        result = self._cuda.hub(WaitingCall(name, site, operands, ALL_THREADS))
        if isinstance(result, Exception):
            raise result
        assert isinstance(result, Sums)
        started = self._started[number] = self._started.get(number, 0) + 1
        product = mine[id(D), first] = InFlight(D, first, result, started)
        D.cells[product.cells] = [None] * (N // 2)
        if left is not None:
            self._registers.take(number, started, left)

    def wait(self, D: LocalArray, SUMS: int, in_flight: int) -> None:
        """``wait_products``: wait until at most so many products are in flight."""
        site, number = site_of(1), self._clock.number
        check_wait(SUMS, in_flight)
        check_sums("wait_products", D, 0, SUMS)
        self._cuda.hub(WaitingCall(PRODUCTS_DONE, site, None, ALL_THREADS))
        ended = self._started.get(number, 0) - in_flight
        if self._strict and ended > 0:
            self._order.learn(ended)
        mine, thread = self._in_flight.get(number, {}), self._clock.thread % WARPGROUP
        for product in [*mine.values()]:
            if product.D is D and product.cells.stop <= SUMS and product.number <= ended:
                product.check_untouched("wait_products")
                del mine[id(D), product.first]
                D.cells[product.cells] = product.sums.of_thread(thread)
        self._registers.end(number, ended)

    # What tensor cores do.

    def _check_panels(self, operands: Operands) -> list[tuple[int, np.ndarray]]:
        """Return the panels of a product, B's last: addresses and bytes."""
        name, S, itemsize = operands.name, operands.S, ITEM_BYTES[KINDS[operands.name]]
        panel = partial(self._panels.panel, name, S, itemsize=itemsize, site=operands.site)
        found = [panel(operands.at_B, operands.N * PANEL_ROW_BYTES)]
        if operands.at_A is not None:
            found.insert(0, panel(operands.at_A, PANEL_ROWS * PANEL_ROW_BYTES))
        return found

    def multiply(self, brought: Mapping[int, Operands]) -> Mapping[int, object]:
        """Return the sums of each thread after a product; an exception if threads of the warpgroup
        do not multiply the same panels."""
        first = next(iter(brought.values()))
        for other in brought.values():
            if (error := mismatch(first, other)) is not None:
                return dict.fromkeys(brought, error)
        given = first.sums
        if isinstance(given, Sums):
            before = given.numbers
            same = all(one.sums is given for one in brought.values())
        else:
            same = not any(isinstance(one.sums, Sums) for one in brought.values())
            numbers = {t: one.sums for t, one in brought.items() if not isinstance(one.sums, Sums)}
            before = sums_of(numbers, first.N)
        if not same:
            what = f"{first.name}: D has a product in flight in some threads of the warpgroup only"
            return dict.fromkeys(brought, RuntimeError(what))
        panels = self._check_panels(first)
        if self._strict:
            self._order.note(first, [one.thread for one in brought.values()], panels)
        *left, (_, B) = panels
        A = left[0][1] if left else panel_of_words({t: one.words for t, one in brought.items()})
        after = Sums(panel_product(KINDS[first.name], A, B, before, first.terms))
        return dict.fromkeys(brought, after)
