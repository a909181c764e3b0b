"""What compute-sanitizer says of the stages is kept; the program and the GPU are pretended."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
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
import json, os, subprocess, sys, time
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.4.1.0 (build 37184459)")
    sys.exit(0)
tool, stage = arguments[arguments.index("--tool") + 1], arguments[-1]
told = json.load(open({told!r})).get(stage + " " + tool, {{}})
if "child" in told:  # what a program starts, and what that prints
    subprocess.run([{python!r}, "-c", told["child"]])
assert arguments[2:4] == ["--error-exitcode", "3"], arguments
assert os.path.samefile(arguments[4], {python!r})
watched = ["-W", "ignore", "-m", "convlab.bench.sanitizers", "runs", "--stage"]
assert arguments[5:-1] == watched, arguments
of_racecheck = "========= RACECHECK SUMMARY: {{0}} hazards displayed ({{0}} errors, 0 warnings)"
others = "========= ERROR SUMMARY: {{0}} errors"
time.sleep(told.get("seconds", 0))
print(told.get("runs", "27 of 27 runs right"), file=sys.stderr)
for findings in told.get("findings", [0]):
    print((of_racecheck if tool == "racecheck" else others).format(findings))
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
    monkeypatch.setattr(sanitizers, "STAGES", (LADDER[0], LADDER[-1]))
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
    assert f"| {names[0]} (27), {names[1]} (27) | nothing | nothing | nothing | nothing |" in out
    assert "8 of 8" in err


@pytest.mark.parametrize(
    ("told", "cell"),
    [
        ({"findings": [2], "code": 3}, "**found 2**"),
        ({"findings": [2]}, "**found 2**"),  # whatever its exit code
        ({"findings": [1, 2], "code": 3}, "**found 3**"),  # a summary for each process
        ({"code": 1, "runs": "26 of 27 runs right"}, "fails, **1 of 27 wrong**"),
        ({"code": 1, "runs": "Traceback"}, "fails"),
        ({"runs": ""}, "fails"),  # nobody knows of what
        ({"findings": []}, "fails"),  # nobody watched
    ],
)
def test_what_is_not_well_is_said_and_kept(
    tell: Any, tmp_path: Path, capsys: Any, told: dict[str, Any], cell: str
) -> None:
    for tool in ("memcheck", "racecheck"):
        tell({f"{LADDER[-1].name} {tool}": told})
        document = run(tmp_path, expected=1)
        assert document["ok"] is False
        (wrong,) = (row for row in document["rows"] if sanitizers._cell(row) != "nothing")
        assert (wrong["stage"], wrong["tool"]) == (LADDER[-1].name, tool)
        assert sanitizers._cell(wrong) == cell
        assert cell in capsys.readouterr().out
        assert wrong["printed"].endswith("\n")  # the end of it is kept


def test_what_takes_long_is_waited_for_and_of_much_the_end_is_kept(
    tell: Any, tmp_path: Path
) -> None:
    much = "first" + 5000 * "-" + "last"
    name = LADDER[0].name
    tell({f"{name} memcheck": {"seconds": 1.1}, f"{name} synccheck": {"code": 1, "runs": much}})
    rows = {row["tool"]: row for row in run(tmp_path, expected=1)["rows"] if row["stage"] == name}
    assert rows["memcheck"]["says"] == "nothing"
    assert rows["memcheck"]["seconds"] >= 1.1
    assert "last" in rows["synccheck"]["printed"]
    assert "first" not in rows["synccheck"]["printed"]


SLOW = """
import os, time
open({file!r}, "a").write(str(os.getpid()) + "\\n")
print("printed before it hung", flush=True)
time.sleep(60)
"""


def gone(process: int) -> bool:
    """Whether it has ended: at once, or as soon as it is noticed."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            os.kill(process, 0)
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":  # ended, and nobody has asked yet how
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="tells processes by /proc")
def test_what_hangs_ends_with_all_that_it_started(
    tell: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    file = tmp_path / "processes"
    tell({f"{LADDER[0].name} memcheck": {"child": SLOW.format(file=str(file))}})
    monkeypatch.setattr(sanitizers, "PATIENCE_SECONDS", 5)
    (wrong,) = (row for row in run(tmp_path, expected=1)["rows"] if row["says"] != "nothing")
    assert (wrong["says"], wrong["printed"]) == ("hangs", "printed before it hung\n")
    assert gone(int(file.read_text()))
    assert "| hangs |" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="tells processes by /proc")
def test_ctrl_c_ends_what_runs_and_begins_no_more(
    tell: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    file = tmp_path / "processes"
    slow = {"child": SLOW.format(file=str(file))}
    names = [LADDER[0].name, LADDER[-1].name]
    tell({f"{stage} {tool}": slow for stage in names for tool in sanitizers.TOOLS})
    monkeypatch.setattr(sanitizers, "processes", lambda engine: 2)

    def interrupt() -> None:
        until = time.monotonic() + 30
        while not (file.exists() and file.read_text().count("\n") == 2):
            assert time.monotonic() < until
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    # Or nothing would come of it where a shell has started the tests in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        waiting.start()
        assert sanitizers.main(["--json", str(tmp_path / "said.json")]) == 130
    finally:
        waiting.join()
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.endswith("interrupted, nothing was written\n")
    assert not (tmp_path / "said.json").exists()
    begun = file.read_text().split()
    assert len(begun) == 2
    assert all(gone(int(process)) for process in begun)


class OldGpu(PretendedGpu):
    device = "Tesla T4"

    def capability(self) -> Any:
        return (7, 5)


def test_what_a_gpu_cannot_run_is_left_out_and_said(
    tell: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(measured, "choose", lambda name: OldGpu(strict=False))
    document = run(tmp_path, expected=0)
    assert {row["stage"] for row in document["rows"]} == {LADDER[0].name}
    said = f"Left out: stage {LADDER[-1].name} needs a GPU of compute capability 9.0, no other"
    assert said in capsys.readouterr().out


def test_without_the_program_nothing_runs(
    tell: Any, monkeypatch: Any, tmp_path: Path, capsys: Any
) -> None:
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
