"""The command where the console, standard output, Numba's settings or a file are not as usual."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_cli import refused

import convlab

pytestmark = [pytest.mark.same_in_cudasim, pytest.mark.slow]

SOURCE = str(Path(convlab.__file__).parents[1])


def command(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | options.pop("environment", {})
    words = [sys.executable, "-m", "convlab", *arguments]
    options = {"stderr": subprocess.PIPE} | options
    return subprocess.run(words, env=environment, timeout=60, **options)


def one_line(done: subprocess.CompletedProcess[bytes], status: int) -> str:
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, len(lines)) == (status, 1), lines
    assert lines[0].startswith("convlab: ")
    return lines[0]


@pytest.mark.parametrize(
    ("encoding", "words"), [("latin-1", ["stages"]), ("ascii", ["trace", "m01"])]
)
def test_a_console_without_the_characters_gets_others(encoding, words):
    shown = {"PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    done = command(*words, environment=shown, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"----" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("stages",), ">/dev/full"), (("stages", "--json", "-"), ">/dev/full"),
        (("stages", "--json", "-"), ">&-"), (("--help",), ">/dev/full"), (("--help",), ">&-"),
    ],
)  # fmt: skip
def test_standard_output_that_takes_nothing(arguments, output):
    if "full" in output and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    shell = f'"$@" {output}'
    words = ["sh", "-c", shell, "sh", sys.executable, "-m", "convlab", *arguments]
    done = subprocess.run(words, stderr=subprocess.PIPE, timeout=60)
    *table, last = done.stderr.decode().splitlines()
    assert done.returncode == 2
    assert last.startswith("convlab: ")
    assert "standard output" in last
    assert not table or ("--json" in arguments and "full" in output)  # the table for people


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_standard_error_that_is_full_is_no_wrong_answer():
    with open("/dev/full", "w") as full:
        assert command("run", "nothing.py", stderr=full).returncode == 2


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev/zero")
@pytest.mark.parametrize("verb", ["report", "run"])
def test_a_device_has_no_end(verb):
    done = command(verb, "/dev/zero", stdout=subprocess.PIPE)
    assert one_line(done, 2).endswith("it is a device, and must be a file")


def test_links_that_go_round_in_circles(tmp_path):
    (loop := tmp_path / "loop").symlink_to("loop")
    assert "cannot be read" in refused("report", loop, "--html", tmp_path / "page.html")


@pytest.mark.parametrize(
    ("name", "value"), [("NUMBA_ENABLE_CUDASIM", "x"), ("NUMBA_NUM_THREADS", "0")]
)
def test_a_setting_that_numba_cannot_use(name, value):
    done = command("stages", environment={name: value}, stdout=subprocess.PIPE)
    line = one_line(done, 2)
    assert name in line
    assert value in line
    assert one_line(command("doctor", environment={name: value}, stdout=subprocess.PIPE), 2)


@pytest.mark.parametrize("verb", ["doctor", "report"])
@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.3])
def test_ctrl_c_while_modules_are_imported(verb, seconds, tmp_path):
    main = "import convlab.__main__ as m; print(flush=True); m.main()"
    with subprocess.Popen(
        [sys.executable, "-c", main, verb],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    # As Python ends it gives signals back to the system; a shell calls that 130 too. Report may
    # have refused by then that there are no results.
    ended = process.returncode in (130, -signal.SIGINT)
    assert ended or (verb, process.returncode) in (("report", 2), ("doctor", 0))
    assert len(said.splitlines()) <= 1


@pytest.mark.parametrize("depth", [60, 900, 10**6])
@pytest.mark.parametrize("words", [["report"], ["lint", "m01", "--against"], ["trace"]], ids=str)
def test_deeply_nested_json_is_refused(words, depth, tmp_path):
    file = tmp_path / "deep.json"
    file.write_text("[" * depth + "]" * depth)
    assert len(refused(*words, file)) < 300 + len(str(file))


@pytest.mark.parametrize("end", ["p(((", "p((1,2),(3", f"s{'9' * 9999}", "p" + "(" * 9999])
def test_a_problem_that_cannot_be_read(end):
    assert "--problem" in (line := refused("tune", "--problem", f"1x1x4x4,1x1x1x1,{end}"))
    assert len(line) < 300
