"""Seeded orders: a launch runs in more orders of its blocks and warps, each named by its seed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, int32

from convlab import SimulationError, simulate
from convlab.simulation.host.programs import DependsOnOrder
from convlab.simulation.rules.orders import USUAL, Order

pytestmark = pytest.mark.same_in_cudasim
SEEDS = range(12)


@cuda.jit
def third_block_first(count, a):
    """Wrong if block 2 of five comes first, as it does neither forwards nor backwards."""
    if cuda.threadIdx.x == 0:
        place = cuda.atomic.add(count, 0, 1)
        if place == 0 and cuda.blockIdx.x == 2:
            a[5] = 1
        a[place] = 1


@cuda.jit
def fourth_warp_first(count, a):
    """The same with the warps of a block that has shared memory and barriers."""
    place = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        place[0] = 0
    cuda.syncthreads()
    if cuda.laneid == 0 and cuda.atomic.add(place, 0, 1) == 0 and cuda.threadIdx.x == 96:
        a[5] = 1
    cuda.syncthreads()
    count[0] = 5


@cuda.jit
def interleaved(count, a):
    """Wrong if another warp comes between two atomics of warp 1 with nothing else changed."""
    if cuda.laneid == 0:
        first = cuda.atomic.add(count, 0, 1)
        second = cuda.atomic.add(count, 0, 1)
        if cuda.threadIdx.x == 32 and second - first == 3:
            a[5] = 1


@cuda.jit
def winner(claim, who):
    """Right if any winner will do."""
    if cuda.atomic.cas(claim, 0, 0, 1) == 0:
        who[0] = cuda.grid(1)


@cuda.jit
def reversed_twice(a, out):
    """Right in any order."""
    staged, i = cuda.shared.array(128, int32), cuda.threadIdx.x
    for k in range(2):
        staged[i] = a[i] + k
        cuda.syncthreads()
        out[cuda.grid(1)] += staged[127 - i]
        cuda.syncthreads()
    cuda.atomic.add(a, 128 + i % 7, 1)


def arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(1, np.int32), np.zeros(5, np.int32)


WRONG = [(third_block_first, 5, 32), (fourth_warp_first, 1, 160), (interleaved, 1, 160)]


@pytest.mark.parametrize(("kernel", "grid", "block"), WRONG, ids=lambda one: str(one)[:25])
def test_what_a_seed_finds_is_found_again_by_it(kernel, grid: int, block: int) -> None:
    """The arrays keep the numbers that they have without seeds."""
    usual = arrays()
    simulate(kernel, grid, block, *usual)
    assert usual[0] >= 5

    def said(orders: int, seed: int) -> str:
        given = arrays()
        try:
            simulate(kernel, grid, block, *given, orders=orders, seed=seed)
        except SimulationError as error:
            (finding,) = error.findings
            assert finding.kind == "out of bounds"
            return finding.what
        finally:
            assert all((one == other).all() for one, other in zip(given, usual, strict=True))
        return ""

    alone = {seed: said(1, seed) for seed in SEEDS}
    wrong = [seed for seed, what in alone.items() if what]
    assert 0 < len(wrong) < len(SEEDS), alone
    assert all(alone[seed].endswith(f", seen in the order of seed {seed}") for seed in wrong)
    assert said(len(SEEDS), 0) == alone[wrong[0]]
    assert said(len(SEEDS), wrong[0] + 1) != alone[wrong[0]]


def test_a_right_kernel_is_right_in_any_order() -> None:
    a, out = np.arange(135, dtype=np.int32), np.zeros(512, np.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DependsOnOrder)
        simulate(reversed_twice, 4, 128, a, out, orders=6)
    assert (out.reshape(4, 128) == 2 * np.arange(128)[::-1] + 1).all()
    assert a.sum() == np.arange(135).sum() + 512


def test_a_difference_without_a_mistake_is_noted_with_its_seed() -> None:
    claim, who = np.zeros(1, np.int32), np.zeros(1, np.int32)
    with pytest.warns(DependsOnOrder, match=r"^winner: who\[0\] becomes \d+, .* of seed 30"):
        simulate(winner, 3, 64, claim, who, orders=3, seed=30)


def test_an_order_has_each_block_and_warp_once() -> None:
    assert [*USUAL.blocks(4)] == [0, 1, 2, 3]
    assert [*Order(backwards=True).blocks(3)] == [2, 1, 0]
    orders = {tuple(Order.seeded(seed).blocks(5)) for seed in SEEDS}
    assert len(orders) > len(SEEDS) // 2
    assert all(sorted(order) == [*range(5)] for order in orders)
    assert USUAL.random("atomics") is None


@pytest.mark.parametrize(("name", "value"), [("orders", -1), ("seed", -1), ("seed", 1.5)])
def test_a_number_of_orders_and_a_seed_are_counts(name: str, value: object) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{name} is {value}: it must be"):
        simulate(winner, 1, 1, *arrays(), **{name: value})


PROGRAM = """
import numpy as np
from numba import cuda

@cuda.jit
def third_block_first(count, a):
    place = cuda.atomic.add(count, 0, 1)
    if place == 0 and cuda.blockIdx.x == 2:
        a[5] = 1

def test_it():
    third_block_first[5, 1](np.zeros(1, np.int32), np.zeros(5))

if __name__ == "__main__":
    test_it()
"""


@pytest.mark.slow
def test_programs_and_suites_take_seeds(
    command, suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_program.py").write_text(PROGRAM)
    assert command("run", "test_program.py").returncode == 0
    done = command("run", "--orders", "12", "--json", "-", "test_program.py")
    (finding,) = json.loads(done.stdout)["findings"]
    seed = int(finding["what"].rpartition(" ")[2])
    assert done.returncode == 1
    assert "1 failed" in suite("--cuda=strict", "--cuda-orders=1", f"--cuda-seed={seed}").stdout
    done = command("run", "--orders", "1", "--seed", str(seed), "test_program.py")
    assert f"seen in the order of seed {seed}" in done.stderr
    done = suite("--cuda=strict", "--cuda-orders=-1")
    assert done.returncode == 4
    assert done.stderr.strip() == "ERROR: orders is -1: it must be at least 0 and below 2**31"
