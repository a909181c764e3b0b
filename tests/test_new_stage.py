"""A new stage is one new file: in a copy of the repository everything knows it at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
NAME = "s15_copy"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with a copy of s09 as a further stage."""
    root = tmp_path_factory.mktemp("copy") / "convlab"
    root.mkdir()
    for folder in ("src", "tests", "docs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    stages = root / "src/convlab/stages"
    shutil.copy(stages / "s09_double_buffer.py", stages / f"{NAME}.py")
    return root


def run(root: Path, *arguments: str) -> str:
    """What Python writes to standard output in the copy; its failure is the test's."""
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def convlab(root: Path, *arguments: str) -> str:
    return run(root, "-c", "from convlab.cli import main; main()", *arguments)


def test_the_command_knows_it(copy: Path) -> None:
    assert NAME in [stage["name"] for stage in json.loads(convlab(copy, "stages", "--json", "-"))]
    command = ("ladder", "--engine", "simulator", "--stage", "s15", "--json", "-")
    (stage,) = json.loads(convlab(copy, *command))["stages"]
    assert (stage["name"], stage["ok"]) == (NAME, True)
