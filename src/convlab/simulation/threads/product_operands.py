"""The operands of a warpgroup's product from panels: what each of its threads brings.

A thread names panels, or holds its part of A in registers, and holds its sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from convlab.device.panel_products import (
    BF16,
    F16,
    TF32,
    places_of_sums,
)
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.local_arrays import LocalArray
from convlab.simulation.threads.waiting import (
    START_BF16,
    START_BF16_REGISTERS,
    START_F16,
    START_F16_REGISTERS,
    START_TF32,
)

KINDS = {
    START_F16: F16,
    START_BF16: BF16,
    START_TF32: TF32,
    START_F16_REGISTERS: F16,
    START_BF16_REGISTERS: BF16,
}


@dataclass(eq=False)
class Sums:
    """The sums of a warpgroup, 64 x N, while they are with the tensor cores."""

    numbers: np.ndarray

    def of_thread(self, thread: int) -> list[float]:
        """Return the sums of a thread of the warpgroup, in the order of ``D``."""
        rows, columns = places_of_sums(self.numbers.shape[1])
        numbers: list[float] = self.numbers[rows[thread], columns[thread]].tolist()
        return numbers


class Registers(NamedTuple):
    """A thread's part of A in registers: the array and its words, which a product reads."""

    A: LocalArray
    words: tuple[int, ...]

    def take(self) -> None:
        """Leave the array without the numbers."""
        self.A.cells[: len(self.words)] = [None] * len(self.words)

    def give_back(self) -> None:
        """Return the numbers, once the product has ended. Raises ``RuntimeError`` if the thread has
        written to the array before."""
        if any(cell is not None for cell in self.A.cells[: len(self.words)]):
            what = f"{self.A.name} was written to while a product of it was in flight"
            raise RuntimeError(f"wait_products: {what}")
        self.A.cells[: len(self.words)] = list(self.words)


class ReadRegisters:
    """The registers that products in flight read, of the threads of a launch by their numbers."""

    def __init__(self) -> None:
        # The registers of each thread, with the number of the product that reads them.
        self._of_thread: dict[int, list[tuple[int, Registers]]] = {}

    def of_left(self, thread: int, name: str, A: LocalArray, count: int, site: int) -> Registers:
        """Return a thread's part of A, of so many words. Products in flight may read the same."""
        if not isinstance(A, LocalArray) or A.ndim != 1 or A.size < count or A.dtype != np.uint32:
            raise TypeError(f"{name}: A must be a local array of {count} uint32")
        for _, other in self._of_thread.get(thread, ()):
            if other.A is A and len(other.words) == count:
                return other
        cells = A.cells[:count]
        if None in cells:
            cells = [A.part(n, site) for n in range(count)]
        return Registers(A, tuple(int(cell) for cell in cells))

    def take(self, thread: int, product: int, left: Registers) -> None:
        """Note that a product reads these registers, and leave them without numbers."""
        left.take()
        self._of_thread.setdefault(thread, []).append((product, left))

    def end(self, thread: int, ended: int) -> None:
        """Give back the registers that no product in flight reads; so many products have ended."""
        reads = self._of_thread.get(thread, [])
        self._of_thread[thread] = still = [one for one in reads if one[0] > ended]
        read = {id(matrix.A): matrix for product, matrix in reads if product <= ended}
        for registers_of_A in read.values():
            if all(other.A is not registers_of_A.A for _, other in still):
                registers_of_A.give_back()

    def forget(self, thread: int) -> None:
        """Forget those of a thread whose block has ended."""
        self._of_thread.pop(thread, None)


class InFlight(NamedTuple):
    """A thread's product in flight: its sums, from ``D[first]`` on, and its number."""

    D: LocalArray
    first: int
    sums: Sums
    number: int

    @property
    def cells(self) -> slice:
        """The elements of the sums in ``D``."""
        return slice(self.first, self.first + self.sums.numbers.shape[1] // 2)

    def check_untouched(self, name: str) -> None:
        """Raise ``RuntimeError`` if a thread has written to the sums."""
        if any(cell is not None for cell in self.D.cells[self.cells]):
            shown = self.D.name
            raise RuntimeError(
                f"{name}: {shown} was written to while a product of it was in flight"
            )


class Operands(NamedTuple):
    """The panels that a thread names, and its sums: numbers, or those of a product in flight."""

    name: str
    S: CheckedArray
    at_A: int | None  # None: A is in registers
    at_B: int
    N: int
    terms: int
    site: int
    thread: int  # in the block
    sums: Sums | Sequence[float]
    # Returns the results by thread, from what all threads bring.
    of_all: Callable[[Mapping[int, Operands]], Mapping[int, object]]
    words: tuple[int, ...] = ()  # of A


def mismatch(one: Operands, other: Operands) -> ValueError | None:
    """Return the error of two threads of a warpgroup that name different panels."""
    for name, mine, its in (
        ("S", one.S.name, other.S.name), ("at_A", one.at_A, other.at_A),
        ("at_B", one.at_B, other.at_B), ("N", one.N, other.N), ("TERMS", one.terms, other.terms),
    ):  # fmt: skip
        if mine != its:
            return ValueError(
                f"{one.name}: {name} is {mine} in thread {one.thread} and {its} in thread "
                f"{other.thread}: all threads of a warpgroup multiply the same panels"
            )
    return None


def check_sums(name: str, D: LocalArray, first: int, count: int) -> None:
    """Raise ``TypeError`` unless ``D`` holds so many of a thread's sums from ``first`` on."""
    fits = isinstance(D, LocalArray) and D.ndim == 1 and 0 <= first <= D.size - count
    if not fits or D.dtype != np.float32:
        raise TypeError(f"{name}: D must be a local array of {first + count} float32")


def numbers_before(D: LocalArray, first: int, count: int, site: int) -> list[float]:
    """Return a thread's sums before a product. Reports those that were never written."""
    numbers = D.cells[first : first + count]
    if None in numbers:
        numbers = [D.part(n, site) for n in range(first, first + count)]
    return [float(number) for number in numbers]
