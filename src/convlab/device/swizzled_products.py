"""Products of a warpgroup with both matrices in shared memory, which the tensor cores read.

Hopper's ``wgmma`` in its widest form (compute capability 9.0 only)::

    fence_shared()                           # what threads stored, the tensor cores may read
    cuda.syncthreads()
    start_product_bf16(D, S, at_A, at_B, N)  # D += A @ B.T; the tensor cores multiply,
    ...                                      # the threads go on,
    wait_products(D, N, 0)                   # until at most 0 of their products are in flight

A is 64 rows and B is N rows, of one *panel* each: 128 bytes, 64 terms of 16 bits or 32 of TF32. The
terms of a row are neighbours. A panel's rows begin every 128 bytes, and it begins at a multiple of
1,024 bytes of shared memory. Within eight rows the 16-byte pieces of a row are *swizzled*: piece p
of row r lies at piece ``p ^ (r % 8)``, which :func:`swizzled` computes. So the tensor cores read
eight rows of the same terms without bank conflicts, and a thread that stores a row has none either.
The copy engine (:mod:`convlab.device.copy_engine`) stores panels like this by itself.

Of the 64 rows of ``D``, warp w of the four has rows 16 * w to 16 * w + 15, and a lane holds N / 2
sums as in :mod:`convlab.device.tensor_core`: for j from 0 to N / 8 - 1 column ``8 * j + 2 *
thread_in_group`` and the next column, of row ``group_id``, then of row ``group_id + 8``.

Products are exact and sums are float32. From the start to the wait that covers it, no thread may
write to the two panels or access ``D``, except to start the next product of the same ``D``: products
of one warpgroup end in their order. All 128 threads of a warpgroup have to come to both calls with
the same places. A GPU checks none of this.


Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from convlab.device import ptx
from convlab.device.code_generation import (
    EMULATED,
    Operands,
    assembly,
    element_pointer,
)
from convlab.device.products import check_width

if TYPE_CHECKING:
    from numba.cuda.target import CUDATargetContext
    from numba.cuda.typing.templates import Signature

PANEL_BYTES = 128  # of a row
PANEL_ALIGNMENT = 1024  # bytes: eight rows, after which the swizzle repeats
PIECE_BYTES = 16  # what the swizzle moves


def swizzled(row: int, piece: int) -> int:
    """Return the place of a row's 16-byte piece, counted in pieces from the panel's begin."""
    return row * 8 + (piece ^ row % 8)


def _not_yet(*arguments: Any) -> None:
    raise NotImplementedError


if EMULATED:
    start_product_f16 = start_product_bf16 = start_product_tf32 = wait_products = _not_yet
else:
    from llvmlite import ir
    from numba.core.errors import TypingError
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    _F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
    _SHARED = 3  # NVVM's address space
    _DTYPES = {"f16": types.uint16, "bf16": types.uint16, "tf32": types.float32}

    def _width(name: str, N: types.Type, D: types.Type) -> int:
        """Return N. Raises ``TypingError`` unless it is a constant, and ``D`` an array of sums."""
        if not isinstance(N, types.IntegerLiteral):
            raise TypingError(f"{name}: N is {N}, but must be a constant of the kernel's")
        try:
            check_width(N.literal_value)
        except ValueError as error:
            raise TypingError(f"{name}: {error}") from None
        _check_array(name, "D", D, types.float32)
        return int(N.literal_value)

    def _check_array(name: str, argument: str, kind: types.Type, dtype: types.Type) -> None:
        right = isinstance(kind, types.Array) and kind.ndim == 1 and kind.layout == "C"
        if not right or kind.dtype != dtype:
            wanted = f"an array of {dtype} with one dimension"
            raise TypingError(f"{name}: {argument} is {kind}, but must be {wanted}")

    def _sums(
        context: CUDATargetContext,
        builder: ir.IRBuilder,
        kind: types.Array,
        D: ir.Value,
        count: int,
    ) -> list[ir.Value]:
        """Return pointers to the sums of ``D``."""
        data = context.make_array(kind)(context, builder, D).data
        return [builder.gep(data, [ir.Constant(_I64, n)]) for n in range(count)]

    def _descriptor(
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

        def typing_function(typing_context, D, S, at_A, at_B, N):  # type: ignore[no-untyped-def]
            width = _width(name, N, D)
            _check_array(name, "S", S, _DTYPES[kind])
            count = width // 2

            def generate(
                context: CUDATargetContext,
                builder: ir.IRBuilder,
                signature: Signature,
                args: Operands,
            ) -> ir.Value:
                kinds = signature.args
                pointers = _sums(context, builder, kinds[0], args[0], count)
                panels = [
                    _descriptor(context, builder, (kinds[1], kinds[n]), (args[1], args[n]))
                    for n in (2, 3)
                ]
                operands = [builder.load(pointer) for pointer in pointers] + panels
                result = ir.LiteralStructType([_F32] * count)
                started = ptx.start_panel_product(kind, width)
                product = assembly(builder, *started, operands, result, convergent=True)
                for n, pointer in enumerate(pointers):
                    builder.store(builder.extract_value(product, n), pointer)
                return context.get_dummy_value()

            return types.void(D, S, at_A, at_B, N), generate

        return typing_function

    _start_f16 = _start("start_product_f16", "f16")
    _start_bf16 = _start("start_product_bf16", "bf16")
    _start_tf32 = _start("start_product_tf32", "tf32")

    @intrinsic
    def start_product_f16(typing_context, D, S, at_A, at_B, N):  # type: ignore[no-untyped-def]
        """Start ``D += A @ B.T`` for panels of float16 at ``S[at_A]`` and ``S[at_B]``; N is a
        constant, a multiple of 8 up to 256."""
        return _start_f16(typing_context, D, S, at_A, at_B, N)

    @intrinsic
    def start_product_bf16(typing_context, D, S, at_A, at_B, N):  # type: ignore[no-untyped-def]
        """Start ``D += A @ B.T`` for panels of bfloat16."""
        return _start_bf16(typing_context, D, S, at_A, at_B, N)

    @intrinsic
    def start_product_tf32(typing_context, D, S, at_A, at_B, N):  # type: ignore[no-untyped-def]
        """Start ``D += A @ B.T`` for panels of float32, whose last 13 bits the tensor cores leave
        out."""
        return _start_tf32(typing_context, D, S, at_A, at_B, N)

    @intrinsic
    def wait_products(typing_context, D, N, in_flight):  # type: ignore[no-untyped-def]
        """Wait until at most ``in_flight`` products of this warpgroup are in flight, a constant; of
        0, ``D`` then holds all its sums."""
        count = _width("wait_products", N, D) // 2
        if not isinstance(in_flight, types.IntegerLiteral) or in_flight.literal_value < 0:
            raise TypingError(f"wait_products: in_flight is {in_flight}, but must be a constant")
        waited = ptx.wait_products(2 * count, in_flight.literal_value)

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            pointers = _sums(context, builder, signature.args[0], args[0], count)
            kind = ir.LiteralStructType([_F32] * count)
            numbers = [builder.load(pointer) for pointer in pointers]
            result = assembly(builder, *waited, numbers, kind, convergent=True)
            for n, pointer in enumerate(pointers):
                builder.store(builder.extract_value(result, n), pointer)
            return context.get_dummy_value()

        return types.void(D, N, in_flight), generate
