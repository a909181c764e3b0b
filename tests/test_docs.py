"""README.md and docs/: short, with links that lead somewhere, and nothing that is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from kernels.wrong import WRONG
from typer.testing import CliRunner

from convlab import Trace, checking, doctor, ladder, trace
from convlab.bench import ladder_page, pages, textbook, tuning
from convlab.cli import app
from convlab.engines import choose
from convlab.kernels.im2win_layout import group_size
from convlab.lint import PROBLEMS, Row
from convlab.oracle import random_tensors
from convlab.simulation.findings import Finding
from convlab.site.listings import names
from convlab.stages import LADDER, Program, stage_named
from convlab.workloads import LAYER_NAMES, MODEL, TEACHING, paper_layer

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
PAGE_NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"^(?:\S*/)?(make|convlab)[ \t]+([a-z][\w-]*)", re.MULTILINE)


def code(text: str) -> Iterator[str]:
    """Every fenced block and every span of code."""
    yield from (block for _, block in FENCE.findall(text))
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def named(program: str) -> set[str]:
    """What ``program`` is told to do, anywhere in the documentation."""
    return {
        what
        for page in PAGES
        for piece in code(page.read_text(encoding="utf-8"))
        for name, what in COMMAND.findall(piece)
        if name == program
    }


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings; of a Python file the names in it."""
    if page.suffix == ".py":
        return set(names(page.read_text(encoding="utf-8")))
    lines = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_links_lead_somewhere(page):
    links = LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    relative = [link for link in links if "://" not in link]
    for link in relative:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def test_every_page_is_in_the_index():
    index = LINK.findall((ROOT / "docs/README.md").read_text(encoding="utf-8"))
    pages = {page.name for page in PAGES if page.parent.name == "docs"} - {"README.md"}
    assert pages <= set(index)


def test_every_make_target_named_is_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert {"ladder", "test"} <= named("make") <= targets


def test_every_verb_named_is_there():
    verbs = set(typer.main.get_command(app).commands)
    assert {"ladder", "stages", "doctor"} <= named("convlab") <= verbs


@pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.name)
def test_every_stage_has_its_section(stage):
    assert stage.name.replace(" ", "-") in headings(ROOT / "docs/ladder.md")


def test_the_python_in_the_readme_runs(capsys):
    (example,) = (
        block
        for kind, block in FENCE.findall(README.read_text(encoding="utf-8"))
        if kind == "python"
    )
    exec(compile(example, "README.md", "exec"), {})
    *plan, error = capsys.readouterr().out.split()
    assert "s12_fused_im2win" in " ".join(plan)
    assert float(error) < 1e-5


@pytest.mark.same_in_cudasim
def test_what_the_docs_show_and_say_of_results_and_of_a_run_on_the_simulator(
    capsys, monkeypatch, tmp_path
):
    """One test, because the run takes long."""
    file = tmp_path / "ladder.json"
    monkeypatch.setattr(ladder_page, "sample", partial(ladder_page.sample, file))
    assert pages.main(["--root", str(ROOT), "--check"]) == 0, capsys.readouterr().err
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["problem"]["output_shape"] == list(MODEL.output_shape)
    counts = {
        stage["name"][:3]: stage["counts"]
        for stage in document["stages"]
        if not stage["name"].startswith(("s02", "s03"))
    }
    the_counts_are_as_docs_ladder_md_reads_them(counts)


def the_counts_are_as_docs_ladder_md_reads_them(counts):
    """``counts`` is what every stage's main kernel does, by the stage's number."""
    requests, sectors, shared, passes, ratio = (
        {stage: count[key] for stage, count in counts.items()}
        for key in (
            "global_requests", "global_sectors", "shared_requests", "shared_passes",
            "bytes_per_flop",
        )
    )  # fmt: skip
    multiply_adds = MODEL.M * MODEL.N * MODEL.K
    assert requests["s01"] == pytest.approx(2 * multiply_adds / 32, rel=0.05)
    assert requests["s04"] == pytest.approx(requests["s01"], rel=0.001)
    assert requests["s05"] / requests["s04"] == pytest.approx(1 / 10, rel=0.1)
    assert requests["s06"] / requests["s05"] == pytest.approx(3 / 5, rel=0.1)
    assert shared["s07"] / shared["s06"] == 1 / 2
    assert shared["s08"] / shared["s07"] == pytest.approx(1 / 3, rel=0.15)
    assert passes["s08"] / passes["s07"] == pytest.approx(3 / 4, abs=0.03)
    assert (requests["s09"], shared["s09"]) == (requests["s08"], shared["s08"])
    assert sectors["s10"] / sectors["s04"] == pytest.approx(3, abs=0.2)
    assert min(requests, key=requests.get) == "s11"
    assert round(ratio["s01"], 1) == 2.5
    assert [round(ratio[stage], 2) for stage in ("s08", "s09", "s11")] == [0.16] * 3
    conv9 = paper_layer("conv9")
    tile = stage_named("s11").production_tile(conv9)
    assert (conv9.M % tile.M_B, conv9.K % tile.K_B) == (0, 0)
    assert group_size(conv9) == conv9.H_f * conv9.C_i == 192


