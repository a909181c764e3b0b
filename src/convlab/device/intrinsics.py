"""128-bit loads and stores, asynchronous copies, and tools of all intrinsics: emulations, options
of ``@cuda.jit``, pointers, inline PTX.

An emulation is plain Python that the simulators run in place of an intrinsic. :func:`together` is
for emulations that need a whole warp, because Numba's simulator runs each lane as a thread of the
operating system and knows no warps. convlab's engines have warps of their own.

``load4(array, index)`` and ``store4(array, index, values)`` become LDG/LDS.E.128 and
STG/STS.E.128; accesses to float32x4 arrays and views do not. The index is an integer for a 1-D
array or a tuple for an n-D array. Counted in elements, it must be a multiple of 4, and the array
must start at a multiple of 16 bytes (whole Numba device arrays do, and shared arrays with
``alignment=BYTES_16``). A GPU checks neither: a misaligned address stops the kernel, and an address
out of bounds reads other data. The emulations check both.

    x = load4(a, i)  # for the next slice
    issue_loads()  # the load is issued here
    ...  # much arithmetic that needs no x
    store4(shared, j, x)

A load has a latency of several hundred cycles, which the arithmetic hides. But a load in flight
occupies registers. Probably to save registers, the compiler moves loads down into the arithmetic.
``issue_loads`` keeps the loads where they are written.

Asynchronous copies (``cp.async``) go from global to shared memory without registers::

    copy_async4(staged, i, a, first + i, first + i < a.size)  # four float32; copy_async: one
    commit_copies()  # closes a commit group: the copies since the last one
    wait_copies(0)  # until no more than 0 of this thread's commit groups are in flight
    cuda.syncthreads()  # until all threads have waited for theirs

A copy has landed only when the thread that started it has waited for it. Until then no thread may
access its target or start another copy to the target, and other threads need a barrier after the
wait. If ``valid`` is false, the copy writes zeros and does not read global memory, so an edge needs
no branch. ``wait_copies`` takes a literal or a constant of the kernel. It waits for commit groups
in their order, and never for a copy in no group. Target and source are C-contiguous float32 arrays,
in shared and in global memory; a GPU does not check this. For both indices, ``copy_async4`` has the
rules of ``load4``. Asynchronous copies need compute capability 8.0.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar

from llvmlite import ir
from numba import cuda
from numba.cuda import types
from numba.cuda.core import config
from numba.cuda.typing.templates import Signature

from convlab.device.products import WARP, Number

if TYPE_CHECKING:
    from numba.cuda.target import CUDATargetContext

Values = Sequence[ir.Value]  # the operands of an intrinsic
# Writes the code of an intrinsic: from Numba's context, builder, signature and operands.
Generate = Callable[["CUDATargetContext", ir.IRBuilder, Signature, Values], ir.Value]
Emulation = Callable[..., Any]
_EMULATIONS: dict[int, tuple[object, Emulation]] = {}


def register_emulations(*pairs: tuple[object, Emulation]) -> None:
    """Let ``emulation_of(intrinsic)`` return the emulation, for each pair of the two."""
    for intrinsic, emulation in pairs:
        # The intrinsic is kept, so that no other object gets its id.
        _EMULATIONS[id(intrinsic)] = intrinsic, emulation


def emulation_of(value: object) -> Emulation | None:
    """Return the plain-Python emulation of an intrinsic; None for anything else."""
    known = _EMULATIONS.get(id(value))
    return None if known is None else known[1]


PATIENCE_SECONDS = 60.0  # that a lane of Numba's simulator waits: other lanes may have ended
Brought = TypeVar("Brought")
Result = TypeVar("Result")

_change = threading.Lock()
_here = threading.local()


@contextmanager
def meeting_by(meet: Callable[[str, int, object], object]) -> Iterator[None]:
    """Inside, :func:`together` calls ``meet(name, site, brought)`` in this thread."""
    _here.meet = meet
    try:
        yield
    finally:
        del _here.meet


class _Meeting:
    """One call of a warp: the lanes that have reached it, with what they bring."""

    def __init__(self) -> None:
        self.brought: dict[int, Any] = {}  # of a type that each call has for itself
        self.results: Mapping[int, Any] = {}
        self.over = threading.Event()


def together(
    name: str, brought: Brought, compute: Callable[[dict[int, Brought]], Mapping[int, Result]]
) -> Result:
    """Return this lane's part of the result of ``compute`` on what all 32 lanes brought.

    Call it in the function that the kernel calls, because lanes meet at the kernel's line.

    Raises RuntimeError outside a kernel, and if a lane of the warp does not come to the same call
    because the lane does not exist, has ended, or waits elsewhere.
    """
    caller = sys._getframe(2)
    if hasattr(_here, "meet"):
        met: Result = _here.meet(name, id(caller.f_code) + caller.f_lasti, brought)
        return met
    thread: Any = threading.current_thread()  # Numba's simulator gives its threads attributes
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
            del meetings[call]  # the next time that the lanes come is another meeting
            meeting.results = compute(meeting.brought)
            meeting.over.set()
    if not meeting.over.wait(PATIENCE_SECONDS):
        absent = [lane for lane in range(WARP) if lane not in meeting.brought]
        raise RuntimeError(f"{name} needs the whole warp, but lanes {absent} do not come to it")
    result: Result = meeting.results[lane]
    return result


# Code for a GPU.


def gpu_only(**options: Any) -> dict[str, Any]:
    """Return the options for a GPU, none for a simulator: ``@cuda.jit(**gpu_only(...))``.

    Numba's simulator (``NUMBA_ENABLE_CUDASIM=1``) refuses ``launch_bounds`` and ``forceinline``
    as unexpected arguments. They change how a kernel is compiled, never what it computes, so a
    simulator loses nothing without them.
    """
    return {} if config.ENABLE_CUDASIM else options


def is_float32_c_array(array: types.Type) -> bool:
    """Return whether a Numba type is one of the arrays that convlab's intrinsics take."""
    return isinstance(array, types.Array) and array.dtype == types.float32 and array.layout == "C"


