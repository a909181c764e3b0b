"""Baselines: the findings that a project has accepted, in a test suite and in a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convlab.simulation.host.baseline import Baseline
from convlab.simulation.host.run_report import Report
from convlab.simulation.rules.findings import Finding, SimulationError

pytestmark = pytest.mark.same_in_cudasim

KERNELS = """
import numpy as np
from numba import cuda

@cuda.jit
def one_element(a):
    a[0] = cuda.grid(1)

@cuda.jit
def unguarded(a):
    a[cuda.grid(1)] = 1

def race(): one_element[1, 32](np.zeros(1))
def outside(): unguarded[1, 32](np.zeros(9))
"""
SUITE = """
import pytest
from kernels import outside, race

def test_race(): race()
def test_outside(): outside()
def test_right(): pass
"""
PROGRAM = "import sys, kernels\nfor name in sys.argv[1:]: getattr(kernels, name)()\n"
RACE = {
    "file": "kernels.py",
    "function": "one_element",
    "kind": "global race",
    "text": "a[0] = cuda.grid(1)",
}
OUTSIDE = RACE | {
    "function": "unguarded",
    "kind": "out of bounds",
    "text": "a[cuda.grid(1)] = 1",
}
UPDATE = "--cuda=strict", "--cuda-baseline=known.json", "--cuda-update-baseline"
CHECK = UPDATE[:2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a suite and a program; the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "kernels.py": KERNELS,
        "test_suite.py": SUITE,
        "program.py": PROGRAM,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def accepted(folder: Path) -> list[dict[str, str]]:
    document = json.loads((folder / "known.json").read_text())
    assert (document["format"], document["version"]) == ("convlab baseline", 1)
    return document["findings"]


def move_lines_and_change_one(folder: Path) -> None:
    """Put a line above all others, and change the line of the race."""
    text = KERNELS.replace("= cuda.grid(1)", "= 2 * cuda.grid(1)")
    (folder / "kernels.py").write_text(f"# a new line\n{text}")


@pytest.mark.slow
def test_only_new_findings_fail_a_suite(suite, folder: Path) -> None:
    assert "2 failed, 1 passed" in suite("--cuda=strict").stdout
    updated = suite(*UPDATE)
    assert updated.returncode == 0, updated.stdout
    assert "cuda: known.json has 2 accepted findings" in updated.stdout
    assert accepted(folder) == [RACE, OUTSIDE]
    before = (folder / "known.json").read_bytes()
    suite(*UPDATE)
    assert (folder / "known.json").read_bytes() == before

    done = suite(*CHECK, "-rA")
    assert done.returncode == 0, done.stdout
    assert "PASSED test_suite.py::test_race" in done.stdout
    assert "XFAIL test_suite.py::test_outside - an accepted finding ends the launch" in done.stdout
    assert "did not appear" not in done.stdout

    move_lines_and_change_one(folder)
    done = suite(*CHECK, "--cuda-sarif=found.sarif")
    assert "1 failed, 1 passed, 1 xfailed" in done.stdout
    assert "kernels.py:8: global race, one_element" in done.stdout
    (first, *more) = [line for line in done.stdout.splitlines() if line.startswith("cuda: ")]
    assert first == "cuda: 1 accepted finding of known.json did not appear in this run:"
    assert more == ["cuda: - kernels.py: global race, one_element: a[0] = cuda.grid(1)"]
    (run,) = json.loads((folder / "found.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["global-race"]


@pytest.mark.slow
def test_the_same_by_several_processes(suite, folder: Path) -> None:
    """Each process of pytest-xdist has seen some of the findings only."""
    xdist = "-p", "xdist.plugin", "-n", "2"
    assert "cuda: known.json has 2 accepted findings" in suite(*UPDATE, *xdist).stdout
    assert accepted(folder) == [RACE, OUTSIDE]
    move_lines_and_change_one(folder)
    done = suite(*CHECK, "--cuda-sarif=found.sarif", *xdist)
    assert "1 failed, 1 passed, 1 xfailed" in done.stdout
    assert done.stdout.count("did not appear") == 1
    (run,) = json.loads((folder / "found.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["global-race"]


@pytest.mark.parametrize("options", [("-k", "race"), ("-x", "test_fails.py", "test_suite.py")])
def test_tests_that_did_not_run_keep_their_findings(
    suite, folder: Path, options: tuple[str]
) -> None:
    (folder / "test_fails.py").write_text("def test_fails(): assert False\n")
    suite(*UPDATE, "test_suite.py")
    assert "did not appear" not in suite(*CHECK, *options).stdout
    suite(*UPDATE, *options)
    assert accepted(folder) == [RACE, OUTSIDE]


def test_only_new_findings_count_for_a_program(command, folder: Path) -> None:
    update = "run", "--baseline", "known.json", "--update-baseline"
    done = command(*update, "program.py", "race")
    assert done.returncode == 0, done.stderr
    assert "convlab: known.json has 1 accepted finding" in done.stderr
    assert accepted(folder) == [RACE]

    check = "run", "--baseline", "known.json", "--json", "found.json"
    done = command(*check, "program.py", "race")
    assert (done.returncode, done.stderr) == (0, "convlab: nothing found in 1 launch, 1 accepted\n")
    done = command(*check, "program.py", "outside")
    assert done.returncode == 1
    assert "convlab: 1 accepted finding of known.json did not appear in this run:" in done.stderr
    found = json.loads((folder / "found.json").read_text())
    assert [one["kind"] for one in found["findings"]] == ["out of bounds"]
    assert (found["ok"], found["accepted"]) == (False, 0)
    assert found["vanished"] == ["kernels.py: global race, one_element: a[0] = cuda.grid(1)"]


SENTENCES = {
    "{": "it is not JSON: Input data was truncated",
    "[]": "it is []: it must be an object",
    '{"format": "convlab bench"}': "its format is 'convlab bench': it must be a known format",
    '{"format": "convlab baseline", "version": 2}': "its version is 2: it must be a known version",
    json.dumps({"format": "convlab baseline", "version": 1, "findings": [RACE | {"kind": "x"}]}): (
        "its findings[0]: 'x' is not a kind of finding"
    ),
}


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize(("content", "said"), SENTENCES.items())
def test_a_damaged_or_foreign_file_is_refused(folder, content, said, updates) -> None:
    """An update does not overwrite what is not a baseline."""
    (folder / "known.json").write_text(content)
    with pytest.raises(ValueError, match=r".") as error:
        Baseline(Path("known.json"), updates)
    assert str(error.value) == f"the baseline is 'known.json': {said}"
    assert (folder / "known.json").read_text() == content


def test_a_baseline_that_is_not_there_is_refused_in_one_sentence(
    command, suite, folder: Path
) -> None:
    said = "the baseline is 'known.json': No such file or directory; {}update-baseline makes it\n"
    done = command("run", "--baseline", "known.json", "program.py", "race")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"convlab: {said.format('--')}"
    done = suite(*CHECK)
    assert done.returncode == 4
    assert done.stderr.lstrip() == f"ERROR: {said.format('--cuda-')}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cuda-baseline=known.json"], "--cuda-baseline needs --cuda=strict"),
        (["--cuda-sarif=found.sarif"], "--cuda-sarif needs --cuda=strict"),
        (["--cuda=strict", "--cuda-update-baseline"], "needs --cuda-baseline FILE"),
        (["--cuda=strict", "--cuda-sarif=no/x"], "--cuda-sarif is 'no/x', but there is no"),
        (["--cuda=strict", "--cuda-sarif=."], "--cuda-sarif is '.', which is a folder"),
        ([*UPDATE[::2], "--cuda-baseline=no/x"], "--cuda-baseline is 'no/x', but there is no"),
        ([*UPDATE[::2], "--cuda-baseline=."], "the baseline is '.': it is a folder"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_test(suite, folder, options, said) -> None:
    done = suite(*options)
    assert done.returncode == 4
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_update_of_a_program_needs_a_file(command, folder: Path) -> None:
    done = command("run", "--update-baseline", "program.py")
    assert (done.returncode, done.stderr) == (
        2,
        "convlab: --update-baseline needs --baseline FILE\n",
    )


def finding(file: Path, line: int, kernel: str = "kernel") -> Finding:
    return Finding("global race", kernel, str(file), line, "two threads write")


def test_a_finding_is_known_by_its_place(tmp_path: Path) -> None:
    """The file is told as another machine has it, and the function is the innermost one."""
    source = (
        "class Sums:\n    def make():\n        def kernel(a):\n            a[0]  =  1\n\nx = 2\n"
    )
    installed = tmp_path / "venv/lib/python3.12/site-packages/package"
    beside = tmp_path / "beside"
    for folder in (installed, beside, tmp_path / "project"):
        folder.mkdir(parents=True)
        (folder / "sums.py").write_text(source)
    baseline = Baseline(tmp_path / "project/known.json", updates=True)
    places = [(installed, 4), (beside, 4), (tmp_path / "project", 6), (tmp_path / "absent", 4)]
    assert all(baseline.accepts(finding(folder / "sums.py", line)) for folder, line in places)
    assert sorted((one.file, one.function, one.text) for one in baseline.seen) == [
        ("../absent/sums.py", "kernel", ""),
        ("../beside/sums.py", "Sums.make.kernel", "a[0] = 1"),
        ("package/sums.py", "Sums.make.kernel", "a[0] = 1"),
        ("sums.py", "<module>", "x = 2"),
    ]


def test_accepted_findings_are_no_longer_in_a_report(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\n")
    report, baseline = Report(launches=2), Baseline(tmp_path / "known.json", updates=True)
    baseline.accepts(finding(tmp_path / "a.py", 1))
    baseline.write()
    for line in (1, 2):
        report.add(SimulationError("", (finding(tmp_path / "a.py", line),)))
    report.accept(Baseline(tmp_path / "known.json"))
    assert [one.line for one in report.findings] == [2]
    assert report.summary() == "1 finding in 2 launches, 1 accepted"


def test_plain_pytest_knows_nothing_of_it(suite, folder: Path) -> None:
    """The plugin imports nothing while its option is not used."""
    (folder / "test_plain.py").write_text(
        "import sys\ndef test_plain(): assert 'convlab.simulation.host.suite' not in sys.modules\n"
    )
    done = suite("test_plain.py")
    assert done.returncode == 0, done.stdout
