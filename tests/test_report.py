"""Reports: what they say follows from the rows, and they can be read anywhere."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench_samples import sample
from rich.console import Console
from test_cli import refused
from typer.testing import CliRunner

from convlab.commands.bench_tables import summary
from convlab.commands.cli import app
from convlab.measuring import analysis, plots, report, roofline
from convlab.measuring.results import open_results
from convlab.measuring.roofline import Why, counted

pytestmark = pytest.mark.same_in_cudasim

WHY = (
    Why("m01_direct", 2.0, 2.5, 0.0, 2.5),
    Why("i04_im2col_blas"),
    Why("m11_warp_tiling", 0.2, 0.1, 0.2, 0.16),
)
NO_NUMBERS = dict.fromkeys(("time_ms", "time_spread", "repeats", "tflops"))


@pytest.fixture(scope="module")
def results():
    return sample()


@pytest.fixture(scope="module")
def made(results):
    other = sample(slower=1.02, identity="two")
    return report.make(results, [other], WHY, pictures="r-")


@pytest.fixture(autouse=True)
def undrawn(made, monkeypatch):
    """But for what ``made`` has drawn, pictures hold nothing but the salt of their ids."""
    monkeypatch.setattr(plots, "svg", lambda salt, *rest: f'<svg id="{salt}"></svg>')


@pytest.fixture
def few_channels(monkeypatch):
    """A quarter of the piece that is counted, so a quarter of the time."""
    monkeypatch.setattr(roofline, "PIECE", replace(roofline.PIECE, in_channels=4))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of what was measured on an H200."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    told = report.make(open_results(Path(__file__).parents[1] / "docs/results/bench_h200.json"))
    path.write_text(told.html(), encoding="utf-8")
    return path


def changed(results, key, **values):
    """The results with another row in one place."""
    return replace(results, rows=results.rows | {key: replace(results.rows[key], **values)})


def rows_where(results, keep):
    """The results of the rows that ``keep`` lets in."""
    return replace(results, rows={key: row for key, row in results.rows.items() if keep(row)})


def only(results, keep):
    """The results of the systems that ``keep`` lets in."""
    systems = {name: one for name, one in results.systems.items() if keep(one)}
    return replace(rows_where(results, lambda row: row.system in systems), systems=systems)


def two_batches():
    both = sample(layers=["conv9", "conv10"], batch=4, slower=3.0)
    both.rows |= sample(layers=["conv9"]).rows
    return both


# What follows from rows.


def named(results, *names):
    return [analysis.contender(results, name) for name in names]


def test_a_mean_speedup_is_geometric_and_over_the_layers_that_both_have(results):
    one, over = named(results, "m11_warp_tiling", "cudnn_fft")
    speedup = one.over(over)
    times = [results.row("conv5", 128, system.name).time_ms for system in (over, one)]
    assert speedup.by_layer[4] == pytest.approx(times[0] / times[1])
    assert len(speedup.known) == 8
    assert speedup.mean == pytest.approx(math.prod(speedup.known) ** (1 / 8))
    assert speedup.mean * over.over(one).mean == pytest.approx(1)
    assert (speedup.few, one.over(one).few) == (" (8)", "")


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
def test_the_gemm_class_does_every_multiplication(results, system, kernels, counts):
    key = ("conv9", 128, system)
    other = changed(results, key, time_ms=0.01, algorithm=kernels)
    groups = {one.name: one for one in analysis.fastest(other)}
    assert (groups[analysis.GEMM_CLASS].best(key[:2]).system == system) is counts
    # What PyTorch chose of cuDNN's counts for cuDNN, but not as a call of its API.
    chosen = groups[analysis.CUDNN].best(key[:2]).system
    assert (chosen == system) is (system != "torch_tf32")
    assert all(name.startswith("cudnn") for name in analysis.in_fp32(other, "cudnn"))


def test_nobody_of_a_group_measured_means_no_group(results):
    few = rows_where(results, lambda row: "cudnn" not in row.system)
    assert [one.name for one in analysis.fastest(few)] == ["torch_fastest", analysis.CUDNN]
    assert named(few, "cudnn_fft")[0].best(("conv5", 128)) is None
    assert analysis.fastest(rows_where(few, lambda row: "torch" not in row.system)) == []


def test_percent_of_the_roofline_and_memory_beside_the_tensors(results):
    for name, peak in (("torch_fp32", 66.9), ("torch_tf32", 535)):  # of its precision
        row = results.row("conv5", 128, name)
        assert analysis.percent(results, row) == pytest.approx(100 * row.tflops / peak)
    assert analysis.percent(results, None) is None
    at_conv9 = rows_where(results, lambda row: row.layer == "conv9")
    blas, cupy = named(at_conv9, "i04_im2col_blas", "cupy_fp32")
    computed, measured = analysis.memory(blas)
    assert measured.workspace - computed.workspace == 2**21
    assert measured.ratio > computed.ratio > 1
    assert set(analysis.memory(cupy)) == {(None, None)}


def test_the_best_stage_is_the_fastest_of_its_precision_that_ran_everywhere(results):
    assert analysis.best_stage(results).name == "m11_warp_tiling"
    assert analysis.best_stage(results, "3xtf32") is None
    name = "m11_warp_tiling"
    lame = changed(results, ("conv1", 128, name), state="wrong", reason="it is", **NO_NUMBERS)
    assert analysis.best_stage(lame).name == "m08_double_buffer"
    as_split = {name: results.systems[name] | {"precision": "3xtf32"}}
    split = replace(results, systems=results.systems | as_split)
    assert analysis.best_stage(split).name == "m08_double_buffer"
    assert analysis.best_stage(split, "3xtf32").name == "m11_warp_tiling"


# Why not faster.


@pytest.mark.parametrize(
    ("why", "pace", "allowed"),
    [
        (WHY[0], 1, 12.5),  # by its requests
        (WHY[1], 1, None),  # a library does the work
        (Why("m01", 0.1, 2.5, 0.1), 1, 40),  # by sectors
        (Why("m15", 0.1, 0.1, 0.5), 1, 50),  # by wavefronts
        (Why("t03", 0.1, 0.1, 0.5), 2, 25),  # of a faster arithmetic they leave less
        (Why("t05", 0.01, 0.1, 0.1), 1, 100),
    ],
)
def test_counts_say_how_much_of_the_peak_they_leave(why, pace, allowed):
    assert why.allows(pace) == allowed


def test_counts_are_told_of_the_stage_s_own_arithmetic(results):
    """The ceiling is that of 3xTF32, which is 535 / 3 / 66.9 times as fast as fp32."""
    split = {"t03_split_once": {"precision": "3xtf32"}}
    one = replace(results, systems=results.systems | split)
    ((_, allowed, measured),) = report.why_not_faster(one, [Why("t03_split_once", 0, 0, 0.125)])
    assert (allowed, measured) == (pytest.approx(75, abs=0.5), None)


def test_stages_are_counted_by_the_simulator(few_channels):
    first, last = counted(["m01_direct", "m05_of_before", "m11_warp_tiling"])
    assert (first.stage, last.stage) == ("m01_direct", "m11_warp_tiling")
    assert first.requests == pytest.approx(2, rel=0.1)  # a load of each factor, little reuse
    assert last.requests < first.requests / 5
    # 8 x 8 outputs a thread: 16 numbers in wavefronts of 128 bytes, a quarter wavefront for each
    # multiply-add at the most. The tile for small problems asks for more than twice that.
    assert 0 < last.wavefronts < 0.25
    assert first.allows() < last.allows()


# What is written.


def said(*runs) -> str:
    return report.make(*runs).markdown


def section(markdown: str, heading: str) -> str:
    return markdown.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def by_first(table: str) -> dict[str, list[str]]:
    """The other cells of each row of a Markdown table."""
    rows = (line.strip("| ").split(" | ") for line in table.splitlines()[2:])
    return {first.strip("`"): rest for first, *rest in rows}


def test_a_mean_says_over_how_many_layers_it_is_unless_over_all(results):
    best, over = analysis.best_stage(results), analysis.baselines(results)
    speedups = by_first(report.speedup_table(best, over))
    assert re.fullmatch(r"\*\*[\d.]+\*\* \(8\)", speedups["cudnn_fft"][0])
    assert re.fullmatch(r"\*\*[\d.]+\*\*", speedups["torch_fp32"][0])
    for name, row in by_first(report.mean_table(results, over)).items():
        assert all(cell.endswith(" (8)") is (name == "cudnn_fft") for cell in row)


def test_numbers_that_are_missing_have_their_reason_whose_words_are_no_markup(results, made):
    assert "| `cudnn_fft` | conv1, conv2, conv3, conv4 | unsupported | strides" in made.markdown
    assert "| `cupy_fp32` | all layers | absent | CuPy is not installed |" in made.markdown
    reason, key = "2**31 <b>x</b> | y\nand z", ("conv9", 128, "torch_fp32")
    other = changed(results, key, state="refused", reason=reason, **NO_NUMBERS)
    assert by_first(report.by_layer(other, "tflops"))["torch_fp32"][8] == "refused"
    told = report.make(other)
    words = report.as_words(reason)
    assert words.translate(str.maketrans("\u2217\u2039\u203a", "*<>")) == "2**31 <b>x</b> / y and z"
    assert f"{words} |" in told.markdown
    assert f"{words}<" in told.html()


def ids_and_heads(page: str) -> tuple[list[str], list[str]]:
    """All ids of a page, which XML's parser reads, and its headings."""
    elements = [*ElementTree.fromstring(page).iter()]
    ids = [one.attrib["id"] for one in elements if "id" in one.attrib]
    return ids, ["".join(one.itertext()) for one in elements if one.tag == "h2"]


