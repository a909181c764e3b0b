"""The copy engine: copies of boxes and windows of a tensor to panels of shared memory.

A copy reads global memory where it is started. Its bytes land when the phase of its barrier ends
(:mod:`convlab.simulation.threads.shared_barriers`). What other threads do to the panel in between
is found by :mod:`convlab.simulation.rules.panel_accesses`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from convlab import device
from convlab.device.panel_products import PANEL_ALIGNMENT, with_swizzle
from convlab.device.tensor_maps import BoundMap, box_of, windows_of
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.recording.access_log import LaunchClock
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.panel_access import PanelAccess
from convlab.simulation.rules.panel_accesses import PanelAccesses
from convlab.simulation.rules.thread_clocks import ThreadClocks
from convlab.simulation.threads.async_copies import is_shared
from convlab.simulation.threads.block_memory import Shared
from convlab.simulation.threads.shared_barriers import SharedBarriers

# Dynamic shared memory begins after the static arrays of a kernel, which is anywhere. Here it is
# this far after a multiple of 1,024 bytes, so that a kernel has to ask where a panel can begin.
DYNAMIC_BEGIN = 16


@dataclass
class EngineCopy:
    """A copy on its way: the bytes of the panel, and those that they become."""

    panel: np.ndarray
    data: np.ndarray

    @property
    def nbytes(self) -> int:
        """The number of bytes that arrive at the barrier."""
        return self.data.size

    def land(self) -> None:
        """Store the bytes."""
        self.panel[:] = self.data


class Panels:
    """Finds panels in shared memory, and checks where they lie."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def start(self, S: CheckedArray) -> int:
        """``panel_start``: return the first index of ``S`` at which a panel can begin."""
        _check_array("panel_start", S)
        left_out = -(S.first_address + self._begin(S)) % PANEL_ALIGNMENT
        return int(left_out // S.itemsize)

    def panel(
        self, name: str, S: CheckedArray, at: int, rows_bytes: int, itemsize: int, site: int
    ) -> tuple[int, np.ndarray]:
        """Return the address of the panel at ``S[at]``, of so many bytes, and these bytes. Reports
        a panel that does not lie in ``S``, or not at a multiple of 1,024 bytes."""
        _check_array(name, S)
        if S.itemsize != itemsize:
            wanted = f"numbers of {itemsize} bytes"
            raise TypeError(f"{name}: {S.name} has numbers of {S.itemsize} bytes, not {wanted}")
        count = rows_bytes // itemsize
        S.check((at,), site)
        S.check((at + count - 1,), site)
        self._check_begin(S, at, site)
        address = S.first_address + at * itemsize
        return address, S.host[at : at + count].view(np.uint8)

    def _begin(self, S: CheckedArray) -> int:
        """Return how far after a multiple of 1,024 bytes the simulator's address 0 is for ``S``."""
        dynamic = self._shared.is_dynamic(S) and S.alignment % PANEL_ALIGNMENT
        return DYNAMIC_BEGIN if dynamic else 0

    def _check_begin(self, S: CheckedArray, at: int, site: int) -> None:
        if not self._shared.is_dynamic(S):
            S.check_aligned((at,), PANEL_ALIGNMENT, site)
        elif (S.first_address + at * S.itemsize + self._begin(S)) % PANEL_ALIGNMENT:
            what = f"{S.show((at,))} is not at a multiple of {PANEL_ALIGNMENT} bytes"
            S.on_finding("misaligned", f"{what}, or only by chance", site, S, (at,))


class CopyEngine:
    """The copies of a launch by the copy engine."""

    def __init__(
        self,
        clock: LaunchClock,
        clocks: ThreadClocks,
        barriers: SharedBarriers,
        panels: Panels,
        accesses: PanelAccesses,
        strict: bool,
    ) -> None:
        self._clock, self._clocks, self._barriers = clock, clocks, barriers
        self._panels, self._accesses, self._strict = panels, accesses, strict
        self.intrinsics: dict[object, Callable[..., object]] = {
            device.copy_box: self.copy_box,
            device.copy_windows: self.copy_windows,
        }

    # The intrinsics that a kernel calls.

    def copy_box(
        self,
        S: CheckedArray,
        at: int,
        tensor_map: BoundMap,
        corner: tuple[int, ...],
        barriers: CheckedArray,
        i: int,
    ) -> None:
        """``copy_box``: copy the box with that corner."""
        elements = box_of(tensor_map, corner)
        self._copy("copy_box", S, int(at), tensor_map, elements, barriers, i, site_of(1))

    def copy_windows(
        self,
        S: CheckedArray,
        at: int,
        tensor_map: BoundMap,
        c: int,
        w: int,
        h: int,
        n: int,
        offset_w: int,
        offset_h: int,
        barriers: CheckedArray,
        i: int,
    ) -> None:
        """``copy_windows``: copy one element of some windows."""
        elements = windows_of(tensor_map, c, w, h, n, offset_w, offset_h)
        self._copy("copy_windows", S, int(at), tensor_map, elements, barriers, i, site_of(1))

    def _copy(
        self,
        name: str,
        S: CheckedArray,
        at: int,
        tensor_map: BoundMap,
        elements: np.ndarray,
        barriers: CheckedArray,
        i: int,
        site: int,
    ) -> None:
        """Start a copy of the numbers at these elements of the tensor."""
        nbytes, itemsize = tensor_map.map.nbytes, tensor_map.array.itemsize
        address, panel = self._panels.panel(name, S, at, nbytes, itemsize, site)
        barrier = self._barriers.known(name, barriers, i, site)
        copy = EngineCopy(panel, with_swizzle(tensor_map.rows_at(elements)))
        self._barriers.add_copy(barrier, copy)
        if not self._strict:
            return
        time, thread = self._clocks.now(), self._clock.thread
        begin = self._clocks.here.past_of([thread], time)
        self._barriers.check_fenced(barrier, begin, site)
        access = PanelAccess(
            first=address,
            end=address + nbytes,
            writes=True,
            block=self._clock.block_number,
            thread=self._clock.number,
            site=site,
            time=time,
            begin=begin,
            entry=barrier.entry,
            number=barrier.ended + 1,
            ends_with=barrier.phase(barrier.ended),
        )
        self._accesses.add(access)


def _check_array(name: str, S: CheckedArray) -> None:
    """Raise ``TypeError`` for an array in which no panel can be."""
    if not is_shared(S) or S.ndim != 1 or S.strides != (S.itemsize,):
        raise TypeError(
            f"{name}: {getattr(S, 'name', S)} must be a shared array with one dimension"
        )