def rows(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, cell by cell, without its head."""
    text = (ROOT / page).read_text(encoding="utf-8")
    below = text.split(f"\n{heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n?)+", below, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table[0].splitlines()[2:]]


def test_the_twelve_layers_are_those_of_the_workloads():
    problems = {name: paper_layer(name) for name in LAYER_NAMES}
    assert rows("docs/glossary.md", "## The twelve layers") == [
        [
            f"`{name}`", f"{p.C_i} x {p.H_i} x {p.W_i}", f"{p.C_o} of {p.H_f} x {p.W_f}",
            f"{p.s_h}", f"{p.C_o} x {p.H_o} x {p.W_o}", f"{p.K:,}", f"{p.flops / 1e9:,.1f}",
        ]
        for name, p in problems.items()
    ]  # fmt: skip


def test_the_compile_gate_s_problems_are_told():
    told = rows("docs/compile-gate.md", "## What is compiled")
    assert [row[0].strip("`") for row in told] == list(PROBLEMS)


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    """A real document of every verb, with nothing null that could be there."""
    broken = replace(LADDER[0], prepare=lambda problem, tile: Program(buffers=(), launches=()))
    stages = (stage_named("s10"), broken)
    engine = choose("cudasim")
    found = list(ladder.run(TEACHING, stages, engine, random_tensors(TEACHING, 0)))
    ran = ladder.as_json(TEACHING, engine, found)
    ran["environment"] = doctor.environment([])
    facts = doctor.facts()
    wrong = next(case for case in WRONG if case.kind == "out of bounds")
    busy = next(case for case in textbook.CASES if case.name == "reduction")
    busy, wrong = (
        trace(case.kernel, case.grid, case.block, *case.arguments()).main for case in (busy, wrong)
    )
    traced = Trace("both in one", (replace(busy, findings=wrong.findings),))
    linted = Row("s01", "k", "conv9", "-", "sm_90", 1, 2, 0, 0, 0, (), {}, ())
    return {
        "ladder": ran,
        "stages": json.loads(CliRunner().invoke(app, ["stages", "--json", "-"]).stdout),
        "doctor": facts | {"gpu": facts["gpu"] or dict.fromkeys(GPU)},
        "check": _checked(),
        "trace": json.loads(json.dumps(traced.as_json())),
        "lint": [asdict(linted) | {"ok": linted.ok}],
        "tune": tuning.as_json([_tuned()], stage_named("s12"), engine),
    }


def _tuned() -> tuning.Tuned:
    (task, *_) = tuning.tasks_for({"conv9": paper_layer("conv9")}, stage_named("s12"))
    return tuning.Tuned("conv9", task.problem, task.tile, (tuning.Measured(task, 1.0, 1.0),))


def _checked() -> dict[str, Any]:
    """The document of a check that has everything in it, which no kernel's has."""
    finding = Finding("shared race", "k", "f.py", 1, "what", 2)
    answer = checking.Answer("name", TEACHING, None, "it could not go on")
    count = checking.Count("requests", 1, 2)
    return checking.Check("k", "s05", (answer,), (finding,), (count,)).as_json()


GPU = ("name", "compute_capability", "memory_bytes", "driver", "cuda")
# Dictionaries whose keys are data, or described elsewhere: told as one.
WHOLE = {
    "environment.packages", "environment.gpu", "environment.clocks_mhz", "packages", "[].wide",
    "stages[].launch_ms", "stages[].counts.pre_passes", "about", "launches[].source",
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


@pytest.mark.parametrize("verb", ["ladder", "stages", "doctor", "lint", "check", "trace", "tune"])
def test_every_key_of_the_json_is_told(documents, verb):
    told = [row[0].strip("`") for row in rows("docs/json.md", f"## `convlab {verb} --json`")]
    assert len(told) == len(set(told))
    assert set(told) == set(keys(documents[verb]))