def test_the_page_stands_alone(made):
    text = replace(made, title="A <title>").html()
    ids, heads = ids_and_heads(text)
    links = re.findall(r'\b(?:src|href)="([^"]*)"', text)
    assert all(link.startswith("#") for link in links)
    assert "url(" not in text.replace("url(#", "")
    assert "@import" not in text
    assert len(ids) == len(set(ids)), "ids of several pictures must differ"
    assert "<title>A &lt;title&gt;</title>" in text
    wanted = ["TFLOP/s", "Speedup", "Roofline", "Memory", "Why not faster", "Without a number"]
    assert [heading for heading in heads if heading in wanted] == wanted
    assert text.count("<figure") == len(made.pictures) == 4
    assert text.count('<div class="scrolls" tabindex="0"><table>') == text.count("<table>")
    assert '<th scope="row"><code>m01_direct</code></th>' in text
    assert all(picture in text for picture in made.pictures.values())
    assert "prefers-color-scheme: dark" in made.pictures["r-memory.svg"].partition("<style>")[2]


def test_figures_are_drawn_the_same_every_time(results, made, monkeypatch):
    names = [f"r-{name}.svg" for name in ("throughput", "speedups", "roofline", "memory")]
    assert re.findall(r"!\[[^]]*\]\(([^)]+)\)", made.markdown) == list(made.pictures) == names
    monkeypatch.undo()
    assert plots.memory(results) == made.pictures["r-memory.svg"]


