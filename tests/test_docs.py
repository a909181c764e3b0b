"""README.md and docs/: short, with links that lead somewhere, and nothing that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from convlab.bench import plots
from convlab.cli import app
from convlab.stages import LADDER

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
    """The anchors that GitHub gives a page's headings."""
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
def test_every_stage_has_its_section_and_its_row_in_the_example(stage):
    assert stage.name.replace(" ", "-") in headings(ROOT / "docs/ladder.md")
    shown = "".join(block for kind, block in FENCE.findall(README.read_text()) if kind == "text")
    assert re.search(rf"^{stage.name} +OK ", shown, re.MULTILINE)


def test_the_python_in_the_readme_runs(capsys):
    (example,) = (
        block
        for kind, block in FENCE.findall(README.read_text(encoding="utf-8"))
        if kind == "python"
    )
    exec(compile(example, "README.md", "exec"), {})
    *plan, error = capsys.readouterr().out.split()
    assert "s11_im2win_full" in " ".join(plan)
    assert float(error) < 1e-5


def test_picture_and_tables_are_what_the_results_give(capsys):
    assert plots.main(["--root", str(ROOT), "--check"]) == 0, capsys.readouterr().err
