"""Engine ``simulator``: what kernels may use, what is counted, what a finding says."""

from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numba
import numpy as np
import pytest
from kernels.cases import kernel_function
from numba import cuda, float32, float64, int8, int32, int64, uint32

from convlab import LADDER, ConvProblem
from convlab.device import commit_copies, copy_async, wait_copies
from convlab.ladder import allowances
from convlab.problems.oracle import Oracle, random_tensors
from convlab.running.engines.cudasim import CudaSim
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan
from convlab.simulation.host.programs import simulate
from convlab.simulation.host.run_report import Report
from convlab.simulation.launch import SimulatedLaunch
from convlab.simulation.memory.touched import Touched
from convlab.simulation.recording.access_log import AccessLog
from convlab.simulation.rules.findings import NotSimulated, SimulationError, error_of
from convlab.tracing.traffic_recorder import TrafficRecorder

F = np.float32
SIM = Simulator()
ALL = 0xFFFFFFFF
WEIGHTS = np.array([2.0, 3.0], np.float32)


def run(kernel: Any, grid: Any, block: Any, *arrays: Any, **more: Any) -> None:
    for engine in (Simulator(strict=False), SIM):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arrays]
        engine.launch(kernel, grid, block, *copies, **more)
    for array, copy in zip(arrays, copies, strict=True):
        if isinstance(array, np.ndarray):
            array[...] = copy


def findings(kernel: Any, grid: Any, block: Any, *arrays: Any, **more: Any) -> tuple:
    with pytest.raises(SimulationError) as caught:
        SIM.launch(kernel, grid, block, *arrays, **more)
    return caught.value.findings


@cuda.jit
def where_am_i(out):
    x, y, z = cuda.grid(3)
    gx, gy, gz = cuda.gridsize(3)
    t, b, d, g = cuda.threadIdx, cuda.blockIdx, cuda.blockDim, cuda.gridDim
    right = x == b.x * d.x + t.x and y == b.y * d.y + t.y and z == b.z * d.z + t.z
    right = right and gx == g.x * d.x and gy == g.y * d.y and gz == g.z * d.z
    right = right and cuda.laneid == (t.x + d.x * (t.y + d.y * t.z)) % cuda.warpsize
    right = right and cuda.lanemask_lt() == 2**cuda.laneid - 1
    out[x, y, z] = right


def test_a_long_launch_says_how_far_it_is(monkeypatch, capsys) -> None:
    monkeypatch.setattr("convlab.support.progress.PROGRESS_SECONDS", 0.0)
    simulate(where_am_i, 3, 2, np.zeros((6, 1, 1), np.bool_))
    first, *_ = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"convlab: where_am_i: block 0 of 3 after \d seconds?; Ctrl-C ends it", first
    )


def test_ctrl_c_is_never_another_error(monkeypatch) -> None:
    """It comes where an access is half noted, in a loop that then notes where threads go on."""

    class Interrupted(list):
        def append(self, site: int) -> None:
            if len(self) == 70:
                raise KeyboardInterrupt
            super().append(site)

    made = AccessLog.__init__

    def with_interrupt(log: AccessLog, *arguments: Any) -> None:
        made(log, *arguments)
        log.sites = Interrupted()

    monkeypatch.setattr(AccessLog, "__init__", with_interrupt)
    with pytest.raises(KeyboardInterrupt) as stopped, SIM.counting():
        SIM.launch(in_a_loop, 1, 32, np.zeros((32, 8), F))
    assert any("in_a_loop was interrupted in" in note for note in stopped.value.__notes__)


@cuda.jit
def in_a_loop(a):
    for n in range(a.shape[1]):
        a[cuda.threadIdx.x, n] += 1


def test_where_a_thread_is() -> None:
    out = np.zeros((6, 8, 6), np.bool_)
    run(where_am_i, (3, 2, 2), (2, 4, 3), out)
    assert out.all()


