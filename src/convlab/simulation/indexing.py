"""The code of element access, which is the innermost loop of all: written out for each number of
dimensions and each shape of a local array, and compiled once for all arrays of a kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from convlab.simulation.access_log import READ, WRITE, site_of

SITE = "(id(frame.f_code) + frame.f_lasti)"  # of ``frame``

_TEMPLATE = """
def make({parameters}):
    class Array(Base):
        __slots__ = ()

        def __getitem__(self, index):
            try:
                {names} = index
                if {inside}:
                    value = {load}
                    {read}
            except (IndexError, TypeError, ValueError):
                pass
            return self.part(index, site_of(1))

        def __setitem__(self, index, value):
            try:
                {names} = index
                if {inside}:
                    {store}
            except (IndexError, TypeError, ValueError):
                pass
            self.store_part(index, value, site_of(1))
{more}
    def forget():
        nonlocal DATA, FLAT
        DATA = FLAT = None

    return Array, forget
"""

# Quick wide accesses, of which those of four float32 are the usual ones.
_WIDE_TEMPLATE = """
        def first_of_run(self, index, count, site):
            try:
                {names} = index
                if {inside} <= {last} - count:
                    first = {first}
                    if first % count == 0:
                        return first
            except (TypeError, ValueError):
                pass
            return Base.first_of_run(self, index, count, site)

        def load_run(self, index, count):
            try:
                {names} = index
                if {inside} <= {last} - count:
                    first = {first}
                    if first % count == 0:
                        values = FLAT[first : first + count].tolist()
                        {log_load}
                        return tuple({values})
            except (TypeError, ValueError):
                pass
            return self.load_wide(index, count, site_of(2))

        def store_run(self, index, values):
            try:
                {names} = index
                x, y, z, w = values
                if {inside} <= {last} - 4:
                    first = {first}
                    if first % 4 == 0:
                        FLAT[first] = x
                        FLAT[first + 1] = y
                        FLAT[first + 2] = z
                        FLAT[first + 3] = w
                        {log_store}
                        return
            except (TypeError, ValueError):
                pass
            self.store_wide(index, values, site_of(2))
"""


def wide_methods(ndim: int, counted: bool, logged: bool) -> str:
    """The code of quick wide accesses to an array of ``SIZE0``, ``SIZE1``, ... elements."""
    rows = "".join(f"0 <= i{axis} < SIZE{axis} and " for axis in range(ndim - 1))
    first = "i0"
    for axis in range(1, ndim):
        first = f"({first}) * SIZE{axis} + i{axis}"
    log_load = log_store = "pass"
    if logged:  # as AccessLog.add
        log = f"frame = getframe(2); log_address(BASE + 4 * first); log_site(-({SITE} << 13 | "
        log_load = f"{log}count << 6 | {READ}))"
        log_store = f"{log}4 << 6 | {WRITE})); log_values(values)"
    return _WIDE_TEMPLATE.format(
        names=_names(ndim), inside=f"{rows}0 <= i{ndim - 1}", last=f"SIZE{ndim - 1}", first=first,
        values="map(number, values)" if counted else "values",
        log_load=log_load, log_store=log_store,
    )  # fmt: skip


def _names(ndim: int) -> str:
    letters = ", ".join(f"i{axis}" for axis in range(ndim))
    return letters if ndim == 1 else f"[{letters}]"


def indexed_class(
    base: type, ndim: int, inside: str, load: str, read: str, store: str, more: str,
    names: dict[str, Any],
) -> tuple[Any, Callable[[], None]]:  # fmt: skip
    """A class of arrays with quick access to an element, written out of these pieces of code in
    terms of ``index`` and of its entries ``i0``, ``i1``, ...; and what forgets its data. ``read``
    and ``store`` return where all is well; ``more`` are further methods. ``names`` are what the
    code closes over: Python finds those quicker than globals, and compiles the code only once."""
    given = {"Base": base, "site_of": site_of, "DATA": None, "FLAT": None, **names}
    made: tuple[Any, Callable[[], None]]
    made = _maker(tuple(given), ndim, inside, load, read, store, more)(*given.values())
    return made


@lru_cache(maxsize=1000)
def _maker(
    parameters: tuple[str, ...], ndim: int, inside: str, load: str, read: str, store: str, more: str
) -> Callable[..., Any]:
    source = _TEMPLATE.format(
        parameters=", ".join(parameters), names=_names(ndim), inside=inside, load=load, read=read,
        store=store, more=more,
    )  # fmt: skip
    namespace: dict[str, Any] = {}
    exec(compile(source, "<array>", "exec"), namespace)
    found: Callable[..., Any] = namespace["make"]
    return found
