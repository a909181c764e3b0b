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
]


def races(function: Any, grid: int, block: int) -> list[Any]:
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
