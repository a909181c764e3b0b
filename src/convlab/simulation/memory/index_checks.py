"""Checks of the indices that a kernel uses: bounds, alignment, counting from the end."""

from __future__ import annotations

from typing import Protocol

from convlab.simulation.rules.negative_indices import axes_from_end

Index = tuple[int, ...]  # of an element: an integer for each axis


def integer(value: object) -> int:
    """Return an index as a Python integer. Raises ``TypeError`` for anything else."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"index {value!r} is not an integer")
    return int(value.__index__())


class ArrayReport(Protocol):
    """The function that receives findings about an array. It raises if the launch cannot go on."""

    def __call__(
        self,
        kind: str,
        what: str,
        site: int,
        array: IndexChecks,
        index: Index | None,
        numba_wraps: bool = False,
        /,
    ) -> None: ...


class IndexChecks:
    """The part of a kernel's array that checks indices and reports the wrong ones."""

    __slots__ = ()
    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    base: int  # simulated address of the first element
    alignment: int  # bytes; the compiler may rely on it

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def on_finding(self) -> ArrayReport:
        """The function that receives the findings about this array."""
        raise NotImplementedError

    def show(self, index: tuple[object, ...]) -> str:
        """Return an element as the kernel writes it: ``S_F[3, 1]``."""
        return f"{self.name}[{', '.join(map(str, index))}]"

    def address(self, index: Index) -> int:
        """Return the simulated address of an element, in bytes. The index is not checked."""
        address = self.base
        for i, stride in zip(index, self.strides, strict=True):
            address += i * stride
        return address

    def whole_index(self, index: object) -> tuple[object, ...]:
        """Return any index as a tuple, in which slices replace ``...``."""
        entries = index if isinstance(index, tuple) else (index,)
        given = sum(entry is not Ellipsis for entry in entries)
        if len(entries) - given > 1 or given > self.ndim:
            raise IndexError(f"{len(entries)} indices for {self.name} of shape {self.shape}")
        if given < len(entries):
            axis = next(n for n, entry in enumerate(entries) if entry is Ellipsis)
            filling = (slice(None),) * (self.ndim - given)
            entries = entries[:axis] + filling + entries[axis + 1 :]
        return entries

    def is_partial(self, entries: tuple[object, ...]) -> bool:
        """Return whether a whole index selects more than one element."""
        return len(entries) < self.ndim or any(isinstance(entry, slice) for entry in entries)

    def check(self, index: object, site: int) -> Index:
        """Return an element's index as a tuple. Reports an index that is out of bounds."""
        given = index if isinstance(index, tuple) else (index,)
        entries = tuple(map(integer, given))
        if len(entries) != self.ndim:
            raise IndexError(f"{len(entries)} indices for {self.name} of shape {self.shape}")
        # No generator here: this runs at every wide access.
        for i, n in zip(entries, self.shape, strict=True):
            if not 0 <= i < n:
                break
        else:
            return entries
        if any(entry < 0 for entry in entries):
            meant = axes_from_end(site)
            entries = tuple(
                entry + extent if entry < 0 and axis in meant else entry
                for axis, (entry, extent) in enumerate(zip(entries, self.shape, strict=True))
            )
        if all(0 <= i < n for i, n in zip(entries, self.shape, strict=True)):
            return entries
        # A GPU adds the size to a signed index below zero.
        taken = tuple(i + n if i < 0 else i for i, n in zip(entries, self.shape, strict=True))
        wraps = all(0 <= i < n for i, n in zip(taken, self.shape, strict=True))
        numbas = f": Numba takes {self.show(taken)}" if wraps else ""
        self.report_outside(entries, site, entries, numbas)
        return taken

    def check_slices(self, entries: tuple[object, ...], site: int) -> tuple[int | slice, ...]:
        """Return the integers and slices of a partial index, without integers that count from the
        end. Reports the integers that are out of bounds."""
        found = [entry if isinstance(entry, slice) else integer(entry) for entry in entries]
        for axis, entry in enumerate(found):
            # The text of the line, which takes time to read, matters below zero only.
            if not isinstance(entry, slice) and entry < 0 and axis in axes_from_end(site):
                found[axis] = entry + self.shape[axis]
        for checked, extent in zip(found, self.shape, strict=False):
            if not isinstance(checked, slice) and not 0 <= checked < extent:
                self.report_outside(tuple(found), site, None)
        return tuple(found)

    def report_outside(
        self, shown: tuple[object, ...], site: int, index: Index | None, taken: str = ""
    ) -> None:
        """Report an index that is out of bounds; ``taken`` is the element that Numba takes."""
        what = f"{self.show(shown)} is outside shape {self.shape}{taken}"
        self.on_finding("out of bounds", what, site, self, index, bool(taken))

    def check_aligned(self, index: Index, width: int, site: int) -> None:
        """Report an element that is not at a multiple of ``width`` bytes, or only by chance."""
        away = self.address(index) % width
        if away or self.alignment % width:
            chance = "not at a multiple" if away else "only by chance at a multiple"
            what = f"{self.show(index)} is {chance} of {width} bytes"
            self.on_finding("misaligned", what, site, self, index)