@pytest.mark.parametrize(
    ("kept", "speedup"),
    [("stage", True), ("baseline", False), ("m01_direct", False), ("m11_warp_tiling", False),
     ("torch_fp32", False), ("cupy_fp32", False)],
)  # fmt: skip
def test_a_few_rows_make_a_report_too(kept, speedup, monkeypatch):
    if kept in ("baseline", "m01_direct"):  # the others are drawn by the same functions
        monkeypatch.undo()
    few = only(sample(layers=["conv9"]), lambda one: kept in (one["name"], one["kind"]))
    made = report.make(few, (), WHY)
    _, found = ids_and_heads(made.html())
    assert ("TFLOP/s" in found) is (kept != "cupy_fp32")  # which has no number
    assert ("Nothing has a number." in made.markdown) is (kept == "cupy_fp32")
    assert ("Speedup" in found) is speedup
    assert not re.search(r"\| ---.*\n(?!\|)", made.markdown)  # no empty table


def test_each_batch_has_its_own_tables_and_means():
    made, large = report.make(two_batches()), sample(layers=["conv9"])
    assert made.markdown.count("\n## TFLOP/s, batch 4\n") == 1
    of_both, alone = section(made.markdown, "Speedup, batch 128"), section(said(large), "Speedup")
    assert of_both.replace("-128.svg", ".svg").strip() == alone.strip()
    assert len(made.pictures) == 8
    assert len({*ids_and_heads(made.html())[0]}) == 8
    assert "conv9, conv9" not in made.markdown
    assert "| system | Conv9 | Conv10 |" in made.markdown
    told = analysis.as_json(two_batches())
    assert told["other_runs"] == []
    shown = {
        batch["batch"]: [layer["layer"] for layer in batch["systems"][0]["layers"]]
        for batch in told["batches"]
    }
    assert shown == {4: ["conv9", "conv10"], 128: ["conv9"]}


def second(one, other) -> str:
    return section(said(one, [other]), "Run 2")


