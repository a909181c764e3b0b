"""Creates the arrays of a simulated launch, with fast code for the usual element accesses.

Element access is the innermost loop of the simulator. So its code is written out for each number of
dimensions, and for each shape of a local array, and compiled once for all arrays of a kind. Each
array then gets a class of its own, whose methods close over the array's data, strides and address,
because Python finds those faster than globals or attributes.

Data is read through memoryviews: those return Python numbers, round at stores, refuse indices
beyond the end and are faster than NumPy arrays.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
from numpy.lib.array_utils import byte_bounds

from convlab.simulation.memory.checked_arrays import CheckedArray, MisalignedArray
from convlab.simulation.memory.host_memory import bytes_of, is_wide, start_of
from convlab.simulation.memory.index_checks import ArrayReport
from convlab.simulation.memory.kernel_arrays import CountedNumber, KernelArray
from convlab.simulation.memory.local_arrays import LocalArray
from convlab.simulation.memory.structured_arrays import RecordArray
from convlab.simulation.numbers.scalars import Elements, quick
from convlab.simulation.recording.access_log import READ, WRITE, AccessLog, Span, c_strides
from convlab.simulation.recording.instructions import site_of

# The code of element access, in terms of ``index`` and of its entries ``i0``, ``i1``, ...

SITE = "(id(frame.f_code) + frame.f_lasti)"  # of ``frame``

_CLASS = """
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
"""

# Quick wide accesses, of which those of four float32 are the usual ones.
_WIDE = """
        def first_of_run(self, index, count, site):
            try:
                {names} = index
                if {inside} - count:
                    first = {first}
                    if first % count == 0:
                        return first
            except (TypeError, ValueError):
                pass
            return Base.first_of_run(self, index, count, site)

        def load_run(self, index, count):
            try:
                {names} = index
                if {inside} - count:
                    first = {first}
                    if first % count == 0:
                        values = FLAT[first : first + count].tolist()
                        {loaded}return tuple({values})
            except (TypeError, ValueError):
                pass
            return Base.load_run(self, index, count, 3)

        def store_run(self, index, values):
            try:
                {names} = index
                x, y, z, w = values
                if {inside} - 4:
                    first = {first}
                    if first % 4 == 0:
                        FLAT[first] = x
                        FLAT[first + 1] = y
                        FLAT[first + 2] = z
                        FLAT[first + 3] = w
                        {stored}return
            except (TypeError, ValueError):
                pass
            Base.store_run(self, index, values, 3)
"""


class ArrayInCode(NamedTuple):
    """A whole array whose class is made for it alone, with its data and address in the code."""

    host: np.ndarray
    base: int
    alignment: int


class Memory:
    """The memory of one launch: the log, if there is one, and the function that receives
    findings. Creates the launch's arrays."""

    def __init__(
        self, log: AccessLog | None, report: ArrayReport, number: CountedNumber | None = None
    ) -> None:
        self.log, self.report = log, report
        self._number = number
        self._view_classes: dict[tuple[int, CountedNumber | None], type[CheckedArray]] = {}
        self._quick: list[Elements] = []  # the data that the classes of arrays close over

    def number(self, dtype: np.dtype) -> CountedNumber | None:
        """Return what loads of that type are passed through, to count the operations on them."""
        return self._number if dtype.kind == "f" else None

    def array(
        self, host: np.ndarray, name: str, base: int, alignment: int = 256, tag: int = 0
    ) -> KernelArray | RecordArray:
        """Return the array as a kernel sees it, its first element at the simulated address
        ``base``. The ``tag`` is :meth:`AccessLog.named`'s."""
        if host.dtype.names is not None:
            return self._records(host, name, base, alignment, tag)
        return self._plain(host, name, base, alignment, tag)

    def _plain(
        self, host: np.ndarray, name: str, base: int, alignment: int, tag: int
    ) -> CheckedArray:
        if self.log is not None and host.size:
            low, high = (base + address - start_of(host) for address in byte_bounds(host))
            span = Span(name, low, high, host.shape, host.strides, host.dtype)
            around = (one for one in self.log.spans if one.start < high and low < one.end)
            if any(one.itemsize != span.itemsize for one in around):
                base = self.log.sized(base, span.itemsize)
            self.log.spans.append(span)
        base += tag
        if not _elements_aligned(host):
            return MisalignedArray(host, name, base, self, alignment)
        placed = ArrayInCode(host, base, alignment)
        made = self._array_class(host.ndim, self.number(host.dtype), placed)
        return made(host, name, base, self, alignment)

    def _records(
        self, host: np.ndarray, name: str, base: int, alignment: int, tag: int
    ) -> RecordArray:
        """Return a structured array. Its fields have spans of their own, so that findings name
        them."""
        host = np.asarray(host)  # not a record array, whose views are record arrays too
        whole = self._plain(host.view(bytes_of(host.dtype)), name, base, alignment, tag)
        for field, part in _fields(host, name):
            if self.log is not None and part.size:
                low, high = (base + end - start_of(host) for end in byte_bounds(part))
                self.log.spans.append(Span(field, low, high, part.shape, part.strides, part.dtype))
        return RecordArray(whole, host.dtype)

    def local(self, values: np.ndarray) -> LocalArray:
        """Return a local array that holds a copy of these values."""
        kind = local_class(values.shape, values.dtype, self.number(values.dtype), None)
        made = kind("an array without a name", self)
        made.cells[:] = values.reshape(-1).tolist()
        return made

    def view(self, host: np.ndarray, name: str, base: int, alignment: int) -> CheckedArray:
        """Return a view, of a class that all views of its number of dimensions share."""
        if not _elements_aligned(host):
            return MisalignedArray(host, name, base, self, alignment)
        key = host.ndim, self.number(host.dtype)
        if key not in self._view_classes:
            self._view_classes[key] = self._array_class(*key, None)
        return self._view_classes[key](host, name, base, self, alignment)

    def _array_class(
        self,
        ndim: int,
        number: CountedNumber | None,
        placed: ArrayInCode | None,
    ) -> type[CheckedArray]:
        """Return a class for the array ``placed`` alone. Without one, return a class for views,
        which have data, strides and address as attributes."""
        closed: dict[str, object] = {"getframe": sys._getframe, "number": number}
        if placed is None:
            address, data, wide = "self.base", "self.data", False
            steps = [f"self.strides[{axis}]" for axis in range(ndim)]
        else:
            host, base, alignment = placed
            address, data = "BASE", "DATA"
            steps = [f"STEP{axis}" for axis in range(ndim)]
            wide = is_wide(host) and base % 16 == alignment % 16 == 0 < min(ndim, host.size)
            whole, flat = quick(host), quick(host.reshape(-1))
            self._quick += [whole, flat]
            closed |= {"BASE": base, "DATA": whole, "FLAT": flat}
            closed |= dict(zip(steps, host.strides, strict=True))
            closed |= {f"SIZE{axis}": size for axis, size in enumerate(host.shape)}
        address += "".join(f" + i{axis} * {step}" for axis, step in enumerate(steps))
        read = written = loaded = stored = ""
        if self.log is not None:
            path = "log_path(log.path); " if self.log.keeps_paths else ""
            log = f"frame = getframe(1); log_address({address}); {path}log_site({SITE}"
            read, written = f"{log}); ", f"{log} + 1); log_value(value); "
            log = f"frame = getframe(2); log_address(BASE + 4 * first); {path}"
            log += f"log_site(-({SITE} << 13 | "
            loaded = f"{log}count << 6 | {READ})); "  # as AccessLog.add
            stored = f"{log}4 << 6 | {WRITE})); log_values(values); "
            closed["log"] = self.log
            closed["log_address"] = self.log.addresses.append
            closed["log_path"] = self.log.paths.append
            closed["log_site"] = self.log.sites.append
            closed["log_value"] = self.log.values.append
            closed["log_values"] = self.log.values.extend
        source = _CLASS.format(
            names=_names(ndim),
            inside=" and ".join(f"i{axis} >= 0" for axis in range(ndim)) or "True",
            load=f"number({data}[index])" if number else f"{data}[index]",
            read=f"{read}return value",
            store=f"{data}[index] = value; {written}return",
        )
        if wide:
            rows = "".join(f"0 <= i{axis} < SIZE{axis} and " for axis in range(ndim - 1))
            first = "i0"
            for axis in range(1, ndim):
                first = f"({first}) * SIZE{axis} + i{axis}"
            source += _WIDE.format(
                names=_names(ndim),
                inside=f"{rows}0 <= i{ndim - 1} <= SIZE{ndim - 1}",
                first=first,
                values="map(number, values)" if number else "values",
                loaded=loaded,
                stored=stored,
            )
        return cast(type[CheckedArray], _class(CheckedArray, source, closed))

    def let_go(self) -> None:
        """Release the arrays' data, to which their classes refer: these refer to themselves, so
        they live on until Python collects cycles."""
        for data in self._quick:
            data.release()


