"""Reads of unified memory by the host: cheap for large memory, exact for parts, and polls end."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda

from convlab.simulation.host.host_accesses import HostAccesses, UnifiedMemory
from convlab.simulation.host.programs import simulator
from convlab.simulation.host.stream_order import Operation
from convlab.simulation.memory.touched import Touched
from convlab.simulation.rules.finding_words import MANAGED
from convlab.simulation.rules.findings import Finding, NotSimulated

N = 8


@cuda.jit
def increment(a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        a[i] += 1


@cuda.jit
def increment_all(a: Any) -> None:
    i, j = cuda.grid(2)
    if i < a.shape[0] and j < a.shape[1]:
        a[i, j] += 1


@pytest.fixture
def matrix() -> Iterator[tuple[Any, Any]]:
    """Yield a managed matrix whose first column a launch is incrementing, and the report."""
    with simulator(stop=False) as report:
        shared = cuda.managed_array((N, 3))
        shared[:] = 0
        increment[1, N](shared[:, 0])
        yield shared, report


PARTS: dict[str, Callable[[Any], Any]] = {
    "all": lambda shared: shared,
    "column": lambda shared: shared[:, 0],
    "row": lambda shared: shared[2],
    "columns": lambda shared: shared[:, :2],
    "backwards": lambda shared: shared[::-1, 0],
    "bytes": lambda shared: shared.view(np.uint8)[3:, 7],
}
OTHER_PARTS: dict[str, Callable[[Any], Any]] = {
    "column": lambda shared: shared[:, 1],
    "columns": lambda shared: shared[:, 1:],
    "end of a row": lambda shared: shared[2, 1:],
    "backwards": lambda shared: shared[::-1, 2],
    "no elements": lambda shared: shared[:0],
    "bytes": lambda shared: shared.view(np.uint8)[3:, 8],
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_part_that_changes_is_read_too_early(matrix: Any, part: Callable[[Any], Any]) -> None:
    shared, report = matrix
    part(shared).sum()
    cuda.synchronize()
    (finding,) = report.findings
    assert "the host reads managed memory that increment may not have written" in finding.what


@pytest.mark.parametrize("part", OTHER_PARTS.values(), ids=OTHER_PARTS)
def test_a_part_that_stays_may_be_read(matrix: Any, part: Callable[[Any], Any]) -> None:
    shared, report = matrix
    part(shared).sum()
    cuda.synchronize()
    assert not report.findings


def test_an_early_read_of_more_than_what_the_host_has_overwritten_is_found(matrix: Any) -> None:
    shared, report = matrix
    shared[0, 0] = 7
    shared.sum()
    cuda.synchronize()
    reads, writes = sorted(finding.what for finding in report.findings)
    assert reads.startswith("the host reads managed memory")
    assert writes.startswith("the host writes to managed memory")


def test_a_read_of_large_memory_takes_as_much_as_it_reads() -> None:
    memory, before = np.ones(1 << 20), np.zeros(1 << 20)
    findings: list[Finding] = []
    accesses = HostAccesses(findings.append)
    operation = Operation("fill", __file__, 1, 1, 1, Touched())
    accesses.hide(operation, [UnifiedMemory(memory, before, MANAGED)])
    tracemalloc.start()
    try:
        for begin in range(50):
            accesses.host_reads(memory[begin : begin + 2])
            accesses.host_reads(memory[begin::4096])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < memory.nbytes // 20
    accesses.host_waited({1: 1})
    assert (memory == 1).all()
    assert len(findings) == 1


def test_a_poll_that_sleeps_ends_by_time() -> None:
    with simulator() as report:
        shared = cuda.managed_array(N)
        shared[:] = 0
        increment[1, N](shared)
        tries = 0
        while shared[3] == 0:
            time.sleep(0.06)
            tries += 1
        assert tries <= 3
    assert not report.findings


def test_one_late_read_is_no_poll() -> None:
    with simulator(stop=False) as report:
        shared = cuda.managed_array(N)
        shared[:] = 0
        increment[1, N](shared)
        time.sleep(0.06)
        assert shared[3] == 0
        time.sleep(0.06)
        assert shared[3] == 0  # at another place
        cuda.synchronize()
    assert [finding.kind for finding in report.findings] == ["stream race"]


@pytest.mark.parametrize("name", ["managed_array", "mapped_array"])
def test_unified_memory_with_gaps_is_refused(name: str) -> None:
    with simulator():
        make = getattr(cuda, name)
        for strides in (64, 8), (32, 0):
            with pytest.raises(NotSimulated, match=r"memory with strides=.* overlap or leave gaps"):
                make((4, 4), strides=strides)
        assert make((4, 2), strides=(8, 32)).flags.f_contiguous
        assert make(4, strides=8).flags.c_contiguous


def test_a_kernel_stores_in_mapped_memory_with_gaps() -> None:
    """Such memory is what another library gives."""
    host = np.ndarray((3, 2), buffer=bytearray(3 * 40), strides=(40, 8))
    with simulator(stop=False) as report, cuda.mapped(host) as shared:
        increment_all[1, (4, 4)](shared)
        host[2, 1] = 5
        assert host.tolist() == [[0, 0], [0, 0], [0, 5]]
        cuda.synchronize()
        assert host.tolist() == [[1, 1], [1, 1], [1, 1]]
        assert len(report.findings) == 1  # of what the host has written
        increment_all[1, (4, 4)](shared[:, 1:])
        shared[:, :1].sum()
        cuda.synchronize()
        assert len(report.findings) == 1
        increment_all[1, (4, 4)](shared[:, 1:])
        shared[1:].sum()
        cuda.synchronize()
        assert len(report.findings) == 2
