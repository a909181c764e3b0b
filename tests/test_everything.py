"""`make bench`: the parts in turn, what becomes of failures and of Ctrl-C; and what the Makefile
makes of it. The parts here are small programs."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from convlab.bench import everything, experiments
from convlab.bench.everything import Part

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run_all(tmp_path, monkeypatch, capfd):
    """Runs parts in an empty folder, on a GPU; returns the exit code, and what was said. A part may
    be a shell's, which starts sooner than Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(everything, "unavailable", lambda name: None)
    monkeypatch.setattr(everything.signal, "signal", lambda *_: None)  # the tests' own process
    monkeypatch.setitem(everything.PROGRAMS, "sh", ["sh"])

    def run(*parts):
        monkeypatch.setattr(everything, "PARTS", parts)
        return everything.main([]), capfd.readouterr().out

    return run


def shell(text):
    return f"sh -c {shlex.quote(text)}"


def leaving(file, code):
    """A part that writes its file and ends with this code."""
    text = f"printf x >> {file}; echo it is {file}; exit {code}"
    return Part(f"makes {file}", shell(text), (file,))


def test_a_part_that_fails_is_said_and_the_others_go_on(run_all, tmp_path):
    parts = tuple(leaving(f"{code}.json", code) for code in (0, 2, 7, 1))
    code, said = run_all(*parts, Part("dies", shell("kill -9 $$"), ("absent.json",)))
    assert code == 2  # the first failure's
    assert all((tmp_path / part.files[0]).read_text() == "x" for part in parts)
    ended = re.findall(r"^== \d of 5: (.*) after \d+ s$", said, re.MULTILINE)
    assert ended == [
        "done", "refused", "failed (exit code 7)", "done, and something was wrong",
        "failed (exit code 137)",
    ]  # fmt: skip
    assert said.index("== 2 of 5: makes 2.json: sh -c") < said.index("it is 2.json")
    assert said.index("it is 2.json") < said.index("== 2 of 5: refused")
    summary = said.split("lies in\n")[1].splitlines()
    assert [line.split()[-1] for line in summary] == [*(part.files[0] for part in parts), "-"]


def test_a_part_that_was_interrupted_ends_all(run_all, tmp_path):
    assert run_all(leaving("a.json", 0))[0] == 0
    code, said = run_all(*(leaving(f"{code}.json", code) for code in (2, 130, 1)))
    assert code == 130
    assert not (tmp_path / "1.json").exists()
    assert said.endswith("interrupted at part 2 of 3: the same command goes on\n")


SLOW = """
trap 'sleep 0.3; printf x >> saved; exit 130' INT
touch started
while :; do sleep 0.05; done
"""
ALL = """
import sys
from convlab.bench import everything
everything.unavailable = lambda name: None
everything.PROGRAMS["sh"] = ["sh"]
everything.PARTS = (
    everything.Part("slow", {slow!r}, ("saved",)), everything.Part("next", {then!r}, ("next",)),
)
sys.exit(everything.main([]))
"""


@pytest.mark.parametrize(
    ("how", "ctrl_c"),
    [
        (signal.SIGINT, signal.SIG_DFL),
        (signal.SIGTERM, signal.SIG_IGN),  # as a shell starts what is to run in the background
    ],
)
def test_ctrl_c_ends_all_once_the_part_has_saved(tmp_path, how, ctrl_c):
    source = ALL.format(slow=shell(SLOW), then=shell("touch next"))
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, ctrl_c),
    )
    until = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(how)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (tmp_path / "saved").read_text() == "x"
    assert not (tmp_path / "next").exists()
    assert "== 1 of 2: interrupted after" in out


def test_what_does_not_end_when_asked_is_ended(monkeypatch):
    monkeypatch.setattr(everything, "ENDINGS", ((signal.SIGINT, 0.2), (signal.SIGTERM, 0.2)))
    deaf = ["sh", "-c", "trap '' INT TERM; echo; sleep 60 & wait; sleep 60"]
    process = subprocess.Popen(deaf, start_new_session=True, stdout=subprocess.PIPE)
    process.stdout.readline()
    everything.end(process)
    assert process.returncode == -signal.SIGKILL
    os.killpg(process.pid, signal.SIGKILL)  # its sleep
    process.stdout.close()


def test_without_a_gpu_one_sentence_says_so(monkeypatch, capsys):
    monkeypatch.setattr(everything, "unavailable", lambda name: "there is no driver")
    monkeypatch.setattr(everything, "PARTS", None)  # nothing is begun
    assert everything.main([]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.endswith("there is no driver\n")
    assert err.count("\n") == 1


def test_the_parts_are_what_the_papers_figures_need():
    first, *measured, last = [shlex.split(part.typed) for part in everything.PARTS]
    assert first == ["convlab", "bench"]
    assert {typed[2] for typed in measured} == {"convlab.bench.experiments"}
    assert {typed[3] for typed in measured} == experiments.EXPERIMENTS.keys() - {"sizes"}
    assert last[:2] == ["convlab", "report"]
    assert {"--html", "--markdown"} <= {*last}


def test_what_the_parts_leave_is_ignored_by_git():
    files = {file for part in everything.PARTS for file in part.files}
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
