"""docs/fast-table.md: what s12 is held against, and what is made of the results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_samples import H200_LIKE, sample, system

from convlab.bench import fast_goals, fast_story, fast_table
from convlab.bench.analysis import geometric_mean
from convlab.bench.baselines_before import BEFORE_MS
from convlab.bench.cases import Case, row_of
from convlab.bench.fast_goals import (
    BATCHED,
    DIRECT,
    IM2WIN,
    OURS,
    OWN,
    OWN_IN_WORDS,
    PER_IMAGE,
    PYTORCHS,
    PYTORCHS_IN_WORDS,
    TENSOR,
    WARPGROUPS,
    contenders,
    ratios,
)
from convlab.bench.fast_table import runs_table
from convlab.bench.harness import Outcome
from convlab.bench.report_why import MMA_SYNC_FLOPS
from convlab.bench.results import Results
from convlab.bench.roofline import Machine
from convlab.workloads import LAYER_NAMES, paper_layer

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
# Name, kind, ms as a graph and called for each 10^10 FLOP, and workspace over the filter's bytes.
MORE = (
    (OURS, "stage", 0.25, 0.25, 1),
    (TENSOR, "stage", 0.2, 0.2, 2),
    (DIRECT, "stage", 2.5, 2.5, 0),
    (BATCHED, "baseline", 0.75, 1.0, 100),
    (PER_IMAGE, "baseline", 1.0, 2.5, 2),
    (OWN, "stage", 0.5, 0.55, 100),
)
IMPLICIT, FOURIER = "void implicit_convolve_sgemm<float>(int)", "void fft2d_r2c_32x32<float>(int)"


THEIRS = (PYTORCHS, "baseline", 1.25, 1.5, 2)  # which runs from before it was a baseline lack


@pytest.fixture(scope="module")
def results() -> Results:
    return with_more(sample(), *MORE)


@pytest.fixture
def newer(results) -> Results:
    """The same run with PyTorch's own im2col + cuBLAS."""
    copied = replace(results, rows=dict(results.rows), systems=dict(results.systems))
    return with_more(copied, THEIRS)


def with_more(found: Results, *more: tuple[str, str, float, float, int]) -> Results:
    for name in LAYER_NAMES:
        problem = paper_layer(name)
        scale, filter_bytes = problem.flops / 1e10, 4 * problem.M * problem.K
        for who, kind, graph, called, stored in more:
            precision = "3xtf32" if who in (TENSOR, WARPGROUPS) else "fp32"
            chosen = system(
                who, kind, "cublas" if kind == "baseline" else "convlab", "gemm", precision
            )
            outcome = Outcome(
                "measured", None, graph * scale, 0.5, 20, "fp32", 0.1,
                workspace_bytes=stored * filter_bytes, called_ms=called * scale,
            )  # fmt: skip
            row = row_of(Case(name, problem, chosen), outcome, H200_LIKE, "one", 1.0)
            assert row.ok, row.reason
            found.add(row, chosen)
    return found


