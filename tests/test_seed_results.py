"""docs/seed-results.md and its pictures: made of the results, and of nothing else."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench_samples import H200_LIKE, sample, system

from convlab.bench import (
    charts,
    palette,
    seed_figures,
    seed_paper,
    seed_results,
    seed_systems,
    sweeps,
)
from convlab.bench.cases import Case, row_of
from convlab.bench.charts import Chart
from convlab.bench.harness import Outcome
from convlab.workloads import LAYER_NAMES, paper_layer

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"


def document(name):
    file = ROOT / seed_results.RESULTS / seed_results.FILES[name][0]
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture
def root(tmp_path):
    """A copy of the page and of the results, to change."""
    (tmp_path / "docs/images").mkdir(parents=True)
    shutil.copy(ROOT / seed_results.PAGE, tmp_path / seed_results.PAGE)
    shutil.copytree(ROOT / seed_results.RESULTS, tmp_path / seed_results.RESULTS)
    return tmp_path


def full_sample(*, own: bool = False):
    """A whole run with what the paper compares: PyTorch's im2col, cuDNN's algorithms, s12. With
    ``own``, from after PyTorch's own im2col + cuBLAS became a baseline."""
    results = sample()
    more = (
        *((("torch_own_im2col", "baseline", "cublas", "gemm", "fp32", 9.0, 5),) if own else ()),
        ("im2col_cublas_per_image", "baseline", "cublas", "gemm", "fp32", 8.0, 5),
        ("im2col_cublas_batched", "baseline", "cublas", "gemm", "fp32", 12.0, 900),
        ("cudnn_implicit_gemm", "baseline", "cudnn", "gemm", "fp32", 20.0, 0),
        ("cudnn_winograd", "baseline", "cudnn", "winograd", "fp32", 50.0, 100),
        ("s12_fused_im2win", "stage", "convlab", "gemm", "fp32", 40.0, 0),
    )
    for name in LAYER_NAMES:
        problem = paper_layer(name)
        for *about, speed, mib in more:
            outcome = Outcome(
                "measured", None, problem.flops / speed / 1e9, 0.5, 20, "fp32", 0.02,
                mib * 2**20, None,
            )  # fmt: skip
            if about[0] == "cudnn_winograd" and name != "conv9":
                outcome = Outcome().without_number("unsupported", "not this filter")
            chosen = system(*about)
            results.add(row_of(Case(name, problem, chosen), outcome, H200_LIKE, "one", 1.0), chosen)
    return results


# The page.


def test_the_page_is_what_the_results_give(capsys):
    assert seed_results.main(["--root", str(ROOT), "--check"]) == 0, capsys.readouterr().err


def test_a_changed_number_is_noticed(root, capsys):
    assert seed_results.main(["--root", str(root)]) == 0
    assert seed_results.main(["--root", str(root), "--check"]) == 0
    file = root / seed_results.RESULTS / "ablation_h200.json"
    changed = json.loads(file.read_text())
    changed["rows"][0]["tflops"] += 1
    file.write_text(json.dumps(changed))
    assert seed_results.main(["--root", str(root), "--check"]) == 1
    said = capsys.readouterr().err
    assert "seed-results.md" in said
    assert "seed-000-figure-4.svg" in said


def test_without_results_there_is_no_number(root):
    for file, _ in seed_results.FILES.values():
        (root / seed_results.RESULTS / file).unlink(missing_ok=True)
    assert seed_results.main(["--root", str(root)]) == 0
    text = (root / seed_results.PAGE).read_text()
    assert text.count("Not measured yet: `") == len(seed_results.SECTIONS)
    assert "images/seed-" not in text
    ours = [row.split("|")[4].strip() for row in text.split("systems:begin")[1].splitlines()[4:-2]]
    assert len(ours) == len(seed_systems.SYSTEMS)
    assert all(one == seed_systems.NOT_YET or one.startswith("not run: ") for one in ours)


