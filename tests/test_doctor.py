"""The facts of this machine are found, and nothing odd about it breaks the search."""

from __future__ import annotations

import subprocess
from importlib import metadata
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import convlab
from convlab.commands.display import DOUBTFUL
from convlab.commands.doctor import _facts, _gpu_line
from convlab.measuring import machine as doctor
from convlab.support.installing import how_to_install


def raising(error: type[Exception]) -> Mock:
    return Mock(side_effect=error("not here"))


@pytest.fixture
def nvidia_smi(monkeypatch):
    """A function that makes nvidia-smi say something; it returns the commands given to it."""

    def says(answer: str) -> list[list[str]]:
        commands: list[list[str]] = []

        def run(command: list[str], **options: Any) -> Any:
            commands.append(command)
            return subprocess.CompletedProcess(command, 0, answer)

        monkeypatch.setattr(subprocess, "run", run)
        return commands

    return says


GPU = {
    "name": "NVIDIA H200",
    "compute_capability": "9.0",
    "memory_bytes": 143771 * 2**20,
    "driver": "580.65.06",
    "cuda": "13.0",
}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("NVIDIA H200, 9.0, 143771, 580.65.06\n", GPU),
        *((odd, None) for odd in ("", "no devices were found\n", "a, b, c, d\n")),
    ],
)
def test_nvidia_smi_and_numba_together_describe_a_gpu(monkeypatch, nvidia_smi, answer, found):
    nvidia_smi(answer)
    monkeypatch.setattr(doctor, "_gpu_by_numba", lambda: {"cuda": "13.0"} if found else {})
    assert doctor._gpu() == found
    line = _gpu_line(GPU | {"cuda": None})
    assert line == "NVIDIA H200, compute capability 9.0, 140 GiB, driver 580.65.06"


def test_clocks_are_of_the_gpu_that_numba_uses_where_it_has_one(monkeypatch, nvidia_smi):
    device = Mock(side_effect=[SimpleNamespace(uuid="GPU-12"), RuntimeError("no driver")])
    monkeypatch.setattr("numba.cuda.get_current_device", device)
    commands = nvidia_smi("1755, [N/A], 1980\n")
    for number in range(2):
        assert doctor._clocks() == {"sm": 1755, "memory": None, "max_sm": 1980}
        named = [word for word in commands[number] if word.startswith("--id")]
        assert named == ["--id=GPU-12"][number:]
    monkeypatch.setattr(subprocess, "run", raising(FileNotFoundError))
    assert doctor._clocks() is None


def test_convlab_has_a_version_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(metadata, "version", raising(metadata.PackageNotFoundError))
    assert doctor.version("convlab") == convlab.__version__
    assert doctor.version("numpy") is None


@pytest.mark.parametrize(
    ("usable", "gpu", "chosen", "said"),
    [
        ((False, True), None, "cudasim", "no NVIDIA GPU was found (that is fine: "),
        ((False, True), GPU, "cudasim", "no NVIDIA GPU was found"),
        ((True, True), GPU, "gpu", "there is a GPU that works"),
        ((False, False), None, None, "no engine works here"),
    ],
    ids=["a laptop", "a GPU that does not work", "a GPU", "nothing"],
)
def test_what_would_be_used_and_why(usable, gpu, chosen, said):
    engines = [
        {"name": name, "available": works, "why_not": "no NVIDIA GPU was found"}
        for name, works in zip(("gpu", "cudasim"), usable, strict=True)
    ]
    choice = doctor._would_use(engines, gpu)
    assert choice["engine"] == chosen
    assert choice["why"].startswith(said)
    assert ("that is fine" in choice["why"]) == (gpu is None and chosen is not None)


@pytest.mark.parametrize("gpu", [None, GPU], ids=["a laptop", "a GPU"])
def test_what_needs_a_missing_compiler_is_said(monkeypatch, gpu):
    monkeypatch.setattr(doctor, "_gpu", lambda: gpu)
    monkeypatch.setattr(doctor, "import_module", raising(ImportError))
    facts = doctor.facts()
    lines = {label: (text, *style) for label, text, *style in _facts(facts)}
    for name in ("NVVM", "NVRTC", "nvJitLink"):  # which compile for the GPU
        text, *style = lines[name]
        assert text.startswith("not installed; needed by engine gpu, convlab lint, convlab")
        assert style == ([] if gpu is None else [DOUBTFUL])
    text, *style = lines["nvdisasm"]  # which only reads what they made
    assert text.startswith("not installed; needed by convlab lint, convlab trace --compiled")
    assert style == []
    assert all(how_to_install("lint", "make gate") in lines[name][0] for name in doctor.COMPILERS)
