"""Local arrays: a thread's own, which represent registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from convlab.simulation.memory.index_checks import Index
from convlab.simulation.memory.kernel_arrays import ArrayMemory, KernelArray, view_of
from convlab.simulation.numbers.scalars import converted, poison
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.findings import NotSimulated


class LocalArray(KernelArray):
    """A thread's own array. An element is None until the thread writes it. A class is made for each
    shape, with its ``unwritten`` elements, because each thread makes an array at each call."""

    __slots__ = ("cells",)
    base = 0
    unwritten: tuple[None, ...]
    # By their whole indices, the views that were taken of arrays of that shape: kernels take a row
    # of their sums in loops.
    layouts: dict[tuple[object, ...], ViewLayout]

    def __init__(self, name: str, memory: ArrayMemory) -> None:
        self.name, self.memory = name, memory
        self.cells: list[Any] = [*self.unwritten]

    def derived(self, change: Callable[[np.ndarray], np.ndarray], name: str = "") -> LocalView:
        """Return a view of the array: ``change`` returns that view of the cells' numbers."""
        numbers = view_of(change, self.numbers(), self.name)
        return LocalView(self, ViewLayout(numbers, self.dtype.itemsize))

    def cut(self, entries: tuple[object, ...], site: int) -> LocalView:
        """Return the view at some integers and slices."""
        if not all(type(entry) is int and entry >= 0 for entry in entries):
            return cast(LocalView, super().cut(entries, site))
        layout = self.layouts.get(entries)
        if layout is None:
            layout = self.layouts[entries] = cast(LocalView, super().cut(entries, site)).layout
        return LocalView(self, layout)

    def numbers(self) -> np.ndarray:
        """Return the number of each element's cell."""
        return np.arange(self.size).reshape(self.shape)

    def load(self, at: Index, count: int, site: int) -> list[object]:
        """Return neighbours from a checked index on; report those that were not written."""
        first = self.element(at)
        values = self.cells[first : first + count]
        for n, value in enumerate(values):
            if value is None:  # reported, then poisoned
                where = (*at[:-1], at[-1] + n) if at else at
                what = f"{self.show(where)} is read before anything is written to it"
                self.memory.report("uninitialised", what, site, self, where)
                values[n] = poison(self.dtype).item()
        return [self.loaded(value) for value in values]

    def store(self, at: Index, values: tuple[object, ...], site: int) -> None:
        """Store neighbours from a checked index on."""
        first = self.element(at)
        self.cells[first : first + len(values)] = [converted(v, self.dtype) for v in values]

    def update(
        self, index: object, function: Callable[..., object], site: int, kind: int = 0
    ) -> object:
        """Refuse an atomic: a GPU has none for local memory."""
        raise NotSimulated(f"an atomic on {self.name}: a GPU has none for local memory")


class ViewLayout:
    """The elements of a view of a local array, as the numbers of their cells."""

    def __init__(self, numbers: np.ndarray, itemsize: int) -> None:
        self.numbers, self.shape = numbers, numbers.shape
        self.strides = tuple(step // numbers.itemsize * itemsize for step in numbers.strides)
        self.row: list[int] = numbers.tolist() if numbers.ndim == 1 else []


class LocalView(LocalArray):
    """A view of a local array: some of its elements, in any order."""

    __slots__ = ("alignment", "dtype", "layout", "layouts", "shape", "strides", "wide")

    def __init__(self, viewed: LocalArray, layout: ViewLayout) -> None:
        self.name, self.memory, self.cells = viewed.name, viewed.memory, viewed.cells
        self.layout, self.layouts = layout, {}
        self.shape, self.strides = layout.shape, layout.strides
        self.dtype, self.alignment = viewed.dtype, viewed.alignment
        self.wide = False

    # The usual accesses, of one element of a row; all others are checked step by step.

    def __getitem__(self, index: object) -> object:
        if type(index) is int and 0 <= index < len(self.layout.row):
            value = self.cells[self.layout.row[index]]
            if value is not None:
                return self.loaded(value)
        return self.part(index, site_of(1))

    def __setitem__(self, index: object, value: object) -> None:
        if type(index) is int and 0 <= index < len(self.layout.row):
            self.cells[self.layout.row[index]] = converted(value, self.dtype)
        else:
            self.store_part(index, value, site_of(1))

    def numbers(self) -> np.ndarray:
        """Return the number of each element's cell."""
        return self.layout.numbers

    def element(self, at: Index) -> int:
        """Return the number of the cell of the element at a checked index."""
        return int(self.layout.numbers[at])
