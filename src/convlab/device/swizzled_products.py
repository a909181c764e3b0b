"""Products of a warpgroup with both matrices in shared memory, which the tensor cores read.

Hopper's ``wgmma`` in its widest form (compute capability 9.0 only)::

    fence_shared()                                  # tensor cores may read what threads stored
    cuda.syncthreads()
    start_product_bf16(D, 0, S, at_A, at_B, N, 64)  # D += A @ B.T: the tensor cores multiply,
    ...                                             # the threads go on,
    wait_products(D, SUMS, 0)                       # until at most 0 products are in flight

A is 64 rows and B is N rows, each in one *panel*, whose rows have 128 bytes: 64 terms of 16 bits or
32 of TF32. The terms of a row are neighbours, and the product is of the first ``TERMS`` of them. A
panel's rows follow each other without padding, and it begins at a multiple of 1,024 bytes of shared
memory: static arrays have ``alignment=BYTES_1024``. Dynamic shared memory begins anywhere, so there
the first panel is at ``panel_start(S)``. The eight 16-byte pieces of a row are *swizzled*, which
means that they change places within the row: piece p of row r lies where piece ``p ^ (r % 8)``
would lie, which :func:`swizzled_piece` computes. So the tensor cores read eight rows of the same
terms without bank conflicts, and a thread that stores a row has none either. The copy engine
(:mod:`convlab.device.copy_engine`) stores panels like this by itself.

Of the 64 rows of ``D``, warp w of the four has rows 16 * w to 16 * w + 15, and a lane holds N / 2
sums as in :mod:`convlab.device.tensor_core`: for j from 0 to N / 8 - 1 column ``8 * j + 2 *
thread_in_group`` and the next column, of row ``group_id``, then of row ``group_id + 8``. They are
``D[first]`` and those after it, so that one array holds the sums of several products. A wait is for
all of them, ``SUMS`` numbers: those of products that have ended may be read.

Products are exact and sums are float32. From the start to the wait that covers it, no thread may
write to the two panels or access ``D``, except to start the next product of the same ``D``:
products of one warpgroup end in their order. All 128 threads of a warpgroup have to come to both
calls with the same places. A GPU checks none of this.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".

Over 400 lines, because each function stands here twice: as PTX, and as its emulation on the
simulator, which must agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

from convlab.device import ptx
from convlab.device.code_generation import (
    EMULATED,
    Operands,
    assembly,
    element_pointer,
    gpu_only,
)
from convlab.device.emulated_tensor_core import NumberArray
from convlab.device.emulations import register_emulations, together
from convlab.device.panel_products import (
    BF16,
    F16,
    ITEM_BYTES,
    PANEL_ALIGNMENT,
    PANEL_ROW_BYTES,
    PANEL_ROWS,
    PIECE_BYTES,
    TF32,
    check_terms,
    fragments_of,
    panel_product,
    sums_of,
)
from convlab.device.products import WARPGROUP, check_width

if TYPE_CHECKING:
    from numba.cuda.target import CUDATargetContext
    from numba.cuda.typing.templates import Signature

__all__ = [
    "PANEL_ALIGNMENT",
    "PANEL_ROW_BYTES",
    "PIECE_BYTES",
    "panel_start",
    "start_product_bf16",
    "start_product_f16",
    "start_product_tf32",
    "swizzled_piece",
    "wait_products",
]


@cuda.jit(device=True, **gpu_only(forceinline=True))
def swizzled_piece(row, piece):  # type: ignore[no-untyped-def]
    """Return the index of a row's 16-byte piece, counted in pieces from the panel's begin."""
    return row * 8 + (piece ^ (row % 8))


# For Numba's simulator, where a warpgroup's last thread to come computes for all of them. On
# convlab's strict simulator its own warpgroups compute.


@dataclass
class _InFlight:
    """A thread's product in flight: its sums as they will be, from ``D[first]`` on, and its
    number."""

    D: NumberArray
    first: int
    sums: list[float]
    number: int


@dataclass
class _ThreadProducts:
    """The products that a thread has started and not waited for, by the id of their array and the
    place of their sums."""

    started: int = 0
    in_flight: dict[tuple[int, int], _InFlight] = field(default_factory=dict)


# A context belongs to a thread of the operating system, or to a greenlet: to a CUDA thread.
_products: ContextVar[_ThreadProducts] = ContextVar("products")


def _products_here() -> _ThreadProducts:
    """Return the products of the CUDA thread that runs."""
    found = _products.get(None)
    if found is None:
        found = _ThreadProducts()
        _products.set(found)
    return found


@dataclass
class ThreadPart:
    """The part that a thread brings to the start of a product."""

    kind: str
    terms: int
    panels: tuple[np.ndarray, np.ndarray]  # the bytes of the two, as views of shared memory
    sums: list[float]

    def of_all(self, brought: Mapping[int, ThreadPart]) -> dict[int, list[float]]:
        """Return each thread's sums after the product."""
        A, B = self.panels
        N = 2 * len(self.sums)
        before = sums_of({thread: part.sums for thread, part in brought.items()}, N)
        after = fragments_of(panel_product(self.kind, A, B, before, self.terms))
        return {thread: after[thread] for thread in brought}


