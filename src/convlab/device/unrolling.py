"""A loop whose steps are compiled one by one, each with a constant counter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numba import cuda

from convlab.device.code_generation import gpu_only


def unrolled(step: Callable[..., None], counters: Sequence[int]) -> Callable[..., None]:
    """Return a device function ``steps(*arguments)`` that calls ``step(k, *arguments)`` for each
    ``k`` of ``counters``, in order.

    It computes what ``for k in counters: step(k, *arguments)`` computes. But the compiler does not
    unroll a loop with so long a body, and here each call has a constant ``k``: addresses become
    constant offsets, and no counter is left. ``counters`` may be empty.
    """
    if not counters:

        @cuda.jit(device=True, **gpu_only(forceinline=True))
        def nothing(*arguments):  # type: ignore[no-untyped-def]
            pass

        empty: Callable[..., None] = nothing
        return empty

    first, following = counters[0], unrolled(step, counters[1:])

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def steps(*arguments):  # type: ignore[no-untyped-def]
        step(first, *arguments)
        following(*arguments)

    unrolled_steps: Callable[..., None] = steps
    return unrolled_steps
