"""docs/ci.md and the action that it uses: tried as far as a machine without GitHub allows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

on_posix = pytest.mark.skipif(os.name != "posix", reason="bash")
pytestmark = [pytest.mark.same_in_cudasim, pytest.mark.slow, on_posix]
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
FOLDER = ".github/actions/strict-simulator"
ACTION: dict[str, Any] = yaml.safe_load((ROOT / FOLDER / "action.yml").read_text(encoding="utf-8"))
INSTALL, TESTS, UPLOAD = ACTION["runs"]["steps"]


def block(language: str, which: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[which]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the page's test."""
    (tmp_path / "test_total.py").write_text(block("python"))
    return tmp_path


def run_action(folder: Path, arguments: str = "", baseline: str = "") -> tuple[int, str]:
    """Run the action's tests as GitHub does: exit status and output."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "ARGUMENTS": arguments,
        "BASELINE": baseline,
        # To import the plugins of other packages takes as long as the tests.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "convlab.simulation.host.pytest_plugin",
    }
    # The plugin is installed there; here it may be that of another checkout.
    script = TESTS["run"].replace("python -m pytest", "python -m pytest -p no:cacheprovider")
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_page_s_test_fails_and_its_remedy_makes_it_pass(folder: Path) -> None:
    status, said = run_action(folder)
    assert status == 1
    promised = " ".join(block("text").split())
    for piece in promised.split(" ... "):
        assert piece in " ".join(said.split()), said
    (run,) = json.loads((folder / "convlab.sarif").read_text())["runs"]
    (result,) = run["results"]
    where = result["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "test_total.py"
    line = block("python").splitlines()[where["region"]["startLine"] - 1]

    remedy = re.search(r"`(cuda\.atomic\.add\(.*?)` in line (\d+)", PAGE)
    assert remedy is not None
    assert int(remedy[2]) == where["region"]["startLine"]
    (folder / "test_total.py").write_text(block("python").replace(line.strip(), remedy[1]))
    assert run_action(folder)[0] == 0


def test_a_baseline_and_arguments_reach_pytest(folder: Path) -> None:
    known = folder / "known findings.json"
    assert run_action(folder, "--cuda-update-baseline -q", known.name)[0] == 0
    status, said = run_action(folder, "-v -rA test_total.py", known.name)
    assert (status, json.loads((folder / "convlab.sarif").read_text())["runs"][0]["results"]) == (
        0,
        [],
    )
    assert "PASSED test_total.py::test_total" in said


def test_the_action_is_a_composite_one_whose_steps_github_can_run() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert INSTALL["shell"] == TESTS["shell"] == "bash"  # which composite actions must say
    assert not any("${{" in step["run"] for step in (INSTALL, TESTS))  # no input is run as code
    (path,) = re.findall(r'"\$GITHUB_ACTION_PATH/(.*?)"', INSTALL["run"])
    assert (ROOT / FOLDER / path).resolve() == ROOT
    assert "--cuda-sarif=" + UPLOAD["with"]["sarif_file"] in TESTS["run"]
    assert UPLOAD["with"]["sarif_file"] in UPLOAD["if"]
    given = {
        name for value in TESTS["env"].values() for name in re.findall(r"inputs\.([\w-]+)", value)
    }
    given |= set(re.findall(r"inputs\.([\w-]+)", UPLOAD["if"]))
    assert given == set(ACTION["inputs"])


def test_the_page_s_workflow_uses_the_action_with_inputs_that_it_has() -> None:
    workflow = yaml.safe_load(block("yaml"))
    (job,) = workflow["jobs"].values()
    (step,) = (step for step in job["steps"] if FOLDER in step.get("uses", ""))
    assert re.fullmatch(rf"OWNER/convlab/{re.escape(FOLDER)}@main", step["uses"])
    assert set(step["with"]) <= set(ACTION["inputs"])
    assert workflow["permissions"]["security-events"] == "write"
    for name in re.findall(r"write `(\w[\w-]*): [^`]*` below", PAGE):
        assert name in ACTION["inputs"]


def test_the_page_takes_at_most_five_minutes_to_read() -> None:
    assert len(PAGE.split()) < 5 * 150  # words, of which many are code
