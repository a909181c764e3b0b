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

from convlab.lessons.source import LEARNER, OUT_OF_THE_FOLDER, SOLUTION, place, sources

on_posix = pytest.mark.skipif(os.name != "posix", reason="bin/")
pytestmark = [pytest.mark.same_in_cudasim, pytest.mark.slow, on_posix]

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


def test_the_wheel_is_small_without_scripts_and_its_readme_has_whole_links(wheel):
    assert wheel.name.startswith("cuda_convlab-")
    assert wheel.stat().st_size < 1_500_000
    packed = ZipFile(wheel)
    source = ROOT / "src"
    files = filter(Path.is_file, (source / "convlab").rglob("*"))
    needed = {path.relative_to(source).as_posix() for path in files if path.suffix != ".pyc"}
    assert {"convlab/py.typed", "convlab/tracing/viewer/page.html"} <= needed
    assert needed <= {*packed.namelist()}
    scripts = {path.name for path in (ROOT / "tests/tools").glob("*.py")}
    assert len(scripts) >= 4
    assert not scripts & {Path(name).name for name in packed.namelist()}
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
print(convlab.conv2d(ones, np.ones((1, 1, 3, 3), np.float32), stage="m03").sum())
"""


def test_it_convolves(run):
    assert run("python", "-c", CONVOLVE).stdout == "36.0\n"
    told = run("convlab", "ladder", "--stage", "m03")
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
            assert [cell.source for cell in copy.cells] == [
                OUT_OF_THE_FOLDER.sub(r"\1", cell.source) for cell in stored.cells
            ]
            assert not any(cell.get("outputs") for cell in copy.cells)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(("lessons",), "lessons"), (("ladder", "--image"), "plots")],
)
def test_what_is_missing_comes_from_where_convlab_came_from(run, wheel, arguments, extra):
    """No make, no editable install: the very command that is told installs the extra."""
    told = run("convlab", *arguments)
    assert told.returncode == 2
    # The environment was made by uv, without pip.
    found = re.search(
        r"(\S+/python -m pip install|uv pip install --python \S+) '[^']*'", told.stderr
    )
    command = shlex.split(found[0])
    required = Requirement(command[-1])
    assert (required.name, required.extras) == ("cuda-convlab", {extra})
    assert required.url == wheel.as_uri()
    assert not re.search(r"\bmake\b| -e ", told.stderr)


# What a type checker says of programs that use the installed package.

FENCE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
KINDS = """\
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import convlab

def of_any(images: NDArray[np.float32], filters: NDArray[np.float32]) -> NDArray[np.float32]:
    plan = convlab.plan(convlab.ConvProblem(1, 3, 8, 8, 4, 3), "m15")
    assert_type(plan(images, filters, images, filters), NDArray[np.float32])
    assert_type(plan.for_weight(filters)(images, images), NDArray[np.float32])
    assert_type(convlab.conv1d(images, filters, bias=images, stride=2), NDArray[np.float32])
    assert_type(convlab.conv3d(images, filters, padding="same", dilation=1), NDArray[np.float32])
    assert_type(convlab.unfold_einsum(images, filters, padding=((0, 1), 2)), NDArray[np.float32])
    return convlab.conv2d(images, filters, images, out=images, stage="m03")
"""
MISTAKES = (
    ("convlab.conv2d([[1.0]], [[2.0]])", 'cannot be "list[list[float]]"'),
    ("convlab.conv2d(images, images, pading=1)", 'Unexpected keyword argument "pading"'),
    ('convlab.conv2d(images, images, padding="sane")', 'Argument "padding"'),
    ("convlab.conv2d(images, images).copy_to_host()", 'has no attribute "copy_to_host"'),
    ("convlab.konv2d(images, images)", 'Module has no attribute "konv2d"'),
)


@pytest.fixture
def check_types(run: Run, tmp_path: Path) -> Callable[[str], str]:
    """Checks a program as its author would, with the installed package's types; the errors."""
    installed = run("python", "-c", "import sys; print(sys.executable)").stdout.strip()

    def check(program: str) -> str:
        (tmp_path / "program.py").write_text(program, encoding="utf-8")
        words = ["-m", "mypy", "--strict", "--config-file=", "--python-executable", installed]
        command = [sys.executable, *words, "--cache-dir", ROOT / ".mypy_cache/installed"]
        told = subprocess.run(
            [*map(str, command), "program.py"], cwd=tmp_path, env=ALONE, capture_output=True,
            text=True,
        )  # fmt: skip
        assert told.returncode in (0, 1), told.stdout + told.stderr
        return told.stdout

    return check


@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md"])
def test_the_examples_pass_a_strict_type_checker(check_types, page):
    (example,) = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    (name,) = re.findall(r"^(\w+) = convlab\.conv2d", example, re.M)
    kind = f"import numpy.typing, typing\ntyping.assert_type({name}, np.typing.NDArray[np.float32])"
    assert check_types(f"{example}\n{kind}\n").startswith("Success: no issues found")


def test_what_goes_in_comes_out(check_types):
    assert check_types(KINDS).startswith("Success: no issues found")


def test_mistakes_have_types(check_types):
    head = "import numpy as np, convlab\nimages = np.ones((1, 1, 3, 3), np.float32)\n"
    told = check_types(head + "\n".join(line for line, _ in MISTAKES)).splitlines()
    for number, (line, said) in enumerate(MISTAKES, 3):
        assert any(f"program.py:{number}: error:" in one and said in one for one in told), line
