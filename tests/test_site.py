"""The built site: every page there, links that lead somewhere, pictures told, no network."""

from __future__ import annotations

import json
import re
import runpy
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest
from numba.cuda.core import config

import convlab
from convlab.lint import REGISTER_BUDGET, USUAL_BUDGET
from convlab.simulation.findings import REMEDIES
from convlab.site import (
    build,
    checks,
    ladder_graph,
    listings,
    measurements,
    reference,
    trace_pictures,
)
from convlab.site.finding_examples import EXAMPLES
from convlab.site.finding_pages import run
from convlab.site.links import Links
from convlab.site.markup import prose
from convlab.site.stage_pages import lint_rows
from convlab.stages import LADDER, stage_named
from convlab.tracing.records import Request
from convlab.workloads import paper_layer

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
needs_a_build = pytest.mark.site


class Text(HTMLParser):
    """The words of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def words(page: Path) -> str:
    """What a page says."""
    parser = Text()
    parser.feed(page.read_text(encoding="utf-8"))
    return " ".join("".join(parser.words).split())


def test_the_ladder_shown_first_is_the_usual_one():
    every = measurements.ladders(ROOT)
    most = [results.layer for results in every if len(results.steps) == len(every[0].steps)]
    assert len(most) > 1
    assert every[0].layer == "Conv9"


# The built site.


@needs_a_build
def test_links_pictures_and_network(site):
    assert checks.complaints(site) == []


@needs_a_build
def test_every_page_of_the_documentation_is_there(site):
    for path in (ROOT / "docs").glob("*.md"):
        assert (site / f"{path.stem.replace('README', 'index')}.html").is_file(), path


@needs_a_build
@pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.name)
def test_every_stage_has_its_page(site, stage):
    said = words(site / f"stages/{stage.name}.html")
    assert stage.title in said
    headings = ["The idea", "On a GPU", "What it asks of memory", "Its machine code", "The code"]
    headings += [f"What changed from {base}" for base in stage.builds_on]
    assert [heading for heading in headings if heading not in said] == []
    text = (site / f"stages/{stage.name}.html").read_text(encoding="utf-8")
    assert ('class="strip"' in text) is (stage.name != "s03_unfold_einsum")
    assert text.count('class="highlight-python notranslate difference"') == len(stage.builds_on)


@needs_a_build
def test_every_stage_stands_in_the_graph(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    for stage in LADDER:
        assert f'href="stages/{stage.name}.html"' in text
    results = json.loads((ROOT / "docs/results/ladder_conv9_h200.json").read_text("utf-8"))
    rungs = text.split('class="rungs"')[1]
    for measured in results["stages"]:
        assert f"{measured['speedup']:.2f}" in rungs, measured["name"]


@needs_a_build
def test_the_search_knows_the_pages(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    for word in ("coalesc", "im2win", "judging", "stages/s05_shared_memory"):
        assert word in index


@needs_a_build
def test_every_public_name_is_documented(site):
    page = checks.Page(site / "api.html")
    for module in reference.MODULES:
        for name in reference.names(module):
            assert f"{module}.{name}" in page.anchors


@needs_a_build
def test_formulas_need_no_script(site):
    conf = runpy.run_path(str(ROOT / "docs/conf.py"))
    inline, block = (conf["as_mathml"](r"K = C_i H_f W_f", block=block) for block in (False, True))
    assert inline.startswith("<math")
    assert "<msub>" in inline
    assert 'display="block"' in block
    for path in site.rglob("*.html"):
        assert not re.search(r"<script[^>]*mathjax", path.read_text(encoding="utf-8"), re.I), path


@needs_a_build
def test_a_listing_has_every_name(site):
    page = checks.Page(site / "source/src-convlab-stages-s01_direct.py.html")
    code = (ROOT / "src/convlab/stages/s01_direct.py").read_text(encoding="utf-8")
    last = f"L{len(code.splitlines())}"
    assert {"make_kernel", "direct", "THREADS", "STAGE", last} <= page.anchors


@needs_a_build
def test_no_address_of_this_machine_gets_out(site):
    for path in site.rglob("*.html"):
        assert str(ROOT) not in path.read_text(encoding="utf-8"), path


# What needs no build.


@pytest.mark.skipif(
    config.ENABLE_CUDASIM, reason="there Numba has emulations in the intrinsics' place"
)
@pytest.mark.parametrize("module", reference.MODULES)
def test_every_public_name_says_what_it_is(module):
    for name in reference.names(module):
        value = getattr(import_module(module), name)
        own = value.__doc__ and value.__doc__ != type(value).__doc__
        assert own or name in reference.DATA, f"{module}.{name} has no docstring"


def test_the_whole_api_is_in_the_reference():
    assert set(reference.names("convlab")) == set(convlab.__all__)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.kind)
def test_the_simulator_finds_what_an_example_shows(example):
    said = run(example, example.wrong)
    assert said is not None
    assert all(line.startswith(f"- {example.kind}, ") for line in said.splitlines()[1:])
    assert run(example, example.mended) is None


def test_every_kind_of_finding_is_shown():
    assert [example.kind for example in EXAMPLES] == [*REMEDIES]


def test_the_machine_code_that_is_stored_is_of_todays_kernels():
    stored = {(row["stage"], row["kernel"]): row["budget"] for row in lint_rows(ROOT)}
    now = {}
    problem = paper_layer("conv9")  # as it is compiled: of one image s12 would split the sums
    for stage in LADDER:
        program = stage.prepare(problem, stage.production_tile(problem))
        for one in program.kernels:
            now[stage.name, one.name] = REGISTER_BUDGET.get(one.name, USUAL_BUDGET)
    assert stored.items() <= now.items(), "convlab lint writes it anew: see docs/contributing.md"


def test_the_graph_has_a_column_for_whatever_goes_on():
    columns = ladder_graph.lanes()
    assert columns["s01_direct"] == columns["s04_implicit_gemm"] == columns["s10_im2win"] == 0
    assert columns["s09_double_buffer"] == columns["s11_im2win_full"] == 1
    rows = {stage.name: row for row, stage in enumerate(LADDER)}
    for stage in LADDER:  # an edge passes no node: none stands between in the base's column
        for base in stage.builds_on:
            between = [
                other.name
                for other in LADDER
                if rows[base] < rows[other.name] < rows[stage.name]
                and columns[other.name] == columns[base]
            ]
            assert not between, f"the edge from {base} to {stage.name} runs through {between}"


def test_the_python_of_getting_started_runs(capsys):
    text = (ROOT / "docs/getting-started.md").read_text(encoding="utf-8")
    (example,) = (block for kind, block in FENCE.findall(text) if kind == "python")
    exec(compile(example, "getting-started.md", "exec"), {})
    assert capsys.readouterr().out == "(1, 4, 8, 8)\n"


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[why](judging.md#the-bound)", "[why](judging.md#the-bound)"),
        ("[judging.md](judging.md)", "[When an output counts as right](judging.md)"),
        ("[index](README.md)", "[index](index.md)"),
        ("[s05](../src/convlab/stages/s05_shared_memory.py)", "[s05](stages/s05_shared_memory.md)"),
        ("[x](../src/convlab/lint.py)", '<a href="source/src-convlab-lint.py.html">x</a>'),
        ("[x](../src/convlab/lint.py#Row)", '<a href="source/src-convlab-lint.py.html#Row">x</a>'),
        ("[results](results)", "[results](measurements.md)"),
        ("[r](results/memory.json)", '<a href="results/memory.json">r</a>'),
        ("[tests](../tests)", "tests"),
        ("[start](../lessons/00_start.ipynb)", "[start](lessons/00_start.ipynb)"),
        ("![bars](images/ladder.svg)", "![bars](images/ladder.svg)"),
        ("[numba](https://numba.pydata.org)", "[numba](https://numba.pydata.org)"),
        ("```\n[x](../src/convlab/lint.py)\n```", "```\n[x](../src/convlab/lint.py)\n```"),
    ],
)
def test_links_are_made_to_suit_the_site(link, becomes):
    assert Links(ROOT).page(link, "docs/ladder.md", "ladder.md") == becomes


def test_a_difference_shows_what_came_and_went():
    html = listings.difference("a = 1\nb = 2\n", "a = 1\nb = 3\nc = 4\n")
    assert re.findall(r'class="row (\w+)"', html) == ["stayed", "went", "came", "came"]
    assert listings.changed_lines("a = 1\nb = 2\n", "a = 1\nb = 3\nc = 4\n") == (2, 1)


def shared_request(step: int, width: int = 4, passes: int = 1) -> Request:
    lanes = tuple(range(32))
    offsets = tuple(step * lane for lane in lanes)
    return Request("f.py", 1, "S", "load", width, 0, lanes, offsets, 0, passes)


@pytest.mark.parametrize(
    ("step", "width", "passes"), [(4, 4, 1), (0, 4, 1), (8, 4, 2), (128, 4, 32), (16, 16, 4)]
)
def test_a_picture_of_shared_memory_has_a_row_for_each_pass(step, width, passes):
    made = trace_pictures.request_picture(shared_request(step, width, passes), "shared")
    rows = {float(y) for y in re.findall(r'class="bank" x="[^"]*" y="([^"]*)"', made)}
    assert len(rows) == passes


def test_a_picture_that_would_lie_is_refused():
    with pytest.raises(ValueError, match="has 3 passes, and its picture would have 2"):
        trace_pictures.request_picture(shared_request(8, passes=3), "shared")


@pytest.mark.parametrize(("step", "sectors"), [(4, 4), (0, 1), (8, 8), (32, 32), (128, 32)])
def test_a_picture_of_global_memory_has_a_box_for_each_sector(step, sectors):
    made = trace_pictures.request_picture(shared_request(step), "global")
    assert made.count('class="sector"') == sectors


def test_docstrings_become_markdown():
    assert (
        prose("``M_T`` of :func:`convlab.plan`, K_B * 2") == r"`M_T` of `convlab.plan`, K\_B \* 2"
    )


GOOD = '<html><body id="top"><a href="#top">up</a><img src="a.png" alt="a picture"></body></html>'


@pytest.mark.parametrize(
    ("html", "complaint"),
    [
        ('<a href="nowhere.html">x</a>', "leads to no file"),
        ('<a href="#nowhere">x</a>', "leads to no place"),
        ('<a href="index.html#nowhere">x</a>', "leads to no place"),
        ('<img src="a.png">', "no alternative text"),
        ('<img src="a.png" alt=" ">', "no alternative text"),
        ('<img src="a.png" alt="a.png">', "no alternative text"),
        ('<svg role="img"></svg>', "no alternative text"),
        ('<script src="https://cdn.example/x.js"></script>', "from the network"),
        ('<link rel="stylesheet" href="//cdn.example/x.css">', "from the network"),
        ('<img alt="x" src="http://example.org/x.png">', "from the network"),
        ('<p style="background: url(https://example.org/x.png)">', "from the network"),
        ("<style>@import 'https://fonts.example/x.css';</style>", "from the network"),
        ('<img alt="x" src="missing.png">', "is not there"),
    ],
)
def test_a_planted_mistake_is_found(tmp_path, html, complaint):
    (tmp_path / "searchindex.js").write_text("")
    (tmp_path / "a.png").write_text("")
    page = tmp_path / "index.html"
    page.write_text(GOOD)
    assert checks.complaints(tmp_path) == []
    page.write_text(GOOD.replace("</body>", f"{html}</body>"))
    found = checks.complaints(tmp_path)
    assert found
    assert all(complaint in one for one in found)


def test_styles_are_read_and_the_search_is_missed(tmp_path):
    (tmp_path / "index.html").write_text("<html></html>")
    (tmp_path / "site.css").write_text("@font-face { src: url('https://fonts.example/x.woff2'); }")
    style, search = checks.complaints(tmp_path)
    assert "from the network" in style
    assert "no search index" in search


def test_it_says_where_it_has_to_run(tmp_path, capsys):
    assert build.main(["--root", str(tmp_path)]) == 2
    assert "run this in convlab's source folder" in capsys.readouterr().err


def test_a_notebook_s_pictures_and_links_suit_the_site():
    picture = {"data": {"image/png": ""}, "metadata": {"image/png": {"alt": "a grid of boxes"}}}
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["[why](../docs/ladder.md", "#s01)"]},
        {"cell_type": "code", "metadata": {}, "source": [], "outputs": [picture]},
    ]
    text = json.dumps({"cells": cells, "metadata": {}})
    made = json.loads(build.notebook(text, "lessons/01_x.ipynb", Links(ROOT), listed=False))
    assert made["cells"][0]["source"] == "[why](../ladder.md#s01)"
    assert made["cells"][1]["metadata"]["mystnb"]["image"]["alt"] == "a grid of boxes"
    assert made["metadata"]["orphan"]


def test_lessons_get_their_place(tmp_path):
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons/05_shared_memory.ipynb").write_text("{}")
    from convlab.site.stage_pages import lesson_of

    found = lesson_of(tmp_path, stage_named("s05"))
    assert found is not None
    assert found.name == "05_shared_memory.ipynb"
    assert lesson_of(tmp_path, stage_named("s06")) is None


@pytest.mark.parametrize("stage", ["s01", "s05", "s12"])
def test_a_stages_page_leads_to_its_lesson(stage):
    from convlab.site.stage_pages import _facts

    facts = _facts(ROOT, stage_named(stage))
    page = Links(ROOT).page(facts, f"docs/stages/{stage_named(stage).name}.md", "stages/x")
    assert re.search(rf"\| lesson \| \[\w+\]\(\.\./lessons/{stage[1:]}_\w+\.ipynb\)", page)
