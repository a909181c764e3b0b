"""Every way in which a measurement can go wrong gives a row with a reason and never a number, and
spoils no other row. Systems are fakes; workers are threads, and processes where those matter."""

from __future__ import annotations

import errno
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from bench_fakes import GIB, MACHINE, SPOILED, Fakes, InThread, small_layer, system

from convlab.measuring import cases as all_cases
from convlab.measuring import harness, pool
from convlab.measuring.bounds import Checked, Checker
from convlab.measuring.cases import PASSING, Bench, cases_for, compiled_ahead, estimated_seconds
from convlab.measuring.cases import run as run_cases
from convlab.measuring.pool import Worker, WorkerDied, WorkerPool
from convlab.measuring.results import ResultRow
from convlab.measuring.roofline import Machine
from convlab.problems.oracle import random_tensors
from convlab.problems.workloads import LAYER_NAMES, paper_layer

pytestmark = pytest.mark.same_in_cudasim

FULL = OSError(errno.ENOSPC, "No space left on device")
EXPECTED = {
    "right": ("measured", None),
    "wrong": ("wrong", "1 of 400 outputs is wrong|the error is"),
    "stage_wrong": ("wrong", "1 of 400 outputs is wrong|the error is"),
    "writes_nothing": ("wrong", "it wrote nothing"),
    "skips_one": ("wrong", "1 of 400 outputs are NaN"),
    "wrong_later": ("wrong", "after it was timed, "),
    "tf32": ("measured", None),
    "tf32_too_wrong": ("wrong", "what tf32 may make"),
    "any": ("measured", None),
    "crash": ("failed", "its process was killed by signal 9"),
    "hang": ("failed", "gave no answer in 1 seconds"),
    "sticky": ("failed", "raised RuntimeError: CUDA driver: CUDA_ERROR_ILLEGAL_ADDRESS"),
    "oom": ("out of memory", "Tried to allocate 20.00 GiB"),
    "oom_host": ("out of memory", "stage i01's workspace needs 9 GiB"),
    "oom_driver": ("out of memory", "CUDA_ERROR_OUT_OF_MEMORY"),
    "unsupported": ("unsupported", "CUDNN_STATUS_NOT_SUPPORTED for this filter"),
    "absent": ("absent", "its library is not installed"),
    "above_roofline": ("refused", "a fake GPU can do 60 in fp32 at most"),
    "above_bandwidth": ("refused", "a fake GPU's memory moves 4 at most"),
    "unsteady": ("unsteady", "spread over 45 % of their median"),
    "steady_at_last": ("measured", None),
    "steady_in_turn_2": ("measured", None),
    "busy": ("busy", "2 other processes are on the GPU"),
    "throttled": ("unsteady", "clock fell from 1980 to 1000 MHz"),
    "host": ("measured", None),
    "unknown": ("failed", "KeyError: 'unknown'"),
}


def on(workers):
    return Bench(workers, Machine(**MACHINE), {}, "same")


def run(names, fakes="bench_fakes:Fakes", **options):
    """The rows by system; a name that no fake has is a system that its worker does not know."""
    workers = WorkerPool(fakes, compilers=1, **options)
    systems = [system(name) if name in SPOILED else system("right", name=name) for name in names]
    cases = cases_for(["conv12"], 1, systems)
    try:
        rows = {row.system: row for row in run_cases(cases, on(workers))}
    finally:
        workers.close()
    assert len(rows) == len(names)
    return rows


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(pool, "Worker", InThread)
    monkeypatch.setattr(all_cases, "paper_layer", small_layer)