def cells(text: str, first: str) -> list[str]:
    """The cells after the first of the line that begins with it."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def by_column(text: str, first: str) -> dict[str, str]:
    """The same by what their columns are called."""
    return dict(zip(cells(text, "layer"), cells(text, first), strict=True))


def test_every_layer_has_s12_and_how_many_times_as_fast_it_is(results):
    text = fast_table.speed_table(results)
    ms, rate, *_ = cells(text, "conv9")
    assert (float(ms), float(rate)) == (pytest.approx(0.25 * 2.753, abs=0.001), 40.0)
    by_name = by_column(text, "conv9")
    assert by_name["im2col + cuBLAS, batched"] == "3.00"
    assert by_name["im2col + cuBLAS, per image"] == "4.00"
    assert by_name[OWN_IN_WORDS] == "2.00"
    assert by_name["s01"] == "10.00"
    for words in ("**geometric mean**", "least", "most"):
        assert cells(text, words)[-4:] == ["3.00", "4.00", "2.00", "10.00"]
    assert cells(text, fast_table.CLAIMED)[-1] == "5 to 155"
    assert [line.split(" | ")[0] for line in text.splitlines()[2:14]] == [
        f"| {name}" for name in LAYER_NAMES
    ]


@pytest.mark.parametrize(("kernels", "faster"), [(IMPLICIT, True), (FOURIER, False)])
def test_pytorch_s_choice_is_in_the_gemm_class_where_it_is_a_gemm(results, kernels, faster):
    key = ("conv9", 128, "torch_fp32")
    fast = replace(results.rows[key], time_ms=0.01, algorithm=kernels)
    changed = replace(results, rows=results.rows | {key: fast})
    _, _, gemm_class, _, torch, *_ = cells(fast_table.speed_table(changed), "conv9")
    assert torch == "0.01"
    assert (gemm_class == torch) is faster


def test_ordinary_calls_stand_beside_replays(results):
    text = fast_table.called_table(results)
    graph, called = cells(text, "conv12")[-2:]
    assert float(called) == pytest.approx(2.5 * float(graph), abs=0.001)
    means = cells(text, "**s12 is so many times as fast**")
    assert means[-4:] == ["**3.00**", "**4.00**", "**4.00**", "**10.00**"]
    assert means[:3] == ["", "", "**1.05**"]
    assert means[3] == "**-**"  # older rows have no such time


def test_every_run_has_its_means_over_im2col(results):
    other = replace(results, environment={}, rows=dict(results.rows))
    key = ("conv9", 128, "im2col_cublas_per_image")
    other.rows[key] = replace(results.rows[key], called_ms=8 * results.rows[key].called_ms)
    head, _, *lines = runs_table([results, other]).strip().splitlines()
    first, of_s13, second, _ = ([cell.strip() for cell in x.strip("|").split("|")] for x in lines)
    everybody = contenders(results)
    date = results.environment["date"][:16].replace("T", " ")
    for stage, short, shown in ((OURS, "s12", first), (TENSOR, "s13", of_s13)):
        means = [
            geometric_mean(ratios(results, everybody[stage], everybody[rival], called))
            for rival in (BATCHED, PER_IMAGE)
            for called in (False, True)
        ]
        assert shown == ["1", date, short, *(f"{mean:.2f}" for mean in means)]
    assert second[:3] == ["2", "-", "s12"]
    count = len(results.layers())
    assert float(second[6]) == pytest.approx(float(first[6]) * 8 ** (1 / count), rel=0.01)
    assert second[5] == first[5]
    assert head.count("called") == 2


def test_memory_is_the_workspace_and_in_all_what_the_paper_compares(results):
    text = fast_table.memory_table(results)
    filter_mib, ours, *_ = cells(text, "conv12")
    assert filter_mib == ours == "9.00"
    assert by_column(text, "conv5")["im2col + cuBLAS, batched"] == "234.38"
    less = by_column(text, "**s12 needs less by**, computed")
    assert less["s12"] == ""
    assert 0 < float(less["im2col + cuBLAS, batched"].strip("*% ")) < 100
    assert cells(text, fast_table.CLAIMED)[4] == "23.1 %"


def test_memory_seen_is_the_mean_of_what_each_layer_s_peaks_say(results):
    results = replace(results, rows=dict(results.rows))
    ours, other = (fast_table.contenders(results)[name] for name in (OURS, BATCHED))
    for layer in results.layers():
        for one, peak in ((ours, 100), (other, 200 if layer[0] == "conv5" else 100)):
            row = one.best(results, layer)
            results.rows[row.key] = replace(row, peak_bytes=peak)
    less = by_column(fast_table.memory_table(results), "**s12 needs less by**, measured")
    assert less["im2col + cuBLAS, batched"] == f"**{50 / len(results.layers()):.1f} %**"


def test_goals_are_reached_or_not(results):
    text = fast_table.goals_table(results)
    batched = cells(text, "over im2col + cuBLAS, batched")
    assert batched[1:] == ["3.00 (3.00 to 3.00)", "yes", "3.75 (3.75 to 3.75)", "yes"]
    assert cells(text, "over im2col + cuBLAS, per image")[1:3] == ["4.00 (4.00 to 4.00)", "no"]
    assert cells(text, "over im2col + cuBLAS, per image")[3:] == ["5.00 (5.00 to 5.00)", "no"]
    assert cells(text, "over im2col + cuBLAS, per image, called")[1:3] == ["10.00", "yes"]
    own = cells(text, f"over {OWN_IN_WORDS}")
    assert own == [
        "3.0 on average", "2.00 (2.00 to 2.00)", "no", "2.50 (2.50 to 2.50)", "no",
    ]  # fmt: skip
    assert cells(text, f"over {OWN_IN_WORDS}, called")[1:3] == ["2.20", "no"]
    assert cells(text, "over s01")[1:3] == ["10.00 (10.00 to 10.00)", ""]
    assert cells(text, "workspace")[1:3] == ["0 bytes more at most", "yes"]
    assert cells(text, "workspace")[3:] == ["9,437,184 bytes more at most", ""]
    conv8 = cells(text, "conv8, share of cuBLAS's SGEMM, all in")
    assert "40.0 of 51.2 TFLOP/s: 78.1%" in conv8[1]
    assert "50.0 of 51.2 TFLOP/s: 97.7%" in conv8[3]
    assert (conv8[2], conv8[4]) == ("no", "yes")
    assert conv8[0] == "90 % the kernel, 85 % all in"
    conv7 = cells(text, "conv7, share of a copy's bandwidth, necessary bytes")
    rate = paper_layer("conv7").least_bytes / (0.25 * paper_layer("conv7").flops / 1e10) / 1e9
    assert conv7[1] == f"{rate:.2f} of 4.20 TB/s: {rate / 4.2:.1%}"
    assert conv7[2] == ("yes" if rate >= 0.6 * 4.2 else "no")


@pytest.mark.parametrize(("sgemm", "reached"), [(44.4, "yes"), (46.0, ""), (47.2, "no")])
def test_a_share_between_the_goals_says_nothing_of_the_kernel_alone(results, sgemm, reached):
    """40 TFLOP/s all in: 90, 87 and 85 % of it, the last a little less."""
    machine = replace(results.machine, sgemm_tflops=sgemm)
    text = fast_table.goals_table(replace(results, machine=machine))
    assert cells(text, "conv8, share of cuBLAS's SGEMM, all in")[2] == reached


def test_s13_has_a_table_of_its_own(results):
    ms, rate, *over = cells(fast_table.SECTIONS["tensor"](results), "conv9")
    assert (float(ms), float(rate)) == (pytest.approx(0.2 * 2.753, abs=0.001), 50.0)
    assert over[-1] == "12.50"


@pytest.mark.parametrize(
    ("tile", "more", "reached"), [("96x128x16/12x8", 0, "yes"), (None, 5 * 96 * 4, "no")]
)
def test_what_fills_up_tiles_is_no_more_than_the_filter(results, tile, more, reached):
    key = ("conv1", 128, OURS)  # K is 363
    row = replace(results.rows[key], workspace_bytes=4 * 96 * 368, algorithm=tile)
    changed = replace(results, rows=results.rows | {key: row})
    found = cells(fast_table.goals_table(changed), "workspace")
    assert found[1:3] == [f"{more:,} bytes more at most", reached]


def test_one_layer_below_the_least_means_not_reached(results):
    assert cells(fast_table.goals_table(results), "over cuDNN's GEMM class")[2] == "no"
    slow = {
        key: replace(row, time_ms=100 * row.time_ms)
        for key, row in results.rows.items()
        if key[2].startswith("cudnn_") and row.time_ms
    }
    slower = replace(results, rows=results.rows | slow)
    assert cells(fast_table.goals_table(slower), "over cuDNN's GEMM class")[2] == "yes"
    key = ("conv9", 128, "cudnn_gemm")
    slower.rows[key] = replace(slower.rows[key], time_ms=0.5)
    text = fast_table.goals_table(slower)
    assert "(0.73 to" in cells(text, "over cuDNN's GEMM class")[1]
    assert cells(text, "over cuDNN's GEMM class")[2] == "no"


def test_a_run_of_few_systems_makes_tables_too():
    few = sample(layers=["conv9"])  # s12 and im2col were not measured
    for make in fast_table.SECTIONS.values():
        assert make(few).startswith("|")
    for make in fast_story.SECTIONS.values():
        assert make(few)
    assert "not measured" in fast_table.goals_table(few)


# PyTorch's own im2col + cuBLAS, which the first runs do not have.


def test_without_pytorch_s_own_im2col_there_is_no_trace_of_it(results):
    runs = [results, results]
    for make in (fast_table.SECTIONS | fast_story.SECTIONS).values():
        assert PYTORCHS_IN_WORDS not in make(results)
    assert PYTORCHS_IN_WORDS not in runs_table(runs) + fast_table.goals_table(results, runs)
    assert PYTORCHS_IN_WORDS not in fast_story.im2col_in_words(results, runs)


def test_a_run_with_pytorch_s_own_im2col_shows_it(newer):
    for make, stage, ratio in (
        (fast_table.SECTIONS["speed"], "s12", "5.00"),
        (fast_table.SECTIONS["tensor"], "s13", "6.25"),
    ):
        text = make(newer)
        assert by_column(text, "conv9")[PYTORCHS_IN_WORDS] == ratio
        assert by_column(text, "**geometric mean**")[PYTORCHS_IN_WORDS] == ratio
        assert by_column(text, fast_table.CLAIMED)[PYTORCHS_IN_WORDS] == "3.5 on average"
        assert f"{stage} ms" in cells(text, "layer")
    means = by_column(fast_table.called_table(newer), "**s12 is so many times as fast**")
    assert means[f"{PYTORCHS_IN_WORDS}, graph ms"] == "**5.00**"
    assert means[f"{PYTORCHS_IN_WORDS}, called ms"] == "**6.00**"
    stored = fast_table.memory_table(newer)
    assert by_column(stored, "conv12")[PYTORCHS_IN_WORDS] == "18.00"
    assert by_column(stored, fast_table.CLAIMED)[PYTORCHS_IN_WORDS] == "23.1 %"
    goals = fast_table.goals_table(newer)
    assert cells(goals, f"over {PYTORCHS_IN_WORDS}") == [
        "8.0 on average", "5.00 (5.00 to 5.00)", "no", "6.25 (6.25 to 6.25)", "no",
    ]  # fmt: skip
    assert cells(goals, f"over {PYTORCHS_IN_WORDS}, called")[1:] == ["6.00", "no", "7.50", "no"]
    (line,) = (
        line for line in fast_story.im2col_in_words(newer).splitlines() if PYTORCHS in line
    )  # fmt: skip
    assert "Eight times was the aim. s12 reaches 5.00 by graph replays, 6.00" in line


def test_runs_from_before_it_was_a_baseline_do_not_count_for_it(results, newer):
    slow = replace(newer, rows=dict(newer.rows))
    for key, row in newer.rows.items():
        if row.system == PYTORCHS:
            slow.rows[key] = replace(row, called_ms=2 * row.called_ms)
    goals = fast_table.goals_table(newer, [results, slow])
    called = f"over {PYTORCHS_IN_WORDS}, called"
    assert cells(goals, called)[1:3] == ["9.00 (6.00 to 12.00 in 2 runs)", "in 1 of 2"]
    assert "in 3 runs" in cells(goals, "over im2col + cuBLAS, per image, called")[1]
    said = fast_story.im2col_in_words(newer, [results, slow])
    assert "s12 reaches 5.00 by graph replays, 6.00 to 12.00 by ordinary calls" in said
    head, _, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in runs_table([newer, results]).splitlines()
    )
    assert [line[2] for line in lines] == ["s12", "s13", "s12", "s13"]
    for first, older, graph in zip(lines[:2], lines[2:], ("5.00", "6.25"), strict=True):
        for how, mean in (("graph", graph), ("called", f"{1.2 * float(graph):.2f}")):
            place = head.index(f"over {PYTORCHS_IN_WORDS}, {how}")
            assert (first[place], older[place]) == (mean, fast_goals.NOTHING)


# s14, which the first runs do not have either.


@pytest.fixture
def with_s14(results) -> Results:
    copied = replace(results, rows=dict(results.rows), systems=dict(results.systems))
    return with_more(copied, (WARPGROUPS, "stage", 0.16, 0.25, 2))


def test_without_s14_only_its_own_table_names_it(results):
    for name, make in (fast_table.SECTIONS | fast_story.SECTIONS).items():
        assert ("s14" in make(results)) == (name == "warpgroups")
    assert set(cells(fast_table.SECTIONS["warpgroups"](results), "conv9")) == {"-"}
    assert "s14" not in runs_table([results]) + fast_table.origin_in_words(results)


def test_a_run_with_s14_has_it_everywhere(results, with_s14):
    by_name = by_column(fast_table.SECTIONS["warpgroups"](with_s14), "conv9")
    assert by_name["im2col + cuBLAS, per image"] == "6.25"
    means = by_column(fast_table.called_table(with_s14), "**s14 is so many times as fast**")
    assert means["s14, graph ms"] == means["s12, called ms"] == ""
    assert means["im2col + cuBLAS, per image, called ms"] == "**10.00**"
    goals = fast_table.goals_table(with_s14, [results])
    assert cells(goals, "over im2col + cuBLAS, per image")[-2:] == ["6.25 (6.25 to 6.25)", "no"]
    called = cells(goals, "over im2col + cuBLAS, per image, called")
    assert called[1:] == [
        "10.00 (10.00 to 10.00 in 2 runs)", "yes", "12.50 (12.50 to 12.50 in 2 runs)", "yes",
        "10.00", "yes",
    ]  # fmt: skip
    lines = runs_table([with_s14, results]).strip().splitlines()[2:]
    assert [line.split(" | ")[2] for line in lines] == ["s12", "s13", "s14", "s12", "s13"]
    assert ", s14 is " in fast_table.origin_in_words(with_s14)
    assert "s14 reaches 6.25 by graph replays, 10.00" in fast_story.im2col_in_words(with_s14)
    assert " s14 is 1.25 times as fast as s13, up to " in fast_story.peaks_in_words(with_s14)


# What docs/fast.md says.


def test_each_im2col_is_named_and_what_is_reached_against_it(results):
    text = fast_story.im2col_in_words(results)
    assert PYTORCHS not in text
    by_name = dict(zip((BATCHED, PER_IMAGE, OWN), text.splitlines(), strict=False))
    assert "Three times was the aim. s12 reaches 3.00 by graph replays, 4.00" in by_name[BATCHED]
    assert "s13 reaches 3.75 by graph replays, 5.00 by ordinary calls" in by_name[BATCHED]
    assert "Eight times was the aim. s12 reaches 4.00" in by_name[PER_IMAGE]
    assert "s12 reaches 2.00 by graph replays, 2.20 by ordinary calls" in by_name[OWN]
    assert "Of the two batched ones convlab's is 1.50 times as fast as PyTorch's." in text


def called_at(results: Results, part: float) -> Results:
    """A run whose host took that part of the time for PyTorch's im2col."""
    other = replace(results, rows=dict(results.rows))
    for key, row in results.rows.items():
        if row.system == PER_IMAGE:
            other.rows[key] = replace(row, called_ms=part * row.called_ms)
    return other


