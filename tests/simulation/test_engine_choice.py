"""The choice of launches that run as machine code: by their own time, by that of the launches
before them, and by where the machine code is. The clock is one of these tests."""

from __future__ import annotations

import gc
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock
from weakref import WeakKeyDictionary, ref

import numpy as np
import pytest
from numba import cuda

import convlab
from convlab.simulation.compiled import (
    compiled_run,
    engine_choice,
    kernel_history,
    kernel_variants,
    kernels,
    runtime,
)
from convlab.simulation.compiled.engine_choice import EngineChoice, Limits
from convlab.simulation.compiled.kernel_history import KernelHistory
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.host import programs

pytestmark = pytest.mark.same_in_cudasim

BLOCKS, THREADS = 11, 32
F = np.float32
NEVER = Limits.all_at(float("inf"))
# Of a launch on the first engine. Two that are not long are long together.
TINY, SHORT, MEDIUM, LONG = 0.01, 0.1, 1.8, 2.2


class Machine:
    """A machine with a clock of its own: the next launch takes ``seconds`` on the first engine, and
    compiling its kernel is expected to take ``compiling``, by which no launch is compiled at first.
    ``ends`` are those of its last launch as machine code, ``compiled`` are the names of kernels
    that it has compiled, ``said`` is what it has said to the user."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.seconds = self.now = 0.0
        self.compiling = float("inf")
        self.estimated = engine_choice._compiling_seconds
        self.ends: list[str] = []
        self.compiled: list[str] = []
        self.said: list[str] = []
        self._patch()

    def _patch(self) -> None:
        run, compile_kernel = compiled_run.CompiledRun.run, kernels._compiled

        def tried(launch: Any) -> None:
            self.ends.append("found")
            try:
                run(launch)
                self.ends[-1] = "compiled"
            except NeedsGreenlets as why:
                self.ends[-1] = str(why)
                raise

        def noted(function: Any, *more: Any) -> Any:
            self.compiled.append(function.__name__)
            return compile_kernel(function, *more)

        patch = self._monkeypatch.setattr
        patch(compiled_run.CompiledRun, "run", tried)
        patch(kernels, "_compiled", noted)
        patch(programs, "progress", lambda: self._on_block)
        patch(engine_choice, "thread_time", lambda: self.now)
        patch(engine_choice, "say", self.said.append)
        patch(engine_choice, "limits", Limits())
        patch(engine_choice, "_compiling_seconds", lambda launch: self.compiling)

    def begin_process(self) -> None:
        """Forget what a process knows."""
        self._monkeypatch.setattr(kernel_history, "histories", kernel_history.Histories())
        self._monkeypatch.setattr(kernel_variants, "_known", WeakKeyDictionary())

    def _on_block(self, kernel: str, number: int, blocks: int) -> None:
        self.now += self.seconds / blocks

    def launch(self, kernel: Any, seconds: float, *arguments: Any, **options: Any) -> str:
        """Simulate a launch that takes so many seconds on the first engine. Return its end as
        machine code, or an empty text if that is not tried."""
        self.ends.clear()
        self.seconds = seconds
        given = arguments or (np.ones(BLOCKS * THREADS, F), np.zeros(BLOCKS * THREADS, F))
        convlab.simulate(kernel, BLOCKS, THREADS, *given, **options)
        return "".join(self.ends)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Return a machine that has launched no kernel, and keeps none on disk."""
    runtime.load()  # what all kernels share, from the usual folder
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path))
    monkeypatch.setenv("CONVLAB_CACHE_LIMIT", "100")
    made = Machine(monkeypatch)
    made.begin_process()
    return made


