"""Facts about this machine: packages, GPU, engines, compilers, and which of these are missing.

Every fact is looked up on its own, so that a broken installation is described without a crash.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module, metadata
from typing import Any, TypedDict, cast

from convlab.running.compilers import VARIABLE, compiler
from convlab.support.installing import how_to_install
from convlab.support.version import __version__

PACKAGES = (
    "numpy", "numba", "numba-cuda", "numba-cuda-mlir", "llvmlite", "cuda-bindings", "cuda-core",
    "greenlet", "matplotlib", "torch",
)  # fmt: skip
# What needs a compiler or the disassembler, the GPU engine first; simulators need none.
GPU_ENGINE = "engine gpu"
OFFLINE = ("convlab lint", "convlab trace --compiled", "the look at machine code of convlab check")
COMPILERS = {
    "NVVM": (GPU_ENGINE, *OFFLINE),
    "NVRTC": (GPU_ENGINE, *OFFLINE),  # numba-cuda asks it for the name of the GPU's architecture
    "nvJitLink": (GPU_ENGINE, *OFFLINE),
    "nvdisasm": OFFLINE,
}
GPU_KEYS = ("name", "compute_capability", "memory_bytes", "driver", "cuda")


class GpuDescription(TypedDict):
    """The first GPU; None for a fact that is unknown."""

    name: str | None
    compute_capability: str | None
    memory_bytes: int | None
    driver: str | None
    cuda: str | None


class EngineFacts(TypedDict):
    """An engine: its device if it can run here, else the reason why not."""

    name: str
    available: bool
    device: str | None
    why_not: str | None


class CompilerFacts(TypedDict):
    """A compiler: its version or path, or the command that installs it; and its users."""

    name: str
    found: str | None
    install: str | None
    needed_by: list[str]


class EngineChoice(TypedDict):
    """The engine that ``auto`` takes, and the reason."""

    engine: str | None
    why: str


class CacheFacts(TypedDict):
    """The cache of compiled kernels: its folder, or why there is none, and its files."""

    folder: str | None
    why_not: str | None
    kernels: int
    bytes: int
    limit_bytes: int


class DoctorFacts(TypedDict):
    """The facts that ``convlab doctor`` shows."""

    convlab: str | None
    python: str
    executable: str
    os: str
    packages: dict[str, str | None]
    gpu: GpuDescription | None
    engines: list[EngineFacts]
    would_use: EngineChoice
    compilers: list[CompilerFacts]
    cache: CacheFacts
    warnings: list[str]


def facts() -> DoctorFacts:
    """Return the facts that ``convlab doctor`` shows and ``--json`` writes."""
    engines, gpu = _engines(), _gpu()
    would_use = _would_use(engines, gpu)
    return {
        "convlab": version("convlab"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "os": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "gpu": gpu,
        "engines": engines,
        "would_use": would_use,
        "compilers": compilers(),
        "cache": _cache(),
        "warnings": _stages_left_out(would_use["engine"]),
    }


def environment(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the facts stored with a measurement, so that it can be repeated and compared.

    They hold no paths of this machine but those in ``arguments``, the words after ``convlab``.
    """
    words, chosen = shlex.join(["convlab", *arguments]), os.environ.get(VARIABLE)
    return {
        "command": f"{VARIABLE}={chosen} {words}" if chosen else words,
        "compiler": compiler(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("convlab", *PACKAGES)},
        "gpu": _gpu(),
        "clocks_mhz": _clocks(),
    }


