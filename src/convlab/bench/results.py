"""A file of results: rows, and what they were measured with.

A row says how one system did on one layer: a number, or the reason why there is none, never both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, get_args

import convlab
from convlab.arguments import shown
from convlab.bench.baselines import System
from convlab.bench.roofline import Machine
from convlab.bench.systems import BASELINES
from convlab.files import fingerprint, json_of, strict, text_of, write_whole
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
"""What a row is of: layer, batch and system."""
Layer = tuple[str, int]
"""A layer's name and its batch."""


# What is read must be of the kind that those who use it expect.


def _is_number(value: Any) -> bool:
    """Whether it is a finite number: JSON's ``true`` and Python's ``NaN`` are none."""
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


KINDS: dict[str, Callable[[Any], bool]] = {
    "a string": lambda value: isinstance(value, str),
    "a string or null": lambda value: isinstance(value, str | None),
    "an object": lambda value: isinstance(value, dict),
    "an object or null": lambda value: isinstance(value, dict | None),
    "a list": lambda value: isinstance(value, list),
    "true or false": lambda value: type(value) is bool,
    "a finite number or null": lambda value: value is None or _is_number(value),
    "a finite number above 0": lambda value: _is_number(value) and value > 0,
    "a finite number of 0 or more": lambda value: _is_number(value) and value >= 0,
    "a number, which may be infinite": lambda value: isinstance(value, float) or _is_number(value),
    "a whole number of 0 or more": _is_count,
    "a whole number above 0": lambda value: _is_count(value) and value > 0,
    "whole numbers by name": lambda value: (
        isinstance(value, dict) and all(one is None or _is_count(one) for one in value.values())
    ),
}
OF_A_ROW = {
    "a string": ("layer", "system", "reason", "bound", "algorithm", "date", "identity"),
    "a finite number above 0": ("time_ms", "tflops", "called_ms"),
    "a finite number of 0 or more": ("time_spread", "called_spread", "seconds"),
    "a whole number of 0 or more": ("workspace_bytes", "peak_bytes"),
    "a whole number above 0": ("batch", "repeats"),
    "true or false": ("settled",),
    "a number, which may be infinite": ("error_over_bound",),
    "whole numbers by name": ("clocks_mhz",),
}
OF_A_DOCUMENT = {
    "an object": ("machine", "environment"),
    "a string": ("identity",),
    "a list": ("systems", "rows", "commands"),
    "a string or null": ("finished",),
}
OF_AN_ENVIRONMENT = {"an object or null": ("gpu", "packages", "clocks_mhz")}
OF_A_SYSTEM = {"a string": ("name", "title", "kind", "family", "precision", "method")}


def _require(
    values: Mapping[str, Any], kinds: Mapping[str, Iterable[str]], what: str = "its {}"
) -> None:
    """Raise ``ValueError`` where a value is not of its kind; ``what`` is how a value is called."""
    for kind, names in kinds.items():
        for name in names:
            if not KINDS[kind](value := values.get(name)):
                raise ValueError(f"{what.format(name)} is {shown(value)}: it must be {kind}")


def tensor_bytes(problem: ConvProblem) -> int:
    """Input, filter and output: what every convolution needs."""
    shapes = (problem.input_shape, problem.weight_shape, problem.output_shape)
    return 4 * sum(map(math.prod, shapes))


@dataclass(frozen=True)
class Row:
    """One system on one layer; docs/json.md tells what each value is, and its unit.

    ``state`` says how it went and ``reason`` why there is no number, in a sentence. ``bound`` is
    the rule that the output was checked by, ``peak_bytes`` the device memory that was seen to be
    taken, tensors included. ``called_ms`` and ``called_spread`` are of ordinary calls, launches
    included; None on the host and in older results.

    Raises ``ValueError`` for a number without the state ``measured``, or that state without one,
    and for what cannot be: a time that is not above zero, a count that is no whole number.
    """

    layer: str
    batch: int
    system: str
    state: State
    reason: str | None = None
    time_ms: float | None = None
    time_spread: float | None = None
    repeats: int | None = None
    settled: bool | None = None
    tflops: float | None = None
    bound: str | None = None
    error_over_bound: float | None = None
    workspace_bytes: int | None = None
    peak_bytes: int | None = None
    algorithm: str | None = None
    clocks_mhz: dict[str, int | None] | None = None
    seconds: float | None = None
    date: str | None = None
    identity: str | None = None
    called_ms: float | None = None
    called_spread: float | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state is {shown(self.state)}: it must be one of {', '.join(STATES)}")
        known = {name: value for name, value in vars(self).items() if value is not None}
        told = {kind: known.keys() & names for kind, names in OF_A_ROW.items()}
        _require(known, told, f"{{}} of {self.key}")
        numbers = [name in known for name in ("time_ms", "time_spread", "repeats", "tflops")]
        if self.ok and not (all(numbers) and self.reason is None):
            raise ValueError(f"{self.key} is measured: it must have every number and no reason")
        if not self.ok and (any(numbers) or not self.reason):
            raise ValueError(f"{self.key} is {self.state}: it must have a reason and no number")

    @property
    def key(self) -> Key:
        return self.layer, self.batch, self.system

    @property
    def problem(self) -> ConvProblem:
        return problem_named(self.layer, self.batch)

    @property
    def ok(self) -> bool:
        """Whether there is a number."""
        return self.state == "measured"

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Row:
        """The row of a document, whose infinite error may be a word; ``ValueError`` or
        ``TypeError`` for anything else."""
        read = {one.name: document[one.name] for one in fields(cls) if one.name in document}
        if read.get("error_over_bound") in ("nan", "inf"):
            read["error_over_bound"] = float(read["error_over_bound"])
        return cls(**read)


