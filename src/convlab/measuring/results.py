"""A file of results: rows, and what they were measured with.

A row says how one system did on one layer: a number, or the reason why there is none, never both.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, get_args, get_type_hints

from convlab.ladder import LADDER
from convlab.measuring.baselines import System
from convlab.measuring.roofline import Machine
from convlab.measuring.systems import BASELINES
from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import problem_named
from convlab.support.files import (
    Amount,
    Count,
    Name,
    Natural,
    Positive,
    Sentences,
    Short,
    document,
    record,
    strict,
)
from convlab.support.values import shown
from convlab.support.whole_files import bytes_of, fingerprint, write_whole

FORMAT, VERSION = "convlab bench", 1
# What a time depends on, below the package: kernels, engines, baselines, and how they are measured.
MEASURED_BY = (
    "ladder", "device", "problems", "running/engines", "running/plans.py",
    "measuring/baselines", "measuring/timer.py", "measuring/harness.py", "measuring/bounds.py",
    "measuring/systems.py", "measuring/gpu_backend.py", "measuring/roofline.py",
)  # fmt: skip
# The libraries of baselines, under the names that they are installed by.
LIBRARIES = (
    "torch", "triton", "cupy-cuda12x", "cupy-cuda13x", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
    "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cutlass", "unfoldNd",
)  # fmt: skip
MORE = ("points", "first_calls")  # what an experiment's document may have beside rows

State = Literal[
    "measured", "wrong", "refused", "unsteady", "busy", "out of memory", "unsupported", "absent",
    "failed",
]  # fmt: skip
STATES: tuple[State, ...] = get_args(State)
WRONG_STATES = frozenset({"wrong", "refused", "failed"})  # what the command exits 1 for
# What measuring again on the same machine with the same code would not change.
LASTING = frozenset({"measured", "wrong", "refused", "unsupported"})
Key = tuple[str, int, str]
"""The identity of a row: layer, batch and system."""
Layer = tuple[str, int]
"""A layer's name and its batch."""


# What a file of results must hold where others rely on it. Its other keys are kept as they are.


class _Gpu(TypedDict, total=False):
    name: Name | None
    driver: Name | None
    cuda: Name | None


class _Clocks(TypedDict, total=False):
    max_sm: Count | None


class _Environment(TypedDict):
    gpu: _Gpu | None
    packages: dict[Name, Name | None] | None
    clocks_mhz: NotRequired[_Clocks | None]
    date: NotRequired[Name | None]
    python: NotRequired[Name | None]


class _System(TypedDict):
    name: Short
    title: Name
    kind: Name
    family: Name
    precision: Name
    method: Name


def tensor_bytes(problem: ConvProblem) -> int:
    """Input, filter and output: what every convolution needs."""
    shapes = (problem.input_shape, problem.weight_shape, problem.output_shape)
    return problem.number_type.nbytes * sum(map(math.prod, shapes))


