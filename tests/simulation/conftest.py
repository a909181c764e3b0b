"""Programs that run on the simulator as they are."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from warmed import Warmed

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
PLUGINS = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]["pytest11"]
# Parsing a first command and typing a first kernel import the most.
BEFORE = """
import contextlib, io, pytest
import convlab.simulation.host.programs
from convlab.commands import cli
from convlab.simulation.language.numbas_types import typed_function
with contextlib.redirect_stdout(io.StringIO()):
    cli.app(["--version"], standalone_mode=False)
typed_function(lambda: None, ())
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def warmed() -> Iterator[Warmed]:
    """Processes for programs, with Numba as its CUDA simulator. ``test_numba_imports.py`` runs
    programs in cold ones."""
    made = Warmed(BEFORE, NUMBA_ENABLE_CUDASIM="1", PYTHONPATH=str(PROJECT.parent / "src"))
    yield made
    made.close()


@pytest.fixture
def command(warmed: Warmed) -> Run:
    """Run ``convlab`` in the current folder."""
    return partial(warmed.run, "-m", "convlab", COLUMNS="200")


@pytest.fixture
def suite(warmed: Warmed) -> Run:
    """Run pytest in the current folder with convlab's plugin and no other."""
    (plugin,) = PLUGINS.values()
    words = "-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider"
    return partial(warmed.run, *words, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
