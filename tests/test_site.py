"""The built site: every page is there, links lead somewhere, pictures have words, no network."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import build_site as pages
import numpy as np
import pytest
import site_pictures as pictures
from numba.cuda.core import config

import convlab
from convlab.ladder import LADDER, production_program, short_name, stages_of
from convlab.lessons.requests import one_request
from convlab.measuring.machine_code import REGISTER_BUDGET, USUAL_BUDGET
from convlab.problems.workloads import TEACHING, paper_layer
from convlab.simulation.rules.finding_words import (
    STREAM_RACE,
)
from convlab.simulation.rules.remedies import REMEDIES
from convlab.tracing import trace_stage

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
needs_a_build = pytest.mark.site


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def words(page: Path) -> str:
    """Return the text of a page."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", text_of(page))).split())


# The built site. Sphinx has looked at links and pictures of Markdown; here is what it has written.

WITHOUT_WORDS = re.compile(r"<img\b(?![^>]*\balt=\"[^\"]+\")[^>]*>")


@needs_a_build
def test_links_and_pictures(site):
    wrong = []
    for path in sorted(site.rglob("*.html")):
        html = text_of(path)
        assert str(ROOT) not in html, f"{path} names a folder of this machine"
        code = re.sub(r"<pre>.*?</pre>", "", html, flags=re.DOTALL)
        wrong += [(path.name, found) for found in WITHOUT_WORDS.findall(code)]
        for link in set(re.findall(r"(?:href|src)=\"([^\"]*)\"", html)):
            name, _, anchor = unescape(link).partition("#")
            if re.match(r"[a-z]+:", name):
                continue
            target = path.parent / unquote(name.partition("?")[0]) if name else path
            if not target.exists():
                wrong.append((path.name, link))
            elif anchor and target.suffix == ".html":
                if f'id="{unquote(anchor)}"' not in text_of(target):
                    wrong.append((path.name, link))
    assert wrong == []


@needs_a_build
def test_sphinx_finds_planted_mistakes(tmp_path, capsys):
    pytest.importorskip("myst_nb", reason="the site needs Sphinx: make site installs it")
    from sphinx.cmd.build import main as sphinx

    (tmp_path / "conf.py").write_text(text_of(ROOT / "docs/site/conf.py"))
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static/site.css").write_text("")
    (tmp_path / "other.md").write_text("---\norphan: true\n---\n# Other\n")
    (tmp_path / "a.png").write_bytes(b"")
    lines = ["[x](nowhere.md)", "[x](other.md#nowhere)", "![words](missing.png)", "![](a.png)"]
    (tmp_path / "index.md").write_text("\n\n".join(["# Home", *lines, "[x](other.md)", "$K_B$"]))
    assert sphinx(["-W", "--keep-going", "-n", "-q", str(tmp_path), str(tmp_path / "site")])
    said = capsys.readouterr().err
    for line, what in ((3, "nowhere"), (5, "nowhere"), (7, "missing.png"), (9, "alternative")):
        assert re.search(rf"index\.md:{line}: WARNING: .*{what}", said), said
    assert said.count("WARNING") == len(lines)
    assert "<msub>" in text_of(tmp_path / "site/index.html")


@needs_a_build
def test_every_page_of_the_documentation_is_there(site):
    for path in (ROOT / "docs").glob("*.md"):
        assert (site / f"{path.stem.replace('README', 'index')}.html").is_file(), path
    index = text_of(site / "searchindex.js")
    for word in ("coalesc", "im2win", "checking", "stages/m03_shared_memory"):
        assert word in index


def test_each_stage_has_the_lesson_that_teaches_it():
    titles = {
        path.stem: text_of(path).split('"""\n# ')[1].partition("\n")[0]
        for path in sorted((ROOT / "lessons/source").glob("*.py"))
    }
    found = {short_name(stage.name): pages.lesson_of(stage, titles) for stage in LADDER}
    assert None not in found.values()
    taught = {"m03": "05_shared_memory", "m05": "07_microkernel", "m07": "09_double_buffer",
              "m14": "12_fused_im2win", "t04": "13_tensor_cores", "i05": "03_im2col"}  # fmt: skip
    assert taught.items() <= found.items()


