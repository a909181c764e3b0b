"""Accesses to several 16-bit numbers at once, which the log has as words of two."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import numpy as np

from convlab.device.sixteen_bits import EIGHT, PAIRS
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.index_checks import integer
from convlab.simulation.recording.access_log import READ, WORD, WRITE
from convlab.simulation.recording.instructions import site_of

_EIGHT_NUMBERS, _FOUR_WORDS = Struct("<8H"), Struct("<4I")


def first_of_eight(name: str, array: CheckedArray, index: object, site: int) -> int:
    """Return the index of the first of eight numbers, after all checks."""
    return first_of(name, array, index, site, EIGHT)


def first_of(name: str, array: CheckedArray, index: object, site: int, count: int) -> int:
    """Return the index of the first of so many numbers, after all checks."""
    is_row = isinstance(array, CheckedArray) and array.ndim == 1 and array.dtype == np.uint16
    if not is_row or array.strides != (array.itemsize,):
        shown = getattr(array, "name", array)
        raise TypeError(f"{name}: {shown} must be an array of uint16 with one dimension")
    width = count * array.itemsize
    if type(index) is int and 0 <= index <= array.shape[0] - count:  # the usual case, made quick
        if (array.first_address + index * array.itemsize) % width == 0 == array.alignment % width:
            return index
    (first,) = array.check((integer(index),), site)
    array.check((first + count - 1,), site)
    array.check_aligned((first,), width, site)
    return first


def words_of(numbers: Sequence[int]) -> list[int]:
    """Return eight numbers as four words, the first of each pair in the lower half."""
    return [*_FOUR_WORDS.unpack(_EIGHT_NUMBERS.pack(*numbers))]


def log_words(
    array: CheckedArray,
    first: int,
    site: int,
    kind: int,
    words: Sequence[int] = (),
    count: int = PAIRS,
) -> None:
    """Log an access to ``count`` words, or to those that a store has."""
    log = array.memory.log
    if log is not None:
        address = log.sized(array.tag + array.first_address + first * array.itemsize, WORD)
        log.add(address, site, kind, count, words)


def load_eight(name: str, array: CheckedArray, index: object, site: int) -> list[int]:
    """Load eight numbers by one access."""
    first = first_of_eight(name, array, index, site)
    log_words(array, first, site, READ)
    numbers: list[int] = array.host[first : first + EIGHT].tolist()
    return numbers


def load_pair(array: CheckedArray, index: object) -> int:
    """``load_pair``: load two numbers by one access."""
    site = site_of(1)
    first = first_of("load_pair", array, index, site, 2)
    log_words(array, first, site, READ, count=1)
    low, high = array.host[first : first + 2].tolist()
    return int(low | high << 16)


def load_pairs(array: CheckedArray, index: object) -> tuple[int, ...]:
    """``load_pairs``: load four pairs of numbers by one access."""
    return tuple(words_of(load_eight("load_pairs", array, index, site_of(1))))


def store_pairs(array: CheckedArray, index: object, pairs: Sequence[int]) -> None:
    """``store_pairs``: store four pairs of numbers by one access."""
    site = site_of(1)
    words = [integer(pair) for pair in pairs]
    if len(words) != PAIRS:
        raise TypeError(f"store_pairs: pairs is a tuple of {len(words)}, but must have {PAIRS}")
    first = first_of_eight("store_pairs", array, index, site)
    array.check_writeable()
    log_words(array, first, site, WRITE, words)
    array.host[first : first + EIGHT] = np.array(words, np.uint32).view(np.uint16)
