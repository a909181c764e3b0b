"""Files of measurements, the ladder's among them: written by what runs on a GPU, shown by pages."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convlab.bench.pool import WorkerDied
from convlab.doctor import environment
from convlab.engines import Engine, EngineUnavailable, choose
from convlab.files import write_whole
from convlab.stages import Stage, stage_named
from convlab.workloads import LAYER_NAMES, paper_layer

RESULTS = "docs/results"
VERSIONS = ("numba-cuda", "numpy", "torch")
INTERRUPTED = 130  # what shells give for Ctrl-C
DRIVER = {"driver": "driver", "cuda": "CUDA"}
PACKAGES = ("numba-cuda", "numba", "numpy")

GPU_ONLY = "its times mean nothing without one"


def run_module(
    module: str,
    about: str,
    measure: Callable[[Engine], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
    arguments: Sequence[str] | None,
    why_gpu: str,
) -> int:
    """Measure on a GPU, show, and write ``--json FILE``; returns the exit code: 1 where something
    measured is wrong (``ok`` false), 2 where it cannot run, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to FILE")
    file = parser.parse_args(arguments).json
    typed = f"python -m {module}" + (f" --json {file}" if file else "")
    try:
        engine = choose("gpu")
    except EngineUnavailable as error:
        print(f"convlab: {error}: {why_gpu}", file=sys.stderr)
        return 2
    try:
        document = measure(engine)
    except KeyboardInterrupt:
        print("convlab: interrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    except (EngineUnavailable, WorkerDied) as error:  # of an older GPU, of a process that measures
        why = "no process can measure here: " if isinstance(error, WorkerDied) else ""
        print(f"convlab: {why}{error}", file=sys.stderr)
        return 2
    document["device"] = engine.device
    document["environment"] = environment([]) | {"command": typed}
    print(show(document))
    if file is not None:
        write_results(file, document)
    return 0 if document.get("ok", True) else 1


def write_results(file: Path, document: dict[str, Any]) -> None:
    """Write the results whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, (json.dumps(document, indent=1) + "\n").encode())


def read_json(file: Path) -> Any:
    """The document in a file. Raises ``ValueError`` naming a file that holds no JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error


def source(file: str, environment: Mapping[str, Any] | None, command: str) -> str:
    """The line below a table: the command that writes its file today, and of what is stored the
    date and the versions."""
    known = environment or {}
    packages = known.get("packages") or {}
    versions = (f"{name} {packages[name]}" for name in VERSIONS if packages.get(name))
    words = ", ".join(filter(None, (str(known.get("date") or "")[:10], *versions)))
    return f"{command}{f' ({words})' if words else ''}: [{file}](results/{file}).\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table, or nothing where there are no rows; words stand in its first ``left``
    columns, numbers in the others."""
    if not rows:
        return ""
    rule = ["---" if column < left else "---:" for column in range(len(head))]
    return "".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in row)} |\n"
        for row in (head, rule, *rows)
    )


# The ladder's results.


@dataclass(frozen=True)
class Step:
    """One stage's result: no numbers where it failed.

    ``kernel_ms`` is the main kernel's own time: ``time_ms`` without the layout transforms.
    """

    stage: Stage
    workspace_bytes: int | None
    time_ms: float | None = None
    time_spread: float | None = None
    tflops: float | None = None
    speedup: float | None = None
    kernel_ms: float | None = None
    kernel_tflops: float | None = None

    @property
    def reach(self) -> float | None:
        """TFLOP/s without the layout transforms where these cost enough to show, else with them."""
        if self.tflops and self.kernel_tflops and self.kernel_tflops > 1.02 * self.tflops:
            return self.kernel_tflops
        return self.tflops


@dataclass(frozen=True)
class LadderResults:
    """What ``convlab ladder --json`` wrote on a GPU: how each stage did, and in words the problem
    with the GPU (``title``), the problem's ``shapes``, the ``machine`` and the ``command``."""

    name: str
    title: str
    shapes: str
    machine: str
    command: str
    steps: tuple[Step, ...]

    @classmethod
    def read(cls, path: Path) -> LadderResults:
        """The results in a file.

        Raises ``ValueError`` naming a file that is not a GPU's result, or has unknown stages.
        """
        try:
            document = read_json(path)
            if document["engine"] != "gpu":
                raise ValueError(f"its engine is {document['engine']!r}: only a GPU's times count")
            problem, environment = document["problem"], document.get("environment") or {}
            n, c, h, w = problem["input_shape"]
            c_o, _, h_f, w_f = problem["weight_shape"]
            return cls(
                path.stem,
                f"{_layer(problem)}, batch {n}, on an {document['device']}",
                f"{n} images of {h} x {w} pixels and {c} channels, {c_o} filters of {h_f} x {w_f}: "
                f"{problem['flops'] / 1e9:,.1f} GFLOP in float32",
                _machine(document["device"], environment),
                str(environment.get("command") or ""),
                tuple(_step(entry, problem["flops"]) for entry in document["stages"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a result of the ladder: {error!r}") from error


def _layer(problem: dict[str, Any]) -> str:
    """``Conv9``, or of another problem its shape."""
    shapes = ("input_shape", "weight_shape", "output_shape")
    for name in LAYER_NAMES:
        paper = paper_layer(name, problem["batch"])
        if all(list(getattr(paper, key)) == problem[key] for key in shapes):
            return name.capitalize()
    return "x".join(map(str, problem["input_shape"]))


def _machine(device: str, environment: dict[str, Any]) -> str:
    """What it ran on, and when, as far as it is known."""
    gpu, packages = (environment.get(name) or {} for name in ("gpu", "packages"))
    parts = (
        device,
        *(f"{label} {gpu[key]}" for key, label in DRIVER.items() if gpu.get(key)),
        *(f"{name} {packages[name]}" for name in PACKAGES if packages.get(name)),
        str(environment.get("date") or "")[:10],
    )
    return ", ".join(filter(None, parts))


def _step(entry: dict[str, Any], flops: int) -> Step:
    stage, workspace_bytes = stage_named(entry["name"]), entry["workspace_bytes"]
    if not entry["ok"]:  # whatever was measured means nothing
        return Step(stage, workspace_bytes)
    kernel_ms = list(entry["launch_ms"].values())[-1]
    numbers = {name: entry[name] for name in ("time_ms", "time_spread", "tflops", "speedup")}
    rate = flops / kernel_ms / 1e9
    return Step(stage, workspace_bytes, kernel_ms=kernel_ms, kernel_tflops=rate, **numbers)
