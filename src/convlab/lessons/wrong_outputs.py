"""The parts of a wrong output that were never written, which tell how indices are exchanged."""

from __future__ import annotations

import numpy as np

from convlab.lessons.pictures import joined


def untouched_places(output: np.ndarray, before: float) -> np.ndarray:
    """Mark the elements that still hold ``before``, what they held before the launch."""
    held = output.dtype.type(before)
    return np.asarray((output == held) | (np.isnan(output) & np.isnan(held)))


def unwritten_part(
    name: str, untouched: np.ndarray, wrong: np.ndarray, threads: tuple[int, int]
) -> str:
    """Return a sentence about columns or rows at the end of a matrix that were never written, if
    every wrong element is there; empty if not, or for an output that is not a matrix.

    ``threads`` are those of the grid across (x) and down (y). A kernel that exchanges x and y
    writes as many columns as there are threads down, where a grid of two dimensions is not square;
    only then is it asked about. The sentence begins with a space.
    """
    if wrong.ndim != 2:
        return ""
    across, down = threads
    for axis, lines, letter, exchanged in ((1, "columns", "x", down), (0, "rows", "y", across)):
        whole = np.asarray(untouched.all(axis=1 - axis))
        is_wrong = np.asarray(wrong.any(axis=1 - axis))
        first = int(np.argmax(whole))
        if first and whole[first:].all() and is_wrong[first:].all() and not is_wrong[:first].any():
            told = f" No thread wrote the {lines} of {name} from {first} on"
            if first != exchanged:
                return f"{told}."
            more = f"""does {letter} count {lines}? column, row = cuda.grid(2) gives both in the
                right order."""
            return f"{told}: {joined(more)}"
    return ""