def test_with_a_full_run_the_papers_figures_are_there(root):
    file = root / seed_results.RESULTS / "bench_h200.json"
    file.write_text(json.dumps(full_sample().as_json()))
    assert seed_results.main(["--root", str(root)]) == 0
    text = (root / seed_results.PAGE).read_text()
    assert "Not measured yet" not in text
    for name in ("000-figure-2", "000-figure-3"):
        assert f"(images/seed-{name}.svg)" in text
        ElementTree.fromstring((root / f"docs/images/seed-{name}.svg").read_text())
    assert "s11 over im2col + cuBLAS, per image: " in text
    assert "s12 over the fastest of cuDNN: " in text
    assert "| 000 | cuDNN WINOGRAD | fastest on 4 of 12 layers | 50.0 TFLOP/s on 1 layer | " in text
    assert "cuDNN DIRECT | never the fastest | not measured yet" in text


@pytest.mark.parametrize("content", ["{", "{}", '{"rows": []}'])
def test_a_file_that_is_no_result_is_named_in_one_line(root, capsys, content):
    (root / seed_results.RESULTS / "unfold_table_h200.json").write_text(content)
    assert seed_results.main(["--root", str(root)]) == 2
    said = capsys.readouterr().err
    assert "unfold_table_h200.json is no " in said
    assert said.count("\n") == 1


def test_every_figure_has_the_documents_words_and_a_reason():
    text = (ROOT / seed_results.PAGE).read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    told = [one for one in sections if ":begin" in one and "systems:begin" not in one]
    assert len(told) == len(seed_results.SECTIONS)
    for section in told:
        assert "\nWhy they differ" in section.split(":end -->")[1], section[:40]


def test_where_001_s_kernels_win_along_the_filters_is_said():
    """Words beside a table are not made of it: here they have to name what it shows."""
    made, ahead = document("sweeps"), set()
    for kernel in seed_figures.THEIRS:
        found = seed_figures.ratios(made, "out_channels", kernel, "cutlass_optimized")
        ahead |= {value for value, ratio in found.items() if ratio > 1}
    text = (ROOT / seed_results.PAGE).read_text(encoding="utf-8")
    told = text.split("001-figure-3:end -->")[1].split("\n## ")[0]
    assert f"At {' and '.join(map(str, sorted(ahead)))} filters" in told


# What is claimed beside what is found.


def test_speedups_over_the_papers_systems():
    claims = {quote: ours for quote, _, ours in seed_paper.figure_2(full_sample()).claims}
    assert len(claims) == 3
    (cublas,) = (ours for quote, ours in claims.items() if "3.5x" in quote)
    first = re.match(r"s11 over im2col \+ cuBLAS, per image: ([\d.]+)x \(", cublas)
    assert 2.5 < float(first[1]) < 4.0  # about 30 TFLOP/s over 8, memory aside


@pytest.mark.parametrize("own", [True, False])
def test_pytorch_s_own_im2col_is_first_where_a_run_has_it(own):
    results, words = full_sample(own=own), "PyTorch's own im2col + cuBLAS"
    speed, memory = seed_paper.figure_2(results), seed_paper.figure_3(results)
    first = words if own else "im2col + cuBLAS, per image"
    assert speed.claims[0][2].startswith(f"s11 over {first}: ")
    assert memory.claims[0][2].startswith(f"s11 less than {first}: ")
    for shown in (speed, memory):
        (chart,) = shown.charts.values()
        assert (words in chart.series) is own
        assert (words in shown.text + "".join(map(str, shown.claims))) is own
    (named,) = (one for one in seed_systems.SYSTEMS if one.system == "im2col+cuBLAS")
    assert named.ours({"bench": results}) == f"{9 if own else 8}.0 TFLOP/s on 12 layers"


def test_nobody_to_compare_with_is_not_measured():
    alone = sample()
    assert seed_paper.figure_2(alone).claims[0][2] == "not measured"
    assert seed_paper.figure_3(alone).claims[0][2] == "not measured"


