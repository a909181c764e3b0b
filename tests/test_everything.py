"""`make bench`: the commands in turn, what becomes of failures and of Ctrl-C; and what the Makefile
makes of it. The commands here are a shell's, which starts sooner than Python."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
import time
from pathlib import Path
from threading import Thread

import pytest

from convlab.bench import everything, experiments

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run_all(tmp_path, monkeypatch, capfd):
    """Runs commands in an empty folder, on a GPU; returns the exit code, and what was said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(everything, "unavailable", lambda name: None)
    monkeypatch.setitem(everything.PROGRAMS, "sh", ["sh"])
    before = {number: signal.getsignal(number) for number in everything.ENDINGS[:2]}

    def run(*scripts):
        typed = [f"sh -c {shlex.quote(script)}" for script in scripts]
        monkeypatch.setattr(everything, "COMMANDS", typed)
        return everything.main([]), capfd.readouterr().out

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def leaving(code):
    """A command that writes a file and ends with this code."""
    return f"printf x >> {code}.json; echo it is {code}.json; exit {code}"


def test_a_command_that_fails_is_said_and_the_others_go_on(run_all, tmp_path):
    code, said = run_all(*map(leaving, (0, 2, 7, 1)), "kill -9 $$")
    assert code == 2  # the first failure's
    assert all((tmp_path / f"{number}.json").read_text() == "x" for number in (0, 2, 7, 1))
    ended = [
        "done", "refused", "failed (exit code 7)", "done, and something was wrong",
        "failed (exit code 137)",
    ]  # fmt: skip
    *each, summary = said.split("\n\n")
    assert re.findall(r"^== \d of 5: (.*)$", said, re.MULTILINE)[1::2] == ended
    assert [line[:30].strip() for line in summary.splitlines()] == ended
    assert each[1].startswith("== 2 of 5: sh -c 'printf x >> 2.json")
    assert each[1].endswith("it is 2.json\n== 2 of 5: refused")


def test_a_command_that_was_interrupted_ends_all(run_all, tmp_path):
    assert run_all(leaving(0))[0] == 0
    code, said = run_all(*map(leaving, (2, 130, 1)))
    assert code == 130
    assert not (tmp_path / "1.json").exists()
    assert said.endswith("interrupted at 2 of 3: the same command goes on\n")


SAVES = "trap 'sleep 0.2; printf x >> saved; exit 1' INT"  # whatever its exit code


@pytest.mark.parametrize(
    ("trap", "signals", "saved"),
    [
        (SAVES, [signal.SIGINT], ["saved"]),
        (SAVES, [signal.SIGTERM], ["saved"]),  # a time limit's
        ("trap '' INT TERM", [signal.SIGINT] * 3, []),  # what is deaf is killed at last
    ],
)
def test_ctrl_c_ends_all_once_the_command_has_saved(run_all, tmp_path, trap, signals, saved):
    def interrupt():
        until = time.monotonic() + 60
        while not (tmp_path / "started").exists() and time.monotonic() < until:
            time.sleep(0.01)
        for number in signals:
            os.kill(os.getpid(), number)
            time.sleep(0.1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts what runs in the background
    thread = Thread(target=interrupt)
    thread.start()
    code, said = run_all(f"{trap}\ntouch started\nwhile :; do sleep 0.05; done", "touch next")
    thread.join()
    assert code == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == [*saved, "started"]
    assert "== 1 of 2: interrupted\n" in said


def test_without_a_gpu_one_sentence_says_so(monkeypatch, capsys):
    monkeypatch.setattr(everything, "unavailable", lambda name: "there is no driver")
    monkeypatch.setattr(everything, "COMMANDS", None)  # nothing is begun
    assert everything.main([]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.endswith("there is no driver\n")
    assert err.count("\n") == 1


def test_the_papers_figures_are_measured_into_files_that_git_ignores():
    first, *measured, last = [shlex.split(typed) for typed in everything.COMMANDS]
    assert (first, last[:2]) == (["convlab", "bench"], ["convlab", "report"])
    names = [typed[3] for typed in measured]
    assert {*names} == experiments.EXPERIMENTS.keys() - {"sizes"}
    files = {"bench.json", last[3], last[5], *(f"{name}.json" for name in names)}
    aside = {f"{Path(file).stem}-0123456789ab.json" for file in files if file.endswith("json")}
    done = subprocess.run(
        ["git", "-C", str(ROOT), "check-ignore", *files, *aside], capture_output=True, text=True
    )
    assert {*done.stdout.split()} == files | aside


# What the Makefile makes of it, with programs that only write down how they were called.


@pytest.fixture
def make(tmp_path):
    """Calls ``make bench`` with a driver of that CUDA, or none, and perhaps a uv that ends so;
    returns how that ended, and what was called."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text(encoding="utf-8"))
    (tmp_path / "pyproject.toml").write_text("")
    log = tmp_path / "log"

    def script(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def call(cuda, *arguments, uv=None):
        statuses = {"python": 0, "convlab": 0} | ({} if uv is None else {"uv": uv})
        for name, status in statuses.items():
            noted = f'echo {name} "$@" >> {shlex.quote(str(log))}; exit {status}'
            script(tmp_path / ".venv/bin" / name, noted)
        said = "exit 1" if cuda is None else f"echo 'Driver: 580  CUDA Version: {cuda}  |'"
        script(tmp_path / "path/nvidia-smi", said)
        inherited = {name: one for name, one in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(
            ["make", "bench", *arguments], cwd=tmp_path, capture_output=True, text=True,
            env=inherited | {"PATH": f"{tmp_path / 'path'}:{os.environ['PATH']}"},
        )  # fmt: skip
        return done, log.read_text().splitlines() if log.exists() else []

    return call


@pytest.mark.parametrize(
    ("cuda", "uv", "installers"),
    [
        ("12.4", None, ["python -m"]),
        ("13.0", None, ["python -m"]),
        ("13.0", 0, ["uv"]),
        ("13.0", 2, ["uv", "python -m"]),
    ],
)
def test_make_bench_installs_the_baselines_and_runs_everything(make, cuda, uv, installers):
    """By uv where it is, by pip where that fails."""
    done, called = make(cuda, uv=uv)
    assert done.returncode == 0, done.stderr
    *installs, run = called
    assert [one.partition(" pip install ")[0] for one in installs] == installers
    extra = f" --editable .[plots,baselines-cu{cuda[:2]}]"
    assert all(one.endswith(extra) for one in installs)
    assert run == "python -m convlab.bench.everything"


def test_make_bench_with_arguments_is_the_one_command(make):
    done, called = make("13.0", "ARGS=--quick --again")
    assert done.returncode == 0, done.stderr
    assert called[1:] == ["convlab bench --quick --again"]


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="there is a driver")
def test_make_bench_without_a_driver_installs_nothing(make):
    done, called = make(None)
    assert done.returncode == 2
    assert not called
    assert "there is no NVIDIA driver of CUDA 12 or later here" in done.stderr.splitlines()[0]
