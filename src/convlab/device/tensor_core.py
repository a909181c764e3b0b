"""Matrix products by tensor cores: of a warp (``mma``) and of a warpgroup (``wgmma``).

A warp multiplies small matrices in one instruction::

    group_id, thread_in_group = cuda.laneid // 4, cuda.laneid % 4  # PTX: groupID, threadID_in_group
    row, column, below, right = group_id, thread_in_group, group_id + 8, thread_in_group + 4
    a = A[row, column], A[below, column], A[row, right], A[below, right]  # each by to_tf32
    b = B[thread_in_group, group_id], B[thread_in_group + 4, group_id]  # each by to_tf32
    c = mma_tf32(a, b, c)

Each lane of the warp holds a few numbers of each matrix, its fragments, and all 32 lanes must make
the call. TF32 has float32's 8 bits of exponent and 10 of its 23 bits of mantissa. ``to_tf32``
rounds to TF32; without rounding, the tensor core ignores the other 13 bits, which doubles the
largest error. Sums are float32. ``mma`` needs compute capability 8.0.

A warpgroup, four warps, multiplies together by Hopper's ``wgmma``::

    fence_shared()                             # before the barrier: tensor cores may read ``S``
    cuda.syncthreads()
    start_product(D, L, T, S, at, N)           # the tensor cores multiply,
    ...                                        # the threads go on,
    finish_product(D, N)                       # and wait: now the product is in ``D``

One product is 64 x 16 by 16 x N, to float32 accuracy by three products of TF32. A, on the left, is
in registers, split in two (:func:`convlab.device.split_tf32`): ``L`` has the large parts, ``T`` the
rest. B, on the right, is in shared memory, also in both parts, and the tensor cores read it
there by themselves. The tensor cores read less for each product than with ``mma``, and no lane
loads B.

Warp w of the four has rows 16 * w to 16 * w + 15. Of these 16 rows a lane holds

- of A eight numbers, in ``L`` and in ``T``: the four of terms 0 to 7 as above, then the same of
  terms 8 to 15,
- of the product N / 2, in ``D``: for j from 0 to N / 8 - 1 column ``8 * j + 2 * thread_in_group``
  and the next column, of row ``group_id``, then of row ``group_id + 8``.

B is ``32 * N`` numbers from ``S[at]`` on: of terms 0 to 7 the large parts, of these the small ones,
then of terms 8 to 15; each as core matrices, ``[k // 4 % 2, n, k % 4]``.

From ``start_product`` to ``finish_product`` no thread may change that part of ``S`` or access
``D``. All four warps read all of B, so a thread that overwrites B needs a barrier after
``finish_product``. All 128 threads of a warpgroup have to come to both calls, with the same ``at``.
A warpgroup begins at a multiple of 128 threads. A GPU checks none of this. ``wgmma`` needs compute
capability 9.0 and no other, because later GPUs multiply in other ways.

In that time the tensor cores read the registers of ``L`` and ``T`` as well. So a thread prepares
the next parts in two further arrays, as t05 does: to reuse the registers it would have to wait.

Where TF32's own accuracy is enough, one product is added to ``D``, in which a sum of many products
can stay::

    start_one_product(D, A, S, at, N)         # the tensor cores add A times B to ``D``
    finish_product(D, N)                       # now the sum is in ``D``

``A`` has eight numbers, each by ``to_tf32``, and B is ``16 * N`` numbers: of terms 0 to 7, then of
terms 8 to 15. All else is as above.

``L`` and ``T`` must be two arrays with different numbers: if the compiler knows that the numbers
are the same, nvJitLink 13.5 leaves three of the six instructions out.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k8", ``mma``, ``cvt`` and "Asynchronous Warpgroup
Level Matrix Multiply-Accumulate Instructions".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import cuda, float32

from convlab.device import emulated_tensor_core as emulated
from convlab.device import ptx
from convlab.device.code_generation import (
    EMULATED,
    Operands,
    assembly,
    element_pointer,
    gpu_only,
    is_float32_c_array,
    statement,
)
from convlab.device.emulations import register_emulations
from convlab.device.products import SIZES, check_width, rounded_to_tf32, split_into_tf32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numba.cuda.target import CUDATargetContext
    from numba.cuda.typing.templates import Signature

if EMULATED:
    to_tf32, split_tf32, mma_tf32 = rounded_to_tf32, split_into_tf32, emulated.mma_tf32
    fence_shared = emulated.fence_shared
    start_product, finish_product = emulated.start_product, emulated.finish_product
    start_one_product = emulated.start_one_product
else:
    from llvmlite import ir
    from numba.core.errors import TypingError
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    _F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
    _FOUR_FLOATS = ir.LiteralStructType([_F32] * 4)
    _TF32_BITS = ir.Constant(_I32, ptx.TF32_BITS)

    @intrinsic
    def to_tf32(typing_context, value):  # type: ignore[no-untyped-def]
        """Return the float32 ``value`` rounded to the nearest number of TF32, ties away from zero
        (``cvt.rna.tf32.f32``): a float32 whose last 13 bits are zero."""
        if value != types.float32:
            raise TypingError(f"to_tf32: value is {value}, but must be float32")

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            bits = assembly(builder, *ptx.TO_TF32, args, _I32, side_effect=False)
            # PTX says nothing of the other 13 bits.
            return builder.bitcast(builder.and_(bits, _TF32_BITS), _F32)

        return types.float32(value), generate

    @intrinsic
    def split_tf32(typing_context, value):  # type: ignore[no-untyped-def]
        """Return the float32 ``value`` as a sum of two, ``large + small``, that TF32 can multiply.

        ``large`` is ``value`` rounded to TF32, ties away from zero. ``small`` is exactly the rest.
        It has 12 bits, of which a tensor core uses 11. The sum of both parts, as a tensor core sees
        them, is within ``2**-23`` of ``value``, relatively; below ``2**-113``, where TF32 ends,
        within ``2**-136``. The split takes three instructions. ``small`` is NaN for an infinity,
        and the opposite infinity for numbers that round to infinity (from ``2**128 - 2**116`` on).
        """
        if value != types.float32:
            raise TypingError(f"split_tf32: value is {value}, but must be float32")

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            bits = builder.add(builder.bitcast(args[0], _I32), ir.Constant(_I32, 0x1000))
            bits = builder.and_(bits, _TF32_BITS)
            large = builder.bitcast(bits, _F32)
            return context.make_tuple(builder, two, [large, builder.fsub(args[0], large)])

        two = types.UniTuple(types.float32, 2)
        return two(value), generate

    @intrinsic
    def mma_tf32(typing_context, a, b, c):  # type: ignore[no-untyped-def]
        """Compute ``D = A @ B + C`` by a warp's tensor core. A lane holds and gets fragments.

        A is 16 x 8, B 8 x 8, C and D are 16 x 8. With ``group_id = cuda.laneid // 4`` and
        ``thread_in_group = cuda.laneid % 4``, PTX's groupID and threadID_in_group, a lane holds

        - of A four numbers: rows ``group_id`` and ``group_id + 8`` of column ``thread_in_group``,
          then of column ``thread_in_group + 4``,
        - of B two: rows ``thread_in_group`` and ``thread_in_group + 4`` of column ``group_id``,
        - of C and D four: column ``2 * thread_in_group`` and the next column, of row ``group_id``,
          then of row ``group_id + 8``,

        as tuples of float32. The tensor core leaves out the last 13 bits of A's and B's numbers, so
        ``to_tf32`` rounds them before. Products are exact, and each D is within
        ``2**-20 * (|c| + sum of |a| * |b|)`` of the exact sum, except for subnormal numbers: terms
        are cut at the last places of the largest term, and the result is cut too. NaN and
        infinities propagate as usual.

        All 32 lanes have to call it at the same place: no branch may separate them, no lane may
        have ended, and the block must have a multiple of 32 threads. A GPU checks none of this.
        Raises ``TypingError`` if a fragment has another type.
        """
        for name, kind in (("a", a), ("b", b), ("c", c)):
            if kind != types.UniTuple(types.float32, SIZES[name]):
                wanted = f"a tuple of {SIZES[name]} float32"
                raise TypingError(f"mma_tf32: {name} is {kind}, but must be {wanted}")
        four = types.UniTuple(types.float32, 4)

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            a, b, c = (
                [builder.extract_value(numbers, n) for n in range(count)]
                for numbers, count in zip(args, SIZES.values(), strict=True)
            )
            bits = [builder.bitcast(number, _I32) for number in a + b]
            result = assembly(
                builder, *ptx.MMA, bits + c, _FOUR_FLOATS,
                side_effect=False, convergent=True,
            )  # fmt: skip
            return context.make_tuple(
                builder, four, [builder.extract_value(result, n) for n in range(4)]
            )

        return four(a, b, c), generate

    _SHARED = 3  # NVVM's address space

    def _width(name: str, N: types.Type, arrays: dict[str, types.Type]) -> int:
        """Return N, after a check of all the call's arguments."""
        if not isinstance(N, types.IntegerLiteral):
            raise TypingError(f"{name}: N is {N}, but must be a constant of the kernel's")
        try:
            check_width(N.literal_value)
        except ValueError as error:
            raise TypingError(f"{name}: {error}") from None
        for argument, kind in arrays.items():
            if not (is_float32_c_array(kind) and kind.ndim == 1):
                wanted = "an array of float32 with one dimension"
                raise TypingError(f"{name}: {argument} is {kind}, but must be {wanted}")
        return int(N.literal_value)

    def _numbers(
        context: CUDATargetContext,
        builder: ir.IRBuilder,
        kind: types.Array,
        array: ir.Value,
        count: int,
    ) -> list[ir.Value]:
        """Return pointers to the first numbers of an array."""
        data = context.make_array(kind)(context, builder, array).data
        return [builder.gep(data, [ir.Constant(_I64, n)]) for n in range(count)]

    def _descriptors(
        context: CUDATargetContext,
        builder: ir.IRBuilder,
        kinds: Sequence[types.Type],
        args: Operands,
        width: int,
        parts: int,
    ) -> list[ir.Value]:
        """Return the matrix descriptors of B's parts of eight terms, from ``S[at]`` on."""
        start = element_pointer(context, builder, kinds, args)
        near = builder.addrspacecast(start, ir.PointerType(start.type.pointee, _SHARED))
        sixteenths = builder.lshr(builder.ptrtoint(near, _I32), ir.Constant(_I32, 4))
        shape, part = ptx.descriptor(width)
        first = builder.or_(builder.zext(sixteenths, _I64), ir.Constant(_I64, shape))
        return [builder.add(first, ir.Constant(_I64, n * part)) for n in range(parts)]

    @intrinsic
    def fence_shared(typing_context):  # type: ignore[no-untyped-def]
        """After a barrier, tensor cores see what this thread stored to shared memory before the
        call, and its copies that had landed. They read shared memory through PTX's async proxy:
        without the fence they may read what was there before."""
        return types.void(), statement("fence.proxy.async.shared::cta;")

    @intrinsic
    def start_product(typing_context, D, L, T, S, at, N):  # type: ignore[no-untyped-def]
        """Start a warpgroup's product; ``D`` belongs to the product until ``finish_product``. N is
        a constant, a multiple of 8 up to 256. Raises ``TypingError`` if an argument has another
        type."""
        width = _width("start_product", N, {"D": D, "L": L, "T": T, "S": S})
        count = width // 2

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            kinds = signature.args
            parts = _descriptors(context, builder, kinds[3:5], args[3:5], width, parts=4)
            left = [
                builder.bitcast(builder.load(pointer), _I32)
                for kind, array in zip(kinds[1:3], args[1:3], strict=True)
                for pointer in _numbers(context, builder, kind, array, 8)
            ]
            result, operands = ir.LiteralStructType([_F32] * count), left + parts
            started = ptx.start_product(width)
            product = assembly(builder, *started, operands, result, convergent=True)
            for n, pointer in enumerate(_numbers(context, builder, kinds[0], args[0], count)):
                builder.store(builder.extract_value(product, n), pointer)
            return context.get_dummy_value()

        return types.void(D, L, T, S, at, N), generate

    @intrinsic
    def start_one_product(typing_context, D, A, S, at, N):  # type: ignore[no-untyped-def]
        """Start to add a warpgroup's product of TF32 to ``D``, which belongs to the product until
        ``finish_product``. N is a constant, a multiple of 8 up to 256. Raises ``TypingError`` if an
        argument has another type."""
        width = _width("start_one_product", N, {"D": D, "A": A, "S": S})
        count = width // 2

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            kinds = signature.args
            parts = _descriptors(context, builder, kinds[2:4], args[2:4], width, parts=2)
            left = [
                builder.bitcast(builder.load(pointer), _I32)
                for pointer in _numbers(context, builder, kinds[1], args[1], 8)
            ]
            pointers = _numbers(context, builder, kinds[0], args[0], count)
            operands = [*left, *parts, *map(builder.load, pointers)]
            started, kind = ptx.start_one_product(width), ir.LiteralStructType([_F32] * count)
            sums = assembly(builder, *started, operands, kind, convergent=True)
            for n, pointer in enumerate(pointers):
                builder.store(builder.extract_value(sums, n), pointer)
            return context.get_dummy_value()

        return types.void(D, A, S, at, N), generate

    @intrinsic
    def finish_product(typing_context, D, N):  # type: ignore[no-untyped-def]
        """Wait until this thread's products are done; ``D`` then holds its product."""
        count = _width("finish_product", N, {"D": D}) // 2

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            pointers = _numbers(context, builder, signature.args[0], args[0], count)
            numbers = [builder.load(pointer) for pointer in pointers]
            kind, finished = ir.LiteralStructType([_F32] * count), ptx.finish_product(2 * count)
            result = assembly(builder, *finished, numbers, kind, convergent=True)
            for n, pointer in enumerate(pointers):
                builder.store(builder.extract_value(result, n), pointer)
            return context.get_dummy_value()

        return types.void(D, N), generate


register_emulations(
    (to_tf32, rounded_to_tf32),
    (split_tf32, split_into_tf32),
    (mma_tf32, emulated.mma_tf32),
    (fence_shared, emulated.fence_shared),
    (start_product, emulated.start_product),
    (start_one_product, emulated.start_one_product),
    (finish_product, emulated.finish_product),
)


@cuda.jit(device=True, **gpu_only(forceinline=True))
def mma_3xtf32(f, w):  # type: ignore[no-untyped-def]
    """Return a lane's part of the product of 16 x 8 filter and 8 x 8 window elements.

    The part is four sums of 8 terms, from the four and two numbers that ``mma_tf32`` assigns to the
    lane."""
    (l0, s0), (l1, s1) = split_tf32(f[0]), split_tf32(f[1])
    (l2, s2), (l3, s3) = split_tf32(f[2]), split_tf32(f[3])
    (large, small), (large_below, small_below) = split_tf32(w[0]), split_tf32(w[1])
    zero = float32(0)
    part = mma_tf32((s0, s1, s2, s3), (large, large_below), (zero, zero, zero, zero))
    part = mma_tf32((l0, l1, l2, l3), (small, small_below), part)
    return mma_tf32((l0, l1, l2, l3), (large, large_below), part)
