"""Where loads from global memory are asked for: where they are written, or later.

    x = load4(a, i)  # for the next slice
    issue_loads()  # asked for here
    ...  # much arithmetic, that needs no x
    store4(shared, j, x)

A load takes as long as hundreds of multiply-adds, and no time from a thread that has as many to do
meanwhile. But what is on its way occupies registers, and, most likely to save them, the compiler
moves loads down into the arithmetic, nearer to where their numbers are used.
"""

from __future__ import annotations

from numba import cuda
from numba.cuda.core import config

from convlab.device.twins import register_twin

# Simulators load where it is written. The strict one runs the function itself, and so finds lanes
# that do not come; the other two know no warp's barrier.


def _issue_loads_twin() -> None:
    pass


if config.ENABLE_CUDASIM:
    issue_loads = _issue_loads_twin
else:

    @cuda.jit(device=True, forceinline=True)
    def issue_loads():  # type: ignore[no-untyped-def]
        """Keeps the compiler from moving loads that are written before it to after it.

        By a warp's barrier (``bar.warp.sync``), which costs nothing where the warp's lanes are
        together. Every lane of the warp that has not ended has to come to it.
        """
        cuda.syncwarp()


register_twin(issue_loads, _issue_loads_twin)
