"""A file of results: rows, and what they were measured with."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from itertools import chain, count
from pathlib import Path
from typing import Any

import convlab
from convlab.bench.baselines import System
from convlab.bench.roofline import Machine
from convlab.bench.rows import LASTING, WRONG_STATES, Key, Row, require
from convlab.bench.systems import BASELINES
from convlab.files import strict, write_whole
from convlab.problem import ConvProblem
from convlab.stages import LADDER
from convlab.workloads import problem_named

FORMAT, VERSION = "convlab bench", 1
# What a time depends on, below the package: kernels, engines, baselines, and how they are measured.
MEASURED_BY = (
    "stages", "stage.py", "kernels", "device", "engines", "bench/baselines",
    "plans.py", "unfold.py", "problem.py", "workloads.py", "convolution.py",
    "oracle.py", "timer.py", "bench/harness.py", "bench/bounds.py", "bench/systems.py",
    "bench/gpu_backend.py", "bench/roofline.py",
)  # fmt: skip
# The libraries of baselines, under the names that they are installed by.
LIBRARIES = (
    "torch", "triton", "cupy-cuda12x", "cupy-cuda13x", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
    "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cutlass", "unfoldNd",
)  # fmt: skip
SHORT = 12  # digits of a fingerprint
MORE = ("points", "first_calls")  # what an experiment's document may have beside rows


@dataclass
class Results:
    """The rows by what they are of, the systems and layers they name, and the machine.

    ``missing`` are the rows that commands asked for and that are not there yet, so of a run that
    was interrupted; ``finished`` says when the last one came. ``more`` are further keys of the
    document: what an experiment has beside rows.
    """

    machine: Machine
    environment: dict[str, Any]
    identity: str
    rows: dict[Key, Row] = field(default_factory=dict)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    finished: str | None = None
    missing: dict[Key, None] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return self.machine.device

    def add(self, row: Row, system: System) -> None:
        """Take a row in, in the place of an older one of the same case."""
        self.rows[row.key] = row
        self.systems[system.name] = system.as_json()
        self.missing.pop(row.key, None)
        self.finished = None if self.missing else datetime.now(UTC).isoformat(timespec="seconds")

    def layers(self) -> list[tuple[str, int]]:
        """Layer and batch, in the paper's order."""
        return sorted({key[:2] for key in self.rows}, key=_order)

    def row(self, layer: str, batch: int, system: str) -> Row | None:
        """The row of that case; None where it was not tried."""
        return self.rows.get((layer, batch, system))

    def names(self, kind: str) -> list[str]:
        """The stages' names in the ladder's order, or the baselines' in theirs."""
        known = [*(stage.name for stage in LADDER), *(baseline.name for baseline in BASELINES)]
        order = {name: number for number, name in enumerate(known)}
        names = [name for name, system in self.systems.items() if system["kind"] == kind]
        return sorted(names, key=lambda name: order.get(name, len(order)))

    def take_up(
        self, older: Results | None, asked: Iterable[Key], again: bool = False
    ) -> list[Key]:
        """Take over what was measured on the same machine, with the same versions and code; nothing
        where any of these differs. Returns the rows ``asked`` for that remain to be measured: all
        where ``again``, else those that are missing or that an accident ended. An older row stays
        until there is a new one, and is missing as long where it was asked for again.
        """
        wanted = dict.fromkeys(asked)
        if older is not None and older.identity == self.identity:
            self.rows |= older.rows
            self.systems |= older.systems
            self.commands = [*older.commands, *self.commands]
            self.missing |= older.missing
            self.finished = older.finished
            self.more = older.more
        self.missing |= {key: None for key in wanted if again or key not in self.rows}
        if self.missing:
            self.finished = None
        return [key for key in wanted if key in self.missing or self.rows[key].state not in LASTING]

    def as_json(self) -> dict[str, Any]:
        """The results as a document of :mod:`json`."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "device": self.device,
            "machine": self.machine.as_json(),
            "environment": self.environment,
            "packages": self.environment["packages"],
            "identity": self.identity,
            "commands": self.commands,
            "finished": self.finished,
            "ok": not any(row.state in WRONG_STATES for row in self.rows.values()),
            "missing": [list(key) for key in self.missing],
            "layers": [_layer_json(layer, batch) for layer, batch in self.layers()],
            "systems": list(self.systems.values()),
            "rows": [
                {"problem": str(problem_named(*key[:2]))} | self.rows[key].as_json()
                for key in sorted(self.rows, key=lambda key: _order(key[:2]))
            ],
        } | self.more
        told: dict[str, Any] = strict(document)
        return told

    @classmethod
    def from_json(cls, document: Any) -> Results:
        """What :meth:`as_json` wrote. Raises ``ValueError`` saying what is wrong with it."""
        try:
            for name, known in (("format", FORMAT), ("version", VERSION)):
                if document[name] != known:
                    raise ValueError(f"its {name} is {document[name]!r}, not {known!r}")
            _check(document)
            rows = [Row.from_json(row) for row in document["rows"]]
            machine = {one.name for one in fields(Machine)} & document["machine"].keys()
            results = cls(
                Machine(**{name: document["machine"][name] for name in machine}),
                document["environment"],
                document["identity"],
                {row.key: row for row in rows},
                {system["name"]: system for system in document["systems"]},
                list(document["commands"]),
                document["finished"],
                {(layer, batch, name): None for layer, batch, name in document.get("missing", ())},
                {name: document[name] for name in MORE if name in document},
            )
            for row in rows:
                if row.system not in results.systems:
                    raise ValueError(f"there is a row of {row.system!r}, which is no system of it")
            for layer, batch in {key[:2] for key in (*results.rows, *results.missing)}:
                problem_named(layer, batch)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no result of convlab bench: {error!r}") from error
        return results


# What is read of a document beside its rows, and of each of its systems.
_KINDS = {
    "machine": "an object", "environment": "an object", "identity": "a string", "systems": "a list",
    "rows": "a list", "commands": "a list", "finished": "a string or null",
}  # fmt: skip
_OF_A_SYSTEM = ("name", "title", "kind", "family", "precision", "method")


def _check(document: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where something is not what those who read results expect."""
    for name, kind in _KINDS.items():
        require(document[name], kind, f"its {name}")
    for name in {one.name for one in fields(Machine)} & document["machine"].keys():
        kind = "a string" if name == "device" else "a finite number or null"
        require(document["machine"][name], kind, f"its machine.{name}")
    for name in ("gpu", "packages", "clocks_mhz"):
        require(document["environment"].get(name), "an object or null", f"its environment.{name}")
    for system in document["systems"]:
        require(system, "an object", "its system")
        for name in _OF_A_SYSTEM:
            require(system.get(name), "a string", f"{name} of its system {system}")