def scaled_by(factor: Any) -> Any:
    @cuda.jit
    def scaled(a, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a[i] * factor

    return scaled


@cuda.jit
def first_come(taken, out):
    if cuda.atomic.exch(taken, 0, 1) == 0:
        out[0] = 7


def launch_first_come(machine: Machine, seconds: float) -> str:
    """Launch a kernel that is not compiled, because the result of an exchange is used."""
    return machine.launch(first_come, seconds, np.zeros(1, np.int32), np.zeros(1, np.int32))


def first_come_of(number: int) -> Any:
    @cuda.jit
    def first(taken, out):
        if cuda.atomic.exch(taken, 0, 1) == 0:
            out[0] = number

    return first


@cuda.jit
def numbered(a, size, out):
    i = cuda.grid(1)
    out[i] = cuda.atomic.add(size, 0, a[i])


def test_a_launch_that_takes_long_is_compiled(machine):
    assert machine.launch(scaled_by(2), LONG) == "compiled"


Events = Sequence[tuple[int, float]]  # blocks that begin or come to a barrier, and when


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Events, int], int | None]:
    """Return a function that takes the events of a launch and the number of its blocks. It returns
    the block at which the launch ends because it takes longer than two seconds."""

    def ends_at(events: Events, blocks: int) -> int | None:
        monkeypatch.setattr(engine_choice, "limits", NEVER._replace(alone=2.0))
        watch = engine_choice.Watch(lambda kernel, number, blocks: None)
        watch.choice = EngineChoice(Mock(), KernelHistory(), in_memory=0.0, compiling=float("inf"))
        for number, now in events:
            monkeypatch.setattr(engine_choice, "thread_time", lambda now=now: now)
            try:
                watch("f", number, blocks)
            except engine_choice._TakesLong:
                return number
        return None

    return ends_at


def begun_at(*times: float) -> Events:
    """Return the events of blocks without barriers that begin at these times."""
    return [*enumerate(times)]


def test_the_time_before_the_first_block_does_not_count(watched):
    assert watched(begun_at(9.0, 9.4, 9.8, 10.2), 4) is None
    assert watched(begun_at(9.0, 9.4, 9.8, 10.2), 6) == 2


def test_one_slow_block_does_not_count(watched):
    assert watched(begun_at(0.0, 1.0, 1.1, 1.2, 1.3), 11) is None
    assert watched(begun_at(0.0, 0.1, 1.2, 1.3, 1.4), 11) is None
    assert watched(begun_at(0.0, 1.0, 1.9, 2.8), 3) == 2
    assert watched(begun_at(0.0, 2.1), 2) == 1


def test_a_block_that_has_waited_for_others_is_not_the_last_that_began(watched):
    events = [*begun_at(0.0, 0.3, 0.6, 0.9, 1.2), (0, 1.3), (1, 1.4), (2, 1.5)]
    assert watched(events, 5) is None


def test_the_block_that_runs_counts_as_no_whole_one(watched):
    late_barriers = [(number, number / 10 + late) for number in range(11) for late in (0.0, 0.09)]
    assert watched(late_barriers, 11) is None
    assert watched(late_barriers, 31) == 2  # 3.1 seconds


def test_a_pause_before_a_barrier_does_not_count(watched):
    for slow in range(40):
        events = []
        for number in range(40):
            begin = 0.005 * number + (0.2 if number > slow else 0.0)
            events += [(number, begin), (number, begin + (0.202 if number == slow else 0.002))]
        assert watched(events, 40) is None, slow


def test_a_block_that_takes_long_counts_at_its_barriers(watched):
    assert watched([*begun_at(0.0, 0.1, 0.2, 0.3), (3, 1.9), (3, 2.1)], 5) == 3
    assert watched([*begun_at(0.0, 0.1, 0.2, 0.3), (3, 1.9)], 5) is None


def test_the_look_on_disk_is_no_part_of_a_launch(machine, monkeypatch):
    def slow_look(*_: Any) -> bool:
        machine.now += LONG
        return False

    monkeypatch.setattr(kernel_variants, "is_kept", slow_look)
    kernel = scaled_by(2)
    assert [machine.launch(kernel, Limits().on_disk) for _ in range(2)] == ["", ""]


def test_a_launch_is_compiled_if_what_is_left_of_it_takes_longer_than_compiling(machine):
    machine.compiling = 0.3
    kernel = scaled_by(2)
    assert machine.launch(kernel, 0.25) == ""
    assert machine.launch(kernel, 0.4) == "compiled"
    assert machine.compiled == ["scaled"]


def test_a_launch_that_is_almost_over_is_not_compiled(monkeypatch):
    choice = EngineChoice(Mock(), KernelHistory(), in_memory=0.0, compiling=0.3)
    monkeypatch.setattr(EngineChoice, "_needs_only_the_kernel", lambda self: True)
    monkeypatch.setattr(engine_choice, "limits", NEVER)
    choice.look(0.5, spent=0.3)
    assert choice.least == 0.6  # it is asked again no sooner
    choice.look(0.65, spent=0.4)
    with pytest.raises(engine_choice._TakesLong):
        choice.look(0.65, spent=0.35)


