"""The plugin ``pytest --cuda=strict``, which runs every kernel of a test on the strict simulator.

pytest loads this file wherever convlab is installed, so it imports nothing unless it is used.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from convlab.simulation.host.suite import StrictSuite

HookResult = TypeVar("HookResult")
Steps = Generator[None, HookResult, HookResult]  # a wrapper around other hooks
_ENTERED = pytest.StashKey[ExitStack]()
_SUITE: pytest.StashKey[StrictSuite] = pytest.StashKey()
_TOLD = "convlab"  # the key by which a process of pytest-xdist tells its findings


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--cuda`` and the options that begin with it."""
    group = parser.getgroup("convlab")
    group.addoption(
        "--cuda",
        choices=["strict", "untyped"],
        help="Run Numba CUDA kernels on convlab's strict simulator; what it finds fails the test. "
        "untyped: registers hold Python's numbers instead of Numba's types.",
    )
    group.addoption(
        "--cuda-steps",
        type=int,
        metavar="N",
        help="With --cuda, loop iterations that all threads of a launch may have together.",
    )
    group.addoption(
        "--cuda-orders",
        type=int,
        default=0,
        metavar="N",
        help="With --cuda, also run each launch in N random orders of its blocks and warps.",
    )
    group.addoption(
        "--cuda-seed",
        type=int,
        default=0,
        metavar="S",
        help="The seed of the first of these orders; the others have those that follow it.",
    )
    group.addoption(
        "--cuda-baseline",
        type=Path,
        metavar="FILE",
        help="With --cuda, accept the findings in FILE: only others fail tests.",
    )
    group.addoption(
        "--cuda-update-baseline",
        action="store_true",
        help="Write the findings of this run to the file of --cuda-baseline.",
    )
    group.addoption(
        "--cuda-sarif",
        type=Path,
        metavar="FILE",
        help="With --cuda, also write the findings that fail tests to FILE, as SARIF 2.1.0.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin before any conftest.py imports Numba, which decides then whether it needs a GPU."""
    given = early_config.known_args_namespace
    if given.cuda_update_baseline and given.cuda_baseline is None:
        raise pytest.UsageError("--cuda-update-baseline needs --cuda-baseline FILE")
    if given.cuda is None:
        for option in "cuda_baseline", "cuda_sarif":
            if getattr(given, option) is not None:
                raise pytest.UsageError(f"--{option.replace('_', '-')} needs --cuda=strict")
        return
    from convlab.support import numba_successor

    numba_successor.switch_simulator_on()
    try:
        from convlab.simulation.host.baseline import Baseline
        from convlab.simulation.host.programs import simulator
        from convlab.simulation.host.suite import StrictSuite
    except ImportError as error:
        raise pytest.UsageError(
            f"--cuda={given.cuda}: {numba_successor.why_not() or error}"
        ) from error

    early_config.stash[_ENTERED] = stack = ExitStack()
    typed = given.cuda == "strict"
    try:
        strict = simulator(
            stop=False,
            steps=given.cuda_steps,
            typed=typed,
            orders=given.cuda_orders,
            seed=given.cuda_seed,
        )
        report = stack.enter_context(strict)
        baseline = None
        if given.cuda_baseline is not None:
            baseline = Baseline(given.cuda_baseline, given.cuda_update_baseline)
    except ValueError as error:
        is_new = given.cuda_baseline is not None and not os.path.lexists(given.cuda_baseline)
        hint = "; --cuda-update-baseline makes it" if is_new else ""
        raise pytest.UsageError(f"{error}{hint}") from None
    early_config.stash[_SUITE] = StrictSuite(report, baseline, given.cuda_sarif)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker ``cuda_allow`` known, and refuse files that could not be written."""
    config.addinivalue_line(
        "markers", "cuda_allow(kind, ...): findings of these kinds, as reports name them, may be"
    )
    if _SUITE in config.stash and not hasattr(config, "workerinput"):  # not one of pytest-xdist's
        try:
            config.stash[_SUITE].check_files()
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give ``numba.cuda`` its own meaning back."""
    if _ENTERED in config.stash:
        config.stash[_ENTERED].close()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Note that not all tests run."""
    if items and (suite := items[0].config.stash.get(_SUITE, None)) is not None:
        suite.partial = True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the files that are asked for. A process of pytest-xdist tells its findings to the one
    that started it instead."""
    if (suite := session.config.stash.get(_SUITE, None)) is None:
        return
    ran = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if not ran or session.shouldfail or session.shouldstop:
        suite.partial = True
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output[_TOLD] = suite.told()
        return
    try:
        suite.write()
    except OSError as error:
        pytest.exit(f"{error.filename}: {error.strerror}", pytest.ExitCode.USAGE_ERROR)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Hear what a process of pytest-xdist has found. One that crashed tells nothing."""
    if (suite := node.config.stash.get(_SUITE, None)) is None:
        return
    told = getattr(node, "workeroutput", {}).get(_TOLD)
    if told is None:
        suite.partial = True
    else:
        suite.hear(told)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """List, at the end, the kernels that ran without Numba's types, and the accepted findings that
    did not appear."""
    from convlab.support.values import visible

    for line in config.stash[_SUITE].lines() if _SUITE in config.stash else ():
        terminalreporter.write_line(visible(f"cuda: {line}"))


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return a line of the header, if kernels run on the strict simulator."""
    return "cuda: convlab's strict simulator" if _SUITE in config.stash else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Steps[Any]:
    """Fail a test whose launches have findings, even if it catches what they raise."""
    try:
        result = yield
    except BaseException as error:
        if not (told := _told(item.config, item)):
            if _SUITE in item.config.stash and item.config.stash[_SUITE].accepts(error):
                pytest.xfail("an accepted finding ends the launch")
            raise
        from convlab.simulation.rules.findings import SimulationError

        if not isinstance(error, SimulationError | pytest.skip.Exception):
            error.add_note(told)
            raise
    else:
        if not (told := _told(item.config, item)):
            return result
    pytest.fail(told, pytrace=False)


pytest_runtest_setup = pytest_runtest_teardown = pytest_runtest_call


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Steps[pytest.CollectReport]:
    """Fail a test file that launches kernels with findings when it is imported."""
    report = yield
    if told := _told(collector.config):
        report.outcome, report.longrepr = "failed", told
    return report


def _told(config: pytest.Config, item: pytest.Item | None = None) -> str:
    """Return the findings since the last call, without the accepted ones and without the kinds that
    a test's ``cuda_allow`` names."""
    if _SUITE not in config.stash:
        return ""
    marks = () if item is None else item.iter_markers("cuda_allow")
    suite: StrictSuite = config.stash[_SUITE]
    return suite.take({kind for mark in marks for kind in mark.args})