@needs_a_build
@pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.name)
def test_every_stage_has_its_page(site, stage):
    page = site / f"stages/{stage.name}.html"
    said = words(page)
    headings = ["The idea", "On a GPU", "Its memory traffic", "Its machine code", "The code"]
    headings += [f"What changed from {base}" for base in stage.builds_on]
    assert [found for found in (stage.title, "STAGE =", *headings) if found not in said] == []
    drawn = f"{stage.name}-0.svg" in text_of(page)
    assert drawn is (stage.name != "i05_unfold_einsum")
    assert text_of(page).count("highlight-diff") == len(stage.builds_on)


@needs_a_build
def test_the_front_shows_the_ladder_and_links_to_each_stage_of_its_picture(site):
    html = text_of(site / "index.html")
    (run, *_) = pages.ladder_results().values()
    routes = (*stages_of("main"), *stages_of("tensor_cores"))
    measured = [stage for stage in routes if stage.name in run["steps"]]
    # These two were measured on another GPU than the others.
    assert {one.name for one in routes} - {"t06_split_k", "t07_tf32"} == {
        one.name for one in measured
    }
    for stage in measured:
        shown = re.search(rf'href="stages/{stage.name}\.html"><b>.*?</li>', html, re.DOTALL)
        assert shown, stage.name
        assert f"{run['steps'][stage.name]['tflops']:.1f}</span>" in shown[0]
    assert "<table" not in html.partition('id="three-ways-in"')[0]


@needs_a_build
def test_solutions_stand_apart_from_lessons(site):
    html = text_of(site / "lessons.html")
    menu = html.partition('<div class="sidebar-tree">')[2].partition("</div>")[0]
    learn, _, later = menu.partition('href="ladder.html"')
    assert 'href="lessons/05_shared_memory.html"' in learn
    assert "lessons/solutions" not in learn
    assert "lessons/solutions/05_shared_memory.html" in later
    assert 'href="05_shared_memory.html"' in text_of(site / "lessons/solutions/index.html")


@needs_a_build
def test_the_table_has_each_stage_s_speed_and_the_reference_each_name(site):
    html, said = text_of(site / "stages/index.html"), words(site / "stages/index.html")
    (run, *_) = pages.ladder_results().values()
    for step in run["steps"].values():
        assert f'{step["name"]}.html"><span class="std std-doc">{short_name(step["name"])}<' in html
        assert f"{step['tflops']:.1f} {step['speedup']:.2f}" in said
    html = text_of(site / "api.html")
    for module in pages.MODULES:
        for name in pages.public_names(module):
            assert f'id="{module}.{name}"' in html


@needs_a_build
def test_a_listing_has_every_line_and_links_find_names(site):
    code = text_of(ROOT / "src/convlab/ladder/stage.py").splitlines()
    assert f'id="L-{len(code)}"' in text_of(site / "src/convlab/ladder/stage.html")
    line = next(n for n, text in enumerate(code, 1) if text.startswith("class Stage"))
    assert f"src/convlab/ladder/stage.html#L-{line}" in text_of(site / "contributing.html")


# In a browser: it fits a phone, finds what is searched for, and is quiet.

PHONE, DESKTOP = (390, 800), (1280, 900)


@needs_a_build
def test_no_page_is_wider_than_its_window(site, chromium):
    too_wide = {}
    for path in sorted(site.rglob("*.html")):
        chromium.window(*PHONE)
        chromium.open(path)
        for size, dark in ((PHONE, False), (DESKTOP, True)):  # of the page as it was read
            chromium.window(*size, dark=dark)
            wide = chromium.run("document.documentElement.scrollWidth")
            if wide > size[0]:
                too_wide[path.relative_to(site).as_posix(), size] = wide
    assert too_wide == {}
    assert chromium.errors == []
    assert [one for one in chromium.asked_for if not one.startswith("file:")] == []