def open_results(path: Path) -> Results:
    """The results in a file. Raises ``ValueError`` naming the file and what is wrong with it."""
    try:
        return Results.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is no file of results: {error}") from error


def set_aside(path: Path, older: Results) -> Path:
    """Keep a file of results beside itself, under a name that no file has: what is written to
    ``path`` from now on is of another machine, other versions or other code. Returns that name.

    Raises ``OSError`` where it cannot be written.
    """
    endings = chain([""], (f"-{number}" for number in count(2)))
    names = (f"{path.stem}-{older.identity}{end}{path.suffix}" for end in endings)
    aside = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    write_whole(aside, path.read_bytes())
    return aside


def _order(key: tuple[str, int]) -> tuple[int, str, int]:
    layer, batch = key
    digits = layer.removeprefix("conv")
    return (int(digits) if digits.isdecimal() else 0, layer, batch)


def _layer_json(layer: str, batch: int) -> dict[str, Any]:
    problem = problem_named(layer, batch)
    return {
        "layer": layer, "batch": batch, "problem": str(problem), "flops": problem.flops,
        "least_bytes": problem.least_bytes, "tensor_bytes": tensor_bytes(problem),
    }  # fmt: skip


def tensor_bytes(problem: ConvProblem) -> int:
    """Input, filter and output: what every convolution needs."""
    shapes = (problem.input_shape, problem.weight_shape, problem.output_shape)
    return 4 * sum(map(math.prod, shapes))


def library_versions() -> dict[str, str | None]:
    """The versions of the baselines' libraries, those that are here."""
    found: dict[str, str | None] = {}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def identity(environment: Mapping[str, Any], gpu: str | None) -> str:
    """A short word for machine, versions and code together: what rows must have in common to stand
    in one table. The GPU's own number goes into it and cannot be read from it."""
    packages = environment["packages"]
    same = {
        "gpu": [environment["gpu"], gpu],
        "python": environment["python"],
        "packages": {name: packages[name] for name in sorted(packages)},
        "code": code_fingerprint(),
    }
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:SHORT]


def code_fingerprint(root: Path | None = None, parts: Iterable[str] = MEASURED_BY) -> str:
    """A short word for the source that times depend on."""
    folder = Path(convlab.__file__).parent if root is None else root
    digest = hashlib.sha256()
    for part in parts:
        path = folder / part
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in found:
            if file.is_file() and file.suffix in {".py", ".cu", ".cpp", ".h"}:
                digest.update(file.relative_to(folder).as_posix().encode() + b"\0")
                digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()[:SHORT]
