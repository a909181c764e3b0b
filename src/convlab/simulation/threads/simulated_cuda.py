"""What ``cuda`` means in a simulated kernel: one object for a launch, set anew for each thread."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from convlab.simulation.language.libdevice import of_libdevice
from convlab.simulation.language.libraries import Library, half, of_bfloat16, vector_types
from convlab.simulation.memory.launch_memory import Memory, local_class
from convlab.simulation.numbers.registers import OF_BITS, of_bits
from convlab.simulation.numbers.scalars import cast, converted, dtype_of, keeper, poison
from convlab.simulation.recording.access_log import (
    ATOMIC,
    EXCHANGE,
    GLOBAL,
    SIZE_SHIFT,
    WARP,
    DynamicArray,
)
from convlab.simulation.recording.sites import assigned_name, site_of
from convlab.simulation.rules.findings import NotSimulated
from convlab.simulation.rules.launch_checks import BLOCK_BYTES, check_dynamic
from convlab.simulation.threads.greenlets import GRID_BARRIER, YIELD, Request

ALL_LANES = (1 << WARP) - 1
STATIC_BYTES = 48 << 10  # of shared memory that a block may have without the dynamic part
LOCAL_BYTES, CONSTANT_BYTES = 512 << 10, 64 << 10  # of a thread, of a kernel
NOBODY_WROTE = 0xFF  # bytes that make NaN of a float, -1 of an integer


@dataclass(slots=True)
class Dim3:
    x: int = 0
    y: int = 0
    z: int = 0

    def __str__(self) -> str:
        return f"({self.x}, {self.y}, {self.z})"


class NoRoom(MemoryError):
    """A kernel asks for more shared, local or constant memory than a GPU has."""


class Shared:
    """``cuda.shared``: an array for each call in the code, poisoned for every block. A call that
    asks for another shape or type, as that of a device function may, makes another array."""

    def __init__(self, memory: Memory, dynamic_bytes: int) -> None:
        self._memory = memory
        self._arrays: dict[tuple[Any, ...], Any] = {}
        self._static: list[np.ndarray] = []
        dynamic_bytes = check_dynamic(dynamic_bytes)
        self._begin = self._end = -(-dynamic_bytes // 16) * 16  # the dynamic part comes first
        self._dynamic = np.zeros(dynamic_bytes, np.uint8)

    @property
    def nbytes(self) -> int:
        """What a block takes, as far as its arrays have been asked for."""
        return self._end

    @property
    def dynamic_bytes(self) -> int:
        return len(self._dynamic)

    def is_dynamic(self, array: Any) -> bool:
        """Whether it lies in the dynamic part, or would, if that were not empty."""
        base = getattr(array, "base", self._begin) % (1 << SIZE_SHIFT)
        return base < self._begin or (base == 0 == self._begin and array.shape == (0,))

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        """This block's array of the call that asks; ``shape`` 0 is the dynamic part.

        Raises :class:`NoRoom` where a block has not so much.
        """
        frame = sys._getframe(1)
        call = id(frame.f_code) + frame.f_lasti, shape, dtype, alignment
        if (known := self._arrays.get(call)) is None:
            name, sizes, kept, alignment = _asked(frame, shape, dtype, alignment)
            known = self._arrays[call] = self._new(name, sizes, kept, alignment, id(frame.f_code))
        return known

    def _new(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        alignment: int | None,
        code: int,
    ) -> Any:
        dynamic = len(self._dynamic)
        if shape == (0,):
            host = self._dynamic[: dynamic // dtype.itemsize * dtype.itemsize].view(dtype)
            tag, log = 0, self._memory.log
            if log is not None:
                tag = log.named(DynamicArray(name, code, dtype.itemsize))
                log.dynamic_bytes = dynamic
            return self._memory.array(host, name, 0, 16, tag)
        host = np.full(shape, poison(dtype), dtype)
        self._static.append(host)
        alignment = alignment or (dtype.itemsize if dtype.names is None else dtype.alignment)
        base = -(-self._end // alignment) * alignment
        self._end = base + host.nbytes
        if (static := self._end - self._begin) > STATIC_BYTES:
            raise NoRoom(
                f"{static} bytes of shared arrays: a block has at most {STATIC_BYTES}, more only "
                "as dynamic shared memory"
            )
        if self._end > BLOCK_BYTES:
            raise NoRoom(
                f"{self._end} bytes of shared memory, {dynamic} of them dynamic: a block has at "
                f"most {BLOCK_BYTES}"
            )
        return self._memory.array(host, name, base, alignment)

    def new_block(self) -> None:
        """Forget everything that the last block wrote."""
        for host in self._static:
            host[...] = poison(host.dtype)
        self._dynamic.fill(NOBODY_WROTE)  # after the arrays that are views of it

    def keep(self) -> Any:
        """What a block has here that lets others go first."""
        return self._dynamic.tobytes(), [host.tobytes() for host in self._static]

    def put_back(self, kept: Any) -> None:
        """Have what ``keep`` returned."""
        self.new_block()
        dynamic, arrays = kept
        for host, data in zip(self._static, arrays, strict=False):  # others may have made more
            host[...] = np.frombuffer(data, host.dtype).reshape(host.shape)
        self._dynamic[...] = np.frombuffer(dynamic, np.uint8)


class Local:
    """``cuda.local``: a new array for each call."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._made: dict[tuple[Any, ...], tuple[Any, str]] = {}

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        frame = sys._getframe(1)
        call = id(frame.f_code) + frame.f_lasti, shape, dtype, alignment
        if (made := self._made.get(call)) is None:
            name, sizes, kept, alignment = _asked(frame, shape, dtype, alignment)
            if (nbytes := math.prod(sizes) * kept.itemsize) > LOCAL_BYTES:
                raise NoRoom(
                    f"{nbytes} bytes of local memory for {name}: a thread has at most {LOCAL_BYTES}"
                )
            if kept.names is not None:  # in memory, where fields can be views
                host = np.full(sizes, poison(kept))
                return Memory(None, self._memory.report).array(host, name, 0)
            kind = local_class(sizes, kept, self._memory.number(kept), alignment)
            made = self._made[call] = kind, name
        return made[0](made[1], self._memory)