def test_memory_in_percent_less():
    shown = seed_paper.figure_3(full_sample())
    (series,) = (chart.series for chart in shown.charts.values())
    ours, batched = series["im2winGPU (s11)"], series["im2col + cuBLAS, batched"]
    less = 100 * sum(1 - one / two for one, two in zip(ours, batched, strict=True)) / 12
    assert f"s11 less than im2col + cuBLAS, batched: {less:.1f} %" in shown.claims[0][2]
    assert series["direct (s01)"][0] == pytest.approx(217.4 / 1024, rel=1e-3)  # no workspace


def test_what_cudnn_chooses_is_the_fastest_of_its_algorithms():
    results = full_sample()
    shown = seed_paper.table_3(results)
    rows = {line.split(" | ")[0][2:]: line.split(" | ") for line in shown.text.splitlines()[2:]}
    assert rows["conv9"][1:3] in (["WINOGRAD", "FFT"], ["WINOGRAD", "WINOGRAD"])
    assert rows["conv1"][1:3] == ["IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM"]  # FFT: no strides
    assert "of 12 layers" in shown.claims[0][2]
    key = ("conv9", 128, "torch_fp32")
    results.rows[key] = replace(results.rows[key], time_ms=0.01)
    assert "TORCH" not in seed_paper.table_3(results).text  # it is no algorithm's name


@pytest.mark.parametrize(
    ("times", "names", "said"),
    [
        ((1.0, 1.009), "IMPLICIT_GEMM, IMPLICIT_PRECOMP_GEMM", "on 1 of 1 layers, on 1 by"),
        ((1.009, 1.0), "IMPLICIT_PRECOMP_GEMM, IMPLICIT_GEMM", "on 1 of 1 layers, on 0 by"),
        ((1.0, 1.0), "IMPLICIT_GEMM, IMPLICIT_PRECOMP_GEMM", "on 1 of 1 layers, on 1 by"),
        ((1.02, 1.0), "IMPLICIT_PRECOMP_GEMM", "on 0 of 1 layers, on 0 by"),
    ],
)
def test_algorithms_within_a_hundredth_of_the_fastest_are_all_named(times, names, said):
    results = sample(layers=["conv1"])
    here = ("cudnn_implicit_gemm", "cudnn_implicit_precomp_gemm")
    made = results.rows["conv1", 128, here[1]]
    results.systems = {name: results.systems[here[1]] | {"name": name} for name in here}
    results.rows = {
        ("conv1", 128, name): replace(made, system=name, time_ms=time, settled=True)
        for name, time in zip(here, times, strict=True)
    }
    shown = seed_paper.table_3(results)
    assert f"| conv1 | IMPLICIT_GEMM | {names} |" in shown.text
    assert said in shown.claims[0][2]


def test_the_papers_choices():
    assert [seed_paper.TABLE_3[name] for name in ("conv5", "conv8", "conv12")] == [
        "WINOGRAD", "FFT", "IMPLICIT_GEMM",
    ]  # fmt: skip
    assert list(seed_paper.TABLE_3) == list(LAYER_NAMES)


def test_the_ablations_order_is_said():
    made = document("ablation")
    (claim,) = seed_paper.figure_4(made).claims
    gains = [float(gain) for gain in re.findall(r"([\d.]+)x", claim[2])]
    assert gains == sorted(gains, reverse=True)
    assert len(gains) == 3


def made_up_sweeps(times):
    """A document of sweeps with one sweep, ``{system: [ms at each point]}``."""
    values = (8, 16)
    rows = [
        {"layer": f"at {value}", "system": name, "time_ms": found[place], "tflops": 1.0,
         "state": "measured" if found[place] else "wrong",
         "reason": None if found[place] else "it was"}
        for name, found in times.items()
        for place, value in enumerate(values)
    ]  # fmt: skip
    points = [{"sweep": "size", "value": value, "problem": f"at {value}"} for value in values]
    return {"device": "a fake", "rows": rows, "points": points}