def panel_bytes(name: str, S: Any, at: int, rows: int, kind: str) -> np.ndarray:
    """Return the bytes of a panel of that many rows. Raises ``IndexError`` for a place where no
    panel can be."""
    memory = np.asarray(getattr(S, "memory", S))
    row = PANEL_ROW_BYTES // ITEM_BYTES[kind]
    end = at + rows * row
    if at * ITEM_BYTES[kind] % PANEL_ALIGNMENT or not 0 <= at <= end <= memory.size:
        raise IndexError(
            f"{name}: a panel is from {at} to {end} of {memory.size} numbers: it must begin at a "
            f"multiple of {PANEL_ALIGNMENT} bytes and end in the array"
        )
    return memory[at:end].view(np.uint8)


def _emulated_start(name: str, kind: str) -> Callable[..., None]:
    """Return the emulation of the intrinsic ``name``, for one kind of numbers."""

    def start(
        D: NumberArray, first: int, S: object, at_A: int, at_B: int, N: int, TERMS: int
    ) -> None:
        check_width(N)
        check_terms(name, kind, TERMS)
        sums = sums_before(name, D, int(first), N)
        panels = (
            panel_bytes(name, S, int(at_A), PANEL_ROWS, kind),
            panel_bytes(name, S, int(at_B), N, kind),
        )
        part = ThreadPart(kind, TERMS, panels, sums)
        note_product(D, int(first), together(name, part, part.of_all, WARPGROUP))

    return start