def local_class(
    shape: tuple[int, ...], dtype: np.dtype, number: CountedNumber | None, alignment: int | None
) -> type[LocalArray]:
    """Return the class of local arrays of that shape; the sizes are written into its code. Loads
    are passed through ``number``, if it is given."""
    steps = enumerate(c_strides(shape, 1))
    cell = " + ".join(f"i{axis} * {n}" if n > 1 else f"i{axis}" for axis, n in steps)
    source = _CLASS.format(
        names=_names(len(shape)),
        inside=" and ".join(f"0 <= i{axis} < {n}" for axis, n in enumerate(shape)),
        load=f"self.cells[{cell}]",
        read=f"if value is not None: return {'number(value)' if number else 'value'}",
        store=f"CELL[0] = value; self.cells[{cell}] = CELL[0]; return",
    )
    closed: dict[str, object] = {"CELL": quick(np.zeros(1, dtype)), "number": number}
    made = cast(type[LocalArray], _class(LocalArray, source, closed))
    made.shape, made.strides, made.dtype = shape, c_strides(shape, dtype.itemsize), dtype
    made.unwritten, made.layouts = (None,) * math.prod(shape), {}
    made.wide, made.alignment = dtype == np.float32, alignment or dtype.itemsize
    return made


def _fields(host: np.ndarray, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the fields of a structured array that have no fields themselves, at any depth."""
    for field in host.dtype.names or ():
        part = host[field]
        if part.dtype.names is None:
            yield f"{name}.{field}", part
        else:
            yield from _fields(part, f"{name}.{field}")


def _names(ndim: int) -> str:
    letters = ", ".join(f"i{axis}" for axis in range(ndim))
    return letters if ndim == 1 else f"[{letters}]"


def _elements_aligned(host: np.ndarray) -> bool:
    return host.flags.aligned or host.dtype.kind not in "fiubc"


def _class(base: type[KernelArray], source: str, closed: dict[str, object]) -> type[KernelArray]:
    """Return the class of that source, which closes over these names."""
    closed = {"Base": base, "site_of": site_of, **closed}
    return _maker(tuple(closed), source)(*closed.values())


@lru_cache(maxsize=1000)
def _maker(names: tuple[str, ...], source: str) -> Callable[..., type[KernelArray]]:
    source = f"def make({', '.join(names)}):\n{source}\n    return Array\n"
    namespace: dict[str, Callable[..., type[KernelArray]]] = {}
    exec(compile(source, "<array>", "exec"), namespace)
    return namespace["make"]
