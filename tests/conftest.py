"""The engine of the tests: the GPU when there is one, else the strict simulator."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, BrowserMissing
from computing import run_and_check
from hypothesis import HealthCheck, settings
from numba.cuda.core import config

from convlab.problems.oracle import CheckResult
from convlab.running import plans
from convlab.running.compilers import MLIR, NAMES, VARIABLE
from convlab.running.engines import Engine, choose
from convlab.simulation.compiled import engine_choice

# jsonschema, which nbformat imports, checks with it what no notebook has; it takes 1.4 s to import.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Tests compile for real: what another run kept on disk would hide what is wrong now.
os.environ["CONVLAB_CACHE_LIMIT"] = "0"

# Whether a short launch runs as machine code would depend on how busy this machine is.
engine_choice.limits = engine_choice.limits._replace(times_compiling=float("inf"))

# A shell starts what runs in the background with SIGINT ignored, and programs that tests start
# would inherit that: those that a test interrupts would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A simulator takes up to a second an example, and not the same every time: no deadline.
settings.register_profile(
    "convlab", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("large", settings.get_profile("convlab"), max_examples=4_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "convlab"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser with the window of a desk. Where there is none, the test is skipped."""
    try:
        with Browser() as opened:
            opened.window(1280, 900)
            yield opened
    except BrowserMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(autouse=True)
def _pytorch_is_left_in_float32() -> Iterator[None]:
    """A test's TF32 setting would round the products of tests after it. Looked at last,
    when no test's stand-in for PyTorch is left."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        assert not torch.backends.cuda.matmul.allow_tf32


@pytest.fixture(autouse=True)
def _nothing_remembered(_pytorch_is_left_in_float32: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that were tuned on this machine are its user's: tests plan as if there were none."""
    monkeypatch.setattr(plans, "tuned_tile", lambda *asked: None)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine that ``auto`` takes here."""
    return choose()


@pytest.fixture(params=NAMES)
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kernels are compiled by each compiler."""
    if request.param == MLIR:
        pytest.importorskip("numba_cuda_mlir", reason="needs numba-cuda-mlir, which is optional")
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


@pytest.fixture
def compiled_once(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep compiled kernels in a cache of this run, which all its processes share, so that no test
    compiles a kernel again. A key holds all that machine code depends on. An earlier run's kernels
    are not found."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all processes of this run
    monkeypatch.setenv("CONVLAB_CACHE", str(folder / "compiled-once"))
    monkeypatch.setenv("CONVLAB_CACHE_LIMIT", "512")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """CUDA's driver, pretended, for planned calls."""
    from pretended_driver import pretended_driver  # which Numba as its simulator cannot import

    yield from pretended_driver(monkeypatch)


@pytest.fixture(scope="session")
def site() -> Path:
    """The site, built now: Sphinx's warnings, wrong links and so on are failures."""
    pytest.importorskip("sphinx", reason="the site needs Sphinx: make site installs it")
    from build_site import SITE, build

    assert build() == 0
    return SITE


Checked = Callable[..., CheckResult]


@pytest.fixture(scope="session")
def checked(engine: Engine) -> Checked:
    """Run a stage on tensors, its output poisoned with NaN first, and check the result."""
    return partial(run_and_check, engine)


@pytest.fixture(scope="session")
def checked_in_simulator() -> Checked:
    """The same in the strict simulator, where a kernel that goes astray raises; on a GPU it may
    take every later test with it."""
    return partial(run_and_check, choose("simulator"))


def pytest_collection_finish():
    """Thousands of tests and all that they import stay: who looks for garbage need not look there,
    nor as often."""
    gc.freeze()
    gc.set_threshold(100_000)


def pytest_sessionfinish():
    """Pytest collects garbage five times at its end, so that errors of finalizers show. Once is
    enough: what is left after that, all that was imported, is not looked through again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    """The gate compiles; Numba as its simulator cannot. What asks for the engine of this run is not
    the same with another."""
    for item in items:
        asked = {"engine", "checked"} & set(item.fixturenames)
        if asked and item.get_closest_marker("same_in_cudasim") is not None:
            raise pytest.UsageError(f"{item.nodeid} is marked same_in_cudasim, but takes {asked}")
    if config.ENABLE_CUDASIM:
        mark = pytest.mark.skip(reason="Numba runs as its CUDA simulator, which compiles nothing")
        for item in items:
            if item.get_closest_marker("gate") is not None:
                item.add_marker(mark)
