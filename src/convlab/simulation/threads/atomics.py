"""``cuda.atomic`` in a simulated kernel."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import cast

from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.numbers.scalars import converted
from convlab.simulation.recording.access_log import ATOMIC, EXCHANGE
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.atomic_history import AtomicHistory
from convlab.simulation.rules.findings import NotSimulated
from convlab.simulation.threads.waiting import YIELD, WaitingCall

AtomicNumber = int | float  # in a register; a bool is an int
# Computes the new number from the old one and the given one.
Combine = Callable[[AtomicNumber, AtomicNumber], AtomicNumber]
AtomicCall = Callable[[CheckedArray, object, object], AtomicNumber]


class Atomics:
    """``cuda.atomic``. ``history`` notes each call; a thread that should let others go first
    switches to ``hub``."""

    history: AtomicHistory

    def __init__(self, hub: Callable[[WaitingCall], object]) -> None:
        self._hub = hub

    def __getattr__(self, name: str) -> AtomicCall:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _ATOMICS:
            raise NotSimulated(f"cuda.atomic.{name} is not simulated")
        combine, kind = _ATOMICS[name], EXCHANGE if name == "exch" else ATOMIC
        checks = name in ("max", "min", "nanmax", "nanmin")

        def atomic(array: CheckedArray, index: object, value: object) -> AtomicNumber:
            given = cast("AtomicNumber", converted(value, array.dtype))
            site, history = site_of(1), self.history
            new: AtomicNumber | None = None

            def combined(old: AtomicNumber) -> AtomicNumber:
                nonlocal new
                new = combine(old, given)
                return new

            old = cast("AtomicNumber", array.update(index, combined, site, kind))
            if checks:
                history.check()
            gives_way = history.gives_way
            if new != old:
                history.change(array, index, site, old, new, sys._getframe(1), kind == EXCHANGE)
            elif history.read(array, index, site, old, sys._getframe(1)):
                gives_way = True  # it polls, in a loop of any kind
            if gives_way:
                self._hub(WaitingCall(YIELD, site))
            return old

        setattr(self, name, atomic)
        return atomic

    def cas(
        self,
        array: CheckedArray,
        index: object,
        expected: object,
        value: object,
        depth: int = 1,
    ) -> AtomicNumber:
        """Store the value if the element is as expected; return what it was. The kernel's call is
        ``depth`` calls above."""
        expected, value = converted(expected, array.dtype), converted(value, array.dtype)
        site = site_of(depth)
        update = array.update(index, lambda old: value if old == expected else old, site)
        old = cast("AtomicNumber", update)
        history, frame = self.history, sys._getframe(depth)
        history.swap(array, index, site, expected, old, value, frame)
        # Perhaps it is a lock that another thread holds: let that run.
        gives_way = old != expected or history.gives_way
        if expected == value:  # it only reads
            gives_way = history.read(array, index, site, old, frame) or history.gives_way
        elif old == expected:
            history.change(array, index, site, old, value, frame, False)
        if gives_way:
            self._hub(WaitingCall(YIELD, site))
        return old

    def compare_and_swap(
        self, array: CheckedArray, expected: object, value: object
    ) -> AtomicNumber:
        """``cas`` of an array's first element."""
        return self.cas(array, 0, expected, value, 2)


def _nan_or(choose: Combine) -> Combine:
    """Return a function that chooses the one of two numbers that is not NaN."""
    return lambda old, value: value if old != old else old if value != value else choose(old, value)


def _unless_nan(choose: Combine) -> Combine:
    """Return a function that keeps the old number if one of two is NaN, because Numba's atomic
    returns early then."""
    return lambda old, value: old if old != old or value != value else choose(old, value)


_ATOMICS: dict[str, Combine] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "and_", "or_", "xor")},
    "exch": lambda old, value: value,
    "inc": lambda old, value: 0 if old >= value else old + 1,
    "dec": lambda old, value: value if old == 0 or old > value else old - 1,
    "max": _unless_nan(max),
    "min": _unless_nan(min),
    "nanmax": _nan_or(max),
    "nanmin": _nan_or(min),
}