@dataclass(frozen=True)
class ResultRow:
    """One system on one layer; docs/json.md tells what each value is, and its unit.

    ``state`` says how it went and ``reason`` why there is no number, in a sentence. ``bound`` is
    the rule that the output was checked by, ``peak_bytes`` the device memory that was seen to be
    taken, tensors included. ``called_ms`` and ``called_spread`` are of ordinary calls, launches
    included; None on the host and in older results.

    Raises ``ValueError`` for a number without the state ``measured``, or that state without one,
    and for what cannot be: a time that is not above zero, a count that is no whole number.
    """

    layer: Name
    batch: Natural
    system: Short
    state: State
    reason: Sentences | None = None
    time_ms: Positive | None = None
    time_spread: Amount | None = None
    repeats: Natural | None = None
    settled: bool | None = None
    tflops: Positive | None = None
    bound: Name | None = None
    error_over_bound: float | None = None
    workspace_bytes: Count | None = None
    peak_bytes: Count | None = None
    algorithm: Sentences | None = None
    clocks_mhz: dict[Name, Count | None] | None = None
    seconds: Amount | None = None
    date: Name | None = None
    identity: Name | None = None
    called_ms: Positive | None = None
    called_spread: Amount | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state is {shown(self.state)}: it must be one of {', '.join(STATES)}")
        record(vars(self), _fields_of_a_row())
        numbers = (self.time_ms, self.time_spread, self.repeats, self.tflops)
        known = [value is not None for value in numbers]
        if self.ok and not (all(known) and self.reason is None):
            raise ValueError(f"{self.key} is measured: it must have every number and no reason")
        if not self.ok and (any(known) or not self.reason):
            raise ValueError(f"{self.key} is {self.state}: it must have a reason and no number")

    @property
    def key(self) -> Key:
        """The layer, the batch and the system, which identify the row."""
        return self.layer, self.batch, self.system

    @property
    def problem(self) -> ConvProblem:
        """The problem that was measured."""
        return problem_named(self.layer, self.batch)

    @property
    def ok(self) -> bool:
        """Return whether there is a number."""
        return self.state == "measured"

    @classmethod
    def from_json(cls, row: object) -> ResultRow:
        """The row of a document; ``ValueError`` for anything else."""
        return record(_with_infinite_error(row), cls)


def _with_infinite_error(row: object) -> object:
    """The row of a document with a number for the words ``"nan"`` and ``"inf"``, which stand for an
    error that JSON has no number for."""
    name = "error_over_bound"
    if isinstance(row, dict) and row.get(name) in ("nan", "inf"):
        return row | {name: float(row[name])}
    return row


@cache
def _fields_of_a_row() -> Any:
    """The types of a row's fields, for rows that code makes: those of files are checked as they
    are read."""
    return TypedDict("_fields_of_a_row", get_type_hints(ResultRow, include_extras=True))  # type: ignore[operator]


class _Document(TypedDict):
    """A file of results as :meth:`Results.as_json` writes it."""

    machine: Machine
    environment: _Environment
    identity: Name
    systems: list[_System]
    rows: list[ResultRow]
    commands: list[Sentences]
    finished: Name | None
    missing: NotRequired[list[tuple[Name, Natural, Short]]]


@dataclass
class Results:
    """The rows by what they are of, the systems and layers they name, and the machine. ``missing``
    are rows asked for that are not there yet; ``finished`` says when the last one came. ``more``
    are further keys of the document: what an experiment has beside rows."""

    machine: Machine
    environment: dict[str, Any]
    identity: str
    rows: dict[Key, ResultRow] = field(default_factory=dict)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    finished: str | None = None
    missing: dict[Key, None] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """The name of the GPU."""
        return self.machine.device

    def add(self, row: ResultRow, system: System) -> None:
        """Take a row in, in the place of an older one of the same case."""
        self.rows[row.key] = row
        self.systems[system.name] = system.as_json()
        self.missing.pop(row.key, None)
        self.finished = None if self.missing else datetime.now(UTC).isoformat(timespec="seconds")

    def layers(self) -> list[Layer]:
        """Layer and batch, in the paper's order."""
        return sorted({key[:2] for key in self.rows}, key=_order)

    def row(self, layer: str, batch: int, system: str) -> ResultRow | None:
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
        whole: dict[str, Any] = strict({
            "format": FORMAT,
            "version": VERSION,
            "device": self.device,
            "machine": asdict(self.machine),
            "environment": self.environment,
            "packages": self.environment["packages"],
            "identity": self.identity,
            "commands": self.commands,
            "finished": self.finished,
            "ok": not any(row.state in WRONG_STATES for row in self.rows.values()),
            "missing": [*self.missing],
            "layers": [_layer_json(*layer) for layer in self.layers()],
            "systems": [*self.systems.values()],
            "rows": [
                {"problem": str(row.problem)} | asdict(row)
                for row in sorted(self.rows.values(), key=lambda row: _order(row.key))
            ],
        } | self.more)  # fmt: skip
        return whole

    @classmethod
    def from_json(cls, whole: object) -> Results:
        """Return the results of :meth:`as_json`; raise ``ValueError`` for anything else."""
        about = record(whole, dict[str, Any])
        for name, known in (("format", FORMAT), ("version", VERSION)):
            if about.get(name) != known or isinstance(about[name], bool):
                raise ValueError(f"its {name} is {shown(about.get(name))}, not {known!r}")
        rows_told = about.get("rows")
        if isinstance(rows_told, list):
            about = about | {"rows": [*map(_with_infinite_error, rows_told)]}
        read = record(about, _Document)
        rows, missing = read["rows"], read.get("missing", [])
        results = cls(
            machine=read["machine"],
            environment=about["environment"],  # with what else it holds
            identity=read["identity"],
            rows={row.key: row for row in rows},
            systems={system["name"]: system for system in about["systems"]},
            commands=read["commands"],
            finished=read["finished"],
            missing=dict.fromkeys(missing),
            more={name: about[name] for name in MORE if name in about},
        )
        for row in rows:
            if row.system not in results.systems:
                raise ValueError(
                    f"there is a row of {shown(row.system)}, which is not one of its systems"
                )
        for layer, batch in {key[:2] for key in (*results.rows, *missing)}:
            problem_named(layer, batch)
        return results


