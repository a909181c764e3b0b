"""Local arrays: a thread's own, which represent registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convlab.simulation.memory.index_checks import Index
from convlab.simulation.memory.kernel_arrays import ArrayMemory, KernelArray, view_of
from convlab.simulation.numbers.scalars import converted, poison
from convlab.simulation.rules.findings import NotSimulated


class LocalArray(KernelArray):
    """A thread's own array. An element is None until the thread writes it. A class is made for each
    shape, with its ``unwritten`` elements, because each thread makes an array at each call."""

    __slots__ = ("cells",)
    base = 0
    unwritten: tuple[None, ...]

    def __init__(self, name: str, memory: ArrayMemory) -> None:
        self.name, self.memory = name, memory
        self.cells: list[Any] = [*self.unwritten]

    def derived(self, change: Callable[[np.ndarray], np.ndarray], name: str = "") -> LocalView:
        """Return a view of the array: ``change`` returns that view of the cells' numbers."""
        return LocalView(self, view_of(change, self.numbers(), self.name))

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


class LocalView(LocalArray):
    """A view of a local array: some of its elements, in any order."""

    __slots__ = ("_numbers", "alignment", "dtype", "shape", "strides", "wide")

    def __init__(self, viewed: LocalArray, numbers: np.ndarray) -> None:
        self.name, self.memory, self.cells = viewed.name, viewed.memory, viewed.cells
        self._numbers = numbers
        self.dtype, self.shape, self.alignment = viewed.dtype, numbers.shape, viewed.alignment
        self.strides = tuple(
            step // numbers.itemsize * viewed.dtype.itemsize for step in numbers.strides
        )
        self.wide = False

    def numbers(self) -> np.ndarray:
        """Return the number of each element's cell."""
        return self._numbers

    def element(self, at: Index) -> int:
        """Return the number of the cell of the element at a checked index."""
        return int(self._numbers[at])