def test_the_most_that_is_gained_over_cpp_and_over_cutlass():
    times = dict.fromkeys(sweeps.SYSTEMS, (1.0, 1.0))
    times |= {
        "cpp_seven_loops": (100.0, 400.0),
        "s02_cin": (2.0, 1.0),
        "cutlass_optimized": (3.0, None),
        "s11_im2win_full": (0.1, 0.1),  # not theirs: does not count
    }
    made = made_up_sweeps(times)
    over_cpp, over_cutlass = (claim[2] for claim in seed_figures.headline(made).claims)
    assert over_cpp.startswith("400x (CUDA ")
    assert over_cpp.endswith("size 16)")
    assert over_cutlass.startswith("3.0x (CUDA ")
    first, second = (claim[2] for claim in seed_figures.sweep(made, "size").claims)
    assert first == "C_in parallel over CUTLASS optimized: 1.50 at 8"  # nothing where it was wrong
    assert "C_in parallel 50x at the first point, 400x at the last" in second


def rough(made, **where):
    """The same document with a row that was not steady: ``layer`` and ``system`` name it."""
    for row in made["rows"]:
        row["settled"] = any(row[key] != value for key, value in where.items())
    return made


def test_a_speedup_is_no_steadier_than_its_times():
    times = dict.fromkeys(sweeps.SYSTEMS, (1.0, 1.0)) | {"cpp_seven_loops": (100.0, 400.0)}
    made = rough(made_up_sweeps(times), layer="at 16", system="s02_cin")
    shown = seed_figures.sweep(made, "size")
    (chart,) = shown.charts.values()
    hollow = {name: list(places) for name, places in chart.unsettled.items() if places}
    assert hollow == {"CUDA C_in parallel": [1]}
    assert shown.claims[0][2] == "C_in parallel over CUTLASS optimized: 1.00 at 8, ~1.00 at 16"
    assert "C_in parallel 100x at the first point, ~400x at the last" in shown.claims[1][2]
    assert seed_systems.over_cpp("s02_cin")({"sweeps": made}) == "100x to ~400x over C++"
    assert seed_systems.over_cpp("s02_cout")({"sweeps": made}) == "100x to 400x over C++"


def test_cpp_s_own_swings_are_told_once_and_mark_no_factor():
    times = dict.fromkeys(sweeps.SYSTEMS, (1.0, 1.0)) | {"cpp_seven_loops": (100.0, 400.0)}
    made = rough(made_up_sweeps(times), layer="at 16", system="cpp_seven_loops")
    for row in made["rows"]:
        row["time_spread"] = 7.5 if row["system"] == "cpp_seven_loops" else 1.25
    assert "spread by 7.5 % (median; at most 7.5)" in sweeps.heading(made)
    assert "The others' spread by 1.2 %" in sweeps.heading(made)
    shown = seed_figures.sweep(made, "size")
    assert not any(shown.charts["001-figure-1"].unsettled.values())
    last = shown.text.splitlines()[3].split(" | ")
    assert last[1] == "~400"
    assert not any("~" in cell for cell in last[2:])
    claims = (*shown.claims, *seed_figures.headline(made).claims)
    assert not any("~" in found for _, _, found in claims)


def test_what_was_not_steady_is_marked_wherever_002s_times_are_told():
    made = rough(document("unfold_table"), system="conv2d_tf32")
    claims = [found for *_, found in seed_figures.unfold(made).claims]
    assert [", on the GPU ~" in found for found in claims] == [False, True, False, False]
    assert "first calls ~" not in " ".join(claims)
    for name, swings in (("conv2d", False), ("conv2d_tf32", True)):
        told = seed_systems.row_of_table_1(name)({"unfold_table": made})
        assert ("on the GPU ~" in told) == swings
        assert "first call ~" not in told