def test_means_of_ordinary_calls_are_those_of_every_run(results):
    """10 in the first, and a host that is twice as fast, three quarters as fast, ..."""
    what = "over im2col + cuBLAS, per image, called"
    others = [called_at(results, part) for part in (0.5, 0.76, 1.5)]
    s12, s12_reached, s13, s13_reached = cells(
        fast_table.goals_table(results, others[:2]), what
    )[1:]  # fmt: skip
    assert (s12, s12_reached) == ("7.60 (5.00 to 10.00 in 3 runs)", "in 1 of 3")
    assert (s13, s13_reached) == ("9.50 (6.25 to 12.50 in 3 runs)", "in 2 of 3")
    text = fast_table.goals_table(results, others[2:])
    assert cells(text, what)[1:3] == ["12.50 (10.00 to 15.00 in 2 runs)", "yes"]
    text = fast_table.goals_table(others[0], others[:1])
    assert cells(text, what)[1:3] == ["5.00 (5.00 to 5.00 in 2 runs)", "no"]
    without = replace(results, rows={k: r for k, r in results.rows.items() if r.system != TENSOR})
    text = fast_table.goals_table(results, [without])  # a run from before there was such a stage
    assert cells(text, what)[1:] == ["10.00 (10.00 to 10.00 in 2 runs)", "yes", "12.50", "yes"]
    said = fast_story.im2col_in_words(results, others)
    assert "s12 reaches 4.00 by graph replays, 5.00 to 15.00 by ordinary calls" in said
    assert "s12 reaches 3.00 by graph replays, 4.00 to 4.00 by ordinary calls" in said