def test_what_differs_between_two_runs_is_in_a_table():
    one, other = sample(layers=["conv9"]), sample(layers=["conv9"], identity="two")
    assert "| driver |" not in second(one, other)
    environment = other.environment
    other.environment = environment | {
        "gpu": environment["gpu"] | {"driver": "590"}, "python": "3.13.0",
        "packages": environment["packages"] | {"torch": "2.12", "numpy": None},
        "date": "2026-11-21T10:44:00+00:00",
    }  # fmt: skip
    other = only(other, lambda one: one["name"] != "m01_direct")
    text = second(one, other)
    for line in (
        "| driver | 580 | 590 |", "| numpy | 2.4.6 | - |", "| Python | 3.12.3 | 3.13.0 |",
        "| 2026-11-21 10:44 |", "| torch | - | 2.12 |",
        "| systems of one run alone | `m01_direct` | - |",
    ):  # fmt: skip
        assert line in text
    assert "| systems of one run alone | - | `m01_direct` |" in second(other, one)


def test_clocks_that_were_low_are_told():
    results = sample(layers=["conv9", "conv10"])
    assert "below its highest" not in said(results)
    for name, layer, before, after, most in (
        ("m01_direct", "conv9", 1980, 1815, 1980),
        ("m11_warp_tiling", "conv9", 1930, 1980, 1980),
        ("m11_warp_tiling", "conv10", None, None, None),
    ):
        told = {"before": before, "after": after, "max": most}
        results = changed(results, (layer, 128, name), clocks_mhz=told)
    assert " with `m01_direct` on conv9 (1815 of 1980 MHz).\n" in said(results)


@pytest.mark.parametrize("width", [390, 1100, 1700])
def test_no_table_is_cut_where_it_matters(chromium, page, width):
    """The page is as wide as the window and shows every mean; on a desk also every number."""
    chromium.window(width, 900)
    chromium.open(page)
    assert chromium.run("document.documentElement.scrollWidth") <= width
    means = chromium.run(
        "[...document.querySelectorAll('th')].filter(one => one.textContent === 'mean')"
        ".map(one => [one.getBoundingClientRect().right,"
        " one.closest('.scrolls').getBoundingClientRect().right])"
    )
    cut = chromium.run(
        "[...document.querySelectorAll('.scrolls')].filter(one => "
        "one.scrollWidth > one.clientWidth).map(one => one.textContent.slice(0, 60))"
    )
    assert means
    assert all(right <= edge for right, edge in means)
    assert cut == [] or width == 390


# The command.


@pytest.fixture
def file(tmp_path, results):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(results.as_json()))
    return path


def run(*words: str, columns: int = 100):
    return CliRunner().invoke(app, ["report", *map(str, words)], env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [80, 160])
def test_the_terminal_gets_a_table_that_fits(file, columns):
    result = run(file, columns=columns)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert "…" not in result.stdout
    assert "m11_warp_tiling" in result.stdout
    assert "CuPy is not installed" in result.stdout
    assert ("conv12" in result.stdout) is (columns == 160)


def summed_up(results, rows=None, width: int = 160) -> str:
    text = io.StringIO()
    Console(width=width, file=text).print(summary(results, rows, width))
    return text.getvalue()


def line_of(system: str, text: str) -> list[str]:
    (line,) = re.findall(f"^{system} .*", text, re.MULTILINE)
    return line.split()


def test_numbers_in_the_terminal_are_of_the_layers_beside_them():
    text, alone = summed_up(two_batches()), summed_up(sample(layers=["conv9"]))
    few, many = text[text.index("TFLOP/s, batch 4 ") :].split("TFLOP/s, batch 128 ")
    assert few.splitlines()[0].split()[3:] == ["over", "m01", "conv9", "conv10"]
    assert many.splitlines()[0].split() == ["over", "m01", "conv9"]
    assert line_of("m11_warp_tiling", alone) == line_of("m11_warp_tiling", many)
    results = sample(layers=["conv9", "conv10", "conv12"])
    rows = [row for row in results.rows.values() if row.layer == "conv12"]
    one, first = named(results, "m11_warp_tiling", "m01_direct")
    ratio = one.over(first).by_layer[-1]
    assert line_of("m11_warp_tiling", summed_up(results, rows))[1] == f"{ratio:.2f}"


def test_where_there_is_no_room_for_layers_the_median_is_that_of_an_even_number():
    results = sample(layers=["conv1", "conv2", "conv3", "conv4", "conv5", "conv7"])
    speeds = sorted(row.tflops for row in results.rows.values() if row.system == "m01_direct")
    assert speeds[3] > 1.02 * speeds[2]
    shown = [float(cell) for cell in line_of("m01_direct", summed_up(results, width=66))[3:]]
    assert shown == pytest.approx([speeds[0], sum(speeds[2:4]) / 2, speeds[-1]], rel=0.01)