def test_arrays_that_take_long_to_copy_count_as_compiling_does(machine, monkeypatch):
    copy = engine_choice.Outcome.unnamed

    def slow_copy(hosts: list[np.ndarray]) -> Any:
        machine.now += 0.1
        return copy(hosts)

    monkeypatch.setattr(engine_choice.Outcome, "unnamed", slow_copy)
    machine.compiling = 0.1
    assert machine.launch(scaled_by(2), 0.3) == ""
    assert machine.launch(scaled_by(3), 0.6) == "compiled"


def test_no_short_launch_waits_for_more_than_its_kernel(machine, monkeypatch):
    machine.compiling = 0.1
    monkeypatch.setattr(compiled_run, "_is_shared_code_there", lambda: False)
    assert machine.launch(scaled_by(2), MEDIUM) == ""
    assert machine.launch(scaled_by(3), LONG) == "compiled"


def test_no_short_launch_waits_for_another_thread(machine, monkeypatch):
    machine.compiling = 0.1
    monkeypatch.setattr(compiled_run.CompiledRun, "run", lambda launch: pytest.fail("it waits"))
    with compiled_run._one_at_a_time:
        assert machine.launch(scaled_by(2), MEDIUM) == ""


def test_a_short_launch_that_cannot_be_compiled_is_passed_over_in_silence(machine):
    """Nobody has waited for it. Launches that take long, alone or together, say why."""

    machine.compiling = 0.1
    why = "the result of an exchange is used"
    assert [launch_first_come(machine, 0.15) for _ in range(2)] == [why, ""]
    assert machine.said == []
    assert [launch_first_come(machine, 0.9) for _ in range(3)] == [
        "",
        why,
        "",
    ]  # in five orders each
    assert machine.said == [f"first_come takes long, and is not compiled: {why}"]
    assert machine.compiled == ["first_come"]


def test_a_launch_that_was_expected_to_be_short_and_is_not_says_why_it_is_not_compiled(machine):
    machine.compiling = 0.1
    given = np.zeros(1, np.int32), np.zeros(1, np.int32)
    begin = machine._on_block

    def slower_at_the_second_time(kernel: str, number: int, blocks: int) -> None:
        begin(kernel, number, blocks)
        machine.now += LONG / blocks if machine.ends else 0.0

    machine._on_block = slower_at_the_second_time
    machine.launch(first_come, 0.4, *given)
    assert len(machine.said) == 1


def test_a_refusal_on_disk_does_not_end_a_short_launch(machine):
    why = "the result of an exchange is used"
    assert launch_first_come(machine, LONG) == why
    machine.begin_process()
    machine.compiling = 0.1
    assert [launch_first_come(machine, 0.4) for _ in range(2)] == ["", ""]
    assert machine.compiled == ["first_come"]


def test_a_short_launch_in_vain_does_not_keep_later_ones_from_machine_code(machine):
    machine.compiling = 0.1
    ends = ends_with_a_race(machine, BLOCKS, 0.4, 0.4, MEDIUM, MEDIUM)
    assert ends == ["found", "", "", "found"]


def test_a_large_kernel_and_loading_what_all_share_take_longer(machine, monkeypatch):
    seconds = []
    estimated = machine.estimated
    monkeypatch.setattr(
        engine_choice, "_compiling_seconds", lambda launch: seconds.append(estimated(launch)) or 9.0
    )
    arrays = np.ones(BLOCKS * THREADS, F), np.ones(BLOCKS * THREADS, F)
    machine.launch(scaled_by(2), TINY)
    machine.launch(reads_too_early, TINY, *arrays, 0)
    monkeypatch.setattr(runtime, "is_loaded", lambda: False)
    machine.launch(scaled_by(3), TINY)
    small, large, loading = seconds
    assert engine_choice.SECONDS_A_KERNEL < small < large
    assert loading == pytest.approx(small + engine_choice.SECONDS_OF_LOADING)


def test_launches_that_take_long_together_are_compiled(machine):
    kernel = scaled_by(2)
    ends = [machine.launch(kernel, MEDIUM) for _ in range(4)]
    assert ends == ["", "compiled", "compiled", "compiled"]
    assert machine.compiled == ["scaled"]


def test_many_short_launches_are_compiled_once_they_have_taken_long(machine):
    kernel = scaled_by(2)
    ends = [machine.launch(kernel, SHORT) for _ in range(40)]
    first = ends.index("compiled")
    assert ends == [""] * first + ["compiled"] * (40 - first)
    # The clock leaves out the first of a launch's blocks.
    assert Limits().together - SHORT <= first * SHORT * (BLOCKS - 1) / BLOCKS < Limits().together


