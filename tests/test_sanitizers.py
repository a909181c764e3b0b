"""Results of compute-sanitizer on the stages are kept; the program and the GPU are pretended."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import sanitizers
from pretended_gpu import PretendedGpu

from convlab.ladder import LADDER, stage_named
from convlab.running.engines import EngineUnavailable

pytestmark = pytest.mark.same_in_cudasim

STAGES = LADDER[0], stage_named("t05")
FIRST, LAST = (stage.name for stage in STAGES)
# In compute-sanitizer's place: all is well, unless a file of this stage and tool changes that.
PRETENDED = """#!/bin/sh
[ "$*" = --version ] && echo 'NVIDIA Compute Sanitizer\nVersion 2025.4.1.0 (build 37)' && exit
for stage; do :; done
watched="{python} -W ignore {script} run $stage"
[ "$*" = "--tool $2 --error-exitcode 3 $watched" ] || exit 99
runs='27 of 27 runs right' findings=0 code=0
[ -f "{told}/$stage-$2" ] && . "{told}/$stage-$2"
echo "$runs" >&2
for n in $findings; do
    case $2 in
        racecheck) echo "== RACECHECK SUMMARY: $n hazards displayed ($n errors, 0 warnings)" ;;
        *) echo "== ERROR SUMMARY: $n errors" ;;
    esac
done
exit $code
"""


@pytest.fixture
def tell(monkeypatch, tmp_path):
    """``tell("findings=2", stage, tools)``: what else the pretended program does, in sh."""
    told, program = tmp_path / "told", tmp_path / "bin" / sanitizers.PROGRAM
    told.mkdir()
    program.parent.mkdir()
    program.write_text(PRETENDED.format(python=sys.executable, script=sanitizers.SCRIPT, told=told))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(sanitizers, "choose", lambda name: PretendedGpu(strict=False))
    monkeypatch.setattr(sanitizers, "STAGES", STAGES)
    monkeypatch.setattr(sanitizers, "processes", lambda engine: 4)

    def tell(what, stage, *tools):
        for tool in tools:
            (told / f"{stage}-{tool}").write_text(what + "\n")

    return tell


def run(tmp_path, expected):
    file = tmp_path / "said.json"
    assert sanitizers.main(["--json", str(file)]) == expected
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_every_tool_watches_every_stage(tell, tmp_path, capsys):
    document = run(tmp_path, expected=0)
    assert [(row["stage"], row["tool"]) for row in document["rows"]] == [
        (stage, tool) for stage in (FIRST, LAST) for tool in sanitizers.TOOLS
    ]
    assert document["ok"] is True
    assert document["sanitizer"] == "2025.4.1.0"
    assert {(row["says"], row["right"], row["printed"]) for row in document["rows"]} == {
        ("nothing", 27, "")
    }
    out, err = capsys.readouterr()
    assert f"| {FIRST} (27), {LAST} (27) | nothing | nothing | nothing | nothing |" in out
    assert "8 of 8" in err


@pytest.mark.parametrize(
    ("told", "cell"),
    [
        ("findings=2 code=3", "**found 2**"),
        ("findings=2", "**found 2**"),  # whatever its exit code
        ("findings='1 2' code=3", "**found 3**"),  # a summary for each process
        ("runs='26 of 27 runs right' code=1", "fails, **1 of 27 wrong**"),
        ("runs=Traceback code=1", "fails"),
        ("runs=", "fails"),  # nobody knows of what
        ("findings=", "fails"),  # nobody watched
    ],
)
def test_what_is_not_well_is_said_and_kept(tell, tmp_path, capsys, told, cell):
    wrong = [(LAST, "memcheck"), (LAST, "racecheck")]
    tell(told, LAST, "memcheck", "racecheck")
    document = run(tmp_path, expected=1)
    assert document["ok"] is False
    rows = [row for row in document["rows"] if sanitizers._cell(row) != "nothing"]
    assert [(row["stage"], row["tool"]) for row in rows] == wrong
    assert {sanitizers._cell(row) for row in rows} == {cell}
    assert capsys.readouterr().out.count(f"| {cell} ") == 2
    assert all(row["printed"].endswith("\n") for row in rows)  # the end of it is kept


def test_what_takes_long_is_waited_for_and_of_much_the_end_is_kept(tell, tmp_path):
    tell("sleep 0.5", FIRST, "memcheck")
    tell(f"code=1 runs=first{5000 * '-'}last", FIRST, "synccheck")
    rows = {row["tool"]: row for row in run(tmp_path, expected=1)["rows"] if row["stage"] == FIRST}
    assert rows["memcheck"]["says"] == "nothing"
    assert rows["memcheck"]["seconds"] >= 0.5
    assert "last" in rows["synccheck"]["printed"]
    assert "first" not in rows["synccheck"]["printed"]


def hang(file):
    """A program that the tool starts, which never ends."""
    return f"sh -c 'echo $$ >> {file}; echo printed before it hung; exec sleep 60'"


def gone(process):
    """Return whether it has ended: at once, or as soon as it is noticed."""
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


@pytest.mark.slow
def test_what_hangs_ends_with_all_that_it_started(tell, tmp_path, monkeypatch, capsys):
    file = tmp_path / "processes"
    tell(hang(file), FIRST, "memcheck")
    monkeypatch.setattr(sanitizers, "TIMEOUT_SECONDS", 2)
    (wrong,) = (row for row in run(tmp_path, expected=1)["rows"] if row["says"] != "nothing")
    assert (wrong["says"], wrong["printed"]) == ("hangs", "printed before it hung\n")
    assert gone(int(file.read_text()))
    assert "| hangs |" in capsys.readouterr().out


def test_ctrl_c_ends_what_runs_and_begins_no_more(tell, tmp_path, monkeypatch, capsys):
    file = tmp_path / "processes"
    for stage in (FIRST, LAST):
        tell(hang(file), stage, *sanitizers.TOOLS)
    monkeypatch.setattr(sanitizers, "processes", lambda engine: 2)

    def interrupt():
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


def test_what_a_gpu_cannot_run_is_left_out_and_said(tell, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(PretendedGpu, "capability", lambda self: (7, 5))
    assert {row["stage"] for row in run(tmp_path, expected=0)["rows"]} == {FIRST}
    said = f"Left out: stage {LAST} needs a GPU of compute capability 9.0, no other"
    assert said in capsys.readouterr().out


def test_without_the_program_or_a_gpu_nothing_runs(tell, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sanitizers.main(["--json", str(tmp_path / "said.json")]) == 2
    assert capsys.readouterr().err.startswith("convlab: there is no compute-sanitizer on the path")
    assert not (tmp_path / "said.json").exists()

    absent = Mock(side_effect=EngineUnavailable("there is no GPU here"))
    monkeypatch.setattr(sanitizers, "choose", absent)
    assert sanitizers.main([]) == 2
    assert capsys.readouterr().err.startswith("convlab: there is no GPU here\n")


@pytest.mark.parametrize(("free", "most"), [(0, 1), (5 * 2**30, 2), (2**50, 16), (None, 1)])
def test_processes_are_as_many_as_have_room(free, most, monkeypatch):
    monkeypatch.setattr(sanitizers, "cores", lambda: 64)
    assert sanitizers.processes(SimpleNamespace(free_bytes=lambda: free)) == most
