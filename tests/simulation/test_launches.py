"""Launches that cannot happen, or that end before their end: said once, wherever programs run."""

from __future__ import annotations

import inspect
import json
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convlab import SimulationError, simulate, simulator
from convlab.simulation.rules.findings import NotSimulated

pytestmark = pytest.mark.same_in_cudasim

with simulator():
    from numba import cuda, float32


@cuda.jit
def ones(x):
    x[0] = 1


@cuda.jit
def dynamic(x):
    own, rest = cuda.shared.array(12288, float32), cuda.shared.array(0, float32)
    own[0] = rest[0] = 1
    x[0] = own[0]


TABLE = np.zeros(8193)


@cuda.jit
def constants(x):
    x[0] = cuda.const.array_like(TABLE)[0]


X = np.zeros(3)
IMPOSSIBLE: dict[str, tuple[Callable[[], Any], str]] = {
    "threads of a block": (lambda: ones[(1, 1), (32, 64)](X), "are 2048 threads: a block has 1 to"),
    "block z": (lambda: ones[1, (1, 1, 65)](X), "has 65 along z: 1 to 64 are allowed"),
    "grid y": (lambda: ones[(1, 65536), 1](X), "has 65536 along y: 1 to 65535"),
    "grid z": (lambda: ones[(1, 1, 65536), 1](X), "has 65536 along z: 1 to 65535"),
    "grid x": (lambda: ones[2**31, 1](X), "must be at least 1 and below"),
    "no blocks": (lambda: ones[0, 32](X), "Launch at least one block of one thread"),
    "no threads": (lambda: ones[1, (32, 0)](X), r"block is \(32, 0, 1\): it must be at least 1"),
    "less than none": (lambda: ones[-1, 32](X), "grid is .*-1.*: it must be at least 1"),
    "dynamic memory": (lambda: ones[1, 1, 0, 232449](X), "shared_bytes is 232449: a block has 0"),
    "negative memory": (lambda: ones[1, 1, 0, -4](X), "shared_bytes is -4: it must be at least 0"),
    "both memories": (lambda: dynamic[1, 1, 0, 200_000](X), "200000 of them dynamic.*less shared"),
    "constants": (lambda: constants[1, 1](X), "65544 bytes of constant memory.*as an argument"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_launch_that_cannot_happen_is_one_finding_with_its_line(name: str) -> None:
    launch, what = IMPOSSIBLE[name]
    with simulator(stop=False) as report:
        with pytest.raises(SimulationError, match=what) as caught:
            launch()
        with pytest.raises((ValueError, MemoryError)):  # as ordinary Python has it
            launch()
    (finding,) = report.findings
    assert (finding.kind, finding.count) == ("impossible launch", 2)
    assert finding.file == __file__ == caught.value.findings[0].file
    line = linecache.getline(__file__, finding.line)
    assert f'"{name}": (' in line or "cuda.shared.array(" in line or "cuda.const" in line
    assert report.summary() == "1 finding in 2 launches"


def test_a_single_launch_says_the_same() -> None:
    line = inspect.currentframe().f_lineno + 2
    with pytest.raises(ValueError, match="are 2048 threads") as caught:
        simulate(ones, 1, 2048, X)
    assert [(one.kind, one.line) for one in caught.value.findings] == [("impossible launch", line)]


PROGRAM = """
import sys
import numpy as np
from numba import cuda, float32

@cuda.jit(device=True)
def positive(x):
    if x > 0:
        kept = x
    return kept

@cuda.jit
def unset(x, out):
    out[0] = positive(x[0])

@cuda.jit
def staged(x):
    S = cuda.shared.array(16384, float32)
    S[0] = x[0]
    x[0] = S[0]

@cuda.jit
def indexed(x):
    x[1.5] = 1

def unset_in_a_device_function(): unset[1, 1](np.zeros(1), np.zeros(1))
def too_many_threads(): staged[(1, 1), (32, 64)](np.zeros(1))
def too_much_shared_memory(): staged[1, 1](np.zeros(1))
def list_for_an_array(): unset[1, 1]([1.0], np.zeros(1))
def one_too_many(): unset[1, 1](np.zeros(1), np.zeros(1), 3)
def read_only(): staged[1, 1](np.broadcast_to(np.zeros(1), 1))

if __name__ == "__main__":
    globals()[sys.argv[1]]()
"""
ENDS = {  # the program's function: exit status, its only line, the summary
    "unset_in_a_device_function": (
        1, "program.py:10: uninitialised, unset, line 10 of program.py: kept has no value here: "
        "this thread has passed no line that sets it (line 9)", "1 finding in 1 launch",
    ),
    "too_many_threads": (
        1, "program.py:27: impossible launch, staged, line 27 of program.py: (32, 64, 1) are 2048",
        "1 finding in 1 launch",
    ),
    "too_much_shared_memory": (
        1, "program.py:18: impossible launch, staged, line 18 of program.py: 65536 bytes of shared",
        "1 finding in 1 launch",
    ),
    "list_for_an_array": (
        2, "unset: x is a list, [1.0]: a kernel takes numbers",
        "nothing found in 1 launch, 1 refused",
    ),
    "one_too_many": (
        2, "unset: too many positional arguments: it takes x, out, and the launch gives 3",
        "nothing found in 1 launch, 1 refused",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_a_program_s_summary_tells_of_its_launch(command, folder: Path, name: str) -> None:
    (folder / "program.py").write_text(PROGRAM)
    status, line, summary = ENDS[name]
    done = command("run", "--json", "found.json", "program.py", name)
    assert done.returncode == status, done.stderr
    *_, ended, told, last = done.stderr.splitlines()  # on a busy machine progress comes first
    assert ended.startswith("convlab: the program ended at its launch in ")
    assert told.startswith(line)
    assert "Traceback" not in done.stderr
    assert last == f"convlab: {summary}"
    assert json.loads((folder / "found.json").read_text())["ok"] is False


def test_a_suite_fails_with_the_same_lines(suite, folder: Path) -> None:
    tests = "".join(f"def test_{name}(): {name}()\n" for name in ENDS)
    (folder / "test_program.py").write_text(PROGRAM.replace('"__main__"', '"program"') + tests)
    told = suite("-rA", "--cuda=strict", "test_program.py").stdout
    assert f"{len(ENDS)} failed" in told
    for _, line, _ in ENDS.values():
        line = line.replace("program.py", "test_program.py")
        assert told.count(line) >= 1, told
    assert "Traceback" not in told


def test_an_exception_that_is_no_finding_is_counted_and_shows_the_program_alone(
    command, folder
) -> None:
    """A copy back into a read-only array fails on a GPU too."""
    (folder / "program.py").write_text(PROGRAM.replace("16384", "16"))
    done = command("run", "--json", "found.json", "program.py", "read_only")
    assert done.returncode == 1
    assert done.stderr.endswith("convlab: nothing found in 1 launch, 1 ended with an exception\n")
    assert "ValueError: assignment destination is read-only" in done.stderr
    assert "simulation" not in done.stderr
    (raised,) = json.loads((folder / "found.json").read_text())["raised"]
    assert raised == "staged: ValueError: assignment destination is read-only"


def test_arguments_are_given_by_position() -> None:
    with (
        simulator(),
        pytest.raises(TypeError, match=r"ones: .* by position, and x is given by name"),
    ):
        ones[1, 1](x=X)


class Foreign:
    """An array of another library."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (1,), "typestr": "<f8", "data": (0, False), "version": 3}


def test_an_array_of_another_library_is_named() -> None:
    with (
        simulator() as report,
        pytest.raises(NotSimulated, match=r"ones: x is not on the device: .* of a Foreign"),
    ):
        ones[1, 1](Foreign())
    assert report.summary() == "nothing found in 1 launch, 1 refused"