def sums_before(name: str, D: NumberArray, first: int, N: int) -> list[float]:
    """Return the thread's sums before a product: numbers, or those of the product in flight."""
    before = _products_here().in_flight.get((id(D), first))
    if before is None:
        return [float(D[first + i]) for i in range(N // 2)]
    check_columns(name, before.sums, N)
    _check_untouched(name, before)
    return before.sums


def note_product(D: NumberArray, first: int, sums: list[float]) -> None:
    """Note a product in flight with the sums that it will have."""
    mine = _products_here()
    mine.started += 1
    mine.in_flight[id(D), first] = _InFlight(D, first, sums, mine.started)
    for i in range(len(sums)):
        D[first + i] = np.nan


def _check_untouched(name: str, product: _InFlight) -> None:
    """Raise ``RuntimeError`` if a thread has written to sums that are in flight."""
    D, first = product.D, product.first
    if not all(math.isnan(D[first + i]) for i in range(len(product.sums))):
        raise RuntimeError(f"{name}: D was written to while a product of it was in flight")


def _emulated_wait_products(D: NumberArray, SUMS: int, in_flight: int) -> None:
    check_wait(SUMS, in_flight)
    mine = _products_here()
    for product in [*mine.in_flight.values()]:
        of_another = product.D is not D or product.first + len(product.sums) > SUMS
        if of_another or product.number > mine.started - in_flight:
            continue
        _check_untouched("wait_products", product)
        del mine.in_flight[id(D), product.first]
        for i, number in enumerate(product.sums, product.first):
            D[i] = number


def check_columns(name: str, sums: Sequence[float], N: int) -> None:
    """Raise ``ValueError`` unless a thread's sums are those of ``N`` columns."""
    if len(sums) != N // 2:
        columns = 2 * len(sums)
        raise ValueError(f"{name}: N is {N}, but the product in flight there has {columns} columns")


def check_wait(SUMS: int, in_flight: int) -> None:
    """Raise ``ValueError`` for numbers of sums, or of products in flight, that no wait has."""
    if SUMS % 4 or SUMS < 4:
        raise ValueError(f"wait_products: SUMS is {SUMS}: it must be a positive multiple of 4")
    if in_flight < 0:
        raise ValueError(f"wait_products: in_flight is {in_flight}: it must be at least 0")


def _emulated_panel_start(S: object) -> int:
    return 0


_emulated_start_f16 = _emulated_start("start_product_f16", F16)
_emulated_start_bf16 = _emulated_start("start_product_bf16", BF16)
_emulated_start_tf32 = _emulated_start("start_product_tf32", TF32)

if EMULATED:
    start_product_f16, start_product_bf16 = _emulated_start_f16, _emulated_start_bf16
    start_product_tf32 = _emulated_start_tf32
    wait_products, panel_start = _emulated_wait_products, _emulated_panel_start
else:
    from llvmlite import ir
    from numba.core.errors import TypingError
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    _F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
    _SHARED = 3  # NVVM's address space
    DTYPES = {F16: types.uint16, BF16: types.uint16, TF32: types.float32}

    def width_of(name: str, N: types.Type, D: types.Type) -> int:
        """Return N. Raises ``TypingError`` unless it is a constant, and ``D`` an array of sums."""
        if not isinstance(N, types.IntegerLiteral):
            raise TypingError(f"{name}: N is {N}, but must be a constant of the kernel's")
        try:
            check_width(N.literal_value)
        except ValueError as error:
            raise TypingError(f"{name}: {error}") from None
        check_numbers(name, "D", D, types.float32)
        return int(N.literal_value)

    def terms_of(name: str, TERMS: types.Type, kind: str) -> int:
        """Return TERMS. Raises ``TypingError`` unless it is a constant that the instruction has."""
        if not isinstance(TERMS, types.IntegerLiteral):
            raise TypingError(f"{name}: TERMS is {TERMS}, but must be a constant of the kernel's")
        try:
            check_terms(name, kind, TERMS.literal_value)
        except ValueError as error:
            raise TypingError(str(error)) from None
        return int(TERMS.literal_value)

    def check_numbers(name: str, argument: str, kind: types.Type, dtype: types.Type) -> None:
        right = isinstance(kind, types.Array) and kind.ndim == 1 and kind.layout == "C"
        if not right or kind.dtype != dtype:
            wanted = f"an array of {dtype} with one dimension"
            raise TypingError(f"{name}: {argument} is {kind}, but must be {wanted}")

    def panel_descriptor(
        context: CUDATargetContext,
        builder: ir.IRBuilder,
        kinds: tuple[types.Type, types.Type],
        values: Operands,
    ) -> ir.Value:
        """Return the descriptor of the panel that begins at ``S[at]``."""
        start = element_pointer(context, builder, kinds, values)
        near = builder.addrspacecast(start, ir.PointerType(start.type.pointee, _SHARED))
        sixteenths = builder.lshr(builder.ptrtoint(near, _I32), ir.Constant(_I32, 4))
        return builder.or_(builder.zext(sixteenths, _I64), ir.Constant(_I64, ptx.PANEL))

    def _start(name: str, kind: str) -> Any:
        """Return the typing function of the intrinsic ``name``, for one kind of numbers."""

        def typing_function(typing_context, D, first, S, at_A, at_B, N, TERMS):  # type: ignore[no-untyped-def]
            width = width_of(name, N, D)
            check_numbers(name, "S", S, DTYPES[kind])
            terms = terms_of(name, TERMS, kind)
            count = width // 2

            def generate(
                context: CUDATargetContext,
                builder: ir.IRBuilder,
                signature: Signature,
                args: Operands,
            ) -> ir.Value:
                kinds = signature.args
                begin = element_pointer(context, builder, kinds[:2], args[:2])
                pointers = [builder.gep(begin, [ir.Constant(_I64, n)]) for n in range(count)]
                panels = [
                    panel_descriptor(context, builder, (kinds[2], kinds[n]), (args[2], args[n]))
                    for n in (3, 4)
                ]
                operands = [builder.load(pointer) for pointer in pointers] + panels
                result = ir.LiteralStructType([_F32] * count)
                started = ptx.start_panel_product(kind, width, terms)
                product = assembly(builder, *started, operands, result, convergent=True)
                for n, pointer in enumerate(pointers):
                    builder.store(builder.extract_value(product, n), pointer)
                return context.get_dummy_value()

            return types.void(D, first, S, at_A, at_B, N, TERMS), generate

        return typing_function

    @intrinsic
    def panel_start(typing_context, S):  # type: ignore[no-untyped-def]
        """Return the first index of ``S`` at a multiple of 1,024 bytes of shared memory, a uint32.
        Dynamic shared memory begins after what is static, which is anywhere."""
        size = S.dtype.bitwidth // 8

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            near = builder.addrspacecast(data, ir.PointerType(data.type.pointee, _SHARED))
            before = builder.neg(builder.ptrtoint(near, _I32))
            skipped = builder.and_(before, ir.Constant(_I32, PANEL_ALIGNMENT - 1))
            return builder.udiv(skipped, ir.Constant(_I32, size))

        return types.uint32(S), generate

    _start_f16 = _start("start_product_f16", F16)
    _start_bf16 = _start("start_product_bf16", BF16)
    _start_tf32 = _start("start_product_tf32", TF32)

    @intrinsic
    def start_product_f16(typing_context, D, first, S, at_A, at_B, N, TERMS):  # type: ignore[no-untyped-def]
        """Start ``D += A @ B.T`` for panels of float16 at ``S[at_A]`` and ``S[at_B]``. N and
        TERMS are constants: N a multiple of 8 up to 256, TERMS of 16 up to 64."""
        return _start_f16(typing_context, D, first, S, at_A, at_B, N, TERMS)

    @intrinsic
    def start_product_bf16(typing_context, D, first, S, at_A, at_B, N, TERMS):  # type: ignore[no-untyped-def]
        """Start ``D += A @ B.T`` for panels of bfloat16."""
        return _start_bf16(typing_context, D, first, S, at_A, at_B, N, TERMS)

    @intrinsic
    def start_product_tf32(typing_context, D, first, S, at_A, at_B, N, TERMS):  # type: ignore[no-untyped-def]
        """Start ``D += A @ B.T`` for panels of float32, whose last 13 bits the tensor cores leave
        out."""
        return _start_tf32(typing_context, D, first, S, at_A, at_B, N, TERMS)

    @intrinsic
    def wait_products(typing_context, D, SUMS, in_flight):  # type: ignore[no-untyped-def]
        """Wait until at most ``in_flight`` products of this warpgroup are in flight. SUMS, how many
        sums ``D`` has, and ``in_flight`` are constants. The sums of products that have ended may be
        read."""
        check_numbers("wait_products", "D", D, types.float32)
        for name, number in (("SUMS", SUMS), ("in_flight", in_flight)):
            if not isinstance(number, types.IntegerLiteral):
                wanted = "a constant of the kernel's"
                raise TypingError(f"wait_products: {name} is {number}, but must be {wanted}")
        try:
            check_wait(SUMS.literal_value, in_flight.literal_value)
        except ValueError as error:
            raise TypingError(str(error)) from None
        count = SUMS.literal_value
        waited = ptx.wait_products(count, in_flight.literal_value)

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            pointers = [builder.gep(data, [ir.Constant(_I64, n)]) for n in range(count)]
            kind = ir.LiteralStructType([_F32] * count)
            numbers = [builder.load(pointer) for pointer in pointers]
            result = assembly(builder, *waited, numbers, kind, convergent=True)
            for n, pointer in enumerate(pointers):
                builder.store(builder.extract_value(result, n), pointer)
            return context.get_dummy_value()

        return types.void(D, SUMS, in_flight), generate


register_emulations(
    (start_product_f16, _emulated_start_f16),
    (start_product_bf16, _emulated_start_bf16),
    (start_product_tf32, _emulated_start_tf32),
    (wait_products, _emulated_wait_products),
    (panel_start, _emulated_panel_start),
)
