"""MLIR for numba-cuda-mlir: how its intrinsics are registered, and values and memory in them.

Where numba-cuda's intrinsics use LLVM's builder (:mod:`convlab.device.code_generation`), these use
operations of MLIR's dialects.
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


def is_floats(kind: types.Type) -> bool:
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
            dimension = arith.constant(ir.IndexType.get(), axis)
            extent = arith.index_cast(integers(64), memref.dim(builder.load_var(array), dimension))
            wide = arith.addi(arith.muli(offset, extent), wide)
        offset = wide
    nbits = builder.get_numba_type(array).dtype.bitwidth
    element = None if nbits == 32 else integers(nbits)  # both of 32 bits lie alike
    return after(first_pointer(builder, array), offset, element)


def in_space(pointer: ir.Value, space: int, bits: int) -> ir.Value:
    """Return a pointer as PTX takes it: an integer, in one kind of memory."""
    return llvm.ptrtoint(integers(bits), llvm.addrspacecast(llvm.PointerType.get(space), pointer))


def bits_of(value: ir.Value) -> ir.Value:
    """Return the bits of a float32 as an integer."""
    return arith.bitcast(integers(32), value)


def float_of(value: ir.Value) -> ir.Value:
    """Return the float32 with these bits."""
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
