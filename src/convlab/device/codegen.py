"""What the intrinsics share: options of ``@cuda.jit``, pointers to elements, inline PTX."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core import config


def gpu_only(**options: Any) -> dict[str, Any]:
    """``@cuda.jit(**gpu_only(launch_bounds=256))``: the options for a GPU, none for the simulator.

    Numba's simulator (``NUMBA_ENABLE_CUDASIM=1``) refuses ``launch_bounds`` and ``forceinline``
    as unexpected arguments. They change how a kernel is compiled, never what it computes, so a
    simulator loses nothing without them.
    """
    return {} if config.ENABLE_CUDASIM else options


def is_float32_c_array(array: Any) -> bool:
    """Whether a Numba type is one of the arrays that convlab's intrinsics take."""
    return isinstance(array, types.Array) and array.dtype == types.float32 and array.layout == "C"


def element_pointer(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """Pointer to ``array[index]``, with no negative-index wrap. ``kinds`` are the types of array
    and index, an integer or a tuple of them, ``values`` the two themselves."""
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
    builder: Any,
    text: str,
    constraints: str,
    args: Any = (),
    result: Any = None,
    *,
    side_effect: bool = True,
    convergent: bool = False,
) -> Any:
    """Inline PTX. ``side_effect``: the compiler moves no memory access across it. ``convergent``:
    the compiler does not move it into a branch that only some threads take."""
    kind = ir.FunctionType(result or ir.VoidType(), [arg.type for arg in args])
    if side_effect:
        constraints = ",".join(filter(None, [constraints, "~{memory}"]))
    code = ir.InlineAsm(kind, text, constraints, side_effect=side_effect)
    return builder.call(code, args, attrs=("convergent", "nounwind") if convergent else ())


def statement(text: str) -> Any:
    """What generates an intrinsic that is this PTX, with no operands."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        assembly(builder, text, "")
        return context.get_dummy_value()

    return generate
