"""The sdist's wheel installs and works in an empty environment, with no clone and no make."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path
from sysconfig import get_path
from zipfile import ZipFile

import nbformat
import pytest
from packaging.requirements import Requirement

from convlab.lessons.source import LEARNER, SOLUTION, place, sources

pytestmark = [pytest.mark.same_in_cudasim, pytest.mark.skipif(os.name != "posix", reason="bin/")]

ROOT = Path(__file__).parents[1]
ALONE = {name: value for name, value in os.environ.items() if name[:6] not in ("PYTHON", "NUMBA_")}
Run = Callable[..., subprocess.CompletedProcess[str]]


def uv(*arguments: object) -> None:
    """Builds and installs as pip does, in a tenth of the time."""
    words = [Path(sys.executable).with_name("uv"), "--quiet", *map(str, arguments)]
    subprocess.run(words, check=True, env=ALONE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--python", sys.executable, "--out-dir", folder, ROOT)
    (found,) = folder.glob("*.whl")  # of the sdist, where nothing else is asked for
    return found


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs one of the environment's programs in an empty folder."""
    folder = tmp_path_factory.mktemp("alone")
    uv("venv", "--python", sys.executable, folder / "venv")
    uv("pip", "install", "--python", folder / "venv/bin/python", wheel)
    # Numba's bytecode takes 10 s to compile: Python takes this one's where the source is as old.
    here, there = Path(get_path("purelib")), next(folder.glob("venv/lib/*/site-packages"))
    for package in filter(Path.is_dir, there.rglob("*")):
        if (compiled := here / package.relative_to(there) / "__pycache__").is_dir():
            shutil.copytree(compiled, package / "__pycache__", dirs_exist_ok=True)

    def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [folder / "venv/bin" / program, *map(str, arguments)]
        return subprocess.run(command, cwd=folder, env=ALONE, capture_output=True, text=True)

    return run


def test_the_wheel_is_small_and_its_readme_has_whole_links(wheel):
    assert wheel.name.startswith("cuda_convlab-")
    assert wheel.stat().st_size < 1_500_000
    packed = ZipFile(wheel)
    source = ROOT / "src"
    files = filter(Path.is_file, (source / "convlab").rglob("*"))
    needed = {path.relative_to(source).as_posix() for path in files if path.suffix != ".pyc"}
    assert {"convlab/py.typed", "convlab/tracing/viewer/page.html"} <= needed
    assert needed <= {*packed.namelist()}
    (metadata,) = (name for name in packed.namelist() if name.endswith("METADATA"))
    page = Parser().parsestr(packed.read(metadata).decode())
    assert page["Name"] == "cuda-convlab"
    links = re.findall(r"\]\(([^)\s]+)\)", page.get_payload())
    assert len(links) > 20
    assert not [link for link in links if not link.startswith(("https://", "#"))]


CONVOLVE = """
import numpy as np
import convlab
ones = np.ones((1, 1, 4, 4), np.float32)
print(convlab.conv2d(ones, np.ones((1, 1, 3, 3), np.float32), stage="s05").sum())
"""


def test_it_convolves(run):
    assert run("python", "-c", CONVOLVE).stdout == "36.0\n"
    told = run("convlab", "ladder", "--stage", "s05")
    assert told.returncode == 0, told.stderr


def test_the_import_takes_less_than_half_a_second(run):
    code = "from time import perf_counter as now; t = now(); import convlab; print(now() - t)"
    assert min(float(run("python", "-c", code).stdout) for _ in range(3)) < 0.25


def test_lessons_are_copied_without_outputs(run):
    told = run("convlab", "lessons", "mine", "--no-open")
    assert told.returncode == 0, told.stderr
    folder = Path(run("python", "-c", "import os; print(os.getcwd())").stdout.strip(), "mine")
    for path in sources():
        for kind, there in ((LEARNER, folder), (SOLUTION, folder / "solutions")):
            copy = nbformat.read(there / f"{path.stem}.ipynb", as_version=4)
            stored = nbformat.read(place(path.stem, kind), as_version=4)
            assert len(copy.cells) == len(stored.cells)
            assert not any(cell.get("outputs") for cell in copy.cells)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(("lessons",), "lessons"), (("ladder", "--image"), "plots")],
)
def test_what_is_missing_comes_from_where_convlab_came_from(run, wheel, arguments, extra):
    """No make, no editable install: the very command that is told installs the extra."""
    told = run("convlab", *arguments)
    assert told.returncode == 2
    command = shlex.split(re.search(r"python -m pip install '[^']*'", told.stderr)[0])
    required = Requirement(command[-1])
    assert (required.name, required.extras) == ("cuda-convlab", {extra})
    assert required.url == wheel.as_uri()
    assert not re.search(r"\bmake\b| -e ", told.stderr)
