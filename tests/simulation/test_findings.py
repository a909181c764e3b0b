"""The strict simulator: every wrong kernel gets its finding, no right one gets any."""

from __future__ import annotations

import importlib
import inspect
import linecache
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from kernels import (
    atomic_pairs,
    copy_engine,
    data_types,
    messages,
    retries,
    sanitized,
    schedules,
)
from kernels.cases import Case, findings_of
from kernels.documentation import DOCUMENTED
from kernels.right import RIGHT
from kernels.wrong import WRONG

from convlab import simulate
from convlab.running.engines.simulator import Finding, SimulationError, Simulator
from convlab.simulation.host.programs import NotFenced
from convlab.simulation.launch import analysis
from convlab.simulation.recording.source_text import source_lines
from convlab.simulation.rules.finding_words import (
    STREAM_RACE,
)
from convlab.simulation.rules.remedies import REMEDIES
from convlab.simulation.threads import scheduler

pytestmark = pytest.mark.same_in_cudasim


# Of two counters of a barrier one is set back before the other one; a datum comes before its flag.
ALSO_UNFENCED = ("last_block_frees_the_others", "flag_waited_for")


def lines(findings: Sequence[Finding]) -> set:
    return {(f.kind, f.line, f.other_line, f.array) for f in findings}


@pytest.mark.parametrize(
    "case",
    [
        *(*WRONG, *data_types.WRONG, *schedules.WRONG, *messages.WRONG, *retries.WRONG),
        *atomic_pairs.WRONG,
    ],
    ids=lambda case: case.name,
)
def test_a_wrong_kernel_gets_its_finding(case: Case, monkeypatch) -> None:
    found = findings_of(case)
    source = linecache.getlines(case.kernel.py_func.__code__.co_filename)
    named = {(f.kind, line) for f in found for line in (f.line, f.other_line)}
    assert any(kind == case.kind and line and case.line in source[line - 1] for kind, line in named)
    monkeypatch.setattr(analysis, "LONG", 0)  # looked at piece by piece: at every barrier
    with pytest.raises(SimulationError) as caught:
        case.launch(Simulator())
    assert lines(caught.value.findings) == lines(found)
    for finding in caught.value.findings:
        assert finding.kernel == case.name
        assert str(finding) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "count", "block", "says"),
    [
        ("no_fence_after_stores", 256, 0, "thread (0, 0, 0), which wrote it, has not fenced it"),
        ("own_part_with_no_barrier", 256, 0, "writes S[0] and tensor cores read it"),
        ("own_warp_s_part_is_done_only", 128, 0, "written while tensor cores may read it"),
        ("tensor_cores_read_before_the_wait", 128, 0, "thread (0, 0, 0)'s copy to it is in flight"),
        ("block_index_forgotten", 32, 1, "writes b[0] and block (1, 0, 0) overwrites it"),
        ("no_guard", 1, 1, "a[32] is outside shape (32,)"),
    ],
)
def test_what_is_said_of_a_mistake(name: str, count: int, block: int, says: str) -> None:
    finding = findings_of(next(case for case in WRONG if case.name == name))[0]
    assert says in finding.what
    assert (finding.count, finding.block) == (count, (block, 0, 0))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("slice_one_too_short", "a[1:][31] is outside shape (31,)"),
        ("row_of_a_matrix", "a[2][6] is outside shape (6,)"),
        ("dynamic_size_forgotten", "the launch gives 0 bytes of dynamic shared memory"),
        ("dynamic_size_in_elements", "kernel[grid, block, stream, BYTES]"),
        ("return_of_threads_out_of_range", "this one returned in line"),
        ("trip_count_of_each_thread", "inside the while in line"),
        ("barrier_in_a_device_function_in_a_branch", "parted by the if in line"),
        ("trip_count_of_each_thread", " of schedules.py (block"),
        ("search_that_tests_what_others_set", "harmless only if"),
        ("volatile_tree_with_no_syncwarp", "Put cuda.syncthreads()"),
        ("last_warp_with_no_syncwarp", "Put cuda.syncwarp()"),
        ("bounded_poll_without_fences", "an atomic flag that the other block waits for"),
        ("element_of_two_warps", "Put cuda.syncthreads()"),
    ],
)
def test_what_is_said_of_threads_that_meet(name: str, says: str) -> None:
    found = findings_of(next(case for case in schedules.WRONG if case.name == name))
    assert any(says in str(finding) for finding in found)


