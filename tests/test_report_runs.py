"""What a report says of whole runs: interrupted or not, and two of them side by side."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from bench_samples import sample

from convlab.bench import report
from convlab.bench.report_document import as_markdown
from convlab.bench.report_runs import clocks_below, interrupted, second_run

pytestmark = pytest.mark.same_in_cudasim

ENDED = "2026-11-21T13:08:00+00:00"


def said(one, other):
    return as_markdown("", second_run(one, other))


def with_environment(**changed):
    results = sample(slower=1.02, identity="two")
    results.environment |= changed
    return results


def test_two_runs_differ_by_so_much():
    table = second_run(sample(), with_environment())[-1]
    assert len(table.rows) == 10
    assert {row[2:] for row in table.rows} == {("2.00", "2.00")}
    assert "no system in common" in said(sample(), replace(sample(), rows={}))


def test_what_differs_between_two_runs_is_in_a_table():
    assert "| driver |" not in said(sample(), with_environment())
    gpu, packages = sample().environment["gpu"], sample().environment["packages"]
    text = said(sample(), with_environment(gpu=gpu | {"driver": "590"}))
    assert "| driver | 580 | 590 |" in text
    text = said(sample(), with_environment(packages=packages | {"torch": "2.12", "numpy": None}))
    assert "| numpy | 2.4.6 | - |" in text
    assert re.search(r"^\| torch \| .* \| 2\.12 \|$", text, re.MULTILINE)
    other = with_environment(python="3.13.0", date="2026-11-21T10:44:00+00:00")
    text = said(sample(), other)
    assert "| Python | 3.12.3 | 3.13.0 |" in text
    assert "| 2026-11-21 10:44 |" in text


def test_clocks_that_were_low_are_told():
    results = sample(layers=["conv9", "conv10"])
    assert clocks_below(results) is None
    for name, layer, clocks in (
        ("s01_direct", "conv9", {"before": 1980, "after": 1815, "max": 1980}),
        ("s11_im2win_full", "conv9", {"before": 1930, "after": 1980, "max": 1980}),
        ("s11_im2win_full", "conv10", {"before": None, "after": None, "max": None}),
    ):
        key = (layer, 128, name)
        results.rows[key] = replace(results.rows[key], clocks_mhz=clocks)
    said = clocks_below(results)
    assert "more than 3 % below" in said
    assert said.endswith(" with `s01_direct` on conv9 (1815 of 1980 MHz).")
    assert said in as_markdown("t", report.blocks(results, plots=False))


def test_a_system_of_one_run_alone_is_named():
    other = with_environment()
    other.rows = {key: row for key, row in other.rows.items() if key[2] != "s01_direct"}
    del other.systems["s01_direct"]
    assert "| systems of one run alone | `s01_direct` | - |" in said(sample(), other)
    assert "| systems of one run alone | - | `s01_direct` |" in said(other, sample())


def test_another_kernel_of_a_library_s_trial_is_shown():
    one, other = sample(), with_environment()
    assert "tries several" not in said(one, other)
    name = "sm90_gemm_nhwc_tilesize64x{}x32_warp; Memset"
    for results, tile, ms in ((one, 128, 1.0), (other, 256, 1.25)):
        for system in ("torch_tf32", "s01_direct"):
            row = results.rows["conv6", 128, system]
            changed = replace(row, algorithm=name.format(tile), time_ms=ms)
            results.rows[row.key] = changed
    text = said(one, other)
    assert "| `torch_tf32` | conv6 | tiles of 64x128x32 | tiles of 64x256x32 | +25.0 |" in text
    assert text.count("tiles of") == 2  # a stage's tile is convlab's choice
    assert "tries several" not in said(one, one)


@pytest.mark.parametrize(
    ("here", "there", "shown"),
    [
        ("g_tilesize64x64x8_a; void f<int>(int)", "g_tilesize64x32x8_a; void f<int>(int)", True),
        ("g_tilesize64x64x8_a; void f<int>(int)", "void f<int>(int); g_tilesize64x64x8_a", False),
        ("the package's: g_tilesize64x64x8_a", "g_tilesize64x32x8_a", False),
        ("void at::(anonymous namespace)::f<float, int>(torch::h", "g_tilesize64x64x8_a", True),
    ],
)
def test_another_order_or_package_is_no_other_choice(here, there, shown):
    one, other = sample(), with_environment()
    for results, algorithm in ((one, here), (other, there)):
        row = results.rows["conv6", 128, "torch_tf32"]
        results.rows[row.key] = replace(row, algorithm=algorithm)
    text = said(one, other)
    assert ("tries several" in text) is shown
    if "anonymous" in here:
        assert "| conv6 | f | tiles of 64x64x8 |" in text


def test_an_interrupted_run_says_how_many_rows_are_missing():
    assert interrupted(replace(sample(), finished=ENDED)) is None
    results = replace(sample(), finished=None)  # as in a file that does not say which are missing
    assert "of 11 systems on 12 layers no row is missing" in interrupted(results)
    del results.rows["conv12", 128, "cudnn_fft"]
    assert "**The run was interrupted**" in interrupted(results)
    assert "11 systems on 12 layers so far: 1 row is missing" in interrupted(results)
    del results.rows["conv12", 128, "cudnn_gemm"]
    assert "2 rows are missing" in interrupted(results)
    assert interrupted(results) in as_markdown("t", report.blocks(results, plots=False))
    assert f"Of the other run: {interrupted(results)}" in said(sample(), results)
    results.missing = {("conv1", 128, "nobody"): None}
    assert "1 row is missing" in interrupted(results)  # what was asked for counts, not the product
