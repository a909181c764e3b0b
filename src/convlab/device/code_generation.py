"""Tools of intrinsics that write code for a GPU: options of ``@cuda.jit``, pointers, inline PTX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core import config
from numba.cuda.typing.templates import Signature

from convlab.support.numba_successor import only_successor

if TYPE_CHECKING:
    from numba.cuda.target import CUDATargetContext

Operands = Sequence[ir.Value]  # the operands of an intrinsic
# Writes the code of an intrinsic: from Numba's context, builder, signature and operands.
Generate = Callable[["CUDATargetContext", ir.IRBuilder, Signature, Operands], ir.Value]

# True if intrinsics are their emulations: in Numba's simulator, and where numba-cuda, for which
# they are written, is missing.
EMULATED = bool(config.ENABLE_CUDASIM) or only_successor()


def gpu_only(**options: Any) -> dict[str, Any]:
    """Return the options for a GPU, none for a simulator: ``@cuda.jit(**gpu_only(...))``.

    Numba's simulator (``NUMBA_ENABLE_CUDASIM=1``) refuses ``launch_bounds`` and ``forceinline``
    as unexpected arguments. They change how a kernel is compiled, never what it computes, so a
    simulator loses nothing without them.
    """
    return {} if EMULATED else options


def is_float32_c_array(array: types.Type) -> bool:
    """Return whether a Numba type is one of the arrays that convlab's intrinsics take."""
    return isinstance(array, types.Array) and array.dtype == types.float32 and array.layout == "C"


def element_pointer(
    context: CUDATargetContext, builder: ir.IRBuilder, kinds: Sequence[types.Type], values: Operands
) -> ir.Value:
    """Return a pointer to ``array[index]``, with no negative-index wrap. ``kinds`` are the types of
    array and index, an integer or a tuple of them, ``values`` the two themselves."""
    array_type, index_type = kinds
    array = context.make_array(array_type)(context, builder, value=values[0])
    if isinstance(index_type, types.BaseTuple):
        entries = zip(index_type, range(len(index_type)), strict=True)
        indices = [(kind, builder.extract_value(values[1], axis)) for kind, axis in entries]
    else:
        indices = [(index_type, values[1])]
    if len(indices) != array_type.ndim:
        raise TypeError(f"{len(indices)} indices for an array of {array_type.ndim} dimensions")
    extents = [builder.extract_value(array.shape, axis) for axis in range(array_type.ndim)]
    offset = ir.Constant(ir.IntType(64), 0)
    for (kind, index), extent in zip(indices, extents, strict=True):
        wide = context.cast(builder, index, kind, types.intp if kind.signed else types.uintp)
        offset = builder.add(builder.mul(offset, extent), wide)
    return builder.gep(array.data, [offset])


def assembly(
    builder: ir.IRBuilder,
    text: str,
    constraints: str,
    args: Operands = (),
    result: ir.Type | None = None,
    *,
    side_effect: bool = True,
    convergent: bool = False,
) -> ir.Value:
    """Write inline PTX and return its result.

    ``side_effect``: the compiler moves no memory access across it. ``convergent``: the compiler
    does not move it into a branch that only some threads take."""
    kind = ir.FunctionType(result or ir.VoidType(), [arg.type for arg in args])
    if side_effect:
        constraints = ",".join(filter(None, [constraints, "~{memory}"]))
    code = ir.InlineAsm(kind, text, constraints, side_effect=side_effect)
    return builder.call(code, args, attrs=("convergent", "nounwind") if convergent else ())


def statement(text: str) -> Generate:
    """Return the code generator of an intrinsic that is this PTX, without operands."""

    def generate(
        context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
    ) -> ir.Value:
        assembly(builder, text, "")
        return context.get_dummy_value()

    return generate