def _constant(array: Any) -> Any:
    """``cuda.const.array_like``: the array, which the compiler puts in constant memory."""
    if (nbytes := math.prod(array.shape) * array.dtype.itemsize) > CONSTANT_BYTES:
        raise NoRoom(
            f"{nbytes} bytes of constant memory for {array.name}: a kernel has at most "
            f"{CONSTANT_BYTES}"
        )
    return array


def _asked(frame: Any, shape: Any, dtype: Any, alignment: Any) -> tuple[Any, ...]:
    """Of the array that a call in the frame asks for the name, the shape as a tuple, NumPy's type
    and the alignment. Raises what Numba's compiler raises for an alignment that it refuses."""
    if alignment is not None:
        if not isinstance(alignment, int):
            raise TypeError(f"alignment is {alignment!r}: it must be a constant integer")
        if alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"Alignment must be a positive power of two, not {alignment}")
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    name = assigned_name(frame.f_code, frame.f_lasti)
    return name, tuple(map(int, sizes)), dtype_of(dtype), alignment


def _barrier(kind: str) -> Callable[..., int]:
    """A barrier of the block that counts for how many threads the predicate is true, or tells
    whether it is for all, or for one."""
    return lambda self, predicate: int(self.hub(Request(kind, site_of(1), predicate)))


def _of_its_bits(name: str) -> Any:
    """A function of an integer's bits, of which there are 32 unless it needs more."""
    short, long = of_bits(name, 32), of_bits(name, 64)
    return staticmethod(lambda value: (short if -(2**31) <= value < 2**32 else long)(value))


