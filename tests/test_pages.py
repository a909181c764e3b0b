"""The documentation's tables and pictures: what they show, and that nothing else changes them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import papers
import pytest
import results_pages as pages
import results_tables
from ladder_results import TIMES, ladder_picture, ladder_section, ladder_table
from ladder_results import read as read_ladder
from matplotlib.colors import to_rgb

from convlab.measuring import plots
from convlab.measuring.results import ResultRow, Results
from convlab.measuring.roofline import Machine
from convlab.problems.workloads import paper_layer
from convlab.simulation.rules.remedies import REMEDIES

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
FLOPS = 2_000_000_000
SAMPLE = """\
stage              checked   bound   loads
m01_direct         OK       0.0495   6,930
m02_implicit_gemm  OK        0.05      150
i04_im2col_blas    OK       0.0568       -
"""


def entry(name, time_ms, **launches):
    """One stage as ``convlab ladder --json`` writes it; without a time, one that was wrong."""
    timed = time_ms is not None
    return {
        "name": name, "ok": timed, "workspace_bytes": 3 * 2**20, "time_ms": time_ms,
        "time_spread": 0.25 if timed else None,
        "launch_ms": (launches or {"kernel": time_ms}) if timed else None,
        "tflops": FLOPS / time_ms / 1e9 if timed else None,
        "speedup": 4.0 / time_ms if timed else None,
    }  # fmt: skip


@pytest.fixture
def document():
    problem = paper_layer("conv9", batch=4)
    keys = ("batch", "input_shape", "weight_shape", "output_shape")
    return {
        "engine": "gpu",
        "device": "Imaginary GPU <1>",
        "problem": {key: getattr(problem, key) for key in keys} | {"flops": FLOPS},
        "stages": [
            entry("m01_direct", 4.0),
            entry("m02_implicit_gemm", 16.0),
            entry("m03_shared_memory", None),
            entry("m11_warp_tiling", 0.5, im2win_transform=0.25, warp_tiling=0.25),
        ],
        "environment": {"command": "convlab ladder --layer conv9 --batch 4"},
    }


def read(tmp_path, document):
    path = tmp_path / f"{pages.HEADLINE}.json"
    path.write_text(json.dumps(document))
    return read_ladder(path)


def test_the_ladder_s_tables(tmp_path, document):
    results = read(tmp_path, document)
    short = ladder_table(results)
    assert "| [m01](src/convlab/ladder/main/m01_direct.py) |" in short
    assert "| 4.000 | 0.50 | 1.00 |" in short
    assert "| failed | failed | failed |" in short
    document["stages"] += [entry("m12_async_copies", 0.25, multistage=0.25)]
    document["stages"] += [entry("i01_im2col", 1.0, im2col=0.5, matrix_product=0.5)]
    longer = ladder_table(read(tmp_path, document))
    assert "m11_warp_tiling.py" in longer  # with every stage of its route, each with its own gain
    assert "| 2.00 x m11 | 0.250 | 8.00 | 16.00 |" in longer
    assert "i01_im2col.py" not in longer
    full = ladder_section(results)
    assert "| 0.500 | 4.00 | 8.00 | 0.250 | 3.0 |" in full
    assert "at most 0.2 % of the median" in full
    assert "`convlab ladder --layer conv9 --batch 4`" in full


def texts(picture):
    tree = ElementTree.fromstring(picture)
    return ["".join(text.itertext()) for text in tree.iter("{http://www.w3.org/2000/svg}text")]


def test_the_ladder_s_picture(tmp_path, document):
    document["stages"].insert(1, entry("i01_im2col", 2.0, im2col=1.0, matrix_product=1.0))
    picture = ladder_picture(read(tmp_path, document))
    said = texts(picture)
    for rate, speedup in (("0.50 TFLOP/s", "1.0"), ("0.12 TFLOP/s", "0.25")):
        assert said.index(f"{speedup}{TIMES}") == said.index(rate) + 1
    assert f"fill: {plots.BAD}" in picture.partition(f">0.25{TIMES}<")[0].rpartition("<")[2]
    for text in ("4.0 TFLOP/s (8.0 alone)", "failed", "reads the im2col matrix"):
        assert text in said
    # The bar with its layout transforms is half as long as the pale one of the main kernel alone.
    bars = re.findall(r'd="M ([\d.]+) .*\nL ([\d.]+) [^"]*" [^>]*fill: (#\w+)(; opacity)?', picture)
    pale, whole, *_ = [
        (float(right) - float(left), opacity)
        for left, right, colour, opacity in bars
        if colour == plots.COLOURS[2]
    ]
    assert (pale[1], whole[1]) == ("; opacity", "")
    assert pale[0] == pytest.approx(2 * whole[0], rel=0.01)
    document["stages"] = [entry("m01_direct", None)]  # nothing was timed
    assert "failed" in texts(ladder_picture(read(tmp_path, document)))


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("0.0495", "0.0494", True),
        ("0.0495", "0.0695", False),
        ("6,930", "6,931", False),
        ("OK       0.0495", "WRONG    0.0495", False),
        ("OK       0.0568", "OK       0.0668", True),  # a library's rounding
    ],
)
def test_the_sample_is_kept_where_only_rounding_differs(monkeypatch, old, new, same):
    monkeypatch.setattr(pages, "sample", lambda: SAMPLE.replace(old, new))
    stored = f"```text\n{SAMPLE}```\n"
    assert (pages.sample_section(stored) == stored) is same


def test_pictures_are_compared_by_their_words():
    one = '<svg width="1"><text x="1">TFLOP/s</text></svg><!-- rows 1, drawn by a -->'
    assert pages.same_but_for_layout(one, one.replace('width="1"', 'width="2"'))
    for old, new in (("TFLOP", "GFLOP"), ("rows 1", "rows 2"), ("by a", "by b")):
        assert not pages.same_but_for_layout(one, one.replace(old, new))


# Marked sections.


def test_only_marked_sections_change():
    text = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n"
    assert pages.filled(text, {"x": str.upper, "y": str}) == text.replace("old", "OLD")
    for broken in (text + text, text.replace("<!-- x:end -->", "")):
        with pytest.raises(ValueError, match="'x'"):
            pages.filled(broken, {"x": str.upper})


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A source folder with the real results and a few pages; drawing is quick."""
    monkeypatch.setattr(pages, "sample", lambda: SAMPLE)
    monkeypatch.setattr(papers, "ROOT", tmp_path)
    monkeypatch.setattr(
        plots, "svg", lambda salt, *_, **more: f"<svg><text>{salt} 1{'.' * 500}</text></svg>\n"
    )
    (tmp_path / "docs/results").mkdir(parents=True)
    for file in (ROOT / "docs/results").glob("*_h200.json"):
        shutil.copy(file, tmp_path / "docs/results")
    names = {"README.md": ("ladder",), "docs/results.md": ("bench", "sizes"),
             "docs/papers.md": ("papers",), "docs/other.md": ()}  # fmt: skip
    for page, sections in names.items():
        marked = "".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in sections)
        (tmp_path / page).write_text(f"before\n{marked}after\n")
    return tmp_path


