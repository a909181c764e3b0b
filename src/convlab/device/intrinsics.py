"""What the intrinsics share: their emulations, options of ``@cuda.jit``, pointers, inline PTX.

An emulation is what the simulators run in place of an intrinsic, as plain Python. :func:`together`
is for emulations that need a whole warp: Numba's simulator runs each lane as a thread of the
operating system and knows no warps. convlab's engines have warps of their own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core import config

from convlab.device.products import WARP

_EMULATIONS: dict[int, tuple[object, Callable[..., Any]]] = {}


def register_emulations(*pairs: tuple[object, Callable[..., Any]]) -> None:
    """For each pair, ``emulation_of(intrinsic)`` is the emulation from now on."""
    for intrinsic, emulation in pairs:
        # The intrinsic is kept, so that no other object gets its id.
        _EMULATIONS[id(intrinsic)] = intrinsic, emulation


def emulation_of(value: object) -> Callable[..., Any] | None:
    """The plain-Python emulation of an intrinsic; None for anything else."""
    known = _EMULATIONS.get(id(value))
    return None if known is None else known[1]


PATIENCE_SECONDS = 60.0  # how long a lane of Numba's simulator waits: others may have ended

_change = threading.Lock()
_here = threading.local()


@contextmanager
def meeting_by(meet: Callable[[str, int, Any], Any]) -> Iterator[None]:
    """Inside, this thread's :func:`together` is ``meet(name, site, brought)``."""
    _here.meet = meet
    try:
        yield
    finally:
        del _here.meet


class _Meeting:
    """The lanes of a warp that have come to one call, once."""

    def __init__(self) -> None:
        self.brought: dict[int, Any] = {}
        self.results: Mapping[int, Any] = {}
        self.over = threading.Event()


def together(
    name: str, brought: Any, compute: Callable[[dict[int, Any]], Mapping[int, Any]]
) -> Any:
    """What ``compute`` of what all 32 lanes brought gives to this one. Call it in the function
    that the kernel calls: the kernel's line is the place where lanes meet.

    Raises RuntimeError outside a kernel, and where a lane of the warp does not come to the same
    call: it does not exist, has ended, or waits elsewhere.
    """
    caller = sys._getframe(2)
    if hasattr(_here, "meet"):
        return _here.meet(name, id(caller.f_code) + caller.f_lasti, brought)
    thread: Any = threading.current_thread()
    manager = getattr(thread, "_manager", None)
    if manager is None:
        raise RuntimeError(f"{name} is computed by the 32 lanes of a warp, so only in a kernel")
    warp, lane = divmod(thread.thread_id, WARP)
    call = warp, caller.f_code, caller.f_lasti
    with _change:
        meetings = vars(manager).setdefault("convlab_meetings", {})
        meeting: _Meeting = meetings.setdefault(call, _Meeting())
        meeting.brought[lane] = brought
        if len(meeting.brought) == WARP:
            del meetings[call]  # the next time that they come is another
            meeting.results = compute(meeting.brought)
            meeting.over.set()
    if not meeting.over.wait(PATIENCE_SECONDS):
        absent = [lane for lane in range(WARP) if lane not in meeting.brought]
        raise RuntimeError(f"{name} needs the whole warp, but lanes {absent} do not come to it")
    return meeting.results[lane]


# Code for a GPU.


def gpu_only(**options: Any) -> dict[str, Any]:
    """``@cuda.jit(**gpu_only(launch_bounds=256))``: the options for a GPU, none for the simulator.

    Numba's simulator (``NUMBA_ENABLE_CUDASIM=1``) refuses ``launch_bounds`` and ``forceinline``
    as unexpected arguments. They change how a kernel is compiled, never what it computes, so a
    simulator loses nothing without them.
    """
    return {} if config.ENABLE_CUDASIM else options


def is_float32_c_array(array: Any) -> bool:
    """Whether a Numba type is one of the arrays that convlab's intrinsics take."""
    return isinstance(array, types.Array) and array.dtype == types.float32 and array.layout == "C"


def element_pointer(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """Pointer to ``array[index]``, with no negative-index wrap. ``kinds`` are the types of array
    and index, an integer or a tuple of them, ``values`` the two themselves."""
    array_type, index_type = kinds
    array = context.make_array(array_type)(context, builder, value=values[0])
    if isinstance(index_type, types.BaseTuple):
        entries = zip(index_type, range(len(index_type)), strict=True)
        indices = [(kind, builder.extract_value(values[1], axis)) for kind, axis in entries]
    else:
        indices = [(index_type, values[1])]
    if len(indices) != array_type.ndim:
        raise TypeError(f"{len(indices)} indices for an array of {array_type.ndim} dimensions")
    extents = [builder.extract_value(array.shape, axis) for axis in range(array_type.ndim)]
    offset = ir.Constant(ir.IntType(64), 0)
    for (kind, index), extent in zip(indices, extents, strict=True):
        wide = context.cast(builder, index, kind, types.intp if kind.signed else types.uintp)
        offset = builder.add(builder.mul(offset, extent), wide)
    return builder.gep(array.data, [offset])


def assembly(
    builder: Any,
    text: str,
    constraints: str,
    args: Any = (),
    result: Any = None,
    *,
    side_effect: bool = True,
    convergent: bool = False,
) -> Any:
    """Inline PTX. ``side_effect``: the compiler moves no memory access across it. ``convergent``:
    the compiler does not move it into a branch that only some threads take."""
    kind = ir.FunctionType(result or ir.VoidType(), [arg.type for arg in args])
    if side_effect:
        constraints = ",".join(filter(None, [constraints, "~{memory}"]))
    code = ir.InlineAsm(kind, text, constraints, side_effect=side_effect)
    return builder.call(code, args, attrs=("convergent", "nounwind") if convergent else ())


def statement(text: str) -> Any:
    """What generates an intrinsic that is this PTX, with no operands."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        assembly(builder, text, "")
        return context.get_dummy_value()

    return generate