def test_launches_that_gain_nothing_are_not_compiled(machine):
    kernel = scaled_by(2)
    assert machine.launch(kernel, LONG) == "compiled"
    assert machine.launch(kernel, SHORT) == "compiled"
    assert machine.launch(kernel, TINY) == ""


def test_launches_whose_arrays_take_long_to_copy_gain_less(machine, monkeypatch):
    kernel = scaled_by(2)
    assert machine.launch(kernel, LONG) == "compiled"
    copy = engine_choice.Outcome.unnamed

    def slow_copy(hosts: list[np.ndarray]) -> Any:
        machine.now += SHORT / 3
        return copy(hosts)

    monkeypatch.setattr(engine_choice.Outcome, "unnamed", slow_copy)
    assert machine.launch(kernel, SHORT) == ""
    assert machine.launch(kernel, 2 * SHORT) == "compiled"


def test_kernels_and_types_count_each_for_itself(machine):
    one, other = scaled_by(2), scaled_by(3)
    doubles = np.ones(BLOCKS * THREADS), np.zeros(BLOCKS * THREADS)
    assert machine.launch(one, MEDIUM) == machine.launch(other, MEDIUM) == ""
    assert machine.launch(one, MEDIUM, *doubles) == ""
    assert machine.launch(one, MEDIUM) == "compiled"


def test_machine_code_on_disk_is_used_soon(machine):
    assert machine.launch(scaled_by(2), LONG) == "compiled"
    machine.begin_process()
    kernel = scaled_by(2)
    assert machine.launch(kernel, SHORT) == ""
    assert machine.launch(kernel, Limits().on_disk) == "compiled"
    assert machine.launch(kernel, SHORT) == "compiled"
    assert machine.compiled == ["scaled"]


def test_what_is_not_on_disk_is_looked_for_once(machine, monkeypatch):
    looked_for: list[str] = []
    is_kept = kernel_variants.is_kept

    def noted(function: Any, *more: Any) -> bool:
        looked_for.append(function.__name__)
        return is_kept(function, *more)

    monkeypatch.setattr(kernel_variants, "is_kept", noted)
    kernel = scaled_by(2)
    assert [machine.launch(kernel, Limits().on_disk) for _ in range(4)] == [""] * 4
    assert (looked_for, machine.compiled) == (["scaled"], [])


def test_machine_code_on_disk_of_a_kernel_that_is_made_anew_is_not_in_memory(machine):
    assert machine.launch(scaled_by(2), LONG) == "compiled"
    ends = [machine.launch(scaled_by(2), SHORT) for _ in range(12)]
    assert ends.count("compiled") == 2
    assert machine.compiled == ["scaled"]


def test_a_refused_kernel_that_is_made_anew_is_not_tried_again(machine):
    why = "the result of an exchange is used"
    given = np.zeros(1, np.int32), np.zeros(1, np.int32)
    ends = [machine.launch(first_come_of(1), LONG, *given) for _ in range(3)]
    assert (ends, machine.compiled) == ([why, "", ""], ["first"])


def test_a_refused_kernel_is_not_tried_again_and_that_is_said_once(machine):
    ends, results = [], []
    for seconds in (MEDIUM, MEDIUM, MEDIUM, LONG):
        taken, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
        ends.append(machine.launch(first_come, seconds, taken, out))
        results.append(int(out[0]))
    why = "the result of an exchange is used"
    assert ends == ["", why, "", ""]
    assert machine.said == [f"first_come takes long, and is not compiled: {why}"]
    assert results == [7] * 4


def test_a_refusal_that_is_on_disk_is_not_tried_by_short_launches(machine):
    why = "the result of an exchange is used"
    assert launch_first_come(machine, LONG) == why
    machine.begin_process()
    assert [launch_first_come(machine, Limits().on_disk) for _ in range(2)] == [""] * 2
    assert launch_first_come(machine, LONG) == why
    assert machine.compiled == ["first_come"]


def test_after_a_refusal_by_what_a_launch_does_only_long_launches_are_tried(machine):
    def launch(seconds: float, number: int) -> str:
        numbers = np.full(BLOCKS * THREADS, number, np.int32)
        given = numbers, np.zeros(1, np.int32), np.zeros_like(numbers)
        return machine.launch(numbered, seconds, *given)

    why = "an atomic reads what other threads may change"
    assert launch(LONG, number=0) == why
    assert [launch(MEDIUM, number=1) for _ in range(3)] == [""] * 3
    assert launch(LONG, number=1) == "compiled"
    assert launch(LONG, number=0) == why
    assert machine.said == [f"numbered takes long, and is not compiled: {why}"]


