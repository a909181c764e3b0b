"""Snapshots of the state of a launch, which show whether anything has changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FrameType
from typing import NamedTuple

from convlab.simulation.language.rewritten_code import ENDLESS
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.local_arrays import LocalArray
from convlab.simulation.memory.structured_arrays import Record, RecordArray
from convlab.simulation.recording.sites import Sites
from convlab.simulation.threads.block_memory import Shared, SharedContents
from convlab.simulation.threads.greenlets import Block

Variable = tuple[object, ...]  # its name and its value


class Snapshot(NamedTuple):
    """Everything that the rest of the launch depends on: global memory, the shared memory of blocks
    that wait and of the one that runs, and the frames of threads with their variables."""

    memory: list[bytes]
    saved: list[SharedContents]
    shared: SharedContents
    threads: list[tuple[CodeType, int, list[Variable]]]


def snapshot(
    blocks: Iterable[Block], arrays: Iterable[CheckedArray], shared: Shared, sites: Sites
) -> Snapshot:
    """Return the state of a launch, of which these blocks have begun."""
    return Snapshot(
        memory=[array.host.tobytes() for array in arrays],
        saved=[block.saved.shared for block in blocks if block.saved],
        shared=shared.contents(),
        threads=[
            (frame.f_code, frame.f_lasti, [*variables(frame.f_locals)])
            for block in blocks
            for thread in block.waiting
            for frame in frames_of_kernel(thread.worker.gr_frame, sites)
        ],
    )


def frames_of_kernel(frame: FrameType | None, sites: Sites) -> Iterator[FrameType]:
    """Give the kernel's frames among this one and those that called it."""
    while frame is not None:
        if sites.knows(frame.f_code):
            yield frame
        frame = frame.f_back


def variables(names: Mapping[str, object]) -> Iterator[Variable]:
    """Give the variables of a frame, with the contents of local arrays."""
    for name, value in names.items():
        at: tuple[int, ...] = ()
        if isinstance(value, Record):
            at, value = value._at, value._array
        if isinstance(value, RecordArray):
            value = value._whole
        if isinstance(value, LocalArray):
            yield name, value.cells[:], at
        elif isinstance(value, CheckedArray):
            yield name, value.base, value.shape, value.strides, at
        elif not name.startswith(ENDLESS):
            yield name, value
