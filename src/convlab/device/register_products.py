"""Products of a warpgroup with the matrix on the left in registers, and a panel on the right.

As in :mod:`convlab.device.swizzled_products`, but a thread brings its part of A itself::

    A = cuda.local.array(16, uint32)         # two 16-bit numbers in each
    ...
    start_product_bf16_registers(D, 0, A, S, at_B, N, 64)  # D += A @ B.T
    ...                                      # the thread prepares the next product's A in another
    wait_products(D, SUMS, 1)                # array: until the wait it may not access this one

16 terms are a step, and four words of A: terms ``2 * thread_in_group`` and the next one of row
``group_id``, the same of row ``group_id + 8``, then terms ``2 * thread_in_group + 8`` and the next
one of both rows, all of the warp's 16 rows. TERMS is a constant, a multiple of 16 up to 64.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Compute
capability 9.0 only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from convlab.device import ptx
from convlab.device.code_generation import EMULATED, Operands, assembly, element_pointer
from convlab.device.emulated_tensor_core import NumberArray
from convlab.device.emulations import register_emulations, together
from convlab.device.panel_products import (
    BF16,
    F16,
    TERMS_OF_A_STEP,
    WORDS_OF_A_STEP,
    check_terms,
    fragments_of,
    panel_of_words,
    panel_product,
    sums_of,
)
from convlab.device.products import WARPGROUP, check_width
from convlab.device.swizzled_products import note_product, panel_bytes, sums_before

if TYPE_CHECKING:
    from numba.cuda.target import CUDATargetContext
    from numba.cuda.typing.templates import Signature


def words_of(kind: str, terms: int) -> int:
    """Return how many words of A a thread brings."""
    return terms // TERMS_OF_A_STEP[kind] * WORDS_OF_A_STEP


@dataclass
class _RegisterPart:
    """The part that a thread brings to the start of a product."""

    kind: str
    terms: int
    words: list[int]
    panel: np.ndarray  # the bytes of B, as a view of shared memory
    sums: list[float]

    def of_all(self, brought: Mapping[int, _RegisterPart]) -> dict[int, list[float]]:
        """Return each thread's sums after the product."""
        A = panel_of_words({thread: part.words for thread, part in brought.items()})
        N = 2 * len(self.sums)
        before = sums_of({thread: part.sums for thread, part in brought.items()}, N)
        after = fragments_of(panel_product(self.kind, A, self.panel, before, self.terms))
        return {thread: after[thread] for thread in brought}


def _emulated_start(name: str, kind: str) -> Callable[..., None]:
    """Return the emulation of the intrinsic ``name``, for one kind of numbers."""

    def start(
        D: NumberArray, first: int, A: Sequence[int], S: object, at_B: int, N: int, TERMS: int
    ) -> None:
        check_width(N)
        check_terms(name, kind, TERMS)
        words = [int(A[i]) for i in range(words_of(kind, TERMS))]
        panel = panel_bytes(name, S, int(at_B), N, kind)
        part = _RegisterPart(kind, TERMS, words, panel, sums_before(name, D, int(first), N))
        note_product(D, int(first), together(name, part, part.of_all, WARPGROUP))

    return start


_emulated_start_f16 = _emulated_start("start_product_f16_registers", F16)
_emulated_start_bf16 = _emulated_start("start_product_bf16_registers", BF16)

if EMULATED:
    start_product_f16_registers = _emulated_start_f16
    start_product_bf16_registers = _emulated_start_bf16
else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    from convlab.device.swizzled_products import (
        check_numbers,
        panel_descriptor,
        terms_of,
        width_of,
    )

    _F32, _I64 = ir.FloatType(), ir.IntType(64)

    def _start(name: str, kind: str) -> Any:
        """Return the typing function of the intrinsic ``name``, for one kind of numbers."""

        def typing_function(typing_context, D, first, A, S, at_B, N, TERMS):  # type: ignore[no-untyped-def]
            width, terms = width_of(name, N, D), terms_of(name, TERMS, kind)
            check_numbers(name, "A", A, types.uint32)
            check_numbers(name, "S", S, types.uint16)
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
                data = context.make_array(kinds[2])(context, builder, args[2]).data
                words = [
                    builder.gep(data, [ir.Constant(_I64, n)]) for n in range(words_of(kind, terms))
                ]
                panel = panel_descriptor(context, builder, (kinds[3], kinds[4]), (args[3], args[4]))
                operands = [builder.load(pointer) for pointer in (*pointers, *words)]
                result = ir.LiteralStructType([_F32] * count)
                started = ptx.start_register_product(kind, width, terms)
                product = assembly(builder, *started, [*operands, panel], result, convergent=True)
                for n, pointer in enumerate(pointers):
                    builder.store(builder.extract_value(product, n), pointer)
                return context.get_dummy_value()

            return types.void(D, first, A, S, at_B, N, TERMS), generate

        return typing_function

    _start_f16 = _start("start_product_f16_registers", F16)
    _start_bf16 = _start("start_product_bf16_registers", BF16)

    @intrinsic
    def start_product_f16_registers(typing_context, D, first, A, S, at_B, N, TERMS):  # type: ignore[no-untyped-def]
        """Start ``D += A @ B.T`` for the thread's part of A, and a panel of float16 at
        ``S[at_B]``."""
        return _start_f16(typing_context, D, first, A, S, at_B, N, TERMS)

    @intrinsic
    def start_product_bf16_registers(typing_context, D, first, A, S, at_B, N, TERMS):  # type: ignore[no-untyped-def]
        """Start ``D += A @ B.T`` for the thread's part of A, and a panel of bfloat16."""
        return _start_bf16(typing_context, D, first, A, S, at_B, N, TERMS)


register_emulations(
    (start_product_f16_registers, _emulated_start_f16),
    (start_product_bf16_registers, _emulated_start_bf16),
)
