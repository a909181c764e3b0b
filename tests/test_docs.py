"""README.md and docs/: links resolve, what is shown exists and runs, tables are the code's."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import results_pages as pages
import results_tables
import typer

from convlab.commands.cli import app
from convlab.measuring.machine_code import PROBLEMS
from convlab.problems.workloads import LAYER_NAMES, MODEL, paper_layer

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"^(?:\S*/)?(make|convlab)[ \t]+([a-z][\w-]*)", re.MULTILINE)


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings; of a Python file the names in it."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".py":
        return {getattr(node, "name", "") for node in ast.walk(ast.parse(text))}
    lines = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def rows(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, cell by cell, without its head."""
    below = (ROOT / page).read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n?)+", below, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table[0].splitlines()[2:]]


def listed(heading: str) -> list[str]:
    """The keys that a table of docs/json.md lists; "`a.b`, `.c`" stands for a.b and a.c."""
    found: list[str] = []
    for first, *_ in rows("docs/json.md", heading):
        for key in re.findall(r"`([^`]+)`", first):
            found.append(found[-1].rpartition(".")[0] + key if key.startswith(".") else key)
    return found


# Dictionaries whose keys are data, or described elsewhere: told as one.
WHOLE = {
    "environment.packages", "environment.gpu", "environment.clocks_mhz", "packages", "[].wide",
    "lint[].lines[].opcodes",
    "stages[].launch_ms", "stages[].counts.layout_transforms", "about", "launches[].source",
}  # fmt: skip
# Told of themselves too, because they may be null.
MAY_BE_NULL = {"environment", "stages[].counts", "stages[].first_wrong", "gpu"}


