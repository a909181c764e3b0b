"""Streams, events, pinned and managed memory: what nothing orders is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

from convlab.simulation.findings import SimulationError
from convlab.simulation.programs import simulator

N, FULL = 37, (2, 32)


@cuda.jit
def double(a: Any, b: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        b[i] = 2 * a[i]


@cuda.jit
def even_or_odd(a: Any, first: int) -> None:
    i = 2 * cuda.grid(1) + first
    if i < a.size:
        a[i] += 1


@cuda.jit
def count(a: Any, total: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(total, 0, 1)


def two_streams() -> tuple[Any, ...]:
    """Two streams, an event, and arrays on the device, the first of them 0, 1, 2, ..."""
    host = np.arange(N), np.zeros(N), np.zeros(N)
    return cuda.stream(), cuda.stream(), cuda.event(), *map(cuda.to_device, host)


def event_after_the_launch() -> None:
    one, other, event, a, b, c = two_streams()
    double[*FULL, one](a, b)
    event.record(one)
    event.wait(other)
    double[*FULL, other](b, c)
    assert (c.copy_to_host(stream=other) == 4 * np.arange(N)).all()


def event_before_the_launch() -> None:
    one, other, event, a, b, c = two_streams()
    event.record(one)
    double[*FULL, one](a, b)
    event.wait(other)
    double[*FULL, other](b, c)


def stream_not_waited_for() -> None:
    one, other, _, a, b, c = two_streams()
    double[*FULL, one](a, b)
    other.synchronize()
    double[*FULL, other](b, c)


def host_waits_between() -> None:
    one, other, _, a, b, c = two_streams()
    for wait in one.synchronize, cuda.synchronize, cuda.current_context().synchronize:
        double[*FULL, one](a, b)
        wait()
        double[*FULL, other](b, c)
        other.synchronize()


def default_stream_between() -> None:
    one, other, _, a, b, c = two_streams()
    double[*FULL, one](a, b)
    double[FULL](c, c)
    double[*FULL, other](b, c)


def one_overwrites_what_another_reads() -> None:
    one, other, _, a, b, c = two_streams()
    double[*FULL, one](a, b)
    double[*FULL, other](c, a)


def copy_that_does_not_wait() -> None:
    one, other, _, a, b, _ = two_streams()
    double[*FULL, one](a, b)
    b.copy_to_host(stream=other)


def copy_over_what_a_kernel_reads() -> None:
    one, other, _, a, b, _ = two_streams()
    double[*FULL, one](a, b)
    a.copy_to_device(np.ones(N, np.int64), stream=other)


def elements_of_one_each() -> None:
    one, other, _, a, _, _ = two_streams()
    even_or_odd[*FULL, one](a, 0)
    even_or_odd[*FULL, other](a, 1)
    assert (a.copy_to_host() == np.arange(N) + 1).all()


def the_same_elements() -> None:
    one, other, _, a, _, _ = two_streams()
    even_or_odd[*FULL, one](a, 1)
    even_or_odd[*FULL, other](a, 1)


def atomics_of_both() -> None:
    one, other, _, a, b, _ = two_streams()
    count[*FULL, one](a, b)
    count[*FULL, other](a, b)
    assert b.copy_to_host()[0] == 2 * N


def atomics_and_a_store() -> None:
    one, other, _, a, b, _ = two_streams()
    count[*FULL, one](a, b)
    double[*FULL, other](a, b)


def managed_memory_written_too_early() -> None:
    shared, out = cuda.managed_array(N), cuda.device_array(N)
    shared[:] = 1
    double[FULL](shared, out)
    shared[:] = 2
    double[FULL](shared, out)


def managed_memory_written_in_time() -> None:
    shared, out = cuda.managed_array(N), cuda.device_array(N)
    shared[:] = 1
    double[FULL](shared, out)
    double[FULL](shared, shared)  # in the same stream
    cuda.synchronize()
    assert (shared == 2).all()
    shared[:] = 3
    double[FULL](shared, out)
    assert (out.copy_to_host() == 6).all()


RIGHT = [
    *(event_after_the_launch, host_waits_between, default_stream_between, elements_of_one_each),
    *(atomics_of_both, managed_memory_written_in_time),
]
WRONG = {
    event_before_the_launch: "double reads a, which double writes in another stream",
    stream_not_waited_for: "double reads a, which double writes in another stream",
    one_overwrites_what_another_reads: "double writes b, which double reads in another stream",
    copy_that_does_not_wait: "copy_to_host reads b, which double writes in another stream",
    copy_over_what_a_kernel_reads: "a copy to the device writes a, which double reads",
    the_same_elements: "even_or_odd writes a, which even_or_odd writes in another stream",
    atomics_and_a_store: "double writes b, which count writes in another stream",
    managed_memory_written_too_early: "the host writes to managed memory while double may use it",
}


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_what_is_ordered_is_right(program: Any) -> None:
    with simulator() as report:
        program()
    assert not report.findings


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_what_nothing_orders_is_found(program: Any) -> None:
    with pytest.raises(SimulationError, match=WRONG[program]), simulator():
        program()
    with simulator(stop=False) as report:
        program()
    (finding,) = report.findings
    assert finding.kind == "stream race"
    lines = program.__code__.co_firstlineno, max(line for *_, line in program.__code__.co_lines())
    assert finding.file == __file__
    assert finding.other_line is not None
    assert lines[0] < finding.other_line <= finding.line <= lines[1]


def test_the_host_sees_what_it_has_waited_for() -> None:
    with simulator():
        stream = cuda.stream()
        pinned, managed = cuda.pinned_array(N), cuda.managed_array(N)
        pinned[:] = managed[:] = -1
        a = cuda.to_device(np.ones(N))
        double[*FULL, stream](a, managed)
        a.copy_to_host(pinned, stream)
        assert (pinned == -1).all()
        assert (managed == -1).all()
        stream.synchronize()
        assert (pinned == 1).all()
        assert (managed == 2).all()
        a.copy_to_host(pinned)  # with no stream it waits
        assert (pinned == 1).all()
