"""convlab's intrinsics for numba-cuda-mlir, written in MLIR.

Where numba-cuda's intrinsics use LLVM's builder, these use operations of MLIR's dialects.
``COUNTERPARTS`` has numba-cuda-mlir's intrinsic for each of numba-cuda's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, Protocol, TypeVar

from numba_cuda_mlir import types
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import arith, llvm, memref
from numba_cuda_mlir.extending import intrinsic
from numba_cuda_mlir.lowering_utilities import memref_data_pointer

from convlab.device import intrinsics, ptx, tensor_core
from convlab.device.products import SIZES, check_width

COUNTERPARTS: dict[int, object] = {}  # by the id of the original, which lives as long as its module
Lowering = TypeVar("Lowering", bound=Callable[..., object])


class Variable(Protocol):
    """A variable of the kernel."""

    name: str


class Builder(Protocol):
    """The builder of a kernel's code, with the kernel's variables."""

    def load_var(self, variable: Variable) -> Any:
        """Return the value of a variable."""

    def store_var(self, variable: Variable, value: object) -> None:
        """Set a variable to a value."""

    def get_numba_type(self, variable: Variable) -> Any:
        """Return Numba's type of a variable."""

    def mlir_convert(self, value: ir.Value, kind: ir.Type) -> ir.Value:
        """Return the value converted to another type."""


def counterpart_of(
    original: object,
    result: types.Type,
    takes: Callable[..., bool] = lambda *kinds: True,
    constants: int = 0,
) -> Callable[[Lowering], Lowering]:
    """Make the decorated function write the code of ``original`` for numba-cuda-mlir.

    The function gets the builder and the kernel's variables, and returns the result's value.
    ``result`` is Numba's type of the result, and ``takes`` tells whether the types of the arguments
    suit. The last arguments, as many as ``constants``, are numbers that are known at compile time,
    and the function gets the numbers themselves.
    """

    def register(write: Lowering) -> Lowering:
        @wraps(write)  # both take equally many arguments
        def typing_function(
            context: object, *kinds: types.Type
        ) -> tuple[types.Type, Callable[..., None]] | None:
            literals = kinds[len(kinds) - constants :]
            if not all(isinstance(kind, types.IntegerLiteral) for kind in literals):
                return None
            if not takes(*kinds):
                return None

            def lower(
                builder: Builder, target: Variable, args: Sequence[Variable], kwargs: object
            ) -> None:
                given: list[object] = [*args[: len(args) - constants]]
                given += [kind.literal_value for kind in literals]
                builder.store_var(target, write(builder, *given))

            return result(*kinds), lower

        COUNTERPARTS[id(original)] = intrinsic(typing_function)
        return write

    return register


# Values and memory.

GLOBAL, SHARED = 1, 3  # address spaces
_DYNAMIC = -(2**31)  # among constant indices: one that is given as a value


def integers(bits: int) -> ir.IntegerType:
    """Return the type of integers with that many bits."""
    return ir.IntegerType.get_signless(bits)


def _struct(count: int) -> ir.Type:
    """Return the type of inline PTX with that many float32 results."""
    return ir.Type.parse(f"!llvm.struct<({', '.join(['f32'] * count)})>")


def integer(number: int, bits: int = 32) -> ir.Value:
    """Return a constant integer of that many bits."""
    return arith.constant(integers(bits), number)


def _is_floats(kind: types.Type) -> bool:
    """Return whether a type is one of the arrays that convlab's intrinsics take."""
    return isinstance(kind, types.Array) and kind.dtype == types.float32 and kind.layout == "C"


def first_pointer(builder: Builder, array: Variable) -> ir.Value:
    """Return a pointer to the first element of an array."""
    return memref_data_pointer(builder.load_var(array))


def after(pointer: ir.Value, offset: int | ir.Value, element: ir.Type | None = None) -> ir.Value:
    """Return a pointer to the element, a float32 unless its type is given, that is ``offset``
    elements, a number or a value, after ``pointer``."""
    constant = isinstance(offset, int)
    at = [offset] if constant else [_DYNAMIC]
    kind = element or ir.F32Type.get()
    return llvm.getelementptr(pointer.type, pointer, [] if constant else [offset], at, kind, None)


