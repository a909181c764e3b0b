"""The parts of a wrong output that were never written, which tell how indices are exchanged."""

from __future__ import annotations

import numpy as np

from convlab.lessons.pictures import joined


def untouched_places(output: np.ndarray, before: float) -> np.ndarray:
    """Mark the elements that still hold ``before``, what they held before the launch."""
    held = output.dtype.type(before)
    return np.asarray((output == held) | (np.isnan(output) & np.isnan(held)))


def unwritten_part(name: str, untouched: np.ndarray, wrong: np.ndarray) -> str:
    """Return a sentence about columns or rows at the end of a matrix that were never written, if
    every wrong element is there; empty if not, or for an output that is not a matrix.

    A kernel that exchanges x and y leaves such a part, where a grid of two dimensions is not
    square. The sentence begins with a space.
    """
    if wrong.ndim != 2:
        return ""
    for axis, lines, letter in ((1, "columns", "x"), (0, "rows", "y")):
        whole = np.asarray(untouched.all(axis=1 - axis))
        is_wrong = np.asarray(wrong.any(axis=1 - axis))
        first = int(np.argmax(whole))
        if first and whole[first:].all() and is_wrong[first:].all() and not is_wrong[:first].any():
            told = f"""No thread wrote the {lines} of {name} from {first} on: does {letter} count
                {lines}? column, row = cuda.grid(2) gives both in the right order."""
            return " " + joined(told)
    return ""
