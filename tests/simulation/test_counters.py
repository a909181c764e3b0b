"""Loops that do not end because their counter wraps: found at once, and what wraps is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.cases import kernel_function
from numba import cuda, int8, int16, int32, int64, uint8, uint16, uint32  # noqa: F401  for kernels

from convlab.running.engines.simulator import SimulationError
from convlab.simulation.host.programs import simulate

N, WIDE = 300, 2**31
WRAPS = {  # the kernel's lines, what is said
    "uint8": (
        ["i = uint8(0)", "while i < 300:", "    i = uint8(i + 1)", "a[0] = i"],
        "i is uint8, which goes on from 255 to 0, so it never passes 300",
    ),
    "uint8 and a global": (
        ["i = uint8(0)", "while i < N:", "    i = uint8(i + 1)", "a[0] = i"],
        "i is uint8, which goes on from 255 to 0, so it never passes 300",
    ),
    "down": (
        ["i = uint8(9)", "while i >= 0:", "    i = uint8(i - 1)", "a[0] = i"],
        "i is uint8, which goes on from 255 to 0, so it never passes 0",
    ),
    "int8 and a variable": (
        ["i, n = int8(0), 64", "n *= 2", "while i < n:", "    i = int8(i + 1)", "a[0] = i"],
        "i is int8, which goes on from 127 to -128, so it never passes 128",
    ),
    "int8 and a size": (
        ["i = int8(0)", "while i != a.size:", "    i = int8(i + 3)", "a[0] = i"],
        "i is int8, which goes on from 127 to -128, so it never passes 1000",
    ),
    "int8 and a shape": (
        ["i = int8(0)", "while a.shape[0] - 1 > i:", "    i = int8(i + 1)", "a[0] = i"],
        "i is int8, which goes on from 127 to -128, so it never passes 999",
    ),
    "int16": (
        ["i = int16(0)", "while i < 40_000:", "    i = int16(i + 1)", "a[0] = i"],
        "i is int16, which goes on from 32767 to -32768, so it never passes 40000",
    ),
    "uint16 and a break": (
        ["i = uint16(0)", "while True:", "    i = uint16(i + 7)", "    if i >= 2**16:",
         "        break", "a[0] = i"],
        "i is uint16, which goes on from 65535 to 0, so it never passes 65536",
    ),
    "uint32": (
        ["i = uint32(0)", "while i < 1 << 33:", "    i = uint32(i + 2**20)", "a[0] = i"],
        "i is uint32, which goes on from 4294967295 to 0, so it never passes 8589934592",
    ),
    "int32 and a global": (
        ["i = int32(0)", "while i < WIDE:", "    i = int32(i + 2**20)", "a[0] = i"],
        "i is int32, which goes on from 2147483647 to -2147483648, so it never passes 2147483648",
    ),
    "a step over the bound": (
        ["i = uint8(0)", "while i != 99:", "    i = uint8(i + 2)", "a[0] = i"],
        "i is uint8, which goes on from 255 to 0 ",
    ),
    "local array": (
        ["c = cuda.local.array(1, uint8)", "c[0] = 0", "while c[0] < 300:", "    c[0] += 1"],
        "c[0] is uint8, which goes on from 255 to 0, so it never passes 300",
    ),
    "shared array": (
        ["c = cuda.shared.array(1, int8)", "c[0] = 0", "while c[0] < 300:", "    c[0] += 1"],
        "c[0] is int8, which goes on from 127 to -128, so it never passes 300",
    ),
}  # fmt: skip


def said_of(lines: list[str], a: np.ndarray, **options: Any) -> str:
    kernel = cuda.jit(kernel_function("kernel", "a", lines, said_of))
    with pytest.raises(SimulationError) as caught:
        simulate(kernel, 1, 1, a, **options)
    (finding,) = caught.value.findings
    assert finding.kind == "endless loop"
    return str(finding)


@pytest.mark.parametrize("name", WRAPS)
def test_a_counter_that_wraps_is_named(name: str) -> None:
    lines, what = WRAPS[name]
    said = said_of(lines, np.zeros(1000))
    assert what in said
    assert said.endswith("Count in a wider type, such as int64, or compare with a number that the "
                         "type reaches.")  # fmt: skip
    assert "10,000,000" not in said


def test_a_counter_in_an_array_of_the_launch_is_named() -> None:
    lines = ["while a[0] < 300:", "    a[0] += 1"]
    said = said_of(lines, np.zeros(1, np.uint8))
    assert "a[0] is uint8, which goes on from 255 to 0, so it never passes 300" in said


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("lines", [
    ["k, step = 8, 0", "while k > 0:", "    k -= step", "a[0] = k"],
    ["k = uint8(3)", "while k:", "    a[1] = 2", "a[0] = k"],
    ["c = cuda.local.array(2, uint8)", "c[0] = c[1] = 0", "while c[0] < 1:", "    c[1] += 1"],
])  # fmt: skip
def test_a_loop_that_changes_nothing_is_told_to(lines: list[str], typed: bool) -> None:
    said = said_of(lines, np.zeros(2), typed=typed)
    assert said.endswith(". Change inside the loop a value that its condition tests.")


@pytest.mark.parametrize("lines", [
    ["k = 0", "while k < 20_000:", "    k += 1", "a[0] = k"],
    ["i = uint8(0)", "n = 0", "while n < 20_000:", "    i = uint8(i + 1)", "    n += 1",
     "a[0] = n"],
    ["i = uint16(0)", "n = 0", "while i != 65_535:", "    i = uint16(i + 1)", "a[0] = i"],
])  # fmt: skip
def test_long_loops_end(lines: list[str]) -> None:
    a = np.zeros(2)
    simulate(cuda.jit(kernel_function("kernel", "a", lines, said_of)), 1, 2, a)
    assert a[0] in (20_000, 65_535)