@pytest.mark.parametrize(
    "case",
    [
        *(*RIGHT, *data_types.RIGHT, *schedules.RIGHT, *messages.RIGHT, *retries.RIGHT),
        *(*atomic_pairs.RIGHT, *atomic_pairs.UNFENCED, *DOCUMENTED),
    ],
    ids=lambda case: case.name,
)
def test_a_right_kernel_gets_none(case: Case, monkeypatch) -> None:
    monkeypatch.setattr(scheduler, "POLLS", 50)  # sooner than usual: some give up polling
    for engine, long in (
        (Simulator(typed=True), analysis.LONG), (Simulator(), 0),
        (Simulator(strict=False), 0),
    ):  # fmt: skip
        monkeypatch.setattr(analysis, "LONG", long)
        assert case.result is not None
        expected = case.result(case.arguments())
        got = case.launch(engine)[-1]
        if got.dtype.kind in "VM":  # records and dates, which are not rounded
            assert (got == np.array(expected, got.dtype)).all()
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "case",
    [
        *atomic_pairs.RIGHT,
        *atomic_pairs.UNFENCED,
        *messages.RIGHT,
        *retries.RIGHT,
        *schedules.RIGHT,
    ],
    ids=lambda case: case.name,
)
def test_a_flag_and_its_datum_without_a_fence_are_noted(case: Case) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        simulate(case.kernel, case.grid, case.block, *case.arguments())
    noted = [str(one.message) for one in caught if one.category is NotFenced]
    assert bool(noted) == (case in atomic_pairs.UNFENCED or case.name in ALSO_UNFENCED), noted
    for what in noted:
        assert what.startswith(f"{case.name}, line ")
        assert "put cuda.threadfence() between the two changes" in what


def test_a_function_s_source_is_what_inspect_finds(tmp_path, monkeypatch) -> None:
    functions = [case.kernel.py_func for case in (*WRONG, *RIGHT, *DOCUMENTED)]
    functions += [lines, lambda: 1]
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("archived.py", "\n\ndef archived():\n    return 3\n\nother = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "archive.zip")
    functions.append(importlib.import_module("archived").archived)
    assert source_lines(functions[-1].__code__) == (["def archived():\n", "    return 3\n"], 3)
    for function in functions:
        assert source_lines(function.__code__) == inspect.getsourcelines(function.__code__)
    with pytest.raises(OSError, match="source code"):
        source_lines(compile("1", "nowhere.py", "exec"))
    (tmp_path / "cut.py").write_text('def cut():\n    """\n')
    with pytest.raises(OSError, match="the source has changed"):
        source_lines(compile("1", str(tmp_path / "cut.py"), "exec"))


def test_there_are_enough_of_both_and_every_kind_has_its_row_in_the_documentation() -> None:
    assert len(WRONG) >= 40
    assert len(RIGHT) >= 20
    assert len(DOCUMENTED) >= 10
    of_kernels = set(REMEDIES) - {STREAM_RACE}  # that is a program's: test_streams.py
    assert {case.kind for case in WRONG + schedules.WRONG + copy_engine.WRONG} == of_kernels
    page = (Path(__file__).parents[2] / "docs/findings.md").read_text(encoding="utf-8")
    assert all(f"\n| {kind} | " in page for kind in REMEDIES)


def test_the_table_of_mutants_is_what_the_simulator_finds_now() -> None:
    text = sanitized.PAGE.read_text(encoding="utf-8")
    assert sanitized.page(text) == text, "PYTHONPATH=src:tests python -m kernels.sanitized"