def _order(key: Layer | Key) -> tuple[int, str, int]:
    layer, batch, *_ = key
    digits = layer.removeprefix("conv").partition(" ")[0]  # of "conv9 dinput" too
    return (int(digits) if digits.isdecimal() else 0, layer, batch)


def _layer_json(layer: str, batch: int) -> dict[str, object]:
    problem = problem_named(layer, batch)
    return {
        "layer": layer, "batch": batch, "problem": str(problem), "flops": problem.flops,
        "least_bytes": problem.least_bytes, "tensor_bytes": tensor_bytes(problem),
    }  # fmt: skip


def open_results(path: Path) -> Results:
    """The results in a file. Raises ``ValueError`` naming the file and what is wrong with it."""
    try:
        return Results.from_json(document(bytes_of(path)))
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not a file of results: {error}") from error


def set_aside(path: Path, older: Results) -> Path:
    """Keep a file of results beside itself, under a name that no file has: what is written to
    ``path`` from now on is of another machine, other versions or other code. Returns that name.
    Raises ``OSError`` where it cannot be written."""
    endings = chain([""], (f"-{number}" for number in count(2)))
    names = (f"{path.stem}-{older.identity}{end}{path.suffix}" for end in endings)
    # A link, too, is there, wherever it leads.
    aside = next(one for name in names if not os.path.lexists(one := path.with_name(name)))
    write_whole(aside, path.read_bytes())
    return aside


def identity(environment: Mapping[str, object], gpu: str | None, code: str | None = None) -> str:
    """A short word for machine, compiler, versions and code together: what rows must have in common
    to stand in one table. The GPU's own number goes into it and cannot be read from it. ``code`` is
    another process's :func:`code_fingerprint`; None is this one's."""
    same = {
        "gpu": [environment["gpu"], gpu],
        "compiler": environment.get("compiler"),  # older documents do not name it
        "python": environment["python"],
        "packages": environment["packages"],
        "code": code_fingerprint() if code is None else code,
    }
    return fingerprint((), json.dumps(same, sort_keys=True))


def code_fingerprint(root: Path | None = None, parts: Iterable[str] = MEASURED_BY) -> str:
    """A short word for the source that times depend on."""
    folder = Path(__file__).parents[1] if root is None else root
    found = [
        file for part in parts for file in (folder / part, *sorted((folder / part).rglob("*")))
    ]
    code = (file for file in found if file.suffix in {".py", ".cu", ".cpp"} and file.is_file())
    return fingerprint(code, below=folder)
