"""``python tests/numbas_own_tests.py [--engines] [MODULE ...]``: numba-cuda's own tests on both
simulators.

Runs ``numba.cuda.tests.cudapy``, or the modules of it that are named, on Numba's CUDA simulator,
then with every launch handed to the strict one, then so with the tests that skip on Numba's
simulator, each in a process of its own. Of the last the ones that launch a kernel count: the others
are about the compiler or the driver. Prints what passed, and the findings. What the tests need
beside Numba is installed in a temporary folder.

``--engines`` runs all of them twice on the strict simulator instead: with each launch on the engine
that explains, and with each that can be compiled as machine code. Prints which tests end
differently, and why kernels are not compiled.
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
from time import perf_counter
from traceback import format_exception
from typing import Any

NEEDED = ("filecheck==1.0.6", "ml_dtypes==0.6.0", "psutil==7.2.2")
TESTS = "numba.cuda.tests.cudapy"
SECONDS = 60  # of one test, after which it counts as one that hangs: of the processor
WALL_SECONDS = 10 * SECONDS  # by the clock, because the machine may have other work
# Python runs it first in the process of the tests, and in those that tests start.
HAND_OVER = """
from convlab.simulation.host.programs import simulator
handed_over = simulator()
report = handed_over.__enter__()
"""
# Python runs this before it, to force an engine for each launch.
FORCED = """
from convlab.simulation.compiled import engine_choice
engine_choice.limits = engine_choice.Limits.all_at({seconds})
reasons = []
engine_choice.say = reasons.append
"""
RUNS = ("Numba's simulator", "strict simulator", "strict, all")
ENGINES = {"first engine": float("inf"), "machine code": 0.0}
# The tests whose exceptions have texts that depend on the process or the engine, and why: of these
# the engines are compared by the exception's name.
COMPARED_BY_NAME = {
    f"{TESTS}.test_cuda_array_interface.TestCudaArrayInterface.test_zero_size_array": (
        "the text has an address as a decimal number"
    ),
    f"{TESTS}.test_debug.TestDebugOutput.test_dump_assembly": (
        "the text has the assembly of whatever was compiled"
    ),
}


class Outcomes(unittest.TestResult):
    """The result of each test, ``passed``, ``skipped`` or why it did not pass, and those that
    launch."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[str, str] = {}
        self.launching: list[str] = []
        self._before = 0

    def startTest(self, test: Any) -> None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(WALL_SECONDS)
        self.of[test.id()] = "passed"
        self._before = launches()

    def stopTest(self, test: Any) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        if launches() > self._before:
            self.launching.append(test.id())

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


def handed_over(name: str, otherwise: Any = 0) -> Any:
    """Return an attribute of the strict simulator's report in this process."""
    return getattr(getattr(sys.modules["sitecustomize"], "report", None), name, otherwise)


def launches() -> int:
    """Return how many kernels the strict simulator has launched in this process."""
    return handed_over("launches")


def work(modules: list[str], every: bool) -> Outcomes:
    """Run the tests in this process; ``every`` one, those too that skip on Numba's simulator."""
    from numba.cuda import config

    def hangs(*_: object) -> None:
        raise TimeoutError(f"it took longer than {SECONDS} seconds of the processor")

    for number in signal.SIGALRM, signal.SIGPROF:
        signal.signal(number, hangs)
    outcomes = Outcomes()
    package = importlib.import_module(TESTS)
    for found in pkgutil.iter_modules(package.__path__):
        if not found.name.startswith("test_") or (modules and found.name not in modules):
            continue
        try:
            config.ENABLE_CUDASIM = not every  # which decorators and imports of tests ask
            module = importlib.import_module(f"{TESTS}.{found.name}")
        except BaseException as error:
            if type(error).__name__ not in ("SkipTest", "Skipped"):  # unittest's and pytest's
                outcomes.of[f"{TESTS}.{found.name}"] = "".join(format_exception(error))
            continue
        finally:
            config.ENABLE_CUDASIM = True
        unittest.defaultTestLoader.loadTestsFromModule(module).run(outcomes)
    return outcomes