@cuda.jit
def reads_too_early(a, out, blocks):
    i = cuda.grid(1)
    if cuda.blockIdx.x < blocks:
        out[i] = out[cuda.blockIdx.x * cuda.blockDim.x] + a[i]
    else:
        out[i] = a[i]


def ends_with_a_race(machine: Machine, wrong_blocks: int, *seconds: float) -> list[str]:
    """Return the ends of launches some of whose blocks have a race."""
    ends = []
    for one in seconds:
        arrays = np.ones(BLOCKS * THREADS, F), np.zeros(BLOCKS * THREADS, F)
        with pytest.raises(convlab.SimulationError, match="global race"):
            machine.launch(reads_too_early, one, *arrays, wrong_blocks)
        ends.append("".join(machine.ends))
    return ends


@pytest.mark.slow
def test_the_shared_machine_code_loads_by_itself():
    """It calls the switch of threads by its symbol: without it the process would end."""
    code = """
from convlab.simulation.compiled import compiled_run, runtime
print(len(runtime.load()))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, int(ended.stdout) > 10) == (0, True), ended.stderr


def test_shared_machine_code_is_not_added_after_it_was_loaded(machine):
    with pytest.raises(RuntimeError, match="imported after the shared machine code was loaded"):

        @runtime.shared_code("void()")
        def too_late() -> None:
            pass


def test_launches_in_which_few_blocks_are_wrong_stay_machine_code(machine):
    """A suite may accept the finding. Launches with a finding count for the time of all."""
    ends = ends_with_a_race(machine, 1, MEDIUM, MEDIUM, SHORT, TINY, LONG)
    assert ends == ["", "found", "found", "", "found"]
    assert machine.compiled == ["reads_too_early"]


def test_launches_with_findings_of_the_first_engine_count_for_the_time(machine):
    @cuda.jit
    def moved(a, out):
        i = cuda.grid(1)
        out[i + 1] = a[i]

    a = np.ones(BLOCKS * THREADS, F)
    with pytest.raises(convlab.SimulationError, match="out of bounds"):
        machine.launch(moved, MEDIUM, a, np.zeros_like(a))
    assert machine.launch(moved, MEDIUM, a, np.zeros(a.size + 1, F)) == "compiled"


def test_after_findings_in_most_blocks_only_long_launches_are_tried(machine):
    ends = ends_with_a_race(machine, BLOCKS, LONG, MEDIUM, MEDIUM, LONG)
    assert ends == ["found", "", "", "found"]


def test_a_kernel_that_is_made_anew_goes_on_with_its_history(machine):
    ends = [machine.launch(scaled_by(2), MEDIUM) for _ in range(4)]
    assert ends == ["", "compiled", "compiled", "compiled"]
    assert machine.compiled == ["scaled"]


def test_a_kernel_that_is_made_anew_and_not_kept_is_compiled_only_when_it_pays(
    machine, monkeypatch
):
    monkeypatch.setenv("CONVLAB_CACHE_LIMIT", "0")
    ends = [machine.launch(scaled_by(2), MEDIUM) for _ in range(6)]
    assert ends == ["", "compiled"] * 3


def test_a_kernel_with_new_device_functions_is_another_one(machine):
    def calls_a_function_of_its_own() -> Any:
        @cuda.jit(device=True)
        def twice(x):
            return 2 * x

        return scaled_by_call(twice)

    ends = [machine.launch(calls_a_function_of_its_own(), MEDIUM) for _ in range(3)]
    assert ends == [""] * 3


def scaled_by_call(function: Any) -> Any:
    @cuda.jit
    def scaled(a, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = function(a[i])

    return scaled


@pytest.mark.parametrize(
    "values",
    [(2, 2.0, np.int64(2), np.float32(2), np.float64(2)), (True, 1), (0.0, -0.0)],
    ids=["numbers", "bool", "signs"],
)
def test_equal_values_of_closures_make_other_kernels(machine, values):
    assert [machine.launch(scaled_by(value), MEDIUM) for value in values] == [""] * len(values)
    assert machine.launch(scaled_by(values[0]), MEDIUM) == "compiled"


def test_equal_values_in_tuples_make_other_kernels(machine):
    def scaled_by_the_first_of(factors: Any) -> Any:
        @cuda.jit
        def scaled(a, out):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = a[i] * factors[0]

        return scaled

    values = [(2, (3,)), (2.0, (3,)), (2, (3.0,))]
    assert [machine.launch(scaled_by_the_first_of(one), MEDIUM) for one in values] == [""] * 3
    assert machine.launch(scaled_by_the_first_of((2, (3,))), MEDIUM) == "compiled"


CELL = """
from numba import cuda

