"""Traces: what is recorded, counted and saved; against the hardware's counts where those stand."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from kernels import textbook
from kernels.wrong import WRONG
from numba import cuda, float32, int32

from convlab import LADDER, ConvProblem, Trace, open_trace, trace, trace_stage
from convlab.ladder import stage_named
from convlab.problems.workloads import TEACHING
from convlab.tracing import page
from convlab.tracing.traffic_recorder import SUMS
from convlab.tracing.views import as_text

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
COUNTED = json.loads((ROOT / "tests/data/counters_h200.json").read_text())["rows"]
# Each counter of the hardware's as a trace has it: count, space, operation. docs/counters.md names
# the metrics.
COUNTERS = {
    "load_requests": ("requests", "global", "load"),
    "load_sectors": ("sectors", "global", "load"),
    "store_requests": ("requests", "global", "store"),
    "store_sectors": ("sectors", "global", "store"),
    "atomic_requests": ("requests", "global", "atomic"),
    "shared_load_wavefronts": ("wavefronts", "shared", "load"),
    "shared_store_wavefronts": ("wavefronts", "shared", "store"),
}
# What the compiler merges is not known without it: the gate's tests do those.
GLOBAL = [name for name in COUNTERS if not name.startswith("shared")]


def traced_counts(launch):
    """The hardware does not count what asynchronous copies store among the stores to shared
    memory."""
    return {
        name: launch.total(count, [
            one for one in launch.of(space=space)
            if one.operation == operation
            and (name != "shared_store_wavefronts"
                 or "copy_async" not in launch.source[one.file][one.line])
        ])
        for name, (count, space, operation) in COUNTERS.items()
    }  # fmt: skip


def hardware(name: str, problem: str | None = None) -> list[dict]:
    """Return the counters of a kernel's or a stage's launches, in order."""
    return [row for row in COUNTED if (row["name"], row["problem"]) == (name, problem)]


def traced(case) -> Trace:
    return trace(case.kernel, case.grid, case.block, *case.arguments())


@pytest.mark.parametrize("case", textbook.CASES, ids=lambda case: case.name)
def test_textbook_kernels_are_right_and_traced_as_an_h200_counted_them(case):
    source, target = case.arguments()
    launch = trace(case.kernel, case.grid, case.block, source, target).main
    assert not launch.findings
    (row,) = hardware(case.name)
    assert traced_counts(launch) == row["counted"]
    if case.name.endswith("reduction"):
        source, target = source.sum(), target.sum()
    wanted = {
        "strided_copy": lambda: source[::8],
        "offset_copy": lambda: source[1:],
        "histogram": lambda: np.bincount(source % textbook.BINS, minlength=textbook.BINS),
    }.get(case.name, lambda: source.T if case.name.startswith("transpose") else source)
    assert np.array_equal(target, wanted())


STORED = [stage for stage in LADDER if stage.name in {row["name"] for row in COUNTED}]


@pytest.mark.parametrize("stage", STORED, ids=lambda stage: stage.name)
def test_stages_are_traced_as_an_h200_counted_them(stage):
    made = trace_stage(stage.name, TEACHING, stage.tiny_tile)
    launches = list(made.launches)  # in the order of the rows; a kernel may be launched twice
    for row in hardware(stage.name, str(TEACHING)):
        launch = next(one for one in launches if one.kernel == row["kernel"])
        launches.remove(launch)
        counted, ours = row["counted"], traced_counts(launch)
        assert {name: ours[name] for name in GLOBAL} == {name: counted[name] for name in GLOBAL}


@pytest.mark.gate
@pytest.mark.parametrize("name", ["m03", "m04", "m05"])
def test_merged_loads_are_counted_as_an_h200_did(name):
    stage = stage_named(name)
    launch = trace_stage(stage.name, TEACHING, stage.tiny_tile, compiled=(9, 0)).main
    (counted,) = (
        row["counted"] for row in hardware(stage.name, str(TEACHING))
        if row["kernel"] == launch.kernel
    )  # fmt: skip
    assert traced_counts(launch) == counted
    as_written = trace_stage(stage.name, TEACHING, stage.tiny_tile).main
    assert as_written.total("wavefronts") > launch.total("wavefronts")


def test_arithmetic_is_the_problems_where_a_stage_does_nothing_else():
    launch = trace_stage("m01", TEACHING).main
    assert launch.flops == TEACHING.flops + math.prod(TEACHING.output_shape)  # and a bias each
    assert launch.bytes_per_flop == launch.bytes_moved / launch.flops


@cuda.jit
def arithmetic(a, b, scale):
    i = cuda.grid(1)
    x = a[i]
    x = x * 2
    x = 3 - x
    x = cuda.fma(x, scale, x)
    x = (x + x) / 2
    n = i * 4 + 1
    x = -abs(x) + float32(n)
    b[i] = max(x, a[i])
    cuda.atomic.add(b, i, x)


def test_operations_are_counted_by_line():
    launch = trace(arithmetic, 1, 8, np.ones(8, np.float32), np.ones(8, np.float32), 0.5).main
    first = arithmetic.py_func.__code__.co_firstlineno
    found = {one.line - first: one.flops for one in launch.work}
    assert found == {4: 8, 5: 8, 6: 16, 7: 16, 9: 8, 11: 8}


@cuda.jit
def shared_and_back(a, b):
    staged = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    staged[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    b[cuda.grid(1)] = staged[63 - t]


def test_what_a_line_is_recorded_with():
    a = np.arange(128, dtype=np.float32)
    launch = trace(shared_and_back, 2, 64, a, np.zeros_like(a), block_shown=1).main
    first = shared_and_back.py_func.__code__.co_firstlineno
    found = [
        (x.line - first, x.array, x.space, x.operation, x.width, x.requests, x.lanes)
        for x in launch.accesses
    ]
    assert found == [
        (4, "a", "global", "load", 4, 4, 128),
        (4, "staged", "shared", "store", 4, 4, 128),
        (6, "b", "global", "store", 4, 4, 128),
        (6, "staged", "shared", "load", 4, 4, 128),
    ]
    (barrier,) = [work for work in launch.work if work.barriers]
    assert (barrier.line - first, barrier.barriers) == (5, 128)
    assert launch.source["test_tracing.py"][barrier.line].strip() == "cuda.syncthreads()"
    assert launch.block_shown == (1, 0, 0)
    request = next(r for r in launch.requests if r.array == "a" and r.warp == 1)
    assert request.lanes == tuple(range(32))
    assert request.offsets == tuple(range(4 * 96, 4 * 128, 4))  # block 1, warp 1
    assert {f.array: f.runs for f in launch.footprints if f.operation == "load"} == {
        "a": ((64, 64),), "staged": ((0, 64),),
    }  # fmt: skip
    assert {array.name: array.shape for array in launch.arrays} == {
        "a": (128,), "b": (128,), "staged": (64,),
    }  # fmt: skip


@cuda.jit
def contended(counts):
    cuda.atomic.add(counts, cuda.threadIdx.x % 4, int32(1))


def test_contention_of_atomics():
    made = trace(contended, 1, 32, np.zeros(4, np.int32))
    (access,) = made.main.accesses
    assert (access.operation, access.contention, access.sectors) == ("atomic", 8, 1)
    assert "atomics: up to 8 lanes" in str(made)
    shared = str(traced(next(one for one in textbook.CASES if one.name == "transpose_shared")))
    assert "worst bank conflict: 32 wavefronts for each that is needed, tile in line" in shared


@pytest.fixture(scope="module")
def faulty():
    made = traced(next(case for case in WRONG if case.kind == "shared race"))
    assert {finding.kind for finding in made.main.findings} == {"shared race"}
    assert made.main.total("requests") > 0
    return made


@pytest.mark.parametrize("name", ["m03_shared_memory", "m11_warp_tiling", "a wrong kernel"])
def test_a_saved_trace_is_opened_as_it_was(name, tmp_path, faulty):
    made = faulty
    if name != "a wrong kernel":
        made = trace_stage(name, ConvProblem(1, 3, 5, 6, 5, 2))
    file = tmp_path / "trace.json"
    made.save(file)
    opened = open_trace(file)
    assert opened == made
    assert str(opened) == str(made)
    assert page(opened) == page(made)
    assert str(Path(__file__).parent) not in file.read_text()  # nor any path of this machine


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "holds no trace") for text in ("", "[]", "{}", "3", "[" * 100_000)),
        ('{"format": "another", "version": 2}', "holds no trace"),
        ('{"format": "convlab trace"}', "holds no trace"),
        ('{"format": "convlab trace", "version": 99}', "version 99"),
    ],
    ids=range(8),
)
def test_a_file_that_holds_no_trace_is_refused(tmp_path, text, said):
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        open_trace(file)


@cache
def with_long_numbers(name: str) -> Trace:
    """A stage's trace whose counts are a thousand times as large as they were."""
    made = trace_stage(name, TEACHING, stage_named(name).tiny_tile)
    return replace(made, launches=tuple(
        replace(launch, accesses=tuple(
            replace(one, **{name: 1000 * getattr(one, name) for name in SUMS})
            for one in launch.accesses
        ))
        for launch in made.launches
    ))  # fmt: skip


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", ["m06", "m11"])
def test_no_name_and_no_number_is_shortened(name, width):
    made = with_long_numbers(name)
    text = as_text(made, width)
    assert max(map(len, text.splitlines())) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    for launch in made.launches:
        for access in launch.accesses:
            label = f"{access.array}: {access.operation}, {access.width} bytes a lane"
            unit, _, total, fewest = access.cost
            lanes = f"{access.lanes / access.requests:.3g}"
            cost = re.escape(f"{total:,} ({fewest:,}) {unit}")
            assert re.search(rf" {label}\s+{access.requests:,} +{lanes} +{cost}", text)
        for array in launch.arrays:
            row = rf"^{array.name} \({array.space}\)\s+.*\) (sectors|wavefronts)$"
            assert re.search(row, text, re.M)
        for work in launch.work:
            assert not work.flops or f"{work.flops:,} FLOP" in text
            assert not work.barriers or f"{work.barriers:,} threads at the barrier" in text