def test_what_was_known_when_the_aims_were_set_is_said(results):
    layers = [paper_layer(name) for name in LAYER_NAMES]
    before = BEFORE_MS[PER_IMAGE].values()
    over = [old / (0.25 * p.flops / 1e10) for p, old in zip(layers, before, strict=True)]
    text = fast_table.origin_in_words(results)
    assert f" and {geometric_mean(over):.2f} times as fast, s13 is " in text
    assert "per image 9.8 ms at the least" in text


@pytest.mark.parametrize(
    ("precision", "flops"), [("fp32", H200_LIKE.fp32_flops), ("3xtf32", 315e12 / 3)]
)
def test_what_could_be_reached_is_the_roofline_s(results, precision, flops, monkeypatch):
    """All of a layer's multiply-adds at the peak, or its bytes; both from the definition."""
    monkeypatch.setitem(MMA_SYNC_FLOPS, H200_LIKE.device, 315e12)
    expected = []
    for name in LAYER_NAMES:
        p = paper_layer(name)
        numbers = p.N_i * p.C_i * p.H_i * p.W_i + p.M * p.K + p.M * p.N  # each once
        arithmetic = 2 * p.M * p.N * p.K / flops
        floor = max(arithmetic, 4 * numbers / H200_LIKE.memory_bytes_per_second)
        expected.append(1.0 * p.flops / 1e10 / 1e3 / floor)
    most = fast_goals.most_possible(results, contenders(results)[PER_IMAGE], precision)
    assert most == pytest.approx(geometric_mean(expected), rel=0.01)
    words = {"fp32": f"float32 would come to {most:.2f}", "3xtf32": f"`mma.sync` to {most:.2f}"}
    assert words[precision] in fast_story.im2col_in_words(results)