@cuda.jit
def scaled(a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = {expression}
"""


def from_cell(file: Path, expression: str, **globals_: Any) -> Any:
    """Return the kernel of a notebook's cell that runs again."""
    file.write_text(CELL.format(expression=expression))
    return runpy.run_path(str(file), globals_)["scaled"]


def test_values_of_globals_make_other_kernels(machine, tmp_path):
    file, expression = tmp_path / "cell.py", "a[i] * FACTOR"
    ends = [
        machine.launch(from_cell(file, expression, FACTOR=factor), MEDIUM)
        for factor in (2, 2.0, 2, 2.0)
    ]
    assert ends == ["", "", "compiled", "compiled"]


def test_a_kernel_that_calls_a_corrected_device_function_is_another_one(machine, tmp_path):
    file, expression = tmp_path / "cell.py", "a[shifted(i)]"
    wrong = cuda.jit(device=True)(lambda i: i + 1)
    right = cuda.jit(device=True)(lambda i: i)
    with pytest.raises(convlab.SimulationError, match="out of bounds"):
        machine.launch(from_cell(file, expression, shifted=wrong), LONG)
    kernel = from_cell(file, expression, shifted=right)
    assert [machine.launch(kernel, MEDIUM) for _ in range(2)] == ["", "compiled"]


def test_a_kernel_of_a_module_that_changes_is_another_one(machine, tmp_path):
    file, expression = tmp_path / "cell.py", "a[i] * helpers.FACTOR"
    helpers = ModuleType("helpers")
    for factor in (2, 3):
        helpers.FACTOR = factor
        assert machine.launch(from_cell(file, expression, helpers=helpers), MEDIUM) == ""


def test_equal_kernels_of_two_files_count_each_for_itself(machine, tmp_path):
    one, other = (from_cell(tmp_path / name, "2 * a[i]") for name in ("one.py", "other.py"))
    assert machine.launch(one, MEDIUM) == machine.launch(other, MEDIUM) == ""
    assert machine.launch(one, MEDIUM) == "compiled"


def test_a_kernel_that_reads_its_globals_again_is_another_one(machine, tmp_path):
    doubled = cuda.jit(device=True)(lambda x: 2 * x)
    kernel = from_cell(tmp_path / "cell.py", "scaling(a[i])", scaling=doubled)
    assert machine.launch(kernel, MEDIUM) == ""
    with convlab.simulator():
        kernel.recompile()
    assert machine.launch(kernel, MEDIUM) == ""
    assert machine.launch(kernel, MEDIUM) == "compiled"


def test_histories_of_the_last_kernels_only_are_kept(machine, monkeypatch):
    monkeypatch.setattr(kernel_history, "MOST", 2)
    for factor in (1, 2, 3):
        machine.launch(scaled_by(factor), MEDIUM)
    assert len(kernel_history.histories) == 2
    assert [machine.launch(scaled_by(factor), MEDIUM) for factor in (2, 1)] == ["compiled", ""]


def test_a_history_ends_with_its_kernel(machine):
    @cuda.jit(device=True)
    def twice(x):
        return 2 * x

    kernel = scaled_by_call(twice)
    assert machine.launch(kernel, SHORT) == ""
    alive, count = ref(kernel), len(kernel_history.histories)
    del kernel
    gc.collect()
    assert (alive(), len(kernel_history.histories)) == (None, count - 1)


@pytest.mark.parametrize("options", [{"orders": 1}, {"typed": False}], ids=str)
def test_launches_that_only_the_first_engine_runs_are_not_counted(machine, options):
    kernel = scaled_by(2)
    assert [machine.launch(kernel, LONG, **options) for _ in range(2)] == [""] * 2
    assert not kernel_history.histories


def test_the_report_counts_launches_that_are_long_together(machine):
    kernel = scaled_by(2)
    machine.seconds = MEDIUM
    with convlab.simulator() as report:
        for _ in range(3):
            kernel[BLOCKS, THREADS](np.ones(352, F), np.zeros(352, F))
    assert report.summary() == "nothing found in 3 launches, 2 compiled"