@cuda.jit
def first_and_last_of_a_group(a, out, groups):
    staged = cuda.shared.array(4, float32)
    staged[1] = staged[2] = staged[3] = float32(-1)
    for k in range(3):
        copy_async(staged, k, a, k, k != 1)
        commit_copies()
    wait_copies(groups)
    for k in range(4):
        out[k] = staged[k]


def test_a_copy_lands_when_it_is_waited_for() -> None:
    a = np.arange(5, 8, dtype=np.float32)
    for groups, right in ((0, [5, 0, 7, -1]), (1, [5, 0, -1, -1]), (2, [5, -1, -1, -1])):
        out = np.zeros(4, np.float32)
        Simulator(strict=False).launch(first_and_last_of_a_group, 1, 1, a, out, groups)
        assert out.tolist() == right
        if groups == 0:
            SIM.launch(first_and_last_of_a_group, 1, 1, a, out, groups)
            continue
        found = findings(first_and_last_of_a_group, 1, 1, a, out, groups)
        assert {(f.kind, f.array, f.count) for f in found} == {("copy in flight", "staged", groups)}
        (finding,) = found
        assert finding.line - (finding.other_line or 0) == 4
        assert finding.index == (3 - groups,)
        assert "is read while thread (0, 0, 0)'s copy to it is in flight" in str(finding)


def kernel(arguments: str, *lines: str) -> Any:
    """A kernel of these lines, the first of which is line 2."""
    return cuda.jit(kernel_function("kernel", arguments, [*lines], run))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("target", "source"), [("out", "a"), ("S", "S"), ("own", "a")])
def test_copies_go_from_global_to_shared_memory(target: str, source: str, strict: bool) -> None:
    arrays = "S, own = cuda.shared.array(4, float32), cuda.local.array(4, float32)"
    copies = kernel("a, out", arrays, f"copy_async({target}, 0, {source}, 1, True)")
    memory = "global" if target == "S" else "shared"
    with pytest.raises(TypeError, match=f"{target} is not in {memory} memory"):
        Simulator(strict).launch(copies, 1, 1, np.zeros(4, F), np.zeros(4, F))


@cuda.jit
def casts(x, out):
    out[0], out[1], out[2], out[3] = float32(x), float64(x), int32(x), uint32(x)
    out[4], out[5], out[6] = int8(300), int64(-x), np.float32(x) + np.int32(1.9)
    out[7] = numba.float32(x)


@cuda.jit
def bits(x, out):
    out[0], out[1], out[2], out[3] = cuda.popc(x), cuda.clz(x), cuda.brev(x), cuda.ffs(x)
    out[4], out[5] = cuda.selp(x > 3, 1, 2), cuda.fma(2, 3, 4)


@cuda.jit
def mathematics(x, out):
    out[0], out[1], out[2] = math.sqrt(x[0]), math.exp(x[1]), math.log(x[2])
    out[3] = np.sqrt(x[3]) + cuda.cbrt(x[4]) + math.pi
    out[4] = x[1] * x[1] * x[1] * x[1] * x[1]


@cuda.jit
def atomics(a):
    cuda.atomic.add(a, 0, 5)
    cuda.atomic.sub(a, 1, 5)
    cuda.atomic.max(a, 2, 50)
    cuda.atomic.min(a, 3, 50)
    cuda.atomic.and_(a, 4, 6)
    cuda.atomic.or_(a, 5, 6)
    cuda.atomic.xor(a, 6, 6)
    cuda.atomic.exch(a, 7, 77)
    cuda.atomic.inc(a, 8, 10)
    cuda.atomic.dec(a, 9, 10)
    a[11] = cuda.atomic.cas(a, 10, 13, 99)
    cuda.atomic.nanmax(a, 12, 5)
    cuda.atomic.nanmin(a, 13, 5)
    cuda.atomic.compare_and_swap(a[14:], 13, 98)


