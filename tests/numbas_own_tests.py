"""``python tests/numbas_own_tests.py [MODULE ...]``: numba-cuda's own tests on both simulators.

Runs ``numba.cuda.tests.cudapy``, or the modules of it that are named, on Numba's CUDA simulator and
with every launch handed to the strict one, each in a process of its own, and prints what passed.
What the tests need beside Numba is installed in a temporary folder.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from traceback import format_exception
from typing import Any

NEEDED = ("filecheck==1.0.6", "ml_dtypes==0.6.0", "psutil==7.2.2")
TESTS = "numba.cuda.tests.cudapy"
SECONDS = 120  # of one test, after which it counts as one that hangs
# Python runs it first in the process of the tests, and in those that tests start.
HAND_OVER = """
from convlab.simulation.programs import simulator
handed_over = simulator()
handed_over.__enter__()
"""
SIMULATORS = ("Numba's simulator", "strict simulator")


class Outcomes(unittest.TestResult):
    """By test: ``passed``, ``skipped``, or why it did not pass."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[str, str] = {}

    def startTest(self, test: Any) -> None:
        signal.alarm(SECONDS)
        self.of[test.id()] = "passed"

    def stopTest(self, test: Any) -> None:
        signal.alarm(0)

    def addSkip(self, test: Any, reason: str) -> None:
        self.of[test.id()] = "skipped"

    def addError(self, test: Any, error: Any) -> None:
        self.of[test.id()] = "".join(format_exception(*error))

    def addSubTest(self, test: Any, part: Any, error: Any) -> None:
        if error is not None:
            self.addError(test, error)

    addFailure = addError

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.of[test.id()] = "passes, though it is marked as an expected failure"


def work(modules: list[str]) -> dict[str, str]:
    """Run the tests in this process."""

    def hangs(*_: object) -> None:
        raise TimeoutError(f"it took longer than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, hangs)
    outcomes = Outcomes()
    package = importlib.import_module(TESTS)
    for found in pkgutil.iter_modules(package.__path__):
        if not found.name.startswith("test_") or (modules and found.name not in modules):
            continue
        try:
            module = importlib.import_module(f"{TESTS}.{found.name}")
        except BaseException as error:
            if type(error).__name__ not in ("SkipTest", "Skipped"):  # unittest's and pytest's
                outcomes.of[found.name] = "".join(format_exception(error))
            continue
        unittest.defaultTestLoader.loadTestsFromModule(module).run(outcomes)
    return outcomes.of


def run(which: str, modules: list[str], needed: str) -> dict[str, str]:
    """Run the tests in a process that has what they need."""
    path = os.pathsep.join([needed, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": path}
    Path(needed, "sitecustomize.py").write_text(HAND_OVER if which == SIMULATORS[1] else "")
    out = Path(needed, "outcomes.json")
    command = [sys.executable, "-W", "ignore", __file__, "--worker", str(out), *modules]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return dict(json.loads(out.read_text(encoding="utf-8")))


def reason(outcome: str) -> str:
    """Why a test did not pass: its findings, or else the exception."""
    findings = [line for line in outcome.splitlines() if re.match(r"- [\w ]+, \w+, line", line)]
    errors = [line for line in outcome.splitlines() if re.match(r"[\w.]+(Error|Simulated): ", line)]
    found = "; ".join(findings) or (errors or outcome.splitlines())[-1]
    return found.removeprefix("convlab.simulation.findings.")


def install(folder: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    pip = [str(uv), "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
    python = ["--python", sys.executable] if uv.exists() else []
    command = [*pip, "install", "-q", *python, "--target", folder, *NEEDED]
    subprocess.run(command, check=True)


def main(modules: list[str]) -> int:
    """Print the table; 1 if a test that passes on Numba's simulator finds nothing wrong on the
    strict one and yet does not pass."""
    with tempfile.TemporaryDirectory() as folder:
        install(folder)
        there, here = (run(which, modules, folder) for which in SIMULATORS)
    for which, outcomes in zip(SIMULATORS, (there, here), strict=True):
        counts = Counter(
            one if one in ("passed", "skipped") else "failed" for one in outcomes.values()
        )
        print(f"{which:18}", *(f"{counts[one]:5} {one}" for one in ("passed", "failed", "skipped")))
    lost = {test: here[test] for test in there if there[test] == "passed" != here[test]}
    print(f"\n{len(lost)} pass on Numba's simulator only:")
    for test, outcome in lost.items():
        print(f"{test.removeprefix(TESTS + '.')}\n    {reason(outcome)}")
    return 1 if any(not reason(outcome).startswith("- ") for outcome in lost.values()) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        out, *modules = sys.argv[2:]
        Path(out).write_text(json.dumps(work(modules)), encoding="utf-8")
    else:
        sys.exit(main(sys.argv[1:]))