def element_pointer(builder: Builder, array: Variable, index: Variable) -> ir.Value:
    """Return a pointer to ``array[index]``, with no negative-index wrap."""
    kinds, indices = builder.get_numba_type(index), builder.load_var(index)
    if not isinstance(kinds, types.BaseTuple):
        kinds, indices = (kinds,), (indices,)
    offset = None
    for axis, (kind, value) in enumerate(zip(kinds, indices, strict=True)):
        if isinstance(value.type, ir.IndexType):
            wide = arith.index_cast(integers(64), value)
        elif value.type.width < 64:  # MLIR's integers have no sign; Numba's types do
            wide = (arith.extsi if kind.signed else arith.extui)(integers(64), value)
        else:
            wide = value
        if offset is not None:
            place = arith.constant(ir.IndexType.get(), axis)
            extent = arith.index_cast(integers(64), memref.dim(builder.load_var(array), place))
            wide = arith.addi(arith.muli(offset, extent), wide)
        offset = wide
    nbits = builder.get_numba_type(array).dtype.bitwidth
    element = None if nbits == 32 else integers(nbits)  # both of 32 bits lie alike
    return after(first_pointer(builder, array), offset, element)


def in_space(pointer: ir.Value, space: int, bits: int) -> ir.Value:
    """Return a pointer as PTX takes it: an integer, in one kind of memory."""
    return llvm.ptrtoint(integers(bits), llvm.addrspacecast(llvm.PointerType.get(space), pointer))


def _bits(value: ir.Value) -> ir.Value:
    return arith.bitcast(integers(32), value)


def _float(value: ir.Value) -> ir.Value:
    return arith.bitcast(ir.F32Type.get(), value)


def assembly(
    text: str,
    constraints: str,
    args: Iterable[ir.Value] = (),
    results: int = 0,
    memory: bool = True,
) -> list[ir.Value]:
    """Write inline PTX and return its float32 results.

    ``memory``: the compiler moves no memory access across it. It is marked as having side effects,
    so that the compiler does not move it into a branch that only some threads take. MLIR cannot say
    "convergent", so NVVM may still copy it into both sides of a branch before it, which is right
    only if a warp's threads all take the same side."""
    if memory:
        constraints = ",".join(filter(None, [constraints, "~{memory}"]))
    kind = _struct(results) if results else None
    made = llvm.inline_asm(kind, [*args], text, constraints, has_side_effects=True)
    return [llvm.extractvalue(ir.F32Type.get(), made, [n]) for n in range(results)]


# The intrinsics. The docstrings of numba-cuda's versions say more of what each does.

FLOAT, TWO, FOUR = types.float32, types.UniTuple(types.float32, 2), types.UniTuple(types.float32, 4)


def _four_floats() -> ir.VectorType:
    return ir.VectorType.get([4], ir.F32Type.get())


@counterpart_of(intrinsics.load4, FOUR, lambda array, index: _is_floats(array))
def load4(builder: Builder, array: Variable, index: Variable) -> tuple[ir.Value, ...]:
    """Load the vector of four float32 that begins at ``array[index]``: 128 bits at once."""
    four = llvm.load(_four_floats(), element_pointer(builder, array, index), alignment=16)
    return tuple(llvm.extractelement(four, integer(lane)) for lane in range(4))


@counterpart_of(
    intrinsics.store4,
    types.void,
    lambda array, index, values: _is_floats(array) and values == FOUR,
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
    return _is_floats(target) and _is_floats(source)


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
    return _float(arith.andi(rounded, integer(ptx.TF32_BITS)))


@counterpart_of(tensor_core.split_tf32, TWO, _is_float)
def split_tf32(builder: Builder, value: Variable) -> tuple[ir.Value, ir.Value]:
    """Round to TF32 by an addition to the bits, as a large part; the rest is the small part."""
    number = builder.load_var(value)
    rounded = arith.addi(_bits(number), integer(0x1000))
    large = _float(arith.andi(rounded, integer(ptx.TF32_BITS)))
    return large, arith.subf(number, large)


@counterpart_of(
    tensor_core.mma_tf32,
    FOUR,
    lambda *kinds: [*kinds] == [types.UniTuple(FLOAT, SIZES[name]) for name in "abc"],
)
def mma_tf32(builder: Builder, a: Variable, b: Variable, c: Variable) -> tuple[ir.Value, ...]:
    """Write ``mma.sync`` with the operands as integers, as PTX takes TF32."""
    left, right, total = map(builder.load_var, (a, b, c))
    operands = [*map(_bits, (*left, *right)), *total]
    return tuple(assembly(*ptx.MMA, operands, 4, memory=False))


@counterpart_of(tensor_core.fence_shared, types.void)
def fence_shared(builder: Builder) -> None:
    """Order a thread's stores before the reads of the tensor cores' asynchronous proxy."""
    assembly("fence.proxy.async.shared::cta;", "")


def _suit(width: types.IntegerLiteral, *arrays: types.Type) -> bool:
    """Return whether a product of that width can take these arrays."""
    check_width(width.literal_value)
    return all(_is_floats(array) and array.ndim == 1 for array in arrays)


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
    sums = assembly(text, constraints, [*map(_bits, left), *parts], N // 2)
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
    left = map(_bits, _loaded(_numbers(builder, A, 8)))
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
