"""What ``cuda`` means in a simulated kernel: one object for a launch, set anew for each thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any

from convlab.simulation.access_log import ATOMIC, EXCHANGE, site_of
from convlab.simulation.block_memory import Local, Shared
from convlab.simulation.checked_array import Memory
from convlab.simulation.findings import NotSimulated
from convlab.simulation.scalars import cast, converted

WARP = 32
MMA = "mma_tf32"  # the request of the lanes of a warp
# The requests of the threads of a warpgroup.
PRODUCT, PRODUCT_DONE = "start_product", "finish_product"
# A kernel that uses none of these runs its threads one after the other, with no switching.
BLOCKING = {
    *("syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or", "syncwarp"),
    *("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync", "activemask"),
    *("ballot_sync", "all_sync", "any_sync", "eq_sync", "match_any_sync", "match_all_sync"),
    *("nanosleep", "cas", "compare_and_swap"),
}


class Dim3:
    """``threadIdx`` and its like."""

    __slots__ = ("x", "y", "z")

    def __init__(self, x: int = 0, y: int = 0, z: int = 0) -> None:
        self.x, self.y, self.z = x, y, z

    def set(self, coordinates: tuple[int, int, int]) -> None:
        """Become those of another thread or block: (x, y, z)."""
        self.x, self.y, self.z = coordinates


class Request:
    """What a thread waits for. A plain ``syncthreads()`` is no request but an empty switch."""

    __slots__ = ("kind", "mask", "site", "value")

    def __init__(self, kind: str, site: int, value: Any = None, mask: int | None = None) -> None:
        self.kind, self.site, self.value, self.mask = kind, site, value, mask

    @property
    def together(self) -> int:
        """How many consecutive threads meet: those of a warp or of a warpgroup."""
        return 4 * WARP if self.kind in (PRODUCT, PRODUCT_DONE) else WARP


class SimulatedCuda:
    """``cuda`` in a kernel: its methods do what those of ``numba.cuda`` do. Switching to ``hub``
    waits; what comes back is the call's result."""

    warpsize = WARP

    def __init__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        memory: Memory,
        dynamic_bytes: int,
    ) -> None:
        self.threadIdx, self.blockIdx = Dim3(), Dim3()
        self.gridDim, self.blockDim = Dim3(*grid), Dim3(*block)
        self.laneid = 0
        self.shared = Shared(memory, dynamic_bytes)
        self.local = Local(memory)
        self.const = SimpleNamespace(array_like=_same)
        self.atomic = _Atomic(self)
        self.hub: Callable[..., Any] = _no_hub
        self.on_fence: Callable[[bool], None] = _nothing

    def switch_through(self, hub: Callable[..., Any]) -> None:
        """Threads that wait switch there. Comes before the kernel is copied: a name that it has
        imported is bound then."""
        self.hub = hub
        self.syncthreads = hub  # type: ignore[method-assign]

    def syncthreads(self) -> None:
        """The hub replaces this method: one call less for each barrier."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _NUMBERS:
            return cast(name)
        known = [one for one in dir(self) if not one.startswith("_")]
        meant = "".join(f" (is cuda.{one} meant?)" for one in get_close_matches(name, known, 1))
        raise NotSimulated(f"cuda.{name} is not simulated{meant}")

    # Where a thread is.

    def grid(self, ndim: int) -> Any:
        """The thread's index in the grid: a number for ``ndim`` 1, else a tuple of them."""
        t, b, d = self.threadIdx, self.blockIdx, self.blockDim
        if ndim == 1:
            return b.x * d.x + t.x
        if ndim == 2:
            return b.x * d.x + t.x, b.y * d.y + t.y
        return b.x * d.x + t.x, b.y * d.y + t.y, b.z * d.z + t.z

    def gridsize(self, ndim: int) -> Any:
        """Threads in the grid: a number for ``ndim`` 1, else a tuple of them."""
        g, d = self.gridDim, self.blockDim
        sizes = g.x * d.x, g.y * d.y, g.z * d.z
        return sizes[0] if ndim == 1 else sizes[:ndim]

    def lanemask_lt(self) -> int:
        """A bit for each lane before this one."""
        return (1 << self.laneid) - 1

    # Barriers of the block.

    def syncthreads_count(self, predicate: Any) -> int:
        """For how many threads of the block the predicate is true."""
        return int(self.hub(Request("syncthreads_count", site_of(1), bool(predicate))))

    def syncthreads_and(self, predicate: Any) -> int:
        """1 where it is for all of them, else 0."""
        return int(self.hub(Request("syncthreads_and", site_of(1), bool(predicate))))

    def syncthreads_or(self, predicate: Any) -> int:
        """1 where it is for one of them, else 0."""
        return int(self.hub(Request("syncthreads_or", site_of(1), bool(predicate))))

    # What the lanes of a warp do together: mask, then what each brings.

    def syncwarp(self, mask: int = 0xFFFFFFFF) -> None:
        """Wait for the lanes of ``mask``."""
        self._together("syncwarp", mask, None)

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        """The value of lane ``lane`` modulo 32."""
        return self._together("shfl_sync", mask, (value, lane % WARP))

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane ``delta`` before, its own where there is none."""
        source = self.laneid - delta
        return self._together("shfl_up_sync", mask, (value, max(source, -1)))

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane ``delta`` behind, its own where there is none."""
        source = self.laneid + delta
        return self._together("shfl_down_sync", mask, (value, source if source < WARP else -1))

    def shfl_xor_sync(self, mask: int, value: Any, lanes: int) -> Any:
        """The value of the lane whose number differs in the bits of ``lanes``."""
        return self._together("shfl_xor_sync", mask, (value, (self.laneid ^ lanes) % WARP))

    def ballot_sync(self, mask: int, predicate: Any) -> int:
        """A bit for each lane whose predicate is true."""
        return int(self._together("ballot_sync", mask, bool(predicate)))

    def all_sync(self, mask: int, predicate: Any) -> bool:
        return bool(self._together("all_sync", mask, bool(predicate)))

    def any_sync(self, mask: int, predicate: Any) -> bool:
        return bool(self._together("any_sync", mask, bool(predicate)))

    def eq_sync(self, mask: int, predicate: Any) -> bool:
        return bool(self._together("eq_sync", mask, bool(predicate)))

    def match_any_sync(self, mask: int, value: Any) -> int:
        """A bit for each lane with the same value."""
        return int(self._together("match_any_sync", mask, value))

    def match_all_sync(self, mask: int, value: Any) -> Any:
        """``(mask, True)`` where all lanes have the same value, else ``(0, False)``."""
        return self._together("match_all_sync", mask, value)

    def activemask(self) -> int:
        """A bit for each lane that stands here with this one."""
        return int(self.hub(Request("activemask", site_of(1), None)))

    def _together(self, kind: str, mask: int, value: Any) -> Any:
        return self.hub(Request(kind, site_of(2), value, int(mask) & 0xFFFFFFFF))

    # Fences, and letting others run.

    def threadfence(self) -> None:
        """The whole GPU sees the accesses before it before those after it."""
        self.on_fence(True)

    threadfence_system = threadfence

    def threadfence_block(self) -> None:
        """The same for the threads of the block."""
        self.on_fence(False)

    def nanosleep(self, nanoseconds: int) -> None:
        """Let the block's other threads go on; nothing here takes time."""
        self.hub(Request("yield", 0))

    # Arithmetic.

    @staticmethod
    def fma(a: Any, b: Any, c: Any) -> Any:
        """Rounded twice, but in float64: see ``docs/engines.md`` for what registers hold."""
        return a * b + c

    @staticmethod
    def selp(condition: Any, yes: Any, no: Any) -> Any:
        return yes if condition else no

    @staticmethod
    def popc(value: int) -> int:
        """How many bits are one."""
        return (value & _mask(value)).bit_count()

    @staticmethod
    def brev(value: int) -> int:
        """The bits in reverse order, of 32 or of 64."""
        bits = _mask(value).bit_length()
        return int(f"{value & _mask(value):0{bits}b}"[::-1], 2)

    @staticmethod
    def clz(value: int) -> int:
        """How many bits above the highest that is one, of 32 or of 64."""
        return _mask(value).bit_length() - (value & _mask(value)).bit_length()

    @staticmethod
    def ffs(value: int) -> int:
        """The position of the lowest bit that is one, counted from 1; 0 where none is."""
        return (value & -value).bit_length()

    @staticmethod
    def cbrt(value: float) -> float:
        return math.cbrt(value)