@pytest.fixture(scope="module")
def rows() -> dict[str, ResultRow]:
    """A row of every fake. Processes are there where one ends or hangs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(all_cases, "paper_layer", small_layer)
        patch.setattr(pool, "Worker", Worker)
        in_processes = run(["crash", "right"]) | run(["hang"], row_seconds=1.0)
        patch.setattr(pool, "Worker", InThread)
        return in_processes | run([name for name in EXPECTED if name not in in_processes])


def test_every_fake_has_a_row_those_that_get_a_second_turn_last(rows):
    """A GPU that was too hot for one row may be well at the end of its layer."""
    again = ["steady_in_turn_2", *(name for name in EXPECTED if EXPECTED[name][0] in PASSING)]
    assert [*SPOILED, "unknown"] == list(EXPECTED)
    assert set(rows) == set(EXPECTED)
    assert sorted([*rows][-len(again) :]) == sorted(again)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_row_has_a_number_or_a_reason(rows, name):
    state, reason = EXPECTED[name]
    row = rows[name]
    assert row.state == state, row.reason
    assert (row.reason is None) == (reason is None)
    assert reason is None or any(words in row.reason for words in reason.split("|"))
    named = (row.time_ms, row.time_spread, row.repeats, row.tflops)
    numbers = [number is not None for number in named]
    assert all(numbers) if state == "measured" else not any(numbers)
    ran = state not in ("failed", "out of memory", "absent", "unsupported")
    assert row.peak_bytes == (GIB if ran and name != "host" else None)
    assert row.workspace_bytes == (12345 if ran else None)


def test_a_row_says_what_it_was_measured_with(rows):
    row = rows["right"]
    assert (row.key, row.algorithm, row.identity) == (("conv12", 1, "right"), "numpy", "same")
    assert (row.time_ms, row.time_spread, row.repeats, row.settled) == (10.0, 0.5, 20, True)
    assert row.tflops == pytest.approx(small_layer("conv12", 1).flops / 10 / 1e9)
    assert row.bound == "fp32"
    assert 0 < row.error_over_bound < 1
    assert row.clocks_mhz == {"before": 1980, "after": 1980, "max": 1980}
    assert row.date.endswith("+00:00")
    # Slower than replays of a graph: launches are in it.
    assert (row.called_ms, row.called_spread) == (12.0, 0.5)
    assert rows["host"].settled is False
    for without in (rows["host"], rows["unsteady"]):
        assert without.called_ms is without.called_spread is None
    assert rows["tf32"].bound == "tf32"
    assert rows["any"].bound in ("fft", "winograd")


NUMBERS = {"time_ms": 1.0, "time_spread": 1.0, "repeats": 3, "tflops": 1.0}


@pytest.mark.parametrize(
    ("state", "values"),
    [
        ("measured", NUMBERS | {"reason": "why"}),
        ("measured", NUMBERS | {"time_ms": None}),
        ("wrong", NUMBERS),
        ("busy", {}),
        ("guessed", NUMBERS),
    ],
)
def test_no_row_has_a_number_and_a_reason(state, values):
    with pytest.raises(ValueError, match="must"):
        ResultRow("conv1", 1, "m01", state, **values)


def test_unsteady_measurements_are_tried_again_and_then_given_up():
    place, problem = Fakes(), small_layer("conv12", 1)
    tensors = random_tensors(problem, 0, bias=False)[:2]
    for name, tries in (("right", 1), ("steady_at_last", 3), ("unsteady", 3), ("busy", 3)):
        chosen = place.system_named(name)
        outcome = harness.measure(chosen, problem, tensors, place, lambda o: Checked("fp32", 0.1))
        assert place.timed == tries
        assert (outcome.time_ms is None) == (name in ("unsteady", "busy"))


def test_compiled_ahead_are_all_kernels_and_each_library_once():
    library = system("wrong", name="built", compile=lambda problem: None)
    systems = [system("right"), library, system("wrong"), system("host")]
    cases = cases_for(["conv11", "conv12"], 1, systems)
    ahead = [(case.layer, case.system.name) for case in compiled_ahead(cases)]
    names = ["right", "right", "built", "wrong"]
    assert ahead == [*zip(["conv11", *["conv12"] * 3], names, strict=True)]


def test_kernels_compile_in_several_processes_a_family_of_baselines_in_its_own(monkeypatch):
    """A library that fails is measured in a new process; a stage's process stays, with the kernels
    that compiled."""
    log = []

    def writes_down(backend, file):
        """A worker that writes down what it is sent, by process."""
        name = file.stem
        failed = name in ("convlab-0", "pytorch")
        return SimpleNamespace(
            send=lambda **command: log.append((name, " ".join(command["systems"]))),
            answer=lambda deadline: {"error": "ImportError"} if failed else {"compiled": True},
            dismiss=lambda: log.append((name, "dismissed")),
            end=lambda: log.append((name, "ended")),
        )

    monkeypatch.setattr(pool, "Worker", writes_down)
    systems = [system("right", name=name) for name in ("s1", "s2")]
    for name, family in (("torch_a", "pytorch"), ("torch_b", "pytorch"), ("blas", "cublas")):
        systems.append(system("tf32", name=name, family=family))
    ahead = compiled_ahead(cases_for(("conv11", "conv12"), 1, systems))
    workers = WorkerPool("bench_fakes:Fakes", compilers=2)
    compiled = workers.compile([(case.problem, case.system) for case in ahead])
    assert len(list(compiled)) == len(ahead)
    log.append("the pool closes")
    workers.close()
    names = ["convlab-0", "convlab-1", "cublas"]
    assert log == [
        ("convlab-0", "s1"), ("convlab-0", "s1"), ("convlab-1", "s2"), ("convlab-1", "s2"),
        ("pytorch", "torch_a torch_b"), ("cublas", "blas"),
        ("pytorch", "ended"),
        "the pool closes",
        *((name, "dismissed") for name in names),  # all, so that they end side by side
        *((name, "ended") for name in names),
    ]  # fmt: skip


def test_whoever_measures_is_told_which_processes_may_be_there(monkeypatch):
    """Idle ones of others, and all of ours: every process that is still there. What is compiled
    stays in the process that measures: there is one of stages and one of the other fakes, and a
    new one after an error that stays."""
    told, opened = [], []

    class Told(Fakes):
        def __init__(self, allowed=None):
            opened.append(self)
            super().__init__(allowed)

        def others(self):
            told.append([*self.allowed])
            return super().others()

    monkeypatch.setattr("bench_fakes.Told", Told, raising=False)
    workers = WorkerPool("bench_fakes:Told", compilers=1, foreign=(77,))
    names = ("absent", "right", "sticky", "wrong", "tf32")
    cases = cases_for(["conv12"], 1, [*map(system, names)])
    states = [row.state for row in run_cases(cases, on(workers))]
    assert states == ["absent", "measured", "failed", "wrong", "measured"]
    ours = [worker.number for worker in workers._workers.values()]
    assert (len(ours), len(opened)) == (2, 3)
    assert told[-1] == [77, *ours]
    workers.close()


def test_libraries_that_are_built_elsewhere_are_waited_for():
    """Three that each wait for the others end only where none is waited for before the last has
    begun."""
    barrier, built = Barrier(3, timeout=20), []

    def build(name):
        barrier.wait()
        time.sleep(0.2)
        built.append(name)

    with ThreadPoolExecutor(3) as builders:
        backend = Mock(system_named=lambda name: system(
            "right", compile=lambda _: builders.submit(build, name)
        ))  # fmt: skip
        answer = harness._answer(backend, None, "compile", systems=["a", "b", "c"], problem=None)
        assert answer == {"compiled": True}
        assert sorted(built) == ["a", "b", "c"]


def test_starting_up_may_take_longer_than_a_row(monkeypatch):
    class Slow(Fakes):
        def __init__(self, allowed=None):
            time.sleep(0.1)
            super().__init__(allowed)

    monkeypatch.setattr("bench_fakes.Slow", Slow, raising=False)
    workers = WorkerPool("bench_fakes:Slow", row_seconds=0.01)
    assert workers.facts()["machine"]["device"] == "a fake GPU"
    assert list(workers.compile([(small_layer("conv12", 1), system("tf32"))])) == [None]
    assert "fakes" in workers._workers  # it has not been ended for being slow
    workers.close()


def test_the_same_bits_are_so_however_they_lie_in_memory():
    one = np.array([0.0, np.nan, 1.5, -2.0] * 6, np.float32).reshape(2, 2, 2, 3)
    other = np.ascontiguousarray(one.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert other.strides != one.strides
    assert harness.same_bits(one, other)
    other[1, 0, 0, 0] *= -1  # minus zero is another number
    assert not harness.same_bits(one, other)
    assert not harness.same_bits(one, one.transpose(0, 1, 3, 2))
    assert not harness.same_bits(one, one.astype(np.float64))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of all that is handed over."""
    monkeypatch.setattr(pool, "FAST_FOLDER", tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_a_backend_that_cannot_open_is_reported_and_nothing_is_left(folder, monkeypatch):
    monkeypatch.setattr(pool, "Worker", Worker)
    workers = WorkerPool("bench_fakes:Nowhere")
    with pytest.raises(WorkerDied, match=r"AttributeError: .*Nowhere"):
        workers.facts()
    workers.close()
    assert list(folder.iterdir()) == []


def test_nothing_is_left_behind_also_of_a_layer_that_was_interrupted(folder):
    """And room for the output is taken before anybody writes there: a process that writes to a hole
    of a file where there is no room left is killed."""
    run(["right", "wrong"])
    assert list(folder.iterdir()) == []
    problem, nothing = paper_layer("conv12", 64), np.zeros(1, np.float32)
    workers = WorkerPool("bench_fakes:Fakes")
    layer = workers.layer(problem, (nothing, nothing))
    layer.__enter__()
    (output,) = folder.glob("*/output.npy")
    assert 512 * output.stat().st_blocks >= 4 * np.prod(problem.output_shape)
    workers.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (MemoryError("Unable to allocate 9 GiB"), "out of memory"),
        (FULL, "out of memory"),
        (OSError(errno.EIO, "Input/output error"), "failed"),
    ],
)
def test_what_the_check_has_no_room_for_is_a_row_and_the_next_is_measured(
    monkeypatch, error, state
):
    check = Mock(side_effect=[error, *[Checked("fp32", 0.1)] * 4])
    monkeypatch.setattr(Checker, "check", check)
    rows = run(["tf32", "wrong", "right"])
    assert [row.state for row in rows.values()] == [state, "measured", "measured"]
    assert rows["tf32"].reason.startswith("the host could not measure or check it: ")
    assert rows["tf32"].reason.endswith(error.args[-1])


