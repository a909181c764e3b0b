"""docs/baselines.md: baselines' times beside those known before, and why they differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_samples import sample

from convlab.bench import analysis, baselines_before, report_docs, report_plots
from convlab.bench.baselines_before import BEFORE_MS, UNEXPLAINED
from convlab.bench.results import Results, open_results
from convlab.workloads import LAYER_NAMES

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]


def beside(**changes: float) -> Results:
    """A run that differs from what was known before by these parts of ``torch_fp32``'s times."""
    results = sample()
    for layer in LAYER_NAMES:
        key = (layer, 128, analysis.TORCH)
        time_ms = BEFORE_MS[analysis.TORCH][layer] * (1 + changes.get(layer, 0.0))
        results.rows[key] = replace(results.rows[key], time_ms=time_ms, settled=True)
    return results


def of_torch(results: Results) -> dict[str, float]:
    found = baselines_before.differing(results)
    return {layer: change for (name, layer), change in found.items() if name == analysis.TORCH}


def test_whatever_differs_has_a_reason():
    found = baselines_before.differing(open_results(ROOT / report_docs.FIRST))
    assert found
    nobody_knows = [
        cell for cell, change in found.items()
        if baselines_before.reason_for(*cell, change) == UNEXPLAINED
    ]  # fmt: skip
    assert nobody_knows == []


def test_a_tenth_is_where_a_difference_begins():
    assert of_torch(beside()) == {}
    assert of_torch(beside(conv3=0.09, conv9=-0.09)) == {}
    found = of_torch(beside(conv3=0.11, conv9=-0.2))
    assert found == {"conv3": pytest.approx(0.11), "conv9": pytest.approx(-0.2)}


def test_a_difference_that_nobody_has_explained_says_so():
    text = baselines_before.section(beside(conv3=0.5, conv9=0.25))
    assert f"| `torch_fp32`: conv3 +50 %, conv9 +25 % | {UNEXPLAINED} |" in text


def test_a_reason_is_for_its_cells_and_one_direction():
    name = "im2col_cublas_batched"
    assert "128 launches" in baselines_before.reason_for(name, "conv9", -0.2)
    assert baselines_before.reason_for(name, "conv9", 0.2) == UNEXPLAINED
    assert baselines_before.reason_for("torch_fp32", "conv9", -0.2) == UNEXPLAINED


def test_what_a_call_takes_stands_beside_what_differs():
    first, second = beside(conv9=-0.5), beside(conv9=-0.4)
    for results, called_ms in ((first, 0.54), (second, 0.72)):
        key = ("conv9", 128, analysis.TORCH)
        results.rows[key] = replace(results.rows[key], called_ms=called_ms)
    line = "| `torch_fp32` | conv9 | 0.723 | 0.361 | 0.540 |"
    assert f"{line}\n" in baselines_before.section(first)
    assert f"{line} 0.720 |\n" in baselines_before.section(first, [second])
    text = baselines_before.section(first, [second, beside()])
    assert f"{line} 0.720 | - |\n" in text
    assert "| called, in the second run | called, in the third run |\n" in text
    assert "| `torch_fp32` | conv9 |" not in baselines_before.section(beside())


def test_what_is_said_of_calls_is_so():
    runs = [open_results(ROOT / name) for name in (report_docs.FIRST, *report_docs.OTHERS)]
    parts, less = {}, {}
    for name, layer in baselines_before.differing(runs[0]):
        row = baselines_before._rows(runs[0], name)[layer]
        called = [baselines_before.called_ms(results, row) for results in runs]
        part = [one / BEFORE_MS[name][layer] for one in called if one is not None]
        assert len(part) >= 2
        if name == analysis.CUDNN and layer in ("conv9", "conv12"):
            less[layer] = [one for one in part if one <= 0.93]
            part = [one for one in part if one > 0.93]
        parts.setdefault(name, []).append(part)
    assert [len(of_runs) for of_runs in less.values()] == [1, 1]  # in one run each,
    assert all(0.87 < one < 0.93 for (one,) in less.values())  # a tenth less
    for name in (analysis.GEMM_CLASS, analysis.CUDNN, "torch_tf32"):
        assert all(min(pair) > 0.93 for pair in parts[name])  # about as long, or longer
    each = parts["im2col_cublas_batched"]
    assert all(any(abs(part - 1) < 1 / 8 for part in runs) for runs in each)
    assert sum(min(runs) < 0.8 for runs in each) > len(each) / 2
    each = [part for runs in parts["im2col_cublas_per_image"] for part in runs]
    assert 0.39 < min(each) < 0.45  # two fifths
    assert 0.95 < max(each) < 1.1  # all


def test_both_times_stand_in_the_table():
    results = beside(conv9=0.5)
    (line,) = (
        line
        for line in baselines_before.section(results).splitlines()
        if line.startswith("| conv9 |")
    )
    assert line.split(" | ")[1] == "1.085 (0.723)"
    assert line.split(" | ")[3].endswith("(0.48) FFT")
    assert line.split(" | ")[5] == "- (1.95)"
    key = ("conv9", 128, analysis.TORCH)
    results.rows[key] = replace(results.rows[key], settled=False)
    assert "| ~1.085 (0.723) |" in baselines_before.section(results)


def test_what_torch_compile_costs_is_counted():
    results = beside()
    results.systems["torch_compile_fp32"] = results.systems[analysis.TORCH]
    for layer, times in (("conv3", 1.25), ("conv9", 2.0)):
        row = results.rows[layer, 128, analysis.TORCH]
        slower = replace(row, system="torch_compile_fp32", time_ms=times * row.time_ms)
        results.rows[slower.key] = slower
    assert "it took 25 to 100 % longer than `conv2d`" in baselines_before.section(results)


def test_the_page_follows_the_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report_plots, "_svg", lambda *_: "<svg></svg>\n")
    monkeypatch.setattr(report_docs, "counted", lambda stages: [])
    (tmp_path / "docs/results").mkdir(parents=True)
    page, file = tmp_path / report_docs.BASELINES, tmp_path / report_docs.FIRST
    page.write_text("a\n<!-- before:begin -->\n<!-- before:end -->\n")
    assert report_docs.main(["--root", str(tmp_path)]) == 0
    assert "Not measured yet" in page.read_text()
    for results in (beside(), beside(conv9=0.5)):
        file.write_text(json.dumps(results.as_json()))
        assert report_docs.main(["--root", str(tmp_path), "--check"]) == 1
        assert report_docs.main(["--root", str(tmp_path)]) == 0
        assert baselines_before.section(results) in page.read_text()
        assert report_docs.main(["--root", str(tmp_path), "--check"]) == 0
    capsys.readouterr()