@pytest.mark.slow
def test_check_finds_drift_and_writes_nothing(root, capsys):
    assert pages.main([]) == 0
    assert pages.main(["--check"]) == 0
    assert (root / "docs/other.md").read_text() == "before\nafter\n"
    files = [root / name for name in ("README.md", "docs/results.md", "docs/papers.md")]
    drifted = {}
    for file in (*files, root / pages.PICTURE):
        drifted[file] = file.read_text().replace("1", "2")
        assert len(drifted[file]) > 500
        file.write_text(drifted[file])
    capsys.readouterr()
    assert pages.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == len(drifted)
    for file, text in drifted.items():
        assert str(file) in said
        assert file.read_text() == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content"),
    [
        (f"{pages.HEADLINE}.json", None),
        (f"{pages.HEADLINE}.json", "{}"),
        ("bench_h200.json", "{}"),
        ("sizes_h200.json", "{"),
        ("sizes_h200.json", "{}"),
        ("ablation_h200.json", "{}"),
    ],
)
def test_what_is_no_result_is_named_in_one_line(root, capsys, file, content):
    path = root / "docs/results" / file
    path.unlink() if content is None else path.write_text(content)
    assert pages.main([]) == 2
    error = capsys.readouterr().err
    assert file in error
    assert error.count("\n") == 1


# The papers.