def element_pointer(
    context: CUDATargetContext, builder: ir.IRBuilder, kinds: Sequence[types.Type], values: Values
) -> ir.Value:
    """Return a pointer to ``array[index]``, with no negative-index wrap. ``kinds`` are the types of
    array and index, an integer or a tuple of them, ``values`` the two themselves."""
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
    builder: ir.IRBuilder,
    text: str,
    constraints: str,
    args: Values = (),
    result: ir.Type | None = None,
    *,
    side_effect: bool = True,
    convergent: bool = False,
) -> ir.Value:
    """Write inline PTX and return its result.

    ``side_effect``: the compiler moves no memory access across it. ``convergent``: the compiler
    does not move it into a branch that only some threads take."""
    kind = ir.FunctionType(result or ir.VoidType(), [arg.type for arg in args])
    if side_effect:
        constraints = ",".join(filter(None, [constraints, "~{memory}"]))
    code = ir.InlineAsm(kind, text, constraints, side_effect=side_effect)
    return builder.call(code, args, attrs=("convergent", "nounwind") if convergent else ())


def statement(text: str) -> Generate:
    """Return the code generator of an intrinsic that is this PTX, without operands."""

    def generate(
        context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Values
    ) -> ir.Value:
        assembly(builder, text, "")
        return context.get_dummy_value()

    return generate


# Memory access

Four = tuple[Number, Number, Number, Number]
Index = int | tuple[int, ...]


class Array(Protocol):
    """An array of a simulator, as emulations use it."""

    shape: tuple[int, ...]

    def __getitem__(self, index: Any, /) -> Any: ...

    def __setitem__(self, index: Any, value: Any, /) -> None: ...


class CheckingArray(Array, Protocol):
    """An array of convlab's strict simulator, which checks wide accesses itself."""

    def load_run(self, index: Index, count: int) -> Four: ...

    def store_run(self, index: Index, values: Four) -> None: ...


def _checks_itself(array: Array) -> TypeGuard[CheckingArray]:
    # The type is looked at, because arrays of Numba's own simulator raise IndexError for a missing
    # attribute.
    return hasattr(type(array), "load_run")


