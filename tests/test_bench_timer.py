"""The number of repeats, and the host's clock; the GPU's clock is tried on a GPU."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from cuda.bindings import driver
from numba.cuda.core import config

if config.ENABLE_CUDASIM:  # it has no streams to time on
    pytest.skip("Numba runs as its CUDA simulator", allow_module_level=True)

from convlab.measuring import gpu_backend, timer
from convlab.measuring.gpu_backend import GpuBackend, Look, why_busy
from convlab.measuring.timer import AT_MOST_MS, MOST_REPEATS, REPEATS, enough, measure_host, warm_up

pytestmark = pytest.mark.same_in_cudasim


@pytest.mark.parametrize(
    ("sample_ms", "options", "counts"),
    [
        (1.0, {}, range(REPEATS, 50)),
        (1.0, {"spread_percent": 2.0}, (20, 40)),  # looked at every 20 repeats
        (AT_MOST_MS, {"spread_percent": 2.0}, range(5, 50)),
        (50.0, {"at_most_ms": 500.0}, range(10, 50)),
        (50.0, {}, range(REPEATS, 50)),
    ],
)
def test_after_which_repeats_there_are_enough(sample_ms, options, counts):
    assert [n for n in range(1, 50) if enough([sample_ms] * n, **options)] == [*counts]
    wild = [1.0, 2.0] * MOST_REPEATS  # goes on to the most
    assert [n for n in range(1, MOST_REPEATS + 1) if enough(wild[:n], 2.0)] == [MOST_REPEATS]


@pytest.mark.parametrize(
    ("run_ms", "runs"), [(720.0, 1), (100.0, 1), (60.0, 2), (49.0, 3), (0.01, 3)]
)
def test_warming_up_ends_once_it_took_a_tenth_of_a_second(run_ms, runs):
    """The clock goes on while somebody waits."""
    done, clock = [], [5.0]

    def wait():
        done.append("waited")
        clock[0] += run_ms / 1e3

    warm_up(lambda: done.append("started"), wait, lambda: clock[0])
    assert done == ["started", "waited"] * runs


def test_the_host_is_timed_by_its_clock():
    calls = []
    timing = measure_host(lambda stream: time.sleep(0.05), lambda: calls.append("poisoned"), 175)
    assert calls == ["poisoned"]
    assert 50 <= timing.median_ms < 500
    assert 3 <= timing.repeats <= 4


REPEAT = [
    "event", "event", "empty", "begin.record", "start", "end.record", "end.synchronize",
    "event_elapsed_time",
]  # fmt: skip


@pytest.mark.parametrize("as_graph", [True, False])
def test_the_host_makes_and_awaits_nothing_between_emptying_l2_and_the_work(monkeypatch, as_graph):
    """Or the GPU has nothing to do meanwhile, and its waiting is timed."""
    cuda = Mock()
    cuda.stream.return_value = Mock(handle=7)
    cuda.event.side_effect = cycle([cuda.begin, cuda.end])
    cuda.event_elapsed_time.return_value = 2 * timer.AT_MOST_MS
    cuda.start.return_value = (driver.CUresult.CUDA_SUCCESS,)
    cuda.flusher.return_value = nullcontext(cuda.empty)
    monkeypatch.setattr(timer, "cuda", cuda)
    launches = SimpleNamespace(CUresult=driver.CUresult, cuGraphLaunch=cuda.start)
    monkeypatch.setattr(timer, "driver", launches)
    monkeypatch.setattr(timer, "WARM_UP", 0)
    monkeypatch.setattr(timer, "captured", lambda *of: nullcontext("graph"))
    monkeypatch.setattr(timer, "_flusher", cuda.flusher)
    timing = timer.measure(lambda stream: None if as_graph else cuda.start(), as_graph=as_graph)
    assert timing.repeats == timer.FEWEST_REPEATS
    called = [name for name, *_ in cuda.mock_calls]
    assert called[-len(REPEAT) * timing.repeats :] == REPEAT * timing.repeats
    cuda.event_elapsed_time.assert_called_with(cuda.begin, cuda.end)
    for one in (cuda.flusher, cuda.begin.record, cuda.end.record):
        one.assert_called_with(cuda.stream.return_value)


def test_what_a_call_raises_while_it_is_captured_is_told(monkeypatch):
    """And not that the driver then has no graph to give."""
    ended = []
    invalidated = driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    capturing = SimpleNamespace(
        CUresult=driver.CUresult,
        CUstreamCaptureMode=driver.CUstreamCaptureMode,
        cuStreamBeginCapture=lambda *of: (driver.CUresult.CUDA_SUCCESS,),
        cuStreamEndCapture=lambda *of: (ended.append(of) or invalidated, None),
    )
    monkeypatch.setattr(timer, "driver", capturing)
    call = Mock(side_effect=ValueError("the workspace is too small"))
    with pytest.raises(ValueError, match="too small"), timer.captured(call, Mock(handle=7)):
        pass
    assert ended == [(7,)]  # a stream that is left capturing is of no use to anybody
    with pytest.raises(RuntimeError, match="INVALIDATED"), timer.captured(Mock(), Mock(handle=7)):
        pass


IDLE = Look(345, 1980, 0, 0, 143000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"utilisation": 3}, None),
        ({"utilisation": 97}, "other processes keep the GPU busy 97 % of the time"),
        ({"used_mib": 900}, None),
        ({"used_mib": 40 * 1024}, "other processes hold 40.0 of the GPU's 140 GiB"),
        ({"utilisation": None, "used_mib": None, "total_mib": None}, None),
    ],
)
def test_a_busy_gpu_is_told(change, said):
    assert why_busy(replace(IDLE, **change)) == said


@pytest.mark.parametrize(
    ("answer", "look", "processes"),
    [
        (["1980, 1985, 0, 12, 143771"], Look(1980, 1985, 0, 12, 143771), ()),
        (["1980, [N/A], 0, 12, 143771"], Look(1980, None, 0, 12, 143771), ()),
        (["4711", " 12 ", "", "[N/A]"], Look(), (4711, 12)),
        ([], Look(), ()),
        (None, Look(), None),
    ],
)
def test_what_nvidia_smi_says(monkeypatch, answer, look, processes):
    monkeypatch.setattr(gpu_backend, "nvidia_smi", lambda *_: answer)
    assert gpu_backend.look("GPU-1") == look
    assert gpu_backend.processes("GPU-1") == processes


@pytest.mark.parametrize(
    ("seen", "expected", "own", "newcomers"),
    [
        ((10, 11, 12), (10, 11, 12), 11, 0),
        ((10, 11, 99), (10, 11, 12), 11, 1),  # one of ours has no context yet: as many as expected
        ((11,), (10, 11, 12), 11, 0),
        ((70, 71, 72), (10, 11, 12), 11, 0),  # other numbers: outside of a container
        ((70, 71, 72, 73), (10, 11, 12), 11, 1),
        ((), (10, 11, 12), 11, None),  # not even ours are seen
        (None, (10, 11), 11, None),
        ((10, 11), None, 11, None),
    ],
)
def test_newcomers_are_told_by_their_numbers_where_those_are_seen(seen, expected, own, newcomers):
    assert gpu_backend.newcomers(seen, expected, own) == newcomers


def test_a_process_that_measures_knows_its_own_number(monkeypatch):
    place = SimpleNamespace(_uuid="GPU-1", allowed=[os.getpid(), 2])  # without a GPU
    monkeypatch.setattr(gpu_backend, "processes", lambda gpu: (os.getpid(), 3))
    assert GpuBackend.others(place)() == 1
