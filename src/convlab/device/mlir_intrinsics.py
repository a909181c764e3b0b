"""convlab's intrinsics for numba-cuda-mlir, written in MLIR; Hopper's are in ``mlir_hopper.py``."""

from __future__ import annotations

from collections.abc import Iterable

from numba_cuda_mlir import types
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import arith, llvm

from convlab.device import intrinsics, ptx, tensor_core
from convlab.device.mlir_code_generation import (
    GLOBAL,
    SHARED,
    Builder,
    Variable,
    after,
    assembly,
    bits_of,
    counterpart_of,
    element_pointer,
    first_pointer,
    float_of,
    in_space,
    integer,
    integers,
    is_floats,
)
from convlab.device.products import SIZES, check_width

# The intrinsics. The docstrings of numba-cuda's versions say more of what each does.

FLOAT, TWO, FOUR = types.float32, types.UniTuple(types.float32, 2), types.UniTuple(types.float32, 4)


def _four_floats() -> ir.VectorType:
    return ir.VectorType.get([4], ir.F32Type.get())


@counterpart_of(intrinsics.load4, FOUR, lambda array, index: is_floats(array))
def load4(builder: Builder, array: Variable, index: Variable) -> tuple[ir.Value, ...]:
    """Load the vector of four float32 that begins at ``array[index]``: 128 bits at once."""
    four = llvm.load(_four_floats(), element_pointer(builder, array, index), alignment=16)
    return tuple(llvm.extractelement(four, integer(lane)) for lane in range(4))


@counterpart_of(
    intrinsics.store4,
    types.void,
    lambda array, index, values: is_floats(array) and values == FOUR,
)
def store4(builder: Builder, array: Variable, index: Variable, values: Variable) -> None:
    """Store four float32 as one vector of 128 bits."""
    four = llvm.mlir_undef(_four_floats())
    for lane, number in enumerate(builder.load_var(values)):
        four = llvm.insertelement(four, number, integer(lane))
    llvm.store(four, element_pointer(builder, array, index), alignment=16)


def _copies(
    target: types.Type, index: types.Type, source: types.Type, at: types.Type, valid: types.Type
) -> bool:
    return is_floats(target) and is_floats(source)


def _copy(
    builder: Builder,
    *,
    target: Variable,
    index: Variable,
    source: Variable,
    at: Variable,
    valid: Variable,
    cache: str,
    count: int,
) -> None:
    """Write ``cp.async`` of ``count`` float32; zeros are written where ``valid`` is false."""
    near = in_space(element_pointer(builder, target, index), SHARED, 32)
    far = in_space(element_pointer(builder, source, at), GLOBAL, 64)
    is_valid = builder.mlir_convert(builder.load_var(valid), integers(1))
    read = arith.select(is_valid, integer(4 * count), integer(0))
    text = f"cp.async.{cache}.shared.global [$0], [$1], {4 * count}, $2;"
    assembly(text, "r,l,r", (near, far, read))


@counterpart_of(intrinsics.copy_async, types.void, _copies)
def copy_async(
    builder: Builder,
    target: Variable,
    index: Variable,
    source: Variable,
    at: Variable,
    valid: Variable,
) -> None:
    """Copy one float32, by ``.ca``: the only cache operator that takes four bytes."""
    _copy(
        builder,
        target=target,
        index=index,
        source=source,
        at=at,
        valid=valid,
        cache="ca",
        count=1,
    )


@counterpart_of(intrinsics.copy_async4, types.void, _copies)
def copy_async4(
    builder: Builder,
    target: Variable,
    index: Variable,
    source: Variable,
    at: Variable,
    valid: Variable,
) -> None:
    """Copy four float32, past the L1 cache."""
    _copy(
        builder,
        target=target,
        index=index,
        source=source,
        at=at,
        valid=valid,
        cache="cg",
        count=4,
    )


@counterpart_of(intrinsics.commit_copies, types.void)
def commit_copies(builder: Builder) -> None:
    """End a commit group: ``cp.async.commit_group``."""
    assembly("cp.async.commit_group;", "")


@counterpart_of(
    intrinsics.wait_copies, types.void, lambda groups: groups.literal_value >= 0, constants=1
)
def wait_copies(builder: Builder, groups: int) -> None:
    """Wait until at most ``groups`` commit groups are in flight: ``cp.async.wait_group``."""
    assembly(f"cp.async.wait_group {groups};", "")


def _is_float(value: types.Type) -> bool:
    return bool(value == FLOAT)


@counterpart_of(tensor_core.to_tf32, FLOAT, _is_float)
def to_tf32(builder: Builder, value: Variable) -> ir.Value:
    """Round by ``cvt.rna.tf32``, and clear the bits that TF32 does not have."""
    text, constraints = ptx.TO_TF32
    rounded = llvm.inline_asm(integers(32), [builder.load_var(value)], text, constraints)
    return float_of(arith.andi(rounded, integer(ptx.TF32_BITS)))