def run(which: str, modules: list[str], needed: str) -> Any:
    """Run the tests in a process that has what they need: their outcomes, and those that launch;
    the launches and those compiled; and why others are not."""
    path = os.pathsep.join([needed, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": path}
    begin = FORCED.format(seconds=f"float('{ENGINES[which]}')") if which in ENGINES else ""
    Path(needed, "sitecustomize.py").write_text("" if which == RUNS[0] else begin + HAND_OVER)
    out = Path(needed, "outcomes.json")
    every = "every" if which == RUNS[2] or which in ENGINES else ""
    command = [sys.executable, "-W", "ignore", __file__, "--worker", str(out), every, *modules]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text(encoding="utf-8"))


def reason(outcome: str) -> str:
    """Return why a test did not pass: its findings, or else the exception."""
    findings = [line for line in outcome.splitlines() if re.match(r"- [\w ]+, \w+, line", line)]
    errors = [line for line in outcome.splitlines() if re.match(r"[\w.]+(Error|Simulated): ", line)]
    found = "; ".join(findings) or (errors or outcome.splitlines())[-1]
    return found.removeprefix("convlab.simulation.rules.findings.")


def install(folder: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    pip = [str(uv), "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
    python = ["--python", sys.executable] if uv.exists() else []
    command = [*pip, "install", "-q", *python, "--target", folder, *NEEDED]
    subprocess.run(command, check=True)


def row(what: str, outcomes: list[str], seconds: float | None = None) -> None:
    counts = Counter(one if one in ("passed", "skipped") else "failed" for one in outcomes)
    took = () if seconds is None else (f"in {seconds:.0f} s",)
    print(
        f"{what:44}", *(f"{counts[one]:5} {one}" for one in ("passed", "failed", "skipped")), *took
    )


def show(title: str, outcomes: dict[str, str]) -> None:
    print(f"\n{len(outcomes)} {title}")
    for test, outcome in outcomes.items():
        print(f"{test.removeprefix(TESTS + '.')}\n    {reason(outcome)}")


def main(modules: list[str]) -> int:
    """Print the table; 1 if a test that passes on Numba's simulator finds nothing wrong on the
    strict one and yet does not pass."""
    with tempfile.TemporaryDirectory() as folder:
        install(folder)
        runs, seconds = [], []
        for which in RUNS:
            begin = perf_counter()
            runs.append(run(which, modules, folder))
            seconds.append(perf_counter() - begin)
    (there, *_), (here, *_), (all_here, launching, *_) = runs
    skipped = [test for test in launching if there.get(test, "skipped") == "skipped"]
    executed = [test for test in there if there[test] != "skipped"]
    row("Numba's simulator", list(there.values()), seconds[0])
    row("strict: of those", [here[test] for test in executed], seconds[1])
    row("strict: of those that skip, what launches", [all_here[test] for test in skipped])
    lost = {test: here[test] for test in there if there[test] == "passed" != here[test]}
    show("pass on Numba's simulator only:", lost)
    rest = {test: all_here[test] for test in skipped if all_here[test] not in ("passed", "skipped")}
    show("skip on Numba's simulator, launch a kernel, and do not pass here:", rest)
    return 1 if any(not reason(outcome).startswith("- ") for outcome in lost.values()) else 0


def words(test: str, outcome: str) -> list[str]:
    """Return what a test has found, in words, without counts: machine code leaves most blocks to
    themselves, so it may count fewer. Else the exception, without addresses."""
    found = [line for line in outcome.splitlines() if re.match(r"- [\w ]+, \w+, line", line)]
    if found:
        return [re.sub(r" \[\d+ times\]", "", line) for line in found]
    text = re.sub(r"0x[0-9a-f]+", "0x", reason(outcome))
    return [text.partition(":")[0] if test in COMPARED_BY_NAME else text]


def engines(modules: list[str]) -> int:
    """Print how the tests end with each engine; 1 if one ends differently."""
    with tempfile.TemporaryDirectory() as folder:
        install(folder)
        results = {}
        for which in ENGINES:
            begin = perf_counter()
            results[which] = run(which, modules, folder)
            seconds = perf_counter() - begin
            outcomes, _, (launched, compiled), why_not = results[which]
            row(which, [*outcomes.values()], seconds)
            print(f"    {launched} launches, {compiled} compiled to their end")
    for why, count in Counter(one.partition("not compiled: ")[2] for one in why_not).most_common():
        print(f"{count:5} not compiled: {why}")
    one, other = (outcomes for outcomes, *_ in results.values())
    ends = {test: (words(test, one[test]), words(test, other.get(test, "missing"))) for test in one}
    differ = {test: both for test, both in ends.items() if both[0] != both[1]}
    for test, both in differ.items():
        print(test, *both, sep="\n    ")
    print(f"{len(one)} tests, {len(differ)} end differently")
    return int(bool(differ))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        out, every, *modules = sys.argv[2:]
        outcomes = work(modules, bool(every))
        counts = [launches(), handed_over("compiled")]
        why_not = getattr(sys.modules["sitecustomize"], "reasons", [])
        found = json.dumps([outcomes.of, outcomes.launching, counts, why_not])
        Path(out).write_text(found, encoding="utf-8")
    elif sys.argv[1:2] == ["--engines"]:
        sys.exit(engines(sys.argv[2:]))
    else:
        sys.exit(main(sys.argv[1:]))
