"""Hints say what installs into the environment that convlab runs in."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from convlab.support import installing

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
URL = "https://example.org/convlab.whl"
NAMED = f"'cuda-convlab[plots] @ {URL}'"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that makes an environment with these files, from a wheel or, by ``editable``,
    from a checkout."""

    def make(*receipts: str, editable: bool = False, pip: bool = True, uv: bool = True) -> None:
        for name in receipts:
            (tmp_path / name).touch()
        own = SimpleNamespace(
            metadata={"Name": "cuda-convlab"}, version="1",
            read_text=lambda name: f'{{"url": "{URL}"}}',
        )  # fmt: skip
        there = {"python": None, "uv": "/bin/uv" if uv else None}
        monkeypatch.setattr(installing, "metadata_of_convlab", lambda: own)
        monkeypatch.setattr(installing.shutil, "which", there.get)
        monkeypatch.setattr(installing, "find_spec", lambda name: own if pip else None)
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
        monkeypatch.setattr(installing, "in_checkout", lambda: editable)

    return make


@pytest.mark.parametrize(
    ("receipts", "options", "extra", "more"),
    [
        (["uv-receipt.toml"], {}, f"uv tool install {NAMED}",
         f"uv tool install --with torch 'cuda-convlab @ {URL}'"),
        (["uv-receipt.toml"], {"editable": True},
         f"uv tool install --editable '{installing.CHECKOUT}[plots]'",
         f"uv tool install --with torch 'cuda-convlab @ {URL}'"),
        (["pipx_metadata.json"], {"pip": False}, f"pipx install --force {NAMED}",
         "pipx inject cuda-convlab torch"),
        ([], {"pip": False}, f"uv pip install --python PYTHON {NAMED}",
         "uv pip install --python PYTHON torch"),
        ([], {"pip": False, "uv": False}, f"PYTHON -m pip install {NAMED}",
         "PYTHON -m pip install torch"),
        ([], {}, f"PYTHON -m pip install {NAMED}", "PYTHON -m pip install torch"),
        ([], {"editable": True}, "make x, or PYTHON -m pip install -e '.[plots]'",
         "PYTHON -m pip install torch"),
    ],
)  # fmt: skip
def test_the_command_fits_how_convlab_was_installed(installed, receipts, options, extra, more):
    installed(*receipts, **options)
    python = sys.executable
    assert installing.how_to_install("plots", "make x") == extra.replace("PYTHON", python)
    assert installing.how_to_add("torch") == more.replace("PYTHON", python)


def test_python_is_named_as_a_shell_finds_it(installed, monkeypatch, tmp_path):
    installed()
    monkeypatch.chdir(tmp_path)
    assert installing.how_to_add("torch") == "bin/python -m pip install torch"
    monkeypatch.setattr(installing.shutil, "which", lambda name: str(tmp_path / "bin/python"))
    assert installing.how_to_add("torch") == "python -m pip install torch"


def test_only_a_checkout_has_make():
    """Other modules ask for a hint; a message of their own would be wrong in other places."""
    told = re.compile(r"[\"'`( ](pip install|make (test|gate|ladder|report|lessons|bench)\b)")
    hints = re.compile(r"how_to_install\(|plots_needed\(|target: str = |in_checkout\(\)|^\s*#")
    found = []
    for path in sorted((ROOT / "src/convlab").rglob("*.py")):
        code = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.S)
        lines = [line for line in code.splitlines() if told.search(line)]
        found += [(path.name, line) for line in lines if not hints.search(line)]
    assert [name for name, _ in found if name != "installing.py"] == []
