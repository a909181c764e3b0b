"""Hopper's copy engine: one thread starts a copy, which brings a whole panel to shared memory.

A *tensor map* (128 bytes in global memory, 16 uint64, made on the host:
:mod:`convlab.device.tensor_maps`) describes a tensor of 16-bit numbers or of float32, and a box of
it. ``copy_box`` copies the box at given coordinates; ``copy_windows`` copies rows of an image's
windows. NVIDIA calls that im2col mode; it is im2win in silicon::

    expect_bytes(barriers, 0, window_bytes + filter_bytes)
    copy_windows(S, at, image_map, c, w, h, n, offset_w, offset_h, barriers, 0)
    copy_box(S, at + window_numbers, filter_map, (k, o), barriers, 0)  # the innermost first

``copy_windows`` walks a tensor (N, H, W, C), channels last. From pixel (n, h, w) on it takes as
many output pixels as the map says, walking by the stride along W, then along H, then to the next
image, within the bounding box of window corners that the map holds. From each pixel, moved by
(``offset_h``, ``offset_w``), it takes the map's number of channels from ``c`` on. What lies outside
the tensor is zero, so padding needs no branch.

Each pixel (or row of a box) is a row of the panel, with the panel's swizzle
(:mod:`convlab.device.swizzled_products`). The target begins at a multiple of 1,024 bytes of shared
memory. The bytes arrive at the barrier as they land; rows outside the tensor count too.

``tensor_map`` is an array of 16 uint64 in global memory. Nothing checks what it holds.

Source: PTX ISA, "cp.async.bulk.tensor" and "Tensors"; CUDA Driver API,
``cuTensorMapEncodeIm2col`` and ``cuTensorMapEncodeTiled``. Compute capability 9.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from convlab.device import ptx
from convlab.device.code_generation import EMULATED, Operands, assembly, element_pointer
from convlab.device.emulations import register_emulations
from convlab.device.panel_products import PANEL_ALIGNMENT, with_swizzle
from convlab.device.shared_barriers import change_barrier
from convlab.device.tensor_maps import MOST_AXES, BoundMap, box_of, windows_of

if TYPE_CHECKING:
    from numba.cuda.target import CUDATargetContext
    from numba.cuda.typing.templates import Signature

# For Numba's simulator, where copies land where they are started.


def panel_at(name: str, S: Any, at: int, tensor_map: BoundMap) -> np.ndarray:
    """Return the bytes of the panel at ``S[at]``, a view. Raises ``TypeError`` for numbers of
    another size, ``IndexError`` for a place where no panel can be."""
    memory = np.asarray(getattr(S, "memory", S))
    if memory.itemsize != tensor_map.array.itemsize or memory.ndim != 1:
        wanted = f"one dimension of {tensor_map.array.itemsize}-byte numbers"
        raise TypeError(f"{name}: S is {memory.ndim}D of {memory.dtype}, but must have {wanted}")
    count = tensor_map.map.nbytes // memory.itemsize
    if at * memory.itemsize % PANEL_ALIGNMENT or not 0 <= at <= memory.size - count:
        raise IndexError(
            f"{name}: the panel is from {at} to {at + count} of {memory.size} numbers: it must "
            f"begin at a multiple of {PANEL_ALIGNMENT} bytes and end in the array"
        )
    return memory[at : at + count].view(np.uint8)


def _emulated_copy_box(
    S: Any, at: int, tensor_map: BoundMap, corner: tuple[int, ...], barriers: Any, i: int
) -> None:
    _land("copy_box", S, int(at), tensor_map, box_of(tensor_map, corner), barriers, i)


def _emulated_copy_windows(
    S: Any, at: int, tensor_map: BoundMap,
    c: int, w: int, h: int, n: int, offset_w: int, offset_h: int, barriers: Any, i: int,
) -> None:  # fmt: skip
    places = windows_of(tensor_map, c, w, h, n, offset_w, offset_h)
    _land("copy_windows", S, int(at), tensor_map, places, barriers, i)


def _land(
    name: str, S: Any, at: int, tensor_map: BoundMap, places: np.ndarray, barriers: Any, i: int
) -> None:
    """Copy a panel's numbers from these places, and let the bytes arrive at the barrier."""
    panel_at(name, S, at, tensor_map)[:] = with_swizzle(tensor_map.rows_at(places))
    change_barrier(name, barriers, i, 0, -tensor_map.map.nbytes)


