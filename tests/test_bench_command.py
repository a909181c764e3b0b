"""The command: what it refuses, what it keeps, how it goes on; on fakes and without a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from bench_fakes import interrupt_at, pretend_gpu, system
from test_cli import refused
from typer.testing import CliRunner

from convlab.commands.cli import app
from convlab.ladder import LADDER
from convlab.measuring import gpu_backend, systems
from convlab.measuring.pool import WorkerDied
from convlab.measuring.systems import DEFAULT_STAGES, QUICK_STAGES, chosen
from convlab.running.engines import unavailable

pytestmark = pytest.mark.same_in_cudasim


@pytest.mark.skipif(unavailable("gpu") is None, reason="there is a GPU here")
def test_a_simulator_is_not_timed(tmp_path):
    file = tmp_path / "bench.json"
    assert "needs a GPU, because a simulator's times" in refused("bench", "--json", file)
    assert not file.exists()


@pytest.fixture
def lab(monkeypatch, tmp_path):
    """The command on a backend of fakes, where all the systems asked for are fakes."""
    pretend_gpu(monkeypatch, "bench_fakes:Fakes")
    names = ["right", "wrong", "unsupported", "tf32"]
    monkeypatch.setattr(
        systems, "chosen", lambda stage, baseline, quick: tuple(map(system, baseline or names))
    )
    return tmp_path / "bench.json"


SHORT = ("bench", "--layer", "conv12", "--batch", "1")


def bench(file, *names_and_options):
    """Run the command for these systems: names of fakes, and options behind them."""
    words = [word if word[0] == "-" else f"--baseline={word}" for word in names_and_options]
    return CliRunner().invoke(app, [*SHORT, "--json", str(file), *words], env={"COLUMNS": "200"})


def read(file):
    return json.loads(file.read_text())


def states(file):
    return {row["system"]: row["state"] for row in read(file)["rows"]}


def test_a_run_is_kept_and_told_and_a_stage_that_is_wrong_exits_1(lab):
    """A baseline's mistake is told and changes no exit status."""
    result = bench(lab, "right", "wrong", "sticky", "unsupported")
    assert result.exit_code == 0
    document = read(lab)
    assert [*states(lab).values()] == ["measured", "wrong", "failed", "unsupported"]
    assert document["finished"]
    assert document["identity"]
    assert document["commands"] == [document["environment"]["command"]]
    for said in (
        "1 of 4 rows have a number", "wrong on conv12: wrong: ", "2 rows are", "baselines",
        "wrong on conv12 wrong", "sticky on conv12 failed",
    ):  # fmt: skip
        assert said in result.stdout
    result = bench(lab, "right", "stage_wrong")
    assert result.exit_code == 1
    assert "among stages: stage_wrong on conv12 wrong." in result.stdout


def test_a_second_run_measures_only_what_is_missing_unless_again(lab):
    """A smaller command leaves the other rows as they are."""
    bench(lab, "--layer=conv11", "right", "sticky")
    document, old = read(lab), "2026-01-01T00:00:00+00:00"
    for row in document["rows"]:
        row["date"] = old  # a row measured anew has another
    lab.write_text(json.dumps(document))

    def kept():
        found = read(lab)["rows"]
        return [f"{one['layer']} {one['system']}" for one in found if one["date"] == old]

    result = bench(lab, "right", "sticky", "tf32")
    assert kept() == ["conv11 right", "conv11 sticky", "conv12 right"]
    assert len(read(lab)["rows"]) == 5
    assert "kept     1 of them" in result.stdout
    assert "others   2 more rows in" in result.stdout
    assert len(read(lab)["commands"]) == 2
    bench(lab, "right", "--again")
    assert kept() == ["conv11 right", "conv11 sticky"]


def test_results_of_another_machine_or_code_are_kept_aside(lab, monkeypatch):
    bench(lab, "right", "tf32")
    before = lab.read_text()
    monkeypatch.setattr("convlab.measuring.results.code_fingerprint", lambda: "other code")
    result = bench(lab, "right")
    (aside,) = [file for file in lab.parent.iterdir() if file != lab]
    assert aside.read_text() == before
    assert f"2 rows were in {lab}, of another machine, other versions or other" in result.stdout
    assert f"they are in {aside} now" in result.stdout
    assert [*states(lab)] == ["right"]
    assert "aside" not in bench(lab, "tf32").stdout


def test_an_interrupted_run_has_kept_its_rows_and_goes_on(lab, monkeypatch):
    interrupting = interrupt_at(monkeypatch, 3)
    result = bench(lab)
    assert result.exit_code == 130
    assert "interrupted, 2 of 4 rows are left: the same command goes on" in result.stderr
    document = read(lab)
    assert [*states(lab)] == ["right", "wrong"]
    assert document["finished"] is None
    assert document["missing"] == [["conv12", 1, "unsupported"], ["conv12", 1, "tf32"]]
    result = bench(lab, "right")
    assert "was interrupted before: 2 more rows that were asked for then are" in result.stdout
    assert read(lab)["finished"] is None
    bench(lab)
    assert interrupting == ["right", "wrong", "unsupported", "unsupported", "tf32"]
    assert read(lab)["finished"]
    assert read(lab)["missing"] == []
    interrupting[:] = ["a", "b"]
    result = bench(lab, "--again")  # measured anew and interrupted, it has lost nothing
    assert "interrupted, 4 of 4 rows are left: the same command begins anew" in result.stderr
    assert len(states(lab)) == 4