def test_what_follows_as_json(file, results):
    told = json.loads(run(file, file, "--json", "-").stdout)
    (batch,) = told["batches"]
    systems = {system["name"]: system for system in batch["systems"]}
    ran = {one.name for one in analysis.everybody(results)}
    assert {*systems} == ran | {"torch_fastest", "cudnn_fastest", "cudnn_gemm_class"}
    assert batch["without_number"] == analysis.numberless(results.rows.values())
    one, base = named(results, "m11_warp_tiling", "m01_direct")
    mean = {"mean": one.over(base).mean, "layers": 12}
    assert systems[one.name]["mean_speedup_over"]["m01_direct"] == mean
    for layer in systems[one.name]["layers"]:
        row, first = (results.row(layer["layer"], 128, name) for name in (one.name, base.name))
        assert (layer["time_ms"], layer["tflops"]) == (row.time_ms, row.tflops)
        assert layer["percent_of_roofline"] == analysis.percent(results, row)
        assert layer["speedup_over"]["m01_direct"] == first.time_ms / row.time_ms
    for layer in systems["cudnn_fastest"]["layers"]:
        assert layer["time_ms"] == results.row(layer["layer"], 128, layer["system"]).time_ms
    (other,) = told["other_runs"]
    assert other["identity"] == results.identity
    assert {one["system"] for one in other["systems"]} == ran
    assert {one["median_percent"] + one["largest_percent"] for one in other["systems"]} == {0}


def test_each_further_file_is_compared(file, results):
    again = sample(slower=1.02, identity="two")
    other = file.with_name("again.json")
    other.write_text(json.dumps(again.as_json()))
    result = run(file, other, file)
    for differences in (r"2\.00 +2\.00", r"0\.00 +0\.00"):
        assert re.search(rf"m01_direct +12 +{differences}", result.stdout)
    assert section(said(results, [again, results]), "Run 3")
    assert second(results, again).count(" 2.00 | 2.00 |") == 10
    assert "no system in common" in second(results, replace(results, rows={}))


def test_an_interrupted_run_says_how_many_rows_are_missing(file, results):
    missing = [key for key in results.rows if key[2] == "m01_direct"][1:]
    left = rows_where(results, lambda row: row.key not in missing)
    left.missing, left.finished = dict.fromkeys(missing), None
    whole = replace(results, finished="2026-11-21T13:00:00")
    said_so = "The run was interrupted**, with 11 of 132 rows missing."
    assert said_so in said(left)
    assert f"Of the other run: **{said_so}" in second(whole, left)
    assert "interrupted" not in said(whole)
    for told, shown in ((left, True), (whole, False)):
        file.write_text(json.dumps(told.as_json()))
        assert (said_so.replace("**", "") in run(file, columns=160).stdout) is shown


@pytest.mark.parametrize("counts", ["--counts", "--no-counts"])
def test_files_are_written_and_a_stage_that_is_no_longer_there_is_not_counted(
    file, results, tmp_path, few_channels, counts
):
    few = only(results, lambda one: one["name"] in ("m01_direct", "m05_microkernel"))
    file.write_text(json.dumps(few.as_json()).replace("m05_microkernel", "m05_of_before"))
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    result = run(file, "--html", page, "--markdown", text, counts)
    assert result.exit_code == 0, result.stderr
    names = re.findall(r"\]\((r-\w+\.svg)\)", text.read_text())
    assert len(names) == 4
    assert all((tmp_path / name).read_text().startswith("<svg") for name in names)
    assert "m05_of_before" in page.read_text()
    why = section(text.read_text(), "Why not faster")
    assert ("m01_direct" in why) is (counts == "--counts")
    assert "m05_of" not in why


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.json"], "'none.json' cannot be read: No such file or directory"),
        (["{file}", "--html", "{file}"], "--html is .*, the results themselves"),
        (["{file}", "--html", "no/such/r.html"], "there is no folder"),
        (["{file}", "--json", "{file}"], "--json is .*, the results themselves"),
        (["{file}", "--html", "r.md", "--markdown", "./r.md"], "--markdown is .* of --html"),
        (["{file}", "--html", "r.md", "--json", "r.md"], "--json is .*, the file of --html"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(file, words, said):
    assert re.search(said, refused("report", *(word.format(file=file) for word in words)))
