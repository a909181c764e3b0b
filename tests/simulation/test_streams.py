"""Streams, events, pinned, managed and mapped memory: what nothing orders is found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numba import cuda

from convlab.simulation.host.programs import simulator
from convlab.simulation.host.streams import Streams
from convlab.simulation.memory.touched import Touched
from convlab.simulation.rules.findings import SimulationError

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


def run(program: Any) -> None:
    """Run the program. Its parameters are the first of: two streams, an event, and three arrays on
    the device, the first 0, 1, 2, ..., the others zeros. It takes as many of these as it has
    parameters."""
    host = np.arange(N), np.zeros(N), np.zeros(N)
    given = cuda.stream(), cuda.stream(), cuda.event(), *map(cuda.to_device, host)
    program(*given[: program.__code__.co_argcount])


def event_after_the_launch(one, other, event, a, b, c):
    double[*FULL, one](a, b)
    event.record(one)
    event.wait(other)
    double[*FULL, other](b, c)
    assert (c.copy_to_host(stream=other) == 4 * np.arange(N)).all()


def event_before_the_launch(one, other, event, a, b, c):
    event.record(one)
    double[*FULL, one](a, b)
    event.wait(other)
    double[*FULL, other](b, c)


def stream_not_waited_for(one, other, event, a, b, c):
    double[*FULL, one](a, b)
    other.synchronize()
    double[*FULL, other](b, c)


def host_waits_between(one, other, event, a, b, c):
    for wait in one.synchronize, cuda.synchronize, cuda.current_context().synchronize:
        double[*FULL, one](a, b)
        wait()
        double[*FULL, other](b, c)
        other.synchronize()


def default_stream_between(one, other, event, a, b, c):
    double[*FULL, one](a, b)
    double[FULL](c, c)
    double[*FULL, other](b, c)


def threads_default_stream_and_another(one, other, event, a, b, c):
    double[*FULL, cuda.per_thread_default_stream()](a, b)
    double[*FULL, other](b, c)


def default_streams_of_both_kinds(one, other, event, a, b, c):
    mine = cuda.per_thread_default_stream()
    double[*FULL, mine](a, b)
    double[FULL](b, c)
    double[*FULL, cuda.current_context().get_per_thread_default_stream()](c, b)
    double[*FULL, cuda.external_stream(2)](b, c)
    event.record(mine)
    event.wait(other)
    double[*FULL, other](c, a)


def one_overwrites_what_another_reads(one, other, event, a, b, c):
    double[*FULL, one](a, b)
    double[*FULL, other](c, a)


def copy_that_does_not_wait(one, other, event, a, b):
    double[*FULL, one](a, b)
    b.copy_to_host(stream=other)


def copy_over_what_a_kernel_reads(one, other, event, a, b):
    double[*FULL, one](a, b)
    a.copy_to_device(np.ones(N, np.int64), stream=other)


def elements_of_one_each(one, other, event, a):
    even_or_odd[*FULL, one](a, 0)
    even_or_odd[*FULL, other](a, 1)
    assert (a.copy_to_host() == np.arange(N) + 1).all()


def the_same_elements(one, other, event, a):
    even_or_odd[*FULL, one](a, 1)
    even_or_odd[*FULL, other](a, 1)


def atomics_of_both(one, other, event, a, b):
    count[*FULL, one](a, b)
    count[*FULL, other](a, b)
    assert b.copy_to_host()[0] == 2 * N


def atomics_and_a_store(one, other, event, a, b):
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


def copies_in_their_order(one, other, event, a, b):
    """Each operation of a stream finds what those before it have copied to pinned memory."""
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = -1
    a.copy_to_host(pinned, one)
    double[*FULL, one](pinned, b)
    c = cuda.to_device(pinned, one)
    c.copy_to_device(pinned, one)
    assert (c.copy_to_host(stream=one) == np.arange(N)).all()
    assert (b.copy_to_host(stream=one) == 2 * np.arange(N)).all()
    b.copy_to_host(cuda.pinned_array_like(b.copy_to_host()), one)
    for wait in True, False:  # with no stream it is the last
        a.copy_to_host(pinned, one)
        (a if wait else c).copy_to_host(pinned)  # in the stream of `c`, which has one
        if not wait:
            one.synchronize()
        assert (pinned == np.arange(N)).all()


def made_from_pinned_memory(one, other, event, a):
    made = np.zeros_like(cuda.pinned_array(N, np.int64))
    a.copy_to_host(made, one)
    assert (made == np.arange(N)).all()


def launch_on_host_memory(one, other, event, a, b, c):
    """Numba copies it back, which makes the host wait for the launch."""
    host = np.zeros(N)
    double[*FULL, one](host, b)
    double[*FULL, other](b, c)


def number_of_a_device_array(one, other, event, a, b, c):
    """Reading and writing one waits for all streams."""
    double[*FULL, one](a, b)
    assert b[3] == 6
    double[*FULL, other](b, c)
    a[0] = 1
    a[...] = 1
    double[*FULL, one](c, b)


def number_in_a_stream(one, other, event, a, b):
    double[*FULL, one](a, b)
    assert b.bind(other)[3] == 6


def managed_halves() -> None:
    """The host fills one half while a launch uses the other."""
    stream, shared, out = cuda.stream(), cuda.managed_array(2 * N), cuda.device_array(N)
    shared[:] = 1
    for where in FULL, (*FULL, stream):
        double[where](shared[:N], shared[:N])
        shared[N:] = 7
        cuda.synchronize()
        double[where](shared[N:], out)
        shared[:N] = 1
        stream.synchronize()
        assert (shared[:N] == 1).all()
        assert (shared[N:] == 7).all()
        assert (out.copy_to_host() == 14).all()


def managed_matrix() -> None:
    shared, out = cuda.managed_array((2, N), order="F"), cuda.device_array(N)
    shared[:] = np.arange(2 * N).reshape(2, N)
    double[FULL](shared[1], shared[0])
    out.copy_to_device(np.zeros(N))  # with no stream it waits
    assert (shared[0] == 2 * np.arange(N, 2 * N)).all()
    shared[:] = 0


def managed_memory_polled() -> None:
    shared = cuda.managed_array(N)
    shared[:] = 1
    double[FULL](shared, shared)
    while shared[N - 1] != 2:
        pass


def read_again_until_it_is_written(memory, stream) -> None:
    """The host polls by several ways, of which some read what it has read before."""
    for read in (
        lambda: memory[N - 1],
        lambda: memory[N - 1 :][0] + memory[0],
        lambda: memory.max(),
        lambda: float(np.sum(memory[2:4])),
    ):
        memory[:] = 1
        double[*FULL, stream](memory, memory)
        old = read()
        while old == read():
            pass
        assert (memory == 2).all()


def managed_memory_polled_by_many_ways(one, other) -> None:
    read_again_until_it_is_written(cuda.managed_array(N), one)
    read_again_until_it_is_written(cuda.mapped_array(N), other)


def polled_and_given_up(one, other) -> None:
    """The host shows how far the launch is."""
    shared = cuda.managed_array(N)
    shared[:] = 1
    double[*FULL, one](shared, shared)
    for _ in range(3):
        float(shared[0])
    one.synchronize()


def read_where_the_launch_does_not_write(one, other) -> None:
    shared = cuda.mapped_array(2 * N)
    shared[:] = 1
    double[*FULL, one](shared[:N], shared[:N])
    assert shared[N] + shared[N:].sum() + max(shared[N:]) == N + 2
    one.synchronize()
    assert shared[0] == 2


def read_after_its_event(one, other, event) -> None:
    shared = cuda.managed_array(N)
    shared[:] = 1
    double[*FULL, one](shared, shared)
    event.record(one)
    event.synchronize()
    assert shared.sum() == 2 * N


def managed_memory_read_too_early(one, other) -> None:
    shared, out = cuda.managed_array(N), cuda.device_array(N)
    shared[:] = 1
    double[*FULL, one](shared, shared)
    assert shared[3] + shared[3] == 2  # once at each of two places
    double[*FULL, one](shared, out)


def mapped_memory_summed_too_early(one, other) -> None:
    shared = cuda.mapped_array(N)
    shared[:] = 1
    double[FULL](shared, shared)
    assert shared[2:].sum() == N - 2
    cuda.synchronize()


def mapped_memory_copied_too_early(one, other) -> None:
    host = np.ones(N)
    with cuda.mapped(host) as shared:
        double[*FULL, one](shared, shared)
        other.synchronize()
        assert [*shared] == [1] * N


def managed_memory_read_and_never_waited_for(one, other) -> None:
    shared = cuda.managed_array(N)
    shared[:] = 1
    double[*FULL, one](shared, shared)
    np.zeros(N)[:] = shared + 1


def managed_memory_compared_by_numpy_too_early(one, other) -> None:
    """The finding names the program's line, not NumPy's."""
    shared = cuda.managed_array(N)
    shared[:] = 1
    double[*FULL, one](shared, shared)
    np.testing.assert_array_less(shared * 1, 2)


def data_read_before_its_flag(one, other) -> None:
    """Only the flag is polled."""
    shared = cuda.managed_array(N)
    shared[:] = 1
    double[*FULL, one](shared, shared)
    data = shared[0]
    while shared[N - 1] != 2:
        pass
    assert data == 1


def mapped_memory_written_too_early(one, other) -> None:
    shared, out = cuda.mapped_array(N), cuda.device_array(N)
    shared[:] = 1
    double[*FULL, one](shared, out)
    shared[3] = 2
    one.synchronize()


def pinned_memory_given_to_pinned_memory_too_early(one, other, event, a):
    pinned, host = cuda.pinned_array(N, np.int64), cuda.pinned_array(N, np.int64)
    pinned[:] = 0
    a.copy_to_host(pinned, one)
    host[:] = pinned


def columns_of_one_each(one, other, event, a):
    both = cuda.to_device(np.zeros((N, 2)))
    double[*FULL, one](a, both[:, 0])
    double[*FULL, other](a, both[:, 1])
    both[:, 0].copy_to_host(stream=one)


def copies_to_memory_that_is_used_again(one, other):
    for stream in one, other, one, other:
        cuda.to_device(np.zeros(N), stream=stream)


def to_device_twice() -> None:
    shared = cuda.managed_array(N)
    shared[:] = 1
    double[FULL](shared, shared)
    a = cuda.to_device(shared)
    assert cuda.to_device(np.ones(N), to=cuda.to_device(a)).copy_to_host()[0] == 1


def pinned_memory_used_again(one, other, event, a, b):
    pinned = cuda.pinned_array(N, np.int64)
    for step in range(3):
        pinned[:] = step
        a.copy_to_device(pinned, one)
        event.record(one)
        event.synchronize()
    pinned += 1
    for wait in one.synchronize, cuda.synchronize:
        a.copy_to_host(pinned, one)
        wait()
        assert (pinned == 2).all()
        assert pinned.sum() == 2 * N
        pinned[1:] = 2


def two_halves_in_turn(one, other, event, a):
    pinned, streams = cuda.pinned_array((2, N), np.int64), (one, other)
    for step in range(4):
        half, stream = pinned[step % 2], streams[step % 2]
        stream.synchronize()
        half[:] = step
        cuda.to_device(half, stream)


def halves_read_while_others_fill(one, other, event, a):
    pinned = cuda.pinned_array((2, N), np.int64)
    a.copy_to_host(pinned[0], one)
    pinned[1] = 7
    assert pinned[1, 3] + pinned[1].max() == 14
    one.synchronize()
    assert pinned[0, 5] == 5


def copies_in_no_stream(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = 1
    b = cuda.to_device(pinned)
    pinned[:] = 2
    a.copy_to_host(pinned)
    assert pinned[6] == 6
    b.copy_to_device(pinned)
    pinned.fill(0)


def read_while_a_copy_reads(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = 3
    a.copy_to_device(pinned, one)
    assert pinned.mean() == 3
    assert np.sum(pinned) == 3 * N
    assert (np.empty_like(pinned).shape, len(pinned), pinned.size) == ((N,), N, N)


def pinned_argument_of_a_launch(one, other, event, a, b):
    pinned = cuda.pinned_array(N)
    pinned[:] = 1
    double[*FULL, one](cuda.In(pinned), b)
    one.synchronize()
    pinned[:] = 2


def memory_pinned_for_some_time(one, other, event, a):
    host = np.zeros(N, np.int64)
    with cuda.pinned(host):
        a.copy_to_device(host, one)
        one.synchronize()
        host[:] = 1
    a.copy_to_device(host, one)  # it is pageable now: the copy has read it
    host[:] = 2


def ordinary_memory(one, other, event, a):
    host = np.zeros(N, np.int64)
    a.copy_to_device(host, one)
    host[:] = 1
    a.copy_to_host(host, one)
    assert (host == 0).all()


def overwritten_before_the_copy(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = 1
    a.copy_to_device(pinned, one)
    pinned[:] = 2


def overwritten_after_an_event_of_another_stream(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = 1
    cuda.to_device(pinned, one)
    event.record(other)
    event.synchronize()
    pinned[3] = 2


def added_to_before_the_copy(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = 1
    a.copy_to_device(pinned, one)
    pinned += 1


def written_through_a_view(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = 1
    a.copy_to_device(pinned, one)
    pinned.reshape(1, N)[:, 4:] = 5


def written_by_numpy(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = 1
    a.copy_to_device(pinned, one)
    np.copyto(pinned, np.arange(N))


def sorted_before_the_copy(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = np.arange(N)[::-1]
    a.copy_to_device(pinned, one)
    pinned.sort()


def written_as_a_plain_array(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = 1
    a.copy_to_device(pinned, one)
    np.asarray(pinned)[:] = 2
    one.synchronize()


def argument_overwritten(one, other, event, a, b):
    pinned = cuda.pinned_array(N)
    pinned[:] = 1
    double[*FULL, one](cuda.In(pinned), b)
    pinned[:] = 2


def pinned_for_some_time_and_overwritten(one, other, event, a):
    host = np.zeros(N, np.int64)
    with cuda.pinned(host):
        a.copy_to_device(host, one)
        host[:] = 1
        one.synchronize()


def read_before_the_copy(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = 0  # or what the memory held before could be equal
    a.copy_to_host(pinned, one)
    assert pinned[3] != 3
    one.synchronize()


def summed_before_the_copy(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    pinned[:] = 0
    a.copy_to_host(pinned, one)
    assert pinned.sum() == 0


def compared_before_the_copy(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    a.copy_to_host(pinned, one)
    other.synchronize()
    np.array_equal(pinned, np.arange(N))


def listed_before_the_copy(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    a.copy_to_host(pinned, one)
    pinned[2:5].tolist()


def read_after_a_later_launch_only(one, other, event, a, b):
    pinned = cuda.pinned_array(N, np.int64)
    a.copy_to_host(pinned, one)
    double[*FULL, one](a, b)
    assert not (pinned == np.arange(N)).all()


def filled_while_a_copy_fills(one, other, event, a):
    pinned = cuda.pinned_array(N, np.int64)
    a.copy_to_host(pinned, one)
    pinned[:] = -5


RIGHT = [
    *(pinned_memory_used_again, two_halves_in_turn, halves_read_while_others_fill),
    *(copies_in_no_stream, read_while_a_copy_reads, pinned_argument_of_a_launch),
    *(memory_pinned_for_some_time, ordinary_memory),
    *(event_after_the_launch, host_waits_between, default_stream_between, elements_of_one_each),
    *(atomics_of_both, managed_memory_written_in_time, copies_in_their_order),
    *(made_from_pinned_memory, launch_on_host_memory, number_of_a_device_array, managed_halves),
    *(managed_matrix, managed_memory_polled, columns_of_one_each, to_device_twice),
    *(managed_memory_polled_by_many_ways, polled_and_given_up, read_after_its_event),
    read_where_the_launch_does_not_write,
    *(copies_to_memory_that_is_used_again, default_streams_of_both_kinds),
]
WRONG = {
    event_before_the_launch: "double reads a, which double writes in another stream",
    stream_not_waited_for: "double reads a, which double writes in another stream",
    threads_default_stream_and_another: "double reads a, which double writes in another stream",
    one_overwrites_what_another_reads: "double writes b, which double reads in another stream",
    copy_that_does_not_wait: "copy_to_host reads b, which double writes in another stream",
    copy_over_what_a_kernel_reads: "a copy to the device writes a, which double reads",
    the_same_elements: "even_or_odd writes a, which even_or_odd writes in another stream",
    atomics_and_a_store: "double writes b, which count writes in another stream",
    number_in_a_stream: "copy_to_host reads b, which double writes in another stream",
    managed_memory_written_too_early: "the host writes to managed memory while double may use it",
    mapped_memory_written_too_early: "the host writes to mapped memory while double may use it",
    **dict.fromkeys(
        (
            *(managed_memory_read_too_early, managed_memory_read_and_never_waited_for),
            *(managed_memory_compared_by_numpy_too_early, data_read_before_its_flag),
        ),
        "the host reads managed memory that double may not have written yet",
    ),
    **dict.fromkeys(
        (mapped_memory_summed_too_early, mapped_memory_copied_too_early),
        "the host reads mapped memory that double may not have written yet",
    ),
    **dict.fromkeys(
        (
            *(overwritten_before_the_copy, overwritten_after_an_event_of_another_stream),
            *(added_to_before_the_copy, written_through_a_view, written_by_numpy),
            *(sorted_before_the_copy, written_as_a_plain_array),
            pinned_for_some_time_and_overwritten,
        ),
        "the host writes to pinned memory while a copy to the device may still read it",
    ),
    argument_overwritten: "the host writes to pinned memory while double may still read it",
    **dict.fromkeys(
        (
            *(read_before_the_copy, summed_before_the_copy, compared_before_the_copy),
            *(listed_before_the_copy, read_after_a_later_launch_only),
            pinned_memory_given_to_pinned_memory_too_early,
        ),
        "the host reads pinned memory that copy_to_host may not have filled yet",
    ),
    filled_while_a_copy_fills: "the host writes to pinned memory while copy_to_host may still fill",
}


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_what_is_ordered_is_right(program: Any) -> None:
    with simulator() as report:
        run(program)
    assert not report.findings


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_what_nothing_orders_is_found(program: Any) -> None:
    with pytest.raises(SimulationError, match=WRONG[program]), simulator():
        run(program)
    with simulator(stop=False) as report:
        run(program)
    (finding,) = report.findings
    assert finding.kind == "stream race"
    lines = (
        program.__code__.co_firstlineno,
        max(line or 0 for *_, line in program.__code__.co_lines()),
    )
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
        assert (np.asarray(pinned) == -1).all()  # a plain array, which tells nobody that it is read
        assert (np.asarray(managed) == -1).all()
        stream.synchronize()
        assert (pinned == 1).all()
        assert (managed == 2).all()
        a.copy_to_host(pinned)  # with no stream it waits
        assert (pinned == 1).all()


def test_threads_with_a_stream_each() -> None:
    def work(number: int) -> None:
        stream, pinned = cuda.stream(), cuda.pinned_array(N)
        a, b = cuda.to_device(np.full(N, number), stream), cuda.device_array(N, stream=stream)
        for _ in range(5):
            double[*FULL, stream](a, b)
            double[*FULL, stream](a, shared[number])
            b.copy_to_host(pinned, stream)
            stream.synchronize()
            assert (pinned == 2 * number).all()
            assert (shared[number] == 2 * number).all()

    with simulator() as report, ThreadPoolExecutor(4) as pool:
        shared = cuda.managed_array((4, N))
        [*pool.map(work, range(4))]
    assert not report.findings


def test_a_loop_of_launches_keeps_what_its_last_ones_touched() -> None:
    streams = Streams(lambda finding: None)
    stream, a, b = streams.stream(), np.zeros(N), np.zeros(N)
    for source, target in [(a, b), (b, a)] * 100:
        touched = Touched()
        touched.whole(source, writes=False)
        touched.whole(target, writes=True)
        streams.issue(stream, "step", touched)
    assert [operation.count for operation in streams._order._open] == [199, 200]
