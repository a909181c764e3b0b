"""Device arrays that nothing has written: both engines find what reads them too early."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numba import cuda, float32

from convlab.simulation.compiled import engine_choice
from convlab.simulation.host.programs import simulator

N = 45
PADDED = np.dtype([("tag", np.int8), ("x", np.float64), ("n", np.int16)], align=True)
ALWAYS, NEVER = 0.0, float("inf")


@pytest.fixture(params=[NEVER, ALWAYS], ids=["explains", "compiled"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(engine_choice, "limits", engine_choice.Limits.all_at(request.param))
    monkeypatch.setattr(engine_choice, "say", lambda line: None)
    seconds: float = request.param
    return seconds


@cuda.jit
def ramp(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = i


@cuda.jit
def add_one(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += 1


@cuda.jit
def in_two_steps(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = i
        a[i] += 1


@cuda.jit
def neighbours(a, out):
    i = cuda.grid(1)
    if 0 < i < a.size - 1:
        out[i - 1] = a[i - 1] + a[i + 1]


@cuda.jit
def largest(a, most):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.max(most, 0, a[i])


@cuda.jit
def count(totals):
    cuda.atomic.add(totals, cuda.grid(1) % totals.size, 1)


@cuda.jit
def count_from_zero(totals):
    t = cuda.threadIdx.x
    if t < totals.size:
        totals[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(totals, t % totals.size, 1)


@cuda.jit
def fill_records(records):
    i = cuda.grid(1)
    if i < records.size:
        records[i].tag, records[i].x, records[i].n = 1, 2.0, i


@cuda.jit
def copy_records(records, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = records[i]


@cuda.jit
def exchange(a):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.exch(a, i, i)


@cuda.jit
def columns(a, first, last):
    i = cuda.grid(1)
    if i < a.shape[0]:
        for j in range(first, last):
            a[i, j] = i


@cuda.jit
def row_sums(a, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        total = float32(0)
        for j in range(a.shape[1]):
            total += a[i, j]
        out[i] = total


def grid_too_small():
    a, out = cuda.device_array(N), cuda.device_array(N - 2)
    ramp[1, 32](a)
    neighbours[2, 32](a, out)


def sums_in_memory_that_nobody_cleared():
    add_one[2, 32](cuda.device_array(N, np.int32))


def counts_in_memory_that_nobody_cleared():
    count[2, 32](cuda.device_array(3, np.int64))


def one_half_is_copied():
    a = cuda.device_array(N, np.float32)
    a[: N // 2].copy_to_device(np.ones(N // 2, np.float32))
    add_one[2, 32](a)


def a_column_is_forgotten():
    a, out = cuda.device_array((20, 5), np.float32), cuda.device_array(20, np.float32)
    columns[1, 32](a, 0, 2)
    columns[1, 32](a, 3, 5)
    row_sums[1, 32](a, out)


def assigned_columns_only():
    a, out = cuda.device_array((20, 5), np.float32), cuda.device_array(20, np.float32)
    a[:, ::2] = np.ones((20, 3), np.float32)
    row_sums[1, 32](a, out)


def the_largest_of_too_many():
    a, most = cuda.device_array(N, np.int32), cuda.to_device(np.zeros(1, np.int32))
    ramp[1, 32](a)
    largest[2, 32](a, most)


def like_another():
    a = cuda.device_array_like(cuda.to_device(np.zeros(N)))
    add_one[2, 32](a)


def adds_to_what_is_only_copied_back():
    add_one[2, 32](cuda.Out(np.ones(N)))


def copied_from_what_nobody_wrote():
    a, b = cuda.device_array(N), cuda.to_device(np.ones(N))
    ramp[1, 32](a)
    b.copy_to_device(a)
    add_one[2, 32](b)


def assigned_from_what_nobody_wrote():
    a, b = cuda.device_array((N, 1), np.int16), cuda.device_array(2 * N, np.int32)
    b[::2] = a[:, 0]
    b[1::2] = 1
    add_one[3, 32](b)


def some_bytes_of_each_number():
    a = cuda.device_array(N, np.int32)
    ramp[2, 32](a.view(np.int8)[::4])
    add_one[2, 32](a)


def not_copied_to_the_device():
    add_one[2, 32](cuda.to_device(np.ones(N), copy=False))


WRONG = [
    (grid_too_small, neighbours, "a[i + 1]", "a[32]"),
    (sums_in_memory_that_nobody_cleared, add_one, "a[i] += 1", "a[0]"),
    (counts_in_memory_that_nobody_cleared, count, "cuda.atomic.add", "totals[0]"),
    (one_half_is_copied, add_one, "a[i] += 1", f"a[{N // 2}]"),
    (a_column_is_forgotten, row_sums, "total += a[i, j]", "a[0, 2]"),
    (assigned_columns_only, row_sums, "total += a[i, j]", "a[0, 1]"),
    (the_largest_of_too_many, largest, "cuda.atomic.max", "a[32]"),
    (like_another, add_one, "a[i] += 1", "a[0]"),
    (adds_to_what_is_only_copied_back, add_one, "a[i] += 1", "a[0]"),
    (not_copied_to_the_device, add_one, "a[i] += 1", "a[0]"),
    (some_bytes_of_each_number, add_one, "a[i] += 1", "a[0]"),
    (copied_from_what_nobody_wrote, add_one, "a[i] += 1", "a[32]"),
    (assigned_from_what_nobody_wrote, add_one, "a[i] += 1", "a[0]"),
]


@pytest.mark.parametrize(
    ("program", "kernel", "text", "element"), WRONG, ids=[one[0].__name__ for one in WRONG]
)
@pytest.mark.usefixtures("engine")
def test_a_read_of_what_nothing_has_written_is_found(
    program: Callable[[], None], kernel, text: str, element: str
) -> None:
    with simulator(stop=False) as report:
        program()
    (found,) = report.findings
    assert (found.kind, found.kernel) == ("uninitialised", kernel.py_func.__name__)
    with open(found.file, encoding="utf-8") as file:
        assert text in file.read().splitlines()[found.line - 1]
    assert str(found.what).startswith(f"{element} is read before a copy or a kernel has written")
    assert "Fill the array before" in str(found)


def filled_by_a_kernel():
    a, out = cuda.device_array(N), cuda.device_array(N - 2)
    ramp[2, 32](a)
    neighbours[2, 32](a, out)
    assert (out.copy_to_host() == 2 * np.arange(1, N - 1)).all()


def written_before_it_is_read():
    in_two_steps[2, 32](cuda.device_array(N, np.int16))


def only_the_filled_part_is_read():
    a = cuda.device_array(N)
    ramp[1, 20](a[:20])
    add_one[1, 32](a[:20])
    a[20:] = 3.0
    add_one[2, 32](a)
    assert (a.copy_to_host() == [*range(2, 22), *[4] * (N - 20)]).all()


def cleared_in_the_kernel():
    totals = cuda.device_array(3, np.int64)
    count_from_zero[1, 32](totals)
    count[2, 32](totals)
    assert totals.copy_to_host().sum() == 96


def by_exchanges():
    a = cuda.device_array(N, np.int32)
    exchange[2, 32](a)
    add_one[2, 32](a)


def other_columns_by_another_launch():
    a, out = cuda.device_array((20, 5), np.float32), cuda.device_array(20, np.float32)
    columns[1, 32](a, 2, 5)
    columns[1, 32](a, 0, 2)
    row_sums[1, 32](a, out)
    assert (out.copy_to_host() == 5 * np.arange(20)).all()


def through_views():
    a = cuda.device_array((6, 8), np.float32)
    columns[1, 32](a.T, 0, 6)
    add_one[2, 32](a.reshape(48))
    b = cuda.device_array(2 * N, np.float32)
    ramp[2, 32](b[::2])
    ramp[2, 32](b[1::2])
    add_one[3, 32](b.view(np.int32))


def from_another_device_array():
    a, b = cuda.device_array(N), cuda.to_device(np.ones(N))
    a.copy_to_device(b)
    add_one[2, 32](a)
    c = cuda.to_device(np.ones(N), to=cuda.device_array(N))
    add_one[2, 32](c)


def copied_with_a_margin_that_nobody_reads():
    a, b = cuda.device_array((1, N)), cuda.to_device(np.ones((N, 1)))
    ramp[1, 20](a[0, :20])
    b.copy_to_device(a.reshape(N, 1))
    add_one[1, 32](b[:20, 0])
    b[20:] = a[0, :1]
    add_one[2, 32](b[:, 0])
    assert (b.copy_to_host()[:, 0] == [*range(2, 22), *[1] * (N - 20)]).all()


def records_with_bytes_between_their_fields():
    a, b = cuda.device_array(N, PADDED), cuda.device_array(N, PADDED)
    fill_records[2, 32](a)
    copy_records[2, 32](a, b)
    c = cuda.device_array(N, PADDED)
    c.copy_to_device(b)
    d = cuda.device_array(N, PADDED)
    copy_records[2, 32](c, d)
    assert (d.copy_to_host()["n"] == np.arange(N)).all()


def copied_back_only():
    out = np.zeros(N)
    in_two_steps[2, 32](cuda.Out(out))
    assert (out == np.arange(1, N + 1)).all()


def in_a_stream():
    stream = cuda.stream()
    a = cuda.device_array(N, stream=stream)
    ramp[2, 32, stream](a)
    add_one[2, 32, stream](a)
    stream.synchronize()


def by_code_that_has_its_address():
    a = cuda.device_array(N)
    np.asarray(a.__cuda_array_interface__["host"])[:] = 1
    add_one[2, 32](a)


def many_arrays_one_after_the_other():
    for _ in range(5):
        a = cuda.device_array(N)
        ramp[2, 32](a)
        add_one[2, 32](a)


RIGHT = [
    filled_by_a_kernel, written_before_it_is_read, only_the_filled_part_is_read,
    cleared_in_the_kernel, by_exchanges, other_columns_by_another_launch, through_views,
    from_another_device_array, copied_with_a_margin_that_nobody_reads, copied_back_only,
    records_with_bytes_between_their_fields,
    in_a_stream, by_code_that_has_its_address, many_arrays_one_after_the_other,
]  # fmt: skip


@pytest.mark.parametrize("program", RIGHT)
def test_what_is_written_first_is_no_finding(program: Callable[[], None], engine: float) -> None:
    with simulator(stop=False) as report:
        program()
    assert not report.findings
    # The engine that explains looks at atomics that only write, and at records.
    if program not in (by_exchanges, records_with_bytes_between_their_fields):
        assert report.compiled == (report.launches if engine == ALWAYS else 0)


@pytest.mark.usefixtures("engine")
def test_a_finding_is_not_repeated_by_the_launches_after_it() -> None:
    with simulator(stop=False) as report:
        a = cuda.device_array(N)
        add_one[2, 32](a)
        add_one[2, 32](a)
    assert len(report.findings) == 1