def test_what_was_not_steady_is_marked_in_the_papers_tables():
    results = full_sample()
    key = ("conv9", 128, "s01_direct")
    results.rows[key] = replace(results.rows[key], settled=False)
    results.rows["conv1", 128, "cudnn_implicit_precomp_gemm"] = replace(
        results.rows["conv1", 128, "cudnn_implicit_precomp_gemm"], settled=False
    )
    shown = seed_paper.figure_2(results)
    (chart,) = shown.charts.values()
    assert chart.unsettled["direct (s01)"] == [8]
    assert f"| conv9 | ~{results.rows[key].tflops:.1f} |" in shown.text
    assert "| conv1 | IMPLICIT_GEMM | IMPLICIT_PRECOMP_GEMM | ~" in seed_paper.table_3(results).text
    assert "~" not in seed_paper.figure_3(results).text  # memory does not spread
    made = rough(document("ablation"), layer="conv3", system="without_prefetch")
    (chart,) = seed_paper.figure_4(made).charts.values()
    assert [places for places in chart.unsettled.values() if places] == [[2]]


# Every system that is named.


def test_every_system_of_the_documents_has_a_row():
    named = {(one.document, one.system) for one in seed_systems.SYSTEMS}
    assert len(named) == len(seed_systems.SYSTEMS)
    for words in (
        "im2winGPU", "direct", "im2col+cuBLAS", "cuDNN, the fastest", "cuDNN GEMM", "cuDNN DIRECT",
        "cuDNN IMPLICIT_GEMM", "cuDNN IMPLICIT_PRECOMP_GEMM", "cuDNN FFT", "cuDNN WINOGRAD", "MEC",
    ):  # fmt: skip
        assert ("000", words) in named
    for words in (
        "Baseline: C++, g++", "CUDA naive", "CUDA C_out parallel", "CUDA C_in parallel",
        "CUTLASS analytic", "CUTLASS optimized", "TORCH compile",
    ):  # fmt: skip
        assert ("001", words) in named
    claimed = [one.claimed for one in seed_systems.SYSTEMS if one.document == "002"]
    assert claimed[:6] == [
        "121.819 ms", "8.000 ms", "49.807 ms", "24.682 ms", "60.777 ms", "22.265 ms",
    ]  # fmt: skip
    assert sum(one.document == "003" for one in seed_systems.SYSTEMS) == 4


def test_a_system_without_a_number_has_its_reason():
    results = full_sample()
    for (layer, batch, name), row in list(results.rows.items()):
        if name == "cudnn_winograd":
            outcome = Outcome().without_number("unsupported", "not here")
            winograd = system(name, "baseline", "cudnn", "winograd", "fp32")
            case = Case(layer, paper_layer(layer, batch), winograd)
            results.rows[row.key] = row_of(case, outcome, H200_LIKE, "one", 1.0)
    found = seed_systems.over_layers("cudnn_winograd")({"bench": results})
    assert found == "unsupported: not here"


def test_cells_never_break_the_table():
    text = seed_systems.show({}, {name: "a command" for name in seed_results.FILES})
    assert {line.count("|") for line in text.splitlines()} == {6}


# Charts.


def marks(svg):
    tree = ElementTree.fromstring(svg)
    return [one for one in tree.iter() if one.tag in (f"{SVG}circle", f"{SVG}polygon")]


def test_a_chart_has_a_mark_for_each_number_and_a_gap_for_none():
    chart = Chart("t", ["a", "b", "c"], "x", "y", {"one": [1, None, 3], "two": [2, 2, 2]})
    svg = chart.svg()
    assert len(marks(svg)) == 5 + 2  # and one for each entry of the legend
    lines = [line for line in svg.splitlines() if 'stroke-width="1.5"' in line]
    assert len(lines) == 2  # only of the second: none across the gap
    assert "one: 1, none, 3; two: 2, 2, 2" in svg
    assert svg == chart.svg()


def test_what_was_not_steady_is_hollow():
    series, places = {"one": [1, 2], "two": [3, 4]}, ["a", "b"]
    steady = Chart("t", places, "x", "y", series).svg()
    svg = Chart("t", places, "x", "y", series, unsettled={"two": [1]}).svg()
    hollow = [mark for mark in marks(svg) if mark.get("fill") == charts.CARD]
    assert [mark.get("stroke") for mark in hollow] == [charts.COLOURS[1]]
    assert len(marks(svg)) == len(marks(steady))
    assert charts.UNSETTLED in svg
    assert charts.UNSETTLED not in steady
    assert "one: 1, 2; two: 3, ~4" in svg