class _Atomic:
    """``cuda.atomic``."""

    def __init__(self, cuda: SimulatedCuda) -> None:
        self._cuda = cuda

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _ATOMICS:
            raise NotSimulated(f"cuda.atomic.{name} is not simulated")
        combine = _ATOMICS[name]

        kind = EXCHANGE if name == "exch" else ATOMIC

        def atomic(array: Any, index: Any, value: Any) -> Any:
            value = converted(value, array.dtype)
            return array.update(index, lambda old: combine(old, value), site_of(1), kind)

        setattr(self, name, atomic)
        return atomic

    def cas(self, array: Any, index: Any, expected: Any, value: Any) -> Any:
        return self._cas(array, index, expected, value)

    def compare_and_swap(self, array: Any, expected: Any, value: Any) -> Any:
        return self._cas(array, 0, expected, value)

    def _cas(self, array: Any, index: Any, expected: Any, value: Any) -> Any:
        expected, value = converted(expected, array.dtype), converted(value, array.dtype)
        old = array.update(index, lambda old: value if old == expected else old, site_of(2))
        if old != expected:  # perhaps a lock that another thread holds: let it run
            self._cuda.hub(Request("yield", 0))
        return old


def _nan_or(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Of two numbers the one that is not NaN."""
    return lambda old, value: value if old != old else old if value != value else choose(old, value)


def _unless_nan(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The old number if one of the two is NaN: Numba's atomic returns early then."""
    return lambda old, value: old if old != old or value != value else choose(old, value)


_ATOMICS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, value: old + value,
    "sub": lambda old, value: old - value,
    "and_": lambda old, value: old & value,
    "or_": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
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


def _mask(value: int) -> int:
    """All bits of the value's type, which is not known: 32 unless it needs more."""
    return 0xFFFFFFFF if -(2**31) <= value < 2**32 else 0xFFFFFFFFFFFFFFFF


def _same(array: Any) -> Any:
    return array


def _no_hub(*request: Any) -> Any:
    return None


def _nothing(far: bool) -> None:
    pass