def test_one_of_a_kind_and_no_source():
    made = trace(textbook.copy, 1, 1, np.zeros(1, np.int8), np.zeros(1, np.int8))
    assert "copy: 1 block of 1 thread\n" in str(made)
    assert "source: load, 1 byte a lane" in str(made)
    launch = replace(made.main, source={})
    assert f"{launch.accesses[0].line:>4}  (no source)\n" in str(Trace("t", (launch,)))


@cuda.jit
def copies_matrix(a, b):
    i, j = cuda.grid(2)
    if i < a.shape[0] and j < a.shape[1]:
        b[i, j] = a[i, j]


@pytest.mark.parametrize(
    "view",
    [
        np.asfortranarray,
        lambda m: m[:, ::2],
        lambda m: m[::-1, 1:],
        lambda m: np.broadcast_to(m[0], (4, 6)),
    ],
    ids=["columns", "every other", "from the end", "broadcast"],
)
def test_strided_arrays_are_recorded_as_they_lie(view):
    a = view(np.arange(24, dtype=np.float32).reshape(4, 6))
    launch = trace(copies_matrix, 1, (3, 2), a, np.zeros((4, 6), np.float32)).main
    (array,) = (one for one in launch.arrays if one.name == "a")
    assert (array.shape, array.strides) == (a.shape, a.strides)
    (read,) = (one for one in launch.footprints if one.array == "a")
    touched = {number for first, count in read.runs for number in range(first, first + count)}
    wanted = {i * a.shape[1] + j for i in range(3) for j in range(2)}
    if 0 not in a.strides:  # of a broadcast array several elements are one
        assert touched == wanted
    low = sum(min(0, (n - 1) * step) for n, step in zip(a.shape, a.strides, strict=True))
    (request,) = (one for one in launch.requests if one.array == "a")
    assert request.offsets == tuple(
        (lane % 3) * a.strides[0] + (lane // 3) * a.strides[1] - low for lane in request.lanes
    )


def test_an_array_that_is_passed_twice_has_both_names():
    a = np.zeros(32, np.float32)
    launch = trace(textbook.copy, 1, 32, a, a).main
    assert [one.name for one in launch.arrays] == ["source = target"]
    assert {one.array for one in launch.accesses} == {"source = target"}


@cuda.jit
def two_at_once(a, b, out):
    i = cuda.grid(1)
    chosen = a if i < 16 else b
    out[i] = chosen[i]


def test_a_request_of_two_arrays_touches_both():
    a, b, out = (np.zeros(32, np.float32) for _ in range(3))
    launch = trace(two_at_once, 1, 32, a, b, out).main
    read = {one.array: one.runs for one in launch.footprints if one.operation == "load"}
    assert read == {"a": ((0, 16),), "b": ((16, 16),)}


@pytest.mark.parametrize("number", [-1, 4])
def test_a_block_outside_the_grid_is_refused(number):
    a = np.zeros(128, np.float32)
    with pytest.raises(ValueError, match=f"block_shown is {number}: copy has blocks 0 to 3"):
        trace(textbook.copy, 4, 32, a, a.copy(), block_shown=number)
    with pytest.raises(ValueError, match="block_shown is -1: m03_shared_memory has blocks 0 to"):
        trace_stage("m03", block_shown=-1)


DAMAGE = {  # changes of the document, of its launch, of a launch's first record of each kind
    "document": [
        {"launches": []}, {"launches": [[]]}, {"title": 1}, {"title": "\ud800"}, {"about": None},
    ],
    "launch": [
        {"grid": [1, 1]}, {"grid": [0, 1, 1]}, {"block_shown": [1, 0, 0]},
        {"source": {"f": {"x": "y"}}}, {"source": None}, {"more": 1}, {"work": ...},
    ],
    "accesses": [
        {"line": "x"}, {"line": -1}, {"sectors": -1}, {"requests": 0}, {"requests": "many"},
        {"requests": True},
        {"requests": 10**400}, {"array": "z"}, {"space": "global"}, {"operation": "x"},
        {"conflict_degree": math.nan}, {"conflict_degree": math.inf},
    ],
    "arrays": [{"space": "outer"}, {"strides": []}, {"itemsize": 0}, None, {"name": "unused"}],
    "requests": [
        {"array": "z"}, {"offsets": [], "lanes": []}, {"offsets": [0]}, {"lanes": [*range(31), 99]},
    ],
    "footprints": [{"array": "z"}, {"runs": [[0, 10**12]]}],
    "findings": [{"kind": "x"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change"), [(kind, change) for kind, several in DAMAGE.items() for change in several]
)
def test_a_damaged_trace_is_refused_in_a_sentence(tmp_path, faulty, kind, change):
    document = json.loads(json.dumps(faulty.as_json()))
    (launch,) = document["launches"]
    if kind == "arrays" and not (change or {}).keys() - {"name"}:  # one more array
        launch["arrays"].append(launch["arrays"][0] | (change or {}))
    elif change == {"work": ...}:
        del launch["work"]
    else:
        {"document": document, "launch": launch}.get(kind, launch.get(kind, [0])[0]).update(change)
    file = tmp_path / "x.json"
    file.write_text(json.dumps(document))
    not_json = change in ({"title": "\ud800"}, {"conflict_degree": math.inf}) or "nan" in str(
        change
    )
    said = "it is not JSON" if not_json else r"is a damaged trace: (its? .*must|it has no .*must)"
    with pytest.raises(ValueError, match=said):
        open_trace(file)