def test_what_waits_for_its_second_turn_is_missing_after_an_interruption(lab, monkeypatch):
    """Rows come in another order than they were asked for; the file says so of each."""
    asked, interrupting = ("unsteady", "right", "tf32"), interrupt_at(monkeypatch, 3)
    assert "interrupted, 2 of 3 rows are left" in bench(lab, *asked).stderr
    document = read(lab)
    assert [*states(lab)] == ["right"]
    assert [one["name"] for one in document["systems"]] == ["right"]
    assert document["missing"] == [["conv12", 1, "unsteady"], ["conv12", 1, "tf32"]]
    result = bench(lab, *asked)
    assert interrupting == ["unsteady", "right", "tf32", "unsteady", "tf32", "unsteady"]
    assert result.exit_code == 0, result.stderr
    assert states(lab) == {"right": "measured", "tf32": "measured", "unsteady": "unsteady"}
    assert {one["name"] for one in read(lab)["systems"]} == {*asked}


TERMINATED = """
import sys
from pathlib import Path
from bench_fakes import system
from convlab.running import engines
from convlab.measuring import gpu_backend, pool, systems
engines.unavailable, engines._made = lambda name: None, {"gpu": object()}
pool.BACKEND, pool.FAST_FOLDER = "bench_fakes:Fakes", Path(sys.argv[1])
gpu_backend.current_gpu = lambda: None
gpu_backend.look, gpu_backend.processes = lambda gpu: gpu_backend.Look(), lambda gpu: ()
systems.chosen = lambda stage, baseline, quick: (system("right"), system("hang"))
from convlab.commands.cli import app
app(["bench", "--layer", "conv12", "--batch", "1", "--json", sys.argv[2]])
"""


def with_word(word: str) -> list[int]:
    """The processes that were started with this word in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if word.encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return found


@pytest.mark.slow
def test_a_time_limit_s_kill_leaves_no_process_and_no_tensors(tmp_path):
    """The processes are real, and one of them never ends by itself."""
    folder, file, word = tmp_path / "folder", tmp_path / "bench.json", f"CONVLAB_TEST={tmp_path}"
    folder.mkdir()
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    named = {"PYTHONPATH": path, "TMPDIR": str(folder), "CONVLAB_TEST": str(tmp_path)}
    command = subprocess.Popen(
        [sys.executable, "-c", TERMINATED, str(folder), str(file)],
        env=os.environ | named, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while not (file.exists() and len(with_word(word)) >= 3) and time.monotonic() < until:
            time.sleep(0.2)  # until the first row is in, and the second one's process is there
        assert list(folder.iterdir())
        command.terminate()
        _, errors = command.communicate(timeout=30)
        assert command.returncode == 130
        assert "interrupted, 1 of 2 rows are left: the same command goes on" in errors
        assert list(folder.iterdir()) == []
        # One that had only begun to start finds nobody there, and ends.
        until = time.monotonic() + 20
        while with_word(word) and time.monotonic() < until:
            time.sleep(0.05)
        assert with_word(word) == []
    finally:
        for number in with_word(word):
            os.kill(number, signal.SIGKILL)


@pytest.mark.parametrize("what", ["Worker", "tempfile.mkdtemp"])
@pytest.mark.parametrize("error", [OSError(28, "No space"), WorkerDied("its process ended")])
def test_where_nothing_can_be_measured_there_is_one_line(lab, monkeypatch, what, error):
    monkeypatch.setattr(f"convlab.measuring.pool.{what}", Mock(side_effect=error))
    result = bench(lab)
    assert (result.exit_code, result.stderr) == (2, f"convlab: {error}\n")


def test_standard_output_gets_the_document_alone(lab):
    assert json.loads(bench("-", "right").stdout)["rows"][0]["state"] == "measured"


def test_a_busy_gpu_is_refused_before_anything_is_measured(lab, monkeypatch):
    monkeypatch.setattr("convlab.commands.bench.IDLE_SECONDS", 0)
    monkeypatch.setattr(gpu_backend, "look", lambda gpu: gpu_backend.Look(utilisation=90))
    assert "processes keep the GPU busy 90 % of the time" in refused(*SHORT, "--json", lab)
    assert not lab.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cases", "some"], "--cases is 'some': it must be one of sizes, unseen, grouped"),
        (["--cases", "sizes", "--batch", "1"], "--cases names layers and systems: leave out"),
        (["--layer", "conv13"], "layer is 'conv13': it must be one of conv1"),
        (["--batch", "0"], "batch"),
        (["--seconds", "0"], "seconds"),
    ],
)
def test_bad_arguments_get_a_line(lab, words, said):
    assert said in refused("bench", *words, "--json", lab)


def test_a_file_that_is_no_result_is_not_overwritten(lab):
    lab.write_text("{}")
    for words in ([], ["--again"]):
        assert "is not a file of results" in refused(*SHORT, "--json", lab, *words)
        assert lab.read_text() == "{}"


def test_which_systems_are_chosen():
    def names(*asked, **quick):
        return [one.name for one in chosen(*asked, **quick)]

    usual, every = names(None, None), [one.name for one in (*LADDER, *systems.BASELINES)]
    assert {*every} - {*usual} == {"cpp_seven_loops"} | {*every[: len(LADDER)]} - {*DEFAULT_STAGES}
    slow = {name for name in every if name.startswith("torch_compile")}
    assert {*usual} - {*names(None, None, quick=True)} - {*DEFAULT_STAGES} == slow
    assert names(None, ["none"], quick=True) == [*QUICK_STAGES]
    assert names(["all"], ["all"]) == every
    two = ["m01_direct", "m11_warp_tiling", "torch_fp32"]
    assert names(["m11", "m01"], ["torch_fp32"]) == two
    for asked, said in (
        ((["none"], ["none"]), "nothing to measure"),
        ((["s99"], None), "stage is 's99'"),
        ((None, ["nobody"]), "baseline is 'nobody'"),
    ):
        with pytest.raises(ValueError, match=said):
            chosen(*asked)
