"""Strangers' text on a terminal and in a report: shown, never obeyed."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench_samples import sample
from hypothesis import given
from hypothesis import strategies as st
from kernels import textbook
from rich.table import Table
from rich.text import Text
from test_cli import convlab_, numba_left_alone

from convlab.measuring import machine as doctor
from convlab.measuring import report
from convlab.measuring.results import Results
from convlab.support.terminal import Terminal
from convlab.support.values import HIDDEN, visible
from convlab.tracing import trace

pytestmark = pytest.mark.same_in_cudasim

# Clears the screen, sets the title, C1's CSI, turns the direction, hides, and rich's markup.
NASTY = "\x1b[2J\x1b]0;x\x07\x9b31m\u202eevil\u2066\u200b\x7f\x08\r[/b][bold]:smile:"
MARKUP = "![x](http://evil/x.png) [y](absent.md) <img src=http://evil/z.png> www.evil.org `|\\"


def assert_harmless(text: str) -> None:
    assert not HIDDEN.search(text), HIDDEN.search(text)


def test_hidden_characters_are_written_as_python_writes_them():
    text = "a\tb\nc\x1b\x9b\u202e\U000e0001 \N{GREEK SMALL LETTER MU} \N{SNOWMAN}"
    shown = "a\tb\nc\\x1b\\x9b\\u202e\\U000e0001 \N{GREEK SMALL LETTER MU} \N{SNOWMAN}"
    assert visible(text) == shown
    assert visible(shown) == shown


@pytest.mark.slow
@given(st.text() | st.text(st.characters(categories=["Cc", "Cf", "Zl", "Zp"])))
def test_a_terminal_gets_no_control_character_whatever_is_shown(text):
    file = io.StringIO()
    table = Table("head", text)
    table.add_row(Text(text), text)
    Terminal(file=file, width=80).print(text, Text(text), table, sep="\n")
    hidden = file.getvalue()
    assert_harmless(hidden)
    assert "\x1b" not in hidden
    assert "\r" not in hidden


def test_colours_and_progress_bars_still_reach_a_terminal():
    file = io.StringIO()
    terminal = Terminal(file=file, force_terminal=True, color_system="standard")
    terminal.print(Text("red", "red"))
    terminal.show_cursor(False)
    assert "\x1b[31mred\x1b[0m" in file.getvalue()
    assert "\x1b[?25l" in file.getvalue()


def hostile(text: str) -> Results:
    """Results whose file says ``text`` wherever it may say anything."""
    results = sample(layers=["conv9", "conv12"])
    rows = list(results.rows.values())
    names = {row.system: f"{row.system}{text}"[:40] for row in rows}
    told = [
        replace(row, system=names[row.system], algorithm=text, bound=text, date=text,
                reason=row.reason and text, identity=text)
        for row in rows
    ]  # fmt: skip
    systems = {
        names.get(name, text[:40]): system | {"name": names.get(name, text[:40]), "title": text}
        for name, system in results.systems.items()
    }
    gpu = {"name": text, "driver": text, "cuda": text}
    return replace(
        results,
        machine=replace(results.machine, device=text),
        environment=results.environment
        | {"gpu": gpu, "packages": {"numpy": text, text: text}, "date": text},
        identity=text,
        rows={row.key: row for row in told},
        systems=systems,
        commands=[text],
    )


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("nasty.json", NASTY + MARKUP), ("usual.json", "$\\frac$ %s {}")):
        Path(name).write_text(json.dumps(hostile(text).as_json()))
    return tmp_path


def test_results_are_shown_harmlessly(files):
    result = convlab_("report", "nasty.json", "usual.json")
    assert result.exit_code == 0, result.output
    assert_harmless(result.output)
    assert "\\x1b[2J" in "".join(result.output.split())


def test_a_report_holds_no_stranger_s_links_or_pictures(files):
    options = ("--no-counts", "--html", "page.html", "--markdown", "my report (1).md")
    result = convlab_("report", "nasty.json", "usual.json", *options)
    assert result.exit_code == 0, result.output
    page, text = (Path(name).read_text() for name in ("page.html", "my report (1).md"))
    pictures = re.findall(r"!\[[^]]*\]\((.*?)\)\n", text)
    for shown in (page, text):
        assert_harmless(shown)
        assert "evil" in shown
        links = re.sub(r"http://(www\.w3\.org|purl\.org|creativecommons\.org)[^\"]*", "", shown)
        assert not re.search(r"https?://|www\.", links)
    # Every picture and link is ours, and there.
    assert pictures
    assert len(pictures) == text.count("](")
    for name in pictures:
        assert Path(name.replace("%20", " ").replace("%28", "(").replace("%29", ")")).is_file()
    assert not re.search(r"<(img|a|script|iframe)\b", page)


def test_words_are_as_long_as_the_text_that_they_stand_for():
    for text in (NASTY, MARKUP, "HTTPS://x WWW.y"):
        assert len(report.as_words(text)) == len(text)
    assert report.as_words("conv9, 2 x 3: m11_warp_tiling; 5 %") == (
        "conv9, 2 x 3: m11_warp_tiling; 5 %"
    )


def test_traces_are_shown_harmlessly(tmp_path):
    made = trace(textbook.copy, 1, 32, np.zeros(32, np.float32), np.zeros(32, np.float32))
    text = json.dumps(made.as_json())
    for name in ("copy", "source", "target"):
        text = text.replace(f'"{name}"', json.dumps(name + NASTY))
    document = json.loads(text) | {"about": {"compiled": NASTY}, "title": NASTY}
    launch = document["launches"][0]
    launch["source"] = {
        file: {line: code + NASTY for line, code in lines.items()}
        for file, lines in launch.pop(f"source{NASTY}", launch.get("source", {})).items()
    }
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(document))
    result = convlab_("trace", file)
    assert result.exit_code == 0, result.output
    assert_harmless(result.output)
    assert "\\x1b" in result.output


PROGRAM = """
import numpy as np
from numba import cuda