class SimulatedCuda:
    """``cuda`` in a kernel: its methods do what those of ``numba.cuda`` do. Switching to ``hub``
    waits; what comes back is the call's result. ``on_fence`` hears whether a fence is the whole
    GPU's."""

    warpsize = WARP

    def __init__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        memory: Memory,
        dynamic_bytes: int,
        hub: Callable[..., Any],
        on_fence: Callable[[bool], None],
    ) -> None:
        self.threadIdx, self.blockIdx = Dim3(), Dim3()
        self.gridDim, self.blockDim = Dim3(*grid), Dim3(*block)
        self.laneid = 0
        self.shared = Shared(memory, dynamic_bytes)
        self.local = Local(memory)
        self.const = SimpleNamespace(array_like=_constant)
        self.atomic = _Atomic(self)
        self.hub = self.syncthreads = hub  # not a method: one call less for each barrier
        self.asked: Any = None  # an orders.Asked, if anything looks at it
        self.threadfence = self.threadfence_system = partial(on_fence, True)
        self.threadfence_block = partial(on_fence, False)
        grid_group = SimpleNamespace(sync=self._sync_grid)
        self.cg = Library("cuda.cg", {"this_grid": lambda: grid_group}.get)
        self.fp16, self.bf16 = Library("cuda.fp16", half), Library("cuda.bf16", of_bfloat16)
        self.libdevice = Library("libdevice", of_libdevice)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _NUMBERS:
            return cast(name)
        if name == "bfloat16":
            return self.bf16.bfloat16
        if name in vector_types():
            return vector_types()[name]
        known = [one for one in dir(self) if not one.startswith("_")]
        meant = "".join(f" (is cuda.{one} meant?)" for one in get_close_matches(name, known, 1))
        raise NotSimulated(f"cuda.{name} is not simulated{meant}")

    def grid(self, ndim: int) -> Any:
        t, b, d = self.threadIdx, self.blockIdx, self.blockDim
        index = b.x * d.x + t.x, b.y * d.y + t.y, b.z * d.z + t.z
        return index[0] if ndim == 1 else index[:ndim]

    def gridsize(self, ndim: int) -> Any:
        g, d = self.gridDim, self.blockDim
        sizes = g.x * d.x, g.y * d.y, g.z * d.z
        return sizes[0] if ndim == 1 else sizes[:ndim]

    def lanemask_lt(self) -> int:
        return (1 << self.laneid) - 1

    # Barriers of the block, and what the lanes of a warp do together: more in _COLLECTIVES.

    syncthreads_count = _barrier("syncthreads_count")
    syncthreads_and = _barrier("syncthreads_and")
    syncthreads_or = _barrier("syncthreads_or")

    def _sync_grid(self) -> None:
        """``cuda.cg.this_grid().sync()``: a barrier of all threads of the grid."""
        self.hub(Request(GRID_BARRIER, site_of(1)))

    def syncwarp(self, mask: int = ALL_LANES) -> None:
        self.hub(Request("syncwarp", site_of(1), None, int(mask) & ALL_LANES))

    def activemask(self) -> int:
        """A bit for each lane that stands here with this one."""
        return int(self.hub(Request("activemask", site_of(1))))

    # Loads and stores that say which caches keep the element.

    ldca = ldcs = ldlu = staticmethod(lambda array, index: array.part(index, site_of(1)))
    stcs = stwb = staticmethod(
        lambda array, index, value: array.store_part(index, value, site_of(1))
    )

    # Loads and stores past the caches that other threads do not see.

    def ldcg(self, array: Any, index: Any) -> Any:
        value = array.part(index, site_of(1))
        self._seen_by_all(array)
        return value

    def ldcv(self, array: Any, index: Any) -> Any:
        site = site_of(1)
        value = array.part(index, site)
        if self._seen_by_all(array):
            polls = self.asked.read(array, index, site, value, sys._getframe(1))
            if polls or self.asked.gives_way:
                self.hub(Request(YIELD, site))
        return value

    def stcg(self, array: Any, index: Any, value: Any) -> None:
        array.store_part(index, value, site_of(1))
        self._seen_by_all(array)

    stwt = stcg

    def _seen_by_all(self, array: Any) -> bool:
        """Note that the last access is as good as an atomic one, if it is to global memory."""
        far = getattr(array, "place", 0) >= GLOBAL
        if far and array.memory.log is not None:
            array.memory.log.seen_by_all()
        return far

    def nanosleep(self, nanoseconds: int) -> None:
        """Let the block's other threads go on; nothing here takes time."""
        self.hub(Request(YIELD, site_of(1)))

    # Arithmetic. ``fma`` rounds twice, but in float64: docs/engines.md says what registers hold.

    fma = staticmethod(lambda a, b, c: a * b + c)
    selp = staticmethod(lambda condition, yes, no: yes if condition else no)
    clz, popc, brev, ffs = map(_of_its_bits, OF_BITS)
    cbrt = staticmethod(math.cbrt)


