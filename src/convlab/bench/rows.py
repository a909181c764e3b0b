"""One row of a benchmark: how one system did on one layer. A number, or the reason why there is
none, never both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

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


def is_number(value: Any) -> bool:
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
    "a finite number or null": lambda value: value is None or is_number(value),
    "a finite number above 0": lambda value: is_number(value) and value > 0,
    "a finite number of 0 or more": lambda value: is_number(value) and value >= 0,
    "a number, which may be infinite": lambda value: isinstance(value, float) or is_number(value),
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
NUMBERS = ("time_ms", "time_spread", "repeats", "tflops")


def require(value: Any, kind: str, what: str) -> None:
    """Raise ``ValueError`` where a value is not of one of :data:`KINDS`."""
    if not KINDS[kind](value):
        raise ValueError(f"{what} is {value!r}: it must be {kind}")


@dataclass(frozen=True)
class Row:
    """One system on one layer.

    ``state`` says how it went and ``reason`` why there is no number, in a sentence. ``time_ms`` is
    the median of ``repeats`` runs, ``time_spread`` the width of their middle half in percent of it,
    ``settled`` whether that is small. ``bound`` is the rule that the output was checked by,
    and ``error_over_bound`` is the largest error divided by that bound. ``workspace_bytes`` is
    computed, ``peak_bytes`` the device memory that was seen to be taken, tensors included.
    ``clocks_mhz`` are the SMs' as timing began and as it ended. ``identity`` stands for machine,
    versions and code. ``called_ms`` is the median of ordinary calls, launches included, and
    ``called_spread`` the width of their middle half in percent of it; None on the host and in older
    results.

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
            raise ValueError(f"state is {self.state!r}: it must be one of {', '.join(STATES)}")
        for kind, names in OF_A_ROW.items():
            for name in names:
                if (value := getattr(self, name)) is not None:
                    require(value, kind, f"{name} of {self.key}")
        numbers = [name for name in NUMBERS if getattr(self, name) is not None]
        if self.state == "measured" and (len(numbers) < len(NUMBERS) or self.reason is not None):
            raise ValueError(f"{self.key} is measured: it must have every number and no reason")
        if self.state != "measured" and (numbers or not self.reason):
            raise ValueError(f"{self.key} is {self.state}: it must have a reason and no number")

    @property
    def key(self) -> Key:
        return self.layer, self.batch, self.system

    @property
    def ok(self) -> bool:
        """Whether there is a number."""
        return self.state == "measured"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Row:
        """The row that :meth:`as_json` wrote, or one with an infinite error as a word;
        ``ValueError`` or ``TypeError`` for anything else."""
        names = {field.name for field in fields(cls)}
        read = {name: value for name, value in document.items() if name in names}
        if isinstance(read.get("error_over_bound"), str):
            read["error_over_bound"] = float(read["error_over_bound"])
        return cls(**read)