def test_what_could_be_reached_on_an_unknown_gpu_is_not_known(results):
    unknown = replace(results, machine=Machine("a GPU"))
    for precision in ("fp32", "3xtf32"):
        assert fast_goals.most_possible(unknown, contenders(results)[BATCHED], precision) is None
    text = fast_story.im2col_in_words(unknown)
    assert "would come to - by graph replays, three products of `mma.sync` to -." in text


def test_how_near_the_peak_is_said(results):
    text = fast_story.peaks_in_words(results)
    assert "Conv8 stands at 40.0 of 51.2 TFLOP/s: 78.1% of cuBLAS's product, all in." in text
    assert "of 4.20 TB/s: " in text
    assert text.endswith("s13 is 1.25 times as fast as s12, up to 50 TFLOP/s.\n")


def test_s11_stands_beside_s12_with_its_tile(results):
    rows = dict(results.rows)
    for name, tile in ((IM2WIN, "64x128x8/8x8"), (OURS, "128x64x16/8x8")):
        rows["conv9", 128, name] = replace(rows["conv9", 128, name], algorithm=tile)
    text = fast_story.s11_table(replace(results, rows=rows))
    old = results.rows["conv9", 128, IM2WIN]
    found = cells(text, "conv9")
    assert found[:3] == ["64x128x8/8x8", f"{old.time_ms:.3f}", f"{old.tflops:.1f}"]
    assert (found[3], found[5]) == ("128x64x16/8x8", "40.0")
    assert float(found[6]) == pytest.approx(40 / old.tflops, abs=0.006)
    assert cells(text, "conv8")[0] == "-"


