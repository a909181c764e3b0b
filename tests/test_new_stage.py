"""A new stage is one new file: in a copy of the repository everything knows it at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from numba.cuda.core import config

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
NAME = "m16_copy"
COMMAND = ("-c", "from convlab.commands.cli import main; main()")
# The tests that go over the stages, for the new one.
PYTEST = (
    *("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
    *("-k", f"{NAME} and not any_problem", "tests/test_stages.py"),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with a copy of m08 as a further stage."""
    root = tmp_path_factory.mktemp("copy") / "convlab"
    root.mkdir()
    for folder in ("src", "tests", "docs"):
        shutil.copytree(ROOT / folder, root / folder)
    shutil.copy(ROOT / "pyproject.toml", root)
    stages = root / "src/convlab/ladder/main"
    shutil.copy(stages / "m08_double_buffer.py", stages / f"{NAME}.py")
    return root


def run(root: Path, *arguments: str) -> str:
    """Return what Python writes to standard output in the copy; its failure is the test's."""
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_the_command_the_trace_and_the_tests_know_it(copy: Path) -> None:
    ladder = (*COMMAND, "ladder", "--engine", "simulator", "--stage", "m16", "--json", "-")
    trace = (*COMMAND, "trace", "m16", "--json", "-")
    with ThreadPoolExecutor() as pool:
        checked, traced, tested = pool.map(lambda words: run(copy, *words), (ladder, trace, PYTEST))
    (stage,) = json.loads(checked)["stages"]
    assert (stage["name"], stage["ok"]) == (NAME, True)
    assert NAME in traced
    assert " passed" in tested


@pytest.mark.gate
@pytest.mark.skipif(bool(config.ENABLE_CUDASIM), reason="the gate compiles for real")
def test_the_gate_compiles_it(copy: Path) -> None:
    lint = run(copy, *COMMAND, "lint", "m16", "--layer", "conv9", "--arch", "sm_90", "--json", "-")
    rows = json.loads(lint)
    assert {row["stage"] for row in rows} == {NAME}
    assert all(row["ok"] for row in rows)
