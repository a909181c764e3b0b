"""Matrix products by tensor cores: a warp multiplies small matrices in one instruction (``mma``).

    a = to_tf32(A[g, t]), to_tf32(A[g + 8, t]), to_tf32(A[g, t + 4]), to_tf32(A[g + 8, t + 4])
    b = to_tf32(B[t, g]), to_tf32(B[t + 4, g])
    c = mma_tf32(a, b, c)  # with g = cuda.laneid // 4, t = cuda.laneid % 4

Each lane of the warp holds a few numbers of each matrix, its fragments, and all 32 lanes must make
the call. TF32 has float32's 8 bits of exponent and 10 of its 23 bits of mantissa. ``to_tf32``
rounds to it; without that the tensor core leaves the other 13 bits out, which doubles the largest
error. Sums are float32. Needs compute capability 8.0.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k8", ``mma`` and ``cvt``.
"""

from __future__ import annotations

from typing import Any

from numba.cuda.core import config

from convlab.device.intrinsics import assembly, register_emulations, together
from convlab.device.products import (
    SIZES,
    checked_fragments,
    rounded_to_tf32,
    split_into_tf32,
    warp_mma,
)

Four = tuple[Any, Any, Any, Any]


# For Numba's simulator. Where convlab's strict one runs a kernel, its own warps compute.
def _emulated_mma_tf32(a: Four, b: tuple[Any, Any], c: Four) -> Any:
    return together("mma_tf32", checked_fragments(a, b, c), warp_mma)


if config.ENABLE_CUDASIM:
    to_tf32, split_tf32, mma_tf32 = rounded_to_tf32, split_into_tf32, _emulated_mma_tf32
else:
    from llvmlite import ir
    from numba.core.errors import TypingError
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    _F32, _I32 = ir.FloatType(), ir.IntType(32)
    _FOUR_FLOATS = ir.LiteralStructType([_F32] * 4)
    _TF32_BITS = ir.Constant(_I32, 0xFFFFE000)
    _MMA = (
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )

    @intrinsic
    def to_tf32(typing_context, value):  # type: ignore[no-untyped-def]
        """The float32 ``value`` rounded to the nearest number of TF32, ties away from zero
        (``cvt.rna.tf32.f32``): a float32 whose last 13 bits are zero."""
        if value != types.float32:
            raise TypingError(f"to_tf32: value is {value}, but must be float32")

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            text = "cvt.rna.tf32.f32 $0, $1;"
            bits = assembly(builder, text, "=r,f", args, _I32, side_effect=False)
            # PTX says nothing of the other 13 bits.
            return builder.bitcast(builder.and_(bits, _TF32_BITS), _F32)

        return types.float32(value), generate

    @intrinsic
    def split_tf32(typing_context, value):  # type: ignore[no-untyped-def]
        """The float32 ``value`` as a sum of two, ``large + small``, that TF32 can multiply.

        ``large`` is ``value`` rounded to TF32, ties away from zero. ``small`` is exactly what is
        left, 12 bits of which a tensor core looks at 11: the sum of both parts as it sees them is
        within ``2**-23`` of ``value``, relatively; below ``2**-113``, where TF32 ends, within
        ``2**-136``. Three instructions. ``small`` is NaN for an infinity, and the opposite infinity
        for numbers that round to infinity (from ``2**128 - 2**116`` on).
        """
        if value != types.float32:
            raise TypingError(f"split_tf32: value is {value}, but must be float32")

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            bits = builder.add(builder.bitcast(args[0], _I32), ir.Constant(_I32, 0x1000))
            bits = builder.and_(bits, _TF32_BITS)
            large = builder.bitcast(bits, _F32)
            return context.make_tuple(builder, two, [large, builder.fsub(args[0], large)])

        two = types.UniTuple(types.float32, 2)
        return two(value), generate

    @intrinsic
    def mma_tf32(typing_context, a, b, c):  # type: ignore[no-untyped-def]
        """``D = A @ B + C`` by a warp's tensor core, of which this lane holds and gets a fragment.

        A is 16 x 8, B 8 x 8, C and D are 16 x 8. With ``g = cuda.laneid // 4`` and
        ``t = cuda.laneid % 4``, what PTX calls groupID and threadID_in_group, a lane holds

        - of A four numbers: ``A[g, t], A[g + 8, t], A[g, t + 4], A[g + 8, t + 4]``,
        - of B two: ``B[t, g], B[t + 4, g]``,
        - of C and D four: ``C[g, 2 * t], C[g, 2 * t + 1], C[g + 8, 2 * t], C[g + 8, 2 * t + 1]``,

        as tuples of float32. The tensor core leaves out the last 13 bits of A's and B's numbers;
        ``to_tf32`` rounds them off before. Products are exact, and each D is within
        ``2**-20 * (|c| + sum of |a| * |b|)`` of the exact sum, subnormal numbers aside: terms
        are cut where the largest one's last places are, and so is the result. NaN and infinities
        go on as ever.

        All 32 lanes have to call it at the same place: no branch that parts them, no lane that has
        ended, a block of a multiple of 32 threads. A GPU checks none of this. ``TypingError``
        where a fragment has another type.
        """
        for name, kind in (("a", a), ("b", b), ("c", c)):
            if kind != types.UniTuple(types.float32, SIZES[name]):
                wanted = f"a tuple of {SIZES[name]} float32"
                raise TypingError(f"mma_tf32: {name} is {kind}, but must be {wanted}")
        four = types.UniTuple(types.float32, 4)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, b, c = (
                [builder.extract_value(numbers, n) for n in range(count)]
                for numbers, count in zip(args, SIZES.values(), strict=True)
            )
            bits = [builder.bitcast(number, _I32) for number in a + b]
            constraints = ",".join(["=f"] * 4 + ["r"] * 6 + ["f"] * 4)
            result = assembly(
                builder, _MMA, constraints, bits + c, _FOUR_FLOATS,
                side_effect=False, convergent=True,
            )  # fmt: skip
            return context.make_tuple(
                builder, four, [builder.extract_value(result, n) for n in range(4)]
            )

        return four(a, b, c), generate


register_emulations(
    (to_tf32, rounded_to_tf32),
    (split_tf32, split_into_tf32),
    (mma_tf32, _emulated_mma_tf32),
)