# ``alignment=BYTES_16`` of shared arrays that have 128-bit accesses. Numba's simulator, where it
# runs kernels by itself, refuses any ``alignment`` but None; convlab's engines do not.
ENGINE_CONSTANTS = {"BYTES_16": 16}
FLOAT4 = 4  # elements of a 128-bit access
BYTES_16 = None if config.ENABLE_CUDASIM else ENGINE_CONSTANTS["BYTES_16"]


def emulated_load4(array: Array, index: Index) -> Four:
    """Emulate ``load4`` in plain Python: return the four values, as the array has them.

    Raises ``IndexError`` for an index that is not a multiple of 4 or reaches outside the array.
    """
    if _checks_itself(array):
        return array.load_run(index, 4)
    x, y, z, w = array[_run_of_four(array, index)]
    return x, y, z, w


def emulated_store4(array: Array, index: Index, values: Four) -> None:
    """Emulate ``store4`` in plain Python. Raises as :func:`emulated_load4`."""
    if _checks_itself(array):
        array.store_run(index, values)
        return
    array[_run_of_four(array, index)] = values


def _run_of_four(array: Array, index: Index) -> slice | tuple[int | slice, ...]:
    """Return ``index`` with its last entry widened to the slice that one access touches."""
    *rows, first = index if isinstance(index, tuple) else (index,)
    first = int(first)
    if first % 4:
        raise IndexError(
            f"128-bit access at index {index}: the last index must be a multiple of 4, because the "
            "address must be a multiple of 16 bytes"
        )
    *_, extent = array.shape  # not shape[-1], which Numba's simulator refuses
    if not 0 <= first <= extent - 4:
        raise IndexError(
            f"128-bit access at index {index} reaches outside an array of shape {array.shape}"
        )
    run = slice(first, first + 4)
    return (*rows, run) if rows else run


def _emulated_issue_loads() -> None:
    """Do nothing: a simulator loads where the load is written."""


# No correct kernel can tell a copy that lands at once from a copy that lands later. On convlab's
# strict simulator, copies land when they are waited for.


def _emulated_copy_async(
    target: Array, index: Index, source: Array, at: Index, valid: bool
) -> None:
    target[index] = source[at] if valid else 0.0


def _emulated_copy_async4(
    target: Array, index: Index, source: Array, at: Index, valid: bool
) -> None:
    emulated_store4(target, index, emulated_load4(source, at) if valid else (0.0, 0.0, 0.0, 0.0))


def _emulated_commit_copies() -> None: ...


def _emulated_wait_copies(groups: int) -> None: ...


if config.ENABLE_CUDASIM:
    load4, store4, issue_loads = emulated_load4, emulated_store4, _emulated_issue_loads
    copy_async, copy_async4 = _emulated_copy_async, _emulated_copy_async4
    commit_copies, wait_copies = _emulated_commit_copies, _emulated_wait_copies