@cuda.jit
def warp(out):
    i = cuda.laneid
    out[0, i] = cuda.shfl_sync(ALL, i, 5)
    out[1, i] = cuda.shfl_up_sync(ALL, i, 2)
    out[2, i] = cuda.shfl_down_sync(ALL, i, 2)
    out[3, i] = cuda.shfl_xor_sync(ALL, i, 1)
    out[4, i] = cuda.ballot_sync(-1, i < 3)
    out[5, i] = cuda.any_sync(ALL, i == 3)
    out[6, i] = cuda.all_sync(ALL, i == 3)
    out[7, i] = cuda.eq_sync(ALL, i < 32)
    out[8, i] = cuda.match_any_sync(ALL, i // 2)
    mask, same = cuda.match_all_sync(ALL, 7)
    out[9, i] = mask if same else 0
    if i % 2:
        out[10, i] = cuda.activemask()
    else:
        cuda.nanosleep(100)


def test_what_the_lanes_of_a_warp_do_together() -> None:
    out = np.zeros((11, 32), np.int64)
    run(warp, 1, 32, out)
    lane = np.arange(32)
    assert (out[0] == 5).all()
    assert (out[1] == np.where(lane < 2, lane, lane - 2)).all()
    assert (out[2] == np.where(lane > 29, lane, lane + 2)).all()
    assert (out[3] == lane ^ 1).all()
    assert out[4:8, 9].tolist() == [7, 1, 0, 1]
    # Masks of lanes are int32, as on a GPU.
    assert (out[8] == (3 << lane // 2 * 2).astype(np.int32)).all()
    assert (out[9] == -1).all()
    assert (out[10] == np.where(lane % 2, 0xAAAAAAAA, 0)).all()


@cuda.jit
def block_votes(out):
    i = cuda.threadIdx.x
    out[0, i] = cuda.syncthreads_count(i < 5)
    out[1, i] = cuda.syncthreads_and(i < 5)
    out[2, i] = cuda.syncthreads_or(i < 5)


NEAR, INF = float(F(3.7)), math.inf
RESULTS = [
    (casts, 1, [3.7, np.zeros(8)], [NEAR, 3.7, 3, 3, 44, -3, NEAR + 1, NEAR]),
    (bits, 1, [0b10110, np.zeros(6, np.int64)], [3, 27, 0b01101 << 27, 2, 1, 10]),
    (
        mathematics, 1, [np.array([-1, 1e9, 0, 4, 27], F), np.zeros(5, F)],
        [math.nan, INF, -INF, F(5 + math.pi), INF],
    ),
    (
        atomics, 1, [np.full(15, 13, np.int32)],
        [18, 8, 50, 13, 4, 15, 11, 77, 0, 10, 99, 13, 13, 5, 98],
    ),
    (block_votes, 40, [np.zeros((3, 40), np.int32)], np.repeat([[5], [0], [1]], 40, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "block", "arguments", "expected"), RESULTS)
def test_what_a_kernel_computes(kernel: Any, block: int, arguments: list, expected: Any) -> None:
    run(kernel, 1, block, *arguments)
    np.testing.assert_array_equal(arguments[-1], expected)


@cuda.jit
def many_types(half, number, byte, flag, out):
    half[0] = half[1] * 3
    number[0] = number[1] * 2j
    byte[0] = byte[1] + 250
    flag[0] = half[1] > 1
    out[0] = out[1] + 0.1


def test_arrays_of_other_types_round_and_wrap() -> None:
    half, number = np.array([0, 1.1], np.float16), np.array([0, 1 + 1j], np.complex64)
    byte, flag, out = np.array([0, 10], np.uint8), np.zeros(1, bool), np.ones(2, np.float32)
    run(many_types, 1, 1, half, number, byte, flag, out)
    found = half[0], number[0], byte[0], flag[0], out[0]
    assert found == (np.float16(float(np.float16(1.1)) * 3), -2 + 2j, 4, True, np.float32(1.1))


@cuda.jit
def strided(a, out):
    i, j = cuda.grid(2)
    out[i, j] = a[i, j] * WEIGHTS[1]


def test_arrays_of_any_layout_and_constants() -> None:
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (a.T[::2], a[:, ::2].T, np.asfortranarray(a)[:3, :4]):
        out = np.zeros(view.shape, np.float32)
        SIM.launch(strided, view.shape, 1, view, out)
        assert (out == view * 3).all()


@cuda.jit
def out_of_bounds(matrix):
    i = cuda.threadIdx.x
    matrix[i, 2 + i] = 2


def test_what_a_finding_says() -> None:
    (found,) = findings(out_of_bounds, (1, 2), (4, 1), np.zeros((4, 4), np.float32))
    assert (found.kind, found.kernel) == ("out of bounds", "out_of_bounds")
    assert found.line == out_of_bounds.py_func.__code__.co_firstlineno + 3
    assert (found.block, found.thread) == ((0, 0, 0), (2, 0, 0))
    assert (found.array, found.index, found.shape) == ("matrix", (2, 4), (4, 4))
    assert found.file == __file__
    assert "matrix[2, 4] is outside shape (4, 4)" in str(found)
    assert found.remedy in str(found)
    with pytest.raises(FrozenInstanceError):
        found.line = 1


@cuda.jit
def sum_of_three_columns(a, sums):
    row, column = cuda.grid(2)
    if row < a.shape[0] and column < a.shape[1]:
        sums[row, column] = a[row, column - 1] + a[row, column] + a[row, column + 1]


def test_a_line_that_leaves_an_array_at_both_ends_gets_two_findings() -> None:
    a = np.ones((3, 5), np.float32)
    below, beyond = findings(sum_of_three_columns, 1, (4, 8), a, np.zeros_like(a))
    assert (below.line, below.array) == (beyond.line, beyond.array)
    assert (below.index, below.count, below.past_end) == ((0, -1), 3, False)
    assert (beyond.index, beyond.count, beyond.past_end) == ((0, 5), 1, True)
    report = Report()
    for _ in range(2):
        report.add(error_of((below, beyond), ended=True))
    assert [(one.index, one.count) for one in report.findings] == [((0, -1), 6), ((0, 5), 2)]


@cuda.jit
def three_mistakes(a, b):
    staged, other = cuda.shared.array(64, float32), cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    staged[i] = a[i]
    b[i] = staged[63 - i]
    if i < 40:
        cuda.syncthreads()
    b[i] += other[i]


def test_several_findings_grouped_by_line() -> None:
    found = findings(three_mistakes, 1, 64, np.zeros(64, np.float32), np.zeros(64, np.float32))
    first = three_mistakes.py_func.__code__.co_firstlineno
    assert {(f.kind, f.line - first, f.other_line and f.other_line - first) for f in found} >= {
        ("shared race", 5, 4),
        ("shared race", 4, 5),
        ("barrier divergence", 7, None),
        ("uninitialised", 8, None),
    }
    assert {f.array for f in found} == {"staged", "other", None}
    assert next(f for f in found if f.array == "other").count == 64


def test_only_what_cannot_go_on_is_refused_without_checks() -> None:
    a = np.zeros((4, 4), np.float32)
    quick = Simulator(strict=False)
    quick.launch(three_mistakes, 1, 64, np.zeros(64, np.float32), np.zeros(64, np.float32))
    for engine in (quick, SIM):
        with pytest.raises(SimulationError, match=r"matrix\[2, 4\] is outside shape \(4, 4\)"):
            engine.launch(out_of_bounds, 1, 4, a)


def test_another_error_says_which_thread_had_it() -> None:
    lines = "if cuda.grid(1) == 5:", "    a[0] = a.no_such_thing"
    with pytest.raises(AttributeError) as caught:
        SIM.launch(kernel("a", *lines), 2, 4, np.zeros(1))
    assert "block (1, 0, 0), thread (1, 0, 0)" in caught.value.__notes__[0]


IN_FLOATS = [stage for stage in LADDER if "float32" in stage.dtypes]


@pytest.mark.parametrize("stage", IN_FLOATS, ids=lambda stage: stage.name)
def test_the_ladder_is_right_and_counted_as_in_numbas_simulator(stage) -> None:
    problem = stage.adapted(
        ConvProblem(2, 3, 3, 8, 5, (2, 3), stride=(2, 3), padding=(1, 2), dilation=(1, 2))
    )
    input, weight, bias = random_tensors(problem, 1)
    engines = [CudaSim(), SIM]
    if stage in (LADDER[0], LADDER[-1]):
        engines.append(Simulator(strict=False))
    tallies = []
    for engine in engines:
        output = np.full(problem.output_shape, np.nan, np.float32)
        with engine.counting() as counts:
            Plan(problem, stage, stage.tiny_tile, engine)(input, weight, output, bias)
        tallies.append(counts)
        oracle = Oracle(problem, input, weight, bias)
        assert oracle.check(output, **allowances(stage, problem)).ok
    assert tallies[1] == tallies[-1]
    unknown = dict.fromkeys(
        ("global_requests", "global_sectors", "shared_requests", "shared_wavefronts")
    )
    assert replace(tallies[1], **unknown) == tallies[0]  # Numba's simulator knows no warps


def test_two_launches_do_the_same() -> None:
    first, second = (
        findings(three_mistakes, 1, 64, np.zeros(64, np.float32), np.zeros(64, np.float32))
        for _ in range(2)
    )
    assert first == second


def test_threads_do_not_arrive_in_the_order_of_their_numbers() -> None:
    """So what relies on it is wrong here too, as it may be on a GPU."""

    @cuda.jit
    def compact(a, places, count):
        i = cuda.grid(1)
        if a[i] > 0:
            places[cuda.atomic.add(count, 0, 1)] = i

    places, count = np.full(6, -1), np.zeros(1, np.int32)
    Simulator().launch(compact, 2, 3, np.array([1, 0, 2, 3, 0, 4]), places, count)
    assert list(places) == [5, 3, 2, 0, -1, -1]


@pytest.mark.parametrize(("blocks", "kinds"), [(4, set()), (5, {"deadlock"})])
def test_no_more_blocks_wait_than_a_gpu_runs_at_a_time(monkeypatch, blocks, kinds) -> None:
    """An SM's shared memory holds four of these blocks, which wait for all."""
    monkeypatch.setattr("convlab.simulation.threads.scheduler.SMS", 1)

    @cuda.jit
    def grid_barrier(arrived):
        S = cuda.shared.array(12288, float32)
        S[0] = 1
        cuda.atomic.add(arrived, 0, 1)
        while cuda.atomic.add(arrived, 0, 0) < cuda.gridDim.x:
            pass

    found: tuple = ()
    try:
        SIM.launch(grid_barrier, blocks, 1, np.zeros(1, np.int32))
    except SimulationError as error:
        found = error.findings
    assert {one.kind for one in found} == kinds


def test_only_an_overflow_is_told_as_one() -> None:
    """``ValueError(34)`` has the number of ``ERANGE`` too."""
    (found,) = findings(kernel("a", "raise ValueError(34)"), 1, 1, np.zeros(1))
    assert found.what.startswith("ValueError is raised")
    with pytest.raises(NotSimulated, match="a power beyond the largest float"):
        SIM.launch(kernel("a", "a[0] = (a[0] + 10.0) ** 400.0"), 1, 1, np.zeros(1))


def test_touched_bytes_are_collected_without_checks() -> None:
    a, touched = np.zeros(4, np.float32), Touched()
    SimulatedLaunch(
        kernel("a", "a[cuda.grid(1)] = 1"),
        grid=(1, 1, 1),
        block=(4, 1, 1),
        arguments=(a,),
        strict=False,
        touched=touched,
    ).run()
    assert a.all()
    assert sum(map(len, touched.writes)) == 4


def test_a_recorded_launch_says_why_it_has_no_types() -> None:
    launch = SimulatedLaunch(
        kernel("a", "a[cuda.grid(1)] = 1"),
        grid=(1, 1, 1),
        block=(1, 1, 1),
        arguments=(np.zeros(1),),
        recorder=TrafficRecorder(0, {}),
        typed=True,
    )
    assert launch.untyped.startswith("kernel ran without Numba's types: a recorder counts")
