"""``convlab bench --dask``: layers measured by several workers, here with pretended GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from bench_fakes import interrupt_at, pretend_gpu, pretend_workers, system
from test_cli import refused
from typer.testing import CliRunner, Result

from convlab.commands.cli import app
from convlab.measuring import gpu_backend, gpu_workers, systems

pytestmark = [pytest.mark.same_in_cudasim, pytest.mark.slow]

LAYERS = ("conv9", "conv10", "conv12")
NAMES = ("right", "unsupported")


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A backend of fakes, whose workers run in this process."""
    pretend_gpu(monkeypatch, "bench_fakes:Fakes")
    monkeypatch.setattr(systems, "chosen", lambda *_: tuple(map(system, NAMES)))
    monkeypatch.setattr(gpu_workers, "system_named", system)
    return tmp_path / "bench.json"


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses of schedulers that are asked for workers."""
    return pretend_workers(monkeypatch)


def bench(file: Path, *words: str, address: str = "tcp://host:8786") -> Result:
    layers = [word for name in LAYERS for word in ("--layer", name)]
    command = ["bench", *layers, "--batch", "1", "--dask", address, "--json", str(file), *words]
    return CliRunner().invoke(app, command, env={"COLUMNS": "200"})


def rows_of(file: Path) -> dict[tuple[str, str], Any]:
    document = json.loads(file.read_text())
    assert document["finished"]
    return {(row["layer"], row["system"]): row for row in document["rows"]}


def test_rows_of_several_workers_are_one_file(lab: Path, two_workers: list[str]) -> None:
    result = bench(lab)
    assert result.exit_code == 0, result.output
    assert two_workers == ["tcp://host:8786"]
    rows = rows_of(lab)
    assert {*rows} == {(layer, name) for layer in LAYERS for name in NAMES}
    assert {row["state"] for (_, name), row in rows.items() if name == "right"} == {"measured"}
    assert "6 of 6 to measure" in result.output
    assert "3 of 6 rows have a number" in result.output
    # What was measured stays, and --again measures it anew.
    assert "0 of 6 to measure" in bench(lab).output
    assert "6 of 6 to measure" in bench(lab, "--again").output


def test_gpus_of_one_kind_have_identities_of_their_own(
    lab: Path, two_workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(f"GPU-{number}" for number in range(100))
    monkeypatch.setattr(gpu_backend, "current_gpu", lambda: next(numbers))
    assert bench(lab).exit_code == 0
    document = json.loads(lab.read_text())
    identities = {row["identity"] for row in document["rows"]}
    assert len(identities) > 1
    assert document["identity"] not in identities


def test_a_worker_with_another_gpu_is_refused(
    lab: Path, two_workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = gpu_workers.measured_layers

    def measured_layers(named: Any, seconds: float) -> gpu_workers.Measured:
        found = own(named, seconds)
        if any(one.layer == "conv12" for one in named):
            gpu = found.environment["gpu"] | {"name": "another GPU"}
            machine = replace(found.machine, device="another GPU")
            found = found._replace(machine=machine, environment=found.environment | {"gpu": gpu})
        return found

    monkeypatch.setattr(gpu_workers, "measured_layers", measured_layers)
    result = bench(lab)
    assert result.exit_code == 2, result.output
    said = " ".join(result.stderr.split())
    machines = "another GPU beside a fake GPU"
    wanted = f"a worker at tcp://host:8786 has another GPU than the first ({machines}): all must"
    assert wanted in said


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ({"convlab": "9.9"}, "other", "have convlab 9.9, and this command is convlab {own}: both"),
        ({}, "other", "have another source of convlab {own} than this command: both must be"),
    ],
)
def test_workers_with_another_convlab_than_the_command_are_refused(
    lab: Path,
    two_workers: list[str],
    monkeypatch: pytest.MonkeyPatch,
    packages: dict[str, str],
    code: str,
    said: str,
) -> None:
    own = gpu_workers.version("convlab")
    changed_workers(monkeypatch, {"convlab": own} | packages, code)
    result = bench(lab)
    assert result.exit_code == 2, result.output
    assert f"the workers at tcp://host:8786 {said.format(own=own)}" in one_line(result.stderr)
    assert not lab.exists()


def changed_workers(
    monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], code: str, layer: str | None = None
) -> None:
    """Give the workers, or the one that measures the layer, other packages and another source."""
    measured_layers = gpu_workers.measured_layers

    def changed(named: Any, seconds: float) -> gpu_workers.Measured:
        found = measured_layers(named, seconds)
        if layer is not None and layer not in {one.layer for one in named}:
            return found
        environment = found.environment | {"packages": found.environment["packages"] | packages}
        return found._replace(environment=environment, code=code)

    monkeypatch.setattr(gpu_workers, "measured_layers", changed)


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_workers_of_other_versions_or_source_than_the_first_are_refused(
    lab: Path, two_workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        changed_workers(patch, {"numpy": "1.0"}, gpu_workers.code_fingerprint(), "conv12")
        said = one_line(bench(lab).stderr)
    assert "a worker at tcp://host:8786 has numpy 1.0, not 2.4.6, than the first" in said
    changed_workers(monkeypatch, {}, "other", "conv12")
    said = one_line(bench(lab, "--again").stderr)
    assert "a worker at tcp://host:8786 has another source than the first" in said


def test_workers_that_cannot_read_this_convlab_are_refused(
    lab: Path, two_workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ModuleNotFoundError("No module named 'convlab.measuring.gpu_workers'")
    monkeypatch.setattr(gpu_workers, "measured_layers", Mock(side_effect=error))
    result = bench(lab)
    assert result.exit_code == 2, result.output
    said = "the workers at tcp://host:8786 cannot run this version of convlab: No module named"
    assert said in one_line(result.stderr)


def test_ctrl_c_keeps_the_layers_that_are_measured(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_workers(monkeypatch, count=1)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)  # of the second layer's rows, the second
        result = bench(lab)
    assert result.exit_code == 130, result.output
    assert "interrupted, 4 of 6 rows are left: the same command goes on" in result.stderr
    assert "4 of 6 to measure" in bench(lab).output
    assert {*rows_of(lab)} == {(layer, name) for layer in LAYERS for name in NAMES}


def test_a_busy_gpu_is_refused(
    lab: Path, two_workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_workers, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(gpu_backend, "why_busy", lambda look: "a process computes there")
    result = bench(lab)
    assert result.exit_code == 2
    assert "a worker's GPU is busy: a process computes there" in result.stderr
    assert not lab.exists()


def test_lists_that_are_no_layers_are_refused(lab: Path) -> None:
    for name in ("models", "sweeps", "unfold_table"):
        said = refused("bench", "--cases", name, "--dask", "tcp://host:1", "--json", lab)
        assert f"--cases is {name}: with --dask it must be a list of layers" in said


def test_on_a_local_cluster(lab: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="needs distributed, which is optional")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        result = bench(lab, address=cluster.scheduler_address)
    assert result.exit_code == 0, result.output
    assert {*rows_of(lab)} == {(layer, name) for layer in LAYERS for name in NAMES}


def test_layers_are_measured_in_a_few_tasks(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, tasks = gpu_workers.measured_layers, []

    def measured_layers(named: Any, seconds: float) -> gpu_workers.Measured:
        tasks.append([one.layer for one in named])
        return own(named, seconds)

    monkeypatch.setattr(gpu_workers, "measured_layers", measured_layers)
    monkeypatch.setattr(gpu_workers, "TASKS_PER_WORKER", 1)
    pretend_workers(monkeypatch, count=1)
    assert bench(lab).exit_code == 0
    # First the question what a worker has, then all layers by the one task of the one worker.
    assert tasks == [[], [layer for layer in LAYERS for _ in NAMES]]
    assert {*rows_of(lab)} == {(layer, name) for layer in LAYERS for name in NAMES}
