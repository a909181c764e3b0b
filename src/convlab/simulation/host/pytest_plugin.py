"""The plugin ``pytest --cuda=strict``, which runs every kernel of a test on the strict simulator.

pytest loads this file wherever convlab is installed, so it imports nothing unless it is used.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    pass

HookResult = TypeVar("HookResult")
Steps = Generator[None, HookResult, HookResult]  # a wrapper around other hooks
_ENTERED = pytest.StashKey[ExitStack]()
_REPORT = pytest.StashKey["Report"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--cuda`` and ``--cuda-steps``."""
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


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin before any conftest.py imports Numba, which decides then whether it needs a GPU."""
    if early_config.known_args_namespace.cuda is None:
        return
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    from convlab.simulation.host.programs import simulator

    early_config.stash[_ENTERED] = stack = ExitStack()
    given = early_config.known_args_namespace
    typed = given.cuda == "strict"
    strict = simulator(stop=False, steps=given.cuda_steps, typed=typed)
    early_config.stash[_REPORT] = stack.enter_context(strict)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker ``cuda_allow`` known."""
    config.addinivalue_line(
        "markers", "cuda_allow(kind, ...): findings of these kinds, as reports name them, may be"
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give ``numba.cuda`` its own meaning back."""
    if _ENTERED in config.stash:
        config.stash[_ENTERED].close()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """List, at the end, the kernels that ran without Numba's types."""
    from convlab.support.values import visible

    for note in config.stash[_REPORT].notes if _REPORT in config.stash else ():
        terminalreporter.write_line(visible(f"cuda: {note}"))


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return a line of the header, if kernels run on the strict simulator."""
    return "cuda: convlab's strict simulator" if _REPORT in config.stash else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Steps[Any]:
    """Fail a test whose launches have findings, even if it catches what they raise."""
    try:
        result = yield
    except BaseException as error:
        if not (told := _told(item.config, item)):
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
    """Return the findings since the last call, without the kinds that a test's ``cuda_allow``
    names."""
    if _REPORT not in config.stash:
        return ""
    allowed = (
        {kind for mark in item.iter_markers("cuda_allow") for kind in mark.args} if item else ()
    )
    return "\n".join(config.stash[_REPORT].take(allowed).lines())