@cuda.jit
def k(a):
    a[cuda.threadIdx.x + 1] = 1  # {nasty}

k.py_func.__name__ = "k\\x1b[2J"
k[1, 4](np.zeros(4))
raise ValueError("\\x1b[2J")
"""


@pytest.mark.parametrize("lines", [PROGRAM, "raise ValueError('\\x1b[2J')  # {nasty}"])
def test_a_program_s_names_and_lines_are_shown_harmlessly(tmp_path, lines):
    nasty = NASTY.replace("\r", "")
    file = tmp_path / "\x1b[2J\u202e.py"
    file.write_text(lines.format(nasty=nasty), encoding="utf-8")
    with numba_left_alone():
        result = convlab_("run", file)
    assert result.exit_code == 1, result.output
    assert_harmless(result.output)
    assert "\\x1b[2J" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", f"{NASTY}.py"),
        ("report", NASTY),
        ("check", NASTY, "--as", "m01"),
        ("ladder", "--image", NASTY),
        ("lessons", f"absent/{NASTY}", "--status"),
        (NASTY,),
        ("ladder", f"--{NASTY}"),
    ],
)
def test_refusals_are_harmless_and_one_line(arguments):
    with numba_left_alone():
        result = convlab_(*arguments)
    assert result.exit_code == 2, result.output
    assert_harmless(result.output)
    assert len(result.stderr.splitlines()) == 1


def test_a_device_s_name_is_shown_harmlessly(monkeypatch):
    facts = doctor.facts()
    gpu = {"name": NASTY, "compute_capability": None, "memory_bytes": None, "driver": NASTY,
           "cuda": None}  # fmt: skip
    monkeypatch.setattr(doctor, "facts", lambda: facts | {"gpu": gpu})
    result = convlab_("doctor")
    assert_harmless(result.output)
    assert "\\x1b" in result.output
