"""The record of a thread in a compiled launch: words in memory."""

from __future__ import annotations

from convlab.simulation.compiled.context import RECORD, WORD, load64, store64
from convlab.simulation.compiled.runtime import shared_code

RECORD_BYTES = RECORD * WORD


@shared_code("int64(int64, int64)")
def get(record: int, index: int) -> int:
    """Return a word of a thread's record."""
    return load64(record + index * WORD)


@shared_code("void(int64, int64, int64)")
def put(record: int, index: int, value: int) -> None:
    """Store a word of a thread's record."""
    store64(record + index * WORD, value)