@counterpart_of(tensor_core.split_tf32, TWO, _is_float)
def split_tf32(builder: Builder, value: Variable) -> tuple[ir.Value, ir.Value]:
    """Round to TF32 by an addition to the bits, as a large part; the rest is the small part."""
    number = builder.load_var(value)
    rounded = arith.addi(bits_of(number), integer(0x1000))
    large = float_of(arith.andi(rounded, integer(ptx.TF32_BITS)))
    return large, arith.subf(number, large)


@counterpart_of(
    tensor_core.mma_tf32,
    FOUR,
    lambda *kinds: [*kinds] == [types.UniTuple(FLOAT, SIZES[name]) for name in "abc"],
)
def mma_tf32(builder: Builder, a: Variable, b: Variable, c: Variable) -> tuple[ir.Value, ...]:
    """Write ``mma.sync`` with the operands as integers, as PTX takes TF32."""
    left, right, total = map(builder.load_var, (a, b, c))
    operands = [*map(bits_of, (*left, *right)), *total]
    return tuple(assembly(*ptx.MMA, operands, 4, memory=False))


@counterpart_of(tensor_core.fence_shared, types.void)
def fence_shared(builder: Builder) -> None:
    """Order a thread's stores before the reads of the tensor cores' asynchronous proxy."""
    assembly("fence.proxy.async.shared::cta;", "")


def _suit(width: types.IntegerLiteral, *arrays: types.Type) -> bool:
    """Return whether a product of that width can take these arrays."""
    check_width(width.literal_value)
    return all(is_floats(array) and array.ndim == 1 for array in arrays)


def _numbers(builder: Builder, array: Variable, count: int) -> list[ir.Value]:
    """Return pointers to the first numbers of an array."""
    return [after(first_pointer(builder, array), n) for n in range(count)]


def _loaded(pointers: Iterable[ir.Value]) -> list[ir.Value]:
    return [llvm.load(ir.F32Type.get(), pointer) for pointer in pointers]


def _descriptors(builder: Builder, S: Variable, at: Variable, N: int, parts: int) -> list[ir.Value]:
    """Return the descriptors of B's parts of eight terms, in which addresses count units of 16
    bytes."""
    shape, part = ptx.descriptor(N)
    near = in_space(element_pointer(builder, S, at), SHARED, 32)
    sixteenths = arith.extui(integers(64), arith.shrui(near, integer(4)))
    first = arith.ori(sixteenths, integer(shape, 64))
    return [arith.addi(first, integer(n * part, 64)) for n in range(parts)]


@counterpart_of(
    tensor_core.start_product,
    types.void,
    lambda D, L, T, S, at, N: _suit(N, D, L, T, S),
    constants=1,
)
def start_product(
    builder: Builder, D: Variable, L: Variable, T: Variable, S: Variable, at: Variable, N: int
) -> None:
    """Start a warpgroup's product of N columns in 3xTF32. B is given by the descriptors of its four
    parts."""
    parts = _descriptors(builder, S, at, N, parts=4)
    left = [*_loaded(_numbers(builder, L, 8)), *_loaded(_numbers(builder, T, 8))]
    text, constraints = ptx.start_product(N)
    sums = assembly(text, constraints, [*map(bits_of, left), *parts], N // 2)
    for number, pointer in zip(sums, _numbers(builder, D, N // 2), strict=True):
        llvm.store(number, pointer)


@counterpart_of(
    tensor_core.start_one_product,
    types.void,
    lambda D, A, S, at, N: _suit(N, D, A, S),
    constants=1,
)
def start_one_product(
    builder: Builder, D: Variable, A: Variable, S: Variable, at: Variable, N: int
) -> None:
    """Start to add a warpgroup's product of N columns in TF32 to the sums, each of which stays in
    its register."""
    pointers = _numbers(builder, D, N // 2)
    left = map(bits_of, _loaded(_numbers(builder, A, 8)))
    operands = [*left, *_descriptors(builder, S, at, N, parts=2), *_loaded(pointers)]
    text, constraints = ptx.start_one_product(N)
    sums = assembly(text, constraints, operands, N // 2)
    for number, pointer in zip(sums, pointers, strict=True):
        llvm.store(number, pointer)


@counterpart_of(tensor_core.finish_product, types.void, lambda D, N: _suit(N, D), constants=1)
def finish_product(builder: Builder, D: Variable, N: int) -> None:
    """Wait for the product. Its sums go through the instruction, so no code reads them before."""
    pointers = _numbers(builder, D, N // 2)
    text, constraints = ptx.finish_product(N)
    sums = assembly(text, constraints, _loaded(pointers), N // 2)
    for number, pointer in zip(sums, pointers, strict=True):
        llvm.store(number, pointer)