def test_the_arithmetic_of_cublas_s_share_holds():
    text = " ".join((ROOT / fast_table.STORY).read_text(encoding="utf-8").split())
    of_the_peak, rounds = 0.886 * 0.894, 8192 // 256 * (8192 // 128) / 132
    of_that = 51.3 / 66.9 / of_the_peak
    assert f"= {100 * of_the_peak:.0f} % of the peak, {66.9 * of_the_peak:.0f} TFLOP/s." in text
    assert f"The 51.3 are {100 * of_that:.0f} % of that" in text
    assert f"are {rounds:.1f} rounds" in text
    assert round(rounds / 16, 2) == round(of_that, 2)


# The pages.


def test_the_page_is_what_the_results_give(capsys):
    assert fast_table.main(["--root", str(ROOT), "--check"]) == 0, capsys.readouterr().err


def test_without_results_the_page_shows_no_number(tmp_path, results, capsys):
    (tmp_path / "docs/results").mkdir(parents=True)
    sections = [*fast_table.SECTIONS, "runs", "origin"]
    marked = "".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in sections)
    page, story = tmp_path / fast_table.PAGE, tmp_path / fast_table.STORY
    page.write_text(marked)
    story.write_text(
        "".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in fast_story.SECTIONS)
    )
    assert fast_table.main(["--root", str(tmp_path)]) == 0
    assert page.read_text().count("Not measured yet: `convlab bench --json") == len(sections)
    (tmp_path / fast_table.FILE).write_text(json.dumps(results.as_json()))
    assert fast_table.main(["--root", str(tmp_path)]) == 0
    assert fast_table.speed_table(results) in page.read_text()
    assert fast_story.im2col_in_words(results) in story.read_text()
    assert "Not measured" not in page.read_text()
    (tmp_path / fast_table.FILE).write_text("{}")
    assert fast_table.main(["--root", str(tmp_path)]) == 2
    assert "is no file of results" in capsys.readouterr().err


def said_in(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())
