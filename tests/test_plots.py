"""The documentation's picture and tables: what they show, and that nothing else changes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from convlab.bench import (
    ladder_picture,
    ladder_results,
    ladder_sample,
    ladder_tables,
    plots,
    sanitizers,
)
from convlab.workloads import paper_layer

pytestmark = pytest.mark.same_in_cudasim

FLOPS = 2_000_000_000
NEWER = ("conv9", 4, "s11")


def entry(name: str, time_ms: float | None, **launches: float) -> dict[str, Any]:
    """One stage as ``convlab ladder --json`` writes it; without a time, one that was wrong."""
    timed = time_ms is not None
    return {
        "name": name,
        "ok": timed,
        "error_over_bound": 0.5 if timed else "inf",
        "time_ms": time_ms,
        "time_spread": 0.25 if timed else None,
        "launch_ms": (launches or {"kernel": time_ms}) if timed else None,
        "tflops": FLOPS / time_ms / 1e9 if timed else None,
        "speedup": 4.0 / time_ms if timed else None,
        "workspace_bytes": 3 * 2**20,
        "counts": None,
        "error": None if timed else "1 of 8 outputs is wrong",
        "first_wrong": None,
    }


@pytest.fixture
def document() -> dict[str, Any]:
    problem = paper_layer("conv9", batch=4)
    keys = ("batch", "input_shape", "weight_shape", "output_shape")
    return {
        "engine": "gpu",
        "device": "Imaginary GPU <1>",
        "problem": {key: getattr(problem, key) for key in keys} | {"flops": FLOPS},
        "stages": [
            entry("s01_direct", 4.0),
            entry("s04_implicit_gemm", 16.0),
            entry("s05_shared_memory", None),
            entry("s11_im2win_full", 0.5, im2win_transform=0.25, im2win_full=0.25),
        ],
        "environment": {
            "command": "convlab ladder --layer conv9 --batch 4",
            "date": "2026-01-02T03:04:05",
            "gpu": {"driver": "999.1", "cuda": None},
            "packages": {"numba-cuda": "0.30.4", "numpy": None},
        },
    }


@pytest.fixture
def root(tmp_path: Path, document: dict[str, Any]) -> Path:
    """A source folder with one file of results and empty tables."""
    (tmp_path / "docs/results").mkdir(parents=True)
    write(tmp_path, document)
    ladder = "before\n<!-- ladder:begin -->\nstale\n<!-- ladder:end -->\nafter\n"
    sample = "<!-- sample:begin -->\nstale\n<!-- sample:end -->\n"
    (tmp_path / plots.README).write_text(ladder)
    (tmp_path / plots.PAGE).write_text(ladder + sample)
    return tmp_path


SAMPLE = """\
stage              judged    bound   loads
s01_direct         OK       0.0495   6,930
s04_implicit_gemm  OK        0.05      150
s03_im2col_blas    OK       0.0568       -
"""


@pytest.fixture(autouse=True)
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder_sample, "sample", lambda: SAMPLE)


def write(root: Path, document: dict[str, Any], name: str = plots.HEADLINE) -> Path:
    path = root / plots.RESULTS / f"{name}.json"
    path.write_text(json.dumps(document))
    return path


def run(root: Path, *arguments: str) -> int:
    return plots.main(["--root", str(root), *arguments])


def test_the_short_table(root):
    assert run(root) == 0
    text = (root / plots.README).read_text()
    assert text.startswith("before\n<!-- ladder:begin -->\n\n| stage | idea | ms |")
    assert "|\n\n<!-- ladder:end -->\nafter\n" in text
    assert "stale" not in text
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert rows[0].startswith("| [s01](src/convlab/stages/s01_direct.py) | Direct convolution: ")
    assert rows[0].endswith("| 4.000 | 0.50 | 1.00 |")
    assert rows[1].endswith("| 16.000 | 0.12 | 0.25 |")
    assert rows[2].endswith("| failed | failed | failed |")
    assert rows[3].endswith("| 0.500 | 4.00 | 8.00 |")


def test_the_full_tables_show_every_file_the_headline_first(root, document):
    document["problem"] |= {"input_shape": [4, 1, 8, 8]}
    write(root, document, "ladder_another")
    assert run(root) == 0
    text = (root / plots.PAGE).read_text()
    assert text.index("### Conv9, batch 4, on an Imaginary") < text.index("### 4x1x8x8, batch 4")
    row = next(line for line in text.splitlines() if line.startswith("| [s11_im2win_full]"))
    assert row.endswith("| 0.500 | 0.2 | 4.00 | 8.00 | 0.250 | 8.00 | 3.0 |")
    said = "`convlab ladder --layer conv9 --batch 4` (Imaginary GPU <1>, driver 999.1, numba-cuda"
    assert said in text
    assert "numpy" not in text
    assert "2026-01-02)" in text


def test_the_picture(document, root):
    results = ladder_results.Results.read(write(root, document))
    tree = ElementTree.fromstring(ladder_picture.picture(results))
    svg = "{http://www.w3.org/2000/svg}"
    said = ["".join(text.itertext()) for text in tree.iter(f"{svg}text")]
    for text in (
        "s01 Direct convolutionseven loops, one thread per output",
        f"0.50 TFLOP/s1.0{ladder_picture.TIMES}",
        f"0.12 TFLOP/s0.25{ladder_picture.TIMES}",
        "failed",
        f"4.0 TFLOP/s8.0{ladder_picture.TIMES}",
        "8.0 without pre-passes",
        "convlab ladder --layer conv9 --batch 4",
    ):
        assert text in said
    assert any("(starts again from s09, s10)" in text for text in said)  # s05 stands above
    card, *_, pale, last = tree.iter(f"{svg}rect")
    assert card.get("fill") == ladder_picture.CARD  # opaque: legible on light and dark pages
    assert float(pale.get("width")) == pytest.approx(2 * float(last.get("width")), abs=0.1)
    right = ladder_picture.WIDTH - ladder_picture.MARGIN
    assert all(float(rect.get("x")) + float(rect.get("width")) <= right for rect in (pale, last))


def test_stages_on_the_im2col_matrix_are_a_family_of_their_own(document, root):
    document["stages"].insert(1, entry("s03_im2col", 2.0, im2col=1.0, matrix_product=1.0))
    picture = ladder_picture.picture(ladder_results.Results.read(write(root, document)))
    said = "".join(ElementTree.fromstring(picture).itertext())
    assert "reads the im2col matrix" in said
    assert "s03_im2col im2col" in said  # the number alone is several stages'
    assert (
        picture.count(ladder_picture.FAMILIES["im2col"][1]) == 3
    )  # legend, bar and what it would be


def test_where_nothing_was_timed_there_is_still_a_picture(document, root):
    document["stages"] = [entry("s01_direct", None)]
    picture = ladder_picture.picture(ladder_results.Results.read(write(root, document)))
    assert "failed" in picture
    ElementTree.fromstring(picture)


def test_results_without_an_environment_are_told_without_it(document, root):
    del document["environment"]
    results = ladder_results.Results.read(write(root, document))
    assert results.machine == "Imaginary GPU <1>"
    assert "Measured (Imaginary GPU <1>): [" in ladder_tables.full_tables([results])


def test_the_sample_is_kept_where_only_rounding_differs(root, monkeypatch):
    run(root)
    text = (root / plots.PAGE).read_text()
    assert f"<!-- sample:begin -->\n```text\n{SAMPLE}```\n<!-- sample:end -->\n" in text
    for change, same in (
        (("0.0495", "0.0494"), True),
        (("0.0495", "0.0695"), False),
        (("6,930", "6,931"), False),
        (("OK       0.0495", "WRONG    0.0495"), False),
        (("OK       0.0568", "OK       0.0668"), True),
        (("OK       0.0568", "WRONG    0.0568"), False),
    ):
        monkeypatch.setattr(ladder_sample, "sample", lambda change=change: SAMPLE.replace(*change))
        assert run(root, "--check") == (0 if same else 1)


def test_the_same_results_give_the_same_bytes(root):
    run(root)
    names = (plots.README, plots.PAGE, plots.PICTURE)
    before = [(root / name).read_bytes() for name in names]
    assert run(root) == 0
    assert [(root / name).read_bytes() for name in names] == before


@pytest.mark.parametrize("name", [plots.README, plots.PAGE, plots.PICTURE])
def test_check_finds_drift_and_writes_nothing(root, capsys, name):
    run(root)
    assert run(root, "--check") == 0
    path = root / name
    drifted = path.read_text().replace("4.0", "5.0")
    path.write_text(drifted)
    capsys.readouterr()
    assert run(root, "--check") == 1
    assert str(path) in capsys.readouterr().err
    assert path.read_text() == drifted


def test_check_finds_new_results(root, document):
    run(root)
    document["stages"][0]["time_ms"] = 4.5
    write(root, document)
    assert run(root, "--check") == 1


def test_the_sanitizers_table_is_made_of_what_they_said(root):
    page = root / plots.SANITIZERS_PAGE
    page.write_text("<!-- sanitizers:begin -->\nstale\n<!-- sanitizers:end -->\n")
    assert run(root) == 0
    assert "stale" in page.read_text()  # nothing was watched: the page is left alone
    row = {"stage": "s01_direct", "says": "nothing", "findings": 0, "right": 4, "runs": 4}
    rows = [row | {"tool": tool} for tool in sanitizers.TOOLS]
    rows[1] |= {"says": "found", "findings": 5}
    said = {"sanitizer": "1.2.3", "rows": rows, "left_out": None, "device": "Imaginary GPU"}
    write(
        root,
        said | {"environment": {"command": "as it was typed"}},
        plots.SANITIZERS.removesuffix(".json"),
    )
    assert run(root, "--check") == 1
    assert run(root) == 0
    text = page.read_text()
    assert "compute-sanitizer 1.2.3 on an Imaginary GPU" in text
    assert "| s01_direct | 4 | nothing | **found 5** | nothing | nothing |\n" in text
    assert "By `as it was typed`" in text


def no_results(root: Path) -> None:
    (root / plots.RESULTS / f"{plots.HEADLINE}.json").unlink()


def no_markers(root: Path) -> None:
    (root / plots.PAGE).write_text("no markers")


def no_readme(root: Path) -> None:
    (root / plots.README).unlink()


def not_json(root: Path) -> None:
    (root / plots.RESULTS / "ladder_broken.json").write_text("{")


def of_a_simulator(root: Path) -> None:
    write(root, {"engine": "cudasim"}, "ladder_simulated")


def of_an_unknown_stage(root: Path) -> None:
    path = root / plots.RESULTS / f"{plots.HEADLINE}.json"
    path.write_text(path.read_text().replace("s01_direct", "s99_magic"))


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        (no_results, "ladder_conv9_h200.json"),
        (no_markers, "docs/ladder.md"),
        (no_readme, "README.md"),
        (not_json, "ladder_broken.json"),
        (of_a_simulator, "cudasim"),
        (of_an_unknown_stage, "s99_magic"),
    ],
)
def test_what_is_missing_is_named_in_one_line(root, capsys, spoil, names):
    spoil(root)
    assert run(root) == 2
    said = capsys.readouterr().err
    assert names in said.replace("\\", "/")
    assert said.count("\n") == 1
    assert not (root / plots.PICTURE).exists()


def test_what_a_step_is_said_to_gain_was_measured():
    root = Path(__file__).parents[1]
    page = (root / "docs/ladder.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\| (s\d\d) to (s\d\d) \| (.*?) \|", page, re.MULTILINE)
    told = [
        (first, second, gain, layer)
        for first, second, words in steps
        for gain, layer in re.findall(r"(\d\.\d)(?: times)? on Conv(\d)", words)
    ]
    assert len(told) >= 10
    for first, second, gain, layer in told:
        file = root / plots.RESULTS / f"ladder_conv{layer}_h200.json"
        stages = json.loads(file.read_text(encoding="utf-8"))["stages"]
        times = {one["name"].partition("_")[0]: one["time_ms"] for one in stages}
        assert f"{times[first] / times[second]:.1f}" == gain, (first, second, layer)


@pytest.mark.parametrize(
    ("date", "device", "time_ms", "said"),
    [
        ("2026-01-03T00:00:00", "Imaginary GPU <1>", 0.4, "s11_im2win_full takes 0.400 ms"),
        ("2026-01-03T00:00:00", "Imaginary GPU <1>", 0.6, "s11_im2win_full takes 0.600 ms"),
        ("2026-01-03T00:00:00", "Imaginary GPU <1>", 0.51, ""),
        ("2026-01-03T00:00:00", "Imaginary GPU <1>", None, ""),
        ("2026-01-01T00:00:00", "Imaginary GPU <1>", 0.4, ""),  # an older run
        ("2026-01-03T00:00:00", "another", 0.4, ""),
    ],
)
def test_what_a_newer_run_found_otherwise_is_said(
    root: Path, document, date: str, device: str, time_ms: float | None, said: str
) -> None:
    old = ladder_results.Results.read(write(root, document))
    row = SimpleNamespace(time_ms=time_ms)
    newer: Any = SimpleNamespace(
        environment={"date": date},
        machine=SimpleNamespace(device=device),
        row=lambda layer, batch, name: row if (layer, batch, name[:3]) == NEWER else None,
    )
    found = ladder_tables.differing(old, newer, "docs/results.md")
    sentence = (
        "\nChanged by more than 5% since, by the newer run of [results.md](docs/results.md): "
    )
    assert found == (f"{sentence}{said}.\n" if said else "")
    assert ladder_tables.short_table(old, newer).endswith(f"|\n{found}")
    assert found.replace("docs/", "") in ladder_tables.full_tables([old], newer)
    assert ladder_tables.differing(old, None, "docs/results.md") == ""