def keys(document: Any, path: str = "") -> Iterator[str]:
    """Every key of a document, as docs/json.md writes it."""
    if isinstance(document, list) and any(isinstance(entry, dict) for entry in document):
        for entry in document:
            yield from keys(entry, f"{path}[]")
    elif isinstance(document, dict) and path not in WHOLE:
        if path in MAY_BE_NULL:
            yield path
        for key, value in document.items():
            yield from keys(value, f"{path}.{key}".removeprefix("."))
    else:
        yield path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert "://" in link or target.exists(), link
        assert "://" in link or not anchor or anchor in headings(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_link_that_names_a_file_leads_to_it(page):
    """After a file is renamed, its old name may still stand in a link's text."""
    named = re.findall(r"\[`?([\w/]+\.(?:py|md|json))`?\]\(([^)#]+)", page.read_text("utf-8"))
    wrong = [(text, path) for text, path in named if Path(text).name != Path(path).name]
    assert wrong == []


def test_every_page_is_in_the_index():
    index = LINK.findall((ROOT / "docs/README.md").read_text(encoding="utf-8"))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= set(index)


def test_commands_that_are_shown_exist():
    shown: dict[str, set[str]] = {"make": set(), "convlab": set()}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
        for piece in (*spans, *(block for _, block in FENCE.findall(text))):
            for program, verb in COMMAND.findall(piece):
                shown[program].add(verb)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert {"ladder", "test"} <= shown["make"] <= targets
    assert {"ladder", "stages"} <= shown["convlab"] <= set(typer.main.get_command(app).commands)


def test_the_python_of_the_pages_runs(capsys):
    said = []
    for page in ("README.md", "docs/getting-started.md"):
        blocks = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
        (example,) = (block for kind, block in blocks if kind == "python")
        exec(compile(example, page, "exec"), {})
        said.append(capsys.readouterr().out)
    *plan, error = said[0].split()
    assert "m15_split_k" in " ".join(plan)
    assert float(error) < 1e-5
    assert said[1] == "(1, 4, 8, 8)\n"


@pytest.mark.site
@pytest.mark.same_in_cudasim
def test_generated_parts_of_the_pages_are_what_their_data_give(capsys, monkeypatch, tmp_path):
    """One test, because the run on the simulator takes long."""
    file = tmp_path / "ladder.json"
    monkeypatch.setattr(pages, "sample", partial(pages.sample, file))
    assert pages.main(["--check"]) == 0, capsys.readouterr().err
    counts = {
        stage["name"].split("_")[0]: stage["counts"] | {"mma": MODEL.M * MODEL.N * MODEL.K}
        for stage in json.loads(file.read_text(encoding="utf-8"))["stages"]
        if not stage["name"].startswith(("c0", "i0"))
    }
    for stage, key, base, base_key, ratio, tolerance in READ_FROM_COUNTS:
        got = counts[stage][key] / counts[base][base_key]
        assert got == pytest.approx(ratio, abs=tolerance), (stage, key, base)
    fewest = min(count["global_requests"] for count in counts.values())
    assert counts["m11"]["global_requests"] == fewest  # m10 needs as many
    per_flop = [round(counts[name]["bytes_per_flop"], 2) for name in ("m01", "m06", "m08", "m11")]
    assert per_flop == [2.49, 0.16, 0.16, 0.16]


# What docs/ladder.md reads from the counts: a stage's count over another's is a ratio, within a
# tolerance.
REQUESTS, SHARED = "global_requests", "shared_requests"
READ_FROM_COUNTS = (
    ("m01", REQUESTS, "m01", "mma", 2 / 32, 0.003),
    ("m02", REQUESTS, "m01", REQUESTS, 1, 0.001),
    ("m03", REQUESTS, "m02", REQUESTS, 1 / 10, 0.01),
    ("m04", REQUESTS, "m03", REQUESTS, 3 / 5, 0.06),
    ("m05", SHARED, "m04", SHARED, 1 / 2, 0),
    ("m06", SHARED, "m05", SHARED, 1 / 3, 0.05),
    ("m06", "shared_wavefronts", "m05", "shared_wavefronts", 3 / 4, 0.03),
    ("m08", REQUESTS, "m06", REQUESTS, 1, 0),
    ("m08", SHARED, "m06", SHARED, 1, 0),
    ("m09", "global_sectors", "m02", "global_sectors", 3, 0.2),
)


def test_times_by_both_compilers_are_shown_where_both_are_stored(monkeypatch, tmp_path):
    folder = tmp_path / pages.RESULTS
    folder.mkdir(parents=True)
    for name in results_tables.LINT, f"{results_tables.LINT}_mlir":
        (tmp_path / f"{name}.json").symlink_to(ROOT / f"{name}.json")
    timed = json.loads((ROOT / pages.RESULTS / f"{pages.HEADLINE}.json").read_text())
    for end, time_ms in ("", 1.25), ("_mlir", 1.5):
        for step in timed["stages"]:
            step["time_ms"] = time_ms
        timed["stages"][0]["ok"] = end == ""  # m01 failed by the second
        (folder / f"{pages.HEADLINE}{end}.json").write_text(json.dumps(timed))
    monkeypatch.setattr(pages.papers, "ROOT", tmp_path)
    table = results_tables.compilers_table().splitlines()
    assert table[0].endswith("| ms |")
    assert [line.split(" | ")[-1] for line in table[2:4]] == ["1.250/- |", "1.250/1.500 |"]


def test_the_twelve_layers_are_those_of_the_workloads():
    assert rows("docs/glossary.md", "## The twelve layers") == [
        [
            f"`{name}`", f"{p.C_i} x {p.H_i} x {p.W_i}", f"{p.C_o} of {p.H_f} x {p.W_f}",
            f"{p.s_h}", f"{p.C_o} x {p.H_o} x {p.W_o}", f"{p.K:,}", f"{p.flops / 1e9:,.1f}",
        ]
        for name, p in ((name, paper_layer(name)) for name in LAYER_NAMES)
    ]  # fmt: skip


def test_the_problems_of_the_compile_gate_are_listed():
    listed = rows("docs/compile-gate.md", "## What is compiled")
    assert [row[0].strip("`") for row in listed] == list(PROBLEMS)