def version(package: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return __version__ if package == "convlab" else None  # run from its source folder


def _engines() -> list[EngineFacts]:
    try:
        from convlab.running.engines import ENGINE_NAMES, choose, unavailable
    except Exception as error:
        return [{"name": "all", "available": False, "device": None, "why_not": _sentence(error)}]
    found: list[EngineFacts] = []
    for name in ENGINE_NAMES:
        try:
            why_not = unavailable(name)
            device = choose(name).device if why_not is None else None
        except Exception as error:  # such as an import that fails inside numba-cuda
            why_not, device = _sentence(error), None
        available = why_not is None
        found.append({"name": name, "available": available, "device": device, "why_not": why_not})
    return found


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _would_use(engines: list[EngineFacts], gpu: GpuDescription | None) -> EngineChoice:
    """The engine that ``auto`` takes, and why."""
    usable = [engine["name"] for engine in engines if engine["available"]]
    if not usable:
        return {"engine": None, "why": "no engine works here"}
    if usable[0] == "gpu":
        return {"engine": "gpu", "why": "there is a GPU that works"}
    (reason,) = (engine["why_not"] for engine in engines if engine["name"] == "gpu")
    fine = " (that is fine: every stage runs on the simulator too, only times need a GPU)"
    return {"engine": usable[0], "why": f"{reason}{'' if gpu else fine}"}


def _gpu() -> GpuDescription | None:
    """The first GPU; None when there is none."""
    # nvidia-smi may see a GPU that Numba cannot use; the table then shows the difference.
    found: dict[str, object] = {}
    answers = _ask_nvidia_smi("name", "compute_cap", "memory.total", "driver_version")
    if answers is not None and answers[2].isdecimal():
        found = dict(zip(GPU_KEYS, answers, strict=False))
        found["memory_bytes"] = int(answers[2]) * 2**20
    found |= _gpu_by_numba()
    return cast(GpuDescription, {key: found.get(key) for key in GPU_KEYS}) if found else None


def _gpu_by_numba() -> dict[str, object]:
    try:
        from numba import cuda
        from numba.cuda.core import config
        from numba.cuda.cudadrv.driver import driver

        if config.ENABLE_CUDASIM or not cuda.is_available():
            return {}
        device = cuda.get_current_device()
        name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
        return {
            "name": name,
            "compute_capability": ".".join(map(str, device.compute_capability)),
            "memory_bytes": int(cuda.current_context().get_memory_info().total),
            "cuda": ".".join(map(str, driver.get_version())),
        }
    except Exception:  # a broken driver shows in the engines' lines
        return {}


def _clocks() -> dict[str, int | None] | None:
    """The current clocks in MHz of the GPU that Numba uses; None without nvidia-smi."""
    try:
        from numba import cuda

        gpu = cuda.get_current_device().uuid
    except Exception:  # no driver, or a simulator
        gpu = None
    answers = _ask_nvidia_smi("clocks.sm", "clocks.mem", "clocks.max.sm", gpu=gpu)
    if answers is None:
        return None
    megahertz = [int(answer) if answer.isdecimal() else None for answer in answers]
    return dict(zip(("sm", "memory", "max_sm"), megahertz, strict=True))


def _ask_nvidia_smi(*fields: str, gpu: str | None = None) -> list[str] | None:
    """Return nvidia-smi's values of these fields, for that GPU or the first; None for no answer."""
    lines = nvidia_smi(f"--query-gpu={','.join(fields)}", gpu)
    answers = (lines or [""])[0].split(", ")
    return answers if len(answers) == len(fields) else None


def nvidia_smi(query: str, gpu: str | None = None) -> list[str] | None:
    """The lines that nvidia-smi answers, of the GPU of that UUID; None where it does not answer."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    command += [f"--id={gpu}"] if gpu else []
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.splitlines()


def compilers() -> list[CompilerFacts]:
    """Return the compilers of the GPU engine and of ``convlab lint``.

    Each has a name, its version or path (None if it is missing), the command that installs it, and
    its users.
    """
    found = {name: _compiler(name) for name in COMPILERS}
    # Only if needed: it raises where convlab has no metadata.
    install = how_to_install("lint", "make gate") if None in found.values() else None
    return [
        {
            "name": name,
            "found": version,
            "install": None if version else install,
            "needed_by": [*COMPILERS[name]],
        }
        for name, version in found.items()
    ]


def _compiler(name: str) -> str | None:
    try:
        if name == "nvdisasm":
            path: str | None = import_module("cuda.pathfinder").find_nvidia_binary_utility(name)
            return path
        module = import_module(f"cuda.bindings.{name.lower()}")
        error, *version = module.nvrtcVersion() if name == "NVRTC" else (0, *module.version())
        return None if error else ".".join(map(str, version))
    except Exception:  # the loaders' own exception types differ between versions
        return None


def _cache() -> CacheFacts:
    """The cache of compiled kernels: its folder, its files and its limit."""
    try:
        from convlab.support.kernel_files import usage
    except Exception as error:  # such as an import that fails inside numba-cuda
        return CacheFacts(folder=None, why_not=_sentence(error), kernels=0, bytes=0, limit_bytes=0)
    return cast(CacheFacts, asdict(usage()))


def _stages_left_out(engine: str | None) -> list[str]:
    """Return the stages that this GPU cannot run, and the stage that ``auto`` takes instead."""
    if engine != "gpu":
        return []
    from convlab.ladder import LADDER
    from convlab.running.able_stages import why_too_old
    from convlab.running.chosen_stages import auto_stage
    from convlab.running.engines import choose

    gpu = choose("gpu")
    reason = why_too_old(LADDER, gpu.capability(), gpu.device)
    return [] if reason is None else [f"{reason}; stage auto is {auto_stage(gpu).name}"]