@pytest.mark.parametrize(
    ("what", "does", "said"),
    [
        ("convlab.measuring.pool.Worker", {"side_effect": FULL}, "No space left"),
        (
            "convlab.measuring.cases.Checker",
            {"side_effect": MemoryError()},
            "the host cannot hold ",
        ),
        ("os.posix_fallocate", {"side_effect": FULL}, "No space left"),
        ("shutil.disk_usage", {"return_value": Mock(free=10)}, "no room for 0.0 GiB of tensors"),
    ],
)
def test_too_little_room_on_the_host_is_a_row(monkeypatch, what, does, said):
    monkeypatch.setattr(what, Mock(**does))
    for row in run(["right", "tf32"]).values():
        assert row.state == "out of memory"
        assert said in row.reason


def test_out_of_memory_in_every_library_s_words():
    """PyTorch's error, the driver's and Python's are fakes' above, and so are other errors."""
    for said in ("CUDA error: out of memory", "cuDNN: CUDNN_STATUS_ALLOC_FAILED"):
        assert harness.is_out_of_memory(RuntimeError(said))


def test_the_time_left_is_told_by_weights():
    found = [estimated_seconds(paper_layer(name)) for name in LAYER_NAMES]
    assert LAYER_NAMES[found.index(max(found))] == "conv4"
    assert min(found) > 0.5
