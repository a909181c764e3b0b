"""convlab's intrinsics of 16-bit numbers and of Hopper for numba-cuda-mlir, written in MLIR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_cuda_mlir import types
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import arith, llvm

from convlab.device import (
    copy_engine,
    ptx,
    shared_barriers,
    sixteen_bits,
    swizzled_products,
    warp_roles,
)
from convlab.device.mlir_code_generation import (
    GLOBAL,
    SHARED,
    Builder,
    Variable,
    after,
    assembly,
    counterpart_of,
    element_pointer,
    first_pointer,
    in_space,
    integer,
    integers,
)
from convlab.device.panel_products import (
    BF16,
    F16,
    PANEL_ALIGNMENT,
    TF32,
    check_terms,
)
from convlab.device.products import check_width
from convlab.device.tensor_maps import MOST_AXES
from convlab.device.warp_roles import check_registers, check_sync

FLOAT, FOUR_WORDS = types.float32, types.UniTuple(types.uint32, sixteen_bits.PAIRS)


def _is_row(kind: types.Type, dtype: types.Type) -> bool:
    """Return whether a type is a C-contiguous array of these numbers with one dimension."""
    is_array = isinstance(kind, types.Array) and kind.dtype == dtype
    return is_array and kind.ndim == 1 and kind.layout == "C"


def _converted(builder: Builder, value: ir.Value, kind: types.Type, nbits: int) -> ir.Value:
    """Return an integer of a Numba type with so many bits."""
    if isinstance(value.type, ir.IndexType):
        return arith.index_cast(integers(nbits), value)
    if value.type.width > nbits:
        return arith.trunci(integers(nbits), value)
    if value.type.width < nbits:
        return (arith.extsi if kind.signed else arith.extui)(integers(nbits), value)
    return value


def _number(builder: Builder, variable: Variable, nbits: int = 32) -> ir.Value:
    """Return an integer variable with so many bits."""
    return _converted(builder, builder.load_var(variable), builder.get_numba_type(variable), nbits)


def _near(builder: Builder, array: Variable, index: Variable) -> ir.Value:
    """Return the address of an element in shared memory."""
    return in_space(element_pointer(builder, array, index), SHARED, 32)


# Numbers of 16 bits.


def _pair(text: str) -> Any:
    """Return what writes the code of a conversion of two float32 to a pair."""

    def write(builder: Builder, low: Variable, high: Variable) -> ir.Value:
        numbers = [builder.load_var(low), builder.load_var(high)]
        return llvm.inline_asm(integers(32), numbers, text, "=r,f,f")

    return write


def _two_floats(low: types.Type, high: types.Type) -> bool:
    return bool(low == FLOAT and high == FLOAT)


counterpart_of(sixteen_bits.pair_f16, types.uint32, _two_floats)(
    _pair("cvt.rn.f16x2.f32 $0, $2, $1;")
)
counterpart_of(sixteen_bits.pair_bf16, types.uint32, _two_floats)(
    _pair("cvt.rn.bf16x2.f32 $0, $2, $1;")
)


def _is_16_bits(bits: types.Type) -> bool:
    return bool(bits == types.uint16)


@counterpart_of(sixteen_bits.widen_f16, FLOAT, _is_16_bits)
def widen_f16(builder: Builder, bits: Variable) -> ir.Value:
    """Convert a float16 to float32."""
    number = [builder.load_var(bits)]
    return llvm.inline_asm(ir.F32Type.get(), number, "cvt.f32.f16 $0, $1;", "=f,h")


@counterpart_of(sixteen_bits.widen_bf16, FLOAT, _is_16_bits)
def widen_bf16(builder: Builder, bits: Variable) -> ir.Value:
    """Move the bits of a bfloat16 to the upper half of a float32."""
    wide = arith.extui(integers(32), builder.load_var(bits))
    return arith.bitcast(ir.F32Type.get(), arith.shli(wide, integer(16)))


def _four_words() -> ir.VectorType:
    return ir.VectorType.get([sixteen_bits.PAIRS], integers(32))


@counterpart_of(
    sixteen_bits.store_pairs,
    types.void,
    lambda array, index, pairs: _is_row(array, types.uint16) and pairs == FOUR_WORDS,
)
def store_pairs(builder: Builder, array: Variable, index: Variable, pairs: Variable) -> None:
    """Store four pairs as one vector of 128 bits."""
    vector = llvm.mlir_undef(_four_words())
    for place, word in enumerate(builder.load_var(pairs)):
        vector = llvm.insertelement(vector, word, integer(place))
    llvm.store(vector, element_pointer(builder, array, index), alignment=16)


@counterpart_of(
    sixteen_bits.load_pairs, FOUR_WORDS, lambda array, index: _is_row(array, types.uint16)
)
def load_pairs(builder: Builder, array: Variable, index: Variable) -> tuple[ir.Value, ...]:
    """Load four pairs as one vector of 128 bits."""
    vector = llvm.load(_four_words(), element_pointer(builder, array, index), alignment=16)
    return tuple(llvm.extractelement(vector, integer(n)) for n in range(sixteen_bits.PAIRS))


@counterpart_of(
    sixteen_bits.copy_async8,
    types.void,
    lambda target, index, source, at, valid: (
        _is_row(target, types.uint16) and _is_row(source, types.uint16)
    ),
)
def copy_async8(
    builder: Builder,
    target: Variable,
    index: Variable,
    source: Variable,
    at: Variable,
    valid: Variable,
) -> None:
    """Copy eight numbers, past the L1 cache; zeros are written where ``valid`` is false."""
    far = in_space(element_pointer(builder, source, at), GLOBAL, 64)
    is_valid = builder.mlir_convert(builder.load_var(valid), integers(1))
    read = arith.select(is_valid, integer(16), integer(0))
    operands = _near(builder, target, index), far, read
    assembly("cp.async.cg.shared.global [$0], [$1], 16, $2;", "r,l,r", operands)


# Barriers in shared memory.


def _is_barrier(barriers: types.Type, *_: types.Type) -> bool:
    return _is_row(barriers, types.uint64)


def _at_barrier(text: str) -> Any:
    """Return what writes the code of a statement about a barrier, perhaps with a number."""

    def write(builder: Builder, barriers: Variable, i: Variable, *numbers: Variable) -> None:
        operands = [_near(builder, barriers, i), *(_number(builder, one) for one in numbers)]
        assembly(text, ",".join(["r"] * len(operands)), operands)

    return write


for _original, _text in (
    (shared_barriers.init_barrier, ptx.INIT_BARRIER),
    (shared_barriers.expect_bytes, ptx.EXPECT_BYTES),
    (shared_barriers.arrive_barrier, ptx.ARRIVE_BARRIER),
    (shared_barriers.wait_barrier, ptx.WAIT_BARRIER),
):
    counterpart_of(_original, types.void, _is_barrier)(_at_barrier(_text))


@counterpart_of(shared_barriers.fence_barriers, types.void)
def fence_barriers(builder: Builder) -> None:
    """Make new barriers visible to the copy engine."""
    assembly(ptx.FENCE_BARRIERS, "")


# The copy engine.


def _is_copy(S: types.Type, tensor_map: types.Type, barriers: types.Type) -> bool:
    is_row = isinstance(S, types.Array) and S.ndim == 1 and S.layout == "C"
    return is_row and _is_row(tensor_map, types.uint64) and _is_barrier(barriers)


def _map(builder: Builder, tensor_map: Variable) -> ir.Value:
    return llvm.ptrtoint(integers(64), first_pointer(builder, tensor_map))


@counterpart_of(
    copy_engine.copy_box,
    types.void,
    lambda S, at, tensor_map, corner, barriers, i: (
        _is_copy(S, tensor_map, barriers)
        and isinstance(corner, types.BaseTuple)
        and 1 <= len(corner) <= MOST_AXES
    ),
)
def copy_box(
    builder: Builder,
    S: Variable,
    at: Variable,
    tensor_map: Variable,
    corner: Variable,
    barriers: Variable,
    i: Variable,
) -> None:
    """Copy a box of up to five axes."""
    kinds = builder.get_numba_type(corner)
    places: Sequence[ir.Value] = [
        _converted(builder, value, kind, 32)
        for value, kind in zip(builder.load_var(corner), kinds, strict=True)
    ]
    ends = [_near(builder, S, at), _map(builder, tensor_map), _near(builder, barriers, i)]
    text, constraints = ptx.copy_box(len(places))
    assembly(text, constraints, [*ends, *places])


@counterpart_of(
    copy_engine.copy_windows,
    types.void,
    lambda S, at, tensor_map, c, w, h, n, offset_w, offset_h, barriers, i: _is_copy(
        S, tensor_map, barriers
    ),
)
def copy_windows(
    builder: Builder,
    S: Variable,
    at: Variable,
    tensor_map: Variable,
    c: Variable,
    w: Variable,
    h: Variable,
    n: Variable,
    offset_w: Variable,
    offset_h: Variable,
    barriers: Variable,
    i: Variable,
) -> None:
    """Copy one element of some windows."""
    ends = [_near(builder, S, at), _map(builder, tensor_map), _near(builder, barriers, i)]
    pixel = [_number(builder, one) for one in (c, w, h, n)]
    offsets = [_number(builder, one, 16) for one in (offset_w, offset_h)]
    assembly(*ptx.COPY_WINDOWS, [*ends, *pixel, *offsets])


# Products from panels.


@counterpart_of(swizzled_products.panel_start, types.uint32, lambda S: isinstance(S, types.Array))
def panel_start(builder: Builder, S: Variable) -> ir.Value:
    """Return the first index at a multiple of 1,024 bytes."""
    near = in_space(first_pointer(builder, S), SHARED, 32)
    skipped = arith.andi(arith.subi(integer(0), near), integer(PANEL_ALIGNMENT - 1))
    return arith.divui(skipped, integer(builder.get_numba_type(S).dtype.bitwidth // 8))


def _descriptor(builder: Builder, S: Variable, at: Variable) -> ir.Value:
    """Return the descriptor of a panel, in which addresses count units of 16 bytes."""
    sixteenths = arith.shrui(_near(builder, S, at), integer(4))
    return arith.ori(arith.extui(integers(64), sixteenths), integer(ptx.PANEL, 64))


def _start(name: str, kind: str) -> Any:
    """Return what writes the code of a product's start."""

    def write(
        builder: Builder,
        D: Variable,
        first: Variable,
        S: Variable,
        at_A: Variable,
        at_B: Variable,
        N: int,
        TERMS: int,
    ) -> None:
        check_terms(name, kind, TERMS)
        begin = element_pointer(builder, D, first)
        pointers = [after(begin, n) for n in range(N // 2)]
        numbers = [llvm.load(ir.F32Type.get(), pointer) for pointer in pointers]
        panels = [_descriptor(builder, S, at) for at in (at_A, at_B)]
        text, constraints = ptx.start_panel_product(kind, N, TERMS)
        sums = assembly(text, constraints, [*numbers, *panels], N // 2)
        for number, pointer in zip(sums, pointers, strict=True):
            llvm.store(number, pointer)

    return write


def _suits(dtype: types.Type) -> Any:
    """Return what tells whether arguments suit a product of panels of these numbers."""

    def suits(D: types.Type, first: types.Type, S: types.Type, *more: Any) -> bool:
        check_width(more[2].literal_value)
        return _is_row(D, FLOAT) and _is_row(S, dtype)

    return suits


for _name, _original, _kind, _dtype in (
    ("start_product_f16", swizzled_products.start_product_f16, F16, types.uint16),
    ("start_product_bf16", swizzled_products.start_product_bf16, BF16, types.uint16),
    ("start_product_tf32", swizzled_products.start_product_tf32, TF32, types.float32),
):
    counterpart_of(_original, types.void, _suits(_dtype), constants=2)(_start(_name, _kind))


@counterpart_of(
    swizzled_products.wait_products,
    types.void,
    lambda D, SUMS, in_flight: _is_row(D, FLOAT),
    constants=2,
)
def wait_products(builder: Builder, D: Variable, SUMS: int, in_flight: int) -> None:
    """Wait for products. Their sums go through the instruction, so no code reads them before."""
    swizzled_products.check_wait(SUMS, in_flight)
    begin = first_pointer(builder, D)
    pointers = [after(begin, n) for n in range(SUMS)]
    text, constraints = ptx.wait_products(SUMS, in_flight)
    numbers = [llvm.load(ir.F32Type.get(), pointer) for pointer in pointers]
    for number, pointer in zip(assembly(text, constraints, numbers, SUMS), pointers, strict=True):
        llvm.store(number, pointer)


# Roles of warps.


@counterpart_of(warp_roles.give_registers, types.void, constants=1)
def give_registers(builder: Builder, count: int) -> None:
    """Have fewer registers."""
    check_registers("give_registers", count)
    assembly(f"setmaxnreg.dec.sync.aligned.u32 {count};", "")


@counterpart_of(warp_roles.take_registers, types.void, constants=1)
def take_registers(builder: Builder, count: int) -> None:
    """Have more registers."""
    check_registers("take_registers", count)
    assembly(f"setmaxnreg.inc.sync.aligned.u32 {count};", "")


@counterpart_of(warp_roles.sync_threads_of, types.void, constants=2)
def sync_threads_of(builder: Builder, number: int, threads: int) -> None:
    """Wait for some threads of the block."""
    check_sync(number, threads)
    assembly(f"bar.sync {number}, {threads};", "")
