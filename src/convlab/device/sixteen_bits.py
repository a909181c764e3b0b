"""Numbers of 16 bits in kernels: float16 and bfloat16 as their bits, in arrays of uint16.

Kernels compute in float32. They only move 16-bit numbers, feed them to tensor cores
(:mod:`convlab.device.swizzled_products`), and round their results once::

    pair = pair_bf16(low, high)  # two float32, each rounded to the nearest even, as one uint32
    pair = load_pair(S, i)  # S[i] and S[i + 1] as one uint32, for an even i
    pair = shifted_pair(low, high, bits)  # 0: low; 16: the last number of low, the first of high
    p0, p1, p2, p3 = load_pairs(bias, channel)  # eight neighbours by one 16-byte load
    store_pairs(output, i, (p0, p1, p2, p3))  # and by one 16-byte store
    copy_async8(S, i, input, at, valid)  # eight neighbours, global to shared memory
    x = widen_bf16(bias[channel])  # exactly

Both accesses have the rules of ``store4`` and ``copy_async4`` (:mod:`convlab.device.intrinsics`):
16 bytes at a multiple of 16 bytes, which a GPU does not check before it stops the kernel. ``pair``
functions need compute capability 8.0.

Source: PTX ISA, ``cvt`` and ``cp.async``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from convlab.device.code_generation import EMULATED, Operands, assembly, element_pointer
from convlab.device.emulations import register_emulations
from convlab.device.products import Float

if TYPE_CHECKING:
    from numba.cuda.target import CUDATargetContext
    from numba.cuda.typing.templates import Signature

PAIRS = 4  # in 16 bytes
EIGHT = 2 * PAIRS  # 16-bit numbers in 16 bytes
FLOAT16, BFLOAT16 = "float16", "bfloat16"
Word = int | np.uint32


def bits_of(value: Float, kind: str) -> int:
    """Return the bits of a float32 rounded to a 16-bit type, to the nearest, ties to even."""
    with np.errstate(all="ignore"):
        number = np.float32(value)
        if kind == FLOAT16:
            return int(np.float16(number).view(np.uint16))
        bits = int(number.view(np.uint32))
        if np.isnan(number):
            return 0x7FFF  # the NaN that a GPU makes
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def number_of(bits: int, kind: str) -> float:
    """Return the number that the bits of a 16-bit type stand for."""
    if kind == FLOAT16:
        return float(np.uint16(bits).view(np.float16))
    return float(np.uint32(int(bits) << 16).view(np.float32))


def _emulated_pair_f16(low: Float, high: Float) -> int:
    return bits_of(low, FLOAT16) | bits_of(high, FLOAT16) << 16


def _emulated_pair_bf16(low: Float, high: Float) -> int:
    return bits_of(low, BFLOAT16) | bits_of(high, BFLOAT16) << 16


def _emulated_widen_f16(bits: int) -> np.float32:
    return np.float32(number_of(bits, FLOAT16))


def _emulated_widen_bf16(bits: int) -> np.float32:
    return np.float32(number_of(bits, BFLOAT16))


def _emulated_load_pair(array: Any, index: int) -> np.uint32:
    if hasattr(type(array), "load_run"):
        low, high = array.load_run(index, 2)
    elif index % 2 or not 0 <= index <= array.shape[0] - 2:
        raise IndexError(f"32-bit access at index {index} of {array.shape[0]}: it must be even")
    else:
        low, high = array[index], array[index + 1]
    return np.uint32(int(low) | int(high) << 16)


def _emulated_shifted_pair(low: Word, high: Word, bits: Word) -> np.uint32:
    return np.uint32((int(low) | int(high) << 32) >> int(bits) & 0xFFFFFFFF)


def _emulated_store_pairs(array: Any, index: int, pairs: tuple[int, int, int, int]) -> None:
    numbers = [half for pair in pairs for half in (int(pair) & 0xFFFF, int(pair) >> 16)]
    if hasattr(type(array), "store_run"):
        array.store_run(index, tuple(numbers))
        return
    array[_eight_from(array, index)] = numbers


def _emulated_load_pairs(array: Any, index: int) -> tuple[int, ...]:
    if hasattr(type(array), "load_run"):
        numbers = array.load_run(index, EIGHT)
    else:
        numbers = array[_eight_from(array, index)]
    return tuple(int(numbers[n]) | int(numbers[n + 1]) << 16 for n in range(0, EIGHT, 2))


def _emulated_copy_async8(target: Any, index: int, source: Any, at: int, valid: bool) -> None:
    place = _eight_from(target, index)
    target[place] = tuple(source[_eight_from(source, at)]) if valid else 0


def _eight_from(array: Any, index: int) -> slice:
    """Return the slice of eight numbers from an index on, which one access touches. Raises
    ``IndexError`` where they are not at a multiple of eight, or not there."""
    index, (extent,) = int(index), array.shape
    if index % EIGHT or not 0 <= index <= extent - EIGHT:
        raise IndexError(
            f"128-bit access at index {index} of {extent}: it must be a multiple of 8, at most "
            f"{extent - EIGHT}"
        )
    return slice(index, index + EIGHT)


if EMULATED:
    pair_f16, pair_bf16 = _emulated_pair_f16, _emulated_pair_bf16
    widen_f16, widen_bf16 = _emulated_widen_f16, _emulated_widen_bf16
    load_pair, shifted_pair = _emulated_load_pair, _emulated_shifted_pair
    load_pairs, store_pairs = _emulated_load_pairs, _emulated_store_pairs
    copy_async8 = _emulated_copy_async8
else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    _F32, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
    _FOUR_WORDS = ir.VectorType(_I32, PAIRS)
    _GLOBAL, _SHARED = 1, 3  # NVVM's address spaces

    def is_16_bit_array(array: types.Type) -> bool:
        """Return whether a Numba type is a C-contiguous array of uint16 with one dimension."""
        is_array = isinstance(array, types.Array) and array.dtype == types.uint16
        return is_array and array.ndim == 1 and array.layout == "C"

    def _pair(text: str) -> Any:
        """Return the typing function of an intrinsic that rounds two float32."""

        def typing_function(typing_context, low, high):  # type: ignore[no-untyped-def]
            if low != types.float32 or high != types.float32:
                return None

            def generate(
                context: CUDATargetContext,
                builder: ir.IRBuilder,
                signature: Signature,
                args: Operands,
            ) -> ir.Value:
                return assembly(builder, text, "=r,f,f", args, _I32, side_effect=False)

            return types.uint32(low, high), generate

        return typing_function

    @intrinsic
    def pair_f16(typing_context, low, high):  # type: ignore[no-untyped-def]
        """Return two float32 rounded to float16 as one uint32, ``low`` in its lower half."""
        return _pair("cvt.rn.f16x2.f32 $0, $2, $1;")(typing_context, low, high)

    @intrinsic
    def pair_bf16(typing_context, low, high):  # type: ignore[no-untyped-def]
        """Return two float32 rounded to bfloat16 as one uint32, ``low`` in its lower half."""
        return _pair("cvt.rn.bf16x2.f32 $0, $2, $1;")(typing_context, low, high)

    @intrinsic
    def widen_f16(typing_context, bits):  # type: ignore[no-untyped-def]
        """Return the float16 of these bits, a uint16, as a float32."""
        if bits != types.uint16:
            return None

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            return assembly(builder, "cvt.f32.f16 $0, $1;", "=f,h", args, _F32, side_effect=False)

        return types.float32(bits), generate

    @intrinsic
    def widen_bf16(typing_context, bits):  # type: ignore[no-untyped-def]
        """Return the bfloat16 of these bits, a uint16, as a float32."""
        if bits != types.uint16:
            return None

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            wide = builder.shl(builder.zext(args[0], _I32), ir.Constant(_I32, 16))
            return builder.bitcast(wide, _F32)

        return types.float32(bits), generate

    @intrinsic
    def load_pair(typing_context, array, index):  # type: ignore[no-untyped-def]
        """Load ``array[index]`` and ``array[index + 1]`` as one uint32; ``index`` is even."""
        if not is_16_bit_array(array):
            return None

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            element = element_pointer(context, builder, signature.args, args)
            pointer = builder.bitcast(element, ir.PointerType(_I32, element.type.addrspace))
            pair = builder.load(pointer)
            pair.align = 4
            return pair

        return types.uint32(array, index), generate

    @intrinsic
    def shifted_pair(typing_context, low, high, bits):  # type: ignore[no-untyped-def]
        """Return 32 of the 64 bits of two pairs, from bit ``bits`` (0 to 31) on."""
        if (low, high, bits) != (types.uint32,) * 3:
            return None

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            text = "shf.r.wrap.b32 $0, $1, $2, $3;"
            return assembly(builder, text, "=r,r,r,r", args, _I32, side_effect=False)

        return types.uint32(low, high, bits), generate

    @intrinsic
    def store_pairs(typing_context, array, index, pairs):  # type: ignore[no-untyped-def]
        """Store four pairs of 16-bit numbers at ``array[index]`` on, by one 16-byte store."""
        if not is_16_bit_array(array) or pairs != types.UniTuple(types.uint32, PAIRS):
            return None

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            element = element_pointer(context, builder, signature.args[:2], args[:2])
            pointer = builder.bitcast(element, ir.PointerType(_FOUR_WORDS, element.type.addrspace))
            vector = ir.Constant(_FOUR_WORDS, ir.Undefined)
            for n in range(PAIRS):
                word = builder.extract_value(args[2], n)
                vector = builder.insert_element(vector, word, ir.Constant(_I32, n))
            builder.store(vector, pointer).align = 16
            return context.get_dummy_value()

        return types.void(array, index, pairs), generate

    @intrinsic
    def load_pairs(typing_context, array, index):  # type: ignore[no-untyped-def]
        """Load eight 16-bit numbers from ``array[index]`` on as four pairs, by one load."""
        if not is_16_bit_array(array):
            return None
        four = types.UniTuple(types.uint32, PAIRS)

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            element = element_pointer(context, builder, signature.args[:2], args[:2])
            kind = ir.PointerType(_FOUR_WORDS, element.type.addrspace)
            vector = builder.load(builder.bitcast(element, kind))
            vector.align = 16
            words = [builder.extract_element(vector, ir.Constant(_I32, n)) for n in range(PAIRS)]
            return context.make_tuple(builder, four, words)

        return four(array, index), generate

    @intrinsic
    def copy_async8(typing_context, target, index, source, at, valid):  # type: ignore[no-untyped-def]
        """Copy eight 16-bit numbers by one 16-byte copy; zeros where ``valid`` is false."""
        if not is_16_bit_array(target) or not is_16_bit_array(source):
            return None

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            kinds = signature.args
            to = element_pointer(context, builder, kinds[0:2], args[0:2])
            start = element_pointer(context, builder, kinds[2:4], args[2:4])
            is_valid = context.cast(builder, args[4], kinds[4], types.boolean)
            read = builder.select(is_valid, ir.Constant(_I32, 16), ir.Constant(_I32, 0))
            near = builder.addrspacecast(to, ir.PointerType(_I16, _SHARED))
            far = builder.addrspacecast(start, ir.PointerType(_I16, _GLOBAL))
            operands = builder.ptrtoint(near, _I32), builder.ptrtoint(far, _I64), read
            assembly(builder, "cp.async.cg.shared.global [$0], [$1], 16, $2;", "r,l,r", operands)
            return context.get_dummy_value()

        return types.void(target, index, source, at, valid), generate


register_emulations(
    (pair_f16, _emulated_pair_f16),
    (pair_bf16, _emulated_pair_bf16),
    (widen_f16, _emulated_widen_f16),
    (widen_bf16, _emulated_widen_bf16),
    (load_pair, _emulated_load_pair),
    (shifted_pair, _emulated_shifted_pair),
    (load_pairs, _emulated_load_pairs),
    (store_pairs, _emulated_store_pairs),
    (copy_async8, _emulated_copy_async8),
)