else:
    from numba.cuda.extending import intrinsic

    _FOUR_FLOATS = ir.VectorType(ir.FloatType(), 4)
    _LANES = [ir.Constant(ir.IntType(32), lane) for lane in range(4)]

    def _address(
        context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Values
    ) -> ir.Value:
        """Return a pointer to ``array[index]`` as four floats."""
        element = element_pointer(context, builder, signature.args[:2], args[:2])
        return builder.bitcast(element, ir.PointerType(_FOUR_FLOATS, element.type.addrspace))

    @intrinsic
    def load4(typing_context, array, index):  # type: ignore[no-untyped-def]
        """Load ``(a[i], a[i + 1], a[i + 2], a[i + 3])`` by one 16-byte load."""
        if not is_float32_c_array(array):
            return None
        four = types.UniTuple(types.float32, 4)

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Values
        ) -> ir.Value:
            vector = builder.load(_address(context, builder, signature, args))
            vector.align = 16
            lanes = [builder.extract_element(vector, lane) for lane in _LANES]
            return context.make_tuple(builder, four, lanes)

        return four(array, index), generate

    @intrinsic
    def store4(typing_context, array, index, values):  # type: ignore[no-untyped-def]
        """Store ``a[i], ..., a[i + 3] = values`` by one 16-byte store; values: four float32."""
        if not is_float32_c_array(array) or values != types.UniTuple(types.float32, 4):
            return None

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Values
        ) -> ir.Value:
            vector = ir.Constant(_FOUR_FLOATS, ir.Undefined)
            for lane in range(4):
                value = builder.extract_value(args[2], lane)
                vector = builder.insert_element(vector, value, _LANES[lane])
            store = builder.store(vector, _address(context, builder, signature, args))
            store.align = 16
            return context.get_dummy_value()

        return types.void(array, index, values), generate

    # The strict simulator runs this function itself, and so finds lanes that do not come to it.
    @cuda.jit(device=True, forceinline=True)
    def issue_loads():  # type: ignore[no-untyped-def]
        """Keeps the compiler from moving loads that are written before it to after it.

        It is a barrier of the warp (``bar.warp.sync``), which costs nothing if the warp's lanes are
        together. Every lane of the warp that has not ended has to come to it.
        """
        cuda.syncwarp()

    _GLOBAL, _SHARED = 1, 3  # NVVM's address spaces
    _I32, _I64 = ir.IntType(32), ir.IntType(64)

    def _in_space(
        builder: ir.IRBuilder, pointer: ir.Value, space: int, integer: ir.IntType
    ) -> ir.Value:
        """Return a pointer as PTX takes it: an integer, in one kind of memory."""
        near = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, space))
        return builder.ptrtoint(near, integer)

    def _copy(signature: Signature, cache: str, count: int) -> tuple[Signature, Generate] | None:
        """Return the signature and code of a copy of that many floats. ``cg`` bypasses the L1
        cache and takes only 16 bytes; ``ca`` also takes 4 or 8."""
        target, _, source, _, _ = signature.args
        if not (is_float32_c_array(target) and is_float32_c_array(source)):
            return None
        width = 4 * count
        text = f"cp.async.{cache}.shared.global [$0], [$1], {width}, $2;"

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Values
        ) -> ir.Value:
            kinds = signature.args
            to = element_pointer(context, builder, kinds[0:2], args[0:2])
            start = element_pointer(context, builder, kinds[2:4], args[2:4])
            valid = context.cast(builder, args[4], kinds[4], types.boolean)
            # Bytes that are read; the rest of the width is filled with zeros.
            read = builder.select(valid, ir.Constant(_I32, width), ir.Constant(_I32, 0))
            near = _in_space(builder, to, _SHARED, _I32)
            far = _in_space(builder, start, _GLOBAL, _I64)
            assembly(builder, text, "r,l,r", (near, far, read))
            return context.get_dummy_value()

        return signature, generate

    @intrinsic
    def copy_async(typing_context, target, index, source, at, valid):  # type: ignore[no-untyped-def]
        """Copy ``target[index] = source[at] if valid else 0``, at the latest when the thread
        waits."""
        return _copy(types.void(target, index, source, at, valid), "ca", 1)

    @intrinsic
    def copy_async4(typing_context, target, index, source, at, valid):  # type: ignore[no-untyped-def]
        """Copy four neighbours by one 16-byte copy, with the same rules."""
        return _copy(types.void(target, index, source, at, valid), "cg", 4)

    @intrinsic
    def commit_copies(typing_context):  # type: ignore[no-untyped-def]
        """Make a commit group of the copies that this thread has started since its last one."""
        return types.void(), statement("cp.async.commit_group;")

    @intrinsic
    def wait_copies(typing_context, groups):  # type: ignore[no-untyped-def]
        """Wait until no more than that many of this thread's groups are in flight."""
        if not isinstance(groups, types.IntegerLiteral) or groups.literal_value < 0:
            return None  # part of the instruction: it cannot come from a register
        return types.void(groups), statement(f"cp.async.wait_group {groups.literal_value};")


register_emulations(
    (load4, emulated_load4),
    (store4, emulated_store4),
    (issue_loads, _emulated_issue_loads),
    (copy_async, _emulated_copy_async),
    (copy_async4, _emulated_copy_async4),
    (commit_copies, _emulated_commit_copies),
    (wait_copies, _emulated_wait_copies),
)
