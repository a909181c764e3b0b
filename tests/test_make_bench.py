"""`make bench`: what it installs, its commands in turn, and what becomes of failures and of Ctrl-C;
with programs that only write down how they were called."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from convlab.measuring import cases

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
CASES = (
    "ablation", "sweeps", "unfold_table", "grouped", "gradients", "unseen", "precisions",
)  # fmt: skip
COMMANDS = [
    "convlab bench",
    *(f"convlab bench --cases {name}" for name in CASES),
    "convlab report --html report.html --markdown report.md",
]


@pytest.fixture
def make(tmp_path):
    """Calls ``make bench`` with a driver of that CUDA, or none, and perhaps a uv that ends so;
    returns how that ended, and what was called. ``convlab`` is what that does in ``sh`` beside
    noting its call; ``signals`` go to all processes once a file is ``started``."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text(encoding="utf-8"))
    (tmp_path / "pyproject.toml").write_text("")
    log = tmp_path / "log"

    def script(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def call(cuda, *arguments, uv=None, convlab="exit 0", signals=()):
        ends = {"python": "exit 0", "convlab": convlab}
        if uv is not None:
            ends["uv"] = f"exit {uv}"
        for name, end in ends.items():
            noted = f'echo {name} "$@" >> {shlex.quote(str(log))}\n{end}'
            script(tmp_path / ".venv/bin" / name, noted)
        said = "exit 1" if cuda is None else f"echo 'Driver: 580  CUDA Version: {cuda}  |'"
        script(tmp_path / "path/nvidia-smi", said)
        # `make test ARGS=...` puts its words into the environment, where `make bench` reads them.
        inherited = {
            name: one for name, one in os.environ.items()
            if not name.startswith("MAKE") and name not in ("ARGS", "PYTHON")
        }  # fmt: skip
        made = subprocess.Popen(
            ["make", "bench", *arguments], cwd=tmp_path, start_new_session=True, text=True,
            env=inherited | {"PATH": f"{tmp_path / 'path'}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            # A shell cannot trap what it was started to ignore, as all in the background are.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        for number in signals:
            until = time.monotonic() + 60
            while not (tmp_path / "started").exists() and time.monotonic() < until:
                time.sleep(0.01)
            os.killpg(made.pid, number)  # as a terminal does, and `timeout`
        out, err = made.communicate(timeout=60)
        called = log.read_text().splitlines() if log.exists() else []
        return subprocess.CompletedProcess((), made.returncode, out, err), called

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
    """uv installs them where it is there, pip where uv fails."""
    done, called = make(cuda, uv=uv)
    assert done.returncode == 0, done.stderr
    installs = called[: -len(COMMANDS)]
    assert called == [*installs, *COMMANDS]
    assert [one.partition(" pip install ")[0] for one in installs] == installers
    extra = f" --editable .[plots,baselines-cu{cuda[:2]}]"
    assert all(one.endswith(extra) for one in installs)


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


def test_a_command_that_fails_is_said_and_the_others_go_on(make):
    done, called = make("13.0", convlab='case "$*" in *sweeps) exit 7;; *table) kill -9 $$;; esac')
    assert called[1:] == COMMANDS
    assert "Error 7" in done.stderr  # the first failure's
    codes = [line.split()[-1] for line in done.stdout.splitlines() if "exit code" in line]
    assert codes == ["0", "0", "7", "137", "0", "0", "0", "0", "0"]
    done, called = make("13.0", convlab='[ "$*" = bench ] || exit 2')
    assert called[-2:] == COMMANDS[:2]  # what is refused to one is refused to all
    assert "Error 2" in done.stderr


SAVES = """trap 'sleep 0.2; printf x >> saved; exit 130' TERM
touch started
while :; do sleep 0.05; done"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all_once_the_command_has_saved(make, tmp_path, number):
    _, called = make("13.0", convlab=SAVES, signals=[number])
    until = time.monotonic() + 10
    while not (tmp_path / "saved").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert (tmp_path / "saved").read_text() == "x"
    assert called[1:] == COMMANDS[:1]


def test_the_papers_figures_are_measured_into_files_that_git_ignores():
    names = cases.EXPERIMENTS.keys()
    assert {*CASES} == names - {"sizes"}
    files = {"bench.json", "report.html", "report.md", *(f"{name}.json" for name in names)}
    aside = {f"{Path(file).stem}-0123456789ab.json" for file in files if file.endswith("json")}
    done = subprocess.run(
        ["git", "-C", str(ROOT), "check-ignore", *files, *aside], capture_output=True, text=True
    )
    assert {*done.stdout.split()} == files | aside