@dataclass
class Results:
    """The rows by what they are of, the systems and layers they name, and the machine. ``missing``
    are rows asked for that are not there yet; ``finished`` says when the last one came. ``more``
    are further keys of the document: what an experiment has beside rows."""

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

    def layers(self) -> list[Layer]:
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
        document: dict[str, Any] = strict({
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
        return document

    @classmethod
    def from_json(cls, document: Any) -> Results:
        """What :meth:`as_json` wrote. Raises ``ValueError`` saying what is wrong with it."""
        try:
            for name, known in (("format", FORMAT), ("version", VERSION)):
                if document[name] != known:
                    raise ValueError(f"its {name} is {shown(document[name])}, not {known!r}")
            machine, environment = _checked(document)
            rows = [Row.from_json(row) for row in document["rows"]]
            missing = [(layer, batch, name) for layer, batch, name in document.get("missing", ())]
            results = cls(
                machine, environment, document["identity"], {row.key: row for row in rows},
                {system["name"]: system for system in document["systems"]},
                [*document["commands"]], document["finished"], dict.fromkeys(missing),
                {name: document[name] for name in MORE if name in document},
            )  # fmt: skip
            for row in rows:
                if row.system not in results.systems:
                    raise ValueError(
                        f"there is a row of {shown(row.system)}, which is no system of it"
                    )
            for layer, batch in {key[:2] for key in (*results.rows, *missing)}:
                problem_named(layer, batch)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no result of convlab bench: {shown(error)}") from error
        return results


def _checked(document: Mapping[str, Any]) -> tuple[Machine, dict[str, Any]]:
    """Machine and environment of a document; ``ValueError`` where a part is not of its kind."""
    _require(document, OF_A_DOCUMENT)
    machine, environment = document["machine"], document["environment"]
    ceilings = {one.name for one in fields(Machine)} & machine.keys()
    kinds = {"a string": ["device"], "a finite number or null": ceilings - {"device"}}
    _require(machine, kinds, "its machine.{}")
    _require(environment, OF_AN_ENVIRONMENT, "its environment.{}")
    for system in document["systems"]:
        _require({"system": system}, {"an object": ["system"]})
        _require(system, OF_A_SYSTEM, f"{{}} of its system {shown(system.get('name'))}")
    return Machine(**{name: machine[name] for name in ceilings}), environment


def _order(key: tuple[Any, ...]) -> tuple[int, str, int]:
    layer, batch, *_ = key
    digits = layer.removeprefix("conv").partition(" ")[0]  # of "conv9 dinput" too
    return (int(digits) if digits.isdecimal() else 0, layer, batch)


def _layer_json(layer: str, batch: int) -> dict[str, Any]:
    problem = problem_named(layer, batch)
    return {
        "layer": layer, "batch": batch, "problem": str(problem), "flops": problem.flops,
        "least_bytes": problem.least_bytes, "tensor_bytes": tensor_bytes(problem),
    }  # fmt: skip


def open_results(path: Path) -> Results:
    """The results in a file. Raises ``ValueError`` naming the file and what is wrong with it."""
    try:
        return Results.from_json(json_of(text_of(path)))
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is no file of results: {error}") from error


def set_aside(path: Path, older: Results) -> Path:
    """Keep a file of results beside itself, under a name that no file has: what is written to
    ``path`` from now on is of another machine, other versions or other code. Returns that name.
    Raises ``OSError`` where it cannot be written."""
    endings = chain([""], (f"-{number}" for number in count(2)))
    names = (f"{path.stem}-{older.identity}{end}{path.suffix}" for end in endings)
    aside = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    write_whole(aside, path.read_bytes())
    return aside


def identity(environment: Mapping[str, Any], gpu: str | None) -> str:
    """A short word for machine, compiler, versions and code together: what rows must have in common
    to stand in one table. The GPU's own number goes into it and cannot be read from it."""
    same = {
        "gpu": [environment["gpu"], gpu],
        "compiler": environment.get("compiler"),  # older documents do not name it
        "python": environment["python"],
        "packages": environment["packages"],
        "code": code_fingerprint(),
    }
    return fingerprint((), json.dumps(same, sort_keys=True))


def code_fingerprint(root: Path | None = None, parts: Iterable[str] = MEASURED_BY) -> str:
    """A short word for the source that times depend on."""
    folder = Path(convlab.__file__).parent if root is None else root
    found = [
        file for part in parts for file in (folder / part, *sorted((folder / part).rglob("*")))
    ]
    code = (file for file in found if file.suffix in {".py", ".cu", ".cpp"} and file.is_file())
    return fingerprint(code, below=folder)