# What a lane brings to a call of its warp, of the arguments that follow the mask. A shuffle brings
# the value and the source lane: beyond the warp, one's own.
_VOTES = ("ballot_sync", "all_sync", "any_sync", "eq_sync")
_COLLECTIVES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_VOTES, lambda lane, value: bool(value)),
    **dict.fromkeys(("match_any_sync", "match_all_sync"), lambda lane, value: value),
    "shfl_sync": lambda lane, value, other: (value, other % WARP),
    "shfl_up_sync": lambda lane, value, delta: (value, lane - delta),
    "shfl_down_sync": lambda lane, value, delta: (value, lane + delta),
    "shfl_xor_sync": lambda lane, value, bits: (value, (lane ^ bits) % WARP),
}
as_int32 = keeper(np.dtype(np.int32))  # as which Numba types masks of lanes


def _collective(kind: str, brings: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: SimulatedCuda, mask: int, *values: Any) -> Any:
        brought = brings(self.laneid, *values)
        result = self.hub(Request(kind, site_of(1), brought, int(mask) & ALL_LANES))
        if kind == "match_all_sync":
            return as_int32(result[0]), result[1]
        return as_int32(result) if kind in ("ballot_sync", "match_any_sync") else result

    return call


for _kind_of_call, _brings in _COLLECTIVES.items():
    setattr(SimulatedCuda, _kind_of_call, _collective(_kind_of_call, _brings))


class _Atomic:
    def __init__(self, cuda: SimulatedCuda) -> None:
        self._cuda = cuda

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _ATOMICS:
            raise NotSimulated(f"cuda.atomic.{name} is not simulated")
        combine = _ATOMICS[name]
        kind = EXCHANGE if name == "exch" else ATOMIC
        checks = name in ("max", "min", "nanmax", "nanmin")

        def atomic(array: Any, index: Any, value: Any) -> Any:
            value = converted(value, array.dtype)
            site, asked, new = site_of(1), self._cuda.asked, None

            def combined(old: Any) -> Any:
                nonlocal new
                new = combine(old, value)
                return new

            old = array.update(index, combined, site, kind)
            if checks:
                asked.check()
            gives_way = asked.gives_way
            if new != old:
                asked.change(array, index, site, old, new, sys._getframe(1), kind == EXCHANGE)
            elif asked.read(array, index, site, old, sys._getframe(1)):
                gives_way = True  # it polls, in a loop of any kind
            if gives_way:
                self._cuda.hub(Request(YIELD, site))
            return old

        setattr(self, name, atomic)
        return atomic

    def cas(self, array: Any, index: Any, expected: Any, value: Any, depth: int = 1) -> Any:
        expected, value = converted(expected, array.dtype), converted(value, array.dtype)
        site = site_of(depth)
        old = array.update(index, lambda old: value if old == expected else old, site)
        asked, frame = self._cuda.asked, sys._getframe(depth)
        asked.swap(array, index, site, expected, old, value, frame)
        # Perhaps it is a lock that another thread holds: let that run.
        gives_way = old != expected or asked.gives_way
        if expected == value:  # it only reads
            gives_way = asked.read(array, index, site, old, frame) or asked.gives_way
        elif old == expected:
            asked.change(array, index, site, old, value, frame, False)
        if gives_way:
            self._cuda.hub(Request(YIELD, site))
        return old

    def compare_and_swap(self, array: Any, expected: Any, value: Any) -> Any:
        return self.cas(array, 0, expected, value, 2)


def _nan_or(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The one of two numbers that is not NaN."""
    return lambda old, value: value if old != old else old if value != value else choose(old, value)


def _unless_nan(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The old number if one of the two is NaN: Numba's atomic returns early then."""
    return lambda old, value: old if old != old or value != value else choose(old, value)


_ATOMICS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "and_", "or_", "xor")},
    "exch": lambda old, value: value,
    "inc": lambda old, value: 0 if old >= value else old + 1,
    "dec": lambda old, value: value if old == 0 or old > value else old - 1,
    "max": _unless_nan(max),
    "min": _unless_nan(min),
    "nanmax": _nan_or(max),
    "nanmin": _nan_or(min),
}
_NUMBERS = {
    *("float16", "float32", "float64", "complex64", "complex128", "intp", "uintp"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}
