"""The numbers that a launch leaves in its arrays, compared between two orders of its threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-5  # of the largest number: sums of floats in another order


@dataclass(frozen=True)
class Outcome:
    """The arrays of a launch, with the numbers in them. ``names`` are the kernel's."""

    names: list[str]
    arrays: list[np.ndarray]

    @classmethod
    def of(cls, names: list[str], hosts: list[np.ndarray]) -> Outcome:
        """Return a copy of these arrays' numbers."""
        return cls(names, [host.copy() for host in hosts])

    @classmethod
    def unnamed(cls, hosts: list[np.ndarray]) -> Outcome:
        """Return a copy of the numbers of arrays that no sentence names."""
        return cls.of([""] * len(hosts), hosts)

    def restore(self, hosts: list[np.ndarray]) -> None:
        """Write the numbers back into these arrays."""
        for host, kept in zip(hosts, self.arrays, strict=True):
            host[...] = kept

    @property
    def largest(self) -> float:
        """The largest magnitude of a float."""
        return max(map(_largest, self.arrays), default=0.0)

    def element(self, name: str, index: tuple[int, ...]) -> np.generic:
        """Return an element of the array with that name."""
        found: np.generic = self.arrays[self.names.index(name)][index]
        return found

    def scale(self, name: str) -> float:
        """Return the largest magnitude of a float in the array with that name."""
        return _largest(self.arrays[self.names.index(name)])


def difference(one: Outcome, two: Outcome, before: Outcome, beside: set[str]) -> str:
    """Say which element differs between two outcomes, unless both leave the same numbers, wherever
    they lie, in arrays other than those ``beside``; empty if they do."""
    scale = max(one.largest, two.largest, before.largest)
    for name, a, b in zip(one.names, one.arrays, two.arrays, strict=True):
        if name in beside:
            continue
        for first, second in zip(_parts(a), _parts(b), strict=True):
            some, others = np.sort(first, axis=None), np.sort(second, axis=None)
            if some.dtype.kind in "fc":
                close = np.isclose(some, others, 0, scale * TOLERANCE, equal_nan=True)
            else:
                close = some == others
            if not close.all():
                at = tuple(np.argwhere(first != second)[0].tolist())
                element = f"{name}[{', '.join(map(str, at))}]"
                return f"{element} becomes {first[at]}, and {second[at]} in another order"
    return ""


def alike(one: np.generic, two: np.generic, scale: float) -> bool:
    """Return whether two numbers are the same, or would be but for the order of a sum."""
    if getattr(one, "dtype", np.dtype(object)).kind in "fc":
        return bool(np.isclose(one, two, 0, scale * TOLERANCE, equal_nan=True))
    return bool(one == two)


def _parts(host: np.ndarray) -> Iterator[np.ndarray]:
    """Give the array, or the fields of records."""
    if host.dtype.names is None:
        yield host
    for name in host.dtype.names or ():
        yield from _parts(host[name])


def _largest(host: np.ndarray) -> float:
    floats = [part[np.isfinite(part)] for part in _parts(host) if part.dtype.kind in "fc"]
    return max((float(np.abs(part).max()) for part in floats if part.size), default=0.0)
