"""compute-sanitizer's verdicts on the stages, with a pretended compute-sanitizer and GPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from convlab.bench import measured, sanitizers
from convlab.engines import EngineUnavailable
from convlab.engines.simulator import Simulator
from convlab.stages import LADDER

pytestmark = pytest.mark.same_in_cudasim

# In compute-sanitizer's place: says what a file tells of this tool and stage, else all is well.
PRETENDED = """#!{python}
import json, os, sys
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.4.1.0 (build 37184459)")
    sys.exit(0)
tool, stage = arguments[arguments.index("--tool") + 1], arguments[-1]
assert arguments[2:4] == ["--error-exitcode", "3"], arguments
assert os.path.samefile(arguments[4], {python!r})
assert arguments[5:-1] == ["-W", "ignore", "-m", "convlab.bench.sanitize", "--stage"], arguments
of_racecheck = "========= RACECHECK SUMMARY: {{0}} hazards displayed ({{0}} errors, 0 warnings)"
others = "========= ERROR SUMMARY: {{0}} errors"
told = json.load(open({told!r})).get(stage + " " + tool, {{}})
print(told.get("runs", "27 of 27 runs right"))
print((of_racecheck if tool == "racecheck" else others).format(told.get("findings", 0)))
sys.exit(told.get("code", 0))
"""


class PretendedGpu(Simulator):
    name, is_gpu, device = "gpu", True, "pretended GPU"


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``tell({"s01_direct memcheck": {...}})``: what the pretended program does."""
    told, program = tmp_path / "told.json", tmp_path / "bin" / sanitizers.PROGRAM
    program.parent.mkdir()
    program.write_text(PRETENDED.format(python=sys.executable, told=str(told)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(measured, "choose", lambda name: PretendedGpu(strict=False))
    monkeypatch.setattr(sanitizers, "LADDER", (LADDER[0], LADDER[-1]))
    monkeypatch.setattr(sanitizers, "processes", lambda engine: 4)
    told.write_text("{}")
    return lambda what: told.write_text(json.dumps(what))


def run(tmp_path: Path, expected: int) -> dict[str, Any]:
    file = tmp_path / "said.json"
    assert sanitizers.main(["--json", str(file)]) == expected
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_every_tool_watches_every_stage(tell: Any, tmp_path: Path, capsys: Any) -> None:
    document = run(tmp_path, expected=0)
    names = [LADDER[0].name, LADDER[-1].name]
    assert [(row["stage"], row["tool"]) for row in document["rows"]] == [
        (stage, tool) for stage in names for tool in sanitizers.TOOLS
    ]
    assert document["ok"] is True
    assert document["sanitizer"] == "2025.4.1.0"
    assert {(row["says"], row["right"], row["printed"]) for row in document["rows"]} == {
        ("nothing", 27, "")
    }
    out, err = capsys.readouterr()
    assert f"| {names[0]} | 27 | nothing | nothing | nothing | nothing |" in out
    assert "8 of 8" in err


@pytest.mark.parametrize(
    ("told", "cell"),
    [
        ({"findings": 2, "code": 3}, "**found 2**"),
        ({"findings": 2}, "**found 2**"),  # whatever its exit code
        ({"code": 1, "runs": "26 of 27 runs right"}, "fails, **1 of 27 wrong**"),
        ({"code": 1, "runs": "Traceback"}, "fails"),
        ({"runs": ""}, "nothing"),  # but nobody knows of what
    ],
)
def test_what_is_not_well_is_said_and_kept(
    tell: Any, tmp_path: Path, capsys: Any, told: dict[str, Any], cell: str
) -> None:
    for tool in ("memcheck", "racecheck"):
        tell({f"{LADDER[-1].name} {tool}": told})
        document = run(tmp_path, expected=1)
        assert document["ok"] is False
        wrong = [row for row in document["rows"] if sanitizers._cell(row) != "nothing"]
        wrong += [row for row in document["rows"] if row["runs"] is None and row not in wrong]
        assert [(row["stage"], row["tool"]) for row in wrong] == [(LADDER[-1].name, tool)]
        assert sanitizers._cell(wrong[0]) == cell
        assert cell in capsys.readouterr().out
        if cell != "nothing":
            assert "SUMMARY" in wrong[0]["printed"]


def test_what_hangs_ends(tell: Any) -> None:
    said = sanitizers.watched("memcheck", ("-c", "pass"), seconds=0)
    assert said == ("hangs", "")


def test_without_the_program_nothing_runs(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sanitizers.main(["--json", str(tmp_path / "said.json")]) == 2
    assert capsys.readouterr().err == (
        "convlab: there is no compute-sanitizer on the path: it comes with NVIDIA's CUDA toolkit\n"
    )
    assert not (tmp_path / "said.json").exists()


def test_without_a_gpu_it_says_what_for(tell: Any, monkeypatch: Any, capsys: Any) -> None:
    def absent(name: str) -> Any:
        raise EngineUnavailable("there is no GPU here")

    monkeypatch.setattr(measured, "choose", absent)
    assert sanitizers.main([]) == 2
    assert capsys.readouterr().err == (
        "convlab: there is no GPU here: its tools watch a GPU's kernels\n"
    )