def test_marks_that_are_not_joined_hide_none_of_the_same_height():
    series = {"one": [1, 2], "two": [1, 2]}
    for joined in (True, False):
        found = marks(Chart("t", ["a", "b"], "x", "y", series, joined=joined).svg())
        circle = next(one for one in found if one.tag == f"{SVG}circle")
        square = next(one for one in found if one.tag == f"{SVG}polygon")
        corners = [tuple(map(float, pair.split(","))) for pair in square.get("points").split()]
        middle = sum(x for x, _ in corners) / len(corners)
        apart = middle - float(circle.get("cx"))
        assert (apart == 0) == joined
        assert joined or apart > 4 + 4  # the circle's radius and half of the square


def test_higher_is_further_up():
    svg = Chart("t", ["a", "b"], "x", "y", {"one": [10, 1000]}, log=True).svg()
    low, high = (float(circle.get("cy")) for circle in marks(svg)[:2])
    assert low > high


def test_a_chart_without_any_number_is_still_one():
    ElementTree.fromstring(Chart("t", ["a"], "x", "y", {"one": [None]}).svg())
    ElementTree.fromstring(Chart("t", ["a"], "x", "y", {"one": [None]}, log=True).svg())


@pytest.mark.parametrize("highest", [0.003, 0.7, 1, 36.3, 99, 100, 12345])
def test_linear_ticks_reach_the_highest(highest):
    ticks = charts.linear_ticks(highest)
    assert ticks[0] == 0
    assert ticks[-2] < highest <= ticks[-1] * (1 + 1e-9)
    assert 3 <= len(ticks) <= 8


@pytest.mark.parametrize(
    ("lowest", "highest"), [(0.1, 300), (1, 1), (23, 4885), (0.19, 0.66), (5, 5), (1000, 1001)]
)
def test_log_ticks_enclose_the_numbers(lowest, highest):
    ticks = charts.log_ticks(lowest, highest)
    assert ticks == sorted(set(ticks))
    assert len(ticks) >= 2
    assert ticks[0] <= lowest * (1 + 1e-9)
    assert highest <= ticks[-1] * (1 + 1e-9)


def test_log_ticks_leave_no_empty_decade_below_or_above():
    assert charts.log_ticks(61, 5501) == [50, 100, 1000, 10000]
    assert charts.log_ticks(23, 1885) == [20, 100, 1000, 2000]


def test_every_line_has_a_colour_and_a_shape_of_its_own():
    many = {f"s{number}": [number + 1.0] for number in range(2 * len(palette.COLOURS))}
    drawn = []
    for mark in marks(Chart("t", ["a"], "x", "y", many).svg())[::2]:  # each has one in the legend
        corners = [tuple(map(float, at.split(","))) for at in (mark.get("points") or "").split()]
        x, y = (sum(at[axis] for at in corners) for axis in (0, 1))
        middle = [value / (len(corners) or 1) for value in (x, y)]
        shape = tuple((round(a - middle[0], 0), round(b - middle[1], 0)) for a, b in corners)
        drawn.append((mark.get("fill"), shape))
    ten = len(palette.COLOURS)
    assert len({colour for colour, _ in drawn[:ten]}) == ten
    assert len({shape for _, shape in drawn[:ten]}) == ten
    assert len(set(drawn)) == 2 * ten


def test_a_chart_is_dark_on_dark_pages():
    svg = Chart("t", ["a"], "x", "y", {"one": [1]}).svg()
    style = svg.partition("<style>")[2].partition("</style>")[0]
    assert style.startswith("@media (prefers-color-scheme: dark)")
    for name, light in palette.LIGHT.items():
        assert f'[fill="{light}"]' in style
        assert f"fill: {palette.DARK[name]} !important" in style