def test_every_figure_of_the_papers_is_shown_with_its_command(tmp_path, monkeypatch):
    assert len(papers.SECTIONS) == 6
    assert papers.show_claims().count("\n| im2win: Figure 2") == 3
    for root, missing in ((ROOT, 0), (tmp_path, 6)):
        monkeypatch.setattr(papers, "ROOT", root)
        shown = papers.show()
        for section in papers.SECTIONS:
            assert f"### {section.title}\n" in shown
            assert section.file in shown
            assert section.command in shown
        assert shown.count("Not measured yet") == missing


def measured(more=None, **times):
    numbers = {"time_spread": 1.0, "repeats": 3}
    rows = [
        ResultRow(
            "conv9", 1, system, "measured", None, time, tflops=1 / time, settled=True, **numbers
        )
        for system, time in times.items()
    ]
    systems = {row.system: {"name": row.system, "method": "gemm"} for row in rows}
    by_key = {row.key: row for row in rows}
    return Results(Machine("a GPU"), {}, "one", by_key, systems, more=more or {})


def test_the_ablation_s_gains_are_ratios_of_times():
    shown, (claim,) = papers.figure_4(
        measured(m11_warp_tiling=1.0, without_microkernel=4.0, without_vectorized=2.0)
    )
    assert "the micro-kernel 4.00x (4.00 to 4.00); vectorised access 2.00x" in claim[2]
    assert "prefetching and double buffers not measured" in claim[2]
    assert "| conv9 | 1.0 | 0.2 | 0.5 | - |" in shown


def test_speedups_over_cpp_are_ratios_of_times():
    points = [{"sweep": "size", "value": 32, "problem": "conv9"}]
    results = measured(
        {"points": points}, cpp_seven_loops=100.0, c02_receptive_field=0.5, cutlass_optimized=1.0
    )
    key = ("conv9", 1, "c02_receptive_field")
    results.rows[key] = replace(results.rows[key], settled=False)
    shown, (cpp, cutlass) = papers.sweeps(results)
    assert "| 1: image size | 32 | - | - | ~200 | - | 100 | - |" in shown
    assert (cpp[2], cutlass[2]) == ("up to 200x", "up to 2.0x")


# Colours: what is seen on a light page is seen on a dark one.


def luminance(colour):
    """Return the luminance as the Web Content Accessibility Guidelines define it."""
    linear = np.where(colour <= 0.03928, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def contrast(colour, card, opaque=1.0):
    one, other = (np.array(to_rgb(name)) for name in (colour, card))
    low, high = sorted((luminance(opaque * one + (1 - opaque) * other), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [plots.LIGHT, plots.DARK], ids=["light", "dark"])
def test_what_is_plotted_and_its_words_read_on_both_cards(theme):
    card = theme["panel"]
    assert all(contrast(colour, card) >= 3 for colour in plots.COLOURS)
    assert contrast(plots.COLOURS[0], card, plots.DOTS) >= 3
    assert all(contrast(theme[name], card) >= 4.5 for name in ("ink", "quiet"))


def test_the_ledger_calls_a_fault_only_what_was_found() -> None:
    document = json.loads((ROOT / "docs/results/ledger.json").read_text(encoding="utf-8"))
    rows = document["rows"]
    assert len(rows) >= 25
    for row in rows:
        assert row["result"] in ("fault", "no fault", "not run")
        assert bool(row["findings"]) == (row["result"] == "fault")
        assert {one["kind"] for one in row["findings"]} <= set(REMEDIES)
        assert row["why"].endswith(".")
        assert row["launches"] or row["result"] == "not run"
    files = [(row["repository"], row["path"]) for row in rows]
    assert len(set(files)) == len(files)


def test_a_row_of_the_ledger_names_the_lines_and_links_to_the_commit() -> None:
    row = {
        "repository": "owner/name", "commit": "0123456789", "path": "folder/program.py",
        "ran": "8 x 8", "changed": "smaller", "launches": 2, "result": "fault", "why": "It races.",
        "findings": [
            {"kind": "global race", "lines": [3, 5]}, {"kind": "out of bounds", "lines": [7]}
        ],
        "cpu_seconds": 3.4,
    }  # fmt: skip
    shown, _ = results_tables.ledger_table({"rows": [row]})
    link = "[`program.py`](https://github.com/owner/name/blob/0123456789/folder/program.py)"
    assert shown.splitlines()[-1] == (
        f"| {link} of owner/name at `0123456` | 8 x 8; smaller | global race, lines 3, 5; "
        "out of bounds, line 7 | fault | It races. | 2 | 3 |"
    )