@needs_a_build
def test_the_ladder_can_be_read_on_a_phone(site, chromium):
    chromium.window(*PHONE)
    chromium.open(site / "stages/index.html")
    hidden = chromium.run(
        "[...document.querySelectorAll('td:nth-child(2) a')].filter(one => "
        f"one.getBoundingClientRect().right > {PHONE[0]}).map(one => one.textContent)"
    )
    assert hidden == []
    # Not with the mouse: the theme scrolls smoothly, and a middle that moves cannot be hit.
    chromium.run("document.querySelector('td a[href*=m03_shared_memory]').click()")
    chromium.wait("document.title.startsWith('m03_shared_memory')")


@needs_a_build
@pytest.mark.parametrize("page", ["index.html", "results.html", "lessons/10_im2win.html"])
def test_charts_fit_a_phone_and_pictures_have_the_page_s_colours(site, chromium, page):
    chromium.window(*PHONE)
    chromium.open(site / page)
    widths = chromium.run(
        "[...document.querySelectorAll('article p > a > img, ol.ladder li')]"
        ".map(one => one.getBoundingClientRect().right)"
    )
    assert max(widths, default=0) <= PHONE[0]
    for theme in ("light", "dark"):  # chosen on the page, whatever the system prefers
        chromium.run(f"document.body.dataset.theme = '{theme}'")
        colours = "[...document.images].map(one => getComputedStyle(one).colorScheme)"
        assert set(chromium.run(colours)) <= {theme}


@needs_a_build
def test_the_search_finds_pages(site, chromium):
    chromium.window(*DESKTOP)
    chromium.open(site / "index.html")
    chromium.run("location.href = 'search.html?q=coalesced'")
    chromium.wait("document.querySelectorAll('#search-results ul.search li').length > 0")
    chromium.wait("document.querySelector('#search-results').innerText.includes('Glossary')")
    assert chromium.errors == []


# What needs no build.


@pytest.mark.skipif(
    config.ENABLE_CUDASIM, reason="there Numba has emulations in the intrinsics' place"
)
@pytest.mark.parametrize("module", pages.MODULES)
def test_every_public_name_says_what_it_is(module):
    for name in pages.public_names(module):
        value = getattr(import_module(module), name)
        own = value.__doc__ and value.__doc__ != type(value).__doc__
        assert own or name in pages.DATA, f"{module}.{name} has no docstring"
    assert set(pages.public_names("convlab")) == set(convlab.__all__)


def test_the_simulator_finds_what_the_examples_show():
    of_kernels = [kind for kind in REMEDIES if kind != STREAM_RACE]
    assert [example.kind for example in pages.EXAMPLES] == of_kernels
    for example in pages.EXAMPLES:
        said, _ = pages.shown_example(example)  # which runs the corrected kernel too
        assert all(line.startswith(f"- {example.kind}, ") for line in str(said).splitlines()[1:])


def test_the_machine_code_that_is_stored_is_of_todays_kernels():
    rows = pages.read_json(ROOT / pages.LINT)
    stored = {(row["stage"], row["kernel"]): row["budget"] for row in rows}
    now = {}
    problem = paper_layer("conv9")  # as it is compiled: of one image m15 would split K
    for stage in LADDER:
        program = production_program(stage, stage.adapted(problem))
        for one in program.kernels:
            now[stage.name, one.name] = REGISTER_BUDGET.get(one.name, USUAL_BUDGET)
    assert stored.items() <= now.items(), "convlab lint writes it anew: see docs/contributing.md"


def test_a_picture_of_an_array_has_its_planes_side_by_side():
    image = pictures.planes(np.arange(2 * 3 * 9 * 9).reshape(2, 3, 9, 9))
    assert image.shape == (9, 6 * 10 - 1)
    assert np.isnan(image[:, 9::10]).all()
    assert image[8, 18] == 2 * 81 - 1


def test_a_picture_that_would_be_wrong_is_refused():
    launch = trace_stage("m03", TEACHING).main
    wrong = tuple(replace(one, wavefronts=one.wavefronts + 1) for one in launch.requests)
    with pytest.raises(ValueError, match="wavefronts, and its picture would have"):
        one_request(replace(launch, requests=wrong), "S_F", "store")
