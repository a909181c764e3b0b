"""Reports: what they say follows from the rows, and they can be read anywhere."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bench_samples import SYSTEMS, sample
from rich.console import Console
from typer.testing import CliRunner

from convlab.bench import analysis, report
from convlab.bench.analysis import Contender
from convlab.bench.report_document import (
    Figure,
    Heading,
    Paragraph,
    Table,
    as_html,
    as_markdown,
    picture_files,
)
from convlab.bench.report_why import Why, counted
from convlab.bench.results import open_results
from convlab.cli import app
from convlab.commands.bench_summary import summary
from convlab.stages import stage_named
from convlab.workloads import LAYER_NAMES

pytestmark = pytest.mark.same_in_cudasim

WHY = (
    Why("s01_direct", 2.0, 2.5, 0.0, 2.5),
    Why("s03_im2col_blas"),
    Why("s11_im2win_full", 0.2, 0.1, 0.2, 0.16),
)


@pytest.fixture(scope="module")
def results():
    return sample()


@pytest.fixture(scope="module")
def blocks(results):
    return report.blocks(results, [sample(slower=1.02, identity="two")], WHY)


# What follows from rows.


def test_speedup_is_the_ratio_of_times(results):
    one, over = (analysis.contender(results, name) for name in ("s11_im2win_full", "s01_direct"))
    times = [results.row("conv5", 128, name).time_ms for name in ("s01_direct", "s11_im2win_full")]
    assert analysis.speedup(results, one, over, ("conv5", 128)) == pytest.approx(
        times[0] / times[1]
    )


def test_the_mean_is_geometric_and_over_the_layers_that_both_have(results):
    one, over = (analysis.contender(results, name) for name in ("s11_im2win_full", "cudnn_fft"))
    mean, layers = analysis.mean_speedup(results, one, over)
    ratios = [analysis.speedup(results, one, over, layer) for layer in results.layers()]
    known = [ratio for ratio in ratios if ratio]
    assert layers == len(known) == 8
    product = 1.0
    for ratio in known:
        product *= ratio
    assert mean == pytest.approx(product ** (1 / 8))
    back = analysis.mean_speedup(results, over, one)
    assert mean * back[0] == pytest.approx(1)


def test_the_fastest_of_cudnn_and_of_its_gemm_class(results):
    groups = {one.name: one for one in analysis.fastest(results)}
    assert groups["torch_fastest"].members == ("torch_fp32",)  # TF32 is another precision
    assert "cudnn_fft" in groups["cudnn_fastest"].members
    for layer in results.layers():
        fastest = groups["cudnn_fastest"].best(results, layer)
        times = [results.row(*layer, name).time_ms for name in groups["cudnn_fastest"].members]
        assert fastest.time_ms == min(time for time in times if time)
    assert groups["cudnn_fastest"].best(results, ("conv5", 128)).system == "cudnn_fft"
    assert groups["cudnn_fastest"].best(results, ("conv1", 128)).system != "cudnn_fft"


def test_what_pytorch_chose_of_cudnn_s_counts_for_cudnn(results):
    key = ("conv9", 128, "torch_fp32")
    fast = replace(results.rows[key], time_ms=0.01, algorithm=GEMM)
    changed = replace(results, rows=results.rows | {key: fast})
    groups = {one.name: one for one in analysis.fastest(changed)}
    for name in (analysis.CUDNN, analysis.GEMM_CLASS):
        assert groups[name].best(changed, key[:2]) == fast
    assert analysis.cudnn_algorithms(changed).best(changed, key[:2]).system == "cudnn_fft"


def test_the_fastest_of_cudnn_is_never_behind_its_gemm_class():
    measured = open_results(Path(__file__).parents[1] / "docs/results/bench_h200.json")
    groups = {one.name: one for one in analysis.fastest(measured)}
    for layer in measured.layers():
        every, some = (
            groups[name].time_ms(measured, layer) for name in (analysis.CUDNN, analysis.GEMM_CLASS)
        )
        assert every <= some


FFT = "sm80_xmma_gemm_cf32cf32_f32f32_cf32_tn_n_tilesize64x64x8; void fft2d_c2r_16x16<float>(int)"
WINOGRAD = "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)"
GEMM = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize256x64x8_stage3"


@pytest.mark.parametrize(
    ("system", "kernels", "counts"),
    [
        ("torch_fp32", GEMM, True),
        ("torch_fp32", "void implicit_convolve_sgemm<float, float, 1024>(int, int)", True),
        ("torch_fp32", FFT, False),
        ("torch_fp32", WINOGRAD, False),
        ("torch_fp32", None, False),
        ("torch_tf32", GEMM, False),
        ("cudnn_fft", "FFT", False),
        ("cudnn_gemm", "GEMM", True),
    ],
)
def test_the_gemm_class_is_who_does_every_multiplication(results, system, kernels, counts):
    key = ("conv9", 128, system)
    fast = {"time_ms": 0.01, "state": "measured", "tflops": 1.0, "repeats": 20, "time_spread": 1.0}
    fast |= {"reason": None, "algorithm": kernels}
    changed = replace(results, rows=results.rows | {key: replace(results.rows[key], **fast)})
    (group,) = (one for one in analysis.fastest(changed) if one.name == analysis.GEMM_CLASS)
    assert (group.best(changed, ("conv9", 128)).system == system) is counts


def test_nobody_of_a_group_measured_means_no_group(results):
    few = replace(results, rows={k: r for k, r in results.rows.items() if "cudnn" not in k[2]})
    assert [one.name for one in analysis.fastest(few)] == ["torch_fastest", analysis.CUDNN]
    nobody = replace(few, rows={k: r for k, r in few.rows.items() if "torch" not in k[2]})
    assert analysis.fastest(nobody) == []
    assert Contender("none", "none", ("cudnn_fft",)).best(few, ("conv5", 128)) is None


def test_percent_of_the_roofline_takes_the_peak_of_the_precision(results):
    fp32, tf32 = (results.row("conv5", 128, name) for name in ("torch_fp32", "torch_tf32"))
    assert analysis.percent(results, fp32) == pytest.approx(100 * fp32.tflops / 66.9)
    assert analysis.percent(results, tf32) == pytest.approx(100 * tf32.tflops / 535)
    assert analysis.percent(results, None) is None


def test_memory_measured_is_without_the_tensors(results):
    computed, measured = analysis.memory(results.row("conv9", 128, "s03_im2col_blas"))
    assert measured - computed == 2**21
    assert analysis.memory(results.row("conv9", 128, "cupy_fp32")) == (None, None)


def test_reasons_of_one_system_are_told_together(results):
    found = {entry["system"]: entry for entry in analysis.numberless(results)}
    assert found["cupy_fp32"]["layers"] == list(LAYER_NAMES)
    assert found["cudnn_fft"]["layers"] == ["conv1", "conv2", "conv3", "conv4"]
    assert analysis.layers_in_words(LAYER_NAMES, 12) == "all layers"


def test_the_best_stage_is_the_fastest_that_ran_everywhere(results):
    assert analysis.best_stage(results).name == "s11_im2win_full"
    lame = dict(results.rows)
    row = lame["conv1", 128, "s11_im2win_full"]
    numbers = dict.fromkeys(("time_ms", "time_spread", "repeats", "tflops"))
    lame[row.key] = replace(row, state="wrong", reason="it is", **numbers)
    assert analysis.best_stage(replace(results, rows=lame)).name == "s09_double_buffer"


def test_the_best_stage_in_float32_is_not_one_that_splits_its_products(results):
    systems = {name: dict(system) for name, system in results.systems.items()}
    systems["s11_im2win_full"]["precision"] = "3xtf32"
    changed = replace(results, systems=systems)
    assert analysis.best_stage(changed).name == "s09_double_buffer"
    assert analysis.best_stage(changed, "3xtf32").name == "s11_im2win_full"
    assert analysis.best_stage(results, "3xtf32") is None


# Why not faster.


def test_counts_leave_less_of_a_faster_arithmetic():
    at_fp32, twice = Why("s12", 0.5, 0.1, 0.5, 0.1), Why("s13", 0.5, 0.1, 0.5, 0.1, pace=2.0)
    assert at_fp32.limits["passes of shared memory"] == 50
    assert twice.limits["passes of shared memory"] == 25


def test_an_instruction_may_leave_less_than_counts_do():
    counted = Why("s13", 0.1, 0.1, 0.125, 0.1, pace=3.0)
    assert counted.tightest == ("passes of shared memory", pytest.approx(66.7, abs=0.1))
    bound = replace(counted, instruction=59.0)
    assert bound.tightest == ("the instruction", 59.0)
    assert replace(counted, instruction=80.0).tightest == counted.tightest


def test_the_instruction_s_limit_is_the_measured_one_of_that_gpu(results):
    """s13's; s14's instruction reaches the peak."""
    s13, s14 = "s13_tensor_cores", "s14_warpgroups"
    systems = results.systems | {name: {"precision": "3xtf32"} for name in (s13, s14)}
    machine = replace(results.machine, device="NVIDIA H200")
    h200, other = (replace(results, systems=systems, machine=m) for m in (machine, results.machine))
    for one, stage, allowed in ((h200, s13, "59 %"), (h200, s14, "100 %"), (other, s13, "100 %")):
        table = report.why_table(one, [Why(stage, 0.01, 0.01, 0.01, 0.1)])
        assert table.rows[0][5] == allowed


def test_counts_say_how_much_of_the_peak_they_leave():
    direct = WHY[0]
    assert direct.tightest == ("memory instructions", 12.5)
    assert direct.limits["sectors of global memory"] == 40
    assert WHY[1].tightest is None  # a library does the work


def test_stages_are_counted_by_the_simulator():
    stages = [stage_named(name) for name in ("s01", "s11")]
    first, last = counted(stages)
    assert first.stage == "s01_direct"
    assert last.stage == "s11_im2win_full"
    assert first.requests == pytest.approx(2, rel=0.1)  # a load of each factor, little reuse
    assert last.requests < first.requests / 5
    # 8 x 8 outputs a thread: 16 numbers in passes of 128 bytes, a quarter pass for each
    # multiply-add at the most. The tile for small problems asks for more than twice that.
    assert 0 < last.passes < 0.25
    assert first.tightest[1] < last.tightest[1]


# What is written.


def test_every_system_and_layer_is_in_the_tables(results, blocks):
    throughput = report.throughput_table(results)
    assert [row[0].strip("`") for row in throughput.rows] == [name for name, *_ in SYSTEMS]
    assert throughput.head[1:] == tuple(f"Conv{number}" for number in range(1, 13))
    for table in (block for block in blocks if isinstance(block, Table)):
        assert all(len(row) == len(table.head) for row in table.rows)


def test_a_mean_says_over_how_many_layers_it_is_unless_over_all(results):
    best, over = analysis.best_stage(results), analysis.baselines(results)
    means = {row[0]: row[1] for row in report.speedup_table(results, best, over).rows}
    assert re.fullmatch(r"\*\*[\d.]+\*\* \(8\)", means["`cudnn_fft`"])
    assert re.fullmatch(r"\*\*[\d.]+\*\*", means["`torch_fp32`"])
    table = report.mean_table(results, analysis.stages(results), over)
    for name, *cells in table.rows:
        assert all(cell.endswith(" (8)") is (name == "`cudnn_fft`") for cell in cells)


def test_numbers_that_are_missing_have_their_reason(results, blocks):
    text = as_markdown("t", blocks)
    assert "| `cudnn_fft` | conv1, conv2, conv3, conv4 | unsupported | strides are not" in text
    assert "| `cupy_fp32` | all layers | absent | CuPy is not installed |" in text


def test_a_refused_number_shows_nowhere(results):
    row = results.row("conv9", 128, "torch_fp32")
    numbers = dict.fromkeys(("time_ms", "time_spread", "repeats", "tflops"))
    refused = replace(row, state="refused", reason="refused, above the roofline", **numbers)
    changed = replace(results, rows=results.rows | {row.key: refused})
    table = {line[0]: line for line in report.throughput_table(changed).rows}
    assert table["`torch_fp32`"][9] == "refused"
    assert "above the roofline" in as_markdown("t", report.blocks(changed, plots=False))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0123, "0.012"),
        (0.72, "0.720"),
        (1.234, "1.23"),
        (23.45, "23.4"),
        (163.64, "164"),
        (720.2, "720"),
    ],
)
def test_numbers_have_three_digits(value, shown):
    assert report._digits(value) in (shown, f"{float(shown) + 0.1:.1f}")


class Page(HTMLParser):
    """What a page holds, and whether its elements close."""

    VOID = frozenset({"meta", "wbr", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.links, self.ids, self.headings = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.links += [known[name] for name in ("src", "href", "xlink:href") if name in known]
        if "id" in known:
            self.ids.append(known["id"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def test_the_page_stands_alone(blocks):
    text = as_html("A <title>", blocks)
    page = Page(text)
    assert page.open == []
    assert all(link.startswith("#") for link in page.links)
    assert "url(" not in text.replace("url(#", "")
    assert "@import" not in text
    assert len(page.ids) == len(set(page.ids)), "ids of several pictures must differ"
    assert "<title>A &lt;title&gt;</title>" in text
    wanted = ["TFLOP/s", "Speedup", "Roofline", "Memory", "Why not faster", "Without a number"]
    assert [heading for heading in page.headings if heading in wanted] == wanted
    assert "prefers-color-scheme: dark" in text
    assert "max-width: 620px" in text


def test_pictures_on_the_page_have_the_page_s_colours(blocks):
    text = as_html("t", blocks)
    pictures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--ink)" in pictures
    assert "var(--panel)" in pictures
    assert not re.search(r"#(000000|ffffff|1f2328)", pictures)


def test_words_in_html_are_no_markup():
    text = as_html("t", [Paragraph("a < b & `x_y`"), Table(("h",), (("<b>",),))])
    assert "a &lt; b &amp; <code>x_<wbr>y</code>" in text
    assert "&lt;b&gt;" in text


def test_figures_are_drawn_the_same_every_time(results, blocks):
    figures = [block for block in blocks if isinstance(block, Figure)]
    assert [figure.name for figure in figures] == ["throughput", "speedups", "roofline", "memory"]
    again = [block for block in report.blocks(results, (), WHY) if isinstance(block, Figure)]
    assert [figure.wide for figure in figures] == [figure.wide for figure in again]
    for figure in figures:
        assert figure.wide != figure.narrow
        assert "<text" in figure.wide
        assert "DejaVu Sans" in figure.wide


def words_of(figure: Figure) -> str:
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", figure.wide))


def test_plots_name_their_axes_and_what_they_show(results, blocks):
    by_name = {block.name: words_of(block) for block in blocks if isinstance(block, Figure)}
    assert "FLOP per byte that has to move" in by_name["roofline"]
    assert "TFLOP/s" in by_name["roofline"]
    assert "memory 4.9 TB/s" in by_name["roofline"]
    for stage in results.names("stage"):
        assert stage in by_name["roofline"]
        assert stage in by_name["memory"]
    for baseline in ("torch_fp32", "cudnn_gemm_class", "cudnn_fastest"):
        assert baseline in by_name["speedups"]
    assert "layer (Conv1 to Conv12 of the paper)" in by_name["throughput"]


def test_markdown_names_the_files_that_go_with_it(blocks):
    text = as_markdown("t", blocks, "r-")
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert shown == list(picture_files(blocks, "r-"))


@pytest.mark.parametrize("kind", ["stage", "baseline"])
def test_a_few_rows_make_a_report_too(kind):
    few = sample(layers=["conv9"])
    few.rows = {
        key: row for key, row in few.rows.items() if few.systems[row.system]["kind"] == kind
    }
    few.systems = {name: one for name, one in few.systems.items() if one["kind"] == kind}
    blocks = report.blocks(few, (), WHY)
    page = Page(as_html("t", blocks))
    assert page.open == []
    assert all(block.rows for block in blocks if isinstance(block, Table))
    assert ("Speedup" in page.headings) is (kind == "stage")


@pytest.mark.parametrize("system", ["s01_direct", "s11_im2win_full", "torch_fp32"])
def test_one_row_makes_a_report_without_an_empty_table(system):
    one = sample(layers=["conv9"])
    one.rows = {key: row for key, row in one.rows.items() if row.system == system}
    one.systems = {system: one.systems[system]}
    blocks = report.blocks(one)
    assert all(block.rows for block in blocks if isinstance(block, Table))
    assert Heading("Speedup") not in blocks
    assert Heading("TFLOP/s") in blocks


def test_where_nothing_has_a_number_reasons_are_all_there_is():
    none = sample(layers=["conv9"])
    none.rows = {key: row for key, row in none.rows.items() if not row.ok}
    blocks = report.blocks(none)
    assert Paragraph("Nothing has a number.") in blocks
    headings = [block.text for block in blocks if isinstance(block, Heading)]
    assert headings == ["Without a number", "How it was measured"]


def test_each_batch_has_its_own_tables_and_means():
    both, large = sample(layers=["conv9", "conv10"], batch=4, slower=3.0), sample(layers=["conv9"])
    both.rows |= large.rows
    blocks = report.blocks(both)
    tables = [block for block in blocks if isinstance(block, Table)]
    assert all(len(table.head) == len(set(table.head)) for table in tables)
    headings = [block.text for block in blocks if isinstance(block, Heading)]
    assert headings.count("TFLOP/s, batch 4") == headings.count("TFLOP/s, batch 128") == 1
    at = blocks.index(Heading("Speedup, batch 128"))
    alone = report.blocks(large)
    assert blocks[at + 3] == alone[alone.index(Heading("Speedup")) + 3]
    assert len(picture_files(blocks, "r-")) == 8
    page = Page(as_html("t", blocks))
    assert len(page.ids) == len(set(page.ids))
    assert {"layers": ["conv9"]}.items() <= analysis.numberless(large)[0].items()
    assert "conv9, conv9" not in as_markdown("t", blocks)


# The command.


@pytest.fixture
def file(tmp_path, results):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(results.as_json()))
    return path


def run(*words: str, columns: int = 100):
    return CliRunner().invoke(app, ["report", *map(str, words)], env={"COLUMNS": str(columns)})


def test_the_terminal_gets_a_table_that_fits(file):
    for columns in (80, 160):
        result = run(file, columns=columns)
        assert result.exit_code == 0
        assert max(map(len, result.stdout.splitlines())) <= columns
        assert "…" not in result.stdout
        assert "s11_im2win_full" in result.stdout
        assert "CuPy is not installed" in result.stdout
    assert "conv12" in run(file, columns=160).stdout


def test_each_batch_has_its_own_table_in_the_terminal(tmp_path):
    both = sample(layers=["conv9", "conv10"], batch=4, slower=3.0)
    both.rows |= sample(layers=["conv9"]).rows
    (tmp_path / "both.json").write_text(json.dumps(both.as_json()))
    text = run(tmp_path / "both.json", columns=160).stdout
    few, many = text[text.index("TFLOP/s, batch 4 ") :].split("TFLOP/s, batch 128 ")
    assert few.splitlines()[0].split() == [
        "TFLOP/s,",
        "batch",
        "4",
        "over",
        "s01",
        "conv9",
        "conv10",
    ]
    assert many.splitlines()[0].split() == ["over", "s01", "conv9"]
    (alone,) = re.findall(r"s11_im2win_full.*", summed_up(sample(layers=["conv9"])))
    assert alone.split() == re.findall(r"s11_im2win_full.*", many)[0].split()


def test_the_mean_in_the_terminal_is_of_the_layers_beside_it():
    results = sample(layers=["conv9", "conv10", "conv12"])
    rows = [row for row in results.rows.values() if row.layer == "conv12"]
    text = io.StringIO()
    Console(width=160, file=text).print(summary(results, rows, 160))
    one = analysis.contender(results, "s11_im2win_full")
    first = analysis.contender(results, "s01_direct")
    ratio = analysis.speedup(results, one, first, ("conv12", 128))
    (line,) = re.findall(r"s11_im2win_full.*", text.getvalue())
    assert line.split()[1] == f"{ratio:.2f}"


def test_the_median_in_the_terminal_is_the_middle_of_both_middle_ones():
    layers = ["conv1", "conv2", "conv3", "conv4", "conv5", "conv7"]  # too many for their room
    results = sample(layers=layers)
    speeds = sorted(row.tflops for row in results.rows.values() if row.system == "s01_direct")
    assert speeds[3] > 1.02 * speeds[2]
    text = io.StringIO()
    Console(width=60, file=text).print(summary(results, width=60))
    (line,) = re.findall(r"s01_direct.*", text.getvalue())
    shown = [float(cell) for cell in line.split()[3:]]
    assert shown == pytest.approx([speeds[0], sum(speeds[2:4]) / 2, speeds[-1]], rel=0.01)


def summed_up(results) -> str:
    text = io.StringIO()
    Console(width=160, file=text).print(summary(results, width=160))
    return text.getvalue()


def test_what_follows_as_json(file, results):
    told = json.loads(run(file, file, "--json", "-").stdout)
    (batch,) = told["batches"]
    assert batch["batch"] == 128
    systems = {system["name"]: system for system in batch["systems"]}
    assert {"s01_direct", "s11_im2win_full", "cudnn_fastest", "cudnn_gemm_class"} <= {*systems}
    assert "cupy_fp32" not in systems
    assert batch["without_number"] == analysis.numberless(results)
    one, first = (analysis.contender(results, name) for name in ("s11_im2win_full", "s01_direct"))
    mean, layers = analysis.mean_speedup(results, one, first)
    over = systems["s11_im2win_full"]["mean_speedup_over"]
    assert over["s01_direct"] == {"mean": mean, "layers": layers}
    for layer in systems["s11_im2win_full"]["layers"]:
        row = results.row(layer["layer"], 128, "s11_im2win_full")
        assert (layer["time_ms"], layer["tflops"]) == (row.time_ms, row.tflops)
        assert layer["percent_of_roofline"] == analysis.percent(results, row)
        there = results.row(layer["layer"], 128, "s01_direct")
        assert layer["speedup_over"]["s01_direct"] == there.time_ms / row.time_ms
    for layer in systems["cudnn_fastest"]["layers"]:
        assert layer["time_ms"] == results.row(layer["layer"], 128, layer["system"]).time_ms
    (other,) = told["other_runs"]
    assert other["identity"] == results.identity
    assert all(
        (one["median_percent"], one["largest_percent"]) == (0, 0) for one in other["systems"]
    )
    assert {one["system"] for one in other["systems"]} == {*results.names("stage")} | {
        baseline.name for baseline in analysis.baselines(results)
    }


def test_json_of_several_batches_and_of_one_file(tmp_path):
    both = sample(layers=["conv9", "conv10"], batch=4, slower=3.0)
    both.rows |= sample(layers=["conv9"]).rows
    (tmp_path / "both.json").write_text(json.dumps(both.as_json()))
    told_in = tmp_path / "told.json"
    assert run(tmp_path / "both.json", "--json", told_in).exit_code == 0
    told = json.loads(told_in.read_text())
    shown = {
        batch["batch"]: [layer["layer"] for layer in batch["systems"][0]["layers"]]
        for batch in told["batches"]
    }
    assert shown == {4: ["conv9", "conv10"], 128: ["conv9"]}
    assert told["other_runs"] == []


def test_further_files_are_compared_in_the_terminal(file):
    for others in (1, 2):
        result = run(*[file] * (1 + others))
        assert len(re.findall(r"s01_direct +12 +0\.00 +0\.00", result.stdout)) == others


def test_each_further_run_has_a_heading(results):
    texts = [
        block.text
        for block in report.blocks(results, [results] * 3, plots=False)
        if isinstance(block, Heading)
    ]
    assert texts[texts.index("A second run") :][:3] == ["A second run", "A third run", "Run 4"]


def test_an_interrupted_run_is_told_of_in_the_terminal(file, results):
    assert "12 rows are missing" not in run(file).stdout
    few = {
        key: row for key, row in results.rows.items() if key[2] != "s01_direct" or key[0] == "conv1"
    }
    missing = dict.fromkeys(results.rows.keys() - few.keys())
    left = replace(results, rows=few, missing=missing, finished=None)
    file.write_text(json.dumps(left.as_json()))
    assert "11 rows are missing" in run(file, columns=160).stdout
    ended = replace(results, finished="2026-11-21T13:00:00+00:00")
    file.write_text(json.dumps(ended.as_json()))
    assert "come to its end" not in run(file).stdout


def test_pages_and_pictures_are_written(file, tmp_path):
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    result = run(file, "--html", page, "--markdown", text, "--no-counts")
    assert result.exit_code == 0, result.stderr
    assert Page(page.read_text()).open == []
    for name in re.findall(r"\]\((r-\w+\.svg)\)", text.read_text()):
        assert (tmp_path / name).read_text().startswith("<svg")


def test_a_stage_that_is_no_longer_there_is_not_counted(file, tmp_path):
    document = json.loads(file.read_text().replace("s07_microkernel", "s07_of_before"))
    for kept in ("rows", "systems"):
        few = ("s01_direct", "s07_of_before")
        named = "system" if kept == "rows" else "name"
        document[kept] = [one for one in document[kept] if one[named] in few]
    file.write_text(json.dumps(document))
    result = run(file, "--html", tmp_path / "r.html")
    assert result.exit_code == 0, result.stderr
    counts = (tmp_path / "r.html").read_text().partition("Why not faster")[2]
    assert "s01_<wbr>direct" in counts
    assert "s07_<wbr>of" not in counts.partition("Without")[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.json"], "'none.json' cannot be read: No such file or directory"),
        (["{file}", "--html", "{file}"], "--html is .*, the results themselves"),
        (["{file}", "--html", "no/such/r.html"], "there is no folder"),
        (["{file}", "--json", "{file}"], "--json is .*, which is taken"),
        (["{file}", "--html", "r.md", "--markdown", "./r.md"], "--html and --markdown are both"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(file, words, said):
    result = run(*(word.format(file=file) for word in words))
    assert result.exit_code == 2
    assert re.search(said, result.stderr)
    assert result.stderr.count("\n") == 1


def test_pictures_that_are_files_are_dark_on_dark_pages(blocks):
    for text in picture_files(blocks, "r-").values():
        assert text.startswith("<svg")
        assert "prefers-color-scheme: dark" in text.partition("<style>")[2]
