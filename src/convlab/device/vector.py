"""128-bit access: four neighbouring float32 in one instruction. And where loads are issued.

``load4(array, index)`` and ``store4(array, index, values)`` become LDG/LDS.E.128 and
STG/STS.E.128. The index is an integer for a 1-D array or a tuple for an n-D one; counted in
elements, it must be a multiple of 4, and the array must start at a multiple of 16 bytes (whole
Numba device arrays do; shared arrays with ``alignment=BYTES_16``). Neither bounds nor alignment are
checked on a GPU: a misaligned address stops the kernel, one out of bounds reads a stranger's data.
The emulations below check both.

Why not float32x4 arrays or views: Numba makes none of them a 128-bit access.

    x = load4(a, i)  # for the next slice
    issue_loads()  # the load is issued here
    ...  # much arithmetic that needs no x
    store4(shared, j, x)

A load has a latency of several hundred cycles, which the arithmetic hides. But a load in flight
occupies registers, and, probably to save them, the compiler moves loads down into the arithmetic.
``issue_loads`` keeps them where they are written.
"""

from __future__ import annotations

from typing import Any

from numba import cuda
from numba.cuda.core import config

from convlab.device.intrinsics import element_pointer, is_float32_c_array, register_emulations

Four = tuple[Any, Any, Any, Any]

# ``alignment=BYTES_16`` of shared arrays that have 128-bit accesses. Numba's simulator, where it
# runs kernels by itself, refuses any ``alignment`` but None; convlab's engines do not.
ENGINE_CONSTANTS = {"BYTES_16": 16}
FLOAT4 = 4  # elements of a 128-bit access
BYTES_16 = None if config.ENABLE_CUDASIM else ENGINE_CONSTANTS["BYTES_16"]


def emulated_load4(array: Any, index: Any) -> Four:
    """What ``load4`` is in plain Python: the four values, as the array has them.

    Raises ``IndexError`` for an index that is no multiple of 4 or reaches outside the array.
    """
    # A simulator's array may check for itself. Its type is asked, because arrays of Numba's own
    # simulator raise IndexError where they lack an attribute.
    if hasattr(type(array), "load_run"):
        run: Four = array.load_run(index, 4)
        return run
    x, y, z, w = array[_run_of_four(array, index)]
    return x, y, z, w


def emulated_store4(array: Any, index: Any, values: Four) -> None:
    """What ``store4`` is in plain Python. Raises as :func:`emulated_load4`."""
    if hasattr(type(array), "store_run"):
        array.store_run(index, values)
        return
    array[_run_of_four(array, index)] = values


def _run_of_four(array: Any, index: Any) -> Any:
    """``index`` with its last entry widened to the slice that one access touches."""
    *rows, first = index if isinstance(index, tuple) else (index,)
    first = int(first)
    if first % 4:
        raise IndexError(
            f"128-bit access at index {index}: the last index must be a multiple of 4, because the "
            "address must be a multiple of 16 bytes"
        )
    *_, extent = array.shape  # not shape[-1], which Numba's simulator refuses
    if not 0 <= first <= extent - 4:
        raise IndexError(
            f"128-bit access at index {index} reaches outside an array of shape {array.shape}"
        )
    run = slice(first, first + 4)
    return (*rows, run) if rows else run


def _emulated_issue_loads() -> None:
    """Simulators load where it is written."""


if config.ENABLE_CUDASIM:
    load4, store4 = emulated_load4, emulated_store4
    issue_loads = _emulated_issue_loads
else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    _FOUR_FLOATS = ir.VectorType(ir.FloatType(), 4)
    _LANES = [ir.Constant(ir.IntType(32), lane) for lane in range(4)]

    def _address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """Pointer to ``array[index]`` as four floats."""
        element = element_pointer(context, builder, signature.args[:2], args[:2])
        return builder.bitcast(element, ir.PointerType(_FOUR_FLOATS, element.type.addrspace))

    @intrinsic
    def load4(typing_context, array, index):  # type: ignore[no-untyped-def]
        """``(a[i], a[i + 1], a[i + 2], a[i + 3])`` by one 16-byte load."""
        if not is_float32_c_array(array):
            return None
        four = types.UniTuple(types.float32, 4)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector = builder.load(_address(context, builder, signature, args))
            vector.align = 16
            lanes = [builder.extract_element(vector, lane) for lane in _LANES]
            return context.make_tuple(builder, four, lanes)

        return four(array, index), generate

    @intrinsic
    def store4(typing_context, array, index, values):  # type: ignore[no-untyped-def]
        """``a[i], ..., a[i + 3] = values`` by one 16-byte store; values: four float32."""
        if not is_float32_c_array(array) or values != types.UniTuple(types.float32, 4):
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector = ir.Constant(_FOUR_FLOATS, ir.Undefined)
            for lane in range(4):
                value = builder.extract_value(args[2], lane)
                vector = builder.insert_element(vector, value, _LANES[lane])
            store = builder.store(vector, _address(context, builder, signature, args))
            store.align = 16
            return context.get_dummy_value()

        return types.void(array, index, values), generate

    # The strict simulator runs this function itself, and so finds lanes that do not come to it.
    @cuda.jit(device=True, forceinline=True)
    def issue_loads():  # type: ignore[no-untyped-def]
        """Keeps the compiler from moving loads that are written before it to after it.

        By a warp's barrier (``bar.warp.sync``), which costs nothing where the warp's lanes are
        together. Every lane of the warp that has not ended has to come to it.
        """
        cuda.syncwarp()


register_emulations(
    (load4, emulated_load4), (store4, emulated_store4), (issue_loads, _emulated_issue_loads)
)