if EMULATED:
    copy_box, copy_windows = _emulated_copy_box, _emulated_copy_windows
else:
    from llvmlite import ir
    from numba.core.errors import TypingError
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    from convlab.device.shared_barriers import barrier_address, check_barriers

    _I32, _I64 = ir.IntType(32), ir.IntType(64)
    _SHARED = 3  # NVVM's address space

    def _check(name: str, S: types.Type, tensor_map: types.Type, barriers: types.Type) -> None:
        """Raise ``TypingError`` unless these are a copy's target, tensor map and barriers."""
        check_barriers(name, barriers)
        if not isinstance(S, types.Array) or S.ndim != 1 or S.layout != "C":
            raise TypingError(f"{name}: S is {S}, but must be an array with one dimension")
        is_map = isinstance(tensor_map, types.Array) and tensor_map.dtype == types.uint64
        if not is_map or tensor_map.ndim != 1:
            wanted = "an array of uint64 with one dimension"
            raise TypingError(f"{name}: tensor_map is {tensor_map}, but must be {wanted}")

    def _ends(
        context: CUDATargetContext, builder: ir.IRBuilder, kinds: Any, values: Operands
    ) -> list[ir.Value]:
        """Return a copy's target in shared memory and its tensor map, as addresses, from the first
        three arguments of the call."""
        to = element_pointer(context, builder, kinds[:2], values[:2])
        near = builder.addrspacecast(to, ir.PointerType(to.type.pointee, _SHARED))
        data = context.make_array(kinds[2])(context, builder, values[2]).data
        return [builder.ptrtoint(near, _I32), builder.ptrtoint(data, _I64)]

    @intrinsic
    def copy_box(typing_context, S, at, tensor_map, corner, barriers, i):  # type: ignore[no-untyped-def]
        """Copy the box whose first corner is at these coordinates, a tuple, innermost first."""
        _check("copy_box", S, tensor_map, barriers)
        if not isinstance(corner, types.BaseTuple) or not 1 <= len(corner) <= MOST_AXES:
            raise TypingError(
                f"copy_box: corner is {corner}, but must be a tuple of 1 to 5 integers"
            )
        axes = len(corner)

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            kinds = signature.args
            ends = _ends(context, builder, kinds, args)
            barrier = barrier_address(context, builder, kinds[4:6], args[4:6])
            place = [
                context.cast(builder, builder.extract_value(args[3], n), kind, types.int32)
                for n, kind in enumerate(kinds[3])
            ]
            text, constraints = ptx.copy_box(axes)
            assembly(builder, text, constraints, [*ends, barrier, *place])
            return context.get_dummy_value()

        return types.void(S, at, tensor_map, corner, barriers, i), generate

    @intrinsic
    def copy_windows(  # type: ignore[no-untyped-def]
        typing_context, S, at, tensor_map, c, w, h, n, offset_w, offset_h, barriers, i
    ):
        """Copy one place (u, v), with the map's channels, of as many windows as the map says."""
        _check("copy_windows", S, tensor_map, barriers)

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            kinds = signature.args
            ends = _ends(context, builder, kinds, args)
            barrier = barrier_address(context, builder, kinds[9:11], args[9:11])
            pixel = [context.cast(builder, args[k], kinds[k], types.int32) for k in range(3, 7)]
            offsets = [context.cast(builder, args[k], kinds[k], types.uint16) for k in (7, 8)]
            assembly(builder, *ptx.COPY_WINDOWS, [*ends, barrier, *pixel, *offsets])
            return context.get_dummy_value()

        arguments = S, at, tensor_map, c, w, h, n, offset_w, offset_h, barriers, i
        return types.void(*arguments), generate


register_emulations(
    (copy_box, _emulated_copy_box),
    (copy_windows, _emulated_copy_windows),
)
