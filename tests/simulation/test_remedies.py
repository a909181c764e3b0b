"""The remedy of a race: the first one helps, and none would hang."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, int32

from convlab.running.engines.simulator import SimulationError, Simulator
from convlab.simulation.recording.sites import BRANCH
from convlab.simulation.rules import finding_words, remedies
from convlab.simulation.rules.circumstances import update_in
from convlab.support.values import AT_LEAST

pytestmark = pytest.mark.same_in_cudasim
N = 64


def added_by_all(a, out):
    s = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        s[0] = 0
    cuda.syncthreads()
    s[0] += 1
    cuda.syncthreads()
    out[0] = s[0]


def subtracted_by_all(a, out):
    out[0] = out[0] - 1


def joined_by_all(a, out):
    out[cuda.grid(1) % 2] |= cuda.grid(1)


def largest_by_all(a, out):
    out[0] = max(out[0], a[cuda.grid(1)])


def doubled_by_all(a, out):
    out[0] *= 2


def added_in_two_arms(a, out):
    if cuda.grid(1) % 2:
        out[0] += 1
    else:
        out[0] += 2


def added_in_a_loop(a, out):
    for k in range(4):
        out[(cuda.grid(1) + k) % N] += a[k]


def compared_then_stored(a, out):
    i = cuda.grid(1)
    if i > out[0]:
        out[0] = i


def stored_by_two(a, out):
    i = cuda.grid(1)
    out[i % 16] = i


def stored_in_two_arms(a, out):
    if cuda.grid(1) < 16:
        out[0] = 3
    else:
        out[0] = 4


def stored_in_two_steps(a, out):
    i = cuda.grid(1)
    out[N - 1 - i] = 9
    out[i] = i


def read_after_a_store(a, out):
    i = cuda.grid(1)
    a[i] = i
    out[i] = a[N - 1 - i]


def tree_without_barriers(a, out):
    i, step = cuda.grid(1), N // 2
    while step > 0:
        if i < step:
            a[i] += a[i + step]
        step //= 2


def read_in_a_branch(a, out):
    s = cuda.shared.array(16, int32)
    i = cuda.threadIdx.x
    if i < 16:
        s[i] = a[i]
        out[i] = s[15 - i]


def counted_under_a_lock(a, out):
    while cuda.atomic.cas(a, 0, 0, 1) != 0:
        pass
    out[0] += 1
    cuda.atomic.exch(a, 0, 0)


def counted_under_a_lock_by_exchange(a, out):
    while cuda.atomic.exch(a, 0, 1) == 1:
        pass
    out[0] += 1
    cuda.threadfence_block()
    out[1] = out[0]
    cuda.atomic.exch(a, 0, 0)


@cuda.jit(device=True)
def take(lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass


@cuda.jit(device=True)
def free(lock):
    cuda.atomic.exch(lock, 0, 0)


def counted_under_a_lock_of_functions(a, out):
    take(a)
    out[0] += 1
    free(a)


def counted_under_a_lock_of_tickets(a, out):
    mine = cuda.atomic.add(a, 0, 1)
    while cuda.atomic.add(a, 1, 0) != mine:
        pass
    out[0] += 1
    cuda.atomic.add(a, 1, 1)


def read_without_the_lock(a, out):
    i = cuda.grid(1)
    if i % 2:
        while cuda.atomic.cas(a, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        out[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(a, 0, 0)
    else:
        out[i] = out[0]


def told_by_a_flag(a, out):
    i = cuda.grid(1)
    if i == N - 1:
        out[0] = 5
        cuda.atomic.exch(a, 0, 1)
    if i == 0:
        while cuda.atomic.add(a, 0, 0) == 0:
            pass
        out[1] = out[0]


def told_by_a_flag_read_before(a, out):
    i = cuda.grid(1)
    if i == N - 1:
        out[0] = 5
        cuda.atomic.exch(a, 0, 1)
    if i == 0:
        ready = cuda.atomic.add(a, 0, 0)
        while ready == 0:
            ready = cuda.atomic.add(a, 0, 0)
        out[1] = out[0]


def told_by_a_plain_flag(a, out):
    i = cuda.grid(1)
    if i == N - 1:
        out[0] = 5
        a[0] = 1
    if i == 0:
        while a[0] == 0:
            pass
        out[1] = out[0]


def scaled_by_the_first(a, out):
    s = cuda.shared.array(N, int32)
    i = cuda.threadIdx.x
    s[i] = a[i]
    cuda.syncthreads()
    less = i - s[0]
    s[i] = less
    cuda.syncthreads()
    out[i] = s[i]


def first_one_doubled_by_one_thread(a, out):
    s = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        s[0] = 3
    cuda.syncthreads()
    first = s[0]
    if i == 0:
        s[0] = first * 2
    out[i] = first


def neighbours_averaged_in_place(a, out):
    i = cuda.grid(1)
    for _ in range(3):
        if 0 < i < N - 1:
            mean = (out[i - 1] + out[i] + out[i + 1] + i) // 3
            out[i] = mean


def exchanged_in_steps(a, out):
    """Odd-even sort."""
    i = cuda.threadIdx.x
    out[i] = N - i
    cuda.syncthreads()
    for step in range(4):
        if i % 2 == step % 2 and i < N - 1:
            if out[i] > out[i + 1]:
                low = out[i + 1]
                out[i + 1] = out[i]
                out[i] = low


def largest_of_sixteen(a, out):
    i = cuda.grid(1)
    if i > out[i % 16]:
        out[i % 16] = i


def largest_of_sixteen_in_steps(a, out):
    i = cuda.grid(1)
    for step in range(4):
        if i + step > out[i % 16]:
            out[i % 16] = i + step
        cuda.syncthreads()


def largest_of_a_place_in_memory(a, out):
    i = cuda.grid(1)
    place = a[i]
    for step in range(4):
        if i > out[place + step]:
            out[place + step] = i


def first_free_place(a, out):
    i = cuda.grid(1)
    place = a[i]
    while out[place] != 0:
        place = (place + 1) % N
    out[place] = i + 1


@cuda.jit(device=True)
def root_of(parent, node):
    while parent[node] != 0:
        node = parent[node]
    return node


def joined_by_their_roots(a, out):
    root = root_of(out, 0)
    if root != cuda.grid(1) + 1:
        out[root] = cuda.grid(1) + 1


@cuda.jit(device=True)
def neighbour_of(s, i):
    return s[(i + 1) % N]


def shifted_by_a_function(a, out):
    i = cuda.threadIdx.x
    value = neighbour_of(out, i)
    out[i] = value + i


def pushed_on_a_list(a, out):
    i = cuda.grid(1)
    a[i] = out[0]
    out[0] = i


def taken_by_one_thread(a, out):
    s = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        s[0] = 5
    cuda.syncthreads()
    a[i] = s[0]
    if i == 0:
        s[0] = 6


def place_read_again(a, out):
    i = cuda.grid(1)
    cuda.atomic.add(a, 0, 1)
    out[a[0] - 1] = i


def place_read_again_into_a_variable(a, out):
    i = cuda.grid(1)
    if i % 3 == 0:
        cuda.atomic.add(a, 0, 1)
        place = a[0] - 1
        out[place] = i


def share_of_a_count(a, out):
    i = cuda.grid(1)
    cuda.atomic.add(a, i % 4, 1)
    out[i] = a[i % 4] * 100


def largest_by_the_leaders_of_warps(a, out):
    i = cuda.threadIdx.x
    largest = out[0]
    if cuda.laneid == 0:
        out[0] = max(largest, a[i] + i)


def largest_by_each_32nd_thread(a, out):
    i = cuda.threadIdx.x
    largest = out[0]
    if i % 32 == 0:
        out[0] = max(largest, a[i] + i)


def largest_by_half_the_threads(a, out):
    i = cuda.threadIdx.x
    half = i & 1
    largest = out[0]
    if half == 0:
        out[0] = max(largest, a[i] + i)


def largest_by_the_first_block(a, out):
    i = cuda.threadIdx.x
    largest = out[0]
    if cuda.blockIdx.x == 0:
        out[0] = max(largest, a[i] + i)


def largest_of_each_block(a, out):
    i, b = cuda.threadIdx.x, cuda.blockIdx.x
    largest = out[cuda.blockIdx.x]
    out[b] = max(largest, a[i] + i)


def largest_by_each_row_of_a_block(a, out):
    i = cuda.threadIdx.x
    largest = out[0]
    if i == 0:
        out[0] = max(largest, a[i] + cuda.threadIdx.y)


def first_of_a_block_doubled_by_one_thread(a, out):
    i, b = cuda.grid(1), cuda.blockIdx.x
    first = out[b]
    if i == b * cuda.blockDim.x:
        out[b] = first * 2 + 1
    a[i] = first


ATOMIC, FENCE, BARRIER = "cuda.atomic.", "threadfence", "syncthreads"
OWN = "Let each element belong to one thread"
ROWS = [
    # The kernel, what the remedy begins with, and what it must not name.
    (added_by_all, "Use cuda.atomic.add", BARRIER),
    (subtracted_by_all, "Use cuda.atomic.sub", BARRIER),
    (joined_by_all, "Use cuda.atomic.or_", BARRIER),
    (largest_by_all, "Use cuda.atomic.max", BARRIER),
    (doubled_by_all, OWN, BARRIER),
    (added_in_two_arms, "Use cuda.atomic.add", BARRIER),
    (added_in_a_loop, "Use cuda.atomic.add", BARRIER),
    (compared_then_stored, "Use an atomic that does both", BARRIER),
    (stored_by_two, OWN, BARRIER),
    (stored_in_two_arms, OWN, BARRIER),
    (stored_in_two_steps, OWN, ATOMIC),
    (read_after_a_store, "Put cuda.syncthreads() between", FENCE),
    (tree_without_barriers, "Put cuda.syncthreads() between", FENCE),
    (read_in_a_branch, "End the branch between the two accesses", FENCE),
    (counted_under_a_lock, "Put cuda.threadfence() before", BARRIER),
    (counted_under_a_lock_by_exchange, "Put cuda.threadfence() before", BARRIER),
    (counted_under_a_lock_of_functions, "Put cuda.threadfence() before", BARRIER),
    (counted_under_a_lock_of_tickets, "Put cuda.threadfence() before", BARRIER),
    (read_without_the_lock, "Take the same lock around both accesses", BARRIER),
    (told_by_a_flag, "Put cuda.threadfence() before", BARRIER),
    (told_by_a_flag_read_before, "Put cuda.threadfence() before", BARRIER),
    (told_by_a_plain_flag, "Put cuda.threadfence() before", BARRIER),
    (scaled_by_the_first, "Put cuda.syncthreads() between", "cas"),
    (first_one_doubled_by_one_thread, "Put cuda.syncthreads() between", "cas"),
    (neighbours_averaged_in_place, "End the branch between the two accesses", "cas"),
    (exchanged_in_steps, "Put cuda.syncthreads() at the end of each step", "cas"),
    (largest_of_sixteen, "Use an atomic that does both", BARRIER),
    (largest_of_sixteen_in_steps, "Use an atomic that does both", BARRIER),
    (largest_of_a_place_in_memory, "Use an atomic that does both", BARRIER),
    (first_free_place, "Use an atomic that does both", BARRIER),
    (joined_by_their_roots, "Use an atomic that does both", BARRIER),
    (shifted_by_a_function, "Put cuda.syncthreads() between", "cas"),
    (pushed_on_a_list, "Use cuda.atomic.exch", BARRIER),
    (taken_by_one_thread, "Put cuda.syncthreads() between", "exch"),
    (largest_by_the_leaders_of_warps, "Use an atomic that does both", BARRIER),
    (largest_by_each_32nd_thread, "Use an atomic that does both", BARRIER),
    (largest_by_half_the_threads, "Use an atomic that does both", BARRIER),
    (largest_by_the_first_block, "Use an atomic that does both", BARRIER),
    (largest_of_each_block, "Use an atomic that does both", BARRIER),
    (first_of_a_block_doubled_by_one_thread, "Put cuda.syncthreads() between", "cas"),
    (place_read_again, "Use the number that the thread's own atomic returns", BARRIER),
    (place_read_again_into_a_variable, "Use the number that the thread's own", BARRIER),
    (share_of_a_count, "Put cuda.syncthreads() between", "own atomic returns"),
]


def races(function: Any, grid: int, block: int | tuple[int, int]) -> list[Any]:
    """The races that are found, but for that for a flag itself."""
    arrays = np.zeros(N, np.int32), np.zeros(N, np.int32)
    with pytest.raises(SimulationError) as caught:
        Simulator().launch(cuda.jit(function), grid, block, *arrays)
    races = [one for one in caught.value.findings if one.kind.endswith("race")]
    return [one for one in races if "plain load polls" not in one.what]


@pytest.mark.parametrize(
    ("function", "begins", "never"), ROWS, ids=[row[0].__name__ for row in ROWS]
)
def test_the_first_remedy_of_a_race_in_a_block_helps(function, begins, never) -> None:
    found = races(function, 1, N)
    assert found
    for finding in found:
        assert finding.remedy.startswith(begins), str(finding)
        assert never not in finding.remedy, str(finding)


def test_one_number_of_a_thread_lets_a_column_of_a_block_through() -> None:
    for finding in races(largest_by_each_row_of_a_block, 1, (8, 8)):
        assert finding.remedy.startswith("Use an atomic that does both"), str(finding)
    for finding in races(largest_by_each_row_of_a_block, 1, (64, 1)):
        assert finding.remedy.startswith("Put cuda.syncthreads() between"), str(finding)


@pytest.mark.parametrize(
    ("function", "begins"),
    [
        (subtracted_by_all, "Use cuda.atomic.sub"),
        (compared_then_stored, "Use an atomic that does both"),
        (stored_by_two, OWN),
        (read_after_a_store, OWN),
    ],
)
def test_a_race_between_blocks_says_that_a_barrier_orders_one_block(function, begins) -> None:
    found = races(function, N, 1)
    assert found
    for finding in found:
        assert finding.remedy.startswith(begins), str(finding)
        assert finding.remedy.endswith("cuda.syncthreads() orders the threads of one block only.")


@pytest.mark.parametrize(
    "function", [row[0] for row in ROWS if row[1].startswith("Put cuda.threadfence")]
)
def test_between_blocks_a_lock_or_flag_needs_a_fence_too(function) -> None:
    for finding in races(function, N, 1):
        assert finding.remedy.startswith("Put cuda.threadfence() before"), str(finding)
        assert BARRIER not in finding.remedy


def shifted_in_place(a, out):
    i = cuda.grid(1)
    if i < N - 1:
        out[i] = out[i + 1]


def shifted_within_blocks(a, out):
    i = cuda.grid(1)
    if i % 16 < 15:
        out[i] = out[i + 1] + 1


def shifted_with_one_barrier_of_the_grid(a, out):
    grid, i = cuda.cg.this_grid(), cuda.grid(1)
    for _ in range(3):
        value = out[(i + 1) % N]
        grid.sync()
        out[i] = value + i


def exchanged_in_steps_of_blocks(a, out):
    i = cuda.grid(1)
    for step in range(4):
        if i % 2 == step % 2 and i < N - 1:
            if out[i] > out[i + 1] - i % 3:
                low = out[i + 1] - i
                out[i + 1] = out[i]
                out[i] = low
        cuda.syncthreads()


def summed_by_the_last_block(a, out):
    """Thread 0 takes the ticket before the others have stored."""
    last = cuda.shared.array(1, int32)
    i = cuda.grid(1)
    out[i] = i
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        last[0] = cuda.atomic.add(a, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0] and cuda.threadIdx.x == 0:
        for k in range(N):
            a[1] += out[k]


def summed_by_the_last_block_with_no_fence(a, out):
    last = cuda.shared.array(1, int32)
    i = cuda.grid(1)
    out[i] = i
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        last[0] = cuda.atomic.add(a, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0] and cuda.threadIdx.x == 0:
        for k in range(N):
            a[1] += out[k]


def copied_by_the_last_block(a, out):
    """Other threads do not wait for the one that takes the ticket."""
    last = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        out[cuda.blockIdx.x] = cuda.blockIdx.x + 1
        cuda.threadfence()
        last[0] = cuda.atomic.add(a, 0, 1)
    if last[0] == cuda.gridDim.x - 1 and i < cuda.gridDim.x:
        a[i + 1] = out[i]


def copied_by_another_thread_of_the_last_block(a, out):
    """As before, and the thread that reads has no race within its block."""
    last = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        out[cuda.blockIdx.x] = cuda.blockIdx.x + 1
        cuda.threadfence()
        last[0] = cuda.atomic.add(a, 0, 1)
    if last[0] == cuda.gridDim.x - 1 and i == 1:
        for k in range(3):
            if k != cuda.blockIdx.x:
                a[k + 1] = out[k]


def told_by_a_narrow_fence(a, out):
    if cuda.grid(1) == 0:
        out[0] = 9
        cuda.threadfence_block()
        cuda.atomic.exch(a, 0, 1)
    elif cuda.threadIdx.x == 0 and cuda.blockIdx.x == 1:
        while cuda.atomic.add(a, 0, 0) == 0:
            pass
        cuda.threadfence_block()
        out[1] = out[0]


def counted_under_a_lock_of_each_block(a, out):
    lock = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        lock[0] = 0
    cuda.syncthreads()
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    out[0] += a[cuda.grid(1)]
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


def counted_after_a_lock_of_each_block(a, out):
    lock = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        lock[0] = 0
    cuda.syncthreads()
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence_block()
    cuda.atomic.exch(lock, 0, 0)
    out[0] += a[cuda.grid(1)]


BLOCKS = [
    # The kernel, what a remedy begins with, and what it contains too.
    (shifted_in_place, "Store to another array", "A barrier is not enough"),
    (shifted_within_blocks, "Put cuda.syncthreads() between", ""),
    (shifted_with_one_barrier_of_the_grid, "Call sync() of cuda.cg.this_grid()", ""),
    (exchanged_in_steps_of_blocks, "Launch the kernel once for each step", "this_grid()"),
    (summed_by_the_last_block, "Put cuda.syncthreads() before that fence", ""),
    (summed_by_the_last_block_with_no_fence, "Let each element", "threadfence"),
    (copied_by_the_last_block, "Put cuda.syncthreads()", ""),
    (copied_by_another_thread_of_the_last_block, "Put cuda.syncthreads()", ""),
    (told_by_a_narrow_fence, "Put cuda.threadfence() before", "cuda.threadfence_block() orders"),
    (counted_under_a_lock_of_each_block, "Keep the lock in global memory", ""),
    (counted_after_a_lock_of_each_block, "Use cuda.atomic.add", ""),
]


@pytest.mark.parametrize(
    ("function", "begins", "contains"), BLOCKS, ids=[row[0].__name__ for row in BLOCKS]
)
def test_the_remedy_of_a_race_in_and_between_blocks_helps_all(function, begins, contains) -> None:
    found = races(function, 4, 16)
    assert found
    for finding in found:
        assert finding.remedy.startswith(begins), str(finding)
        assert contains in finding.remedy, str(finding)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            summed_by_the_last_block,
            "the fence and atomic by which another thread of its block signals that block",
        ),
        (
            copied_by_another_thread_of_the_last_block,
            "after the atomic by which another thread of its block sees the signal",
        ),
    ],
)
def test_threads_signal_blocks(function: Any, says: str) -> None:
    said = "\n".join(map(str, races(function, 4, 16)))
    assert says in said
    assert not {"tells", "hears"} & {*said.split()}


def test_an_update_is_known_by_its_line() -> None:
    lines = added_by_all, largest_by_all, stored_by_two
    file, first = __file__, [one.__code__.co_firstlineno for one in lines]
    assert update_in(file, first[0] + 5) == "+="
    assert update_in(file, first[1] + 1) == "max"
    assert update_in(file, first[2] + 2) == ""


@pytest.mark.parametrize("kind", remedies.REMEDIES)
def test_each_remedy_is_known_by_a_named_piece(kind: str) -> None:
    """The code that words a finding uses the same name, so that it cannot say it otherwise."""
    named = [value for value in vars(finding_words).values() if isinstance(value, str)]
    updates = map(finding_words.NOT_ATOMIC.format, ("+=", "-=", "|=", "&=", "^=", "max", "min"))
    branches = map(BRANCH.format, ("if", "for", "while"))
    *special, last = remedies.REMEDIES[kind]
    assert set(special) <= {*named, *updates, *branches, AT_LEAST}
    assert last == remedies.USUAL


@pytest.mark.parametrize("kind", remedies.REMEDIES)
def test_no_piece_is_code_that_a_finding_could_quote(kind: str) -> None:
    """Else the name of somebody's array could decide the remedy."""
    *special, _ = remedies.REMEDIES[kind]
    for piece in special:
        assert len(piece.split()) > 1, piece
        with pytest.raises(SyntaxError):
            compile(piece.strip(), "piece", "eval")


@pytest.mark.parametrize("kind", remedies.REMEDIES)
def test_each_remedy_is_whole_sentences(kind: str) -> None:
    for remedy in remedies.REMEDIES[kind].values():
        assert remedy[0].isupper()
        assert remedy.endswith(".")


def test_the_first_piece_decides_the_remedy() -> None:
    pinned, written = finding_words.OF_PINNED, finding_words.HOST_WRITES
    what = f"{written} {pinned} while copy_to_host may still fill it"
    kind = finding_words.STREAM_RACE
    assert remedies.remedy_of(kind, what) == remedies.REMEDIES[kind][pinned]


def test_each_case_of_a_kind_can_be_reached() -> None:
    """No case stands below one whose piece its own piece contains."""
    for kind, cases in remedies.REMEDIES.items():
        for piece, remedy in cases.items():
            assert remedies.remedy_of(kind, piece).startswith(remedy), (kind, piece)
